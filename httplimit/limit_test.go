package httplimit_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

func newStore(tb testing.TB) stint.Store {
	tb.Helper()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = store.Close() })
	return store
}

// simple is a handler behind a middleware of one limit.
func simple(tb testing.TB, store stint.Store, limit string, by httplimit.By) http.Handler {
	tb.Helper()
	middleware, err := httplimit.Limit(store, limit, by)
	if err != nil {
		tb.Fatal(err)
	}
	return middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
}

// visit sends a request with headers, given as names and values.
func visit(h http.Handler, remote string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.RemoteAddr = remote
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec
}

// TestLimitCounters checks who shares a counter: a second request under a limit of one
// is denied if it is counted as the first was.
func TestLimitCounters(t *testing.T) {
	t.Parallel()
	type request struct {
		remote  string
		headers []string
	}
	at := func(remote string, headers ...string) request { return request{remote, headers} }
	user := httplimit.ByFunc(func(r *http.Request) string { return r.Header.Get("X-User") })
	proxied := httplimit.ByHeader("x-user").Behind("10.0.0.0/8", "192.0.2.9")
	for name, c := range map[string]struct {
		by            httplimit.By
		first, second request
		status        int
	}{
		"address":                    {httplimit.ByIP, at("192.0.2.1:1"), at("192.0.2.1:2"), 429},
		"zero value":                 {httplimit.By{}, at("192.0.2.1:1"), at("192.0.2.1:2"), 429},
		"other address":              {httplimit.ByIP, at("192.0.2.1:1"), at("192.0.2.2:1"), 200},
		"IPv6 network":               {httplimit.ByIP, at("[2001:db8::1]:1"), at("[2001:db8::2]:1"), 429},
		"other IPv6 network":         {httplimit.ByIP, at("[2001:db8::1]:1"), at("[2001:db8:0:1::1]:1"), 200},
		"forwarding header ignored":  {httplimit.ByIP, at("10.0.0.1:1", "X-Forwarded-For", "1.1.1.1"), at("10.0.0.1:1", "X-Forwarded-For", "2.2.2.2"), 429},
		"no address":                 {httplimit.ByIP, at("@"), at(""), 429},
		"proxy":                      {httplimit.ByIP.Behind("10.0.0.0/8"), at("10.0.0.1:1", "X-Forwarded-For", "1.1.1.1"), at("10.0.0.1:1", "X-Forwarded-For", "2.2.2.2"), 200},
		"client behind two proxies":  {httplimit.ByIP.Behind("10.0.0.0/8"), at("10.0.0.1:1", "X-Forwarded-For", "1.1.1.1"), at("10.0.0.2:1", "X-Forwarded-For", "1.1.1.1"), 429},
		"invented hop":               {httplimit.ByIP.Behind("10.0.0.0/8"), at("10.0.0.1:1", "X-Forwarded-For", "8.8.8.8, 1.1.1.1"), at("10.0.0.1:1", "X-Forwarded-For", "9.9.9.9, 1.1.1.1"), 429},
		"header from elsewhere":      {httplimit.ByIP.Behind("10.0.0.0/8"), at("192.0.2.1:1", "X-Forwarded-For", "1.1.1.1"), at("192.0.2.1:1", "X-Forwarded-For", "2.2.2.2"), 429},
		"function":                   {user, at("192.0.2.1:1", "X-User", "alice"), at("192.0.2.2:1", "X-User", "alice"), 429},
		"function, other":            {user, at("192.0.2.1:1", "X-User", "alice"), at("192.0.2.1:1", "X-User", "bob"), 200},
		"function, no key":           {user, at("192.0.2.1:1"), at("192.0.2.1:1"), 429},
		"function, no key, other":    {user, at("192.0.2.1:1"), at("192.0.2.2:1"), 200},
		"key like an address":        {user, at("192.0.2.1:1"), at("192.0.2.2:1", "X-User", "192.0.2.1"), 200},
		"function behind a proxy":    {user.Behind("10.0.0.0/8"), at("10.0.0.1:1", "X-Forwarded-For", "1.1.1.1"), at("10.0.0.1:1", "X-Forwarded-For", "2.2.2.2"), 200},
		"long key":                   {user, at("192.0.2.1:1", "X-User", strings.Repeat("a", 5000)), at("192.0.2.1:1", "X-User", strings.Repeat("a", 4999)+"b"), 200},
		"header":                     {proxied, at("10.0.0.1:1", "X-User", "alice"), at("192.0.2.9:1", "X-User", "alice"), 429},
		"header, other":              {proxied, at("10.0.0.1:1", "X-User", "alice"), at("10.0.0.1:1", "X-User", "bob"), 200},
		"header of a client":         {proxied, at("192.0.2.1:1", "X-User", "alice"), at("192.0.2.1:1", "X-User", "bob"), 429},
		"header uses up no one else": {proxied, at("192.0.2.1:1", "X-User", "alice"), at("10.0.0.1:1", "X-User", "alice"), 200},
		"no header":                  {proxied, at("10.0.0.1:1", "X-Forwarded-For", "1.1.1.1"), at("10.0.0.2:1", "X-Forwarded-For", "1.1.1.1"), 429},
		"header twice":               {proxied, at("10.0.0.1:1"), at("10.0.0.2:1", "X-User", "alice", "X-User", "bob"), 401},
	} {
		h := simple(t, newStore(t), "1/1h", c.by)
		if rec := visit(h, c.first.remote, c.first.headers...); rec.Code != 200 {
			t.Errorf("%s: the first request has %s", name, transcript(rec))
		}
		if rec := visit(h, c.second.remote, c.second.headers...); rec.Code != c.status {
			t.Errorf("%s: the second request has %d, want %d", name, rec.Code, c.status)
		}
	}
}

