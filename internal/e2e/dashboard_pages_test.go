package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp/kb"
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
	{"tiers", at("/tiers"), "Tiers"},
	{"subjects", at("/subjects", "q", "a"), "Subjects"},
	{"users", at("/subjects", "tab", "users"), "Subjects"},
	{"subject", at("/subjects/user/alice"), "alice"},
	{"subject-banned", at("/subjects/user/mallory"), "mallory"},
	{"keys", at("/keys"), "API keys"},
	{"access", at("/access"), "Exemptions and bans"},
	{"try", at("/try", "method", "GET", "path", "/v1/search/books", "user", "alice"), "Try it"},
	{"changes", at("/changes"), "Change log"},
	{"tokens", at("/tokens"), "Admin tokens"},
	{"settings", at("/settings"), "Settings"},
	{"overview", at("/"), "Overview"},
	{"overview-hour", at("/", "range", "1h"), "Overview"},
	{"nowhere", at("/nowhere"), "Page not found"},
}

// dialogs are the dialogs of pages: the button that opens each, and its title.
var dialogs = []struct{ name, path, title, button, dialog string }{
	{"shortcuts", at("/rules"), "Rules", "Keyboard shortcuts", "Keyboard shortcuts"},
	{"ban", at("/subjects/user/bob"), "bob", "Ban", "Ban bob"},
	{"override", at("/subjects/user/bob"), "bob", "Override a limit", "Override a limit of bob"},
	{"new-key", at("/keys"), "API keys", "New key", "New API key"},
	{"edit-tier", at("/tiers"), "Tiers", "New tier", "New tier"},
	{"change", at("/changes", "kind", "rule", "id", "search"), "Change log", "Details of revision 10, search", "Revision 10"},
}

// TestDashboardPages checks every page, on a desktop and a phone, in light and dark: it has
// no errors, does not overflow, loads nothing from elsewhere, and is accessible.
//
// It writes screenshots to STINT_SCREENSHOTS, and the pictures of the documents to
// STINT_DOC_SCREENSHOTS, if these are set.
func TestDashboardPages(t *testing.T) {
	t.Parallel()
	s := newSite(t, inPostgres, envoyToo(t)...)
	s.furnish(t)
	s.traffic(t)
	t.Run("sizes", func(t *testing.T) {
		for name, size := range map[string][2]int64{"wide": wide, "narrow": narrow} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := s.signIn(t, size)
				w.open("/")
				w.injectAxe()
				see := func(page, theme string) {
					w.look(page, theme)
					w.keep(fmt.Sprintf("%s-%d-%s", page, size[0], theme))
				}
				themes := []string{"light", "dark"}
				if size == narrow { // colours are the same in every window
					themes = themes[:1]
				}
				for _, p := range pages {
					w.visit(p.path)
					for _, theme := range themes {
						w.theme(theme)
						w.settled(p.title)
						see(p.name, theme)
					}
				}
				w.theme("light")
				for _, d := range dialogs {
					w.visit(d.path)
					w.settled(d.title)
					if d.name == "shortcuts" && size == narrow {
						w.click("button", "Menu")
						w.see("dialog", "Menu")
						see("menu", "light")
					}
					w.click("button", d.button)
					w.see("dialog", d.dialog)
					see(d.name, "light")
					w.press(kb.Escape)
					w.closed(d.dialog)
				}
				if to := os.Getenv("STINT_DOC_SCREENSHOTS"); to != "" {
					w.illustrate(to, size)
				}
			})
		}
	})
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
		{"overview", "light", "per-user"},
		{"overview", "dark", "per-user"},
		{"rule", "light", "and would have"},
		{"subject", "light", "GET /v1/search/{index}"},
		{"events", "light", "Denied"},
		{"try", "light", "Step by step"},
		{"changes", "light", "Rule search"},
	}
	if size == narrow {
		shots = shots[:1]
	}
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
		w.until(3*time.Minute, func() error { return w.saysNow(shot.says) }) // what is added up by the minute takes one
		w.settled(titles[shot.page])
		picture := call(w, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatWebp, Quality: new(int64(90))})
		if err := os.WriteFile(filepath.Join(dir, name+".webp"), picture.Data, 0o644); err != nil {
			w.Fatal(err)
		}
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
		w.look("in a file, "+p.path, "light")
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

// look checks what must be true of every page.
func (w *tab) look(name, theme string) {
	w.Helper()
	w.clean(false)
	if over := eval[string](w, sticksOut); over != "" {
		w.Errorf("%s, %s: wider than the window: %s", name, theme, over)
	}
	rules := `{ type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }`
	if theme == "dark" { // only colours are others
		rules = `{ type: 'rule', values: ['color-contrast'] }`
	}
	colours := eval[int64](w, "innerWidth") > narrow[0] // which take axe most of its time
	if found := eval[[]string](w, fmt.Sprintf(askAxe, colours, rules)); len(found) > 0 {
		w.Errorf("%s, %s: %s", name, theme, strings.Join(found, "\n"))
	}
}

// askAxe returns serious problems. The frame of all pages is checked with the first one. A
// small element that is half covered by a bar seems too close to the next one: it is
// checked again where nothing covers it.
const askAxe = `(async () => {
	const on = document.querySelector('dialog[open]') ?? (window.looked ? document.querySelector('main') : document)
	window.looked = true
	const run = async (runOnly) => (await axe.run(on, { resultTypes: ['violations'], runOnly, rules: { 'color-contrast': { enabled: %t } } })).violations
	const found = (await run(%s)).filter((v) => v.impact === 'serious' || v.impact === 'critical')
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
