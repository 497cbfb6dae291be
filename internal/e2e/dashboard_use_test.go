package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp/kb"

	"github.com/stintdev/stint/internal/test/torture"
)

// TestDashboardKeyboard counts the bytes of the first page, and uses the dashboard without a mouse.
func TestDashboardKeyboard(t *testing.T) {
	t.Parallel()
	s := newSite(t, inSQLite)
	s.furnish(t)
	w := s.signIn(t, wide)
	w.open("/")
	w.settled("Overview")
	w.mu.Lock()
	received := w.received
	w.mu.Unlock()
	const most = 300 << 10
	if t.Logf("the first page takes %d bytes", received); received > most || received < 10<<10 {
		t.Errorf("the first page takes %d bytes, want at most %d", received, most)
	}

	w.press(kb.Tab)
	w.focuses("link", "Skip to the content")
	w.press(kb.Enter)
	w.focuses("main", "")

	w.press("gr")
	w.see("heading", "Rules")
	w.says("free-search")
	w.press("f")
	w.focuses("searchbox", "Search rules")
	w.press("login")
	w.says("1 rule")
	w.press(kb.Escape)
	w.says("10 rules")
	w.press(kb.Escape)
	w.focuses("nothing", "")

	w.press("?")
	w.see("dialog", "Keyboard shortcuts")
	w.focuses("button", "Close")
	w.press("g")
	w.press("o") // goes nowhere: a dialog is open
	w.press(kb.Escape)
	w.closed("Keyboard shortcuts")
	w.see("heading", "Rules")

	// Into a dialog, around in it, and back to the element that had the focus.
	w.tabTo("button", "Turn off login")
	w.press(kb.Enter)
	w.see("dialog", "Turn off login")
	first := w.focused()
	var seen []string
	for range 12 {
		w.press(kb.Tab)
		at := w.focused()
		seen = append(seen, at)
		if at == first {
			break
		}
	}
	for _, at := range seen { // the browser's own controls may come in between
		if at != "button Close" && at != "button Cancel" && at != "button Turn off" && at != "nothing" {
			t.Errorf("Tab left the dialog for %s: %q", at, seen)
		}
	}
	if text := strings.Join(seen, ","); !strings.Contains(text, "Cancel") || !strings.Contains(text, "button Turn off") {
		t.Errorf("Tab went to %q, and missed a button", seen)
	}
	w.press(kb.Escape)
	w.closed("Turn off login")
	w.focuses("button", "Turn off login")

	// A row of a table is opened with Enter.
	w.visit(at("/subjects", "q", "ali"))
	w.see("link", "alice")
	w.tabTo("row", "")
	w.press(kb.Enter)
	w.see("heading", "alice")
	w.clean(false)
}

// tabTo presses Tab until an element has the focus; an empty name is any.
func (w *tab) tabTo(role, name string) {
	w.Helper()
	var seen []string
	for range 120 {
		at := w.focused()
		if at == role+" "+name || name == "" && strings.HasPrefix(at, role+" ") {
			return
		}
		seen = append(seen, at)
		w.press(kb.Tab)
	}
	w.Fatalf("Tab does not get to %s %q, but to %q", role, name, seen)
}

