package rule_test

import (
	"strings"
	"testing"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

func compiled(t *testing.T, text string) *rule.Set {
	t.Helper()
	f, err := rule.ParseTOML("rules.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	s, err := rule.Compile(f)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCandidates looks at the asks of candidates: the same requests, a counter of their own, and only where the rule's own value holds.
func TestCandidates(t *testing.T) {
	t.Parallel()
	s := compiled(t, `
[[tiers]]
name = "pro"
limits = { minute = "1000/1m" }
[[rules]]
name = "search"
match = { paths = ["/a", "/b"] }
count_by = ["user", "endpoint"]
cost = 3
limits = [
  { name = "second", limit = "10/1s" },
  { name = "minute", limit = "100/1m", candidate = "50/1m token_bucket", counter = 3 },
  { name = "hour", limit = "1000/1h", candidate = "700/1h" },
]
`)
	for tier, want := range map[string]string{
		"":    "user:alice search:minute~4:2:/b 50/1m token_bucket 3, user:alice search:hour~2:2:/b 700/1h 3",
		"pro": "user:alice search:hour~2:2:/b 700/1h 3",
	} {
		a := rule.Attrs{Method: "GET", Path: "/b", User: "alice", Tier: tier}
		hits := s.Match(nil, &a)
		asks, _ := s.Asks(nil, hits, &a, nil)
		if n := asks[1].Key.Name; n != "search:minute~3:2:/b" {
			t.Errorf("the limit's own counter is %s", n)
		}
		if got := hits[0].LimitOf(asks, 1); got != "minute" {
			t.Errorf("the limit is %s", got)
		}
		tried, asks := rule.Candidates(hits, asks)
		var got []string
		for i, h := range tried {
			if !h.Shadow || !h.Candidate || h.From != i || h.To != i+1 || h.Rule.Name != "search" || h.Endpoint != "/b" {
				t.Errorf("%+v", h)
			}
			if name := h.LimitOf(asks, i); name != "minute" && name != "hour" {
				t.Errorf("it is about %s", name)
			}
			k := asks[i]
			got = append(got, strings.Join([]string{k.Key.Subject, k.Key.Name, k.Limit.String(), string('0' + rune(k.Cost))}, " "))
			if plan, err := k.Limit.Compile(); err != nil || k.Plan == nil || *k.Plan != *plan {
				t.Error("it has another plan", err)
			}
		}
		if all := strings.Join(got, ", "); all != want {
			t.Errorf("tier %q\ngot  %s\nwant %s", tier, all, want)
		}
	}
}

// TestPromote puts candidates in the place of limits: they keep their counters.
func TestPromote(t *testing.T) {
	t.Parallel()
	r := rule.Rule{Name: "r", Limits: []rule.Limit{{Name: "a", Limit: "10/1s", Burst: 20, Algorithm: "token_bucket", Candidate: "5/1s"}, {Name: "b", Limit: "10000/1h"}}}
	before := r.Limits
	tried := compiledOf(t, r)
	a := rule.Attrs{Path: "/"}
	hits := tried.Match(nil, &a)
	asks, _ := tried.Asks(nil, hits, &a, nil)
	_, candidates := rule.Candidates(hits, asks)
	if !r.Promote() || before[0].Candidate == "" {
		t.Errorf("%+v, %+v", r, before)
	}
	after := compiledOf(t, r)
	hits = after.Match(nil, &a)
	asks, _ = after.Asks(nil, hits, &a, nil)
	if asks[0].Key != candidates[0].Key || asks[0].Limit != candidates[0].Limit || asks[0].Limit != (stint.Limit{Max: 5, Window: stint.Every(1e9)}) {
		t.Errorf("%+v is not %+v", asks[0], candidates[0])
	}
	if asks[1].Key.Name != "r:b" || r.Promote() {
		t.Errorf("%+v", asks[1])
	}
}

func compiledOf(t *testing.T, r rule.Rule) *rule.Set {
	t.Helper()
	s, err := rule.Compile(rule.File{Rules: []rule.Rule{r}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCandidateProblems has errors that say what would be right.
func TestCandidateProblems(t *testing.T) {
	t.Parallel()
	const other = "[[rules]]\nname = \"old\"\nlimits = [{ name = \"x\", limit = \"1/1s\" }]\n"
	for text, want := range map[string]string{
		`limits = [{ name = "x", limit = "10/1s", candidate = "many" }]`:                                                 `rules[0].limits[0].candidate: "many": want`,
		`limits = [{ name = "x", limit = "10/1s", candidate = "5/1s", lease = "1s" }]`:                                   "",
		`limits = [{ name = "x", limit = "10/1m", candidate = "5/1s", lease = "2s" }]`:                                   `with the lease of the limit, "2s": want at most 1s`,
		`limits = [{ name = "x", limit = "10/1s", candidate = "5/1s", split = 8 }]`:                                      "with the split of the limit, 8: want at most 5",
		`limits = [{ name = "x", limit = "10/1s", candidate = "5/1s", counter = -1 }]`:                                   "counter: -1: want from 1",
		"action = \"log_only\"\n" + `limits = [{ name = "x", limit = "10/1s", candidate = "5/1s" }]`:                     "log_only denies nothing yet",
		"action = \"throttle\"\nmax_delay = \"1s\"\n" + `limits = [{ name = "x", limit = "10/1s", candidate = "5/1s" }]`: "throttle holds requests",
		"replaces = \"old\"\n" + `limits = [{ name = "x", limit = "10/1s", candidate = "5/1s" }]`:                        "the rule itself is tried out",
		"replaces = \"new\"\n" + `limits = [{ name = "x", limit = "10/1s" }]`:                                            "the name of another rule",
		"replaces = \"odl\"\n" + `limits = [{ name = "x", limit = "10/1s" }]`:                                            `did you mean "old"`,
		"replaces = \"old\"\naction = \"log_only\"\n" + `limits = [{ name = "x", limit = "10/1s" }]`:                     "the action log_only cannot be tried out",
		"replaces = \"old\"\n" + `limits = [{ name = "x", limit = "10/1s" }]`:                                            "",
	} {
		_, err := rule.ParseTOML("rules.toml", []byte("[[rules]]\nname = \"new\"\n"+text+"\n"+other))
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s\ngot  %v\nwant %s", text, err, want)
		}
	}
}

// TestReplacesCompetes has the rules of a group that are tried out compete among themselves only.
func TestReplacesCompetes(t *testing.T) {
	t.Parallel()
	s := compiled(t, `
[[rules]]
name = "old"
group = "g"
limits = [{ name = "x", limit = "10/1s" }]
[[rules]]
name = "new"
group = "g"
priority = -1
replaces = "old"
limits = [{ name = "x", limit = "5/1s" }]
`)
	hits := s.Match(nil, &rule.Attrs{Path: "/"})
	if len(hits) != 2 || !hits[0].Shadow || hits[1].Shadow || hits[0].Rule.Replaces != "old" {
		t.Errorf("%+v", hits)
	}
}

// TestCandidateSentence says in words what is tried out.
func TestCandidateSentence(t *testing.T) {
	t.Parallel()
	r := rule.Rule{Name: "r", Limits: []rule.Limit{{Name: "a", Limit: "10/1s", Candidate: "5/1s"}}}
	if got, want := r.Sentence(), "In place of the limit, 5/1s is tried out."; !strings.Contains(got, want) {
		t.Errorf("%s\nwant %s", got, want)
	}
	r.Limits[0].Candidate, r.Replaces = "", "old"
	if got, want := r.Sentence(), "Tried out in place of the rule old: no request is denied yet."; !strings.Contains(got, want) {
		t.Errorf("%s\nwant %s", got, want)
	}
}
