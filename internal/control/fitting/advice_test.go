package fitting_test

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/control/fitting"
	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/internal/control/sim"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

func those(all []recorded.Request) iter.Seq2[recorded.Request, error] {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(x, y recorded.Request) int { return x.At.Compare(y.At) })
	return func(yield func(recorded.Request, error) bool) {
		for _, q := range all {
			if !yield(q, nil) {
				return
			}
		}
	}
}

// sends returns requests of a user to /search, so many at a time, at so many times.
func sends(user string, times, each int, every time.Duration) (out []recorded.Request) {
	for i := range times {
		for range each {
			out = append(out, recorded.Request{At: noon.Add(time.Duration(i) * every), Method: "GET", Path: "/search", User: user, IP: "192.0.2.1"})
		}
	}
	return out
}

func searchRule(limits ...string) rule.Rule {
	r := rule.Rule{Name: "search", Match: rule.Match{Paths: []string{"/search"}}, CountBy: []rule.Dimension{"user"}}
	for i, text := range limits {
		r.Limits = append(r.Limits, rule.Limit{Name: fmt.Sprint("l", i), Limit: text})
	}
	return r
}

func about(r rule.Rule, oneIn int64) fitting.AdviceOptions {
	return fitting.AdviceOptions{Options: sim.Options{Rule: r, From: noon, To: noon.Add(time.Hour)}, OneIn: oneIn}
}

// users returns n clients, each with requests of its own.
func users(n int, of func(i int, user string) []recorded.Request) (out []recorded.Request) {
	for i := range n {
		out = append(out, of(i, fmt.Sprint("u", i))...)
	}
	return out
}

