// This file is long because it has every check of a single rule, in the order of its
// fields.

package rule

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/strict"
)

// The bounds of a file. No one needs more.
const (
	maxName       = 64     // bytes of a name of a rule, a limit, a group or a tier, and of a method
	maxLimits     = 32     // limits of a rule
	maxValues     = 10_000 // values of a condition
	maxDimensions = 8      // things that a rule counts by
	maxFieldName  = 128    // bytes of a name of a header or a claim
	maxMessage    = 1024   // bytes of the message of a response
	maxValue      = 4096   // bytes of a header's value
	maxText       = 255    // bytes of other texts for people
	maxCost       = 1<<53 - 1
)

var (
	actions    = []string{string(Reject), string(Throttle), string(LogOnly), string(Block), string(Allow)}
	onFailures = []string{string(Local), string(Open), string(Closed)}
	dimensions = []string{"global", "tenant", "user", "api_key", "ip", "endpoint", "method", "header:", "claim:"}
	methods    = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE"}
)

// Check returns all problems of the file: invalid values, contradictions, and rules and
// limits that can never have an effect.
func (f *File) Check() Problems { return f.check(true).Problems }

// check returns the problems, and what it has parsed on the way. Rules are compared with
// each other only if the file is whole: otherwise some of them may be missing.
func (f *File) check(whole bool) *checker {
	c := &checker{file: f, tiers: map[string]int{}}
	c.checkTierNames()
	c.checkRules()
	c.checkTierLimits()
	if whole {
		c.checkNeverReached()
		c.checkUnreachable()
	}
	return c
}

type checker struct {
	strict.Report
	file      *File
	rules     []checked
	tiers     map[string]int // tiers by name
	tierNames []string
	values    []Values // of each tier, as far as they can be read
}

// checked is a rule and what the checks found out about it.
type checked struct {
	*Rule
	place    int  // among the rules of the file
	sound    bool // nothing is wrong with it by itself
	patterns []pattern
	networks []netip.Prefix
	headers  map[string]string // by canonical name; nil: there are none
	countBy  []Dimension       // canonical, without those that every request has
	values   []stint.Limit     // of its limits; zero: it is invalid, or repeats the name of another
}

// path is where the rule is in the file.
func (r *checked) path() string { return strict.Item("rules", r.place) }

// value returns the value of a limit of the rule.
func (r *checked) value(name string) stint.Limit {
	for i, l := range r.Limits[:len(r.values)] {
		if l.Name == name {
			return r.values[i]
		}
	}
	return stint.Limit{}
}

// refuseNumber is refuse for a number.
func (c *checker) refuseNumber(path string, value int64, want string) {
	c.Add(path, strconv.FormatInt(value, 10)+": want "+want, "")
}

// refuseOf notes a value that is not in a list.
func (c *checker) refuseOf(path, value string, those []string) {
	c.Refuse(path, value, "one of "+strings.Join(those, ", "), c.Closest(value, those))
}

// refuseAs notes the error of a parser. The name of its field is left out if the path
// already says it.
func (c *checker) refuseAs(path, field string, e *stint.InvalidError, hint string) {
	message := strict.Quote(e.Value) + ": want " + e.Want
	if e.Field != field {
		message = e.Field + " " + message
	}
	c.Add(path, message, hint)
}

// invalid returns what a parser says of a value.
func invalid(err error) *stint.InvalidError {
	e := &stint.InvalidError{Want: err.Error()}
	errors.As(err, &e)
	return e
}

// checkName checks the name of something.
func (c *checker) checkName(path, name string) bool {
	if name == "" {
		c.Add(path, "missing, want a name", "")
		return false
	}
	if !validName(name) {
		c.Refuse(path, name, "letters and digits, with . _ or - between them, at most "+strconv.Itoa(maxName)+" bytes", "")
		return false
	}
	return true
}

