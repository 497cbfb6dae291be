package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/redisstore"
	redisdoctor "github.com/stintdev/stint/redisstore/doctor"
	"github.com/stintdev/stint/rule"
)

// What a check may find.
const (
	findOK   = "ok"
	findWarn = "warn" // it works, and will not in all cases
	findFail = "fail" // it does not work
)

// finding is what was found in one place.
type finding struct {
	Check  string `json:"check"`            // what was looked at; the names do not change
	Status string `json:"status"`           // ok, warn or fail
	Found  string `json:"found"`            // what is the case
	Advice string `json:"advice,omitempty"` // what to do about it
}

// doctor looks at everything that a server needs.
type doctor struct {
	*terminal
	serverFlags
	named bool // --server or its variable is given
	all   []finding
}

func newDoctor(t *terminal) *cobra.Command {
	var f databaseFlags
	var as string
	d := doctor{terminal: t}
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Diagnose problems of a server",
		Long: `Look for what keeps a server from working, or will, and say what to do about it: the
config file, rules, the Redis that has the counters, the database, clocks, ports,
directories, the archive, how many files may be open, and the admin API of a server that
already runs there. It changes nothing, and can be run while a server runs.

With --server it asks that server, too: how it is, and whether all nodes are well and use
the latest rules.

Each finding is ok, a warning, which is of something that works and will not in all cases,
or a failure. The exit code is 1 if anything fails.`,
		Example: `  stint doctor --config stint.toml
  stint doctor --server http://127.0.0.1:9090 -o json
  stint doctor --counters redis://localhost:6379`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			if counters := c.Flags().Lookup("counters"); counters.Changed {
				f.more = append(f.more, daemon.Flag{Name: "--counters", Setting: "server.counters", Value: counters.Value.String()})
			}
			d.named = cmp.Or(d.server, t.variable(envServer)) != ""
			if err := d.look(c.Context(), &f); err != nil {
				return err
			}
			if err := t.say(as, d.all, nil, d.show); err != nil {
				return err
			}
			if d.count(findFail) > 0 {
				return errNo
			}
			return nil
		},
	}
	f.add(c)
	f.addEnvoy(c)
	c.Flags().String("counters", "", "where counters are, as a Redis `URL` (default: server.counters)")
	d.add(c)
	addOutput(c, &as)
	return c
}

// note adds what was found.
func (d *doctor) note(check, status, found, try string) {
	d.all = append(d.all, finding{check, status, found, try})
}

// hear adds that all is well, or what is not.
func (d *doctor) hear(check string, err error, well, try string) {
	if err != nil {
		d.note(check, findFail, err.Error(), try)
	} else {
		d.note(check, findOK, well, "")
	}
}

func (d *doctor) count(status string) (n int) {
	for _, f := range d.all {
		if f.Status == status {
			n++
		}
	}
	return n
}

// show writes what was found for people.
func (d *doctor) show() error {
	width := 0
	for _, f := range d.all {
		width = max(width, len(f.Check))
	}
	for _, f := range d.all {
		fmt.Fprintf(d.out, "%-4s  %-*s  %s\n", f.Status, width, f.Check, clean(f.Found))
		if f.Advice != "" {
			fmt.Fprintf(d.out, "%*s  try: %s\n", 6+width, "", clean(f.Advice))
		}
	}
	_, err := fmt.Fprintf(d.out, "\n%d ok, %d to be warned of, %d failed\n", d.count(findOK), d.count(findWarn), d.count(findFail))
	return err
}

// look makes all checks.
func (d *doctor) look(ctx context.Context, f *databaseFlags) error {
	source, err := f.located(d.terminal)
	if err != nil {
		return err
	}
	config, err := source.Load()
	if problems := rule.Problems(nil); errors.As(err, &problems) {
		for _, p := range problems {
			d.note("config", findFail, p.String(), "correct it, and then: stint doctor again")
		}
	} else if err != nil {
		d.note("config", findFail, err.Error(), "--config with a file that is there and can be read")
	}
	if err == nil {
		d.config(source.Path, config)
		d.rules(config)
		d.counters(ctx, config)
		d.database(ctx, config)
		d.archive(ctx, config)
		d.directories(config)
		d.ports(ctx, config)
	}
	d.files()
	if d.named {
		d.house(ctx)
	}
	return ctx.Err()
}

