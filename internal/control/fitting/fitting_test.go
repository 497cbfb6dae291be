package fitting_test

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/control/fitting"
	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/internal/control/replay"
	"github.com/stintdev/stint/internal/test/torture"
)

var noon = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

// TestNeeded compares the limit that a client needs with the arithmetic of limits: with it nothing is denied, and with one less
// something is.
func TestNeeded(t *testing.T) {
	t.Parallel()
	for seed := range uint64(torture.Rounds(30)) {
		r := rand.New(rand.NewPCG(seed, 1))
		at, times := noon.UnixMicro()+r.Int64N(3600e6), []int64(nil)
		for range 1 + r.IntN(120) {
			at += r.Int64N([]int64{1, 1000, 300_000, 5_000_000, 100_000_000}[r.IntN(5)])
			times = append(times, at)
		}
		needed := fitting.Needed(times)
		for i, window := range []time.Duration{time.Second, time.Minute, time.Hour} {
			denies := func(most int64) bool {
				l := stint.Limit{Max: most, Window: stint.Every(window)}
				var s stint.State
				for _, at := range times {
					var d stint.Decision
					if s, d = l.Take(s, time.UnixMicro(at), 1); !d.Allowed {
						return true
					}
				}
				return false
			}
			if n := needed[i]; denies(n) || n > 1 && !denies(n-1) {
				t.Fatalf("seed %d: %d in %v", seed, n, window)
			}
		}
	}
}

// traffic is requests of clients, of whom a few ask far more often than others.
func traffic(clients, each int) iter.Seq2[recorded.Request, error] {
	return func(yield func(recorded.Request, error) bool) {
		r := rand.New(rand.NewPCG(1, 1))
		at := noon
		paths := []string{"/", "/search", "/search", "/items/12345678", "/items/23456789", "/static/app.js"}
		for range clients * each {
			at = at.Add(time.Duration(r.Int64N(int64(4 * time.Millisecond))))
			c := int(float64(clients) * r.Float64() * r.Float64() * r.Float64())
			q := recorded.Request{At: at, Method: "GET", Path: paths[r.IntN(len(paths))], IP: netip.AddrFrom4([4]byte{10, byte(c >> 16), byte(c >> 8), byte(c)}).String()}
			if !yield(q, nil) {
				return
			}
		}
	}
}

func analyze(t testing.TB, o fitting.Options, requests iter.Seq2[recorded.Request, error]) fitting.Result {
	t.Helper()
	a := fitting.New(o)
	if err := a.Survey(requests); err != nil {
		t.Fatal(err)
	}
	if err := a.Measure(requests); err != nil {
		t.Fatal(err)
	}
	return a.Result()
}

// TestOneIn replays traffic through the limits that fit: each denies at most one client in so many, and less would deny more.
func TestOneIn(t *testing.T) {
	t.Parallel()
	for _, oneIn := range []int64{10, 100, 1_000_000} {
		requests := traffic(torture.Rounds(400), 20)
		found := analyze(t, fitting.Options{OneIn: oneIn}, requests)
		if found.Clients < int64(torture.Rounds(200)) || !found.Exact || found.Requests != int64(torture.Rounds(8000)) || len(found.Limits) != 5 || found.Endpoints != 4 {
			t.Fatalf("%+v", found)
		}
		rules := replay.Rules{File: found.Rules()}
		report, err := replay.Run(t.Context(), replay.Options{Logged: true, Candidate: &rules, Top: 100}, requests)
		if err != nil {
			t.Fatal(err)
		}
		if len(report.Rules) != len(found.Limits) {
			t.Fatalf("%+v", report.Rules)
		}
		for _, l := range found.Limits {
			for _, row := range report.Rules {
				if row.Name != l.Rule {
					continue
				}
				if row.Subjects*oneIn > l.Clients || l.Endpoint != "" && row.Requests != l.Requests {
					t.Errorf("1 in %d: %+v denies %d clients: %+v", oneIn, l, row.Subjects, row)
				}
			}
		}
		if denied := report.Candidate.Denied; (denied == 0) != (oneIn == 1_000_000) {
			t.Errorf("1 in %d: denied: %d\n%+v", oneIn, denied, report)
		}
	}
}

// TestBounds has more clients and endpoints than are kept.
func TestBounds(t *testing.T) { //nolint:paralleltest // it changes the bounds
	exact := analyze(t, fitting.Options{OneIn: 100}, traffic(20_000, 5))
	fitting.SetBounds(2000, 1000, 3)
	defer fitting.SetBounds(1<<18, 1<<16, 20_000)
	few := analyze(t, fitting.Options{OneIn: 100}, traffic(20_000, 5))
	if few.Exact || !few.More || float64(few.Clients) < 0.9*float64(exact.Clients) || float64(few.Clients) > 1.1*float64(exact.Clients) {
		t.Errorf("%d clients, %d in fact: %+v", few.Clients, exact.Clients, few)
	}
	for i := range few.Windows {
		if w, x := few.Windows[i], exact.Windows[i]; w.P50 != x.P50 || w.P99 > x.P99+x.P99/5 || w.P99 < x.P99-x.P99/5 {
			t.Errorf("%+v, in fact %+v", w, x)
		}
	}
	if a, b := few.Limits[0].PerMinute, exact.Limits[0].PerMinute; a < b*7/10 || a > b*13/10 {
		t.Errorf("%+v, in fact %+v", few.Limits[0], exact.Limits[0])
	}
}

// TestNames has endpoints whose names are odd.
func TestNames(t *testing.T) {
	t.Parallel()
	var all []recorded.Request
	for i := range 800 {
		path := []string{"/", "/a/b", "/a-b", "/*/{x", "/\x00\"]\n", "/" + strings.Repeat("long/", 60), "/ALL", "/%2a"}[i%8]
		all = append(all, recorded.Request{At: noon.Add(time.Duration(i) * time.Second), Method: "GET", Path: path, User: fmt.Sprint("u", i%20)})
	}
	all = append(all, recorded.Request{At: noon, Path: "/"})
	found := analyze(t, fitting.Options{By: "user"}, func(yield func(recorded.Request, error) bool) {
		for _, q := range all {
			if !yield(q, nil) {
				return
			}
		}
	})
	rules := replay.Rules{File: found.Rules()}
	if _, err := replay.Run(t.Context(), replay.Options{Live: rules}, func(func(recorded.Request, error) bool) {}); err != nil || found.Nameless != 1 || len(found.Limits) < 5 {
		t.Errorf("%v %+v", err, found)
	}
}

func TestRounded(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]int64{1: 1, 9: 9, 20: 20, 21: 25, 37: 40, 96: 100, 99: 100, 100: 100, 101: 110, 1234: 1300, 2345: 2500, 98_765: 100_000} {
		if got := fitting.Rounded(n); got != want {
			t.Errorf("%d: %d, want %d", n, got, want)
		}
	}
}
