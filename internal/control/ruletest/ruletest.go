// Package ruletest runs tests of rules: files of text that say who asks what when, and what is expected. docs/rule-tests.md
// describes the language.
//
//	f, err := ruletest.Parse("search.ruletest", text)
//	r, err := ruletest.New(ruletest.Options{Rules: rules})
//	result, err := r.Run(ctx, f, nil)
//	text = f.Update(result) // what is expected is what has happened
//
// # Invariants
//
//   - Requests are decided by an [engine.Engine] over counters in memory, as those of a server are. It runs in virtual
//     time, so that a test takes no longer than its decisions.
//   - Every test begins with empty counters, and the same test gives the same result each time.
//   - All problems of a file are reported at once, each with its line, and what would be right. Nothing that is in
//     a file panics.
//   - A file that was updated passes, and has changed nowhere but in expectations that were not met.
//
// # What it does not do
//
// It decides nothing: what rules mean is in package engine. It reads no files, and no configuration but rules. It
// counts as one node that has all counters: leases, split counters and regions change how limits are shared among nodes,
// not what they are.
package ruletest

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stintdev/stint/internal/kit/strict"
)

// File is a file of tests.
type File struct {
	Name string
	// Config is the config file with the rules, as it is written. Empty: there is none.
	Config string
	Tests  []*Test

	lines []string // with what ends them
	names []name   // of the configuration, which [Runner.Check] looks for
}

// Test is one test: it begins with empty counters.
type Test struct {
	Name  string
	Line  int
	start time.Time
	steps []*step
}

// Requests returns how many requests the test makes.
func (t *Test) Requests() (n int) {
	for _, s := range t.steps {
		if s.verb == request || s.verb == peek {
			n += s.times
		}
	}
	return n
}

const (
	maxTimes = 1_000_000  // of one step
	maxAll   = 10_000_000 // requests of one test
	maxHold  = 7 * 24 * time.Hour
)

// epoch is when tests start that do not say when, and years are between which they run: all algorithms are exact there.
var (
	epoch     = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	firstYear = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	lastYear  = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

// Parse reads a file of tests. The error is of type [strict.Problems].
func Parse(file string, data []byte) (*File, error) {
	p := parser{file: &File{Name: file}, start: epoch}
	if len(data) > strict.MaxSize {
		p.problem(0, "the file has more than "+strconv.Itoa(strict.MaxSize>>20)+" MiB: want several", "")
		return nil, p.problems
	}
	for text := range strings.Lines(string(data)) {
		p.file.lines = append(p.file.lines, text)
		p.number++
		p.line = strings.TrimRight(text, "\r\n")
		if !utf8.ValidString(text) {
			p.problem(0, "the line is not UTF-8", "")
			continue
		}
		p.parseLine()
	}
	if len(p.file.Tests) == 0 && len(p.problems) == 0 {
		p.line, p.number = "", max(p.number, 1)
		p.problem(0, "the file has no test: want one", "such as: test free users get ten a minute")
	}
	p.endTest()
	if err := p.problems.And(nil).Err(); err != nil { // in the order of the file
		return nil, err
	}
	return p.file, nil
}

type parser struct {
	file     *File
	test     *Test // nil before the first
	start    time.Time
	started  bool // there is a start line before the first test, or one in this test
	number   int  // of the line
	line     string
	problems strict.Problems
}

// problem reports a problem at an offset of the line.
func (p *parser) problem(at int, message, hint string) {
	if len(p.problems) < strict.MaxProblems {
		column := utf8.RuneCountInString(p.line[:at]) + 1
		p.problems = append(p.problems, strict.Problem{File: p.file.Name, Line: p.number, Column: column, Message: message, Hint: hint})
	}
}

// wrong reports a word that is not what is wanted, and hints at the one of these that was probably meant.
func (p *parser) wrong(w word, want string, among ...string) {
	hint := ""
	if near, ok := strict.Closest(w.text, among); ok {
		hint = strict.DidYouMean(near)
	}
	p.problem(w.at, strict.Quote(w.text)+": want "+want, hint)
}

// word is a word of a line.
type word struct {
	text    string // without quotes
	at, end int    // where it is in the line
	quoted  int    // where in the text its first quoted part begins, or -1
}

// cutComment returns where the comment of the line begins, or its length.
func cutComment(line string) int {
	for i := range len(line) {
		if line[i] == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			return i
		}
	}
	return len(line)
}

