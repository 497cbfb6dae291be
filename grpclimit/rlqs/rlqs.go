// Package rlqs is Envoy's rate limit quota service, over the descriptors of package rls. It is experimental:
// there is no other public server of this protocol, and Envoy calls its own filter for it a work in progress.
//
//	service, err := rls.New(rls.Options{Store: store, Config: limits})
//	quotas, err := rlqs.New(rlqs.Options{Limits: service, Store: store})
//	quotas.Register(server)
//
// With rls, Envoy asks about each request. Here it is given a number of requests that it may let pass in the next
// second or so, an assignment, and asks for nothing: it reports what it has done. What was not used is given back.
//
// # The bound
//
// The requests of an assignment are charged to the counter before Envoy hears of them, as those of [layer.Lease] are.
// So all Envoys of all nodes are together never assigned more than the limit, also while they come, go and fall
// silent: what one of them holds stays charged until it reports after the end of its assignment that it was not used,
// or the limit gives it back by itself. Assignments under a fixed_window or sliding_window end with the window, a
// moment ([margin]) before. Those that reach Envoy later than that may be spent in the next window; under a
// token_bucket, leaky_bucket or sliding_log, up to one term after they were charged.
//
// What Envoy does without an assignment is its own configuration: before the first (no_assignment_behavior), and when
// one has expired (expired_assignment_behavior). What it lets pass then is in its report, and is charged in full when
// that arrives, as requests that were not assigned.
//
// # Buckets
//
// A bucket is a set of keys and values. It is counted as the descriptor that has these entries, in the first order,
// by the names of keys, for which the domain has a limit; and with the same counter, if Envoy also asks about that.
// Buckets without a limit, and those in shadow_mode, let everything pass; what passes in shadow_mode is charged.
//
// # What it does not do
//
// It has no penalties and no quota_mode. It keeps nothing on disk: what a node that stops has assigned stays charged,
// and requests that an Envoy reports to another node, though they were assigned by the first, are charged again.
package rlqs

import (
	"cmp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	quotav3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/rls"
)

// Options are a server's settings. Limits and Store are required.
type Options struct {
	// Limits finds the limit and the counter of a bucket.
	Limits *rls.Service
	// Store holds the counters. It must be the one of Limits.
	Store stint.Store
	// OnFailure is what happens while the store cannot be reached, as for [rls.Options].
	OnFailure stint.FailMode
	// Shadow lets everything pass, and charges it.
	Shadow bool
	// Nodes returns how many nodes share the limits now. Default 1.
	Nodes func() int
	// Term is how long an assignment lasts at most, from 100 ms to 1 minute. Default 1 second.
	Term time.Duration
	// Buckets is how many buckets are served at once, of all Envoys together, at about 1 KB each. Further ones have no
	// assignment. Default 100,000.
	Buckets int
}

// Server assigns quotas. It is safe for concurrent use.
type Server struct {
	quotav3.UnimplementedRateLimitQuotaServiceServer

	o      Options
	policy stint.Policy // of all asks
	meter  meter

	streams, buckets, refused atomic.Int64

	mu      sync.Mutex
	sharing map[stint.Key]int64 // buckets of this node by counter
}

// New returns a server.
func New(o Options) (*Server, error) {
	o.Term, o.Buckets = cmp.Or(o.Term, time.Second), cmp.Or(o.Buckets, 100_000)
	if o.Nodes == nil {
		o.Nodes = func() int { return 1 }
	}
	switch {
	case o.Limits == nil:
		return nil, &stint.InvalidError{Field: "Limits", Value: "nil", Want: "a service, as rls.New returns"}
	case o.Store == nil:
		return nil, &stint.InvalidError{Field: "Store", Value: "nil", Want: "the store of the service"}
	case o.Term < 100*time.Millisecond || o.Term > time.Minute:
		return nil, &stint.InvalidError{Field: "Term", Value: o.Term.String(), Want: "from 100ms to 1m"}
	case o.Buckets < 0:
		return nil, &stint.InvalidError{Field: "Buckets", Value: strconv.Itoa(o.Buckets), Want: "at least 1, or 0 for the default"}
	}
	return &Server{
		o: o, policy: stint.Policy{OnFailure: o.OnFailure},
		meter: meter{limits: map[string]*counts{}}, sharing: map[stint.Key]int64{},
	}, nil
}

// Register adds the service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { quotav3.RegisterRateLimitQuotaServiceServer(r, s) }

// State is how many Envoys are connected, how many buckets they have, and how many buckets were not served because
// there were too many.
type State struct{ Streams, Buckets, Refused int64 }

// State returns the state of the server.
func (s *Server) State() State {
	return State{Streams: s.streams.Load(), Buckets: s.buckets.Load(), Refused: s.refused.Load()}
}

// share notes that one more bucket has a counter, or with -1 that one less has.
func (s *Server) share(k stint.Key, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sharing[k] += n; s.sharing[k] == 0 {
		delete(s.sharing, k)
	}
}

// sharers returns about how many Envoys share a counter.
func (s *Server) sharers(k stint.Key) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(1, s.sharing[k]) * max(1, int64(s.o.Nodes()))
}
