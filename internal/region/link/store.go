package link

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region/link/linkpb"
)

var errManyCalls = errors.New("too many calls in flight: " + strconv.Itoa(MaxCalls) + ", or " + strconv.Itoa(MaxCallBytes) + " bytes")

// Store returns the store of the other region, for its central counters. Calls fail at once while the link
// is down, with [stint.ErrNotApplied]; those that a cut has left unanswered fail with [stint.ErrUnavailable]
// alone. Closing it does not close the link.
func (l *Link) Store() stint.Store { return &store{link: l} }

type store struct {
	link   *Link
	closed atomic.Bool
}

// Take implements [stint.Store].
func (s *store) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if err := stint.ValidateTake(asks, ds); err != nil {
		return err
	}
	return s.call(ctx, linkpb.Verb_VERB_TAKE, asks, ds)
}

// Adjust implements [stint.Store].
func (s *store) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if err := stint.ValidateAdjust(asks, ds); err != nil {
		return err
	}
	return s.call(ctx, linkpb.Verb_VERB_ADJUST, asks, ds)
}

// Reset implements [stint.Store].
func (s *store) Reset(ctx context.Context, asks []stint.Ask) error {
	named := copyAsks(asks)
	for i := range named {
		if a := &named[i]; a.Penalty == nil && a.Limit.Validate() != nil {
			// Any limit of this algorithm and window has the same counter.
			a.Limit = stint.Limit{Algorithm: a.Limit.Algorithm, Max: 1, Window: a.Limit.Window}
		}
	}
	return s.call(ctx, linkpb.Verb_VERB_RESET, named, nil)
}

// Close implements [stint.Store].
func (s *store) Close() error {
	s.closed.Store(true)
	return nil
}

func (s *store) call(ctx context.Context, verb linkpb.Verb, asks []stint.Ask, ds []stint.Decision) error {
	region := s.link.o.Region
	if s.closed.Load() {
		return stint.ErrClosed
	}
	if len(asks) == 0 {
		return nil
	}
	size, err := checkCall(asks)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return notApplied(region, err)
	}
	out := s.link.current()
	if out == nil {
		return notApplied(region, ErrDown)
	}
	c := &call{verb: verb, asks: copyAsks(asks), size: size, done: make(chan struct{})}
	c.deadline, c.hurried = ctx.Deadline()
	if err := out.begin(c); err != nil {
		return notApplied(region, err)
	}
	if err := c.wait(ctx, region); err != nil {
		return err
	}
	if f := c.answer.GetFailure(); f != nil {
		return unpackError(region, f)
	}
	if err := unpackDecisions(c.answer.GetDecisions(), ds); err != nil {
		s.link.refused.Add(1)
		return unavailable(region, err)
	}
	return nil
}

// call is a call without an answer.
type call struct {
	id       uint64
	verb     linkpb.Verb
	asks     []stint.Ask
	size     int
	deadline time.Time
	hurried  bool // there is a deadline
	progress atomic.Int32

	done   chan struct{} // closed when one of these is set
	answer *linkpb.Answer
	err    error
}

// The progress of a call.
const (
	waits   = iota // for the writer
	sent           // or being sent
	dropped        // and never sent
)

// wait waits until the call is answered, or has failed.
func (c *call) wait(ctx context.Context, region string) error {
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		if c.progress.CompareAndSwap(waits, dropped) {
			return notApplied(region, ctx.Err())
		}
	}
	select {
	case <-c.done: // at the same time
		return c.err
	default:
		return unavailable(region, ctx.Err())
	}
}

// begin puts a call into the queue.
func (o *outbound) begin(c *call) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.over != nil:
		return o.over
	case len(o.calls) == MaxCalls || o.bytes+c.size > MaxCallBytes:
		return errManyCalls
	}
	o.lastID++
	c.id = o.lastID
	o.calls[c.id] = c
	o.bytes += c.size
	o.queue <- func() *linkpb.Frame { return o.message(c) }
	return nil
}

// message returns a call as a message, unless its caller has given up.
func (o *outbound) message(c *call) *linkpb.Frame {
	if !c.progress.CompareAndSwap(waits, sent) {
		o.finish(c.id)
		return nil
	}
	m := &linkpb.Call{Id: c.id, Verb: c.verb, Asks: o.limits.asks(c.asks)}
	if c.hurried {
		m.Timeout = uint64(max(time.Until(c.deadline).Microseconds(), 1))
	}
	body, err := proto.Marshal(m)
	if err != nil {
		o.end(err)
		return nil
	}
	return &linkpb.Frame{Kind: &linkpb.Frame_Call{Call: body}}
}

// finish forgets a call, and returns it if there is one. Until then it counts, though its caller may have
// given up: the server may still be busy with it.
func (o *outbound) finish(id uint64) *call {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.calls[id]
	if c != nil {
		delete(o.calls, id)
		o.bytes -= c.size
	}
	return c
}

// answered takes an answer of the server.
func (o *outbound) answered(body []byte) error {
	m := new(linkpb.Answer)
	if err := unpack(body, 2, MaxAsks, m); err != nil {
		return err
	}
	c := o.finish(m.GetId())
	if c == nil || c.progress.Load() != sent {
		return refuse(BadMessage, "an answer to call %d, which is not in flight", m.GetId())
	}
	c.answer = m
	close(c.done)
	return nil
}

// fail ends all calls, after the session has ended.
func (o *outbound) fail(why error) {
	o.mu.Lock()
	o.over = why
	calls := o.calls
	o.calls, o.batches, o.bytes = nil, nil, 0
	o.mu.Unlock()
	for _, c := range calls {
		if c.progress.CompareAndSwap(waits, dropped) {
			c.err = notApplied(o.link.o.Region, why)
		} else {
			c.err = unavailable(o.link.o.Region, why)
		}
		close(c.done)
	}
}
