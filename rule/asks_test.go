package rule_test

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// asksOf returns what the rules that apply ask, as text.
func asksOf(s *rule.Set, a *rule.Attrs) []string {
	asks, _ := s.Asks(nil, s.Match(nil, a), a, nil)
	var out []string
	for _, ask := range asks {
		what := ask.Limit.String()
		if ask.Penalty != nil {
			what = "penalty"
		}
		out = append(out, fmt.Sprintf("%s %s %s x%d", ask.Key.Subject, ask.Key.Name, what, ask.Cost))
	}
	return out
}

func TestKeys(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 257)
	const (
		hashed = "#6NlcwrS8GYxUtAvSFN-Vivtl9ec9LC6v4Fk89cY1wfA"
		again  = "#PAJEm64_W3ulnD1iLyqLVukKCSvrFpwacrmhFMYw7Gs" // of hashed itself
		m      = "#YsZqel3XDDFGYYBjw0TlMebUtZ43mAhEPOlis6vWPFo"
		n      = "#Gxax31OLoS3D-X7buFyqcFDUbBSBNCkP66gPgjbIPbk"
	)
	for _, c := range []struct{ rule, attrs, want string }{
		{"r", "- /", "global r:n"},
		{"r by=global", "- /", "global r:n"},
		{"r by=user", "- / user=42", "user:42 r:n"},
		{"r by=api_key", "- / key=k1", "key:k1 r:n"},
		{"r by=ip", "- / ip=192.0.2.1", "ip:192.0.2.1 r:n"},
		{"r by=ip", "- / ip=2001:db8::1", "ip:2001:db8::/64 r:n"},
		{"r by=tenant", "- / tenant=acme", "tenant:acme r:n"},
		{"r by=claim:org", "- / claim=org:x:y", "claim:org:x:y r:n"},
		{"r by=header:x-app", "- / header=X-App:m trusted", "header:X-App:" + m + " r:n"},
		{"r by=header:x-app", "- / header=X-App:m header=X-App:n trusted", "header:X-App:" + n + " r:n"},
		{"r by=header:x-app", "- / header=X-App:m ip=192.0.2.1", "ip:192.0.2.1 r:n:44:" + m},
		{"r by=header:x-app,ip", "- / header=X-App:m ip=192.0.2.1", "ip:192.0.2.1 r:n:44:" + m},
		{"r by=header:x-app,user", "- / header=X-App:m user=1 ip=192.0.2.1", "user:1 r:n:9:192.0.2.1:44:" + m},
		{"r by=header:x-app,user", "- / header=X-App:m user=1 trusted", "user:1 r:n:44:" + m},
		{"r by=header:x-app,endpoint paths=/a", "- /a header=X-App:m trusted", "header:X-App:" + m + " r:n:2:/a"},
		{"r by=header:x-app,endpoint paths=/a", "- /a header=X-App:m ip=192.0.2.1", "ip:192.0.2.1 r:n:44:" + m + ":2:/a"},
		{"r by=endpoint paths=/a/*", "- /a/b", "endpoint:/a/* r:n"},
		{"r by=endpoint,method paths=/a/*", "GET /a/b", "endpoint:/a/* r:n:3:GET"},
		{"r by=method", "GET /", "method:GET r:n"},
		{"r by=endpoint,user paths=/a/{x}", "- /a/b user=1", "user:1 r:n:6:/a/{x}"},
		{"r by=tenant,ip,api_key,user,method", "GET / user=1 key=2 ip=192.0.2.1 tenant=t", "user:1 r:n:1:2:9:192.0.2.1:1:t:3:GET"},
		{"r by=ip,user", "- / user=1 ip=2001:db8::1", "user:1 r:n:13:2001:db8::/64"},
		{"r by=claim:b,claim:a", "- / claim=a:1 claim=b:2", "claim:a:1 r:n:1:2"},
		{"r by=user", "- / user=" + long, "user:" + hashed + " r:n"},
		{"r by=user", "- / user=" + hashed, "user:" + again + " r:n"},
		{"r by=user,tenant", "- / user=1 tenant=" + hashed, "user:1 r:n:44:" + again},
		{"r by=user,tenant", "- / user=1 tenant=" + long, "user:1 r:n:44:" + hashed},
	} {
		s := compile(t, rule.File{Rules: []rule.Rule{readRule(t, strings.Fields(c.rule))}})
		a := readAttrs(t, strings.Fields(c.attrs))
		if got, want := asksOf(s, &a), []string{c.want + " 10/1s x1"}; !slices.Equal(got, want) {
			t.Errorf("%s, %s: %q, want %q", c.rule, c.attrs, got, want)
		}
	}
}

