package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp/kb"

	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/torture"
)

// pages are all pages of the dashboard, in the states that matter.
var pages = []struct{ name, path, title string }{
	{"events", at("/events"), "Events"},
	{"events-live", at("/events", "follow", "true"), "Events"},
	{"usage", at("/usage"), "Usage"},
	{"nodes", at("/nodes"), "Nodes"},
	{"envoy", at("/envoy"), "Envoy"},
	{"rules", at("/rules"), "Rules"},
	{"rule-new", at("/rules/new"), "New rule"},
	{"rule", at("/rules/edit/search"), "search"},
	{"rule-tried", at("/rules/edit/items"), "items"},
	{"rule-leased", at("/rules/edit/leased"), "leased"},
	{"rule-rollout", at("/rules/edit/items-by-address"), "items-by-address"},
	{"tiers", at("/tiers"), "Tiers"},
	{"subjects", at("/subjects", "q", "a"), "Subjects"},
	{"users", at("/subjects", "tab", "users"), "Subjects"},
	{"subject", at("/subjects/user/alice"), "alice"},
	{"subject-banned", at("/subjects/user/mallory"), "mallory"},
	{"keys", at("/keys"), "API keys"},
	{"access", at("/access"), "Exemptions and bans"},
	{"try", at("/try", "method", "GET", "path", "/v1/search/books", "user", "alice"), "Try it"},
	{"what-if-search", at("/what-if", "rule", "search"), "What if"},
	{"changes", at("/changes"), "Change log"},
	{"tokens", at("/tokens"), "Admin tokens"},
	{"settings", at("/settings"), "Settings"},
	{"overview", at("/"), "Overview"},
	{"overview-hour", at("/", "range", "1h"), "Overview"},
	{"nowhere", at("/nowhere"), "Page not found"},
}

// dialogs are the dialogs of pages: the button that opens each, and its title. Some buttons are only in wide windows.
var dialogs = []struct {
	name, path, title, button, dialog string
	wide                              bool
}{
	{"shortcuts", at("/rules"), "Rules", "Keyboard shortcuts", "Keyboard shortcuts", false},
	{"turn-off", at("/rules"), "Rules", "Turn off login", "Turn off login", true},
	{"delete-rule", at("/rules/edit/search"), "search", "Delete", "Delete the rule search", false},
	{"enforce", at("/rules/edit/uploads-trial"), "uploads-trial", "Enforce", "Enforce uploads-trial", false},
	{"promote", at("/rules/edit/items"), "items", "Promote", "Promote what is tried out for items", false},
	{"ban", at("/subjects/user/bob"), "bob", "Ban", "Ban bob", false},
	{"exempt", at("/subjects/user/bob"), "bob", "Exempt", "Exempt bob", false},
	{"reset", at("/subjects/user/bob"), "bob", "Reset counters", "Reset all counters", false},
	{"edit-user", at("/subjects/user/bob"), "bob", "Edit", "Edit the user bob", false},
	{"raise", at("/subjects/user/bob"), "bob", "Raise per-user, hourly", "Override a limit of bob", false},
	{"delete-user", at("/subjects", "tab", "users"), "Subjects", "Delete bob", "Delete the user bob", false},
	{"new-tenant", at("/subjects", "tab", "tenants"), "Subjects", "New tenant", "New tenant", false},
	{"new-key", at("/keys"), "API keys", "New key", "New API key", false},
	{"edit-key", at("/keys"), "API keys", "Edit mobile app", "Edit the API key mobile app", false},
	{"revoke-key", at("/keys"), "API keys", "Revoke mobile app", "Revoke the key mobile app", false},
	{"new-tier", at("/tiers"), "Tiers", "New tier", "New tier", false},
	{"edit-tier", at("/tiers"), "Tiers", "Edit pro", "Edit the tier pro", false},
	{"delete-tier", at("/tiers"), "Tiers", "Delete pro", "Delete the tier pro", false},
	{"new-ban", at("/access"), "Exemptions and bans", "New ban", "New ban", false},
	{"end-ban", at("/access"), "Exemptions and bans", "End the ban of user:mallory", "End the ban of user:mallory", false},
	{"new-exemption", at("/access", "tab", "exemptions"), "Exemptions and bans", "New exemption", "New exemption", false},
	{"new-token", at("/tokens"), "Admin tokens", "New token", "New token", false},
	{"revoke-token", at("/tokens"), "Admin tokens", "Revoke deploy", "Revoke the token deploy", false},
	{"change", at("/changes", "kind", "rule", "id", "search"), "Change log", "Details of revision 10, search", "Revision 10", false},
}

