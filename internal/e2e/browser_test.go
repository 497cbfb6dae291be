package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/chromedp/chromedp/remote"

	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/wait"
)

// This file is long: the whole driver of the browser, which all dashboard tests share.

// chromium is the browser that all tests share. Like other servers, it is killed with its
// children at the end, and its profile is removed.
var chromium = testserver.Share(func(g *testserver.Group) (*testserver.Process, error) {
	var p *testserver.Process
	return p, g.Start("chromium", func(made *testserver.Process) error {
		p = made
		return nil
	}, func() error {
		cmd := exec.Command("chromium", append(chromiumFlags,
			fmt.Sprintf("--remote-debugging-port=%d", p.Port), "--user-data-dir="+filepath.Join(p.Dir, "profile"), "about:blank")...)
		// What it leaves outside of its profile is gone with that, too.
		cmd.Env = append(os.Environ(), "HOME="+p.Dir, "TMPDIR="+p.Dir, "XDG_CONFIG_HOME="+p.Dir, "XDG_CACHE_HOME="+p.Dir)
		return p.Run(cmd, func() error {
			w, err := http.Get("http://" + p.Addr() + "/json/version")
			if err != nil {
				return err
			}
			return w.Body.Close()
		})
	})
})

// chromiumFlags make it start fast, stay offline, and treat all pages as visible.
var chromiumFlags = []string{
	"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio",
	"--no-first-run", "--no-default-browser-check", "--disable-extensions", "--disable-default-apps", "--disable-sync",
	"--disable-background-networking", "--disable-component-update", "--disable-domain-reliability", "--disable-breakpad",
	"--disable-crash-reporter", "--disable-client-side-phishing-detection", "--disable-background-timer-throttling",
	"--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding", "--disable-ipc-flooding-protection",
	"--disable-hang-monitor", "--disable-prompt-on-repost", "--metrics-recording-only", "--password-store=basic",
	"--disable-features=Translate,MediaRouter,OptimizationHints,AutofillServerCommunication", "--force-color-profile=srgb",
	"--font-render-hinting=none", "--lang=en-GB",
}

// tab is a page in a browser, with its own cookies and storage. It does what a person could
// do: it finds elements by role and name, clicks and types.
type tab struct {
	testing.TB
	ctx    context.Context
	site   string        // where the dashboard is
	limit  time.Duration // of what only reads the page
	clicks int           // and choices, and keys by key: not what is typed, nor getting into a field to do so

	mu        sync.Mutex
	told      []string                     // errors on the console, and violations of the content security policy
	refused   []string                     // what the browser says of answers that are errors
	elsewhere []string                     // addresses of requests that are not to the site
	received  int64                        // bytes, as they came over the wire
	sent      map[network.RequestID]string // their addresses
	ended     map[network.RequestID]bool   // which may be heard of first
}

// The sizes of windows: a desktop and a phone.
var (
	wide   = [2]int64{1440, 900}
	narrow = [2]int64{390, 844}
)

// newTab opens an empty tab for the dashboard of a site.
func newTab(t testing.TB, site string, size [2]int64) *tab {
	t.Helper()
	ctx, cancel := remote.NewAllocator(context.WithoutCancel(t.Context()), "ws://"+chromium(t).Addr(), remote.WithDialTimeout(patience))
	allocator := chromedp.FromContext(ctx).Allocator
	ctx, closeTab := chromedp.NewContext(ctx, chromedp.WithNewBrowserContext(), chromedp.WithErrorf(func(string, ...any) {})) // about events that only newer browsers have
	w := &tab{TB: t, ctx: ctx, site: site, limit: time.Second, sent: map[network.RequestID]string{}, ended: map[network.RequestID]bool{}}
	var listeners sync.WaitGroup
	t.Cleanup(func() {
		if t.Failed() && ctx.Err() == nil {
			w.Logf("the page at the end: %s", w.brief())
			w.keep("failed-" + strings.NewReplacer("/", "-", " ", "_").Replace(t.Name()))
		}
		closeTab()
		cancel()
		allocator.Wait()
		listeners.Wait()
		if t.Failed() {
			w.Logf("the browser said: %q %q", w.told, w.refused)
		}
	})
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil { // the first call opens the tab, which ends with its context
		t.Fatal(err)
	}
	call(w, log.Enable, cdp.Empty{})
	listen(w, &listeners, network.RequestWillBeSent, w.requested)
	listen(w, &listeners, network.LoadingFinished, func(e network.EventLoadingFinished) {
		w.received += int64(e.EncodedDataLength)
		w.ended[e.RequestID] = true
	})
	listen(w, &listeners, network.LoadingFailed, func(e network.EventLoadingFailed) { w.ended[e.RequestID] = true })
	listen(w, &listeners, log.EntryAdded, w.logged)
	listen(w, &listeners, runtime.ExceptionThrown, func(e runtime.EventExceptionThrown) {
		w.told = append(w.told, (&chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails}).Error())
	})
	listen(w, &listeners, runtime.ConsoleAPICalled, func(e runtime.EventConsoleAPICalled) {
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			w.told = append(w.told, fmt.Sprintf("console: %s", e.Args[0].Value))
		}
	})
	w.resize(size)
	return w
}

