package rule

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/strict"
)

// The bounds of a file. No one needs more.
const (
	maxName       = 64     // bytes of the name of a rule, limit, group, tier or method
	maxLimits     = 32     // limits of a rule
	maxValues     = 10_000 // values of a condition
	maxDimensions = 8      // things that a rule counts by
	maxFieldName  = 128    // bytes of a name of a header or a claim
	maxMessage    = 1024   // bytes of the message of a response
	maxValue      = 4096   // bytes of a header's value
	maxText       = 255    // bytes of other text for people
	maxCost       = 1<<53 - 1
)

var (
	actions    = []string{string(Reject), string(Throttle), string(LogOnly), string(Mark), string(Block), string(Allow)}
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
	if f.Case != "" && f.Case != ExactCase && f.Case != IgnoreCase {
		c.refuseOf("case", string(f.Case), []string{string(ExactCase), string(IgnoreCase)})
	}
	c.checkTierNames()
	c.checkRules()
	c.checkTierLimits()
	if whole {
		c.checkReplaces()
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
	place    int  // its index in the file
	sound    bool // it has no problems by itself
	patterns []pattern
	networks []netip.Prefix
	headers  map[string]string // by canonical name; nil if there are none
	countBy  []Dimension       // canonical, without those that every request has
	values   []stint.Limit     // of its limits; zero if invalid, or if the name is not unique
	// candidates are the values of what may take the place of its limits.
	candidates []stint.Limit
}

// path returns where the rule is in the file.
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

// limit returns the limit of the rule with this name, which it has.
func (r *Rule) limit(name string) *Limit {
	return &r.Limits[slices.IndexFunc(r.Limits, func(l Limit) bool { return l.Name == name })]
}

// refuseNumber is Refuse for a number.
func (c *checker) refuseNumber(path string, value int64, want string) {
	c.Add(path, strconv.FormatInt(value, 10)+": want "+want, "")
}

// refuseOf reports a value that is not one of the choices.
func (c *checker) refuseOf(path, value string, choices []string) {
	c.Refuse(path, value, "one of "+strings.Join(choices, ", "), c.Closest(value, choices))
}

// refuseAs reports the error of a parser, with its field unless the path says it already.
func (c *checker) refuseAs(path, field string, e *stint.InvalidError, hint string) {
	message := strict.Quote(e.Value) + ": want " + e.Want
	if e.Field != field {
		message = e.Field + " " + message
	}
	c.Add(path, message, hint)
}

// invalid returns the error of a parser as a [*stint.InvalidError].
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
	if !ValidName(name) {
		c.Refuse(path, name, "letters and digits, with . _ or - between them, at most "+strconv.Itoa(maxName)+" bytes", "")
		return false
	}
	return true
}

// ValidName reports whether something in a file can have the name: letters and digits, with
// . _ or - between them, at most 64 bytes.
func ValidName(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i == 0 || i == len(name)-1 || strings.IndexByte("._-", c) < 0:
			return false
		}
	}
	return name != "" && len(name) <= maxName
}

// checkTierNames comes first, because rules refer to tiers.
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
	if len(text) > maxText || hasControls(text) {
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
		// After MaxProblems, further problems are dropped and cannot be seen here.
		r.sound = len(c.Problems) == problems && problems < strict.MaxProblems
		// Paths are completed only now, since most rules have no problems.
		for n := problems; n < len(c.Problems); n++ {
			c.Problems[n].Path = r.path() + "." + c.Problems[n].Path
		}
	}
}

// checkRule checks a rule by itself, except for its name.
func (c *checker) checkRule(r *checked) {
	if r.Group != "" {
		c.checkName("group", r.Group)
	}
	c.checkMatch(r)
	c.checkCountBy(r)
	c.checkAction(r)
	c.checkEnforce(r)
	c.checkRollout(r)
	c.checkLimits(r)
	c.checkRegions(r)
	c.checkCost(r)
	c.checkPenalty(r)
	c.checkResponse(r)
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

// status returns the HTTP status of requests that do not pass.
func (r *Rule) status() int {
	if r.Action == Block {
		return cmp.Or(r.Response.Status, 403)
	}
	return cmp.Or(r.Response.Status, 429)
}

// enabled reports whether the rule is in use.
func (r *Rule) enabled() bool { return r.Enabled == nil || *r.Enabled }

func (c *checker) checkPenalty(r *checked) {
	const path = "penalty"
	p := r.Penalty
	if p == nil {
		return
	}
	switch {
	case !r.counts():
		c.Add(path, "the action "+string(r.Action)+" counts nothing: want none", "")
	case r.Action.Passes():
		c.Add(path, "the action "+string(r.Action)+" denies nothing: want none", "")
	case !slices.ContainsFunc(r.CountBy, Dimension.isClient):
		c.Add(path, "a ban affects all clients that share a counter, and one could get the others banned: want user, api_key or ip in count_by", "")
	}
	maxThreshold := int64(stint.MaxViolations)
	if steps := len(p.Multipliers); steps > stint.MaxSteps {
		c.Add(path+".multipliers", "has "+strconv.Itoa(steps)+" values, want at most "+strconv.Itoa(stint.MaxSteps), "")
	} else if steps > 0 {
		maxThreshold -= int64(steps) - 1
	}
	if p.Threshold < 1 || p.Threshold > maxThreshold {
		c.refuseNumber(path+".threshold", p.Threshold, "from 1 to "+strconv.FormatInt(maxThreshold, 10)+
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
	if s := r.Response.Style; s != "" && !slices.Contains(styles, string(s)) {
		c.refuseOf(path+".style", string(s), styles)
	}
	if d := r.Response.RetryAfter; d < 0 || time.Duration(d)%time.Second != 0 || time.Duration(d) > stint.MaxWindow {
		c.Refuse(path+".retry_after", d.String(), "whole seconds, such as 30s, and at most "+Duration(stint.MaxWindow).String(), "")
	}
	switch m := r.Response.Message; {
	case len(m) > maxMessage:
		c.Add(path+".message", "has "+strconv.Itoa(len(m))+" bytes, want at most "+strconv.Itoa(maxMessage), "")
	case hasControls(m):
		c.Refuse(path+".message", m, "one line of text, without control characters", "")
	}
}