func validName(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i == 0 || i == len(name)-1 || strings.IndexByte("._-", c) < 0:
			return false
		}
	}
	return name != "" && len(name) <= maxName
}

// checkTierNames comes first, because rules name tiers, and values of tiers override
// those of rules.
func (c *checker) checkTierNames() {
	for i, t := range c.file.Tiers {
		values := make(Values, len(t.Limits))
		for name, text := range t.Limits {
			if v, err := ParseValue(text); err == nil {
				values[name] = v
			}
		}
		c.values = append(c.values, values)
		path := strict.Item("tiers", i) + ".name"
		if !c.checkName(path, t.Name) {
			continue
		}
		if first, twice := c.tiers[t.Name]; twice {
			c.Add(path, fmt.Sprintf("%q is already the name of tiers[%d]", t.Name, first), "")
			continue
		}
		c.checkText(strict.Item("tiers", i)+".display_name", t.DisplayName)
		c.checkText(strict.Item("tiers", i)+".price", t.Price)
		c.tiers[t.Name] = i
		c.tierNames = append(c.tierNames, t.Name)
	}
}

// checkText checks a text for people.
func (c *checker) checkText(path, text string) {
	if len(text) > maxText || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		c.Refuse(path, text, "at most "+strconv.Itoa(maxText)+" bytes of UTF-8 without control characters", "")
	}
}

func (c *checker) checkRules() {
	c.rules = make([]checked, len(c.file.Rules))
	names := make(map[string]int, len(c.file.Rules))
	for i := range c.file.Rules {
		r := &c.rules[i]
		r.Rule, r.place = &c.file.Rules[i], i
		problems := len(c.Problems)
		if c.checkName("name", r.Name) {
			if first, twice := names[r.Name]; twice {
				c.Add("name", fmt.Sprintf("%q is already the name of rules[%d]", r.Name, first), "")
			} else {
				names[r.Name] = i
			}
		}
		c.checkRule(r)
		// At the most problems that are reported, a further one would not be seen here.
		r.sound = len(c.Problems) == problems && problems < strict.MaxProblems
		// Paths are made only now: nearly all rules are sound and need none.
		for n := problems; n < len(c.Problems); n++ {
			c.Problems[n].Path = r.path() + "." + c.Problems[n].Path
		}
	}
}

// checkRule checks a rule by itself, but for its name.
func (c *checker) checkRule(r *checked) {
	if r.Group != "" {
		c.checkName("group", r.Group)
	}
	c.checkMatch(r)
	c.checkCountBy(r)
	c.checkAction(r)
	c.checkLimits(r)
	c.checkCost(r)
	c.checkPenalty(r)
	c.checkResponse(r)
}

