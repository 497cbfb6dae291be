package storetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/testdata/limits"
)

// Script is a behaviour script: limits, calls at given times, and the expected decisions.
// docs/behaviour-scripts.md describes the language.
type Script struct {
	Name  string
	Start time.Time
	steps []step
}

// Scripts returns the scripts of testdata/limits.
func Scripts() []*Script {
	var out []*Script
	for _, name := range must(fs.Glob(limits.Scripts, "*.txt")) {
		text := must(fs.ReadFile(limits.Scripts, name))
		out = append(out, must(ParseScript(name, string(text))))
	}
	return out
}

// step is one line of a script that makes a call.
type step struct {
	line  int
	text  string
	at    time.Time
	verb  string
	names []string // of the limits, in the order of the script
	asks  []stint.Ask
	times int
	want  *expectation
	// A take can name what it charges, and later steps change it.
	charge string
	once   bool
}

// expectation is the part after the arrow.
type expectation struct {
	outcome string            // "allow", "deny" or empty
	by      []string          // the limits that deny
	fields  map[string]string // "remaining" or "hour.remaining" to its value
}

// ParseScript parses a script. Errors name the file and the line.
func ParseScript(name, text string) (*Script, error) {
	p := parser{script: &Script{Name: name, Start: Epoch}, limits: map[string]scriptLimit{}, charges: map[string]step{}}
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		if err := p.parse(strings.TrimSpace(line), i+1); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, i+1, err)
		}
	}
	if len(p.script.steps) == 0 {
		return nil, fmt.Errorf("%s: no steps", name)
	}
	return p.script, nil
}

type parser struct {
	script *Script
	limits map[string]scriptLimit
	order  []string
	// charges are the takes that name what they charge.
	charges map[string]step
}

type scriptLimit struct {
	limit   stint.Limit
	penalty *stint.Penalty
	subject string // empty: the subject of the step
}

func (p *parser) parse(line string, number int) error {
	word, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	switch word {
	case "":
		return nil
	case "start":
		if len(p.script.steps) > 0 {
			return errors.New("start must come before the first step")
		}
		t, err := time.Parse(time.RFC3339Nano, rest)
		p.script.Start = t
		return err
	case "limit":
		return p.parseLimit(rest, "limit")
	case "penalty":
		return p.parseLimit(rest, "penalty")
	case "at":
		s, err := p.parseStep(rest)
		s.line, s.text = number, line
		p.script.steps = append(p.script.steps, s)
		return err
	default:
		return fmt.Errorf("%q: want start, limit, penalty or at", word)
	}
}

// parseLimit parses "[name:] limit [for subject]", or the same with a penalty.
func (p *parser) parseLimit(text, kind string) error {
	name, spec := kind, text
	if before, after, ok := strings.Cut(text, ": "); ok {
		name, spec = before, after
	}
	spec, subject, _ := strings.Cut(spec, " for ")
	l := scriptLimit{subject: strings.TrimSpace(subject)}
	var err error
	if kind == "penalty" {
		l.penalty, err = stint.ParsePenalty(spec)
	} else {
		l.limit, err = stint.ParseLimit(spec)
	}
	if err != nil {
		return err
	}
	if _, ok := p.limits[name]; !ok {
		p.order = append(p.order, name)
	}
	p.limits[name] = l
	return nil
}

// parseStep parses "time verb subject [cost] [xN] [on limit,limit] [-> expectation]".
func (p *parser) parseStep(text string) (step, error) {
	text, expect, arrow := strings.Cut(text, "->")
	f := strings.Fields(text)
	if len(f) < 3 {
		return step{}, errors.New("want: at TIME VERB SUBJECT")
	}
	s := step{verb: f[1], times: 1, names: p.order}
	var err error
	if s.at, err = p.parseTime(f[0]); err != nil {
		return step{}, err
	}
	if isChange(s.verb) {
		return p.parseChange(s, f[2:], expect, arrow)
	}
	subject, cost := f[2], int64(1)
	for i := 3; i < len(f); i++ {
		switch {
		case f[i] == "as" && i+1 < len(f):
			i++
			s.charge = f[i]
		case f[i] == "on" && i+1 < len(f):
			i++
			s.names = strings.Split(f[i], ",")
		case strings.HasPrefix(f[i], "x"):
			s.times, err = strconv.Atoi(f[i][1:])
		default:
			cost, err = strconv.ParseInt(f[i], 10, 64)
		}
		if err != nil {
			return step{}, fmt.Errorf("%q: want a cost, xTIMES, on LIMIT or as CHARGE", f[i])
		}
	}
	switch s.verb {
	case "take", "charge", "reset":
	case "refund":
		cost = -cost
	case "peek":
		cost = 0
	default:
		return step{}, fmt.Errorf("%q: want take, peek, charge, refund, amend, release, renew or reset", s.verb)
	}
	for _, name := range s.names {
		l, ok := p.limits[name]
		if !ok {
			return step{}, fmt.Errorf("no limit %q above this line", name)
		}
		if l.subject == "" {
			l.subject = subject
		}
		s.asks = append(s.asks, stint.Ask{Key: stint.Key{Subject: l.subject, Name: name}, Limit: l.limit, Cost: cost, Penalty: l.penalty})
	}
	if len(s.asks) == 0 {
		return step{}, errors.New("no limit above this line")
	}
	if arrow {
		s.want, err = parseExpectation(expect, s.names)
	} else if s.verb == "take" || s.verb == "peek" {
		err = fmt.Errorf("a %s needs an expectation: -> allow or -> deny", s.verb)
	}
	if s.charge != "" {
		p.charges[s.charge] = s
	}
	return s, err
}

