package daemon_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// TestTrace traces requests through the gateway to the upstream, and checks what a
// collector receives.
func TestTrace(t *testing.T) {
	t.Parallel()
	spans := make(chan *collector.ExportTraceServiceRequest, 16)
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		got := new(collector.ExportTraceServiceRequest)
		if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(text, got) != nil {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		spans <- got
	}))
	t.Cleanup(sink.Close)
	parents := make(chan string, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		parents <- r.Header.Get("Traceparent")
	}))
	t.Cleanup(upstream.Close)
	d := start(t, `
[server.trace]
endpoint = "`+sink.URL+`"
sample = 10000
[[upstreams]]
targets = ["`+upstream.URL+`"]
[[rules]]
name = "one"
limits = [ { name = "one", limit = "1/1h" } ]
`)
	const trace = "0af7651916cd43dd8448eb211c80319c"
	for _, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.URL("gateway")+"/x", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Traceparent", "00-"+trace+"-b7ad6b7169203331-01")
		a, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
		if a.StatusCode != want {
			t.Fatalf("%s, want %d", a.Status, want)
		}
	}
	if p := <-parents; !strings.HasPrefix(p, "00-"+trace+"-") || strings.Contains(p, "b7ad6b7169203331") {
		t.Errorf("the upstream's parent is %s", p)
	}
	if err := d.Stop(t.Context()); err != nil { // which sends what there is
		t.Fatal(err)
	}
	close(spans)
	statuses := map[int64]int{}
	for got := range spans {
		for _, s := range got.ResourceSpans[0].ScopeSpans[0].Spans {
			for _, a := range s.Attributes {
				if a.Key == "http.response.status_code" {
					statuses[a.Value.GetIntValue()]++
				}
			}
		}
	}
	if statuses[200] != 1 || statuses[429] != 1 {
		t.Errorf("spans by status: %v", statuses)
	}
}
