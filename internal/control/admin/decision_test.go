package admin_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/rule"
)

// denial is a denial by the rule team at a time.
func denial(at time.Time, change func(e *record.Event)) record.Event {
	e := record.Event{
		At: at, Outcome: engine.Denied, User: "alice", Tenant: "acme", Tier: "free", IP: "192.0.2.1", Rule: "team", Limit: "minute", Endpoint: "/search", Path: "/search",
		Method: "GET", Used: 100, Max: 100, Cost: 1, Status: 429, RetryAfter: 12 * time.Second, Latency: 80 * time.Microsecond, Region: "eu", Node: "node-1", Weight: 1,
	}
	change(&e)
	e.ID = engine.NewID(e.At)
	return e
}

func (h *testAPI) write(events ...record.Event) {
	h.Helper()
	if err := h.record.Write(h.Context(), events); err != nil {
		h.Fatal(err)
	}
}

// teamRule counts all of a tenant together.
func teamRule() rule.Rule {
	r := searchRule()
	r.Name, r.CountBy, r.Limits = "team", []rule.Dimension{"tenant"}, []rule.Limit{{Name: "minute", Limit: "100/minute"}}
	return r
}

// story returns the explanation of a decision.
func (h *testAPI) story(id engine.ID) (x admin.ExplainedDecision) {
	h.Helper()
	h.get("/decisions/" + id.String()).want(http.StatusOK).into(&x)
	return x
}

// TestDecisionShared explains a denial by a counter that a tenant shares: who used it is told as far as it is recorded, and in
// the window of the counter only.
func TestDecisionShared(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	h.do(http.MethodPost, "/rules", teamRule()).want(http.StatusCreated)
	h.do(http.MethodPost, "/rules", searchRule()).want(http.StatusCreated)
	at := h.clock.now().Add(time.Second).Truncate(time.Second).UTC()
	by := func(user string, before time.Duration, weight int64, outcome engine.Outcome) record.Event {
		return denial(at.Add(-before), func(e *record.Event) { e.User, e.Weight, e.Outcome = user, weight, outcome })
	}
	asked := by("alice", 0, 1, engine.Denied)
	other := by("eve", time.Second, 1, engine.Denied)
	other.Tenant = "globex" // another counter
	h.write(
		asked, other, by("alice", 3*time.Second, 1, engine.Denied), by("bob", 2*time.Second, 7, engine.Denied), by("bob", 4*time.Second, 100, engine.Allowed),
		by("carol", 5*time.Second, 1, engine.Throttled), by("dave", 61*time.Second, 1, engine.Denied), by("late", -time.Second, 1, engine.Denied),
	)
	x := h.story(asked.ID)
	if x.Event.ID != asked.ID.String() || x.Event.User != "alice" || !x.CouldPass.Equal(at.Add(12*time.Second)) {
		t.Errorf("%+v", x.Event)
	}
	s := x.Sharing
	if s == nil || strings.Join(s.CountBy, " ") != "tenant" || s.Own.Denied != 2 || s.Own.Passed != 0 || len(s.Others) != 2 || s.More != 0 || !s.Complete || !s.From.Equal(at.Add(-time.Minute)) {
		t.Fatalf("%+v", s)
	}
	if b, c := s.Others[0], s.Others[1]; b.User != "bob" || b.Denied != 7 || b.Passed != 100 || c.User != "carol" || c.Passed != 1 || c.Denied != 0 {
		t.Errorf("%+v", s.Others)
	}
	if x.Now == nil || !x.Now.Allowed || len(x.Now.Rules) != 2 || !x.Now.Rules[0].Matched || len(x.Changes) != 0 || x.Revision == 0 {
		t.Errorf("%+v, changes %v, revision %d", x.Now, x.Changes, x.Revision)
	}
	const want = " was not served, because the limit of 100 requests per minute for your organization had been reached. It could have been repeated 12 seconds later, at "
	if !strings.HasPrefix(x.Customer, "Your request GET /search on ") || !strings.Contains(x.Customer, want) || !strings.HasSuffix(x.Customer, " It would be served now.") {
		t.Error(x.Customer)
	}
	for _, inside := range []string{"alice", "bob", "team", "acme", "192.0.2.1", "node-1"} {
		if strings.Contains(x.Customer, inside) {
			t.Errorf("the customer is told of %s: %s", inside, x.Customer)
		}
	}
	steps := strings.Join(x.Steps, "\n")
	for _, says := range []string{"on node node-1 in region eu", "user alice, tenant acme, tier free, address 192.0.2.1", "team/minute: 100 of 100 used, and this request costs 1", "denied with status 429 by rule team. It could have passed in 12 s"} {
		if !strings.Contains(steps, says) {
			t.Errorf("no %q in\n%s", says, steps)
		}
	}

	// More clients than are named.
	var crowd []record.Event
	for i := range 14 {
		crowd = append(crowd, by("u"+string(rune('a'+i)), time.Duration(i+10)*time.Second, 1, engine.Denied))
	}
	h.write(crowd...)
	if s := h.story(asked.ID).Sharing; len(s.Others) != 10 || s.More != 6 || s.Others[0].User != "bob" {
		t.Errorf("%+v", s)
	}
}

