package descriptor_test

import (
	"strings"
	"testing"

	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/rule"
)

func TestStat(t *testing.T) {
	t.Parallel()
	const text = `
domain: d
descriptors:
- {key: plain, rate_limit: &l {unit: second, requests_per_unit: 1}}
- {key: exact, value: v, value_to_metric: true, rate_limit: *l}
- {key: detailed, detailed_metric: true, value_to_metric: true, rate_limit: *l}
- {key: fixed, value: v, detailed_metric: true, rate_limit: *l}
- {key: valued, value_to_metric: true, rate_limit: *l}
- {key: wild, value: a*, rate_limit: *l}
- {key: wild, value: b*, value_to_metric: true, rate_limit: *l}
- {key: wild, value: c*, value_to_metric: true, share_threshold: true, rate_limit: *l}
- {key: wild, value: d*, detailed_metric: true, rate_limit: *l}
- {key: wild, value: e*, detailed_metric: true, share_threshold: true, rate_limit: *l}
- {key: x-*, rate_limit: *l}
- {key: y-*, value_to_metric: true, rate_limit: *l}
- {key: z-*, share_threshold: true, value_to_metric: true, rate_limit: *l}
- key: route
  value_to_metric: true
  descriptors:
  - key: method
    descriptors:
    - {key: subject, value_to_metric: true, rate_limit: *l}
    - {key: detail, detailed_metric: true, rate_limit: *l}
- key: files
  value: f*
  share_threshold: true
  descriptors:
  - {key: detail, detailed_metric: true, rate_limit: *l}
`
	tree := read(t, text, descriptor.Options{}).Domain("d")
	for entry, want := range map[string]string{
		"plain=1":                      "d.plain",
		"exact=v":                      "d.exact_v",
		"detailed=1":                   "d.detailed_1 varies",
		"detailed=":                    "d.detailed_ varies",
		"fixed=v":                      "d.fixed_v",
		"valued=1":                     "d.valued_1 varies",
		"valued=":                      "d.valued varies",
		"wild=a1":                      "d.wild_a*",
		"wild=b1":                      "d.wild_b1 varies",
		"wild=c1":                      "d.wild_c*",
		"wild=d1":                      "d.wild_d1 varies",
		"wild=e1":                      "d.wild_e*",
		"x-1=2":                        "d.x-1_x-* varies",
		"y-1=2":                        "d.y-1_2 varies",
		"z-1=2":                        "d.z-1_z-* varies",
		"route=r method=GET subject=7": "d.route_r.method.subject_7 varies",
		"route=r method=GET detail=7":  "d.route_r.method_GET.detail_7 varies",
		"route=r method= detail=7":     "d.route_r.method_.detail_7 varies",
		"files=f1 detail=7":            "d.files_f*.detail_7 varies",
		"files=f1 detail=":             "d.files_f*.detail varies",
	} {
		l := tree.Find(entries(entry))
		got := string(l.AppendStat(nil, entries(entry)))
		if l.StatVaries() {
			got += " varies"
		} else if got != l.Path {
			t.Errorf("%s: %s does not vary, and is not %s", entry, got, l.Path)
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", entry, got, want)
		}
	}
	if got := string(descriptor.AppendPath(nil, "d", entries("a=b c= e=f"))); got != "d.a_b.c.e_f" {
		t.Errorf("got %s", got)
	}
	// Without the entries it was found by, it is its path.
	if got := string(tree.Find(entries("valued=1")).AppendStat(nil, nil)); got != "d.valued" {
		t.Errorf("got %s", got)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	tree := read(t, `
domain: d
descriptors:
- {key: user, value: alice, rate_limit: {unlimited: true}}
- {key: user, value: b*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 5}}
- {key: user, rate_limit: {unit: second, requests_per_unit: 0}, shadow_mode: true}
- {key: x-*}
- key: deep
  descriptors: [{key: below, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 3}}]
`, descriptor.Options{}).Domain("d")
	for text, want := range map[string]string{
		"user=alice":     "user=alice: is declared as user_alice; it is unlimited",
		"user=bob":       "user=bob: matches the pattern user_b*; the limit is 5/1m fixed_window (shared by all that match user_b*)",
		"user=carol":     "user=carol: is declared by its key alone as user, and matches none of 2 patterns; the limit is 0: nothing passes (shadow_mode: it denies nothing)",
		"user=carol a=b": "user=carol: is declared by its key alone as user, and matches none of 2 patterns; nothing is declared below it, and the request has more entries (1)",
		"x-1=2":          "x-1=2: matches the pattern x-*; it has no rate_limit",
		"other=1":        "other=1: is not declared, neither with its value nor by its key alone, and does not match the one pattern; there is no limit",
		"deep=1":         "deep=1: is declared by its key alone as deep, and does not match the one pattern; it has no rate_limit, but descriptors below it do: the request has too few entries",
		"deep=1 below=2": "deep=1: is declared by its key alone as deep, and does not match the one pattern\n" +
			"below=2: is declared by its key alone as below; the limit is 3/1d fixed_window (quota_mode: it denies only if all such limits of a request are used up)",
		"": "",
	} {
		var lines []string
		for _, s := range tree.Explain(entries(text)) {
			lines = append(lines, s.String())
		}
		if got := strings.Join(lines, "\n"); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", text, got, want)
		}
	}
	if s := tree.Explain(entries("deep=1 below=2"))[1]; s.Path != "d.deep.below" || s.Match != descriptor.KeyAlone || s.Limit.Path != s.Path {
		t.Errorf("got %+v", s)
	}
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		one("rate_limit: {unit: second, requests_per_unit: 1}"): "",
		one("value: a*\nshare_threshold: true"):                 "",
		one("rate_limit: {unit: week}"):                         "f.yaml:4:22: descriptors[0].rate_limit.unit: a week is a calendar period in UTC; in envoyproxy/ratelimit it is 7 days, counted from the epoch, from Thursday to Thursday",
		one("rate_limit: {unit: Month}"):                        "f.yaml:4:22: descriptors[0].rate_limit.unit: a month is a calendar period in UTC; in envoyproxy/ratelimit it is 30 days, counted from the epoch",
		one("rate_limit: {unit: year}"):                         "f.yaml:4:22: descriptors[0].rate_limit.unit: a year is a calendar period in UTC; in envoyproxy/ratelimit it is 365 days, counted from the epoch",
		one("rate_limit: {window: 5m, requests_per_unit: 1, algorithm: gcra, burst: 2, penalty: 3/1h cooldown=1m}"): `f.yaml:4:24: descriptors[0].rate_limit.window: envoyproxy/ratelimit does not support this field
f.yaml:4:61: descriptors[0].rate_limit.algorithm: envoyproxy/ratelimit does not support this field
f.yaml:4:74: descriptors[0].rate_limit.burst: envoyproxy/ratelimit does not support this field
f.yaml:4:86: descriptors[0].rate_limit.penalty: envoyproxy/ratelimit does not support this field`,
		"domain: d\ncompat: independent":                                       "f.yaml:2:9: compat: envoyproxy/ratelimit does not support this field",
		one("metadata: {a: b}"):                                                "f.yaml:4:13: descriptors[0].metadata: only newer versions support this field",
		one("value: a*b"):                                                      "f.yaml:4:10: descriptors[0].value: only newer versions support a * that is not at the end; for others it is a character",
		one("value: a*b\nshare_threshold: true"):                               "f.yaml:4:10: descriptors[0].value: only newer versions support a * that is not at the end; for others it is a character, and share_threshold an error",
		"domain: d\ndescriptors: [{key: a_b*}]":                                `f.yaml:2:21: descriptors[0].key: "a_b*" matches only keys; in envoyproxy/ratelimit it also matches values of the key before the _`,
		"domain: d\ndescriptors: [{key: a*, share_threshold: y}]":              "f.yaml:2:42: descriptors[0].share_threshold: all matching keys share one counter; in envoyproxy/ratelimit each key has its own",
		"domain: d\ndescriptors: [{key: a, value: b_c}, {key: a_b, value: c}]": `f.yaml:2:37: descriptors[1]: key "a_b" and value "c" are the same as key "a" and value "b_c" in envoyproxy/ratelimit, which is an error; here they are different`,
		"domain: d\ndescriptors: [{key: a, value: b}, {key: a_b}]":             `f.yaml:2:35: descriptors[1]: key "a_b" and value "" are the same as key "a" and value "b" in envoyproxy/ratelimit, which is an error; here they are different`,
		one("rate_limit: {unit: second, replaces: [{name: x}]}"):               `f.yaml:4:48: descriptors[0].rate_limit.replaces[0].name: no limit of the domain is named "x": this replaces nothing, also in envoyproxy/ratelimit`,
		"domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: second, replaces: [{name: x}]}}\n- {key: b, rate_limit: {unit: second, name: x}}":                                 "",
		"domain: d\ndescriptors:\n- {key: a, value: b_c_d, rate_limit: {unit: second}}\n- key: a\n  value: b\n  descriptors:\n  - {key: c, value: d, rate_limit: {unit: second}}": `f.yaml:7:5: descriptors[1].descriptors[0]: envoyproxy/ratelimit counts "a"="b" "c"="d" together with the limit at f.yaml:3:3; here each has its own counter`,
	} {
		var lines []string
		for _, d := range read(t, text, descriptor.Options{}).Differences() {
			lines = append(lines, d.String())
		}
		if got := strings.Join(lines, "\n"); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", text, got, want)
		}
	}
	if d := read(t, one("rate_limit: {unit: month}"), descriptor.Options{FixedMonths: true}).Differences(); len(d) > 0 {
		t.Errorf("with fixed months there is %v", d)
	}
	c, err := descriptor.Read([]descriptor.File{{Name: "a", Data: []byte("domain: d")}, {Name: "b", Data: []byte("domain: d")}}, descriptor.Options{Merge: true})
	if err != nil {
		t.Fatal(err)
	}
	if d := c.Differences(); len(d) != 1 || d[0].String() != `b:1:9: domain: the domain "d" is in a, too; in envoyproxy/ratelimit that is an error without MERGE_DOMAIN_CONFIG` {
		t.Errorf("got %v", d)
	}
	if len(descriptor.General()) == 0 {
		t.Error("there are no general differences")
	}
}

