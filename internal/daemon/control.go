package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/catalog"
)

// control is the database that a daemon follows, and what it writes there.
type control struct {
	catalog *catalog.Catalog
	node    *catalog.Node
	usage   *catalog.Usage
	record  *recording // nil: there is none
	started bool
}

// keepNothing is the value of server.catalog.last_good that keeps nothing.
const keepNothing = "none"

// openCatalog opens the database and returns what it has, or what it had when it could
// last be reached.
func (d *Daemon) openCatalog(ctx context.Context) (*Content, error) {
	var side catalog.Side
	if d.redis != nil {
		side = d.redis.Side()
	}
	c, err := d.config.OpenCatalog(side)
	if err != nil {
		return nil, err
	}
	d.control = &control{catalog: c, usage: c.NewUsage(catalog.UsageOptions{Log: d.log})}
	settings := &d.config.Server.Catalog
	d.control.node, err = c.NewNode(catalog.NodeOptions{
		Name: nodeName(settings.Node), Version: d.version, Poll: time.Duration(settings.Poll), Migrate: settings.Migrate,
		LastGood:  d.config.lastGood(d.source.Environ),
		CacheSize: settings.CacheSize, CacheTTL: time.Duration(settings.CacheTTL), Log: d.log,
		State: func() json.RawMessage {
			state, _ := json.Marshal(d.nodeState()) // which has nothing that could not be
			return state
		},
	})
	if err != nil {
		return nil, err
	}
	if d.demo != nil {
		if err := d.demo.fill(ctx, c); err != nil {
			return nil, err
		}
	}
	first, err := d.control.node.First(ctx)
	if err != nil {
		return nil, fmt.Errorf("server.database: %w", err)
	}
	return &Content{Rules: first.Rules, Lists: first.Lists, Directory: d.control.node.Directory(), Keys: true}, nil
}

// Read returns what decides as it is now, in the file or in the database, for those who
// want to look at it once. Call done at the end.
func (c *Config) Read(ctx context.Context) (content Content, done func(), err error) {
	if c.Server.Database == "" {
		content, err = c.Content()
		return content, func() {}, err
	}
	db, err := c.OpenCatalog(nil)
	if err != nil {
		return content, nil, err
	}
	node, err := db.NewNode(catalog.NodeOptions{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return content, nil, err
	}
	done = func() {
		node.Stop(ctx)
		_ = db.Close() // it was only read
	}
	first, err := node.First(ctx)
	if err != nil {
		done()
		return content, nil, fmt.Errorf("server.database: %w", err)
	}
	return Content{Rules: first.Rules, Lists: first.Lists, Directory: node.Directory(), Keys: true}, done, nil
}

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
	c.node.Start(ctx, func(_ context.Context, s *catalog.Snapshot) error {
		if err := d.reloader.Use(s); err != nil {
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
