package admin_test

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/replay"
	"github.com/stintdev/stint/internal/control/sim"
	"github.com/stintdev/stint/rule"
)

// generator generates the OpenAPI document of the operations of an API, from their Go types
// and words.
type generator struct {
	schemas object
}

// generate returns the document.
func generate(operations []admin.Operation) ([]byte, error) {
	g := generator{object{}}
	paths := object{}
	for i := range operations {
		op := &operations[i]
		item, ok := paths[op.Path].(object)
		if !ok {
			item = object{}
			paths[op.Path] = item
		}
		item[strings.ToLower(op.Method)] = g.operation(op)
	}
	responses := object{}
	for status, p := range problems {
		responses[problemName(status)] = object{
			"description": p.about,
			"content": object{"application/problem+json": object{
				"schema":  g.schema(reflect.TypeFor[admin.Problem]()),
				"example": admin.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: p.detail},
			}},
		}
	}
	if err := g.describe(); err != nil {
		return nil, err
	}
	return json.MarshalIndent(object{
		"openapi":    "3.1.0",
		"info":       object{"title": "Stint admin API", "version": "1", "description": about},
		"servers":    []object{{"url": admin.Prefix, "description": "The admin listener."}},
		"tags":       tags,
		"paths":      paths,
		"components": object{"schemas": g.schemas, "responses": responses, "securitySchemes": securitySchemes},
	}, "", " ")
}

func (g *generator) operation(op *admin.Operation) object {
	out := object{
		"operationId": op.ID, "tags": []string{op.Tag}, "summary": op.Summary, "description": op.Description,
		"x-stint-role": op.Role,
	}
	if op.Role != "anyone" {
		out["x-stint-scoped"] = op.Scoped
		session := object{"session": []string{}}
		if op.Method != http.MethodGet {
			session["csrf"] = []string{}
		}
		out["security"] = []object{{"token": []string{}}, session}
		if op.Role == catalog.OfUser {
			out["security"] = []object{{"token": []string{}}}
		}
	}
	hasBody := false
	var parameters []object
	for _, f := range admin.FieldsOf(op.In) {
		switch f.Name {
		case "Body":
			hasBody = true
			body := object{"content": object{"application/json": object{"schema": g.schema(f.Type)}}}
			if f.Type.Kind() != reflect.Pointer {
				body["required"] = true
			}
			out["requestBody"] = body
		case "RawBody":
			hasBody = true
			contents := object{}
			for _, contentType := range op.Consumes {
				contents[contentType] = object{"schema": object{
					"type": "object", "additionalProperties": true, "description": "A merge patch of the value.", "examples": []any{op.Example},
				}}
			}
			out["requestBody"] = object{"required": true, "content": contents}
		default:
			parameters = append(parameters, g.parameter(op, f))
		}
	}
	if op.Writes() {
		for _, f := range admin.FieldsOf(reflect.TypeFor[admin.Repeatable]()) {
			parameters = append(parameters, g.parameter(op, f))
		}
	}
	if parameters != nil {
		out["parameters"] = parameters
	}
	responses := object{strconv.Itoa(op.Status): g.success(op)}
	for _, status := range problemsOf(op, hasBody) {
		responses[strconv.Itoa(status)] = object{"$ref": "#/components/responses/" + problemName(status)}
	}
	out["responses"] = responses
	return out
}

func (g *generator) parameter(op *admin.Operation, f reflect.StructField) object {
	p := object{"description": f.Tag.Get("doc")}
	for _, in := range []string{"path", "query", "header"} {
		if name := f.Tag.Get(in); name != "" {
			p["in"], p["name"] = in, name
		}
	}
	if p["in"] == "path" || f.Tag.Get("required") == "true" {
		p["required"] = true
	}
	s := g.field(f)
	delete(s, "description") // the parameter has it
	if p["name"] == "id" && op.ExampleID != "" {
		s["examples"] = []any{op.ExampleID}
	}
	p["schema"] = s
	return p
}

