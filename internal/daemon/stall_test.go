package daemon_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
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
