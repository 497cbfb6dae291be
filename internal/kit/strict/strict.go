// Package strict decodes TOML, JSON and YAML documents into Go values, and reports all
// problems of a document at once: each with its line and column, what was found, and what
// would be right.
//
// A document is parsed into a tree whose nodes know their place, and one decoder decodes the
// tree for all formats, by the names in json tags. Nothing is guessed: an unknown name, a
// duplicate key, a number out of range and a null are problems. Only in YAML, where this is
// customary, a number may stand for a string.
//
// Later checks of the decoded value report problems by path, such as
// rules[3].match.paths[1], and [Doc.Locate] finds the place.
//
// The package also writes TOML ([AppendTOML]), without comments. It does not panic, whatever
// a document holds. A document may have at most [MaxSize] bytes and [MaxDepth] levels, or
// [MaxSizeYAML] and [MaxDepthYAML] in YAML, and at most [MaxProblems] problems are reported.
package strict

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// MaxSize is how many bytes a document may have.
	MaxSize = 16 << 20
	// MaxDepth is how many levels of tables and arrays a document may have.
	MaxDepth = 64
	// MaxProblems is how many problems are reported at most.
	MaxProblems = 1000
)

// Problem is a problem in a document.
type Problem struct {
	File string `json:"file,omitempty"`
	// Line and Column count from 1, and columns count characters. They are 0 if the place is
	// unknown.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// Path is the path of the value, such as rules[3].limits[0].limit. It is empty for the
	// whole document.
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
	// Hint is what was probably meant.
	Hint string `json:"hint,omitempty"`
}

// Messages of problems that some callers tolerate.
const (
	UnknownField   = "unknown field"
	SecondDocument = "a second document begins here, want one"
)

// String returns the problem in one line:
//
//	stint.toml:12:5: rules[3].actoin: unknown field; did you mean "action"?
func (p Problem) String() string {
	text := p.Message
	if p.Path != "" {
		text = p.Path + ": " + text
	}
	if p.Hint != "" {
		text += "; " + p.Hint
	}
	place := p.File
	if p.Line > 0 {
		place = strings.TrimPrefix(fmt.Sprintf("%s:%d:%d", place, p.Line, p.Column), ":")
	}
	if place != "" {
		text = place + ": " + text
	}
	return text
}

// Error implements error.
func (p Problem) Error() string { return p.String() }

// Problems are all problems in a document, in its order.
type Problems []Problem

// Error lists the problems, one per line: the first 50, and how many more there are.
func (p Problems) Error() string {
	const maxShown = 50
	var lines []string
	for _, problem := range p[:min(len(p), maxShown)] {
		lines = append(lines, problem.String())
	}
	if n := len(p) - maxShown; n > 0 {
		lines = append(lines, "and "+strconv.Itoa(n)+" more")
	}
	return strings.Join(lines, "\n")
}

// Err returns the problems as an error, or nil if there are none.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// And returns all problems of both lists, in the order of the document.
func (p Problems) And(more Problems) Problems {
	all := slices.Concat(p, more)
	slices.SortStableFunc(all, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return all
}

// Doc is a document that was read. It knows the places of its values.
type Doc struct {
	file  string
	data  []byte
	marks []mark
	root  *node
	loose bool // it is YAML: see [YAML]

	problems Problems
	// broken are the paths that were not decoded completely. Values that seem to be missing
	// there may not be.
	broken map[string]bool
}

// mark is an offset with its line and column. There is one at the start of each line, and
// more in long lines.
type mark struct{ at, line, column int }

// read parses a document and decodes it.
func read(file string, data []byte, into any, parse func(*Doc) *node) (*Doc, Problems) {
	d := &Doc{file: file, data: data, marks: []mark{{0, 1, 1}}, root: &node{}, broken: map[string]bool{}}
	if len(data) > MaxSize {
		d.data = nil
		d.tooLarge(len(data), MaxSize)
		return d, d.problems
	}
	d.marks = marks(data, func(data []byte, i int) bool { return data[i] == '\n' })
	if at := invalidUTF8(data); at >= 0 {
		d.report(at, nil, "byte "+strconv.Quote(string(data[at:at+1]))+" is not UTF-8", "")
		return d, d.problems
	}
	d.root = parse(d)
	decoder := &decoder{doc: d, fields: map[reflect.Type]*fields{}}
	decoder.value(d.root, reflect.ValueOf(into).Elem(), nil)
	return d, Problems{}.And(d.problems)
}

func (d *Doc) tooLarge(size, limit int) {
	d.report(0, nil, "the document has "+strconv.Itoa(size)+" bytes, want at most "+strconv.Itoa(limit), "")
}

// invalidUTF8 returns the offset of the first byte that is not UTF-8, or -1.
func invalidUTF8(data []byte) int {
	if utf8.Valid(data) {
		return -1
	}
	for i := 0; ; {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
}

// report adds a problem with the value at the offset, whose path is where.
func (d *Doc) report(at int, where *place, message, hint string) {
	if d.full() {
		return
	}
	path := where.String()
	d.broken[path] = true
	line, column := d.position(at)
	d.problems = append(d.problems, Problem{
		File: d.file, Line: line, Column: column, Path: path, Message: message, Hint: hint,
	})
}

func (d *Doc) full() bool { return len(d.problems) >= MaxProblems }

// marks returns the marks of a document. A line ends at each byte for which ends is true.
func marks(data []byte, ends func(data []byte, i int) bool) []mark {
	const maxDistance = 4096
	at := mark{0, 1, 1}
	all := []mark{at}
	for i, c := range data {
		if utf8.RuneStart(c) && i-all[len(all)-1].at >= maxDistance {
			all = append(all, mark{i, at.line, at.column})
		}
		switch {
		case ends(data, i):
			at = mark{i + 1, at.line + 1, 1}
			all = append(all, at)
		case utf8.RuneStart(c):
			at.column++
		}
	}
	return all
}

func (d *Doc) position(at int) (line, column int) {
	i, found := slices.BinarySearchFunc(d.marks, at, func(m mark, at int) int { return cmp.Compare(m.at, at) })
	if !found {
		i-- // the last mark before it
	}
	m := d.marks[i]
	return m.line, m.column + utf8.RuneCount(d.data[m.at:min(at, len(d.data))])
}

// At returns the place of the path in the document or, if it is missing there, of the
// nearest value around it.
func (d *Doc) At(path string) (line, column int) {
	return d.position(d.root.find(path).at)
}

// Locate returns the problems with their places. It drops problems of values that were not
// decoded, because these have been reported already.
func (d *Doc) Locate(problems Problems) Problems {
	var out Problems
	for _, p := range problems {
		if d.isBroken(p.Path) {
			continue
		}
		p.File = d.file
		p.Line, p.Column = d.At(p.Path)
		out = append(out, p)
	}
	return Problems{}.And(out)
}

// isBroken reports whether the path, or one that contains it, was not decoded completely.
func (d *Doc) isBroken(path string) bool {
	for rest := path; !d.broken[path[:len(path)-len(rest)]]; _, _, rest = cutStep(rest) {
		if rest == "" {
			return false
		}
	}
	return true
}