func (d *doctor) config(path string, c *daemon.Config) {
	found := "there is no config file: settings are those of the environment and defaults"
	if path != "" {
		found = path + " has no problems"
	}
	d.note("config", findOK, found, "")
	if a := &c.Server.Admin; a.Insecure && a.TLSCert == "" {
		d.note("config.admin", findWarn, "the admin API is open to other machines without TLS: whoever listens in has the tokens", "server.admin.tls_cert and tls_key, or an address of this machine only")
	}
}

// rules looks at the rules that would be used.
func (d *doctor) rules(c *daemon.Config) {
	if c.Server.Database != "" {
		return // the database may have none yet; see there
	}
	d.compile(&c.File)
}

func (d *doctor) compile(f *rule.File) {
	problems := f.Check()
	for _, p := range problems {
		d.note("rules", findFail, p.String(), "correct the rule; until then, what was in use before stays in use")
	}
	tried, off := 0, 0
	for i := range f.Rules {
		switch r := &f.Rules[i]; {
		case r.Enabled != nil && !*r.Enabled:
			off++
		case r.Action == rule.LogOnly:
			tried++
		}
	}
	switch {
	case len(problems) > 0:
	case len(f.Rules) == off:
		d.note("rules", findWarn, fmt.Sprintf("no rule is enabled, of %d: every request passes", len(f.Rules)), "stint rules create, or [[rules]] in the config file")
	case len(f.Rules) == off+tried:
		d.note("rules", findWarn, "all rules are log_only: every request passes", "another action, once the record shows what they would refuse")
	default:
		d.note("rules", findOK, fmt.Sprintf("rules: %d, of which log_only: %d, not enabled: %d; tiers: %d", len(f.Rules), tried, off, len(f.Tiers)), "")
	}
}

// counters looks at Redis.
func (d *doctor) counters(ctx context.Context, c *daemon.Config) {
	if c.Server.Counters == "memory:" {
		d.note("counters", findOK, "they are in the memory of each node, and gone when it stops; nodes do not share them", "")
		return
	}
	const long = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	s, err := redisstore.Open(string(c.Server.Counters), redisstore.Options{})
	if err != nil {
		d.note("counters", findFail, "server.counters: "+err.Error(), "a URL such as redis://localhost:6379; docs/redis-url.md has all that there are")
		return
	}
	defer s.Close()
	found, err := redisdoctor.Examine(ctx, s)
	if err != nil {
		d.note("counters", findFail, err.Error(), "make sure that Redis runs, and that this machine reaches it: "+c.Server.Counters.String())
		return
	}
	for _, f := range found {
		text := f.Found
		if f.Server != "" {
			text = f.Server + ": " + text
		}
		status := findOK
		switch f.Severity {
		case redisdoctor.OK, redisdoctor.Info:
		case redisdoctor.Warning:
			status = findWarn
		case redisdoctor.Problem:
			status = findFail
		}
		d.note("counters."+f.Check, status, text, f.Advice)
	}
}

// database looks at the database, and at the rules in it.
func (d *doctor) database(ctx context.Context, c *daemon.Config) {
	if c.Server.Database == "" {
		d.note("database", findOK, "there is none: rules are in the config file, and there is no record", "")
		return
	}
	const long = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	k, err := c.OpenCatalog(nil)
	if err != nil {
		d.note("database", findFail, err.Error(), "sqlite:/var/lib/stint/stint.db, or postgres://...")
		return
	}
	defer k.Close()
	reach := "make sure that the database runs, and that this machine reaches it: " + c.Server.Database.String()
	if file, ok := sqliteFile(c); ok {
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			d.note("database.reach", findWarn, c.Server.Database.String()+" is not there yet", "stint migrate up, or stint serve, which makes it")
			return
		}
	}
	err = k.Ping(ctx)
	d.hear("database.reach", err, c.Server.Database.String()+" can be reached", reach)
	if err != nil || !d.schema(ctx, k) {
		return
	}
	db := k.Database()
	d.clock(ctx, db)
	// A write of nothing is refused where any would be.
	_, err = db.Write.ExecContext(ctx, "UPDATE stint_catalog SET revision = revision WHERE 1 = 0")
	d.hear("database.write", err, "it can be written to", "a user who may write, and a database that is no replica and has room")
	d.notifications(ctx, db)
	document, err := k.Export(ctx, catalog.ExportOptions{})
	if err != nil {
		d.note("rules", findFail, err.Error(), reach)
		return
	}
	d.compile(&document.File)
	d.nodes(ctx, k)
}

