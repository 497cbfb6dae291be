package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// TestWhatIfPage goes all the way of the page What if, on traffic that a server has recorded: from an empty record, over a candidate with a
// mistake, to what it newly denies; and from the unsaved changes of a rule, and back to its editor. It looks at each state in both sizes
// and themes, and writes screenshots like TestDashboardPages.
func TestWhatIfPage(t *testing.T) {
	t.Parallel()
	s := newSite(t, inSQLite, "STINT_SERVER_RECORD_SAMPLE_EVERY=1")
	w := s.signIn(t, wide)
	w.open("/")
	w.injectAxe()
	see := func(name string, says ...string) {
		t.Helper()
		for _, size := range [][2]int64{wide, narrow} {
			w.looks(name, size, says...)
		}
		w.resize(wide)
		w.theme("light")
	}
	const editor = "Rules and tiers in TOML"
	holds := func(texts ...string) {
		t.Helper()
		w.until(func() error {
			has, err := tryEval[string](w, `document.querySelector('main textarea')?.value ?? ''`)
			for _, text := range texts {
				if err == nil && !strings.Contains(has, text) {
					err = fmt.Errorf("the text is %q, want %q in it", has, text)
				}
			}
			return err
		})
	}

	// Nothing is recorded.
	w.press("gh")
	w.settled("What if")
	w.click("button", "Run")
	see("what-if-empty", "Nothing to replay", "No requests were recorded in this time.")

	search := func(limit string) string {
		return fmt.Sprintf("[[rules]]\nname = \"search\"\nmatch = { paths = [\"/search\"] }\ncount_by = [\"user\"]\nlimits = [{ name = \"search\", limit = %q }]\n", limit)
	}
	type table = map[string]any
	s.must(t, http.MethodPost, "/rules", table{
		"name": "search", "match": table{"paths": []string{"/search"}}, "count_by": []string{"user"}, "limits": []table{{"name": "search", "limit": "100/1h sliding_log"}},
	})
	s.must(t, http.MethodPost, "/rules", table{"name": "login", "match": table{"paths": []string{"/login"}}, "count_by": []string{"ip"}, "limits": []table{{"name": "login", "limit": "10/1m"}}})
	for i := range 11 {
		s.send(t, []string{"alice", "alice", "alice", "bob"}[i%4], "/search") // alice 9 times, bob twice
	}

	// The live rules as they are: nothing changes.
	w.visit(at("/rules"))
	w.settled("Rules")
	w.click("link", "What if")
	w.settled("What if")
	holds(search("100/1h sliding_log"), `name = "login"`)
	see("what-if", "What would other rules have decided?", "Live rules that are not in the text are left out.")
	w.until(func() error { // events are written every second
		if err := w.saysNow("Of 11 requests", "The candidate is equal to the live rules"); err != nil {
			w.click("button", "Run")
			w.settled("What if")
			return err
		}
		return nil
	})

	// A mistake: the place of it.
	w.fill(editor, search("lots"))
	w.click("button", "Run")
	w.says("Line 5, column 38", "want MAX/WINDOW")
	w.focuses("textbox", editor)
	if selected := eval[string](w, `(() => { const t = document.activeElement; return t.value.slice(t.selectionStart, t.selectionEnd) })()`); selected != `"lots" }]` {
		t.Errorf("%q is selected", selected)
	}
	w.clean(true) // the server has refused it
	see("what-if-mistake", "Line 5, column 38", "earlier candidate")
	w.press(kb.Tab) // out of the text
	w.focuses("button", "Line 5, column 38")

	// A lower limit: whom it denies, and how often.
	w.fill(editor, search("5/1h sliding_log"))
	w.click("button", "Run")
	w.says("Of 11 requests, the live rules deny 0 (0 %), and the candidate 4 (36 %). It newly denies 4 and newly passes 0.", "Over time", "stint apply -f candidate.toml")
	w.click("tab", "Subjects")
	w.see("link", "user:alice")
	w.see("link", "user:bob")
	see("what-if-result", "Newly denied", "What cannot be known")
	w.click("tab", "Rules")
	w.clickIn("table", "Differences by rule", "link", "search")
	w.settled("search")

	// The unsaved changes of a rule are the candidate, and are still there in its editor.
	w.fill("Limit 1", "1/1h sliding_log")
	w.says("Not saved")
	w.click("link", "What if this rule were in force")
	w.settled("What if")
	holds(`limit = "1/1h sliding_log"`)
	if text := eval[string](w, `document.querySelector('main textarea').value`); strings.Contains(text, "login") {
		t.Errorf("the text has other rules: %q", text)
	}
	w.says("with your unsaved changes", "stay as they are")
	w.click("button", "Run")
	w.says("It newly denies 9 and newly passes 0.", "Denied, live and by the candidate")
	see("what-if-rule", "the editor of search")
	w.click("link", "the editor of search")
	w.says("These are your unsaved changes")
	s.send(t, "alice", "/search")
	if got := s.send(t, "alice", "/search"); got != http.StatusOK {
		t.Errorf("alice gets %d: something was changed", got)
	}

	// What is edited is there after Back, and a time without requests says so.
	w.visit(at("/what-if", "from", "2026-01-01T00:00:00Z", "to", "2026-01-01T01:00:00Z"))
	w.settled("What if")
	holds(search("100/1h sliding_log"))
	w.fill(editor, search("7/1h sliding_log"))
	w.visit(at("/events"))
	w.settled("Events")
	eval[any](w, "history.back()")
	w.settled("What if")
	holds("7/1h")
	w.click("button", "Run")
	w.says("Nothing to replay")
	w.choose("Start from", "The rule login")
	holds(`name = "login"`, `limit = "10/1m"`)
	w.click("button", "Undo")
	holds("7/1h")
	w.click("button", "Start over")
	holds("100/1h")

	// A server that is away: the text stays.
	w.fill(editor, search("6/1h sliding_log"))
	s.kill(t)
	w.click("button", "Run")
	w.says("The server does not answer.")
	holds("6/1h")
}
