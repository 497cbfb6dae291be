package daemon_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestStalledStream has an HTTP/2 client that does not read one response, and reads another
// on the same connection: only the first is cut off.
func TestStalledStream(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/endless" {
			fmt.Fprint(w, "done")
			return
		}
		defer close(ended)
		for b := make([]byte, 1<<16); ; {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	}))
	defer upstream.Close()
	p := start(t, many+fmt.Sprintf("[[upstreams]]\ntargets = [%q]\n", upstream.URL), set("server.stall_timeout", "500ms"))
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	endless, err := client.Get(p.URL("gateway") + "/endless")
	do(t, err)
	defer endless.Body.Close()
	<-ended
	answer, err := client.Get(p.URL("gateway") + "/")
	do(t, err)
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "done" {
		t.Errorf("%q %v", body, err)
	}
}

// TestSilentStream has an upstream that pauses in its response for longer than a client
// may: the client is not cut off, whatever its protocol.
func TestSilentStream(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "first")
		_ = http.NewResponseController(w).Flush()
		<-time.After(time.Second)
		fmt.Fprintln(w, "second")
	}))
	defer upstream.Close()
	p := start(t, many+fmt.Sprintf("[[upstreams]]\ntargets = [%q]\n", upstream.URL), set("server.stall_timeout", "200ms"))
	for _, http2 := range []bool{false, true} {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetHTTP1(!http2)
		transport.Protocols.SetUnencryptedHTTP2(http2)
		answer, err := (&http.Client{Transport: transport}).Post(p.URL("gateway")+"/", "text/plain", strings.NewReader("hello"))
		do(t, err)
		lines := bufio.NewScanner(answer.Body)
		var got []string
		for lines.Scan() {
			got = append(got, lines.Text())
		}
		if strings.Join(got, " ") != "first second" || lines.Err() != nil || (answer.ProtoMajor == 2) != http2 {
			t.Errorf("%s: %q %v", answer.Proto, got, lines.Err())
		}
		_ = answer.Body.Close()
		transport.CloseIdleConnections()
	}
}

// TestSlowBody has clients that send a byte of their body now and then, and never pause for
// too long, and one that is as slow as it may be.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	defer upstream.Close()
	p := start(t, many+fmt.Sprintf("[[upstreams]]\ntargets = [%q]\n", upstream.URL), set("server.stall_timeout", "3s"), set("server.min_body_rate", "1000"))
	post := func(listener, path string, http2 bool, part string, parts int) (status int) {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetHTTP1(!http2)
		transport.Protocols.SetUnencryptedHTTP2(http2)
		defer transport.CloseIdleConnections()
		body, w := io.Pipe()
		go func() {
			defer w.Close()
			for range parts {
				if _, err := io.WriteString(w, part); err != nil {
					return
				}
				<-time.After(10 * time.Millisecond)
			}
		}()
		answer, err := (&http.Client{Transport: transport}).Post(p.URL(listener)+path, "application/json", body)
		if err != nil {
			return 0 // the connection was closed
		}
		defer answer.Body.Close()
		return answer.StatusCode
	}
	const forever = 2000 // 20 seconds
	var clients sync.WaitGroup
	for _, http2 := range []bool{false, true} {
		clients.Go(func() { // 100 bytes a second
			if status := post("gateway", "/", http2, "x", forever); status != http.StatusRequestTimeout && status != 0 {
				t.Errorf("a slow body gets %d", status)
			}
		})
		clients.Go(func() {
			if status := post("http", "/v1/check", http2, " ", forever); status == http.StatusOK {
				t.Error("a slow body of the decision API passes")
			}
		})
		clients.Go(func() {
			if status := post("gateway", "/", http2, strings.Repeat("x", 1000), 450); status != http.StatusOK {
				t.Errorf("a body that takes longer than a pause may gets %d", status)
			}
		})
	}
	clients.Wait()
}
