package rule_test

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/stintdev/stint/rule"
)

// inForce reports whether the only rule is in force for a request, and not only tried out.
func inForce(t require, s *rule.Set, a *rule.Attrs) bool {
	t.Helper()
	hits := s.Match(nil, a)
	if len(hits) != 1 {
		t.Fatalf("%d rules apply, want 1", len(hits))
	}
	return !hits[0].Shadow
}

type require interface {
	Helper()
	Fatalf(format string, args ...any)
}

// partly returns a rule that is in force for a part of users.
func partly(name string, part rule.Percent) rule.Rule {
	return rule.Rule{Name: name, Enforce: part, CountBy: []rule.Dimension{"user"}, Limits: []rule.Limit{{Name: "n", Limit: "10/1s"}}}
}

// TestShare counts for how many of 100,000 users rules are in force: the part that they say, within 0.5 % of all users, and
// whether a user is among the part of one rule says nothing about another.
func TestShare(t *testing.T) {
	t.Parallel()
	const users = 100_000
	for _, part := range []rule.Percent{1, 50, 100, 10_00, 33_33, 50_00, 90_00, 99_99} {
		a, b := compile(t, rule.File{Rules: []rule.Rule{partly("a", part)}}), compile(t, rule.File{Rules: []rule.Rule{partly("b", part)}})
		first, both := 0, 0
		for i := range users {
			q := &rule.Attrs{User: fmt.Sprint("user-", i)}
			if inForce(t, a, q) {
				first++
				if inForce(t, b, q) {
					both++
				}
			}
		}
		share := float64(part) / 100_00
		if got := float64(first) / users; math.Abs(got-share) > 0.005 {
			t.Errorf("%v: in force for %.2f %%", part, 100*got)
		}
		if got := float64(both) / users; math.Abs(got-share*share) > 0.005 {
			t.Errorf("%v: two rules are in force for %.2f %%, want %.2f %%", part, 100*got, 100*share*share)
		}
	}
}

// TestShareIsMonotone draws clients and parts: who is among a part is among every larger one.
func TestShareIsMonotone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		by := rapid.SampledFrom([]rule.Dimension{"user", "api_key", "ip", "tenant", "claim:org", "header:X-App"}).Draw(t, "by")
		name, value := rapid.StringMatching(`[a-z]{1,8}`).Draw(t, "rule"), rapid.StringN(1, 300, -1).Draw(t, "value")
		a := &rule.Attrs{
			User: value, APIKey: value, Tenant: value, Claims: map[string]string{"org": value}, Headers: map[string][]string{"X-App": {value}},
			IP: netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "ip"))), Trusted: rapid.Bool().Draw(t, "trusted"),
		}
		before := false
		for _, part := range []rule.Percent{1, 10, 1_00, 10_00, 25_00, 50_00, 75_00, 99_00, 100_00} {
			r := partly(name, part)
			r.CountBy = []rule.Dimension{by}
			s, err := rule.Compile(rule.File{Rules: []rule.Rule{r}})
			if err != nil {
				t.Fatalf("%v", err)
			}
			now := inForce(t, s, a)
			if before && !now {
				t.Fatalf("%v: out, and in at less", part)
			}
			before = now
		}
		if !before {
			t.Fatalf("out at 100%%")
		}
	})
}

// TestShareStays fixes who is chosen: nodes of different versions must choose the same clients.
func TestShareStays(t *testing.T) {
	t.Parallel()
	s := compile(t, rule.File{Rules: []rule.Rule{partly("search", 30_00)}})
	var got []string
	for i := range 30 {
		if user := fmt.Sprint("user-", i); inForce(t, s, &rule.Attrs{User: user}) {
			got = append(got, user)
		}
	}
	const want = "user-0 user-10 user-14 user-19 user-25 user-26"
	if text := strings.Join(got, " "); text != want {
		t.Errorf("got %s", text)
	}
}

