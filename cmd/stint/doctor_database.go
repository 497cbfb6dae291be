package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/kit/disk"
)

// database checks the database, and the rules in it.
func (d *doctor) database(ctx context.Context, c *daemon.Config) {
	if c.Server.Database == "" {
		d.note("database", findOK, "there is none: rules are in the config file, and decisions are not recorded", "")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	k, err := c.OpenCatalog(nil)
	if err != nil {
		d.note("database", findFail, err.Error(), "sqlite:/var/lib/stint/stint.db, or postgres://...")
		return
	}
	defer k.Close()
	hint := tryDatabase + c.Server.Database.String()
	if missingFile(c) {
		d.note("database.reach", findWarn, c.Server.Database.String()+" does not exist yet", "stint migrate up, or stint serve, to create it")
		return
	}
	err = k.Ping(ctx)
	d.result("database.reach", err, c.Server.Database.String()+" can be reached", hint)
	d.replica(ctx, c, k)
	if err != nil || !d.schema(ctx, k) {
		return
	}
	db := k.Database()
	d.clock(ctx, db)
	// This changes nothing, but fails if writing is not possible.
	_, err = db.Write.ExecContext(ctx, "UPDATE stint_catalog SET revision = revision WHERE 1 = 0")
	d.result("database.write", err, "it can be written to", "a user with write permission, and a database that is not a replica and has free space")
	d.notifications(ctx, db)
	d.room(c, db)
	if err := k.CheckHistory(ctx, c.LastGood(d.environ)); err != nil {
		d.note("database.history", findFail, "a node that starts here keeps its last good rules: "+err.Error(), tryAccept)
	} else {
		d.note("database.history", findOK, "nothing is known that it lacks", "")
	}
	document, err := k.Export(ctx, catalog.ExportOptions{})
	if err != nil {
		d.note("rules", findFail, err.Error(), hint)
		return
	}
	document.Case = c.Case
	d.rules(&document.File, c.World())
	d.file = document.File
	d.nodes(ctx, k, c.Region.Name)
}

// replica checks the replica of the database.
func (d *doctor) replica(ctx context.Context, c *daemon.Config, k *catalog.Catalog) {
	if c.Server.ReadReplica == "" {
		return
	}
	const check = "database.replica"
	r, away := k.CheckReplica(ctx)
	at := fmt.Sprintf("%s is at revision %d", c.Server.ReadReplica, r.Revision)
	switch {
	case r.Promoted:
		d.note(check, findWarn, c.Server.ReadReplica.String()+" is no standby: nodes read it only while the database is away, and if it continues what they have in use", "a standby of server.database, made with pg_basebackup --write-recovery-conf")
		return
	case r.Problem != "":
		d.note(check, findFail, c.Server.ReadReplica.String()+": "+r.Problem, "a standby of server.database that can be reached from this machine, and the same name of the database in both URLs")
		return
	case away != nil:
		d.note(check, findWarn, at+"; it cannot be compared with the database, which is out of reach", "again, when the database is back")
		return
	}
	lag := "it does not say how old that is"
	if r.Lag >= 0 {
		lag = fmt.Sprintf("%.1f s old", r.Lag.Seconds())
	}
	text := fmt.Sprintf("%s, %d behind the database, and %s", at, r.Behind, lag)
	const most = 10 * time.Second
	if r.Behind > 0 || r.Lag > most {
		d.note(check, findWarn, text+": nodes wait for it, and then read from the database", "again in a moment; then its log, and pg_stat_replication of the database")
		return
	}
	d.note(check, findOK, text, "")
}

// room checks that the disk has room for the record, and so for everything else.
func (d *doctor) room(c *daemon.Config, db *database.DB) {
	file := db.Record.File()
	free, ok := disk.Free(file)
	if file == "" || !ok || !c.Server.Record.Enabled {
		return
	}
	text := fmt.Sprintf("the disk of %s has %d bytes left, and server.record.min_free is %d", file, free, c.Server.Record.MinFree)
	if free < c.Server.Record.MinFree {
		d.note("record.room", findWarn, text+": decisions are not recorded", "more space, or a smaller server.record.max_size")
		return
	}
	d.note("record.room", findOK, text, "")
}

// schema reports whether the schema is recent enough for further checks.
func (d *doctor) schema(ctx context.Context, k *catalog.Catalog) bool {
	s, err := k.Schema(ctx)
	switch {
	case err != nil:
		d.note("database.schema", findFail, err.Error(), "a user with read permission on all tables named stint_...")
		return false
	case s.Current < s.Latest:
		d.note("database.schema", findWarn, fmt.Sprintf("the schema has version %d, and this version of stint needs %d", s.Current, s.Latest), tryMigrate+"; or stint serve, which migrates unless server.catalog.migrate is false")
		return false
	case s.Current > s.Latest:
		d.note("database.schema", findOK, fmt.Sprintf("the schema has version %d, newer than %d of this version of stint, which can use it", s.Current, s.Latest), "")
	default:
		d.note("database.schema", findOK, fmt.Sprintf("the schema has version %d, the latest", s.Current), "")
	}
	return true
}

// clock compares the clock of the database with the local one.
func (d *doctor) clock(ctx context.Context, db *database.DB) {
	var at database.Stamp
	before := now()
	err := db.Read.QueryRowContext(ctx, "SELECT "+db.Now()).Scan(&at)
	after := now()
	if err != nil {
		d.note("database.clock", findFail, err.Error(), "")
		return
	}
	apart := at.Sub(before.Add(after.Sub(before) / 2)).Abs()
	d.clocks("database.clock", "the clocks of the database and this machine", apart-after.Sub(before)/2, apart)
}

// clocks adds by how much two clocks differ: at least, and about.
func (d *doctor) clocks(check, which string, least, about time.Duration) {
	const tolerance = time.Second
	text := fmt.Sprintf("%s differ by %v", which, about.Round(time.Millisecond))
	if least > tolerance {
		d.note(check, findWarn, text+": recorded times and the ends of bans are wrong", "chrony or another NTP client, on both machines")
	} else {
		d.note(check, findOK, text, "")
	}
}

// notifications checks whether the database notifies nodes of changes.
func (d *doctor) notifications(ctx context.Context, db *database.DB) {
	statement := db.Notify()
	if statement == "" {
		d.note("database.notify", findOK, "nodes see changes without notifications", "")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	notified, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		db.Watch(ctx, func() {
			select {
			case notified <- struct{}{}:
			default:
			}
		})
	}()
	defer func() { cancel(); <-done }()
	wait := func() bool {
		select {
		case <-notified:
			return true
		case <-ctx.Done():
			return false
		}
	}
	var err error
	if wait() { // Watch calls once when it listens
		_, err = db.Write.ExecContext(ctx, statement)
	}
	if err == nil && !wait() {
		d.note("database.notify", findWarn, "there was no notification: nodes see changes only when they poll, every server.catalog.poll",
			"a direct connection to PostgreSQL, or a pooler in session mode: LISTEN does not work in transaction mode")
		return
	}
	d.result("database.notify", err, "nodes are notified of changes at once", "a user with permission to use NOTIFY")
}

// nodes checks the nodes that share the database.
func (d *doctor) nodes(ctx context.Context, k *catalog.Catalog, region string) {
	const recent = time.Minute
	all, err := k.Nodes(ctx, recent)
	if err != nil {
		d.note("nodes", findFail, err.Error(), "")
		return
	}
	latest := int64(0)
	for _, n := range all {
		var state struct{ Region string }
		if _ = json.Unmarshal(n.State, &state); state.Region == "" || state.Region == region { // older nodes report none
			d.alive++
		}
		latest = max(latest, n.Revision)
	}
	for _, n := range all {
		d.node(n, n.Revision < latest, findOK)
	}
	if len(all) == 0 {
		d.note("nodes", findOK, "no node is using the database", "")
	}
}

func (d *doctor) node(n catalog.NodeInfo, behind bool, health string) {
	switch {
	case n.RefusesHistory():
		d.note("nodes", findFail, fmt.Sprintf("%s uses revision %d: %s", n.Name, n.Revision, n.Problem), tryAccept)
	case n.Problem != "":
		d.note("nodes", findFail, fmt.Sprintf("%s uses revision %d, and cannot use the latest: %s", n.Name, n.Revision, n.Problem), "its log; and stint changes list, to see what was changed")
	case behind:
		d.note("nodes", findWarn, fmt.Sprintf("%s uses revision %d, which is not the latest", n.Name, n.Revision), "again in a moment; then its log")
	case health != findOK:
		d.note("nodes", findWarn, fmt.Sprintf("%s is %s", n.Name, health), "stint status with --server of that node")
	default:
		d.note("nodes", findOK, fmt.Sprintf("%s uses revision %d, the latest, with version %s", n.Name, n.Revision, n.Version), "")
	}
}
