package sim_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/control/sim"
	"github.com/stintdev/stint/rule"
)

var noon = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

func parseRule(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, text string,
) rule.Rule {
	t.Helper()
	var r rule.Rule
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	r.Name = "candidate"
	for i := range r.Limits {
		if r.Limits[i].Name == "" {
			r.Limits[i].Name = "l" + strconv.Itoa(i)
		}
	}
	return r
}

func those(requests ...sim.Request) iter.Seq2[sim.Request, error] {
	return func(yield func(sim.Request, error) bool) {
		for _, q := range requests {
			if !yield(q, nil) {
				return
			}
		}
	}
}

func hour(r rule.Rule, tiers ...rule.Tier) sim.Options {
	return sim.Options{Rule: r, Tiers: tiers, From: noon, To: noon.Add(time.Hour)}
}

func run(t *testing.T, o sim.Options, requests ...sim.Request) sim.Preview {
	t.Helper()
	p, err := sim.Run(t.Context(), o, those(requests...))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// spec replays according to the specification: every limit, and the penalty, of each user.
func spec(r rule.Rule, requests []sim.Request) map[string]int64 {
	type counters struct {
		limits  []stint.State
		penalty stint.State
	}
	limits := make([]stint.Limit, len(r.Limits))
	for i, l := range r.Limits {
		limits[i], _ = stint.ParseLimit(l.Limit)
	}
	var penalty *stint.Penalty
	if p := r.Penalty; p != nil {
		penalty = &stint.Penalty{Threshold: p.Threshold, Within: time.Duration(p.Within), Cooldown: time.Duration(p.Cooldown), Multipliers: p.Multipliers}
	}
	of, refused := map[string]*counters{}, map[string]int64{}
	for _, q := range requests {
		c := of[q.User]
		if c == nil {
			c = &counters{limits: make([]stint.State, len(limits))}
			of[q.User] = c
		}
		next, denied := slices.Clone(c.limits), false
		for i, l := range limits {
			var d stint.Decision
			next[i], d = l.Take(c.limits[i], q.At, max(q.Cost, 1))
			denied = denied || !d.Allowed
		}
		banned := false
		if penalty != nil {
			var d stint.Decision
			c.penalty, d = penalty.Take(c.penalty, q.At, denied)
			banned = !d.Allowed
		}
		if denied || banned {
			refused["user:"+q.User]++
		} else {
			c.limits = next
		}
	}
	return refused
}

func drawLimit(t *rapid.T, a stint.Algorithm) string {
	windows := []string{"1s", "10s", "1m", "7m", "1h"}
	if a == stint.LeakyBucket {
		windows = windows[:2] // a rule holds no longer than a minute
	}
	text := fmt.Sprintf("%d/%s %v", rapid.IntRange(1, 20).Draw(t, "max"), rapid.SampledFrom(windows).Draw(t, "window"), a)
	if a == stint.TokenBucket || a == stint.LeakyBucket {
		text += fmt.Sprintf(" burst=%d", rapid.IntRange(1, 6).Draw(t, "burst"))
	}
	return text
}

func drawRequests(t *rapid.T, most int) []sim.Request {
	at := noon
	var out []sim.Request
	for range rapid.IntRange(0, most).Draw(t, "requests") {
		at = at.Add(time.Duration(rapid.SampledFrom([]int64{0, 1, 100_000, 1_000_000, 9_000_000}).Draw(t, "wait")) * time.Microsecond)
		out = append(out, sim.Request{
			At: at, Method: "GET", Endpoint: "/a", User: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "user"),
			Cost: rapid.Int64Range(0, 3).Draw(t, "cost"), Weight: 1,
		})
	}
	return out
}

// rates are the algorithms that rules may have.
var rates = stint.Algorithms()[:stint.LeakyBucket+1]

