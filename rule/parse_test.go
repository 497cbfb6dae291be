package rule_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/test/testdoc"
	"github.com/stintdev/stint/rule"
)

const everything = `
[[rules]]
name     = "search-per-user"
match    = { paths = ["/api/search", "/api/v1/*"], methods = ["GET"], tiers = ["free"], ip_ranges = ["10.0.0.0/8"], headers = { "X-App" = "mobile" } }
count_by = ["user", "endpoint"]
limits   = [ { name = "search", limit = "100/1h", algorithm = "sliding_window" }, { name = "search-burst", limit = "10/1s", algorithm = "token_bucket", burst = 20 } ]
cost     = 2
action   = "throttle"
max_delay = "1500ms"
priority = 100
group    = "per-user"
penalty  = { threshold = 3, within = "1h", cooldown = "1m", multipliers = [1, 2, 4, 8] }
on_store_failure = "closed"
regions  = "gossip"
credit   = 5
on_credit = "deny"
response = { status = 429, message = "Search is limited on the free plan." }
enabled  = true

[[rules]]
name = "upload"
regions = "quota"
weights = "follow"
cost = { units = 3, header = "X-Cost", max = 100 }
limits = [{ name = "upload", limit = "1000/day tz=Europe/Berlin", lease = "1500ms", split = 8 }]

[[rules]]
name = "shut"
match.ip_ranges = ["192.0.2.0/24"]
action = "block"
enabled = false

[[tiers]]
name = "free"
[tiers.limits]
search = "50/1h"
upload = "unlimited"
`

func TestParse(t *testing.T) {
	t.Parallel()
	on, off := true, false
	want := rule.File{
		Rules: []rule.Rule{
			{
				Name: "search-per-user",
				Match: rule.Match{
					Paths: []string{"/api/search", "/api/v1/*"}, Methods: []string{"GET"}, Tiers: []string{"free"},
					IPRanges: []string{"10.0.0.0/8"}, Headers: map[string]string{"X-App": "mobile"},
				},
				CountBy: []rule.Dimension{"user", "endpoint"},
				Limits: []rule.Limit{
					{Name: "search", Limit: "100/1h", Algorithm: "sliding_window"},
					{Name: "search-burst", Limit: "10/1s", Algorithm: "token_bucket", Burst: 20},
				},
				Cost:     rule.Cost{Units: 2},
				Action:   rule.Throttle,
				MaxDelay: rule.Duration(1500 * time.Millisecond),
				Priority: 100,
				Group:    "per-user",
				Penalty: &rule.Penalty{
					Threshold: 3, Within: rule.Duration(time.Hour), Cooldown: rule.Duration(time.Minute), Multipliers: []int64{1, 2, 4, 8},
				},
				OnStoreFailure: rule.Closed,
				Regions:        rule.RegionsGossip,
				Credit:         5,
				OnCredit:       rule.CreditDeny,
				Response:       rule.Response{Status: 429, Message: "Search is limited on the free plan."},
				Enabled:        &on,
			},
			{
				Name:    "upload",
				Regions: rule.RegionsQuota,
				Weights: rule.WeightsFollow,
				Cost:    rule.Cost{Units: 3, Header: "X-Cost", Max: 100},
				Limits:  []rule.Limit{{Name: "upload", Limit: "1000/day tz=Europe/Berlin", Lease: rule.Duration(1500 * time.Millisecond), Split: 8}},
			},
			{Name: "shut", Match: rule.Match{IPRanges: []string{"192.0.2.0/24"}}, Action: rule.Block, Enabled: &off},
		},
		Tiers: []rule.Tier{{Name: "free", Limits: map[string]string{"search": "50/1h", "upload": "unlimited"}}},
	}
	got, err := rule.ParseTOML("stint.toml", []byte(everything))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}

	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"cost":2,`, `"cost":{"units":3,"header":"X-Cost","max":100}`, `"max_delay":"1500ms"`, `"within":"1h"`, `"lease":"1500ms","split":8}`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("%s has no %s", text, part)
		}
	}
	if got, err = rule.ParseJSON("stint.json", text); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v and %v, want %+v", got, err, want)
	}
	got = rule.File{}
	if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v and %v, want %+v", got, err, want)
	}
}

func TestParseError(t *testing.T) {
	t.Parallel()
	f, err := rule.ParseJSON("stint.json", []byte(`{"rules": [{"name": "a", "action": "bloc"}]}`))
	var problems rule.Problems
	if !errors.As(err, &problems) || len(problems) != 1 || f.Rules != nil {
		t.Fatalf("got %+v and %v, want one problem", f, err)
	}
	want := rule.Problem{
		File: "stint.json", Line: 1, Column: 36, Path: "rules[0].action",
		Message: `"bloc": want one of reject, throttle, log_only, mark, block, allow`, Hint: `did you mean "block"?`,
	}
	if problems[0] != want {
		t.Errorf("got %+v, want %+v", problems[0], want)
	}
}

// TestEmbedded reads rules as a part of something larger.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	var config struct {
		rule.File
		Listen string `json:"listen"`
	}
	doc, problems := strict.TOML("stint.toml", []byte("listen = 80\n[[rules]]\nname = 'a'\naction = 'alow'\n"), &config)
	want := `stint.toml:1:10: listen: found an integer, want a string; write it in quotes
