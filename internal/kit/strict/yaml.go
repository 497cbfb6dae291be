package strict

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

const (
	// MaxSizeYAML is how many bytes a YAML document may have: the parser needs about a
	// hundred bytes of memory for each.
	MaxSizeYAML = 4 << 20
	// MaxDepthYAML is how many levels a YAML document may have. Nested lists of tables take
	// two levels each.
	MaxDepthYAML = 4 * MaxDepth
	// MaxAliased is how many values the aliases of a YAML document may stand for.
	MaxAliased = 100_000
)

// YAML decodes a YAML document into the value that into points to, and returns its problems.
// After a syntax error nothing is decoded.
//
// As in YAML 1.1, yes and off are booleans. Where a string is wanted, a number, a boolean or
// a date is the text as written. A null is a field that is left out. A problem with the value
// of an alias has the place of its anchor. There is one document in a file; an empty one is
// an empty table.
func YAML(file string, data []byte, into any) (*Doc, Problems) {
	return read(file, data, into, parseYAML)
}

type yamlParser struct {
	doc     *Doc
	marks   []mark
	anchors map[*yaml.Node]*node // nil while the anchor's value is being read
	aliased int
	last    mark // the last place that was looked up, since the next is often near
}

func parseYAML(d *Doc) (root *node) {
	d.loose = true
	root = &node{}
	if len(d.data) > MaxSizeYAML {
		d.tooLarge(len(d.data), MaxSizeYAML)
		return root
	}
	p := yamlParser{doc: d, marks: marks(d.data, yamlBreak), anchors: map[*yaml.Node]*node{}}
	// The parser may panic.
	defer func() {
		if r := recover(); r != nil {
			d.report(0, nil, fmt.Sprint("the document cannot be read: ", r), "")
		}
	}()
	var first, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(d.data))
	switch err := decoder.Decode(&first); {
	case errors.Is(err, io.EOF):
		return root
	case err != nil:
		p.syntax(err)
		return root
	}
	if len(first.Content) > 0 {
		if n := p.value(first.Content[0], nil, 0); n.kind != Null {
			root = n
		}
	}
	switch err := decoder.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		p.syntax(err)
	default:
		d.report(p.offset(second.Line, second.Column), nil, SecondDocument, "put it into its own file")
	}
	return root
}

// syntax reports an error of the parser, at the line that it names, if any.
func (p *yamlParser) syntax(err error) {
	message, at := strings.TrimPrefix(err.Error(), "yaml: "), 0
	if rest, ok := strings.CutPrefix(message, "line "); ok {
		number, rest, _ := strings.Cut(rest, ": ")
		if line, err := strconv.Atoi(number); err == nil {
			message, at = rest, p.offset(line, 1)
			for at < len(p.doc.data) && p.doc.data[at] == ' ' {
				at++
			}
		}
	} else if _, rest, ok := strings.Cut(message, "unknown anchor '"); ok {
		name, _, _ := strings.Cut(rest, "'")
		message, at = "there is no anchor "+strconv.Quote(brief(name))+" before this", max(bytes.Index(p.doc.data, []byte("*"+name)), 0)
	}
	p.doc.report(at, nil, message, "")
}

// yamlBreak reports whether a line of YAML ends with the byte.
func yamlBreak(data []byte, i int) bool {
	switch data[i] {
	case '\n':
		return true
	case '\r':
		return i+1 == len(data) || data[i+1] != '\n'
	case 0x85: // next line
		return i > 0 && data[i-1] == 0xC2
	case 0xA8, 0xA9: // line and paragraph separator
		return i > 1 && data[i-1] == 0x80 && data[i-2] == 0xE2
	}
	return false
}

// offset returns the offset of a line and column of the parser.
func (p *yamlParser) offset(line, column int) int {
	i, found := slices.BinarySearchFunc(p.marks, mark{line: line, column: column}, func(a, b mark) int {
		return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.column, b.column))
	})
	if !found {
		i = max(i-1, 0)
	}
	m := p.marks[i]
	if p.last.line == line && p.last.column <= column && p.last.column > m.column {
		m = p.last
	}
	for ; m.at < len(p.doc.data) && m.line == line && m.column < column; m.column++ {
		_, n := utf8.DecodeRune(p.doc.data[m.at:])
		m.at += n
	}
	p.last = m
	return m.at
}

// value returns the tree of a value.
func (p *yamlParser) value(y *yaml.Node, where *place, depth int) *node {
	n := &node{at: p.offset(y.Line, y.Column), size: 1}
	if y.Kind == yaml.AliasNode {
		return p.alias(y, n, where, depth)
	}
	if y.Anchor != "" {
		p.anchors[y] = nil
		defer func() { p.anchors[y] = n }()
	}
	if y.Kind == yaml.ScalarNode {
		p.scalar(y, n, where)
		return n
	}
	if tag := y.ShortTag(); tag != "!!map" && tag != "!!seq" {
		p.tagged(n, where, tag)
	}
	if depth >= MaxDepthYAML {
		p.doc.tooDeep(n.at, where, MaxDepthYAML)
		return n
	}
	if y.Kind == yaml.MappingNode {
		p.members(y, n, where, depth+1)
		return n
	}
	n.kind = Array
	n.items = make([]*node, 0, len(y.Content))
	for i, c := range y.Content {
		item := p.value(c, &place{where, "", i}, depth+1)
		n.items = append(n.items, item)
		n.holds(item)
	}
	return n
}

