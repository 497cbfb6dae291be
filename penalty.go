package stint

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// MaxViolations is the most violations that a penalty remembers of a subject.
	MaxViolations = 1000
	// MaxSteps is the most multipliers that a penalty can have.
	MaxSteps = 16
)

// Penalty bans those who go on asking for what is denied. It is one more ask of a
// take ([Ask.Penalty]), and denies while its subject is banned.
//
// It answers for the asks directly before it that have its subject, back to
// another penalty. If one of them denies, and the subject is not banned already,
// that is a violation. The violation that is the Threshold-th within Within bans
// the subject for Cooldown times the first multiplier, the next one, after the
// ban, for Cooldown times the next, and so on. Denials during a ban are not
// violations. Violations that are older than Within no longer count, so those who
// have behaved begin at the bottom of the ladder.
//
// The state holds violations, not bans: a changed penalty acts at once on what was
// recorded.
type Penalty struct {
	Threshold   int64         // violations, from 1
	Within      time.Duration // how long a violation counts
	Cooldown    time.Duration
	Multipliers []int64 // at most MaxSteps, each at least 1; none: 1
}

// Validate reports what is wrong with the penalty, as an [*InvalidError].
func (p *Penalty) Validate() error {
	switch most := MaxViolations - max(int64(len(p.Multipliers)), 1) + 1; {
	case len(p.Multipliers) > MaxSteps:
		return invalid("multipliers", strconv.Itoa(len(p.Multipliers))+" of them", "at most "+strconv.Itoa(MaxSteps))
	case p.Threshold < 1 || p.Threshold > most:
		return invalid("threshold", strconv.FormatInt(p.Threshold, 10), "a whole number from 1 to "+strconv.FormatInt(most, 10))
	case p.Within < time.Microsecond || p.Within > MaxWindow:
		return invalid("within", p.Within.String(), lengthWant)
	case p.Cooldown < time.Microsecond || p.Cooldown > MaxWindow:
		return invalid("cooldown", p.Cooldown.String(), lengthWant)
	}
	for _, m := range p.Multipliers {
		if m < 1 || m > int64(MaxWindow/p.Cooldown) {
			return invalid("multipliers", strconv.FormatInt(m, 10), "1 or more, and no ban longer than "+lengthMost)
		}
	}
	return nil
}

const (
	lengthMost = "10 years"
	lengthWant = "a length from 1us to " + lengthMost
)

// Ban returns how long the ban is that so many violations lead to, in
// microseconds, or 0.
func (p *Penalty) Ban(violations int64) int64 {
	step := violations - p.Threshold
	if step < 0 {
		return 0
	}
	length := p.Cooldown.Microseconds()
	if n := len(p.Multipliers); n > 0 {
		length *= p.Multipliers[min(step, int64(n-1))]
	}
	return length
}

// Take judges an instant: whether the subject is banned. Violation says that what
// the penalty answers for was denied; unless the subject is banned, it is recorded.
// As with [Limit.Take], a state from the future is moved to now.
// The decision describes the penalty after that: Limit is the threshold, and
// Remaining how many violations are left until a ban.
func (p *Penalty) Take(s State, now time.Time, violation bool) (State, Decision) {
	t := micros(now)
	switch {
	case t >= s.Until:
		s = State{}
	case s.At > t:
		moveBack(&s.Counter, &s.Log, s.At-t)
	}
	banned := p.bannedUntil(&s)
	if violation && t >= banned {
		s = p.record(s, max(t, s.At))
		banned = p.bannedUntil(&s)
	}
	d := Decision{
		Allowed:    t >= banned,
		Limit:      p.Threshold,
		ResetAfter: until(min(max(s.At+p.Within.Microseconds(), banned), s.Until), t),
	}
	if d.Allowed {
		d.Remaining = max(p.Threshold-p.counting(s.Log, max(t, s.At)), 0)
	} else {
		d.RetryAfter = until(banned, t)
	}
	return s, d
}

// bannedUntil returns when the ban ends that the newest violation led to, or 0.
// That it did follows from those before it: there are none during a ban.
func (p *Penalty) bannedUntil(s *State) int64 {
	ban := p.Ban(p.counting(s.Log, s.At))
	if ban == 0 {
		return 0
	}
	return min(s.At+ban, s.Until)
}

// record adds a violation to the state, and drops those that no longer count.
func (p *Penalty) record(s State, now int64) State {
	old := s.Log[len(s.Log)-int(p.counting(s.Log, now)):]
	old = old[max(len(old)-p.most()+1, 0):]
	log := append(slices.Clone(old), Entry{At: now, Units: 1})
	n := int64(len(log))
	return State{
		Counter: Counter{At: now, Used: n, Until: now + max(p.Within.Microseconds(), p.Ban(n))},
		Log:     log,
	}
}

// most is how many violations make a difference.
func (p *Penalty) most() int { return int(p.Threshold) + max(len(p.Multipliers), 1) - 1 }

// counting returns how many violations count at an instant.
func (p *Penalty) counting(log []Entry, now int64) int64 {
	n := len(log)
	for n > 0 && log[n-1].At > now-p.Within.Microseconds() {
		n--
	}
	return int64(len(log) - n)
}

// Guarded returns the first of the asks that the penalty at i answers for: those
// directly before it that have its subject. It is i if there are none.
func Guarded(asks []Ask, i int) int {
	first := i
	for first > 0 && asks[first-1].Penalty == nil && asks[first-1].Key.Subject == asks[i].Key.Subject {
		first--
	}
	return first
}

const penaltyWant = "VIOLATIONS/WINDOW and cooldown=, such as 3/1h cooldown=1m multipliers=1,2,4,8"

// ParsePenalty reads a penalty: the violations, a slash, how long they count, the
// cooldown and, if there are any, the multipliers.
//
//	3/1h cooldown=1m multipliers=1,2,4,8
func ParsePenalty(text string) (*Penalty, error) {
	fields := strings.Fields(text)
	if len(fields) < 2 || len(fields) > 3 {
		return nil, invalid("penalty", text, penaltyWant)
	}
	count, window, _ := strings.Cut(fields[0], "/")
	p := new(Penalty)
	var err error
	if p.Threshold, err = parseCount("threshold", count); err != nil {
		return nil, err
	}
	if p.Within, err = parseLength("within", window); err != nil {
		return nil, err
	}
	for _, f := range fields[1:] {
		name, value, _ := strings.Cut(f, "=")
		switch {
		case name == "cooldown" && p.Cooldown == 0:
			p.Cooldown, err = parseLength(name, value)
		case name == "multipliers" && p.Multipliers == nil:
			for part := range strings.SplitSeq(value, ",") {
				m, failed := parseCount(name, part)
				if failed != nil {
					err = failed
				}
				p.Multipliers = append(p.Multipliers, m)
			}
		default:
			err = invalid("penalty", text, penaltyWant)
		}
		if err != nil {
			return nil, err
		}
	}
	return p, p.Validate()
}

func parseLength(field, text string) (time.Duration, error) {
	w, err := parseWindow(text)
	if err != nil || w.span == 0 {
		return 0, invalid(field, text, lengthWant)
	}
	return w.span, nil
}

// String returns the penalty as [ParsePenalty] reads it.
func (p *Penalty) String() string {
	text := strconv.FormatInt(p.Threshold, 10) + "/" + formatSpan(p.Within) + " cooldown=" + formatSpan(p.Cooldown)
	separator := " multipliers="
	for _, m := range p.Multipliers {
		text += separator + strconv.FormatInt(m, 10)
		separator = ","
	}
	return text
}
