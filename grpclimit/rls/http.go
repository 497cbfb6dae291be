package rls

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
)

const (
	maxBody = 1 << 20
	// maxObjects is how many objects a body may have: {} has two bytes, and takes a hundred
	// bytes of memory.
	maxObjects = maxDescriptors * 8
)

// origins refuses requests that browsers send for pages of other sites.
var origins = http.NewCrossOriginProtection()

// Handler serves POST /json, which is ShouldRateLimit without gRPC, and GET and, for
// operators, DELETE /v1/descriptors, which return the state of a descriptor's limit and
// reset it.
func (s *Service) Handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("POST /json", s.serveJSON)
	m.HandleFunc("GET /v1/descriptors", s.serveUsage)
	if s.o.Operators != nil {
		m.Handle("DELETE /v1/descriptors", s.o.Operators(http.HandlerFunc(s.serveReset)))
	}
	return m
}

func (s *Service) serveJSON(w http.ResponseWriter, r *http.Request) {
	// Any Content-Type will do, so browsers send what pages of other sites have made, without asking.
	if err := origins.Check(r); err != nil {
		writeError(w, http.StatusForbidden, status.New(codes.PermissionDenied, err.Error()))
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		writeError(w, http.StatusRequestEntityTooLarge, status.Newf(codes.ResourceExhausted, "the body has more than %d bytes", int64(maxBody)))
		return
	}
	var q rlsv3.RateLimitRequest
	switch {
	case err != nil:
		err = status.Error(codes.InvalidArgument, "the body could not be read")
	case bytes.Count(body, []byte("{")) > maxObjects:
		err = status.Errorf(codes.InvalidArgument, "the body has more than %d objects", maxObjects)
	default:
		if err = protojson.Unmarshal(body, &q); err != nil {
			err = status.Error(codes.InvalidArgument, err.Error())
		}
	}
	var a *rlsv3.RateLimitResponse
	if err == nil {
		a, err = s.ShouldRateLimit(r.Context(), &q)
	}
	if err != nil {
		fail(w, err)
		return
	}
	out, err := protojson.Marshal(a)
	if err != nil {
		writeError(w, http.StatusInternalServerError, status.New(codes.Internal, err.Error()))
		return
	}
	code := http.StatusOK
	if a.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
		code = http.StatusTooManyRequests
	}
	write(w, code, out)
}

// usage is the response to GET /v1/descriptors.
type usage struct {
	Domain     string      `json:"domain"`
	Entries    []string    `json:"entries"`
	Limit      string      `json:"limit"` // where it is configured
	Name       string      `json:"name,omitempty"`
	Rate       string      `json:"rate,omitempty"`
	Unlimited  bool        `json:"unlimited,omitempty"`
	Max        int64       `json:"max"`
	Used       int64       `json:"used"`
	Remaining  int64       `json:"remaining"`
	ResetAfter float64     `json:"reset_after"` // seconds
	Banned     bool        `json:"banned,omitempty"`
	RetryAfter float64     `json:"retry_after,omitempty"`
	Basis      stint.Basis `json:"basis,omitempty"`
}

func (s *Service) serveUsage(w http.ResponseWriter, r *http.Request) {
	domain, entries, err := named(r.URL.Query())
	if err != nil {
		fail(w, err)
		return
	}
	u, err := s.Usage(r.Context(), domain, entries)
	switch {
	case err != nil:
		fail(w, err)
		return
	case u == nil:
		writeError(w, http.StatusNotFound, status.New(codes.NotFound, "no limit applies to this descriptor"))
		return
	}
	l, d := u.Limit, &u.Decision
	out := usage{
		Domain: domain, Entries: r.URL.Query()["entry"], Limit: l.Path, Name: l.Name, Unlimited: l.Unlimited,
		Max: int64(l.Requests), Remaining: d.Remaining, ResetAfter: d.ResetAfter.Seconds(), Basis: d.Basis,
	}
	if l.Requests > 0 && !l.Unlimited {
		out.Rate, out.Max, out.Used = l.Limit.String(), d.Limit, d.Limit-d.Remaining
	}
	if u.Banned {
		out.Banned, out.RetryAfter = true, d.RetryAfter.Seconds()
	}
	text, err := json.Marshal(out)
	if err != nil {
		fail(w, err)
		return
	}
	write(w, http.StatusOK, text)
}

func (s *Service) serveReset(w http.ResponseWriter, r *http.Request) {
	domain, entries, err := named(r.URL.Query())
	if err != nil {
		fail(w, err)
		return
	}
	u, err := s.Usage(r.Context(), domain, entries)
	if err == nil && u == nil {
		writeError(w, http.StatusNotFound, status.New(codes.NotFound, "no limit applies to this descriptor"))
		return
	}
	if err == nil && s.o.OnReset != nil {
		err = s.o.OnReset(r.Context(), domain, entries)
	}
	if err == nil {
		_, err = s.Reset(r.Context(), domain, entries)
	}
	if err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// named parses the descriptor in a query: domain=mongo&entry=database=users&entry=...
func named(q url.Values) (domain string, entries []descriptor.Entry, err error) {
	for name := range q {
		if name != "domain" && name != "entry" {
			return "", nil, invalid(name, "unknown; want domain, and entry=key=value for each entry")
		}
	}
	for i, text := range q["entry"] {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return "", nil, invalid("entry "+strconv.Itoa(i+1), strconv.Quote(text)+"; want key=value")
		}
		entries = append(entries, descriptor.Entry{Key: key, Value: value})
	}
	return q.Get("domain"), entries, nil
}

// ServeConfig writes a line for each limit, like envoyproxy/ratelimit at /rlconfig.
func (s *Service) ServeConfig(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if c := s.Config(); c != nil {
		for l := range c.Limits() {
			_, _ = fmt.Fprintln(w, l.String()) // the client may be gone
		}
	}
}

func fail(w http.ResponseWriter, err error) {
	s := status.Convert(err)
	code := http.StatusServiceUnavailable
	switch s.Code() {
	case codes.InvalidArgument:
		code = http.StatusBadRequest
	case codes.DeadlineExceeded:
		code = http.StatusGatewayTimeout
	default:
	}
	writeError(w, code, s)
}

// writeError writes a gRPC status as JSON.
func writeError(w http.ResponseWriter, code int, s *status.Status) {
	text, err := protojson.Marshal(s.Proto())
	if err != nil {
		text = []byte(`{}`)
	}
	write(w, code, text)
}

func write(w http.ResponseWriter, code int, text []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(code)
	_, _ = w.Write(text) // the client may be gone
}
