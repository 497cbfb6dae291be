package admin_test

import (
	"encoding/json"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/test/testopenapi"
)

// check fails unless the document describes the request and the response.
func (d document) check(h *testAPI, r *http.Request, a *answer) {
	h.Helper()
	_, pattern := d.mux.Handler(r)
	if pattern == "" || r.Method == http.MethodHead || path.Clean(r.URL.EscapedPath()) != r.URL.EscapedPath() {
		return // there is no such operation
	}
	pattern = strings.Replace(pattern, admin.Prefix, "", 1)
	where := pattern + " " + strconv.Itoa(a.StatusCode)
	response, ok := d.at(d.operation(pattern), "responses", strconv.Itoa(a.StatusCode)).(object)
	if !ok {
		h.Errorf("%s is not documented: %s", where, a.body)
		return
	}
	content, _ := response["content"].(object)
	if content == nil {
		if len(a.body) > 0 {
			h.Errorf("%s has a body, and the document knows none: %s", where, a.body)
		}
		return
	}
	contentType, _, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	media, ok := content[contentType].(object)
	if err != nil || !ok {
		h.Errorf("%s: the content type %q is not documented", where, a.Header.Get("Content-Type"))
		return
	}
	if strings.HasSuffix(contentType, "json") && contentType != "application/x-ndjson" {
		var v any
		if err := json.Unmarshal(a.body, &v); err != nil {
			h.Errorf("%s: %v: %s", where, err, a.body)
			return
		}
		for _, wrong := range d.validate(media["schema"], v, "$") {
			h.Errorf("%s: %s", where, wrong)
		}
	}
}

// validate returns the problems of a value.
func (d document) validate(schema, v any, where string) []string {
	return testopenapi.Validate(d.root, schema, v, where)
}

func has(o object, name string) bool { _, ok := o[name]; return ok }
