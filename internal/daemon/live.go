package daemon

import "github.com/stintdev/stint/internal/record"

// newLive returns what knows of the last seconds, and what shows decisions as they are
// made. They show of addresses what the record may keep of them, also if there is no
// record.
func (c *Config) newLive() (*record.Live, *record.Tap, error) {
	o := c.Server.Record.recorder(c.credentials.ipKey, nodeName(c.Server.Catalog.Node))
	live, err := record.NewLive(record.LiveOptions{Node: o.Node, Privacy: o.Privacy, HashKey: o.HashKey})
	if err != nil {
		return nil, nil, err
	}
	tap, err := record.NewTap(record.TapOptions{Region: o.Region, Node: o.Node, Privacy: o.Privacy, HashKey: o.HashKey})
	return live, tap, err
}
