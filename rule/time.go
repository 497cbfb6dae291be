package rule

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Time is a time that is written as in RFC 3339, or as a TOML date and time with a zone.
type Time struct{ time.Time }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (t *Time) UnmarshalText(text []byte) (err error) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00"} {
		if t.Time, err = time.Parse(layout, strings.ToUpper(string(text))); err == nil {
			if _, err = t.MarshalText(); err == nil { // some zones can be parsed but not written
				return nil
			}
		}
	}
	return fmt.Errorf("%.64q is not a time, want a date, a time and a zone, such as 2026-12-31T23:59:59Z", text)
}

// UnmarshalJSON implements [json.Unmarshaler]. That of time.Time does not accept a space
// between date and time.
func (t *Time) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	return t.UnmarshalText([]byte(text))
}
