package admin_test

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/sim"
	"github.com/stintdev/stint/internal/record"
)

// requested returns requests of users to /search, one per second until now, oldest first.
func requested(h *testAPI, n int, users ...string) []record.Event {
	h.Helper()
	now := h.clock.now().UTC().Truncate(time.Microsecond)
	out := make([]record.Event, n)
	for i := range out {
		out[i] = record.Event{
			At: now.Add(-time.Duration(n-i) * time.Second), Outcome: engine.Allowed, User: users[i%len(users)],
			IP: "192.0.2.1", Rule: "search", Endpoint: "/search", Method: http.MethodGet, Cost: 1, Max: 100, Weight: 1, Node: "node-1",
		}
		binary.BigEndian.PutUint64(out[i].ID[:], uint64(i)+1)
	}
	return out
}

func TestPreview(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	seed(h)
	if err := h.record.Write(t.Context(), requested(h, 600, "alice", "bob")); err != nil {
		t.Fatal(err)
	}
	preview := func(query, limit string) (p sim.Preview) {
		t.Helper()
		r := searchRule()
		r.Limits[0].Limit = limit
		h.ask(http.MethodPost, "/rules/preview?replacing=search"+query, r, "", h.viewer).want(http.StatusOK).into(&p)
		return p
	}
	if p := preview("", "100/minute"); p.Events != 600 || p.Requests != 600 || p.Matched != 600 || p.WouldRefuse != 0 || p.Subjects != 2 {
		t.Errorf("%+v", p)
	}
	p := preview("", "10/minute fixed_window")
	if p.WouldRefuse < 350 || p.WouldRefuse > 420 || len(p.Top) != 2 || len(p.Series) == 0 {
		t.Errorf("%+v", p)
	}
	if p := preview("&since_seconds=60", "10/minute"); p.Events < 50 || p.Events > 60 || p.To.Sub(p.From) != time.Minute {
		t.Errorf("%+v", p)
	}
	bad := searchRule()
	bad.Limits[0].Limit = "lots"
	h.ask(http.MethodPost, "/rules/preview?replacing=search", bad, "", h.viewer).want(http.StatusUnprocessableEntity).says(`"field":"limits[0].limit"`)
	h.ask(http.MethodPost, "/rules/preview?replacing=unknown", searchRule(), "", h.viewer).want(http.StatusNotFound)
	for _, since := range []string{"0", "-1", "1e9", "NaN", "Inf", "x"} {
		h.ask(http.MethodPost, fmt.Sprintf("/rules/preview?since_seconds=%s", since), searchRule(), "", h.viewer).want(http.StatusBadRequest)
	}
}

// spread returns events of an hour, each of another path, until the last whole minute.
func spread(h *testAPI, n int, path func(i int) string) []record.Event {
	h.Helper()
	all := requested(h, n, "alice", "bob", "carol")
	end := h.clock.now().UTC().Truncate(time.Minute)
	for i := range all {
		all[i].At, all[i].Endpoint, all[i].Path = end.Add(-time.Duration(n-i)*time.Hour/time.Duration(n)), "", path(i)
	}
	return all
}

// writeAll writes events, and rolls them up.
func writeAll(h *testAPI, events []record.Event) {
	h.Helper()
	if err := h.record.Write(h.Context(), events); err != nil {
		h.Fatal(err)
	}
	if _, err := h.record.Run(h.Context()); err != nil {
		h.Fatal(err)
	}
}

// TestPreviewOfMany has more events than a preview replays, of which the newest are not like the others.
func TestPreviewOfMany(t *testing.T) {
	t.Parallel()
	for name, rolledUp := range map[string]bool{"rolled up": true, "not yet": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestAPI(t)
			seed(h)
			const n = 12_000
			events := spread(h, n, func(i int) string {
				if i < n*3/5 {
					return "/search"
				}
				return "/other"
			})
			if rolledUp {
				writeAll(h, events)
			} else if err := h.record.Write(t.Context(), events); err != nil {
				t.Fatal(err)
			}
			var p sim.Preview
			h.ask(http.MethodPost, "/rules/preview?replacing=search&since_seconds=3660", searchRule(), "", h.viewer).want(http.StatusOK).
				says("read evenly from the whole time").says("Not all events were read").into(&p)
			const part = n / 12 // the path changes within one: it stands for one or for the other
			for what, c := range map[string]struct{ got, want int64 }{
				"requests": {p.Requests, n}, "matched": {p.Matched, n * 3 / 5}, "not matched": {p.NotMatched, n * 2 / 5},
			} {
				if c.got < c.want-part-part/2 || c.got > c.want+part+part/2 {
					t.Errorf("%s: %d, want about %d: %s", what, c.got, c.want, p.Summary)
				}
			}
			if p.Unclear != 0 || p.Events > 4200 || p.Events < 1000 || rolledUp && p.Recorded != n {
				t.Errorf("%+v", p)
			}
			for _, point := range p.Series[1:17] {
				if point.Matched == 0 {
					t.Errorf("nothing matches at %v", point.Start)
				}
			}
		})
	}
}

