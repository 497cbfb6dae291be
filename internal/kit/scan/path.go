package scan

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const (
	// MaxPath is how many steps a path may have.
	MaxPath = 16
	// MaxText is how many bytes of a string are kept.
	MaxText = 128
)

// Paths are places in JSON, such as usage.total, results[0].cost or choices[*].text. They
// are compiled once, and shared. A name that is not of letters, digits, _ and - is written
// in brackets and as in JSON: ["total cost"].
type Paths struct {
	root *step
}

// step is a place on the way to those that are looked for.
type step struct {
	names    map[string]*step
	elements map[int64]*step
	each     *step // elements that are not in elements
	path     int   // the index of the path that ends here, or -1
}

// NewPaths compiles paths. Their places in the call are what they are known by.
func NewPaths(paths ...string) (*Paths, error) {
	p := &Paths{newStep()}
	for i, path := range paths {
		if err := p.add(path, i); err != nil {
			return nil, fmt.Errorf("path %q: %w", path, err)
		}
	}
	return p, nil
}

// CheckPath reports what is wrong with a path to one value, if anything.
func CheckPath(path string) error {
	_, err := NewPaths(path)
	if err == nil && strings.Contains(path, "[*]") {
		err = fmt.Errorf("path %q: want the number of an element in place of [*]", path)
	}
	return err
}

func newStep() *step {
	return &step{names: map[string]*step{}, elements: map[int64]*step{}, path: -1}
}

func (p *Paths) add(path string, index int) error {
	at, rest := p.root, path
	for n := 0; rest != "" || n == 0; n++ {
		if n == MaxPath {
			return fmt.Errorf("want at most %d steps", MaxPath)
		}
		var err error
		switch {
		case rest != "" && rest[0] == '[':
			at, rest, err = at.bracket(rest)
		case n == 0:
			at, rest, err = at.plain(rest)
		case rest[0] == '.':
			at, rest, err = at.plain(rest[1:])
		default:
			err = fmt.Errorf("want . or [ before %q", rest)
		}
		if err != nil {
			return err
		}
	}
	if at.path >= 0 {
		return errors.New("want it only once")
	}
	at.path = index
	return nil
}

// plain reads a name without quotes.
func (s *step) plain(path string) (next *step, rest string, err error) {
	n := 0
	for n < len(path) && isPlain(path[n]) {
		n++
	}
	if n == 0 {
		return nil, "", fmt.Errorf(`want a name before %q: letters, digits, _ and -, or ["a name"]`, path)
	}
	next, err = s.member(path[:n])
	return next, path[n:], err
}

func isPlain(c byte) bool {
	return c == '_' || c == '-' || (c >= '0' && c <= '9') || (c|0x20 >= 'a' && c|0x20 <= 'z')
}

func (s *step) member(name string) (*step, error) {
	if len(name) > MaxName {
		return nil, fmt.Errorf("want names of at most %d bytes", MaxName)
	}
	if s.names[name] == nil {
		s.names[name] = newStep()
	}
	return s.names[name], nil
}

// bracket reads [0], [*] or ["name"].
func (s *step) bracket(path string) (next *step, rest string, err error) {
	if strings.HasPrefix(path, `["`) {
		d := json.NewDecoder(strings.NewReader(path[1:]))
		var name string
		if err := d.Decode(&name); err == nil && strings.HasPrefix(path[1+d.InputOffset():], "]") {
			next, err = s.member(name)
			return next, path[d.InputOffset()+2:], err
		}
		return nil, "", fmt.Errorf(`want ["name"], as JSON writes it, found %q`, path)
	}
	inside, rest, closed := strings.Cut(path[1:], "]")
	if inside == "*" && closed {
		if s.each == nil {
			s.each = newStep()
		}
		return s.each, rest, nil
	}
	i, err := strconv.ParseUint(inside, 10, 31)
	if err != nil || !closed {
		return nil, "", fmt.Errorf("want the number of an element, such as [0], found %q", path)
	}
	if s.elements[int64(i)] == nil {
		s.elements[int64(i)] = newStep()
	}
	return s.elements[int64(i)], rest, nil
}

