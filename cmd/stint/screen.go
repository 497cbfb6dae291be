package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
)

// Control sequences of terminals.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l" // the alternate screen, without a cursor and without wrapping
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	toTop       = "\x1b[H"
	endLine     = "\x1b[K\r\n"
	clearRest   = "\x1b[J"

	bold, dim          = "1", "2"
	red, green, yellow = "31", "32", "33"
)

// The keys of "stint top" besides letters.
const (
	interrupt = 0x03 // Ctrl-C, which sends no signal while keys are read
	enter     = '\r'
	escape    = 0x1b
	backspace = 0x7f
)

// keysHelp is shown on ?.
const keysHelp = `q      quit
s      sort rules by requests, by denied requests, or by name; clients by name or not
/      show only names with a text: type it, then Enter; Esc shows all again
space  stop and go on
?      show or hide this help`

// sorting is the order of a list.
type sorting uint8

const (
	byRequests sorting = iota
	byDenied
	byName
	sortings
)

func (s sorting) String() string { return [...]string{"requests", "denied", "name"}[s] }

// view is what the user has chosen to see.
type view struct {
	color  bool
	sort   sorting
	filter string
	typing bool // the filter
	paused bool
	help   bool
}

// paint colors a text.
func (v *view) paint(color, text string) string {
	if !v.color || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

func outcomeColor(o engine.Outcome) string {
	switch o {
	case engine.Allowed, engine.Exempt:
		return green
	case engine.Throttled:
		return yellow
	case engine.Denied, engine.Banned, engine.Blocked, engine.Unauthorized, engine.Unavailable:
		return red
	}
	return red
}

// rules returns the rules that match the filter, sorted.
func (v *view) rules(all []record.RuleRate) []record.RuleRate {
	all = kept(v, all, func(r record.RuleRate) string { return r.Name })
	slices.SortStableFunc(all, func(a, b record.RuleRate) int {
		switch {
		case v.sort == byName:
			return strings.Compare(a.Name, b.Name)
		case v.sort == byDenied && a.Refused != b.Refused:
			return compareRates(b.Refused, a.Refused)
		}
		return compareRates(b.Requests, a.Requests)
	})
	return all
}

func compareRates(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// kept returns a copy of a list, with what matches the filter.
func kept[T any](v *view, all []T, name func(T) string) (out []T) {
	for _, one := range all {
		if strings.Contains(strings.ToLower(name(one)), strings.ToLower(v.filter)) {
			out = append(out, one)
		}
	}
	return out
}

// press changes the view as a key says. It returns false if the user quits.
func (v *view) press(key rune) bool {
	if v.typing && key != interrupt {
		switch {
		case key == enter || key == '\n':
			v.typing = false
		case key == escape:
			v.typing, v.filter = false, ""
		case key == backspace || key == '\b':
			_, n := utf8.DecodeLastRuneInString(v.filter)
			v.filter = v.filter[:len(v.filter)-n]
		case key >= ' ' && len(v.filter) < 64:
			v.filter += string(key)
		}
		return true
	}
	switch key {
	case 'q', interrupt:
		return false
	case 's':
		v.sort = (v.sort + 1) % sortings
	case '/':
		v.typing, v.filter = true, ""
	case escape:
		v.filter, v.help = "", false
	case ' ':
		v.paused = !v.paused
	case '?':
		v.help = !v.help
	}
	return true
}

// footer says what the keys do.
func (v *view) footer(width int) string {
	switch {
	case v.typing:
		return clip("/"+clean(v.filter)+"▏", width)
	case v.paused:
		return clip("stopped: space goes on", width)
	}
	text := fmt.Sprintf("q quit  s sort: %s  / filter  ? help", v.sort)
	if v.filter != "" {
		text = fmt.Sprintf("only %q: Esc shows all  ", v.filter) + text
	}
	return clip(text, width)
}

// screen is a terminal on which snapshots are drawn.
type screen struct {
	out  *os.File
	keys bool // they are read

	mu   sync.Mutex // for what follows
	view view
	last *record.Snapshot
	lost error
}

// begun returns the last snapshot that was shown. Nil: there was none.
func (s *screen) begun() *record.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// show draws a snapshot, or the last one with the error why there is no other.
func (s *screen) show(next *record.Snapshot, lost error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = lost
	if next != nil && (s.last == nil || !s.view.paused) {
		if s.last == nil {
			if _, err := io.WriteString(s.out, enterScreen); err != nil {
				return err
			}
		}
		s.last = next
	}
	return s.draw()
}

// draw draws as many clients as there is room for.
func (s *screen) draw() error {
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width == 0 || height == 0 {
		width, height = 80, 24
	}
	below := 0
	if s.keys {
		below = 2
	}
	var lines []string
	if s.view.help {
		for line := range strings.SplitSeq(keysHelp, "\n") {
			lines = append(lines, clip(line, width))
		}
	} else {
		for rows := 10; rows > 0; rows-- {
			if lines = picture(s.last, &s.view, width, rows); len(lines)+below < height {
				break
			}
		}
	}
	if s.lost != nil {
		lines = append([]string{s.view.paint(red, clip(clean(s.lost.Error()), width))}, lines...)
	}
	lines = lines[:min(len(lines), max(height-below, 1))]
	if s.keys {
		lines = append(lines, "", s.view.paint(dim, s.view.footer(width)))
	}
	_, err = io.WriteString(s.out, toTop+strings.Join(lines, endLine)+clearRest)
	return err
}

// leave restores the screen.
func (s *screen) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil {
		_, _ = io.WriteString(s.out, leaveScreen) // the terminal may be gone
	}
}

// listen reads keys in the background, if in is a terminal, and calls quit when the user quits. The returned function
// restores the terminal.
func (s *screen) listen(in *os.File, quit func()) (restore func(), ok bool) {
	was, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, false
	}
	s.keys = true
	go func() { // it ends with the program
		part := make([]byte, 64)
		for {
			n, err := in.Read(part)
			if err != nil || !s.press(string(part[:n])) {
				quit()
				return
			}
		}
	}()
	return func() { _ = term.Restore(int(in.Fd()), was) }, true
}

// press changes the view as keys say. It returns false if the user quits. Keys such as arrows are sequences, and ignored.
func (s *screen) press(keys string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(keys) > 1 && keys[0] == escape {
		keys = ""
	}
	for _, key := range keys {
		if !s.view.press(key) {
			return false
		}
	}
	return s.last == nil || s.draw() == nil
}