func (c *checker) checkMatch(r *checked) {
	c.checkList("match.paths", r.Match.Paths, func(i int, text string) string {
		p, err := parsePattern(text)
		if err != nil {
			c.refuseAs(strict.Item("match.paths", i), "path", invalid(err), "")
			return ""
		}
		r.patterns = append(r.patterns, p)
		if len(r.Match.Paths) == 1 {
			return "" // there is no other that could be the same
		}
		return p.shape()
	})
	c.checkList("match.methods", r.Match.Methods, func(i int, m string) string {
		switch upper := strings.ToUpper(m); {
		case !IsToken(m) || len(m) > maxName:
			c.Refuse(strict.Item("match.methods", i), m, "a method such as GET, at most "+strconv.Itoa(maxName)+" bytes", "")
		case m != upper:
			if w, ok := strict.Closest(m, methods); ok {
				upper = w
			}
			c.Refuse(strict.Item("match.methods", i), m, "upper case", strict.DidYouMean(upper))
		}
		return m
	})
	c.checkList("match.tiers", r.Match.Tiers, func(i int, tier string) string {
		if _, ok := c.tiers[tier]; !ok {
			c.Refuse(strict.Item("match.tiers", i), tier, "the name of a tier in this file", c.Closest(tier, c.tierNames))
		}
		return tier
	})
	c.checkList("match.ip_ranges", r.Match.IPRanges, func(i int, text string) string {
		p, want := parseNetwork(text)
		if want != "" {
			c.Refuse(strict.Item("match.ip_ranges", i), text, want, "")
			return ""
		}
		r.networks = append(r.networks, p)
		return p.String()
	})
	const path = "match.headers"
	switch n := len(r.Match.Headers); {
	case n == 0:
		return
	case n > maxValues:
		c.Add(path, "has "+strconv.Itoa(n)+" headers, want at most "+strconv.Itoa(maxValues), "")
		return
	}
	r.headers = make(map[string]string, len(r.Match.Headers))
	for _, name := range slices.Sorted(maps.Keys(r.Match.Headers)) {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if _, twice := r.headers[canonical]; twice {
			c.Add(strict.Member(path, name), "the header "+canonical+" is listed twice: case does not matter", "")
		}
		value := r.Match.Headers[name]
		if len(value) > maxValue {
			c.Add(strict.Member(path, name), "has "+strconv.Itoa(len(value))+" bytes, want at most "+strconv.Itoa(maxValue), "")
		}
		r.headers[canonical] = value
		c.checkHeader(strict.Member(path, name), name, name)
	}
}

// checkList checks each value of a condition, and that none is listed twice: check
// returns one form for all spellings of a value, or "" if it is invalid.
func (c *checker) checkList(path string, values []string, check func(i int, value string) string) {
	if len(values) > maxValues {
		c.Add(path, "has "+strconv.Itoa(len(values))+" values, want at most "+strconv.Itoa(maxValues), "")
		return
	}
	var seen map[string]int
	for i, v := range values {
		form := check(i, v)
		if form == "" || len(values) == 1 {
			continue
		}
		if first, twice := seen[form]; twice {
			c.Add(strict.Item(path, i), strict.Quote(v)+" is listed already, as "+strict.Quote(values[first]), "")
			continue
		}
		if seen == nil {
			seen = make(map[string]int, len(values))
		}
		seen[form] = i
	}
}

// shape is the same for patterns that match the same paths.
func (p pattern) shape() string {
	var b strings.Builder
	for _, s := range p.segments {
		if b.WriteByte('/'); s.wild {
			b.WriteByte('*')
		} else {
			// A segment that is a * by itself is escaped in a pattern.
			b.WriteString(strings.ReplaceAll(s.text, "*", "%2A"))
		}
	}
	if p.rest || b.Len() == 0 {
		b.WriteByte('/')
	}
	if p.rest {
		b.WriteString("**")
	}
	return b.String()
}

// parseNetwork reads an address or a network, or says what it should be.
func parseNetwork(text string) (p netip.Prefix, want string) {
	text, _, zoned := strings.Cut(text, "%")
	bare := !strings.Contains(text, "/")
	if bare {
		if a, err := netip.ParseAddr(text); err == nil {
			p = netip.PrefixFrom(a, a.BitLen())
		}
	} else {
		p, _ = netip.ParsePrefix(text)
	}
	a, bits := p.Addr(), p.Bits()
	switch {
	case !p.IsValid():
		return p, "an address or a network, such as 192.0.2.1, 10.0.0.0/8 or 2001:db8::/32"
	case zoned:
		return p, "an address without a zone: rules see addresses without zones"
	case a.Is4In6() && bits < 96:
		return p, "an IPv4 network such as 10.0.0.0/8: rules see mapped addresses as IPv4"
	case a.Is4In6():
		p = netip.PrefixFrom(a.Unmap(), bits-96).Masked()
		if bare {
			return p, p.Addr().String() + ": rules see mapped addresses as IPv4"
		}
		return p, p.String() + ": rules see mapped addresses as IPv4"
	case p != p.Masked():
		return p, p.Masked().String() + ", or " + a.String() + " for the one address"
	}
	return p, ""
}

