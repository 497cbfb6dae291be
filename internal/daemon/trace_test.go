package daemon_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/stintdev/stint/internal/test/testredis"
)

// sink is a collector of spans.
type sink struct {
	*httptest.Server
	received chan *collector.ExportTraceServiceRequest
}

func newSink(t *testing.T) *sink {
	t.Helper()
	s := &sink{received: make(chan *collector.ExportTraceServiceRequest, 16)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		got := new(collector.ExportTraceServiceRequest)
		if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(text, got) != nil {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		s.received <- got
	}))
	t.Cleanup(s.Close)
	return s
}

// all returns the spans that were received, after the daemon was stopped.
func (s *sink) all() (all []*spans.Span) {
	close(s.received)
	for got := range s.received {
		all = append(all, got.ResourceSpans[0].ScopeSpans[0].Spans...)
	}
	return all
}

// text returns the attributes of a span that begin with a prefix.
func text(s *spans.Span, prefix string) string {
	var all []string
	for _, a := range s.Attributes {
		if strings.HasPrefix(a.Key, prefix) && a.Key != "stint.decision_id" {
			value := a.Value.GetStringValue()
			switch v := a.Value.Value.(type) {
			case *common.AnyValue_BoolValue:
				value = strconv.FormatBool(v.BoolValue)
			case *common.AnyValue_IntValue:
				value = strconv.FormatInt(v.IntValue, 10)
			}
			all = append(all, strings.TrimPrefix(a.Key, prefix)+"="+value)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// TestTraceHeaders checks that the variables of OpenTelemetry for what a collector wants have their
// meaning. It is not parallel, because they are those of the process.
func TestTraceHeaders(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=shop")
	tenant := make(chan string, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case tenant <- r.URL.Path + " of " + r.Header.Get("X-Tenant"):
		default:
		}
	}))
	t.Cleanup(collector.Close)
	p := start(t, fmt.Sprintf("[server.trace]\nendpoint = %q\nsample = 10000\n", collector.URL), set("server.counters", "memory:"))
	p.get(t, "http", "/healthz")
	do(t, p.Stop(t.Context()))
	select {
	case got := <-tenant:
		if got != "/v1/traces of shop" {
			t.Error(got)
		}
	default: // all were sent when it stopped
		t.Error("no span arrives")
	}
}

// TestTrace traces requests through the gateway to the upstream, and checks what a collector receives: a span of each
// request, with what was decided, and spans of the calls of Redis.
func TestTrace(t *testing.T) {
	t.Parallel()
	for name, counters := range map[string]string{"memory": "memory:", "redis": testredis.Start(t).URL()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sink := newSink(t)
			parents := make(chan string, 1)
			upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				parents <- r.Header.Get("Traceparent")
			}))
			t.Cleanup(upstream.Close)
			d := start(t, fmt.Sprintf(`
[server]
counters = %q
store_budget = "20s"
[server.trace]
endpoint = %q
sample = 10000
[[upstreams]]
targets = [%q]
[[rules]]
name = "one"
limits = [ { name = "hourly", limit = "1/1h" } ]
`, counters, sink.URL, upstream.URL))
			const trace = "0af7651916cd43dd8448eb211c80319c"
			for _, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
				code, _ := d.send(t, d.client, http.MethodGet, d.URL("gateway")+"/x", "", "Traceparent", "00-"+trace+"-b7ad6b7169203331-01")
				if code != want {
					t.Fatalf("%d, want %d", code, want)
				}
			}
			if p := <-parents; !strings.HasPrefix(p, "00-"+trace+"-") || strings.Contains(p, "b7ad6b7169203331") {
				t.Errorf("the upstream's parent is %s", p)
			}
			_, metrics := d.send(t, d.client, http.MethodGet, d.URL("admin")+"/metrics", "", "Accept", "application/openmetrics-text; version=1.0.0")
			histograms := []string{"stint_decision_seconds"}
			if name == "redis" {
				histograms = append(histograms, `stint_store_seconds`)
			}
			for _, h := range histograms {
				if !regexp.MustCompile(`(?m)^` + h + `_bucket\{.*le="[^"]+"\} \d+ # \{trace_id="` + trace + `"\} `).MatchString(metrics) {
					t.Errorf("%s has no exemplar", h)
				}
			}
			if err := d.Stop(t.Context()); err != nil { // which sends what there is
				t.Fatal(err)
			}
			var requests []string
			calls, parent := 0, map[string]bool{}
			all := sink.all()
			for _, s := range all {
				if s.Kind == spans.Span_SPAN_KIND_SERVER {
					parent[string(s.SpanId)] = true
					requests = append(requests, text(s, "http.response.")+" "+text(s, "stint."))
				}
			}
			for _, s := range all {
				if s.Kind != spans.Span_SPAN_KIND_CLIENT {
					continue
				}
				calls++
				if s.Name != "redis take" || !parent[string(s.ParentSpanId)] || s.EndTimeUnixNano <= s.StartTimeUnixNano || !strings.HasPrefix(text(s, "stint."), "asks=1 result=") {
					t.Errorf("%v", s)
				}
			}
			slices.Sort(requests)
			want := []string{
				"status_code=200 basis=counted limit=hourly outcome=allowed rule=one shadow=false",
				"status_code=429 basis=counted limit=hourly outcome=denied rule=one shadow=false",
			}
			if !slices.Equal(requests, want) {
				t.Errorf("%q, want %q", requests, want)
			}
			if wantCalls := map[string]int{"memory": 0, "redis": 2}[name]; calls != wantCalls {
				t.Errorf("%d calls of Redis, want %d", calls, wantCalls)
			}
		})
	}
}
