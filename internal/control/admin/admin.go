package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/signin"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/rule"
)

// Prefix is the path of the API.
const Prefix = "/admin/v1"

// Options are what an [API] uses.
type Options struct {
	// Catalog is the database of rules and users. Nil: they are in a file, and are
	// read-only.
	Catalog *catalog.Catalog
	// Tokens stores tokens and sessions. It is required, and may be Catalog.
	Tokens *catalog.Catalog

	Engine   *engine.Engine            // required
	Resolver func() *identity.Resolver // the current resolver of the engine; required
	Store    stint.Store               // of counters; required

	Record *rollup.Store // of decisions; nil: none
	// Unsampled says that requests that pass without being held are not recorded.
	Unsampled bool
	Live      *record.Cluster

	Document func() *catalog.Document // the contents of File, without a Catalog
	World    *rule.World              // the regions that rules in File are used in; nil: not known
	File     string                   // the name of the config file

	Status    func() Status
	NodeState func() NodeState // of this node
	Regions   func() Regions   // without the revisions; nil: there are no other regions
	NodeID    string           // of this node in the catalog
	Settings  func() []Setting // with secrets masked
	// Envoy returns the limits of descriptors, and the files that were not read. Nil: Envoy
	// is not served.
	Envoy func() ([]EnvoyLimit, []EnvoySkipped)

	// Token is the token in the configuration, which is in no database. Empty: none.
	Token identity.Secret
	// Look makes this node load what was just written. Nil: it polls for it.
	Look func(ctx context.Context) error
	// Secure reports whether a request came over TLS, so that its cookie can be limited
	// to TLS. Default: whether the connection to this process uses TLS.
	Secure func(*http.Request) bool
	// SignIn is the identity provider that people sign in with, and SignInName its name. Nil: none.
	SignIn     *signin.Provider
	SignInName string
	SignInURL  *url.URL // where it sends browsers back to; nil: as browsers call this server

	Web fs.FS // the dashboard; nil: none
	Log *slog.Logger
	Now func() time.Time // default time.Now
	// Timeout is how long an operation may take, unless it has a limit of its own or streams. Default 10 s.
	Timeout time.Duration
}

// API is the handler of the admin listener. Close it.
type API struct {
	options    Options
	log        *slog.Logger
	now        func() time.Time
	mux        *http.ServeMux
	operations []operation // for the test that generates openapi.json
	config     configToken
	guard      *guard
	origins    *http.CrossOriginProtection
	files      map[string]*file
	streams    streams
	running    inFlight
	turn       chan struct{} // for writes with If-Match: *, one at a time
	closing    context.Context
	close      context.CancelFunc
}

// New returns an API.
func New(o Options) (*API, error) {
	switch {
	case o.Tokens == nil:
		return nil, errors.New("admin: Tokens is missing, want a catalog")
	case o.Engine == nil || o.Resolver == nil || o.Store == nil:
		return nil, errors.New("admin: want an Engine, a Resolver and a Store")
	case o.Catalog == nil && o.Document == nil:
		return nil, errors.New("admin: want a Catalog or a Document")
	}
	a := &API{options: o, log: o.Log, now: o.Now, mux: http.NewServeMux(), origins: http.NewCrossOriginProtection(), turn: make(chan struct{}, 1)}
	if a.now == nil {
		a.now = time.Now
	}
	if a.options.Timeout == 0 {
		a.options.Timeout = 10 * time.Second
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	if a.options.Secure == nil {
		a.options.Secure = func(r *http.Request) bool { return r.TLS != nil }
	}
	var err error
	if a.config, err = newConfigToken(o.Token); err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	if a.guard, err = newGuard(a.now); err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	if a.files, err = readFiles(o.Web); err != nil {
		return nil, fmt.Errorf("admin: dashboard: %w", err)
	}
	a.closing, a.close = context.WithCancel(context.Background()) //nolint:forbidigo // it ends with Close
	for _, add := range []func(){
		a.addDocument, a.addSession, a.addSignIn, a.addTokens, a.addMe, a.addRules, a.addResources, a.addKeys, a.addApply, a.addSubjects, a.addUsage, a.addDecisions,
		a.addBans, a.addOverrides, a.addExplain, a.addRecord, a.addReplay, a.addLive, a.addStatus, a.addRegions, a.addEnvoy, a.addChanges, a.addRevisions, a.addSearch,
	} {
		add()
	}
	return a, nil
}

// Close ends all streams. Other requests are still answered afterwards.
func (a *API) Close() { a.close() }

// ServeHTTP serves the dashboard and the API.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.secure(w)
	if r.URL.Path != Prefix && !strings.HasPrefix(r.URL.Path, Prefix+"/") {
		a.serveFile(w, r)
		return
	}
	escaped := r.URL.EscapedPath()
	_, pattern := a.mux.Handler(r)
	switch {
	case path.Clean(escaped) != escaped: // which the mux would redirect
		a.problem(w, r, fail(http.StatusNotFound, "not found"))
	case pattern != "":
		a.mux.ServeHTTP(w, r)
	default:
		allowed := methods{header: http.Header{}}
		a.mux.ServeHTTP(&allowed, r)
		if allow := allowed.header.Get("Allow"); allow != "" {
			w.Header().Set("Allow", allow)
			a.problem(w, r, fail(http.StatusMethodNotAllowed, "method "+shown(r.Method)+" is not allowed, want one of "+allow))
			return
		}
		a.problem(w, r, fail(http.StatusNotFound, "not found"))
	}
}

// methods receives the response of the mux for an unknown path or method, for its Allow header.
type methods struct{ header http.Header }

func (m *methods) Header() http.Header         { return m.header }
func (m *methods) Write(b []byte) (int, error) { return len(b), nil }
func (m *methods) WriteHeader(int)             {}

// secure sets the security headers of every response.
func (*API) secure(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
}