func TestAsks(t *testing.T) {
	t.Parallel()
	limits := []rule.Limit{{Name: "burst", Limit: "10/1s", Algorithm: "token_bucket", Burst: 20}, {Name: "day", Limit: "1000/day"}}
	penalty := &rule.Penalty{Threshold: 3, Within: rule.Duration(3600e9), Cooldown: rule.Duration(60e9), Multipliers: []int64{1, 2}}
	f := rule.File{
		Rules: []rule.Rule{
			{Name: "a", Limits: limits},
			{Name: "b", Limits: limits, CountBy: []rule.Dimension{"user"}, Penalty: penalty},
			{Name: "c", Action: rule.Allow, Match: rule.Match{Methods: []string{"OPTIONS"}}},
			{Name: "d", Limits: limits[1:], CountBy: []rule.Dimension{"user", "method"}, Penalty: penalty, Cost: rule.Cost{Units: 5}},
		},
		Tiers: []rule.Tier{
			{Name: "pro", Limits: map[string]string{"burst": "50/1s"}},
			{Name: "max", Limits: map[string]string{"burst": "unlimited", "day": "unlimited"}},
		},
	}
	s := compile(t, f)
	for _, c := range []struct {
		name  string
		attrs rule.Attrs
		want  []string
	}{
		{"nobody", rule.Attrs{}, []string{
			"global a:burst 10/1s burst=20 token_bucket x1",
			"global a:day 1000/day x1",
		}},
		{"penalties come first", rule.Attrs{User: "1", Method: "GET"}, []string{
			"user:1 b:burst 10/1s burst=20 token_bucket x1",
			"user:1 b:day 1000/day x1",
			"user:1 b:penalty! penalty x1",
			"user:1 d:day:3:GET 1000/day x5",
			"user:1 d:penalty!:3:GET penalty x1",
			"global a:burst 10/1s burst=20 token_bucket x1",
			"global a:day 1000/day x1",
		}},
		{"a tier's value", rule.Attrs{Tier: "pro"}, []string{"global a:burst 50/1s x1", "global a:day 1000/day x1"}},
		{"a user's value", rule.Attrs{Tier: "pro", UserLimits: rule.Values{"burst": stint.PerSecond(7)}}, []string{
			"global a:burst 7/1s x1", "global a:day 1000/day x1",
		}},
		{"a key's value", rule.Attrs{
			Tier: "pro", UserLimits: rule.Values{"burst": stint.PerSecond(7)}, KeyLimits: rule.Values{"burst": stint.PerSecond(8), "day": {}},
		}, []string{"global a:burst 8/1s x1"}},
		{"unlimited asks nothing, not even the penalty", rule.Attrs{Tier: "max", User: "1", Method: "GET"}, nil},
		{"a cost that is given", rule.Attrs{Cost: 9, UserLimits: rule.Values{"day": {}}}, []string{
			"global a:burst 10/1s burst=20 token_bucket x9",
		}},
		{"allow asks nothing", rule.Attrs{Method: "OPTIONS", UserLimits: rule.Values{"day": {}, "burst": {}}}, nil},
	} {
		if got := asksOf(s, &c.attrs); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}

	a := &rule.Attrs{User: "1", Method: "OPTIONS"}
	hits := s.Match(nil, a)
	asks, _ := s.Asks(make([]stint.Ask, 2), hits, a, nil)
	var got []string
	for _, h := range hits {
		got = append(got, fmt.Sprint(h.Rule.Name, " ", h.From, "-", h.To))
	}
	if want := []string{"a 7-9", "b 2-5", "c 9-9", "d 5-7"}; !slices.Equal(got, want) || len(asks) != 9 {
		t.Errorf("%d asks, %q, want %q", len(asks), got, want)
	}
	if p := asks[4].Penalty; p == nil || p.Validate() != nil || p.Threshold != 3 || len(p.Multipliers) != 2 {
		t.Errorf("penalty %+v", p)
	}
}

