package importer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/stintdev/stint/internal/kit/strict"
)

// tree is a value of YAML or TOML, with its place. A nil tree has nothing in it.
type tree struct {
	pos
	text    string // of a scalar
	list    []*tree
	members []member
	isList  bool
	isTable bool
}

type member struct {
	name string
	at   pos
	*tree
}

// documents reads all documents of all files.
func (m *importer) documents() (out []*tree, err error) {
	for _, file := range m.Files {
		data, err := m.load(file)
		if err != nil {
			return nil, err
		}
		var more []*tree
		if filepath.Ext(file) == ".toml" {
			more, err = m.toml(file, data)
		} else {
			more, err = m.yaml(file, data)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

func (m *importer) yaml(file string, data []byte) (out []*tree, err error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var n yaml.Node
		err := d.Decode(&n)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			line, text := 1, strings.TrimPrefix(err.Error(), "yaml: ")
			if number, rest, ok := strings.Cut(strings.TrimPrefix(text, "line "), ": "); ok {
				if l, err := strconv.Atoi(number); err == nil {
					line, text = l, rest
				}
			}
			return nil, broken(pos{file, line}, "not YAML: %s", text)
		}
		if len(n.Content) == 0 {
			continue
		}
		t, err := m.fromYAML(file, n.Content[0], 0)
		if err != nil {
			return nil, err
		}
		if t.isTable {
			out = append(out, t)
		} else if t.text != "" || t.isList {
			return nil, broken(t.pos, "want an object")
		}
	}
}

// fromYAML converts a node. Aliases and merged tables are expanded, within bounds.
func (m *importer) fromYAML(file string, n *yaml.Node, depth int) (*tree, error) {
	t := &tree{pos: pos{file, n.Line}}
	if m.nodes++; m.nodes > maxNodes || depth > maxDepth {
		return nil, broken(t.pos, "more than %d values, or %d inside each other", maxNodes, maxDepth)
	}
	switch n.Kind {
	case yaml.AliasNode:
		return m.fromYAML(file, n.Alias, depth+1)
	case yaml.SequenceNode:
		t.isList = true
		for _, c := range n.Content {
			item, err := m.fromYAML(file, c, depth+1)
			if err != nil {
				return nil, err
			}
			t.list = append(t.list, item)
		}
	case yaml.MappingNode:
		t.isTable = true
		var merged []member
		for i := 0; i+1 < len(n.Content); i += 2 {
			v, err := m.fromYAML(file, n.Content[i+1], depth+1)
			if err != nil {
				return nil, err
			}
			if n.Content[i].Tag == "!!merge" {
				for _, one := range append(v.list, v) {
					merged = append(merged, one.members...)
				}
				continue
			}
			t.members = append(t.members, member{n.Content[i].Value, pos{file, n.Content[i].Line}, v})
		}
		for _, o := range merged {
			if t.get(o.name) == nil {
				t.members = append(t.members, o)
			}
		}
	default:
		if t.text = n.Value; n.Tag == "!!null" {
			t.text = ""
		}
	}
	return t, nil
}

func (m *importer) toml(file string, data []byte) ([]*tree, error) {
	var into map[string]any
	doc, problems := strict.TOML(file, data, &into)
	if len(problems) > 0 {
		return nil, problems
	}
	t, err := m.fromAny(file, doc, "", into, 0)
	return []*tree{t}, err
}

func (m *importer) fromAny(file string, doc *strict.Doc, path string, v any, depth int) (*tree, error) {
	line, _ := doc.At(path)
	t := &tree{pos: pos{file, max(line, 1)}}
	if m.nodes++; m.nodes > maxNodes || depth > maxDepth {
		return nil, broken(t.pos, "more than %d values, or %d inside each other", maxNodes, maxDepth)
	}
	switch v := v.(type) {
	case map[string]any:
		t.isTable = true
		for name, value := range v {
			c, err := m.fromAny(file, doc, strict.Member(path, name), value, depth+1)
			if err != nil {
				return nil, err
			}
			t.members = append(t.members, member{name, c.pos, c})
		}
		slices.SortFunc(t.members, func(a, b member) int {
			if a.at.line != b.at.line {
				return a.at.line - b.at.line
			}
			return strings.Compare(a.name, b.name)
		})
	case []any:
		t.isList = true
		for i, value := range v {
			c, err := m.fromAny(file, doc, strict.Item(path, i), value, depth+1)
			if err != nil {
				return nil, err
			}
			t.list = append(t.list, c)
		}
	case nil:
	default:
		t.text = fmt.Sprint(v)
	}
	return t, nil
}

// get returns a value by names, one inside the other, or nil.
func (t *tree) get(names ...string) *tree {
	for _, name := range names {
		if t == nil {
			return nil
		}
		i := slices.IndexFunc(t.members, func(m member) bool { return strings.EqualFold(m.name, name) })
		if i < 0 {
			return nil
		}
		t = t.members[i].tree
	}
	return t
}

// str returns the text of a value inside, or "".
func (t *tree) str(names ...string) string {
	if v := t.get(names...); v != nil {
		return v.text
	}
	return ""
}

// items returns the values of a list inside.
func (t *tree) items(names ...string) []*tree {
	if v := t.get(names...); v != nil {
		return v.list
	}
	return nil
}

// strs returns the texts of a list inside, or of a single text.
func (t *tree) strs(names ...string) (out []string) {
	v := t.get(names...)
	if v == nil {
		return nil
	}
	if !v.isList && v.text != "" {
		return []string{v.text}
	}
	for _, one := range v.list {
		out = append(out, one.text)
	}
	return out
}

// number returns a whole number, and whether there is one.
func (t *tree) number(names ...string) (int64, bool) {
	v, err := strconv.ParseFloat(t.str(names...), 64)
	return int64(v), err == nil && v == float64(int64(v))
}

// others reports members that are neither used nor known to have nothing to do with limits.
func (m *importer) others(t *tree, of string, known ...string) {
	if t == nil {
		return
	}
	for _, c := range t.members {
		if !slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, c.name) }) {
			m.missing(c.at, of+"."+c.name, "is not a field that the import knows, so it may change the limit", "check what it does")
		}
	}
}
