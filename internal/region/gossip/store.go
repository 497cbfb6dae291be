package gossip

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// Options are the options of [New].
type Options struct {
	Self  Sender
	Peers []string // the other regions, at most MaxPeers
	// Weight is the share of this region, of Weights: in a partition, that much of what remains of a limit is its.
	Weight, Weights int
	// Nodes returns how many nodes this region has now. They share its credit. Nil: one.
	Nodes func() int
	// Local is where this node counts its share in a partition: a memory store of its own. It is closed
	// with the layer.
	Local stint.Store
	// Wait is how long a take waits at most for credit. Zero: not at all.
	Wait time.Duration
	// Cut is how long no node of this region has heard from another when that counts as cut off. Default 5 s.
	Cut time.Duration
	// Now is the clock of this process. It must be monotonic. Default time.Now.
	Now func() time.Time
	// MaxCounters is for how many counters it is remembered what the others know of them. Default 1,048,576.
	// Of further ones, this node admits its share of the limit.
	MaxCounters int
}

// Store is a layer around the store of a region. See the package doc. It is safe for concurrent use.
type Store struct {
	next   stint.Store
	o      Options
	ledger *ledger
	peers  []*peer
	start  time.Time
	// offset is the clock of the store less the time since start, in microseconds; 0: not known.
	offset atomic.Int64
	// blind says that no tick has reached the store for Options.Cut, and none was answered since: failing is when the
	// first of them was, in microseconds since start, or 0.
	blind   atomic.Bool
	failing int64
	meters  meters
	pool    sync.Pool    // of *taking
	waiting atomic.Int64 // takes, for credit
	doubts  sync.Map     // by Sender: the number of its last batch, if it is not known whether that was marked

	// Times are like that of offset. consent is until when this region consents that others go on; sharing is when
	// this node has last marked that it admits shares, and sharingSince since when it has, without a gap.
	consent, sharing, sharingSince atomic.Int64
	opened                         atomic.Int64 // shares
	// What Tick alone uses: this node's mark that it admits shares, and which shards were swept last.
	shareMark stint.Charge
	swept     int

	// urgent has room for one value, which is there if someone waits for credit.
	urgent chan struct{}
}

// maxWaiting is how many takes wait for credit at a time. Further ones are denied at once.
const maxWaiting = 1024

// New returns a layer that tells other regions what asks whose policy says [stint.RegionsGossip] have been
// admitted. The caller carries what [Store.Next] returns to the others, what comes from them to
// [Store.Receive], and calls [Store.Tick] every second or more often. Closing it closes the store.
func New(next stint.Store, o Options) (*Store, error) {
	if o.Cut == 0 {
		o.Cut = 5 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MaxCounters == 0 {
		o.MaxCounters = 1 << 20
	}
	if o.Nodes == nil {
		o.Nodes = func() int { return 1 }
	}
	switch {
	case next == nil || o.Local == nil:
		return nil, errors.New("gossip: a store of the region and one of this node's own are needed")
	case len(o.Peers) > MaxPeers:
		return nil, errors.New("gossip: too many regions")
	case o.Weight < 1 || o.Weight > o.Weights:
		return nil, errors.New("gossip: the weight must be from 1 to that of all regions")
	}
	s := &Store{next: next, o: o, ledger: newLedger(o.MaxCounters), start: o.Now(), urgent: make(chan struct{}, 1)}
	s.consent.Store(never)
	s.sharing.Store(never)
	for i, name := range o.Peers {
		s.peers = append(s.peers, newPeer(i, name))
	}
	return s, nil
}

// gossiped reports whether an ask is of a counter that regions tell each other of.
func gossiped(a *stint.Ask) bool {
	return a.Policy != nil && a.Policy.Regions == stint.RegionsGossip && a.Penalty == nil
}

func anyGossiped(asks []stint.Ask) bool {
	for i := range asks {
		if gossiped(&asks[i]) {
			return true
		}
	}
	return false
}

// Take decides with the store, if this region has credit left.
func (s *Store) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if !anyGossiped(asks) {
		return s.next.Take(ctx, asks, ds)
	}
	if err := stint.ValidateTake(asks, ds); err != nil {
		return err
	}
	t, ok := s.pool.Get().(*taking)
	if !ok {
		t = new(taking)
	}
	defer func() {
		clear(t.holds)
		clear(t.asks)
		s.pool.Put(t)
	}()
	return s.take(ctx, t, asks, ds)
}

// taking is the room that a take needs.
type taking struct {
	holds []hold
	asks  []stint.Ask
}

