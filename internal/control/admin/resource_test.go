package admin_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

// stored is an object of the catalog.
type stored = admin.Record[json.RawMessage]

// records is a list of anything.
type records = admin.RecordList[object]

// asRecord decodes a record, ignoring other fields.
func (a *answer) asRecord() (r stored) {
	a.Helper()
	if err := json.Unmarshal(a.body, &r); err != nil {
		a.Fatalf("%v: %s", err, a.body)
	}
	return r
}

// ids returns the ids of a list.
func (a *answer) ids() (ids string, next string) {
	a.Helper()
	var list records
	a.want(http.StatusOK).into(&list)
	var all []string
	for _, item := range list.Items {
		all = append(all, fmt.Sprint(item["id"]))
	}
	return strings.Join(all, " "), list.Next
}

// seed fills a catalog.
func seed(h *testAPI) {
	h.Helper()
	d := exampleDocument()
	if _, err := h.catalog.Apply(h.Context(), &d, catalog.ApplyOptions{Actor: "seed"}); err != nil {
		h.Fatal(err)
	}
}

// exampleDocument has objects of every kind.
func exampleDocument() catalog.Document {
	off := false
	login := rule.Rule{
		Name: "login", Match: rule.Match{Paths: []string{"/login"}}, CountBy: []rule.Dimension{"ip"},
		Limits: []rule.Limit{{Name: "logins", Limit: "5/minute"}}, Group: "public", Priority: 5,
	}
	trial := searchRule()
	trial.Name, trial.Action, trial.Limits = "trial", rule.LogOnly, []rule.Limit{{Name: "trials", Limit: "10/minute"}}
	trial.Enabled = &off
	return catalog.Document{
		File: rule.File{
			Rules: []rule.Rule{searchRule(), login, trial},
			Tiers: []rule.Tier{{Name: "free"}, {Name: "pro", Limits: map[string]string{"searches": "1000/minute"}}},
		},
		Tenants: []catalog.Tenant{{ID: "acme", Tier: "pro"}, {ID: "beta"}},
		Users: []catalog.User{
			{ID: "alice", Tenant: "acme", Tier: "pro", Limits: map[string]catalog.Override{"searches": {Limit: "200/minute"}}},
			{ID: "bob", Tenant: "acme"},
			{ID: "carl", Blocked: &catalog.Blocked{Reason: "spam"}},
		},
		APIKeys: []catalog.APIKey{
			{ID: "aaaaaaaa", Hash: "sha256:" + strings.Repeat("0a", 32), User: "alice", Name: "app"},
			{ID: "bbbbbbbb", Hash: "sha256:" + strings.Repeat("0b", 32), Tier: "free"},
		},
		Exemptions: []catalog.Entry{{IP: "192.0.2.0/24", Reason: "the office"}},
		Bans:       []catalog.Entry{{User: "mallory"}, {IP: "203.0.113.9"}},
	}
}