// checkHeader checks the name of a header, which is part of a value.
func (c *checker) checkHeader(path, value, name string) {
	if !IsToken(name) || len(name) > maxFieldName {
		c.Refuse(path, value, "the name of a header, such as X-App, at most "+strconv.Itoa(maxFieldName)+" bytes", "")
	}
}

// IsToken reports whether the text can be a method or the name of a header.
func IsToken(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0:
			return false
		}
	}
	return s != ""
}

func (c *checker) checkCountBy(r *checked) {
	const list = "count_by"
	if len(r.CountBy) > maxDimensions {
		c.Add(list, "has "+strconv.Itoa(len(r.CountBy))+" values, want at most "+strconv.Itoa(maxDimensions), "")
		return
	}
	seen := make([]Dimension, 0, maxDimensions)
	for i, d := range r.CountBy {
		kind, name, named := strings.Cut(string(d), ":")
		switch {
		case named && kind == "header":
			c.checkHeader(strict.Item(list, i), string(d), name)
			d = Dimension("header:" + textproto.CanonicalMIMEHeaderKey(name))
		case named && kind == "claim":
			if name == "" || len(name) > maxFieldName || hasControls(name) {
				c.Refuse(strict.Item(list, i), string(d), "the name of a claim after claim:, at most "+strconv.Itoa(maxFieldName)+" bytes", "")
			}
		case named || kind == "header" || kind == "claim" || !slices.Contains(dimensions, kind):
			c.refuseOf(strict.Item(list, i), string(d), dimensions)
			continue
		case d == "global" && len(r.CountBy) > 1:
			c.Add(strict.Item(list, i), "global is one counter for all requests, and cannot be combined", "")
		case d == "endpoint" && len(r.Match.Paths) == 0:
			c.Add(strict.Item(list, i), "endpoint counts by the pattern that matched, and the rule has none: want match.paths", "")
		}
		if slices.Contains(seen, d) {
			c.Add(strict.Item(list, i), strict.Quote(string(d))+" is listed twice", "")
		}
		if seen = append(seen, d); d != "global" && d != "endpoint" {
			r.countBy = append(r.countBy, d)
		}
	}
}

// hasControls reports whether the text is not plain: control characters, or bytes
// that are not UTF-8.
func hasControls(s string) bool {
	return !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl)
}

func (c *checker) checkAction(r *checked) {
	if r.OnStoreFailure != "" && !slices.Contains(onFailures, string(r.OnStoreFailure)) {
		c.refuseOf("on_store_failure", string(r.OnStoreFailure), onFailures)
	}
	const path = "max_delay"
	delay := time.Duration(r.MaxDelay)
	switch {
	case !r.Action.known():
		c.refuseOf("action", string(r.Action), actions)
	case delay == 0 && r.Action == Throttle:
		c.Add(path, "missing, want how long throttle may hold a request, such as 2s", "")
	case delay != 0 && !r.counts():
		c.Add(path, "the action "+string(r.Action)+" holds no requests: want none", "")
	}
	if delay < 0 || delay > MaxDelay {
		c.Refuse(path, r.MaxDelay.String(), "more than 0, and at most "+Duration(MaxDelay).String(), "")
	}
}

func (a Action) known() bool { return a == "" || slices.Contains(actions, string(a)) }

// counts reports whether the rule has counters.
func (r *Rule) counts() bool { return r.Action != Block && r.Action != Allow }

// enabled reports whether the rule is in use.
func (r *Rule) enabled() bool { return r.Enabled == nil || *r.Enabled }

