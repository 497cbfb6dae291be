package rlqs_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	quotav3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/grpclimit/rlqs"
	"github.com/stintdev/stint/grpclimit/rls"
	"github.com/stintdev/stint/memstore"
)

// wire carries messages, each of which takes a while.
type wire[M any] struct {
	c     chan sent[M]
	delay func() time.Duration
}

type sent[M any] struct {
	at time.Time
	m  M
}

func newWire[M any](delay func() time.Duration) *wire[M] {
	return &wire[M]{make(chan sent[M], 1000), delay}
}

func (w *wire[M]) send(ctx context.Context, m M) error {
	select {
	case w.c <- sent[M]{time.Now().Add(w.delay()), m}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *wire[M]) recv(ctx context.Context) (m M, err error) {
	select {
	case s := <-w.c:
		<-time.After(time.Until(s.at))
		return s.m, nil
	case <-ctx.Done():
		return m, io.EOF
	}
}

// link is a stream between an Envoy and the server.
type link struct {
	grpc.ServerStream
	ctx  context.Context //nolint:containedctx // that of the stream
	up   *wire[*quotav3.RateLimitQuotaUsageReports]
	down *wire[*quotav3.RateLimitQuotaResponse]
}

func newLink(ctx context.Context, delay func() time.Duration) *link {
	return &link{ctx: ctx, up: newWire[*quotav3.RateLimitQuotaUsageReports](delay), down: newWire[*quotav3.RateLimitQuotaResponse](delay)}
}

func (l *link) Context() context.Context { return l.ctx }
func (l *link) Send(m *quotav3.RateLimitQuotaResponse) error {
	return l.down.send(l.ctx, proto.CloneOf(m))
}
func (l *link) Recv() (*quotav3.RateLimitQuotaUsageReports, error) { return l.up.recv(l.ctx) }

// fakeEnvoy does what the protocol asks of Envoy, for one bucket, and denies what it has no assignment for.
type fakeEnvoy struct {
	id *quotav3.BucketId

	mu              sync.Mutex
	strategy        *typev3.RateLimitStrategy // nil: none
	expires         time.Time
	tokens          int64
	allowed, denied uint64 // since the last report
	reported        time.Time
}

// request is a request, which passes or not.
func (f *fakeEnvoy) request() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	ok := false
	if f.strategy != nil && time.Now().Before(f.expires) {
		switch f.strategy.GetStrategy().(type) {
		case *typev3.RateLimitStrategy_BlanketRule_:
			ok = f.strategy.GetBlanketRule() == typev3.RateLimitStrategy_ALLOW_ALL
		case *typev3.RateLimitStrategy_TokenBucket:
			if ok = f.tokens > 0; ok {
				f.tokens--
			}
		}
	}
	if ok {
		f.allowed++
	} else {
		f.denied++
	}
	return ok
}

// report returns what has happened since the last report.
func (f *fakeEnvoy) report() *quotav3.RateLimitQuotaUsageReports {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	m := &quotav3.RateLimitQuotaUsageReports{Domain: "shop", BucketQuotaUsages: []*quotav3.RateLimitQuotaUsageReports_BucketQuotaUsage{{
		BucketId: f.id, TimeElapsed: durationpb.New(now.Sub(f.reported)), NumRequestsAllowed: f.allowed, NumRequestsDenied: f.denied,
	}}}
	f.allowed, f.denied, f.reported = 0, 0, now
	return m
}

// apply applies what the server says, and reports whether that ended an assignment.
func (f *fakeEnvoy) apply(m *quotav3.RateLimitQuotaResponse) (ended bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range m.GetBucketAction() {
		if !maps.Equal(a.GetBucketId().GetBucket(), f.id.GetBucket()) {
			continue
		}
		q := a.GetQuotaAssignmentAction()
		if q == nil {
			f.strategy = nil
			continue
		}
		now := time.Now()
		if f.strategy == nil || !now.Before(f.expires) || !proto.Equal(f.strategy, q.GetRateLimitStrategy()) {
			ended = true
			f.strategy, f.tokens = q.GetRateLimitStrategy(), int64(q.GetRateLimitStrategy().GetTokenBucket().GetMaxTokens())
		}
		f.expires = now.Add(q.GetAssignmentTimeToLive().AsDuration())
	}
	return ended
}

// serve has an Envoy connected until ctx ends.
func (f *fakeEnvoy) serve(ctx context.Context, s *rlqs.Server, interval time.Duration, delay func() time.Duration, speaks func() bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := newLink(ctx, delay)
	var work sync.WaitGroup
	work.Go(func() { _ = s.StreamRateLimitQuotas(l) })
	work.Go(func() {
		for {
			m, err := l.down.recv(ctx)
			if err != nil {
				return
			}
			if speaks() && f.apply(m) {
				_ = l.up.send(ctx, f.report())
			}
		}
	})
	for {
		if speaks() {
			_ = l.up.send(ctx, f.report())
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			work.Wait()
			return
		}
	}
}