// TestResources creates, changes and deletes an object of each kind.
func TestResources(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path, kind, id string
		body           string
		patch, patched string
		put            string
		bad, field     string // what is refused, and what is to blame
	}{
		{
			"rules", "rule", "search", `{"name":"search","count_by":["user"],"limits":[{"name":"searches","limit":"100/minute"}]}`,
			`{"priority":7}`, `"priority":7`, `{"name":"search","limits":[{"name":"searches","limit":"50/minute"}]}`,
			`{"name":"search","limits":[{"name":"searches","limit":"lots"}]}`, "limits[0].limit",
		},
		{
			"tiers", "tier", "pro", `{"name":"pro","price":"49 EUR a month"}`,
			`{"display_name":"Pro","price":null}`, `"value":{"name":"pro","display_name":"Pro"}`, `{"name":"pro","price":"59 EUR a month"}`,
			`{"name":"pro","limits":{"searches":"lots"}}`, "limits.searches",
		},
		{
			"users", "user", "alice@example.com", `{"id":"alice@example.com","tenant":"acme"}`,
			`{"blocked":{"reason":"spam"}}`, `"blocked":{"reason":"spam"}`, `{"id":"alice@example.com"}`,
			`{"id":"alice@example.com","tier":"gold"}`, "tier",
		},
		{
			"tenants", "tenant", "a/b?c=d%", `{"id":"a/b?c=d%"}`,
			`{"name":"Acme"}`, `"name":"Acme"`, `{"id":"a/b?c=d%","name":"Other"}`,
			`{"id":"a/b?c=d%","tier":"gold"}`, "tier",
		},
		{
			"exemptions", "exemption", "ip:192.0.2.0/24", `{"ip":"192.0.2.0/24"}`,
			`{"reason":"the office"}`, `"reason":"the office"`, `{"ip":"192.0.2.0/24","until":"2100-01-01T00:00:00Z"}`,
			`{"ip":"192.0.2.0/24","user":"alice"}`, "",
		},
		{
			"bans", "ban", "user:mallory", `{"user":"mallory"}`,
			`{"reason":"scraping"}`, `"reason":"scraping"`, `{"user":"mallory","until":"2100-01-01T00:00:00Z"}`,
			`{"user":"mallory","until":"later"}`, "until",
		},
	} {
		t.Run(c.path, func(t *testing.T) {
			t.Parallel()
			h := newTestAPI(t)
			one := "/" + c.path + "/" + url.PathEscape(c.id)
			h.get(one).want(http.StatusNotFound).says("there is no " + c.kind)

			a := h.do(http.MethodPost, "/"+c.path+"?dry_run=true", c.body).want(http.StatusCreated)
			if a.Header.Get("Stint-Dry-Run") != "true" {
				t.Error("not said to be a dry run")
			}
			h.get(one).want(http.StatusNotFound)

			a = h.do(http.MethodPost, "/"+c.path, c.body).want(http.StatusCreated)
			made := a.asRecord()
			if made.ID != c.id || made.Version < 1 || made.By != "otto" || made.Created.IsZero() || string(made.Value) != c.body || a.Header.Get("Stint-Dry-Run") != "" {
				t.Errorf("%+v: %s", made, made.Value)
			}
			if got := a.Header.Get("Location"); got != admin.Prefix+one {
				t.Errorf("Location %q, want %q", got, admin.Prefix+one)
			}
			a = h.get(one).want(http.StatusOK)
			if got := a.asRecord(); !reflect.DeepEqual(got, made) || a.Header.Get("ETag") != fmt.Sprintf(`"%d"`, made.Version) {
				t.Errorf("%+v, want %+v (%s)", got, made, a.Header.Get("ETag"))
			}
			p := h.do(http.MethodPost, "/"+c.path, c.body).want(http.StatusConflict).problem()
			if p.Version != made.Version {
				t.Errorf("%+v", p)
			}
			if ids, next := h.get("/" + c.path).ids(); ids != c.id || next != "" {
				t.Errorf("%q, %q", ids, next)
			}

			// A wrong one changes nothing, and the field is named.
			for _, method := range []string{http.MethodPut, http.MethodPatch} {
				p = h.do(method, one, c.bad, "If-Match", "*").want(http.StatusUnprocessableEntity).problem()
				if len(p.Errors) == 0 || p.Errors[0].Field != c.field {
					t.Errorf("%s: %+v, want %q", method, p, c.field)
				}
			}

			h.do(http.MethodPatch, one+"?dry_run=true", c.patch, "If-Match", "*").want(http.StatusOK).says(c.patched)
			if got := h.get(one).asRecord(); got.Version != made.Version {
				t.Errorf("a dry run made version %d of %d", got.Version, made.Version)
			}
			h.clock.advance(time.Hour)
			a = h.do(http.MethodPatch, one, c.patch, "If-Match", a.Header.Get("ETag"), "Content-Type", "application/merge-patch+json").want(http.StatusOK).says(c.patched)
			changed := a.asRecord()
			if changed.Version <= made.Version || !changed.Created.Equal(made.Created) || !changed.Updated.After(made.Updated) {
				t.Errorf("%+v after %+v", changed, made)
			}
			// The same again changes nothing.
			if again := h.do(http.MethodPatch, one, c.patch, "If-Match", "*").want(http.StatusOK).asRecord(); !reflect.DeepEqual(again, changed) {
				t.Errorf("%+v, want %+v", again, changed)
			}

			// What has changed since is a conflict.
			old := fmt.Sprintf(`"%d"`, made.Version)
			for _, method := range []string{http.MethodPut, http.MethodPatch, http.MethodDelete} {
				body := any(c.put)
				if method == http.MethodDelete {
					body = nil
				}
				if p := h.do(method, one, body, "If-Match", old).want(http.StatusPreconditionFailed).problem(); p.Version != changed.Version {
					t.Errorf("%s: %+v", method, p)
				}
				h.do(method, one, body).want(http.StatusPreconditionRequired)
				h.do(method, "/"+c.path+"/unknown", body, "If-Match", "*").want(http.StatusNotFound)
			}
			put := h.do(http.MethodPut, one, c.put, "If-Match", a.Header.Get("ETag")).want(http.StatusOK).asRecord()
			if string(put.Value) != c.put || put.Version <= changed.Version {
				t.Errorf("%+v: %s", put, put.Value)
			}

			h.do(http.MethodDelete, one+"?dry_run=true", nil, "If-Match", "*").want(http.StatusNoContent)
			h.get(one).want(http.StatusOK)
			h.do(http.MethodDelete, one, nil, "If-Match", fmt.Sprintf(`"%d"`, put.Version)).want(http.StatusNoContent)
			h.get(one).want(http.StatusNotFound)
		})
	}
}

