package httplimit_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
	"github.com/stintdev/stint/storetest"
)

func drawLimit(t *rapid.T) stint.Limit {
	text := fmt.Sprintf("%d/%s", rapid.IntRange(1, 20).Draw(t, "n"), rapid.SampledFrom([]string{
		"1s", "700ms", "10s", "7s", "1m", "day", "100us", "3h",
	}).Draw(t, "window"))
	if !strings.Contains(text, "day") {
		text += rapid.SampledFrom([]string{"", " fixed_window", " sliding_log", " token_bucket", " token_bucket burst=7", " leaky_bucket"}).Draw(t, "algorithm")
	}
	l, err := stint.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestObedience lets a client do what the headers say, whatever it has done before:
// after Retry-After it passes, and so it does if it sends no more than r, or waits for
// t when r is less than what it wants.
func TestObedience(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		clock := storetest.NewClock()
		clock.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "start")))
		store, err := memstore.New(memstore.Options{Now: clock.Now})
		if err != nil {
			t.Fatal(err)
		}
		f := rule.File{Rules: []rule.Rule{{Name: "rule", CountBy: []rule.Dimension{"ip"}}}}
		smallest := int64(1 << 53)
		for i := range rapid.IntRange(1, 3).Draw(t, "limits") {
			l := drawLimit(t)
			smallest = min(smallest, l.Cap())
			f.Rules[0].Limits = append(f.Rules[0].Limits, rule.Limit{Name: "limit-" + strconv.Itoa(i), Limit: l.String()})
		}
		rules, err := rule.Compile(f)
		if err != nil {
			t.Skip(err)
		}
		who, err := identity.New(identity.Options{})
		if err != nil {
			t.Fatal(err)
		}
		e, err := engine.New(engine.Options{Store: store, Rules: rules, Identity: who, Now: clock.Now})
		if err != nil {
			t.Fatal(err)
		}
		cost := rapid.Int64Range(1, smallest).Draw(t, "cost")
		ask := func() (engine.Verdict, http.Header) {
			v, err := e.Decide(t.Context(), engine.Request{Method: "GET", Path: "/", Peer: netip.MustParseAddr("192.0.2.1"), Cost: cost})
			if err != nil {
				t.Fatal(err)
			}
			h := http.Header{}
			httplimit.HeaderSet(0).Set(h, &v)
			return v, h
		}
		for range rapid.IntRange(1, 30).Draw(t, "requests") {
			v, h := ask()
			if !v.Outcome.Passed() {
				n, err := strconv.Atoi(h.Get("Retry-After"))
				if err != nil || n < 1 {
					t.Fatalf("denied, and Retry-After is %q", h.Get("Retry-After"))
				}
				clock.Add(time.Duration(n) * time.Second)
				if v, _ = ask(); !v.Outcome.Passed() {
					t.Fatalf("denied for %v after Retry-After: %d", v.RetryAfter, n)
				}
				continue
			}
			if h.Get("Retry-After") != "" {
				t.Fatalf("Retry-After: %s, though it passed", h.Get("Retry-After"))
			}
			items, err := parseList(h.Get("Ratelimit"))
			if err != nil {
				t.Fatal(err)
			}
			var wait int64
			for _, it := range items {
				if it.parameters["r"] < cost {
					wait = max(wait, it.parameters["t"])
				}
			}
			if wait > 0 && rapid.Bool().Draw(t, "obey") {
				clock.Add(time.Duration(wait) * time.Second)
			}
			if wait == 0 || clock.Now().Sub(v.At) >= time.Duration(wait)*time.Second {
				if v, _ = ask(); !v.Outcome.Passed() {
					t.Fatalf("denied after %d s: %s of %v, was told %s", wait, v.Limits[0].Name, v.Limits[0].Limit, h.Get("Ratelimit"))
				}
			}
			clock.Add(time.Duration(rapid.Int64Range(0, int64(3*time.Second)).Draw(t, "pause")))
		}
	})
}
