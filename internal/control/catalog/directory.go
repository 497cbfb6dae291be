package catalog

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/lookup"
)

// directory looks up keys, users and tenants, and caches them: in this process and, if the
// catalog has a side, there for all nodes.
//
// A value from the side was read at some mark, by any node, and one from the replica may be behind.
// Such a value is used only if this node knows its mark, and no later change of the value; or, of
// the replica, if that continues the history of this node. So it is never older than what this
// node has followed, and never of another history or database.
type directory struct {
	c    *Catalog
	size int
	ttl  time.Duration
	// caches are replaced when the database has another history.
	caches    atomic.Pointer[caches]
	sidePause atomic.Int64 // the side is not asked before this time

	mu     sync.Mutex
	logged mark             // the last one in the log that the node has followed
	stamps map[int64]string // of the revisions that are known
	recent map[string]int64 // the revisions that changed something lately, by kind and id
}

type caches struct {
	keys    *lookup.Cache[known[APIKey, identity.Key]]
	users   *lookup.Cache[known[User, identity.User]]
	tenants *lookup.Cache[known[Tenant, identity.Tenant]]
}

// known is the result of a lookup: the stored record and its current value, or why it cannot
// be read.
type known[T, I any] struct {
	stored T
	value  *I
	err    error
}

const (
	lookupLimit = time.Second
	sideLimit   = 50 * time.Millisecond
	sidePause   = time.Second // after a failure
	sideTTL     = 10 * time.Minute
	maxRecent   = 100_000 // entries of stamps, and of recent
)

var (
	_ identity.Directory = (*directory)(nil)
	_ identity.KnownKeys = (*directory)(nil)
)

func (c *Catalog) newDirectory(size int, ttl time.Duration) (*directory, error) {
	d := &directory{c: c, size: size, ttl: ttl, stamps: map[int64]string{}, recent: map[string]int64{}}
	all, err := d.newCaches()
	d.caches.Store(all)
	return d, err
}

func (d *directory) newCaches() (*caches, error) {
	unchanging := func(t *Tenant, _ time.Time) (*identity.Tenant, time.Time) { return t.identity(), time.Time{} }
	keys, err1 := newCache(d, &d.c.APIKeys.kind, (*APIKey).at)
	users, err2 := newCache(d, &d.c.Users.kind, (*User).at)
	tenants, err3 := newCache(d, &d.c.Tenants.kind, unchanging)
	return &caches{keys, users, tenants}, errors.Join(err1, err2, err3)
}

func newCache[T, I any](d *directory, k *kind, at func(*T, time.Time) (*I, time.Time)) (*lookup.Cache[known[T, I]], error) {
	return lookup.New(lookup.Options[known[T, I]]{
		Size: d.size, TTL: d.ttl, NegativeTTL: min(d.ttl, time.Minute), MaxStale: 24 * time.Hour, Timeout: d.c.limit(lookupLimit), Now: d.c.clock,
		Load: func(ctx context.Context, id string) (lookup.Answer[known[T, I]], error) {
			if !identity.ValidID(id) {
				// No database can store it, and some fail to look it up.
				return lookup.Answer[known[T, I]]{Revision: math.MaxInt64}, nil
			}
			row, err := d.load(ctx, k, id)
			a := lookup.Answer[known[T, I]]{Revision: row.Revision}
			if err != nil || row.Body == nil {
				return a, err
			}
			a.Value = new(known[T, I])
			if err := json.Unmarshal(row.Body, &a.Value.stored); err != nil {
				a.Value.err = &unreadableError{k.name, id, err}
				return a, nil
			}
			a.Value.value, a.Until = at(&a.Value.stored, d.c.options.Now())
			return a, nil
		},
		Rebuild: func(v *known[T, I], now time.Time) (*known[T, I], time.Time) {
			next := &known[T, I]{stored: v.stored}
			var until time.Time
			next.value, until = at(&next.stored, now)
			return next, until
		},
	})
}