// TestShareInGroups has rules of a group that are in force for a part of clients: for the others the next rule is, and the best of
// those that are tried out is tried out.
func TestShareInGroups(t *testing.T) {
	t.Parallel()
	first, second, last, trial := partly("first", 50_00), partly("second", 50_00), partly("last", 0), partly("trial", 0)
	trial.Action, trial.Priority = rule.LogOnly, 3
	second.Priority, last.Priority = 1, 2
	f := rule.File{Rules: []rule.Rule{first, second, last, trial}}
	for i := range f.Rules {
		f.Rules[i].Group = "g"
	}
	s := compile(t, f)
	seen := map[string]int{}
	for i := range 1000 {
		text := ""
		a := &rule.Attrs{User: strconv.Itoa(i), Path: []string{"/", "/a%2Fb"}[i%2]} // of which there are two readings
		for _, h := range s.Match(nil, a) {
			if text += h.Rule.Name; h.Shadow {
				text += "?"
			}
			text += " "
		}
		seen[text]++
		for _, x := range s.Explain(a) {
			applies := strings.Contains(text, x.Rule+" ") || strings.Contains(text, x.Rule+"? ")
			if x.Matched != true || (x.BeatenBy == "") != applies || applies && x.Shadow != strings.Contains(text, x.Rule+"? ") {
				t.Fatalf("%s: %+v", text, x)
			}
		}
		for _, q := range s.Quotas(a) {
			if x := q.Rule.Name; !strings.Contains(text, x+" ") && !q.Shadow || strings.Contains(text, x+"? ") && !q.Shadow {
				t.Fatalf("%s: the quota of %s: tried out: %v", text, x, q.Shadow)
			}
		}
	}
	// In force for both, for one, and for none of them.
	for _, want := range []string{"first trial? ", "first second? ", "first? second ", "first? last "} {
		if seen[want] < 150 {
			t.Errorf("%q: %d of 1000 users", want, seen[want])
		}
	}
	if len(seen) != 4 {
		t.Errorf("%v", seen)
	}
}

// TestShareUnknown lists quotas of a client of whom it is not known whether a rule is in force: no rule hides another.
func TestShareUnknown(t *testing.T) {
	t.Parallel()
	f := rule.File{Rules: []rule.Rule{partly("a", 50_00), partly("b", 0)}}
	f.Rules[0].Group, f.Rules[1].Group, f.Rules[1].Priority = "g", "g", 1
	got := ""
	for _, q := range compile(t, f).Quotas(&rule.Attrs{Tenant: "acme"}) {
		got += fmt.Sprint(q.Rule.Name, q.Shadow, q.Unknown, " ")
	}
	if got != "afalseuser bfalseuser " {
		t.Error(got)
	}
}

func TestShareAllocs(t *testing.T) {
	f := rule.File{Rules: []rule.Rule{partly("a", 50_00), partly("b", 50_00), partly("c", 50_00)}}
	f.Rules[1].CountBy, f.Rules[2].CountBy = []rule.Dimension{"ip"}, []rule.Dimension{"header:X-App"}
	s := compile(t, f)
	a := &rule.Attrs{User: "alice", IP: netip.MustParseAddr("2001:db8::1"), Net: netip.MustParsePrefix("2001:db8::/64"), Headers: map[string][]string{"X-App": {"x"}}, Trusted: true}
	hits := make([]rule.Hit, 0, 8)
	if n := testing.AllocsPerRun(100, func() { hits = s.Match(hits[:0], a) }); n != 0 || len(hits) != 3 {
		t.Errorf("Match of %d rules: %v allocations", len(hits), n)
	}
}

func FuzzPercent(f *testing.F) {
	for _, text := range []string{"10%", "0.5%", "0.05%", "100%", "100.00%", "100.01%", "0%", ".5%", "1.%", "1e1%", "+1%", " 1%", "99999999999%", "%"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var p, q rule.Percent
		if p.UnmarshalText([]byte(text)) != nil {
			return
		}
		if err := q.UnmarshalText([]byte(p.String())); err != nil || p != q || p <= 0 || p > rule.All {
			t.Errorf("%q: %d, again %d: %v", text, p, q, err)
		}
	})
}
