package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/database"
)

// A replica is a standby of the database that is near a node, while the database may be an ocean
// away. The node reads rules, lists, users and keys there. Everything else is done in the database:
// all writes, all reads of operators, and the question of what is new, since a standby cannot be
// listened to and may be behind.
//
// This file alone decides which of the two is read: [sight.choose] for rules and lists, and
// fromReplica for users and keys. What holds:
//
//   - The node's revision never falls. What the replica has is used only if it continues the
//     history that the node has followed, by the stamps of revisions. That another history was
//     accepted counts only if the database says so.
//   - A change that the database has is waited for, for replicaWait. A replica that lacks one for
//     longer is not waited for until it has it: the database is read at once. What was written
//     through this node is never waited for.
//   - A replica is not read while its schema is older than this program needs, or while the database
//     can be asked and does not know its revision, or if it is no standby. It is never migrated.
//   - While the database is away, the replica is followed in its place, also by a node that starts.
//     What only the replica has confirmed is not kept on disk.

const (
	// replicaWait is how long a change is waited for.
	replicaWait = 2 * time.Second
	// replicaLimit is the time in which the replica says how far it is, and replicaLookupLimit that
	// of a lookup, which leaves as much for the database.
	replicaLimit, replicaLookupLimit = time.Second, lookupLimit / 2
	// firstLimit is how long a start waits for the database, if there is the replica.
	firstLimit = 2 * time.Second
)

// FieldReplica is the field of a [stint.InvalidError] about [Options].Replica.
const FieldReplica = "replica"

// replica is a standby of the database.
type replica struct {
	db     *database.DB
	latest int64 // the version of the schema that is needed
	// fit means that it can be asked for users and keys. The node says so whenever it looks.
	fit atomic.Bool
	// lacks is what the database has and the replica lacks, since a time; zero: nothing. The node's
	// looking guards both.
	lacks      mark
	lacksSince time.Time
}

// openReplica returns the replica of a database at a URL, or nil if that is empty.
func openReplica(d *database.DB, url string) (*replica, error) {
	switch {
	case url == "":
		return nil, nil
	case !d.Postgres():
		return nil, &stint.InvalidError{Field: FieldReplica, Want: "none, or a database in PostgreSQL: only that has replicas"}
	}
	latest, err := d.Latest()
	if err != nil {
		return nil, err
	}
	db, err := database.OpenReplica(url)
	if err != nil {
		return nil, &stint.InvalidError{Field: FieldReplica, Want: "the URL of a PostgreSQL standby, such as postgres://user:password@host:5432/name?sslmode=require"}
	}
	return &replica{db: db, latest: latest}, nil
}

// close closes the connections.
func (r *replica) close() error {
	if r == nil {
		return nil
	}
	return r.db.Close()
}

// replicaState is what a replica says of itself.
type replicaState struct {
	mark
	schema  int64
	standby bool
	lag     sql.NullFloat64 // in seconds
}

// askReplica is the question for it. If all that has arrived is replayed, and more can arrive, it
// is not behind, however long ago the last change was.
const askReplica = `SELECT c.revision, c.stamp, (SELECT coalesce(max(version_id), 0) FROM stint_migrations WHERE is_applied), pg_is_in_recovery(),
	CASE WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() AND EXISTS (SELECT 1 FROM pg_stat_wal_receiver WHERE pid IS NOT NULL) THEN 0
		ELSE greatest(extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()), 0) END
	FROM stint_catalog c`

// look asks the replica how far it is, within a time limit. An error means that it cannot be read.
func (r *replica) look(ctx context.Context, limit time.Duration) (s replicaState, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = r.db.Read.QueryRowContext(ctx, askReplica).Scan(&s.Revision, &s.Stamp, &s.schema, &s.standby, &s.lag)
	switch {
	case errors.Is(err, sql.ErrNoRows), r.db.NoTable(err):
		return s, errors.New("it has no tables of Stint: it is far behind, or a replica of another database")
	case err != nil:
		return s, fmt.Errorf("it cannot be read: %w", r.db.Wrap(err))
	case s.schema < r.latest:
		return s, fmt.Errorf("its schema has version %d, and %d is needed: it is behind, or the database has yet to be migrated", s.schema, r.latest)
	}
	return s, nil
}