// TestIfMatch checks valid and invalid values of If-Match.
func TestIfMatch(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	version := h.do(http.MethodPost, "/tiers", `{"name":"pro"}`).want(http.StatusCreated).asRecord().Version
	for header, want := range map[string]int{
		"":                                     http.StatusPreconditionRequired,
		"*":                                    http.StatusOK,
		fmt.Sprintf(`"%d"`, version):           http.StatusOK,
		fmt.Sprintf(`W/"%d"`, version):         http.StatusOK,
		fmt.Sprintf(`"%d"`, version+1):         http.StatusPreconditionFailed,
		strconv.FormatInt(version, 10):         http.StatusBadRequest,
		`"0"`:                                  http.StatusBadRequest,
		`"-1"`:                                 http.StatusBadRequest,
		`"x"`:                                  http.StatusBadRequest,
		`"`:                                    http.StatusBadRequest,
		`""`:                                   http.StatusBadRequest,
		`"1", "2"`:                             http.StatusBadRequest,
		`"99999999999999999999"`:               http.StatusBadRequest,
		strings.Repeat("9", 10000):             http.StatusBadRequest,
		"\"" + strings.Repeat("9", 100) + "\"": http.StatusBadRequest,
	} {
		a := h.do(http.MethodPut, "/tiers/pro", `{"name":"pro"}`, "If-Match", header)
		if a.StatusCode != want {
			t.Errorf("%.40q: %d, want %d: %s", header, a.StatusCode, want, a.body)
		}
	}
}

