package catalog_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/wait"
)

// pair is a database, and a standby that is near.
type pair struct {
	database, standby *testpostgres.Server
	url, near         string
	c                 *catalog.Catalog // the writer, elsewhere
	link              *testserver.Proxy
	far               string // the URL of the database over the link
	patience          time.Duration
}

// newPair starts a database with some content, and its standby.
func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{database: testpostgres.Start(t)}
	p.url = p.database.Database(t)
	p.c = furnished(t, p.url)
	p.standBy(t)
	return p
}

// standBy starts the standby.
func (p *pair) standBy(t *testing.T) {
	t.Helper()
	p.standby = p.database.Standby(t)
	p.near = strings.Replace(p.url, p.database.Addr(), p.standby.Addr(), 1)
	p.link = testserver.StartProxy(t, p.database.Addr())
	p.far = strings.Replace(p.url, p.database.Addr(), p.link.Addr(), 1)
}

// follow starts a node near the standby.
func (p *pair) follow(t *testing.T, o catalog.NodeOptions) *follower {
	t.Helper()
	o.Poll = cmp.Or(o.Poll, 4*often)
	return follow(t, p.far, catalog.Options{Replica: p.near, Patience: p.patience}, o)
}

// pause has the standby stay as it is, with all that was written so far.
func (p *pair) pause(t *testing.T) {
	t.Helper()
	p.level(t)
	testpostgres.Exec(t, p.standby.URL(), "select pg_wal_replay_pause()")
	wait.Nil(t, "that the standby pauses", func() error {
		if got := testpostgres.Exec(t, p.standby.URL(), "select pg_get_wal_replay_pause_state()")[0][0]; got != "paused" {
			return errors.New("replay is " + got)
		}
		return nil
	})
}

func (p *pair) resume(t *testing.T) {
	t.Helper()
	testpostgres.Exec(t, p.standby.URL(), "select pg_wal_replay_resume()")
}

// level waits until the standby has all that was written.
func (p *pair) level(t *testing.T) {
	t.Helper()
	at := testpostgres.Exec(t, p.url, "select pg_current_wal_lsn()")[0][0]
	wait.Nil(t, "the standby", func() error {
		if testpostgres.Exec(t, p.standby.URL(), "select pg_last_wal_replay_lsn() >= '"+at+"'")[0][0] != "t" {
			return errors.New("the standby is behind")
		}
		return nil
	})
}

// hide writes a user that the change log does not mention, so that it tells where it was read.
func (p *pair) hide(t *testing.T, id string) {
	t.Helper()
	testpostgres.Exec(t, p.url, fmt.Sprintf(`insert into stint_users (id, body, version, created_at, updated_at, updated_by)
		select '%[1]s', jsonb_set(body, '{id}', '"%[1]s"'), version, created_at, updated_at, updated_by from stint_users where id = 'ann'`, id))
}

// replica waits until a node says of the replica what it should; empty: that it is read.
func (f *follower) replica(t *testing.T, problem string) {
	t.Helper()
	wait.Nil(t, "the state of the replica", func() error {
		switch r := f.Status().Replica; {
		case r == nil:
			return errors.New("nothing is known of the replica")
		case (r.Problem == "") != (problem == "") || !strings.Contains(r.Problem, problem):
			return fmt.Errorf("the replica: %q, want %q; %+v", r.Problem, problem, r)
		case (problem == "") != r.ProblemAt.IsZero():
			return fmt.Errorf("%q since %v", r.Problem, r.ProblemAt)
		}
		return nil
	})
}

// gone waits until a node finds the database away.
func (f *follower) gone(t *testing.T) {
	t.Helper()
	wait.Nil(t, "that the database is missed", func() error {
		if f.Status().Away == nil {
			return errors.New("it has not noticed")
		}
		return nil
	})
}

// rises checks that no snapshot was put to use after a later one.
func (f *follower) rises(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, s := range f.used[1:] {
		if s.Revision <= f.used[i].Revision {
			t.Errorf("revision %d was put to use after %d", s.Revision, f.used[i].Revision)
		}
	}
}

