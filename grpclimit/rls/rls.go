// Package rls is Envoy's rate limit service, a replacement for envoyproxy/ratelimit: it has
// the same protocol, the same configuration and the same responses, except for the
// differences in docs/envoy.md.
//
//	limits, err := descriptor.Read(files, descriptor.Options{})
//	service, err := rls.New(rls.Options{Store: store, Config: limits})
//	rls.NewGRPC(service).Serve(listener)
//
// # How a request is counted
//
// All descriptors of a request are charged, or none: a request that is denied is not
// charged. In a domain with compat: independent, each descriptor is counted independently.
//
// A descriptor with its own hits_addend reports what something has cost after the fact:
// Envoy sends it when a response is complete. It is counted independently and in full, even
// if less remains. With a hits_addend of 0 it asks whether anything remains.
//
// A limit in shadow_mode is counted like others, and denies nothing. Limits in quota_mode
// deny a request only if all of them are used up.
//
// # What it does not do
//
// It does not guess: if the store cannot be reached, the call fails, and Envoy's
// failure_mode_deny decides. To decide by this node's memory instead, wrap the store.
package rls

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/layer"
)

// Options are a service's settings. Store is required.
type Options struct {
	// Store holds the counters. It must bound how long calls take, like that of package
	// redisstore, because a caller that leaves does not cancel them. It is not closed with
	// the service.
	Store stint.Store
	// Config is the limits. If it is nil, calls fail until [Service.Use] is called.
	Config *descriptor.Config
	// Recorder records every request to which a limit applies. Default: none.
	Recorder engine.Recorder
	// OnFailure is what happens while the store cannot be reached. Default: what the layers
	// around the store decide; without layers, calls fail. With [stint.FailError] calls
	// always fail, and Envoy's failure_mode_deny decides.
	OnFailure stint.FailMode
	// Shadow denies no request. Quota puts all limits into quota_mode.
	Shadow, Quota bool
	// Headers are added to responses, with the state of the tightest limit. Default: none.
	Headers *Headers
	// DecisionHeader is the name of a header that is added to responses, with the id of the
	// decision, if a limit applied. Default: none.
	DecisionHeader string
	// Metadata sends Envoy the request, and the configured metadata of limits that passed,
	// as dynamic metadata.
	Metadata bool
	// NearRatio is the share of a limit above which hits are counted as near the limit.
	// Default 0.8.
	NearRatio float64
	// Operators wraps the handler of DELETE /v1/descriptors, which resets counters: it passes
	// on the requests of operators, and answers all others. Default: nobody may reset
	// counters.
	Operators func(next http.Handler) http.Handler
	// OnReset is called before the counter of a descriptor is reset there. If it returns an
	// error, nothing is reset. Default: nothing is done.
	OnReset func(ctx context.Context, domain string, entries []descriptor.Entry) error
	// Served is called after each call to a server of [NewGRPC], with how long it took. Default:
	// nothing is done.
	Served func(took time.Duration)
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Headers are the names of the headers of responses.
type Headers struct {
	Limit, Remaining, Reset string
}

// DefaultHeaders are the names of envoyproxy/ratelimit.
var DefaultHeaders = Headers{Limit: "RateLimit-Limit", Remaining: "RateLimit-Remaining", Reset: "RateLimit-Reset"}

// Service answers Envoy. It is safe for concurrent use.
type Service struct {
	o       Options
	policy  stint.Policy // of all asks
	current atomic.Pointer[setup]
	use     sync.Mutex
	stats   stats
	works   sync.Pool
}

// setup is a configuration and its metrics, which are replaced together.
type setup struct {
	config *descriptor.Config
	hits   map[*descriptor.Limit]*hits
}

// New returns a service.
func New(o Options) (*Service, error) {
	o.NearRatio = cmp.Or(o.NearRatio, 0.8)
	if o.Now == nil {
		o.Now = time.Now
	}
	switch {
	case o.Store == nil:
		return nil, &stint.InvalidError{Field: "Store", Value: "nil", Want: "a store, such as memstore.New returns"}
	case !(o.NearRatio > 0 && o.NearRatio <= 1):
		return nil, &stint.InvalidError{Field: "NearRatio", Value: strconv.FormatFloat(o.NearRatio, 'g', -1, 64), Want: "more than 0, and at most 1"}
	case o.Headers != nil && (o.Headers.Limit == "" || o.Headers.Remaining == "" || o.Headers.Reset == ""):
		return nil, &stint.InvalidError{Field: "Headers", Value: "", Want: "three names, as DefaultHeaders has"}
	}
	if o.OnFailure != stint.FailLocal && layer.PlaceOf(o.Store) < layer.PlaceFailMode {
		var err error
		if o.Store, err = layer.FailMode(o.Store, layer.FailModeOptions{}); err != nil {
			return nil, err
		}
	}
	s := &Service{o: o, policy: stint.Policy{OnFailure: o.OnFailure}}
	s.works.New = func() any { return new(work) }
	if o.Config != nil {
		s.Use(o.Config)
	}
	return s, nil
}

// Use replaces the limits atomically.
func (s *Service) Use(c *descriptor.Config) {
	s.use.Lock()
	defer s.use.Unlock()
	s.current.Store(&setup{config: c, hits: s.stats.use(c)})
}

// Config returns the limits in use, or nil if there are none yet.
func (s *Service) Config() *descriptor.Config {
	if u := s.current.Load(); u != nil {
		return u.config
	}
	return nil
}

// Usage returns the state of a descriptor's limit, and changes nothing. It is nil if no
// limit applies.
func (s *Service) Usage(ctx context.Context, domain string, entries []descriptor.Entry) (*Usage, error) {
	w := s.begin()
	defer s.end(w)
	w.quiet, w.q.domain = true, domain
	w.q.entries = append(w.q.entries, entries...)
	w.q.descriptors = append(w.q.descriptors, asked{to: len(entries), hits: 0, own: true})
	if err := s.decide(ctx, w); err != nil {
		return nil, err
	}
	it := &w.items[0]
	if it.limit == nil {
		return nil, nil
	}
	return &Usage{Limit: it.limit, Key: w.key(it), Banned: it.banned, Decision: it.decision}, nil
}

// Usage is the state of a descriptor's limit.
type Usage struct {
	Limit    *descriptor.Limit
	Key      stint.Key // of the counter; zero if there is none
	Banned   bool      // by the penalty
	Decision stint.Decision
}

// Reset resets the counter and the penalty of a descriptor. It reports whether a limit
// applies to it.
func (s *Service) Reset(ctx context.Context, domain string, entries []descriptor.Entry) (bool, error) {
	u, err := s.Usage(ctx, domain, entries)
	if err != nil || u == nil || u.Key.Subject == "" {
		return u != nil && err == nil, err
	}
	asks := []stint.Ask{{Key: u.Key, Limit: u.Limit.Limit}}
	if u.Limit.Penalty != nil {
		asks = append(asks, stint.Ask{Key: u.Key, Penalty: u.Limit.Penalty})
	}
	return true, failure(s.o.Store.Reset(ctx, asks))
}

// invalid returns the error for an invalid request.
func invalid(field, what string) error {
	return status.Error(codes.InvalidArgument, field+": "+what)
}

// failure returns the error of a call that could not be decided.
func failure(err error) error {
	var wrong *stint.InvalidError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, "the caller has left")
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, "the counters did not answer in time")
	case errors.As(err, &wrong):
		return status.Error(codes.InvalidArgument, strings.TrimPrefix(wrong.Error(), "stint: "))
	}
	// The error itself may hold addresses.
	return status.Error(codes.Unavailable, "the counters could not be reached")
}
