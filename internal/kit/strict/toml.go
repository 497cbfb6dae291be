package strict

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/pelletier/go-toml/v2/unstable"
)

// TOML decodes a TOML document into the value that into points to, and returns its problems.
// After a syntax error the rest is not read.
func TOML(file string, data []byte, into any) (*Doc, Problems) {
	return read(file, data, into, parseTOML)
}

// made is how a TOML table was made, which decides what may be added to it.
type made uint8

const (
	byChild made = iota // by the header of a table in it: [a] by [a.b]
	byHeader
	byDots // a.b = 1
	byValue
)

type tomlParser struct {
	doc     *Doc
	parser  unstable.Parser
	root    *node
	current *node // the table of the last header
	where   *place
	depth   int
}

func parseTOML(d *Doc) (root *node) {
	p := tomlParser{doc: d, root: &node{}}
	p.current = p.root
	// The parser's documentation names cases in which it panics.
	defer func() {
		if r := recover(); r != nil {
			d.report(0, nil, fmt.Sprint("the document cannot be read: ", r), "")
			root = p.root
		}
	}()
	p.parser.Reset(d.data)
	for p.parser.NextExpression() && !d.full() {
		switch e := p.parser.Expression(); e.Kind {
		case unstable.KeyValue:
			p.keyValue(p.current, p.where, e, p.depth)
		case unstable.Table, unstable.ArrayTable:
			p.header(e)
		default: // comments are not kept
		}
	}
	if err := p.parser.Error(); err != nil {
		at := len(d.data)
		var detail *unstable.ParserError
		if errors.As(err, &detail) && detail.Highlight != nil {
			at = min(max(cap(d.data)-cap(detail.Highlight), 0), len(d.data))
		}
		d.report(at, nil, err.Error(), "")
	}
	return p.root
}

// header makes the table of a header the current one.
func (p *tomlParser) header(e *unstable.Node) {
	t, where := p.root, (*place)(nil)
	// If the header is wrong, the lines below it are ignored.
	p.current, p.depth = &node{}, 0
	begin := -1
	for keys := e.Key(); keys.Next(); {
		key := keys.Node()
		name, at := string(key.Data), int(key.Raw.Offset)
		if begin < 0 {
			begin = p.bracket(at, e.Kind)
		}
		if p.depth++; p.depth > MaxDepth {
			p.doc.tooDeep(at, where, MaxDepth)
			return
		}
		where = &place{where, name, -1}
		p.where = where
		next := t.member(name)
		if keys.IsLast() {
			p.current, p.where = p.open(t, next, e.Kind, name, begin, where)
			return
		}
		switch {
		case next == nil:
			next = &node{at: begin}
			t.add(name, at, next)
		case next.kind == Array && next.made == byHeader:
			where = &place{where, "", len(next.items) - 1}
			next = next.items[len(next.items)-1]
		case next.kind != Table || next.made == byValue:
			p.doc.twice(at, where, next.at)
			return
		}
		t = next
	}
}

// open returns the table of a header, which is t's member of that name.
func (p *tomlParser) open(t, old *node, kind unstable.Kind, name string, at int, where *place) (*node, *place) {
	made := &node{at: at, made: byHeader}
	switch {
	case kind == unstable.ArrayTable && (old == nil || (old.kind == Array && old.made == byHeader)):
		if old == nil {
			old = &node{kind: Array, at: at, made: byHeader}
			t.add(name, at, old)
		}
		old.items = append(old.items, made)
		where = &place{where, "", len(old.items) - 1}
	case old == nil:
		t.add(name, at, made)
	case kind == unstable.Table && old.kind == Table && old.made == byChild:
		old.at, old.made = at, byHeader
		made = old
	default:
		p.doc.twice(at, where, old.at)
	}
	return made, where
}

// bracket returns the start of the header whose first key is at the offset.
func (p *tomlParser) bracket(at int, kind unstable.Kind) int {
	for at > 0 && p.doc.data[at] != '[' {
		at--
	}
	if kind == unstable.ArrayTable {
		at--
	}
	return at
}

// keyValue adds a.b.c = value to a table.
func (p *tomlParser) keyValue(t *node, where *place, e *unstable.Node, depth int) {
	for keys := e.Key(); keys.Next(); {
		key := keys.Node()
		name, at := string(key.Data), int(key.Raw.Offset)
		if depth++; depth > MaxDepth {
			p.doc.tooDeep(at, where, MaxDepth)
			return
		}
		where = &place{where, name, -1}
		next := t.member(name)
		if keys.IsLast() {
			value := p.value(e.Value(), at, where, depth)
			if next != nil {
				p.doc.twice(at, where, next.at)
				return
			}
			t.add(name, at, value)
			return
		}
		switch {
		case next == nil:
			next = &node{at: at, made: byDots}
			t.add(name, at, next)
		case next.kind != Table || next.made != byDots:
			p.doc.twice(at, where, next.at)
			return
		}
		t = next
	}
}

// value returns the tree of a value. The offset is for arrays, which have none.
func (p *tomlParser) value(e *unstable.Node, at int, where *place, depth int) *node {
	if e.Raw.Length > 0 {
		at = int(e.Raw.Offset)
	}
	n := &node{at: at, made: byValue}
	if e.Kind == unstable.Array || e.Kind == unstable.InlineTable {
		if depth >= MaxDepth {
			p.doc.tooDeep(at, where, MaxDepth)
			return n
		}
		if e.Kind == unstable.Array {
			n.kind = Array
		}
		for children := e.Children(); children.Next(); {
			child := children.Node()
			if e.Kind == unstable.Array {
				n.items = append(n.items, p.value(child, at, &place{where, "", len(n.items)}, depth+1))
			} else {
				p.keyValue(n, where, child, depth)
			}
		}
		return n
	}
	kind, ok := tomlKinds[e.Kind]
	if !ok {
		kind = Time
	}
	n.kind, n.text = kind, string(e.Data)
	return n
}

var tomlKinds = map[unstable.Kind]Kind{
	unstable.String: String, unstable.Bool: Bool, unstable.Integer: Integer, unstable.Float: Float,
}

func (d *Doc) twice(at int, where *place, first int) {
	if d.full() {
		return // saves time if one name is repeated very often
	}
	line, _ := d.position(first)
	d.report(at, where, "given twice, first in line "+strconv.Itoa(line), "")
}

func (d *Doc) tooDeep(at int, where *place, limit int) {
	d.report(at, where, "nested more than "+strconv.Itoa(limit)+" levels deep", "")
}
