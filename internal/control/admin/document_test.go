package admin_test

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
)

// check fails unless the document has what was asked and answered.
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

// validate returns what is wrong with a value, by a schema of those words that the
// document uses. A word it does not know is wrong, too.
func (d document) validate(schema, v any, where string) (wrong []string) {
	s, ok := d.at(schema).(object)
	if !ok {
		return []string{where + ": no schema"}
	}
	fail := func(format string, args ...any) { wrong = append(wrong, where+": "+fmt.Sprintf(format, args...)) }
	number, isNumber := v.(float64)
	text, isText := v.(string)
	list, isList := v.([]any)
	members, isObject := v.(object)
	for word, want := range s {
		switch word {
		case "description", "default", "examples":
		case "type":
			types, several := want.([]any)
			if !several {
				types = []any{want}
			}
			_, isBool := v.(bool)
			is := map[string]bool{
				"null": v == nil, "boolean": isBool, "string": isText, "array": isList, "object": isObject,
				"number": isNumber, "integer": isNumber && number == float64(int64(number)),
			}
			if !slices.ContainsFunc(types, func(t any) bool { name, _ := t.(string); return is[name] }) {
				fail("%v is not of type %v", v, want)
			}
		case "format":
			switch want {
			case "date-time":
				if _, err := time.Parse(time.RFC3339Nano, text); isText && err != nil {
					fail("%q is not a time", text)
				}
			case "int32", "int64", "double", "float":
			default:
				fail("unknown format %v", want)
			}
		case "enum":
			values, _ := want.([]any)
			if !slices.Contains(values, v) {
				fail("%v is none of %v", v, want)
			}
		case "minimum":
			if least, _ := want.(float64); isNumber && number < least {
				fail("%v is less than %v", v, want)
			}
		case "maximum":
			if most, _ := want.(float64); isNumber && number > most {
				fail("%v is more than %v", v, want)
			}
		case "maxLength", "minLength":
			if n, _ := want.(float64); isText && (word == "maxLength" && len(text) > int(n) || word == "minLength" && len(text) < int(n)) {
				fail("%q has %d bytes, and %s is %v", text, len(text), word, want)
			}
		case "items":
			for i, item := range list {
				wrong = append(wrong, d.validate(want, item, fmt.Sprintf("%s[%d]", where, i))...)
			}
		case "required":
			names, _ := want.([]any)
			for _, name := range names {
				if name, _ := name.(string); isObject && !has(members, name) {
					fail("%s is missing", name)
				}
			}
		case "properties", "additionalProperties":
		case "oneOf":
			kinds, _ := want.([]any)
			fits := 0
			for _, kind := range kinds {
				if len(d.validate(kind, v, where)) == 0 {
					fits++
				}
			}
			if fits != 1 {
				fail("%v fits %d of %d schemas", v, fits, len(kinds))
			}
		default:
			fail("unknown word %q", word)
		}
	}
	properties, _ := s["properties"].(object)
	for name, member := range members {
		inside := where + "." + name
		switch other := s["additionalProperties"].(type) {
		case object:
			if !has(properties, name) {
				wrong = append(wrong, d.validate(other, member, inside)...)
			}
		case bool:
			if !other && !has(properties, name) {
				fail("%s is not documented", name)
			}
		}
		if has(properties, name) {
			wrong = append(wrong, d.validate(properties[name], member, inside)...)
		}
	}
	return wrong
}

func has(o object, name string) bool { _, ok := o[name]; return ok }