// TestPreviewUnsampled has only requests be recorded that did not pass: the summary never says that the rule matches none.
func TestPreviewUnsampled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		n       int
		path    string
		summary string
	}{
		"none":     {0, "", "No requests were denied or delayed in this time. Those that passed are not recorded, so it is not known whether the rule matches any."},
		"another":  {30, "/other", "The rule matches none of 30 requests that were denied or delayed. Those that passed are not recorded, so it is not known whether it matches any of them."},
		"matching": {30, "/search", "Of 30 requests, 30 match (100 %). Of those that match, the rule would have denied 0 (0 %); denied at the time: 0. Requests that passed are not recorded, and not among these."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestAPI(t, func(o *admin.Options) { o.Unsampled = true })
			seed(h)
			if c.n > 0 {
				writeAll(h, spread(h, c.n, func(int) string { return c.path }))
			}
			r := searchRule()
			r.Limits[0].Limit = "10000/minute"
			var p sim.Preview
			h.ask(http.MethodPost, "/rules/preview?replacing=search&since_seconds=3660", r, "", h.viewer).want(http.StatusOK).into(&p)
			if p.Summary != c.summary {
				t.Errorf("%q, want %q", p.Summary, c.summary)
			}
		})
	}
}

// TestPreviewUnclear has requests of which the record does not tell whether they match: the summary never says that none do.
func TestPreviewUnclear(t *testing.T) {
	t.Parallel()
	const n = 900
	for name, c := range map[string]struct {
		path    func(i int) string
		gone    bool
		summary string
	}{
		"no paths":      {func(int) string { return "" }, false, "Of 900 requests, none is known to match and of 900 it is not known whether they match (100 %)."},
		"some paths":    {func(i int) string { return []string{"", "/other", "/other"}[i%3] }, false, "Of 900 requests, none is known to match, 600 do not match (67 %) and of 300 it is not known whether they match (33 %)."},
		"other paths":   {func(int) string { return "/other" }, false, "The rule matches none of 900 requests."},
		"cut paths":     {func(int) string { return "/**" }, false, "Of 900 requests, none is known to match and of 900 it is not known whether they match (100 %)."},
		"deleted":       {func(int) string { return "/other" }, true, "Of 900 requests, none is known to match and of 900 it is not known whether they match (100 %)."},
		"matching ones": {func(i int) string { return []string{"/search", "/other", ""}[i%3] }, false, "Of 900 requests, 300 match (33 %), 300 do not match (33 %) and of 300 it is not known whether they match (33 %). Of those that match, the rule would have denied 0 (0 %); denied at the time: 0."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestAPI(t)
			seed(h)
			events := spread(h, n, c.path)
			writeAll(h, events)
			if c.gone {
				db := h.catalog.Database().Record
				for _, m := range []record.Month{record.MonthOf(events[0].At), record.MonthOf(events[n-1].At)} {
					if _, err := db.Write.ExecContext(t.Context(), "DELETE FROM "+h.record.Table(m)); err != nil {
						t.Fatal(err)
					}
				}
			}
			r := searchRule()
			r.Limits[0].Limit = "10000/minute"
			var p sim.Preview
			h.ask(http.MethodPost, "/rules/preview?replacing=search&since_seconds=3660", r, "", h.viewer).want(http.StatusOK).into(&p)
			if p.Summary != c.summary || p.Requests != n || p.Matched+p.NotMatched+p.Unclear != n {
				t.Errorf("%q, want %q\n%+v", p.Summary, c.summary, p)
			}
			if sum := p.Shares.Matched + p.Shares.NotMatched + p.Shares.Unclear; sum < 0.999 || sum > 1.001 {
				t.Errorf("shares %+v", p.Shares)
			}
		})
	}
}