// success describes the response of a successful operation.
func (g *generator) success(op *admin.Operation) object {
	out := object{"description": op.Summary + "."}
	if op.Answer != "" {
		out["description"] = op.Answer
	}
	contents, headers := object{}, object{}
	fields := admin.FieldsOf(op.Out)
	if op.Writes() {
		fields = append(fields, admin.FieldsOf(reflect.TypeFor[admin.Replayed]())...)
	}
	for _, f := range fields {
		switch name := f.Tag.Get("header"); {
		case f.Tag.Get("hidden") == "true":
		case name != "":
			s := g.field(f)
			delete(s, "description")
			headers[name] = object{"description": f.Tag.Get("doc"), "schema": s}
		case f.Name == "Body" && op.Produces == nil:
			contents["application/json"] = object{"schema": g.schema(f.Type)}
		}
	}
	for _, c := range op.Produces {
		s := g.schema(c.Type)
		if c.Doc != "" {
			s["description"] = c.Doc
		}
		contents[c.ContentType] = object{"schema": s}
	}
	if len(contents) > 0 {
		out["content"] = contents
	}
	if len(headers) > 0 {
		out["headers"] = headers
	}
	return out
}

// field returns the schema of a field, with its tags.
func (g *generator) field(f reflect.StructField) object {
	s := g.schema(f.Type)
	if text := f.Tag.Get("doc"); text != "" {
		s["description"] = text
	}
	if enum := f.Tag.Get("enum"); enum != "" {
		s["enum"] = strings.Split(enum, ",")
	}
	for _, tag := range []string{"minimum", "maximum", "maxLength"} {
		if text := f.Tag.Get(tag); text != "" {
			s[tag] = json.Number(text)
		}
	}
	if text := f.Tag.Get("default"); text != "" {
		s["default"] = valueOf(s, text)
	}
	if text, ok := f.Tag.Lookup("example"); ok {
		s["examples"] = []any{valueOf(s, text)}
	}
	_, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	optional := strings.Contains(options, "omit")
	switch kind := f.Type.Kind(); {
	case optional:
	case kind == reflect.Slice && s["type"] == "array" && f.Tag.Get("nullable") != "false":
		s["type"] = []string{"array", "null"}
	case kind == reflect.Pointer && s["$ref"] == nil:
		s["type"] = []any{s["type"], "null"}
	}
	return s
}

// valueOf parses the text of a tag as a value of a schema.
func valueOf(s object, text string) any {
	if s["type"] == "string" {
		return text
	}
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		panic(fmt.Sprintf("%q: %v", text, err))
	}
	return v
}

// schema returns the schema of a type, which the caller may change. Structs are components.
func (g *generator) schema(t reflect.Type) object {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if special, ok := schemas[t]; ok {
		return special()
	}
	text := reflect.TypeFor[encoding.TextMarshaler]()
	switch {
	case t == reflect.TypeFor[time.Time]() || t == reflect.TypeFor[catalog.Time]():
		return object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.RawMessage]() || t.Kind() == reflect.Interface:
		return object{}
	case t == reflect.TypeFor[[]byte]():
		return object{"type": "string", "format": "binary"}
	case t.Implements(text) || reflect.PointerTo(t).Implements(text):
		return object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return object{"type": "integer", "format": "int64"}
	case reflect.Uint64:
		return object{"type": "integer", "format": "int64", "minimum": 0}
	case reflect.Float64:
		return object{"type": "number", "format": "double"}
	case reflect.Slice:
		return object{"type": "array", "items": g.schema(t.Elem())}
	case reflect.Map:
		if t.Elem().Kind() == reflect.Interface {
			return object{"type": "object"}
		}
		return object{"type": "object", "additionalProperties": g.schema(t.Elem())}
	case reflect.Struct:
		return g.component(t)
	default:
		panic("no schema for " + t.String())
	}
}

// component returns a reference to the schema of a struct.
func (g *generator) component(t reflect.Type) object {
	name := schemaName(t)
	ref := object{"$ref": "#/components/schemas/" + name}
	if g.schemas[name] != nil {
		return ref
	}
	properties, required := object{}, []string{}
	g.schemas[name] = object{"type": "object", "additionalProperties": false, "properties": properties}
	for _, f := range reflect.VisibleFields(t) {
		field, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || !f.IsExported() || field == "-" {
			continue
		}
		properties[field] = g.field(f)
		if !strings.Contains(options, "omit") {
			required = append(required, field)
		}
	}
	if len(required) > 0 {
		g.schemas[name].(object)["required"] = required //nolint:forcetypeassert // made above
	}
	return ref
}