// TestDashboardPages checks every page, on a desktop in light and on a phone in dark: it has
// no errors, does not overflow, loads nothing from elsewhere, and is accessible.
//
// It writes screenshots to STINT_SCREENSHOTS, if that is set. If STINT_DOC_SCREENSHOTS is, it only writes the pictures of the
// documents there: make screenshots does that.
func TestDashboardPages(t *testing.T) {
	t.Parallel()
	s := newSite(t, inPostgres, append(envoyToo(t), counting(apart(testredis.Shared(t).URL()))...)...)
	s.furnish(t)
	if os.Getenv("STINT_DOC_SCREENSHOTS") == "" {
		type table = map[string]any
		items := table{"paths": []string{"/v1/items"}}
		s.must(t, http.MethodPost, "/rules", table{"name": "items", "match": items, "count_by": []string{"user"}, "limits": []table{{"name": "items", "limit": "2000/1m", "candidate": "20/1m"}}})
		s.must(t, http.MethodPost, "/rules", table{
			"name": "leased", "count_by": []string{"global"}, "limits": []table{{"name": "total", "limit": "2000000/1000h fixed_window", "lease": "1s", "split": 4}},
		})
		s.must(t, http.MethodPost, "/rules", table{
			"name": "items-by-address", "match": items, "count_by": []string{"ip"}, "limits": []table{{"name": "items-by-address", "limit": "5000/1m"}},
			"rollout": table{"steps": []string{"1%", "10%", "100%"}, "every": "1h", "back_if": "denied > 2%"},
		})
	}
	s.traffic(t)
	for name, size := range map[string][2]int64{"wide": wide, "narrow": narrow} {
		t.Run(name, func(t *testing.T) { // one after the other, for as long as there is traffic
			w := s.signIn(t, size)
			w.open("/")
			if to := os.Getenv("STINT_DOC_SCREENSHOTS"); to != "" {
				w.illustrate(to, size)
				return
			}
			w.injectAxe()
			see := func(name string) {
				t.Helper()
				w.looks(name, size)
			}
			for _, p := range pages {
				w.visit(p.path)
				w.settled(p.title)
				see(p.name)
			}
			on := ""
			for _, d := range dialogs {
				if d.wide && size == narrow {
					continue
				}
				if d.path != on {
					on = d.path
					w.visit(on)
					w.settled(d.title)
				}
				if d.name == "shortcuts" && size == narrow {
					w.click("button", "Menu")
					w.see("dialog", "Menu")
					see("menu")
				}
				if d.name == "enforce" { // what is above the button is checked when typing pauses
					w.says("Log only: no request is denied", "It would have denied")
				}
				w.click("button", d.button)
				w.see("dialog", d.dialog)
				see(d.name)
				if d.name == "change" {
					w.click("button", "Undo this")
					w.see("dialog", "Undo revision 10")
					w.says("This will change.")
					see("undo")
					d.dialog = "Undo revision 10"
				}
				w.press(kb.Escape)
				w.closed(d.dialog)
			}
			s.otherDialogs(t, w, see)
		})
	}
}

// otherDialogs opens what more than a click opens: a decision, a secret, a conflict of two people, and what the search has found.
func (s *site) otherDialogs(t *testing.T, w *tab, see func(name string)) {
	t.Helper()
	w.visit(at("/events", "outcome", "denied"))
	w.settled("Events")
	eval[any](w, `document.querySelector('main button[aria-label^="Details of the decision"]').click()`)
	w.see("dialog", "Decision")
	see("event")
	w.press(kb.Escape)

	w.visit(at("/tokens"))
	w.settled("Admin tokens")
	w.click("button", "New token")
	w.fill("Name", fmt.Sprintf("token of %s", t.Name()[len(t.Name())-6:]))
	w.click("button", "Create the token")
	w.see("dialog", "The new token")
	see("secret")
	w.click("button", "I have saved it")

	w.visit(at("/rules/edit/login"))
	w.settled("login")
	w.fill("Paths", "/sign-in")
	s.must(t, http.MethodPatch, "/rules/login", map[string]any{"response": map[string]any{"message": fmt.Sprintf("Wait a minute, and try again. (%d)", eval[int64](w, "innerWidth"))}}, "If-Match", "*")
	w.click("button", "Save")
	w.see("dialog", "Someone else has changed this rule")
	w.clean(true) // the server has refused it
	see("conflict")
	w.click("button", "Keep editing")
	w.click("button", "Discard changes")

	w.press("/")
	w.focuses("combobox", "Find anything")
	w.press("bob")
	w.see("option", "Ban the user bob for 1 day")
	eval[any](w, "void (window.looked = false)") // it is in the frame
	see("found")
	w.press(kb.Escape)
}

