package gossip

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxSent is how many batches a region may have to acknowledge at a time.
	maxSent = 8
	// doubtful is how long a batch is sent again. A receiver remembers longer than that which it has applied.
	doubtful = 30 * time.Minute
)

// peer is another region, and what is on the way to it.
type peer struct {
	index int
	name  string
	// heard is when it last answered, by the clock of this process, in microseconds since the start.
	heard atomic.Int64
	// consent is until when it consents that others go on, since none of its nodes admits shares, like heard.
	consent atomic.Int64
	// cut says that no node of this region hears from it.
	cut atomic.Bool
	// alone says that it is cut off from some region, as it last said.
	alone atomic.Bool

	mu     sync.Mutex
	queue  []*account // that it has to be told of
	number uint64     // of the last batch
	sent   []sent     // not acknowledged, oldest first
	again  int        // how many of them have been sent in this connection
	lag    int64      // how long the last one that was acknowledged took, in microseconds
}

// sent is a batch on its way.
type sent struct {
	Batch
	of    []told // of each entry
	at    int64  // when it was made, like heard
	bytes int
}

// told is of which counter an entry is, and how often that was reset before.
type told struct {
	*account
	resets uint32
}

// add adds an entry of a counter, unless there is no room for it.
func (b *sent) add(e *Entry, acc *account) bool {
	if len(b.Entries) >= MaxEntries || b.bytes >= maxBytes {
		return false
	}
	b.bytes += entryBytes + len(e.Key.Subject) + len(e.Key.Name) + len(e.ID)
	b.Entries, b.of = append(b.Entries, *e), append(b.of, told{acc, acc.resets})
	return true
}

// never is the time of what has not happened.
const never = -1 << 62

func newPeer(index int, name string) *peer {
	p := &peer{index: index, name: name}
	p.heard.Store(never)
	return p
}

// peer returns the region of that name, or nil.
func (s *Store) peer(name string) *peer {
	for _, p := range s.peers {
		if p.name == name {
			return p
		}
	}
	return nil
}

// queue has all regions told of a counter, whose shard is locked.
func (s *Store) queue(acc *account) {
	for i, p := range s.peers {
		if bit := uint32(1) << i; acc.queued&bit == 0 {
			acc.queued |= bit
			p.mu.Lock()
			p.queue = append(p.queue, acc)
			p.mu.Unlock()
		}
	}
}

// Next returns the next batch for a region: at first those that it has not acknowledged when the connection to
// it was lost. It returns false if there is nothing to tell, or too much on the way. One goroutine calls it for
// a region.
func (s *Store) Next(region string) (Batch, bool) {
	p := s.peer(region)
	if p == nil {
		return Batch{}, false
	}
	if b, ok := p.resend(); ok {
		return b, true
	}
	now, out := s.clock(), sent{at: s.elapsed()}
	for len(out.Entries) == 0 {
		due := p.due()
		if len(due) == 0 {
			return Batch{}, false
		}
		for i, acc := range due {
			acc.shard.mu.Lock()
			acc.expire(now)
			more := acc.tell(p.index, &out)
			if !more {
				acc.queued &^= 1 << p.index
			}
			acc.shard.mu.Unlock()
			if more { // the batch is full
				p.putBack(due[i:])
				break
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number++
	out.Number = p.number
	p.sent = append(p.sent, out)
	p.again = len(p.sent)
	return out.Batch, true
}

// due takes counters from the queue, as many as are told of in a batch: most have one entry, some more. It returns none if
// there is too much on the way.
func (p *peer) due() []*account {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(len(p.queue), MaxEntries/2)
	if len(p.sent) >= maxSent || n == 0 {
		return nil
	}
	due := slices.Clone(p.queue[:n])
	if p.queue = p.queue[n:]; len(p.queue) == 0 {
		p.queue = nil
	}
	return due
}

// putBack puts counters back into the queue, as the first ones.
func (p *peer) putBack(accounts []*account) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(accounts, p.queue...)
}

// resend returns the next batch that has to be sent again.
func (p *peer) resend() (Batch, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.again >= len(p.sent) {
		return Batch{}, false
	}
	p.again++
	return p.sent[p.again-1].Batch, true
}

// Unsent says that the last batch that Next has returned for a region could not be sent: it is returned again.
func (s *Store) Unsent(region string) {
	if p := s.peer(region); p != nil {
		p.mu.Lock()
		p.again = max(p.again-1, 0)
		p.mu.Unlock()
	}
}

// Connected says that there is a new connection to a region. What was not acknowledged is sent again.
func (s *Store) Connected(region string) {
	if p := s.peer(region); p != nil {
		p.mu.Lock()
		p.again = 0
		p.mu.Unlock()
	}
}

// Acknowledged says that a region has charged all batches up to that number.
func (s *Store) Acknowledged(region string, number uint64) {
	p := s.peer(region)
	if p == nil {
		return
	}
	p.mu.Lock()
	n := 0
	for n < len(p.sent) && p.sent[n].Number <= number {
		n++
	}
	done := append([]sent(nil), p.sent[:n]...)
	if n > 0 {
		p.lag = s.elapsed() - done[n-1].at
	}
	p.sent = append(p.sent[:0], p.sent[n:]...)
	p.again = max(p.again-n, 0)
	more := n > 0 && len(p.queue) >= MaxEntries/2 // others wait for the interval
	p.mu.Unlock()
	if more {
		s.hurry()
	}
	for i := range done {
		s.settle(p, &done[i])
	}
}

// settle notes that a region knows of what is in a batch.
func (s *Store) settle(p *peer, b *sent) {
	now := s.elapsed()
	for i := range b.Entries {
		acc := b.of[i].account
		acc.shard.mu.Lock()
		if acc.resets == b.of[i].resets {
			acc.acknowledge(p.index, &b.Entries[i], now < p.consent.Load())
		}
		s.close(acc, now)
		acc.shard.mu.Unlock()
	}
}

// forget gives up batches of which it is not known for too long whether they were charged. Their units stay unknown to
// the region until they have recovered. It returns how many units they have.
func (p *peer) forget(now int64) (n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.sent) > 0 && now-p.sent[0].at > doubtful.Microseconds() {
		n += units(p.sent[0].Entries)
		p.sent = p.sent[1:]
		p.again = max(p.again-1, 0)
	}
	return n
}

// Heard says that a region has answered, so the connection to it works both ways. Alone and consent are what
// [Store.Alone] and [Store.Consents] said there, so long after it was asked.
func (s *Store) Heard(region string, after time.Duration, alone bool, consent time.Duration) {
	if p := s.peer(region); p != nil {
		now := s.elapsed()
		p.alone.Store(alone)
		p.consent.Store(now + (min(consent, maxConsent) - after).Microseconds())
		p.heard.Store(now)
	}
}

// hears reports whether this node has heard from a region a moment ago.
func (s *Store) hears(p *peer, now int64) bool { return now-p.heard.Load() < s.o.Cut.Microseconds()/2 }

// Alone reports whether this region is cut off from another, or from its own store: then it charges nothing that it is told.
func (s *Store) Alone() bool {
	if s.blind.Load() {
		return true
	}
	for _, p := range s.peers {
		if p.cut.Load() {
			return true
		}
	}
	return false
}

// divided reports whether all regions are to keep to their shares: this one, or one that it hears from, is cut off
// from another.
func (s *Store) divided(now int64) bool {
	for _, p := range s.peers {
		if p.cut.Load() || p.alone.Load() && s.hears(p, now) {
			return true
		}
	}
	return false
}
