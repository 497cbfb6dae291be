package stint_test

import (
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testdoc"
)

func parse(t testing.TB, text string) stint.Limit {
	t.Helper()
	l, err := stint.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func window(t testing.TB, text string) stint.Window {
	t.Helper()
	w, err := stint.ParseWindow(text)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestParseLimit(t *testing.T) {
	t.Parallel()
	every := stint.Every
	for _, c := range []struct {
		text string
		want stint.Limit
		back string // how it is written back, if not as it was
	}{
		{"100/1m", stint.Limit{Max: 100, Window: every(time.Minute)}, ""},
		{"100/60s", stint.PerMinute(100), "100/1m"},
		{"100/m", stint.PerMinute(100), "100/1m"},
		{"100/minute", stint.PerMinute(100), "100/1m"},
		{"10/second", stint.PerSecond(10), "10/1s"},
		{"10/hour sliding_window", stint.PerHour(10), "10/1h"},
		{"  5/1h30m  ", stint.Limit{Max: 5, Window: every(90 * time.Minute)}, "5/90m"},
		{"5/36h", stint.Limit{Max: 5, Window: every(36 * time.Hour)}, ""},
		{"5/7d", stint.Limit{Max: 5, Window: every(7 * 24 * time.Hour)}, "5/1w"},
		{"1/1us", stint.Limit{Max: 1, Window: every(time.Microsecond)}, ""},
		{"3/250ms fixed_window", stint.Limit{Algorithm: stint.FixedWindow, Max: 3, Window: every(250 * time.Millisecond)}, ""},
		{"10/1s burst=20 token_bucket", stint.Limit{Algorithm: stint.TokenBucket, Max: 10, Window: every(time.Second), Burst: 20}, ""},
		{"10/1s token_bucket burst=20", stint.Limit{Algorithm: stint.TokenBucket, Max: 10, Window: every(time.Second), Burst: 20}, "10/1s burst=20 token_bucket"},
		{"10/1s gcra", stint.Limit{Algorithm: stint.TokenBucket, Max: 10, Window: every(time.Second)}, "10/1s token_bucket"},
		{"10/1s burst=5 leaky_bucket", stint.Limit{Algorithm: stint.LeakyBucket, Max: 10, Window: every(time.Second), Burst: 5}, ""},
		{"9/1h sliding_log", stint.Limit{Algorithm: stint.SlidingLog, Max: 9, Window: every(time.Hour)}, ""},
		{"9/day", stint.PerDay(9), ""},
		{"9/day fixed_window", stint.PerDay(9), "9/day"},
		{"9/week", stint.PerWeek(9), ""},
		{"9/week anchor=monday", stint.PerWeek(9), "9/week"},
		{"9/month", stint.PerMonth(9), ""},
		{"9/month tz=UTC anchor=1", stint.PerMonth(9), "9/month"},
		{"9/year", stint.PerYear(9), ""},
		{"9/day token_bucket", stint.Limit{Algorithm: stint.TokenBucket, Max: 9, Window: every(24 * time.Hour)}, "9/1d token_bucket"},
		{"9/week sliding_window", stint.Limit{Max: 9, Window: every(7 * 24 * time.Hour)}, "9/1w"},
		{"1000/month tz=Europe/Berlin anchor=15", stint.Limit{
			Algorithm: stint.FixedWindow, Max: 1000, Window: window(t, "month anchor=15 tz=Europe/Berlin"),
		}, ""},
		{"5/day tz=Asia/Shanghai anchor=08:30", stint.Limit{
			Algorithm: stint.FixedWindow, Max: 5, Window: window(t, "day tz=Asia/Shanghai anchor=08:30"),
		}, ""},
		{"5/year anchor=04-06", stint.Limit{Algorithm: stint.FixedWindow, Max: 5, Window: window(t, "year anchor=04-06")}, ""},
		{"5/week anchor=sunday", stint.Limit{Algorithm: stint.FixedWindow, Max: 5, Window: window(t, "week anchor=sunday")}, ""},
	} {
		got, err := stint.ParseLimit(c.text)
		if err != nil || got != c.want {
			t.Errorf("ParseLimit(%q) = %+v, %v; want %+v", c.text, got, err, c.want)
			continue
		}
		back := c.back
		if back == "" {
			back = c.text
		}
		if got.String() != back {
			t.Errorf("ParseLimit(%q).String() = %q; want %q", c.text, got, back)
		}
		if again, err := stint.ParseLimit(got.String()); again != got {
			t.Errorf("%q parses back to %v, %v", got, again, err)
		}
	}
}

// TestBadLimit checks that each error names the field that is wrong and what
// would be right.
func TestBadLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, field, says string }{
		{"", "limit", "100/1m"},
		{"100", "limit", "MAX/WINDOW"},
		{"\xff/1s", "limit", "UTF-8"},
		{"/1s", "max", "whole number"},
		{"0/1s", "max", "from 1"},
		{"-5/1s", "max", "from 1"},
		{"+5/1s", "max", "whole number"},
		{"1.5/1s", "max", "whole number"},
		{"1e3/1s", "max", "whole number"},
		{"99999999999999999999/1s", "max", "9007199254740991"},
		{"9007199254740992/1s", "max", "9007199254740991"},
		{"10001/1s sliding_log", "max", "10000"},
		{"9007199254740991/1h", "max", "2501999792983"}, // what would fit
		{"9007199254740991/1us", "", ""},                // fits
		{"5/", "window", "1m"},
		{"5/0s", "window", "more than nothing"},
		{"5/-1s", "window", "second, minute"},
		{"5/1", "window", "second, minute"},
		{"5/1x", "window", "second, minute"},
		{"5/1M", "window", "second, minute"},
		{"5/fortnight", "window", "month"},
		{"5/100ns", "window", "second"},
		{"5/11000d", "window", "3660d"},
		{"5/99999999999999999999h", "window", "3660d"},
		{"5/1h fixed", "algorithm", "fixed_window"},
		{"5/1h token_bucket leaky_bucket", "algorithm", "once"},
		{"5/1h burst=3", "burst", "token_bucket and leaky_bucket"},
		{"5/1h burst=3 fixed_window", "burst", "fixed_window has no burst"},
		{"5/1h burst=0 token_bucket", "burst", "from 1"},
		{"5/1h burst=-1 token_bucket", "burst", "from 1"},
		{"5/1h burst= token_bucket", "burst", "whole number"},
		{"5/1h burst=3 burst=4 token_bucket", "burst", "once"},
		{"5/1h burst=9007199254740990 token_bucket", "burst", "fits"},
		{"5/1h size=3", "option", "burst="},
		{"5/1h tz=Europe/Berlin", "tz", "calendar"},
		{"5/1h anchor=3", "anchor", "calendar"},
		{"5/day tz=Mars/Olympus", "tz", "IANA"},
		{"5/day tz=Local", "tz", "IANA"},
		{"5/day tz=localtime", "tz", "IANA"},
		{"5/day tz=Europe//Berlin", "tz", "IANA"}, // one spelling for each zone
		{"5/day tz=./Europe/Berlin", "tz", "IANA"},
		{"5/day tz=Europe/./Berlin", "tz", "IANA"},
		{"5/day tz=../../etc/passwd", "tz", "IANA"},
		{"5/day tz=", "tz", "a value"},
		{"5/day anchor=25:00", "anchor", "08:00"},
		{"5/week anchor=8", "anchor", "monday"},
		{"5/month anchor=32", "anchor", "31"},
		{"5/month anchor=0", "anchor", "31"},
		{"5/year anchor=13-01", "anchor", "04-06"},
		{"5/month sliding_window", "window", "30d"},
		{"5/day tz=Europe/Berlin token_bucket", "tz", "calendar"},
		{strings.Repeat("9", 10<<20) + "/1s", "max", "whole number"},
	} {
		_, err := stint.ParseLimit(c.text)
		if c.field == "" {
			if err != nil {
				t.Errorf("%q: %v", c.text, err)
			}
			continue
		}
		var invalid *stint.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != c.field || !strings.Contains(invalid.Want, c.says) {
			t.Errorf("%.40q: %v; want an error about %s that says %q", c.text, err, c.field, c.says)
			continue
		}
		if len(err.Error()) > 600 {
			t.Errorf("%.40q: an error of %d bytes", c.text, len(err.Error()))
		}
	}
}

