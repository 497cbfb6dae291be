package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/daemon"
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
	alive int // nodes of this region that use the database
	all   []finding
}

func newDoctor(t *terminal) *cobra.Command {
	var f databaseFlags
	d := doctor{terminal: t}
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Diagnose problems of a server",
		Long: `Check everything that a server needs, and say how to fix problems: the config file, rules,
the Redis servers with the counters, the database, other regions, clocks, ports, directories,
the archive, whether upstreams ignore the case of paths, the limit of open files, and the
health and the admin API of a server that is already running here. It changes nothing, except
that it asks Redis for decisions, about a counter that expires within two seconds, and is safe
while a server is running. Upstreams get up to three GET requests each, for the path of their
health check.

With --server it also checks the health of that server, and whether all nodes are healthy
and use the latest rules.

Of limits with a lease it looks at the limit only: whether it lets enough requests pass for a
lease to save calls. How many requests there are is not examined; stint top shows it.

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
			d.rules(&config.File, config.World())
			d.file = config.File
		}
		d.counters(ctx, config)
		d.database(ctx, config)
		d.spread(config)
		d.regions(ctx, config)
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