func TestCosts(t *testing.T) {
	t.Parallel()
	set := func(c rule.Cost) *rule.Set {
		return compile(t, rule.File{Rules: []rule.Rule{{Name: "r", Cost: c, Limits: []rule.Limit{{Name: "n", Limit: "1000/1s"}}}}})
	}
	plain, header := set(rule.Cost{Units: 3}), set(rule.Cost{Units: 2, Header: "x-cost", Max: 100})
	for _, c := range []struct {
		set    *rule.Set
		header string
		open   bool
		cost   int64
		want   int64
	}{
		{set(rule.Cost{}), "", false, 0, 1},
		{plain, "", false, 0, 3},
		{plain, "7", false, 0, 3},
		{plain, "", false, 8, 8},
		{plain, "", false, -8, 3},
		{header, "", false, 0, 2},
		{header, "7", false, 0, 7},
		{header, "7", false, 9, 9},
		{header, "7", true, 0, 2},
		{header, "100", false, 0, 100},
		{header, "101", false, 0, 100},
		{header, "99999999999999999999999", false, 0, 100},
		{header, "0", false, 0, 2},
		{header, "-1", false, 0, 2},
		{header, "+7", false, 0, 2},
		{header, "7.5", false, 0, 2},
		{header, "seven", false, 0, 2},
		{header, "9e99999", false, 0, 2},
		{header, "1|9", false, 0, 9},
		{header, "9|1|x|", false, 0, 9},
		{header, "x|0|", false, 0, 2},
		{header, "1|9", true, 0, 2},
		{header, strings.Repeat("1|", 1000) + "50", false, 0, 50}, // what a proxy adds comes last
		{header, "50" + strings.Repeat("|1", 32), false, 0, 1},
		{header, "50" + strings.Repeat("|1", 31), false, 0, 50},
	} {
		a := &rule.Attrs{Headers: map[string][]string{"X-Cost": strings.Split(c.header, "|")}, Trusted: !c.open, Cost: c.cost}
		asks, _ := c.set.Asks(nil, c.set.Match(nil, a), a, nil)
		if asks[0].Cost != c.want {
			t.Errorf("%+v: cost %d", c, asks[0].Cost)
		}
	}
}

