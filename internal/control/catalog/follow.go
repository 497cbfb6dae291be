package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// The pause between two looks doubles while changes keep coming, so that a burst of
	// changes costs few looks. It stays well below a second.
	minPause, maxPause = 20 * time.Millisecond, 400 * time.Millisecond
	// awayPause is the pause after a failed look, which may be the fault of one connection.
	awayPause = time.Second
	// savePause is the pause after a snapshot was written to disk, if that took no time.
	savePause, longestSavePause = 5 * time.Second, time.Minute
)

// follow looks when it is notified, and at every poll.
func (n *Node) follow(ctx context.Context) {
	poll := time.NewTicker(n.o.Poll)
	defer poll.Stop()
	pause := minPause
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		case <-n.wake:
		}
		n.looking.Lock()
		changed := n.look(ctx, n.at, true)
		n.looking.Unlock()
		if n.Status().Away != nil {
			nudge(n.wake)
			sleep(ctx, awayPause)
			continue
		}
		sleep(ctx, pause)
		if changed && len(n.wake) > 0 {
			pause = min(2*pause, maxPause)
		} else {
			pause = minPause
		}
	}
}

// sleep waits for a time, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// Look looks now, and uses what the database has even if it has another history: the
// operator accepts it. A database that was emptied is migrated, as at the start.
func (n *Node) Look(ctx context.Context) error {
	n.looking.Lock()
	defer n.looking.Unlock()
	n.ready = n.ready && !n.Status().Refused
	n.look(ctx, nowhere, false)
	if err := ctx.Err(); err != nil {
		return err
	}
	s := n.Status()
	if s.Away != nil {
		return s.Away
	}
	if s.Problem != "" {
		return errors.New(s.Problem)
	}
	return nil
}

// Refresh looks now, for a caller that has just written something. It does not wait for the
// replica.
func (n *Node) Refresh(ctx context.Context) error {
	n.looking.Lock()
	defer n.looking.Unlock()
	n.look(ctx, n.at, false)
	return ctx.Err()
}

// look brings the node from a position to where the database is, and reports whether that
// is another point than before, or is about to be. The position is the node's own, or nowhere to
// start over. A patient look waits for the replica, by asking to be repeated.
//
// Rules come first and the directory second. The node moves on even if the rules cannot be
// used: users and keys must not wait for them.
func (n *Node) look(ctx context.Context, from position, patient bool) (changed bool) {
	n.count(func(s *NodeStatus) { s.Looks++ })
	got, err := n.ask(ctx, from, patient)
	switch err = cmp.Or(err, got.away); {
	case ctx.Err() != nil:
		return false
	case err != nil:
		n.away(ctx, err)
	default:
		n.reached(ctx)
	}
	switch {
	case err != nil && got.away == nil:
		return false
	case got.waiting:
		return true
	case got.refusal != nil:
		n.reject(ctx, got.refusal)
		return false
	case got.mark == from.mark && !from.unread:
		if !n.at.stale {
			n.serve(n.at.mark) // it may have been set back meanwhile
		}
		if n.at.unconfirmed && got.away == nil {
			n.at.unconfirmed = false
			if !n.at.stale {
				n.save(n.at.snapshot.at(&n.at))
			}
		}
		return false
	}
	next := position{mark: got.mark, logged: got.logged, accepted: got.remember(n.at.accepted), snapshot: from.snapshot, stale: from.stale, unconfirmed: from.unconfirmed && got.away != nil}
	if got.extent == otherHistory {
		next.snapshot = nil
	}
	if got.shared != nil || got.broken != nil {
		s, err := n.put(ctx, &got)
		if next.stale = err != nil; next.stale {
			n.reject(ctx, err)
		} else {
			next.snapshot = s
		}
	}
	if !next.stale {
		n.serve(got.mark)
	}
	if !next.stale && !next.unconfirmed && next.snapshot != nil {
		n.save(next.snapshot.at(&next))
	}
	changed = got.mark != n.at.mark
	n.at = next
	n.directory.follow(ctx, &got)
	return changed
}

// put compiles the rules and lists of a revision and starts to use them.
func (n *Node) put(ctx context.Context, got *news) (*Snapshot, error) {
	n.count(func(s *NodeStatus) { s.Loads++ })
	s, err := got.compile()
	if err != nil {
		return nil, err
	}
	if err := n.use(ctx, s); err != nil {
		return nil, fmt.Errorf("revision %d: %w", s.Revision, err)
	}
	n.o.Log.InfoContext(ctx, "rules in use", "revision", s.Revision, "rules", s.Rules.Len())
	return s, nil
}

// save has a snapshot written to disk, in place of one that is not written yet.
func (n *Node) save(s *Snapshot) {
	select {
	case <-n.unsaved: // it is out of date
	default:
	}
	n.unsaved <- s
}

// compile returns the snapshot of the rules and lists that were read.
func (n *news) compile() (s *Snapshot, err error) {
	if err = n.broken; err == nil {
		s, err = newSnapshot(n.mark, *n.shared)
	}
	if err != nil {
		return nil, fmt.Errorf("revision %d: %w", n.Revision, err)
	}
	return s, nil
}

// saves writes snapshots to disk, until the node stops, which writes the last one. Writing ten
// thousand rules takes longer than using them, so of several in a row only the last is
// written, and no more than a hundredth of the time is spent on it.
func (n *Node) saves(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-n.unsaved:
			start := n.c.options.Now()
			n.keep(ctx, s)
			sleep(ctx, min(max(savePause, 100*n.c.options.Now().Sub(start)), longestSavePause))
		}
	}
}

// keep writes a snapshot to disk.
func (n *Node) keep(ctx context.Context, s *Snapshot) {
	err := n.good.save(s, n.c.options.Now())
	n.mu.Lock()
	first := n.status.Unkept == nil
	n.status.Unkept = err
	n.mu.Unlock()
	if err != nil && first {
		n.o.Log.WarnContext(ctx, "cannot save the last good rules: without the database, the next start would fail", "problem", err.Error())
	}
}
