package rule

import (
	"cmp"
	"maps"
	"math"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/strict"
)

// Sentence returns the rule in plain English: which requests it limits, how many may
// pass, and what happens to the others. It shows the rule's own values; tiers, users and
// API keys may have others.
//
// The rule need not be valid: invalid values are quoted as they are. Values of headers
// that hold credentials are left out, and long lists are cut.
func (r *Rule) Sentence() string {
	all := []string{r.sayAll()}
	if r.counts() && len(r.Limits) > 0 {
		all = []string{r.sayLimits(), r.sayCost(), r.saySpread(), r.sayCandidates(), r.sayRegions(), r.sayPenalty(), r.sayShare(), failures[r.OnStoreFailure]}
	}
	if r.Action.Passes() {
		only := "log only"
		if r.Action == Mark {
			only = "mark only"
		}
		all = []string{only + ": no request is denied", all[0], r.sayCost(), r.saySpread(), r.sayRegions()}
	}
	if r.Replaces != "" {
		all = slices.Insert(all, 0, "tried out in place of the rule "+printable(r.Replaces)+": no request is denied yet")
	}
	if !r.enabled() {
		all = slices.Insert(all, 0, "disabled")
	}
	var sentences []string
	for _, text := range append(all, r.sayGroup()) {
		if text == "" {
			continue
		}
		if c := text[0]; 'a' <= c && c <= 'z' {
			text = strings.ToUpper(text[:1]) + text[1:]
		}
		if !strings.HasSuffix(text, `."`) {
			text += "."
		}
		sentences = append(sentences, text)
	}
	return strings.Join(sentences, " ")
}

// failures says what happens when the store fails, if it is not the default.
var failures = map[OnFailure]string{
	Open:   "while the counters cannot be reached, requests pass",
	Closed: "while the counters cannot be reached, requests are rejected with 503",
}

// sayAll says what happens to requests that are not counted.
func (r *Rule) sayAll() string {
	subject, has := r.requests(true), []string(nil)
	for _, d := range r.CountBy[:min(len(r.CountBy), maxDimensions)] {
		if d != "global" && d != "endpoint" {
			has = append(has, an(d.noun()))
		}
	}
	switch {
	case len(has) > 0:
		subject += " that have " + join(has, "and")
	case subject == "requests" && !r.counts():
		subject = "all requests"
	}
	switch r.Action {
	case Block:
		return subject + " are blocked" + r.response()
	case Allow:
		return subject + " pass, whatever the limits of other rules"
	default:
		return subject + " have no limit yet"
	}
}

// sayLimits says how much may pass, and what happens to requests over the limit.
func (r *Rule) sayLimits() string {
	who, apart := r.counted()
	var text, how string
	switch requests := r.requests(who == ""); {
	case who != "" && r.inUnits():
		text, how = r.allowed("unit")
		text = "each " + who + r.onTiers() + " may use " + text
		if requests != "requests" {
			text += " on " + requests
		}
	case who != "":
		text, how = r.allowed(r.methods() + "request")
		text = "each " + who + r.onTiers() + " may make " + text + r.where()
	default:
		may, noun := " are limited to ", ""
		if r.inUnits() {
			may, noun = " may use ", "unit"
		}
		if apart == nil {
			requests, may = "all "+requests, " together"+may
		}
		text, how = r.allowed(noun)
		text = requests + may + text
	}
	if apart != nil {
		text += ", counted separately for " + join(apart, "and")
	}
	return text + how + "; " + r.sayOver()
}

// sayOver says what happens to requests over a limit.
func (r *Rule) sayOver() string {
	const over = "requests over the limit "
	switch {
	case r.Action == Throttle:
		return over + "are held for up to " + amount(time.Duration(r.MaxDelay)) + ", or denied" + r.response() + " if that is not enough"
	case r.Action == LogOnly:
		return over + "pass, and are recorded"
	case r.Action == Mark:
		return over + "pass, with the header Stint-Over for the target, and are recorded"
	case r.Action.known():
		return over + "are denied" + r.response()
	default:
		return "what happens to " + over + "is not clear: there is no action " + strict.Quote(string(r.Action))
	}
}

