package rule_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// TestProblems runs testdata/problems.txt: files, and all that is wrong with them.
func TestProblems(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/problems.txt")
	if err != nil {
		t.Fatal(err)
	}
	cases := strings.Split("\n"+string(text), "\n=== ")[1:]
	if len(cases) < 80 {
		t.Fatalf("read only %d cases", len(cases))
	}
	for _, c := range cases {
		name, rest, _ := strings.Cut(c, "\n")
		doc, want, _ := strings.Cut(rest, "---\n")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			if _, err := rule.ParseTOML("", []byte(doc)); err != nil {
				got = err.Error()
			}
			if want = strings.TrimSpace(want); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// TestCheckValues checks what no document can hold, but a program can.
func TestCheckValues(t *testing.T) {
	t.Parallel()
	limits := []rule.Limit{{Name: "l", Limit: "10/1s"}}
	for name, c := range map[string]struct {
		rule rule.Rule
		want string
	}{
		"delay":      {rule.Rule{Limits: limits, MaxDelay: -1}, `rules[0].max_delay: "-1ns": want more than 0, and at most 1m`},
		"within":     {rule.Rule{Limits: limits, Penalty: &rule.Penalty{Threshold: 1, Within: 1, Cooldown: 1000}}, `rules[0].penalty.within: "1ns": want a whole number of microseconds`},
		"message":    {rule.Rule{Limits: limits, Response: rule.Response{Message: "\xff"}}, `rules[0].response.message: "\xff": want one line of text, without control characters`},
		"limit":      {rule.Rule{Limits: []rule.Limit{{Name: "l", Limit: "10/1s\xff"}}}, `want valid UTF-8`},
		"algorithm":  {rule.Rule{Limits: []rule.Limit{{Name: "l", Limit: "10/1s", Algorithm: "gcra burst=5"}}}, `rules[0].limits[0].algorithm: "gcra burst=5": want sliding_window`},
		"many paths": {rule.Rule{Limits: limits, Match: rule.Match{Paths: make([]string, 10_001)}}, `rules[0].match.paths: has 10001 values, want at most 10000`},
		"cooldown":   {rule.Rule{Limits: limits, Penalty: &rule.Penalty{Threshold: 1, Within: 1000, Cooldown: rule.Duration(2 * stint.MaxWindow)}}, `rules[0].penalty.cooldown: "7320d": want more than 0, and at most 3660d`},
	} {
		c.rule.Name = "a"
		f := rule.File{Rules: []rule.Rule{c.rule}}
		if got := f.Check().Error(); !strings.Contains(got, c.want) {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

// TestNeverReached puts limits that are said never to be reached to the test: with
// both charged or neither, they must not refuse what the other lets pass.
func TestNeverReached(t *testing.T) {
	t.Parallel()
	limit := rapid.Custom(func(t *rapid.T) string {
		text := fmt.Sprintf("%d/%s %s", rapid.IntRange(1, 40).Draw(t, "max"),
			rapid.SampledFrom([]string{"1s", "2s", "3s", "4s", "6s", "700ms", "10s"}).Draw(t, "window"),
			rapid.SampledFrom([]string{"sliding_window", "fixed_window", "sliding_log", "token_bucket", "leaky_bucket"}).Draw(t, "algorithm"))
		if burst := rapid.IntRange(0, 20).Draw(t, "burst"); strings.HasSuffix(text, "bucket") && burst > 0 {
			text += " burst=" + strconv.Itoa(burst)
		}
		return text
	})
	claims := 0
	rapid.Check(t, func(t *rapid.T) {
		texts := []string{limit.Draw(t, "first"), limit.Draw(t, "second")}
		f := rule.File{Rules: []rule.Rule{{Name: "r", Limits: []rule.Limit{{Name: "x", Limit: texts[0]}, {Name: "y", Limit: texts[1]}}}}}
		problems := f.Check()
		if len(problems) == 0 {
			return
		}
		claims++
		never := 0
		if problems[0].Path == "rules[0].limits[1]" {
			never = 1
		}
		var limits [2]stint.Limit
		for i := range limits {
			s := compile(t, rule.File{Rules: []rule.Rule{{Name: "r", Limits: f.Rules[0].Limits[i : i+1]}}})
			asks, _ := s.Asks(nil, s.Match(nil, &rule.Attrs{}), &rule.Attrs{}, nil)
			limits[i] = asks[0].Limit
		}
		var states [2]stint.State
		now := time.Unix(1_700_000_000, 0)
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for range 300 {
			// Instants at and around the edges of windows, more often than others.
			switch random.IntN(4) {
			case 0:
				now = now.Truncate(100 * time.Millisecond).Add(100 * time.Millisecond * time.Duration(random.IntN(20)))
			case 1:
				now = now.Truncate(100 * time.Millisecond).Add(100*time.Millisecond - time.Microsecond)
			case 2:
				now = now.Add(time.Duration(random.IntN(2_000_000)) * time.Microsecond)
			}
			cost := int64(1 + random.IntN(3))
			if random.IntN(3) == 0 {
				_, d := limits[1-never].Take(states[1-never], now, 0)
				cost = max(d.Remaining, 1) // all there is
			}
			var next [2]stint.State
			var d [2]stint.Decision
			for i := range limits {
				next[i], d[i] = limits[i].Take(states[i], now, cost)
			}
			if d[1-never].Allowed && !d[never].Allowed {
				t.Fatalf("%v was reached before %v", limits[never], limits[1-never])
			}
			if d[0].Allowed && d[1].Allowed {
				states = next
			}
		}
	})
	if claims == 0 {
		t.Error("no limit was said never to be reached")
	}
}

// TestNeverReachedByCalendar takes all that a limit of one calendar period lets pass
// from the beginning of a longer one, and of that the least that is said never to be
// reached then.
func TestNeverReachedByCalendar(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		short, long string
		days, most  int
	}{
		{"day", "week", 7, 9},
		{"day", "month", 31, 33},
		{"day", "year", 366, 368},
		{"week", "month", 31, 7},
		{"week", "year", 366, 55},
		{"month", "year", 366, 14},
	} {
		reported := func(n int) bool {
			f := rule.File{Rules: []rule.Rule{{Name: "r", Limits: []rule.Limit{
				{Name: "x", Limit: "1/" + c.short}, {Name: "y", Limit: strconv.Itoa(n) + "/" + c.long},
			}}}}
			return len(f.Check()) > 0
		}
		least := 1
		for !reported(least) {
			least++
		}
		if least > c.most {
			t.Errorf("%d/%s after 1/%s is not reported, want from %d on", least-1, c.long, c.short, c.most)
		}
		for _, zone := range []string{"", " tz=Asia/Tokyo", " tz=Pacific/Honolulu"} {
			a, errA := stint.ParseLimit("1/" + c.short + zone)
			b, errB := stint.ParseLimit(strconv.Itoa(least) + "/" + c.long)
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			for day := range 731 {
				from := time.Date(2028, 1, 1+day, 0, 0, 0, 0, time.UTC)
				if from.Day() > 1 && from.Weekday() != time.Monday {
					continue
				}
				var sa, sb stint.State
				for now := from; now.Before(from.AddDate(0, 0, c.days)); now = now.Add(6 * time.Hour) {
					nextA, da := a.Take(sa, now, 1)
					if !da.Allowed {
						continue
					}
					nextB, db := b.Take(sb, now, 1)
					if !db.Allowed {
						t.Fatalf("%v was reached before %v at %v", b, a, now)
					}
					sa, sb = nextA, nextB
				}
			}
		}
	}
}

// TestUnreachable puts rules that are said never to apply to the test: whatever
// matches them must match the rule that hides them.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	some := func(t *rapid.T, label string, of ...string) []string {
		return rapid.SliceOfNDistinct(rapid.SampledFrom(of), 0, 2, rapid.ID[string]).Draw(t, label)
	}
	draw := func(t *rapid.T, name string) rule.Rule {
		r := rule.Rule{
			Name: name, Group: "g", Priority: rapid.IntRange(0, 1).Draw(t, "priority"),
			Limits: []rule.Limit{{Name: "l", Limit: "1/1s"}},
			Match: rule.Match{
				Paths:    some(t, "paths", "/a", "/a/*", "/a/b", "/**", "/{x}/b", "/a/**"),
				Methods:  some(t, "methods", "GET", "PUT"),
				IPRanges: some(t, "networks", "10.0.0.0/8", "10.1.0.0/16", "10.1.0.1"),
			},
		}
		if v := rapid.SampledFrom([]string{"", "*", "1"}).Draw(t, "header"); v != "" {
			r.Match.Headers = map[string]string{"X-App": v}
		}
		if rapid.IntRange(0, 3).Draw(t, "tried out") == 0 {
			r.Action = rule.LogOnly
		}
		for _, d := range some(t, "count", "user", "ip") {
			r.CountBy = append(r.CountBy, rule.Dimension(d))
		}
		return r
	}
	claims := 0
	pair := func(t *rapid.T) {
		rules := []rule.Rule{draw(t, "a"), draw(t, "b")}
		f := rule.File{Rules: rules}
		problems := f.Check()
		if len(problems) == 0 {
			return
		}
		claims++
		hidden := 0
		if problems[0].Path == "rules[1]" {
			hidden = 1
		}
		if rules[1-hidden].Action != rules[hidden].Action {
			t.Fatalf("hidden by a rule that is no rival: %v", problems)
		}
		if rules[1-hidden].Priority > rules[hidden].Priority {
			t.Fatalf("hidden by a rule that comes later: %v", problems)
		}
		var sets [2]*rule.Set
		for i := range sets {
			var err error
			if sets[i], err = rule.Compile(rule.File{Rules: rules[i : i+1]}); err != nil {
				t.Fatal(err)
			}
		}
		for _, path := range []string{"/", "/a", "/a/b", "/a/c", "/c/b", "/a/b/c"} {
			for _, method := range []string{"GET", "PUT", "DELETE"} {
				for _, ip := range []string{"10.1.0.1", "10.1.0.2", "10.2.0.1", "192.0.2.1"} {
					for _, app := range []string{"", "1", "2"} {
						for _, user := range []string{"", "42"} {
							addr := netip.MustParseAddr(ip)
							a := rule.Attrs{Method: method, Path: path, IP: addr, Net: netip.PrefixFrom(addr, 32), User: user}
							if app != "" {
								a.Headers = map[string][]string{"X-App": {app}}
							}
							if len(sets[hidden].Match(nil, &a)) > 0 && len(sets[1-hidden].Match(nil, &a)) == 0 {
								t.Fatalf("%v, but %s %s is matched by it alone", problems, method, path)
							}
						}
					}
				}
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 10 {
			pair(t)
		}
	})
	if claims == 0 {
		t.Error("no rule was said to be unreachable")
	}
}

// groupOf returns n rules of one group, over n/2 paths.
func groupOf(n int) rule.File {
	f := rule.File{Tiers: []rule.Tier{{Name: "free"}, {Name: "pro"}}}
	for i := range n {
		f.Rules = append(f.Rules, rule.Rule{
			Name: "r" + strconv.Itoa(i), Group: "endpoints",
			Match:   rule.Match{Paths: []string{"/api/v" + strconv.Itoa(i%10) + "/p" + strconv.Itoa(i/2)}, Tiers: []string{f.Tiers[i%2].Name}},
			CountBy: []rule.Dimension{"user", "endpoint"},
			Limits:  []rule.Limit{{Name: "l", Limit: "100/1m"}, {Name: "b", Limit: "10/1s"}},
		})
	}
	return f
}

func BenchmarkCheck(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		f := groupOf(n)
		b.Run("rules="+strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				if problems := f.Check(); problems != nil {
					b.Fatal(problems)
				}
			}
		})
	}
}

// TestCheckMany has more wrong than is looked for.
func TestCheckMany(t *testing.T) {
	t.Parallel()
	f := groupOf(2 * strict.MaxProblems)
	for i := range f.Rules {
		f.Rules[i].Match.Tiers = []string{"fre"}
	}
	problems := f.Check()
	if len(problems) != strict.MaxProblems {
		t.Errorf("%d problems, want %d", len(problems), strict.MaxProblems)
	}
	if !slices.ContainsFunc(problems, func(p rule.Problem) bool { return strings.Contains(p.Hint, "free") }) {
		t.Error("no hints")
	}
}
