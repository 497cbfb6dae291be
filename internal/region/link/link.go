package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint/internal/region/gossip"
	"github.com/stintdev/stint/internal/region/link/linkpb"
)

// The errors of [Link.Send].
var (
	// ErrDown says that the other region is not connected.
	ErrDown = errors.New("link: not connected")
	// ErrFull says that there are MaxBatches without an acknowledgement.
	ErrFull = errors.New("link: too many batches in flight")
	// ErrTooLarge says that the batch does not fit into a message. [Fits] says what does.
	ErrTooLarge = errors.New("link: batch too large")
	// ErrOrder says that the number of the batch is not above those that were sent on this stream.
	ErrOrder = errors.New("link: batch out of order")
)

var (
	errTooSlow = errors.New("the handshake has taken too long")
	errStopped = errors.New("this node closes the link")
	errFirst   = errors.New("the first connection is being made")
)

// Link is this node's stream to another region. It is safe for concurrent use.
type Link struct {
	o       Options
	target  string
	dial    []grpc.DialOption
	ctx     context.Context
	cancel  context.CancelCauseFunc
	work    sync.WaitGroup
	traffic traffic
	refused atomic.Uint64 // handshakes, and messages that made no sense

	mu     sync.Mutex
	out    *outbound     // nil: down
	server gossip.Sender // of the last stream
	since  time.Time
	why    error // why it is down
}

// State is the state of a [Link].
type State struct {
	Region string
	Up     bool
	Since  time.Time // that it is up, or down
	Why    error     // why it is down; nil if it is up
	// Server is the process that is connected, or was last.
	Server gossip.Sender
	Measured
	Batches        int    // without an acknowledgement
	Calls          int    // without an answer
	Sent, Received uint64 // bytes of messages, of all streams
	// Refused is how many handshakes the other side has refused, and how many of its messages made no sense.
	Refused uint64
}

// Open returns a link to another region, which connects in the background. The caller must close it.
func Open(o Options) (*Link, error) {
	target, err := o.settle()
	if err != nil {
		return nil, err
	}
	l := &Link{o: o, target: "passthrough:///" + target, since: time.Now(), why: errFirst}
	l.dial = []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background()) //nolint:forbidigo // lives until Close
	l.work.Go(l.run)
	return l, nil
}

// Close ends the stream, and waits for callbacks; they must not call it. What was not acknowledged or
// answered may have been received.
func (l *Link) Close() error {
	l.cancel(errStopped)
	l.work.Wait()
	return nil
}

// run keeps a stream open.
func (l *Link) run() {
	backoff := l.o.pace.firstBackoff
	for l.ctx.Err() == nil {
		lasted, err := l.connect()
		if l.ctx.Err() != nil {
			return
		}
		if refusals[status.Code(err)] {
			l.refused.Add(1)
		}
		l.o.Log.Warn("no connection to another region", "region", l.o.Region, "url", l.o.URL, "error", err)
		if lasted >= l.o.pace.steady {
			backoff = l.o.pace.firstBackoff
		}
		select {
		case <-l.ctx.Done():
		case <-time.After(backoff/2 + rand.N(backoff/2+1)):
		}
		backoff = min(2*backoff, l.o.pace.mostBackoff)
	}
}

// refusals are the codes of refusal.GRPCStatus.
var refusals = map[codes.Code]bool{
	codes.Unauthenticated: true, codes.PermissionDenied: true, codes.FailedPrecondition: true,
	codes.DeadlineExceeded: true, codes.ResourceExhausted: true, codes.InvalidArgument: true, codes.Aborted: true,
}

// down notes why there is no stream, and returns how long there was one.
func (l *Link) down(why error) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.why = why
	if l.out == nil {
		return 0
	}
	lasted := time.Since(l.since)
	l.out, l.since = nil, time.Now()
	return lasted
}

// connect opens a stream, uses it until it ends, and returns how long that was and why it has ended.
func (l *Link) connect() (time.Duration, error) {
	ctx, end := context.WithCancelCause(l.ctx)
	defer end(nil)
	timer := time.AfterFunc(l.o.pace.handshake, func() { end(errTooSlow) })
	defer timer.Stop()
	secure := insecure.NewCredentials()
	if l.o.TLS != nil {
		secure = credentials.NewTLS(l.o.TLS())
	}
	conn, err := grpc.NewClient(l.target, append(slices.Clone(l.dial), grpc.WithTransportCredentials(secure))...)
	if err != nil {
		return l.down(err), err
	}
	defer conn.Close()
	wire, server, err := l.greet(ctx, conn)
	if err == nil && !timer.Stop() {
		err = errTooSlow
	}
	if err != nil {
		if c := context.Cause(ctx); c != nil {
			err = c
		}
		return l.down(err), err
	}
	out := &outbound{
		session: newSession(ctx, end, wire, &l.o.Identity, &l.traffic),
		link:    l, server: server, calls: map[uint64]*call{},
	}
	out.heard = func(after time.Duration, alone bool, consent time.Duration) {
		l.o.Heard(l.o.Region, after, alone, consent)
	}
	l.o.Log.Info("connected to another region", "region", l.o.Region, "url", l.o.URL, "node", server.Node)
	l.o.Connected(l.o.Region, server)
	l.up(out)
	err = out.run(out.handle)
	lasted := l.down(err)
	out.fail(err)
	out.work.Wait()
	return lasted, err
}