// Chromium does not answer some of the commands that it gets while a page gives way to that of another site. What only reads
// the page is asked again soon, with twice as much time.
const answerLimit = patience

// tell sends a command to the browser, and waits for its answer for some time.
func tell[P, R any](w *tab, limit time.Duration, command cdp.Command[P, R], params P) (R, error) {
	ctx, cancel := context.WithTimeout(w.ctx, limit)
	defer cancel()
	return chromedp.Call(ctx, command, params)
}

// reading sends a command that only reads the page.
func reading[P, R any](w *tab, command cdp.Command[P, R], params P) (R, error) {
	r, err := tell(w, w.limit, command, params)
	if errors.Is(err, context.DeadlineExceeded) {
		w.limit *= 2
	}
	return r, err
}

// call sends a command to the browser, which has to succeed.
func call[P, R any](w *tab, command cdp.Command[P, R], params P) R {
	w.Helper()
	r, err := tell(w, answerLimit, command, params)
	if err != nil {
		w.Fatalf("%s: %v", command.Method, err)
	}
	return r
}

// listen calls take with events, one at a time, until the tab is closed.
func listen[E any](w *tab, group *sync.WaitGroup, event cdp.Event[E], take func(E)) {
	events := chromedp.Events(w.ctx, event)
	group.Go(func() {
		for e, err := range events {
			if err != nil {
				return
			}
			w.mu.Lock()
			take(e)
			w.mu.Unlock()
		}
	})
}

func (w *tab) requested(e network.EventRequestWillBeSent) {
	if u, err := url.Parse(e.Request.URL); err != nil || u.Scheme != "data" && u.Scheme+"://"+u.Host != w.site {
		w.elsewhere = append(w.elsewhere, e.Request.URL)
	}
	if e.Type != network.ResourceTypeEventSource { // these end when the page does
		w.sent[e.RequestID] = e.Request.Method + " " + e.Request.URL
	}
}

func (w *tab) logged(e log.EventEntryAdded) {
	if e.Entry.Level != log.EntryLevelError && e.Entry.Level != log.EntryLevelWarning {
		return
	}
	text := fmt.Sprintf("%s: %s (%s)", e.Entry.Source, e.Entry.Text, e.Entry.URL)
	if e.Entry.Source == log.EntrySourceNetwork {
		w.refused = append(w.refused, text)
	} else {
		w.told = append(w.told, text)
	}
}

// clean checks that nothing has failed in the page, and resets that. Expected errors must
// be given.
func (w *tab) clean(answersMayFail bool) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.told) > 0 || len(w.elsewhere) > 0 || len(w.refused) > 0 && !answersMayFail {
		w.Errorf("the browser says %q and %q, and asked elsewhere for %q", w.told, w.refused, w.elsewhere)
	}
	w.told, w.refused, w.elsewhere = nil, nil, nil
}

// resize sets the size of the window.
func (w *tab) resize(size [2]int64) {
	w.Helper()
	call(w, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: size[0], Height: size[1], DeviceScaleFactor: 1})
}

// theme makes the system prefer light or dark.
func (w *tab) theme(name string) {
	w.Helper()
	call(w, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: name},
	}})
	w.until(func() error {
		if got := eval[string](w, "document.documentElement.dataset.theme"); got != name {
			return fmt.Errorf("the theme is %s, want %s", got, name)
		}
		return nil
	})
}

// open loads a page of the dashboard, such as "/#/rules", as if its address were typed.
func (w *tab) open(path string) {
	w.Helper()
	if err := chromedp.Do(w.ctx, chromedp.Navigate(w.site+path)); err != nil {
		w.Fatal(err)
	}
}

// visit goes to another page of an open dashboard.
func (w *tab) visit(path string) {
	w.Helper()
	eval[any](w, fmt.Sprintf("void (location.hash = %q)", strings.TrimPrefix(path, "/")))
}