// schemaName returns the name of a struct: Record[catalog.Entry] is a RecordEntry.
func schemaName(t reflect.Type) string {
	if name, ok := schemaNames[t]; ok {
		return name
	}
	name := ""
	for part := range strings.FieldsFuncSeq(t.Name(), func(c rune) bool { return c == '[' || c == ']' || c == ',' }) {
		name += part[strings.LastIndexAny(part, "./")+1:]
	}
	return name
}

// schemaNames are for types whose own names are not clear enough.
var schemaNames = map[reflect.Type]string{
	reflect.TypeFor[rule.Match]():    "RuleMatch",
	reflect.TypeFor[rule.Limit]():    "RuleLimit",
	reflect.TypeFor[rule.Penalty]():  "RulePenalty",
	reflect.TypeFor[rule.Rollout]():  "RuleRollout",
	reflect.TypeFor[rule.Stopped]():  "RuleStopped",
	reflect.TypeFor[rule.Response](): "RuleResponse",
	reflect.TypeFor[sim.Subject]():   "PreviewSubject",
	reflect.TypeFor[sim.Point]():     "PreviewPoint",

	reflect.TypeFor[replay.Side]():  "ReplaySide",
	reflect.TypeFor[replay.Row]():   "ReplayRow",
	reflect.TypeFor[replay.Point](): "ReplayPoint",
}

// describe adds what is not in the types.
func (g *generator) describe() error {
	for _, at := range slices.Sorted(maps.Keys(words)) {
		name, field, isField := strings.Cut(at, ".")
		s, ok := g.schemas[name].(object)
		if ok && isField {
			s, ok = s["properties"].(object)[field].(object) //nolint:forcetypeassert // every component has them
		}
		if !ok {
			return fmt.Errorf("there is no %s", at)
		}
		if text := words[at][0]; text != "" {
			s["description"] = text
		}
		if text := words[at][1]; text != "" {
			var example any
			if err := json.Unmarshal([]byte(text), &example); err != nil {
				return fmt.Errorf("the example of %s: %w", at, err)
			}
			s["examples"] = []any{example}
		}
	}
	for _, s := range g.schemas {
		if s := s.(object); s["examples"] == nil { //nolint:forcetypeassert // as above
			s["examples"] = []any{g.example(s)}
		}
	}
	return nil
}

// example returns the example of a schema, or one made of those of its parts.
func (g *generator) example(s object) any {
	if examples, ok := s["examples"].([]any); ok {
		return examples[0]
	}
	if ref, ok := s["$ref"].(string); ok {
		return g.example(g.schemas[strings.TrimPrefix(ref, "#/components/schemas/")].(object)) //nolint:forcetypeassert // as above
	}
	if items, ok := s["items"].(object); ok {
		return []any{g.example(items)}
	}
	out := object{}
	properties, _ := s["properties"].(object)
	for name, p := range properties {
		out[name] = g.example(p.(object)) //nolint:forcetypeassert // as above
	}
	return out
}

func problemName(status int) string { return strings.ReplaceAll(http.StatusText(status), " ", "") }

// problemsOf returns the statuses of the errors that an operation can return.
func problemsOf(op *admin.Operation, hasBody bool) []int {
	out := append([]int{http.StatusBadRequest, http.StatusInternalServerError, http.StatusServiceUnavailable}, op.Problems...)
	if op.Role != "anyone" {
		out = append(out, http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests)
	} else if op.Method != http.MethodGet {
		out = append(out, http.StatusForbidden)
	}
	if hasBody {
		out = append(out, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity)
	}
	if op.Writes() {
		out = append(out, http.StatusConflict, http.StatusUnprocessableEntity)
	}
	if strings.Contains(op.Path, "{") {
		out = append(out, http.StatusNotFound)
	}
	return out
}