stint.toml:4:10: rules[0].action: "alow": want one of reject, throttle, log_only, mark, block, allow; did you mean "allow"?`
	if got := problems.And(doc.Locate(config.Check())).Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestParseValue(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]stint.Limit{"unlimited": {}, "10/1s": stint.PerSecond(10)} {
		if got, err := rule.ParseValue(text); err != nil || got != want {
			t.Errorf("%s: got %v and %v, want %v", text, got, err, want)
		}
	}
	if got, err := rule.ParseValue("Unlimited"); err == nil {
		t.Errorf("Unlimited is %v", got)
	}
}

func TestDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"500ms": 500 * time.Millisecond, "1h": time.Hour, "7d": 7 * 24 * time.Hour, "90s": 90 * time.Second, "1us": time.Microsecond,
	} {
		var d rule.Duration
		if err := d.UnmarshalText([]byte(text)); err != nil || time.Duration(d) != want {
			t.Errorf("%s is %v and %v, want %v", text, time.Duration(d), err, want)
		}
		if got := d.String(); got != strings.ReplaceAll(text, "7d", "1w") {
			t.Errorf("%s is written %s", text, got)
		}
	}
	for _, text := range []string{"", "0s", "-1s", "1x", "day", "1h tz=UTC", "99999d", strings.Repeat("1h", 100_000)} {
		var d rule.Duration
		if err := d.UnmarshalText([]byte(text)); err == nil || len(err.Error()) > 300 {
			t.Errorf("%.20q is %v and %v", text, d, err)
		}
	}
}

func TestCost(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]rule.Cost{
		"5":                             {Units: 5},
		`{"header":"X-Cost","max":100}`: {Header: "X-Cost", Max: 100},
		`{"units":2,"header":"X","max":3}`: {
			Units: 2, Header: "X", Max: 3,
		},
	} {
		var c rule.Cost
		if err := json.Unmarshal([]byte(text), &c); err != nil || c != want {
			t.Errorf("%s is %+v and %v, want %+v", text, c, err, want)
		}
		if got, err := json.Marshal(c); err != nil || string(got) != text {
			t.Errorf("%+v is written %s and %v, want %s", c, got, err, text)
		}
	}
	for _, text := range []string{"0", `"5"`, "1.5", `{"units":0}`, `{"unit":1}`, "null", "[]"} {
		var c rule.Cost
		if err := c.UnmarshalJSON([]byte(text)); err == nil {
			t.Errorf("%s is %+v", text, c)
		}
	}
}

// TestDocumentedPatterns checks the patterns and the sentence of docs/rules.md. The TOML of all
// documents is checked in cmd/stint.
func TestDocumentedPatterns(t *testing.T) {
	t.Parallel()
	const file = "docs/rules.md"
	blocks := testdoc.In(t, file, "text")
	for line := range strings.Lines(blocks[0].Text) {
		pattern, text, _ := strings.Cut(line, " ")
		set, err := rule.Compile(rule.File{Rules: []rule.Rule{{Name: "r", Action: rule.Block, Match: rule.Match{Paths: []string{pattern}}}}})
		if err != nil {
			t.Fatal(err)
		}
		yes, no, _ := strings.Cut(text, "but not ")
		if strings.Contains(text, "nothing below it") {
			no = pattern + "/x"
		}
		check := func(paths string, want int) {
			for _, path := range regexp.MustCompile(`/[\w/]*`).FindAllString(paths, -1) {
				if got := len(set.Match(nil, &rule.Attrs{Method: "GET", Path: path})); got != want {
					t.Errorf("%s: %s matches %s %d times, want %d", file, pattern, path, got, want)
				}
			}
		}
		check(yes, 1)
		check(no, 0)
	}
	f, err := rule.ParseTOML(file, []byte(testdoc.In(t, file, "toml")[0].Text))
	if err != nil {
		t.Fatal(err)
	}
	quoted := strings.Join(strings.Fields(strings.ReplaceAll(testdoc.Documents(t)[file], "\n> ", " ")), " ")
	if sentence := f.Rules[0].Sentence(); len(blocks) != 1 || !strings.Contains(quoted, sentence) {
		t.Errorf("%s does not have the sentence %s", file, sentence)
	}
}

func FuzzParseTOML(f *testing.F) {
	f.Add([]byte(everything))
	if text, err := os.ReadFile("testdata/problems.txt"); err == nil {
		for _, c := range strings.Split(string(text), "\n=== ")[1:] {
			_, rest, _ := strings.Cut(c, "\n")
			doc, _, _ := strings.Cut(rest, "---\n")
			f.Add([]byte(doc))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := rule.ParseTOML("f", data)
		roundTrip(t, got, err)
	})
}

func FuzzParseJSON(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"rules": [{"name": "a", "limits": [{"name": "l", "limit": "10/1s"}]}], "tiers": [{"name": "t", "limits": {"l": "unlimited"}}]}`,
		`{"rules": [{"name": "a", "action": "block", "match": {"paths": ["/a"], "headers": {"X": "*"}}}]}`,
		`{"rules": [{"name": "a", "cost": {"header": "X", "max": 1}, "limits": [{"name": "l", "limit": "1/1s"}]}]}`,
		`{"rules": [{"name": "a", "penalty": {"threshold": 1, "within": "1h", "cooldown": "1s"}, "limits": [{"name": "l", "limit": "1/1s"}]}]}`,
		`{"rules": [null, {"cost": 0}, {"match": []}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := rule.ParseJSON("f", data)
		roundTrip(t, got, err)
	})
}

// roundTrip checks that what was parsed is the same when it is written and read
// again, but for lists that are empty, which are left out.
func roundTrip(t *testing.T, f rule.File, err error) {
	t.Helper()
	if err != nil {
		return
	}
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	again, err := rule.ParseJSON("", text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	dropEmpty(reflect.ValueOf(&f).Elem())
	dropEmpty(reflect.ValueOf(&again).Elem())
	if !reflect.DeepEqual(f, again) {
		t.Fatalf("%+v became %+v", f, again)
	}
}

func dropEmpty(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			dropEmpty(v.Field(i))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			dropEmpty(v.Elem())
		}
	case reflect.Slice, reflect.Map:
		if v.Len() == 0 {
			v.SetZero()
		} else if v.Kind() == reflect.Slice {
			for i := range v.Len() {
				dropEmpty(v.Index(i))
			}
		}
	default:
	}
}

func BenchmarkParseTOML(b *testing.B) {
	var text strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&text, "[[rules]]\nname = \"r%d\"\nmatch = { paths = [\"/api/p%d\"], methods = [\"GET\"] }\ncount_by = [\"user\"]\n"+
			"limits = [{ name = \"l\", limit = \"100/1m\" }, { name = \"b\", limit = \"10/1s\" }]\n", i, i)
	}
	b.SetBytes(int64(text.Len()))
	for b.Loop() {
		if _, err := rule.ParseTOML("", []byte(text.String())); err != nil {
			b.Fatal(err)
		}
	}
}
