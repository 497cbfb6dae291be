package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/sim"
	"github.com/stintdev/stint/rule"
)

// nowhere takes what is documented, and serves none of it.
type nowhere struct{}

func (nowhere) Handle(*huma.Operation, func(huma.Context))       {}
func (nowhere) ServeHTTP(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }

// newDocument returns a document without operations.
func newDocument() huma.API {
	schemas := huma.NewMapRegistry("#/components/schemas/", schemaName)
	schemas.RegisterTypeAlias(reflect.TypeFor[catalog.Time](), reflect.TypeFor[when]())
	schemas.RegisterTypeAlias(reflect.TypeFor[catalog.Override](), reflect.TypeFor[override]())
	schemas.RegisterTypeAlias(reflect.TypeFor[rule.Cost](), reflect.TypeFor[cost]())
	responses := map[string]*huma.Response{}
	for status, p := range problems {
		responses[problemName(status)] = &huma.Response{
			Description: p.about,
			Content: map[string]*huma.MediaType{"application/problem+json": {
				Schema: schemas.Schema(reflect.TypeFor[Problem](), true, ""), Example: fail(status, p.detail),
			}},
		}
	}
	return huma.NewAPI(huma.Config{OpenAPI: &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title:   "Stint admin API",
			Version: "1",
			Description: "Looks after a Stint: its rules, its users and their keys, what it has decided, and how it is.\n\n" +
				"Every write says by If-Match which version of a thing it has seen; what has changed since is a conflict (409). " +
				"With dry_run=true all is checked and nothing is changed. Problems are told as RFC 9457 has it. " +
				"Times are of RFC 3339, in UTC.",
		},
		Servers: []*huma.Server{{URL: Prefix, Description: "The admin listener."}},
		Components: &huma.Components{
			Schemas:   schemas,
			Responses: responses,
			SecuritySchemes: map[string]*huma.SecurityScheme{
				"token":   {Type: "http", Scheme: "bearer", Description: "A token, as POST /tokens makes them, or that of the config."},
				"session": {Type: "apiKey", In: "cookie", Name: "stint_session", Description: "The cookie that POST /session sets. By TLS its name is __Host-stint_session."},
				"csrf":    {Type: "apiKey", In: "header", Name: "X-CSRF-Token", Description: "The csrf of the session, with its cookie, on every method but GET and HEAD."},
			},
		},
		Tags: tags,
	}}, nowhere{})
}

// schemaNames are those of types whose own names say too little.
var schemaNames = map[reflect.Type]string{
	reflect.TypeFor[rule.Match]():    "RuleMatch",
	reflect.TypeFor[rule.Limit]():    "RuleLimit",
	reflect.TypeFor[rule.Penalty]():  "RulePenalty",
	reflect.TypeFor[rule.Response](): "RuleResponse",
	reflect.TypeFor[sim.Subject]():   "PreviewSubject",
	reflect.TypeFor[sim.Point]():     "PreviewPoint",
}

func schemaName(t reflect.Type, hint string) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if name, ok := schemaNames[t]; ok {
		return name
	}
	return huma.DefaultSchemaNamer(t, hint)
}

// when is the schema of a time.
type when struct{}

// Schema implements [huma.SchemaProvider].
func (when) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Format: "date-time"}
}

// override is the schema of an override.
type override struct{}

// Schema implements [huma.SchemaProvider].
func (override) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Description: `A limit in place of that of the tier: "200/day", or an object with when it ends.`,
		OneOf: []*huma.Schema{
			{Type: huma.TypeString, Description: "The limit, for good.", Examples: []any{"200/day"}},
			{
				Type: huma.TypeObject, Required: []string{"limit"}, AdditionalProperties: false,
				Properties: map[string]*huma.Schema{
					"limit": {Type: huma.TypeString, Description: "The limit.", Examples: []any{"200/day"}},
					"until": {Type: huma.TypeString, Format: "date-time", Description: "When it ends.", Examples: []any{"2026-12-31T00:00:00Z"}},
				},
			},
		},
		Examples: []any{"200/day"},
	}
}

