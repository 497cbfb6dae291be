package link

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region/gossip"
	"github.com/stintdev/stint/internal/region/link/linkpb"
)

// Hasten makes a node ping and connect again faster.
func (i *Identity) Hasten() {
	i.pace = usualPace
	i.pace.ping = 20 * time.Millisecond
	i.pace.firstBackoff, i.pace.mostBackoff = time.Millisecond, 50*time.Millisecond
}

// Hurry makes a node give up faster, too.
func (i *Identity) Hurry() {
	i.Hasten()
	i.pace.silence, i.pace.handshake = time.Second, time.Second
}

// Patient makes a node wait longer for a handshake, and for messages.
func (i *Identity) Patient() {
	i.pace = usualPace
	i.pace.silence, i.pace.handshake = time.Minute, time.Minute
}

// Answer returns the hello with which the node answers a challenge.
func (i Identity) Answer(challenge []byte, change func(*linkpb.Hello)) (*linkpb.Sealed, error) {
	if err := i.settle(); err != nil {
		return nil, err
	}
	text, err := i.hello(newNonce())
	if err != nil {
		return nil, err
	}
	if change != nil {
		m := new(linkpb.Hello)
		if err := proto.Unmarshal(text, m); err != nil {
			return nil, err
		}
		change(m)
		if text, err = proto.Marshal(m); err != nil {
			return nil, err
		}
	}
	return &linkpb.Sealed{Hello: text, Mac: seal(i.Secrets()[0], byClient, text, challenge)}, nil
}

// Wire is both ends of a dictionary.
type Wire struct {
	speller  speller
	glossary glossary
}

// Batch sends a batch, and returns what arrives and how large it was.
func (w *Wire) Batch(b gossip.Batch) (gossip.Batch, int, error) {
	m, err := w.speller.batch(b)
	if err != nil {
		return b, 0, err
	}
	b, err = w.glossary.batch(m)
	return b, proto.Size(m), err
}

// Asks sends asks, and returns what arrives and how large it was.
func (w *Wire) Asks(asks []stint.Ask) ([]stint.Ask, int, error) {
	m := &linkpb.Call{Asks: w.speller.asks(asks)}
	out, err := w.glossary.asks(m.GetAsks())
	return out, proto.Size(m), err
}

// ReadBatch and the following read what a peer has sent.
func (w *Wire) ReadBatch(m *linkpb.Batch) (gossip.Batch, error) { return w.glossary.batch(m) }

// ReadCall reads a call.
func (w *Wire) ReadCall(body []byte) ([]stint.Ask, error) {
	m := new(linkpb.Call)
	if err := unpack(body, 4, MaxAsks, m); err != nil {
		return nil, err
	}
	return w.glossary.asks(m.GetAsks())
}

// ReadAnswer reads the answer to a call of so many asks.
func ReadAnswer(body []byte, ds []stint.Decision) error {
	m := new(linkpb.Answer)
	if err := unpack(body, 2, MaxAsks, m); err != nil {
		return err
	}
	if f := m.GetFailure(); f != nil {
		return unpackError("x", f)
	}
	return unpackDecisions(m.GetDecisions(), ds)
}

// ReadHello reads a hello that was sealed for this nonce.
func (i *Identity) ReadHello(m *linkpb.Sealed, nonce []byte) error {
	_, err := i.prove(m, nonce, nil)
	if err == nil {
		_, err = i.check(m, nil)
	}
	return err
}

// CheckCall and Places are for tests of bounds.
var CheckCall = checkCall

const Places = places

// Meter is a meter with a clock that the test sets.
type Meter struct {
	meter
	now int64 // microseconds
}

// Trip has a ping answered after this time, by a clock that showed so much more than this one did when it
// was sent.
func (m *Meter) Trip(length time.Duration, theirs int64) error {
	m.now += 1_000_000
	m.clock = func() int64 { return m.now }
	began := m.now
	id := m.ping(time.UnixMicro(began)).GetId()
	m.now += length.Microseconds()
	_, err := m.pong(&linkpb.Pong{Id: id, Clock: began + theirs}, time.UnixMicro(m.now))
	return err
}

// Pong has an answer arrive.
func (m *Meter) Pong(id uint64, clock int64) error {
	_, err := m.pong(&linkpb.Pong{Id: id, Clock: clock}, time.UnixMicro(m.now))
	return err
}

// Measured returns what was measured.
func (m *Meter) Measured() Measured { return m.measured() }