// TestSpecification replays where the record has every request: what is refused is what
// the specification refuses.
func TestSpecification(t *testing.T) {
	t.Parallel()
	for _, a := range rates {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				r := rule.Rule{Name: "r", Match: rule.Match{Paths: []string{"/a"}}, CountBy: []rule.Dimension{"user"}}
				r.Limits = []rule.Limit{{Name: "one", Limit: drawLimit(t, a)}}
				if rapid.Bool().Draw(t, "penalized") {
					r.Penalty = &rule.Penalty{
						Threshold: rapid.Int64Range(1, 4).Draw(t, "threshold"), Within: rule.Duration(time.Minute),
						Cooldown: rule.Duration(5 * time.Second), Multipliers: []int64{1, 3},
					}
				}
				if rapid.Bool().Draw(t, "two") {
					r.Limits = append(r.Limits, rule.Limit{Name: "two", Limit: drawLimit(t, rapid.SampledFrom(rates).Draw(t, "other"))})
				}
				requests := drawRequests(t, 80)
				p, err := sim.Run(t.Context(), hour(r), those(requests...))
				if problems := rule.Problems(nil); errors.As(err, &problems) {
					t.Skip(err) // a limit that is never reached
				}
				if err != nil {
					t.Fatal(err)
				}
				want, sum := spec(r, requests), int64(0)
				for _, s := range p.Top {
					if s.WouldRefuse != want[s.Subject] {
						t.Errorf("%v: %+v, want %d", r.Limits, s, want[s.Subject])
					}
					sum += s.WouldRefuse
				}
				p.Series = nil
				if len(p.Top) != len(want) || p.WouldRefuse != sum || p.Matched != int64(len(requests)) || p.Unclear != 0 {
					t.Errorf("%+v, want %v", p, want)
				}
			})
		})
	}
}

// TestWeights replays requests with weights, and the same requests without.
func TestWeights(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := rule.Rule{Name: "r", CountBy: []rule.Dimension{"user"}}
		r.Limits = []rule.Limit{{Name: "one", Limit: drawLimit(t, rapid.SampledFrom(rates).Draw(t, "algorithm"))}}
		if rapid.Bool().Draw(t, "held") {
			r.Action, r.MaxDelay = rule.Throttle, rule.Duration(3*time.Second)
		}
		if rapid.Bool().Draw(t, "penalized") {
			r.Penalty = &rule.Penalty{Threshold: 3, Within: rule.Duration(time.Minute), Cooldown: rule.Duration(5 * time.Second)}
		}
		var weighted, single []sim.Request
		for _, q := range drawRequests(t, 30) {
			q.Weight = rapid.Int64Range(1, 12).Draw(t, "weight")
			weighted = append(weighted, q)
			one := q
			one.Weight = 1
			single = append(single, slices.Repeat([]sim.Request{one}, int(q.Weight))...)
		}
		a, err := sim.Run(t.Context(), hour(r), those(weighted...))
		b, err2 := sim.Run(t.Context(), hour(r), those(single...))
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		if a.WouldRefuse != b.WouldRefuse || a.Matched != b.Matched || a.Requests != b.Requests || !slices.Equal(a.Top, b.Top) || !slices.Equal(a.Series, b.Series) {
			t.Errorf("%+v: %+v, want %+v", r, a, b)
		}
	})
}