// isChange reports whether the verb changes a charge that a take has named.
func isChange(verb string) bool { return verb == "amend" || verb == "release" || verb == "renew" }

// parseChange reads what follows the verb in "time amend charge by [once] [-> expectation]", or in
// "time release charge" and "time renew charge".
func (p *parser) parseChange(s step, f []string, expect string, arrow bool) (step, error) {
	take, ok := p.charges[f[0]]
	if !ok {
		return step{}, fmt.Errorf("no take above this line has \"as %s\"", f[0])
	}
	s.charge, s.names, s.asks = f[0], take.names, slices.Clone(take.asks)
	for i, name := range s.names {
		s.asks[i].Limit = p.limits[name].limit
	}
	if f = f[1:]; s.verb == "amend" && len(f) > 0 {
		by, err := strconv.ParseInt(f[0], 10, 64)
		if err != nil {
			return step{}, fmt.Errorf("%q: want how much more or less, such as -3", f[0])
		}
		for i := range s.asks {
			s.asks[i].Cost = by
		}
		f = f[1:]
	}
	for _, word := range f {
		var err error
		switch {
		case word == "once":
			s.once = true
		case strings.HasPrefix(word, "x"):
			s.times, err = strconv.Atoi(word[1:])
		default:
			err = strconv.ErrSyntax
		}
		if err != nil {
			return step{}, fmt.Errorf("%q: want xTIMES or once", word)
		}
	}
	if !arrow {
		return s, nil
	}
	var err error
	s.want, err = parseExpectation(expect, s.names)
	return s, err
}

// parseTime parses an offset from the start, or a date.
func (p *parser) parseTime(text string) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t, nil
	}
	d, err := parseWait(text)
	if err != nil {
		return time.Time{}, fmt.Errorf("time %q: want an offset such as 250ms or 2d4h, or a date such as 2026-03-29T02:00:00+01:00", text)
	}
	return p.script.Start.Add(d), nil
}

// parseWait parses a duration that may begin with days.
func parseWait(text string) (time.Duration, error) {
	var d time.Duration
	if days, rest, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || rest == "" {
			return time.Duration(n) * 24 * time.Hour, err
		}
		d, text = time.Duration(n)*24*time.Hour, rest
	}
	more, err := time.ParseDuration(text)
	return d + more, err
}

// fieldsOf are the fields of a decision that a script can expect.
var fieldsOf = map[string]func(d stint.Decision) string{
	"limit":     func(d stint.Decision) string { return strconv.FormatInt(d.Limit, 10) },
	"remaining": func(d stint.Decision) string { return strconv.FormatInt(d.Remaining, 10) },
	"retry":     func(d stint.Decision) string { return formatWait(d.RetryAfter) },
	"reset":     func(d stint.Decision) string { return formatWait(d.ResetAfter) },
	"delay":     func(d stint.Decision) string { return formatWait(d.Delay) },
	"cost":      func(d stint.Decision) string { return strconv.FormatInt(d.Cost, 10) },
}

func formatWait(d time.Duration) string {
	if d == stint.Never {
		return "never"
	}
	if days := d / (24 * time.Hour); days > 0 {
		text := strconv.Itoa(int(days)) + "d"
		if rest := d % (24 * time.Hour); rest > 0 {
			text += rest.String()
		}
		return text
	}
	return d.String()
}

func parseExpectation(text string, names []string) (*expectation, error) {
	e := &expectation{fields: map[string]string{}}
	f := strings.Fields(text)
	for i := 0; i < len(f); i++ {
		name, value, isField := strings.Cut(f[i], "=")
		switch {
		case isField:
			limit, plain, prefixed := strings.Cut(name, ".")
			if !prefixed {
				limit, plain = names[0], name
			}
			switch {
			case fieldsOf[plain] == nil:
				return nil, fmt.Errorf("%q: want one of %s", name, strings.Join(slices.Sorted(maps.Keys(fieldsOf)), ", "))
			case !slices.Contains(names, limit), !prefixed && len(names) > 1:
				return nil, fmt.Errorf("%q: name the limit, as in %s.%s", name, names[0], plain)
			}
			if d, err := parseWait(value); err == nil && plain != "limit" && plain != "remaining" && plain != "cost" {
				value = formatWait(d) // 60s is 1m0s
			}
			e.fields[name] = value
		case f[i] == "by" && e.outcome == "deny" && i+1 < len(f):
			i++
			e.by = strings.Split(f[i], ",")
			for _, name := range e.by {
				if !slices.Contains(names, name) {
					return nil, fmt.Errorf("%q: this step does not use that limit", name)
				}
			}
		case (f[i] == "allow" || f[i] == "deny") && e.outcome == "":
			e.outcome = f[i]
		default:
			return nil, fmt.Errorf("%q: want allow, deny, by LIMIT or FIELD=VALUE", f[i])
		}
	}
	return e, nil
}