// TestDecisionChanged explains a denial by a rule that has changed since, and one by a rule that is gone.
func TestDecisionChanged(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	h.do(http.MethodPost, "/rules", teamRule()).want(http.StatusCreated)
	h.do(http.MethodPost, "/users", catalog.User{ID: "alice", Tenant: "acme"}).want(http.StatusCreated)
	e := denial(h.clock.now().UTC().Truncate(time.Microsecond), func(*record.Event) {})
	h.write(e)
	then := h.story(e.ID)
	h.do(http.MethodPatch, "/rules/team", `{"limits":[{"name":"minute","limit":"500/minute"}]}`, "If-Match", "*").want(http.StatusOK)
	x := h.story(e.ID)
	if len(then.Changes) != 0 || len(x.Changes) != 1 || x.Changes[0].Kind != "rule" || x.Changes[0].Action != "update" || len(x.Changes[0].Fields) != 1 {
		t.Fatalf("%+v, then %+v", x.Changes, then.Changes)
	}
	if f := x.Changes[0].Fields[0]; !strings.Contains(f.Before, "100/minute") || !strings.Contains(f.After, "500/minute") || x.Revision != then.Revision || x.Changes[0].Revision <= x.Revision {
		t.Errorf("%+v at %d, decided at %d", f, x.Changes[0].Revision, x.Revision)
	}
	if !strings.Contains(x.Customer, "the limit of 100 for your organization had been reached") || x.Event.Max != 100 { // not that of now
		t.Error(x.Customer)
	}
	h.do(http.MethodDelete, "/rules/team", nil, "If-Match", "*").want(http.StatusNoContent)
	x = h.story(e.ID)
	if len(x.Changes) != 2 || x.Changes[0].Action != "delete" || x.Sharing != nil || !strings.Contains(strings.Join(x.Unknown, "\n"), "There is no rule team now.") {
		t.Errorf("%+v", x)
	}
}

// TestDecisionMissing asks for what is not there, and is told why it may not be. What belongs to others is not there.
func TestDecisionMissing(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	now := h.clock.now().UTC()
	missing := func(id string, says ...string) {
		t.Helper()
		got := h.get("/decisions/" + id).want(http.StatusNotFound)
		for _, text := range says {
			got.says(text)
		}
	}
	at := now.Add(-time.Hour).Truncate(time.Second)
	missing(engine.NewID(at).String(), "the record is empty", "made at "+at.Format("2006-01-02T15:04:05"))
	busy := denial(at.Add(300*time.Millisecond), func(e *record.Event) { e.Weight = 40 })
	foreign := denial(at.Add(400*time.Millisecond), func(e *record.Event) { e.Weight, e.User, e.Tenant = 50, "eve", "globex" })
	gone := denial(now.AddDate(0, -2, 0), func(*record.Event) {})
	h.write(busy, foreign, gone)

	missing(engine.NewID(at.Add(500*time.Millisecond)).String(), "Of requests that passed, only a sample is recorded", "of many denials of a client in one second, one is recorded",
		"In that second, these stand for others: "+busy.ID.String()+" (40 denied by team, user alice) "+foreign.ID.String())
	missing(engine.NewID(now).String(), "recorded some seconds later")
	missing(engine.NewID(now.AddDate(0, 0, 7)).String(), "not one that Stint has made")
	missing("b5f7a8e2-4c1d-4f6a-9b3e-2d1c0a9f8e7d", "not one that Stint has made")
	missing(engine.NewID(now.AddDate(0, -3, 0)).String(), "the oldest event in the record is of "+gone.At.Format("2006-01-02"))
	h.get("/decisions/" + strings.ToUpper(busy.ID.String()) + "%20").want(http.StatusOK)
	for _, id := range []string{"x", "0199a3c4", busy.ID.String() + "0", "%27%20OR%201=1"} {
		h.get("/decisions/" + id).want(http.StatusBadRequest).says("want the id of a decision")
	}

	h.keep(0, nil) // rolls up
	if err := h.record.Store.Drop(t.Context(), record.MonthOf(gone.At), 1); err != nil {
		t.Fatal(err)
	}
	missing(gone.ID.String(), "stint archive restore "+record.MonthOf(gone.At).String())

	// For those who are restricted to acme, the decision of globex is as one that was never made.
	token, _, err := h.tokens.CreateToken(t.Context(), "test", catalog.Token{Name: "guest", Role: catalog.Viewer, Tenants: []string{"acme"}})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(id engine.ID) string {
		return strings.ReplaceAll(string(h.ask(http.MethodGet, "/decisions/"+id.String(), nil, "", token).want(http.StatusNotFound).body), id.String(), "ID")
	}
	if there, not := ask(foreign.ID), ask(engine.NewID(foreign.At)); there != not || strings.Contains(there, "eve") || !strings.Contains(there, busy.ID.String()) {
		t.Errorf("%s\nand\n%s", there, not)
	}
}

