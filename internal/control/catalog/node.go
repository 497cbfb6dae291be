package catalog

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/kit/lookup"
	"github.com/stintdev/stint/internal/kit/presence"
)

// NodeOptions are a node's settings.
type NodeOptions struct {
	// Name is for people. Version is that of the program.
	Name, Version string
	// Poll is how often the node looks for changes that it was not notified of, and
	// reports that it is alive. Default 5 s.
	Poll time.Duration
	// Migrate brings the schema up to date before the first look. Otherwise an old schema
	// is an error.
	Migrate bool
	// LastGood is the directory of the copy of the last good rules. Empty: none is kept.
	LastGood string
	// CacheSize is how many keys, users and tenants are cached of each, and CacheTTL for
	// how long. Default 100,000 and 5 minutes.
	CacheSize int
	CacheTTL  time.Duration
	// State, if it is set, returns JSON that the node reports to the others with each
	// heartbeat.
	State func() json.RawMessage
	Log   *slog.Logger // required
}

// Node follows a catalog for one process: it puts each new snapshot to use, and looks up
// keys, users and tenants.
type Node struct {
	c         *Catalog
	o         NodeOptions
	id        string
	started   time.Time
	directory *directory
	good      lastGood
	use       func(context.Context, *Snapshot) error
	wake      chan struct{}  // of capacity 1: look now
	moved     chan struct{}  // of capacity 1: send a heartbeat now
	unsaved   chan *Snapshot // of capacity 1: the last one in use, until it is on disk
	nodes     *presence.Roster

	looking sync.Mutex // held while the node looks; guards ready and at
	ready   bool       // the schema is up to date
	at      position

	mu     sync.Mutex
	status NodeStatus

	cancel context.CancelFunc
	work   sync.WaitGroup
}

const (
	askLimit  = database.ConnectLimit // to ask for the revision
	loadLimit = 30 * time.Second      // to read all rules
	// migrateLimit includes waiting for other nodes that migrate.
	migrateLimit = 2 * time.Minute
)

// NewNode returns a node that does nothing yet. Stop it.
func (c *Catalog) NewNode(o NodeOptions) (*Node, error) {
	if o.Log == nil {
		return nil, errors.New("catalog: NodeOptions.Log is missing")
	}
	if o.Poll == 0 {
		o.Poll = 5 * time.Second
	}
	if o.CacheSize == 0 {
		o.CacheSize = 100_000
	}
	if o.CacheTTL == 0 {
		o.CacheTTL = 5 * time.Minute
	}
	d, err := c.newDirectory(o.CacheSize, o.CacheTTL)
	if err != nil {
		return nil, err
	}
	n := &Node{
		c: c, o: o, id: rand.Text(), started: c.options.Now(), directory: d, good: newLastGood(o.LastGood, c.dialect.Place()),
		wake: make(chan struct{}, 1), moved: make(chan struct{}, 1), unsaved: make(chan *Snapshot, 1), at: nowhere,
	}
	n.nodes = presence.New(presence.Options{Self: n.id, Interval: o.Poll, File: n.good.sibling("nodes"), Log: o.Log})
	return n, nil
}

// First returns the snapshot to start with: that of the database or of its replica or, if they
// cannot be reached or used, or do not continue the history of the last good one, the last good one
// from disk.
func (n *Node) First(ctx context.Context) (*Snapshot, error) {
	n.looking.Lock()
	defer n.looking.Unlock()
	good, saved, unread := n.good.load(n.c.options.Case)
	from := nowhere
	if unread == nil {
		from = good.position()
		from.snapshot, from.unread = nil, true // the rules are read as they are now
	} else if !errors.Is(unread, fs.ErrNotExist) && n.good.path != "" {
		n.o.Log.WarnContext(ctx, "cannot read the last good rules: it is not known whether the database was set back", "problem", unread.Error())
	}
	got, err := n.ask(ctx, from, false)
	if err == nil && got.refusal != nil {
		err = got.refusal
	}
	if err == nil {
		var s *Snapshot
		if s, err = got.compile(); err == nil {
			n.at = position{
				mark: s.mark, logged: got.logged, accepted: got.remember(from.accepted), snapshot: s,
				unconfirmed: got.away != nil && from.Revision < 0,
			}
			n.begin(s, time.Time{})
			if !n.at.unconfirmed {
				n.keep(ctx, s.at(&n.at))
			}
			if got.away != nil {
				n.away(ctx, got.away)
			}
			return s, nil
		}
	}
	if unread != nil {
		return nil, fmt.Errorf("%w; last good rules: %w", err, unread)
	}
	s := good
	n.at = s.position()
	n.begin(s, saved)
	if errors.Is(err, ErrUnavailable) {
		n.away(ctx, err)
	} else {
		n.reject(ctx, err)
	}
	n.o.Log.WarnContext(ctx, "using the last good rules from disk", "revision", s.Revision, "saved", saved.Format(time.RFC3339))
	return s, nil
}