// Run runs the script on an empty store, and fails at the first step that differs.
func (s *Script) Run(t rapid.TB, store stint.Store, clock *Clock) {
	t.Helper()
	if err := s.play(store, clock); err != nil {
		t.Fatal(err)
	}
}

// RunOpen runs the script on the stores that open returns, and fails at the first step that differs. A server lets counters expire by
// a clock of its own: where that may have been the reason, since the script took so long, it is run again.
func (s *Script) RunOpen(t testing.TB, open Open) {
	t.Helper()
	const slow, most = time.Second, 5
	for n := 1; ; n++ {
		clock := NewClock()
		store, began := open(t, clock.Now), time.Now()
		err := s.play(store, clock)
		if err == nil {
			return
		}
		if n == most || time.Since(began) < slow {
			t.Fatal(err)
		}
		t.Logf("run again: it took %v: %v", time.Since(began), err)
	}
}

// play returns how the first step differs.
func (s *Script) play(store stint.Store, clock *Clock) error {
	charges := map[string][]stint.Charge{}
	for i := range s.steps {
		st := &s.steps[i]
		clock.Set(st.at)
		for n := range st.times {
			out, err := st.do(store, charges)
			if err != nil {
				return fmt.Errorf("%s:%d: %s\n%w", s.Name, st.line, st.text, err)
			}
			if diff := st.diff(out, n == st.times-1); diff != "" {
				return fmt.Errorf("%s:%d: %s\nwant %s\ngot  %s", s.Name, st.line, st.text, diff, st.format(out))
			}
		}
	}
	return nil
}

func (st *step) do(store stint.Store, charges map[string][]stint.Charge) ([]stint.Decision, error) {
	ctx := context.Background()
	switch {
	case st.verb == "reset":
		return nil, store.Reset(ctx, st.asks)
	case st.verb == "charge" || st.verb == "refund":
		return Adjust(ctx, store, st.asks)
	case isChange(st.verb):
		return st.change(store, charges[st.charge])
	}
	out, err := Take(ctx, store, st.asks)
	if st.charge != "" {
		charges[st.charge] = chargesOf(out)
	}
	return out, err
}

// change changes the charges of an earlier take, which stay named as the take made them unless they are
// renewed.
func (st *step) change(store stint.Store, charges []stint.Charge) ([]stint.Decision, error) {
	asks := slices.Clone(st.asks)
	for i := range asks {
		c := &charges[i]
		switch st.verb {
		case "release":
			asks[i].Cost = -c.Cost
		case "renew":
			asks[i].Cost = 0
		}
		named := *c
		if st.once {
			named.ID = st.charge
		}
		asks[i].Charge = &named
	}
	out, err := Adjust(context.Background(), store, asks)
	if err == nil && st.verb == "renew" {
		for i, c := range chargesOf(out) {
			if c.Cost > 0 {
				charges[i] = c
			}
		}
	}
	return out, err
}

// chargesOf returns what decisions have charged.
func chargesOf(ds []stint.Decision) []stint.Charge {
	var out []stint.Charge
	for i := range ds {
		out = append(out, ds[i].Charge())
	}
	return out
}

// denied returns the names of the limits that deny.
func (st *step) denied(out []stint.Decision) []string {
	var names []string
	for i, d := range out {
		if !d.Allowed {
			names = append(names, st.names[i])
		}
	}
	return names
}

// diff returns the first expectation that is not met. In a repeated step, fields are compared only the last
// time.
func (st *step) diff(out []stint.Decision, last bool) string {
	if st.want == nil || st.verb == "reset" {
		return ""
	}
	denied := st.denied(out)
	switch {
	case st.want.outcome == "allow" && denied != nil, st.want.outcome == "deny" && denied == nil:
		return st.want.outcome
	case remembered(out):
		return ""
	case st.want.by != nil && !slices.Equal(denied, st.want.by):
		return "deny by " + strings.Join(st.want.by, ",")
	}
	if !last {
		return ""
	}
	for name, want := range st.want.fields {
		i, field := 0, name
		if limit, f, ok := strings.Cut(name, "."); ok {
			i, field = slices.Index(st.names, limit), f
		}
		if fieldsOf[field](out[i]) != want {
			return name + "=" + want
		}
	}
	return ""
}

func (st *step) format(out []stint.Decision) string {
	var b strings.Builder
	for i, d := range out {
		if len(out) > 1 {
			b.WriteString("\n  " + st.names[i] + ": ")
		}
		b.WriteString(Format(d))
	}
	return b.String()
}

// Format formats a decision as in scripts.
func Format(d stint.Decision) string {
	text := "allow"
	if !d.Allowed {
		text = "deny"
	}
	for _, f := range []string{"limit", "remaining", "retry", "reset", "delay"} {
		if v := fieldsOf[f](d); v != "0s" {
			text += " " + f + "=" + v
		}
	}
	return text
}