// sight is how far the database and the replica are.
type sight struct {
	database mark
	away     error // why the database could not be asked
	replica  replicaState
	unfit    error // why the replica must not be read
	late     bool  // the replica lacks something for too long
}

// choice is where to read.
type choice int

const (
	readNothing choice = iota
	readDatabase
	readReplica
	awaitReplica
)

// choose decides where to read what is new since a position.
func (s *sight) choose(from position, patient bool) choice {
	ahead := s.unfit == nil && (s.replica.Revision > from.Revision || from.unread && s.replica.Revision == from.Revision)
	switch {
	case s.away != nil && s.unfit != nil:
		return readNothing
	case s.away != nil:
		return readReplica
	case s.database == from.mark && !from.unread:
		return readNothing
	case s.database.Revision <= from.Revision && !from.unread: // it was set back or replaced
		return readDatabase
	case from.unconfirmed:
		return readDatabase
	case ahead && s.replica.mark == s.database:
		return readReplica
	case s.unfit != nil || s.late || !patient:
		return readDatabase
	case ahead: // it has a part, and the rest soon
		return readReplica
	default:
		return awaitReplica
	}
}

// askEither is ask for a node with a replica.
func (n *Node) askEither(ctx context.Context, from position, patient bool) (got news, err error) {
	s, err := n.see(ctx, from)
	switch {
	case ctx.Err() != nil:
		return got, ctx.Err()
	case err != nil && n.c.noCatalog(err) && from.Revision > 0:
		got.refuse(from, true)
		return got, nil
	case err != nil:
		return got, err
	}
	defer func() { n.noteReplica(ctx, &s) }()
	where := s.choose(from, patient)
	if where == readReplica && from.Revision >= n.at.Revision { // unless it is to start over
		got, err = n.read(ctx, n.c.replica.db.Read, from)
		switch {
		case err == nil && got.refusal == nil && (got.extent != otherHistory || from.Revision <= 0):
			if got.away = s.away; got.Revision < s.database.Revision {
				nudge(n.wake) // for the rest
			}
			return got, nil
		case err == nil:
			s.unfit = fmt.Errorf("it is at revision %d, which does not continue revision %d in use: it is behind, or a replica of another database", got.Revision, from.Revision)
		default:
			s.unfit = err
		}
	}
	switch {
	case s.away != nil:
		return news{}, s.away
	case where == readNothing:
		return news{mark: s.database}, nil
	case where == awaitReplica:
		nudge(n.wake)
		return news{waiting: true}, nil
	}
	got, err = n.read(ctx, n.c.reading, from)
	if from.unconfirmed && err == nil && got.refusal != nil {
		return n.read(ctx, n.c.reading, nowhere) // what is in use was of another database
	}
	return got, err
}

// see asks the replica and the database how far they are. An error means that the database can be
// reached, but not be used.
func (n *Node) see(ctx context.Context, from position) (s sight, err error) {
	r, limit := n.c.replica, askLimit
	s.replica, s.unfit = r.look(ctx, n.c.limit(replicaLimit))
	if n.at.Revision < 0 && s.unfit == nil {
		limit = firstLimit
	}
	known, err := n.c.compare(ctx, &s, limit)
	if n.c.noCatalog(err) && from.Revision <= 0 && !n.ready {
		if err = n.prepare(ctx); err == nil {
			known, err = n.c.compare(ctx, &s, limit)
		}
	}
	if err == nil {
		s.judge(known)
		s.late = s.unfit == nil && r.lags(s.replica.mark, s.database, n.c.options.Now())
		if s.unfit == nil && s.replica.Revision > 0 {
			n.ready = true // it has the schema of the database
		} else {
			err = n.prepare(ctx)
		}
	}
	if errors.Is(err, ErrUnavailable) {
		s.away, err = err, nil
	}
	if ctx.Err() == nil {
		r.fit.Store(s.unfit == nil)
	}
	return s, err
}

// compare asks the database for its mark, and whether it has that of the replica.
func (c *Catalog) compare(ctx context.Context, s *sight, limit time.Duration) (known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.limit(limit))
	defer cancel()
	err = c.reading.QueryRowContext(ctx, `SELECT revision, stamp, $1::bigint = 0 OR revision = $1 AND stamp = $2 OR
			EXISTS (SELECT 1 FROM stint_changes WHERE revision = $1 AND stamp = $2) FROM stint_catalog`, s.replica.Revision, s.replica.Stamp).
		Scan(&s.database.Revision, &s.database.Stamp, &known)
	return known, c.wrap(err)
}

