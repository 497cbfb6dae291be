package stint

import (
	"database/sql/driver"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Limit is so many units per window, counted by an algorithm. Limits are
// comparable; equal limits count alike.
type Limit struct {
	Algorithm Algorithm
	// Max is the units per window, from 1 to 2^53-1 ([MaxLog] for a sliding_log).
	Max    int64
	Window Window
	// Burst is the capacity of a token_bucket (0: Max) or the slots that may
	// wait in a leaky_bucket (0: none). Other algorithms have none.
	Burst int64
}

// is reports whether the limits are the same. It is ==, which for so many fields is a call. A
// window that has a length has no place in the calendar.
func (l *Limit) is(m *Limit) bool {
	return l.Max == m.Max && l.Window.span == m.Window.span && l.Algorithm == m.Algorithm && l.Burst == m.Burst &&
		(l.Window.span != 0 || l.Window.unit == m.Window.unit && l.Window.anchor == m.Window.anchor && l.Window.zone == m.Window.zone)
}

// Kind tells apart the counters that one key has under different limits: it is the same for two limits if
// and only if their algorithms and windows are. It is a matter of this process: another may have other
// kinds.
func (l *Limit) Kind() uint64 {
	w := &l.Window
	if w.unit == noUnit {
		return uint64(w.span)<<4 | uint64(l.Algorithm&15)
	}
	kind := 1<<63 | uint64(w.unit)<<4 | uint64(uint16(w.anchor))<<8 | uint64(l.Algorithm&15)
	if w.zone != nil {
		kind |= w.zone.number << 24
	}
	return kind
}

// AppendKind appends a text that is the same for two limits if and only if their kinds are, in every
// process: sw1h, or fwmonth,tz=Europe/Berlin,anchor=15. It has no spaces and no colons.
func (l *Limit) AppendKind(b []byte) []byte {
	from := len(b)
	b = append(b, algorithmCodes[l.Algorithm]...)
	b = l.Window.appendOptions(l.Window.append(b))
	for i, c := range b[from:] {
		switch c {
		case ' ':
			b[from+i] = ','
		case ':':
			b[from+i] = '.'
		}
	}
	return b
}

// PerSecond returns the limit "n/second".
func PerSecond(n int64) Limit { return Limit{Max: n, Window: Every(time.Second)} }

// PerMinute returns the limit "n/minute".
func PerMinute(n int64) Limit { return Limit{Max: n, Window: Every(time.Minute)} }

// PerHour returns the limit "n/hour".
func PerHour(n int64) Limit { return Limit{Max: n, Window: Every(time.Hour)} }

// PerDay returns the limit "n/day": a fixed window from midnight to midnight, UTC.
func PerDay(n int64) Limit { return perPeriod(n, day) }

// PerWeek returns the limit "n/week": a fixed window from Monday to Monday, UTC.
func PerWeek(n int64) Limit { return perPeriod(n, week) }

// PerMonth returns the limit "n/month": a fixed window of a calendar month, UTC.
func PerMonth(n int64) Limit { return perPeriod(n, month) }

// PerYear returns the limit "n/year": a fixed window of a calendar year, UTC.
func PerYear(n int64) Limit { return perPeriod(n, year) }

func perPeriod(n int64, u unit) Limit {
	return Limit{Algorithm: FixedWindow, Max: n, Window: Window{unit: u, anchor: units[u].anchor}}
}

// Take judges a cost at an instant. If it passes, the returned state has it
// charged; if not, or if the cost is 0 (a peek), the state is returned as it
// was. A limit that is not valid and a negative cost are denied, forever.
//
// A state belongs to one algorithm and one window; its max and burst may change,
// and usage stays. What a bucket had used drained until now at the rate that it
// was charged under, and drains from now on at the new one. A state from the
// future, whose clock was set back since, is moved to now: its usage counts, and
// it recovers within its own recovery time. In both cases the state has changed
// even if nothing was charged.
func (l Limit) Take(s State, now time.Time, cost int64) (State, Decision) {
	var p Plan
	if l.compile(&p) != nil {
		return s, Decision{RetryAfter: Never}
	}
	return p.TakeState(s, micros(now), cost)
}

// TakeState is [Limit.Take] of the plan's limit. The time is in microseconds since the Unix epoch.
func (p *Plan) TakeState(s State, now, cost int64) (State, Decision) {
	next := s
	var d Decision
	if !p.decide(&next.Counter, &next.Log, clamp(now, maxTime), cost, &d) {
		return s, d
	}
	if p.limit.Algorithm.hasLog() && d.Cost > 0 {
		next.Log = p.logCharge(next.Log, next.At, cost)
	}
	return next, d
}

// Adjust charges without asking (cost > 0) or gives back (cost < 0, never below
// nothing used). The decision describes the counter afterwards; Allowed says
// whether its usage is within the limit.
func (l Limit) Adjust(s State, now time.Time, cost int64) (State, Decision) {
	var p Plan
	if l.compile(&p) != nil {
		return s, Decision{RetryAfter: Never}
	}
	return p.AdjustState(s, micros(now), cost)
}

// AdjustState is [Limit.Adjust] of the plan's limit. The time is in microseconds since the Unix epoch.
func (p *Plan) AdjustState(s State, now, cost int64) (State, Decision) {
	if cost == 0 {
		return p.TakeState(s, now, 0)
	}
	t := clamp(now, maxTime)
	p.advance(&s.Counter, &s.Log, t)
	cost = max(-maxInt, min(cost, maxInt))
	switch {
	case p.limit.Algorithm.hasLog():
		cost = clamp(s.Used+cost, maxInt) - s.Used // what the log can gain or lose
		s.Log = p.logCharge(s.Log, p.logAt(&s.Counter, t), cost)
		p.charge(&s.Counter, t, cost)
	case p.limit.Algorithm.isBucket() && cost < 0:
		p.bucketRefund(&s, t, 0, p.parts(-cost)) // of any charge
	default:
		p.charge(&s.Counter, t, cost)
	}
	d := p.describe(&s, t)
	if cost > 0 {
		d.Cost = cost
		if p.limit.Algorithm == Concurrency {
			d.At = s.At
		}
	}
	return s, d
}

// describe settles a state that was charged without asking, and returns how it stands.
func (p *Plan) describe(s *State, now int64) Decision {
	if n := len(s.Log); n > 0 {
		s.At = s.Log[n-1].At
	}
	if p.settle(&s.Counter); s.Until == 0 {
		s.Log = nil
	}
	left := p.left(&s.Counter, now)
	d := Decision{
		At:         now,
		Allowed:    left >= 0,
		Limit:      p.cap,
		Remaining:  max(left, 0),
		Before:     p.before(&s.Counter),
		ResetAfter: until(s.Until, now),
	}
	if !d.Allowed {
		d.RetryAfter = until(p.passAt(&s.Counter, s.Log, 0), now)
	}
	return d
}

// Tick is the resolution at which the limit keeps time: a microsecond, or the
// finest power of ten of them, up to a second, at which its products fit in 53
// bits. It is zero if the limit is not valid.
func (l Limit) Tick() time.Duration {
	var p Plan
	if l.compile(&p) != nil {
		return 0
	}
	return time.Duration(p.tick) * time.Microsecond
}

// Cap is the largest cost that can pass. It is zero if the limit is not valid.
func (l Limit) Cap() int64 {
	var p Plan
	if l.compile(&p) != nil {
		return 0
	}
	return p.cap
}

// Validate reports what is wrong with the limit, as an [*InvalidError].
func (l Limit) Validate() error {
	var p Plan
	return l.compile(&p)
}

func (l Limit) check() error {
	switch {
	case !l.Algorithm.known():
		return invalid("algorithm", l.Algorithm.String(), algorithmWant)
	case l.Max < 1 || l.Max > maxInt:
		return invalid("max", strconv.FormatInt(l.Max, 10), "a whole number from 1 to "+strconv.FormatInt(maxInt, 10))
	case l.Algorithm.hasLog() && l.Max > MaxLog:
		return invalid("max", strconv.FormatInt(l.Max, 10), "at most "+strconv.Itoa(MaxLog)+
			" for "+l.Algorithm.String()+", which remembers every unit; sliding_window has no such bound")
	case l.Burst < 0 || l.Burst >= maxInt:
		return invalid("burst", strconv.FormatInt(l.Burst, 10), "a whole number from 0 to "+strconv.FormatInt(maxInt-1, 10))
	case l.Burst != 0 && l.Algorithm != TokenBucket && l.Algorithm != LeakyBucket:
		return invalid("burst", strconv.FormatInt(l.Burst, 10), "none: "+l.Algorithm.String()+
			" has no burst; token_bucket and leaky_bucket have")
	case l.Window.unit != noUnit && l.Algorithm != FixedWindow:
		return invalid("window", l.Window.String(), "a length such as 24h or 30d for "+l.Algorithm.String()+
			"; only fixed_window follows the calendar")
	}
	return l.Window.validate()
}

const limitWant = "MAX/WINDOW and options, such as 100/1m, 10/1s burst=20 token_bucket, " +
	"or 1000/month tz=Europe/Berlin anchor=15"

// ParseLimit reads a limit: the units, a slash, the window, and then in any
// order the algorithm and the options burst=, tz= and anchor=.
//
//	100/1m
//	10/1s burst=20 token_bucket
//	1000/month tz=Europe/Berlin anchor=15
//
// A length (1m, 24h, 7d) is counted by sliding_window unless another algorithm
// is named. The words day, week, month and year are periods of the calendar
// and are counted by fixed_window; under another algorithm day and week are
// lengths of 24 hours and 7 days.
func ParseLimit(text string) (Limit, error) {
	l, err := parseLimit(text)
	if err == nil {
		err = l.Validate()
	}
	if err != nil {
		const most = 128
		shown := text
		if len(shown) > most {
			shown = shown[:most] + "..."
		}
		return Limit{}, fmt.Errorf("limit %q: %w", shown, err)
	}
	return l, nil
}

// ParseRate is [ParseLimit] for those who count what comes and release nothing: [Concurrency] is an error.
func ParseRate(text string) (Limit, error) {
	l, err := ParseLimit(text)
	if err == nil {
		err = l.ValidateRate()
	}
	return l, err
}

// ValidateRate reports that the limit is one of [Concurrency], whose places have to be released.
func (l *Limit) ValidateRate() error {
	if l.Algorithm != Concurrency {
		return nil
	}
	return invalid("algorithm", l.Algorithm.String(), "one that counts over time: sliding_window, fixed_window, sliding_log, "+
		"token_bucket (or gcra) or leaky_bucket; what concurrency holds must be released, as "+
		"rules do at the gateway, in middlewares and gRPC servers, and Limiter.Hold in programs")
}

func parseLimit(text string) (Limit, error) {
	if !utf8.ValidString(text) {
		return Limit{}, invalid("limit", text, "valid UTF-8")
	}
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return Limit{}, invalid("limit", text, limitWant)
	}
	count, window, ok := strings.Cut(fields[0], "/")
	if !ok {
		return Limit{}, invalid("limit", fields[0], limitWant)
	}
	var l Limit
	var err error
	if l.Max, err = parseCount("max", count); err != nil {
		return Limit{}, err
	}
	if l.Window, err = parseWindow(window); err != nil {
		return Limit{}, err
	}
	seen := map[string]string{}
	for _, f := range fields[1:] {
		name, value, isOption := strings.Cut(f, "=")
		if !isOption {
			name, value = "algorithm", f
		}
		if _, twice := seen[name]; twice {
			return Limit{}, invalid(name, value, "it only once")
		}
		seen[name] = value
		switch name {
		case "algorithm":
			l.Algorithm, err = ParseAlgorithm(value)
		case "burst":
			// Burst 0 is a leaky_bucket's default and is not written.
			l.Burst, err = parseCount("burst", value)
		case "tz", "anchor":
			if value == "" {
				err = invalid(name, value, "a value")
			}
		default:
			err = invalid("option", f, "an algorithm, burst=, tz= or anchor=")
		}
		if err != nil {
			return Limit{}, err
		}
	}
	if l.Window.unit != noUnit {
		if _, named := seen["algorithm"]; !named {
			l.Algorithm = FixedWindow
		} else if l.Algorithm != FixedWindow {
			length := units[l.Window.unit].length
			if length == 0 {
				return Limit{}, invalid("window", window, "a length such as 30d for "+l.Algorithm.String()+
					": a "+window+" has none of its own")
			}
			l.Window = Every(length)
		}
	}
	return l, l.Window.place(seen["tz"], seen["anchor"])
}