func TestMatch(t *testing.T) {
	t.Parallel()
	const limits = `, "limits": [{"limit": "1/1h"}]}`
	for _, c := range []struct {
		rule    string
		request sim.Request
		want    string // no, a subject, or a part of the note why it is unclear
	}{
		{`{"match": {"methods": ["GET"]}`, sim.Request{Method: "GET"}, "global"},
		{`{"match": {"methods": ["GET"]}`, sim.Request{Method: "POST"}, "no"},
		{`{"match": {"tiers": ["free"]}`, sim.Request{Tier: "free"}, "global"},
		{`{"match": {"tiers": ["free"]}`, sim.Request{}, "no"},

		{`{"match": {"paths": ["/a/b"]}`, sim.Request{Endpoint: "/a/b"}, "global"},
		{`{"match": {"paths": ["/a/*"]}`, sim.Request{Endpoint: "/a/b"}, "global"},
		{`{"match": {"paths": ["/a/**"]}`, sim.Request{Endpoint: "/a//b/"}, "global"},
		{`{"match": {"paths": ["/a/b"]}`, sim.Request{Endpoint: "/a/c"}, "no"},
		{`{"match": {"paths": ["/a/b"]}`, sim.Request{}, "recorded without a path"},
		{`{"match": {"paths": ["/a/*"]}`, sim.Request{Endpoint: "/a/*"}, "global"},
		{`{"match": {"paths": ["/a/*"]}`, sim.Request{Endpoint: "/a/{id}"}, "global"},
		{`{"match": {"paths": ["/a/**"]}`, sim.Request{Endpoint: "/a/*/b"}, "global"},
		{`{"match": {"paths": ["/**"]}`, sim.Request{Endpoint: "/a/*"}, "global"},
		{`{"match": {"paths": ["/"]}`, sim.Request{Endpoint: "/**"}, "only overlaps with the paths"},
		{`{"match": {"paths": ["/a/b"]}`, sim.Request{Endpoint: "/a/*"}, "only overlaps with the paths"},
		{`{"match": {"paths": ["/a/*"]}`, sim.Request{Endpoint: "/a/**"}, "only overlaps with the paths"},
		{`{"match": {"paths": ["/*/b"]}`, sim.Request{Endpoint: "/a/*"}, "only overlaps with the paths"},
		{`{"match": {"paths": ["/a/b", "/a/**"]}`, sim.Request{Endpoint: "/a/*"}, "global"},
		{`{"match": {"paths": ["/b/*"]}`, sim.Request{Endpoint: "/a/*"}, "no"},
		{`{"match": {"paths": ["/a/*"]}`, sim.Request{Endpoint: "/a/*/c"}, "no"},
		{`{"match": {"paths": ["/a/%2A"]}`, sim.Request{Endpoint: "/a/*"}, "only overlaps with the paths"},
		{`{"match": {"paths": ["/a/b"]}`, sim.Request{Path: "/a/b", Endpoint: "/**"}, "global"},
		{`{"match": {"paths": ["/a/b"]}`, sim.Request{Path: "/a/c", Endpoint: "/**"}, "no"},
		{`{"match": {"paths": ["/a/b"]}`, sim.Request{Path: "/a/{id}", Endpoint: "/a/b"}, "only overlaps with the paths"},
		{`{"match": {"paths": ["/a/*"]}`, sim.Request{Path: "/a/{id}"}, "global"},
		{`{"match": {"paths": ["/a/b/*"]}`, sim.Request{Path: "/a/**"}, "only overlaps with the paths"},
		{`{"match": {"paths": ["/a/**"]}`, sim.Request{Path: "/a/b/**"}, "global"},
		{`{"match": {"paths": ["/b/**"]}`, sim.Request{Path: "/a/b/**"}, "no"},
		{`{"match": {"paths": ["/a/b"]}`, sim.Request{Path: "/a%2Fb"}, "global"}, // a reading of it matches
		{`{"match": {"paths": ["/a/b", "/a/**"]}, "count_by": ["endpoint"]`, sim.Request{Endpoint: "/a/b"}, "endpoint:/a/b"},
		{`{"match": {"paths": ["/a/b", "/a/**"]}, "count_by": ["endpoint"]`, sim.Request{Endpoint: "/a/**"}, "several paths"},
		{`{"match": {"paths": ["/a/**", "/b"]}, "count_by": ["endpoint"]`, sim.Request{Endpoint: "/a/*"}, "endpoint:/a/**"},
		{`{"match": {"paths": ["/a/*/"]}, "count_by": ["endpoint"]`, sim.Request{Endpoint: "/a/{b}"}, "endpoint:/a/*"},

		{`{"match": {"ip_ranges": ["10.0.0.0/8", "192.0.2.1"]}`, sim.Request{IP: "10.1.2.3"}, "global"},
		{`{"match": {"ip_ranges": ["10.0.0.0/8", "192.0.2.1"]}`, sim.Request{IP: "10.1.2.0/24"}, "global"},
		{`{"match": {"ip_ranges": ["10.0.0.0/8", "192.0.2.1"]}`, sim.Request{IP: "192.0.2.0/24"}, "too little of the address"},
		{`{"match": {"ip_ranges": ["10.0.0.0/8", "192.0.2.1"]}`, sim.Request{IP: "198.51.100.0/24"}, "no"},
		{`{"match": {"ip_ranges": ["10.0.0.0/8", "192.0.2.1"]}`, sim.Request{IP: "b64hash"}, "too little of the address"},
		{`{"match": {"ip_ranges": ["10.0.0.0/8", "192.0.2.1"]}`, sim.Request{}, "no"},

		{`{"match": {"headers": {"X-App": "*"}}`, sim.Request{}, "headers and claims"},
		{`{"match": {"headers": {"X-App": "*"}, "methods": ["GET"]}`, sim.Request{Method: "PUT"}, "no"},
		{`{"count_by": ["header:X-App"]`, sim.Request{}, "headers and claims"},
		{`{"count_by": ["claim:plan", "user"]`, sim.Request{User: "a"}, "headers and claims"},
		{`{"count_by": ["claim:plan", "user"]`, sim.Request{}, "no"},

		{`{"count_by": ["user"]`, sim.Request{User: "alice"}, "user:alice"},
		{`{"count_by": ["user"]`, sim.Request{IP: "192.0.2.1"}, "no"},
		{`{"count_by": ["user"]`, sim.Request{User: "a b\n"}, `user:"a b\n"`},
		{`{"count_by": ["user"]`, sim.Request{User: strings.Repeat("x", 200)}, "user:" + strings.Repeat("x", 64) + "#aa20c23e32018340"},
		{`{"count_by": ["tenant", "api_key"]`, sim.Request{Key: "k", Tenant: "t"}, "key:k tenant:t"},
		{`{"count_by": ["method"]`, sim.Request{Method: "brew"}, "method:OTHER"},
		{`{"count_by": ["ip"]`, sim.Request{IP: "192.0.2.1"}, "ip:192.0.2.1"},
		{`{"count_by": ["ip"]`, sim.Request{IP: "::ffff:192.0.2.1"}, "ip:192.0.2.1"},
		{`{"count_by": ["ip"]`, sim.Request{IP: "192.0.2.0/24"}, "ip:192.0.2.0/24"},
		{`{"count_by": ["ip"]`, sim.Request{IP: "2001:db8:1:2:3:4:5:6"}, "ip:2001:db8:1:2::/64"},
		{`{"count_by": ["ip"]`, sim.Request{IP: "2001:db8::/48"}, "ip:2001:db8::/48"},
		{`{"count_by": ["ip"]`, sim.Request{IP: "b64hash"}, "ip:b64hash"},
	} {
		c.request.At, c.request.Weight = noon, 2 // one of which is refused
		p := run(t, hour(parseRule(t, c.rule+limits), rule.Tier{Name: "free"}), c.request)
		got := "no"
		switch {
		case p.Unclear == 2 && p.Matched == 0:
			got = p.Notes[0]
		case p.Matched == 2 && p.Unclear == 0 && p.Subjects == 1 && len(p.Top) == 1:
			got = p.Top[0].Subject
		case p.Matched > 0 || p.Unclear > 0:
			t.Errorf("%s: %+v", c.rule, p)
		}
		if got != c.want && (p.Unclear == 0 || !strings.Contains(got, c.want)) {
			t.Errorf("%s, %+v: %s, want %s", c.rule, c.request, got, c.want)
		}
	}
}

