package descriptor_test

import (
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/internal/kit/strict"
)

// read reads one file.
func read(t testing.TB, text string, o descriptor.Options) *descriptor.Config {
	t.Helper()
	c, err := descriptor.Read([]descriptor.File{{Name: "f.yaml", Data: []byte(text)}}, o)
	if err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	return c
}

// one is a file with one descriptor, whose fields are given.
func one(fields string) string {
	return "domain: d\ndescriptors:\n- key: k\n  " + strings.ReplaceAll(fields, "\n", "\n  ")
}

func TestLimits(t *testing.T) {
	t.Parallel()
	fixed := func(n int64, w stint.Window) stint.Limit {
		return stint.Limit{Algorithm: stint.FixedWindow, Max: n, Window: w}
	}
	const day = 24 * time.Hour
	for text, want := range map[string]descriptor.Limit{
		"{unit: second, requests_per_unit: 5}":    {Requests: 5, Unit: descriptor.Second, Limit: fixed(5, stint.Every(time.Second)), Counter: "1s"},
		"{unit: Minute, requests_per_unit: 5}":    {Requests: 5, Unit: descriptor.Minute, Limit: fixed(5, stint.Every(time.Minute)), Counter: "1m"},
		"{unit: HOUR, requests_per_unit: 5}":      {Requests: 5, Unit: descriptor.Hour, Limit: fixed(5, stint.Every(time.Hour)), Counter: "1h"},
		"{unit: day, requests_per_unit: 5}":       {Requests: 5, Unit: descriptor.Day, Limit: fixed(5, stint.Every(day)), Counter: "1d"},
		"{unit: week, requests_per_unit: 5}":      {Requests: 5, Unit: descriptor.Week, Limit: stint.PerWeek(5), Counter: "week"},
		"{unit: month, requests_per_unit: 5}":     {Requests: 5, Unit: descriptor.Month, Limit: stint.PerMonth(5), Counter: "month"},
		"{unit: year, requests_per_unit: 5}":      {Requests: 5, Unit: descriptor.Year, Limit: stint.PerYear(5), Counter: "year"},
		"{unit: second, requests_per_unit: 0}":    {Unit: descriptor.Second, Limit: fixed(0, stint.Every(time.Second)), Counter: "1s"},
		"{unit: second}":                          {Unit: descriptor.Second, Limit: fixed(0, stint.Every(time.Second)), Counter: "1s"},
		"{unlimited: true, name: n}":              {Unlimited: true, Name: "n"},
		"{unlimited: true, requests_per_unit: 5}": {Unlimited: true, Requests: 5},
		"{unit: second, requests_per_unit: 4294967295}": {
			Requests: 1<<32 - 1, Unit: descriptor.Second, Limit: fixed(1<<32-1, stint.Every(time.Second)), Counter: "1s",
		},
		"{unit: second, requests_per_unit: 1, name: a, replaces: [{name: b}, {name: c}]}": {
			Requests: 1, Unit: descriptor.Second, Limit: fixed(1, stint.Every(time.Second)), Counter: "1s", Name: "a", Replaces: []string{"b", "c"},
		},
		"{window: 1m, requests_per_unit: 5}":    {Requests: 5, Unit: descriptor.Minute, Limit: fixed(5, stint.Every(time.Minute)), Counter: "1m"},
		"{window: 24h, requests_per_unit: 5}":   {Requests: 5, Unit: descriptor.Day, Limit: fixed(5, stint.Every(day)), Counter: "1d"},
		"{window: 5m, requests_per_unit: 5}":    {Requests: 5, Limit: fixed(5, stint.Every(5*time.Minute)), Counter: "5m"},
		"{window: month, requests_per_unit: 5}": {Requests: 5, Unit: descriptor.Month, Limit: stint.PerMonth(5), Counter: "month"},
		"{window: 30d, requests_per_unit: 5}":   {Requests: 5, Limit: fixed(5, stint.Every(30*day)), Counter: "30d"},
		"{unit: day, requests_per_unit: 5, algorithm: sliding_window}": {
			Requests: 5, Unit: descriptor.Day, Limit: stint.Limit{Max: 5, Window: stint.Every(day)}, Counter: "1d sliding_window",
		},
		"{unit: second, requests_per_unit: 5, algorithm: gcra, burst: 9, penalty: 3/1h cooldown=1m}": {
			Requests: 5, Unit: descriptor.Second, Counter: "1s token_bucket",
			Limit:   stint.Limit{Algorithm: stint.TokenBucket, Max: 5, Window: stint.Every(time.Second), Burst: 9},
			Penalty: &stint.Penalty{Threshold: 3, Within: time.Hour, Cooldown: time.Minute},
		},
	} {
		c := read(t, one("rate_limit: "+text), descriptor.Options{})
		got := c.Domain("d").Find([]descriptor.Entry{{Key: "k", Value: "v"}})
		want.Path = "d.k"
		if g, w := public(got), public(&want); !reflect.DeepEqual(g, w) {
			t.Errorf("%s: got\n%+v, want\n%+v", text, g, w)
		}
	}
	for unit, days := range map[string]int{"week": 7, "month": 30, "year": 365} {
		c := read(t, one("rate_limit: {unit: "+unit+", requests_per_unit: 5}"), descriptor.Options{FixedMonths: true})
		l := c.Domain("d").Find([]descriptor.Entry{{Key: "k"}})
		if want := fixed(5, stint.Every(time.Duration(days)*day)); l.Limit != want || !strings.EqualFold(l.Unit.String(), unit) {
			t.Errorf("%s: got %v (%v), want %v", unit, l.Limit, l.Unit, want)
		}
	}
}

