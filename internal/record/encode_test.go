package record_test

import (
	"context"
	"math"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/recordtest"
)

// recorded returns an event as it comes back.
func recorded(tb rapid.TB, e engine.Event, o record.RecorderOptions) record.Event {
	tb.Helper()
	o.Sample = 1
	r, err := record.NewRecorder(o)
	if err != nil {
		tb.Fatal(err)
	}
	r.Record(context.Background(), &e)
	b := r.Take(nil)
	out, size, err := b.Events(nil, 2)
	if err != nil || size != len(b) || len(out) != 1 {
		tb.Fatalf("%d events in %d bytes of %d: %v", len(out), size, len(b), err)
	}
	return out[0]
}

// TestRoundTrip has every field of every event come back.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.Rune().Filter(func(r rune) bool { return r != 0 }), -1, -1, 512)
		micros := rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(0, 1<<50).Draw(t, "micros")) * time.Microsecond
		})
		want := record.Event{
			At: time.UnixMicro(rapid.Int64Range(-1<<50, 1<<55).Draw(t, "at")).UTC(), Outcome: engine.Outcome(rapid.Uint8Max(uint8(engine.Unavailable)).Draw(t, "outcome")),
			Shadow: rapid.Bool().Draw(t, "shadow"), Cached: rapid.Bool().Draw(t, "cached"),
			Used: rapid.Int64().Draw(t, "used"), Max: rapid.Int64().Draw(t, "max"), Cost: rapid.Int64().Draw(t, "cost"),
			Status: rapid.IntRange(0, 599).Draw(t, "status"), RetryAfter: micros.Draw(t, "retry"), Waited: micros.Draw(t, "waited"),
			Latency: micros.Draw(t, "latency"), Weight: 1,
		}
		copy(want.ID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		for _, s := range []*string{&want.User, &want.Tenant, &want.Key, &want.Tier, &want.Rule, &want.Limit, &want.Endpoint, &want.Method, &want.Region, &want.Node} {
			*s = text.Draw(t, "text")
		}
		in := engine.Event{
			ID: want.ID, At: want.At, Outcome: want.Outcome, Shadow: want.Shadow, Cached: want.Cached,
			User: want.User, Tenant: want.Tenant, Key: want.Key, Tier: want.Tier, Rule: want.Rule, Limit: want.Limit, Endpoint: want.Endpoint, Method: want.Method,
			Used: want.Used, Max: want.Max, Cost: want.Cost, Status: want.Status, RetryAfter: want.RetryAfter, Waited: want.Waited, Latency: want.Latency,
		}
		in.Source, in.Unaccepted = identity.Source(rapid.Uint8Max(uint8(identity.ByHeader)).Draw(t, "source")), identity.Reason(rapid.Uint8Max(uint8(identity.HeaderInvalid)).Draw(t, "reason"))
		want.Source, want.Unaccepted = in.Source.String(), in.Unaccepted.String()
		if rapid.Bool().Draw(t, "addressed") {
			in.IP, _ = netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "ip"))
			want.IP = in.IP.Unmap().String()
		}
		switch named := want.User+want.Tenant+want.Key != ""; {
		case !named && want.IP == "":
			want.Source = ""
		case named && in.Source == identity.ByIP:
			want.Source = record.SourceGiven
		}
		if got := recorded(t, in, record.RecorderOptions{Region: want.Region, Node: want.Node}); !recordtest.Same(got, want) {
			t.Fatalf("%+v\nwant\n%+v", got, want)
		}
	})
	// And none is left out here, but for what is known later.
	v := reflect.ValueOf(recorded(t, engine.Event{
		ID: numbered(1), At: time.UnixMicro(1).UTC(), Outcome: 1, Shadow: true, Cached: true,
		User: "u", Tenant: "t", Key: "k", Tier: "t", IP: netip.IPv6Loopback(), Unaccepted: identity.KeyRevoked, Rule: "r", Limit: "l", Endpoint: "e", Method: "m", Path: "/p",
		Used: 1, Max: 1, Cost: 1, Status: 1, RetryAfter: 1000, Waited: 1000, Latency: 1000,
	}, record.RecorderOptions{Region: "r", Node: "n"}))
	for i := range v.NumField() {
		if v.Field(i).IsZero() && v.Type().Field(i).Name != "Settled" {
			t.Errorf("%s is lost", v.Type().Field(i).Name)
		}
	}
}

