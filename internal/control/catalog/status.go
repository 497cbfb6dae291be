package catalog

import (
	"context"
	"errors"
	"time"
)

// NodeStatus is what a node serves, and what keeps it from serving a newer revision.
type NodeStatus struct {
	mark            // of what is served
	Since time.Time // when it came into use
	// Saved is when the rules were written to disk, if they come from there because the
	// database could not be reached at the start.
	Saved time.Time
	// Problem is why a newer revision is not served. Empty: there is no problem.
	Problem   string
	ProblemAt time.Time // since when
	// Refused means that the problem is the history of the database: see [HistoryError].
	Refused bool
	// Away is why the last look failed to reach the database. Nil: it did not fail.
	Away   error
	AwayAt time.Time // since when
	// Replica is what is known of the replica. Nil: there is none, or nothing is known yet.
	Replica *ReplicaStatus
	// Unkept is why the last good rules could not be written to disk.
	Unkept error
	// Looks is how often the node has looked for changes, and Loads how often it has read
	// rules and lists.
	Looks, Loads uint64
}

// Status returns the current status.
func (n *Node) Status() NodeStatus {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.status
}

// count increments a counter of the status.
func (n *Node) count(add func(*NodeStatus)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	add(&n.status)
}

// serve records that the rules of a mark are in use, without a problem.
func (n *Node) serve(m mark) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := &n.status
	if s.mark != m || s.Problem != "" || !s.Saved.IsZero() {
		s.mark, s.Since, s.Saved, s.Problem, s.ProblemAt, s.Refused = m, n.c.options.Now(), time.Time{}, "", time.Time{}, false
		nudge(n.moved) // the others hear of it
	}
	n.c.refusal.Store(nil)
}

// reject records why the current revision is not served.
func (n *Node) reject(ctx context.Context, why error) {
	var refusal *HistoryError
	refuses := errors.As(why, &refusal)
	n.mu.Lock()
	// A database that is refused may be written to, which is no news.
	again := n.status.Problem == why.Error() || (n.status.Refused && refuses)
	if n.status.Problem = why.Error(); !again {
		n.status.ProblemAt, n.status.Refused = n.c.options.Now(), refuses
	}
	n.c.refusal.Store(refusal)
	n.mu.Unlock()
	if !again {
		nudge(n.moved) // the others hear of it
		n.o.Log.ErrorContext(ctx, "new rules rejected, the previous ones stay in use", "problem", why.Error())
	}
}

// away records that the database could not be reached.
func (n *Node) away(ctx context.Context, why error) {
	n.mu.Lock()
	first := n.status.Away == nil
	if first {
		n.status.AwayAt = n.c.options.Now()
	}
	n.status.Away = why
	n.mu.Unlock()
	if first {
		n.o.Log.WarnContext(ctx, "the database cannot be reached, what is known stays in use", "problem", why.Error())
	}
}

// reached records that the database was reached.
func (n *Node) reached(ctx context.Context) {
	n.mu.Lock()
	before := n.status.Away
	n.status.Away, n.status.AwayAt = nil, time.Time{}
	n.mu.Unlock()
	if before != nil {
		n.o.Log.InfoContext(ctx, "the database is back")
	}
}
