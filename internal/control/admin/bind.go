package admin

import (
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

// param is a parameter, and the field of the input that it is bound to.
type param struct {
	index        []int
	in, name     string // in is path, query or header
	defaultValue string
	enum         []string
	min, max     *float64
	maxLength    int // in bytes
	required     bool
}

// input is how a request becomes the input of an operation.
type input struct {
	params       []param
	queries      []string // the names of query parameters
	body, raw    []int    // the fields Body and RawBody; nil: the input has none
	optionalBody bool
	anyQuery     bool
	contentTypes []string // of bodies
	maxBody      int64
}

func newInput(op *operation) *input {
	in := &input{maxBody: cmp.Or(op.MaxBody, maxBody), anyQuery: op.AnyQuery}
	for _, f := range fieldsOf(op.In, nil) {
		switch f.Name {
		case "Body":
			in.body, in.contentTypes, in.optionalBody = f.Index, []string{"application/json"}, f.Type.Kind() == reflect.Pointer
			continue
		case "RawBody":
			in.raw, in.contentTypes = f.Index, op.Consumes
			continue
		}
		p := param{index: f.Index, defaultValue: f.Tag.Get("default"), maxLength: maxParam, required: f.Tag.Get("required") == "true"}
		for _, p.in = range []string{"path", "query", "header"} {
			if p.name = f.Tag.Get(p.in); p.name != "" {
				break
			}
		}
		switch {
		case p.name == "":
			panic("admin: " + op.In.String() + "." + f.Name + " is not bound to a parameter")
		case p.in == "path":
			p.required = true
		case p.in == "query":
			in.queries = append(in.queries, p.name)
		}
		if enum := f.Tag.Get("enum"); enum != "" {
			p.enum = strings.Split(enum, ",")
		}
		p.min, p.max = bound(f, "minimum"), bound(f, "maximum")
		if n := bound(f, "maxLength"); n != nil {
			p.maxLength = int(*n)
		}
		in.params = append(in.params, p)
	}
	return in
}

// fieldsOf returns the fields of a struct, and of those that it embeds.
func fieldsOf(t reflect.Type, at []int) (out []reflect.StructField) {
	for i := range t.NumField() {
		f := t.Field(i)
		f.Index = append(slices.Clone(at), i)
		switch {
		case f.Anonymous:
			out = append(out, fieldsOf(f.Type, f.Index)...)
		case f.IsExported():
			out = append(out, f)
		}
	}
	return out
}

// bound returns the number in a tag, or nil.
func bound(f reflect.StructField, tag string) *float64 {
	text, ok := f.Tag.Lookup(tag)
	if !ok {
		return nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic("admin: " + f.Name + ": " + err.Error())
	}
	return &n
}

// bind reads a request into an input.
func (in *input) bind(w http.ResponseWriter, r *http.Request, into reflect.Value) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return fail(http.StatusBadRequest, "the query is malformed: want name=value, joined by &, with special characters as %XX")
	}
	for name, values := range query {
		if !slices.Contains(in.queries, name) {
			if in.anyQuery {
				continue
			}
			hint := "this operation has no parameters"
			if word, ok := strict.Closest(name, in.queries); ok {
				hint = strict.DidYouMean(word)
			} else if len(in.queries) > 0 {
				hint = "want one of " + strings.Join(in.queries, ", ")
			}
			return blame(http.StatusBadRequest, shown(name), "unknown parameter", hint)
		}
		if len(values) > 1 {
			return blame(http.StatusBadRequest, name, "is given "+strconv.Itoa(len(values))+" times, want one", "")
		}
	}
	for i := range in.params {
		p := &in.params[i]
		var text string
		switch p.in {
		case "path":
			text = r.PathValue(p.name)
		case "query":
			text = query.Get(p.name)
		default:
			text = r.Header.Get(p.name)
		}
		if err := p.set(text, into.FieldByIndex(p.index)); err != nil {
			return err
		}
	}
	if in.body == nil && in.raw == nil {
		return nil
	}
	return in.bindBody(w, r, into)
}

