package admin_test

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/kit/packed"
)

var update = flag.Bool("update", false, "write openapi.json")

// TestDocument checks that openapi.json is up to date.
func TestDocument(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	document, err := generate(admin.Operations(h.api))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := errors.Join(os.WriteFile("openapi.json", document, 0o644), os.WriteFile("openapi.json.gz", packed.Pack(document), 0o644)); err != nil {
			t.Fatal(err)
		}
		return
	}
	if text, err := os.ReadFile("openapi.json"); err != nil || !bytes.Equal(document, admin.OpenAPI()) || !bytes.Equal(document, text) {
		t.Error("openapi.json is stale: run go test ./internal/control/admin -run TestDocument -update, and npm run types in web/")
	}
	a := h.ask(http.MethodGet, "/openapi.json", nil).want(http.StatusOK)
	if !bytes.Equal(a.body, document) || a.Header.Get("ETag") == "" {
		t.Errorf("another document is served: %v", a.Header)
	}
	// The operations are the same where rules are in a file.
	if file := newFileAPI(t, exampleDocument()); len(admin.Operations(file.api)) != len(admin.Operations(h.api)) {
		t.Error("file mode has other operations")
	}
}

// TestDocumentIsWhole checks that the document is complete.
func TestDocumentIsWhole(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	d := h.api31
	said := func(where string, v any) {
		t.Helper()
		if text, _ := v.(string); strings.TrimSpace(text) == "" {
			t.Errorf("%s is not described", where)
		}
	}
	ids := map[string]bool{}
	tags, _ := d.root["tags"].([]any)
	for _, pattern := range d.operations() {
		op := d.operation(pattern)
		said(pattern, op["summary"])
		said(pattern, op["description"])
		id, _ := op["operationId"].(string)
		if id == "" || ids[id] {
			t.Errorf("%s: the id %q is missing, or is that of another", pattern, id)
		}
		ids[id] = true
		of, _ := op["tags"].([]any)
		if len(of) != 1 || !slices.ContainsFunc(tags, func(t any) bool { return d.at(t, "name") == of[0] }) {
			t.Errorf("%s: tags %v", pattern, of)
		}
		if role, _ := op["x-stint-role"].(string); !slices.Contains([]string{"anyone", "viewer", "operator", "admin", "user"}, role) {
			t.Errorf("%s: role %q", pattern, role)
		}
		parameters, _ := op["parameters"].([]any)
		for _, p := range parameters {
			where := pattern + " " + d.at(p, "name").(string) //nolint:forcetypeassert // or it fails
			said(where, d.at(p, "description"))
			examples, _ := d.at(p, "schema", "examples").([]any)
			if len(examples) == 0 {
				t.Errorf("%s has no example", where)
			}
			for _, e := range examples {
				for _, wrong := range d.validate(d.at(p, "schema"), e, where) {
					t.Errorf("its example: %s", wrong)
				}
			}
		}
		responses, _ := op["responses"].(object)
		for status, r := range responses {
			said(pattern+" "+status, d.at(r, "description"))
			content, _ := d.at(r, "content").(object)
			for contentType, media := range content {
				if d.at(media, "schema") == nil {
					t.Errorf("%s %s: %s has no schema", pattern, status, contentType)
				}
			}
		}
	}
	schemas, _ := d.at(d.root, "components", "schemas").(object)
	if len(schemas) < 50 {
		t.Errorf("only %d schemas", len(schemas))
	}
	for name, schema := range schemas {
		said(name, d.at(schema, "description"))
		examples, _ := d.at(schema, "examples").([]any)
		if len(examples) == 0 {
			t.Errorf("%s has no example", name)
		}
		for _, e := range examples {
			for _, wrong := range d.validate(schema, e, name) {
				t.Errorf("its example: %s", wrong)
			}
		}
		properties, _ := d.at(schema, "properties").(object)
		for field, p := range properties {
			said(name+"."+field, p.(object)["description"]) //nolint:forcetypeassert // or it fails
		}
	}
}