// mustCompile converts, and has the rules compiled.
func mustCompile(t testing.TB, c *descriptor.Config) (string, []string) {
	t.Helper()
	text, notes := c.Convert(descriptor.ConvertOptions{Map: map[string]string{"uid": "user", "org": "tenant", "hdr": "header:X-App", "bad": "nothing"}})
	f, err := rule.ParseTOML("rules.toml", []byte(text))
	if err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	if _, err := rule.Compile(f); err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	return text, notes
}

func TestConvert(t *testing.T) {
	t.Parallel()
	const (
		header  = "# Rules converted from descriptors. Notes list what differs.\n"
		second  = "rate_limit: {unit: second, requests_per_unit: 5}"
		ignored = `the key "generic_key" is ignored, since it is always the same on a route`
	)
	for text, want := range map[string]struct{ rules, notes string }{
		"{key: remote_address, " + second + "}": {rules: `
# d.remote_address
[[rules]]
name = "d.remote_address"
count_by = ["ip"]
limits = [{ name = "d.remote_address", limit = "5/1s fixed_window" }]
`},
		"{key: generic_key, value: slow, descriptors: [{key: remote_address, value: 10.0.0.1, rate_limit: {unit: month, name: m, requests_per_unit: 5, penalty: 3/1h cooldown=1m}}]}": {rules: `
# d.generic_key_slow.remote_address_10.0.0.1
[[rules]]
name = "d.generic_key_slow.remote_address_10.0.0.1"
match = { ip_ranges = ["10.0.0.1"] }
limits = [{ name = "m", limit = "5/month" }]
`, notes: ignored + `
d.generic_key_slow.remote_address_10.0.0.1: the penalty is left out: a ban affects all clients that share a counter, and one could get the others banned: want user, api_key or ip in count_by`},
		"{key: uid, rate_limit: {unit: second, requests_per_unit: 5, algorithm: gcra, burst: 9, penalty: '3/1h cooldown=1m multipliers=1,2'}}": {rules: `
# d.uid
[[rules]]
name = "d.uid"
count_by = ["user"]
limits = [{ name = "d.uid", limit = "5/1s burst=9 token_bucket" }]
penalty = { threshold = 3, within = "1h", cooldown = "1m", multipliers = [1, 2] }
`},
		"{key: method, value: get, descriptors: [{key: path, value: /api/*, share_threshold: true, descriptors: [{key: hdr, value: \"a\\\"b\", " + second + "}]}]}": {rules: `
# d.method_get.path_/api/*.hdr_a"b
[[rules]]
name = "d.method_get.path_-api--.hdr_a-b"
match = { paths = ["/api/**"], methods = ["GET"], headers = { X-App = "a\"b" } }
limits = [{ name = "d.method_get.path_-api--.hdr_a-b", limit = "5/1s fixed_window" }]
`, notes: `d.method_get.path_/api/*.hdr_a"b: "/api/*" is written "/api/**", which "/api" matches as well`},
		"{key: x-plan, value: free, " + second + "}\n- {key: x-plan, value: gold, rate_limit: {unlimited: true}}\n- {key: x-plan, shadow_mode: true, " + second + "}\n- {key: x-plan, value: bad, rate_limit: {unit: second}}": {rules: `
# d.x-plan_free
[[rules]]
name = "d.x-plan_free"
match = { headers = { x-plan = "free" } }
limits = [{ name = "d.x-plan_free", limit = "5/1s fixed_window" }]
group = "d.x-plan-2"

# d.x-plan_gold
[[rules]]
name = "d.x-plan_gold"
match = { headers = { x-plan = "gold" } }
action = "allow"
group = "d.x-plan-2"

# d.x-plan
[[rules]]
name = "d.x-plan"
count_by = ["header:x-plan"]
limits = [{ name = "d.x-plan", limit = "5/1s fixed_window" }]
action = "log_only"
priority = 1
group = "d.x-plan-2"

# d.x-plan_bad
[[rules]]
name = "d.x-plan_bad"
match = { headers = { x-plan = "bad" } }
action = "block"
group = "d.x-plan-2"
`, notes: "d.x-plan_gold: an allow rule lets requests pass whatever other rules say"},
		"{key: path, " + second + "}":                          {notes: "d.path: not converted: rules do not count by each path, only by patterns of paths"},
		"{key: path, value: /a*, " + second + "}":              {notes: `d.path_/a*: not converted: in rules, * stands for a whole segment of a path, unlike in "/a*"`},
		"{key: path, value: '/a?b', " + second + "}":           {notes: `d.path_/a?b: not converted: "/a?b" is not just a path`},
		"{key: path, value: a, " + second + "}":                {notes: `d.path_a: not converted: `},
		"{key: uid, value: alice, " + second + "}":             {notes: `d.uid_alice: not converted: rules cannot match a single user: give "alice" limits of its own, or exempt or ban it`},
		"{key: org, rate_limit: {unlimited: true}}":            {notes: "d.org: not converted: rules cannot match every request that has a tenant"},
		"{key: remote_address, value: 10.*, " + second + "}":   {notes: `d.remote_address_10.*: not converted: rules have no patterns for ip, such as "10.*"`},
		"{key: remote_address, value: me, " + second + "}":     {notes: `d.remote_address_me: not converted: "me" is neither an address nor a network`},
		"{key: x-a, value: b*, " + second + "}":                {notes: `d.x-a_b*: not converted: rules have no patterns for headers, such as "b*"`},
		"{key: x-*, " + second + "}":                           {notes: `d.x-*: not converted: rules have no patterns for keys, such as "x-*"`},
		"{key: bad, " + second + "}":                           {notes: `d.bad: not converted: "bad" maps to "nothing": want ip, user, tenant, api_key, path, method, header:NAME or ignore`},
		"{key: a b, " + second + "}":                           {notes: `d.a b: not converted: "header:a b": want the name of a header`},
		"{key: k, quota_mode: true, " + second + "}":           {notes: "d.k: not converted: rules have no quota_mode"},
		"{key: k, shadow_mode: true, rate_limit: {unit: day}}": {notes: "d.k: not converted: a block rule cannot be in shadow_mode"},
		"{key: k, descriptors: [{key: k, " + second + "}]}":    {notes: `d.k.k: not converted: the key "k" is used twice`},
		"{key: k, metadata: {a: b}, rate_limit: {unit: second, requests_per_unit: 1, replaces: [{name: x}]}}": {rules: `
# d.k
[[rules]]
name = "d.k"
count_by = ["header:k"]
limits = [{ name = "d.k", limit = "1/1s fixed_window" }]
`, notes: "d.k: replaces is left out: of the rules of a group only one applies\nd.k: metadata is left out"},
		"{key: x-a, value: '*', " + second + "}\n- {key: x-b, value: '*', share_threshold: true, " + second + "}\n- {key: x-c, rate_limit: {unit: day}}": {rules: `
# d.x-a_*
[[rules]]
name = "d.x-a"
count_by = ["header:x-a"]
limits = [{ name = "d.x-a", limit = "5/1s fixed_window" }]

# d.x-b_*
[[rules]]
name = "d.x-b"
match = { headers = { x-b = "*" } }
limits = [{ name = "d.x-b", limit = "5/1s fixed_window" }]

# d.x-c
[[rules]]
name = "d.x-c"
match = { headers = { x-c = "*" } }
action = "block"
`},
		"{key: remote_address, rate_limit: {unlimited: true}}\n- {key: x-a, " + second + "}": {
			rules: "\n# d.remote_address\n[[rules]]\nname = \"d.remote_address\"\naction = \"allow\"\n",
			notes: "d.remote_address: an allow rule lets requests pass whatever other rules say\n" +
				`d.x-a: not converted: the rule "d.x-a" can never count: "d.remote_address", which matches everything that it matches, has the action allow`,
		},
	} {
		got, notes := mustCompile(t, read(t, "domain: d\ndescriptors:\n- "+text, descriptor.Options{}))
		joined := strings.Join(notes, "\n")
		if !strings.HasPrefix(joined, want.notes) || want.notes == "" && joined != "" {
			t.Errorf("%s\ngot  %s\nwant %s", text, joined, want.notes)
		}
		for _, n := range notes {
			if !strings.Contains(got, "\n# "+n+"\n") {
				t.Errorf("%s: the text does not have the note %s", text, n)
			}
		}
		if _, rules, _ := strings.Cut(got, "\n\n"); !strings.HasPrefix(got, header) || strings.TrimSpace(rules) != strings.TrimSpace(want.rules) {
			t.Errorf("%s\ngot\n%s\nwant\n%s", text, got, want.rules)
		}
	}
}

func TestConvertMany(t *testing.T) {
	t.Parallel()
	c, err := descriptor.Read([]descriptor.File{
		{Name: "a", Data: []byte(matching)},
		{Name: "b", Data: []byte("domain: e\ncompat: independent\ndescriptors: [{key: \"\\x7f\\n\", value: \"\\0\", rate_limit: {unit: second}}]")},
		{Name: "c", Data: []byte(strings.Replace(large(2000), "domain: d", "domain: f", 1))},
	}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	text, notes := mustCompile(t, c)
	if !strings.Contains(text, "there are 3 domains") || !strings.Contains(text, "e: its descriptors are charged independently") || len(notes) < 3 {
		t.Errorf("got %s", text)
	}
}
