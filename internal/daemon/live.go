package daemon

import (
	"encoding/json"
	"net/http"

	"github.com/stintdev/stint/internal/audit"
)

// newLive returns what knows of the last seconds. It shows of addresses what the record
// may keep of them, also if there is no record.
func (c *Config) newLive() (*audit.Live, error) {
	o := c.Server.Record.recorder(c.credentials.ipKey, nodeName(c.Server.Catalog.Node))
	return audit.NewLive(audit.LiveOptions{Node: o.Node, Privacy: o.Privacy, HashKey: o.HashKey})
}

// serveLive answers with an [audit.Snapshot].
func (d *Daemon) serveLive(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(d.live.Snapshot()) // or the client has left
}