func newServer(t *testing.T, yaml string, nodes int) (servers []*rlqs.Server, store stint.Store) {
	t.Helper()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := descriptor.Read([]descriptor.File{{Name: "shop.yaml", Data: []byte("domain: shop\ndescriptors:\n" + yaml)}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range nodes {
		service, err := rls.New(rls.Options{Store: store, Config: config})
		if err != nil {
			t.Fatal(err)
		}
		s, err := rlqs.New(rlqs.Options{Limits: service, Store: store, Nodes: func() int { return nodes }})
		if err != nil {
			t.Fatal(err)
		}
		servers = append(servers, s)
	}
	return servers, store
}

// fleetTime is how long the fleet runs: longer than its windows, and ten minutes with "make bench-quotas".
var fleetTime = time.Minute

// TestFleet has 50 Envoys on 2 nodes, which come, go, fall silent and speak again. In no window do they let more pass
// than the limit, and they let most of it pass.
func TestFleet(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit  string
		window time.Duration
		max    int64 // in a window
		more   int64 // than that, of what is spent later than it was charged
	}{
		{"window: 1s, requests_per_unit: 1000", time.Second, 1000, 0},
		{"window: 20s, requests_per_unit: 5000", 20 * time.Second, 5000, 0},
		{"window: 5s, requests_per_unit: 2500, algorithm: sliding_window", 5 * time.Second, 2500, 0},
		{"window: 10s, requests_per_unit: 5000, algorithm: token_bucket, burst: 500", 10 * time.Second, 5000, 500 + 500},
	} {
		t.Run(c.limit, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { fleet(t, c.limit, c.window, c.max, c.more) })
		})
	}
}

func fleet(t *testing.T, limit string, window time.Duration, limited, more int64) {
	t.Helper()
	servers, store := newServer(t, fmt.Sprintf("  - key: route\n    rate_limit: {%s}\n", limit), 2)
	defer store.Close()
	const envoys = 50
	ctx, cancel := context.WithTimeout(t.Context(), fleetTime)
	defer cancel()
	delay := func() time.Duration { return rand.N(5 * time.Millisecond) }
	var passed sync.Map // by window: *atomic.Int64
	var all, denied atomic.Int64
	var work sync.WaitGroup
	for i := range envoys {
		f := &fakeEnvoy{id: &quotav3.BucketId{Bucket: map[string]string{"route": "search"}}, reported: time.Now()}
		var mute atomic.Bool
		work.Go(func() { // it comes and goes
			for ctx.Err() == nil {
				life := fleetTime
				if i%3 == 0 {
					life = time.Second + rand.N(10*time.Second)
				}
				one, end := context.WithTimeout(ctx, life)
				f.serve(one, servers[(i+rand.N(2))%2], 500*time.Millisecond, delay, func() bool { return !mute.Load() })
				end()
			}
		})
		work.Go(func() {
			for ctx.Err() == nil {
				select {
				case <-time.After(rand.N(40 * time.Millisecond)): // 50 a second of each: 2,500 of all
				case <-ctx.Done():
					return
				}
				if !f.request() {
					denied.Add(1)
					continue
				}
				all.Add(1)
				n, _ := passed.LoadOrStore(time.Now().UnixNano()/int64(window), new(atomic.Int64))
				n.(*atomic.Int64).Add(1)
			}
		})
		if i%5 == 0 {
			work.Go(func() { // it falls silent, and goes on with what it has
				for ctx.Err() == nil {
					<-time.After(rand.N(10 * time.Second))
					mute.Store(!mute.Load())
				}
			})
		}
	}
	work.Wait()
	for w, n := range passed.Range {
		if n := n.(*atomic.Int64).Load(); n > limited+more {
			t.Errorf("%d have passed in window %v; want at most %d", n, w, limited+more)
		}
	}
	var sum rlqs.Requests
	for _, s := range servers {
		for _, n := range s.Stats() {
			sum.Assigned, sum.Passed, sum.Back, sum.Unassigned = sum.Assigned+n.Assigned, sum.Passed+n.Passed, sum.Back+n.Back, sum.Unassigned+n.Unassigned
		}
		if got := s.State(); got != (rlqs.State{}) {
			t.Errorf("after all have left: %+v", got)
		}
	}
	if least := limited * int64(fleetTime/window) * 3 / 4; all.Load() < least {
		t.Errorf("%d have passed; want at least %d", all.Load(), least)
	}
	t.Logf("%d passed, %d denied; %+v", all.Load(), denied.Load(), sum)
}