// TestWhatIsKept is about values that no database would take, or that are cut.
func TestWhatIsKept(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 70_000)
	for name, c := range map[string]struct {
		in   engine.Event
		want record.Event
	}{
		"never":       {engine.Event{RetryAfter: stint.Never}, record.Event{RetryAfter: stint.Never}},
		"a ban ended": {engine.Event{RetryAfter: -time.Hour}, record.Event{}},
		"nanoseconds": {engine.Event{RetryAfter: 1999, Waited: 999, Latency: -1}, record.Event{RetryAfter: 1000}},
		"set back":    {engine.Event{Latency: -time.Hour}, record.Event{Latency: -time.Hour}},
		"largest":     {engine.Event{Latency: math.MaxInt64, Used: math.MinInt64}, record.Event{Latency: math.MaxInt64 / 1000 * 1000, Used: math.MinInt64}},
		"not UTF-8":   {engine.Event{User: "a\xffb\x00c"}, record.Event{User: "a\uFFFDb\uFFFDc", Source: "given"}},
		"long":        {engine.Event{User: long, Method: long}, record.Event{User: long[:512], Source: "given", Method: long[:512]}},
		"long runes":  {engine.Event{Rule: "x" + strings.Repeat("é", 300)}, record.Event{Rule: "x" + strings.Repeat("é", 255)}},
		"long, and none": {
			engine.Event{Rule: strings.Repeat("\x80", 1000)},
			record.Event{Rule: "\uFFFD"},
		},
	} {
		c.in.At = time.UnixMicro(1).In(time.FixedZone("", 3600))
		c.want.At, c.want.Weight = time.UnixMicro(1).UTC(), 1
		if got := recorded(t, c.in, record.RecorderOptions{}); !recordtest.Same(got, c.want) {
			t.Errorf("%s: %+v\nwant\n%+v", name, got, c.want)
		}
	}
	place := recorded(t, engine.Event{}, record.RecorderOptions{Region: long, Node: long})
	if place.Region != long[:512] || place.Node != long[:512] {
		t.Errorf("of long names of a place %d and %d bytes are kept, want 512", len(place.Region), len(place.Node))
	}
}

// encoded returns an event as it is in a batch, without its frame.
func encoded(tb testing.TB) []byte {
	tb.Helper()
	r := newRecorder(tb, record.RecorderOptions{Node: "n1"})
	e := denial(noon)
	e.RetryAfter = stint.Never
	r.Record(tb.Context(), &e)
	return r.Take(nil)[8:]
}

// TestNoEvent is about what is refused.
func TestNoEvent(t *testing.T) {
	t.Parallel()
	good := encoded(t)
	with := func(at int, b ...byte) []byte {
		out := append([]byte(nil), good...)
		copy(out[at:], b)
		return out
	}
	for name, c := range map[string]struct {
		data []byte
		says string
	}{
		"nothing":       {nil, "too early"},
		"version":       {with(0, 9), "version 9"},
		"outcome":       {with(1, 8), "outcome 8"},
		"flags":         {with(2, 4), "flags 4"},
		"address":       {with(3, 4), "address 4"},
		"a long wait":   {with(80, 0, 0, 0, 0, 0, 0, 0, 0x7f), "too long"},
		"longer":        {append(with(0), 0), "1 extra bytes"},
		"a long length": {with(105, 0x02), "too early"},
	} {
		if err := new(record.Event).UnmarshalBinary(c.data); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	for n := range good {
		if err := new(record.Event).UnmarshalBinary(good[:n]); err == nil {
			t.Errorf("%d bytes of %d are an event", n, len(good))
		}
	}
}

// FuzzEvent reads anything, and accepts nothing that a database would not take.
func FuzzEvent(f *testing.F) {
	good := encoded(f)
	f.Add(good)
	f.Add(good[:1])
	f.Fuzz(func(t *testing.T, data []byte) {
		var e record.Event
		if e.UnmarshalBinary(data) != nil {
			return
		}
		if e.Outcome > engine.Unavailable {
			t.Errorf("there is no outcome %d", e.Outcome)
		}
		for _, text := range []string{e.User, e.Tenant, e.Key, e.Tier, e.IP, e.Rule, e.Limit, e.Endpoint, e.Method, e.Region, e.Node, e.Path} {
			if !utf8.ValidString(text) || strings.Contains(text, "\x00") {
				t.Errorf("%q is accepted", text)
			}
		}
	})
}