func (c *checker) checkLimits(r *checked) {
	const list = "limits"
	switch n := len(r.Limits); {
	case n > 0 && !r.counts():
		c.Add(list, "the action "+string(r.Action)+" counts nothing: want none", "")
	case n == 0 && r.counts() && r.Action.known():
		c.Add(list, "missing, want at least one limit, unless the action is block or allow", "")
	case n > maxLimits:
		c.Add(list, "has "+strconv.Itoa(n)+" limits, want at most "+strconv.Itoa(maxLimits), "")
		return
	}
	r.values = make([]stint.Limit, len(r.Limits))
	for i, l := range r.Limits {
		before := len(c.Problems)
		first := slices.IndexFunc(r.Limits, func(o Limit) bool { return o.Name == l.Name })
		if c.checkName("name", l.Name) && first < i {
			c.Add("name", fmt.Sprintf("%q is already the name of limits[%d] of this rule", l.Name, first), "")
		}
		if v, ok := c.checkLimit(l); ok {
			r.values[i] = r.held(v)
		}
		for n := before; n < len(c.Problems); n++ {
			c.Problems[n].Path = strict.Item(list, i) + "." + c.Problems[n].Path
		}
	}
}

// checkLimit returns the value of a limit of a rule. What is wrong is noted at the
// field that is at fault.
func (c *checker) checkLimit(l Limit) (v stint.Limit, ok bool) {
	var algorithm, burst bool // are in the text
	for i, f := range strings.Fields(l.Limit) {
		algorithm = algorithm || (i > 0 && !strings.Contains(f, "="))
		burst = burst || strings.HasPrefix(f, "burst=")
	}
	switch {
	case l.Limit == "":
		c.Add("limit", "missing, want a limit such as 100/1m", "")
		return v, false
	case algorithm && l.Algorithm != "":
		c.Add("algorithm", "the limit "+strict.Quote(l.Limit)+" already names an algorithm: want it once", "")
		return v, false
	case burst && l.Burst != 0:
		c.Add("burst", "the limit "+strict.Quote(l.Limit)+" already has a burst: want it once", "")
		return v, false
	}
	v, err := l.value()
	if err == nil {
		return v, true
	}
	switch e := invalid(err); {
	case e.Field == "algorithm" && l.Algorithm != "":
		c.refuseAs("algorithm", "algorithm", e, c.algorithmHint(l.Algorithm))
	case e.Field == "burst" && l.Burst != 0:
		c.refuseAs("burst", "burst", e, "")
	default:
		c.refuseAs("limit", "limit", e, c.limitHint(l.Limit, e))
	}
	return v, false
}

func (c *checker) algorithmHint(name string) string {
	var names []string
	for _, a := range stint.Algorithms() {
		names = append(names, a.String())
	}
	return c.Closest(name, append(names, "gcra"))
}

// unitNames are units as people write them.
var unitNames = strings.NewReplacer(
	" per ", "/", " / ", "/", "/ ", "/", " /", "/",
	"milliseconds", "ms", "millisecond", "ms", "seconds", "s", "secs", "s", "sec", "s", "minutes", "m", "minute", "m",
	"mins", "m", "min", "m", "hours", "h", "hrs", "h", "hr", "h", "days", "d", "weeks", "w", "µs", "us",
)

// limitHint returns the hint what limit was meant, if there is one that can be read.
func (c *checker) limitHint(text string, e *stint.InvalidError) string {
	if e.Field == "algorithm" || e.Field == "option" {
		return c.algorithmHint(e.Value)
	}
	const longest = 128
	if len(text) > longest {
		return ""
	}
	lower := strings.ToLower(text)
	for _, meant := range []string{lower, unitNames.Replace(lower)} {
		if _, err := stint.ParseLimit(meant); err == nil && meant != text {
			return strict.DidYouMean(meant)
		}
	}
	return ""
}

