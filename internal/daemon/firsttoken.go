package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/daemon/envoyenv"
)

// firstTokenLives is how long the first token is valid: long enough to create others with
// it.
const firstTokenLives = 24 * time.Hour

// TokenFile returns the file with the token that the server at a URL has created, if it runs
// on this machine, for the same user, and has created one. Otherwise it returns "".
func TokenFile(environ []string, server string) string {
	u, err := url.Parse(server)
	name := tokenFile(environ, server)
	if err != nil || name == "" || !envoyenv.IsLoopback(u.Host) {
		return ""
	}
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return name
}

// tokenFile returns the name of the file for the token of a server, which differs between
// the servers of a machine. It is empty if there is no state directory.
func tokenFile(environ []string, server string) string {
	u, err := url.Parse(server)
	dir := StateDir(environ)
	if err != nil || dir == "" || u.Port() == "" {
		return ""
	}
	return filepath.Join(dir, "admin-token-"+u.Port())
}

// createToken creates the first token, in a file that only this user can read, unless there
// is an administrator's token already.
func (d *Daemon) createToken(ctx context.Context) error {
	at := d.URL(adminListener)
	name := tokenFile(d.source.Environ, at)
	some, err := d.config.credentials.adminToken != "", error(nil)
	if !some {
		some, err = d.operators.tokens.AnyToken(ctx)
	}
	if some || err != nil {
		if err == nil {
			d.keepToken(ctx, name)
		}
		return err
	}
	file, err := openPrivate(name)
	if err != nil {
		if d.tokenProblem != err.Error() {
			d.tokenProblem = err.Error()
			d.log.ErrorContext(ctx, "no admin token was created, because there is no file for it", "problem", err.Error(),
				"try", "server.admin.token_file, or a state directory that can be written to")
		}
		return err
	}
	expires := time.Now().Add(firstTokenLives)
	text, err := d.operators.tokens.FirstToken(ctx, "stint serve", catalog.Token{Name: "first", Role: catalog.Administrator, Expires: expires})
	if err == nil && text != "" {
		_, err = io.WriteString(file, text+"\n")
	}
	if err = errors.Join(err, file.Close()); err != nil || text == "" { // another node was faster
		return errors.Join(err, os.Remove(file.Name()))
	}
	d.token = file.Name()
	d.forgetToken(ctx, expires)
	if d.demo == nil { // the demo shows it in its guide
		fmt.Fprintf(d.print, "\nThere was no admin token, so one was created, which expires in 24 hours. It is in the file\n\n  %[1]s\n\nSign in with it at %[2]s, or: %[3]s tokens create NAME --server %[2]s --token-file %[1]s\n\n",
			d.token, at, d.program)
	}
	return nil
}

// openPrivate creates a file that only this user can read, in place of an older one. If that
// is not possible, it is a new one in the directory for temporary files.
func openPrivate(name string) (*os.File, error) {
	if name != "" {
		err := os.MkdirAll(filepath.Dir(name), 0o700)
		if err == nil {
			err = os.Remove(name)
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			if f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
				return f, nil
			}
		}
	}
	return os.CreateTemp("", "stint-admin-token-*")
}

// keepToken finds the file that an earlier process of this server has left. If its token is
// still valid, so is the file, until then. Otherwise it is removed.
func (d *Daemon) keepToken(ctx context.Context, name string) {
	text, err := os.ReadFile(name)
	if name == "" || err != nil {
		return
	}
	token, err := d.operators.tokens.TokenOf(ctx, strings.TrimSpace(string(text)))
	switch {
	case err == nil:
		d.token = name
		d.forgetToken(ctx, token.Expires)
	case errors.Is(err, catalog.ErrBadToken):
		_ = os.Remove(name) // it opens nothing
	}
}

// forgetToken removes the file of the token when that expires or, if the token is lost with
// this process, when the daemon stops.
func (d *Daemon) forgetToken(ctx context.Context, expires time.Time) {
	name := d.token
	d.work.Go(func() {
		select {
		case <-ctx.Done():
			if !d.operators.own && d.config.Server.Database != inMemoryDatabase {
				return
			}
		case <-time.After(time.Until(expires)):
		}
		_ = os.Remove(name) // it opens nothing any more
	})
}