// public returns what of a limit is for all to see.
func public(l *descriptor.Limit) descriptor.Limit {
	return descriptor.Limit{
		Path: l.Path, Name: l.Name, Replaces: l.Replaces, Limit: l.Limit, Penalty: l.Penalty, Requests: l.Requests, Unit: l.Unit,
		Multiplier: l.Multiplier, Counter: l.Counter, Unlimited: l.Unlimited, Shadow: l.Shadow, Quota: l.Quota, Shared: l.Shared, Metadata: l.Metadata,
	}
}

func TestFields(t *testing.T) {
	t.Parallel()
	c := read(t, `
domain: d
descriptors:
- key: a
  rate_limit: &second {unit: second, requests_per_unit: 1}
  shadow_mode: yes
  metadata: {tier: gold, weight: 2, tags: [a, b], deep: {on: true}}
- key: b
  quota_mode: true
  value: 123
  rate_limit:
    <<: *second
    requests_per_unit: 2
- key: c
  value:
  rate_limit: *second
`, descriptor.Options{})
	limits := slices.Collect(c.Limits())
	if len(limits) != 3 || !limits[0].Shadow || limits[0].Quota || limits[1].Shadow || !limits[1].Quota || limits[1].Requests != 2 ||
		limits[1].Path != "d.b_123" || limits[2].Path != "d.c" {
		t.Errorf("got %v", limits)
	}
	want := map[string]any{"tier": "gold", "weight": 2.0, "tags": []any{"a", "b"}, "deep": map[string]any{"on": true}}
	if !reflect.DeepEqual(limits[0].Metadata, want) {
		t.Errorf("metadata are %v", limits[0].Metadata)
	}
	if got, want := limits[0].String(), "d.a: unit=SECOND requests_per_unit=1, shadow_mode: true, quota_mode: false"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	const units = "second, minute, hour, day, month, year, week"
	for text, want := range map[string]string{
		"":                                    "f.yaml:1:1: empty, want a domain and its descriptors",
		"# later\n":                           "f.yaml:1:1: empty, want a domain and its descriptors",
		"descriptors: []":                     "f.yaml:1:1: domain: missing, want the name of the domain",
		"domain: ''\ndescriptors: []":         "f.yaml:1:9: domain: missing, want the name of the domain",
		"domian: d\ndescriptors: []":          `f.yaml:1:1: domian: unknown field; did you mean "domain"?`,
		"domain: d\ndescriptors: [":           "f.yaml:2:1: did not find expected node content",
		"domain: d\ncompat: independents":     `f.yaml:2:9: compat: "independents": want "independent", or nothing; did you mean "independent"?`,
		"domain: d\ndescriptors: {}":          "f.yaml:2:14: descriptors: found a table, want an array",
		"domain: d\ndescriptors:\n- value: v": "f.yaml:3:3: descriptors[0].key: missing, want a key",
		"domain: d\ndescriptors:\n-":          "f.yaml:3:2: descriptors[0].key: missing, want a key",
		one("vlaue: x"):                       `f.yaml:4:3: descriptors[0].vlaue: unknown field; did you mean "value"?`,
		one("\n- key: k"):                     `f.yaml:2:1: did not find expected key`,
		"domain: d\ndescriptors: [{key: a}, {key: a, value: b}, {key: a}, {key: a, value: b}]": `f.yaml:2:45: descriptors[2]: "a" is already declared at f.yaml:2:15` +
			"\n" + `f.yaml:2:55: descriptors[3]: "a_b" is already declared at f.yaml:2:25`,
		one("descriptors:\n- key: a\n- key: a"):            `f.yaml:6:5: descriptors[0].descriptors[1]: "a" is already declared at f.yaml:5:5`,
		one("share_threshold: true"):                       "f.yaml:4:20: descriptors[0].share_threshold: it applies to patterns, and there is no * in the value",
		one("share_threshold: perhaps"):                    "f.yaml:4:20: descriptors[0].share_threshold: found a string, want a boolean",
		one("rate_limit: {}"):                              "f.yaml:4:15: descriptors[0].rate_limit.unit: missing, want one of " + units + "; or a window, or unlimited",
		one("rate_limit: {unlimied: true}"):                `f.yaml:4:16: descriptors[0].rate_limit.unlimied: unknown field; did you mean "unlimited"?`,
		one("rate_limit: {unit: secnd}"):                   `f.yaml:4:22: descriptors[0].rate_limit.unit: "secnd": want one of ` + units + `; did you mean "second"?`,
		one("rate_limit: {unit: 5m}"):                      `f.yaml:4:22: descriptors[0].rate_limit.unit: "5m": want one of ` + units + "; did you mean window: 5m?",
		one("rate_limit: {unit: unknown}"):                 `f.yaml:4:22: descriptors[0].rate_limit.unit: "unknown": want one of ` + units,
		one("rate_limit: {unit: second, unlimited: true}"): "f.yaml:4:22: descriptors[0].rate_limit.unit: an unlimited rate_limit has none; remove it, or unlimited",
		one("rate_limit: {unlimited: true, burst: 1, penalty: x}"): "f.yaml:4:40: descriptors[0].rate_limit.burst: an unlimited rate_limit has none; remove it, or unlimited\n" +
			"f.yaml:4:52: descriptors[0].rate_limit.penalty: an unlimited rate_limit has none; remove it, or unlimited",
		one("rate_limit: {unit: second, window: 1s}"):                                         "f.yaml:4:38: descriptors[0].rate_limit.window: there is also a unit: want one of them",
		one("rate_limit: {window: 1x}"):                                                       `f.yaml:4:24: descriptors[0].rate_limit.window: "1x": want a length such as`,
		one("rate_limit: {unit: second, requests_per_unit: -1}"):                              "f.yaml:4:49: descriptors[0].rate_limit.requests_per_unit: -1 is out of range, want an integer from 0 to 4294967295",
		one("rate_limit: {unit: second, requests_per_unit: 4294967296}"):                      "f.yaml:4:49: descriptors[0].rate_limit.requests_per_unit: 4294967296 is out of range",
		one("rate_limit: {unit: second, requests_per_unit: 1.5}"):                             "f.yaml:4:49: descriptors[0].rate_limit.requests_per_unit: found a float, want an integer",
		one("rate_limit: {unit: second, requests_per_unit: '5'}"):                             "f.yaml:4:49: descriptors[0].rate_limit.requests_per_unit: found a string, want an integer; write it without quotes",
		one("rate_limit: {unit: second, algorithm: tokenbucket}"):                             `f.yaml:4:41: descriptors[0].rate_limit.algorithm: "tokenbucket": want sliding_window, fixed_window, sliding_log, token_bucket (or gcra), leaky_bucket or concurrency; did you mean "token_bucket"?`,
		one("rate_limit: {unit: month, algorithm: gcra}"):                                     `f.yaml:4:22: descriptors[0].rate_limit.unit: "month": want a length such as 24h or 30d for token_bucket; only fixed_window follows the calendar; write window: 30d, or another length, in place of the unit`,
		one("rate_limit: {window: month, algorithm: gcra}"):                                   `f.yaml:4:24: descriptors[0].rate_limit.window: "month": want a length such as 24h or 30d for token_bucket; only fixed_window follows the calendar`,
		one("rate_limit: {unit: second, burst: 5}"):                                           `f.yaml:4:37: descriptors[0].rate_limit.burst: "5": want none: fixed_window has no burst; token_bucket and leaky_bucket have`,
		one("rate_limit: {unit: second, algorithm: gcra, burst: -5}"):                         `f.yaml:4:54: descriptors[0].rate_limit.burst: "-5": want a whole number from 0 to`,
		one("rate_limit: {unit: second, algorithm: sliding_log, requests_per_unit: 1000000}"): `f.yaml:4:73: descriptors[0].rate_limit.requests_per_unit: "1000000": want at most`,
		one("rate_limit: {unit: second, requests_per_unit: 1, penalty: much}"):                `f.yaml:4:61: descriptors[0].rate_limit.penalty: "much": want VIOLATIONS/WINDOW and cooldown=`,
		one("rate_limit: {unit: second, penalty: 3/1h cooldown=1m}"):                          "f.yaml:4:39: descriptors[0].rate_limit.penalty: with requests_per_unit 0 nothing is counted, so no client would be banned; remove it: nothing passes anyway",
		one("shadow_mode: true\nrate_limit: {unit: second, penalty: 3/1h cooldown=1m}"):       "f.yaml:5:39: descriptors[0].rate_limit.penalty: with shadow_mode or mark no request is denied, so no client would be banned; remove one of them",
		one("quota_mode: true\nrate_limit: {unit: second, penalty: 3/1h cooldown=1m}"):        "f.yaml:5:39: descriptors[0].rate_limit.penalty: with quota_mode this limit alone denies no request, so no client would be banned; remove one of them",
		one("rate_limit: {unit: second, name: a, replaces: [{name: a}, {name: ''}, {}, a]}"): `f.yaml:4:57: descriptors[0].rate_limit.replaces[0].name: "a" is the limit's own name: want the name of another limit
f.yaml:4:68: descriptors[0].rate_limit.replaces[1].name: missing, want the name of a limit
f.yaml:4:73: descriptors[0].rate_limit.replaces[2].name: missing, want the name of a limit
f.yaml:4:77: descriptors[0].rate_limit.replaces[3]: found a string, want a table`,
		nested(descriptor.MaxLevels + 1): "nested more than 64 descriptors deep",
	} {
		c, err := descriptor.Read([]descriptor.File{{Name: "f.yaml", Data: []byte(text)}}, descriptor.Options{})
		var problems descriptor.Problems
		if c != nil || !errors.As(err, &problems) {
			t.Errorf("%.100s\ngot %v", text, err)
		} else if got := err.Error(); !strings.HasPrefix(got, want) && (!strings.HasPrefix(want, "nested") || !strings.Contains(got, want)) {
			t.Errorf("%.100s\ngot  %s\nwant %s", text, got, want)
		} else if n := strings.Count(want, "\n") + 1; len(problems) != n {
			t.Errorf("%.100s\ngot  %s, want %d problems", text, got, n)
		}
	}
}