// until waits until check returns nil.
func (w *tab) until(check func() error) {
	w.Helper()
	looks := 0
	wait.Nil(w, "the page", func() error {
		if looks++; looks > 1 { // a page changes once in a frame at most, and looking at it takes its time
			_, _ = reading(w, runtime.Evaluate, runtime.EvaluateParams{Expression: frames, AwaitPromise: new(true)}) // the check tells
		}
		return check()
	})
}

// frames waits until the next two frames are drawn.
const frames = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"

// eval returns the value of an expression in the page.
func eval[T any](w *tab, expression string) T {
	w.Helper()
	v, err := tryEval[T](w, expression)
	if err != nil {
		w.Fatalf("%s: %v", expression, err)
	}
	return v
}

func tryEval[T any](w *tab, expression string) (v T, err error) {
	r, err := tell(w, answerLimit, runtime.Evaluate, runtime.EvaluateParams{Expression: expression, ReturnByValue: new(true), AwaitPromise: new(true)})
	if err == nil && r.ExceptionDetails != nil {
		err = &chromedp.ExceptionError{ExceptionDetails: r.ExceptionDetails}
	}
	if err == nil && len(r.Result.Value) > 0 {
		err = json.Unmarshal(r.Result.Value, &v)
	}
	return v, err
}

// element is an element of the page, as assistive technology sees it: with a role and a
// name.
type element struct {
	w                 *tab
	node              cdp.BackendNodeID
	role, name, value string
	description       string
	properties        map[string]string
}

// all returns the current elements with a role and one of the names, or any name if none is
// given.
func (w *tab) all(role string, names ...string) ([]element, error) {
	r, err := reading(w, dom.GetDocument, dom.GetDocumentParams{Depth: new(int64)})
	if err != nil {
		return nil, err
	}
	return w.allIn(r.Root.BackendNodeID, role, names...)
}

func (w *tab) allIn(root cdp.BackendNodeID, role string, names ...string) ([]element, error) {
	found, err := reading(w, accessibility.QueryAXTree, accessibility.QueryAXTreeParams{BackendNodeID: root, Role: role})
	if err != nil {
		return nil, err
	}
	text := func(v *accessibility.Value) string {
		if v == nil {
			return ""
		}
		var s any
		_ = json.Unmarshal(v.Value, &s) // it is JSON
		if s == nil {
			return ""
		}
		return fmt.Sprint(s)
	}
	var out []element
	for _, n := range found.Nodes {
		e := element{w: w, node: n.BackendDOMNodeID, role: text(n.Role), name: text(n.Name), value: text(n.Value), description: text(n.Description), properties: map[string]string{}}
		if n.Ignored || e.node == 0 || len(names) > 0 && !slices.Contains(names, e.name) {
			continue
		}
		for _, p := range n.Properties {
			e.properties[string(p.Name)] = text(p.Value)
		}
		out = append(out, e)
	}
	return out, nil
}

// one returns the only element with a role and a name.
func (w *tab) one(role, name string) (element, error) {
	found, err := w.all(role, name)
	if err != nil {
		return element{}, err
	}
	if len(found) != 1 {
		return element{}, fmt.Errorf("there are %d of %s %q", len(found), role, name)
	}
	return found[0], nil
}

// see waits for the only element with a role and a name, and returns it.
func (w *tab) see(role, name string) element {
	w.Helper()
	var e element
	w.until(func() (err error) {
		e, err = w.one(role, name)
		return err
	})
	return e
}

// closed waits until there is no dialog with this title.
func (w *tab) closed(title string) {
	w.Helper()
	w.until(func() error {
		found, err := w.all("dialog", title)
		if err == nil && len(found) > 0 {
			err = fmt.Errorf("the dialog %q is open", title)
		}
		return err
	})
}

// says waits until the page contains all of these texts.
func (w *tab) says(texts ...string) {
	w.Helper()
	w.until(func() error { return w.saysNow(texts...) })
}

func (w *tab) saysNow(texts ...string) error {
	shown, err := tryEval[string](w, "document.body.innerText")
	if err != nil {
		return err
	}
	for _, text := range texts {
		if !strings.Contains(shown, text) {
			return fmt.Errorf("the page does not say %q; it says %q", text, shorten(shown))
		}
	}
	return nil
}

// brief describes the address and the text of the page.
func (w *tab) brief() string {
	text, err := tryEval[string](w, "location.hash + ' ' + document.body.innerText")
	if err != nil {
		return err.Error()
	}
	return shorten(text)
}

