package link_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region/gossip"
	"github.com/stintdev/stint/internal/region/link"
	"github.com/stintdev/stint/internal/region/link/linkpb"
)

// frame returns a batch as the first message that has its limits.
func frame(t testing.TB, b gossip.Batch) *linkpb.Frame {
	t.Helper()
	m := new(linkpb.Entries)
	for i, e := range b.Entries {
		m.Entries = append(m.Entries, &linkpb.Entry{
			Subject: []byte(e.Key.Subject), Name: []byte(e.Key.Name), Limit: uint32(i) + 1, LimitText: e.Limit.String(), At: e.At, Units: e.Units,
		})
	}
	return entriesFrame(t, b.Number, m)
}

func entriesFrame(t testing.TB, number uint64, m *linkpb.Entries) *linkpb.Frame {
	t.Helper()
	raw, err := proto.Marshal(m)
	do(t, err)
	return &linkpb.Frame{Kind: &linkpb.Frame_Batch{Batch: &linkpb.Batch{Number: number, Entries: raw}}}
}

func callFrame(t testing.TB, m *linkpb.Call) *linkpb.Frame {
	t.Helper()
	raw, err := proto.Marshal(m)
	do(t, err)
	return &linkpb.Frame{Kind: &linkpb.Frame_Call{Call: raw}}
}

// bomb returns bytes that are small, and large when they are decompressed.
func bomb(t testing.TB) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	do(t, err)
	return w.EncodeAll(make([]byte, 8*link.MaxMessage), nil)
}

