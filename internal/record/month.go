package record

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record/query"
)

// Month is a month of UTC.
type Month struct {
	Year  int
	Month time.Month
}

// MonthOf returns the month that a time is in.
func MonthOf(t time.Time) Month {
	t = t.UTC()
	return Month{t.Year(), t.Month()}
}

// ParseMonth reads a month as String writes it.
func ParseMonth(text string) (Month, error) {
	t, err := time.Parse("2006-01", text)
	if err != nil {
		return Month{}, fmt.Errorf("month %.20q: want a year and a month, as 2026-01", text)
	}
	return MonthOf(t), nil
}

// Start returns when the month begins.
func (m Month) Start() time.Time { return time.Date(m.Year, m.Month, 1, 0, 0, 0, 0, time.UTC) }

// End returns when the next month begins.
func (m Month) End() time.Time { return m.Start().AddDate(0, 1, 0) }

// String returns the month as 2026-01.
func (m Month) String() string { return fmt.Sprintf("%04d-%02d", m.Year, m.Month) }

// MarshalText implements [encoding.TextMarshaler].
func (m Month) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (m *Month) UnmarshalText(text []byte) (err error) {
	*m, err = ParseMonth(string(text))
	return err
}

// table is the name of the table of a month.
func (m Month) table() string { return m.partition("stint_events") }

// partition is the name of the part of a table that has a month.
func (m Month) partition(of string) string { return fmt.Sprintf("%s_%04d_%02d", of, m.Year, m.Month) }

// monthsOf returns the months of tables, and ignores other names.
func monthsOf(names []string) (out []Month) {
	for _, name := range names {
		var m Month
		if n, err := fmt.Sscanf(name, "stint_events_%04d_%02d", &m.Year, &m.Month); n == 2 && err == nil && m.table() == name {
			out = append(out, m)
		}
	}
	return out
}

// MonthSize is how many events a month has.
type MonthSize struct {
	Month  Month
	Events int64
}

// Cursor is a position in the order of events by time and id: behind the event with its time
// and id. The zero Cursor is before all.
type Cursor struct {
	At time.Time
	ID engine.ID
}

// String returns a cursor as [ParseCursor] reads it. The zero Cursor is empty.
func (c Cursor) String() string {
	if c == (Cursor{}) {
		return ""
	}
	return strconv.FormatInt(c.At.UnixMicro(), 10) + "." + c.ID.String()
}

// ParseCursor reads a cursor.
func ParseCursor(text string) (c Cursor, err error) {
	if text == "" {
		return c, nil
	}
	at, id, _ := strings.Cut(text, ".")
	micros, err := strconv.ParseInt(at, 10, 64)
	if err == nil {
		c.ID, err = ParseID(id)
	}
	c.At = time.UnixMicro(micros).UTC()
	if err != nil || !query.Valid(c.At) {
		return Cursor{}, strict.Problems{{Path: "after", Message: strict.Quote(text) + ": want the cursor that the last page returned"}}
	}
	return c, nil
}

// ParseID reads the id of an event as its String writes it.
func ParseID(text string) (id engine.ID, err error) {
	err = id.UnmarshalText([]byte(text))
	return id, err
}
