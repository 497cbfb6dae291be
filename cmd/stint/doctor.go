package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/kit/disk"
	"github.com/stintdev/stint/redisstore"
	redisdoctor "github.com/stintdev/stint/redisstore/doctor"
	"github.com/stintdev/stint/rule"
)

// The status of a finding.
const (
	findOK   = "ok"
	findWarn = "warn" // it works, but not in all cases
	findFail = "fail" // it does not work
)

// finding is the result of a check.
type finding struct {
	Check  string `json:"check"`            // the names do not change
	Status string `json:"status"`           // ok, warn or fail
	Found  string `json:"found"`            // what was found
	Advice string `json:"advice,omitempty"` // how to fix it
}

// doctor checks everything that a server needs.
type doctor struct {
	*terminal
	serverFlags
	named bool // --server or $STINT_SERVER is given
	file  rule.File
	all   []finding
}

func newDoctor(t *terminal) *cobra.Command {
	var f databaseFlags
	d := doctor{terminal: t}
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Diagnose problems of a server",
		Long: `Check everything that a server needs, and say how to fix problems: the config file, rules,
the Redis servers with the counters, the database, clocks, ports, directories, the archive,
whether upstreams ignore the case of paths, the limit of open files, and the health and the
admin API of a server that is already running here. It changes nothing, except that it asks
Redis for decisions, about a counter that expires within two seconds, and is safe while a
server is running. Upstreams get up to three GET requests each, for the path of their health
check.

With --server it also checks the health of that server, and whether all nodes are healthy
and use the latest rules.

Each finding is ok, a warning about something that does not work in all cases, or a failure.
The exit code is 1 if there are failures.`,
		Example: `  stint doctor --config stint.toml
  stint doctor --server http://127.0.0.1:9090 -o json
  stint doctor --counters redis://localhost:6379`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if counters := c.Flags().Lookup("counters"); counters.Changed {
				f.more = append(f.more, daemon.Flag{Name: "--counters", Setting: "server.counters", Value: counters.Value.String()})
			}
			d.named = cmp.Or(d.serverFlags.server, t.variable(envServer)) != ""
			if err := d.look(c.Context(), &f); err != nil {
				return err
			}
			return answer(t.print(d.all, nil, d.show), d.count(findFail) == 0)
		},
	}
	f.add(c)
	f.addEnvoy(c)
	c.Flags().String("counters", "", "the Redis `URL` of the counters (default: server.counters)")
	d.add(c)
	addOutput(c)
	return c
}

func (d *doctor) note(check, status, found, hint string) {
	d.all = append(d.all, finding{check, status, found, hint})
}