func parseCount(field, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > maxInt || text[0] == '+' {
		return 0, invalid(field, text, "a whole number from 1 to "+strconv.FormatInt(maxInt, 10))
	}
	return n, nil
}

// String returns the limit as [ParseLimit] reads it, without what goes without
// saying.
func (l Limit) String() string { return string(l.Append(nil)) }

// Append appends what String returns.
func (l Limit) Append(b []byte) []byte {
	b = append(strconv.AppendInt(b, l.Max, 10), '/')
	b = l.Window.append(b)
	if l.Burst != 0 {
		b = strconv.AppendInt(append(b, " burst="...), l.Burst, 10)
	}
	usual := SlidingWindow
	if l.Window.unit != noUnit {
		usual = FixedWindow
	}
	if l.Algorithm != usual {
		b = append(append(b, ' '), l.Algorithm.String()...)
	}
	return l.Window.appendOptions(b)
}

// MarshalText implements [encoding.TextMarshaler].
func (l Limit) MarshalText() ([]byte, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	return l.Append(nil), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (l *Limit) UnmarshalText(text []byte) error {
	v, err := ParseLimit(string(text))
	if err == nil {
		*l = v
	}
	return err
}

// Value implements [driver.Valuer]: a column holds the limit's text.
func (l Limit) Value() (driver.Value, error) {
	text, err := l.MarshalText()
	return string(text), err
}

// Scan implements [database/sql.Scanner].
func (l *Limit) Scan(src any) error {
	switch v := src.(type) {
	case string:
		return l.UnmarshalText([]byte(v))
	case []byte:
		return l.UnmarshalText(v)
	default:
		return fmt.Errorf("stint: limit from a column of type %T: want text", src)
	}
}