func shorten(text string) string { return text[:min(len(text), 3000)] }

// apply calls a JavaScript function with the element as this.
func (e element) apply(function string, into any, args ...any) error {
	found, err := tell(e.w, answerLimit, dom.ResolveNode, dom.ResolveNodeParams{BackendNodeID: e.node, ObjectGroup: "apply"})
	if err != nil {
		return err
	}
	defer func() {
		_, _ = tell(e.w, answerLimit, runtime.ReleaseObjectGroup, runtime.ReleaseObjectGroupParams{ObjectGroup: "apply"})
	}()
	params := runtime.CallFunctionOnParams{FunctionDeclaration: function, ObjectID: found.Object.ObjectID, ReturnByValue: new(true)}
	for _, a := range args {
		text, err := json.Marshal(a)
		if err != nil {
			return err
		}
		params.Arguments = append(params.Arguments, &runtime.CallArgument{Value: text})
	}
	r, err := tell(e.w, answerLimit, runtime.CallFunctionOn, params)
	if err == nil && r.ExceptionDetails != nil {
		err = &chromedp.ExceptionError{ExceptionDetails: r.ExceptionDetails}
	}
	if err == nil && into != nil {
		err = json.Unmarshal(r.Result.Value, into)
	}
	return err
}

// place scrolls an element to the middle, and returns where to click it, unless something
// is in front of it.
const place = `function () {
	this.scrollIntoView({ block: 'center', inline: 'center', behavior: 'instant' })
	const r = this.getBoundingClientRect()
	const x = r.x + r.width / 2, y = r.y + r.height / 2
	const hit = document.elementFromPoint(x, y)
	if (!this.isConnected || r.width === 0) throw new Error('it is not shown')
	if (this.disabled) throw new Error('it is disabled')
	if (!hit || !(this.contains(hit) || hit.contains(this) || hit.closest('label')?.control === this)) throw new Error('it is behind ' + (hit ? hit.outerHTML.slice(0, 200) : 'the edge'))
	return [x, y]
}`

// click clicks the element that find returns. It retries if the element was redrawn.
func (w *tab) click(role, name string) {
	w.Helper()
	w.clickOn(func() (element, error) { return w.one(role, name) })
}

func (w *tab) clickOn(find func() (element, error)) {
	w.Helper()
	w.clicks++
	w.point(find)
}

func (w *tab) point(find func() (element, error)) {
	w.Helper()
	var at [2]float64
	w.until(func() error {
		e, err := find()
		if err != nil {
			return err
		}
		if err := e.apply(place, &at); err != nil {
			return fmt.Errorf("%s %q: %w", e.role, e.name, err)
		}
		return nil
	})
	for _, kind := range []input.DispatchMouseEventType{input.DispatchMouseEventTypeMouseMoved, input.DispatchMouseEventTypeMousePressed, input.DispatchMouseEventTypeMouseReleased} {
		p := input.DispatchMouseEventParams{Type: kind, X: at[0], Y: at[1]}
		if kind != input.DispatchMouseEventTypeMouseMoved {
			p.Button, p.ClickCount = input.MouseButtonLeft, 1
		}
		call(w, input.DispatchMouseEvent, p)
	}
}

// fill replaces the text of a field.
func (w *tab) fill(label, text string) {
	w.Helper()
	find := func() (element, error) {
		for _, role := range []string{"textbox", "searchbox", "combobox"} {
			if found, err := w.all(role, label); err != nil || len(found) == 1 {
				return append(found, element{})[0], err
			}
		}
		return element{}, fmt.Errorf("there is no field %q, or more than one", label)
	}
	w.point(find)
	w.until(func() error {
		e, err := find()
		if err != nil {
			return err
		}
		return e.apply("function () { this.focus(); this.select() }", nil)
	})
	if text == "" {
		w.press(kb.Backspace)
		return
	}
	call(w, input.InsertText, input.InsertTextParams{Text: text})
}

// choose picks an option of a list.
func (w *tab) choose(label, option string) {
	w.Helper()
	w.clicks++
	w.until(func() error {
		e, err := w.one("combobox", label)
		if err != nil {
			return err
		}
		return e.apply(`function (text) {
			const found = [...this.options].find((o) => o.text === text)
			if (!found) throw new Error('there is no option ' + text)
			this.value = found.value
			this.dispatchEvent(new Event('input', { bubbles: true }))
			this.dispatchEvent(new Event('change', { bubbles: true }))
		}`, nil, option)
	})
}

