package rls_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/grpclimit/rls"
)

// TestCountHits checks what hits count as. The limit is 10, and hits beyond 8 are near it.
func TestCountHits(t *testing.T) {
	t.Parallel()
	const limit, near = 10, 8
	for _, row := range []struct {
		n, used            uint64
		remembered, shadow bool
		want               rls.Hits
	}{
		{n: 0, used: 3, want: rls.Hits{}},
		{n: 1, used: 0, want: rls.Hits{Total: 1, Within: 1}},
		{n: 1, used: 7, want: rls.Hits{Total: 1, Within: 1}},
		{n: 1, used: 8, want: rls.Hits{Total: 1, Within: 1, Near: 1}},
		{n: 1, used: 9, want: rls.Hits{Total: 1, Within: 1, Near: 1}},
		{n: 3, used: 7, want: rls.Hits{Total: 3, Within: 3, Near: 2}},
		{n: 10, used: 0, want: rls.Hits{Total: 10, Within: 10, Near: 2}},
		{n: 1, used: 10, want: rls.Hits{Total: 1, Over: 1}},
		{n: 4, used: 10, want: rls.Hits{Total: 4, Over: 4}},
		{n: 4, used: 23, want: rls.Hits{Total: 4, Over: 4}},
		// Of hits that cross the limit, some are near it, some are over it, and none is within.
		{n: 4, used: 9, want: rls.Hits{Total: 4, Near: 1, Over: 3}},
		{n: 12, used: 1, want: rls.Hits{Total: 12, Near: 2, Over: 3}},
		{n: 4, used: 9, shadow: true, want: rls.Hits{Total: 4, Near: 1, Over: 3, Shadow: 3}},
		{n: 4, used: 10, shadow: true, want: rls.Hits{Total: 4, Over: 4, Shadow: 4}},
		{n: 1, used: 0, shadow: true, want: rls.Hits{Total: 1, Within: 1}},
		{n: 4, used: 9, remembered: true, want: rls.Hits{Total: 4, Over: 4, Remembered: 4}},
		{n: 4, used: 9, remembered: true, shadow: true, want: rls.Hits{Total: 4, Over: 4, Remembered: 4, Shadow: 4}},
	} {
		if got := rls.CountHits(row.n, row.used, limit, near, row.remembered, row.shadow); got != row.want {
			t.Errorf("%+v: got %+v", row, got)
		}
	}
	if got, want := rls.CountHits(2, 0, 0, 0, false, false), (rls.Hits{Total: 2, Over: 2}); got != want {
		t.Errorf("a limit of 0: got %+v, want %+v", got, want)
	}
}

// TestHitsOfMany checks the hits of requests with several hits, charged together and each by
// itself.
func TestHitsOfMany(t *testing.T) {
	t.Parallel()
	const text = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 10}
  - key: closed
    rate_limit: {unit: day, requests_per_unit: 0}
