// Package strict decodes TOML, JSON and YAML documents into Go values, and says
// everything that is wrong with a document at once: each problem with its line and
// column, what was found, and what would be right.
//
// A document is read into a tree whose nodes know where they stand, and one
// decoder takes the tree apart for all formats, by the names in json tags.
// Nothing is guessed: a name that the value does not have, a key that is given
// twice, a number that does not fit, a null, all are problems. Only in YAML, whose
// readers have always taken a number for a string where one is wanted, it is one.
//
// The package knows nothing of what documents are about. Checks that are made
// later, on the decoded value, name what they are about by its path, such as
// rules[3].match.paths[1], and [Doc.Locate] finds the place.
//
// It writes TOML ([AppendTOML]), which it reads back to the same value, and no other
// format; comments are not kept. Whatever a document holds, it does not panic, and
// a document has at most [MaxSize] bytes, [MaxDepth] levels and [MaxProblems] problems;
// in YAML, [MaxSizeYAML] and [MaxDepthYAML].
package strict

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// MaxSize is the most bytes that a document may have.
	MaxSize = 16 << 20
	// MaxDepth is the most levels of tables and arrays that a document may have.
	MaxDepth = 64
	// MaxProblems is the most problems that are looked for.
	MaxProblems = 1000
)

// Problem is one thing that is wrong with a document.
type Problem struct {
	File string `json:"file,omitempty"`
	// Line and Column count from 1, and columns count characters. They are 0 if
	// the place is not known.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// Path is what the problem is about: rules[3].limits[0].limit. It is empty for
	// the whole document.
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
	// Hint is what was probably meant.
	Hint string `json:"hint,omitempty"`
}

// String returns the problem in one line:
//
//	stint.toml:12:5: rules[3].actoin: unknown field; did you mean "action"?
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File + ":")
	}
	if p.Line > 0 {
		b.WriteString(strconv.Itoa(p.Line) + ":" + strconv.Itoa(p.Column) + ":")
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	if p.Hint != "" {
		b.WriteString("; " + p.Hint)
	}
	return b.String()
}

// Error implements error.
func (p Problem) Error() string { return p.String() }

// Problems are all that is wrong with a document, in its order.
type Problems []Problem

// Error lists the problems, one in a line: the first 50, and how many more there
// are.
func (p Problems) Error() string {
	const most = 50
	var b strings.Builder
	for i, problem := range p {
		if i > 0 {
			b.WriteByte('\n')
		}
		if i == most {
			b.WriteString("and " + strconv.Itoa(len(p)-most) + " more")
			break
		}
		b.WriteString(problem.String())
	}
	return b.String()
}

// Err returns the problems as an error, or nil if there are none.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// And returns the problems and more of them, in the order of the document.
func (p Problems) And(more Problems) Problems {
	all := slices.Concat(p, more)
	slices.SortStableFunc(all, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return all
}

// Doc is a document that was read. It knows where things stand in it.
type Doc struct {
	file  string
	data  []byte
	marks []mark
	root  *node
	loose bool // it is YAML: see [YAML]

	problems Problems
	// broken are the paths that were not decoded, or not in full. What is found
	// missing there later is not missing.
	broken map[string]bool
}

// mark is a place whose line and column are known. There is one at the beginning of
// each line, and every so often in a long one.
type mark struct{ at, line, column int }

// read makes the tree of a document and decodes it.
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
	newDecoder(d).decode(d.root, into)
	return d, Problems{}.And(d.problems)
}

func (d *Doc) tooLarge(size, most int) {
	d.report(0, nil, "the document has "+strconv.Itoa(size)+" bytes, want at most "+strconv.Itoa(most), "")
}

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

// report notes a problem with what stands at the offset and has that place.
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

// marks returns the marks of a document, whose lines end where the function says.
func marks(data []byte, ends func(data []byte, i int) bool) []mark {
	const often = 4096
	at := mark{0, 1, 1}
	all := []mark{at}
	for i, c := range data {
		if utf8.RuneStart(c) && i-all[len(all)-1].at >= often {
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
		i-- // the last one before it
	}
	m := d.marks[i]
	return m.line, m.column + utf8.RuneCount(d.data[m.at:min(at, len(d.data))])
}

// At returns where the path stands in the document or, if the document does not
// have it, the nearest thing around it.
func (d *Doc) At(path string) (line, column int) {
	return d.position(d.root.find(path).at)
}

// Locate returns those of the problems that can be believed, with their places: a
// problem with what was not decoded is one already.
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

// isBroken says whether the path, or one that it begins with, is.
func (d *Doc) isBroken(path string) bool {
	for rest := path; !d.broken[path[:len(path)-len(rest)]]; _, _, rest = cutStep(rest) {
		if rest == "" {
			return false
		}
	}
	return true
}
