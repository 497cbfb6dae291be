package admin

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/quiet"
)

// anyone is the role of operations that need no credentials.
const anyone catalog.Role = "anyone"

const (
	// maxBody is the largest body in bytes, unless the operation sets another.
	maxBody = 1 << 20
	// maxParam is the largest parameter in bytes.
	maxParam = 4096
)

// operation is one operation of the API: its route, its limits, and its description in
// openapi.json, which a test generates from the list of all operations.
type operation struct {
	ID, Method, Path     string // Path is without [Prefix]
	Tag                  string // its section of the document
	Summary, Description string

	Status   int           // of a success; default 200, or 204 without a body
	Timeout  time.Duration // default Options.Timeout
	MaxBody  int64         // in bytes; default maxBody
	Consumes []string      // content types of a RawBody

	// Problems are statuses of errors beyond those that every operation of its shape can
	// return: 400, 401, 403, 404 for a path with an id, 413, 415 and 422 for a body, 429, 500, 503.
	Problems  []int
	Answer    string    // describes a success; default Summary
	Produces  []content // what a success returns, if that is not the JSON of Body
	Example   any       // of a RawBody
	ExampleID string    // of {id} in Path
	// Scoped says that people who are restricted to tenants may use it: it checks what it is about.
	Scoped bool
	// AnyQuery ignores parameters that are not known: others add to the address.
	AnyQuery bool

	// add sets these.
	Role    catalog.Role
	In, Out reflect.Type
}

// content is a kind of response body.
type content struct {
	ContentType string
	Type        reflect.Type // as JSON; a string or bytes for anything else
	Doc         string
}

// add registers an operation for a role and all roles that include it.
//
// The input is a struct. Its fields are bound by their tags: path:"id", query:"limit",
// header:"If-Match", as strings, numbers, booleans, times, and types that unmarshal text.
// The tags default, enum, minimum, maximum, maxLength and required are enforced; doc and
// example are for the document. Unknown parameters are rejected. A field Body is decoded
// from JSON, strictly; if it is a pointer, the body is optional. A field RawBody []byte
// is the body as it was sent, with one of the content types in Consumes.
//
// The output is a struct. Fields with a header tag are response headers, unless they are
// empty. Body is the response: a value to encode as JSON, bytes, or a func() that
// streams. A stream has no time limit: its context ends with the client or with the API.
//
// Errors are those of the catalog, [strict.Problems], or what fail and blame return.
func add[I, O any](a *API, op operation, role catalog.Role, do func(ctx context.Context, in *I) (*O, error)) {
	if !slices.Contains([]catalog.Role{anyone, catalog.OfUser, catalog.Viewer, catalog.Operator, catalog.Administrator}, role) {
		panic("admin: " + op.Method + " " + op.Path + " has no role")
	}
	op.Role, op.In, op.Out = role, reflect.TypeFor[I](), reflect.TypeFor[O]()
	in, out := newInput(&op), newOutput(op.Out)
	if op.Timeout == 0 {
		op.Timeout = a.options.Timeout
	}
	if op.Status == 0 {
		op.Status = http.StatusOK
		if out.body == nil {
			op.Status = http.StatusNoContent
		}
	}
	a.operations = append(a.operations, op)
	a.mux.HandleFunc(op.Method+" "+Prefix+op.Path, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		if out.streams {
			defer context.AfterFunc(a.closing, cancel)()
		} else {
			ctx, cancel = context.WithTimeout(ctx, op.Timeout)
			defer cancel()
		}
		status := op.Status
		r, err := a.admit(r.WithContext(ctx), role, op.Scoped)
		if err == nil {
			var input I
			body := sha256.New()
			if op.writes() && r.Body != nil {
				r.Body = hashing(r.Body, body)
			}
			respond := func(ctx context.Context, w http.ResponseWriter) error {
				output, err := do(context.WithValue(ctx, requestKey{}, request{r, w}), &input)
				if err == nil {
					out.write(w, op.Status, reflect.ValueOf(output).Elem())
				}
				return err
			}
			var once *catalog.Once
			if err = in.bind(w, r, reflect.ValueOf(&input).Elem()); err == nil && op.writes() {
				once, err = repeatable(r, body)
			}
			switch {
			case err != nil:
			case once != nil:
				status, err = a.once(w, r, once, respond)
			default:
				err = respond(r.Context(), w)
			}
		}
		if err != nil {
			status = a.problem(w, r, err)
		}
		dry := slices.Contains(in.queries, "dry_run") && r.URL.Query().Get("dry_run") == "true"
		if r.Method != http.MethodGet && r.Method != http.MethodHead && role != catalog.Viewer && !dry {
			// Not the path: a client may send the whole text of a token or key as an id.
			ctx, who := r.Context(), actor(r.Context())
			if who != "" {
				ctx = quiet.Every(ctx)
			}
			a.log.LogAttrs(ctx, slog.LevelInfo, "admin: a write",
				slog.String("actor", who), slog.String("operation", r.Pattern), slog.Int("status", status))
		}
	})
}

// addQuery is add for an operation whose response is only a body.
func addQuery[I, B any](a *API, op operation, role catalog.Role, do func(ctx context.Context, in *I) (B, error)) {
	add(a, op, role, func(ctx context.Context, in *I) (*struct{ Body B }, error) {
		body, err := do(ctx, in)
		return &struct{ Body B }{body}, err
	})
}

// converted returns a list that is never nil.
func converted[T, U any](all []T, convert func(*T) U) []U {
	out := make([]U, len(all))
	for i := range all {
		out[i] = convert(&all[i])
	}
	return out
}

// requestKey is the context key of the request, for the few operations that need it.
type requestKey struct{}

type request struct {
	*http.Request
	w http.ResponseWriter
}

// requestOf returns the request that is being answered.
func requestOf(ctx context.Context) request { return ctx.Value(requestKey{}).(request) } //nolint:forcetypeassert // add sets it

// output is how the result of an operation becomes a response.
type output struct {
	headers map[string][]int
	body    []int
	streams bool
}

func newOutput(t reflect.Type) *output {
	out := &output{headers: map[string][]int{}}
	for _, f := range fieldsOf(t, nil) {
		if name := f.Tag.Get("header"); name != "" {
			out.headers[name] = f.Index
		} else if f.Name == "Body" {
			out.body, out.streams = f.Index, f.Type.Kind() == reflect.Func
		}
	}
	return out
}

// write sends the response.
func (out *output) write(w http.ResponseWriter, status int, v reflect.Value) {
	for name, at := range out.headers {
		if text := v.FieldByIndex(at).String(); text != "" {
			w.Header().Set(name, text)
		}
	}
	if out.body == nil {
		w.WriteHeader(status)
		return
	}
	switch body := v.FieldByIndex(out.body).Interface().(type) {
	case func():
		body()
	case []byte:
		w.WriteHeader(status)
		_, _ = w.Write(body)
	default:
		writeJSON(w, status, "application/json", body)
	}
}
