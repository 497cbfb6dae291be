package rlqs_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	quotav3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/grpclimit/rlqs"
	"github.com/stintdev/stint/grpclimit/rls"
	"github.com/stintdev/stint/memstore"
)

// bench is a server with one Envoy, whose messages take no time.
type bench struct {
	*testing.T
	*link
	service *rls.Service
	server  *rlqs.Server
	store   *failing
	ended   chan error
}

// failing is a store that fails when it is told to.
type failing struct {
	stint.Store
	fails atomic.Bool
}

func (f *failing) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if f.fails.Load() {
		return stint.ErrUnavailable
	}
	return f.Store.Take(ctx, asks, ds)
}

const shop = `domain: shop
descriptors:
  - key: route
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: tier
    descriptors:
      - key: account
        rate_limit: {unit: hour, requests_per_unit: 40}
  - key: open
    rate_limit: {unlimited: true}
  - key: shut
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: seen
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 10}
`

func readConfig(t testing.TB, yaml string) *descriptor.Config {
	t.Helper()
	config, err := descriptor.Read([]descriptor.File{{Name: "shop.yaml", Data: []byte(yaml)}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// connected runs a test with an Envoy that is connected to a server, in virtual time.
func connected(t *testing.T, test func(b *bench)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		b := &bench{T: t, store: &failing{Store: store}, ended: make(chan error, 1)}
		if b.service, err = rls.New(rls.Options{Store: b.store, Config: readConfig(t, shop)}); err != nil {
			t.Fatal(err)
		}
		if b.server, err = rlqs.New(rlqs.Options{Limits: b.service, Store: b.store, Buckets: 3}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b.link = newLink(ctx, func() time.Duration { return 0 })
		go func() { b.ended <- b.server.StreamRateLimitQuotas(b.link) }()
		test(b)
		cancel()
		synctest.Wait()
		if got := b.server.State(); got.Streams != 0 || got.Buckets != 0 {
			t.Errorf("after Envoy has left: %+v", got)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
}

// bucket reads a bucket, written as key=value, separated by spaces.
func bucket(text string) *quotav3.BucketId {
	id := &quotav3.BucketId{Bucket: map[string]string{}}
	for _, entry := range strings.Fields(text) {
		key, value, _ := strings.Cut(entry, "=")
		id.Bucket[key] = value
	}
	return id
}

// report reports requests of the last second.
func (b *bench) report(id string, allowed, denied uint64) {
	b.Helper()
	m := &quotav3.RateLimitQuotaUsageReports{Domain: "shop", BucketQuotaUsages: []*quotav3.RateLimitQuotaUsageReports_BucketQuotaUsage{{
		BucketId: bucket(id), TimeElapsed: durationpb.New(time.Second), NumRequestsAllowed: allowed, NumRequestsDenied: denied,
	}}}
	if err := b.up.send(b.T.Context(), m); err != nil {
		b.Fatal(err)
	}
	synctest.Wait()
}

// told returns the last that Envoy was told, in brief: how many requests may pass, ALLOW_ALL, DENY_ALL, abandon, or
// nothing.
func (b *bench) told() (what string, tokens int64) {
	b.Helper()
	synctest.Wait()
	what = "nothing"
	for len(b.down.c) > 0 {
		for _, a := range (<-b.down.c).m.GetBucketAction() {
			s := a.GetQuotaAssignmentAction().GetRateLimitStrategy()
			switch {
			case a.GetAbandonAction() != nil:
				what = "abandon"
			case s.GetTokenBucket() != nil:
				what, tokens = "tokens", int64(s.GetTokenBucket().GetMaxTokens())
				if left := a.GetQuotaAssignmentAction().GetAssignmentTimeToLive().AsDuration(); left <= 0 || left > time.Second {
					b.Errorf("an assignment lasts %v", left)
				}
			default:
				what = typev3.RateLimitStrategy_BlanketRule_name[int32(s.GetBlanketRule())]
			}
		}
	}
	return what, tokens
}

func (b *bench) wantTold(want string) int64 {
	b.Helper()
	got, tokens := b.told()
	if got != want {
		b.Errorf("Envoy is told %s; want %s", got, want)
	}
	return tokens
}

// used returns how much is used of a descriptor.
func (b *bench) used(entries ...descriptor.Entry) int64 {
	b.Helper()
	u, err := b.service.Usage(b.T.Context(), "shop", entries)
	if err != nil || u == nil {
		b.Fatal(u, err)
	}
	return u.Decision.Limit - u.Decision.Remaining
}

func (b *bench) stats(limit string) (r rlqs.Requests) {
	for name, n := range b.server.Stats() {
		if name == limit {
			r = n
		}
	}
	return r
}

var search = descriptor.Entry{Key: "route", Value: "search"}

// TestBlanket: what needs no count is said once for a while.
func TestBlanket(t *testing.T) {
	for id, want := range map[string]string{
		"nothing=x": "ALLOW_ALL", "open=x": "ALLOW_ALL", "shut=x": "DENY_ALL", "seen=x": "ALLOW_ALL",
		"account=1 tier=gold": "tokens", "tier=gold": "ALLOW_ALL",
	} {
		t.Run(id, func(t *testing.T) {
			connected(t, func(b *bench) {
				b.report(id, 0, 1)
				b.wantTold(want)
			})
		})
	}
}

// TestReports follows one bucket: what passes without an assignment is charged, what is assigned is charged before, and
// what was not used is given back when a report after its end says so.
func TestReports(t *testing.T) {
	connected(t, func(b *bench) {
		b.report("route=search", 1, 0)
		n := b.wantTold("tokens")
		if got := b.used(search); got != 1+n || n < 1 {
			b.Errorf("%d used; want the first request and the %d that are assigned", got, n)
		}
		b.report("route=search", 1, 0) // of those that are assigned
		if got := b.stats("shop.route"); got != (rlqs.Requests{Assigned: n, Passed: 2, Unassigned: 1}) {
			b.Errorf("%+v", got)
		}
		for range 9 { // nothing more: what is assigned meanwhile is given back
			<-time.After(time.Second)
			b.report("route=search", 0, 0)
		}
		b.wantTold("tokens")
		<-time.After(time.Second)
		b.wantTold("abandon")
		got := b.stats("shop.route")
		if used := b.used(search); used != got.Assigned+1-got.Back || used > 2+2 || got.Passed != 2 {
			b.Errorf("%d used; want 2, and the last two assignments at most: %+v", used, got)
		}
		if n := b.server.State().Buckets; n != 0 {
			b.Errorf("%d buckets are left", n)
		}
	})
}

// TestExhausted: when all is used, Envoy is told to deny, until there is more.
func TestExhausted(t *testing.T) {
	connected(t, func(b *bench) {
		total := int64(0)
		for range 400 {
			b.report("route=search", 0, 1000)
			what, n := b.told()
			if total += n; what == "DENY_ALL" {
				break
			}
			b.report("route=search", uint64(n), 1000)
			_, n = b.told()
			b.report("route=search", uint64(n), 0)
			total += n
			<-time.After(100 * time.Millisecond)
		}
		if total != 100 || b.used(search) != 100 {
			b.Errorf("%d assigned, %d used; want 100", total, b.used(search))
		}
		b.report("route=search", 0, 1000)
		b.told()
		<-time.After(time.Hour - time.Minute)
		b.report("route=search", 0, 5) // in the next window
		b.told()
		<-time.After(time.Minute)
		b.report("route=search", 0, 5)
		if n := b.wantTold("tokens"); n < 1 {
			b.Errorf("%d are assigned in the next window", n)
		}
	})
}

// TestSilent: without reports there is nothing more after a while, and with the next there is.
func TestSilent(t *testing.T) {
	connected(t, func(b *bench) {
		b.report("route=search", 0, 4)
		b.wantTold("tokens")
		<-time.After(5 * time.Second)
		b.wantTold("tokens")
		before := b.used(search)
		<-time.After(20 * time.Second)
		b.told()
		if used := b.used(search); used > before+60 {
			b.Errorf("%d more are charged", used-before)
		}
		used := b.used(search)
		<-time.After(time.Minute)
		b.wantTold("nothing")
		if got := b.used(search); got != used {
			b.Errorf("%d are charged to an Envoy that says nothing", got-used)
		}
		b.report("route=search", 0, 1)
		b.wantTold("tokens")
	})
}

// TestChangedLimits: new limits are used for the next assignment.
func TestChangedLimits(t *testing.T) {
	connected(t, func(b *bench) {
		b.report("nothing=x", 0, 4)
		b.wantTold("ALLOW_ALL")
		b.report("route=search", 0, 4)
		b.wantTold("tokens")
		b.service.Use(readConfig(b, "domain: shop\ndescriptors:\n  - key: nothing\n    rate_limit: {unit: hour, requests_per_unit: 100}\n"))
		<-time.After(2 * time.Second)
		b.wantTold("ALLOW_ALL") // for the route
		<-time.After(7 * time.Second)
		b.report("nothing=x", 0, 4)
		<-time.After(7 * time.Second)
		b.wantTold("tokens")
	})
}

// TestStoreFails: Envoy is told nothing that was not charged.
func TestStoreFails(t *testing.T) {
	connected(t, func(b *bench) {
		b.report("route=search", 0, 4)
		b.wantTold("tokens")
		b.store.fails.Store(true)
		<-time.After(3 * time.Second)
		b.told()
		<-time.After(3 * time.Second)
		b.wantTold("nothing")
		b.store.fails.Store(false)
		<-time.After(time.Second)
		b.wantTold("tokens")
	})
}

// TestBounds: there are at most as many buckets as the options say, and bad reports end the stream.
func TestBounds(t *testing.T) {
	t.Run("buckets", func(t *testing.T) {
		connected(t, func(b *bench) {
			for _, id := range []string{"route=1", "route=2", "route=3", "route=4"} {
				b.report(id, 0, 1)
			}
			if got := b.server.State(); got != (rlqs.State{Streams: 1, Buckets: 3, Refused: 1}) {
				b.Errorf("%+v", got)
			}
		})
	})
	t.Run("names", func(t *testing.T) {
		connected(t, func(b *bench) {
			for _, length := range []int{1, 1 << 11, 1 << 12, 1 << 19} {
				b.report("route="+strings.Repeat("x", length), 0, 1)
			}
			if got := b.server.State(); got != (rlqs.State{Streams: 1, Buckets: 2, Refused: 2}) {
				b.Errorf("%+v", got)
			}
		})
	})
	for name, m := range map[string]*quotav3.RateLimitQuotaUsageReports{
		"domain: must not be empty in the first report": {},
		"bucket_quota_usages[0].bucket_id: has 0 keys, want from 1 to 6": {
			Domain: "shop", BucketQuotaUsages: []*quotav3.RateLimitQuotaUsageReports_BucketQuotaUsage{{}},
		},
		"bucket_quota_usages[0].bucket_id: has 7 keys, want from 1 to 6": {
			Domain: "shop", BucketQuotaUsages: []*quotav3.RateLimitQuotaUsageReports_BucketQuotaUsage{{BucketId: bucket("a=1 b=1 c=1 d=1 e=1 f=1 g=1")}},
		},
		"bucket_quota_usages[0].time_elapsed: want a duration": {
			Domain: "shop", BucketQuotaUsages: []*quotav3.RateLimitQuotaUsageReports_BucketQuotaUsage{{
				BucketId: bucket("a=1"), TimeElapsed: durationpb.New(-1),
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			connected(t, func(b *bench) {
				if err := b.up.send(b.Context(), m); err != nil {
					b.Fatal(err)
				}
				err := <-b.ended
				if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != name {
					b.Error(err)
				}
			})
		})
	}
}

// TestOptions: settings that make no sense are refused.
func TestOptions(t *testing.T) {
	t.Parallel()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	service, err := rls.New(rls.Options{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]rlqs.Options{
		"Limits":  {Store: store},
		"Store":   {Limits: service},
		"Term":    {Limits: service, Store: store, Term: time.Hour},
		"Buckets": {Limits: service, Store: store, Buckets: -1},
	} {
		if _, err := rlqs.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
