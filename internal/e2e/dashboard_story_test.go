package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp/kb"
)

// TestDashboardStory is the day of an operator: a rule is written, with a mistake, and
// enforced; a user over the limit is found, banned and unbanned; the rule is reverted.
func TestDashboardStory(t *testing.T) {
	t.Parallel()
	s := newSite(t, inPostgres)
	w := newTab(t, s.admin, wide)

	// Signing in.
	w.open("/")
	w.fill("Admin token", adminToken)
	w.press(kb.Enter)
	w.see("heading", "Overview")
	w.says("config", "admin", "Live")

	// A rule, with a mistake.
	w.click("link", "Rules")
	w.says("No rules yet")
	w.click("link", "New rule")
	w.fill("Name", "search-per-user")
	w.fill("Paths", "/search")
	w.fill("Name of limit 1", "search")
	w.fill("Limit 1", "5 per hour")
	w.until(func() error {
		field, err := w.one("textbox", "Limit 1")
		if err == nil && (field.properties["invalid"] != "true" || !strings.Contains(field.description, "want MAX/WINDOW")) {
			err = fmt.Errorf("the field is not said to be wrong: %+v", field)
		}
		return err
	})
	w.click("button", "Save") // the server has the last word
	w.see("alert", "")
	s.aliceGets(t, http.StatusOK, "/search")

	// Corrected, read and saved.
	w.fill("Limit 1", "5/1h")
	w.says("Each user may make 5 requests in any hour to /search")
	w.click("button", "Save")
	w.says("The rule search-per-user was saved.") // for some seconds
	w.says("Version 1, saved by config")

	// Enforced.
	s.aliceGets(t, http.StatusTooManyRequests, "/search")
	for range 20 {
		if got := s.send(t, "alice", "/search"); got != http.StatusTooManyRequests {
			t.Fatalf("alice gets %d, want 429", got)
		}
	}
	if got := s.send(t, "bob", "/search"); got != http.StatusOK {
		t.Fatalf("bob gets %d, want 200", got)
	}

	// Visible live.
	w.click("link", "Overview")
	w.until(func() error {
		s.send(t, "alice", "/search")
		now, err := tryEval[string](w, `[...document.querySelectorAll('dl[aria-label="Now"] > div')].map((d) => d.innerText).join(';')`)
		if err == nil && (!strings.Contains(now, "Requests") || strings.Contains(now, "Denied\n0/s") || strings.Contains(now, "Denied\n–")) {
			err = fmt.Errorf("nothing is denied now: %q", now)
		}
		return err
	})
	drawn := func() string { return eval[string](w, `document.querySelector('main canvas').toDataURL()`) }
	before := drawn()
	w.until(func() error {
		s.send(t, "alice", "/search")
		if drawn() == before {
			return errors.New("the chart stands still")
		}
		return nil
	})

	// The user over the limit.
	w.click("link", "Subjects")
	w.fill("Find a subject", "alice")
	w.clickIn("table", "Subjects", "link", "alice")
	w.until(func() error {
		bar, err := w.one("meter", "search-per-user, search")
		if err == nil && bar.value != "0" {
			err = fmt.Errorf("the bar shows %s left, want 0", bar.value)
		}
		return err
	})

	// Banned and unbanned.
	w.click("button", "Ban")
	w.see("dialog", "Ban alice")
	w.fill("Reason", "takes too much")
	w.clickIn("dialog", "Ban alice", "button", "Ban")
	w.says("alice is banned.")
	w.says("Banned until", "(in 24 h)", "takes too much")
	s.aliceGets(t, http.StatusForbidden, "/other")
	w.click("button", "Unban")
	w.click("button", "End the ban")
	w.says("The ban has ended.")
	s.aliceGets(t, http.StatusOK, "/other")

	// The decisions are recorded.
	w.click("link", "Events")
	w.choose("Outcome", "Banned")
	w.until(func() error {
		found, err := w.all("table", "Events")
		if err == nil && len(found) == 0 {
			w.click("button", "Refresh")
			err = errors.New("there are no events yet")
		}
		return err
	})
	w.says("alice")

	// The change is undone.
	w.click("link", "Change log")
	w.click("button", "Details of revision 1, search-per-user")
	w.click("button", "Undo this")
	w.says("Delete the rule search-per-user")
	w.click("button", "Undo it")
	w.says("Revision 1 was undone.")
	s.aliceGets(t, http.StatusOK, "/search")

	// Signing out ends the session, not only in the browser.
	cookies := call(w, network.GetCookies, network.GetCookiesParams{URLs: []string{s.admin}}).Cookies
	if len(cookies) != 1 || !cookies[0].HTTPOnly || cookies[0].SameSite != network.CookieSameSiteStrict {
		t.Errorf("the cookies are %+v, want one that is HttpOnly and SameSite=Strict", cookies)
	}
	if got := withCookie(t, s, cookies[0]); got != http.StatusOK {
		t.Fatalf("the session gets %d, want 200", got)
	}
	w.click("button", "Sign out")
	w.see("heading", "Sign in to Stint")
	if got := withCookie(t, s, cookies[0]); got != http.StatusUnauthorized {
		t.Errorf("the session that has ended gets %d, want 401", got)
	}
	w.clean(true)
}

// withCookie requests the rules with a cookie of a browser.
func withCookie(t testing.TB, s *site, c *network.Cookie) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.admin+"/admin/v1/rules", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.AddCookie(&http.Cookie{Name: c.Name, Value: c.Value})
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	if _, err := io.Copy(io.Discard, w.Body); err != nil {
		t.Fatal(err)
	}
	return w.StatusCode
}