// TestBadMessages sends what no link sends, from a node that knows the secret: the stream ends, nothing is
// received or charged, and others go on.
func TestBadMessages(t *testing.T) {
	t.Parallel()
	s, addr := serve(t, func(o *link.ServerOptions) {
		o.Central = &far{do: func(context.Context, []stint.Ask, []stint.Decision) error {
			t.Error("the store was asked")
			return nil
		}}
		o.Receiver = receive(func(_ context.Context, _ gossip.Sender, b gossip.Batch) error {
			t.Errorf("received %v", b)
			return nil
		})
	})
	l := connected(t, open(t, addr, func(o *link.Options) { o.Self.Node = "eu-2" }))
	entry := func(e *linkpb.Entry) *linkpb.Frame {
		return entriesFrame(t, 1, &linkpb.Entries{Entries: []*linkpb.Entry{e}})
	}
	ask := func(a *linkpb.Ask) *linkpb.Frame {
		return callFrame(t, &linkpb.Call{Id: 1, Verb: linkpb.Verb_VERB_TAKE, Asks: []*linkpb.Ask{a}})
	}
	for name, f := range map[string]*linkpb.Frame{
		"nothing":             {},
		"a second hello":      {Kind: &linkpb.Frame_Hello{Hello: new(linkpb.Sealed)}},
		"a welcome":           {Kind: &linkpb.Frame_Welcome{Welcome: new(linkpb.Sealed)}},
		"a challenge":         {Kind: &linkpb.Frame_Challenge{Challenge: make([]byte, 32)}},
		"an acknowledgement":  {Kind: &linkpb.Frame_Ack{Ack: 1}},
		"an answer":           {Kind: &linkpb.Frame_Answer{}},
		"no batch":            {Kind: &linkpb.Frame_Batch{}},
		"batch 0":             entriesFrame(t, 0, new(linkpb.Entries)),
		"an unknown limit":    entry(&linkpb.Entry{Limit: 1}),
		"limit 0":             entry(&linkpb.Entry{LimitText: "1/1s"}),
		"a limit too far":     entry(&linkpb.Entry{Limit: 2, LimitText: "1/1s"}),
		"an enormous limit":   entry(&linkpb.Entry{Limit: math.MaxUint32, LimitText: "1/1s"}),
		"no limit":            entry(new(linkpb.Entry)),
		"a wrong limit":       entry(&linkpb.Entry{Limit: 1, LimitText: "0/1s"}),
		"a long limit":        entry(&linkpb.Entry{Limit: 1, LimitText: "1/1s" + string(make([]byte, 1000))}),
		"many entries":        entriesFrame(t, 1, &linkpb.Entries{Entries: make([]*linkpb.Entry, link.MaxEntries+1)}),
		"no entries":          {Kind: &linkpb.Frame_Batch{Batch: &linkpb.Batch{Number: 1, Entries: []byte{0xff}}}},
		"no zstd":             {Kind: &linkpb.Frame_Batch{Batch: &linkpb.Batch{Number: 1, Entries: []byte("x"), Zstd: true}}},
		"a bomb":              {Kind: &linkpb.Frame_Batch{Batch: &linkpb.Batch{Number: 1, Entries: bomb(t), Zstd: true}}},
		"no call":             {Kind: &linkpb.Frame_Call{Call: []byte{0xff}}},
		"many asks":           callFrame(t, &linkpb.Call{Asks: make([]*linkpb.Ask, link.MaxAsks+1)}),
		"an ask of no limit":  ask(new(linkpb.Ask)),
		"an ask split often":  ask(&linkpb.Ask{Limit: 1, LimitText: "1/1s", Split: stint.MaxSplit + 1}),
		"a clock before 1970": {Kind: &linkpb.Frame_Pong{Pong: &linkpb.Pong{Clock: -1}}},
		"a clock of the end":  {Kind: &linkpb.Frame_Pong{Pong: &linkpb.Pong{Clock: math.MaxInt64}}},
	} {
		r := login(t, addr)
		do(t, r.Send(f))
		if err := r.end(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	large := login(t, addr)
	_ = large.Send(&linkpb.Frame{Kind: &linkpb.Frame_Call{Call: make([]byte, link.MaxMessage+1)}})
	if err := large.end(); err == nil {
		t.Error("a large message was taken")
	}
	if n := s.Refused()[link.BadMessage]; n != 25 || !l.State().Up {
		t.Errorf("%d refused, %+v", n, l.State())
	}
}

// TestHarmless sends what is odd and must not end a stream: the store says what is wrong with it.
func TestHarmless(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, func(o *link.ServerOptions) { o.Central = memory(t, nil) })
	r := login(t, addr)
	for id, m := range []*linkpb.Call{
		{Verb: linkpb.Verb_VERB_TAKE, Asks: []*linkpb.Ask{{Limit: 1, LimitText: "5/1h", Cost: math.MinInt64}}},
		{Verb: linkpb.Verb_VERB_TAKE, Asks: []*linkpb.Ask{{Penalty: &linkpb.Penalty{Threshold: math.MaxInt64, Multipliers: []int64{-1}}}}},
		{Verb: linkpb.Verb_VERB_TAKE, Asks: []*linkpb.Ask{{Limit: 1, Cost: 1, Charge: &linkpb.Charge{Cost: 1, At: 1}}}},
		{Verb: linkpb.Verb_VERB_ADJUST, Asks: []*linkpb.Ask{{Limit: 1, Cost: -1, Charge: &linkpb.Charge{Cost: 1, At: math.MaxInt64}}}},
		{Verb: linkpb.Verb_VERB_ADJUST, Asks: []*linkpb.Ask{{Limit: 1, Cost: -1, Charge: &linkpb.Charge{Cost: 1, At: time.Now().Add(time.Hour).UnixMicro(), Id: make([]byte, 500)}}}},
		{Verb: linkpb.Verb_VERB_ADJUST, Asks: []*linkpb.Ask{{Limit: 1, Cost: -1, Charge: &linkpb.Charge{Cost: 1, At: 1, Id: []byte("undo"), Keep: math.MaxInt64}}}},
		{Verb: 99, Asks: []*linkpb.Ask{{Limit: 1}}},
	} {
		m.Id = uint64(id)
		do(t, r.Send(&linkpb.Frame{Kind: &linkpb.Frame_Pong{Pong: &linkpb.Pong{Id: math.MaxUint64}}})) // to no ping
		do(t, r.Send(callFrame(t, m)))
		if a := r.answer(t); a.GetId() != uint64(id) || a.GetFailure() == nil {
			t.Errorf("call %d: %v, want a failure", id, a)
		}
	}
	do(t, r.Send(callFrame(t, &linkpb.Call{Id: 9, Verb: linkpb.Verb_VERB_TAKE, Timeout: math.MaxUint64, Asks: []*linkpb.Ask{{Limit: 1, Cost: 2}}})))
	if a := r.answer(t); len(a.GetDecisions()) != 1 || a.GetDecisions()[0].GetRemaining() != 3 {
		t.Errorf("%v, want 3 remaining: nothing was charged", a)
	}
}

// answer reads until there is an answer.
func (r *raw) answer(t testing.TB) *linkpb.Answer {
	t.Helper()
	for {
		f, err := r.Recv()
		do(t, err)
		if body := f.GetAnswer(); body != nil {
			a := new(linkpb.Answer)
			do(t, proto.Unmarshal(body, a))
			return a
		}
	}
}

// TestTooMuch sends more than a client may have in flight: the server ends the stream.
func TestTooMuch(t *testing.T) {
	t.Parallel()
	wait := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	s, addr := serve(t, func(o *link.ServerOptions) {
		o.Central = &far{do: func(ctx context.Context, _ []stint.Ask, _ []stint.Decision) error { return wait(ctx) }}
		o.Receiver = receive(func(ctx context.Context, _ gossip.Sender, _ gossip.Batch) error { return wait(ctx) })
	})
	for name, f := range map[string]func(i int) *linkpb.Frame{
		"batches": func(i int) *linkpb.Frame { return entriesFrame(t, uint64(i), new(linkpb.Entries)) },
		"calls": func(i int) *linkpb.Frame {
			return callFrame(t, &linkpb.Call{Id: uint64(i), Verb: linkpb.Verb_VERB_TAKE})
		},
		"bytes": func(i int) *linkpb.Frame {
			return callFrame(t, &linkpb.Call{Id: uint64(i), Verb: linkpb.Verb_VERB_TAKE, Asks: []*linkpb.Ask{{Limit: 1, LimitText: "1/1s", Subject: make([]byte, link.MaxMessage-1000)}}})
		},
	} {
		r := login(t, addr)
		for i := range link.MaxCalls + 2 {
			if r.Send(f(i+1)) != nil {
				break
			}
		}
		if err := r.end(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := s.Refused()[link.TooMany]; n != 3 {
		t.Errorf("%v", s.Refused())
	}
}

// TestMeter measures pings with chosen round trips.
func TestMeter(t *testing.T) {
	t.Parallel()
	var m link.Meter
	const ahead = 5_000_000 // the other clock, in microseconds
	// trip has a ping answered, after so many milliseconds there and back.
	trip := func(there, back int64) {
		t.Helper()
		do(t, m.Trip(time.Duration(there+back)*time.Millisecond, there*1000+ahead))
	}
	check := func(smoothed, last, skew time.Duration) {
		t.Helper()
		if got := m.Measured(); got.RoundTrip != smoothed || got.LastRoundTrip != last || got.Skew != skew {
			t.Errorf("%+v, want %v, %v, %v", got, smoothed, last, skew)
		}
	}
	if got := m.Measured(); got != (link.Measured{}) {
		t.Errorf("before any ping: %+v", got)
	}
	trip(50, 50) // the same way there and back: exact
	check(100*time.Millisecond, 100*time.Millisecond, 5*time.Second)
	trip(180, 0) // slower, and so not used for the skew
	check(110*time.Millisecond, 180*time.Millisecond, 5*time.Second)
	trip(10, 20) // the fastest, wrong by half of the difference
	check(100*time.Millisecond, 30*time.Millisecond, 4995*time.Millisecond)
	for range 16 { // it is forgotten after 16 others
		trip(50, 50)
	}
	check(100*time.Millisecond, 100*time.Millisecond, 5*time.Second)
	// Answers to no ping, and second answers, change nothing.
	pings := m.Measured().Pings
	for _, id := range []uint64{0, 1, 19, 20, 1 << 40, math.MaxUint64} {
		do(t, m.Pong(id, 1))
	}
	if got := m.Measured().Pings; got != pings {
		t.Errorf("%d pings, want %d", got, pings)
	}
}

// FuzzMessages reads what a peer may send: nothing panics, and what is taken is valid.
func FuzzMessages(f *testing.F) {
	for _, m := range []proto.Message{
		&linkpb.Batch{Number: 1, Entries: []byte("\x0a\x08\x18\x01\x22\x041/1s")},
		&linkpb.Batch{Number: 1, Entries: bomb(f), Zstd: true},
		&linkpb.Call{Id: 1, Verb: 1, Asks: []*linkpb.Ask{{Limit: 1, LimitText: "5/1h", Cost: 1}, {Penalty: &linkpb.Penalty{Threshold: 1}}}},
		&linkpb.Answer{Decisions: []*linkpb.Decision{{Allowed: true, Basis: 9}}},
		&linkpb.Answer{Failure: &linkpb.Failure{Kind: 1}},
		&linkpb.Sealed{Hello: []byte("x")},
	} {
		b, err := proto.Marshal(m)
		do(f, err)
		f.Add(b)
	}
	nobody := identity("us")
	nobody.Secrets = secrets()
	f.Fuzz(func(t *testing.T, body []byte) {
		var w link.Wire
		for range 2 { // the second knows the limits of the first
			m := new(linkpb.Batch)
			if proto.Unmarshal(body, m) == nil {
				if b, err := w.ReadBatch(m); err == nil {
					for _, e := range b.Entries {
						do(t, e.Limit.Validate())
					}
				}
			}
			asks, err := w.ReadCall(body)
			if err != nil {
				continue
			}
			for i := range asks {
				if a := &asks[i]; a.Penalty == nil && !a.Compiled() {
					t.Fatalf("%+v is not compiled", a)
				}
			}
			store := memory(t, nil)
			_ = store.Take(t.Context(), asks, make([]stint.Decision, len(asks)))
			_ = store.Adjust(t.Context(), asks, make([]stint.Decision, len(asks)))
			_ = store.Reset(t.Context(), asks)
		}
		_ = link.ReadAnswer(body, make([]stint.Decision, 1))
		sealed := new(linkpb.Sealed)
		if proto.Unmarshal(body, sealed) == nil && nobody.ReadHello(sealed, make([]byte, 32)) == nil {
			t.Fatal("a hello without a secret is taken")
		}
	})
}