// TestDecisionUnrecorded asks a server that records nothing.
func TestDecisionUnrecorded(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t, func(o *admin.Options) { o.Record = nil })
	h.get("/decisions/" + engine.NewID(time.Now()).String()).want(http.StatusConflict).says("not recorded")
}

// TestDecisionCustomer checks what customers are told of each outcome.
func TestDecisionCustomer(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	r := teamRule()
	r.CountBy = []rule.Dimension{"user"}
	h.do(http.MethodPost, "/rules", r).want(http.StatusCreated)
	start := h.clock.now().Add(time.Second).Truncate(time.Second).UTC()
	day := start.Format("2 January 2006 at 15:04:05 UTC")
	for _, c := range []struct {
		change func(e *record.Event)
		want   string
	}{
		{func(e *record.Event) { e.Outcome, e.Status, e.RetryAfter = engine.Allowed, 0, 0 }, "Your request GET /search on " + day + " was served: it was not limited."},
		{func(e *record.Event) { e.Outcome, e.Waited = engine.Throttled, 300*time.Millisecond }, "was served after a delay of less than a second, because"},
		{func(e *record.Event) { e.Outcome, e.Status = engine.Unauthorized, 401 }, "the credentials that came with it were not accepted."},
		{func(e *record.Event) { e.Outcome, e.Status = engine.Blocked, 403 }, "requests of this kind are not permitted."},
		{func(e *record.Event) { e.Outcome, e.Status = engine.Unavailable, 503 }, "because of a fault on our side"},
		{func(e *record.Event) { e.Outcome, e.Rule, e.Limit = engine.Banned, "", ""; e.RetryAfter = stint.Never }, "requests of your account or from your address are not accepted."},
		{func(e *record.Event) { e.Outcome = engine.Banned }, "too many requests had been over a limit before. It could have been repeated 12 seconds later, at " + start.Add(12*time.Second).Format("15:04:05 UTC on 2 January 2006") + "."},
		{func(e *record.Event) { e.Cost, e.RetryAfter = 101, stint.Never }, "asks for more at once than the limit of 100 units per minute for your account ever permits."},
		{func(e *record.Event) { e.Path, e.Endpoint = "/items/{id}", "/items/{id}" }, "Your request on " + day + " was not served, because the limit of 100 for your account had been reached."},
		{func(e *record.Event) { e.Outcome, e.Shadow = engine.Allowed, true }, "was served"},
	} {
		e := denial(start, c.change)
		h.write(e)
		if x := h.story(e.ID); !strings.Contains(x.Customer, c.want) {
			t.Errorf("%v: %s\nwant %s", e.Outcome, x.Customer, c.want)
		}
		var mine admin.MyDecision
		if h.ask(http.MethodGet, "/me/decisions/"+e.ID.String(), nil, "", h.user).want(http.StatusOK).into(&mine); !strings.Contains(mine.Customer, c.want) || mine.ID != e.ID.String() {
			t.Errorf("%+v", mine)
		}
	}
	bobs := denial(start.Add(time.Second), func(e *record.Event) { e.User = "bob" })
	h.write(bobs)
	h.ask(http.MethodGet, "/me/decisions/"+bobs.ID.String(), nil, "", h.user).want(http.StatusNotFound)
}

// TestDecisionIdentity says how clients were identified, and why their credentials were not accepted.
func TestDecisionIdentity(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	for _, c := range []struct {
		outcome                  engine.Outcome
		source, unaccepted, says string
	}{
		{engine.Denied, "key", "", "It was identified by the API key."},
		{engine.Denied, "jwt", "", "It was identified by a token."},
		{engine.Denied, "header", "", "It was identified by a header of a trusted proxy."},
		{engine.Denied, "given", "", "It was named by the program that asked."},
		{engine.Denied, "ip", "token_expired", "It was identified by its address only. Its token was not accepted: the token has expired."},
		{engine.Denied, "", "", "How it was identified is not recorded."},
		{engine.Unauthorized, "ip", "key_revoked", "Its credentials were rejected: the API key was revoked."},
		{engine.Unauthorized, "", "", "Its credentials were rejected; why is not recorded."},
	} {
		e := denial(h.clock.now(), func(e *record.Event) { e.Outcome, e.Source, e.Unaccepted = c.outcome, c.source, c.unaccepted })
		h.write(e)
		x := h.story(e.ID)
		if got := x.Steps[1]; !strings.HasSuffix(got, ". "+c.says) {
			t.Errorf("%s, %s, %s: %q, want %q", c.outcome, c.source, c.unaccepted, got, c.says)
		}
		if x.Event.Source != c.source || x.Event.Unaccepted != c.unaccepted {
			t.Errorf("%+v", x.Event)
		}
	}
}