// TestIgnored checks what is read as in envoyproxy/ratelimit, where it has no effect.
func TestIgnored(t *testing.T) {
	t.Parallel()
	const there = ", as in envoyproxy/ratelimit"
	for text, want := range map[string]string{
		"domain: d\n---\ndomain: e": "f.yaml:2:1: a second document begins here, which has no effect" + there + "; put it into its own file",
		one("unit: x"):              `f.yaml:4:3: descriptors[0].unit: it has no effect here` + there + `; did you mean "rate_limit.unit"?`,
		one("rate_limit: {unit: day, shadow_mode: true}"):   `f.yaml:4:27: descriptors[0].rate_limit.shadow_mode: it has no effect here` + there + `; did you mean "descriptors[0].shadow_mode"?`,
		one("rate_limit: {unlimited: true, unit: unknown}"): `f.yaml:4:39: descriptors[0].rate_limit.unit: an unlimited rate_limit has no unit: it has no effect` + there,
		"domain: d\nkey: k\nmetadata: {a: b}\ndescriptors: []": `f.yaml:2:1: key: it has no effect here` + there + `; did you mean "descriptors[0].key"?` + "\n" +
			`f.yaml:3:1: metadata: it has no effect here` + there + `; did you mean "descriptors[0].metadata"?`,
	} {
		var got []string
		for _, i := range read(t, text, descriptor.Options{}).Ignored() {
			got = append(got, i.String())
		}
		if text := strings.Join(got, "\n"); text != want {
			t.Errorf("got\n%s\nwant\n%s", text, want)
		}
	}
	// A * in a key is a character.
	if c := read(t, "domain: d\ndescriptors: [{key: 'k*x', share_threshold: true}]", descriptor.Options{}); len(c.Differences()) != 1 {
		t.Errorf("%v", c.Differences())
	}
}

