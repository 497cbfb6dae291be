package daemon

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/stintdev/stint/internal/control/catalog"
)

// narrow takes away other users' access to the files that this server has on disk: they have
// the hashes of keys and tokens, and who did what. New ones are private anyway, but copies
// of others, such as a restored backup, may not be.
func (d *Daemon) narrow(ctx context.Context, files []string) {
	var narrowed []string
	for _, name := range files {
		info, err := os.Stat(name)
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o077 == 0 {
			continue
		}
		if err := os.Chmod(name, info.Mode().Perm()&^0o077); err != nil {
			d.log.WarnContext(ctx, "other users have access to a file of this server", "file", name, "mode", info.Mode().Perm().String(), "problem", err.Error())
			continue
		}
		narrowed = append(narrowed, name)
	}
	if len(narrowed) > 0 {
		d.log.WarnContext(ctx, "other users had access to files of this server, and have none now", "files", shorten(narrowed))
	}
}

// stateFiles returns the files of the last good rules and of the spool.
func (d *Daemon) stateFiles() (all []string) {
	s := &d.config.Server
	for _, of := range []struct{ dir, prefix string }{
		{d.config.stateDir(s.Catalog.LastGood, d.source.Environ, ""), catalog.LastGoodPrefix},
		{d.config.stateDir(s.Record.Spool, d.source.Environ, "spool"), ""},
	} {
		if of.dir == "" {
			continue
		}
		entries, _ := os.ReadDir(of.dir) // it may not exist yet
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), of.prefix) {
				all = append(all, filepath.Join(of.dir, e.Name()))
			}
		}
	}
	return all
}
