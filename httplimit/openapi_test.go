package httplimit_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/packed"
	"github.com/stintdev/stint/internal/test/testopenapi"
)

// object is JSON.
type object = map[string]any

// document is a document of OpenAPI.
type document struct{ root any }

func (d document) at(v any, path ...string) any { return testopenapi.At(d.root, v, path...) }

func (d document) validate(schema, v any, where string) []string {
	return testopenapi.Validate(d.root, schema, v, where)
}

// shownTicket is in the examples, in place of a good one.
const shownTicket = "AdPb0cWq2Yk3mH7xq9vJt1rLw5s8f4nKb6Zy0aXg"

// TestOpenAPI holds the document against the handler: every request in it is sent,
// every response that comes is in it and is as it says, every response in it comes,
// and every example fits its schema.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	w := worldOf(t, apiRules, identity.Options{})
	h := apiOf(t, w)
	var doc document
	rec := call(h, "GET", "/v1/openapi.json", "")
	if err := json.Unmarshal(rec.Body.Bytes(), &doc.root); err != nil {
		t.Fatal(err)
	}
	paths := doc.at(doc.root, "paths").(object)
	seen := map[string]bool{}
	check := func(method, target, body string, rec *httptest.ResponseRecorder) {
		t.Helper()
		path, _, _ := strings.Cut(target, "?")
		what := strings.ToLower(method) + " " + path + " " + strconv.Itoa(rec.Code)
		seen[what] = true
		operation := strings.ToLower(method)
		if rec.Code == http.StatusMethodNotAllowed { // told where there are methods
			operation = slices.Sorted(maps.Keys(paths[path].(object)))[0]
			if path == "/v1/usage" {
				operation = "get"
			}
			seen[operation+" "+path+" 405"] = true
		}
		response, ok := doc.at(doc.root, "paths", path, operation, "responses", strconv.Itoa(rec.Code)).(object)
		if !ok {
			t.Errorf("%s %s: %d is not in the document: %s", what, brief(body), rec.Code, rec.Body)
			return
		}
		for name := range rec.Header() {
			switch name {
			case "Content-Type", "X-Content-Type-Options", "Accept":
				continue
			}
			documented := maps.Keys(doc.at(response, "headers").(object))
			if !slices.ContainsFunc(slices.Collect(documented), func(d string) bool { return http.CanonicalHeaderKey(d) == name }) {
				t.Errorf("%s: %s is not in the document", what, name)
			}
		}
		if response["content"] == nil {
			if rec.Body.Len() > 0 {
				t.Errorf("%s: answered with %s", what, rec.Body)
			}
			return
		}
		schema := doc.at(response, "content", rec.Header().Get("Content-Type"), "schema")
		var got any
		if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		for _, wrong := range doc.validate(schema, got, what) {
			t.Error(wrong)
		}
	}

	// What the document shows.
	for path, methods := range paths {
		for method, operation := range methods.(object) {
			for status, response := range doc.at(operation, "responses").(object) {
				contents, _ := doc.at(response, "content").(object)
				for _, content := range contents {
					for _, value := range examples(content) {
						for _, wrong := range doc.validate(doc.at(content, "schema"), value, path+" "+status) {
							t.Error(wrong)
						}
					}
				}
			}
			content := doc.at(operation, "requestBody", "content", "application/json")
			for _, value := range examples(content) {
				text, err := json.Marshal(value)
				if err != nil {
					t.Fatal(err)
				}
				ticket := ticketOf(t, h, `{"path":"/","user":"`+rand.Text()+`"}`)
				body := strings.ReplaceAll(string(text), shownTicket, ticket)
				for _, wrong := range doc.validate(doc.at(content, "schema"), value, path) {
					t.Error(wrong)
				}
				rec := call(h, strings.ToUpper(method), path, body)
				if check(method, path, body, rec); rec.Code != http.StatusOK {
					t.Errorf("%s %s: %s", path, body, rec.Body)
				}
			}
		}
	}

	// What it tells.
	send := func(h http.Handler, method, target, kind, body string, headers ...string) {
		t.Helper()
		r := httptest.NewRequest(method, target, strings.NewReader(body))
		r.RemoteAddr = "10.0.0.1:80"
		r.Header.Set("Content-Type", kind)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		check(method, target, body, rec)
	}
	const kind = "application/json"
	large := strings.Repeat(" ", 4<<20+1)
	settling := []string{"/v1/commit", "/v1/cancel", "/v1/extend"}
	for _, path := range append([]string{
		"/v1/check", "/v1/check/batch", "/v1/take", "/v1/reserve",
		"/v1/reserve/batch", "/v1/commit/batch", "/v1/cancel/batch", "/v1/extend/batch",
	}, settling...) {
		send(h, "POST", path, kind, `{"x":1}`)
		send(h, "POST", path, kind, large)
		send(h, "POST", path, "text/plain", "hello")
		send(h, "PATCH", path, kind, "")
	}
	send(h, "PATCH", "/v1/usage", kind, "")
	send(h, "PATCH", "/v1/openapi.json", kind, "")
	send(h, "GET", "/v1/openapi.json", kind, "")
	send(h, "GET", "/v1/usage", kind, "")
	send(h, "GET", "/v1/usage?user=alice", kind, "")
	send(h, "DELETE", "/v1/usage?user=alice", kind, "")
	send(h, "DELETE", "/v1/usage", kind, "")
	for _, status := range []string{"401", "403", "429"} {
		send(h, "DELETE", "/v1/usage?user=alice", kind, "", "X-Refuse", status)
	}
	const auth = "/v1/forward-auth"
	send(h, "GET", auth, kind, "")
	for range 3 {
		send(h, "GET", auth, kind, "", "X-Forwarded-Uri", "/search", "X-User", "bob")
	}
	send(h, "GET", auth, kind, "", "X-Forwarded-Uri", "/admin/x")
	for range 4 { // until a ban
		send(h, "POST", "/v1/check", kind, `{"path":"/search","user":"bob"}`)
	}
	send(h, "POST", "/v1/check", kind, `{"path":"/new","user":"carol","cost":2}`)
	send(h, "POST", "/v1/check", kind, `{"path":"/admin/x"}`)

	send(apiOf(t, worldOf(t, meteredRules, identity.Options{})), "GET", auth+"?ticket=60", kind, "", "X-Forwarded-Uri", "/", "X-User", "bob")
	strict := apiOf(t, worldOf(t, apiRules, identity.Options{Require: true}))
	send(strict, "GET", auth, kind, "", "X-Forwarded-Uri", "/")
	ignoring := apiOf(t, worldOf(t, apiRules, identity.Options{JWT: &identity.JWTOptions{Secret: tokenSecret, IgnoreBad: true}}))
	send(ignoring, "GET", auth, kind, "", "X-Forwarded-Uri", "/", "Authorization", "Bearer x")
	send(ignoring, "POST", "/v1/check", kind, `{"path":"/","headers":{"Authorization":"Bearer x"}}`)
	failed := apiOf(t, worldOf(t, apiRules, identity.Options{Directory: failing{}}))
	send(failed, "POST", "/v1/check", kind, `{"path":"/","api_key":"0123456789abcdef"}`)
	send(failed, "POST", "/v1/check/batch", kind, `{"requests":[{"path":"/","api_key":"0123456789abcdef"}]}`)
	send(failed, "GET", auth, kind, "", "X-Forwarded-Uri", "/", "X-API-Key", "stint_0123456789abcdef_0123456789abcdef0123456789abcdef")
	bad := worldOf(t, oneLimit, identity.Options{})
	bad.store.(*broken).bad = true
	send(apiOf(t, bad), "POST", "/v1/check", kind, `{"path":"/search","ip":"192.0.2.1"}`)
	send(apiOf(t, bad), "GET", auth, kind, "", "X-Forwarded-Uri", "/search")
	send(failed, "POST", "/v1/reserve", kind, `{"path":"/","api_key":"0123456789abcdef"}`)
	send(apiOf(t, bad), "POST", "/v1/reserve", kind, `{"path":"/search","ip":"192.0.2.1"}`)
	gone := worldOf(t, apiRules, identity.Options{})
	gone.store.(*broken).down = true
	send(apiOf(t, gone), "POST", "/v1/take", kind, `{"subject":"a","limit":"1/1s"}`)
	send(apiOf(t, gone), "GET", "/v1/usage?user=alice", kind, "")
	send(apiOf(t, gone), "DELETE", "/v1/usage?user=alice", kind, "")
	send(apiOf(t, gone), "POST", "/v1/check", kind, `{"path":"/","user":"alice"}`)
	closed := worldOf(t, oneLimit+`on_store_failure = "closed"`, identity.Options{})
	closed.store.(*broken).down = true
	send(apiOf(t, closed), "GET", auth, kind, "", "X-Forwarded-Uri", "/search")
	send(apiOf(t, closed), "POST", "/v1/check", kind, `{"path":"/search","ip":"192.0.2.1"}`)

	for _, path := range settling {
		body := fmt.Sprintf(oneTicket, ticketOf(t, h, `{"path":"/","user":"eve"}`))
		if path == "/v1/commit" {
			body = fmt.Sprintf(usedCost, ticketOf(t, h, `{"path":"/","user":"eve"}`), 1)
		}
		send(h, "POST", path, kind, strings.Replace(body, `{"ticket":"`, `{"ticket":"x`, 1))
		for _, w := range []world{bad, gone} {
			send(apiOf(t, w), "POST", path, kind, body)
		}
		send(h, "POST", path, kind, body)
	}
	places := worldOf(t, `
		[[rules]]
		name     = "exports"
		count_by = ["user"]
		limits   = [ { name = "places", limit = "2/30s concurrency" } ]
	`, identity.Options{})
	body := fmt.Sprintf(oneTicket, ticketOf(t, apiOf(t, places), `{"path":"/","user":"eve"}`))
	places.store.(*broken).down = true
	send(apiOf(t, places), "POST", "/v1/extend", kind, body)

	for path, methods := range paths {
		if path == "/healthz" || path == "/readyz" {
			continue // these are the server's
		}
		for method, operation := range methods.(object) {
			for status := range doc.at(operation, "responses").(object) {
				if what := method + " " + path + " " + status; !seen[what] {
					t.Errorf("%s is in the document, and did not come", what)
				}
			}
		}
	}
}

// examples are those of a content.
func examples(content any) (out []any) {
	o, _ := content.(object)
	if one, ok := o["example"]; ok {
		out = append(out, one)
	}
	several, _ := o["examples"].(object)
	for _, e := range several {
		out = append(out, e.(object)["value"])
	}
	return out
}

// TestOpenAPIPacked checks that the document that is served is openapi.json.
func TestOpenAPIPacked(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("openapi.json.gz", packed.Pack(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	w := worldOf(t, apiRules, identity.Options{})
	if rec := call(apiOf(t, w), "GET", "/v1/openapi.json", ""); !bytes.Equal(rec.Body.Bytes(), want) {
		t.Error("openapi.json.gz is stale: run go test ./httplimit -run TestOpenAPIPacked -update")
	}
}
