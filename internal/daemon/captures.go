package daemon

import (
	"context"
	"path/filepath"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/record/capture"
)

// captures has the decisions of a daemon captured.
type captures struct {
	*capture.Keeper
	d *Daemon
}

var _ admin.Captures = captures{}

// Start implements [admin.Captures].
func (c captures) Start(o capture.Options) error {
	d := c.d
	o.Engine, o.Node, o.Region, o.Version, o.Log = d.engine, d.config.nodeName(), d.config.Region.Name, d.version, d.log
	o.Shared, o.Nodes, o.MinFree = d.redis != nil, d.countReplicas(), d.config.Server.Record.MinFree
	if d.control != nil {
		o.Revision = d.control.node.Status().Revision
	}
	return c.Keeper.Start(o)
}

// openCaptures lets operators have decisions captured, if there is a directory for that.
func (d *Daemon) openCaptures(ctx context.Context, o *admin.Options) {
	dir := StateDir(d.source.Environ)
	if dir == "" {
		return
	}
	k, err := capture.NewKeeper(filepath.Join(dir, "capture"))
	if err != nil {
		d.log.WarnContext(ctx, "decisions cannot be captured", "problem", err.Error())
		return
	}
	d.captures = &captures{k, d}
	o.Captures, o.NoCaptures = d.captures, d.config.noCaptures()
}

// noCaptures says why decisions must not be captured, if that is so: a capture has what these settings keep out of the record.
func (c *Config) noCaptures() string {
	switch r := &c.Server.Record; {
	case r.IP != keepIP:
		return "server.record.ip is " + r.IP + ", and a capture has whole addresses: set it to " + keepIP + " to capture decisions"
	case r.Path == offPath:
		return "server.record.path is " + r.Path + ", and a capture has paths: set it to " + redactPath + " or " + keepPath + " to capture decisions"
	default:
		return ""
	}
}

// collect collects the metrics of the last capture.
func (c captures) collect(gauge func(name string, n float64, labels ...string)) {
	s, running, _ := c.Current()
	var sum capture.Summary
	if s != nil {
		sum, _ = s.Summary() // an error is in the log
	}
	gauge("stint_capture_running", oneIf(running))
	gauge("stint_capture_decisions", float64(sum.Decisions))
	gauge("stint_capture_lost", float64(sum.Lost))
	gauge("stint_capture_bytes", float64(sum.Bytes))
}