// TestReplicaRead follows with a user of the database who may read no rules and no users there.
func TestReplicaRead(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	testpostgres.Exec(t, p.url, `create role far login;
		grant select on stint_catalog, stint_changes to far; grant select, insert, update, delete on stint_nodes to far`)
	p.level(t)
	p.far = strings.Replace(p.far, "postgres@", "far@", 1)
	if _, err := newFollower(t, p.far, catalog.Options{}, catalog.NodeOptions{}).First(t.Context()); err == nil {
		t.Fatal("without the replica it starts, too")
	}
	f := p.follow(t, catalog.NodeOptions{Migrate: true})
	f.replica(t, "")
	f.knows(t, "ann", "iron")
	for i := range 5 {
		f.serves(t, ban(t, p.c, fmt.Sprintf("eve%d", i)))
	}
	f.serves(t, grade(t, p.c, "ann", "gold"))
	f.knows(t, "ann", "gold")
	if s := f.last(); !banned(s, "eve4") || f.Status().Away != nil {
		t.Errorf("not all is in use: %+v", f.Status())
	}
	f.rises(t)
	wait.Nil(t, "how far the replica is", func() error {
		if r := f.Status().Replica; r.Behind != 0 || r.Lag < 0 || r.Promoted {
			return fmt.Errorf("the replica: %+v", r)
		}
		return nil
	})
}