func (c *checker) checkCost(r *checked) {
	const path = "cost"
	cost := r.Cost
	if cost.Units < 0 || cost.Units > maxCost {
		c.refuseNumber(path, cost.Units, "from 1 to "+strconv.FormatInt(maxCost, 10)+" units")
		return
	}
	switch {
	case cost.Header == "" && cost.Max != 0:
		c.Add(path+".max", "bounds the value of a header, and there is none: want header", "")
	case cost.Header != "":
		c.checkHeader(path+".header", cost.Header, cost.Header)
		if cost.Max < 1 || cost.Max > maxCost {
			c.refuseNumber(path+".max", cost.Max, "the largest value of the header, from 1 to "+strconv.FormatInt(maxCost, 10))
		}
	}
	for i, v := range r.values {
		l := &r.Limits[i]
		if v.Max == 0 {
			continue
		}
		if tooCostly(cost.Units, v) && c.holds(r, l.Name) {
			c.Add(path, fmt.Sprintf("%d units can never pass the limit %s (%v)", cost.Units, strict.Quote(l.Name), v), "")
		}
		never := func(tier Values) bool { return tooCostly(cost.Max, r.valueFor(l.Name, tier)) }
		if never(nil) && c.always(r, never) {
			c.Add(path+".max", fmt.Sprintf("%d units can never pass the limit %s (%v)", cost.Max, strict.Quote(l.Name), v), "")
		}
	}
}

// held returns the value of a limit with the rule's max_delay applied.
func (r *Rule) held(v stint.Limit) stint.Limit {
	return heldWithin(v, cmp.Or(time.Duration(r.MaxDelay), MaxDelay))
}

// valueFor returns the value of a limit of the rule for those of a tier, or for
// those of none.
func (r *checked) valueFor(limit string, tier Values) stint.Limit {
	if v, ok := tier[limit]; ok {
		return r.held(v)
	}
	return r.value(limit)
}

// always reports whether something holds for every tier that the rule may apply to.
func (c *checker) always(r *checked, holds func(tier Values) bool) bool {
	tiers := c.values
	if len(r.Match.Tiers) > 0 {
		tiers = nil
		for _, name := range r.Match.Tiers {
			if i, ok := c.tiers[name]; ok {
				tiers = append(tiers, c.values[i])
			}
		}
	}
	const most = 256 // of more tiers nothing is claimed: it would take too long
	return len(tiers) <= most && !slices.ContainsFunc(tiers, func(tier Values) bool { return !holds(tier) })
}

// holds reports whether the rule's own values of these limits can apply to a request
// together: they cannot if all tiers that it matches override one of them.
func (c *checker) holds(r *checked, limits ...string) bool {
	kept := func(tier string) bool {
		i, ok := c.tiers[tier]
		return !ok || !slices.ContainsFunc(limits, func(name string) bool {
			_, replaced := c.file.Tiers[i].Limits[name]
			return replaced
		})
	}
	return len(r.Match.Tiers) == 0 || slices.ContainsFunc(r.Match.Tiers, kept)
}

// tooCostly reports whether so many units can never pass a limit.
func tooCostly(units int64, l stint.Limit) bool {
	if units <= 1 {
		return false // and there may be very many rules and tiers
	}
	most := l.Cap()
	return most > 0 && units > most
}

func (c *checker) checkPenalty(r *checked) {
	const path = "penalty"
	p := r.Penalty
	if p == nil {
		return
	}
	switch {
	case !r.counts():
		c.Add(path, "the action "+string(r.Action)+" counts nothing: want none", "")
	case r.Action == LogOnly:
		c.Add(path, "the action log_only denies nothing: want none", "")
	case !slices.ContainsFunc(r.CountBy, Dimension.isClient):
		c.Add(path, "a ban affects all clients that share a counter, and one could get the others banned: want user, api_key or ip in count_by", "")
	}
	most := int64(stint.MaxViolations)
	if steps := len(p.Multipliers); steps > stint.MaxSteps {
		c.Add(path+".multipliers", "has "+strconv.Itoa(steps)+" values, want at most "+strconv.Itoa(stint.MaxSteps), "")
	} else if steps > 0 {
		most -= int64(steps) - 1
	}
	if p.Threshold < 1 || p.Threshold > most {
		c.refuseNumber(path+".threshold", p.Threshold, "from 1 to "+strconv.FormatInt(most, 10)+
			": the violations for all steps of the multipliers are kept")
	}
	c.checkPenaltyTime(path+".within", p.Within)
	c.checkPenaltyTime(path+".cooldown", p.Cooldown)
	largest := max(int64(stint.MaxWindow)/max(int64(p.Cooldown), 1), 1)
	for i, m := range p.Multipliers {
		if m < 1 || m > largest {
			c.refuseNumber(strict.Item(path+".multipliers", i), m, "from 1 to "+strconv.FormatInt(largest, 10)+
				": a ban lasts at most "+Duration(stint.MaxWindow).String())
		}
	}
}

