package gossip

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/stintdev/stint"
)

// Bounds of what is accepted from others.
const (
	// remembered is how long a receiver knows which batches it has applied.
	remembered = time.Hour
	// future is how far the clock of another region may be ahead of this one's.
	future = time.Minute
	// atOnce is how many entries are charged at a time.
	atOnce = 64
)

// ErrRefused is wrapped by errors about what another region has sent, of which nothing was charged.
var ErrRefused = errors.New("refused")

// Receive charges what a node of another region has admitted, at the instants at which that was. A batch that
// was charged before, by whichever node of this region, is not charged again. When it returns nil, the batch is to be
// acknowledged.
//
// If the clock of the other region is ahead, it waits until this one's is there: otherwise units might be
// charged in the window before theirs.
//
// A batch that it has begun to charge it charges to its end, also when ctx is done: then for up to 3 s more. If that is not
// enough, or the store does not say whether it has charged, units are lost, and counted as such. If the process is killed, they
// are lost, too. None is charged twice.
func (s *Store) Receive(ctx context.Context, from Sender, b Batch) error {
	if err := s.check(from, &b); err != nil {
		s.meters.refused.Add(1)
		return err
	}
	for {
		wait, err := s.receive(ctx, from, &b)
		if err != nil || wait == 0 {
			return err
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// receive charges a batch. If it is from the future, it does nothing, and returns how long to wait.
func (s *Store) receive(ctx context.Context, from Sender, b *Batch) (wait time.Duration, err error) {
	if ahead := b.last() - s.clock(); ahead > 0 {
		return time.Duration(ahead) * time.Microsecond, nil
	}
	ctx, cancel := afterwards(ctx)
	defer cancel()
	var ds [1]stint.Decision
	began := s.elapsed()
	first := stint.Ask{
		Key: stint.Key{
			Subject: "region:" + from.Region + "/" + from.Node,
			Name:    "~told:" + s.o.Self.Region + ":" + strconv.FormatUint(from.Run, 36) + ":" + strconv.FormatUint(b.Number, 36),
		},
		Limit: stint.Limit{Algorithm: stint.SlidingLog, Max: 1, Window: stint.Every(remembered)},
		Cost:  1, Policy: &stint.Policy{OnFailure: stint.FailError},
	}
	if err := s.next.Take(ctx, []stint.Ask{first}, ds[:]); err != nil {
		if !errors.Is(err, stint.ErrNotApplied) {
			s.doubts.Store(from, b.Number)
		}
		return 0, err
	}
	s.hear(began, ds[:], nil)
	doubt, _ := s.doubts.LoadAndDelete(from)
	if !ds[0].Allowed {
		s.meters.duplicate.Add(1)
		if doubt == b.Number { // it was marked, and not charged
			s.meters.lost.Add(units(b.Entries))
		}
		return 0, nil
	}
	return 0, s.charge(ctx, b.Entries, ds[0].At)
}

// afterwards returns a context that is done a while after ctx is: a batch that was marked and not charged would be lost.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	const grace = 3 * time.Second // less than what a node takes to stop
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-out.Done():
		case <-time.After(grace):
			cancel()
		}
	})
	return out, func() { stop(); cancel() }
}

// units returns how many units were admitted.
func units(entries []Entry) (n int64) {
	for i := range entries {
		if e := &entries[i]; !e.Reset {
			n += max(e.Units, 0)
		}
	}
	return n
}

// last returns the instant of the last entry.
func (b *Batch) last() (at int64) {
	for i := range b.Entries {
		at = max(at, b.Entries[i].At)
	}
	return at
}

// check returns an error if a batch cannot be what the sender has admitted.
func (s *Store) check(from Sender, b *Batch) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("gossip: batch %d of region %q: %s: %w", b.Number, from.Region, fmt.Sprintf(format, args...), ErrRefused)
	}
	switch {
	case s.peer(from.Region) == nil:
		return refuse("no such region")
	case b.Number == 0:
		return refuse("it has no number")
	case len(b.Entries) > MaxEntries:
		return refuse("%d entries: want at most %d", len(b.Entries), MaxEntries)
	}
	if ahead := b.last() - s.clock(); ahead > future.Microseconds() {
		return refuse("it is from the future, by %s: want clocks that differ by less than %s", time.Duration(ahead)*time.Microsecond, future)
	}
	for i := range b.Entries {
		e := &b.Entries[i]
		if err := e.Key.Validate(); err != nil {
			return refuse("entry %d: %v", i, err)
		}
		if err := e.Limit.Validate(); err != nil {
			return refuse("entry %d: %v", i, err)
		}
		most := maxUnits(&e.Limit)
		if !e.Reset && (e.Units == 0 || e.Units > most || e.Units < -most) {
			return refuse("entry %d: %d units of %v", i, e.Units, e.Limit)
		}
		if e.At < 1 || len(e.ID) > stint.MaxChargeID || e.Limit.Algorithm == stint.Concurrency {
			return refuse("entry %d: %+v", i, *e)
		}
	}
	return nil
}

// charge charges entries, in their order. What it does not get to is lost.
func (s *Store) charge(ctx context.Context, entries []Entry, now int64) (err error) {
	done := 0
	defer func() {
		if err != nil {
			s.meters.lost.Add(units(entries[done:]))
		}
	}()
	var asks []stint.Ask
	var charges [atOnce]stint.Charge
	ds := make([]stint.Decision, atOnce)
	flush := func() error {
		if err := s.settled(ctx, asks, ds[:len(asks)]); err != nil {
			return err
		}
		done += len(asks)
		asks = asks[:0]
		return nil
	}
	for i := range entries {
		e := &entries[i]
		a := stint.Ask{Key: e.Key, Limit: e.Limit, Cost: e.Units, Policy: gossipPolicy}
		if e.Reset {
			if err := flush(); err != nil {
				return err
			}
			if err := s.next.Reset(ctx, []stint.Ask{a}); err != nil {
				return err
			}
			done++
			continue
		}
		a.Charge = &charges[len(asks)]
		*a.Charge = stint.Charge{At: min(e.At, now), Cost: max(e.Units, -e.Units), ID: e.ID}
		if asks = append(asks, a); len(asks) == atOnce {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// gossipPolicy has the store say if it fails. Layers that make up for that might charge what was charged.
var gossipPolicy = &stint.Policy{Regions: stint.RegionsGossip, OnFailure: stint.FailError}

// settled charges asks. It tries again as long as the store has surely not charged them.
func (s *Store) settled(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	for len(asks) > 0 {
		err := s.next.Adjust(ctx, asks, ds)
		switch {
		case err == nil:
			s.charged(ctx, asks, ds)
			return nil
		case !errors.Is(err, stint.ErrNotApplied):
			for i := range asks {
				s.meters.lost.Add(max(asks[i].Cost, 0))
			}
			return nil
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}
