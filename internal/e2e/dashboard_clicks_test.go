package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/stintdev/stint/internal/test/wait"
)

// TestDashboardClicks does what operators do most, and counts the clicks that it takes: those of the mouse, and keys that open or
// choose something. What is typed does not count.
func TestDashboardClicks(t *testing.T) {
	t.Parallel()
	s := newSite(t, inSQLite)
	s.furnish(t)
	w := s.signIn(t, wide)
	w.open("/")
	w.settled("Overview")
	within := func(most int, what string, do func()) {
		t.Helper()
		w.clicks = 0
		do()
		if t.Logf("%s: %d clicks", what, w.clicks); w.clicks > most || w.clicks == 0 {
			t.Errorf("%s takes %d clicks, want at most %d", what, w.clicks, most)
		}
	}
	denied := func(user, path string) {
		t.Helper()
		wait.Nil(t, "a denial", func() error {
			if got := s.send(t, user, path); got != http.StatusTooManyRequests {
				return fmt.Errorf("%s gets %d for %s, want 429", user, got, path)
			}
			return nil
		})
	}

	// Why was someone denied? From anywhere, with keys and with the mouse, in a wide window and a narrow one.
	denied("bob", "/v1/search/books")
	denied("zoe", "/v1/search/music") // who is in no list
	for _, from := range []string{at("/"), at("/rules/new"), at("/events", "follow", "true"), at("/subjects/user/alice"), at("/nowhere")} {
		w.visit(from)
		w.see("combobox", "Find anything")
		within(2, "why bob was denied, from "+from, func() {
			w.key("/")
			w.press("bob")
			w.says("of the user bob for 1 day")
			w.key(kb.Enter)
			w.says("Last denied", "A request to GET /v1/search/{index} was over a limit of the rule search: search lets pass 40, and 40 were used.")
		})
	}
	w.resize(narrow)
	w.visit(at("/tiers"))
	w.see("heading", "Tiers")
	within(2, "why zoe was denied", func() {
		w.click("combobox", "Find anything")
		w.press("zoe")
		w.clickOn(func() (element, error) { return w.oneLike("option", "zoe") })
		w.says("Last denied", "GET /v1/search/{index} was over a limit of the rule search")
	})
	w.resize(wide)

	// A higher limit for a day: from anywhere, and from the page of who needs it.
	w.visit(at("/settings"))
	w.see("heading", "Settings")
	within(3, "raising a limit of bob for a day", func() {
		w.key("/")
		w.press("bob")
		w.click("option", "Raise a limit of the user bob for 1 day")
		w.see("dialog", "Override a limit of bob")
		w.focuses("textbox", "Value")
		w.key(kb.Enter)
		w.says("search of bob is 80/1m now.", "80/1m until", "(in 24 h)")
	})
	wait.Nil(t, "a higher limit for bob", func() error {
		if got := s.send(t, "bob", "/v1/search/books"); got != http.StatusOK {
			return fmt.Errorf("bob gets %d with a higher limit, want 200", got)
		}
		return nil
	})
	w.visit(at("/subjects/user/zoe"))
	w.see("heading", "zoe")
	within(2, "raising the limit that zoe was denied by", func() {
		w.click("button", "Raise the limit")
		w.see("dialog", "Override a limit of zoe")
		w.press(kb.Tab) // is not needed
		w.click("button", "Save")
		w.says("search of zoe is 80/1m now.")
	})

	// An address is banned, and that is taken back.
	outcome := func(want string) {
		t.Helper()
		wait.Nil(t, "the outcome", func() error {
			var got struct{ Outcome string }
			err := post(http.DefaultClient, s.api+"/v1/check", `{"path": "/", "ip": "198.51.100.77"}`, &got)
			if err == nil && got.Outcome != want {
				err = fmt.Errorf("the outcome is %s, want %s", got.Outcome, want)
			}
			return err
		})
	}
	outcome("allowed")
	within(2, "banning an address", func() {
		w.key("/")
		w.press("ban 198.51.100.77")
		w.says("Ban the address 198.51.100.77 for 1 day")
		w.key(kb.Enter)
		w.says("198.51.100.77 is banned for 1 day.")
	})
	outcome("banned")
	w.click("button", "Undo")
	w.says("198.51.100.77 is no longer banned.")
	outcome("allowed")
	within(2, "banning an address with the mouse", func() {
		w.click("combobox", "Find anything")
		w.press("198.51.100.77")
		w.click("option", "Ban the address 198.51.100.77 for 1 day")
		w.says("198.51.100.77 is banned for 1 day.")
	})
	outcome("banned")
	w.key("/")
	w.press("ban 198.51.100.77")
	w.says("Ban the address 198.51.100.77")
	w.press(kb.Enter)
	w.says("198.51.100.77 is banned already, until")

	// A rule is tried in shadow, seen to work, and enforced.
	w.visit(at("/nodes"))
	w.see("heading", "Nodes")
	within(6, "a rule in shadow, seen and enforced", func() {
		w.click("link", "Rules")
		w.click("link", "New rule")
		w.fill("Name", "trial")
		w.fill("Paths", "/trial")
		w.fill("Name of limit 1", "trial")
		w.fill("Limit 1", "2/1h")
		w.click("switch", "Shadow")
		w.click("button", "Save")
		w.says("The rule trial was saved.", "In shadow")
		for _, size := range [][2]int64{wide, narrow} {
			w.resize(size)
			w.drawn()
			if over := eval[string](w, coversSave); over != "" {
				t.Errorf("%d px: %s", size[0], over)
			}
		}
		w.resize(wide)
		looks := 0
		w.until(func() error {
			if looks++; looks%10 == 1 { // other rules limit carol, too
				if got := s.send(t, "carol", "/trial"); got != http.StatusOK {
					t.Fatalf("carol gets %d in shadow, want 200", got)
				}
			}
			return w.saysNow("Log only: no request is denied", "It would have denied", "Most often of", "carol")
		})
		w.click("button", "Enforce")
		w.see("dialog", "Enforce trial")
		w.says("of 1 client.")
		w.clickIn("dialog", "Enforce trial", "button", "Enforce")
		w.says("The rule trial is enforced.")
	})
	denied("carol", "/trial")
	w.says("Reject")
	w.clean(false)
}

// coversSave tells whether a note covers the button that saves.
const coversSave = `(() => {
	const save = [...document.querySelectorAll('main button')].find((b) => b.innerText === 'Save').getBoundingClientRect()
	const notes = [...document.querySelectorAll('[aria-label="Notes"] > *')].map((n) => n.getBoundingClientRect())
	if (!notes.length) return 'there is no note'
	const over = notes.find((n) => n.left < save.right && save.left < n.right && n.top < save.bottom && save.top < n.bottom)
	return over ? 'a note covers the button: ' + JSON.stringify([over, save]) : ''
})()`

// oneLike returns the only element with a role whose name contains a text.
func (w *tab) oneLike(role, text string) (element, error) {
	found, err := w.all(role)
	var like []element
	for _, e := range found {
		if strings.Contains(e.name, text) {
			like = append(like, e)
		}
	}
	if err == nil && len(like) != 1 {
		err = fmt.Errorf("there are %d of %s with %q", len(like), role, text)
	}
	return append(like, element{})[0], err
}
