package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/internal/test/testopenapi"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// patience is how long answers are waited for.
const patience = 5 * time.Minute

// configToken is the token in the configuration.
const configToken = "the token of the config"

// recorders passes events to several recorders.
type recorders []engine.Recorder

func (r recorders) Record(ctx context.Context, e *engine.Event) {
	for _, one := range r {
		one.Record(ctx, e)
	}
}

// testAPI is an API with its parts, and its clients.
type testAPI struct {
	testing.TB
	api      *admin.API
	options  admin.Options
	catalog  *catalog.Catalog // nil: file mode
	tokens   *catalog.Catalog
	record   *rollup.Store
	engine   *engine.Engine
	resolver *identity.Resolver
	live     *record.Live
	tap      *record.Tap
	document *catalog.Document // of file mode
	log      *logs
	api31    document // which every answer is held to

	viewer, operator, admin string // tokens
	user                    string // that of alice
	clock                   *clock
}

// clock is a clock that goes on by a microsecond with each look, and otherwise stands still until it is
// advanced. It begins in the middle of a minute about now, so that what is counted by the minute is not
// divided.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock { return &clock{at: time.Now().Truncate(time.Minute).Add(30 * time.Second)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(time.Microsecond)
	return c.at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// logs keeps log lines.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newTestAPI returns an API on a new SQLite database. A function may change its options.
func newTestAPI(t testing.TB, change ...func(*admin.Options)) *testAPI {
	t.Helper()
	return newTestAPIAt(t, "", change...)
}

