// Package testopenapi validates JSON against the schemas of OpenAPI documents, for tests.
package testopenapi

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

type object = map[string]any

// At follows a path in a document, starting at a value, and resolves references.
func At(root, v any, path ...string) any {
	for {
		o, _ := v.(object)
		if to, ok := o["$ref"].(string); ok {
			v = At(root, root, strings.Split(strings.TrimPrefix(to, "#/"), "/")...)
			continue
		}
		if len(path) == 0 {
			return v
		}
		v, path = o[path[0]], path[1:]
	}
}

// Validate returns the problems of a value. Keywords of schemas that it does not know are
// problems, too.
func Validate(root, schema, v any, where string) (problems []string) {
	s, ok := At(root, schema).(object)
	if !ok {
		return []string{where + ": no schema"}
	}
	fail := func(failed bool, format string, args ...any) {
		if failed {
			problems = append(problems, where+": "+fmt.Sprintf(format, args...))
		}
	}
	check := func(schema, v any, where string) {
		problems = append(problems, Validate(root, schema, v, where)...)
	}
	number, isNumber := v.(float64)
	text, isText := v.(string)
	list, isList := v.([]any)
	members, isObject := v.(object)
	properties, _ := s["properties"].(object)
	for keyword, want := range s {
		values, _ := want.([]any)
		bound, _ := want.(float64)
		switch keyword {
		case "description", "default", "example", "examples":
		case "type":
			if values == nil {
				values = []any{want}
			}
			_, isBool := v.(bool)
			is := map[any]bool{
				"null": v == nil, "boolean": isBool, "string": isText, "array": isList, "object": isObject,
				"number": isNumber, "integer": isNumber && number == math.Trunc(number),
			}
			fail(!slices.ContainsFunc(values, func(name any) bool { return is[name] }), "%v is not of type %v", v, want)
		case "format":
			_, err := time.Parse(time.RFC3339Nano, text)
			fail(want == "date-time" && isText && err != nil, "%q is not a time", text)
			fail(!slices.Contains([]any{"date-time", "int32", "int64", "double", "float"}, want), "unknown format %v", want)
		case "enum":
			fail(!slices.Contains(values, v), "%v is not one of %v", v, want)
		case "oneOf":
			matches := 0
			for _, one := range values {
				if len(Validate(root, one, v, where)) == 0 {
					matches++
				}
			}
			fail(matches != 1, "%v matches %d of %d schemas", v, matches, len(values))
		case "minimum":
			fail(isNumber && number < bound, "%v is less than %v", v, want)
		case "maximum":
			fail(isNumber && number > bound, "%v is more than %v", v, want)
		case "minLength":
			fail(isText && len(text) < int(bound), "%q is shorter than %v", text, want)
		case "maxLength":
			fail(isText && len(text) > int(bound), "%q is longer than %v", text, want)
		case "minItems":
			fail(isList && len(list) < int(bound), "%d items, want at least %v", len(list), want)
		case "maxItems":
			fail(isList && len(list) > int(bound), "%d items, want at most %v", len(list), want)
		case "maxProperties":
			fail(isObject && len(members) > int(bound), "%d members, want at most %v", len(members), want)
		case "items":
			for i, item := range list {
				check(want, item, fmt.Sprintf("%s[%d]", where, i))
			}
		case "required":
			for _, name := range values {
				_, ok := members[fmt.Sprint(name)]
				fail(isObject && !ok, "%v is missing", name)
			}
		case "properties":
			for name, property := range properties {
				if member, ok := members[name]; ok {
					check(property, member, where+"."+name)
				}
			}
		case "additionalProperties":
			for name, member := range members {
				if _, ok := properties[name]; ok {
					continue
				}
				if documented, isBool := want.(bool); isBool {
					fail(!documented, "%s is not documented", name)
				} else {
					check(want, member, where+"."+name)
				}
			}
		default:
			fail(true, "unknown keyword %q", keyword)
		}
	}
	return problems
}
