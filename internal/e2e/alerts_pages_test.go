package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/chromedp/chromedp/kb"

	kit "github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

// TestAlertsPage makes a webhook and an alert in the browser, has it fire because a node is missing, acknowledges and silences it, and
// looks at what was. It writes screenshots like TestDashboardPages.
func TestAlertsPage(t *testing.T) {
	t.Parallel()
	url := testpostgres.Shared(t).Database(t)
	s := startSite(t, newApp(t).address, following(t, url)...)
	var mu sync.Mutex
	var got []string
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var m struct{ Type, Subject string }
		_ = json.NewDecoder(r.Body).Decode(&m)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, m.Type+" "+m.Subject)
	}))
	t.Cleanup(receiver.Close)
	hears := func(what string) error {
		mu.Lock()
		defer mu.Unlock()
		for _, one := range got {
			if one == what {
				return nil
			}
		}
		return fmt.Errorf("the receiver got %q, not %q", got, what)
	}
	w, small := s.signIn(t, wide), s.signIn(t, narrow)
	for _, one := range []*tab{w, small} {
		one.open("/")
		one.injectAxe()
	}
	see := func(name, path string, says ...string) {
		t.Helper()
		for _, one := range []struct {
			*tab
			size [2]int64
		}{{w, wide}, {small, narrow}} {
			one.visit(path)
			one.settled("Alerts")
			for _, theme := range []string{"light", "dark"} {
				one.theme(theme)
				one.says(says...)
				one.look(name, theme)
				one.keep(fmt.Sprintf("%s-%d-%s", name, one.size[0], theme))
			}
			one.theme("light")
		}
	}
	see("alerts-empty", at("/alerts"), "No alerts yet")

	w.visit(at("/alerts", "tab", "webhooks"))
	w.settled("Alerts")
	w.click("button", "New webhook")
	w.see("dialog", "New webhook")
	w.look("webhook-new", "light")
	w.keep("webhook-new-1440-light")
	w.fill("Name", "oncall")
	w.fill("URL", receiver.URL)
	w.click("button", "Create")
	w.see("dialog", "The secret of the webhook")
	w.says("whsec_")
	w.click("button", "I have saved it")
	w.click("button", "Send a test to oncall")
	w.says("The test was delivered to oncall.")

	w.visit(at("/alerts"))
	w.settled("Alerts")
	w.click("button", "New alert")
	w.see("dialog", "New alert")
	w.fill("Name", "missing")
	w.choose("Fires when", "something is wrong with the nodes")
	for _, other := range []string{"The store is away", "A bound of regions is passed", "Another health check fails"} {
		w.click("switch", other)
	}
	w.fill("For", "soon")
	w.fill("What to do", "See whether it was stopped on purpose.")
	w.click("button", "Create")
	w.says("want") // the field says what is wrong
	w.clean(true)
	w.look("alert-new", "light")
	w.keep("alert-new-1440-light")
	w.fill("For", "1s")
	w.click("button", "Create")
	w.says("The alert was saved.")

	db, err := kit.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Write.ExecContext(t.Context(), "INSERT INTO stint_nodes (id, name, version, started_at, seen_at, revision, problem) VALUES ('gone', 'node-2', 'test', now(), now() - interval '5 minutes', 1, '')"); err != nil {
		t.Fatal(err)
	}
	w.until(func() error { return hears("alert.firing node_missing node-2") })
	w.says("node-2 has not reported since")
	see("alerts-firing", at("/alerts"), "node-2 has not reported since", "See whether it was stopped on purpose.")
	w.visit(at("/"))
	w.settled("Overview")
	w.says("1 alert fires")
	w.keep("overview-firing-1440-light")
	w.click("link", "Show what fires")
	w.settled("Alerts")
	w.click("button", "Acknowledge missing: node_missing node-2")
	w.fill("Note", "It moves to another rack.")
	w.clickIn("dialog", "Acknowledge missing: node_missing node-2", "button", "Acknowledge")
	w.says("It moves to another rack.")
	w.click("button", "Silence missing: node_missing node-2")
	w.see("dialog", "Silence alerts")
	w.look("silence", "light")
	w.fill("Reason", "Maintenance")
	w.clickIn("dialog", "Silence alerts", "button", "Silence")
	w.says("silenced", "Maintenance")
	see("alerts-silenced", at("/alerts"), "silenced", "Maintenance", "It moves to another rack.")
	w.click("button", "End the silence of missing")
	w.says("The silence has ended.")
	see("alerts-definitions", at("/alerts", "tab", "definitions"), "a node is missing")
	see("alerts-webhooks", at("/alerts", "tab", "webhooks"), "oncall")
	see("alerts-deliveries", at("/alerts", "tab", "deliveries"), "Firing", "Test")

	if _, err := db.Write.ExecContext(t.Context(), "DELETE FROM stint_nodes WHERE id = 'gone'"); err != nil {
		t.Fatal(err)
	}
	w.until(func() error { return hears("alert.resolved node_missing node-2") }) // a minute after the last message
	see("alerts-history", at("/alerts", "tab", "history"), "node-2 has not reported since", "is given up")
	w.visit(at("/alerts", "tab", "definitions"))
	w.settled("Alerts")
	w.click("button", "Edit missing")
	w.see("dialog", "Edit the alert missing")
	w.press(kb.Escape)
	w.clean(true)
}