func (s *Store) take(ctx context.Context, t *taking, asks []stint.Ask, ds []stint.Decision) error {
	began := s.elapsed()
	holds, began, short := s.hold(ctx, began, asks, t.holds[:0])
	if t.holds = holds; short >= 0 {
		return s.deny(ctx, t, asks, ds, short)
	}
	refused, err := s.takeShares(ctx, asks, holds)
	switch {
	case err != nil:
		s.release(holds)
		return err
	case refused >= 0:
		s.release(holds)
		return s.deny(ctx, t, asks, ds, refused)
	}
	err = s.next.Take(ctx, asks, ds)
	s.hear(began, ds, err)
	if err != nil || denied(ds) {
		s.giveBackShares(ctx, asks, holds)
		s.release(holds)
		return err
	}
	for i := range holds {
		if holds[i].units > 0 {
			s.spend(&holds[i], &asks[i], &ds[i])
		}
	}
	return nil
}

func denied(ds []stint.Decision) bool {
	return slices.ContainsFunc(ds, func(d stint.Decision) bool { return !d.Allowed })
}

// hold is the credit that a take has for one of its asks. It is zero if that needs none.
type hold struct {
	account *account // nil: there was no room for one
	units   int64
	share   bool          // this node's share must allow it, too
	charge  *stint.Charge // what was taken from that
}

// hold takes credit for all asks that need it, and returns when it has it. If one gets none in time, it returns its
// number, and else -1.
func (s *Store) hold(ctx context.Context, began int64, asks []stint.Ask, holds []hold) (_ []hold, has int64, short int) {
	holds, short, wait := s.holdAll(began, asks, holds)
	if short < 0 {
		return holds, began, -1
	}
	s.hurry()
	if s.o.Wait <= 0 || s.waiting.Add(1) > maxWaiting {
		if s.o.Wait > 0 {
			s.waiting.Add(-1)
		}
		return holds, began, short
	}
	defer s.waiting.Add(-1)
	deadline := time.NewTimer(s.o.Wait)
	defer deadline.Stop()
	for short >= 0 {
		select {
		case <-wait:
		case <-deadline.C:
			return holds, began, short
		case <-ctx.Done():
			return holds, began, short
		}
		began = s.elapsed()
		if holds, short, wait = s.holdAll(began, asks, holds[:0]); short >= 0 {
			s.hurry()
		}
	}
	return holds, began, -1
}

// holdAll takes credit for all asks that need it, or for none: then it returns the number of the first for which
// there is not enough, and a channel that is closed when there may be.
func (s *Store) holdAll(began int64, asks []stint.Ask, holds []hold) (_ []hold, short int, wait <-chan struct{}) {
	for i := range asks {
		var h hold
		if a := &asks[i]; gossiped(a) && a.Cost > 0 {
			if h, wait = s.holdOne(began, a); wait != nil {
				s.release(holds)
				return holds[:0], i, wait
			}
		}
		holds = append(holds, h)
	}
	return holds, -1, nil
}

// holdOne takes credit for an ask. If there is not enough, it returns a channel that is closed when there may be.
func (s *Store) holdOne(began int64, a *stint.Ask) (h hold, wait <-chan struct{}) {
	now := s.clockAt(began)
	acc := s.account(a, now)
	if acc == nil {
		return hold{units: a.Cost, share: true}, nil
	}
	defer acc.shard.mu.Unlock()
	raise(&acc.meter.bound, int64(len(s.peers))*max(Credit(a.Policy, a.Limit), a.Cost))
	s.close(acc, began)
	h = hold{account: acc, units: a.Cost, share: a.Policy.OnCredit == stint.CreditShare && s.divided(began) && s.mayShare(began)}
	ahead := int64(0)
	for i, p := range s.peers {
		ahead = max(ahead, acc.ahead(i, now, began < p.consent.Load()))
	}
	// A cost above the credit passes when the others know of all else. Without its store, the region decides as its layers
	// say: what the others know is not what it decides by.
	if !h.share && !s.blind.Load() && ahead > 0 && ahead+a.Cost > s.credit(a) {
		return hold{}, acc.waiting()
	}
	acc.held += a.Cost
	return h, nil
}

// account returns the account of an ask's counter, with its shard locked, or nil if there is no room.
func (s *Store) account(a *stint.Ask, now int64) *account {
	acc := s.ledger.account(a, now)
	if acc != nil && acc.meter == nil {
		acc.meter = s.meters.of(a.Key.Limit())
		if Measured(&a.Limit) {
			acc.meter.measured.Store(true)
		}
	}
	return acc
}

// credit returns by how many units this node may be ahead of what the others know of a counter.
func (s *Store) credit(a *stint.Ask) int64 {
	return max(Credit(a.Policy, a.Limit)/int64(s.o.Nodes()), 1)
}

// Credit returns by how many units a region may be ahead of what the others know of a counter: as many as the
// policy says, or else a tenth of the limit, and at least one.
func Credit(p *stint.Policy, l stint.Limit) int64 {
	if p.Credit > 0 {
		return p.Credit
	}
	return max(l.Cap()/10, 1)
}

// hurry has the others told at once, and not at the end of the interval.
func (s *Store) hurry() {
	select {
	case s.urgent <- struct{}{}:
	default:
	}
}

// Urgent returns a channel that has a value when a take waits for credit, so that the others should be told at
// once.
func (s *Store) Urgent() <-chan struct{} { return s.urgent }