// get looks up an id, and does so again if the caches were replaced meanwhile.
func get[T, I any](ctx context.Context, d *directory, of func(*caches) *lookup.Cache[known[T, I]], id string) (*I, error) {
	for {
		all := d.caches.Load()
		v, err := of(all).Get(ctx, id)
		switch {
		case err != nil && all != d.caches.Load():
		case err != nil || v == nil:
			return nil, err
		default:
			return v.value, v.err
		}
	}
}

// Key implements [identity.Directory].
func (d *directory) Key(ctx context.Context, id string) (*identity.Key, error) {
	return get(ctx, d, func(c *caches) *lookup.Cache[known[APIKey, identity.Key]] { return c.keys }, id)
}

// KnownKey implements [identity.KnownKeys].
func (d *directory) KnownKey(ctx context.Context, id string) (*identity.Key, bool, error) {
	all := d.caches.Load()
	v, known, err := all.keys.Known(ctx, id)
	switch {
	case !known || all != d.caches.Load():
		return nil, false, nil
	case err != nil || v == nil:
		return nil, true, err
	default:
		return v.value, true, v.err
	}
}

// User implements [identity.Directory].
func (d *directory) User(ctx context.Context, id string) (*identity.User, error) {
	return get(ctx, d, func(c *caches) *lookup.Cache[known[User, identity.User]] { return c.users }, id)
}

// Tenant implements [identity.Directory].
func (d *directory) Tenant(ctx context.Context, id string) (*identity.Tenant, error) {
	return get(ctx, d, func(c *caches) *lookup.Cache[known[Tenant, identity.Tenant]] { return c.tenants }, id)
}

// onSide is a row as the side holds it, with the mark that it was read at.
type onSide struct {
	mark
	Body json.RawMessage `json:"body,omitempty"` // nil: there is no row
}

func sideName(kind, id string) string { return "directory:" + kind + ":" + id }

// load reads a row, from the side, the replica or the database.
func (d *directory) load(ctx context.Context, k *kind, id string) (got onSide, err error) {
	if got, ok := d.fromSide(ctx, k, id); ok {
		return got, nil
	}
	got, ok := d.fromReplica(ctx, k, id)
	if !ok {
		if got, err = d.fromDatabase(ctx, k, id); err != nil {
			return onSide{}, err
		}
	}
	if d.sideUp() {
		if packed, err := json.Marshal(got); err == nil {
			writing, cancel := context.WithTimeout(ctx, d.c.limit(sideLimit))
			defer cancel()
			d.noteSide(d.c.options.Side.Set(writing, sideName(k.name, id), packed, sideTTL)) // if it fails, the next lookup asks the database
		}
	}
	return got, nil
}

// fromDatabase reads a row from the database.
func (d *directory) fromDatabase(ctx context.Context, k *kind, id string) (onSide, error) {
	at := d.followed()
	got, continued, err := query(ctx, d.c.reading, k, id, at)
	if at.Revision > 0 && (d.c.noCatalog(err) || err == nil && !continued) {
		// The node refuses it, or will as soon as it looks: an emptied database knows no keys.
		return onSide{}, fmt.Errorf("%w: %w", ErrUnavailable, &HistoryError{Revision: got.Revision, Served: at.Revision, tables: err != nil})
	}
	return got, d.c.wrap(err)
}

// followed returns the last mark in the log that the node has followed.
func (d *directory) followed() mark {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.logged
}

// query reads a row, and reports whether where it was read continues the history after a mark.
func query(ctx context.Context, db *sql.DB, k *kind, id string, at mark) (got onSide, continued bool, err error) {
	var text sql.NullString
	err = db.QueryRowContext(ctx, `SELECT c.revision, c.stamp, t.body,
			c.revision >= $2 AND EXISTS (SELECT 1 FROM stint_changes WHERE revision = $2 AND stamp = $3)
		FROM stint_catalog c LEFT JOIN `+k.table+" t ON t.id = $1", id, at.Revision, at.Stamp).
		Scan(&got.Revision, &got.Stamp, &text, &continued)
	if text.Valid {
		got.Body = []byte(text.String)
	}
	return got, continued, err
}

