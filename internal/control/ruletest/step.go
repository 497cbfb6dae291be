package ruletest

import (
	"net/netip"
	"net/textproto"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/network"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// step is a line that begins with at.
type step struct {
	line       int
	text       string // until the arrow
	arrow, end int    // in the line: behind the arrow, and behind what is expected
	at         time.Time
	verb       verb

	// Of a request, or a peek.
	q     engine.Request
	who   identity.Subject // as q.Subject, if it is named; that of a reset
	times int
	every time.Duration
	hold  time.Duration // how long it is served
	uses  map[rule.Meter]int64
	fails bool
	want  expectation

	// Of reset, ban and unban.
	entry identity.Entry // without Until
	span  time.Duration  // of a ban; 0: for good
	rule  string         // of a reset; empty: all
}

type verb int

const (
	request verb = iota
	peek
	reset
	ban
	unban
)

var verbs = map[string]verb{"peek": peek, "reset": reset, "ban": ban, "unban": unban}

const wantStep = "METHOD PATH, peek METHOD PATH, reset, ban or unban"

// last returns when the step happens for the last time.
func (s *step) last() time.Time { return s.at.Add(time.Duration(s.times-1) * s.every) }

// parseStep reads "at TIME METHOD PATH ... -> EXPECTED" and the other steps.
func (p *parser) parseStep(words []word) {
	if p.test == nil {
		p.problem(words[0].at, "a step outside of a test: want a line with its name before", "such as: test free users get ten a minute")
		return
	}
	s := &step{line: p.number, times: 1, arrow: -1, end: words[len(words)-1].end}
	what, expected := words, []word(nil)
	for i, w := range words {
		if w.text == "->" && w.quoted < 0 {
			what, expected, s.arrow = words[:i], words[i+1:], w.end
			break
		}
	}
	s.text = p.line[what[0].at:what[len(what)-1].end]
	if len(what) < 3 {
		p.problem(words[0].at, "want at TIME "+wantStep, "such as: at 1s GET /search user=alice -> allow")
		return
	}
	var ok bool
	if s.at, ok = p.parseTime(what[1]); !ok {
		return
	}
	if n := len(p.test.steps); n > 0 && s.at.Before(p.test.steps[n-1].at) {
		before := p.test.steps[n-1]
		p.problem(what[1].at, strict.Quote(what[1].text)+" is before the step in line "+strconv.Itoa(before.line)+": want steps in the order of their times", "")
	}
	count := len(p.problems)
	if v, isVerb := verbs[what[2].text]; isVerb {
		s.verb = v
	}
	switch s.verb {
	case request:
		p.parseRequest(s, what[2:])
	case peek:
		p.parseRequest(s, what[3:])
	case reset:
		p.parseReset(s, what[2], what[3:])
	case ban, unban:
		p.parseBan(s, what[2], what[3:])
	}
	switch asks := s.verb == request || s.verb == peek; {
	case asks && s.arrow < 0:
		p.problem(what[len(what)-1].end, "want what is expected", "such as: -> allow; stint rules test --update writes it behind ->")
	case asks:
		p.parseExpected(s, expected)
	case s.arrow >= 0:
		p.problem(s.arrow-len("->"), strict.Quote(what[2].text)+" expects nothing: want no ->", "")
	}
	if len(p.problems) == count && !within(s.last()) {
		p.problem(what[1].at, "the last request is after 2199: want fewer or faster ones", "")
	}
	p.test.steps = append(p.test.steps, s)
}

// A line has words of these forms.
var (
	timesForm  = regexp.MustCompile(`^x[0-9]+$`)
	headerForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)
	methodForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]*$`)
)

// settings are the words of a request that have a value, and plainWords those that have none or another form.
var (
	settings   = []string{"user", "tenant", "key", "tier", "ip", "cost"}
	plainWords = []string{"header", "every", "for", "uses", "fails"}
)

const (
	meterHint = "such as: uses response_bytes=5000"
	wantWord  = "user=, tenant=, key=, tier=, ip=, cost=, header NAME=VALUE, xTIMES, every TIME, for TIME, uses METER=UNITS or fails"
)

// nobody is where requests come from that do not say.
var nobody = netip.MustParseAddr("192.0.2.1")

// reader reads the words of a step one after the other.
type reader struct {
	*parser
	words []word
	seen  map[string]bool
}

// again reports whether a word was there already, which is a problem.
func (r *reader) again(w word, name string) bool {
	if r.seen[name] {
		r.problem(w.at, strict.Quote(name)+" is there twice", "")
		return true
	}
	r.seen[name] = true
	return false
}

// next returns the next word, which has to be there.
func (r *reader) next(after word, want string) (w word, ok bool) {
	if len(r.words) == 0 {
		r.problem(after.end, strict.Quote(after.text)+": want "+want+" behind it", "")
		return w, false
	}
	w, r.words = r.words[0], r.words[1:]
	return w, true
}

// assignment returns the two parts of the next word.
func (r *reader) assignment(after word, want, hint string) (w word, left, right string, ok bool) {
	if w, ok = r.next(after, want); !ok {
		return w, "", "", false
	}
	i := strings.LastIndexByte(w.text, '=')
	if w.quoted >= 0 { // the value may have any character
		i = strings.IndexByte(w.text[:w.quoted], '=')
	}
	if i <= 0 {
		r.problem(w.at, strict.Quote(w.text)+": want "+want, hint)
		return w, "", "", false
	}
	return w, w.text[:i], w.text[i+1:], true
}

// duration returns the next word as a duration above 0.
func (r *reader) duration(after word, most time.Duration) time.Duration {
	const want = "a time such as 250ms or 1m30s"
	w, ok := r.next(after, want)
	if !ok {
		return 0
	}
	d, err := parseWait(w.text)
	if err != nil || d <= 0 || d > most {
		r.problem(w.at, strict.Quote(w.text)+": want "+want+", at most "+formatWait(most), "")
		return 0
	}
	return d
}

// parseRequest reads "METHOD PATH ...".
func (p *parser) parseRequest(s *step, words []word) {
	if len(words) < 2 || words[0].text != "" && words[0].text[0] == '/' {
		if len(words) > 0 {
			p.wrong(words[0], wantStep, "peek", "reset", "ban", "unban")
		} else {
			p.problem(len(p.line), "peek: want METHOD PATH behind it", "such as: peek GET /search user=alice -> allow")
		}
		return
	}
	method, path := words[0], words[1]
	if !methodForm.MatchString(method.text) {
		p.wrong(method, wantStep)
	}
	if !strings.HasPrefix(path.text, "/") {
		if _, near := strict.Closest(method.text, []string{"peek", "reset", "ban", "unban"}); near {
			p.wrong(method, wantStep, "peek", "reset", "ban", "unban")
		} else {
			p.wrong(path, "a path that begins with a slash, such as /search")
		}
		return
	}
	s.q = engine.Request{Method: strings.ToUpper(method.text), Path: path.text}
	r := reader{parser: p, words: words[2:], seen: map[string]bool{}}
	for len(r.words) > 0 {
		w := r.words[0]
		r.words = r.words[1:]
		if s.verb == peek && (w.text == "for" || w.text == "uses" || w.text == "fails") {
			p.problem(w.at, strict.Quote(w.text)+": a peek is not served", "")
		}
		p.parseRequestWord(s, &r, w)
	}
	p.completeRequest(s)
}

func (p *parser) parseRequestWord(s *step, r *reader, w word) {
	switch w.text {
	case "header":
		p.parseHeader(s, r, w)
	case "every":
		r.again(w, w.text)
		s.every = r.duration(w, lastYear.Sub(firstYear))
	case "for":
		r.again(w, w.text)
		s.hold = r.duration(w, maxHold)
	case "uses":
		p.parseUses(s, r, w)
	case "fails":
		s.fails = true
	default:
		name, value, ok := strings.Cut(w.text, "=")
		switch {
		case timesForm.MatchString(w.text):
			r.again(w, "x")
			n, err := strconv.Atoi(w.text[1:])
			if err != nil || n < 1 || n > maxTimes {
				p.wrong(w, "x and how many requests, from 1 to "+strconv.Itoa(maxTimes))
				n = 1
			}
			s.times = n
		case ok:
			if !r.again(w, name) {
				p.parseSetting(s, w, name, value)
			}
		default:
			p.wrong(w, wantWord, plainWords...)
		}
	}
}

// parseSetting reads who asks: user=alice.
func (p *parser) parseSetting(s *step, w word, name, value string) {
	id := map[string]*string{"user": &s.who.User, "tenant": &s.who.Tenant, "key": &s.who.Key, "tier": &s.who.Tier}[name]
	switch {
	case id != nil && !identity.ValidID(value):
		p.wrong(w, name+"= and an id of 1 to 255 bytes")
	case id != nil:
		*id = value
	case name == "ip":
		a, err := netip.ParseAddr(value)
		if err != nil || a.Zone() != "" {
			p.wrong(w, "ip= and an address, such as 192.0.2.1")
			return
		}
		s.q.Peer = a
	case name == "cost":
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 1 {
			p.wrong(w, "cost= and a number of units, 1 or more")
			return
		}
		s.q.Cost = n
	default:
		hint := ""
		if near, ok := strict.Closest(name, settings); ok {
			hint = strict.DidYouMean(near + "=" + value)
		}
		p.problem(w.at, strict.Quote(w.text)+": want "+wantWord, hint)
	}
}

// parseHeader reads "NAME=VALUE" behind header.
func (p *parser) parseHeader(s *step, r *reader, after word) {
	const want = "NAME=VALUE"
	w, there := r.next(after, want)
	if !there {
		return
	}
	name, value, ok := strings.Cut(w.text, "=")
	if !ok || !headerForm.MatchString(name) || strings.ContainsFunc(value, unicode.IsControl) {
		p.problem(w.at, strict.Quote(w.text)+": want "+want, `such as: header X-App=mobile, or: header X-App="mobile app"`)
		return
	}
	if s.q.Headers == nil {
		s.q.Headers = map[string][]string{}
	}
	name = textproto.CanonicalMIMEHeaderKey(name)
	s.q.Headers[name] = append(s.q.Headers[name], value)
}

// parseUses reads "METER=UNITS" behind uses.
func (p *parser) parseUses(s *step, r *reader, after word) {
	const want = "METER=UNITS"
	w, left, right, ok := r.assignment(after, want, meterHint)
	if !ok {
		return
	}
	m, known := rule.ParseMeter(left)
	n, err := strconv.ParseInt(right, 10, 64)
	switch {
	case !known:
		p.problem(w.at, strict.Quote(left)+": want a meter, such as response_bytes", "")
	case err != nil || n < 0:
		p.problem(w.at, strict.Quote(right)+": want a number of units", meterHint)
	default:
		if s.uses == nil {
			s.uses = map[rule.Meter]int64{}
		}
		s.uses[m] = n
		p.named(meterName, w, left)
	}
}

// completeRequest checks the words of a request together, and says where it comes from.
func (p *parser) completeRequest(s *step) {
	switch {
	case s.every > 0 && s.times == 1:
		p.problem(p.lineEnd(s), "every without xTIMES: want both", "such as: x100 every "+formatWait(s.every))
	case s.every > lastYear.Sub(firstYear)/time.Duration(s.times):
		p.problem(p.lineEnd(s), "the last request is after 2199: want fewer or faster ones", "")
		s.every = 0
	}
	id := s.who.User + s.who.Tenant + s.who.Key
	if id == "" && !s.q.Peer.IsValid() {
		s.q.Peer = nobody
	}
	if id != "" || s.who.Tier != "" {
		s.who.IP = s.q.Peer
		s.q.Subject = &s.who
	}
}

// lineEnd returns where the step ends in its line, without what is expected.
func (p *parser) lineEnd(s *step) int { return strings.Index(p.line, s.text) + len(s.text) }

// parseSubject reads one of user=, tenant=, key= and ip=, and more words by other.
func (p *parser) parseSubject(s *step, verb word, words []word, other func(r *reader, w word)) {
	r := reader{parser: p, words: words}
	for len(r.words) > 0 {
		w := r.words[0]
		r.words = r.words[1:]
		name, value, ok := strings.Cut(w.text, "=")
		kind := identity.Kind(0)
		if !ok || kind.UnmarshalText([]byte(name)) != nil {
			other(&r, w)
			continue
		}
		_, wrongNet := network.Parse(value)
		switch {
		case s.entry.Value != "":
			p.problem(w.at, strict.Quote(w.text)+": want one subject, and a step for each", "")
		case kind == identity.KindIP && wrongNet != "":
			p.wrong(w, "ip= and "+wrongNet)
		case kind != identity.KindIP && !identity.ValidID(value):
			p.wrong(w, name+"= and an id of 1 to 255 bytes")
		default:
			s.entry.Kind, s.entry.Value = kind, value
		}
	}
	if s.entry.Value == "" {
		p.problem(verb.end, strict.Quote(verb.text)+": want user=, tenant=, key= or ip= behind it", "such as: "+verb.text+" user=alice")
	}
}

// parseReset reads "user=alice [on RULE]".
func (p *parser) parseReset(s *step, verb word, words []word) {
	p.parseSubject(s, verb, words, func(r *reader, w word) {
		if w.text != "on" {
			p.wrong(w, "user=, tenant=, key=, ip= or on RULE", "on")
			return
		}
		if name, ok := r.next(w, "the name of a rule"); ok {
			s.rule = name.text
			p.named(ruleName, name, name.text)
		}
	})
	a, err := netip.ParseAddr(s.entry.Value)
	switch s.entry.Kind {
	case identity.KindUser:
		s.who.User = s.entry.Value
	case identity.KindTenant:
		s.who.Tenant = s.entry.Value
	case identity.KindKey:
		s.who.Key = s.entry.Value
	case identity.KindIP:
		if s.entry.Value != "" && err != nil {
			p.problem(verb.end, "reset: want one address, not a network", "such as: reset ip=192.0.2.1")
		}
		s.who.IP = a
	}
}

// parseBan reads "user=alice [for TIME] [reason=TEXT]".
func (p *parser) parseBan(s *step, verb word, words []word) {
	p.parseSubject(s, verb, words, func(r *reader, w word) {
		switch name, value, ok := strings.Cut(w.text, "="); {
		case s.verb == unban:
			p.wrong(w, "user=, tenant=, key= or ip=")
		case w.text == "for":
			s.span = r.duration(w, lastYear.Sub(firstYear))
		case ok && name == "reason":
			s.entry.Reason = value
		default:
			p.wrong(w, "user=, tenant=, key=, ip=, for TIME or reason=TEXT", "for", "reason")
		}
	})
}
