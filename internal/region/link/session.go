package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/stintdev/stint/internal/region/link/linkpb"
)

// stream is either end of a gRPC stream.
type stream interface {
	Send(*linkpb.Frame) error
	Recv() (*linkpb.Frame, error)
}

// traffic counts bytes of messages.
type traffic struct{ sent, received atomic.Uint64 }

// session is a stream after its handshake, as both sides use it. One goroutine reads and never waits for
// anything else. One writes, and alone waits for the network.
type session struct {
	wire     stream
	ctx      context.Context
	end      context.CancelCauseFunc // ends the session; the first cause holds
	pace     pace
	traffic  *traffic
	meter    meter
	standing func() (alone bool, consent time.Duration)                   // of this region
	heard    func(after time.Duration, alone bool, consent time.Duration) // called for each pong; nil: no one asks
	work     sync.WaitGroup                                               // the two goroutines

	// queue has what makes messages, just before they are sent. Those who put something in it bound how much
	// that can be: for a client it always has room.
	queue chan func() *linkpb.Frame

	wake chan struct{} // there is something below
	mu   sync.Mutex
	pong *linkpb.Pong // to be sent; of pings that came faster, only the last is answered
	ack  uint64       // to be sent; 0: none
}

var errSilent = errors.New("nothing has arrived for too long")

func newSession(ctx context.Context, end context.CancelCauseFunc, wire stream, i *Identity, t *traffic) *session {
	return &session{
		wire: wire, ctx: ctx, end: end, pace: i.pace, traffic: t, meter: meter{clock: i.Clock}, standing: i.Standing,
		queue: make(chan func() *linkpb.Frame, MaxBatches+MaxCalls), wake: make(chan struct{}, 1),
	}
}

// run reads and writes until the session ends, and returns why. Its goroutines may need the stream to end
// before they do.
func (s *session) run(handle func(*linkpb.Frame) error) error {
	watchdog := time.AfterFunc(s.pace.silence, func() { s.end(errSilent) })
	defer watchdog.Stop()
	s.work.Go(func() { s.end(s.read(watchdog, handle)) })
	s.work.Go(func() { s.end(s.write()) })
	<-s.ctx.Done()
	return context.Cause(s.ctx)
}

func (s *session) read(watchdog *time.Timer, handle func(*linkpb.Frame) error) error {
	for {
		f, err := s.wire.Recv()
		if errors.Is(err, io.EOF) {
			return errors.New("the other side has ended the stream")
		}
		if err != nil {
			return err
		}
		if s.ctx.Err() != nil {
			return nil
		}
		watchdog.Reset(s.pace.silence)
		s.traffic.received.Add(uint64(proto.Size(f)))
		switch k := f.GetKind().(type) {
		case *linkpb.Frame_Ping:
			s.small(func() { s.pong = &linkpb.Pong{Id: k.Ping.GetId()} })
		case *linkpb.Frame_Pong:
			var after time.Duration
			if after, err = s.meter.pong(k.Pong, time.Now()); err == nil && after > 0 && s.heard != nil {
				s.heard(after, k.Pong.GetAlone(), time.Duration(k.Pong.GetConsent())*time.Microsecond)
			}
		default:
			err = handle(f)
		}
		if err != nil {
			return err
		}
	}
}

// small has the writer send a pong or an acknowledgement before what is in the queue.
func (s *session) small(set func()) {
	s.mu.Lock()
	set()
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *session) acknowledge(number uint64) { s.small(func() { s.ack = number }) }

func (s *session) write() error {
	tick := time.NewTicker(s.pace.ping)
	defer tick.Stop()
	next := s.ping() // the first, at once
	for {
		if next != nil {
			if err := s.send(next); err != nil {
				return err
			}
		}
		next = nil
		if err := s.sendSmall(); err != nil {
			return err
		}
		select {
		case <-s.ctx.Done():
			return nil
		case <-s.wake:
		case <-tick.C:
			next = s.ping()
		case message := <-s.queue:
			next = message()
		}
	}
}

func (s *session) ping() *linkpb.Frame {
	return &linkpb.Frame{Kind: &linkpb.Frame_Ping{Ping: s.meter.ping(time.Now())}}
}

// sendSmall sends a pong and an acknowledgement, if there are any.
func (s *session) sendSmall() error {
	s.mu.Lock()
	pong, ack := s.pong, s.ack
	s.pong, s.ack = nil, 0
	s.mu.Unlock()
	if pong != nil {
		alone, consent := s.standing()
		pong.Clock, pong.Alone, pong.Consent = s.meter.clock(), alone, uint64(max(consent, 0).Microseconds())
		if err := s.send(&linkpb.Frame{Kind: &linkpb.Frame_Pong{Pong: pong}}); err != nil {
			return err
		}
	}
	if ack != 0 {
		return s.send(&linkpb.Frame{Kind: &linkpb.Frame_Ack{Ack: ack}})
	}
	return nil
}

func (s *session) send(f *linkpb.Frame) error {
	s.traffic.sent.Add(uint64(proto.Size(f)))
	err := s.wire.Send(f)
	if errors.Is(err, io.EOF) {
		// What the server has said comes from Recv.
		<-s.ctx.Done()
		return nil
	}
	return err
}

// unexpected is the error for a message that this side does not take.
func unexpected(f *linkpb.Frame) error {
	return refuse(BadMessage, "%s, which is not expected here", kind(f))
}

func kind(f *linkpb.Frame) string {
	if f.GetKind() == nil {
		return "a message of no known kind"
	}
	return fmt.Sprintf("a message of kind %T", f.GetKind())
}