// isClient reports whether the dimension identifies a client, and no client can choose it.
func (d Dimension) isClient() bool { return d == "user" || d == "api_key" || d == "ip" }

func (c *checker) checkPenaltyTime(path string, d Duration) {
	switch {
	case d == 0:
		c.Add(path, "missing, want a duration such as 10m", "")
	case d < 0 || time.Duration(d) > stint.MaxWindow:
		c.Refuse(path, d.String(), "more than 0, and at most "+Duration(stint.MaxWindow).String(), "")
	case time.Duration(d)%time.Microsecond != 0:
		c.Refuse(path, d.String(), "a whole number of microseconds", "")
	}
}

func (c *checker) checkResponse(r *checked) {
	const path = "response"
	if s := r.Response.Status; s != 0 && (s < 400 || s > 599) {
		c.refuseNumber(path+".status", int64(s), "from 400 to 599")
	}
	switch m := r.Response.Message; {
	case len(m) > maxMessage:
		c.Add(path+".message", "has "+strconv.Itoa(len(m))+" bytes, want at most "+strconv.Itoa(maxMessage), "")
	case hasControls(m):
		c.Refuse(path+".message", m, "one line of text, without control characters", "")
	}
}

// checkTierLimits checks the values that tiers have, by themselves and for the
// costs of the rules that they are for.
func (c *checker) checkTierLimits() {
	if len(c.file.Tiers) == 0 {
		return
	}
	named := map[string][]*checked{} // rules, by the names of their limits
	for i := range c.rules {
		r := &c.rules[i]
		for n, l := range r.Limits[:len(r.values)] {
			if validName(l.Name) && !slices.ContainsFunc(r.Limits[:n], func(o Limit) bool { return o.Name == l.Name }) {
				named[l.Name] = append(named[l.Name], r)
			}
		}
	}
	limits := slices.Sorted(maps.Keys(named))
	for i, t := range c.file.Tiers {
		for _, name := range slices.Sorted(maps.Keys(t.Limits)) {
			path := strict.Member(strict.Item("tiers", i)+".limits", name)
			if len(named[name]) == 0 {
				c.Refuse(path, name, "the name of a limit of a rule", c.Closest(name, limits))
			}
			v, err := ParseValue(t.Limits[name])
			if err != nil {
				e, hint := invalid(err), c.Closest(t.Limits[name], []string{"unlimited"})
				if hint == "" {
					hint = c.limitHint(t.Limits[name], e)
				}
				c.refuseAs(path, "limit", e, hint)
				continue
			}
			for _, r := range named[name] {
				if v := r.held(v); tooCostly(r.Cost.Units, v) && r.appliesTo(t.Name) {
					c.Add(path, fmt.Sprintf("the rule %s costs %d units, which can never pass %v", strict.Quote(r.Name), r.Cost.Units, v), "")
				}
			}
		}
	}
}

// appliesTo reports whether the rule may match requests of a tier.
func (r *Rule) appliesTo(tier string) bool {
	return len(r.Match.Tiers) == 0 || slices.Contains(r.Match.Tiers, tier)
}
