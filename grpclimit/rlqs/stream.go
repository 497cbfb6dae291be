package rlqs

import (
	"context"
	"errors"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	quotav3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
)

const (
	// maxEntries is how many keys a bucket may have: all orders of them are tried.
	maxEntries = 6
	// maxName is how long the domain, the keys and the values of a bucket may be together. Values may come from headers,
	// so what is longer does not end the stream.
	maxName = 4 << 10
	// maxCalls is how many calls of the store are under way at once for an Envoy.
	maxCalls = 32
)

type (
	stream = grpc.BidiStreamingServer[quotav3.RateLimitQuotaUsageReports, quotav3.RateLimitQuotaResponse]
	usage  = quotav3.RateLimitQuotaUsageReports_BucketQuotaUsage
	action = quotav3.RateLimitQuotaResponse_BucketAction
)

// StreamRateLimitQuotas implements the service of the protocol.
func (s *Server) StreamRateLimitQuotas(stream stream) error {
	s.streams.Add(1)
	defer s.streams.Add(-1)
	ctx := stream.Context()
	reports, failed := make(chan *quotav3.RateLimitQuotaUsageReports), make(chan error, 1)
	go func() { // it ends with the stream
		for {
			m, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case reports <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	e := &envoy{server: s, buckets: map[string]*bucket{}}
	defer e.leave()
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		select {
		case err := <-failed:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case m := <-reports:
			if err := e.report(ctx, m); err != nil {
				return err
			}
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if actions := e.assign(ctx); len(actions) > 0 {
			if err := stream.Send(&quotav3.RateLimitQuotaResponse{BucketAction: actions}); err != nil {
				return err
			}
		}
		timer.Reset(e.next())
	}
}

// envoy is one Envoy. Only its stream uses it.
type envoy struct {
	server  *Server
	domain  string
	buckets map[string]*bucket
}

func invalid(field, what string) error { return status.Error(codes.InvalidArgument, field+": "+what) }

// report notes what Envoy has done.
func (e *envoy) report(ctx context.Context, m *quotav3.RateLimitQuotaUsageReports) error {
	if m.GetDomain() != "" { // which only the first report must have
		e.domain = m.GetDomain()
	}
	if e.domain == "" {
		return invalid("domain", "must not be empty in the first report")
	}
	now := time.Now()
	var charges []stint.Ask
	for i, u := range m.GetBucketQuotaUsages() {
		field := "bucket_quota_usages[" + strconv.Itoa(i) + "]"
		names := u.GetBucketId().GetBucket()
		switch elapsed := u.GetTimeElapsed(); {
		case len(names) == 0 || len(names) > maxEntries:
			return invalid(field+".bucket_id", "has "+strconv.Itoa(len(names))+" keys, want from 1 to "+strconv.Itoa(maxEntries))
		case elapsed != nil && (elapsed.CheckValid() != nil || elapsed.AsDuration() < 0):
			return invalid(field+".time_elapsed", "want a duration")
		}
		if b := e.bucket(names, u, now); b != nil {
			charges = append(charges, e.note(ctx, b, u, now)...)
		}
	}
	e.adjust(ctx, charges)
	return nil
}

// bucket returns a bucket, and begins to serve it if it is new. It is nil if there are too many, or its name is too long.
func (e *envoy) bucket(names map[string]string, u *usage, now time.Time) *bucket {
	s, length := e.server, len(e.domain)
	for key, value := range names {
		length += len(key) + len(value)
	}
	if length > maxName {
		s.refused.Add(1)
		return nil
	}
	entries := make([]descriptor.Entry, 0, len(names))
	for _, key := range slices.Sorted(maps.Keys(names)) {
		entries = append(entries, descriptor.Entry{Key: key, Value: names[key]})
	}
	var name strings.Builder
	for _, en := range append([]descriptor.Entry{{Key: e.domain}}, entries...) {
		name.WriteString(strconv.Quote(en.Key) + strconv.Quote(en.Value))
	}
	b := e.buckets[name.String()]
	if b == nil {
		if s.buckets.Add(1) > int64(s.o.Buckets) {
			s.buckets.Add(-1)
			s.refused.Add(1)
			return nil
		}
		b = &bucket{id: u.GetBucketId(), domain: e.domain, entries: entries, wanted: now, renew: now}
		e.buckets[name.String()] = b
	}
	return b
}

// note notes a report of a bucket, and returns what is to be charged or given back.
func (e *envoy) note(ctx context.Context, b *bucket, u *usage, now time.Time) []stint.Ask {
	if b.config == nil {
		e.server.find(ctx, b) // so that its first requests are charged, too
	}
	allowed, denied := int64(min(u.GetNumRequestsAllowed(), math.MaxInt32)), int64(min(u.GetNumRequestsDenied(), math.MaxInt32))
	unassigned := b.report(now, allowed, denied, u.GetTimeElapsed().AsDuration())
	if b.limit == nil {
		return nil
	}
	c := e.server.meter.of(b.limit.Path)
	c.passed.Add(allowed)
	c.denied.Add(denied)
	c.unassigned.Add(unassigned)
	back := b.unused()
	for i := range back {
		c.back.Add(-back[i].Cost)
	}
	if unassigned > 0 && b.counted() {
		a := b.ask
		a.Cost = unassigned
		back = append(back, a)
	}
	return back
}

// adjust changes counters. What fails stays charged, or is not charged.
func (e *envoy) adjust(ctx context.Context, asks []stint.Ask) {
	for some := range slices.Chunk(asks, 32) {
		_ = e.server.o.Store.Adjust(ctx, some, make([]stint.Decision, len(some)))
	}
}

// assign returns what Envoy is to be told now.
func (e *envoy) assign(ctx context.Context) (actions []*action) {
	now := time.Now()
	var due []*bucket
	for name, b := range e.buckets {
		switch {
		case b.forgotten(now):
			actions = append(actions, abandon(b))
			e.forget(name)
		case b.mute(now):
			b.renew = time.Time{}
		case !b.renew.IsZero() && !now.Before(b.renew):
			due = append(due, b)
		}
	}
	told := make([]func(now time.Time) *action, len(due))
	var calls sync.WaitGroup
	turns := make(chan struct{}, maxCalls)
	for i, b := range due {
		turns <- struct{}{}
		calls.Go(func() {
			defer func() { <-turns }()
			told[i] = e.server.assign(ctx, b)
		})
	}
	calls.Wait()
	now = time.Now() // the time of an assignment begins when Envoy hears of it
	for _, tell := range told {
		if tell == nil {
			continue
		}
		if a := tell(now); a != nil {
			actions = append(actions, a)
		}
	}
	return actions
}

// next returns how long it is until something is due.
func (e *envoy) next() time.Duration {
	now := time.Now()
	at := now.Add(idle)
	for _, b := range e.buckets {
		if !b.renew.IsZero() && b.renew.Before(at) {
			at = b.renew
		}
		if end := b.wanted.Add(idle); end.Before(at) {
			at = end
		}
	}
	return max(at.Sub(now), 0)
}

// forget forgets a bucket. What it was assigned stays charged.
func (e *envoy) forget(name string) {
	if b := e.buckets[name]; b.counted() {
		e.server.share(b.ask.Key, -1)
	}
	delete(e.buckets, name)
	e.server.buckets.Add(-1)
}

// leave forgets all buckets.
func (e *envoy) leave() {
	for name := range e.buckets {
		e.forget(name)
	}
}