func TestAdvise(t *testing.T) {
	t.Parallel()
	alike := func(_ int, user string) []recorded.Request { return sends(user, 50, 1, time.Minute) }
	attacked := append(users(40, alike), sends("mallory", 3000, 1, time.Second)...)
	sampled := users(40, alike)
	for i := range sampled {
		sampled[i].Weight = 100
	}
	unnamed := users(40, alike)
	for i := range unnamed {
		unnamed[i].Path = ""
	}
	for name, c := range map[string]struct {
		limits   []string
		oneIn    int64
		requests []recorded.Request
		change   func(*fitting.AdviceOptions)

		verdict   fitting.Verdict
		clients   int64
		use       [4]int64 // of the first limit: p50, p95, p99, max
		suggested string   // all limits
		denied    int64    // clients, by the suggested limits
		says      string
	}{
		"all alike": {
			limits: []string{"3/1m"}, oneIn: 10, requests: users(40, alike),
			verdict: fitting.Fits, clients: 40, use: [4]int64{2, 2, 2, 2}, suggested: "2/1m",
		},
		"far below": {
			limits: []string{"100/1m"}, requests: users(40, alike),
			verdict: fitting.NeverBinds, clients: 40, use: [4]int64{2, 2, 2, 2}, suggested: "2/1m", says: "Fewer than 1000 clients",
		},
		"below all": {
			limits: []string{"10/1h"}, oneIn: 10, requests: users(40, alike),
			verdict: fitting.BindsEveryone, clients: 40, use: [4]int64{50, 50, 50, 50}, suggested: "50/1h", says: "Requests were read of 49m0s only",
		},
		"different": {
			limits: []string{"60/1m fixed_window"}, oneIn: 10,
			requests: users(100, func(i int, user string) []recorded.Request { return sends(user, 10, i+1, time.Minute) }),
			verdict:  fitting.BindsMany, clients: 100, use: [4]int64{50, 95, 99, 100}, suggested: "90/1m fixed_window", denied: 10,
		},
		"bursts": {
			limits: []string{"60/1m burst=30 token_bucket"}, oneIn: 10,
			requests: users(20, func(_ int, user string) []recorded.Request { return sends(user, 5, 12, 5*time.Minute) }),
			verdict:  fitting.Fits, clients: 20, use: [4]int64{23, 23, 23, 23}, suggested: "25/1m burst=13 token_bucket",
		},
		"one attacker": {
			limits: []string{"30/1m", "1000/1h"}, oneIn: 20, requests: attacked,
			verdict: fitting.Fits, clients: 41, use: [4]int64{2, 2, 61, 61}, suggested: "2/1m 50/1h", denied: 1,
		},
		"one attacker of too few": {
			limits: []string{"30/1m"}, oneIn: 1000, requests: attacked,
			verdict: fitting.BindsMany, clients: 41, use: [4]int64{2, 2, 61, 61}, suggested: "65/1m", says: "let one client in fewer be denied",
		},
		"few clients": {
			limits: []string{"30/1m"}, requests: users(3, alike),
			verdict: fitting.TooLittle, clients: 3, use: [4]int64{2, 2, 2, 2}, suggested: "2/1m", says: "Fewer than 1000 clients",
		},
		"nothing": {limits: []string{"30/1m"}, verdict: fitting.TooLittle},
		"a longer window": {
			limits: []string{"1000/1d"}, requests: users(40, alike),
			verdict: fitting.TooLittle, clients: 40, use: [4]int64{50, 50, 50, 50}, suggested: "50/1d", says: "the longest window is 1d",
		},
		"sampled": {
			limits: []string{"1000/1m"}, requests: sampled,
			verdict: fitting.NeverBinds, clients: 40, use: [4]int64{200, 200, 200, 200}, suggested: "200/1m", says: "Requests that passed were sampled",
		},
		"not recorded": {
			limits: []string{"30/1m"}, requests: users(40, alike), change: func(o *fitting.AdviceOptions) { o.Unsampled = true },
			verdict: fitting.TooLittle, clients: 40, use: [4]int64{2, 2, 2, 2}, says: "Requests that passed are not recorded",
		},
		"no paths": {
			limits: []string{"30/1m"}, requests: unnamed,
			verdict: fitting.TooLittle, says: "they were recorded without a path",
		},
		"headers": {
			limits: []string{"30/1m"}, requests: users(40, alike), change: func(o *fitting.AdviceOptions) { o.Rule.Match.Headers = map[string]string{"X-App": "mobile"} },
			verdict: fitting.TooLittle, says: "headers and claims are not recorded",
		},
		"another subject": {
			limits: []string{"30/1m"}, requests: users(40, alike), change: func(o *fitting.AdviceOptions) { o.Rule.CountBy = []rule.Dimension{"tenant"} },
			verdict: fitting.TooLittle,
		},
		"one counter": {
			limits: []string{"300/1m"}, requests: users(40, alike), change: func(o *fitting.AdviceOptions) { o.Rule.CountBy = nil },
			verdict: fitting.Fits, clients: 1, use: [4]int64{80, 80, 80, 80}, suggested: "80/1m",
		},
		"a tier of its own": {
			limits: []string{"30/1m"}, requests: append(users(40, alike), recorded.Request{At: noon, Path: "/search", User: "gold", Tier: "gold", Weight: 5000}),
			change: func(o *fitting.AdviceOptions) {
				o.Tiers = []rule.Tier{{Name: "gold", Limits: map[string]string{"l0": "9000/1m"}}}
			},
			verdict: fitting.NeverBinds, clients: 40, use: [4]int64{2, 2, 2, 2}, suggested: "2/1m", says: "because they have values of their own: gold.",
		},
		"no other value": {
			limits: []string{"30/1m leaky_bucket"}, requests: users(40, alike),
			verdict: fitting.Fits, clients: 40, use: [4]int64{-1, -1, -1, -1}, says: "No other value is suggested for a leaky_bucket",
		},
		"too much for a log": {
			limits: []string{"30/1m sliding_log"}, requests: users(40, func(_ int, user string) []recorded.Request {
				return []recorded.Request{{At: noon, Path: "/search", User: user, Weight: stint.MaxLog + 1}}
			}),
			verdict: fitting.BindsEveryone, clients: 40, use: [4]int64{-1, -1, -1, -1}, says: "No value of the limit l0",
		},
		"never reached": {
			limits: []string{"30/1m fixed_window", "100/1h fixed_window"}, requests: users(40, func(_ int, user string) []recorded.Request { return sends(user, 59, 1, time.Minute) }),
			verdict: fitting.Fits, clients: 40, use: [4]int64{1, 1, 1, 1}, suggested: "1/1m fixed_window", says: "The limit l1 is left out: beside the others, 60/1h fixed_window would never be reached.",
		},
		"not beside others": {
			limits: []string{"30/1m"}, requests: users(40, alike), change: func(o *fitting.AdviceOptions) {
				o.Check = func(r *rule.Rule) (strict.Problems, error) {
					return strict.Problems{{Path: "limits", Message: "beside " + r.Name}}, nil
				}
			},
			verdict: fitting.NeverBinds, clients: 40, use: [4]int64{2, 2, 2, 2}, says: "because the rule would not be valid: limits: beside search.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := about(searchRule(c.limits...), c.oneIn)
			if c.change != nil {
				c.change(&o)
			}
			found, err := fitting.Advise(t.Context(), o, those(c.requests))
			if err != nil {
				t.Fatal(err)
			}
			var use [4]int64
			if len(found.Limits) > 0 {
				use = [4]int64{found.Limits[0].P50, found.Limits[0].P95, found.Limits[0].P99, found.Limits[0].Max}
			}
			var suggested string
			var denied int64
			if s := found.Suggestion; s != nil {
				denied = s.Clients
				for _, l := range s.Rule.Limits {
					suggested = strings.TrimSpace(suggested + " " + l.Limit)
				}
				if f, err := rule.ParseTOML("", []byte(s.TOML)); err != nil && len(o.Tiers) == 0 || err == nil && f.Rules[0].Limits[0].Limit != s.Rule.Limits[0].Limit {
					t.Errorf("%v\n%s", err, s.TOML)
				}
			}
			if found.Verdict != c.verdict || found.Clients != c.clients || use != c.use || suggested != c.suggested || denied != c.denied {
				t.Errorf("%s, %d clients, use %v, suggested %q, which denies %d clients\n%s\n%q", found.Verdict, found.Clients, use, suggested, denied, found.Summary, found.Notes)
			}
			if text := found.Summary + strings.Join(found.Notes, " "); !strings.Contains(text, c.says) {
				t.Errorf("%q does not say %q", text, c.says)
			}
		})
	}
}

