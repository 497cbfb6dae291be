package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// AppendTOML appends a struct or a map as a TOML document that [TOML] decodes to an equal
// value: first plain values, then tables and lists of tables, each with a header. Values
// inside these are written in one line, except for lists of tables and long lists. Nulls are
// left out.
//
// The value is encoded as by encoding/json, with its tags, so times are strings. A value that
// JSON cannot hold is an error, and so is a null in a list.
func AppendTOML(b []byte, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return b, err
	}
	doc := Doc{data: text, marks: []mark{{0, 1, 1}}, broken: map[string]bool{}}
	root := parseJSON(&doc) // it keeps the order of names
	if err := doc.problems.Err(); err != nil {
		return b, err
	}
	if root.kind != Table {
		return b, fmt.Errorf("strict: %T is %v, want a table", v, root.kind)
	}
	w := tomlWriter{b: b}
	w.document(root)
	return w.b, w.err
}

type tomlWriter struct {
	b   []byte
	err error
}

func (w *tomlWriter) document(root *node) {
	begin := len(w.b)
	for _, m := range root.members {
		if m.value.kind != Table && !m.value.isTables() {
			w.line(m)
		}
	}
	header := func(brackets, name string, table *node) {
		if len(w.b) > begin {
			w.b = append(w.b, '\n')
		}
		w.b = append(append(append(w.b, brackets...), tomlKey(name)...), "]]"[:len(brackets)]...)
		w.b = append(w.b, '\n')
		for _, m := range table.members {
			w.line(m)
		}
	}
	for _, m := range root.members {
		switch {
		case m.value.kind == Table:
			header("[", m.name, m.value)
		case m.value.isTables():
			for _, item := range m.value.items {
				header("[[", m.name, item)
			}
		}
	}
}

// isTables reports whether the node is a list of tables only.
func (n *node) isTables() bool {
	for _, item := range n.items {
		if item.kind != Table {
			return false
		}
	}
	return len(n.items) > 0
}

// line writes a member of a table, in one or several lines.
func (w *tomlWriter) line(m member) {
	const long = 100
	if m.value.kind == Null {
		return
	}
	w.b = append(append(w.b, tomlKey(m.name)...), " = "...)
	begin := len(w.b)
	w.value(m.value)
	if n := m.value; len(n.items) > 1 && (n.isTables() || len(w.b)-begin > long) {
		w.b = append(w.b[:begin], "[\n"...)
		for _, item := range n.items {
			w.b = append(w.b, "  "...)
			w.value(item)
			w.b = append(w.b, ",\n"...)
		}
		w.b = append(w.b, ']')
	}
	w.b = append(w.b, '\n')
}

// value writes a value within a line.
func (w *tomlWriter) value(n *node) {
	switch n.kind {
	case Table:
		between := "{ "
		for _, m := range n.members {
			if m.value.kind != Null {
				w.b = append(append(append(w.b, between...), tomlKey(m.name)...), " = "...)
				w.value(m.value)
				between = ", "
			}
		}
		if between == "{ " {
			w.b = append(w.b, "{}"...)
		} else {
			w.b = append(w.b, " }"...)
		}
	case Array:
		w.b = append(w.b, '[')
		for i, item := range n.items {
			if i > 0 {
				w.b = append(w.b, ", "...)
			}
			w.value(item)
		}
		w.b = append(w.b, ']')
	case String:
		w.b = append(w.b, tomlString(n.text)...)
	case Null:
		w.err = errors.New("strict: a list has a null, which TOML does not support")
	default:
		w.b = append(w.b, n.text...)
	}
}

func tomlKey(name string) string {
	if isBare(name) {
		return name
	}
	return tomlString(name)
}

// tomlString returns a TOML string. JSON strings are valid in TOML, except for one character.
func tomlString(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string can be encoded
	return strings.ReplaceAll(strings.TrimSuffix(b.String(), "\n"), "\x7f", `\u007f`)
}