// response says what a client gets whose request does not pass.
func (r *Rule) response() string {
	text := " with " + strconv.Itoa(r.status())
	if r.Response.Message != "" {
		text += " and the message " + strict.Quote(r.Response.Message)
	}
	if d := r.Response.RetryAfter; d != 0 {
		text += ", and told to wait for " + amount(time.Duration(d))
	}
	if r.Response.Style != "" {
		text += ", for clients of " + map[Style]string{StyleOpenAI: "OpenAI", StyleAnthropic: "Anthropic", StyleAuto: "the API that is requested"}[r.Response.Style]
	}
	return text
}

// inUnits reports whether some requests cost other than one unit.
func (r *Rule) inUnits() bool {
	return r.Cost.Header != "" || r.Cost.Meter != "" || r.Cost.Units != 0 && r.Cost.Units != 1
}

func (r *Rule) sayCost() string {
	n := cmp.Or(r.Cost.Units, 1)
	switch {
	case !r.inUnits():
		return ""
	case r.Cost.Meter != "":
		return r.sayMeter()
	case r.Cost.Header == "":
		return "a request costs " + count(n, "unit")
	}
	return "a request costs as many units as a trusted proxy sets in the header " + headerName(r.Cost.Header) +
		", up to " + figure(r.Cost.Max) + ", or " + figure(n) + " without it"
}

// sayMeter says what a request costs that is measured afterwards.
func (r *Rule) sayMeter() string {
	text := "a request is charged " + count(cmp.Or(r.Cost.Reserve, 1), "unit") + " before, and what it has used after, by the meter " + string(r.Cost.Meter)
	if r.Cost.Max > 0 {
		text += ", up to " + figure(r.Cost.Max)
	}
	if r.Cost.OnError == OnErrorRefund {
		text += "; one that ends with a server error costs nothing"
	}
	if r.Cost.OnOverrun == OnOverrunCut {
		text += "; a stream that uses more is cut when there is no more to reserve"
	}
	return text
}

func (r *Rule) sayPenalty() string {
	p := r.Penalty
	if p == nil {
		return ""
	}
	who, _ := r.counted()
	text := "after " + count(p.Threshold, "denial") + " within " + one(time.Duration(p.Within)) + " " +
		an(cmp.Or(who, "client")) + " is banned for " + amount(time.Duration(p.Cooldown)*time.Duration(p.step(0)))
	const maxSteps = 4
	for i := 1; i < min(len(p.Multipliers), maxSteps); i++ {
		text += ", then " + amount(time.Duration(p.Cooldown)*time.Duration(p.step(i)))
	}
	if n := len(p.Multipliers); n > maxSteps {
		text += " and so on, up to " + amount(time.Duration(p.Cooldown)*time.Duration(p.step(n-1)))
	}
	return text
}

// step is the i-th multiplier, or 1 if there is none or it is invalid.
func (p *Penalty) step(i int) int64 {
	if i < len(p.Multipliers) && p.Multipliers[i] > 0 && p.Multipliers[i] <= math.MaxInt64/max(int64(p.Cooldown), 1) {
		return p.Multipliers[i]
	}
	return 1
}

func (r *Rule) sayGroup() string {
	if r.Group == "" {
		return ""
	}
	text := "only the best rule of the group " + printable(r.Group) + " applies to a request"
	switch {
	case r.Replaces != "":
		text = "only the best rule of the group " + printable(r.Group) + " that is tried out applies to a request"
	case r.Action == LogOnly:
		text = "only the best log_only rule of the group " + printable(r.Group) + " applies to a request"
	}
	if r.Priority != 0 {
		text += "; this one has priority " + strconv.Itoa(r.Priority)
	}
	return text
}

// counted returns who has a counter, and what else has its own. A counter for the only
// path is a counter for all.
func (r *Rule) counted() (who string, apart []string) {
	for _, k := range kinds {
		for _, d := range r.CountBy[:min(len(r.CountBy), maxDimensions)] {
			switch word, _, _ := strings.Cut(string(d), ":"); {
			case word != k || slices.Contains(apart, "each "+d.noun()) || who == d.noun():
			case d == "endpoint" && len(r.Match.Paths) < 2:
			case who == "" && (d.isClient() || d == "tenant"):
				who = d.noun()
			default:
				apart = append(apart, "each "+d.noun())
			}
		}
	}
	for _, d := range r.CountBy[:min(len(r.CountBy), maxDimensions)] {
		if word, _, _ := strings.Cut(string(d), ":"); d != "global" && !slices.Contains(kinds[:], word) {
			apart = append(apart, "each "+d.noun())
		}
	}
	return who, apart
}

