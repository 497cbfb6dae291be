package link_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region/gossip"
	"github.com/stintdev/stint/internal/region/link"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestBatches sends batches of every kind: they arrive as they were sent, in order, and are acknowledged.
func TestBatches(t *testing.T) {
	t.Parallel()
	type arrival struct {
		from gossip.Sender
		b    gossip.Batch
	}
	arrived, acknowledged := make(chan arrival, 100), make(chan uint64, 100)
	s, addr := serve(t, func(o *link.ServerOptions) {
		o.Receiver = receive(func(_ context.Context, from gossip.Sender, b gossip.Batch) error {
			arrived <- arrival{from, b}
			return nil
		})
	})
	l := connected(t, open(t, addr, func(o *link.Options) {
		o.Acknowledged = func(region string, number uint64) {
			if region != "us" {
				t.Errorf("region %s", region)
			}
			acknowledged <- number
		}
	}))
	var many []gossip.Entry
	for i := range 5000 {
		many = append(many, gossip.Entry{
			Key: stint.Key{Subject: fmt.Sprint("user:", i), Name: "search:hourly"}, Limit: stint.PerHour(int64(i%50 + 1)), At: int64(i), Units: 1,
		})
	}
	for i, entries := range [][]gossip.Entry{
		batch(3).Entries,
		{},
		{
			{Key: stint.Key{Subject: "\xff", Name: "\x00"}, Limit: limit(t, "10/1s burst=20 token_bucket"), At: math.MinInt64, Units: math.MaxInt64},
			{Limit: limit(t, "10/month tz=Europe/Berlin anchor=15"), At: math.MaxInt64, Units: math.MinInt64},
		},
		many,
		many,
	} {
		b := gossip.Batch{Number: uint64(i)*10 + 1, Entries: entries}
		do(t, l.Send(b))
		if got := <-arrived; got.from != identity("eu").Self || !reflect.DeepEqual(got.b, b) {
			t.Fatalf("%+v arrived, want %+v", got, b)
		}
		if got := <-acknowledged; got != b.Number {
			t.Errorf("batch %d is acknowledged as %d", b.Number, got)
		}
	}
	state := l.State()
	if state.Batches != 0 || state.Sent < 1000 || state.Received == 0 || state.Refused != 0 {
		t.Errorf("%+v", state)
	}
	if sent, received := s.Traffic(); received == 0 || sent == 0 {
		t.Errorf("sent %d, received %d", sent, received)
	}
	for name, c := range map[string]struct {
		b    gossip.Batch
		want error
	}{
		"again":     {batch(41), link.ErrOrder},
		"earlier":   {batch(1), link.ErrOrder},
		"too many":  {gossip.Batch{Number: 100, Entries: slices.Repeat(many[:1], link.MaxEntries+1)}, link.ErrTooLarge},
		"too large": {gossip.Batch{Number: 100, Entries: slices.Repeat([]gossip.Entry{{Key: stint.Key{Subject: noise(4096)}, Limit: stint.PerHour(1)}}, 300)}, link.ErrTooLarge},
	} {
		if err := l.Send(c.b); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if err := l.Send(gossip.Batch{Number: 100, Entries: make([]gossip.Entry, 1)}); !errors.As(err, new(*stint.InvalidError)) {
		t.Errorf("a batch of no limit: %v, want an InvalidError", err)
	}
	if !l.State().Up {
		t.Error("a batch that was not sent has ended the stream")
	}
}

// TestFits sends the largest batches and calls, which are as large as was foretold at most.
func TestFits(t *testing.T) {
	t.Parallel()
	limits := func(i int) stint.Limit { return stint.PerHour(int64(i + 1)) }
	for name, entry := range map[string]func(i int) gossip.Entry{
		"short": func(i int) gossip.Entry { return gossip.Entry{Limit: limits(0), Units: int64(i)} },
		"long": func(i int) gossip.Entry {
			return gossip.Entry{Key: stint.Key{Subject: noise(4096), Name: noise(4096)}, Limit: limits(i % 2), Units: math.MinInt64, At: -1}
		},
		"with IDs": func(int) gossip.Entry {
			return gossip.Entry{Key: stint.Key{Subject: noise(40)}, Limit: limits(0), ID: noise(stint.MaxChargeID), Units: math.MinInt64, At: -1}
		},
		"many limits": func(i int) gossip.Entry {
			return gossip.Entry{Key: stint.Key{Subject: noise(40)}, Limit: limits(i), Units: math.MinInt64, At: -1}
		},
		"and repeated": func(i int) gossip.Entry {
			return gossip.Entry{Key: stint.Key{Subject: noise(40)}, Limit: limits(i % (link.Places + 1)), Units: math.MinInt64, At: -1}
		},
	} {
		var entries []gossip.Entry
		for i := range 2 * link.MaxEntries {
			entries = append(entries, entry(i))
			if i%1000 == 0 && link.Fits(entries) < len(entries) {
				break
			}
		}
		n := link.Fits(entries)
		if n == 0 || n == len(entries) || n > link.MaxEntries {
			t.Fatalf("%s: %d of %d fit", name, n, len(entries))
		}
		b := gossip.Batch{Number: math.MaxUint64, Entries: entries[:n]}
		got, size, err := new(link.Wire).Batch(b)
		if err != nil || size > link.MaxMessage || !reflect.DeepEqual(got, b) {
			t.Errorf("%s: %d entries of %d bytes: %v", name, n, size, err)
		}
	}
	if n := link.Fits([]gossip.Entry{{Key: stint.Key{Subject: noise(link.MaxMessage)}, Limit: limits(0)}}); n != 0 {
		t.Errorf("%d entries that are too large fit", n)
	}

	charge := &stint.Charge{At: -1, Cost: -1, Reset: -1, Counter: math.MaxUint32, Local: true, ID: strings.Repeat("x", 128)}
	penalty := &stint.Penalty{Threshold: -1, Within: -1, Cooldown: -1, Multipliers: []int64{-1, -2, -3}}
	for i := range 50 {
		asks := make([]stint.Ask, 10)
		for j := range asks {
			asks[j] = stint.Ask{Key: stint.Key{Subject: noise(i * 7), Name: noise(i * 3)}, Limit: limits(j), Cost: math.MinInt64, Client: noise(i), Charge: charge, Policy: &stint.Policy{Split: stint.MaxSplit}}
			if j%3 == 0 {
				asks[j].Penalty = penalty
			}
		}
		foretold, err := link.CheckCall(asks)
		do(t, err)
		if _, size, err := new(link.Wire).Asks(asks); err != nil || size > foretold {
			t.Errorf("%d bytes, and %d were foretold: %v", size, foretold, err)
		}
	}
}

// noise returns bytes that cannot be compressed.
func noise(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return string(b)
}

// TestDictionary sends random limits, more than have a number: what arrives is what was sent, and a text is
// sent once.
func TestDictionary(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var w link.Wire
		limits := rapid.SliceOfN(rapid.Custom(anyLimit), 1, 10).Draw(t, "limits")
		for n := range 20 {
			b := gossip.Batch{Number: uint64(n) + 1, Entries: []gossip.Entry{}}
			for range rapid.IntRange(0, 20).Draw(t, "entries") {
				b.Entries = append(b.Entries, gossip.Entry{Limit: rapid.SampledFrom(limits).Draw(t, "limit")})
			}
			if got, _, err := w.Batch(b); err != nil || !reflect.DeepEqual(got, b) {
				t.Fatalf("%v: %+v, want %+v", err, got, b)
			}
		}
	})
	var w link.Wire
	for round := range 3 {
		for i := range link.Places * 3 / 2 {
			l := stint.PerHour(int64(i + 1))
			asks := []stint.Ask{{Limit: l}, {Limit: l}, {Limit: stint.PerSecond(int64(round + 1))}}
			got, _, err := w.Asks(asks)
			if err != nil || got[0].Limit != l || got[1].Limit != l || got[2].Limit != asks[2].Limit || !got[1].Compiled() {
				t.Fatalf("limit %d of round %d: %+v, %v", i, round, got, err)
			}
		}
	}
	var sizes []int
	for n := range 2 {
		_, size, err := w.Batch(gossip.Batch{Number: uint64(n) + 1, Entries: []gossip.Entry{{Limit: limit(t, "1234567/987s")}}})
		do(t, err)
		sizes = append(sizes, size)
	}
	if text := len("1234567/987s"); sizes[0]-sizes[1] < text {
		t.Errorf("%d bytes, then %d; want the text only once", sizes[0], sizes[1])
	}
}

