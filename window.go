package stint

import (
	"strconv"
	"strings"
	"time"
)

// MaxWindow is the longest window.
const MaxWindow = 10 * 366 * 24 * time.Hour

// Window is the time over which a limit counts: a length ("1m", made by
// [Every]) or a calendar period ("month tz=Europe/Berlin anchor=15", made by
// [ParseWindow]). Windows are comparable.
type Window struct {
	span   time.Duration // when unit is noUnit
	unit   unit
	anchor int16
	zone   *zone // nil is UTC
}

// Every returns the window of length d, a whole number of microseconds.
func Every(d time.Duration) Window { return Window{span: d} }

// Length returns the window's length, or zero for a calendar period, whose
// length varies.
func (w Window) Length() time.Duration { return w.span }

// Bounds returns the window that contains now when windows are aligned, to the
// epoch or to the calendar: start is in it, end is the start of the next.
func (w Window) Bounds(now time.Time) (start, end time.Time) {
	s, e := w.bounds(micros(now))
	return time.UnixMicro(s), time.UnixMicro(e)
}

func (w Window) bounds(now int64) (start, end int64) {
	if w.unit != noUnit {
		return w.period(now)
	}
	span := max(w.span.Microseconds(), 1)
	start = now - now%span
	return start, start + span
}

// spans are the units of a length, longest first. A word is the unit alone:
// 100/hour. The calendar's words are in units.
var spans = []struct {
	name, word string
	length     time.Duration
}{
	{"w", "", 7 * 24 * time.Hour},
	{"d", "", 24 * time.Hour},
	{"h", "hour", time.Hour},
	{"m", "minute", time.Minute},
	{"s", "second", time.Second},
	{"ms", "", time.Millisecond},
	{"us", "", time.Microsecond},
}

const windowWant = "a length such as 500ms, 10s, 1m, 2h, 7d, 1w, or one of second, minute, hour, day, week, month, year"

// ParseWindow reads a window: "1m", "90s", "1h30m", "hour", or a calendar
// period with its options: "day", "week anchor=sunday",
// "month tz=Europe/Berlin anchor=15".
func ParseWindow(text string) (Window, error) {
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return Window{}, invalid("window", text, windowWant)
	}
	w, err := parseWindow(fields[0])
	if err != nil {
		return Window{}, err
	}
	var tz, anchor string
	for _, f := range fields[1:] {
		name, value, _ := strings.Cut(f, "=")
		switch {
		case name == "tz" && tz == "":
			tz = value
		case name == "anchor" && anchor == "":
			anchor = value
		default:
			return Window{}, invalid("window option", f, "tz=ZONE or anchor=DAY, each at most once")
		}
	}
	if err := w.place(tz, anchor); err != nil {
		return Window{}, err
	}
	return w, w.validate()
}

func parseWindow(text string) (Window, error) {
	if u := parseUnit(text); u != noUnit {
		return Window{unit: u, anchor: units[u].anchor}, nil
	}
	for _, s := range spans {
		if text == s.name || (text == s.word && text != "") {
			return Every(s.length), nil
		}
	}
	var d time.Duration
	for rest := text; ; {
		i := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
		if i <= 0 {
			return Window{}, invalid("window", text, windowWant)
		}
		n, err := strconv.ParseInt(rest[:i], 10, 64)
		if err != nil {
			return Window{}, invalid("window", text, "at most "+formatSpan(MaxWindow))
		}
		rest = rest[i:]
		j := strings.IndexFunc(rest, func(r rune) bool { return r >= '0' && r <= '9' })
		if j < 0 {
			j = len(rest)
		}
		length := time.Duration(0)
		for _, s := range spans {
			if s.name == rest[:j] {
				length = s.length
			}
		}
		if length == 0 {
			return Window{}, invalid("window", text, windowWant)
		}
		if n > int64((MaxWindow-d)/length) {
			return Window{}, invalid("window", text, "at most "+formatSpan(MaxWindow))
		}
		d += time.Duration(n) * length
		if rest = rest[j:]; rest == "" {
			break
		}
	}
	w := Every(d)
	return w, w.validate()
}

// validate reports what is wrong with the window's length; a calendar period
// is right by construction.
func (w Window) validate() error {
	switch {
	case w.unit != noUnit:
		return nil
	case w.span <= 0:
		return invalid("window", w.span.String(), "more than nothing")
	case w.span > MaxWindow:
		return invalid("window", w.span.String(), "at most "+formatSpan(MaxWindow))
	case w.span%time.Microsecond != 0:
		return invalid("window", w.span.String(), "a whole number of microseconds")
	}
	return nil
}

// String returns the window as [ParseWindow] reads it.
func (w Window) String() string { return string(w.appendOptions(w.append(nil))) }

// append appends the window without its options, which a limit prints apart.
func (w Window) append(b []byte) []byte {
	if w.unit == noUnit {
		return appendSpan(b, w.span)
	}
	return append(b, units[w.unit].name...)
}

func (w Window) appendOptions(b []byte) []byte {
	if w.unit == noUnit {
		return b
	}
	if w.zone != nil {
		b = append(append(b, " tz="...), w.zone.name...)
	}
	if w.anchor != units[w.unit].anchor {
		b = append(append(b, " anchor="...), w.unit.formatAnchor(w.anchor)...)
	}
	return b
}

func formatSpan(d time.Duration) string { return string(appendSpan(nil, d)) }

func appendSpan(b []byte, d time.Duration) []byte {
	for _, s := range spans {
		if d > 0 && d%s.length == 0 {
			return append(strconv.AppendInt(b, int64(d/s.length), 10), s.name...)
		}
	}
	return append(b, d.String()...)
}

// MarshalText implements [encoding.TextMarshaler].
func (w Window) MarshalText() ([]byte, error) {
	if err := w.validate(); err != nil {
		return nil, err
	}
	return []byte(w.String()), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (w *Window) UnmarshalText(text []byte) error {
	v, err := ParseWindow(string(text))
	if err == nil {
		*w = v
	}
	return err
}
