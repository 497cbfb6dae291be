// Package presence counts the nodes that share limits, by the heartbeats that each writes to a store that
// all of them read: the database, or Redis.
//
// The number matters most when a store fails or comes back, and too small a number lets the nodes together
// admit more than a limit. So it rises at once, and falls only when a node has said that it leaves, or after
// a whole [Roster.Lifetime] without its heartbeat, counted while the store could be read. What the store has
// forgotten meanwhile does not matter: a store that comes back empty changes nothing.
//
// The last number is kept in a file, so that a node that starts while the store is away knows it.
package presence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Most is the largest number of nodes that is counted.
const Most = 10_000

// Options are the options of [New].
type Options struct {
	Self     string        // this node, which is always counted
	Interval time.Duration // between heartbeats
	// File is where the last number is kept. Empty: nowhere.
	File string
	Log  *slog.Logger // required
}

// Beat is the heartbeat of a node, as the store has it.
type Beat struct {
	Node string
	At   int64 // any number that changes with each heartbeat
}

// Roster is the nodes as one of them knows them. It is safe for concurrent use.
type Roster struct {
	o     Options
	count atomic.Int64

	mu    sync.Mutex
	nodes map[string]*node // without this one
	// least is the number from the file, which holds until a lifetime has passed.
	least node
	many  int
	read  time.Time // when the store was last read; zero: that failed, or was not tried yet
	saved int
	trouble
}

// node is what is known of a node.
type node struct {
	at     int64
	silent time.Duration // how long the store has shown no new heartbeat
}

// trouble is why the store cannot be read.
type trouble struct {
	err    error // nil: it can
	since  time.Time
	logged time.Time // when it was last logged
	unkept bool      // that the file cannot be written was logged
}

// New returns a roster with this node and, until the store has been read for a lifetime, as many more as the
// file says.
func New(o Options) *Roster {
	r := &Roster{o: o, nodes: map[string]*node{}, many: 1}
	if o.File != "" {
		text, err := os.ReadFile(o.File)
		if n, bad := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && bad == nil && n > 0 && n <= Most {
			r.many, r.saved = n, n
		}
	}
	r.count.Store(int64(r.many))
	return r
}

// Self is this node.
func (r *Roster) Self() string { return r.o.Self }

// Lifetime is how long a node is counted after its last heartbeat.
func (r *Roster) Lifetime() time.Duration { return 3*r.o.Interval + time.Second }

// Count returns how many nodes there are, at least 1. It is fast.
func (r *Roster) Count() int { return int(r.count.Load()) }

// Missing returns the nodes that are counted, and have no heartbeat among these. They may have left.
func (r *Roster) Missing(beats []Beat) (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	there := make(map[string]bool, len(beats))
	for _, b := range beats {
		there[b.Node] = true
	}
	for name := range r.nodes {
		if !there[name] {
			out = append(out, name)
		}
	}
	return out
}

// Seen notes the heartbeats that the store has, and which nodes have left.
func (r *Roster) Seen(ctx context.Context, beats []Beat, left []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	passed := time.Duration(0)
	if !r.read.IsZero() {
		// Time in which this process did not run says nothing about the others.
		passed = min(now.Sub(r.read), 2*r.o.Interval)
	}
	r.read = now
	for _, n := range r.nodes {
		n.silent += passed
	}
	for _, b := range beats {
		switch n := r.nodes[b.Node]; {
		case b.Node == r.o.Self:
		case n == nil && len(r.nodes) < Most-1:
			r.nodes[b.Node] = &node{at: b.At}
		case n != nil && n.at != b.At:
			*n = node{at: b.At}
		}
	}
	for _, name := range left {
		delete(r.nodes, name)
	}
	for name, n := range r.nodes {
		if n.silent >= r.Lifetime() {
			delete(r.nodes, name)
		}
	}
	if r.least.silent += passed; r.least.silent >= r.Lifetime() {
		r.many = 1
	}
	count := max(1+len(r.nodes), r.many)
	r.count.Store(int64(count))
	if r.err != nil {
		r.o.Log.InfoContext(ctx, "the nodes that share the limits are counted again", "nodes", count)
		r.err = nil
	}
	r.save(ctx, count)
}

// Failed notes that the store could not be read or written. The number stays, and the time until it may fall
// begins again.
func (r *Roster) Failed(ctx context.Context, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read, r.least.silent = time.Time{}, 0
	for _, n := range r.nodes {
		n.silent = 0
	}
	now := time.Now()
	if r.err == nil {
		r.since = now
	}
	r.err = err
	const often = time.Minute
	if r.logged.IsZero() || now.Sub(r.logged) >= often {
		r.logged = now
		r.o.Log.WarnContext(ctx, "the nodes that share the limits cannot be counted", "nodes", r.Count(), "problem", err.Error())
	}
}

// Problem describes why the nodes cannot be counted. Empty: they are.
func (r *Roster) Problem() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		return ""
	}
	return fmt.Sprintf("the nodes that share the limits cannot be counted since %s, and %d are assumed: %v",
		r.since.UTC().Format(time.RFC3339), r.Count(), r.err)
}

// save keeps the number, if it has changed.
func (r *Roster) save(ctx context.Context, count int) {
	if r.o.File == "" || count == r.saved {
		return
	}
	err := write(r.o.File, strconv.Itoa(count)+"\n")
	if err == nil {
		r.saved, r.unkept = count, false
	} else if !r.unkept {
		r.unkept = true
		r.o.Log.WarnContext(ctx, "the number of nodes cannot be kept, so if the store is away at the next start, this node takes itself for the only one",
			"nodes", count, "problem", err.Error())
	}
}

// write replaces a file. After a crash there is either the old one or the new one.
func write(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".nodes-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // after an error; otherwise it was renamed
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