// holds adds a value to the size and the height of the node that contains it.
func (n *node) holds(value *node) {
	n.size += value.size
	n.height = max(n.height, value.height+1)
}

// alias returns the value of an alias. It is decoded for each alias, so there is a bound.
func (p *yamlParser) alias(y *yaml.Node, n *node, where *place, depth int) *node {
	stands, known := p.anchors[y.Alias]
	if !known { // the anchor is at a name
		stands = p.value(y.Alias, where, depth)
	}
	switch {
	case stands == nil:
		p.doc.report(n.at, where, "the anchor "+strconv.Quote(brief(y.Value))+" contains itself", "")
	case p.aliased+stands.size > MaxAliased:
		if p.aliased <= MaxAliased { // once is enough
			p.doc.report(n.at, where, "the aliases up to here stand for more than "+strconv.Itoa(MaxAliased)+" values", "")
		}
		p.aliased = MaxAliased + 1
	case depth+stands.height > MaxDepthYAML:
		p.doc.tooDeep(n.at, where, MaxDepthYAML)
	default:
		p.aliased += stands.size
		return stands
	}
	n.kind = Null
	return n
}

func (p *yamlParser) members(y *yaml.Node, n *node, where *place, depth int) {
	merge := -1 // where the merge key is
	var merged *node
	for i := 0; i+1 < len(y.Content); i += 2 {
		key, value := y.Content[i], y.Content[i+1]
		at := p.offset(key.Line, key.Column)
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode {
			p.doc.report(at, where, "found "+nodeKinds[key.Kind]+" as a name, want a string", "")
			continue
		}
		inside := &place{where, key.Value, -1}
		v := p.value(value, inside, depth)
		if key.ShortTag() == "!!merge" {
			if merge >= 0 {
				p.doc.twice(at, inside, merge)
			}
			merge, merged = at, v
			continue
		}
		if i, twice := n.index[key.Value]; twice {
			p.doc.twice(at, inside, n.members[i].at)
			continue
		}
		n.add(key.Value, at, v)
		n.holds(v)
	}
	if merged == nil {
		return
	}
	tables := []*node{merged}
	if merged.kind == Array {
		tables = merged.items
	}
	for _, t := range tables {
		if t.kind != Table {
			p.doc.report(merge, where, "found "+t.kind.String()+" to merge, want an alias of a table, or an array of them", "")
			continue
		}
		for _, m := range t.members {
			// Members of the table itself win, and then those that come first.
			if n.member(m.name) == nil {
				n.add(m.name, m.at, m.value)
				n.holds(m.value)
			}
		}
	}
}

var nodeKinds = map[yaml.Kind]string{yaml.MappingNode: "a table", yaml.SequenceNode: "an array", yaml.DocumentNode: "a document"}

func (p *yamlParser) scalar(y *yaml.Node, n *node, where *place) {
	n.text = y.Value
	plain := yaml.Node{Kind: yaml.ScalarNode, Value: y.Value}
	tag := y.ShortTag()
	if y.Style&yaml.TaggedStyle != 0 && tag != "!!str" && tag != plain.ShortTag() {
		p.tagged(n, where, tag)
	}
	n.kind = String
	switch tag {
	case "!!int":
		n.kind = Integer
	case "!!float":
		n.kind = Float
		if strings.Trim(y.Value, "+-_0123456789") == "" {
			n.kind = Integer // too large for the parser
		}
	case "!!bool":
		n.kind = Bool
	case "!!timestamp":
		n.kind = Time
	case "!!null":
		n.kind = Null
	case "!!str":
		const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle | yaml.TaggedStyle
		if _, ok := truth(y.Value); ok && y.Style&quoted == 0 {
			n.kind = Bool
		}
	}
}

func (p *yamlParser) tagged(n *node, where *place, tag string) {
	p.doc.report(n.at, where, "the tag "+strconv.Quote(brief(tag))+" is not supported", "remove it")
}

// truth returns the value of a boolean of YAML 1.1, and whether the word is one.
func truth(word string) (value, ok bool) {
	switch word {
	case "true", "True", "TRUE", "yes", "Yes", "YES", "y", "Y", "on", "On", "ON":
		return true, true
	case "false", "False", "FALSE", "no", "No", "NO", "n", "N", "off", "Off", "OFF":
		return false, true
	}
	return false, false
}