// illustrate takes the screenshots of the documents.
func (w *tab) illustrate(dir string, size [2]int64) {
	w.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.Fatal(err)
	}
	paths, titles := map[string]string{}, map[string]string{}
	for _, p := range pages {
		paths[p.name], titles[p.name] = p.path, p.title
	}
	shots := []struct{ page, theme, says string }{
		{"rule", "light", "the rule would have denied"},
		{"subject", "light", "GET /v1/search/{index}"},
		{"events", "light", "Denied"},
		{"try", "light", "Step by step"},
		{"changes", "light", "Rule search"},
		{"overview", "dark", "per-user"},
		{"overview", "light", "per-user"},
	}
	if size == narrow {
		shots = shots[len(shots)-1:]
	}
	begun := time.Now()
	for _, shot := range shots {
		name := "dashboard-" + shot.page
		if shot.theme == "dark" {
			name += "-dark"
		}
		if size == narrow {
			name += "-narrow"
		}
		w.theme(shot.theme)
		w.visit(paths[shot.page])
		w.until(func() error { // what is added up by the minute takes one, and charts take some
			if has := time.Since(begun); shot.page == "overview" && has < 2*time.Minute {
				return fmt.Errorf("the chart has only %v", has)
			}
			return w.saysNow(shot.says)
		})
		w.settled(titles[shot.page])
		w.picture(filepath.Join(dir, name+".webp"))
	}
	if size == wide {
		w.theme("light")
		w.visit(at("/rules/edit/uploads-trial"))
		w.says("It would have denied", "dave", "the rule would have denied")
		w.settled("uploads-trial")
		w.picture(filepath.Join(dir, "dashboard-shadow.webp"))
		w.visit(at("/what-if", "rule", "per-user", "range", "15m"))
		w.settled("What if")
		w.fill("Rules and tiers in TOML", strings.ReplaceAll(eval[string](w, `document.querySelector('main textarea').value`), "20/1s burst=40", "10/1s burst=20"))
		w.click("button", "Run")
		w.says("It newly denies", "Over time")
		w.settled("What if")
		w.picture(filepath.Join(dir, "dashboard-what-if.webp"))
		w.visit(at("/"))
		w.settled("Overview")
		w.press("/")
		w.focuses("combobox", "Find anything")
		w.press("bob")
		w.see("option", "Ban the user bob for 1 day")
		w.picture(filepath.Join(dir, "dashboard-find.webp"))
	}
}

func (w *tab) picture(file string) {
	w.Helper()
	taken := call(w, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatWebp, Quality: new(int64(90))})
	if err := os.WriteFile(file, taken.Data, 0o644); err != nil {
		w.Fatal(err)
	}
}

// TestDashboardFile checks the pages of a stint with rules in a file and no record: they
// say what is not available.
func TestDashboardFile(t *testing.T) {
	t.Parallel()
	s := &site{server: serve(t, limited("1000/1h", newApp(t).address), "STINT_SERVER_ADMIN_ADDRESS=127.0.0.1:0", "STINT_SERVER_ADMIN_TOKEN="+adminToken)}
	s.findAdmin(t)
	w := s.signIn(t, narrow)
	w.open("/")
	w.injectAxe()
	for _, p := range []struct{ path, title, says string }{
		{at("/"), "Overview", "per second, at"},
		{at("/", "range", "24h"), "Overview", "No record for this time"},
		{at("/rules"), "Rules", "stint.toml"},
		{at("/rules/edit/per-address"), "per-address", "stint.toml"},
		{at("/events"), "Events", "There is no record"},
		{at("/usage"), "Usage", "There is no record"},
		{at("/what-if"), "What if", "There is no record"},
		{at("/changes"), "Change log", "There is no change log"},
		{at("/tiers"), "Tiers", "stint.toml"},
		{at("/keys"), "API keys", "stint.toml"},
		{at("/access"), "Exemptions and bans", "stint.toml"},
		{at("/subjects", "tab", "users"), "Subjects", "stint.toml"},
		{at("/subjects/ip/192.0.2.1"), "192.0.2.1", "per-address"},
		{at("/nodes"), "Nodes", ""},
		{at("/try", "path", "/", "ip", "192.0.2.1"), "Try it", "It would pass"},
		{at("/tokens"), "Admin tokens", ""},
		{at("/settings"), "Settings", "server.counters"},
	} {
		w.visit(p.path)
		w.settled(p.title)
		w.says(p.says)
		if w.clean(false); strings.HasPrefix(p.says, "There is no") { // others look as with a database
			w.looks("in a file, "+p.path, narrow)
		}
	}
}

// envoyToo makes a stint serve Envoy as well.
func envoyToo(t testing.TB) []string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(`domain: shop
descriptors:
  - key: path
    value: /checkout
    rate_limit: { unit: second, requests_per_unit: 50 }
  - key: remote_address
    rate_limit: { unit: minute, requests_per_unit: 300 }
    descriptors:
      - key: method
        value: POST
        rate_limit: { unit: minute, requests_per_unit: 30 }
`), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"STINT_ENVOY_CONFIG=" + dir, "STINT_SERVER_GRPC_ADDRESS=127.0.0.1:0"}
}

