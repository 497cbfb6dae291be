package link

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region/gossip"
	"github.com/stintdev/stint/internal/region/link/linkpb"
)

// inbound is a session of a server.
type inbound struct {
	*session
	server *Server
	from   gossip.Sender
	since  time.Time
	gone   chan struct{} // closed when nothing is done for it any more
	limits glossary      // the reader's
	last   uint64        // the number of the last batch; the reader's

	batches chan gossip.Batch // that have arrived; it has room for what the client may send
	calls   atomic.Int64      // that are being answered
	bytes   atomic.Int64      // of these

	gate sync.Mutex
	shut bool           // nothing more is begun
	busy sync.WaitGroup // with batches and calls
}

// serve serves the session until it ends, and returns why.
func (in *inbound) serve() error {
	in.begin(in.receive)
	err := in.run(in.handle)
	in.server.work.Go(in.work.Wait) // they end after this stream, and Close waits for them
	in.gate.Lock()
	in.shut = true
	in.gate.Unlock()
	in.busy.Wait()
	return err
}

// begin does something in the background, unless the session has ended.
func (in *inbound) begin(do func()) {
	in.gate.Lock()
	defer in.gate.Unlock()
	if !in.shut {
		in.busy.Go(do)
	}
}

// handle takes a message of the client.
func (in *inbound) handle(f *linkpb.Frame) error {
	switch k := f.GetKind().(type) {
	case *linkpb.Frame_Batch:
		return in.batch(k.Batch)
	case *linkpb.Frame_Call:
		return in.call(k.Call)
	}
	return unexpected(f)
}

func (in *inbound) batch(m *linkpb.Batch) error {
	b, err := in.limits.batch(m)
	if err != nil {
		return err
	}
	if b.Number <= in.last {
		return refuse(BadMessage, "batch %d after %d", b.Number, in.last)
	}
	in.last = b.Number
	select {
	case in.batches <- b:
		return nil
	default:
		return refuse(TooMany, "more than %d batches without an acknowledgement", MaxBatches)
	}
}

// receive hands batches to the receiver, one after the other.
func (in *inbound) receive() {
	for {
		select {
		case <-in.ctx.Done():
			return
		case b := <-in.batches:
			if in.ctx.Err() != nil {
				return
			}
			if err := in.server.o.Receiver.Receive(in.ctx, in.from, b); err != nil {
				in.end(refuse(NotReceived, "batch %d: %v", b.Number, err))
				return
			}
			in.acknowledge(b.Number)
		}
	}
}

var errNotCentral = errors.New("this is not the central region")

// call has a call answered.
func (in *inbound) call(body []byte) error {
	m := new(linkpb.Call)
	if err := unpack(body, 4, MaxAsks, m); err != nil {
		return err
	}
	asks, err := in.limits.asks(m.GetAsks())
	if err != nil {
		return err
	}
	size := int64(len(body))
	if in.calls.Add(1) > MaxCalls || in.bytes.Add(size) > MaxCallBytes {
		return refuse(TooMany, "more than %d calls without an answer, or %d bytes of them", MaxCalls, MaxCallBytes)
	}
	in.begin(func() {
		answer := in.answer(m, asks)
		in.queue <- func() *linkpb.Frame { // which has room for MaxCalls
			in.calls.Add(-1)
			in.bytes.Add(-size)
			return answer
		}
	})
	return nil
}

// answer makes a call, and returns its answer as a message.
func (in *inbound) answer(m *linkpb.Call, asks []stint.Ask) *linkpb.Frame {
	out := &linkpb.Answer{Id: m.GetId()}
	ds, err := in.decide(m, asks)
	if err != nil {
		out.Failure = packError(err)
	} else {
		out.Decisions = packDecisions(ds)
	}
	body, err := proto.Marshal(out)
	if err != nil {
		in.end(err)
		return nil
	}
	return &linkpb.Frame{Kind: &linkpb.Frame_Answer{Answer: body}}
}

func (in *inbound) decide(m *linkpb.Call, asks []stint.Ask) ([]stint.Decision, error) {
	left := in.pace.longestCall
	if t := m.GetTimeout(); t > 0 && t < uint64(left.Microseconds()) {
		left = time.Duration(t) * time.Microsecond
	}
	ctx, cancel := context.WithTimeout(in.ctx, left)
	defer cancel()
	store := in.server.o.Central
	if store == nil {
		return nil, fmt.Errorf("%w; %w", errNotCentral, stint.ErrNotApplied)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w; %w", err, stint.ErrNotApplied)
	}
	switch m.GetVerb() {
	case linkpb.Verb_VERB_TAKE:
		ds := make([]stint.Decision, len(asks))
		return ds, store.Take(ctx, asks, ds)
	case linkpb.Verb_VERB_ADJUST:
		ds := make([]stint.Decision, len(asks))
		return ds, store.Adjust(ctx, asks, ds)
	case linkpb.Verb_VERB_RESET:
		return nil, store.Reset(ctx, asks)
	case linkpb.Verb_VERB_UNSPECIFIED:
	}
	return nil, fmt.Errorf("verb %v is not known; %w", m.GetVerb(), stint.ErrNotApplied)
}