// begin serves the first snapshot.
func (n *Node) begin(s *Snapshot, saved time.Time) {
	n.directory.begin(s.mark, n.at.logged)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.status = NodeStatus{mark: s.mark, Since: n.c.options.Now(), Saved: saved, Loads: 1, Replica: n.status.Replica}
}

// Start follows the catalog until ctx ends or Stop is called. Each new snapshot is given
// to use; if use fails, the one before stays in use. Call First before.
func (n *Node) Start(ctx context.Context, use func(context.Context, *Snapshot) error) {
	n.use = use
	ctx, n.cancel = context.WithCancel(ctx)
	remove := n.c.wakers.add(n.wake)
	notified := func() { nudge(n.wake) }
	n.work.Go(func() { n.c.dialect.Watch(ctx, notified) })
	if side := n.c.options.Side; side != nil {
		n.work.Go(func() { side.Subscribe(ctx, sideChannel, func(string, bool) { notified() }) })
	}
	n.work.Go(func() { n.beats(ctx) })
	n.work.Go(func() { n.saves(ctx) })
	n.work.Go(func() {
		defer remove()
		n.follow(ctx)
	})
}

// Stop stops following, and deregisters the node. Lookups are still answered from the cache.
func (n *Node) Stop(ctx context.Context) {
	if n.cancel != nil {
		n.cancel()
	}
	n.work.Wait()
	select {
	case s := <-n.unsaved:
		n.keep(context.WithoutCancel(ctx), s)
	default:
	}
	if n.cancel != nil {
		n.leave(ctx)
	}
	n.directory.close()
}

// Directory looks up keys, users and tenants.
func (n *Node) Directory() identity.Directory { return n.directory }

// Lookups returns the directory's statistics by kind: api_key, user, tenant.
func (n *Node) Lookups() map[string]lookup.Stats {
	all := n.directory.caches.Load()
	return map[string]lookup.Stats{kindKey: all.keys.Stats(), kindUser: all.users.Stats(), kindTenant: all.tenants.Stats()}
}

// ID is the node's id in [Catalog.Nodes].
func (n *Node) ID() string { return n.id }

// Replicas is how many nodes are known to be alive, this one included.
func (n *Node) Replicas() int { return n.nodes.Count() }

// CountProblem describes why the nodes cannot be counted. Empty: they are.
func (n *Node) CountProblem() string { return n.nodes.Problem() }

// ask reads what has changed since a position. The first call checks or migrates the schema.
func (n *Node) ask(ctx context.Context, from position, patient bool) (news, error) {
	if n.c.replica != nil {
		return n.askEither(ctx, from, patient)
	}
	if err := n.prepare(ctx); err != nil {
		return news{}, err
	}
	return n.read(ctx, n.c.reading, from)
}

// read reads what has changed since a position.
func (n *Node) read(ctx context.Context, db *sql.DB, from position) (news, error) {
	ctx, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	return n.c.since(ctx, db, from)
}

// prepare checks or migrates the schema, unless it is known to be up to date.
func (n *Node) prepare(ctx context.Context) (err error) {
	if n.ready {
		return nil
	}
	defer func() { n.ready = err == nil }()
	ctx, cancel := context.WithTimeout(ctx, migrateLimit)
	defer cancel()
	if n.o.Migrate {
		done, err := n.c.dialect.Up(ctx, 0) // and not the record's, which must not keep it from starting
		for _, m := range done {
			n.o.Log.InfoContext(ctx, "schema migrated", "version", m.Version, "name", m.Name)
		}
		return err
	}
	s, err := n.c.Schema(ctx)
	if err == nil && s.Current < s.Latest {
		err = fmt.Errorf("the schema of the database is of version %d, and %d is needed: stint migrate up", s.Current, s.Latest)
	}
	return err
}

// Report reports the node's state to the others soon, because it has changed.
func (n *Node) Report() { nudge(n.moved) }
