package daemon_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/storetest"
)

// takeLeased takes a unit of a counter that may be leased, from the store of the daemon.
func (p *process) takeLeased(t *testing.T, limit string) stint.Decision {
	t.Helper()
	ds, err := storetest.Take(t.Context(), p.Store(), []stint.Ask{{
		Key:   stint.Key{Subject: "global", Name: limit + ":/path"},
		Limit: stint.Limit{Algorithm: stint.FixedWindow, Max: 2000, Window: stint.Every(2 * time.Second)}, Cost: 1,
		Policy: &stint.Policy{Lease: 100 * time.Millisecond},
	}})
	do(t, err)
	return ds[0]
}

// lease takes units until some are spent that were taken ahead.
func (p *process) lease(t *testing.T, limit string) {
	t.Helper()
	wait.For(t, "a lease of "+limit, func() bool {
		for range 20 {
			if p.takeLeased(t, limit).Basis == stint.Leased {
				return true
			}
		}
		return false
	})
}

// leased returns the leases of the live view.
func (p *process) leased(t *testing.T, query string) []record.Leased {
	t.Helper()
	var s record.Snapshot
	code, body := p.get(t, "admin", "/admin/v1/live"+query)
	if err := json.Unmarshal([]byte(body), &s); err != nil || code != http.StatusOK || strings.Contains(body, `"leases"`) != (s.Leases != nil) {
		t.Fatal(code, body, err)
	}
	return s.Leases
}

// leaseSeries returns the values of the metrics of leases that have labels, by name and labels.
func (p *process) leaseSeries(t *testing.T) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for name, value := range p.series(t) {
		if short, ok := strings.CutPrefix(name, "stint_lease_"); ok && strings.Contains(short, "{") {
			n, err := strconv.ParseFloat(value, 64)
			do(t, err)
			out[short] = n
		}
	}
	return out
}

// TestLeasesShown has two nodes lease the same counter until one denies what the other may have had, and compares
// metrics and the live view.
func TestLeasesShown(t *testing.T) {
	t.Parallel()
	config := "[server]\ncounters = \"" + testredis.Start(t).URL() + "\"\nreplicas = 2\n"
	p, q := start(t, config+many, set("server.catalog.node", "p")), start(t, config+many, set("server.catalog.node", "q"))
	check(t, p)
	if s, l := p.leaseSeries(t), p.leased(t, "?node=p"); len(s) > 0 || l != nil {
		t.Errorf("%v and %+v before anything is leased", s, l)
	}
	const of, what = `{limit="many:many"}`, `units_total{limit="many:many",what="`
	wait.For(t, "denials while the other node had units", func() bool {
		for range 500 {
			p.takeLeased(t, "many:many")
			q.takeLeased(t, "many:many")
		}
		s := p.leaseSeries(t)
		return s["denied_early_total"+of] > 0 && s["denied_early_total"+of] <= s["denied_total"+of] && s["others_most_units"+of] > 0
	})
	p.lease(t, "many:many") // and leave the rest
	var s map[string]float64
	wait.For(t, "the end of the lease", func() bool {
		s = p.leaseSeries(t)
		return s["counters"+of] == 0 && s["units_held"+of] == 0 && s[what+`given_back"}`] > 0 &&
			s[what+`lent"}`] == s[what+`spent"}`]+s[what+`given_back"}`]+s[what+`kept"}`]
	})
	if len(s) != 10 || s[what+`spent"}`] == 0 || s["most_used_ratio"+of] <= 0 || s["most_used_ratio"+of] > 1 {
		t.Errorf("%v", s)
	}
	got := p.leased(t, "?node=p")
	if len(got) != 1 {
		t.Fatalf("%+v", got)
	}
	l := got[0]
	want := record.Leased{
		Limit: "many:many", Lent: int64(s[what+`lent"}`]), Spent: int64(s[what+`spent"}`]), Back: int64(s[what+`given_back"}`]), Kept: int64(s[what+`kept"}`]),
		Denied: int64(s["denied_total"+of]), Early: int64(s["denied_early_total"+of]), MostOut: int64(s["others_most_units"+of]),
		MostUsed: l.MostUsed, Cap: 2000,
	}
	if l != want || float64(l.MostUsed)/2000 != s["most_used_ratio"+of] {
		t.Errorf("%+v, want %+v, and %v was used", l, want, s["most_used_ratio"+of])
	}

	put(t, p.path, config+few)
	do(t, p.Reload(t.Context()))
	if s, l := p.leaseSeries(t), p.leased(t, "?node=p"); len(s) > 0 || l != nil {
		t.Errorf("%v and %+v after the rule was removed", s, l)
	}
}

// TestNoLeasesInMemory has counters in memory, which are never leased.
func TestNoLeasesInMemory(t *testing.T) {
	t.Parallel()
	p := start(t, many)
	for range 100 {
		if d := p.takeLeased(t, "many:many"); d.Basis != stint.Counted {
			t.Fatalf("%+v", d)
		}
	}
	if l := p.leased(t, ""); l != nil {
		t.Errorf("%+v", l)
	}
	for name := range p.series(t) {
		if strings.HasPrefix(name, "stint_lease_") {
			t.Error(name)
		}
	}
}
