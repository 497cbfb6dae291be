package audit_test

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/audit"
)

// decoded returns the event as it comes back.
func decoded(tb rapid.TB, e audit.Event) (out audit.Event) {
	tb.Helper()
	b, err := e.AppendBinary(nil)
	if err == nil {
		err = out.UnmarshalBinary(b)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// anyEvent draws events as they are kept.
func anyEvent(t *rapid.T) audit.Event {
	text := rapid.StringOfN(rapid.Rune().Filter(func(r rune) bool { return r != 0 }), -1, -1, 512)
	micros := rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.Int64Range(0, 1<<50).Draw(t, "micros")) * time.Microsecond
	})
	e := audit.Event{
		At: time.UnixMicro(rapid.Int64Range(-1<<50, 1<<55).Draw(t, "at")).UTC(), Outcome: engine.Outcome(rapid.Uint8Max(uint8(engine.Unavailable)).Draw(t, "outcome")),
		Shadow: rapid.Bool().Draw(t, "shadow"), Cached: rapid.Bool().Draw(t, "cached"),
		Used: rapid.Int64().Draw(t, "used"), Max: rapid.Int64().Draw(t, "max"), Cost: rapid.Int64().Draw(t, "cost"),
		Status: rapid.IntRange(0, 599).Draw(t, "status"), RetryAfter: micros.Draw(t, "retry"), Waited: micros.Draw(t, "waited"),
		Latency: micros.Draw(t, "latency"), Weight: rapid.Int64Min(1).Draw(t, "weight"),
	}
	copy(e.ID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
	for _, s := range []*string{&e.User, &e.Tenant, &e.Key, &e.Tier, &e.IP, &e.Rule, &e.Limit, &e.Endpoint, &e.Method, &e.Region, &e.Node} {
		*s = text.Draw(t, "text")
	}
	return e
}

// TestRoundTrip has every field of every event come back.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := anyEvent(t)
		if got := decoded(t, want); got != want {
			t.Fatalf("%+v\nwant\n%+v", got, want)
		}
	})
	// And none is left out here.
	v := reflect.ValueOf(decoded(t, audit.Event{
		ID: numbered(1), At: time.UnixMicro(1).UTC(), Outcome: 1, Shadow: true, Cached: true,
		User: "u", Tenant: "t", Key: "k", Tier: "t", IP: "i", Rule: "r", Limit: "l", Endpoint: "e", Method: "m",
		Used: 1, Max: 1, Cost: 1, Status: 1, RetryAfter: 1000, Waited: 1000, Latency: 1000, Region: "r", Node: "n", Weight: 1,
	}))
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("%s is lost", v.Type().Field(i).Name)
		}
	}
}

// TestWhatIsKept is about values that no database would take, or that are cut.
func TestWhatIsKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, want audit.Event }{
		"never":       {audit.Event{RetryAfter: stint.Never}, audit.Event{RetryAfter: stint.Never}},
		"a ban ended": {audit.Event{RetryAfter: -time.Hour}, audit.Event{}},
		"nanoseconds": {audit.Event{RetryAfter: 1999, Waited: 999, Latency: -1}, audit.Event{RetryAfter: 1000}},
		"largest":     {audit.Event{Latency: math.MaxInt64, Used: math.MinInt64}, audit.Event{Latency: math.MaxInt64 / 1000 * 1000, Used: math.MinInt64}},
		"not UTF-8":   {audit.Event{User: "a\xffb\x00c"}, audit.Event{User: "a\uFFFDb\uFFFDc"}},
		"long":        {audit.Event{User: strings.Repeat("x", 70_000), IP: strings.Repeat("y", 513)}, audit.Event{User: strings.Repeat("x", 512), IP: strings.Repeat("y", 512)}},
		"long runes":  {audit.Event{Rule: "x" + strings.Repeat("é", 300)}, audit.Event{Rule: "x" + strings.Repeat("é", 255)}},
		"long, and none": {
			audit.Event{Rule: strings.Repeat("\x80", 1000)},
			audit.Event{Rule: "\uFFFD"},
		},
	} {
		c.in.At = time.UnixMicro(1).In(time.FixedZone("", 3600))
		c.want.At = time.UnixMicro(1).UTC()
		if got := decoded(t, c.in); got != c.want {
			t.Errorf("%s: %+v\nwant\n%+v", name, got, c.want)
		}
	}
}

// TestNoEvent is about what is refused.
func TestNoEvent(t *testing.T) {
	t.Parallel()
	e := audit.Event{User: "ann", Weight: 1}
	good, _ := e.AppendBinary(nil)
	with := func(at int, b byte) []byte {
		out := append([]byte(nil), good...)
		out[at] = b
		return out
	}
	for name, c := range map[string]struct {
		data []byte
		says string
	}{
		"nothing":       {nil, "version 0"},
		"version":       {with(0, 9), "version 9"},
		"outcome":       {with(26, 8), "outcome 8"},
		"flags":         {with(27, 4), "flags 4"},
		"longer":        {append(with(0, 1), 0), "1 bytes behind"},
		"a long length": {with(28, 0x7f), "too early"},
		"no address":    {with(0, 2), "too early"}, // where there has to be one
	} {
		if err := new(audit.Event).UnmarshalBinary(c.data); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	for n := range good {
		if err := new(audit.Event).UnmarshalBinary(good[:n]); err == nil {
			t.Errorf("%d bytes of %d are an event", n, len(good))
		}
	}
}

// FuzzEvent reads anything, and finds in what it accepts what it would write.
func FuzzEvent(f *testing.F) {
	e := audit.Event{User: "ann", IP: "192.0.2.1", RetryAfter: stint.Never, Weight: 100}
	b, _ := e.AppendBinary(nil)
	f.Add(b)
	f.Add([]byte{1})
	raw := append([]byte{2}, b[1:17]...) // with the address as bytes
	f.Add(append(append(raw, 4, 192, 0, 2, 1), b[27:]...))
	f.Fuzz(func(t *testing.T, data []byte) {
		var e audit.Event
		if e.UnmarshalBinary(data) != nil {
			return
		}
		once := decoded(t, e) // may cut what was replaced
		if twice := decoded(t, once); twice != once {
			t.Errorf("%+v\nthen\n%+v", once, twice)
		}
	})
}
