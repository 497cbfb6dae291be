package e2e_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/rule"
)

// TestUsagePage looks at the page of what was used: when there is nothing, and when two tenants have used two models. It
// writes screenshots like TestDashboardPages.
func TestUsagePage(t *testing.T) {
	t.Parallel()
	s := newSite(t, inSQLite)
	w := s.signIn(t, wide)
	w.open("/")
	w.injectAxe()
	w.visit(at("/usage"))
	w.settled("Usage")
	w.looks("usage-empty", wide, "Nothing was used in this time", "llm.total_tokens")

	type list = []any
	type table = map[string]any
	limits := func(name string) list { return list{table{"name": name, "limit": "1000000/day"}} }
	s.must(t, http.MethodPost, "/apply", table{"rules": list{
		table{"name": "tokens", "count_by": list{"user"}, "cost": table{"meter": "llm.total_tokens", "reserve": 1000}, "limits": limits("tokens")},
		table{"name": "tenants", "count_by": list{"tenant"}, "cost": table{"meter": "llm.total_tokens", "reserve": 1000}, "limits": limits("tenant-tokens")},
		table{"name": "seconds", "count_by": list{"user"}, "cost": table{"meter": "response_seconds"}, "limits": limits("seconds")},
	}})
	c := httplimit.Client{URL: s.api}
	wait.Nil(t, "the rules apply", func() error {
		a, err := c.Reserve(t.Context(), httplimit.Ask{Path: "/", User: "probe"})
		if err == nil && a.Ticket == "" {
			err = errors.New("the rules do not apply yet")
		}
		if err == nil {
			_, err = c.Cancel(t.Context(), a.Ticket)
		}
		return err
	})
	for i, model := range []string{"gpt-5", "gpt-5", "claude-opus", ""} {
		a, err := c.Reserve(t.Context(), httplimit.Ask{Path: "/", User: []string{"alice", "bob"}[i%2], Tenant: []string{"acme", "globex"}[i/2]})
		if err != nil {
			t.Fatal(err)
		}
		used := engine.Usage{Model: model, Meters: map[rule.Meter]int64{"llm.total_tokens": int64(2500 - 700*i), "response_seconds": 3}}
		if _, err := c.Commit(t.Context(), a.Ticket, used); err != nil {
			t.Fatal(err)
		}
	}
	w.until(func() error { // it is written every few seconds
		if err := w.saysNow("Over time"); err != nil {
			w.click("button", "Refresh")
			return err
		}
		return nil
	})
	// A request counts once, though two rules have the meter.
	w.looks("usage", wide, "acme", "globex", "5.8k", "Overshoot")
	w.choose("By", "By model")
	w.says("claude-opus", "gpt-5", "no model")
	w.choose("By", "By rule")
	w.says("tenants", "tokens")
	w.choose("Meter", "response_seconds")
	w.says("seconds", "response_seconds by hour")
	w.visit(at("/usage", "range", "30d", "by", "user", "tenant", "acme"))
	w.says("alice", "bob", "4.3k", "llm.total_tokens by day")
	w.visit(at("/usage", "user", "nobody"))
	w.says("Filters are exact")

	w.visit(at("/usage"))
	w.looks("usage", narrow, "acme", "5.8k")

	// What the button downloads.
	file := eval[string](w, `[...document.querySelectorAll('a[download]')].map((a) => a.href).join()`)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, file, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+adminToken)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(text), ",acme,,,,,llm.total_tokens,2,2000,4300,0,2300,0\r\n") {
		t.Errorf("%s is %s, %v: %s", file, answer.Status, err, text)
	}
}
