package record_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/recordtest"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 1999, time.UTC)

// TestRecord keeps what is decided.
func TestRecord(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, record.RecorderOptions{Region: "eu", Node: "n1"})
	e := denial(noon)
	e.Cached, e.Waited = true, time.Second
	r.Record(t.Context(), &e)
	got := events(t, r.Take(nil))
	want := record.Event{
		ID: e.ID, At: noon.Truncate(time.Microsecond), Outcome: engine.Denied, Cached: true,
		User: "u-48213", Tenant: "acme", Key: "0123456789ABCDEF", Tier: "pro", IP: "203.0.113.77", Source: "given",
		Rule: "search-per-user", Limit: "per-minute", Endpoint: "/v1/search/{index}", Method: "GET", Path: "/v1/search/{index}",
		Used: 600, Max: 600, Cost: 1, Status: 429, RetryAfter: e.RetryAfter, Waited: time.Second, Latency: e.Latency,
		Region: "eu", Node: "n1", Weight: 1,
	}
	if len(got) != 1 || !recordtest.Same(got[0], want) {
		t.Errorf("%+v\nwant\n%+v", got, want)
	}
	if again := r.Take(nil); len(again) != 0 {
		t.Errorf("%d bytes are taken twice", len(again))
	}
}

// TestSample is about which events are kept, and what they weigh.
func TestSample(t *testing.T) {
	t.Parallel()
	const n = 10_000
	for _, c := range []struct {
		sample float64
		weight int64 // of those that pass; 0: none is kept
	}{{0, 100}, {1, 1}, {0.3, 3}, {0.001, 1000}, {-1, 0}} {
		r := newRecorder(t, record.RecorderOptions{Sample: c.sample, Buffer: 64 << 10})
		random := rand.New(rand.NewPCG(1, 2))
		id := func() (id engine.ID) {
			for i := range id {
				id[i] = byte(random.Uint32())
			}
			id[8] = id[8]&0x3f | 0x80
			return id
		}
		for i := range n {
			r.Record(t.Context(), &engine.Event{ID: id(), Outcome: []engine.Outcome{engine.Allowed, engine.Exempt}[i%2]})
		}
		var total, kept int64
		for _, e := range events(t, r.Take(nil)) {
			total += e.Weight
			kept++
			if e.Weight != c.weight {
				t.Fatalf("%v: an event weighs %d, want %d", c.sample, e.Weight, c.weight)
			}
		}
		// Five standard deviations of a binomial distribution.
		if off := math.Abs(float64(total - n)); c.weight > 0 && off > 5*math.Sqrt(n*float64(c.weight-1)) || c.weight == 0 && kept != 0 {
			t.Errorf("%v: %d events weigh %d, want %d", c.sample, kept, total, n)
		}

		for o := engine.Allowed; o <= engine.Unavailable; o++ {
			r.Record(t.Context(), &engine.Event{ID: id(), Outcome: o, Shadow: o.Passed() && o != engine.Throttled})
		}
		if got := events(t, r.Take(nil)); len(got) != int(engine.Unavailable)+1 {
			t.Errorf("%v: %d events of refusals and what is like them, want all", c.sample, len(got))
		}
	}
}

// TestPrivacy is about what is left of addresses.
func TestPrivacy(t *testing.T) {
	t.Parallel()
	key := []byte("0123456789abcdef")
	// printf '\0\0\0\0\0\0\0\0\0\0\377\377\313\0\161\115' | openssl dgst -sha256 -hmac 0123456789abcdef
	const hashed = "790fdeb69b770cc96bed339f415ce89c"
	for _, c := range []struct {
		privacy record.Privacy
		ip      string
		want    string
	}{
		{record.KeepIP, "203.0.113.77", "203.0.113.77"},
		{record.KeepIP, "::ffff:203.0.113.77", "203.0.113.77"},
		{record.KeepIP, "fe80::1%eth0", "fe80::1"},
		{record.KeepIP, "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff", "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff"},
		{record.KeepIP, "", ""},
		{record.TruncateIP, "203.0.113.77", "203.0.113.0/24"},
		{record.TruncateIP, "::ffff:203.0.113.77", "203.0.113.0/24"},
		{record.TruncateIP, "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff", "2001:db8:aaaa::/48"},
		{record.TruncateIP, "", ""},
		{record.HashIP, "203.0.113.77", hashed},
		{record.HashIP, "::ffff:203.0.113.77", hashed},
		{record.HashIP, "", ""},
	} {
		r := newRecorder(t, record.RecorderOptions{Privacy: c.privacy, HashKey: key})
		e := denial(noon)
		e.IP, _ = netip.ParseAddr(c.ip)
		for range 3 {
			r.Record(t.Context(), &e)
		}
		b := r.Take(nil)
		for _, got := range events(t, b) {
			if got.IP != c.want || got.User != "u-48213" {
				t.Errorf("%d %s: %q, want %q", c.privacy, c.ip, got.IP, c.want)
			}
		}
		raw := e.IP.As16()
		if c.privacy != record.KeepIP && c.ip != "" && (strings.Contains(string(b), string(raw[12:])) || strings.Contains(string(b), c.ip)) {
			t.Errorf("%d: %s is still there", c.privacy, c.ip)
		}
	}
}

// TestFull drops what finds no room, and counts it.
func TestFull(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, record.RecorderOptions{Buffer: 256})
	p := newPipeline(t, record.PipelineOptions{Recorder: r, Sink: new(table)})
	const n = 10_000
	var all int64 // dropped
	for range 3 {
		var wg sync.WaitGroup
		for part := range 4 {
			wg.Go(func() {
				e := denial(noon)
				for i := range n / 4 {
					e.ID = numbered(part*n + i)
					r.Record(t.Context(), &e)
				}
			})
		}
		wg.Wait()
		s := p.State()
		got := r.Take(nil)
		held := int64(len(events(t, got)))
		if all += n - held; held == 0 || held%256 != 0 || s.Dropped != all || s.Buffered < int64(len(got)) || s.Buffered > 2*int64(len(got)) {
			t.Errorf("%d events are there, in %d bytes, %d of them said; and %d are said to be dropped, want %d", held, len(got), s.Buffered, s.Dropped, all)
		}
	}
	long := strings.Repeat("x", 1<<20)
	r.Record(t.Context(), &engine.Event{
		Outcome: engine.Denied, User: long, Tenant: long, Key: long, Tier: long, Rule: long, Limit: long, Endpoint: long, Method: long,
		Used: math.MinInt64, Max: math.MinInt64, Cost: math.MinInt64, Status: math.MinInt, RetryAfter: math.MaxInt64, Waited: math.MinInt64, Latency: math.MinInt64,
	})
	if got := events(t, r.Take(nil)); len(got) != 1 || len(got[0].User) != 512 || len(got[0].Method) != 512 {
		t.Errorf("of a long event there are %d", len(got))
	}
}

// TestRecorderOptions refuses what makes no sense.
func TestRecorderOptions(t *testing.T) {
	t.Parallel()
	for field, o := range map[string]record.RecorderOptions{
		"Sample":  {Sample: 1.5},
		"Buffer":  {Buffer: 100},
		"Privacy": {Privacy: 7},
		"HashKey": {Privacy: record.HashIP, HashKey: []byte("secret")},
	} {
		_, err := record.NewRecorder(o)
		if e := new(stint.InvalidError); !errors.As(err, &e) || e.Field != field || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := record.NewRecorder(record.RecorderOptions{Sample: math.NaN()}); err == nil {
		t.Error("a share that is no number is taken")
	}
}