// result adds the result of something that may fail.
func (d *doctor) result(check string, err error, ok, hint string) {
	if err != nil {
		d.note(check, findFail, err.Error(), hint)
	} else {
		d.note(check, findOK, ok, "")
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
	_, err := fmt.Fprintf(d.out, "\n%d ok, %d warnings, %d failed\n", d.count(findOK), d.count(findWarn), d.count(findFail))
	return err
}

// look runs all checks.
func (d *doctor) look(ctx context.Context, f *databaseFlags) error {
	f.flag("database", "server.database", f.url)
	source, err := f.source(d.terminal)
	if err != nil {
		return err
	}
	config, err := source.Load()
	if problems := rule.Problems(nil); errors.As(err, &problems) {
		for _, p := range problems {
			d.note("config", findFail, p.String(), "correct it, then run stint doctor again")
		}
	} else if err != nil {
		d.note("config", findFail, err.Error(), "--config with a file that exists and can be read")
	}
	if err == nil {
		d.config(source.Path, config)
		if config.Server.Database == "" { // database checks those in a database
			d.rules(&config.File)
			d.file = config.File
		}
		d.counters(ctx, config)
		d.database(ctx, config)
		d.archive(ctx, config)
		d.directories(config)
		d.pathCase(ctx, config)
		d.ports(ctx, config)
		d.guards(config)
	}
	d.files()
	if d.named {
		d.server(ctx)
	}
	return ctx.Err()
}

func (d *doctor) config(path string, c *daemon.Config) {
	found := "there is no config file: settings come from flags, the environment and defaults"
	if path != "" {
		found = path + " has no problems"
	}
	d.note("config", findOK, found, "")
	if a := &c.Server.Admin; a.Insecure && a.TLSCert == "" {
		d.note("config.admin", findWarn, "other machines can reach the admin API without TLS: tokens can be intercepted", "server.admin.tls_cert and tls_key, or an address that only this machine can reach")
	}
}

func (d *doctor) rules(f *rule.File) {
	problems := f.Check()
	for _, p := range problems {
		d.note("rules", findFail, p.String(), "correct the rule; until then, the previous rules stay in use")
	}
	logOnly, disabled := 0, 0
	for i := range f.Rules {
		switch r := &f.Rules[i]; {
		case r.Enabled != nil && !*r.Enabled:
			disabled++
		case r.Action == rule.LogOnly:
			logOnly++
		}
	}
	switch {
	case len(problems) > 0:
	case len(f.Rules) == disabled:
		d.note("rules", findWarn, fmt.Sprintf("none of %d rules is enabled: every request passes", len(f.Rules)), "stint rules create, or [[rules]] in the config file")
	case len(f.Rules) == disabled+logOnly:
		d.note("rules", findWarn, "all rules are log_only: every request passes", "another action, once the record shows what they would deny")
	default:
		d.note("rules", findOK, fmt.Sprintf("rules: %d, of which log_only: %d, disabled: %d; tiers: %d", len(f.Rules), logOnly, disabled, len(f.Tiers)), "")
	}
}

var severities = map[redisdoctor.Severity]string{redisdoctor.OK: findOK, redisdoctor.Info: findOK, redisdoctor.Warning: findWarn, redisdoctor.Problem: findFail}

// counters checks Redis.
func (d *doctor) counters(ctx context.Context, c *daemon.Config) {
	if c.Server.Counters == "memory:" {
		d.note("counters", findOK, "each node has its own, in memory, and loses them when it stops", "")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	s, err := redisstore.Open(string(c.Server.Counters), redisstore.Options{})
	if err != nil {
		d.note("counters", findFail, "server.counters: "+err.Error(), "a URL such as redis://localhost:6379; docs/redis-url.md describes all forms")
		return
	}
	defer s.Close()
	found, err := redisdoctor.Examine(ctx, s)
	if err != nil {
		d.note("counters", findFail, err.Error(), "make sure that Redis is running and can be reached from this machine: "+c.Server.Counters.String())
		return
	}
	for _, f := range found {
		text := f.Found
		if f.Server != "" {
			text = f.Server + ": " + text
		}
		d.note("counters."+f.Check, severities[f.Severity], text, f.Advice)
	}
	d.budget(ctx, s, time.Duration(c.Server.StoreBudget))
}

// budget checks that each Redis server decides in time. The fastest of several decisions counts, since
// this machine may be busy.
func (d *doctor) budget(ctx context.Context, s *redisstore.Store, budget time.Duration) {
	for _, server := range s.Servers() {
		var best time.Duration
		for range 5 {
			start := time.Now()
			if s.PingServer(ctx, server) != nil {
				best = 0 // counters.script says why
				break
			}
			if took := time.Since(start); best == 0 || took < best {
				best = took
			}
		}
		switch {
		case best == 0:
		case best > budget:
			d.note("counters.budget", findFail, fmt.Sprintf("%s: a decision takes %v, more than server.store_budget (%v): nodes decide on their own", server, best.Round(time.Millisecond), budget),
				"find out what makes Redis or the network slow, or set server.store_budget to what clients can wait for")
		default:
			d.note("counters.budget", findOK, fmt.Sprintf("%s: a decision takes %v; server.store_budget is %v", server, best.Round(10*time.Microsecond), budget), "")
		}
	}
}

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
	d.rules(&document.File)
	d.file = document.File
	d.nodes(ctx, k)
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
func (d *doctor) nodes(ctx context.Context, k *catalog.Catalog) {
	const recent = time.Minute
	all, err := k.Nodes(ctx, recent)
	if err != nil {
		d.note("nodes", findFail, err.Error(), "")
		return
	}
	latest := int64(0)
	for _, n := range all {
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

// archive checks whether the archive can be read.
func (d *doctor) archive(ctx context.Context, c *daemon.Config) {
	url := c.Server.Record.Archive
	if url == "" || url == "none" || c.Server.Database == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	a, err := c.OpenArchive(ctx, noSource{}, time.Duration(c.Server.Record.Retention), nil)
	n := 0
	if err == nil {
		months, failed := a.List(ctx)
		n, err = len(months), failed
	}
	d.result("archive", err, fmt.Sprintf("%s can be read; months: %d", url, n), "make sure that the archive exists and that this user has access to it: "+url.String())
}

// directories checks the directories that a server writes to.
func (d *doctor) directories(c *daemon.Config) {
	if c.Server.Database == "" || c.Server.Database == "sqlite::memory:" {
		return
	}
	for _, dir := range []struct{ setting, set, under string }{
		{"server.catalog.last_good", c.Server.Catalog.LastGood, ""},
		{"server.record.spool", c.Server.Record.Spool, "spool"},
	} {
		path := dir.set
		if path == "none" {
			continue
		}
		if path == "" {
			if path = daemon.StateDir(d.environ); path == "" {
				d.note("directories", findWarn, dir.setting+" is not set, and there is no state directory", dir.setting+" = \"/var/lib/stint\", or the environment variable STATE_DIRECTORY")
				continue
			}
			path = filepath.Join(path, dir.under)
		}
		err := canWrite(path)
		if err != nil {
			err = fmt.Errorf("%s: %w", dir.setting, err)
		}
		d.result("directories", err, dir.setting+": "+path+" can be written to", "a directory that the user of the server can write to, or none")
	}
}

// canWrite writes a file to a directory or, if it does not exist, to its parent.
func canWrite(dir string) error {
	f, err := os.CreateTemp(dir, ".stint-doctor-*")
	if parent := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && parent != dir {
		return canWrite(parent)
	} else if err != nil {
		return err
	}
	_, err = f.WriteString("stint")
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}

// ports checks the addresses that a server listens on.
func (d *doctor) ports(ctx context.Context, c *daemon.Config) {
	for _, l := range []struct {
		name    string
		at      daemon.Listener
		served  bool
		answers string // a path that only Stint answers
	}{
		{"http", c.Server.HTTP.Listener, true, "/healthz"},
		{"gateway", c.Server.Gateway, len(c.Upstreams) > 0, ""},
		{"grpc", c.Server.GRPC.Listener, c.Envoy.Config != "" || c.Envoy.XDS.Server != "", ""},
		{"admin", c.Server.Admin.Listener, true, "/healthz"},
	} {
		setting := "server." + l.name + ".address"
		if l.at.Address == "" || !l.served || strings.HasPrefix(l.at.Address, "unix:") {
			continue
		}
		var config net.ListenConfig
		listener, err := config.Listen(ctx, "tcp", l.at.Address)
		if err == nil {
			_ = listener.Close()
			d.note("ports", findOK, setting+": "+l.at.Address+" is free", "")
			continue
		}
		if health, ok := stintAt(ctx, l.at, l.answers); ok {
			d.note("ports", findOK, setting+": Stint is already running at "+l.at.Address, "")
			if l.name == "admin" && !d.named {
				d.health(&health)
				d.serverFlags.server = "http://" + local(l.at.Address)
				d.server(ctx)
			}
			continue
		}
		status := findFail
		if l.answers == "" { // it may be Stint
			status = findWarn
		}
		d.note("ports", status, setting+": "+err.Error(), "another address, or stop the program that uses this one")
	}
}

// guards checks who can use the listeners that give decisions.
func (d *doctor) guards(c *daemon.Config) {
	for _, l := range []struct {
		name   string
		at     *daemon.Guarded
		served bool
	}{{"http", &c.Server.HTTP, true}, {"grpc", &c.Server.GRPC, c.Envoy.Config != "" || c.Envoy.XDS.Server != ""}} {
		if setting := "server." + l.name; l.served && l.at.Open() {
			d.note("ports", findWarn, setting+".address: other machines can ask for decisions at "+l.at.Address+" without a token",
				setting+".tokens or "+setting+".tls_client_ca; or a loopback address, or a firewall")
		}
	}
}

// local returns the address to reach a listener from this machine.
func local(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}

// stintAt returns the health of the Stint that answers at a listener, if one does.
func stintAt(ctx context.Context, l daemon.Listener, path string) (health daemon.Health, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if path == "" || l.TLSCert != "" {
		return health, false // the certificate may be for another name
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+local(l.Address)+path, nil)
	if err != nil {
		return health, false
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	if err != nil {
		return health, false
	}
	defer response.Body.Close()
	const maxResponse = 1 << 20
	err = json.NewDecoder(io.LimitReader(response.Body, maxResponse)).Decode(&health)
	return health, err == nil && health.Status != ""
}

// files checks the limit of open files. Each connection is one.
func (d *doctor) files() {
	const recommended = 4096
	n, ok := openFiles()
	switch {
	case !ok:
	case n < recommended:
		d.note("files", findWarn, fmt.Sprintf("at most %d files may be open, and each connection is one", n), "ulimit -n 65536, or LimitNOFILE=65536 in systemd")
	default:
		d.note("files", findOK, fmt.Sprintf("at most %d files may be open", n), "")
	}
}

// server checks a running server.
func (d *doctor) server(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	a, err := d.open(d.terminal)
	if err != nil {
		d.failed("api", err)
		return
	}
	defer a.close()
	var session admin.Session
	if err := a.do(ctx, call{path: "/session", into: &session}); err != nil {
		d.failed("api", err)
		return
	}
	d.note("api", findOK, fmt.Sprintf("%s answers; the token belongs to %s and has the role %s", a.base, session.Name, session.Role), "")
	const soon = 24 * time.Hour
	if end := session.Token; !end.IsZero() && end.Sub(now()) < soon {
		d.note("api.token", findWarn, fmt.Sprintf("the token expires at %s", cell(session.Token)), "stint tokens create, to create one that is valid for longer")
	}
	var s admin.Status
	before := now()
	if err := a.do(ctx, call{path: "/status", into: &s}); err != nil {
		d.failed("api", err)
		return
	}
	about := s.Now.Sub(before).Abs()
	d.clocks("api.clock", "the clocks of the server and this machine", about-now().Sub(before), about)
	if mine := versionOf().Version; s.Version != mine {
		d.note("api.version", findWarn, fmt.Sprintf("the server has version %s, and this program %s", s.Version, mine), "the same version on both sides")
	} else {
		d.note("api.version", findOK, "the server and this program have version "+s.Version, "")
	}
	if !d.named {
		return // its health is known
	}
	d.health(&s.Health)
	nodes, err := items[admin.Node](ctx, a, "/nodes", nil)
	if err != nil {
		d.failed("nodes", err)
		return
	}
	for _, n := range nodes {
		health := findOK
		if n.State != nil {
			health = n.State.Status
		}
		d.node(catalog.NodeInfo{Name: n.Name, Revision: n.Revision, Problem: n.Problem, Version: n.Version}, n.Behind, health)
	}
}

// health adds the health of a running server.
func (d *doctor) health(h *daemon.Health) {
	for _, c := range h.Checks {
		if status, ok := map[string]string{"degraded": findWarn, "not_ready": findFail}[c.Status]; ok {
			d.note("health."+c.Name, status, c.Detail, "the log of the server")
		}
	}
	if h.Status == findOK {
		d.note("health", findOK, "all parts of the server are healthy", "")
	}
}

// failed adds that a call of the server failed.
func (d *doctor) failed(check string, err error) {
	a := advice{}
	errors.As(err, &a)
	status := findFail
	if !d.named && (hasStatus(err, http.StatusUnauthorized) || hasStatus(err, http.StatusForbidden)) {
		status = findWarn // the user did not ask for this server
	}
	d.note(check, status, err.Error(), a.try)
}