// newTestAPIAt returns an API on the database at a URL, or on a new one.
func newTestAPIAt(t testing.TB, url string, change ...func(*admin.Options)) *testAPI {
	t.Helper()
	h := &testAPI{TB: t, clock: newClock(), log: &logs{}}
	h.catalog = h.open(url)
	h.tokens = h.catalog
	var err error
	if h.record, err = rollup.New(h.catalog.Database(), rollup.Options{Now: h.clock.now}); err != nil {
		t.Fatal(err)
	}
	if err := h.record.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	node, err := h.catalog.NewNode(catalog.NodeOptions{Name: "node-1", Version: "test", Poll: time.Hour, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	first, err := node.First(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h.build(node.Directory(), first.Rules, first.Lists)
	node.Start(t.Context(), func(_ context.Context, s *catalog.Snapshot) error {
		return h.engine.Use(s.Rules, h.resolver.With(s.Lists))
	})
	t.Cleanup(func() { node.Stop(context.WithoutCancel(t.Context())) })
	h.options.Catalog, h.options.Look, h.options.NodeID, h.options.Record = h.catalog, node.Look, node.ID(), h.record
	h.make(change)
	return h
}

// newFileAPI returns an API whose rules are in a file.
func newFileAPI(t testing.TB, d catalog.Document, change ...func(*admin.Options)) *testAPI {
	t.Helper()
	h := &testAPI{TB: t, clock: newClock(), log: &logs{}, document: &d}
	h.tokens = h.open("")
	set, err := rule.Compile(d.File)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := d.Lists()
	if err != nil {
		t.Fatal(err)
	}
	h.build(nil, set, lists)
	h.options.Document, h.options.File = func() *catalog.Document { return h.document }, "stint.toml"
	h.make(change)
	return h
}

func (h *testAPI) open(url string) *catalog.Catalog {
	h.Helper()
	isNew := url == ""
	if isNew {
		url = testdatabase.SQLite(h)
	}
	c, err := catalog.Open(url, catalog.Options{Now: h.clock.now, Patience: patience})
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { c.Close() })
	if !isNew {
		if _, err := c.Up(h.Context(), 0); err != nil {
			h.Fatal(err)
		}
	}
	return c
}

// build builds an engine with its recorders.
func (h *testAPI) build(directory identity.Directory, set *rule.Set, lists identity.Lists) {
	h.Helper()
	store, err := memstore.New(memstore.Options{Now: h.clock.now})
	if err != nil {
		h.Fatal(err)
	}
	if h.live, err = record.NewLive(record.LiveOptions{Node: "node-1", Now: h.clock.now}); err != nil {
		h.Fatal(err)
	}
	if h.tap, err = record.NewTap(record.TapOptions{Region: "test", Node: "node-1"}); err != nil {
		h.Fatal(err)
	}
	if h.resolver, err = identity.New(identity.Options{Directory: directory, Lists: lists}); err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { h.resolver.Close() })
	h.engine, err = engine.New(engine.Options{Store: store, Rules: set, Identity: h.resolver, Recorder: recorders{h.live, h.tap}, Now: h.clock.now})
	if err != nil {
		h.Fatal(err)
	}
	h.options = admin.Options{
		Tokens: h.tokens, Engine: h.engine, Store: store, Live: record.NewCluster(record.ClusterOptions{Live: h.live, Tap: h.tap}),
		Resolver: func() *identity.Resolver { return h.resolver },
		Status: func() admin.Status {
			return admin.Status{Version: "test", Mode: "database", Database: "sqlite", Counters: "memory", Node: "node-1", Health: admin.Health{Status: "ok", Checks: []admin.Check{}}, Now: h.clock.now().UTC()}
		},
		NodeState: func() admin.NodeState {
			return admin.NodeState{Status: "ok", Checks: []admin.Check{}, Counters: "memory", Store: "ok", Breaker: "none"}
		},
		Settings: func() []admin.Setting {
			return []admin.Setting{{Name: "server.address", Value: ":8080", Origin: "default"}}
		},
		Token: configToken,
		Web:   fstest.MapFS{"index.html": {Data: []byte("<!doctype html><title>Stint</title>")}},
		Log:   slog.New(slog.NewJSONHandler(h.log, nil)),
		Now:   h.clock.now, Timeout: patience,
	}
}

// make creates the API, and a token of each role.
func (h *testAPI) make(change []func(*admin.Options)) {
	h.Helper()
	for _, f := range change {
		f(&h.options)
	}
	var err error
	if h.api, err = admin.New(h.options); err != nil {
		h.Fatal(err)
	}
	h.Cleanup(h.api.Close)
	h.api31 = openAPI()
	h.user = h.ofUser("alice")
	h.viewer, h.operator, h.admin = h.token("vera", catalog.Viewer), h.token("otto", catalog.Operator), h.token("ada", catalog.Administrator)
}

// token returns a token with a role.
func (h *testAPI) token(name string, role catalog.Role) string {
	h.Helper()
	text, _, err := h.tokens.CreateToken(h.Context(), "test", catalog.Token{Name: name, Role: role})
	if err != nil {
		h.Fatal(err)
	}
	return text
}

// may returns a token for an operation.
func (h *testAPI) may(pattern string) string {
	if h.api31.operation(pattern)["x-stint-role"] == string(catalog.OfUser) {
		return h.user
	}
	return h.admin
}

// ofUser returns a token for one user.
func (h *testAPI) ofUser(user string) string {
	h.Helper()
	text, _, err := h.tokens.CreateToken(h.Context(), "test", catalog.Token{Name: user + "-laptop", Role: catalog.OfUser, User: user})
	if err != nil {
		h.Fatal(err)
	}
	return text
}

// answer is a response.
type answer struct {
	testing.TB
	*http.Response
	body []byte
}

// ask sends a request, and checks the response against the document. The body is JSON text
// or a value; headers are names and values, and an empty name is a token.
func (h *testAPI) ask(method, path string, body any, headers ...string) *answer {
	h.Helper()
	r := h.request(method, path, body, headers...)
	w := httptest.NewRecorder()
	h.api.ServeHTTP(w, r)
	a := &answer{h.TB, w.Result(), w.Body.Bytes()}
	h.api31.check(h, r, a)
	return a
}

// request returns a request.
func (h *testAPI) request(method, path string, body any, headers ...string) *http.Request {
	h.Helper()
	var content io.Reader
	contentType := ""
	switch b := body.(type) {
	case nil:
	case string:
		content, contentType = strings.NewReader(b), "application/json"
	case []byte:
		content, contentType = bytes.NewReader(b), "application/json"
	default:
		text, err := json.Marshal(b)
		if err != nil {
			h.Fatal(err)
		}
		content, contentType = bytes.NewReader(text), "application/json"
	}
	r := httptest.NewRequestWithContext(h.Context(), method, admin.Prefix+path, content)
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	for i := 0; i < len(headers); i += 2 {
		switch name, value := headers[i], headers[i+1]; {
		case name == "":
			r.Header.Set("Authorization", "Bearer "+value)
		case value == "":
			r.Header.Del(name)
		default:
			r.Header.Set(name, value)
		}
	}
	return r
}

// get sends a GET request as a viewer.
func (h *testAPI) get(path string) *answer {
	h.Helper()
	return h.ask(http.MethodGet, path, nil, "", h.viewer)
}

// do sends a write as an operator.
func (h *testAPI) do(method, path string, body any, headers ...string) *answer {
	h.Helper()
	return h.ask(method, path, body, append([]string{"", h.operator}, headers...)...)
}

// want fails unless the status is as given.
func (a *answer) want(status int) *answer {
	a.Helper()
	if a.StatusCode != status {
		a.Fatalf("%d, want %d: %s", a.StatusCode, status, a.body)
	}
	return a
}

// into decodes the body.
func (a *answer) into(v any) *answer {
	a.Helper()
	d := json.NewDecoder(bytes.NewReader(a.body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		a.Fatalf("%v: %s", err, a.body)
	}
	return a
}

// says fails unless the body contains all of the texts.
func (a *answer) says(texts ...string) *answer {
	a.Helper()
	for _, text := range texts {
		if !strings.Contains(string(a.body), text) {
			a.Errorf("want %q in %s", text, a.body)
		}
	}
	return a
}

// problem decodes the body as a problem.
func (a *answer) problem() (p admin.Problem) {
	a.Helper()
	a.into(&p)
	return p
}

// searchRule is a valid rule.
func searchRule() rule.Rule {
	return rule.Rule{
		Name: "search", Match: rule.Match{Paths: []string{"/search"}}, CountBy: []rule.Dimension{"user"},
		Limits: []rule.Limit{{Name: "searches", Limit: "100/minute"}},
	}
}

// object is JSON.
type object = map[string]any

// document is an OpenAPI document.
type document struct {
	root object
	mux  *http.ServeMux // finds the operation of a request
}

// openAPI returns the document of the API.
var openAPI = sync.OnceValue(func() document {
	d := document{mux: http.NewServeMux()}
	if err := json.Unmarshal(admin.OpenAPI(), &d.root); err != nil {
		panic(err)
	}
	for _, pattern := range d.operations() {
		method, path, _ := strings.Cut(pattern, " ")
		d.mux.HandleFunc(method+" "+admin.Prefix+path, func(http.ResponseWriter, *http.Request) {})
	}
	return d
})

// operations returns all operations, as GET /path.
func (d document) operations() (out []string) {
	paths, _ := d.root["paths"].(object)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		item, _ := paths[path].(object)
		for _, method := range slices.Sorted(maps.Keys(item)) {
			out = append(out, strings.ToUpper(method)+" "+path)
		}
	}
	return out
}

// operation returns the description of GET /path.
func (d document) operation(pattern string) object {
	method, path, _ := strings.Cut(pattern, " ")
	op, _ := d.at(d.root, "paths", path, strings.ToLower(method)).(object)
	return op
}

// at follows a path, and resolves references.
func (d document) at(v any, path ...string) any { return testopenapi.At(d.root, v, path...) }
