package rule

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/strict"
)

// Problem is a problem in a file, and where it is.
type Problem = strict.Problem

// Problems are all problems in a file. They are an error.
type Problems = strict.Problems

// ParseTOML parses and checks rules and tiers in TOML. Problems show the name of the file.
// The error is of type [Problems].
func ParseTOML(file string, data []byte) (File, error) { return read(strict.TOML, file, data) }

// ParseJSON parses and checks rules and tiers in JSON. Problems show the name of the file.
// The error is of type [Problems].
func ParseJSON(file string, data []byte) (File, error) { return read(strict.JSON, file, data) }

func read(decode func(string, []byte, any) (*strict.Doc, Problems), file string, data []byte) (File, error) {
	var f File
	doc, problems := decode(file, data, &f)
	if err := problems.And(doc.Locate(f.check(len(problems) == 0).Problems)).Err(); err != nil {
		return File{}, err
	}
	return f, nil
}

// ParseValue parses the value of a named limit of a tier, a user or an API key: a limit, or
// "unlimited", which is the zero Limit.
func ParseValue(text string) (stint.Limit, error) {
	if text == "unlimited" {
		return stint.Limit{}, nil
	}
	return stint.ParseLimit(text)
}

// Value returns the rule's own value of the limit, or what is wrong with it.
func (l Limit) Value() (stint.Limit, error) {
	text := l.Limit
	if l.Burst != 0 {
		text += " burst=" + strconv.FormatInt(l.Burst, 10)
	}
	if l.Algorithm != "" {
		if _, err := stint.ParseAlgorithm(l.Algorithm); err != nil {
			return stint.Limit{}, err
		}
		text += " " + l.Algorithm
	}
	return stint.ParseLimit(text)
}

// MarshalText implements [encoding.TextMarshaler].
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String returns the duration as it is written: 500ms, 1h, 7d.
func (d Duration) String() string { return stint.Every(time.Duration(d)).String() }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Duration) UnmarshalText(text []byte) error {
	w, err := stint.ParseWindow(string(text))
	if err != nil || w.Length() == 0 {
		return fmt.Errorf("%.64q is not a duration, want one such as 500ms, 10s, 1h30m or 7d, at most %v", text, Duration(stint.MaxWindow))
	}
	*d = Duration(w.Length())
	return nil
}

// MarshalJSON implements [json.Marshaler]: a cost that has only units is a number.
func (c Cost) MarshalJSON() ([]byte, error) {
	if c == (Cost{Units: c.Units}) {
		return strconv.AppendInt(nil, c.Units, 10), nil
	}
	return json.Marshal(costTable{units(c.Units), c.Header, c.Meter, units(c.Reserve), c.Max, c.OnError, c.OnOverrun})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (c *Cost) UnmarshalJSON(data []byte) error {
	_, problems := strict.JSON("", data, c)
	return problems.Err()
}

// UnmarshalStrict implements [strict.Unmarshaler]: a cost is a number or a table.
func (c *Cost) UnmarshalStrict(found strict.Kind, decode func(into any)) error {
	var t costTable
	switch found {
	case strict.Integer:
		decode(&t.Units)
	case strict.Table:
		decode(&t)
	default:
		return errors.New("found " + found.String() + `, want an integer or a table such as { header = "X-Cost", max = 100 }`)
	}
	*c = Cost{int64(t.Units), t.Header, t.Meter, int64(t.Reserve), t.Max, t.OnError, t.OnOverrun}
	return nil
}

type costTable struct {
	Units     units     `json:"units,omitempty"`
	Header    string    `json:"header,omitempty"`
	Meter     Meter     `json:"meter,omitempty"`
	Reserve   units     `json:"reserve,omitempty"`
	Max       int64     `json:"max,omitempty"`
	OnError   OnError   `json:"on_error,omitempty"`
	OnOverrun OnOverrun `json:"on_overrun,omitempty"`
}

// units are the units of a cost. A cost of 0 is an error, while a cost that is left out is 1.
type units int64

// UnmarshalStrict implements [strict.Unmarshaler].
func (u *units) UnmarshalStrict(found strict.Kind, decode func(into any)) error {
	decode((*int64)(u))
	if *u == 0 && found == strict.Integer {
		return errors.New("0 units are not a cost, want at least 1; a rule with the action allow counts nothing")
	}
	return nil
}
