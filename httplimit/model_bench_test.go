package httplimit_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
)

const (
	noMeters = `
[[rules]]
name = "requests"
limits = [{ name = "requests", limit = "1000000000/1h" }]
`
	modelMeters = noMeters + `
[[rules]]
name = "tokens"
cost = { meter = "llm.total_tokens" }
limits = [{ name = "tokens", limit = "1000000000000/1h" }]
[[rules]]
name = "output"
cost = { meter = "llm.output_tokens", on_overrun = "cut" }
limits = [{ name = "output", limit = "1000000000000/1h" }]
`
	// chatStream asks for a stream, and not for its usage.
	chatStream = `{"model":"gpt-x","stream":true,"max_tokens":4000,"messages":[{"role":"user","content":"` + "Tell me a long story, please." + `"}]}`
	chatEvent  = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-x","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n"
	chatEnd    = `data: {"id":"chatcmpl-1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1000,"total_tokens":1009}}` + "\n\ndata: [DONE]\n\n"
)

// streaming returns a gateway to a provider that sends a number of events. After each it waits for goOn, if that is not nil,
// or else for what the client has sent to the channel in paces whose number is in its request.
func streaming(tb testing.TB, rules string, events int, goOn <-chan struct{}, paces ...chan struct{}) string {
	tb.Helper()
	provider := serve(tb, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, chatEvent)
		_ = http.NewResponseController(w).Flush()
		goOn := goOn
		if n, err := strconv.Atoi(r.Header.Get("X-Stream")); err == nil && n < len(paces) {
			goOn = paces[n]
		}
		for range events - 1 {
			if goOn != nil {
				<-goOn
			}
			_, _ = io.WriteString(w, chatEvent)
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, chatEnd)
	}), false)
	_, s := gateway(tb, httplimit.GatewayOptions{Engine: gatewayEngine(tb, rules, identity.Options{}), Routes: to(provider.URL)})
	return s.URL + "/v1/chat/completions"
}

// open asks for a stream, and returns when its first event is there.
func open(tb testing.TB, c *http.Client, url string, stream int) io.ReadCloser {
	tb.Helper()
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, strings.NewReader(chatStream))
	if err != nil {
		tb.Fatal(err)
	}
	r.Header.Set("X-Stream", strconv.Itoa(stream))
	res, err := c.Do(r)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := io.ReadFull(res.Body, make([]byte, len(chatEvent))); err != nil {
		tb.Fatal(err)
	}
	return res.Body
}

// BenchmarkModel is the cost of answers of language models by way of a gateway, without meters and with them: of an event of
// 16 streams, each of which sends the next when the client has the last, and until the first event of an answer. What the
// client and the provider cost is in it.
func BenchmarkModel(b *testing.B) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16, DisableCompression: true}}
	b.Cleanup(client.CloseIdleConnections)
	for _, c := range []struct {
		name, rules string
	}{{"plain", noMeters}, {"metered", modelMeters}} {
		b.Run("stream/"+c.name, func(b *testing.B) {
			paces := make([]chan struct{}, 16)
			for i := range paces {
				paces[i] = make(chan struct{}, 1)
			}
			const events = 200
			url := streaming(b, c.rules, events, nil, paces...)
			b.ReportAllocs()
			var wg sync.WaitGroup
			for i, pace := range paces {
				wg.Go(func() {
					event := make([]byte, len(chatEvent))
					for n := i * events; n < b.N; n += len(paces) * events {
						body := open(b, client, url, i)
						for range events - 1 {
							pace <- struct{}{}
							if _, err := io.ReadFull(body, event); err != nil {
								b.Error(err)
								return
							}
						}
						_, _ = io.Copy(io.Discard, body)
						_ = body.Close()
					}
				})
			}
			wg.Wait()
		})
		b.Run("first/"+c.name, func(b *testing.B) {
			url := streaming(b, c.rules, 2, nil)
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				body := open(b, client, url, -1)
				took = append(took, time.Since(began))
				_, _ = io.Copy(io.Discard, body)
				_ = body.Close()
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-µs")
		})
	}
}