// TestNetworks matches addresses and networks in and around networks.
func TestNetworks(t *testing.T) {
	t.Parallel()
	draw := rapid.Custom(func(t *rapid.T) netip.Prefix {
		a := netip.AddrFrom4([4]byte{10, 0, 0, rapid.Byte().Draw(t, "v4")})
		if rapid.Bool().Draw(t, "is v6") {
			a = netip.AddrFrom16([16]byte{0x20, 1, 15: rapid.Byte().Draw(t, "v6")})
		}
		p, _ := a.Prefix(a.BitLen() - rapid.IntRange(0, 9).Draw(t, "bits"))
		return p
	})
	rapid.Check(t, func(t *rapid.T) {
		ranges := rapid.SliceOfNDistinct(draw, 1, 12, rapid.ID[netip.Prefix]).Draw(t, "ranges")
		p := draw.Draw(t, "asked")
		r := rule.Rule{Name: "r", Action: rule.Block}
		want := [2]int64{} // matched, unclear
		for _, n := range ranges {
			r.Match.IPRanges = append(r.Match.IPRanges, n.String())
			if n.Overlaps(p) && want[0] == 0 {
				want[1] = 1
			}
			if n.Bits() <= p.Bits() && n.Overlaps(p) {
				want = [2]int64{1, 0}
			}
		}
		asked := p.String()
		if p.IsSingleIP() {
			asked = p.Addr().String()
		}
		got, err := sim.Run(t.Context(), hour(r), those(sim.Request{At: noon, IP: asked}))
		if err != nil || [2]int64{got.Matched, got.Unclear} != want {
			t.Errorf("%v in %v: %d matched, %d unclear, want %v; %v", p, ranges, got.Matched, got.Unclear, want, err)
		}
	})
}

