package admin_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/rule"
)

// access is who may use an operation.
type access struct {
	role catalog.Role // the least
	// about is the request, for people who are restricted to tenants too: a path and a body, in which {T}, {U}, {K} and
	// {D} stand for a tenant, a user, a key and a decision, and {V} for a token. Empty: such people may not use it.
	about, body string
	// other is the status they get if it is about another tenant. 0: it is about no one.
	other int
}

const (
	nothing = http.StatusNotFound  // what is not theirs does not exist
	refused = http.StatusForbidden // they asked for another tenant by name
)

// matrix is the access to every operation. A new one needs a line here.
var matrix = map[string]access{
	"GET /openapi.json":     {"anyone", "/openapi.json", "", 0},
	"POST /session":         {"anyone", "", "", 0},
	"GET /sign-in":          {"anyone", "/sign-in", "", 0},
	"GET /sign-in/start":    {"anyone", "/sign-in/start", "", 0},
	"GET /sign-in/callback": {"anyone", "/sign-in/callback", "", 0},
	"GET /session":          {"viewer", "/session", "", 0},
	"DELETE /session":       {"viewer", "/session", "", 0},
	"GET /tokens":           {"admin", "/tokens", "", 0},
	"POST /tokens":          {"admin", "/tokens", `{"name":"more","role":"viewer","tenants":["{T}"]}`, refused},
	"DELETE /tokens/{id}":   {"admin", "/tokens/{V}", "", nothing},

	"GET /me":                   {"user", "/me", "", 0},
	"GET /me/usage":             {"user", "/me/usage", "", 0},
	"GET /me/keys":              {"user", "/me/keys", "", 0},
	"POST /me/keys/{id}/rotate": {"user", "/me/keys/{F}/rotate?dry_run=true", `{"grace_seconds":60}`, nothing},
	"GET /me/decisions/{id}":    {"user", "/me/decisions/{D}", "", nothing},

	"GET /users":         {"viewer", "/users?tenant={T}", "", refused},
	"GET /users/{id}":    {"viewer", "/users/{U}", "", nothing},
	"PUT /users/{id}":    {"operator", "/users/{U}?dry_run=true", `{"id":"{U}","tenant":"{T}","tier":"gold","blocked":{"reason":"left"}}`, nothing},
	"PATCH /users/{id}":  {"operator", "/users/{U}?dry_run=true", `{"blocked":{"reason":"left"}}`, nothing},
	"POST /users":        {"operator", "", "", 0}, // its id may be that of someone else
	"DELETE /users/{id}": {"operator", "", "", 0}, // and with it what limits the user

	"GET /keys":              {"viewer", "/keys?tenant={T}", "", refused},
	"GET /keys/{id}":         {"viewer", "/keys/{K}", "", nothing},
	"POST /keys":             {"operator", "/keys?dry_run=true", `{"name":"app","tenant":"{T}","user":"{U}"}`, refused},
	"PATCH /keys/{id}":       {"operator", "/keys/{K}?dry_run=true", `{"disabled":true}`, nothing},
	"POST /keys/{id}/revoke": {"operator", "/keys/{K}/revoke?dry_run=true", "", nothing},
	"POST /keys/{id}/rotate": {"operator", "/keys/{K}/rotate?dry_run=true", "", nothing},
	"DELETE /keys/{id}":      {"operator", "", "", 0},

	"GET /tenants":         {"viewer", "/tenants", "", 0},
	"GET /tenants/{id}":    {"viewer", "/tenants/{T}", "", nothing},
	"POST /tenants":        {"operator", "", "", 0},
	"PUT /tenants/{id}":    {"operator", "", "", 0},
	"PATCH /tenants/{id}":  {"operator", "", "", 0},
	"DELETE /tenants/{id}": {"operator", "", "", 0},

	"GET /tiers":         {"viewer", "/tiers", "", 0},
	"GET /tiers/{id}":    {"viewer", "/tiers/gold", "", 0},
	"POST /tiers":        {"operator", "", "", 0},
	"PUT /tiers/{id}":    {"operator", "", "", 0},
	"PATCH /tiers/{id}":  {"operator", "", "", 0},
	"DELETE /tiers/{id}": {"operator", "", "", 0},

	"GET /rules":                 {"viewer", "/rules", "", 0},
	"GET /rules/{id}":            {"viewer", "/rules/lookups", "", 0},
	"GET /rules/{id}/history":    {"viewer", "", "", 0},
	"GET /rules/{id}/rollout":    {"viewer", "", "", 0},
	"POST /rules":                {"operator", "", "", 0},
	"PUT /rules/{id}":            {"operator", "", "", 0},
	"PATCH /rules/{id}":          {"operator", "", "", 0},
	"DELETE /rules/{id}":         {"operator", "", "", 0},
	"POST /rules/order":          {"operator", "", "", 0},
	"POST /rules/preview":        {"viewer", "", "", 0},
	"POST /rules/validate":       {"viewer", "", "", 0},
	"POST /replay":               {"viewer", "", "", 0}, // it is about all tenants
	"POST /rules/{id}/disable":   {"operator", "", "", 0},
	"POST /rules/{id}/enable":    {"operator", "", "", 0},
	"POST /rules/{id}/rollout":   {"operator", "", "", 0},
	"POST /rules/{id}/promote":   {"operator", "", "", 0},
	"GET /rules/{id}/candidates": {"viewer", "", "", 0},

	"GET /bans":               {"viewer", "", "", 0},
	"POST /bans":              {"operator", "", "", 0},
	"GET /bans/{id}":          {"viewer", "", "", 0},
	"PUT /bans/{id}":          {"operator", "", "", 0},
	"PATCH /bans/{id}":        {"operator", "", "", 0},
	"DELETE /bans/{id}":       {"operator", "", "", 0},
	"GET /exemptions":         {"viewer", "", "", 0},
	"POST /exemptions":        {"operator", "", "", 0},
	"GET /exemptions/{id}":    {"viewer", "", "", 0},
	"PUT /exemptions/{id}":    {"operator", "", "", 0},
	"PATCH /exemptions/{id}":  {"operator", "", "", 0},
	"DELETE /exemptions/{id}": {"operator", "", "", 0},

	"GET /subjects":                                       {"viewer", "/subjects?q={U}", "", 0},
	"GET /subjects/{kind}/{id}":                           {"viewer", "/subjects/user/{U}", "", nothing},
	"GET /subjects/{kind}/{id}/usage":                     {"viewer", "/subjects/key/{K}/usage", "", nothing},
	"GET /subjects/{kind}/{id}/live":                      {"viewer", "/subjects/tenant/{T}/live", "", nothing},
	"POST /subjects/{kind}/{id}/reset":                    {"operator", "/subjects/user/{U}/reset", "", nothing},
	"PUT /subjects/{kind}/{id}/ban":                       {"operator", "/subjects/user/{U}/ban?dry_run=true", `{"reason":"scraping"}`, nothing},
	"DELETE /subjects/{kind}/{id}/ban":                    {"operator", "/subjects/key/{K}/ban?dry_run=true", "", nothing},
	"PUT /subjects/{kind}/{id}/exemption":                 {"operator", "", "", 0},
	"DELETE /subjects/{kind}/{id}/exemption":              {"operator", "", "", 0},
	"PUT /subjects/{kind}/{id}/overrides/{limit_name}":    {"operator", "", "", 0},
	"DELETE /subjects/{kind}/{id}/overrides/{limit_name}": {"operator", "", "", 0},
	"POST /explain":                                       {"viewer", "", "", 0}, // it names all rules

	"GET /decisions/{id}":     {"viewer", "/decisions/{D}", "", nothing},
	"GET /events":             {"viewer", "/events?tenant={T}", "", refused},
	"GET /events/export":      {"viewer", "/events/export?tenant={T}", "", refused},
	"GET /events/follow":      {"viewer", "/events/follow?tenant={T}", "", refused},
	"GET /consumption":        {"viewer", "/consumption?tenant={T}&by=user,tenant,key", "", refused},
	"GET /consumption/export": {"viewer", "/consumption/export?tenant={T}&by=user,tenant,key", "", refused},
	"GET /violations":         {"viewer", "/violations?user={U}", "", refused},
	"GET /series":             {"viewer", "", "", 0},
	"GET /top":                {"viewer", "", "", 0},
	"GET /clients":            {"viewer", "", "", 0},
	"GET /live":               {"viewer", "", "", 0},
	"GET /live/stream":        {"viewer", "", "", 0},

	"GET /status":   {"viewer", "/status", "", 0},
	"GET /nodes":    {"viewer", "", "", 0},
	"GET /regions":  {"viewer", "", "", 0},
	"GET /settings": {"admin", "", "", 0},
	"GET /envoy":    {"viewer", "", "", 0},

	"GET /changes":                    {"viewer", "", "", 0},
	"GET /revisions":                  {"viewer", "", "", 0},
	"GET /search":                     {"viewer", "", "", 0},
	"POST /changes/{revision}/revert": {"operator", "", "", 0},
	"POST /apply":                     {"operator", "", "", 0},
	"GET /export":                     {"viewer", "", "", 0},
}