// TestLimitNames checks which limits over one store count together.
func TestLimitNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		a, b         string
		byA, byB     httplimit.By
		together     bool
		policyOfLast string
	}{
		{"the same limit", "2/1h", "2/60m", httplimit.ByIP, httplimit.ByIP, true, `"default";q=2;w=3600`},
		{"another limit", "2/1h", "3/1h", httplimit.ByIP, httplimit.ByIP, false, `"default";q=3;w=3600`},
		{"another algorithm", "2/1h", "2/1h token_bucket", httplimit.ByIP, httplimit.ByIP, false, `"default";q=2;w=3600`},
		{"another name", "2/1h", "2/1h", httplimit.ByIP, httplimit.ByIP.Named("login"), false, `"login";q=2;w=3600`},
		{"one name", "2/1h", "4/1h", httplimit.ByIP.Named("login"), httplimit.ByIP.Named("login"), true, `"login";q=4;w=3600`},
		{"a long text", "2/1h", "1234567/month tz=America/Argentina/Buenos_Aires anchor=15", httplimit.ByIP, httplimit.ByIP, false, ""},
	} {
		store := newStore(t)
		visit(simple(t, store, c.a, c.byA), "192.0.2.1:1")
		rec := visit(simple(t, store, c.b, c.byB), "192.0.2.1:1")
		limit, err := stint.ParseLimit(c.b)
		if err != nil {
			t.Fatal(err)
		}
		left := limit.Max - 1
		if c.together {
			left--
		}
		if got := rec.Header().Get("X-Ratelimit-Remaining"); got != strconv.FormatInt(left, 10) {
			t.Errorf("%s: %s remain, want %d", c.name, got, left)
		}
		if got := rec.Header().Get("Ratelimit-Policy"); c.policyOfLast != "" && got != c.policyOfLast {
			t.Errorf("%s: policy %s, want %s", c.name, got, c.policyOfLast)
		}
	}
}