// TestMergePatch checks RFC 7396 on a rule.
func TestMergePatch(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	const whole = `{"name":"r","match":{"paths":["/a"],"headers":{"X-A":"1","X-B":"2"}},"limits":[{"name":"l","limit":"1/second"}],"priority":3,"group":"g"}`
	version := h.do(http.MethodPost, "/rules", whole).want(http.StatusCreated).asRecord().Version
	for _, c := range []struct {
		patch  string
		status int
		want   string // the value, or what the problem says
	}{
		{`{}`, 200, whole},
		{`{"priority":4}`, 200, strings.Replace(whole, `"priority":3`, `"priority":4`, 1)},
		{`{"priority":null}`, 200, strings.Replace(whole, `"priority":3,`, ``, 1)},
		{`{"priority":null,"group":null,"match":null}`, 200, `{"name":"r","limits":[{"name":"l","limit":"1/second"}]}`},
		{`{"match":{"headers":{"X-A":null}}}`, 200, strings.Replace(whole, `"X-A":"1",`, ``, 1)},
		{`{"match":{"headers":{"X-C":"3"}}}`, 200, strings.Replace(whole, `"X-B":"2"`, `"X-B":"2","X-C":"3"`, 1)},
		{`{"match":{"paths":["/b","/c"]}}`, 200, strings.Replace(whole, `["/a"]`, `["/b","/c"]`, 1)},
		{`{"limits":[{"name":"l","limit":"2/second"}]}`, 200, strings.Replace(whole, `1/second`, `2/second`, 1)},
		{`{"name":"r"}`, 200, whole},
		{`{"nothing":null}`, 200, whole}, // to delete what is not there is nothing
		{`{"name":"other"}`, 422, `name: \"other\": want \"r\"`},
		{`{"name":null}`, 422, `name`},
		{`{"limits":null}`, 422, `limits`},
		{`{"limits":{"0":{"limit":"2/second"}}}`, 422, `limits: found a table, want an array`},
		{`{"priorty":4}`, 422, `did you mean \"priority\"`},
		{`{"priority":"4"}`, 422, `write it without quotes`},
		{`{"priority":1.5}`, 422, `priority`},
		{`{"priority":99999999999999999999}`, 422, `priority`},
		{`{"priority":4,"priority":5}`, 422, `priority`},
		{`[]`, 422, `want a JSON object`},
		{`null`, 422, `want a JSON object`},
		{`"x"`, 422, `want a JSON object`},
		{`{`, 400, ``},
		{`{"a":1}{"b":2}`, 400, ``},
		{strings.Repeat(`{"match":`, 100) + `1` + strings.Repeat(`}`, 100), 422, `levels`},
		{strings.Repeat(`[`, 100000), 400, ``},
	} {
		a := h.do(http.MethodPatch, "/rules/r?dry_run=true", c.patch, "If-Match", fmt.Sprintf(`"%d"`, version)).want(c.status)
		if c.status == 200 {
			if got := string(a.asRecord().Value); got != c.want {
				t.Errorf("%s: %s, want %s", c.patch, got, c.want)
			}
			continue
		}
		a.says(c.want)
		if p := a.problem(); c.status == 422 && strings.Contains(c.want, "did you") && p.Errors[0].Line != 0 {
			t.Errorf("%s: a place in what no one has written: %+v", c.patch, p)
		}
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	inDatabase := newTestAPI(t)
	seed(inDatabase)
	file := newFileAPI(t, exampleDocument())
	for path, want := range map[string]string{
		"/rules":                           "login search trial",
		"/rules?q=SEA":                     "search",
		"/rules?action=reject":             "login search",
		"/rules?action=log_only":           "trial",
		"/rules?enabled=true":              "login search",
		"/rules?enabled=false":             "trial",
		"/rules?group=public":              "login",
		"/rules?group=public&action=allow": "",
		"/rules?prefix=se":                 "search",
		"/rules?after=login":               "search trial",
		"/tiers":                           "free pro",
		"/tenants":                         "acme beta",
		"/tenants?tier=pro":                "acme",
		"/users":                           "alice bob carl",
		"/users?tier=pro":                  "alice",
		"/users?tenant=acme":               "alice bob",
		"/users?tenant=acme&tier=free":     "",
		"/users?blocked=true":              "carl",
		"/users?blocked=false":             "alice bob carl",
		"/keys":                            "aaaaaaaa bbbbbbbb",
		"/keys?user=alice":                 "aaaaaaaa",
		"/keys?tier=free":                  "bbbbbbbb",
		"/keys?tenant=acme":                "",
		"/exemptions":                      "ip:192.0.2.0/24",
		"/bans":                            "ip:203.0.113.9 user:mallory",
		"/bans?prefix=user:":               "user:mallory",
		"/users?tier=" + url.QueryEscape("pro' OR '1'='1"):       "",
		"/users?prefix=" + url.QueryEscape("%"):                  "",
		"/rules?q=" + url.QueryEscape("%"):                       "",
		"/rules?q=" + url.QueryEscape(`") OR 1=1 --`):            "",
		"/users?after=" + url.QueryEscape("'; DROP TABLE x; --"): "alice bob carl",
		"/users?prefix=" + url.QueryEscape("\U0010ffff"):         "",
	} {
		for name, h := range map[string]*testAPI{"database": inDatabase, "file": file} {
			if ids, _ := h.get(path).ids(); ids != want {
				t.Errorf("%s of a %s: %q, want %q", path, name, ids, want)
			}
		}
	}
	for _, h := range []*testAPI{inDatabase, file} {
		var all []string
		for after := ""; ; {
			ids, next := h.get("/users?limit=2&after=" + after).ids()
			if all = append(all, ids); next == "" {
				break
			}
			after = next
		}
		if got := strings.Join(all, "|"); got != "alice bob|carl" {
			t.Errorf("page by page: %s", got)
		}
		for path, want := range map[string]string{
			"/users?limit=0":                           `limit`,
			"/users?limit=1001":                        `limit`,
			"/users?limit=-1":                          `limit`,
			"/users?limit=x":                           `limit`,
			"/users?limit=1e3":                         `limit`,
			"/users?limit=99999999999999999999":        `limit`,
			"/users?limt=1":                            `did you mean \"limit\"`,
			"/users?LIMIT=1":                           `did you mean \"limit\"`,
			"/users?tier=a&tier=b":                     `is given 2 times`,
			"/users?blocked=maybe":                     `true or false`,
			"/rules?enabled=1":                         `want one of true, false`,
			"/rules?action=rejct":                      `did you mean \"reject\"`,
			"/users?q=a":                               `unknown parameter`,
			"/users?tier=%00":                          `control characters`,
			"/users?tier=%ff":                          `UTF-8`,
			"/users?tier=%zz":                          `is malformed`,
			"/users?a;b":                               `is malformed`,
			"/users?tier=" + strings.Repeat("a", 5000): `at most`,
			"/rules/search?x=1":                        `has no parameters`,
		} {
			h.get(path).want(http.StatusBadRequest).says(want)
		}
	}
	inDatabase.get("/rules").says(`"reading":"`)
}

// TestFileMode reads a file, and cannot write.
func TestFileMode(t *testing.T) {
	t.Parallel()
	h := newFileAPI(t, exampleDocument())
	h.get("/rules/search").want(http.StatusOK).says(`"version":0`, `"reading":"`)
	h.get("/rules/unknown").want(http.StatusNotFound)
	h.get("/keys/aaaaaaaa").want(http.StatusOK)
	if text := string(h.get("/keys").body); strings.Contains(text, "hash") || strings.Contains(text, "0a0a") {
		t.Errorf("a hash: %s", text)
	}
	for _, c := range []struct{ method, path, body string }{
		{http.MethodPost, "/rules", `{"name":"x","limits":[{"name":"l","limit":"1/s"}]}`},
		{http.MethodPut, "/rules/search", `{"name":"search"}`},
		{http.MethodPatch, "/rules/search", `{"priority":1}`},
		{http.MethodDelete, "/rules/search", ``},
		{http.MethodPost, "/rules/search/disable", ``},
		{http.MethodPost, "/rules/order", `{"names":["search"]}`},
		{http.MethodPost, "/users", `{"id":"x"}`},
		{http.MethodPost, "/keys", `{"name":"x"}`},
		{http.MethodPost, "/keys/aaaaaaaa/revoke", ``},
		{http.MethodPost, "/apply", `{}`},
		{http.MethodPost, "/apply?dry_run=true", `{}`},
	} {
		var body any
		if c.body != "" {
			body = c.body
		}
		p := h.do(c.method, c.path, body, "If-Match", "*").want(http.StatusConflict).problem()
		if p.Detail != "rules are in the file stint.toml: change them there" {
			t.Errorf("%s %s: %q", c.method, c.path, p.Detail)
		}
	}
	h.do(http.MethodPost, "/rules/preview", searchRule()).want(http.StatusConflict).says("decisions are not recorded")
	h.get("/rules/search/history").want(http.StatusConflict)

	same := searchRule()
	same.Limits[0].Name = "others"
	h.ask(http.MethodPost, "/rules/validate", same, "", h.viewer).want(http.StatusOK).says(`"ok":false`)
	h.ask(http.MethodPost, "/rules/validate?replacing=search", searchRule(), "", h.viewer).want(http.StatusOK).says(`"ok":true`)
	h.ask(http.MethodPost, "/rules/validate?replacing=unknown", searchRule(), "", h.viewer).want(http.StatusNotFound)
	bad := searchRule()
	bad.Limits[0].Limit = "lots"
	h.ask(http.MethodPost, "/rules/validate?replacing=search", bad, "", h.viewer).want(http.StatusOK).says(`"field":"limits[0].limit"`)

	var d catalog.Document
	h.get("/export").want(http.StatusOK).into(&d)
	if len(d.Rules) != 3 || len(d.Users) != 0 || len(d.APIKeys) != 0 {
		t.Errorf("%+v", d)
	}
	h.do(http.MethodGet, "/export?users=true&format=toml", nil).want(http.StatusOK).says("[[users]]", "[[rules]]")
}

func TestKeys(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	seed(h)
	h.do(http.MethodPost, "/keys", `{"user":"nobody"}`).want(http.StatusUnprocessableEntity).says(`"field":"user"`)
	h.do(http.MethodPost, "/keys", `{"hash":"sha256:00"}`).want(http.StatusUnprocessableEntity).says(`unknown field`)
	var tried admin.CreatedKey
	h.do(http.MethodPost, "/keys?dry_run=true", `{"user":"alice"}`).want(http.StatusCreated).into(&tried)
	if tried.Text != "" {
		t.Errorf("a key that opens nothing: %+v", tried)
	}
	h.get("/keys/" + tried.ID).want(http.StatusNotFound)

	var made admin.CreatedKey
	a := h.do(http.MethodPost, "/keys", `{"name":"app","user":"alice","limits":{"searches":"5/second"},"expires":"2100-01-01T00:00:00Z"}`).want(http.StatusCreated)
	a.into(&made)
	if !strings.HasPrefix(made.Text, made.Value.Prefix) || !strings.Contains(made.Text, made.ID) || made.Value.User != "alice" {
		t.Errorf("%+v", made)
	}
	one := "/keys/" + made.ID
	if a.Header.Get("Location") != admin.Prefix+one {
		t.Error(a.Header.Get("Location"))
	}
	secret := made.Text[strings.LastIndex(made.Text, "_")+1:]
	for _, path := range []string{one, "/keys", "/changes", "/rules"} {
		if text := string(h.get(path).want(http.StatusOK).body); strings.Contains(text, secret) || strings.Contains(text, "sha256:0") {
			t.Errorf("%s: a secret: %s", path, text)
		}
	}
	if strings.Contains(h.log.String(), secret) {
		t.Error("the log has a secret")
	}

	h.do(http.MethodPut, one, `{}`, "If-Match", "*").want(http.StatusMethodNotAllowed)
	h.do(http.MethodPatch, one, `{"disabled":true,"limits":null,"tier":"pro"}`, "If-Match", "*").want(http.StatusOK).says(`"disabled":true`, `"tier":"pro"`)
	for _, patch := range []string{
		`{"id":"cccccccc"}`, `{"prefix":"x"}`, `{"prefix":null}`, `{"revoked":"2020-01-01T00:00:00Z"}`, `{"revoked_by":"x"}`, `{"hash":"sha256:00"}`,
	} {
		h.do(http.MethodPatch, one, patch, "If-Match", "*").want(http.StatusUnprocessableEntity)
	}
	h.do(http.MethodPost, one+"/revoke?dry_run=true", nil).want(http.StatusOK).says(`"revoked_by":"otto"`)
	if strings.Contains(string(h.get(one).body), "revoked") {
		t.Error("a dry run has revoked it")
	}
	first := h.do(http.MethodPost, one+"/revoke", nil).want(http.StatusOK).says(`"revoked_by":"otto"`).asRecord()
	h.clock.advance(time.Hour)
	if again := h.do(http.MethodPost, one+"/revoke", nil).want(http.StatusOK).asRecord(); !reflect.DeepEqual(again, first) {
		t.Errorf("%+v, then %+v", first, again)
	}
	h.do(http.MethodPatch, one, `{"revoked":null,"revoked_by":null}`, "If-Match", "*").want(http.StatusUnprocessableEntity)
	h.do(http.MethodPost, "/keys/unknown1/revoke", nil).want(http.StatusNotFound)
	h.do(http.MethodDelete, one, nil, "If-Match", "*").want(http.StatusNoContent)

	// What is referred to stays.
	h.do(http.MethodDelete, "/users/alice", nil, "If-Match", "*").want(http.StatusUnprocessableEntity).says("cannot be deleted")
	h.do(http.MethodDelete, "/tiers/pro", nil, "If-Match", "*").want(http.StatusUnprocessableEntity).says("cannot be deleted")
}