// TestNeed compares the limit that a client needs with the arithmetic of limits, for limits of all kinds.
func TestNeed(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		at, times := noon.UnixMicro(), []int64(nil)
		for range 1 + r.IntN(80) {
			at += r.Int64N([]int64{1, 1000, 300_000, 5_000_000, 30_000_000}[r.IntN(5)])
			times = append(times, at)
		}
		for _, text := range []string{"7/1s", "20/1m", "20/1m fixed_window", "20/1m sliding_log", "20/1s sliding_log", "20/1m token_bucket", "30/1m burst=7 token_bucket", "2/1m burst=9 token_bucket", "50/day tz=Europe/Berlin", "50/month"} {
			shape, err := stint.ParseLimit(text)
			if err != nil {
				t.Fatal(err)
			}
			denies := func(size int64) bool {
				l, s := fitting.Sized(shape, size), stint.State{}
				for _, at := range times {
					var d stint.Decision
					if s, d = l.Take(s, time.UnixMicro(at), 1); !d.Allowed {
						return true
					}
				}
				return false
			}
			if n := fitting.Need(shape, times); denies(n) || n > 1 && !denies(n-1) {
				t.Errorf("seed %d: %s: %d", seed, text, n)
			}
		}
	}
}

// TestSuggestion replays random traffic through the limits that are suggested: they deny at most one client in so many of those that
// were seen, whatever the limits are.
func TestSuggestion(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		kinds := []string{"7/1s", "20/1m", "20/1m fixed_window", "20/1m sliding_log", "20/1m token_bucket", "30/1m burst=7 token_bucket", "2/1m burst=9 token_bucket", "50/1h", "50/day"}
		of := searchRule(rapid.SliceOfN(rapid.SampledFrom(kinds), 1, 3).Draw(t, "limits")...)
		of.Action = rapid.SampledFrom([]rule.Action{rule.Reject, rule.Throttle, rule.LogOnly}).Draw(t, "action")
		if of.Action == rule.Throttle {
			of.MaxDelay = rule.Duration(2 * time.Second)
		}
		if rapid.Bool().Draw(t, "penalty") && of.Action == rule.Reject {
			of.Penalty = &rule.Penalty{Threshold: 3, Within: rule.Duration(time.Minute), Cooldown: rule.Duration(time.Minute)}
		}
		of.Cost.Units = rapid.Int64Range(0, 3).Draw(t, "cost")
		if _, err := rule.Compile(rule.File{Rules: []rule.Rule{of}}); err != nil {
			t.Skip(err)
		}
		oneIn := rapid.Int64Range(2, 40).Draw(t, "one in")
		var all []recorded.Request
		clients := 1 + r.IntN(60)
		for i := range clients {
			at := noon.Add(time.Duration(r.Int64N(int64(time.Minute))))
			for range 1 + r.IntN(40) {
				at = at.Add(time.Duration(r.Int64N([]int64{1, 1e6, 1e9, 30e9}[r.IntN(4)])))
				all = append(all, recorded.Request{At: at.Truncate(time.Microsecond), Path: []string{"/search", "/search", "/other"}[r.IntN(3)], User: strconv.Itoa(i), Weight: []int64{1, 1, 1, 5}[r.IntN(4)], Refused: r.IntN(5) == 0})
			}
		}
		found, err := fitting.Advise(t.Context(), about(of, oneIn), those(all))
		if err != nil {
			t.Fatal(err)
		}
		s := found.Suggestion
		if s == nil {
			if found.Clients > 0 {
				t.Fatalf("nothing is suggested: %+v", found)
			}
			return
		}
		would, err := sim.Run(t.Context(), about(s.Rule, 0).Options, those(all))
		if err != nil {
			t.Fatal(err)
		}
		if would.Denied != s.Clients || would.WouldRefuse != s.Denied || would.Denied*oneIn > found.Clients {
			t.Fatalf("%+v denies %d clients of %d, %d requests: %+v", s.Rule.Limits, would.Denied, found.Clients, would.WouldRefuse, s.Denials)
		}
	})
}