// TestLimitAnswers checks that the answers are those of the full form.
func TestLimitAnswers(t *testing.T) {
	t.Parallel()
	rules, err := rule.Compile(rule.File{Rules: []rule.Rule{{
		Name: "full", CountBy: []rule.Dimension{"ip"}, Limits: []rule.Limit{{Name: "default", Limit: "1/1h"}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	who, err := identity.New(identity.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(engine.Options{Store: newStore(t), Rules: rules, Identity: who})
	if err != nil {
		t.Fatal(err)
	}
	full := limited(t, httplimit.Options{Engine: e}, func(http.ResponseWriter, *http.Request) {})
	short := simple(t, newStore(t), "1/1h", httplimit.ByIP)
	for _, status := range []int{200, 429} {
		a, b := visit(full, "192.0.2.1:1"), visit(short, "192.0.2.1:1")
		if a.Code != status || b.Code != status {
			t.Errorf("%d and %d, want %d", a.Code, b.Code, status)
		}
		for _, name := range []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "Ratelimit-Policy", "Content-Type"} {
			if a.Header().Get(name) != b.Header().Get(name) {
				t.Errorf("%d: %s is %q in full, and %q in short", status, name, a.Header().Get(name), b.Header().Get(name))
			}
		}
		for name := range a.Header() {
			if b.Header().Get(name) == "" {
				t.Errorf("%d: %s is missing in short", status, name)
			}
		}
	}
	if rec := visit(short, "192.0.2.1:1"); !strings.Contains(rec.Body.String(), `"violated-policies":["default"]`) || rec.Header().Get("Retry-After") == "" {
		t.Errorf("%s", transcript(rec))
	}
}

// TestLimitStoreDown checks what becomes of requests that the store cannot count.
func TestLimitStoreDown(t *testing.T) {
	t.Parallel()
	down := &broken{Store: newStore(t), down: true}
	local, err := layer.New(&broken{Store: newStore(t), down: true}, layer.Options{Fallback: &layer.FallbackOptions{Local: newStore(t)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = local.Close() })
	for name, c := range map[string]struct {
		store  stint.Store
		second int
	}{
		"alone": {down, 200}, "with a fallback": {local, 429},
	} {
		h := simple(t, c.store, "1/1h", httplimit.ByIP)
		for _, want := range []int{200, c.second} {
			if rec := visit(h, "192.0.2.1:1"); rec.Code != want || rec.Header().Get("Ratelimit-Policy") != `"default";q=1;w=3600` {
				t.Errorf("%s: want %d\n%s", name, want, transcript(rec))
			}
		}
	}
}

// TestRequired checks that a constructor which lacks something says what, and that none
// fails later.
func TestRequired(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	e := worldOf(t, oneLimit, identity.Options{}).Engine
	limit := func(store stint.Store, limit string, by httplimit.By) error {
		_, err := httplimit.Limit(store, limit, by)
		return err
	}
	api := func(o httplimit.APIOptions) error { _, err := httplimit.API(o); return err }
	gateway := func(o httplimit.GatewayOptions) error { _, err := httplimit.NewGateway(o); return err }
	middleware := func(o httplimit.Options) error { _, err := httplimit.New(o); return err }
	for _, c := range []struct {
		err  error
		want string
	}{
		{middleware(httplimit.Options{}), `Engine "nil": want what engine.New returns`},
		{api(httplimit.APIOptions{Store: store}), `Engine "nil": want what engine.New returns`},
		{api(httplimit.APIOptions{Engine: e}), `Store "nil": want a store, such as memstore.New returns`},
		{gateway(httplimit.GatewayOptions{Routes: []httplimit.Route{{Targets: []string{"http://127.0.0.1"}}}}), `Engine "nil": want what engine.New returns`},
		{gateway(httplimit.GatewayOptions{Engine: e}), `Routes "none": want at least one`},
		{gateway(httplimit.GatewayOptions{Engine: e, Routes: []httplimit.Route{{}}}), `route 1: stint: Targets "0": want 1 to 64 of them`},
		{limit(nil, "1/1h", httplimit.ByIP), `store "nil": want a store, such as memstore.New returns`},
		{limit(store, "", httplimit.ByIP), `limit "": want`},
		{limit(store, "100", httplimit.ByIP), `limit "100": want`},
		{limit(store, "1/1h", httplimit.ByFunc(nil)), `ByFunc "nil": want a function`},
		{limit(store, "1/1h", httplimit.ByHeader("").Behind("10.0.0.1")), `ByHeader "": want a name, such as X-User-ID`},
		{limit(store, "1/1h", httplimit.ByHeader("X Y").Behind("10.0.0.1")), `ByHeader "X Y": want a header's name`},
		{limit(store, "1/1h", httplimit.ByHeader("X-User")), `ByHeader "X-User": want Behind with the networks of the proxies`},
		{limit(store, "1/1h", httplimit.ByIP.Behind("10.0.0.0/33")), `Behind "10.0.0.0/33": want an address or a network`},
		{limit(store, "1/1h", httplimit.ByIP.Behind("0.0.0.0/0")), `Behind "0.0.0.0/0": want the networks of the proxies`},
		{limit(store, "1/1h", httplimit.ByIP.Named("a b")), `Named "a b": want letters, digits and, between them, any of . _ -`},
		{limit(store, "1/1h", httplimit.ByIP.Named(strings.Repeat("a", 57))), `Named "` + strings.Repeat("a", 57) + `": want letters, digits and, betwee`},
	} {
		if bad := new(stint.InvalidError); !errors.As(c.err, &bad) || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v, want %s", c.err, c.want)
		}
	}
	if err := limit(store, "1/1h", httplimit.ByIP.Named(strings.Repeat("a", 56))); err != nil {
		t.Error(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a middleware around no handler fails with the first request")
		}
	}()
	m, err := httplimit.New(httplimit.Options{Engine: e})
	if err != nil {
		t.Fatal(err)
	}
	m(nil)
}