func anyLimit(t *rapid.T) stint.Limit {
	window := rapid.SampledFrom([]string{"1s", "1m", "90m", "1us", "30d", "1234567us"}).Draw(t, "window")
	text := fmt.Sprintf("%d/%s %s", rapid.Int64Range(1, 1000).Draw(t, "max"), window, rapid.SampledFrom([]string{
		"", "fixed_window", "sliding_log", "token_bucket", "token_bucket burst=7", "leaky_bucket", "leaky_bucket burst=3", "concurrency",
	}).Draw(t, "algorithm"))
	if rapid.Bool().Draw(t, "calendar") {
		text = rapid.SampledFrom([]string{
			"5/day", "5/week tz=Asia/Tokyo", "7/month tz=Europe/Berlin anchor=15", "8/year", "9/day tz=America/New_York anchor=06:00",
		}).Draw(t, "period")
	}
	l, err := stint.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestSlowReceiver has a receiver that does not return: senders are told, and everything else goes on.
func TestSlowReceiver(t *testing.T) {
	t.Parallel()
	release, arrived := make(chan struct{}), make(chan uint64, 1000)
	_, addr := serve(t, func(o *link.ServerOptions) {
		o.Central = memory(t, nil)
		o.Receiver = receive(func(_ context.Context, _ gossip.Sender, b gossip.Batch) error {
			<-release
			arrived <- b.Number
			return nil
		})
	})
	l := connected(t, open(t, addr, nil))
	for n := range uint64(link.MaxBatches) {
		do(t, l.Send(batch(n+1)))
	}
	for range 3 {
		if err := l.Send(batch(link.MaxBatches + 1)); !errors.Is(err, link.ErrFull) {
			t.Fatalf("%v, want ErrFull", err)
		}
	}
	// Calls and pings pass.
	for range 10 {
		do(t, take(t.Context(), l.Store()))
	}
	pings := l.State().Pings
	wait.For(t, "pings are answered", func() bool { return l.State().Pings > pings+2 })
	if s := l.State(); !s.Up || s.Batches != link.MaxBatches {
		t.Errorf("%+v", s)
	}
	close(release)
	for n := range uint64(link.MaxBatches) {
		if got := <-arrived; got != n+1 {
			t.Errorf("batch %d, want %d", got, n+1)
		}
	}
	wait.For(t, "all are acknowledged", func() bool { return l.State().Batches == 0 })
	do(t, l.Send(batch(link.MaxBatches+1)))
	if got := <-arrived; got != link.MaxBatches+1 {
		t.Errorf("batch %d", got)
	}
}

// ledger sends batches until all are acknowledged, as the owner of a link does.
type ledger struct {
	mu    sync.Mutex
	acked uint64
	next  uint64 // to be sent
	runs  map[uint64]bool
	links int
}

func (x *ledger) connected(_ string, server gossip.Sender) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.next = x.acked + 1
	x.runs[server.Run] = true
	x.links++
}