// after returns requests of a user, some time after noon.
func after(d time.Duration, user string, n int64) sim.Request {
	return sim.Request{At: noon.Add(d), Method: "GET", User: user, Weight: n}
}

func TestActions(t *testing.T) {
	t.Parallel()
	tiers := []rule.Tier{
		{Name: "pro", Limits: map[string]string{"l0": "5/1h", "of-others": "1/1h"}},
		{Name: "vip", Limits: map[string]string{"l0": "unlimited"}},
	}
	tier := func(q sim.Request, name string) sim.Request {
		q.Tier = name
		return q
	}
	cost := func(q sim.Request, units int64) sim.Request {
		q.Cost = units
		return q
	}
	for _, c := range []struct {
		name, rule string
		requests   []sim.Request
		want       int64
		note       string
	}{
		{"reject", `{"count_by": ["user"], "limits": [{"limit": "2/1h"}]}`, []sim.Request{after(0, "a", 3), after(0, "b", 2)}, 1, "one event: 2 events for 5 requests"},
		{"block", `{"action": "block", "match": {"methods": ["GET"]}}`, []sim.Request{after(0, "a", 3)}, 3, ""},
		{"allow", `{"action": "allow"}`, []sim.Request{after(0, "a", 3)}, 0, ""},
		{"log_only", `{"action": "log_only", "limits": [{"limit": "2/1h"}]}`, []sim.Request{after(0, "a", 3)}, 1, "is log_only"},
		{"off", `{"enabled": false, "limits": [{"limit": "2/1h"}]}`, []sim.Request{after(0, "a", 3)}, 1, "is disabled"},
		{"group", `{"group": "g", "limits": [{"limit": "2/1h"}]}`, []sim.Request{after(0, "a", 3)}, 1, "group g"},
		{"tiers", `{"count_by": ["user"], "limits": [{"limit": "2/1h"}]}`, []sim.Request{tier(after(0, "a", 9), "pro"), tier(after(0, "b", 9), "vip"), tier(after(0, "c", 9), "gone")}, 4 + 7, "Overrides of users"},
		{"cost", `{"limits": [{"limit": "10/1h"}], "cost": 5}`, []sim.Request{cost(after(0, "a", 3), 1)}, 1, "differs from the recorded cost: 3 requests"},
		{"cost of then", `{"limits": [{"limit": "10/1h"}]}`, []sim.Request{cost(after(0, "a", 3), 5)}, 1, "with the recorded cost: 3 requests"},
		{"cost of a header", `{"limits": [{"limit": "10/1h"}], "cost": {"header": "X-Cost", "max": 4}}`, []sim.Request{cost(after(0, "a", 3), 100)}, 1, "with the recorded cost: 3 requests"},
		{"cost too high", `{"limits": [{"limit": "10/1h"}]}`, []sim.Request{cost(after(0, "a", math.MaxInt64), math.MaxInt64)}, 1 << 32, ""},
		{
			"penalty", `{"count_by": ["user"], "limits": [{"limit": "1/1s fixed_window"}], "penalty": {"threshold": 2, "within": "1h", "cooldown": "1m"}}`,
			[]sim.Request{after(0, "a", 3), after(30*time.Second, "a", 1), after(61*time.Second, "a", 1)},
			2 + 1, "",
		},
		{"held", `{"action": "throttle", "max_delay": "3s", "limits": [{"limit": "1/1s fixed_window"}]}`, []sim.Request{after(0, "a", 9)}, 9 - 4, ""},
		{
			"held before others", `{"action": "throttle", "max_delay": "3s", "limits": [{"limit": "1/1s fixed_window"}]}`,
			[]sim.Request{after(0, "a", 2), after(1500*time.Millisecond, "a", 1)},
			0, "",
		},
		{"spaced", `{"limits": [{"limit": "1/1s burst=3 leaky_bucket"}]}`, []sim.Request{after(0, "a", 5)}, 1, ""},
		{"wrong order", `{"limits": [{"limit": "1/1s"}]}`, []sim.Request{after(time.Minute, "a", 1), after(0, "a", 1)}, 1, "out of order, and replayed at the time of the previous request: 1 request."},
		{"other times", `{"limits": [{"limit": "1/1s"}]}`, []sim.Request{after(-1, "a", 9), after(time.Hour, "a", 9)}, 0, ""},
		{"long windows", `{"limits": [{"limit": "1/month"}]}`, []sim.Request{after(0, "a", 1)}, 0, "up to 31d long"},
		{"networks", `{"count_by": ["ip"], "limits": [{"limit": "1/1s"}]}`, []sim.Request{{At: noon, IP: "192.0.2.0/24"}}, 0, "addresses are truncated: 1 request."},
		{"others", `{"limits": [{"limit": "1/1s"}]}`, []sim.Request{{At: noon, Refused: true, Rule: "other"}}, 0, "for other reasons at the time, and replayed all the same: 1 request."},
	} {
		p := run(t, hour(parseRule(t, c.rule), tiers...), c.requests...)
		if p.WouldRefuse != c.want || !strings.Contains(strings.Join(p.Notes, "\n"), c.note) {
			t.Errorf("%s: %+v, want %d and %q", c.name, p, c.want, c.note)
		}
	}
}