// TestDelays checks that no request is held for longer than the rule says, whoever
// says what the limit is.
func TestDelays(t *testing.T) {
	t.Parallel()
	compiled := map[time.Duration]*rule.Set{}
	for _, most := range []time.Duration{0, time.Microsecond, 1500 * time.Microsecond, time.Second, 7 * time.Second, time.Minute} {
		compiled[most] = compile(t, rule.File{
			Rules: []rule.Rule{{Name: "r", Limits: []rule.Limit{{Name: "n", Limit: "1/1s"}}, MaxDelay: rule.Duration(most)}},
		})
	}
	lowered, kept := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		limit := stint.Limit{
			Algorithm: stint.LeakyBucket,
			Max:       rapid.Int64Range(1, 1<<rapid.IntRange(1, 53).Draw(t, "bits of max")-1).Draw(t, "max"),
			Burst:     rapid.Int64Range(0, 1<<rapid.IntRange(1, 53).Draw(t, "bits of burst")-2).Draw(t, "burst"),
			Window: stint.Every(rapid.SampledFrom([]time.Duration{
				time.Microsecond, 15 * time.Microsecond, time.Millisecond, time.Second, 7 * time.Second, time.Hour, 30 * 24 * time.Hour, stint.MaxWindow,
			}).Draw(t, "window")),
		}
		if limit.Validate() != nil {
			return
		}
		most := rapid.SampledFrom(slices.Sorted(maps.Keys(compiled))).Draw(t, "max_delay")
		s := compiled[most]
		if most == 0 {
			most = rule.MaxDelay
		}
		a := &rule.Attrs{KeyLimits: rule.Values{"n": limit}}
		if rapid.Bool().Draw(t, "user") {
			a = &rule.Attrs{UserLimits: a.KeyLimits}
		}
		asks, _ := s.Asks(nil, s.Match(nil, a), a, nil)
		got := asks[0].Limit
		if got.Burst == limit.Burst {
			kept++
		} else {
			lowered++
		}
		if err := got.Validate(); err != nil {
			t.Fatalf("%v became %v: %v", limit, got, err)
		}
		var state stint.State
		now := time.Unix(1_700_000_000, rapid.Int64Range(0, 999_999).Draw(t, "now")*1000)
		for range 20 {
			_, d := got.Take(state, now, 0)
			// All but one unit at once, all there is, or a little.
			cost := max(1, d.Remaining-rapid.Int64Range(0, 1).Draw(t, "left"))
			if rapid.IntRange(0, 3).Draw(t, "little") == 0 {
				cost = 1
			}
			next, d := got.Take(state, now, cost)
			if d.Allowed && d.Delay > most {
				t.Fatalf("%v, as %v: held for %v, want at most %v", limit, got, d.Delay, most)
			}
			state = next
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(most/time.Microsecond)).Draw(t, "passed")) * time.Microsecond)
		}
	})
	if lowered == 0 || kept == 0 {
		t.Errorf("%d limits were lowered, and %d were not", lowered, kept)
	}

	// What is not valid is for the store to refuse.
	for _, limit := range []stint.Limit{
		{Algorithm: stint.LeakyBucket, Max: 1, Burst: 5},
		{Algorithm: stint.LeakyBucket, Max: -1, Burst: 5, Window: stint.Every(-time.Second)},
		{Algorithm: stint.LeakyBucket, Max: math.MinInt64, Burst: math.MaxInt64, Window: stint.Every(time.Second)},
	} {
		a := &rule.Attrs{UserLimits: rule.Values{"n": limit}}
		s := compiled[time.Second]
		if asks, _ := s.Asks(nil, s.Match(nil, a), a, nil); asks[0].Limit.Validate() == nil {
			t.Errorf("%+v became %v", limit, asks[0].Limit)
		}
	}

	// No more is taken away than has to be.
	for _, c := range []struct {
		limit, delay, want string
	}{
		{"10/1s burst=100 leaky_bucket", "2s", "10/1s burst=20 leaky_bucket"},
		{"10/1s burst=20 leaky_bucket", "2s", "10/1s burst=20 leaky_bucket"},
		{"10/1s burst=19 leaky_bucket", "2s", "10/1s burst=19 leaky_bucket"},
		{"3/1s burst=100 leaky_bucket", "1s", "3/1s burst=3 leaky_bucket"},
		{"3/1s burst=100 leaky_bucket", "999999us", "3/1s burst=2 leaky_bucket"},
		{"10/1s burst=1000 leaky_bucket", "", "10/1s burst=600 leaky_bucket"},
		{"5/1h burst=10 leaky_bucket", "", "5/1h leaky_bucket"},
		{"9007199254740991/1us burst=5 leaky_bucket", "1s", "9007199254740991/1us burst=5 leaky_bucket"},
		{"35184372088831/30d burst=20226 leaky_bucket", "1500us", "35184372088831/30d burst=20225 leaky_bucket"}, // it has coarser ticks
		{"10/1s burst=100 token_bucket", "2s", "10/1s burst=100 token_bucket"},
	} {
		r := rule.Rule{Name: "r", Limits: []rule.Limit{{Name: "n", Limit: c.limit}}}
		if c.delay != "" {
			if err := r.MaxDelay.UnmarshalText([]byte(c.delay)); err != nil {
				t.Fatal(err)
			}
		}
		other := rule.Tier{Name: "tier", Limits: map[string]string{"n": c.limit}}
		own := compile(t, rule.File{Rules: []rule.Rule{r}})
		r.Limits[0].Limit = "1/1s"
		tier := compile(t, rule.File{Rules: []rule.Rule{r}, Tiers: []rule.Tier{other}})
		for _, s := range []*rule.Set{own, tier} {
			if got, want := asksOf(s, &rule.Attrs{Tier: "tier"}), []string{"global r:n " + c.want + " x1"}; !slices.Equal(got, want) {
				t.Errorf("%s within %s: %q, want %q", c.limit, c.delay, got, want)
			}
		}
	}
}

// named is a counter as a rule means it: what its key must be different for.
func named(h rule.Hit, by []rule.Dimension, ask int, a *rule.Attrs) string {
	out := []string{h.Rule.Name, strconv.Itoa(ask)}
	for _, d := range by {
		kind, name, _ := strings.Cut(string(d), ":")
		switch kind {
		case "user":
			out = append(out, a.User)
		case "tenant":
			out = append(out, a.Tenant)
		case "api_key":
			out = append(out, a.APIKey)
		case "ip":
			out = append(out, a.Net.String())
		case "method":
			out = append(out, a.Method)
		case "claim":
			out = append(out, a.Claims[name])
		case "header":
			if out = append(out, a.Headers[name][len(a.Headers[name])-1]); !a.Trusted && !slices.Contains(by, "ip") {
				out = append(out, "from "+a.Net.String())
			}
		case "endpoint":
			out = append(out, h.Endpoint)
		}
	}
	return fmt.Sprintf("%q", out)
}

