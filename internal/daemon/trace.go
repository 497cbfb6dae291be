package daemon

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// tracing sends spans of requests to an OpenTelemetry collector. A nil tracing sends
// none.
type tracing struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	headers  propagation.TraceContext
}

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
