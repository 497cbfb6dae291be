package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
)

// JSON decodes a JSON document into the value that into points to, and returns its problems.
// After a syntax error the rest is not read.
func JSON(file string, data []byte, into any) (*Doc, Problems) {
	return read(file, data, into, parseJSON)
}

type jsonParser struct {
	doc *Doc
	dec *json.Decoder
}

func parseJSON(d *Doc) *node {
	// Reading tokens does not check the whole grammar, so this comes first.
	var whole json.RawMessage
	if err := json.Unmarshal(d.data, &whole); err != nil {
		at := len(d.data)
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			at = int(syntax.Offset) - 1
		}
		d.report(max(at, 0), nil, err.Error(), "")
	}
	p := jsonParser{d, json.NewDecoder(bytes.NewReader(d.data))}
	p.dec.UseNumber()
	if n := p.value(nil, 0); n != nil {
		return n
	}
	return &node{}
}

// next returns the next token and its offset, or false at the end or at a syntax error, which
// has been reported.
func (p *jsonParser) next() (token json.Token, at int, ok bool) {
	at = int(p.dec.InputOffset())
	token, err := p.dec.Token()
	if err != nil {
		return nil, at, false
	}
	for strings.IndexByte(" \t\r\n,:", p.doc.data[at]) >= 0 {
		at++
	}
	return token, at, true
}

// value returns the tree of the next value, as far as it can be read, or nil at the end.
func (p *jsonParser) value(where *place, depth int) *node {
	token, at, ok := p.next()
	if !ok {
		return nil
	}
	n := &node{at: at}
	switch v := token.(type) {
	case json.Delim:
		if v == ']' {
			return nil
		}
		if depth >= MaxDepth {
			p.doc.tooDeep(at, where, MaxDepth)
			p.skip()
			return n
		}
		if v == '{' {
			p.members(n, where, depth+1)
			return n
		}
		n.kind = Array
		for {
			item := p.value(&place{where, "", len(n.items)}, depth+1)
			if item == nil {
				return n
			}
			n.items = append(n.items, item)
		}
	case string:
		n.kind, n.text = String, v
	case json.Number:
		n.kind, n.text = Integer, v.String()
		if strings.ContainsAny(n.text, ".eE") {
			n.kind = Float
		}
	case bool:
		n.kind, n.text = Bool, strconv.FormatBool(v)
	default:
		n.kind = Null
	}
	return n
}

func (p *jsonParser) members(n *node, where *place, depth int) {
	for {
		token, at, _ := p.next()
		name, ok := token.(string)
		if !ok {
			return
		}
		where := &place{where, name, -1}
		value := p.value(where, depth)
		if value == nil {
			return
		}
		if i, twice := n.index[name]; twice {
			p.doc.twice(at, where, n.members[i].at)
			continue
		}
		n.add(name, at, value)
	}
}

// skip reads to the end of the array or object that has just begun.
func (p *jsonParser) skip() {
	for open := 1; open > 0; {
		token, _, ok := p.next()
		if !ok {
			return
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			open++
		case json.Delim('}'), json.Delim(']'):
			open--
		}
	}
}
