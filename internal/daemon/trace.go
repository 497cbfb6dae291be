package daemon

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/layer"
)

// tracing sends spans of requests to an OpenTelemetry collector. A nil tracing sends
// none.
type tracing struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	headers  propagation.TraceContext
	// counted means that counters are in memory, which counts every decision.
	counted   bool
	exemplars sync.Map // layer.Outcome: *exemplars
}

// exemplars are the last trace of each bucket of a histogram.
type exemplars [len(bounds) + 1]atomic.Pointer[prometheus.Exemplar]

// newTracing returns nil if no endpoint is set. The collector need not be reachable: spans
// that cannot be sent are dropped.
func newTracing(ctx context.Context, t Trace) (*tracing, error) {
	if t.Endpoint == "" {
		return nil, nil
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(string(t.Endpoint)+"/v1/traces"), otlptracehttp.WithTimeout(5*time.Second))
	if err != nil {
		return nil, err
	}
	p := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		// The header of the client is ignored, or any client could have everything traced.
		sdktrace.WithSampler(sdktrace.TraceIDRatioBased(float64(t.Sample)/allRequests)),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", "stint"))),
	)
	return &tracing{provider: p, tracer: p.Tracer("github.com/stintdev/stint")}, nil
}

// allRequests is the value of server.trace.sample that traces every request.
const allRequests = 10_000

// around traces the requests of a handler. Upstreams get the span as the parent of theirs.
func (t *tracing) around(listener string, h http.Handler) http.Handler {
	if t == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		carrier := propagation.HeaderCarrier(r.Header)
		ctx := t.headers.Extract(r.Context(), carrier)
		ctx, span := t.tracer.Start(ctx, listener, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
			attribute.String("http.request.method", r.Method), attribute.String("url.path", r.URL.Path),
			attribute.String("server.address", r.Host), attribute.String("network.protocol.version", r.Proto),
		))
		defer span.End()
		t.headers.Inject(ctx, carrier)
		s := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		h.ServeHTTP(s, r.WithContext(ctx))
		span.SetAttributes(attribute.Int("http.response.status_code", s.status))
		if s.status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, "")
		}
	})
}

// record adds a decision to the span of its request.
func (t *tracing) record(ctx context.Context, e *engine.Event) {
	if t == nil {
		return
	}
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(
		attribute.String("stint.decision_id", e.ID.String()), attribute.String("stint.outcome", e.Outcome.String()),
		attribute.String("stint.rule", e.Rule), attribute.String("stint.limit", e.Limit), attribute.Bool("stint.shadow", e.Shadow),
	)
	if t.counted {
		span.SetAttributes(attribute.String("stint.basis", stint.Counted.String()))
	}
	t.note(decisions, e.Latency, span)
}

// observe adds a call of Redis to the trace of its request, and to the request's span what its decision was based on.
func (t *tracing) observe(ctx context.Context, c *layer.Call) {
	if t == nil {
		return
	}
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	t.note(c.Outcome(), c.Took, span)
	switch {
	case c.Layer == "failmode" && c.Verb == layer.Take && c.Err == nil:
		span.SetAttributes(attribute.String("stint.basis", c.Basis.String()))
	case c.Layer == "store":
		now := time.Now()
		_, call := t.tracer.Start(ctx, "redis "+c.Verb.String(), trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(now.Add(-c.Took)), trace.WithAttributes(
			attribute.String("db.system.name", "redis"), attribute.Int("stint.asks", c.Asks), attribute.String("stint.result", c.Outcome().Result.String()),
		))
		if c.Err != nil {
			call.SetStatus(codes.Error, c.Err.Error())
		}
		call.End(trace.WithTimestamp(now))
	}
}

// decisions stands for the durations of decisions, as opposed to those of calls.
var decisions layer.Outcome

// note remembers a trace as the example of its bucket in a histogram.
func (t *tracing) note(of layer.Outcome, took time.Duration, span trace.Span) {
	c := span.SpanContext()
	if !c.IsSampled() {
		return
	}
	all, _ := t.exemplars.LoadOrStore(of, new(exemplars))
	i, _ := slices.BinarySearch(bounds[:], took)
	all.(*exemplars)[i].Store(&prometheus.Exemplar{
		Value: took.Seconds(), Labels: prometheus.Labels{"trace_id": c.TraceID().String()}, Timestamp: time.Now(),
	})
}

// examples returns the metric with the traces that were noted for it.
func (t *tracing) examples(m prometheus.Metric, of layer.Outcome) prometheus.Metric {
	if t == nil {
		return m
	}
	all, ok := t.exemplars.Load(of)
	if !ok {
		return m
	}
	var noted []prometheus.Exemplar
	for i := range len(bounds) + 1 {
		if one := all.(*exemplars)[i].Load(); one != nil {
			noted = append(noted, *one)
		}
	}
	if out, err := prometheus.NewMetricWithExemplars(m, noted...); err == nil {
		return out
	}
	return m
}

// close sends the remaining spans, until ctx ends.
func (t *tracing) close(ctx context.Context) {
	if t != nil {
		_ = t.provider.Shutdown(ctx) // spans may be lost
	}
}

// statusWriter remembers the status.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for [http.ResponseController].
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