// up notes that there is a stream.
func (l *Link) up(out *outbound) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out, l.server, l.since, l.why = out, out.server, time.Now(), nil
}

// greet opens a stream, and does the client's part of the handshake.
func (l *Link) greet(ctx context.Context, conn *grpc.ClientConn) (wire stream, server gossip.Sender, err error) {
	if wire, err = linkpb.NewLinkClient(conn).Open(ctx); err != nil {
		return nil, server, err
	}
	f, err := wire.Recv()
	if err != nil {
		return nil, server, err
	}
	hello, check, err := l.o.answer(f.GetChallenge())
	if err != nil {
		return nil, server, err
	}
	// If the stream is over, the next Recv says why.
	_ = wire.Send(&linkpb.Frame{Kind: &linkpb.Frame_Hello{Hello: hello}})
	if f, err = wire.Recv(); err != nil {
		return nil, server, err
	}
	server, err = check(f.GetWelcome())
	return wire, server, err
}

// Send sends a batch. It never blocks. The caller must not change the entries afterwards. Numbers must rise
// on a stream.
func (l *Link) Send(b gossip.Batch) error {
	out := l.current()
	if out == nil {
		return ErrDown
	}
	if n, err := fits(b.Entries); err != nil {
		return fmt.Errorf("link: batch %d, entry %d: %w", b.Number, n, err)
	} else if n < len(b.Entries) {
		return fmt.Errorf("%w: number %d with %d entries, of which %d fit", ErrTooLarge, b.Number, len(b.Entries), n)
	}
	return out.batch(b)
}

func (l *Link) current() *outbound {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out
}

// State returns the state of the link.
func (l *Link) State() State {
	l.mu.Lock()
	out := l.out
	s := State{Region: l.o.Region, Up: out != nil, Since: l.since, Why: l.why, Server: l.server}
	l.mu.Unlock()
	s.Sent, s.Received, s.Refused = l.traffic.sent.Load(), l.traffic.received.Load(), l.refused.Load()
	if out != nil {
		s.Measured = out.meter.measured()
		s.Batches, s.Calls = out.inFlight()
	}
	return s
}

// outbound is a session of a client.
type outbound struct {
	*session
	link   *Link
	server gossip.Sender
	limits speller // the writer's

	mu      sync.Mutex
	over    error    // why nothing is accepted any more
	last    uint64   // the number of the last batch
	batches []uint64 // without an acknowledgement
	calls   map[uint64]*call
	bytes   int // of calls, at most
	lastID  uint64
}

func (o *outbound) inFlight() (batches, calls int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.batches), len(o.calls)
}

// batch puts a batch into the queue.
func (o *outbound) batch(b gossip.Batch) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.over != nil:
		return ErrDown
	case b.Number <= o.last:
		return fmt.Errorf("%w: number %d after %d", ErrOrder, b.Number, o.last)
	case len(o.batches) == MaxBatches:
		return ErrFull
	}
	o.last = b.Number
	o.batches = append(o.batches, b.Number)
	o.queue <- func() *linkpb.Frame {
		m, err := o.limits.batch(b)
		if err != nil {
			o.end(err)
			return nil
		}
		return &linkpb.Frame{Kind: &linkpb.Frame_Batch{Batch: m}}
	}
	return nil
}

// handle takes a message of the server.
func (o *outbound) handle(f *linkpb.Frame) error {
	switch k := f.GetKind().(type) {
	case *linkpb.Frame_Ack:
		return o.acknowledged(k.Ack)
	case *linkpb.Frame_Answer:
		return o.answered(k.Answer)
	}
	return unexpected(f)
}

func (o *outbound) acknowledged(number uint64) error {
	o.mu.Lock()
	i, found := slices.BinarySearch(o.batches, number)
	if !found {
		o.mu.Unlock()
		return refuse(BadMessage, "an acknowledgement of batch %d, which is not in flight", number)
	}
	o.batches = slices.Delete(o.batches, 0, i+1)
	o.mu.Unlock()
	o.link.o.Acknowledged(o.link.o.Region, number)
	return nil
}
