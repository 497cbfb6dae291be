package main

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

// tree is a JSON object.
type tree = map[string]any

func treeOf(v any) (tree, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	out := tree{}
	return out, d.Decode(&out)
}

// fromTree decodes a tree strictly.
func fromTree(from tree, into any) error {
	data, err := json.Marshal(from)
	if err != nil {
		return err
	}
	_, problems := strict.JSON("", data, into)
	for i := range problems {
		problems[i].Line, problems[i].Column = 0, 0 // of the encoded tree, which no one has seen
	}
	return problems.Err()
}

// assign applies FIELD=VALUE to the tree of a type. The value is parsed according to the
// type of the field; an empty value removes the field. Nested fields are written as
// limits[0].limit or match.paths.
func assign(of reflect.Type, into tree, text string) error {
	field, value, ok := strings.Cut(text, "=")
	if !ok || field == "" {
		return advice{fmt.Errorf("%s: want FIELD=VALUE", strict.Quote(text)), "tier=premium; FIELD= removes a field"}
	}
	_, err := assignTo(of, into, field, value)
	if err != nil {
		return advice{fmt.Errorf("%s: %w", field, err), "show with -o json, to see all fields"}
	}
	return nil
}

// assignTo returns the new value of a node, or nil if it is removed.
func assignTo(of reflect.Type, node any, path, value string) (any, error) {
	of = indirect(of)
	switch {
	case path == "" && value == "":
		return nil, nil
	case path == "":
		return typed(of, value), nil
	case of.Kind() == reflect.Map: // its keys may contain dots
		return member(of.Elem(), node, path, "", value)
	case of.Kind() == reflect.Slice:
		return element(of.Elem(), node, path, value)
	case of.Kind() == reflect.Struct:
		end := strings.IndexAny(path, ".[")
		name, rest := path, ""
		if end >= 0 {
			name, rest = path[:end], strings.TrimPrefix(path[end:], ".")
		}
		names, types := fieldsOf(of)
		field, ok := types[name]
		if !ok {
			problem := strict.Report{}
			problem.Add("", "unknown field "+strict.Quote(name)+", want one of "+strings.Join(names, ", "), problem.Closest(name, names))
			return nil, problem.Problems[0]
		}
		return member(field, node, name, rest, value)
	}
	return nil, fmt.Errorf("it has no fields, so there is no %s", strict.Quote(path))
}

// member changes one member of an object.
func member(of reflect.Type, node any, name, rest, value string) (any, error) {
	object, _ := node.(tree)
	if object == nil {
		object = tree{}
	}
	now, err := assignTo(of, object[name], rest, value)
	if err != nil {
		return nil, err
	}
	if now == nil {
		delete(object, name)
	} else {
		object[name] = now
	}
	return object, nil
}

// element changes one element of a list, or adds one at its end.
func element(of reflect.Type, node any, path, value string) (any, error) {
	list, _ := node.([]any)
	inside, rest, ok := strings.Cut(strings.TrimPrefix(path, "["), "]")
	i, err := strconv.Atoi(inside)
	if !ok || err != nil || !strings.HasPrefix(path, "[") {
		return nil, errors.New("it is a list: want the index of an element, such as [0]")
	}
	if i < 0 || i > len(list) {
		return nil, fmt.Errorf("[%d]: want from 0 to %d, which adds an element", i, len(list))
	}
	if i == len(list) {
		list = append(list, nil)
	}
	now, err := assignTo(of, list[i], strings.TrimPrefix(rest, "."), value)
	if err != nil {
		return nil, err
	}
	if now == nil {
		return slices.Delete(list, i, i+1), nil
	}
	list[i] = now
	return list, nil
}

// typed parses a text as a value of a type.
func typed(of reflect.Type, text string) any {
	if of.Kind() == reflect.String || reflect.PointerTo(of).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return text
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err == nil && !d.More() && v != nil {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return v
		}
	}
	if of.Kind() == reflect.Slice && indirect(of.Elem()).Kind() == reflect.String {
		list := []any{}
		for item := range strings.SplitSeq(text, ",") {
			list = append(list, strings.TrimSpace(item))
		}
		return list
	}
	return text // fromTree reports the problem
}

// fieldsOf returns the fields of a struct, by their names in JSON.
func fieldsOf(of reflect.Type) (names []string, types map[string]reflect.Type) {
	types = map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(of) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "" && name != "-" {
			names, types[name] = append(names, name), f.Type
		}
	}
	return names, types
}

// patch returns the JSON merge patch (RFC 7396) from one tree to another.
func patch(before, after tree) tree {
	out := tree{}
	for name := range before {
		if _, ok := after[name]; !ok {
			out[name] = nil
		}
	}
	for name, value := range after {
		oldObject, wasObject := before[name].(tree)
		newObject, isObject := value.(tree)
		if wasObject && isObject {
			if inside := patch(oldObject, newObject); len(inside) > 0 {
				out[name] = inside
			}
		} else if !reflect.DeepEqual(before[name], value) {
			out[name] = value
		}
	}
	return out
}

// differ returns the differences between two values.
func differ(path string, before, after any) []catalog.FieldDiff {
	if reflect.DeepEqual(before, after) {
		return nil
	}
	was, a := before.(tree)
	is, b := after.(tree)
	if a && b {
		var out []catalog.FieldDiff
		names := maps.Clone(was)
		maps.Copy(names, is)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			out = append(out, differ(strict.Member(path, name), was[name], is[name])...)
		}
		return out
	}
	oldList, a := before.([]any)
	newList, b := after.([]any)
	if a && b && len(oldList) == len(newList) {
		var out []catalog.FieldDiff
		for i := range oldList {
			out = append(out, differ(strict.Item(path, i), oldList[i], newList[i])...)
		}
		return out
	}
	return []catalog.FieldDiff{{Path: path, Before: inJSON(before), After: inJSON(after)}}
}

// inJSON returns a part of a tree as JSON, or an empty text for nil.
func inJSON(v any) string {
	if v == nil {
		return ""
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // it was decoded from JSON
	return strings.TrimSpace(b.String())
}
