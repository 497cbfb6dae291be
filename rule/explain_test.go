package rule_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

func TestReasons(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ rule, attrs, want string }{
		{"r disabled", "GET /", "disabled"},
		{"r paths=/a", "GET /x//y?q", "path /x/y is not /a"},
		{"r paths=/a,/b/*", "GET /x", "path /x is none of /a, /b/*"},
		{"r paths=/a", "GET /%00", `path "/\x00" is not /a`},
		{"r paths=/a", "GET /" + strings.Repeat("x", 500), "path /" + strings.Repeat("x", 127) + "... is not /a"},
		{"r paths=/1,/2,/3,/4,/5,/6,/7,/8,/9,/10", "GET /", "path / is none of /1, /2, /3, /4, /5, /6, /7, /8 and 2 more"},
		{"r methods=GET", "PUT /", "method PUT is not GET"},
		{"r methods=GET,HEAD", "- /", "no method: want GET, HEAD"},
		{"r tiers=premium", "GET / tier=free", "tier free is not premium"},
		{"r tiers=premium", "GET /", "no tier: want premium"},
		{"r tiers=pro,team", "GET / tier=free", "tier free is none of pro, team"},
		{"r ips=10.0.0.0/8", "GET / ip=192.0.2.1", "address 192.0.2.1 is not in 10.0.0.0/8"},
		{"r ips=10.0.0.0/8,192.0.2.2", "GET / ip=192.0.2.1", "address 192.0.2.1 is in none of 10.0.0.0/8, 192.0.2.2"},
		{"r ips=10.0.0.0/8", "GET /", "no address: want in 10.0.0.0/8"},
		{"r header=x-app:mobile", "GET / header=X-App:web", "header X-App web is not mobile"},
		{"r header=x-app:mobile", "GET /", "no header X-App: want mobile"},
		{"r header=x-app:*", "GET /", "no header X-App: want any value"},
		{"r header=x-app:1", "GET /" + strings.Repeat(" header=X-App:2", 33), "header X-App " + strings.Repeat("2, ", 31) + "2 is not 1"},
		{"r header=authorization:hunter2", "GET / header=Authorization:hunter3", "header Authorization has another value than the rule"},
		{"r header=authorization:hunter2", "GET /", "no header Authorization: want the value of the rule"},
		{"r header=proxy-authorization:hunter2", "GET / header=Proxy-Authorization:x", "header Proxy-Authorization has another value than the rule"},
		{"r header=cookie:hunter2", "GET / header=Cookie:x", "header Cookie has another value than the rule"},
		{"r header=x-api-key:hunter2", "GET / header=X-Api-Key:x", "header X-Api-Key has another value than the rule"},
		{"r header=x-token:hunter2", "GET / header=X-Token:x header=X-Token:y", "header X-Token has another value than the rule"},
		{"r header=x-secret:hunter2", "GET / header=X-Secret:x", "header X-Secret has another value than the rule"},
		{"r header=my-password:hunter2", "GET / header=My-Password:x", "header My-Password has another value than the rule"},
		{"r header=x-api-key:*", "GET /", "no header X-Api-Key: want any value"},
		{"r action=allow paths=/a", "GET /a;b", "path /a;b can also be read as another path, which the rule does not match"},
		{"r paths=/a", "GET /x%2fy", "path /x%2Fy is not /a"},
		{"r by=user", "GET /", "no user to count by"},
		{"r by=api_key", "GET /", "no api_key to count by"},
		{"r by=claim:org", "GET /", "no claim org to count by"},
		{"r by=header:x-app", "GET / ip=192.0.2.1", "no header X-App to count by"},
		{"r by=header:x-app", "GET / header=X-App:m", "no ip to count by"},
		{"r paths=/a methods=GET tiers=free by=user", "PUT /b", "path /b is not /a"},
		{"r paths=/a methods=GET tiers=free by=user", "PUT /a", "method PUT is not GET"},
	} {
		s := compile(t, withTiers(rule.File{Rules: []rule.Rule{readRule(t, strings.Fields(c.rule))}}))
		a := readAttrs(t, strings.Fields(c.attrs))
		if got := s.Explain(&a)[0]; got.Matched || got.Reason != c.want || got.Limits != nil {
			t.Errorf("%s, %.40s: %+v, want %s", c.rule, c.attrs, got, c.want)
		}
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	limits := []rule.Limit{{Name: "a", Limit: "10/1s"}, {Name: "b", Limit: "100/1m"}, {Name: "c", Limit: "1000/1h"}, {Name: "d", Limit: "9000/1d"}}
	s := compile(t, rule.File{
		Rules: []rule.Rule{
			{Name: "wide", Group: "g", Limits: limits[:1]},
			{Name: "best", Group: "g", Limits: limits, CountBy: []rule.Dimension{"user"}, Match: rule.Match{Paths: []string{"/a/*"}}},
			{Name: "block", Action: rule.Block, Priority: -1, Match: rule.Match{Methods: []string{"TRACE"}}},
		},
		Tiers: []rule.Tier{{Name: "free", Limits: map[string]string{"b": "50/1m", "c": "500/1h", "d": "unlimited"}}},
	})
	got, err := json.MarshalIndent(s.Explain(&rule.Attrs{
		Method: "GET", Path: "/a/b/", User: "42", Tier: "free",
		UserLimits: rule.Values{"a": stint.PerSecond(2), "c": stint.PerHour(7)},
		KeyLimits:  rule.Values{"a": stint.PerSecond(1)},
	}), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const want = `[
  {
    "rule": "block",
    "matched": false,
    "reason": "method GET is not TRACE"
  },
  {
    "rule": "best",
    "matched": true,
    "endpoint": "/a/*",
    "limits": [
      {
        "name": "a",
        "limit": "1/1s",
        "source": "api_key",
        "key": "{user:42}:best:a"
      },
      {
        "name": "b",
        "limit": "50/1m",
        "source": "tier free",
        "key": "{user:42}:best:b"
      },
      {
        "name": "c",
        "limit": "7/1h",
        "source": "user",
        "key": "{user:42}:best:c"
      },
      {
        "name": "d",
        "limit": "unlimited",
        "source": "tier free"
      }
    ]
  },
  {
    "rule": "wide",
    "matched": true,
    "beaten_by": "best",
    "limits": [
      {
        "name": "a",
        "limit": "1/1s",
        "source": "api_key",
        "key": "{global}:wide:a"
      }
    ]
  }
]`
	if string(got) != want {
		t.Errorf("%s", got)
	}
}

// TestExplainReadings has a path that may be read in two ways.
func TestExplainReadings(t *testing.T) {
	t.Parallel()
	s := compile(t, rule.File{Rules: []rule.Rule{
		readRule(t, strings.Fields("both group=g paths=/x/y,/**")),
		readRule(t, strings.Fields("beaten group=g paths=/x/*")),
		readRule(t, strings.Fields("tried group=g action=log_only by=tenant")),
		readRule(t, strings.Fields("worse group=g priority=1 action=log_only paths=/x/**")),
		readRule(t, strings.Fields("other paths=/y")),
	}})
	var got []string
	for _, x := range s.Explain(&rule.Attrs{Path: `/x\y`, Tenant: "t"}) {
		got = append(got, strings.Join(strings.Fields(x.Rule+" "+x.Endpoint+" "+x.BeatenBy+x.Reason), " "))
	}
	want := []string{"beaten /x/* both", "both /x/y", `other path "/x\\y" is not /y`, "tried", "worse /x/** tried"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestExplainIsWhatMatches compares what is explained with what applies, and its
// keys with what is asked.
func TestExplainIsWhatMatches(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f, s := drawFile(t, 20)
		a := drawAttrs(t)
		explanation := s.Explain(a)
		hits := s.Match(nil, a)
		if got, want := explained(explanation), names(hits); got != want {
			t.Fatalf("%s, explained as %s", want, got)
		}
		if len(explanation) != len(f.Rules) {
			t.Fatalf("%d rules are explained, want %d", len(explanation), len(f.Rules))
		}
		asks, _ := s.Asks(nil, hits, a, nil)
		of := map[string]rule.Explained{}
		for _, x := range explanation {
			of[x.Rule] = x
		}
		for _, h := range hits {
			for i, l := range of[h.Rule.Name].Limits {
				if ask := asks[h.From+i]; l.Key != ask.Key.String() || l.Limit != ask.Limit.String() {
					t.Fatalf("%+v is explained as %+v", ask, l)
				}
			}
		}
	})
}