// sideUp reports whether to ask the side. After a failure it is not asked for a moment, or
// each lookup would wait for it.
func (d *directory) sideUp() bool {
	return d.c.options.Side != nil && d.c.options.Now().UnixNano() >= d.sidePause.Load()
}

func (d *directory) noteSide(err error) {
	if err != nil {
		d.sidePause.Store(d.c.options.Now().Add(sidePause).UnixNano())
	}
}

func (d *directory) fromSide(ctx context.Context, k *kind, id string) (got onSide, ok bool) {
	if !d.sideUp() {
		return got, false
	}
	ctx, cancel := context.WithTimeout(ctx, d.c.limit(sideLimit))
	defer cancel()
	packed, ok, err := d.c.options.Side.Get(ctx, sideName(k.name, id))
	d.noteSide(err)
	if err != nil || !ok || json.Unmarshal(packed, &got) != nil {
		return got, false
	}
	return got, d.current(k, id, got.mark)
}

// current reports whether what was read at a mark is what this node has followed: it knows the
// mark, and no later change.
func (d *directory) current(k *kind, id string, at mark) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	stamp, ok := d.stamps[at.Revision]
	return ok && stamp == at.Stamp && at.Revision >= d.recent[k.name+":"+id]
}

// begin sets the mark from which the node knows all changes, and the last one in the log.
func (d *directory) begin(at, logged mark) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.start(at)
	d.logged = logged
}

// start is begin for callers that hold the lock.
func (d *directory) start(at mark) {
	clear(d.recent)
	clear(d.stamps)
	d.stamps[at.Revision] = at.Stamp
}

// follow invalidates everything that has changed.
func (d *directory) follow(ctx context.Context, n *news) {
	switch n.extent {
	case listed:
		d.invalidate(ctx, n)
	case anything:
		d.begin(n.mark, n.logged)
		all := d.caches.Load()
		all.keys.InvalidateAll(n.Revision)
		all.users.InvalidateAll(n.Revision)
		all.tenants.InvalidateAll(n.Revision)
	case otherHistory:
		d.begin(n.mark, n.logged)
		if next, err := d.newCaches(); err == nil { // the options were valid the first time
			d.caches.Swap(next).close()
		}
	case refused: // nothing was read
	}
}

// invalidate drops the ids that have changed from the caches.
func (d *directory) invalidate(ctx context.Context, n *news) {
	d.mu.Lock()
	maps.Copy(d.stamps, n.stamps)
	d.logged = n.logged
	var names []string
	for _, kind := range []string{kindKey, kindUser, kindTenant} {
		for _, id := range n.ids[kind] {
			d.recent[kind+":"+id] = n.Revision
			names = append(names, sideName(kind, id))
		}
	}
	if max(len(d.recent), len(d.stamps)) > maxRecent {
		d.start(n.mark)
	}
	d.mu.Unlock()
	all := d.caches.Load()
	all.keys.Invalidate(n.Revision, n.ids[kindKey]...)
	all.users.Invalidate(n.Revision, n.ids[kindUser]...)
	all.tenants.Invalidate(n.Revision, n.ids[kindTenant]...)
	if side := d.c.options.Side; side != nil && len(names) > 0 {
		ctx, cancel := context.WithTimeout(ctx, d.c.limit(lookupLimit))
		defer cancel()
		_ = side.Delete(ctx, names...) // only to free memory: they are out of date
	}
}

func (d *directory) close() { d.caches.Load().close() }

func (c *caches) close() {
	c.keys.Close()
	c.users.Close()
	c.tenants.Close()
}
