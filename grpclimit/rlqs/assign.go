package rlqs

import (
	"context"
	"slices"
	"time"

	quotav3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
)

// find finds what limits a bucket, in the configuration in use. It reports false if that cannot be told now.
func (s *Server) find(ctx context.Context, b *bucket) bool {
	config := s.o.Limits.Config()
	if config == nil {
		return false
	}
	before := b.ask.Key
	b.limit, b.banned, b.ask = nil, false, stint.Ask{}
	for entries := range orders(b.entries) {
		u, err := s.o.Limits.Usage(ctx, b.domain, entries)
		if err != nil {
			return false
		}
		if u == nil {
			continue
		}
		b.limit, b.banned, b.remaining = u.Limit, u.Banned, u.Decision.Remaining
		if u.Key.Subject != "" {
			b.ask = stint.Ask{Key: u.Key, Limit: u.Limit.Limit, Plan: u.Limit.Plan, Policy: &s.policy}
		}
		break
	}
	b.config = config
	if b.ask.Key != before {
		if before.Subject != "" {
			s.share(before, -1)
		}
		if b.counted() {
			s.share(b.ask.Key, 1)
		}
	}
	return true
}

// orders yields the entries in all orders, the first as they are.
func orders(entries []descriptor.Entry) func(yield func([]descriptor.Entry) bool) {
	return func(yield func([]descriptor.Entry) bool) {
		order := make([]int, len(entries))
		for i := range order {
			order[i] = i
		}
		for {
			out := make([]descriptor.Entry, len(entries))
			for i, j := range order {
				out[i] = entries[j]
			}
			if !yield(out) {
				return
			}
			// The next order: the shortest end that is not the last of its orders moves on.
			i := len(order) - 2
			for i >= 0 && order[i] > order[i+1] {
				i--
			}
			if i < 0 {
				return
			}
			j := len(order) - 1
			for order[j] < order[i] {
				j--
			}
			order[i], order[j] = order[j], order[i]
			slices.Reverse(order[i+1:])
		}
	}
}

// free is how long Envoy is told to let everything pass where nothing is limited.
const free = 30 * time.Second

// assign decides what Envoy may do with a bucket, and returns what it is told, by the time when it is told. It is nil
// if that is nothing: what Envoy does after its last assignment is its own configuration.
func (s *Server) assign(ctx context.Context, b *bucket) func(now time.Time) *action {
	now := time.Now()
	if b.config != s.o.Limits.Config() || b.banned {
		if !s.find(ctx, b) {
			b.renew = now.Add(s.o.Term)
			return nil
		}
	}
	switch l := b.limit; {
	case l == nil || l.Unlimited || l.Shadow || s.o.Shadow:
		b.renew = now.Add(free / 2)
		return blanket(b, typev3.RateLimitStrategy_ALLOW_ALL, free)
	case l.Requests == 0 || b.banned:
		b.renew = now.Add(s.o.Term)
		return blanket(b, typev3.RateLimitStrategy_DENY_ALL, 2*s.o.Term)
	}
	return s.take(ctx, b)
}

// take charges requests, and assigns them.
func (s *Server) take(ctx context.Context, b *bucket) func(now time.Time) *action {
	sharers := s.sharers(b.ask.Key)
	asks, ds := []stint.Ask{b.ask}, make([]stint.Decision, 1)
	d := &ds[0]
	var begin time.Time
	for range 2 { // others may have taken what remained
		begin = time.Now()
		if asks[0].Cost = b.want(s.o.Term, sharers); asks[0].Cost == 0 {
			b.renew = begin.Add(s.o.Term)
			return nil
		}
		if err := s.o.Store.Take(ctx, asks, ds); err != nil {
			b.renew = begin.Add(s.o.Term)
			return nil
		}
		b.remaining = d.Remaining
		if d.Allowed || d.Remaining == 0 {
			break
		}
	}
	now := time.Now()
	if !d.Allowed {
		wait := min(max(d.RetryAfter, soonest), s.o.Term)
		b.renew = now.Add(wait)
		b.closed = b.renew
		return blanket(b, typev3.RateLimitStrategy_DENY_ALL, wait+s.o.Term)
	}
	until := b.assigned(d, s.o.Term, begin, now)
	s.meter.of(b.limit.Path).assigned.Add(d.Cost)
	n, serial := d.Cost, b.serial
	return func(now time.Time) *action {
		left := until.Sub(now)
		if left <= 0 {
			return nil // its window is over
		}
		return strategy(b, left, &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_TokenBucket{TokenBucket: &typev3.TokenBucket{
			MaxTokens: uint32(n), TokensPerFill: wrapperspb.UInt32(1),
			// No token is added within a term. If two assignments were equal, Envoy would prolong the first, and leave it
			// as empty as it is.
			FillInterval: durationpb.New(24*time.Hour + time.Duration(serial%2)*time.Second),
		}}})
	}
}

func blanket(b *bucket, rule typev3.RateLimitStrategy_BlanketRule, life time.Duration) func(time.Time) *action {
	return func(time.Time) *action {
		return strategy(b, life, &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: rule}})
	}
}

func strategy(b *bucket, life time.Duration, how *typev3.RateLimitStrategy) *action {
	return &action{BucketId: b.id, BucketAction: &quotav3.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{
		QuotaAssignmentAction: &quotav3.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{
			AssignmentTimeToLive: durationpb.New(life), RateLimitStrategy: how,
		},
	}}
}

func abandon(b *bucket) *action {
	return &action{BucketId: b.id, BucketAction: &quotav3.RateLimitQuotaResponse_BucketAction_AbandonAction_{
		AbandonAction: &quotav3.RateLimitQuotaResponse_BucketAction_AbandonAction{},
	}}
}
