package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/presence"
)

// keepNothing is the value of server.catalog.last_good and server.record.spool for none.
const keepNothing = "none"

func (c *Config) nodeName() string {
	name, _ := os.Hostname() // may be unknown
	return cmp.Or(c.Server.Catalog.Node, name, "stint")
}

// stateDir returns the directory that a setting names or, if it is not set, one in
// [StateDir]. Empty: none.
func (c *Config) stateDir(set string, environ []string, name string) string {
	switch dir := StateDir(environ); {
	case set == keepNothing || c.Server.Database == inMemoryDatabase:
		return ""
	case set != "" || dir == "":
		return set
	default:
		return filepath.Join(dir, name)
	}
}

// LastGood returns the directory of the last good rules. Empty: none are kept.
func (c *Config) LastGood(environ []string) string {
	return c.stateDir(c.Server.Catalog.LastGood, environ, "")
}

// lookupEnv returns the last value of a variable, or "".
func lookupEnv(environ []string, name string) string {
	for _, v := range slices.Backward(environ) {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// StateDir returns the state directory that systemd or the user has chosen. Empty: none.
func StateDir(environ []string) string {
	if dir, _, _ := strings.Cut(lookupEnv(environ, "STATE_DIRECTORY"), ":"); dir != "" {
		return dir
	}
	if dir := lookupEnv(environ, "XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "stint")
	}
	if home := lookupEnv(environ, "HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "stint")
	}
	return ""
}

func (c *control) start(ctx context.Context, d *Daemon) {
	c.started = true
	if c.record != nil {
		c.record.start(ctx, d)
	}
	c.usage.Start(ctx)
	c.node.Start(ctx, func(_ context.Context, s *catalog.Snapshot) error {
		if err := d.reloader.Use(s.Rules, s.Lists); err != nil {
			return err
		}
		d.metrics.keep()
		return nil
	})
}

// close flushes what is not written yet, and closes the database.
func (c *control) close(ctx context.Context) {
	const limit = 3 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if c.record != nil {
		c.record.close(ctx)
	}
	if c.started {
		_ = c.usage.Stop(ctx) // which logs errors
	}
	if c.node != nil {
		c.node.Stop(ctx)
	}
	_ = c.catalog.Close() // everything is written
}

// countReplicas returns how many nodes share the limits.
func (d *Daemon) countReplicas() int {
	switch {
	case d.config.Server.Replicas > 0:
		return d.config.Server.Replicas
	case d.peers != nil:
		return d.peers.Count()
	case d.control != nil && d.control.node != nil:
		return d.control.node.Replicas()
	default:
		return 1
	}
}

// nodesProblem describes why the nodes that share the limits cannot be counted.
func (d *Daemon) nodesProblem() string {
	switch {
	case d.config.Server.Replicas > 0:
		return ""
	case d.peers != nil:
		return d.peers.Problem()
	default:
		return d.control.node.CountProblem()
	}
}

// newPeers returns the nodes that share the limits, for a node without a database.
func (d *Daemon) newPeers() *presence.Roster {
	o := presence.Options{Self: rand.Text(), Interval: time.Duration(d.config.Server.Catalog.Poll), Log: d.log}
	if dir := d.config.stateDir(d.config.Server.Catalog.LastGood, d.source.Environ, ""); dir != "" {
		sum := sha256.Sum256([]byte(d.config.Server.Counters.String()))
		o.File = filepath.Join(dir, "counters-"+hex.EncodeToString(sum[:6])+".nodes")
	}
	return presence.New(o)
}

// countPeers reports this node to Redis, if there is no database, and counts all nodes.
func (d *Daemon) countPeers(ctx context.Context) {
	const group = "nodes"
	side, id, within := d.redis.Side(), d.peers.Self(), d.peers.Lifetime()
	read := func() (beats []presence.Beat, left []string, err error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		all, err := side.Present(ctx, group, id, within)
		for _, p := range all {
			beats = append(beats, presence.Beat{Node: p.Node, At: p.Until})
		}
		for _, node := range d.peers.Missing(beats) {
			if err != nil {
				break
			}
			var gone bool
			if gone, err = side.Left(ctx, group, node); gone {
				left = append(left, node)
			}
		}
		return beats, left, err
	}
	report := func() bool {
		if beats, left, err := read(); err == nil {
			d.peers.Seen(ctx, beats, left)
		} else if ctx.Err() == nil {
			d.peers.Failed(ctx, err)
		}
		return true
	}
	report()
	every(ctx, time.Duration(d.config.Server.Catalog.Poll), report)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = side.Leave(ctx, group, id, 2*within) // otherwise the others miss its heartbeat
}

// databaseSetting returns the setting that an error of catalog.Open is about.
func databaseSetting(err error) string {
	if invalid := new(stint.InvalidError); errors.As(err, &invalid) && invalid.Field == catalog.FieldReplica {
		return "server.database_replica"
	}
	return "server.database"
}

// catalogProblem describes problems with the database, and their effect.
func (d *Daemon) catalogProblem() string {
	s := d.control.node.Status()
	var out []string
	if r := s.Replica; s.Away != nil && r != nil && r.Problem == "" {
		out = append(out, fmt.Sprintf("the database cannot be reached since %s: rules, users and keys are read from the replica, which is at revision %d, and nothing can be changed: %v",
			s.AwayAt.UTC().Format(time.RFC3339), r.Revision, s.Away))
	} else if s.Away != nil {
		out = append(out, fmt.Sprintf("the database cannot be reached since %s, and revision %d stays in use: %v",
			s.AwayAt.UTC().Format(time.RFC3339), s.Revision, s.Away))
	}
	if !s.Saved.IsZero() {
		out = append(out, fmt.Sprintf("the rules come from disk, as of %s", s.Saved.Format(time.RFC3339)))
	}
	if s.Refused {
		out = append(out, fmt.Sprintf("since %s, revision %d stays in use, and nothing can be changed: %s", s.ProblemAt.UTC().Format(time.RFC3339), s.Revision, s.Problem))
	} else if s.Problem != "" {
		out = append(out, fmt.Sprintf("the rules in the database cannot be used since %s, and revision %d stays in use: %s",
			s.ProblemAt.UTC().Format(time.RFC3339), s.Revision, s.Problem))
	}
	if s.Unkept != nil {
		out = append(out, "the last good rules cannot be saved to disk, so this node could not start without the database: "+s.Unkept.Error())
	}
	return strings.Join(out, "; ")
}

// replicaProblem describes why the replica of the database is not read.
func (d *Daemon) replicaProblem() string {
	r := d.control.node.Status().Replica
	if r == nil || r.Problem == "" {
		return ""
	}
	return fmt.Sprintf("the replica is not read since %s, and what it would answer is asked of the database: %s", r.ProblemAt.UTC().Format(time.RFC3339), r.Problem)
}

// recorders passes events to several recorders.
type recorders []engine.Recorder

// Record implements [engine.Recorder].
func (r recorders) Record(ctx context.Context, e *engine.Event) {
	for _, one := range r {
		one.Record(ctx, e)
	}
}