// TestBadLiteral checks limits made without ParseLimit.
func TestBadLiteral(t *testing.T) {
	t.Parallel()
	minute := stint.Every(time.Minute)
	for field, l := range map[string]stint.Limit{
		"algorithm": {Algorithm: 77, Max: 1, Window: minute},
		"max":       {Window: minute},
		"window":    {Max: 1},
		"burst":     {Algorithm: stint.TokenBucket, Max: 1, Window: minute, Burst: -1},
	} {
		var invalid *stint.InvalidError
		if err := l.Validate(); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%+v: %v; want an error about %s", l, err, field)
		}
		if _, err := l.MarshalText(); err == nil {
			t.Errorf("%+v marshals", l)
		}
	}
	for _, w := range []stint.Window{
		stint.Every(-time.Second), stint.Every(time.Nanosecond), stint.Every(1500 * time.Nanosecond),
		stint.Every(stint.MaxWindow + time.Microsecond),
	} {
		if err := (stint.Limit{Max: 1, Window: w}).Validate(); err == nil {
			t.Errorf("a window of %v is valid", w)
		}
	}
	calendar := stint.PerMonth(5)
	calendar.Algorithm = stint.TokenBucket
	if err := calendar.Validate(); err == nil || !strings.Contains(err.Error(), "calendar") {
		t.Errorf("a token bucket by the month: %v", err)
	}
}