func TestPreview(t *testing.T) {
	t.Parallel()
	r := parseRule(t, `{"count_by": ["user"], "limits": [{"limit": "1/1h fixed_window"}]}`)
	refused := sim.Request{At: noon.Add(10 * time.Minute), User: "a", Refused: true, Rule: "candidate"}
	p := run(t, sim.Options{Rule: r, From: noon, To: noon.Add(20 * time.Minute)}, after(0, "a", 1), after(time.Second, "b", 1), refused, after(0, "", 4))
	if len(p.Series) != 40 {
		t.Errorf("%d points", len(p.Series))
	}
	p.Series = slices.DeleteFunc(p.Series, func(p sim.Point) bool { return p.Matched == 0 })
	got, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"from":"2026-03-02T12:00:00Z","to":"2026-03-02T12:20:00Z","summary":"Of 7 requests, 3 match (43 %) and 4 do not match (57 %). ` +
		`Of those that match, the rule would have denied 1 (33 %); denied at the time: 1.",` +
		`"events":4,"requests":7,"matched":3,"not_matched":4,"unclear":0,` +
		`"shares":{"matched":0.42857142857142855,"not_matched":0.5714285714285714,"unclear":0},"would_refuse":1,"refused_now":1,"subjects":2,"denied_subjects":1,"top":[{"subject":"user:a","requests":2,"would_refuse":1}],` +
		`"series":[{"start":"2026-03-02T12:00:00Z","matched":2,"would_refuse":0},{"start":"2026-03-02T12:10:00Z","matched":1,"would_refuse":1}],` +
		`"notes":["Counters are empty at the start, and windows are up to 1h long: with earlier usage, more requests would be denied.",` +
		`"Overrides of users and API keys are ignored."]}`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	empty, err := json.Marshal(run(t, hour(parseRule(t, `{"action": "allow"}`))))
	if err != nil || !strings.Contains(string(empty), `"top":[]`) || !strings.HasSuffix(string(empty), `"notes":[]}`) {
		t.Errorf("%s, %v", empty, err)
	}
}