// keyFile has a rule of each name for each way in which keys are made.
func keyFile(t rapid.TB, names ...string) (rule.File, *rule.Set) {
	t.Helper()
	var f rule.File
	for i, by := range []string{
		"", "user", "api_key", "ip", "tenant", "claim:a", "claim:a:b", "header:A", "endpoint", "method",
		"user,tenant", "tenant,api_key", "user,ip,endpoint", "user,header:A", "ip,header:A", "header:A,header:B", "claim:a,claim:a:b",
		"endpoint,method", "header:A,endpoint", "user,api_key,tenant,ip,claim:a,header:A,endpoint,method",
	} {
		for _, name := range names {
			r := rule.Rule{
				Name: name + "." + strconv.Itoa(i), Match: rule.Match{Paths: []string{"/**", "/a/*", "/{b}"}},
				Limits: []rule.Limit{{Name: "n", Limit: "1/1s"}, {Name: "n1", Limit: "2/1m"}},
			}
			if strings.Contains(by, "user") || strings.Contains(by, "api_key") || strings.Contains(by, "ip") {
				r.Penalty = &rule.Penalty{Threshold: 1, Within: 1e9, Cooldown: 1e9}
			}
			if by != "" {
				for d := range strings.SplitSeq(by, ",") {
					r.CountBy = append(r.CountBy, rule.Dimension(d))
				}
			}
			f.Rules = append(f.Rules, r)
		}
	}
	return f, compile(t, f)
}

// checkKeys checks that two requests have the same keys exactly where the rules
// count by the same.
func checkKeys(t rapid.TB, f rule.File, s *rule.Set, requests ...*rule.Attrs) {
	t.Helper()
	by := map[string][]rule.Dimension{}
	for _, r := range f.Rules {
		by[r.Name] = r.CountBy
	}
	keys, meanings := map[string]stint.Key{}, map[stint.Key]string{}
	for _, a := range requests {
		hits := s.Match(nil, a)
		asks, _ := s.Asks(nil, hits, a, nil)
		for _, h := range hits {
			for i := h.From; i < h.To; i++ {
				k, means := asks[i].Key, named(h, by[h.Rule.Name], i-h.From, a)
				if err := k.Validate(); err != nil {
					t.Fatalf("%s: %v", means, err)
				}
				if other, ok := meanings[k]; ok && other != means {
					t.Fatalf("%v is the key of %s and of %s", k, means, other)
				}
				if other, ok := keys[means]; ok && other != k {
					t.Fatalf("%s has the keys %v and %v", means, k, other)
				}
				keys[means], meanings[k] = k, means
			}
		}
	}
}

func TestKeysAreDifferent(t *testing.T) {
	t.Parallel()
	f, s := keyFile(t, "r", "r-1", "r1")
	value := rapid.OneOf(
		rapid.StringOfN(rapid.SampledFrom([]rune(":1a#")), 1, 6, -1),
		rapid.SampledFrom([]string{"1:1", "1:1:1", "1", "#", "\xff", "\xfe", strings.Repeat("1", 256), strings.Repeat("1", 257), "192.0.2.1"}),
		rapid.StringN(1, 300, 400),
	)
	rapid.Check(t, func(t *rapid.T) {
		var as []*rule.Attrs
		for range 4 {
			a := &rule.Attrs{
				Method: value.Draw(t, "method"), User: value.Draw(t, "user"), Tenant: value.Draw(t, "tenant"), APIKey: value.Draw(t, "key"),
				Path:    rapid.SampledFrom([]string{"/", "/a/b", "/b"}).Draw(t, "path"),
				Claims:  map[string]string{"a": value.Draw(t, "claim a"), "a:b": value.Draw(t, "claim a:b")},
				Headers: map[string][]string{"A": rapid.SliceOfN(value, 1, 2).Draw(t, "header a"), "B": {value.Draw(t, "header b")}},
				Trusted: rapid.Bool().Draw(t, "trusted"),
				IP:      netip.MustParseAddr(rapid.SampledFrom([]string{"192.0.2.1", "192.0.2.11", "2001:db8::1", "2001:db8::1:1"}).Draw(t, "ip")),
			}
			a.Net, _ = a.IP.Prefix(min(a.IP.BitLen(), 64))
			as = append(as, a)
		}
		checkKeys(t, f, s, as...)
	})
}