// schema reports whether the schema is good enough to go on.
func (d *doctor) schema(ctx context.Context, k *catalog.Catalog) bool {
	s, err := k.Schema(ctx)
	switch {
	case err != nil:
		d.note("database.schema", findFail, err.Error(), "a user who may read all tables that are named stint_...")
		return false
	case s.Current < s.Latest:
		d.note("database.schema", findWarn, fmt.Sprintf("the schema is of version %d, and this program wants %d", s.Current, s.Latest), tryMigrate+"; or stint serve, which does it unless server.catalog.migrate is false")
		return false
	case s.Current > s.Latest:
		d.note("database.schema", findOK, fmt.Sprintf("the schema is of version %d, which is newer than this program's, %d; it can be read", s.Current, s.Latest), "")
	default:
		d.note("database.schema", findOK, fmt.Sprintf("the schema is of version %d, the latest", s.Current), "")
	}
	return true
}

// clock compares the clocks of the database and of this machine.
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
	d.apart("database.clock", "the clocks of the database and of this machine", apart-after.Sub(before)/2, apart)
}

// apart judges clocks, which differ by at least and about so much.
func (d *doctor) apart(check, whose string, least, about time.Duration) {
	const most = time.Second
	text := fmt.Sprintf("%s differ by %v", whose, about.Round(time.Millisecond))
	if least > most {
		d.note(check, findWarn, text+": times in the record and the ends of bans are off", "chrony or another NTP client, on both machines")
	} else {
		d.note(check, findOK, text, "")
	}
}

// notifications sees whether nodes are told of changes.
func (d *doctor) notifications(ctx context.Context, db *database.DB) {
	statement := db.Notify()
	if statement == "" {
		d.note("database.notify", findOK, "nodes notice changes by themselves", "")
		return
	}
	const long = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	told, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		db.Watch(ctx, func() {
			select {
			case told <- struct{}{}:
			default:
			}
		})
	}()
	defer func() { cancel(); <-done }()
	came := func() bool {
		select {
		case <-told:
			return true
		case <-ctx.Done():
			return false
		}
	}
	var err error
	if came() { // which is that it listens
		_, err = db.Write.ExecContext(ctx, statement)
	}
	if err == nil && !came() {
		d.note("database.notify", findWarn, "no notification came: nodes notice changes only when they look, every server.catalog.poll",
			"a connection to PostgreSQL itself, or a pooler that keeps sessions: LISTEN does not work through one that shares them")
		return
	}
	d.hear("database.notify", err, "nodes are told of changes at once", "a user who may use NOTIFY")
}

// nodes looks at who shares the database.
func (d *doctor) nodes(ctx context.Context, k *catalog.Catalog) {
	const recent = time.Minute
	all, err := k.Nodes(ctx, recent)
	if err != nil {
		d.note("nodes", findFail, err.Error(), "")
		return
	}
	last := int64(0)
	for _, n := range all {
		last = max(last, n.Revision)
	}
	for _, n := range all {
		d.node(n, last)
	}
	if len(all) == 0 {
		d.note("nodes", findOK, "no node uses the database now", "")
	}
}

func (d *doctor) node(n catalog.NodeInfo, last int64) {
	switch {
	case n.Problem != "":
		d.note("nodes", findFail, fmt.Sprintf("%s cannot use revision %d: %s", n.Name, last, n.Problem), "its log; and stint changes list, for what was changed")
	case n.Revision < last:
		d.note("nodes", findWarn, fmt.Sprintf("%s uses revision %d, and the latest is %d", n.Name, n.Revision, last), "to look again; if it stays so, its log")
	default:
		d.note("nodes", findOK, fmt.Sprintf("%s uses revision %d, the latest, with version %s", n.Name, n.Revision, n.Version), "")
	}
}

// archive looks at where old months go.
func (d *doctor) archive(ctx context.Context, c *daemon.Config) {
	url := c.Server.Record.Archive
	if url == "" || url == "none" || c.Server.Database == "" {
		return
	}
	const long = 15 * time.Second
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	a, err := c.OpenArchive(ctx, nothingThere{}, nil)
	n := 0
	if err == nil {
		months, failed := a.List(ctx)
		n, err = len(months), failed
	}
	d.hear("archive", err, fmt.Sprintf("%s can be read; months: %d", url, n), "make sure that the archive is there, and that this user may use it: "+url.String())
}