// noun names what has a counter, to follow "each" or "a".
func (d Dimension) noun() string {
	switch word, name, _ := strings.Cut(string(d), ":"); {
	case d == "api_key":
		return "API key"
	case d == "ip":
		return "IP address"
	case d == "endpoint":
		return "of these paths"
	case word == "header" && name != "":
		return "value of the header " + headerName(name)
	case word == "claim" && name != "":
		return "value of the claim " + printable(name)
	case slices.Contains(kinds[:], string(d)):
		return string(d)
	default:
		return strict.Quote(string(d))
	}
}

// requests describes the requests that the rule matches.
func (r *Rule) requests(tiers bool) string {
	text := r.methods() + "requests"
	if on := r.onTiers(); tiers && on != "" {
		text += " of clients" + on
	}
	return text + r.where()
}

func (r *Rule) methods() string {
	if len(r.Match.Methods) == 0 {
		return ""
	}
	return values(r.Match.Methods, "methods") + " "
}

func (r *Rule) onTiers() string {
	switch n := len(r.Match.Tiers); {
	case n == 0:
		return ""
	case n > maxShown:
		return " on " + values(r.Match.Tiers, "tiers")
	default:
		return " on the " + values(r.Match.Tiers, "tiers") + " tier"
	}
}

// where describes the conditions other than methods and tiers.
func (r *Rule) where() (text string) {
	if len(r.Match.IPRanges) > 0 {
		text += " from " + values(r.Match.IPRanges, "networks")
	}
	if len(r.Match.Paths) > 0 {
		text += " to " + values(r.Match.Paths, "paths")
	}
	var headers []string
	for _, name := range slices.Sorted(maps.Keys(r.Match.Headers)) {
		switch value := r.Match.Headers[name]; {
		case value == "*":
			headers = append(headers, "a header "+headerName(name))
		case isSecret(name):
			headers = append(headers, "a certain value of the header "+headerName(name))
		default:
			headers = append(headers, "the header "+headerName(name)+" "+strict.Quote(value))
		}
	}
	if n := len(headers) - maxShown; n > 0 {
		headers = append(headers[:maxShown], count(int64(n), "other"))
	}
	if len(headers) > 0 {
		text += " with " + join(headers, "and")
	}
	return text
}

// allowed says how much the limits let pass, and how they count: with each limit, or after
// all of them if that is the same for all. The noun stands with the first limit.
func (r *Rule) allowed(noun string) (text, how string) {
	limits := r.Limits[:min(len(r.Limits), maxLimits)]
	var all, hows []string
	for _, l := range limits {
		v, err := l.Value()
		if err != nil {
			text := strings.Join(strings.Fields(l.Limit+" "+l.Algorithm), " ")
			if l.Burst != 0 {
				text += " burst=" + strconv.FormatInt(l.Burst, 10)
			}
			all, hows = append(all, plural(noun)+" "+strict.Quote(text)+" (which is not a limit)"), append(hows, "")
		} else {
			v = r.held(v)
			per, how := spoken(v)
			all, hows = append(all, count(v.Max, noun)+" "+per), append(hows, how)
		}
		noun = ""
	}
	same := len(slices.Compact(slices.Clone(hows))) == 1
	for i := range all {
		switch {
		case hows[i] == "":
		case same:
			how = ", " + hows[i]
		default:
			all[i] += " (" + hows[i] + ")"
		}
	}
	if n := len(r.Limits) - len(limits); n > 0 {
		all = append(all, count(int64(n), "other"))
	}
	return strings.Join(strings.Fields(join(all, "and")), " "), how
}