func (x *ledger) acknowledged(_ string, number uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.acked = number
}

// send sends what can be sent, and reports whether all is acknowledged.
func (x *ledger) send(t testing.TB, l *link.Link, last uint64) bool {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	for x.next <= last {
		err := l.Send(batch(x.next))
		if errors.Is(err, link.ErrFull) || errors.Is(err, link.ErrDown) {
			break
		}
		if err != nil {
			t.Fatalf("batch %d: %v", x.next, err)
		}
		x.next++
	}
	return x.acked == last
}

// TestCuts sends batches over a connection that is cut again and again, in every way: each arrives, and in
// order but for those that are sent again.
func TestCuts(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	applied, again := uint64(0), 0
	_, addr := serve(t, func(o *link.ServerOptions) {
		o.Hurry()
		o.Receiver = receive(func(_ context.Context, _ gossip.Sender, b gossip.Batch) error {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case b.Number <= applied:
				again++
			case b.Number != applied+1 || len(b.Entries) != 1 || b.Entries[0].Units != int64(b.Number):
				t.Errorf("%+v after %d", b, applied)
			default:
				applied = b.Number
			}
			return nil
		})
	})
	p := testserver.StartProxy(t, addr)
	x := &ledger{runs: map[uint64]bool{}}
	l := open(t, p.Addr(), func(o *link.Options) {
		o.Hurry()
		o.Connected, o.Acknowledged = x.connected, x.acknowledged
	})
	last := uint64(0)
	for _, f := range []testserver.Fault{{Refuse: true}, {Swallow: true}, {Reset: 0.2}, {Latency: 5 * time.Millisecond}, {Refuse: true}, {Reset: 1}} {
		connected(t, l)
		last += 50
		x.send(t, l, last)
		p.Set(t, f)
		for range 50 {
			x.send(t, l, last)
			<-time.After(time.Millisecond)
		}
		p.Set(t, testserver.Fault{})
	}
	wait.For(t, "all are acknowledged", func() bool { return x.send(t, l, last) })
	mu.Lock()
	defer mu.Unlock()
	if applied != last || x.links < 4 {
		t.Errorf("%d of %d batches, over %d connections; %d were sent again", applied, last, x.links, again)
	}
}