// words splits the line into words, which may have quoted parts, without the comment. It reports whether that is possible.
func (p *parser) words() (out []word, ok bool) {
	var text []byte
	line := p.line
	for i := 0; i < len(line); {
		switch line[i] {
		case ' ', '\t':
			i++
			continue
		case '#':
			return out, true
		}
		w := word{at: i, quoted: -1}
		text = text[:0]
		for i < len(line) && line[i] != ' ' && line[i] != '\t' {
			if line[i] != '"' {
				text = append(text, line[i])
				i++
				continue
			}
			quoted, err := strconv.QuotedPrefix(line[i:])
			if err != nil {
				p.problem(i, "a quote that does not end, or has an unknown escape", `want "TEXT", with \" and \\ for a quote and a backslash`)
				return nil, false
			}
			plain, _ := strconv.Unquote(quoted) // it is one
			if w.quoted < 0 {
				w.quoted = len(text)
			}
			text = append(text, plain...)
			i += len(quoted)
		}
		w.text, w.end = string(text), i
		out = append(out, w)
	}
	return out, true
}

func (p *parser) parseLine() {
	if plain := strings.Fields(p.line[:cutComment(p.line)]); len(plain) > 0 && plain[0] == "test" { // its name may have quotes
		p.beginTest(strings.Join(plain[1:], " "))
		return
	}
	words, ok := p.words()
	if !ok || len(words) == 0 {
		return
	}
	switch w := words[0]; w.text {
	case "config":
		p.parseConfig(words)
	case "start":
		p.parseStart(words)
	case "at":
		p.parseStep(words)
	default:
		p.wrong(w, "config, start, test or at", "config", "start", "test", "at")
	}
}

func (p *parser) beginTest(title string) {
	p.endTest()
	p.test = &Test{Name: title, Line: p.number, start: p.start}
	if title == "" {
		p.problem(0, "a test without a name: want one", "such as: test free users get ten a minute")
	}
	if i := slices.IndexFunc(p.file.Tests, func(t *Test) bool { return t.Name == title }); i >= 0 {
		p.problem(0, strict.Quote(title)+": there is another test of this name in line "+strconv.Itoa(p.file.Tests[i].Line)+", want another", "")
	}
	p.file.Tests = append(p.file.Tests, p.test)
	p.started = false
}

// endTest checks the test as a whole.
func (p *parser) endTest() {
	if p.test == nil || len(p.problems) > 0 {
		return
	}
	at := p.test.Line
	report := func(message, hint string) {
		p.problems = append(p.problems, strict.Problem{File: p.file.Name, Line: at, Column: 1, Message: message, Hint: hint})
	}
	switch n := p.test.Requests(); {
	case len(p.test.steps) == 0:
		report("the test has no steps: want some", "such as: at 0s GET /search user=alice -> allow")
	case n > maxAll:
		report("the test has "+strconv.Itoa(n)+" requests: want at most "+strconv.Itoa(maxAll), "")
	}
}

func (p *parser) parseConfig(words []word) {
	switch {
	case len(words) != 2 || words[1].text == "":
		p.problem(words[0].at, "config: want one file", `such as: config stint.toml, or: config "a name.toml"`)
	case p.test != nil || p.file.Config != "":
		p.problem(words[0].at, "config comes once, before the first test", "other rules have their own file of tests")
	default:
		p.file.Config = words[1].text
	}
}