// injectAxe loads axe-core into the page.
func (w *tab) injectAxe() {
	w.Helper()
	text, err := os.ReadFile("../../web/node_modules/axe-core/axe.min.js")
	if err != nil {
		w.Fatalf("axe-core is not installed: make web installs it: %v", err)
	}
	eval[any](w, "void (() => {"+string(text)+"\n})()")
}

// themes are those in which pages are looked at in windows of a size: light on a desktop, and dark on a phone, and under make
// torture the other one, too.
func themes(size [2]int64) []string {
	all := []string{"light", "dark"}
	if size == narrow {
		slices.Reverse(all)
	}
	if torture.Enabled {
		return all
	}
	return all[:1]
}

// looks waits until the page says something, in a window of a size, and looks at it.
func (w *tab) looks(name string, size [2]int64, says ...string) {
	w.Helper()
	w.resize(size)
	for _, theme := range themes(size) {
		w.theme(theme)
		w.says(says...)
		w.drawn()
		w.look(name, theme)
		w.keep(fmt.Sprintf("%s-%d-%s", name, size[0], theme))
	}
}

// look checks what must be true of every page.
func (w *tab) look(name, theme string) {
	w.Helper()
	w.clean(false)
	size := wide
	if eval[int64](w, "innerWidth") == narrow[0] {
		size = narrow
	}
	first := theme == themes(size)[0]
	fits := func() {
		w.Helper()
		if over := eval[string](w, sticksOut); over != "" {
			w.Errorf("%s, %s: wider than the window: %s", name, theme, over)
		}
	}
	if fits(); first && size == narrow { // there are narrower phones
		w.resize([2]int64{360, narrow[1]})
		w.drawn() // charts follow
		fits()
		w.resize(narrow)
		w.drawn()
	}
	if cut := eval[string](w, cutOff); cut != "" {
		w.Errorf("%s, %s: text is cut off: %s", name, theme, cut)
	}
	rules := `{ type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }`
	if !first { // only colours are others
		rules = `{ type: 'rule', values: ['color-contrast'] }`
	}
	if found := eval[[]string](w, fmt.Sprintf(askAxe, rules)); len(found) > 0 {
		w.Errorf("%s, %s: %s", name, theme, strings.Join(found, "\n"))
	}
}

// askAxe returns serious problems. The frame of all pages is checked with the first one. A
// small element that is half covered by a bar seems too close to the next one: it is
// checked again where nothing covers it.
const askAxe = `(async () => {
	const on = document.querySelector('dialog[open]') ?? (window.looked ? document.querySelector('main') : document)
	window.looked = true
	const run = async (runOnly) => (await axe.run(on, { resultTypes: ['violations'], preload: false, runOnly })).violations
	const found = await run(%s)
	for (const v of found.filter((v) => v.id === 'target-size')) {
		document.querySelector(v.nodes[0].target[0]).scrollIntoView({ block: 'center' })
		const again = (await run({ type: 'rule', values: [v.id] })).flatMap((a) => a.nodes.map((n) => String(n.target)))
		v.nodes = v.nodes.filter((n) => again.includes(String(n.target)))
		scrollTo(0, 0)
	}
	return found.filter((v) => v.nodes.length > 0).map((v) => v.id + ': ' + v.help + ': ' + v.nodes.slice(0, 4)
		.map((n) => n.html.slice(0, 160) + ' ' + n.any.map((a) => a.message).join(', ')).join(' | '))
})()`

// sticksOut returns the elements that are wider than the window, if the page can be
// scrolled to them.
const sticksOut = `(() => {
	const page = document.scrollingElement
	if (page.scrollWidth <= innerWidth) return ''
	const out = [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5)
	return page.scrollWidth + ' px: ' + out.slice(0, 3).map((e) => e.outerHTML.slice(0, 160)).join(' | ')
})()`

// cutOff returns texts that have no room, and that are nowhere else in full: neither in a title, nor by scrolling. A dialog is
// in the middle of the window.
const cutOff = `(() => {
	const dialog = document.querySelector('dialog[open]'), on = dialog ?? document.body
	const r = dialog?.getBoundingClientRect()
	if (r && Math.abs(r.top - (innerHeight - r.bottom)) > 2) return 'the dialog is at ' + r.top
	const out = [...on.querySelectorAll('*')].filter((e) => {
		if (e.scrollWidth <= e.clientWidth + 1 || e.clientWidth < 2 || !e.innerText?.trim() || e.closest('[title]') || e.querySelector('[title]')) return false
		return ['hidden', 'clip'].includes(getComputedStyle(e).overflowX) && !['INPUT', 'SELECT', 'HTML', 'BODY'].includes(e.tagName)
	})
	return out.slice(0, 3).map((e) => e.outerHTML.slice(0, 200)).join(' | ')
})()`
