// Package rls is Envoy's rate limit service, in the place of envoyproxy/ratelimit:
// the same protocol, the same configuration, and the same answers, but for what
// docs/envoy.md lists.
//
//	limits, err := descriptor.Read(files, descriptor.Options{})
//	service, err := rls.New(rls.Options{Store: store, Config: limits})
//	rls.NewGRPC(service).Serve(listener)
//
// # How a request is counted
//
// All descriptors of a request are charged, or none: what is refused is charged to no
// one. In a domain with compat: independent each is counted for itself.
//
// A descriptor that has a hits_addend of its own tells what something has cost, after
// the fact, for that is what Envoy sends when a response is done. It is counted for
// itself, and in full, even if that is more than is left. Of 0 it asks whether
// anything is left.
//
// A limit in shadow_mode is counted like the others, and refuses nothing. Limits in
// quota_mode refuse only if all of a request's do.
//
// # What it refuses to do
//
// It does not answer when it cannot know: a store that is out of reach is an error of
// the call, and Envoy's failure_mode_deny decides. Whoever wants this node's memory to
// decide then wraps the store.
package rls

import (
	"context"
	"errors"
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
	// Store is where to count. It bounds how long it takes, as that of package redisstore
	// does: callers who leave do not stop it. It is not closed with the service.
	Store stint.Store
	// Config is what to limit. Nil: calls fail until [Service.Use] says.
	Config *descriptor.Config
	// Recorder is told of every request to which a limit applied. Nil: no one is.
	Recorder engine.Recorder
	// OnFailure is what happens while the store is out of reach. Default: what the layers
	// around it decide holds, and without layers calls fail. With [stint.FailError] calls
	// fail in any case, and Envoy's failure_mode_deny decides.
	OnFailure stint.FailMode
	// Shadow has nothing refused, and Quota has all limits be in quota_mode.
	Shadow, Quota bool
	// Headers has responses carry how the tightest limit stands. Nil: they do not.
	Headers *Headers
	// Metadata has Envoy told what was asked, and the metadata of what passed.
	Metadata bool
	// NearRatio is the share of a limit from which on hits are counted as near it.
	// Default 0.8.
	NearRatio float64
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Headers are the names of the headers of responses.
type Headers struct {
	Limit, Remaining, Reset string
}

// DefaultHeaders are the names that envoyproxy/ratelimit has.
var DefaultHeaders = Headers{Limit: "RateLimit-Limit", Remaining: "RateLimit-Remaining", Reset: "RateLimit-Reset"}

// Service answers Envoy. It may be used by many goroutines at once.
type Service struct {
	o       Options
	policy  stint.Policy // of all asks
	near    float64
	current atomic.Pointer[setup]
	use     sync.Mutex
	stats   stats
	works   sync.Pool
}

// setup is what is replaced as one.
type setup struct {
	config *descriptor.Config
	hits   map[*descriptor.Limit]*hits
}

// New returns a service.
func New(o Options) (*Service, error) {
	if o.NearRatio == 0 {
		o.NearRatio = 0.8
	}
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
	s := &Service{o: o, policy: stint.Policy{OnFailure: o.OnFailure}, near: o.NearRatio}
	s.works.New = func() any { return new(work) }
	if o.Config != nil {
		s.Use(o.Config)
	}
	return s, nil
}

// Use replaces what to limit, at one instant, while requests are answered.
func (s *Service) Use(c *descriptor.Config) {
	s.use.Lock()
	defer s.use.Unlock()
	s.current.Store(&setup{config: c, hits: s.stats.use(c)})
}

// Config returns what is in use. It is nil if nothing is.
func (s *Service) Config() *descriptor.Config {
	if u := s.current.Load(); u != nil {
		return u.config
	}
	return nil
}

// Usage tells how the limit of a descriptor stands, and changes nothing. It is nil if
// no limit applies.
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

// Usage is how the limit of a descriptor stands.
type Usage struct {
	Limit    *descriptor.Limit
	Key      stint.Key // of its counter; the zero Key if it has none
	Banned   bool      // by its penalty
	Decision stint.Decision
}

// Reset forgets what a descriptor has used, and its violations. It reports whether a
// limit applies to it.
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

// invalid is what is wrong with a request.
func invalid(field, what string) error {
	return status.Error(codes.InvalidArgument, field+": "+what)
}

// failure is the error of a call that could not be decided.
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
	// Not what it was: it may hold addresses.
	return status.Error(codes.Unavailable, "the counters could not be reached")
}
