package record_test

import (
	"errors"
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

func newTap(tb testing.TB, o record.TapOptions) *record.Tap {
	tb.Helper()
	t, err := record.NewTap(o)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// passed is an event of a request that passed.
func passed(at time.Time) engine.Event {
	e := denial(at)
	e.Outcome, e.Status, e.RetryAfter = engine.Allowed, 0, 0
	return e
}

// TestTap watches some seconds with more decisions than are shown.
func TestTap(t *testing.T) {
	t.Parallel()
	tap := newTap(t, record.TapOptions{Region: "eu", Node: "n1"})
	tap.Record(t.Context(), new(denial(noon))) // that no one sees
	w := tap.Watch()
	defer w.Close()
	start := noon.Truncate(time.Second).Add(-denial(noon).Latency) // so that all of a second are decided in it

	// A second with 20,000 requests of which 30 are refused: these, and one in each
	// tenth of the second of the others, which stands for those before it.
	for i := range 20_000 {
		at := start.Add(time.Duration(i) * 50 * time.Microsecond)
		tap.Record(t.Context(), new(passed(at)))
		if i%700 == 699 {
			e := denial(at)
			switch i % 3 {
			case 1:
				e.Outcome, e.Waited = engine.Throttled, time.Millisecond
			case 2:
				e.Outcome, e.Shadow = engine.Allowed, true
			}
			tap.Record(t.Context(), &e)
		}
	}
	events, skipped := w.Take(nil)
	sample, weight := 0, int64(0)
	for i, e := range events {
		if e.Region != "eu" || e.Node != "n1" || e.User != "u-48213" || e.IP != "203.0.113.77" || i > 0 && e.At.Before(events[i-1].At) {
			t.Errorf("%+v", e)
		}
		if e.Outcome == engine.Allowed && !e.Shadow {
			sample++
			weight += e.Weight
		} else if e.Weight != 1 {
			t.Errorf("a refusal stands for %d", e.Weight)
		}
	}
	if len(events)-sample != 28 || sample != 10 || skipped != 0 || weight < 18_000 || weight > 20_000 {
		t.Errorf("%d refused, a sample of %d that stands for %d, %d skipped", len(events)-sample, sample, weight, skipped)
	}

	// One with 1,000 that are refused: as many as there can be, and the rest is counted.
	for i := range 1000 {
		tap.Record(t.Context(), new(denial(start.Add(time.Second+time.Duration(i)*time.Millisecond))))
	}
	if events, skipped = w.Take(events[:0]); len(events) != 50 || skipped != 950 {
		t.Errorf("%d, and %d skipped", len(events), skipped)
	}
	// And now that the clock was set back, it goes on.
	tap.Record(t.Context(), new(denial(start.Add(-time.Hour))))
	if events, skipped = w.Take(events[:0]); len(events) != 1 || skipped != 0 {
		t.Errorf("%d, and %d skipped", len(events), skipped)
	}
	if events, skipped = w.Take(events[:0]); len(events) != 0 || skipped != 0 {
		t.Errorf("%d again, and %d skipped", len(events), skipped)
	}
}

// TestTapBehind has one who does not look for long lose what is oldest, and no one else.
func TestTapBehind(t *testing.T) {
	t.Parallel()
	tap := newTap(t, record.TapOptions{})
	slow, quick := tap.Watch(), tap.Watch()
	defer slow.Close()
	const seconds = 20
	seen := 0
	for i := range seconds * 50 {
		e := denial(noon.Add(time.Duration(i) * 20 * time.Millisecond))
		e.ID = numbered(i)
		tap.Record(t.Context(), &e)
		if i%100 == 99 {
			events, skipped := quick.Take(nil)
			if seen += len(events); skipped != 0 {
				t.Errorf("%d skipped", skipped)
			}
		}
	}
	quick.Close()
	quick.Close()
	events, skipped := slow.Take(nil)
	if seen != seconds*50 || len(events) != 256 || skipped != seconds*50-256 || number(events[0].ID) != seconds*50-256 {
		t.Errorf("%d seen; %d, and %d skipped", seen, len(events), skipped)
	}
	if events, skipped := quick.Take(nil); len(events) != 0 || skipped != 0 {
		t.Errorf("a closed one sees %d, and %d skipped", len(events), skipped)
	}
}

// TestTapAgain has all leave, and another come: it sees nothing of before.
func TestTapAgain(t *testing.T) {
	t.Parallel()
	tap := newTap(t, record.TapOptions{PerSecond: 1})
	w := tap.Watch()
	for range 10 {
		tap.Record(t.Context(), new(denial(noon)))
	}
	w.Close()
	tap.Record(t.Context(), new(denial(noon)))
	w = tap.Watch()
	defer w.Close()
	if events, skipped := w.Take(nil); len(events) != 0 || skipped != 0 {
		t.Errorf("%d, and %d skipped", len(events), skipped)
	}
	tap.Record(t.Context(), new(denial(noon.Add(time.Second))))
	if events, skipped := w.Take(nil); len(events) != 1 || skipped != 0 {
		t.Errorf("%d, and %d skipped", len(events), skipped)
	}
}

// TestTapTexts shows what clients have written as the record has it.
func TestTapTexts(t *testing.T) {
	t.Parallel()
	key := []byte("0123456789abcdef")
	for _, privacy := range []record.Privacy{record.KeepIP, record.TruncateIP, record.HashIP} {
		for _, ip := range []string{"203.0.113.77", "::ffff:203.0.113.77", "fe80::1%eth0", "2001:db8:aaaa:bbbb::1", ""} {
			r := newRecorder(t, record.RecorderOptions{Privacy: privacy, HashKey: key, Region: "eu", Node: "n"})
			tap := newTap(t, record.TapOptions{Privacy: privacy, HashKey: key, Region: "eu", Node: "n"})
			w := tap.Watch()
			e := denial(noon)
			e.IP, _ = netip.ParseAddr(ip)
			e.User, e.Tenant, e.Endpoint = strings.Repeat("ü", 1000), "a\x00b\xff", "/\x1b[31m"
			r.Record(t.Context(), &e)
			tap.Record(t.Context(), &e)
			want := events(t, r.Take(nil))[0]
			got, _ := w.Take(nil)
			if len(got) != 1 || !recordtest.Same(got[0], want) {
				t.Errorf("%d: %s is shown as %+v, and recorded as %+v", privacy, ip, got, want)
			}
			w.Close()
		}
	}
}

// TestTapAtOnce has some come and go while others record. The race detector looks on.
func TestTapAtOnce(t *testing.T) {
	t.Parallel()
	tap := newTap(t, record.TapOptions{PerSecond: 1000})
	var recording, watching sync.WaitGroup
	done := make(chan struct{})
	for thread := range 4 {
		recording.Go(func() {
			for i := range 5000 {
				e := denial(noon.Add(time.Duration(i) * time.Millisecond))
				if i%2 == 0 {
					e.Outcome = engine.Allowed
				}
				e.ID[15] = byte(thread)
				tap.Record(t.Context(), &e)
			}
		})
		watching.Go(func() {
			for {
				w := tap.Watch()
				for range 10 {
					if events, skipped := w.Take(nil); len(events) > 256 || skipped < 0 {
						t.Errorf("%d events, %d skipped", len(events), skipped)
					}
				}
				w.Close()
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	recording.Wait()
	close(done)
	watching.Wait()
}

// TestTapOptions refuses what makes no sense.
func TestTapOptions(t *testing.T) {
	t.Parallel()
	for field, o := range map[string]record.TapOptions{
		"PerSecond": {PerSecond: 1001},
		"Privacy":   {Privacy: 7},
		"HashKey":   {Privacy: record.HashIP, HashKey: []byte("secret")},
	} {
		_, err := record.NewTap(o)
		if e := new(stint.InvalidError); !errors.As(err, &e) || e.Field != field || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// BenchmarkTap records while no one watches, and while someone does.
func BenchmarkTap(b *testing.B) {
	for _, c := range []struct {
		name    string
		watched bool
		outcome engine.Outcome
	}{{"unwatched", false, engine.Denied}, {"allowed", true, engine.Allowed}, {"denied", true, engine.Denied}} {
		b.Run(c.name, func(b *testing.B) {
			tap := newTap(b, record.TapOptions{})
			if c.watched {
				defer tap.Watch().Close()
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				e := denial(time.Now())
				e.Outcome = c.outcome
				for i := 0; pb.Next(); i++ {
					e.ID[15] = byte(i)
					tap.Record(b.Context(), &e)
				}
			})
		})
	}
}

// TestTapSettled shows a decision again when it is settled, once, while it is one of the last.
func TestTapSettled(t *testing.T) {
	t.Parallel()
	tap := newTap(t, record.TapOptions{Now: func() time.Time { return settledAt }})
	first := denial(noon)
	first.ID, first.Outcome = numbered(1), engine.Throttled
	receipt := receiptOf("gpt", settled("tokens", tokens, 100, 70))
	receipt.ID = first.ID
	tap.Settled(receipt, false) // that no one sees
	w := tap.Watch()
	defer w.Close()
	tap.Settled(receipt, false) // and this is of a decision that was not shown
	tap.Record(t.Context(), &first)
	shown, _ := w.Take(nil)
	tap.Settled(receipt, false)
	receipt.Repeated = true
	tap.Settled(receipt, false)
	again, skipped := w.Take(nil)
	if len(shown) != 1 || len(again) != 1 || skipped != 0 {
		t.Fatalf("shown %+v, and then %+v, %d skipped", shown, again, skipped)
	}
	want := shown[0]
	want.Settled = []record.Settlement{{Event: first.ID, Rule: "tokens", Meter: tokens, At: settledAt, Reserved: 100, Used: 70, Model: "gpt"}}
	if !recordtest.Same(again[0], want) {
		t.Errorf("%+v\nwant\n%+v", again[0], want)
	}
	// It is forgotten after as many others.
	receipt.Repeated = false
	for i := range 300 {
		e := denial(noon.Add(time.Duration(i) * time.Second))
		e.ID = numbered(2 + i)
		tap.Record(t.Context(), &e)
	}
	if _, skipped := w.Take(nil); skipped != 44 {
		t.Errorf("%d are skipped", skipped)
	}
	tap.Settled(receipt, false)
	if again, _ = w.Take(nil); len(again) != 0 {
		t.Errorf("%+v", again)
	}
}