// press presses keys, one after the other. As with real keys, the page can handle them
// instead of typing.
func (w *tab) press(keys string) {
	w.Helper()
	for _, r := range keys {
		k, known := kb.Keys[r]
		if !known {
			w.Fatalf("there is no key %q", r)
		}
		p := input.DispatchKeyEventParams{Type: kb.KeyDown, Key: k.Key, Code: k.Code, NativeVirtualKeyCode: k.Native, WindowsVirtualKeyCode: k.Windows}
		if k.Shift {
			p.Modifiers = int64(kb.ModifierShift)
		}
		if k.Print {
			p.Text, p.UnmodifiedText = k.Text, k.Unmodified
		}
		call(w, input.DispatchKeyEvent, p)
		p.Type, p.Text, p.UnmodifiedText = kb.KeyUp, "", ""
		call(w, input.DispatchKeyEvent, p)
	}
}

// key presses a key that opens or chooses something.
func (w *tab) key(key string) {
	w.Helper()
	w.clicks++
	w.press(key)
}

// focused returns the role and the name of the focused element, or "nothing".
func (w *tab) focused() string {
	w.Helper()
	if eval[bool](w, "document.activeElement === document.body") {
		return "nothing"
	}
	r := call(w, runtime.Evaluate, runtime.EvaluateParams{Expression: "document.activeElement", ObjectGroup: "focus"})
	defer call(w, runtime.ReleaseObjectGroup, runtime.ReleaseObjectGroupParams{ObjectGroup: "focus"})
	found, err := reading(w, accessibility.GetPartialAXTree, accessibility.GetPartialAXTreeParams{ObjectID: r.Result.ObjectID, FetchRelatives: new(false)})
	if err != nil || len(found.Nodes) == 0 || found.Nodes[0].Role == nil || found.Nodes[0].Name == nil {
		return "something without a role"
	}
	var role, name string
	if err := errors.Join(json.Unmarshal(found.Nodes[0].Role.Value, &role), json.Unmarshal(found.Nodes[0].Name.Value, &name)); err != nil {
		return err.Error()
	}
	return role + " " + name
}

// focuses waits until an element has the focus.
func (w *tab) focuses(role, name string) {
	w.Helper()
	w.until(func() error {
		if got := strings.TrimSpace(w.focused()); got != strings.TrimSpace(role+" "+name) {
			return fmt.Errorf("the focus is at %s, want %s %s", got, role, name)
		}
		return nil
	})
}

// settled waits until the page is loaded, and has no requests except streams.
func (w *tab) settled(title string) {
	w.Helper()
	w.see("heading", title)
	w.until(func() error {
		if n := w.underWay(); len(n) > 0 {
			return fmt.Errorf("%q are under way", n)
		}
		busy, err := tryEval[bool](w, `!!document.querySelector('main [aria-busy="true"]') || [...document.querySelectorAll('main [role="status"]')].some((s) => s.innerText.trim() === 'Loading')`)
		if err == nil && busy {
			err = errors.New("something is being loaded")
		}
		return err
	})
	w.drawn()
}

// drawn waits until everything is drawn, including charts, which follow in the next frame.
func (w *tab) drawn() {
	w.Helper()
	eval[any](w, frames)
}

// underWay returns the requests without a response.
func (w *tab) underWay() (n []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, address := range w.sent {
		if !w.ended[id] {
			n = append(n, address)
		}
	}
	return n
}

// keep writes a screenshot to STINT_SCREENSHOTS, as PNG, if that is set.
func (w *tab) keep(name string) {
	w.Helper()
	dir := os.Getenv("STINT_SCREENSHOTS")
	if dir == "" {
		return
	}
	picture, err := tell(w, answerLimit, page.CaptureScreenshot, page.CaptureScreenshotParams{})
	if err == nil {
		err = errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name+".png"), picture.Data, 0o600))
	}
	if err != nil {
		w.Error(err)
	}
}

// clickIn is click within another element, such as a dialog.
func (w *tab) clickIn(role, name, innerRole, innerName string) {
	w.Helper()
	w.clickOn(func() (element, error) {
		outer, err := w.one(role, name)
		if err != nil {
			return element{}, err
		}
		found, err := w.allIn(outer.node, innerRole, innerName)
		if err == nil && len(found) != 1 {
			err = fmt.Errorf("there are %d of %s %q in %s %q", len(found), innerRole, innerName, role, name)
		}
		return append(found, element{})[0], err
	})
}
