package strict

import (
	"strconv"
	"strings"
)

// Kind is the kind of a value.
type Kind uint8

// The kinds of values.
const (
	Table Kind = iota
	Array
	String
	Integer
	Float
	Bool
	Time // not in JSON
	Null // not in TOML
)

var kindNames = [...]string{
	Table: "a table", Array: "an array", String: "a string", Integer: "an integer",
	Float: "a float", Bool: "a boolean", Time: "a date or time", Null: "null",
}

// String returns the kind with its article.
func (k Kind) String() string { return kindNames[k] }

// node is a value of a document.
type node struct {
	kind Kind
	at   int    // its offset
	text string // the value of a string; other scalars as written

	members []member // of a table
	index   map[string]int
	items   []*node // of an array

	made made // how a table was made, in TOML

	// In YAML, how many values it has, and how many levels, with aliases expanded.
	size, height int
}

type member struct {
	name  string
	at    int // the offset of the name
	value *node
}

func (n *node) member(name string) *node {
	if i, ok := n.index[name]; ok {
		return n.members[i].value
	}
	return nil
}

// add adds a new member to a table.
func (n *node) add(name string, at int, value *node) {
	if n.index == nil {
		n.index = map[string]int{}
	}
	n.index[name] = len(n.members)
	n.members = append(n.members, member{name, at, value})
}

// find returns the node at the path, or the last one on the way that exists.
func (n *node) find(path string) *node {
	for path != "" {
		name, item, rest := cutStep(path)
		next := n.member(name)
		if item >= 0 && item < len(n.items) {
			next = n.items[item]
		}
		if next == nil {
			return n
		}
		n, path = next, rest
	}
	return n
}

// cutStep cuts the first step off a path: the name of a member, or the index of an item,
// which is -1 for a member.
func cutStep(path string) (name string, item int, rest string) {
	inside, ok := strings.CutPrefix(path, "[")
	if !ok {
		name, rest = cutName(strings.TrimPrefix(path, "."))
		return name, -1, rest
	}
	number, rest, _ := strings.Cut(inside, "]")
	item, err := strconv.Atoi(number)
	if err != nil {
		item = -1
	}
	return "", item, rest
}

// cutName cuts the first name off a path.
func cutName(path string) (name, rest string) {
	if quoted, err := strconv.QuotedPrefix(path); err == nil {
		if name, err := strconv.Unquote(quoted); err == nil {
			return name, path[len(quoted):]
		}
	}
	if end := strings.IndexAny(path, ".["); end >= 0 {
		return path[:end], path[end:]
	}
	return path, ""
}

// Member returns the path of a member of the table at the path. Long names are shortened,
// because a document may have a thousand problems under one name.
func Member(path, name string) string { return string(appendMember([]byte(path), name)) }

func appendMember(path []byte, name string) []byte {
	if len(path) > 0 {
		path = append(path, '.')
	}
	if name = brief(name); !isBare(name) {
		return strconv.AppendQuote(path, name)
	}
	return append(path, name...)
}

// isBare reports whether a name needs no quotes, in paths and in TOML.
func isBare(name string) bool {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return name != ""
}

// Item returns the path of an item of the array at the path.
func Item(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// place is a path as a linked list. It becomes text only for problems.
type place struct {
	up   *place
	name string
	item int // -1 for a member
}

func (p *place) String() string { return string(p.appendTo(nil)) }

func (p *place) appendTo(path []byte) []byte {
	switch {
	case p == nil:
		return path
	case p.item >= 0:
		path = strconv.AppendInt(append(p.up.appendTo(path), '['), int64(p.item), 10)
		return append(path, ']')
	default:
		return appendMember(p.up.appendTo(path), p.name)
	}
}
