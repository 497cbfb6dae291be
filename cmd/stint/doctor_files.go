package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/stintdev/stint/internal/daemon"
)

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