func (p *parser) parseStart(words []word) {
	if len(words) != 2 {
		p.problem(words[0].at, "start: want one time", "such as: start 2026-01-01T00:00:00Z")
		return
	}
	t, err := time.Parse(time.RFC3339Nano, words[1].text)
	switch {
	case err != nil:
		p.wrong(words[1], "a time such as 2026-01-01T00:00:00Z")
	case !within(t):
		p.wrong(words[1], "a time from 1970 to 2199")
	case p.started:
		p.problem(words[0].at, "there is a start already: want one for all tests, before the first, and one for each that differs", "")
	case p.test != nil && len(p.test.steps) > 0:
		p.problem(words[0].at, "start comes before the steps of its test", "")
	case p.test != nil:
		p.test.start, p.started = t, true
	default:
		p.start, p.started = t, true
	}
}

func within(t time.Time) bool { return !t.Before(firstYear) && t.Before(lastYear) }

// parseTime reads when a step is: an offset from the start, or a date.
func (p *parser) parseTime(w word) (t time.Time, ok bool) {
	if t, err := time.Parse(time.RFC3339Nano, w.text); err == nil {
		if !within(t) {
			p.wrong(w, "a time from 1970 to 2199")
		}
		return t, within(t)
	}
	d, err := parseWait(w.text)
	if err != nil || d < 0 {
		p.wrong(w, "a time from the start such as 250ms or 2d4h, or a date such as 2026-03-29T02:00:00+01:00")
		return t, false
	}
	if t = p.test.start.Add(d); !within(t) {
		p.wrong(w, "a time until 2199")
		return t, false
	}
	return t, true
}

// parseWait reads a duration, which may begin with days.
func parseWait(text string) (time.Duration, error) {
	const day = 24 * time.Hour
	days, rest, ok := strings.Cut(text, "d")
	if !ok {
		return time.ParseDuration(text)
	}
	n, err := strconv.ParseUint(days, 10, 16) // not more than fits
	if err != nil {
		return 0, err
	}
	var more time.Duration
	if rest != "" {
		more, err = time.ParseDuration(rest)
	}
	if more < 0 {
		err = strconv.ErrSyntax
	}
	return time.Duration(n)*day + more, err
}

// formatWait writes a duration as parseWait reads it: 1m30s, 2d4h.
func formatWait(d time.Duration) string {
	const day = 24 * time.Hour
	text := ""
	if n := d / day; n > 0 {
		text = strconv.FormatInt(int64(n), 10) + "d"
		if d %= day; d == 0 {
			return text
		}
	}
	text += d.String()
	for _, empty := range []string{"m0s", "h0m"} {
		if cut, ok := strings.CutSuffix(text, empty); ok {
			text = cut + empty[:1]
		}
	}
	return text
}

// name is a name of the configuration, as a file has it.
type name struct {
	kind         nameKind
	text         string
	line, column int
}

type nameKind int

const (
	ruleName  nameKind = iota // RULE
	byName                    // RULE, RULE/LIMIT or none
	limitName                 // LIMIT or RULE/LIMIT
	meterName
)

// named notes a name, which the text has from an offset of the word.
func (p *parser) named(kind nameKind, w word, text string) {
	p.file.names = append(p.file.names, name{kind, text, p.number, utf8.RuneCountInString(p.line[:w.at]) + 1})
}

// Update returns the file with what has happened in place of what was expected, where these differ, and how many steps that
// concerns.
func (f *File) Update(r *Result) ([]byte, int) {
	lines, changed := slices.Clone(f.lines), 0
	for i := range r.Tests {
		for j := range r.Tests[i].Failures {
			x := &r.Tests[i].Failures[j]
			if x.step == nil || x.Error {
				continue
			}
			line := lines[x.Line-1]
			rest := line[x.step.end:]
			text := line[:x.step.arrow] + " " + x.Got
			if comment := strings.TrimLeft(rest, " \t"); strings.HasPrefix(comment, "#") {
				text += strings.Repeat(" ", max(len(line)-len(comment)-len(text), 1)) // it stays where it is, if it can
				rest = comment
			}
			lines[x.Line-1] = text + rest
			changed++
		}
	}
	return []byte(strings.Join(lines, "")), changed
}