// nested has descriptors one in another.
func nested(levels int) string {
	var b strings.Builder
	b.WriteString("domain: d\n")
	for i := range levels {
		in := strings.Repeat("  ", i)
		b.WriteString(in + "descriptors:\n" + in + "- key: k" + strconv.Itoa(i) + "\n")
	}
	return b.String() + strings.Repeat("  ", levels) + "rate_limit: {unit: second, requests_per_unit: 1}\n"
}

func TestManyFiles(t *testing.T) {
	t.Parallel()
	files := []descriptor.File{
		{Name: "a.yaml", Data: []byte("domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: second}\n- key: b\n")},
		{Name: "b.yaml", Data: []byte("domain: d\ncompat: independent\ndescriptors:\n- key: c\n  rate_limit: {unit: second}\n- key: a\n")},
		{Name: "c.yaml", Data: []byte("domain: e\ndescriptors:\n- kee: a\n- key: a\n  rate_limit: {unit: x}\n")},
	}
	// All that is wrong with all files, in their order.
	_, err := descriptor.Read(files, descriptor.Options{})
	want := `b.yaml:1:9: domain: "d" is the domain of a.yaml already; put each domain into one file, or merge domains
c.yaml:3:3: descriptors[0].kee: unknown field; did you mean "key"?
c.yaml:5:22: descriptors[1].rate_limit.unit: "x": want one of second, minute, hour, day, month, year, week`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	_, err = descriptor.Read(files[:2], descriptor.Options{Merge: true})
	if want := `b.yaml:6:3: descriptors[1]: "a" is already declared at a.yaml:3:3`; err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	files[1].Data = []byte(strings.Replace(string(files[1].Data), "- key: a\n", "", 1))
	c, err := descriptor.Read(files[:2], descriptor.Options{Merge: true})
	if err != nil {
		t.Fatal(err)
	}
	if tree := c.Domain("d"); tree.Find(entries("a=1")) == nil || tree.Find(entries("c=1")) == nil || !tree.Independent() {
		t.Error("the domain is not that of both files")
	}
	if c.Domain("e") != nil || !slices.Equal(c.Domains(), []string{"d"}) {
		t.Errorf("domains are %v", c.Domains())
	}
	c, err = descriptor.Read(nil, descriptor.Options{})
	if err != nil || len(c.Domains()) != 0 || c.Domain("") != nil {
		t.Errorf("nothing is %v, %v", c, err)
	}
	for _, independent := range []bool{true, false} {
		if c := read(t, "domain: d", descriptor.Options{Independent: independent}); c.Domain("d").Independent() != independent {
			t.Errorf("independent is not %v", independent)
		}
	}
}