func FuzzKey(f *testing.F) {
	file, s := keyFile(f, "r")
	f.Add("1", "2", "1:2", "3")
	f.Add("a:1:b", "c", "a", "b:1:c")
	f.Add("#x", "\xff", strings.Repeat("a", 257), "")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		request := func(a, b string, trusted bool, last byte) *rule.Attrs {
			ip := netip.AddrFrom4([4]byte{192, 0, 2, last})
			return &rule.Attrs{
				Method: b, Path: "/a/b", User: a, Tenant: b, APIKey: a, IP: ip, Net: netip.PrefixFrom(ip, 32), Trusted: trusted,
				Claims: map[string]string{"a": a, "a:b": b}, Headers: map[string][]string{"A": {b}, "B": {a}},
			}
		}
		checkKeys(t, file, s, request(a, b, true, 1), request(a, b, false, 2), request(c, d, true, 1), request(c, d, false, 1), request(b, a, true, 3))
	})
}

func TestAllocs(t *testing.T) {
	f, _ := keyFile(t, "r")
	for i := range f.Rules {
		if i%2 > 0 {
			f.Rules[i].Enabled = new(bool) // ten rules with up to three asks each are enough
		}
	}
	s := compile(t, f)
	a := &rule.Attrs{
		Method: "GET", Path: "/a/b", User: "42", Tenant: "acme", APIKey: "k1", Tier: "free",
		IP: netip.MustParseAddr("2001:db8::1"), Net: netip.MustParsePrefix("2001:db8::/64"),
		Claims:  map[string]string{"a": "1", "a:b": "2"},
		Headers: map[string][]string{"A": {strings.Repeat("1", 500)}, "B": {"2"}},
	}
	hits := make([]rule.Hit, 0, 128)
	asks := make([]stint.Ask, 0, 128)
	scratch := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() { hits = s.Match(hits[:0], a) }); n != 0 {
		t.Errorf("Match of %d rules: %v allocations", len(hits), n)
	}
	if n := testing.AllocsPerRun(100, func() { asks, scratch = s.Asks(asks[:0], hits, a, scratch) }); n > 1 {
		t.Errorf("Asks of %d rules: %v allocations", len(hits), n)
	}
	if n := testing.AllocsPerRun(100, func() { s.Method("GET"); s.Method("post"); s.Method("SOME-OTHER") }); n != 0 {
		t.Errorf("Method: %v allocations", n)
	}
	a.KeyLimits = rule.Values{"n": {Algorithm: stint.LeakyBucket, Max: 3, Burst: 1 << 40, Window: stint.Every(1e9)}}
	if n := testing.AllocsPerRun(100, func() { asks, scratch = s.Asks(asks[:0], hits, a, scratch) }); n > 1 {
		t.Errorf("Asks of %d rules with a leaky_bucket: %v allocations", len(hits), n)
	}
	// Keys that are known beforehand cost none.
	hits = slices.DeleteFunc(hits, func(h rule.Hit) bool { return h.Rule.Name != "r.0" && h.Rule.Name != "r.8" })
	if n := testing.AllocsPerRun(100, func() { asks, scratch = s.Asks(asks[:0], hits, a, scratch) }); n != 0 || len(asks) != 4 {
		t.Errorf("Asks of %d rules: %v allocations", len(hits), n)
	}
}

func TestHostileValues(t *testing.T) {
	t.Parallel()
	f, s := keyFile(t, "r")
	junk := strings.Repeat("\xff\x00:", 1<<18)
	ip := netip.MustParseAddr("192.0.2.1")
	a := &rule.Attrs{
		Method: junk, Path: junk, User: junk, Tenant: junk, APIKey: junk, IP: ip,
		Claims: map[string]string{"a": junk, "a:b": junk}, Headers: map[string][]string{"A": {junk}, "B": {junk}},
	}
	hits := s.Match(nil, a)
	if len(hits) != len(f.Rules) {
		t.Fatalf("%d rules, want %d", len(hits), len(f.Rules))
	}
	asks, scratch := s.Asks(nil, hits, a, nil)
	for _, ask := range asks {
		if n := len(ask.Key.Subject) + len(ask.Key.Name); n > 1024 || !utf8.ValidString(ask.Key.String()) {
			t.Errorf("a key of %d bytes: %.100q", n, ask.Key)
		}
	}
	if cap(scratch) > 1<<16 {
		t.Errorf("scratch has grown to %d bytes", cap(scratch))
	}
	for _, x := range s.Explain(a) {
		if !x.Matched || len(x.Reason) > 1024 {
			t.Errorf("%+v", x)
		}
	}
}
