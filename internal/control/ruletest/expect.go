package ruletest

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/strict"
)

// expectation is what follows the arrow. What has happened has the same form, so that both can be compared, and the one
// can be written in place of the other.
type expectation struct {
	terms []term
	items []item
}

// term is how many requests have an outcome, and by what.
type term struct {
	outcome engine.Outcome
	by      string // RULE, RULE/LIMIT or none; empty: anything
	count   int    // 0: all
}

// item is something of the last request.
type item struct {
	kind  itemKind
	of    string // the limit of a field, or empty; the rule in the shadow; the name of a header
	field string
	value string // absent: there is no such header, or nothing to tell
}

type itemKind int

const (
	field itemKind = iota
	header
	shadow
)

// none is the value of what does not exist.
const none = "none"

// outcomes are the words for outcomes.
var outcomes = [...]string{
	engine.Allowed: "allow", engine.Throttled: "throttled", engine.Exempt: "exempt", engine.Denied: "deny",
	engine.Banned: "banned", engine.Blocked: "blocked", engine.Unauthorized: "unauthorized", engine.Unavailable: "unavailable",
}

// limitFields are the fields of a limit, and fields all fields by their kind.
var (
	limitFields = map[string]func(*engine.Limit) string{
		"limit":     func(l *engine.Limit) string { return strconv.FormatInt(l.Decision.Limit, 10) },
		"remaining": func(l *engine.Limit) string { return strconv.FormatInt(l.Decision.Remaining, 10) },
		"cost":      func(l *engine.Limit) string { return strconv.FormatInt(l.Cost, 10) },
		"reset":     func(l *engine.Limit) string { return formatRetry(l.Decision.ResetAfter) },
		"retry":     func(l *engine.Limit) string { return formatRetry(l.Decision.RetryAfter) },
	}
	fields = map[string]valueKind{
		"limit": aNumber, "remaining": aNumber, "cost": aNumber, "status": aNumber,
		"reset": aTime, "retry": aTime, "delay": aTime,
		"reason": aText, "user": aText, "tenant": aText, "key": aText, "tier": aText, "ip": aText,
	}
	fieldNames = []string{"remaining", "retry", "reset", "delay", "limit", "cost", "status", "reason", "user", "tenant", "key", "tier", "ip"}
)

type valueKind int

const (
	noValue valueKind = iota
	aNumber
	aTime
	aText
)

func formatRetry(d time.Duration) string {
	if d == stint.Never {
		return "never"
	}
	return formatWait(d)
}

const wantExpected = "an outcome (allow, deny, throttled, banned, blocked, exempt, unauthorized, unavailable), FIELD=VALUE, header NAME=VALUE, no header NAME, or shadow RULE OUTCOME"

// parseExpected reads what follows the arrow: "allow 20 deny 80 by search retry=40ms". Nothing is expected yet if there is nothing.
func (p *parser) parseExpected(s *step, words []word) {
	r := reader{parser: p, words: words}
	for len(r.words) > 0 {
		w := r.words[0]
		r.words = r.words[1:]
		if n := slices.Index(outcomes[:], w.text); n >= 0 {
			p.parseTerm(s, &r, engine.Outcome(n), w)
			continue
		}
		switch w.text {
		case "header":
			p.parseHeaderItem(s, &r, w)
		case "no":
			if next, ok := r.next(w, "header NAME"); ok && next.text != "header" {
				p.wrong(next, "header NAME behind no", "header")
			} else if named, there := r.next(next, "NAME"); ok && there {
				p.expectHeader(s, named, named.text, none)
			}
		case "shadow":
			p.parseShadow(s, &r, w)
		default:
			p.parseField(s, w)
		}
	}
	p.completeTerms(s)
}

// parseTerm reads what follows an outcome: "20 by search/search".
func (p *parser) parseTerm(s *step, r *reader, o engine.Outcome, w word) {
	t := term{outcome: o}
	if len(s.want.items) > 0 {
		p.problem(w.at, strict.Quote(w.text)+": outcomes come first", "such as: -> allow 20 deny 80 remaining=0")
	}
	if len(r.words) > 0 && r.words[0].text != "" && strings.Trim(r.words[0].text, "0123456789") == "" {
		n, err := strconv.Atoi(r.words[0].text)
		if err != nil || n < 1 {
			p.wrong(r.words[0], "how many requests")
		}
		t.count, r.words = n, r.words[1:]
	}
	if len(r.words) > 0 && r.words[0].text == "by" {
		by := r.words[0]
		r.words = r.words[1:]
		if named, ok := r.next(by, "RULE, RULE/LIMIT or none"); ok {
			t.by = named.text
			p.named(byName, named, named.text)
		}
	}
	if slices.ContainsFunc(s.want.terms, func(x term) bool { return x.outcome == t.outcome && x.by == t.by }) {
		p.problem(w.at, strict.Quote(w.text)+" is there twice", "")
	}
	s.want.terms = append(s.want.terms, t)
}