`
	for name, row := range map[string]struct {
		more string
		want rls.Hits
	}{
		// 7 pass; 7 cross the limit, 2 near it and 4 over it, and are not charged; so the next 3 pass.
		"together":    {"", rls.Hits{Total: 7 + 7 + 3 + 2, Within: 7 + 3, Near: 2 + 2, Over: 4 + 2}},
		"independent": {"compat: independent\n", rls.Hits{Total: 7 + 7 + 3 + 2, Within: 7, Near: 2, Over: 4 + 3 + 2}},
	} {
		b := newBench(t, row.more+text, nil)
		for _, hits := range []uint32{7, 7, 3} {
			q := ask("d", "user=x")
			q.HitsAddend = hits
			b.send(q)
		}
		q := ask("d", "user=x", "closed=x")
		q.HitsAddend = 2
		b.send(q)
		for limit, h := range b.Stats() {
			if limit == "d.user" && h != row.want {
				t.Errorf("%s: got %+v, want %+v", name, h, row.want)
			}
		}
	}
}

// TestTotals checks what is counted beside hits: errors, shadow_mode of everything, domains that
// do not exist, and names that there is no room for.
func TestTotals(t *testing.T) {
	t.Parallel()
	b := newBench(t, plain, func(o *rls.Options) { o.Shadow = true })
	for range 5 {
		b.send(ask("d", "user=x")) // 3 pass
	}
	b.send(ask("nowhere", "user=x", "user=y"))
	b.fails(ask("", "user=x"))
	b.fails(ask("d"))
	if got, want := b.Totals(), (rls.Totals{Shadowed: 2, Invalid: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	unknown := map[string]uint64{}
	for i := range 2000 {
		b.send(ask(fmt.Sprint("made-up-", i), "user=x"))
	}
	b.send(ask(strings.Repeat("long", 1000), "user=x"))
	all := uint64(0)
	for domain, n := range b.UnknownDomains() {
		unknown[domain] = n
		all += n
	}
	if unknown["nowhere"] != 2 || unknown[rls.Others] == 0 || len(unknown) > 101 || all != 2003 {
		t.Errorf("%d domains, %d of others, %d in all", len(unknown), unknown[rls.Others], all)
	}
	if got := b.Totals().Folded; got != unknown[rls.Others] {
		t.Errorf("%d are folded, want %d", got, unknown[rls.Others])
	}
}

// TestStoreErrors checks that calls that the store did not decide are counted.
func TestStoreErrors(t *testing.T) {
	t.Parallel()
	b := newBench(t, plain, func(o *rls.Options) { o.Store = broken{o.Store, stint.ErrUnavailable} })
	b.fails(ask("d", "user=x"))
	if got, want := b.Totals(), (rls.Totals{Undecided: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// alone is a store whose decisions are those of this process, because the other one is out of reach.
type alone struct{ stint.Store }

func (s alone) Take(ctx context.Context, asks []stint.Ask, out []stint.Decision) error {
	err := s.Store.Take(ctx, asks, out)
	for i := range out {
		out[i].Basis = stint.Local
	}
	return err
}

// TestAlone counts calls that this process decided by itself, once each.
func TestAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t, plain, func(o *rls.Options) { o.Store = alone{o.Store} })
	b.send(ask("d", "user=x", "user=y"))
	b.send(ask("d", "unknown=x"))
	if _, err := b.Usage(t.Context(), "d", []descriptor.Entry{{Key: "user", Value: "x"}}); err != nil {
		t.Fatal(err)
	}
	if got, want := b.Totals(), (rls.Totals{Alone: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestLongNames checks that a name that is too long takes no memory.
func TestLongNames(t *testing.T) {
	t.Parallel()
	b := newBench(t, `
domain: d
descriptors:
  - key: detail
    detailed_metric: true
    rate_limit: {unit: day, requests_per_unit: 10}
`, nil)
	b.send(ask("d", "detail="+strings.Repeat("x", 5000)))
	for name, h := range b.Stats() {
		if name != rls.Others || h.Total != 1 {
			t.Errorf("%.40s: %+v", name, h)
		}
	}
	if got := b.Totals().Folded; got != 1 {
		t.Errorf("%d hits are folded", got)
	}
}

// fails sends a request that must fail.
func (b *bench) fails(q *rlsv3.RateLimitRequest) {
	b.t.Helper()
	if a, err := b.ShouldRateLimit(b.t.Context(), q); err == nil {
		b.t.Errorf("%v: got %v", q, a)
	}
}

// TestServed checks that calls are timed.
func TestServed(t *testing.T) {
	t.Parallel()
	var took []time.Duration
	c := &clock{now: start}
	b := newBench(t, plain, func(o *rls.Options) {
		o.Served = func(d time.Duration) { took = append(took, d) }
		o.Now = func() time.Time { c.now = c.now.Add(time.Millisecond); return c.now }
	})
	data, err := proto.Marshal(ask("d", "user=x"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rls.Serve(t.Context(), b.Service, data); err != nil {
		t.Fatal(err)
	}
	if len(took) != 1 || took[0] <= 0 {
		t.Error(took)
	}
}