// tenanted has two tenants, north and beta, each with a user, a key, decisions and a token.
type tenanted struct {
	*testAPI
	keys  map[string]string // by tenant
	free  map[string]string // keys that are not banned
	made  map[string]string // decisions
	users map[string]string
	n     int
}

func newTenanted(t *testing.T) *tenanted {
	t.Helper()
	h := &tenanted{testAPI: newTestAPI(t), keys: map[string]string{}, free: map[string]string{}, made: map[string]string{}, users: map[string]string{"north": "anna", "beta": "bobby2"}}
	h.do(http.MethodPost, "/tiers", rule.Tier{Name: "gold"}).want(http.StatusCreated)
	lookups, office := searchRule(), searchRule()
	lookups.Name = "lookups"
	h.do(http.MethodPost, "/rules", lookups).want(http.StatusCreated)
	office.Name, office.Match.IPRanges = "office", []string{"192.0.2.0/24"}
	h.do(http.MethodPost, "/rules", office).want(http.StatusCreated)
	for _, tenant := range []string{"north", "beta"} {
		h.do(http.MethodPost, "/tenants", catalog.Tenant{ID: tenant, Tier: "gold"}).want(http.StatusCreated)
		h.do(http.MethodPost, "/users", catalog.User{ID: h.users[tenant], Tenant: tenant, Tier: "gold"}).want(http.StatusCreated)
		var made admin.CreatedKey
		h.do(http.MethodPost, "/keys", admin.NewKey{User: h.users[tenant], Tenant: tenant}).want(http.StatusCreated).into(&made)
		h.keys[tenant] = made.ID
		h.do(http.MethodPost, "/keys", admin.NewKey{User: h.users[tenant], Tenant: tenant}).want(http.StatusCreated).into(&made)
		h.free[tenant] = made.ID
		made.ID = h.keys[tenant]
		h.do(http.MethodPut, "/subjects/key/"+made.ID+"/ban", admin.NewEntry{Reason: "scraping"}).want(http.StatusOK)
	}
	h.keep(10, func(i int, e *record.Event) {
		if e.User, e.Tenant, e.Key = "anna", "north", h.keys["north"]; i%2 == 0 {
			e.User, e.Tenant, e.Key, e.IP = "bobby2", "beta", h.keys["beta"], "198.51.100.7"
		}
		e.Rule, h.made[e.Tenant] = "lookups", e.ID.String()
	})
	h.used("north", "beta")
	return h
}