// TestTick says at which tick limits are held.
func TestTick(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		want time.Duration
	}{
		{"3/1s", time.Microsecond},
		{"3/1s token_bucket", time.Microsecond},
		{"10000000/1s", time.Microsecond},
		{"10000000/1s token_bucket", time.Microsecond},
		{"10000000/1s burst=9999999 leaky_bucket", time.Microsecond},
		{"1000000/month", time.Microsecond}, // a fixed window multiplies nothing
		{"1000000/30d", time.Millisecond},
		{"1000000/30d token_bucket", time.Microsecond}, // 1 every 2.592 s: the divisor is a million
		{"1234567/day", time.Microsecond},
		{"1234567/day sliding_window", 100 * time.Microsecond},
		{"1234567/day token_bucket", 100 * time.Microsecond},
		{"1234567/day leaky_bucket", time.Microsecond}, // no queue, no product
		{"1234567/day burst=1234566 leaky_bucket", 100 * time.Microsecond},
		{"104249/1d", time.Microsecond}, // 2^53-1 / 86,400,000,000 is 104,249.99
		{"104250/1d", 10 * time.Microsecond},
		{"104249991374/1d", time.Second},
		{"9007199254740991/1us", time.Microsecond},
	} {
		if got := parse(t, c.text).Tick(); got != c.want {
			t.Errorf("%s: a tick of %v, want %v", c.text, got, c.want)
		}
	}
	if got := (stint.Limit{}).Tick(); got != 0 {
		t.Errorf("an invalid limit has a tick of %v", got)
	}
}

func TestLimitText(t *testing.T) {
	t.Parallel()
	type config struct {
		Limit     stint.Limit     `json:"limit"`
		Window    stint.Window    `json:"window"`
		Algorithm stint.Algorithm `json:"algorithm"`
	}
	in := config{parse(t, "1000/month tz=Europe/Berlin anchor=15"), stint.Every(90 * time.Second), stint.LeakyBucket}
	text, err := json.Marshal(in)
	const want = `{"limit":"1000/month tz=Europe/Berlin anchor=15","window":"90s","algorithm":"leaky_bucket"}`
	if err != nil || string(text) != want {
		t.Fatalf("%s, %v; want %s", text, err, want)
	}
	var out config
	if err := json.Unmarshal(text, &out); err != nil || out != in {
		t.Fatalf("%+v, %v; want %+v", out, err, in)
	}
	if err := json.Unmarshal([]byte(`{"limit":"x"}`), &out); err == nil || out != in {
		t.Fatalf("a bad limit: %+v, %v", out, err)
	}

	column, err := in.Limit.Value()
	if err != nil {
		t.Fatal(err)
	}
	var scanned stint.Limit
	if err := scanned.Scan(column); err != nil || scanned != in.Limit {
		t.Fatalf("from a column: %v, %v", scanned, err)
	}
	if err := scanned.Scan([]byte("5/1s")); err != nil || scanned != stint.PerSecond(5) {
		t.Fatalf("from bytes: %v, %v", scanned, err)
	}
	if err := scanned.Scan(5); err == nil {
		t.Fatal("a number is no limit")
	}
}

// TestLimitRoundTrip writes and reads back limits of every shape.
func TestLimitRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := drawLimit(t, stint.Algorithms()...)
		if got, err := stint.ParseLimit(l.String()); err != nil || got != l {
			t.Fatalf("%+v is written %q and read as %+v, %v", l, l, got, err)
		}
	})
}

func FuzzParseLimit(f *testing.F) {
	for _, s := range []string{
		"100/1m", "10/1s burst=20 token_bucket", "1000/month tz=Europe/Berlin anchor=15", "5/1h30m gcra",
		"5/day anchor=08:00", "5/year anchor=02-29", "9007199254740991/1us", "1/3660d sliding_log", "", "/", "1/1w\x00",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := stint.ParseLimit(text)
		if err != nil {
			var invalid *stint.InvalidError
			if !errors.As(err, &invalid) || l != (stint.Limit{}) {
				t.Fatalf("%q: %v, %v", text, l, err)
			}
			return
		}
		if again, err := stint.ParseLimit(l.String()); err != nil || again != l {
			t.Fatalf("%q is %v, which parses as %v, %v", text, l, again, err)
		}
		s, d := l.Take(stint.State{}, time.Unix(1_800_000_000, 0), 1)
		if !d.Allowed || d.Remaining != d.Limit-1 || s.Until <= 0 {
			t.Fatalf("%v: its first unit: %+v, %+v", l, d, s)
		}
	})
}

// TestDocumentedLimits parses the limits of the table in docs/limits.md.
func TestDocumentedLimits(t *testing.T) {
	t.Parallel()
	const file = "docs/limits.md"
	_, table, _ := strings.Cut(testdoc.Documents(t)[file], "| limit | means |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(table, -1)
	for _, m := range rows {
		if _, err := stint.ParseLimit(m[1]); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	grammar := testdoc.In(t, file, "text")
	if len(rows) < 10 || len(grammar) != 1 || grammar[0].Text != "MAX/WINDOW [algorithm] [burst=N] [tz=ZONE] [anchor=DAY]\n" {
		t.Errorf("%s: %d limits, and the grammar %v", file, len(rows), grammar)
	}
}
