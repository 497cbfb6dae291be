package catalog

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/kit/lookup"
	"github.com/stintdev/stint/rule"
)

// NodeOptions are a node's settings.
type NodeOptions struct {
	// Name is for people, and Version that of the program.
	Name, Version string
	// Poll is how often the node says that it is there, and looks for what it was not
	// told of. Default 5 s.
	Poll time.Duration
	// Migrate brings the schema up to date before it is used. Otherwise that must have been
	// done.
	Migrate bool
	// LastGood is the directory that keeps the last good rules. Empty: they are not kept.
	LastGood string
	// CacheSize is how many keys, users and tenants are remembered of each, and CacheTTL
	// for how long. Default 100,000 and 5 minutes.
	CacheSize int
	CacheTTL  time.Duration
	// State, if it is set, returns what the node says of itself, in JSON. It is asked
	// whenever the node says that it is there.
	State func() json.RawMessage
	Log   *slog.Logger // required
}

// Node is what a process serves of a catalog. Stop it.
type Node struct {
	c         *Catalog
	o         NodeOptions
	id        string
	started   time.Time
	directory *directory
	good      lastGood
	use       func(context.Context, *Snapshot) error
	wake      chan struct{}  // has room for one
	moved     chan struct{}  // likewise: there is something to tell others
	unsaved   chan *Snapshot // likewise: the last that was put to use
	replicas  atomic.Int64

	turn     sync.Mutex // of those who look
	ready    bool       // the schema is what it should be
	seen     mark       // up to which changes are known
	failed   mark       // what could not be put to use
	loaded   loaded     // the last that was read
	compiler rule.Compiler

	mu     sync.Mutex
	status NodeStatus

	cancel context.CancelFunc
	work   sync.WaitGroup
}

// NodeStatus is what a node serves, and what keeps it from serving more.
type NodeStatus struct {
	mark            // of what is served
	Since time.Time // when it came into use
	// Saved is when it was kept on disk, if it comes from there, since the database was
	// out of reach at the start.
	Saved time.Time
	// Problem is why a newer revision is not served. Empty: there is none that is known.
	Problem   string
	ProblemAt time.Time // since when
	// Away is why the database could not be asked the last time. Nil: it could.
	Away   error
	AwayAt time.Time // since when
	// Unkept is why the last good rules could not be kept on disk.
	Unkept error
	// Looks and Loads are how often it was asked what is new, and how often rules and
	// lists were read.
	Looks, Loads uint64
}

const (
	askLimit  = database.ConnectLimit // of one question
	loadLimit = 30 * time.Second      // of one that reads all rules
	// Others may be at it.
	migrateLimit = 2 * time.Minute
	// After a look comes a pause: a short one, for so many looks in a row, and a long one
	// when they are used up, each of which brings one back.
	shortPause, longPause, hasty = 20 * time.Millisecond, 400 * time.Millisecond, 10
	// After a look that failed there is another: it may have been one connection only.
	awayPause = time.Second
	// And after rules were kept on disk.
	savePause = 5 * time.Second
)

// NewNode returns a node that does nothing yet.
func (c *Catalog) NewNode(o NodeOptions) (*Node, error) {
	if o.Log == nil {
		return nil, errors.New("catalog: a node wants a Log")
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
		wake: make(chan struct{}, 1), moved: make(chan struct{}, 1), unsaved: make(chan *Snapshot, 1),
		compiler: rule.Compiler{Rest: rests()},
	}
	n.replicas.Store(1)
	return n, nil
}

// rests returns what leaves the processor to decisions for a moment, if it was not left to
// them for a while. To yield it would not do: those who wait for the network are looked for
// when there is nothing else to do.
func rests() func() {
	const moment, while = 50 * time.Microsecond, 250 * time.Microsecond
	var last time.Time
	return func() {
		if time.Since(last) > while {
			<-time.After(moment)
			last = time.Now()
		}
	}
}

// First returns the snapshot to begin with: that of the database or, if it is out of
// reach, the last one that was good.
func (n *Node) First(ctx context.Context) (*Snapshot, error) {
	n.turn.Lock()
	defer n.turn.Unlock()
	got, err := n.ask(ctx, mark{}, true)
	if err == nil && got.broken == nil {
		n.begin(got.snapshot, time.Time{})
		n.keep(ctx, got.snapshot)
		return got.snapshot, nil
	}
	if err == nil {
		err = fmt.Errorf("revision %d: %w", got.Revision, got.broken)
	}
	s, saved, unread := n.good.load()
	if unread != nil {
		return nil, fmt.Errorf("%w; and without it: %w", err, unread)
	}
	n.begin(s, saved)
	if errors.Is(err, ErrUnavailable) {
		n.away(ctx, err)
	} else {
		n.refuse(ctx, err)
	}
	n.o.Log.WarnContext(ctx, "rules as they were last good", "revision", s.Revision, "saved", saved.Format(time.RFC3339))
	return s, nil
}

