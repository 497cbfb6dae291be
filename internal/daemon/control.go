package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/rule"
)

// keepNothing is the value of server.catalog.last_good that keeps nothing.
const keepNothing = "none"

func nodeName(set string) string {
	name, _ := os.Hostname() // or else it has none
	return cmp.Or(set, name, "stint")
}

// lastGood returns the directory that keeps the last good rules: that which is set, or
// where systemd or the user wants state to be. Empty: none.
func (c *Config) lastGood(environ []string) string {
	set := c.Server.Catalog.LastGood
	switch {
	case set == keepNothing || c.Server.Database == inMemoryDatabase:
		return ""
	case set != "":
		return set
	}
	return StateDir(environ)
}

// StateDir is where systemd or the user wants state to be. Empty: nowhere.
func StateDir(environ []string) string {
	variable := func(name string) string {
		for _, v := range slices.Backward(environ) {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value
			}
		}
		return ""
	}
	if dir, _, _ := strings.Cut(variable("STATE_DIRECTORY"), ":"); dir != "" {
		return dir
	}
	if dir := variable("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "stint")
	}
	if home := variable("HOME"); filepath.IsAbs(home) {
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
	c.follow(ctx, func(rules *rule.Set, lists identity.Lists) error {
		if err := d.reloader.Use(rules, lists); err != nil {
			return err
		}
		d.metrics.keep()
		return nil
	})
}

// close writes what is still to be written, and lets go of the database.
func (c *control) close(ctx context.Context) {
	const limit = 3 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if c.record != nil {
		c.record.close(ctx)
	}
	if c.started {
		_ = c.usage.Stop(ctx) // it says so itself
	}
	if c.node != nil {
		c.node.Stop(ctx)
	}
	_ = c.catalog.Close() // nothing is left to be written
}

// countReplicas returns how many nodes share the limits.
func (d *Daemon) countReplicas() int {
	switch {
	case d.config.Server.Replicas > 0:
		return d.config.Server.Replicas
	case d.control != nil && d.control.node != nil:
		return d.control.node.Replicas()
	default:
		return int(max(1, d.peers.Load()))
	}
}

// present lets Redis know that this node is there, where there is no database to know
// it, and asks how many are. While Redis is away there are as many as there were: it is
// then that it matters.
func (d *Daemon) present(ctx context.Context) {
	const every, within, group = 5 * time.Second, 16 * time.Second, "nodes"
	side, id := d.redis.Side(), rand.Text()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		asking, cancel := context.WithTimeout(ctx, time.Second)
		if n, err := side.Present(asking, group, id, within); err == nil {
			d.peers.Store(int64(n))
		}
		cancel()
		select {
		case <-tick.C:
		case <-ctx.Done():
			leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = side.Leave(leaving, group, id) // or it is forgotten
			return
		}
	}
}

// catalogProblem says what is wrong with the database, and what that means.
func (d *Daemon) catalogProblem() string {
	s := d.control.node.Status()
	var out []string
	if s.Away != nil {
		out = append(out, fmt.Sprintf("the database cannot be asked since %s, and what is known stays in use, revision %d: %v",
			s.AwayAt.UTC().Format(time.RFC3339), s.Revision, s.Away))
	}
	if !s.Saved.IsZero() {
		out = append(out, fmt.Sprintf("rules are as they were kept on disk at %s", s.Saved.Format(time.RFC3339)))
	}
	if s.Problem != "" {
		out = append(out, fmt.Sprintf("what the database has is not in use since %s, and revision %d is: %s",
			s.ProblemAt.UTC().Format(time.RFC3339), s.Revision, s.Problem))
	}
	if s.Unkept != nil {
		out = append(out, "the last good rules cannot be kept on disk, without which no start without the database is possible: "+s.Unkept.Error())
	}
	return strings.Join(out, "; ")
}

// recorders are several that are told the same.
type recorders []engine.Recorder

// Record implements [engine.Recorder].
func (r recorders) Record(e *engine.Event) {
	for _, one := range r {
		one.Record(e)
	}
}