// TestSeries uses time ranges of all lengths: points are few, cover the range, and contain
// the last request.
func TestSeries(t *testing.T) {
	t.Parallel()
	r := parseRule(t, `{"action": "block"}`)
	rapid.Check(t, func(t *rapid.T) {
		from := noon.Add(time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(t, "from")))
		to := from.Add(time.Duration(rapid.Int64Range(1, 1<<rapid.IntRange(1, 54).Draw(t, "bits")).Draw(t, "length")))
		p, err := sim.Run(t.Context(), sim.Options{Rule: r, From: from, To: to}, those(sim.Request{At: to.Add(-1)}))
		if err != nil {
			t.Fatal(err)
		}
		n := len(p.Series)
		if n < 1 || n > 60 || p.Series[0].Start.After(from) || p.Series[n-1].WouldRefuse != 1 || !p.Series[n-1].Start.Before(to) {
			t.Errorf("%v to %v: %+v", from, to, p.Series)
		}
	})
}

// TestTop has more subjects than are listed.
func TestTop(t *testing.T) {
	t.Parallel()
	var all []sim.Request
	for i := range int64(20) {
		all = append(all, after(0, strconv.FormatInt(i, 10), i+1))
	}
	p := run(t, hour(parseRule(t, `{"count_by": ["user"], "limits": [{"limit": "5/1h"}]}`)), all...)
	if len(p.Top) != 10 || p.Top[0] != (sim.Subject{Subject: "user:19", Requests: 20, WouldRefuse: 15}) || p.Top[9].Subject != "user:10" || p.Subjects != 20 {
		t.Errorf("%+v", p.Top)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	sound := parseRule(t, `{"action": "block"}`)
	_, err := sim.Run(t.Context(), hour(parseRule(t, `{"limits": [{"limit": "many"}]}`)), those())
	if problems := rule.Problems(nil); !errors.As(err, &problems) || problems[0].Path != "rules[0].limits[0].limit" {
		t.Errorf("a rule that is not sound: %v", err)
	}
	for _, o := range []sim.Options{{Rule: sound}, {Rule: sound, From: noon, To: noon.Add(-1)}, {Rule: sound, To: noon}} {
		if _, err := sim.Run(t.Context(), o, those()); !errors.As(err, new(*stint.InvalidError)) {
			t.Errorf("from %v to %v: %v", o.From, o.To, err)
		}
	}
	away := errors.New("away")
	_, err = sim.Run(t.Context(), hour(sound), func(yield func(sim.Request, error) bool) {
		_ = yield(after(0, "a", 1), nil) && yield(sim.Request{}, away)
	})
	if !errors.Is(err, away) {
		t.Errorf("a record that fails: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	seen := 0
	_, err = sim.Run(ctx, hour(sound), func(yield func(sim.Request, error) bool) {
		for yield(after(0, "a", 1), nil) {
			if seen++; seen == 3 {
				cancel()
			}
		}
	})
	if !errors.Is(err, context.Canceled) || seen != 3 {
		t.Errorf("a caller that leaves: %v after %d", err, seen)
	}
}

// TestKeepsOptions checks that a replay does not change its options.
func TestKeepsOptions(t *testing.T) {
	t.Parallel()
	off := false
	tier := rule.Tier{Name: "free", Limits: map[string]string{"of-others": "1/1h"}}
	r := rule.Rule{Name: "r", Action: rule.Block, Enabled: &off}
	run(t, hour(r, tier))
	if off || !maps.Equal(tier.Limits, map[string]string{"of-others": "1/1h"}) {
		t.Error(off, tier)
	}
}

// TestCase replays requests whose recorded endpoints differ from the rule in case.
func TestCase(t *testing.T) {
	t.Parallel()
	o := hour(parseRule(t, `{"match":{"paths":["/Search","/files/*/Raw"]},"limits":[{"limit":"1/1h"}]}`))
	requests := []sim.Request{
		{At: noon, Endpoint: "/search", Weight: 1}, {At: noon, Endpoint: "/FILES/*/raw", Weight: 1}, {At: noon, Endpoint: "/other", Weight: 1},
	}
	if p := run(t, o, requests...); p.Matched != 0 {
		t.Errorf("matched: %d", p.Matched)
	}
	o.Case = rule.IgnoreCase
	if p := run(t, o, requests...); p.Matched != 2 || p.Unclear != 0 {
		t.Errorf("matched: %d, unclear: %d", p.Matched, p.Unclear)
	}
}