// ask asks what is new, and before the first time sees to the schema.
func (n *Node) ask(ctx context.Context, served mark, anyway bool) (news, error) {
	if !n.ready {
		if err := n.prepare(ctx); err != nil {
			return news{}, err
		}
		n.ready = true
	}
	ctx, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	return n.c.since(ctx, n.seen, served, n.failed, anyway, n.loaded, &n.compiler)
}

func (n *Node) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, migrateLimit)
	defer cancel()
	if n.o.Migrate {
		done, err := n.c.Up(ctx, 0)
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

// begin serves the first snapshot.
func (n *Node) begin(s *Snapshot, saved time.Time) {
	if saved.IsZero() {
		n.seen = s.mark // or else everything is new
	}
	n.loaded = loaded{s, s.mark}
	n.directory.begin(s.mark)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.status = NodeStatus{mark: s.mark, Since: n.c.options.Now(), Saved: saved, Loads: 1}
}

// Start follows the catalog, until ctx ends or Stop is called: each new snapshot is
// given to use, whose error leaves the one before in use. First has been called.
func (n *Node) Start(ctx context.Context, use func(context.Context, *Snapshot) error) {
	n.use = use
	ctx, n.cancel = context.WithCancel(ctx)
	remove := n.c.wakers.add(n.wake)
	told := func() { nudge(n.wake) }
	n.work.Go(func() { n.c.dialect.Watch(ctx, told) })
	if side := n.c.options.Side; side != nil {
		n.work.Go(func() { side.Subscribe(ctx, sideChannel, func(string, bool) { told() }) })
	}
	n.work.Go(func() { n.beats(ctx) })
	n.work.Go(func() { n.saves(ctx) })
	n.work.Go(func() {
		defer remove()
		n.follow(ctx)
	})
}

// Stop ends that, and says that the node is gone. What is known goes on being known.
func (n *Node) Stop(ctx context.Context) {
	if n.cancel != nil {
		n.cancel()
	}
	n.work.Wait()
	if n.cancel != nil {
		n.leave(ctx)
	}
	n.directory.close()
}

// Directory knows keys, users and tenants.
func (n *Node) Directory() identity.Directory { return n.directory }

// Lookups tell how the directory does, by kind: api_key, user, tenant.
func (n *Node) Lookups() map[string]lookup.Stats {
	all := n.directory.caches.Load()
	return map[string]lookup.Stats{kindKey: all.keys.Stats(), kindUser: all.users.Stats(), kindTenant: all.tenants.Stats()}
}

// ID is what the node is called in [Catalog.Nodes].
func (n *Node) ID() string { return n.id }

// Replicas is how many nodes there are, as far as is known, itself included.
func (n *Node) Replicas() int { return int(n.replicas.Load()) }

// Status tells how things stand.
func (n *Node) Status() NodeStatus {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.status
}

// follow looks when it is told to, and every so often. A burst of changes costs few
// looks, since the pauses after them become long.
func (n *Node) follow(ctx context.Context) {
	poll := time.NewTicker(n.o.Poll)
	defer poll.Stop()
	left, since := hasty, time.Now() // short pauses, and from when on more come back
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		case <-n.wake:
		}
		n.turn.Lock()
		changed := n.look(ctx, false)
		n.turn.Unlock()
		pause := shortPause
		switch {
		case n.Status().Away != nil:
			pause = awayPause
			nudge(n.wake)
		case changed:
			nudge(n.moved)
			if back := int(time.Since(since) / longPause); back > 0 {
				left, since = min(left+back, hasty), time.Now()
			}
			if left--; left <= 0 {
				left, pause = 0, longPause
			}
		}
		wait := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
	}
}