// element returns the step to an element of an array.
func (s *step) element(i int64) *step {
	if e := s.elements[i]; e != nil {
		return e
	}
	return s.each
}

// Kind is the kind of a JSON value.
type Kind uint8

// The kinds of values.
const (
	Object Kind = iota
	Array
	String
	Number
	True
	False
	Null
)

// Value is a value at one of the paths.
type Value struct {
	Kind Kind
	// Number is the number, rounded up: see [Ceil].
	Number int64
	// Text is the string, up to MaxText bytes; it is valid during the call only.
	Text []byte
	// Cut says that the string was longer.
	Cut bool
}

// Finder gets what is found at paths.
type Finder interface {
	// Value is a value at a path: an object or an array when it begins, others when they
	// end. If a name is repeated in an object, there are several.
	Value(path int, v Value)
	// Text is a piece of a string at a path, before its value.
	Text(path int, piece []byte)
}

// Match is the visitor of a JSON text that looks for paths.
type Match struct {
	paths  *Paths
	to     Finder
	levels [MaxPath]level
	depth  int   // of levels
	beside int   // arrays and objects that are on no path, one inside another
	next   *step // of the member whose name was read
	text   *step // of the string
	inText bool
	buf    [MaxText]byte
	length int
	cut    bool
}

// level is an array or an object on a path.
type level struct {
	at    *step
	array bool
	index int64
}

var _ Visitor = (*Match)(nil)

// NewMatch returns a visitor for one text after another.
func NewMatch(paths *Paths, to Finder) *Match { return &Match{paths: paths, to: to} }

// Reset begins a new text, also if the last one was not complete.
func (m *Match) Reset() { m.depth, m.beside, m.next, m.inText = 0, 0, nil, false }

// step returns the step to the value that begins, or nil.
func (m *Match) step() *step {
	if m.beside > 0 {
		return nil
	}
	if m.depth == 0 {
		return m.paths.root
	}
	top := &m.levels[m.depth-1]
	if !top.array {
		return m.next
	}
	top.index++
	return top.at.element(top.index - 1)
}

// Begin implements [Visitor].
func (m *Match) Begin(array bool) {
	at := m.step()
	if at != nil && at.path >= 0 {
		kind := Object
		if array {
			kind = Array
		}
		m.to.Value(at.path, Value{Kind: kind})
	}
	if at == nil || m.depth == len(m.levels) {
		m.beside++
		return
	}
	m.levels[m.depth] = level{at: at, array: array}
	m.depth++
}

// End implements [Visitor].
func (m *Match) End() {
	if m.beside > 0 {
		m.beside--
		return
	}
	m.depth--
}

// Name implements [Visitor].
func (m *Match) Name(name []byte, whole bool) {
	if m.beside > 0 {
		return
	}
	m.next = nil
	if whole {
		m.next = m.levels[m.depth-1].at.names[string(name)]
	}
}

// Text implements [Visitor].
func (m *Match) Text(piece []byte, last bool) {
	if !m.inText {
		m.inText, m.text, m.length, m.cut = true, m.step(), 0, false
	}
	m.inText = !last
	if m.text == nil || m.text.path < 0 {
		return
	}
	n := copy(m.buf[m.length:], piece)
	m.length += n
	m.cut = m.cut || n < len(piece)
	if len(piece) > 0 {
		m.to.Text(m.text.path, piece)
	}
	if last {
		m.to.Value(m.text.path, Value{Kind: String, Text: m.buf[:m.length], Cut: m.cut})
	}
}

// Number implements [Visitor].
func (m *Match) Number(n int64) {
	if at := m.step(); at != nil && at.path >= 0 {
		m.to.Value(at.path, Value{Kind: Number, Number: n})
	}
}

// Word implements [Visitor].
func (m *Match) Word(first byte) {
	at := m.step()
	if at == nil || at.path < 0 {
		return
	}
	kind := Null
	switch first {
	case 't':
		kind = True
	case 'f':
		kind = False
	}
	m.to.Value(at.path, Value{Kind: kind})
}