// scoped returns a token for tenants.
func (h *tenanted) scoped(role catalog.Role, tenants ...string) (text, id string) {
	h.Helper()
	text, made, err := h.tokens.CreateToken(h.Context(), "test", catalog.Token{Name: "guest", Role: role, Tenants: tenants})
	if err != nil {
		h.Fatal(err)
	}
	return text, made.ID
}

// about returns a request that is about a tenant.
func (h *tenanted) about(pattern string, a access, tenant, token string) *http.Request {
	h.Helper()
	method, _, _ := strings.Cut(pattern, " ")
	other := ""
	if strings.Contains(a.about, "{V}") {
		_, other = h.scoped(catalog.Viewer, tenant)
	}
	fill := strings.NewReplacer("{T}", tenant, "{U}", h.users[tenant], "{K}", h.keys[tenant], "{F}", h.free[tenant], "{D}", h.made[tenant], "{V}", other).Replace
	var body any
	if a.body != "" {
		body = fill(a.body)
	}
	return h.request(method, fill(a.about), body, "", token, "If-Match", "*")
}

// from asks from an address of its own.
func (h *tenanted) from(r *http.Request) *answer {
	h.n++
	r.RemoteAddr = fmt.Sprintf("10.%d.%d.%d:1234", h.n>>16, h.n>>8&255, h.n&255)
	return h.status(r)
}