// TestAdviseEndpoint has an endpoint without a rule.
func TestAdviseEndpoint(t *testing.T) {
	t.Parallel()
	all := users(30, func(i int, user string) []recorded.Request {
		out := sends(user, 10, 3, time.Minute)
		for j := range out {
			out[j].Path, out[j].IP = fmt.Sprint("/items/", 10_000+i), fmt.Sprint("192.0.2.", i%3)
		}
		return out
	})
	for name, c := range map[string]struct {
		by, counted string
		clients     int64
		limits      string
		change      func(*recorded.Request)
	}{
		"as they are":   {"", "user", 30, "6/1m 3/1s", func(*recorded.Request) {}},
		"by address":    {"ip", "ip", 3, "60/1m 30/1s", func(*recorded.Request) {}},
		"without users": {"", "ip", 3, "60/1m 30/1s", func(q *recorded.Request) { q.User = "" }},
		"sampled":       {"", "user", 30, "60/1m", func(q *recorded.Request) { q.Weight = 10 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := slices.Clone(all)
			for i := range changed {
				c.change(&changed[i])
			}
			o := about(rule.Rule{}, 10)
			o.Tiers = []rule.Tier{{Name: "gold", Limits: map[string]string{"minute": "1/1m"}}} // of another rule
			found, err := fitting.AdviseEndpoint(t.Context(), o, "/items/{id}", c.by, map[string]bool{"items-id": true}, those(changed))
			if err != nil {
				t.Fatal(err)
			}
			s := found.Suggestion
			if s == nil || found.Rule != "" || found.Endpoint != "/items/{id}" || found.Denies != nil || found.Clients != c.clients || found.CountBy[0] != c.counted {
				t.Fatalf("%+v", found)
			}
			var limits []string
			for _, l := range s.Rule.Limits {
				limits = append(limits, l.Limit)
			}
			if got := strings.Join(limits, " "); got != c.limits || s.Rule.Name != "items-id-2" || s.Clients != 0 {
				t.Errorf("%s: %+v", got, s)
			}
		})
	}
	if _, err := fitting.AdviseEndpoint(t.Context(), about(rule.Rule{}, 10), "items", "", nil, those(all)); err == nil {
		t.Error("a pattern without a slash")
	}
}

// TestAdviseAll has rules that bind and rules that do not, one that is off, and endpoints without a rule.
func TestAdviseAll(t *testing.T) {
	t.Parallel()
	var all []recorded.Request
	for _, path := range []string{"/search", "/items/12345", "/items/54321", "/blocked", "", "/*/{x"} {
		for i := range 20 {
			for _, q := range sends(fmt.Sprint("u", i), 20, 1, time.Minute) {
				q.Path = path
				all = append(all, q)
			}
		}
	}
	low := searchRule("2/1h")
	low.Name = "low"
	off, with := low, low
	off.Name, off.Enabled = "off", new(bool)
	with.Name, with.Replaces = "with", "low"
	rules := []rule.Rule{searchRule("1000/1m"), low, off, with, {Name: "blocked", Match: rule.Match{Paths: []string{"/blocked"}}, Action: rule.Block}}
	found, err := fitting.AdviseAll(t.Context(), about(rule.Rule{}, 10), rules, those(all))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, a := range found.Rules {
		lines = append(lines, a.Rule+" "+string(a.Verdict))
	}
	// Those without a path may be any rule's.
	if got := strings.Join(lines, ", "); got != "low binds_everyone, search never_binds, with binds_everyone" || found.Requests != 2400 {
		t.Errorf("%s: %+v", got, found)
	}
	if len(found.Endpoints) != 1 || found.Endpoints[0].Endpoint != "/items/{id}" || found.Endpoints[0].Requests != 800 {
		t.Errorf("%+v", found.Endpoints)
	}
}

// BenchmarkAdvise has as many events as the server reads, of one client or of many.
func BenchmarkAdvise(b *testing.B) {
	for _, clients := range []int{1, 1000} {
		for _, limit := range []string{"100/1m", "100/1d", "100/1m token_bucket", "100/1m sliding_log"} {
			b.Run(fmt.Sprintf("%d clients, %s", clients, limit), func(b *testing.B) {
				all := make([]recorded.Request, 20_000)
				for i := range all {
					all[i] = recorded.Request{At: noon.Add(time.Duration(i) * 100 * time.Millisecond), Path: "/search", User: strconv.Itoa(i % clients)}
				}
				for b.Loop() {
					if _, err := fitting.Advise(b.Context(), about(searchRule(limit), 100), those(all)); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