// TestReplicaBehind stops the standby where it is: changes arrive all the same, and nothing that
// is older than they are is used.
func TestReplicaBehind(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	_, key, _, err := p.c.CreateKey(t.Context(), writer, catalog.APIKey{User: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	revoked := key.ID
	f := p.follow(t, catalog.NodeOptions{})
	f.replica(t, "")
	if k, err := f.Directory().Key(t.Context(), revoked); err != nil || k == nil {
		t.Fatalf("the key: %v, %v", k, err)
	}
	p.pause(t)
	p.hide(t, "zoe")

	// What was written here is in use here at once.
	revision := ban(t, f.c, "eve")
	if got, err := f.c.Bans.Get(t.Context(), "user:eve"); err != nil || got.Version != revision {
		t.Errorf("read back: %+v, %v", got, err)
	}
	if err := f.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.Status().Revision; got < revision || !banned(f.last(), "eve") {
		t.Errorf("it serves %d after a write of revision %d", got, revision)
	}
	_, key, _, err = f.c.CreateKey(t.Context(), writer, catalog.APIKey{User: "ann"})
	if err == nil {
		err = f.Refresh(t.Context())
	}
	if k, lookup := f.Directory().Key(t.Context(), key.ID); err != nil || lookup != nil || k == nil {
		t.Errorf("a key that was created here: %v, %v, %v", k, err, lookup)
	}
	f.replica(t, "it is behind: it is at revision 2, and the database at 4")

	// Once it is late, it is not waited for.
	version, err := p.c.APIKeys.Get(t.Context(), revoked)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.c.APIKeys.Delete(t.Context(), writer, revoked, version.Version); err != nil {
		t.Fatal(err)
	}
	f.serves(t, 5)
	if k, err := f.Directory().Key(t.Context(), revoked); err != nil || k != nil {
		t.Errorf("a revoked key: %v, %v", k, err)
	}
	_, key, _, err = p.c.CreateKey(t.Context(), writer, catalog.APIKey{User: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	f.serves(t, 6)
	if k, err := f.Directory().Key(t.Context(), key.ID); err != nil || k == nil {
		t.Errorf("a key that was created elsewhere: %v, %v", k, err)
	}
	// What has not changed since is still read there.
	if got := f.tierOf(t, "zoe"); got != "no such user" {
		t.Errorf("a user whom the replica lacks has the tier %q", got)
	}
	f.knows(t, "ben", "iron")

	p.resume(t)
	f.replica(t, "")
	p.pause(t)
	start := time.Now()
	f.serves(t, ban(t, p.c, "mallory"))
	if took := time.Since(start); took < catalog.ReplicaWait {
		t.Errorf("served after %v, though the replica has a time of %v", took, catalog.ReplicaWait)
	}
	p.resume(t)
	f.replica(t, "")
	f.rises(t)
}

// TestReplicaAway takes the standby away, and gives it back.
func TestReplicaAway(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.patience = hasty
	f := p.follow(t, catalog.NodeOptions{})
	f.replica(t, "")
	for i, step := range []struct{ away, back func() }{
		{func() { p.standby.Kill(t) }, func() { p.standby.Restart(t) }},
		{func() { p.standby.Pause(t) }, func() { p.standby.Resume(t) }},
	} {
		step.away()
		f.serves(t, ban(t, p.c, fmt.Sprintf("eve%d", i)))
		f.knows(t, []string{"ann", "ben"}[i], "iron")
		f.replica(t, "it cannot be read: the database is out of reach")
		if err := f.Status().Away; err != nil {
			t.Errorf("the database is away, too: %v", err)
		}
		p.follow(t, catalog.NodeOptions{}).stop() // it starts without it
		step.back()
		f.replica(t, "")
	}
	f.rises(t)
}

// TestReplicaAlone takes the database away: the standby is read, by nodes that run and by those
// that start, and none goes back.
func TestReplicaAlone(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	kept, fresh := t.TempDir(), t.TempDir()
	f := p.follow(t, catalog.NodeOptions{LastGood: kept})
	f.replica(t, "")
	p.link.Set(t, testserver.Fault{Refuse: true})
	f.gone(t)
	f.replica(t, "")
	f.knows(t, "ben", "iron") // who was never asked for
	f.serves(t, ban(t, p.c, "eve"))
	f.stop()
	for _, dir := range []string{kept, fresh} {
		f = p.follow(t, catalog.NodeOptions{LastGood: dir, Migrate: true})
		if s := f.Status(); s.Revision != 2 || !s.Saved.IsZero() || s.Away == nil || !banned(f.last(), "eve") {
			t.Errorf("started from the replica: %+v", s)
		}
		f.knows(t, "ann", "iron")
		f.serves(t, 2)
		f.stop()
	}
	if files, err := os.ReadDir(fresh); err != nil || len(files) > 0 {
		t.Errorf("what nobody has confirmed is on disk: %v, %v", files, err)
	}
	// Both are away.
	f = p.follow(t, catalog.NodeOptions{LastGood: fresh})
	p.standby.Kill(t)
	f.replica(t, "it cannot be read")
	f.serves(t, 2)
	p.standby.Restart(t)
	f.replica(t, "")
	// The database is back, and confirms it.
	p.link.Set(t, testserver.Fault{})
	wait.Nil(t, "the database", func() error { return f.Status().Away })
	p.pause(t)
	f.serves(t, ban(t, p.c, "mallory"))
	f.rises(t)
	f.stop()
	// What is on disk is later than what the standby has.
	p.link.Set(t, testserver.Fault{Refuse: true})
	f = p.follow(t, catalog.NodeOptions{LastGood: fresh})
	f.replica(t, "it is at revision 2, which does not continue revision 3 in use")
	if s := f.Status(); s.Revision != 3 || s.Saved.IsZero() || !banned(f.last(), "mallory") {
		t.Errorf("started without both: %+v", s)
	}
	if _, err := f.Directory().User(t.Context(), "ann"); !errors.Is(err, catalog.ErrUnavailable) { // she may have changed since
		t.Errorf("a user as of an older revision: %v", err)
	}
	if err := f.Look(t.Context()); !errors.Is(err, catalog.ErrUnavailable) || f.Status().Revision != 3 { // only the database can be accepted
		t.Errorf("a reload: %v, and it serves %d", err, f.Status().Revision)
	}
	p.resume(t)
	f.replica(t, "")
	f.rises(t)
}

// TestReplicaOfAnother names a server as the replica that is one of another database.
func TestReplicaOfAnother(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	other := newPair(t)
	p.near = other.near
	f := p.follow(t, catalog.NodeOptions{})
	f.replica(t, "its revision 1 is not one of the database, which is at 1: it is a replica of another one")
	f.serves(t, ban(t, p.c, "eve"))
	f.knows(t, "ann", "iron")
	p.link.Set(t, testserver.Fault{Refuse: true})
	f.gone(t)
	f.replica(t, "it is at revision 1, which does not continue revision 2 in use")
	ban(t, other.c, "u1")
	ban(t, other.c, "u2")
	f.replica(t, "it is at revision 3, which does not continue revision 2 in use")
	accept(t, other.c) // which is said of another database
	f.replica(t, "it is at revision 4, which does not continue revision 2 in use")
	if s := f.Status(); s.Revision != 2 || s.Refused {
		t.Errorf("it follows another database: %+v", s)
	}
	f.stop()
	// One that knows nothing has to believe it, until the database says otherwise.
	f = p.follow(t, catalog.NodeOptions{LastGood: t.TempDir()})
	f.serves(t, 4)
	p.link.Set(t, testserver.Fault{})
	f.serves(t, 2)
	f.replica(t, "its revision 4 is not one of the database, which is at 2")
	if s := f.last(); !banned(s, "eve") || banned(s, "u1") {
		t.Error("what is in use is not that of the database")
	}
}

// TestReplicaPromoted makes a server of its own of the standby.
func TestReplicaPromoted(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	f := p.follow(t, catalog.NodeOptions{})
	f.replica(t, "")
	p.standby.Promote(t)
	f.replica(t, "it is no standby")
	f.serves(t, ban(t, p.c, "eve"))
	// Without the database it is followed, by those in whose history it is.
	p.link.Set(t, testserver.Fault{Refuse: true})
	f.gone(t)
	f.replica(t, "it is at revision 1, which does not continue revision 2 in use")
	first := p.follow(t, catalog.NodeOptions{})
	first.serves(t, ban(t, open(t, p.near), "mallory"))
	f.replica(t, "it is at revision 2, which does not continue revision 2 in use")
	p.link.Set(t, testserver.Fault{})
	f.replica(t, "its revision 2 is not one of the database, which is at 2")
	wait.Nil(t, "the ban of the database", func() error {
		if s := first.last(); s.Revision != 2 || !banned(s, "eve") || banned(s, "mallory") {
			return errors.New("what is in use is not that of the database")
		}
		return nil
	})
	if !banned(f.last(), "eve") {
		t.Error("the ban is not in use any more")
	}
}

// TestReplicaSchema migrates the database, which the standby learns later.
func TestReplicaSchema(t *testing.T) {
	t.Parallel()
	p := &pair{database: testpostgres.Start(t)}
	p.url = p.database.Database(t)
	p.c = connect(t, p.url)
	schema, err := p.c.Schema(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := schema.Migrations[len(schema.Migrations)-2].Version
	p.standBy(t)
	f := p.follow(t, catalog.NodeOptions{Migrate: true})
	f.replica(t, "")
	f.stop()
	if _, err := p.c.Down(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	f.serves(t, 0)
	p.pause(t)
	old := newFollower(t, p.far, catalog.Options{Replica: p.near}, catalog.NodeOptions{})
	if _, err := old.First(t.Context()); err == nil || !strings.Contains(err.Error(), "stint migrate up") {
		t.Errorf("without migrating: %v", err)
	}
	f = p.follow(t, catalog.NodeOptions{Migrate: true})
	f.replica(t, fmt.Sprintf("its schema has version %d, and %d is needed", before, schema.Latest))
	f.serves(t, ban(t, p.c, "eve"))
	p.resume(t)
	f.replica(t, "")
	if got, err := p.c.Schema(t.Context()); err != nil || got.Current != schema.Latest {
		t.Errorf("the schema: %+v, %v", got, err)
	}
}

// TestChoose is the table of where rules and lists are read.
func TestChoose(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		catalog.Sights
		want string // of a patient look
		soon string // of one that does not wait
	}{
		{"nothing is new", catalog.Sights{From: 5, Database: 5, Replica: 5}, "nothing", "nothing"},
		{"nothing is new, and the replica is behind", catalog.Sights{From: 5, Database: 5, Replica: 3}, "nothing", "nothing"},
		{"both have it", catalog.Sights{From: 5, Database: 6, Replica: 6}, "replica", "replica"},
		{"the replica has a part", catalog.Sights{From: 5, Database: 8, Replica: 6}, "replica", "database"},
		{"the replica lacks it", catalog.Sights{From: 5, Database: 6, Replica: 5}, "wait", "database"},
		{"the replica is behind the node", catalog.Sights{From: 5, Database: 6, Replica: 4}, "wait", "database"},
		{"the replica is late", catalog.Sights{From: 5, Database: 6, Replica: 5, Late: true}, "database", "database"},
		{"the replica has a part, and is late", catalog.Sights{From: 5, Database: 8, Replica: 6, Late: true}, "database", "database"},
		{"the replica is unfit", catalog.Sights{From: 5, Database: 6, Replica: 6, Unfit: true}, "database", "database"},
		{"the database was set back", catalog.Sights{From: 5, Database: 3, Replica: 5}, "database", "database"},
		{"the database was set back, and the replica has followed", catalog.Sights{From: 5, Database: 3, Replica: 3}, "database", "database"},
		{"a start", catalog.Sights{From: 5, Unread: true, Database: 5, Replica: 5}, "replica", "replica"},
		{"a start that knows nothing", catalog.Sights{From: -1, Unread: true, Database: 5, Replica: 5}, "replica", "replica"},
		{"a start, and the replica is behind", catalog.Sights{From: 5, Unread: true, Database: 5, Replica: 4}, "wait", "database"},
		{"the database is away", catalog.Sights{From: 5, Away: true, Replica: 6}, "replica", "replica"},
		{"both are away", catalog.Sights{From: 5, Away: true, Unfit: true}, "nothing", "nothing"},
		{"what is in use is not confirmed", catalog.Sights{From: 5, Unconfirmed: true, Database: 6, Replica: 6}, "database", "database"},
	} {
		if got := row.Choose(true); got != row.want {
			t.Errorf("%s: it reads %s, want %s", row.name, got, row.want)
		}
		if got := row.Choose(false); got != row.soon {
			t.Errorf("%s, at once: it reads %s, want %s", row.name, got, row.soon)
		}
	}
}