func (s *Store) release(holds []hold) {
	for i := range holds {
		if h := &holds[i]; h.account != nil {
			h.account.shard.mu.Lock()
			h.account.held -= h.units
			h.account.shard.mu.Unlock()
		}
	}
}

// spend notes that what a hold was for was admitted.
func (s *Store) spend(h *hold, a *stint.Ask, d *stint.Decision) {
	acc := h.account
	if acc == nil {
		return
	}
	acc.meter.admitted.Add(a.Cost)
	if h.share {
		acc.meter.shares.Add(1)
	}
	acc.shard.mu.Lock()
	defer acc.shard.mu.Unlock()
	acc.held -= h.units
	if d.Remaining > 0 {
		acc.over = 0
	}
	if d.Cost > 0 {
		s.record(acc, d.At, d, d.Cost, "")
	}
}

// deny answers a take for which there is no credit, or no share: nothing is charged.
func (s *Store) deny(ctx context.Context, t *taking, asks []stint.Ask, ds []stint.Decision, short int) error {
	s.meters.of(asks[short].Key.Limit()).short.Add(1)
	t.asks = append(t.asks[:0], asks...)
	a := &t.asks[short]
	a.Cost = a.Limit.Cap() + 1 // so that it is denied, and described
	if err := s.next.Take(ctx, t.asks, ds); err != nil {
		return err
	}
	d := &ds[short]
	d.Allowed, d.Cost, d.Basis, d.RetryAfter = false, 0, stint.Local, retryAfter
	return nil
}

// retryAfter is when a take that was denied for want of credit, or of a share, may pass.
const retryAfter = time.Second

// Adjust adjusts counters of this region, and has the others told.
func (s *Store) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	began := s.elapsed()
	err := s.next.Adjust(ctx, asks, ds)
	if err != nil || !anyGossiped(asks) {
		return err
	}
	s.hear(began, ds, nil)
	now := s.clock()
	for i := range asks {
		a, d := &asks[i], &ds[i]
		if !gossiped(a) || a.Cost == 0 {
			continue
		}
		at, id := d.At, ""
		if a.Charge != nil {
			at, id = a.Charge.At, a.Charge.ID
		}
		if d.Repeated && a.Cost < 0 {
			continue // it gives back once, and so it gives credit once
		}
		if acc := s.account(a, now); acc != nil {
			// The node that has made it may not have heard that, and so not told it. Others charge it once.
			if !d.Repeated || !acc.knows(at, id) {
				s.record(acc, at, d, a.Cost, id)
			}
			acc.shard.mu.Unlock()
		}
	}
	return nil
}

// record notes that units were admitted at an instant, or given back, as a decision says, and has the others told. The
// shard of the account is locked.
func (s *Store) record(acc *account, at int64, d *stint.Decision, units int64, id string) {
	until := recovered(&acc.limit, at, d)
	if until+late <= d.At {
		return // its window is over
	}
	// Others take no more as one change, and it would not make a difference in a window.
	most := maxUnits(&acc.limit)
	s.meters.lost.Add(max(units-most, 0))
	if acc.record(at, until, max(min(units, most), -most), id, len(s.peers)) {
		s.hurry()
	}
	s.queue(acc)
}

// Reset resets counters of this region, and has the others told.
func (s *Store) Reset(ctx context.Context, asks []stint.Ask) error {
	err := s.next.Reset(ctx, asks)
	if err != nil || !anyGossiped(asks) {
		return err
	}
	now := s.clock()
	for i := range asks {
		a := &asks[i]
		if !gossiped(a) {
			continue
		}
		if acc := s.account(a, now); acc != nil {
			acc.reset(now, len(s.peers))
			s.queue(acc)
			acc.shard.mu.Unlock()
		}
	}
	return nil
}

// Close closes the store, and that of the shares.
func (s *Store) Close() error { return errors.Join(s.next.Close(), s.o.Local.Close()) }

// elapsed returns the time since the layer was made, in microseconds.
func (s *Store) elapsed() int64 { return s.o.Now().Sub(s.start).Microseconds() }

// hear notes the clock of the store, if it has just decided.
func (s *Store) hear(began int64, ds []stint.Decision, err error) {
	if err == nil && len(ds) > 0 && ds[0].Basis == stint.Counted && ds[0].At > 0 {
		s.offset.Store(ds[0].At - began)
		if s.blind.Load() {
			s.blind.Store(false)
		}
	}
}

// clock returns the time by the clock of the store, as far as it is known.
func (s *Store) clock() int64 { return s.clockAt(s.elapsed()) }

// clockAt returns the time by the clock of the store, so long after the layer was made.
func (s *Store) clockAt(elapsed int64) int64 {
	if offset := s.offset.Load(); offset != 0 {
		return elapsed + offset
	}
	return s.start.UnixMicro() + elapsed
}

// Clock returns the time by the clock of the store, in microseconds since the Unix epoch, as it was last heard.
func (s *Store) Clock() int64 { return s.clock() }