// Look looks now, and takes what the database has, also if its revision is below the
// one that is served: someone has set it back, and means it.
func (n *Node) Look(ctx context.Context) error {
	n.turn.Lock()
	defer n.turn.Unlock()
	n.look(ctx, true)
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

// Refresh puts to use what is new, now, for one who has just written it.
func (n *Node) Refresh(ctx context.Context) error {
	n.turn.Lock()
	defer n.turn.Unlock()
	n.look(ctx, false)
	return ctx.Err()
}

// look puts to use what is new, and reports whether anything was.
func (n *Node) look(ctx context.Context, anyway bool) (changed bool) {
	n.mu.Lock()
	n.status.Looks++
	served := n.status.mark
	n.mu.Unlock()
	got, err := n.ask(ctx, served, anyway)
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		n.away(ctx, err)
		return false
	}
	n.reached(ctx)
	if got.snapshot != nil || got.broken != nil {
		n.mu.Lock()
		n.status.Loads++
		n.mu.Unlock()
	}
	switch {
	case got.back:
		n.refuse(ctx, fmt.Errorf("the database is at revision %d, and was at %d: it was set back, or is not the same; a reload (SIGHUP) serves what it has", got.Revision, n.seen.Revision))
		return false
	case got.broken != nil:
		n.failed = got.mark
		n.refuse(ctx, fmt.Errorf("revision %d: %w", got.Revision, got.broken))
	case got.snapshot != nil:
		n.put(ctx, got.snapshot)
	case got.mark != n.failed && (got.mark != served || n.Status().Problem != ""):
		n.serve(got.mark) // rules and lists are those of this revision, too, or are so again
	}
	switch {
	case got.snapshot != nil:
		n.loaded = loaded{got.snapshot, got.mark}
	case got.apart || anyway:
		n.loaded = loaded{} // it is of another history
	case got.broken == nil && got.told() && n.loaded.until == n.seen && got.mark != n.failed:
		n.loaded.until = got.mark // others have changed
	}
	changed = got.mark != n.seen
	if changed || anyway {
		n.seen = got.mark
		switch {
		case got.apart || anyway:
			n.directory.reset(got.mark)
		case got.all:
			n.directory.invalidateAll(got.mark)
		default:
			n.directory.invalidate(ctx, &got)
		}
	}
	return changed
}

// put puts a snapshot to use.
func (n *Node) put(ctx context.Context, s *Snapshot) {
	if err := n.use(ctx, s); err != nil {
		n.failed = s.mark
		n.refuse(ctx, fmt.Errorf("revision %d: %w", s.Revision, err))
		return
	}
	n.serve(s.mark)
	n.o.Log.InfoContext(ctx, "rules in use", "revision", s.Revision, "rules", s.Rules.Len())
	select {
	case <-n.unsaved: // the one before it need not be kept any more
	default:
	}
	n.unsaved <- s
}

// saves keeps snapshots on disk, and the last of them at the end. To write ten thousand
// rules takes longer than to put them to use, so of those that follow each other at once
// not all are.
func (n *Node) saves(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			select {
			case s := <-n.unsaved:
				n.keep(context.WithoutCancel(ctx), s)
			default:
			}
			return
		case s := <-n.unsaved:
			n.keep(ctx, s)
		}
		wait := time.NewTimer(savePause)
		select {
		case <-ctx.Done():
			wait.Stop()
		case <-wait.C:
		}
	}
}

// serve notes what is served, without a problem.
func (n *Node) serve(m mark) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failed = mark{}
	s := &n.status
	s.mark, s.Since, s.Saved, s.Problem, s.ProblemAt = m, n.c.options.Now(), time.Time{}, "", time.Time{}
}

// keep keeps a snapshot on disk.
func (n *Node) keep(ctx context.Context, s *Snapshot) {
	err := n.good.save(s, n.c.options.Now())
	n.mu.Lock()
	first := n.status.Unkept == nil
	n.status.Unkept = err
	n.mu.Unlock()
	if err != nil && first {
		n.o.Log.WarnContext(ctx, "the last good rules cannot be kept: without the database the next start fails", "problem", err.Error())
	}
}

// refuse notes why what the database has is not served.
func (n *Node) refuse(ctx context.Context, why error) {
	n.mu.Lock()
	again := n.status.Problem == why.Error()
	if !again {
		n.status.Problem, n.status.ProblemAt = why.Error(), n.c.options.Now()
	}
	n.mu.Unlock()
	if !again {
		n.o.Log.ErrorContext(ctx, "rules not used, those before stay in use", "problem", why.Error())
	}
}

// away notes that the database is out of reach.
func (n *Node) away(ctx context.Context, why error) {
	n.mu.Lock()
	first := n.status.Away == nil
	if first {
		n.status.AwayAt = n.c.options.Now()
	}
	n.status.Away = why
	n.mu.Unlock()
	if first {
		n.o.Log.WarnContext(ctx, "the database cannot be asked, what is known stays in use", "problem", why.Error())
	}
}

// reached notes that it is not.
func (n *Node) reached(ctx context.Context) {
	n.mu.Lock()
	before := n.status.Away
	n.status.Away, n.status.AwayAt = nil, time.Time{}
	n.mu.Unlock()
	if before != nil {
		n.o.Log.InfoContext(ctx, "the database is back")
	}
}