// TestRestart restarts the server: the link connects to the new process, and says so.
func TestRestart(t *testing.T) {
	t.Parallel()
	s, addr := serve(t, nil)
	x := &ledger{runs: map[uint64]bool{}}
	l := connected(t, open(t, addr, func(o *link.Options) { o.Connected, o.Acknowledged = x.connected, x.acknowledged }))
	wait.For(t, "the first is acknowledged", func() bool { return x.send(t, l, 1) })
	since := l.State().Since
	s.Close()
	wait.For(t, "the link is down", func() bool { return !l.State().Up })
	if s := l.State(); s.Why == nil || s.Since.Equal(since) || s.Server.Run != 7 {
		t.Errorf("%+v", s)
	}
	serveAt(t, addr, func(o *link.ServerOptions) { o.Self.Run = 8 })
	connected(t, l)
	wait.For(t, "the second is acknowledged", func() bool { return x.send(t, l, 2) })
	if x.mu.Lock(); !x.runs[7] || !x.runs[8] || l.State().Server.Run != 8 {
		t.Errorf("%v, %v", x.runs, l.State().Server)
	}
	x.mu.Unlock()
}

// TestReceiverFails has a receiver fail once: the stream ends, and the batch is sent again.
func TestReceiverFails(t *testing.T) {
	t.Parallel()
	failed := false // the server calls one after the other
	s, addr := serve(t, func(o *link.ServerOptions) {
		o.Receiver = receive(func(_ context.Context, _ gossip.Sender, b gossip.Batch) error {
			if b.Number == 3 && !failed {
				failed = true
				return errors.New("redis is away")
			}
			return nil
		})
	})
	x := &ledger{runs: map[uint64]bool{}}
	l := connected(t, open(t, addr, func(o *link.Options) { o.Connected, o.Acknowledged = x.connected, x.acknowledged }))
	wait.For(t, "all are acknowledged", func() bool { return x.send(t, l, 5) })
	if n := s.Refused()[link.NotReceived]; n != 1 || x.links != 2 || l.State().Refused != 1 {
		t.Errorf("%d refused, %d connections, %+v", n, x.links, l.State())
	}
}

// TestReplaced opens another stream of a node: the first one ends before the second begins.
func TestReplaced(t *testing.T) {
	t.Parallel()
	var busy sync.Mutex
	began := make(chan struct{}, 10)
	s, addr := serve(t, func(o *link.ServerOptions) {
		o.Receiver = receive(func(ctx context.Context, _ gossip.Sender, b gossip.Batch) error {
			if !busy.TryLock() {
				t.Error("two batches of a node at the same time")
				return nil
			}
			defer busy.Unlock()
			began <- struct{}{}
			if b.Number == 1 {
				<-ctx.Done()
			}
			return ctx.Err()
		})
	})
	first := login(t, addr) // a link would come back, and replace the second
	do(t, first.Send(frame(t, batch(1))))
	<-began
	r := login(t, addr)
	do(t, r.Send(frame(t, batch(2))))
	<-began
	wait.For(t, "the second has its acknowledgement", func() bool {
		f, err := r.Recv()
		do(t, err)
		return f.GetAck() == 2
	})
	if n := len(s.Peers()); n != 1 {
		t.Errorf("%d peers", n)
	}
	if err := first.end(); status.Code(err) != codes.Unavailable {
		t.Errorf("the first has ended with %v", err)
	}
}
