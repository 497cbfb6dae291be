package stint

import (
	"fmt"
	"maps"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// unit is a calendar period. Its anchor is where in the period the window
// begins: minutes after midnight, a weekday, a day of the month, or
// month*100+day.
type unit uint8

const (
	noUnit unit = iota
	day
	week
	month
	year
)

var units = [...]struct {
	name   string
	anchor int16 // unless set
	length time.Duration
	want   string
}{
	day:   {"day", 0, 24 * time.Hour, "a time of day such as 08:00"},
	week:  {"week", int16(time.Monday), 7 * 24 * time.Hour, "a weekday such as monday"},
	month: {"month", 1, 0, "a day of the month from 1 to 31"},
	year:  {"year", 101, 0, "a month and day such as 04-06"},
}

func parseUnit(name string) unit {
	for u := range units {
		if units[u].name == name {
			return unit(u)
		}
	}
	return noUnit
}

// place sets the zone and the anchor of a calendar window from their texts;
// empty texts leave them alone.
func (w *Window) place(tz, anchor string) error {
	if w.unit == noUnit {
		if tz != "" {
			return invalid("tz", tz, "a calendar window (day, week, month or year) to go with it")
		}
		if anchor != "" {
			return invalid("anchor", anchor, "a calendar window (day, week, month or year) to go with it")
		}
		return nil
	}
	if tz != "" {
		z, err := loadZone(tz)
		if err != nil {
			return err
		}
		w.zone = z
	}
	if anchor != "" {
		a, ok := w.unit.parseAnchor(anchor)
		if !ok {
			return invalid("anchor", anchor, units[w.unit].want)
		}
		w.anchor = a
	}
	return nil
}

func (u unit) parseAnchor(text string) (int16, bool) {
	switch u {
	case day:
		if t, err := time.Parse("15:04", text); err == nil {
			return int16(t.Hour()*60 + t.Minute()), true
		}
	case week:
		for d := time.Sunday; d <= time.Saturday; d++ {
			if strings.ToLower(d.String()) == text {
				return int16(d), true
			}
		}
	case month:
		if n, err := strconv.Atoi(text); err == nil && n >= 1 && n <= 31 {
			return int16(n), true
		}
	case year:
		// 2000 is a leap year: the 29th of February is a day to begin on.
		if t, err := time.Parse("2006-01-02", "2000-"+text); err == nil {
			return int16(int(t.Month())*100 + t.Day()), true
		}
	case noUnit:
	}
	return 0, false
}

func (u unit) formatAnchor(a int16) string {
	switch u {
	case day:
		return fmt.Sprintf("%02d:%02d", a/60, a%60)
	case week:
		return strings.ToLower(time.Weekday(a).String())
	case year:
		return fmt.Sprintf("%02d-%02d", a/100, a%100)
	default:
		return strconv.Itoa(int(a))
	}
}

// zone is a time zone, one value for each name, so that windows compare. It
// remembers the last period asked for, since most asks fall into it.
type zone struct {
	name   string
	number uint64 // in the order in which zones were first named, from 1
	loc    *time.Location
	memo   [len(units)]atomic.Pointer[period]
}

type period struct {
	anchor     int16
	start, end int64
}

var utc = &zone{name: "UTC", loc: time.UTC}

// zones holds the zones loaded so far. It is copied on write, and cannot grow
// beyond the names in the zone database as long as each has one spelling.
var zones atomic.Pointer[map[string]*zone]

// loadZone returns the zone of that IANA name; UTC is nil.
func loadZone(name string) (*zone, error) {
	if name == "UTC" {
		return nil, nil
	}
	for {
		old := zones.Load()
		if old != nil && (*old)[name] != nil {
			return (*old)[name], nil
		}
		loc, err := time.LoadLocation(name)
		// A zone is a file, and paths have many spellings: Europe//Berlin. Others
		// are whatever the machine is set to.
		local := name == "Local" || path.Base(name) == "localtime"
		if err != nil || local || path.Clean(name) != name {
			return nil, invalid("tz", name, "an IANA time zone such as Europe/Berlin")
		}
		next := map[string]*zone{}
		if old != nil {
			next = maps.Clone(*old)
		}
		next[name] = &zone{name: name, number: uint64(len(next) + 1), loc: loc}
		if zones.CompareAndSwap(old, &next) {
			return next[name], nil
		}
	}
}

// period returns the calendar period that contains now.
func (w Window) period(now int64) (start, end int64) {
	z := w.zone
	if z == nil {
		z = utc
	}
	memo := &z.memo[w.unit]
	p := memo.Load()
	current := p != nil && p.start <= now && now < p.end
	if current && p.anchor == w.anchor {
		return p.start, p.end
	}
	start, end = w.unit.period(w.anchor, z.loc, now)
	if !current {
		memo.Store(&period{w.anchor, start, end})
	}
	return start, end
}

func (u unit) period(anchor int16, loc *time.Location, now int64) (start, end int64) {
	y, m, d := time.UnixMicro(now).In(loc).Date()
	if u == week {
		wd := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Weekday()
		d -= (int(wd) - int(anchor) + 7) % 7
	}
	// The date of now is at most one period away from the start that holds it.
	i := -1
	for start, end = u.begin(y, m, d, i, anchor, loc), u.begin(y, m, d, i+1, anchor, loc); now >= end; {
		i++
		start, end = end, u.begin(y, m, d, i+1, anchor, loc)
	}
	return start, end
}

// begin returns the start of the i-th period after the one named by the date.
func (u unit) begin(y int, m time.Month, d, i int, anchor int16, loc *time.Location) int64 {
	switch u {
	case day:
		return firstInstant(time.Date(y, m, d+i, int(anchor)/60, int(anchor)%60, 0, 0, time.UTC), loc)
	case week:
		return firstInstant(time.Date(y, m, d+7*i, 0, 0, 0, 0, time.UTC), loc)
	case month:
		d, m = int(anchor), m+time.Month(i)
	default:
		y, m, d = y+i, time.Month(anchor/100), int(anchor)%100
	}
	// The 31st of a short month is its last day.
	last := time.Date(y, m+1, 0, 0, 0, 0, 0, time.UTC).Day()
	return firstInstant(time.Date(y, m, min(d, last), 0, 0, 0, 0, time.UTC), loc)
}

// firstInstant returns the first instant at which clocks in loc show the wall
// time, given as if it were in UTC; where they skip it, the instant of the
// skip. [time.Date] does not promise which of two it returns.
func firstInstant(wall time.Time, loc *time.Location) int64 {
	// An offset is within a day of UTC, so these bracket any change that matters.
	const day = 26 * time.Hour
	before := offsetAt(wall.Add(-day), loc)
	after := offsetAt(wall.Add(day), loc)
	a, b := wall.Add(-before), wall.Add(-after)
	switch {
	case offsetAt(a, loc) == before:
		return a.UnixMicro()
	case offsetAt(b, loc) == after:
		return b.UnixMicro()
	}
	_, change := b.In(loc).ZoneBounds()
	return change.UnixMicro()
}

func offsetAt(t time.Time, loc *time.Location) time.Duration {
	_, seconds := t.In(loc).Zone()
	return time.Duration(seconds) * time.Second
}