// TestDocumentedAnswers calls every operation so that it returns every documented problem,
// except internal errors.
func TestDocumentedAnswers(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	file := newFileAPI(t, exampleDocument())
	guess := func(r *http.Request) {
		r.Header.Set("Authorization", "Bearer guess")
		r.RemoteAddr = "10.9.1.1:1"
	}
	for range 11 { // too many, by a clock that stands still
		r := h.request(http.MethodGet, "/rules", nil)
		guess(r)
		h.status(r)
	}
	large := strings.Repeat(" ", 17<<20)
	for _, pattern := range h.api31.operations() {
		method, _, _ := strings.Cut(pattern, " ")
		op := h.api31.operation(pattern)
		responses, _ := op["responses"].(object)
		role, _ := op["x-stint-role"].(string)
		seen := map[int]bool{}
		try := func(h *testAPI, change func(*http.Request)) {
			t.Helper()
			r := h.example(pattern, "", h.may(pattern), "If-Match", "*")
			if change != nil {
				change(r)
			}
			seen[h.status(r).StatusCode] = true
		}
		query := func(text string) func(*http.Request) { return func(r *http.Request) { r.URL.RawQuery = text } }
		header := func(name, value string) func(*http.Request) {
			return func(r *http.Request) { r.Header.Set(name, value) }
		}
		if documented(responses, http.StatusBadRequest) {
			try(h, query("nothing=1"))
		}
		if documented(responses, http.StatusUnauthorized) && pattern != "POST /session" {
			try(h, func(r *http.Request) { r.Header.Del("Authorization") })
		}
		if documented(responses, http.StatusForbidden) {
			try(h, header("Sec-Fetch-Site", "cross-site"))
			try(h, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+h.viewer) })
		}
		if documented(responses, http.StatusTooManyRequests) {
			try(h, guess)
		}
		if documented(responses, http.StatusUnsupportedMediaType) {
			try(h, header("Content-Type", "text/plain"))
			size := 5 << 20
			if pattern == "POST /apply" {
				size = 17 << 20
			}
			try(h, func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader(large[:size])) })
			wrong := h.request(method, "", `[1]`)
			try(h, func(r *http.Request) { r.Body = wrong.Body })
		}
		if documented(responses, http.StatusPreconditionRequired) {
			try(h, func(r *http.Request) { r.Header.Del("If-Match") })
		}
		if documented(responses, http.StatusNotFound) {
			try(h, query("replacing=unknown"))
			try(h, func(r *http.Request) {
				_, path, _ := strings.Cut(pattern, " ")
				r.URL.RawPath = ""
				r.URL.Path = admin.Prefix + strings.NewReplacer("{kind}", "user", "{id}", "unknown1", "{limit_name}", "unknown", "{revision}", "99").Replace(path)
			})
		}
		if strings.Contains(pattern, "/sign-in/") { // which takes parameters that are not known
			try(h, query("state=a&state=b"))
		}
		if documented(responses, http.StatusConflict) {
			try(file, nil)
		}
		try(h, nil)
		for status := range responses {
			n, _ := strconv.Atoi(status)
			switch {
			case seen[n], n >= http.StatusInternalServerError:
			case n < http.StatusBadRequest: // of what is there: others look at that
			case n == http.StatusUnprocessableEntity && op["requestBody"] == nil: // of what has become wrong since
			case n == http.StatusPreconditionFailed: // of what exists: resource_test.go
			case role == "user" && (n == http.StatusForbidden && method == http.MethodGet || n == http.StatusNotFound || n == http.StatusConflict || n == http.StatusUnprocessableEntity): // me_test.go
			case n == http.StatusConflict && alone.MatchString(pattern): // of a request that is being carried out: once_test.go
			case strings.Contains(pattern, "/subjects/") || strings.Contains(pattern, "/live") || strings.Contains(pattern, "/follow"): // who is not known is limited all the same
			case n == http.StatusForbidden && method == http.MethodGet && op["x-stint-role"] == "viewer": // of no one
			default:
				t.Errorf("%s: no way was found to %d (%v)", pattern, n, seen)
			}
		}
	}
}

// alone are the operations whose only conflict is with the same request.
var alone = regexp.MustCompile(`/tokens`)

func documented(responses object, status int) bool { return has(responses, strconv.Itoa(status)) }