// TestMatrix asks every operation, with every role, for all tenants and for one, about that tenant and about another.
func TestMatrix(t *testing.T) {
	t.Parallel()
	h := newTenanted(t)
	if have, want := slices.Sorted(maps.Keys(matrix)), slices.Sorted(slices.Values(h.api31.operations())); !slices.Equal(have, want) {
		t.Fatalf("the matrix has\n%s\nthe API has\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	anna := h.ofUser("anna")
	all := map[catalog.Role]string{catalog.Viewer: h.viewer, catalog.Operator: h.operator, catalog.Administrator: h.admin}
	cells := 0
	for pattern, a := range matrix {
		op := h.api31.operation(pattern)
		if op["x-stint-role"] != string(a.role) || a.role != "anyone" && op["x-stint-scoped"] != (a.about != "") {
			t.Errorf("%s: the document says %v and %v, the matrix %v and %q", pattern, op["x-stint-role"], op["x-stint-scoped"], a.role, a.about)
		}
		check := func(who string, r *http.Request, ok func(status int) bool, want string) *answer {
			t.Helper()
			cells++
			got := h.from(r)
			if !ok(got.StatusCode) {
				t.Errorf("%s: %s: %d, want %s: %s", pattern, who, got.StatusCode, want, got.body)
			}
			return got
		}
		is := func(status int) func(int) bool { return func(got int) bool { return got == status } }
		passes := func(status int) bool { // it may still be wrong in itself, if it is only an example
			return status < 400 || a.about == "" && status != http.StatusUnauthorized && status != http.StatusForbidden && status < 500
		}
		ask := func(tenant, token string) *http.Request {
			if a.about == "" {
				return h.example(pattern, "", token)
			}
			return h.about(pattern, a, tenant, token)
		}
		if a.role == "anyone" {
			continue // TestAuthorization
		}
		for _, role := range []catalog.Role{catalog.Viewer, catalog.Operator, catalog.Administrator} {
			guest, _ := h.scoped(role, "north")
			for _, tenant := range []string{"north", "beta"} {
				if !role.Includes(a.role) {
					check(string(role), ask(tenant, all[role]), is(http.StatusForbidden), "403")
					check(string(role)+" of north", ask(tenant, guest), is(http.StatusForbidden), "403")
					continue
				}
				check(string(role), ask(tenant, all[role]), passes, "success")
				switch {
				case a.about == "":
					check(string(role)+" of north", ask(tenant, guest), is(http.StatusForbidden), "403")
				case tenant == "north" || a.other == 0:
					got := check(string(role)+" of north", ask("north", guest), passes, "success")
					for _, secret := range []string{"beta", "bobby2", h.keys["beta"], "198.51.100.7", "192.0.2.0", "otto"} {
						if a.role != "anyone" && strings.Contains(string(got.body), secret) {
							t.Errorf("%s: %s of north is told of %s: %s", pattern, role, secret, got.body)
						}
					}
				default:
					check(string(role)+" of north about beta", ask(tenant, guest), is(a.other), strconv.Itoa(a.other))
				}
			}
		}
		of := func(tenant string) *http.Request {
			if a.role == catalog.OfUser {
				return h.about(pattern, a, tenant, anna)
			}
			return ask(tenant, anna)
		}
		switch got := a.role; {
		case got != catalog.OfUser:
			check("a user", of("north"), is(http.StatusForbidden), "403")
		default:
			answer := check("a user", of("north"), func(status int) bool { return status < 300 }, "success")
			for _, secret := range []string{"beta", "bobby2", h.keys["beta"], h.free["beta"], "198.51.100.7", "192.0.2.0", "otto"} {
				if strings.Contains(string(answer.body), secret) {
					t.Errorf("%s: a user is told of %s: %s", pattern, secret, answer.body)
				}
			}
			if a.other != 0 {
				check("a user about another", of("beta"), is(a.other), strconv.Itoa(a.other))
			}
		}
		check("no one", ask("north", "stint_admin_0000000000000000_00000000000000000000000000"), is(http.StatusUnauthorized), "401")
	}
	if want := 1000; cells < want {
		t.Errorf("%d cells, want at least %d", cells, want)
	}
}

// TestGuestWrites has someone who is restricted to a tenant try to get out of it.
func TestGuestWrites(t *testing.T) {
	t.Parallel()
	h := newTenanted(t)
	operator, _ := h.scoped(catalog.Operator, "north")
	administrator, _ := h.scoped(catalog.Administrator, "north")
	h.do(http.MethodPost, "/users", catalog.User{ID: "nobody"}).want(http.StatusCreated)
	for _, c := range []struct {
		what, method, path, body string
		want                     int
	}{
		{"a better tier", "PATCH", "/users/anna", `{"tier":null}`, refused},
		{"a higher limit", "PATCH", "/users/anna", `{"limits":{"searches":"unlimited"}}`, refused},
		{"another tenant", "PATCH", "/users/anna", `{"tenant":"beta"}`, refused},
		{"no tenant", "PATCH", "/users/anna", `{"tenant":null}`, refused},
		{"the user of another", "PATCH", "/users/bob", `{"tenant":"north"}`, nothing},
		{"the user of none", "PATCH", "/users/nobody", `{"tenant":"north"}`, nothing},
		{"a key for another tenant", "POST", "/keys", `{"tenant":"beta"}`, refused},
		{"a key for no tenant", "POST", "/keys", `{"user":"anna"}`, refused},
		{"a key for the user of another", "POST", "/keys", `{"tenant":"north","user":"bobby2"}`, http.StatusUnprocessableEntity},
		{"a key for a user that does not exist", "POST", "/keys", `{"tenant":"north","user":"zoe"}`, http.StatusUnprocessableEntity},
		{"a key with a tier", "POST", "/keys", `{"tenant":"north","tier":"gold"}`, refused},
		{"a key with limits", "POST", "/keys", `{"tenant":"north","limits":{"searches":"unlimited"}}`, refused},
		{"a key to another user", "PATCH", "/keys/" + h.keys["north"], `{"user":"bobby2"}`, http.StatusUnprocessableEntity},
		{"a key to another tenant", "PATCH", "/keys/" + h.keys["north"], `{"tenant":"beta"}`, refused},
		{"its own ban", "DELETE", "/subjects/tenant/north/ban", "", refused},
		{"the ban of an address", "PUT", "/subjects/ip/192.0.2.1/ban", "", refused},
		{"the counters of an address", "POST", "/subjects/ip/192.0.2.1/reset", "", refused},
		{"the counters of a user of none", "POST", "/subjects/user/nobody/reset", "", nothing},
		{"an address", "GET", "/subjects/ip/192.0.2.1", "", refused},
		{"a rule that names addresses", "GET", "/rules/office", "", nothing},
	} {
		var body any
		if c.body != "" {
			body = c.body
		}
		if a := h.ask(c.method, c.path, body, "", operator, "If-Match", "*"); a.StatusCode != c.want {
			t.Errorf("%s: %d, want %d: %s", c.what, a.StatusCode, c.want, a.body)
		}
	}
	h.ask(http.MethodPost, "/tokens", `{"name":"x","role":"viewer"}`, "", administrator).want(refused).says("north")
	h.ask(http.MethodPost, "/tokens", `{"name":"x","role":"viewer","tenants":["north","beta"]}`, "", administrator).want(refused)
	h.ask(http.MethodGet, "/tokens", nil, "", administrator).want(http.StatusOK).says("guest")
	var made admin.CreatedToken
	h.ask(http.MethodPost, "/tokens", `{"name":"x","role":"admin","tenants":["north"]}`, "", administrator).want(http.StatusCreated).into(&made)
	h.ask(http.MethodPatch, "/users/anna", `{"blocked":{"reason":"left"}}`, "", made.Text, "If-Match", "*").want(http.StatusOK).says(`"updated_by":"x"`)

	// A session is as restricted as its token.
	cookie, _ := h.login(operator)
	h.ask(http.MethodGet, "/users/bob", nil, "Cookie", cookie).want(nothing)
	h.ask(http.MethodGet, "/session", nil, "Cookie", cookie).want(http.StatusOK).says(`"tenants":["north"]`)

	// Two tenants have to be asked for by name.
	both, _ := h.scoped(catalog.Viewer, "north", "beta")
	h.ask(http.MethodGet, "/users", nil, "", both).want(http.StatusBadRequest).says("north, beta")
	h.ask(http.MethodGet, "/users?tenant=beta", nil, "", both).want(http.StatusOK).says("bobby2")
	h.ask(http.MethodGet, "/tenants", nil, "", both).want(http.StatusOK).says("north", "beta")
	// The name of what is left over is no tenant.
	rest, _ := h.scoped(catalog.Viewer, record.Other)
	h.ask(http.MethodGet, "/consumption", nil, "", rest).want(refused)
}

// TestBadTenants creates tokens for tenants that cannot be.
func TestBadTenants(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	many := `"t0"`
	for i := range catalog.MaxTenants {
		many += fmt.Sprintf(`,"t%d"`, i+1)
	}
	for tenants, want := range map[string]string{`["a","a"]`: "tenants[1]", `[""]`: "tenants[0]", `["a\u0000"]`: "tenants[0]", "[" + many + "]": "tenants", `"north"`: "tenants"} {
		p := h.ask(http.MethodPost, "/tokens", `{"name":"x","role":"viewer","tenants":`+tenants+`}`, "", h.admin).want(http.StatusUnprocessableEntity).problem()
		if len(p.Errors) == 0 || p.Errors[0].Field != want {
			t.Errorf("%s: %+v, want %s", tenants, p, want)
		}
	}
}