// cost is the schema of a rule's cost.
type cost struct{}

// Schema implements [huma.SchemaProvider].
func (cost) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Description: "What a request takes: so many units, or what a header of a trusted proxy says, up to max.",
		OneOf: []*huma.Schema{
			{Type: huma.TypeInteger, Format: "int64", Description: "So many units.", Examples: []any{1}},
			{
				Type: huma.TypeObject, AdditionalProperties: false,
				Properties: map[string]*huma.Schema{
					"units":  {Type: huma.TypeInteger, Format: "int64", Description: "So many units, if the header says nothing. Default 1.", Examples: []any{1}},
					"header": {Type: huma.TypeString, Description: "The header that says how many.", Examples: []any{"X-Cost"}},
					"max":    {Type: huma.TypeInteger, Format: "int64", Description: "The most that it may say.", Examples: []any{100}},
				},
			},
		},
		Examples: []any{1},
	}
}

// register documents an operation, and returns it as it is documented.
func register[I, O any](a *API, op huma.Operation, role catalog.Role, in *input, do func(context.Context, *I) (*O, error)) *huma.Operation {
	if role != anyone {
		session := map[string][]string{"session": {}}
		if op.Method != http.MethodGet {
			session["csrf"] = []string{}
		}
		op.Security = []map[string][]string{{"token": {}}, session}
	}
	op.Extensions = map[string]any{"x-stint-role": string(role)}
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}
	for _, status := range problemsOf(&op, role, in) {
		op.Responses[strconv.Itoa(status)] = &huma.Response{Ref: "#/components/responses/" + problemName(status)}
	}
	op.SkipValidateBody, op.SkipValidateParams = true, true
	huma.Register(a.document, op, do)
	item := a.document.OpenAPI().Paths[op.Path]
	registered := map[string]*huma.Operation{
		http.MethodGet: item.Get, http.MethodPost: item.Post, http.MethodPut: item.Put,
		http.MethodPatch: item.Patch, http.MethodDelete: item.Delete,
	}[op.Method]
	registered.Responses[strconv.Itoa(registered.DefaultStatus)].Description = op.Summary + "."
	for _, header := range registered.Responses[strconv.Itoa(registered.DefaultStatus)].Headers {
		header.Description, header.Schema.Description = header.Schema.Description, ""
	}
	for _, p := range registered.Parameters {
		p.Explode, p.Schema.Description = nil, "" // which p has itself
	}
	if in.raw != nil {
		delete(registered.RequestBody.Content, "application/octet-stream") // which huma thinks of anything raw
	}
	for _, p := range in.params {
		if !slices.ContainsFunc(registered.Parameters, func(d *huma.Param) bool { return d.In == p.in && d.Name == p.name }) {
			panic("admin: " + op.Method + " " + op.Path + ": " + p.name + " is not documented: an embedded struct has to be exported")
		}
	}
	return registered
}

// problemName is what a problem is called in the document.
func problemName(status int) string { return strings.ReplaceAll(http.StatusText(status), " ", "") }

// problemsOf returns the statuses of the problems that an operation may answer with.
func problemsOf(op *huma.Operation, role catalog.Role, in *input) []int {
	out := []int{http.StatusBadRequest, http.StatusInternalServerError, http.StatusServiceUnavailable}
	if role != anyone {
		out = append(out, http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests)
	} else if op.Method != http.MethodGet {
		out = append(out, http.StatusForbidden)
	}
	if in.body != nil || in.raw != nil {
		out = append(out, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity)
	}
	if strings.Contains(op.Path, "{") {
		out = append(out, http.StatusNotFound)
	}
	more, _ := op.Metadata[metaStatuses].([]int)
	out = append(out, more...)
	slices.Sort(out)
	return slices.Compact(out)
}

