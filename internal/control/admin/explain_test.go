package admin_test

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

// soon matches times that vary.
var soon = regexp.MustCompile(`in [0-9]+ (ms|s|min|h|d)\b`)

func escape(text string) string { return url.QueryEscape(text) }

// TestExplain checks the sentences of explanations.
func TestExplain(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	off := false
	_, err := h.catalog.Apply(t.Context(), &catalog.Document{
		File: rule.File{
			Rules: []rule.Rule{
				{Name: "search", Match: rule.Match{Paths: []string{"/search"}}, CountBy: []rule.Dimension{"user"}, Limits: []rule.Limit{{Name: "searches", Limit: "10/24h"}}},
				{Name: "default", Group: "all", Priority: 9, CountBy: []rule.Dimension{"user"}, Limits: []rule.Limit{{Name: "day", Limit: "1000/24h"}}},
				{Name: "special", Group: "all", Priority: 1, Match: rule.Match{Paths: []string{"/search", "/special"}}, CountBy: []rule.Dimension{"user"}, Limits: []rule.Limit{{Name: "day", Limit: "2000/24h"}}},
				{Name: "trial", Action: rule.LogOnly, Match: rule.Match{Paths: []string{"/trial"}}, CountBy: []rule.Dimension{"ip"}, Limits: []rule.Limit{{Name: "few", Limit: "1/hour"}}},
				{Name: "slow", Action: rule.Throttle, MaxDelay: rule.Duration(10e9), Match: rule.Match{Paths: []string{"/slow"}}, CountBy: []rule.Dimension{"ip"}, Limits: []rule.Limit{{Name: "pace", Limit: "1/1s"}}},
				{Name: "abuse", Action: rule.Block, Match: rule.Match{Paths: []string{"/abuse"}}},
				{Name: "off", Enabled: &off, CountBy: []rule.Dimension{"user"}, Limits: []rule.Limit{{Name: "day", Limit: "1/day"}}},
			},
			Tiers: []rule.Tier{{Name: "pro", Limits: map[string]string{"searches": "unlimited"}}},
		},
		Users:      []catalog.User{{ID: "alice"}, {ID: "paula", Tier: "pro"}},
		Bans:       []catalog.Entry{{IP: "198.51.100.0/24", Reason: "scraping"}},
		Exemptions: []catalog.Entry{{User: "root"}},
	}, catalog.ApplyOptions{Actor: "test"})
	if err != nil {
		t.Fatal(err)
	}
	text, key, _, err := h.catalog.CreateKey(t.Context(), "test", catalog.APIKey{User: "alice"})
	if err == nil {
		err = h.options.Look(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		h.decide("/search", "alice")
	}
	for range 11 {
		h.decide("/search", "bob")
	}
	explain := func(body any) (x admin.Explanation) {
		t.Helper()
		h.ask(http.MethodPost, "/explain", body, "", h.viewer).want(http.StatusOK).into(&x)
		return x
	}
	for name, c := range map[string]struct {
		body    admin.ExplainRequest
		outcome string
		rule    string
		source  string
		steps   []string
	}{
		"key": {
			admin.ExplainRequest{Path: "/search", APIKey: text, IP: "192.0.2.1"},
			"allowed", "search", "key",
			[]string{
				"The API key is valid: user alice, API key " + key.ID + " at the address 192.0.2.1.",
				"It is neither banned nor exempt.",
				"Rule search applies at /search. search/searches: 6 of 10 left, full in ~.",
				"Rule special applies at /search. special/day: 1996 of 2000 left, full in ~.",
				"Rule default matches, but special of the same group comes first.",
				"4 more rules do not apply.",
				"It passes. The limit with the smallest share left is search/searches.",
			},
		},
		"used up": {
			admin.ExplainRequest{Path: "/search", User: "bob"},
			"denied", "search", "given",
			[]string{
				"Given: user bob.",
				"It is neither banned nor exempt.",
				"Rule search applies at /search. search/searches: 0 of 10 left, and this request costs 1: it would pass in ~.",
				"Rule special applies at /search. special/day: 1990 of 2000 left, full in ~.",
				"Rule default matches, but special of the same group comes first.",
				"4 more rules do not apply.",
				"It is denied with 429 by search/searches; it would pass in ~.",
			},
		},
		"unlimited": {
			admin.ExplainRequest{Path: "/search", User: "paula"},
			"allowed", "special", "given",
			[]string{
				"Given: user paula.",
				"The tier is pro.",
				"It is neither banned nor exempt.",
				"Rule search applies at /search. search/searches: unlimited, by tier pro.",
				"Rule special applies at /search. special/day: 2000 of 2000 left.",
				"Rule default matches, but special of the same group comes first.",
				"4 more rules do not apply.",
				"It passes. The limit with the smallest share left is special/day.",
			},
		},
		"too dear": {
			admin.ExplainRequest{Path: "/special", User: "carol", Cost: 5000},
			"denied", "special", "given",
			[]string{
				"Given: user carol.",
				"It is neither banned nor exempt.",
				"Rule special applies at /special. special/day: 2000 of 2000 left, and this request costs 5000: it would never pass.",
				"Rule default matches, but special of the same group comes first.",
				"5 more rules do not apply.",
				"It is denied with 429 by special/day; it would never pass.",
			},
		},
		"no one": {
			admin.ExplainRequest{},
			"allowed", "", "ip",
			[]string{
				"No credentials: an unknown client.",
				"It is neither banned nor exempt.",
				"No rule applies.",
				"It passes.",
			},
		},
		"bad key": {
			admin.ExplainRequest{APIKey: text[:len(text)-1] + "!", IP: "192.0.2.1"},
			"unauthorized", "", "ip",
			[]string{"The credentials are rejected: the API key is not valid.", "It is denied with 401."},
		},
		"banned": {
			admin.ExplainRequest{IP: "198.51.100.7", APIKey: text},
			"banned", "", "ip",
			[]string{
				"The client at the address 198.51.100.7 is not identified any further.",
				"It is banned: the address or network 198.51.100.0/24 is listed (scraping). No rule is evaluated.",
				"It is denied with 403; it would never pass.",
			},
		},
		"exempt": {
			admin.ExplainRequest{User: "root", Path: "/abuse"},
			"exempt", "", "given",
			[]string{
				"Given: user root.",
				"It is exempt: user root is listed. No rule is evaluated.",
				"It passes without being counted.",
			},
		},
		"blocked": {
			admin.ExplainRequest{User: "alice", Path: "/abuse"},
			"blocked", "abuse", "given",
			[]string{
				"Given: user alice.",
				"It is neither banned nor exempt.",
				"Rule abuse applies at /abuse, and blocks.",
				"Rule default applies, but is not evaluated: abuse decides.",
				"5 more rules do not apply.",
				"It is denied with 403 by rule abuse.",
			},
		},
		"key by its id": {
			admin.ExplainRequest{APIKey: key.ID, Path: "/trial", IP: "192.0.2.9", Headers: map[string]admin.HeaderValues{"x-a": {"1"}, "X-B": {"1", "2"}}},
			"allowed", "default", "given",
			[]string{
				"Given: user alice, API key " + key.ID + " at the address 192.0.2.9.",
				"It is neither banned nor exempt.",
				"Rule trial applies at /trial, in log_only mode. trial/few: 1 of 1 left.",
				"Rule default applies. default/day: 1000 of 1000 left.",
				"5 more rules do not apply.",
				"It passes. The limit with the smallest share left is default/day.",
			},
		},
	} {
		x := explain(c.body)
		got := slices.Clone(x.Steps)
		for i := range got {
			got[i] = soon.ReplaceAllString(got[i], "in ~")
		}
		if x.Outcome != c.outcome || x.Rule != c.rule || x.Subject.Source != c.source || !slices.Equal(got, c.steps) {
			t.Errorf("%s: %s %s %s\n%s\nwant\n%s", name, x.Outcome, x.Rule, x.Subject.Source, strings.Join(x.Steps, "\n"), strings.Join(c.steps, "\n"))
		}
		if strings.Contains(strings.Join(x.Steps, "\n"), text) {
			t.Errorf("%s: the key is told", name)
		}
	}

	// It has changed nothing.
	x := explain(admin.ExplainRequest{Path: "/search", User: "alice"})
	if len(x.Limits) != 2 || x.Limits[0].Remaining != 6 || x.Limits[0].Rule != "search" || x.RetryAfter == nil || *x.RetryAfter != 0 || len(x.Rules) != 7 {
		t.Errorf("%+v", x)
	}
	if x := explain(admin.ExplainRequest{Path: "/special", User: "carol", Cost: 5000}); x.RetryAfter != nil || x.Allowed {
		t.Errorf("%+v", x)
	}
	h.do(http.MethodPut, "/subjects/user/alice/ban", nil).want(http.StatusOK)
	if x := explain(admin.ExplainRequest{User: "alice"}); x.Outcome != "banned" {
		t.Errorf("%+v", x)
	}
}

func TestExplainRefuses(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	for body, says := range map[string]string{
		`{"pth":"/"}`:                                         "did you mean",
		`{"path":"search"}`:                                   "starts with a slash",
		`{"method":"get"}`:                                    "upper case",
		`{"ip":"localhost"}`:                                  "an address",
		`{"user":"a\u0000b"}`:                                 "control characters",
		`{"cost":-1}`:                                         "1 or more",
		`{"headers":{"a b":"c"}}`:                             "not a valid header name",
		`{"headers":{"":"c"}}`:                                "not a valid header name",
		`{"headers":{"x-a":"1","X-A":"2"}}`:                   "given twice",
		`{"headers":{"x-a":1}}`:                               "a text or a list of texts",
		`{"headers":{"x-a":[1]}}`:                             "want a string",
		`{"api_key":"stint_a_b","user":"x"}`:                  "which identifies the client",
		`{"api_key":"stint_a_b","headers":{"x-api-key":"y"}}`: "one of them",
		`{"api_key":"` + strings.Repeat("secret", 100) + `"}`: "the text of an API key",
		`[]`: "want",
	} {
		a := h.ask(http.MethodPost, "/explain", body, "", h.viewer).want(http.StatusUnprocessableEntity).says(says)
		if strings.Contains(string(a.body), "secretsecret") {
			t.Errorf("a secret is told: %s", a.body)
		}
	}
	h.ask(http.MethodPost, "/explain", `{`, "", h.viewer).want(http.StatusBadRequest)
	h.ask(http.MethodPost, "/explain", `{"path":"`+strings.Repeat("x", 1<<20)+`"}`, "", h.viewer).want(http.StatusRequestEntityTooLarge)
}
