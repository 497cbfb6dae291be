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

// tree is a value as JSON has it: objects, lists, texts, numbers.
type tree = map[string]any

// treeOf returns a value as a tree.
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

// fromTree reads a tree into a value, and says what does not fit.
func fromTree(from tree, into any) error {
	data, err := json.Marshal(from)
	if err != nil {
		return err
	}
	_, problems := strict.JSON("", data, into)
	for i := range problems {
		problems[i].Line, problems[i].Column = 0, 0 // of what no one has written
	}
	return problems.Err()
}

// assign changes a tree as FIELD=VALUE says, as far as it is one of a type: a value is
// what the field wants, and an empty one removes the field. The field may be one within
// another, as limits[0].limit or match.paths.
func assign(of reflect.Type, into tree, text string) error {
	field, value, ok := strings.Cut(text, "=")
	if !ok || field == "" {
		return advice{fmt.Errorf("%s: want FIELD=VALUE", strict.Quote(text)), "tier=premium; FIELD= removes a field"}
	}
	_, err := assignTo(of, into, field, value)
	if err != nil {
		return advice{fmt.Errorf("%s: %w", field, err), "show with -o json, for the fields that there are"}
	}
	return nil
}

// assignTo returns what a node becomes.
func assignTo(of reflect.Type, node any, path, value string) (any, error) {
	of = indirect(of)
	switch {
	case path == "" && value == "":
		return nil, nil // to be removed
	case path == "":
		return typed(of, value), nil
	case of.Kind() == reflect.Map: // whose names may have dots
		return member(of.Elem(), node, path, "", value)
	case of.Kind() == reflect.Slice:
		return element(of.Elem(), node, path, value)
	case of.Kind() == reflect.Struct:
		end := strings.IndexAny(path, ".[")
		name, rest := path, ""
		if end >= 0 {
			name, rest = path[:end], strings.TrimPrefix(path[end:], ".")
		}
		field, ok := fieldNamed(of, name)
		if !ok {
			var names []string
			fieldsOf(of, func(n string, _ reflect.Type) { names = append(names, n) })
			problem := strict.Report{}
			problem.Add("", "unknown field "+strict.Quote(name)+", want one of "+strings.Join(names, ", "), problem.Closest(name, names))
			return nil, problem.Problems[0]
		}
		return member(field, node, name, rest, value)
	}
	return nil, fmt.Errorf("there is nothing within it, and so no %s", strict.Quote(path))
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
		return nil, errors.New("it is a list: want the number of an element, as in [0]")
	}
	if i < 0 || i > len(list) {
		return nil, fmt.Errorf("[%d]: want from 0 to %d, which adds one", i, len(list))
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

// typed is a text as a value of a type.
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
	return text // and who reads it says what is wrong
}

// fieldsOf goes through the fields of a struct, by their names in JSON.
func fieldsOf(of reflect.Type, each func(name string, of reflect.Type)) {
	for i := range of.NumField() {
		f := of.Field(i)
		switch name, _, _ := strings.Cut(f.Tag.Get("json"), ","); {
		case f.Anonymous && name == "":
			fieldsOf(indirect(f.Type), each)
		case f.IsExported() && name != "-":
			each(name, f.Type)
		}
	}
}

func fieldNamed(of reflect.Type, name string) (found reflect.Type, ok bool) {
	fieldsOf(of, func(n string, t reflect.Type) {
		if n == name {
			found, ok = t, true
		}
	})
	return found, ok
}

// patch returns what makes one tree another, as RFC 7396 has it.
func patch(before, after tree) tree {
	out := tree{}
	for name, was := range before {
		is, ok := after[name]
		wasObject, a := was.(tree)
		isObject, b := is.(tree)
		switch {
		case !ok:
			out[name] = nil
		case a && b:
			if inside := patch(wasObject, isObject); len(inside) > 0 {
				out[name] = inside
			}
		case !reflect.DeepEqual(was, is):
			out[name] = is
		}
	}
	for name, is := range after {
		if _, ok := before[name]; !ok {
			out[name] = is
		}
	}
	return out
}

// differ returns what is not as it was.
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
	these, a := before.([]any)
	those, b := after.([]any)
	if a && b && len(these) == len(those) {
		var out []catalog.FieldDiff
		for i := range these {
			out = append(out, differ(strict.Item(path, i), these[i], those[i])...)
		}
		return out
	}
	return []catalog.FieldDiff{{Path: path, Before: inJSON(before), After: inJSON(after)}}
}

// inJSON is a part of a tree as a text; nothing is none.
func inJSON(v any) string {
	if v == nil {
		return ""
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // it was decoded
	return strings.TrimSpace(b.String())
}