func TestTooManyProblems(t *testing.T) {
	t.Parallel()
	data := []byte("domain: d\ndescriptors:\n" + strings.Repeat("- key: a\n", 2000))
	_, err := descriptor.Read([]descriptor.File{{Name: "a", Data: data}, {Name: "b", Data: data}}, descriptor.Options{})
	var problems descriptor.Problems
	if !errors.As(err, &problems) || len(problems) != strict.MaxProblems {
		t.Errorf("%d problems", len(problems))
	}
}

func TestCompile(t *testing.T) {
	t.Parallel()
	good := descriptor.Domain{Domain: "d", Descriptors: []descriptor.Descriptor{
		{Key: "a", Value: "b", RateLimit: &descriptor.RateLimit{Unit: "MINUTE", RequestsPerUnit: 3}},
	}}
	bad := descriptor.Domain{Domain: "d", Descriptors: []descriptor.Descriptor{
		{Key: "a"}, {Key: "a"}, {RateLimit: &descriptor.RateLimit{}},
	}}
	c, err := descriptor.Compile([]descriptor.Named{{Name: "one", Domain: good}}, descriptor.Options{})
	if err != nil || c.Domain("d").Find(entries("a=b")) == nil {
		t.Errorf("got %v", err)
	}
	_, err = descriptor.Compile([]descriptor.Named{{Name: "one", Domain: good}, {Name: "two", Domain: bad}, {Name: "three"}}, descriptor.Options{})
	want := `two: domain: "d" is the domain of one already; put each domain into one file, or merge domains
two: descriptors[1]: "a" is already declared at descriptors[0]
two: descriptors[2].key: missing, want a key
two: descriptors[2].rate_limit.unit: missing, want one of second, minute, hour, day, month, year, week; or a window, or unlimited
three: empty, want a domain and its descriptors`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	deep := descriptor.Descriptor{Key: "k"}
	for range 10_000 {
		deep = descriptor.Descriptor{Key: "k", Descriptors: []descriptor.Descriptor{deep}}
	}
	_, err = descriptor.Compile([]descriptor.Named{{Domain: descriptor.Domain{Domain: "d", Descriptors: []descriptor.Descriptor{deep}}}}, descriptor.Options{})
	if err == nil || !strings.HasSuffix(err.Error(), "nested more than 64 descriptors deep") {
		t.Errorf("got %v", err)
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	c, fixed := read(t, "domain: d", descriptor.Options{}), read(t, "domain: d", descriptor.Options{FixedMonths: true})
	for _, w := range []struct {
		config     *descriptor.Config
		unit       descriptor.Unit
		multiplier uint32
		want       string
	}{
		{c, descriptor.Second, 0, "1s"},
		{c, descriptor.Minute, 1, "1m"},
		{c, descriptor.Minute, 5, "5m"},
		{c, descriptor.Month, 0, "month"},
		{c, descriptor.Month, 2, "60d"},
		{c, descriptor.Week, 1, "week"},
		{fixed, descriptor.Week, 1, "1w"},
		{fixed, descriptor.Month, 1, "30d"},
		{c, descriptor.Unknown, 1, `stint: unit "UNKNOWN": want one of second, minute, hour, day, month, year, week`},
		{c, 8, 1, `stint: unit "8": want one of second, minute, hour, day, month, year, week`},
		{c, -1, 1, `stint: unit "-1": want one of second, minute, hour, day, month, year, week`},
		{c, descriptor.Year, 11, `stint: unit_multiplier "11": want at most 10 for the unit year`},
		{c, descriptor.Second, 1<<32 - 1, `stint: unit_multiplier "4294967295": want at most 316224000 for the unit second`},
	} {
		window, err := w.config.Window(w.unit, w.multiplier)
		got := window.String()
		if err != nil {
			got = err.Error()
		}
		if got != w.want {
			t.Errorf("%v x %d: got %s, want %s", w.unit, w.multiplier, got, w.want)
		}
	}
}
