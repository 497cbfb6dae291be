package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/daemon"
)

// directories looks at where a server writes.
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
				d.note("directories", findWarn, dir.setting+" is not set, and there is no directory for state", dir.setting+" = \"/var/lib/stint\", or the variable STATE_DIRECTORY")
				continue
			}
			path = filepath.Join(path, dir.under)
		}
		err := canWrite(path)
		if err != nil {
			d.note("directories", findFail, dir.setting+": "+err.Error(), "a directory that the user who runs the server may write to, or none")
		} else {
			d.note("directories", findOK, dir.setting+": "+path+" can be written to", "")
		}
	}
}

// canWrite writes a file into a directory, or into the one where it would be made.
func canWrite(dir string) error {
	for {
		f, err := os.CreateTemp(dir, ".stint-doctor-*")
		if err == nil {
			_, err = f.WriteString("stint")
			return errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
		if up := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && up != dir {
			dir = up
			continue
		}
		return err
	}
}

// ports looks at where a server listens.
func (d *doctor) ports(ctx context.Context, c *daemon.Config) {
	for _, l := range []struct {
		name    string
		at      daemon.Listener
		served  bool
		answers string // what a stint has there
	}{
		{"http", c.Server.HTTP, true, "/healthz"},
		{"gateway", c.Server.Gateway, len(c.Upstreams) > 0, ""},
		{"grpc", c.Server.GRPC, c.Envoy.Config != "" || c.Envoy.XDS.Server != "", ""},
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
		if l.answers != "" && stintAt(ctx, l.at, l.answers) {
			d.note("ports", findOK, setting+": a stint serves "+l.at.Address, "")
			if l.name == "admin" && !d.named && l.at.TLSCert == "" {
				d.server = "http://" + local(l.at.Address)
				d.house(ctx)
			}
			continue
		}
		status, try := findFail, "another address, or stop what has this one"
		if l.answers == "" { // it may be a stint: nothing tells
			status = findWarn
		}
		d.note("ports", status, setting+": "+err.Error(), try)
	}
}

// local is an address as it is reached from this machine.
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

// stintAt reports whether a stint answers there.
func stintAt(ctx context.Context, l daemon.Listener, path string) bool {
	const long = 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	if l.TLSCert != "" {
		return false // whose certificate may be for another name
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+local(l.Address)+path, nil)
	if err != nil {
		return false
	}
	var health daemon.Health
	return fetch(r, &health) == nil && health.Status != ""
}

// files looks at how many files may be open: each connection is one.
func (d *doctor) files() {
	const few = 4096
	n, ok := openFiles()
	switch {
	case !ok:
	case n < few:
		d.note("files", findWarn, fmt.Sprintf("at most %d files may be open, and each connection is one", n), "ulimit -n 65536, or LimitNOFILE=65536 of systemd")
	default:
		d.note("files", findOK, fmt.Sprintf("at most %d files may be open", n), "")
	}
}
