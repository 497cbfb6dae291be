package daemon

import "github.com/stintdev/stint/internal/audit"

// newLive returns what knows of the last seconds, and what shows decisions as they are
// made. They show of addresses what the record may keep of them, also if there is no
// record.
func (c *Config) newLive() (*audit.Live, *audit.Tap, error) {
	o := c.Server.Record.recorder(c.credentials.ipKey, nodeName(c.Server.Catalog.Node))
	live, err := audit.NewLive(audit.LiveOptions{Node: o.Node, Privacy: o.Privacy, HashKey: o.HashKey})
	if err != nil {
		return nil, nil, err
	}
	tap, err := audit.NewTap(audit.TapOptions{Region: o.Region, Node: o.Node, Privacy: o.Privacy, HashKey: o.HashKey})
	return live, tap, err
}