// completeTerms checks the outcomes together.
func (p *parser) completeTerms(s *step) {
	switch all, counted := s.want.terms, 0; {
	case len(all) == 0 && len(s.want.items) > 0:
		p.problem(s.arrow, "want an outcome", "such as: -> allow remaining=3")
	case len(all) == 1 && all[0].count == 0:
	default:
		for _, t := range all {
			if t.count == 0 {
				p.problem(s.arrow, "want how many requests have each outcome", "such as: -> allow 20 deny 80")
				return
			}
			counted += t.count
		}
		if len(all) > 0 && counted != s.times {
			p.problem(s.arrow, "there are "+strconv.Itoa(counted)+" outcomes of "+strconv.Itoa(s.times)+" requests: want as many", "")
		}
	}
}

func (p *parser) parseHeaderItem(s *step, r *reader, after word) {
	w, ok := r.next(after, "NAME=VALUE")
	if !ok {
		return
	}
	name, value, ok := strings.Cut(w.text, "=")
	if !ok {
		p.problem(w.at, strict.Quote(w.text)+": want NAME=VALUE", "such as: header Retry-After=59")
		return
	}
	p.expectHeader(s, w, name, "="+value)
}

func (p *parser) expectHeader(s *step, w word, name, value string) {
	if !headerForm.MatchString(name) {
		p.wrong(w, "the name of a header, such as Retry-After")
		return
	}
	s.want.items = append(s.want.items, item{kind: header, of: name, value: value})
}

// parseShadow reads "RULE allow" behind shadow.
func (p *parser) parseShadow(s *step, r *reader, after word) {
	of, ok := r.next(after, "RULE OUTCOME")
	if !ok {
		return
	}
	p.named(ruleName, of, of.text)
	w, ok := r.next(of, "allow, deny or none")
	switch {
	case !ok:
	case w.text != "allow" && w.text != "deny" && w.text != none:
		p.wrong(w, "allow, deny or none behind a rule in the shadow", "allow", "deny", none)
	default:
		s.want.items = append(s.want.items, item{kind: shadow, of: of.text, value: w.text})
	}
}

// parseField reads "remaining=3" or "search/burst.remaining=3".
func (p *parser) parseField(s *step, w word) {
	left, value, ok := strings.Cut(w.text, "=")
	if !ok {
		p.wrong(w, wantExpected, append(slices.Clone(outcomes[:]), "header", "shadow")...)
		return
	}
	x := item{field: left, value: value}
	if i := strings.LastIndexByte(left, '.'); i >= 0 {
		x.of, x.field = left[:i], left[i+1:]
		if limitFields[x.field] == nil || x.of == "" {
			p.wrong(w, "a field of a limit: LIMIT.remaining, .retry, .reset, .limit or .cost, or RULE/LIMIT.remaining")
			return
		}
		p.named(limitName, w, x.of)
	}
	kind := fields[x.field]
	if kind == noValue {
		hint := ""
		if near, ok := strict.Closest(x.field, fieldNames); ok {
			hint = strict.DidYouMean(near)
		}
		p.problem(w.at, strict.Quote(left)+": want one of "+strings.Join(fieldNames, ", "), hint)
		return
	}
	if x.value, ok = canonical(kind, value); !ok {
		p.wrong(w, map[valueKind]string{aNumber: "a number, or none", aTime: "a time such as 750ms or 1m30s, never, or none"}[kind])
		return
	}
	s.want.items = append(s.want.items, x)
}

// canonical returns a value as it is compared: 60s is 1m.
func canonical(kind valueKind, value string) (string, bool) {
	switch {
	case kind == aText:
		return value, true
	case value == none || kind == aTime && value == "never":
		return value, true
	case kind == aNumber:
		n, err := strconv.ParseInt(value, 10, 64)
		return strconv.FormatInt(n, 10), err == nil
	default:
		d, err := parseWait(value)
		return formatWait(d), err == nil && d >= 0
	}
}

// String returns the expectation as it is written.
func (e *expectation) String() string {
	var out []string
	for _, t := range e.terms {
		text := outcomes[t.outcome]
		if t.count > 0 {
			text += " " + strconv.Itoa(t.count)
		}
		if t.by != "" {
			text += " by " + t.by
		}
		out = append(out, text)
	}
	for i := range e.items {
		out = append(out, e.items[i].String())
	}
	return strings.Join(out, " ")
}

func (x *item) String() string {
	switch {
	case x.kind == shadow:
		return "shadow " + x.of + " " + x.value
	case x.kind == header && x.value == none:
		return "no header " + x.of
	case x.kind == header:
		return "header " + x.of + "=" + quoted(x.value[1:])
	case x.of != "":
		return x.of + "." + x.field + "=" + x.value
	case fields[x.field] == aText:
		return x.field + "=" + quoted(x.value)
	}
	return x.field + "=" + x.value
}

// quoted returns a text as a part of a word, in quotes if it needs them.
func quoted(text string) string {
	plain := func(r rune) bool { return r > ' ' && r <= '~' && r != '"' && r != '\\' }
	if text == "" || strings.ContainsFunc(text, func(r rune) bool { return !plain(r) }) {
		return strconv.Quote(text)
	}
	return text
}