// errPromoted means that a replica is not one any more.
var errPromoted = errors.New("it is no standby: it was promoted, or never was one")

// judge says why the replica must not be read while the database can be.
func (s *sight) judge(known bool) {
	switch {
	case s.unfit != nil:
	case !known:
		s.unfit = fmt.Errorf("its revision %d is not one of the database, which is at %d: it is a replica of another one, or was written to", s.replica.Revision, s.database.Revision)
	case !s.replica.standby:
		s.unfit = errPromoted
	}
}

// lags reports whether the replica has lacked something of the database for replicaWait.
func (r *replica) lags(at, database mark, now time.Time) bool {
	switch {
	case at.Revision >= database.Revision:
		r.lacks, r.lacksSince = mark{}, time.Time{}
		return false
	case at.Revision >= r.lacks.Revision:
		r.lacks, r.lacksSince = database, now
	}
	return now.Sub(r.lacksSince) >= replicaWait
}

// fromReplica reads a row from the replica. It reports false if there is none to ask, or if it is
// behind what this node has followed.
func (d *directory) fromReplica(ctx context.Context, k *kind, id string) (got onSide, ok bool) {
	r := d.c.replica
	if r == nil || !r.fit.Load() {
		return got, false
	}
	ctx, cancel := context.WithTimeout(ctx, d.c.limit(replicaLookupLimit))
	defer cancel()
	got, continued, err := query(ctx, r.db.Read, k, id, d.followed())
	if err != nil {
		r.fit.Store(false) // until the node has looked
		return onSide{}, false
	}
	return got, continued || d.current(k, id, got.mark)
}

// ReplicaStatus is what is known of a replica.
type ReplicaStatus struct {
	Revision int64 // that it has
	// Behind is how many revisions it lacks, if the database could be asked. Lag is how old what it
	// has is, if it says so; otherwise it is negative.
	Behind int64
	Lag    time.Duration
	// Promoted means that this is the problem: it is a server of its own, and no standby.
	Promoted bool
	// Problem is why it is not read. Empty: it is.
	Problem   string
	ProblemAt time.Time // since when
}

// status returns what is to be known of the replica.
func (s *sight) status() ReplicaStatus {
	out := ReplicaStatus{Revision: s.replica.Revision, Lag: -1, Promoted: errors.Is(s.unfit, errPromoted)}
	if s.away == nil {
		out.Behind = max(0, s.database.Revision-s.replica.Revision)
	}
	if s.replica.lag.Valid {
		out.Lag = time.Duration(s.replica.lag.Float64 * float64(time.Second))
	}
	switch {
	case s.unfit != nil:
		out.Problem = s.unfit.Error()
	case s.late:
		out.Problem = fmt.Sprintf("it is behind: it is at revision %d, and the database at %d", s.replica.Revision, s.database.Revision)
	}
	return out
}

// noteReplica records what a look has found out about the replica.
func (n *Node) noteReplica(ctx context.Context, s *sight) {
	next := s.status()
	n.mu.Lock()
	before := ReplicaStatus{}
	if n.status.Replica != nil {
		before = *n.status.Replica
	}
	if next.Problem != "" {
		if next.ProblemAt = before.ProblemAt; before.Problem == "" {
			next.ProblemAt = n.c.options.Now()
		}
	}
	n.status.Replica = &next
	n.mu.Unlock()
	switch {
	case before.Problem == "" && next.Problem != "":
		n.o.Log.WarnContext(ctx, "the replica of the database is not read", "problem", next.Problem)
	case before.Problem != "" && next.Problem == "":
		n.o.Log.InfoContext(ctx, "the replica of the database is read again", "revision", next.Revision)
	}
}

// CheckReplica returns what is known of the replica, or nil if there is none. An error means that
// the database could not be asked, so that the two could not be compared.
func (c *Catalog) CheckReplica(ctx context.Context) (*ReplicaStatus, error) {
	if c.replica == nil {
		return nil, nil
	}
	var s sight
	s.replica, s.unfit = c.replica.look(ctx, c.limit(replicaLimit))
	var known bool
	if known, s.away = c.compare(ctx, &s, askLimit); s.away == nil {
		s.judge(known)
	}
	out := s.status()
	return &out, s.away
}
