package admin

import (
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
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

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

// anyone is the role of operations that want no credentials.
const anyone catalog.Role = "anyone"

const (
	// maxBody is the most bytes of a body, unless the operation says otherwise.
	maxBody = 1 << 20
	// maxParam is the most bytes of a parameter.
	maxParam = 4096
	// maxTime is how long an operation may take, unless it says otherwise or streams.
	maxTime = 10 * time.Second
)

// The names of what the metadata of an operation may hold.
const (
	// metaTime is a time.Duration in place of maxTime.
	metaTime = "time"
	// metaStatuses are more statuses of problems that the operation may answer with: an
	// []int. What comes of how it is asked (400, 401, 403, 404 of an id, 413, 415, 422
	// of a body, 429, 500, 503) is known without.
	metaStatuses = "statuses"
)

// add registers an operation, which is for a role and all that include it. Its path is
// without [Prefix].
//
// The input is a struct, whose fields are bound by their tags: path:"id", query:"limit",
// header:"If-Match", of strings, numbers, booleans, times, and what unmarshals text.
// The tags default, enum, minimum, maximum, maxLength and required are held to; doc and
// example are for the document. Parameters that the input does not have are refused. A
// field Body is decoded from JSON, strictly; if it is a pointer, there may be none. A
// field RawBody []byte is the body as it is, of a type that the operation's RequestBody
// names.
//
// The output is a struct: fields with a header tag are headers, unless they are empty;
// Status is the status, if it is not that of the operation; Body is the answer in JSON,
// or bytes, or a func(huma.Context) that streams. What streams has no time limit: its
// context ends with the client, or with the API.
//
// Errors are those of the catalog, [strict.Problems], or what fail and blame return.
func add[I, O any](a *API, op huma.Operation, role catalog.Role, do func(ctx context.Context, in *I) (*O, error)) {
	if role != anyone && !slices.Contains([]catalog.Role{catalog.Viewer, catalog.Operator, catalog.Administrator}, role) {
		panic("admin: " + op.Method + " " + op.Path + " has no role")
	}
	in, out := newInput(reflect.TypeFor[I](), &op), newOutput(reflect.TypeFor[O]())
	registered := register[I, O](a, op, role, in, do)
	limit, ok := op.Metadata[metaTime].(time.Duration)
	if !ok {
		limit = maxTime
	}
	a.mux.HandleFunc(op.Method+" "+Prefix+op.Path, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		if out.streams {
			defer context.AfterFunc(a.closing, cancel)()
		} else {
			ctx, cancel = context.WithTimeout(ctx, limit)
			defer cancel()
		}
		r = r.WithContext(ctx)
		status := 0
		r, err := a.admit(r, role)
		if err == nil {
			var input I
			if err = in.bind(w, r, reflect.ValueOf(&input).Elem()); err == nil {
				var output *O
				if output, err = do(context.WithValue(r.Context(), asked{}, request{r, w}), &input); err == nil {
					status = out.write(humago.NewContext(registered, r, w), w, registered.DefaultStatus, reflect.ValueOf(output).Elem())
				}
			}
		}
		if err != nil {
			status = a.problem(w, r, err)
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead && role != catalog.Viewer {
			// Not its path: someone may give the whole text of a token or a key for its id.
			a.log.LogAttrs(r.Context(), slog.LevelInfo, "admin: a write",
				slog.String("actor", actor(r.Context())), slog.String("operation", r.Pattern), slog.Int("status", status))
		}
	})
}

// asked is the key of the request of a context, for the few operations that need it.
type asked struct{}

type request struct {
	*http.Request
	w http.ResponseWriter
}

// requestOf returns what is asked.
func requestOf(ctx context.Context) request { return ctx.Value(asked{}).(request) } //nolint:forcetypeassert // add sets it

// param is a field of an input that is bound.
type param struct {
	at          []int
	in, name    string
	standard    string // what it is if it is not given
	enum        []string
	least, most *float64
	longest     int
	required    bool
}

// input is how what is asked becomes the input of an operation.
type input struct {
	params  []param
	queries []string // names
	body    []int
	raw     []int
	types   []string // of bodies
	maxBody int64
	isPtr   bool
}

func newInput(t reflect.Type, op *huma.Operation) *input {
	in := &input{maxBody: op.MaxBodyBytes}
	if in.maxBody == 0 {
		in.maxBody = maxBody
	}
	for _, f := range fieldsOf(t, nil) {
		switch f.Name {
		case "Body":
			in.body, in.types, in.isPtr = f.Index, []string{"application/json"}, f.Type.Kind() == reflect.Pointer
			continue
		case "RawBody":
			in.raw = f.Index
			for contentType := range op.RequestBody.Content {
				in.types = append(in.types, contentType)
			}
			slices.Sort(in.types)
			continue
		}
		p := param{at: f.Index, standard: f.Tag.Get("default"), longest: maxParam, required: f.Tag.Get("required") == "true"}
		for _, p.in = range []string{"path", "query", "header"} {
			if p.name = f.Tag.Get(p.in); p.name != "" {
				break
			}
		}
		switch {
		case p.name == "":
			panic("admin: " + t.String() + "." + f.Name + " is bound to nothing")
		case p.in == "path":
			p.required = true
		case p.in == "query":
			in.queries = append(in.queries, p.name)
		}
		if enum := f.Tag.Get("enum"); enum != "" {
			p.enum = strings.Split(enum, ",")
		}
		p.least, p.most = bound(f, "minimum"), bound(f, "maximum")
		if longest := bound(f, "maxLength"); longest != nil {
			p.longest = int(*longest)
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

// bound returns the number of a tag.
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
		return fail(http.StatusBadRequest, "the query cannot be read: want name=value, joined by &, with %XX for what is special")
	}
	for name, values := range query {
		if !slices.Contains(in.queries, name) {
			hint := "there are none here"
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
		if err := p.set(text, into.FieldByIndex(p.at)); err != nil {
			return err
		}
	}
	if in.body == nil && in.raw == nil {
		return nil
	}
	return in.bindBody(w, r, into)
}

// set checks a parameter, and puts it where it belongs.
func (p *param) set(text string, into reflect.Value) error {
	refuse := func(want string) error {
		return blame(http.StatusBadRequest, p.name, strict.Quote(text)+": want "+want, "")
	}
	if text == "" {
		text = p.standard
	}
	switch {
	case text == "" && p.required:
		return blame(http.StatusBadRequest, p.name, "missing", "")
	case text == "":
		return nil
	case len(text) > p.longest:
		return blame(http.StatusBadRequest, p.name, "has "+strconv.Itoa(len(text))+" bytes, want at most "+strconv.Itoa(p.longest), "")
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
			u = &catalog.Time{} // whose problems say what is wanted
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
	if p.least != nil && number < *p.least || p.most != nil && number > *p.most {
		return refuse("a number" + p.span())
	}
	return nil
}

// span says from where to where numbers may be.
func (p *param) span() (s string) {
	if p.least != nil {
		s += " from " + strconv.FormatFloat(*p.least, 'f', -1, 64)
	}
	if p.most != nil {
		s += " to " + strconv.FormatFloat(*p.most, 'f', -1, 64)
	}
	return s
}

func (in *input) bindBody(w http.ResponseWriter, r *http.Request, into reflect.Value) error {
	// Who sends it slowly does not have longer than others. A writer without deadlines is
	// one of tests.
	control := http.NewResponseController(w)
	if deadline, ok := r.Context().Deadline(); ok {
		_ = control.SetReadDeadline(deadline)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, in.maxBody))
	if err == nil { // otherwise the server wants the rest, and does not wait for it for ever
		_ = control.SetReadDeadline(time.Time{})
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return err
	case err != nil:
		return fail(http.StatusBadRequest, "the body could not be read to its end")
	case len(body) == 0 && in.isPtr:
		return nil
	case len(body) == 0:
		return fail(http.StatusBadRequest, "the body is empty, want "+strings.Join(in.types, " or "))
	}
	contentType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || !slices.Contains(in.types, contentType) {
		return fail(http.StatusUnsupportedMediaType, "the body is of type "+strict.Quote(r.Header.Get("Content-Type"))+", want "+strings.Join(in.types, " or "))
	}
	if in.raw != nil {
		into.FieldByIndex(in.raw).SetBytes(body)
		return nil
	}
	return decode(body, into.FieldByIndex(in.body).Addr().Interface())
}

// decode reads JSON, strictly. What is no JSON is a bad request; what is JSON, and not
// what it should be, cannot be processed.
func decode(body []byte, into any) error {
	if _, problems := strict.JSON("", body, into); len(problems) > 0 {
		if !json.Valid(body) {
			return blameAll(http.StatusBadRequest, problems)
		}
		return blameAll(http.StatusUnprocessableEntity, problems)
	}
	return nil
}

// output is how what an operation returns becomes an answer.
type output struct {
	headers      map[string][]int
	status, body []int
	streams      bool
}

func newOutput(t reflect.Type) *output {
	out := &output{headers: map[string][]int{}}
	for _, f := range fieldsOf(t, nil) {
		switch name := f.Tag.Get("header"); {
		case name != "":
			out.headers[name] = f.Index
		case f.Name == "Body":
			out.body, out.streams = f.Index, f.Type.Kind() == reflect.Func
		case f.Name == "Status":
			out.status = f.Index
		}
	}
	return out
}

// write answers.
func (out *output) write(ctx huma.Context, w http.ResponseWriter, status int, v reflect.Value) int {
	for name, at := range out.headers {
		if text := v.FieldByIndex(at).String(); text != "" {
			w.Header().Set(name, text)
		}
	}
	if out.status != nil {
		if s := int(v.FieldByIndex(out.status).Int()); s != 0 {
			status = s
		}
	}
	if out.body == nil {
		w.WriteHeader(status)
		return status
	}
	switch body := v.FieldByIndex(out.body).Interface().(type) {
	case func(huma.Context):
		body(ctx)
	case []byte:
		w.WriteHeader(status)
		_, _ = w.Write(body)
	default:
		writeJSON(w, status, "application/json", body)
	}
	return status
}

// shown returns what a client has sent in a form that can be told.
func shown(text string) string {
	if !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) || len(text) > 64 {
		return strict.Quote(text)
	}
	return text
}

// bytesOf says how many bytes a limit is.
func bytesOf(n int64) string { return strconv.FormatInt(n>>20, 10) + " MiB" }