// TestDashboardManyRules has more rules than can be drawn at once.
func TestDashboardManyRules(t *testing.T) {
	t.Parallel()
	s := newSite(t, inSQLite)
	n := 1000
	if torture.Enabled {
		n = 10_000
	}
	var all []map[string]any
	for i := range n {
		all = append(all, map[string]any{
			"name": fmt.Sprintf("rule-%05d", i), "match": map[string]any{"paths": []string{fmt.Sprintf("/v1/service-%d/items/{id}", i)}},
			"count_by": []string{"user"}, "limits": []any{map[string]string{"name": fmt.Sprintf("items-%d", i), "limit": "100/1m"}},
		})
	}
	s.must(t, http.MethodPost, "/apply", map[string]any{"rules": all})
	w := s.signIn(t, wide)
	w.open("/")
	w.settled("Overview")

	took := w.takes(func() { w.press("gr") }, func() error { return w.saysNow("rule-00000", "rule-00008") })
	torture.AtMost(t, "the first rows are there", took, 2*time.Second)
	if rows := eval[int](w, "document.querySelectorAll('main tr').length"); rows > 200 {
		t.Errorf("%d rows are drawn", rows)
	}
	one := fmt.Sprintf("rule-%05d", n-24)
	w.press("f")
	w.focuses("searchbox", "Search rules")
	took = w.takes(func() { w.press(one) }, func() error { return w.saysNow("1 rule\n", one) })
	torture.AtMost(t, "what was searched for is there", took, time.Second)
	w.press(kb.Escape)
	w.says("rule-00000")

	// Scroll to the last one, as fast as it loads.
	w.until(func() error {
		if err := w.saysNow(fmt.Sprintf("rule-%05d", n-1)); err == nil {
			return nil
		}
		return errors.Join(errors.New("the end is not reached"), scrollTables(w))
	})
	// The tab still responds.
	took = w.takes(func() {}, func() error {
		_, err := tryEval[any](w, "new Promise((done) => setTimeout(done))")
		return err
	})
	torture.AtMost(t, "the tab answers", took, time.Second)
	w.clean(false)
}

func scrollTables(w *tab) error {
	_, err := tryEval[any](w, "document.querySelectorAll('main table').forEach((t) => (t.parentElement.scrollTop = t.parentElement.scrollHeight))")
	return err
}

// takes returns the time from an action until check returns nil.
func (w *tab) takes(do func(), check func() error) time.Duration {
	w.Helper()
	begun := time.Now()
	do()
	w.until(check)
	return time.Since(begun)
}

// TestDashboardSignIn signs in with an invalid token, and after a session has ended.
func TestDashboardSignIn(t *testing.T) {
	t.Parallel()
	s := newSite(t, inSQLite)
	s.furnish(t)
	w := newTab(t, s.admin, wide)
	w.open(at("/rules/edit/search"))
	w.fill("Admin token", "not-the-token-of-anyone")
	w.click("button", "Sign in")
	w.says("This token is unknown or has expired.")
	w.injectAxe()
	w.clean(true)
	w.look("sign-in", "light")
	w.keep("sign-in-1440-light")
	w.fill("Admin token", adminToken)
	w.click("button", "Sign in")
	w.see("heading", "search")

	// The session ends during a change.
	w.fill("Limit 1", "77/1m")
	w.says("Not saved")
	call(w, network.ClearBrowserCookies, struct{}{})
	w.see("dialog", "Sign in again") // the page asks for the server's state every second
	w.press(kb.Escape)               // there is no way around it
	w.see("dialog", "Sign in again")
	w.keep("sign-in-again-1440-light")
	w.fill("Admin token", adminToken)
	w.clickIn("dialog", "Sign in again", "button", "Sign in")
	w.closed("Sign in again")
	if field := w.see("textbox", "Limit 1"); field.value != "77/1m" {
		t.Errorf("the field has %q, want what was typed", field.value)
	}
	w.click("button", "Save")
	w.says("The rule search was saved.")
	w.clean(true)
}

// TestDashboardServerGone kills the server of an open page, and starts it again.
func TestDashboardServerGone(t *testing.T) {
	t.Parallel()
	address, upstream := freeAddress(t), newApp(t).address
	environ := following(t, "sqlite:"+filepath.Join(t.TempDir(), "stint.db"))
	environ = append(environ, "STINT_SERVER_ADMIN_ADDRESS="+address)
	s := startSite(t, upstream, environ...)
	s.furnish(t)
	w := s.signIn(t, wide)
	w.open(at("/rules"))
	w.settled("Rules")
	w.says("10 rules", "Live")
	s.kill(t)
	w.says("Not live: trying again")
	w.fill("Search rules", "login")
	w.says("The server does not answer")
	startSite(t, upstream, environ...)
	w.until(func() error {
		if err := w.saysNow("Not live: trying again"); err == nil {
			return errors.New("the page has not noticed that the server is back")
		}
		return w.saysNow("Live")
	})
	var again []element
	w.until(func() (err error) {
		again, err = w.all("button", "Try again")
		return err
	})
	if len(again) > 0 {
		w.click("button", "Try again")
	}
	w.says("1 rule")
	w.see("link", "login")
}