// set checks a parameter and sets its field.
func (p *param) set(text string, into reflect.Value) error {
	refuse := func(want string) error {
		return blame(http.StatusBadRequest, p.name, strict.Quote(text)+": want "+want, "")
	}
	if text == "" {
		text = p.defaultValue
	}
	switch {
	case text == "" && p.required:
		return blame(http.StatusBadRequest, p.name, "missing", "")
	case text == "":
		return nil
	case len(text) > p.maxLength:
		return blame(http.StatusBadRequest, p.name, "has "+strconv.Itoa(len(text))+" bytes, want at most "+strconv.Itoa(p.maxLength), "")
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		return refuse("UTF-8 without control characters")
	case p.enum != nil && !slices.Contains(p.enum, text):
		hint := ""
		if word, ok := strict.Closest(text, p.enum); ok {
			hint = strict.DidYouMean(word)
		}
		return blame(http.StatusBadRequest, p.name, strict.Quote(text)+": want one of "+strings.Join(p.enum, ", "), hint)
	}
	if u, ok := into.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if into.Type() == reflect.TypeFor[time.Time]() {
			u = &catalog.Time{} // whose errors say what is wanted
		}
		if err := u.UnmarshalText([]byte(text)); err != nil {
			return blame(http.StatusBadRequest, p.name, err.Error(), "")
		}
		if t, ok := u.(*catalog.Time); ok && into.Type() == reflect.TypeFor[time.Time]() {
			into.Set(reflect.ValueOf(t.Time))
		}
		return nil
	}
	var number float64
	switch into.Kind() {
	case reflect.String:
		into.SetString(text)
		return nil
	case reflect.Bool:
		if text != "true" && text != "false" {
			return refuse("true or false")
		}
		into.SetBool(text == "true")
		return nil
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return refuse("an integer" + p.span())
		}
		into.SetInt(n)
		number = float64(n)
	case reflect.Float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			return refuse("a number" + p.span())
		}
		into.SetFloat(n)
		number = n
	default:
		panic("admin: no parameter can be a " + into.Type().String())
	}
	if p.min != nil && number < *p.min || p.max != nil && number > *p.max {
		return refuse("a number" + p.span())
	}
	return nil
}

// span describes the range of a number.
func (p *param) span() (s string) {
	if p.min != nil {
		s += " from " + strconv.FormatFloat(*p.min, 'f', -1, 64)
	}
	if p.max != nil {
		s += " to " + strconv.FormatFloat(*p.max, 'f', -1, 64)
	}
	return s
}

func (in *input) bindBody(w http.ResponseWriter, r *http.Request, into reflect.Value) error {
	// A slow body counts towards the time limit of the operation. Writers in tests have
	// no deadlines.
	control := http.NewResponseController(w)
	if deadline, ok := r.Context().Deadline(); ok {
		_ = control.SetReadDeadline(deadline)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, in.maxBody))
	if err == nil { // otherwise the server reads the rest, which must not take forever
		_ = control.SetReadDeadline(time.Time{})
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return err
	case err != nil:
		return fail(http.StatusBadRequest, "the body could not be read completely")
	case len(body) == 0 && in.optionalBody:
		return nil
	case len(body) == 0:
		return fail(http.StatusBadRequest, "the body is empty, want "+strings.Join(in.contentTypes, " or "))
	}
	contentType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || !slices.Contains(in.contentTypes, contentType) {
		return fail(http.StatusUnsupportedMediaType, "the content type is "+strict.Quote(r.Header.Get("Content-Type"))+", want "+strings.Join(in.contentTypes, " or "))
	}
	if in.raw != nil {
		into.FieldByIndex(in.raw).SetBytes(body)
		return nil
	}
	return decode(body, into.FieldByIndex(in.body).Addr().Interface())
}

// decode reads JSON, strictly. A body that is not JSON is a bad request; JSON that is
// invalid for its type is unprocessable.
func decode(body []byte, into any) error {
	if _, problems := strict.JSON("", body, into); len(problems) > 0 {
		if !json.Valid(body) {
			return blameAll(http.StatusBadRequest, problems)
		}
		return blameAll(http.StatusUnprocessableEntity, problems)
	}
	return nil
}

// shown returns a text of a client in a form that is safe to show.
func shown(text string) string {
	if !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) || len(text) > 64 {
		return strict.Quote(text)
	}
	return text
}

// bytesOf formats a number of bytes.
func bytesOf(n int64) string { return strconv.FormatInt(n>>20, 10) + " MiB" }