// spoken says over what time a limit counts, and how.
func spoken(l stint.Limit) (per, how string) {
	d := l.Window.Length()
	if d == 0 {
		return calendar(l.Window)
	}
	n, unit := length(d)
	per = an(unit)
	again := "each " + unit
	if n != 1 {
		per = "every " + amount(d)
		again = per
	}
	switch l.Algorithm {
	case stint.FixedWindow:
		return per, "counted from zero " + again + " by the clock"
	case stint.SlidingLog:
		return "in any " + strings.TrimPrefix(amount(d), "1 "), "counted exactly"
	case stint.TokenBucket:
		return per + " on average", "up to " + figure(cmp.Or(l.Burst, l.Max)) + " at once"
	case stint.Concurrency:
		return "at once", "with places that come back after " + amount(d) + " if their holder is lost"
	case stint.LeakyBucket:
		if l.Burst == 0 {
			return per, "evenly spaced, with none waiting"
		}
		return per, "evenly spaced, with up to " + figure(l.Burst) + " waiting"
	default:
		return "in any " + strings.TrimPrefix(amount(d), "1 "), "closely estimated"
	}
}

// calendar says what a calendar period is, and when it begins.
func calendar(w stint.Window) (per, how string) {
	zone, anchor := "UTC", ""
	fields := strings.Fields(w.String())
	for _, f := range fields[1:] {
		if name, value, _ := strings.Cut(f, "="); name == "tz" {
			zone = value
		} else {
			anchor = value
		}
	}
	switch fields[0] {
	case "day":
		how = "from " + cmp.Or(anchor, "midnight") + " to " + cmp.Or(anchor, "midnight")
	case "week":
		day := cmp.Or(anchor, "monday")
		how = "from " + strings.ToUpper(day[:1]) + day[1:]
	default:
		how = "by the calendar"
		if t, err := time.Parse("01-02", anchor); err == nil {
			how = "from " + t.Format("2 January")
		} else if anchor != "" {
			how = "from day " + anchor
		}
	}
	return "a " + fields[0], "counted " + how + ", " + zone
}

const maxShown = 5 // values of a condition

// values lists alternatives: a, b or c.
func values(all []string, noun string) string {
	shown := make([]string, 0, maxShown)
	for _, v := range all[:min(len(all), maxShown)] {
		shown = append(shown, cmp.Or(printable(v), `""`))
	}
	if n := len(all) - maxShown; n > 0 {
		return "any of " + figure(int64(len(all))) + " " + noun + " (" + join(append(shown, figure(int64(n))+" more"), "and") + ")"
	}
	return join(shown, "or")
}

// join joins words: a, b or c.
func join(words []string, last string) string {
	n := len(words) - 1
	if n < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:n], ", ") + " " + last + " " + words[n]
}

// figure writes a number with commas between thousands.
func figure(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// count is a number with its noun: 1 request, 1,000 requests.
func count(n int64, noun string) string {
	if n != 1 {
		noun = plural(noun)
	}
	return figure(n) + " " + noun
}

func plural(noun string) string {
	if noun == "" {
		return ""
	}
	return noun + "s"
}

// an puts an article before a noun.
func an(noun string) string {
	if strings.HasPrefix(noun, "hour") || strings.ContainsAny(noun[:1], "AEIOaeio") {
		return "an " + noun
	}
	return "a " + noun
}

// length is a duration in the longest unit of which it is a whole number. One day is 24
// hours, so that it is not mistaken for a calendar day.
func length(d time.Duration) (n int64, unit string) {
	for _, u := range []struct {
		unit   string
		length time.Duration
	}{
		{"day", 24 * time.Hour},
		{"hour", time.Hour},
		{"minute", time.Minute},
		{"second", time.Second},
		{"millisecond", time.Millisecond},
		{"microsecond", time.Microsecond},
	} {
		if n = int64(d / u.length); d%u.length == 0 && (n > 1 || n == 1 && u.unit != "day") {
			return n, u.unit
		}
	}
	if d == 0 {
		return 0, "second"
	}
	return int64(d), "nanosecond"
}

// amount is a duration: 1 hour, 90 minutes.
func amount(d time.Duration) string {
	n, unit := length(d)
	return count(n, unit)
}

// one is a duration after "within": an hour, 90 minutes.
func one(d time.Duration) string {
	if n, unit := length(d); n == 1 {
		return an(unit)
	}
	return amount(d)
}

func headerName(name string) string { return printable(textproto.CanonicalMIMEHeaderKey(name)) }