// problems say what statuses are about, and have an example of what a client is told.
var problems = map[int]struct{ about, detail string }{
	http.StatusBadRequest:            {"A parameter is wrong or unknown, or the body is no JSON.", "limt: unknown parameter; did you mean \"limit\"?"},
	http.StatusUnauthorized:          {"There are no credentials, or they are no good, or not any more.", errCredentials.Detail},
	http.StatusForbidden:             {"The role is too low, or the CSRF token is wrong, or another site asks.", "this is for the role operator, and \"vera\" has the role viewer"},
	http.StatusNotFound:              {"There is no such thing.", "there is no rule \"serach\""},
	http.StatusConflict:              {"It is not as it was seen, or is there already, or is in a file, or there is no record.", "the rule \"search\" is of version 14 now, not 12: it has changed since it was read"},
	http.StatusRequestEntityTooLarge: {"The body is too large.", "the body has more than 1 MiB"},
	http.StatusUnsupportedMediaType:  {"The body is of another type.", "the body is of type \"text/plain\", want application/json"},
	http.StatusUnprocessableEntity:   {"The content is wrong: errors says where.", "limits[0].limit: \"10/fortnight\" is not a limit"},
	http.StatusPreconditionRequired:  {"If-Match is missing.", "the header If-Match is missing, want the version that you have seen, such as \"12\", or *"},
	http.StatusTooManyRequests:       {"There were too many credentials that are no good. Retry-After says when to try again.", errTooMany.Detail},
	http.StatusInternalServerError:   {"Something went wrong inside.", errInside.Detail},
	http.StatusServiceUnavailable:    {"The database does not answer, or it took too long. Retry-After says when to try again.", "the database cannot be reached: try again"},
}

// describe returns the document, with all that types do not say of themselves.
func (a *API) describe() ([]byte, error) {
	d := a.document.OpenAPI()
	schemas := d.Components.Schemas.Map()
	for _, at := range slices.Sorted(maps.Keys(words)) {
		name, field, isField := strings.Cut(at, ".")
		s := schemas[name]
		if s != nil && isField {
			s = s.Properties[field]
		}
		if s == nil {
			return nil, fmt.Errorf("there is no %s", at)
		}
		if text := words[at][0]; text != "" {
			s.Description = text
		}
		if text := words[at][1]; text != "" {
			var example any
			if err := json.Unmarshal([]byte(text), &example); err != nil {
				return nil, fmt.Errorf("the example of %s: %w", at, err)
			}
			s.Examples = []any{example}
		}
	}
	for _, s := range schemas {
		if s.Examples == nil {
			s.Examples = []any{exampleOf(schemas, s)}
		}
	}
	return json.MarshalIndent(d, "", " ")
}

// exampleOf returns an example of a schema: its own, or one made of those of its parts.
func exampleOf(schemas map[string]*huma.Schema, s *huma.Schema) any {
	switch {
	case len(s.Examples) > 0:
		return s.Examples[0]
	case s.Ref != "":
		return exampleOf(schemas, schemas[s.Ref[strings.LastIndex(s.Ref, "/")+1:]])
	case s.Type == huma.TypeArray:
		return []any{exampleOf(schemas, s.Items)}
	default:
		out := map[string]any{}
		for name, field := range s.Properties {
			out[name] = exampleOf(schemas, field)
		}
		return out
	}
}

// addDocument serves the document.
func (a *API) addDocument() {
	type answer struct {
		ContentType string `header:"Content-Type" hidden:"true"`
		ETag        string `header:"ETag" hidden:"true"`
		Body        []byte
	}
	add(a, huma.Operation{
		OperationID: "getOpenAPI", Method: http.MethodGet, Path: "/openapi.json", Tags: []string{tagDocument},
		Summary: "This document", Description: "Returns the description of the API that you are reading, as OpenAPI 3.1.",
		Responses: map[string]*huma.Response{"200": {
			Description: "The document.",
			Content:     map[string]*huma.MediaType{"application/json": {Schema: &huma.Schema{Type: huma.TypeObject, Description: "A document of OpenAPI 3.1."}}},
		}},
	}, anyone, func(context.Context, *struct{}) (*answer, error) {
		return &answer{"application/json", a.openapiETag, a.openapi}, nil
	})
}
