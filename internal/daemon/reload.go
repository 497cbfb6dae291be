package daemon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/rule"
)

// settle is how long a changed file must stay the same before it is used: a half-written
// file may happen to be valid.
const settle = 100 * time.Millisecond

// ReloaderOptions configure a reloader. Source, Database, Prepare and Now are optional.
type ReloaderOptions struct {
	Source Source // of Config
	Config *Config
	// Database is the content of the database, if there is one: then the file has only
	// settings. [Reloader.Use] replaces it.
	Database *Content
	Resolver *identity.Resolver // for Config; the reloader closes it
	Engine   *engine.Engine     // with the rules of Config, and Resolver
	Log      *slog.Logger
	// Prepare builds what else depends on a configuration, or rejects it. The function
	// that it returns is called right after the engine has been updated.
	Prepare func(next *Config) (use func(context.Context), err error)
	// Rejected is called with a configuration that could be read and is not used. Default: nothing
	// is done.
	Rejected func(*Config)
	// Now is the clock of Status. Default time.Now.
	Now func() time.Time
}

// Reloader updates an engine when the config file changes, or a file that it names. Files
// are polled and their contents compared, so it does not matter how they are replaced.
//
// If the configuration is invalid, or the file is missing or empty, nothing changes.
type Reloader struct {
	source   Source
	engine   *engine.Engine
	log      *slog.Logger
	prepare  func(*Config) (func(context.Context), error)
	rejected func(*Config)
	now      func() time.Time
	first    *Config // as it was at startup

	resolver atomic.Pointer[identity.Resolver] // replaced by the holder of turn
	turn     sync.Mutex                        // held while a configuration is read and applied
	config   *Config                           // in use
	database *Content                          // nil: content is in the file
	closed   bool
	named    []namedFile       // the files that the last configuration named, valid or not
	seen     [sha256.Size]byte // the fingerprint of the last configuration that was tried
	pending  [sha256.Size]byte // that of a changed one, until it has settled
	missed   bool              // the file could not be read the last time

	mu     sync.Mutex
	status Status

	changed chan struct{} // has room for one signal: the interval may have changed
	cancel  context.CancelFunc
	polling sync.WaitGroup
}

// Status describes the configuration in use, and problems with a newer one.
type Status struct {
	Loaded time.Time `json:"loaded"`
	Hash   string    `json:"hash"` // SHA-256 of the file
	Rules  int       `json:"rules"`

	// Problem is why the current file is not in use. Empty: it is.
	Problem   string    `json:"problem,omitempty"`
	ProblemAt time.Time `json:"problem_at,omitzero"` // when it appeared
	// NeedsRestart are the settings that have changed since startup and need a restart.
	NeedsRestart []string `json:"needs_restart,omitempty"`
}

// NewReloader returns a reloader. The caller must stop it.
func NewReloader(o ReloaderOptions) (*Reloader, error) {
	if o.Config == nil || o.Resolver == nil || o.Engine == nil || o.Log == nil {
		return nil, errors.New("daemon: NewReloader needs Config, Resolver, Engine and Log")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rejected == nil {
		o.Rejected = func(*Config) {}
	}
	if o.Prepare == nil {
		o.Prepare = func(*Config) (func(context.Context), error) { return func(context.Context) {}, nil }
	}
	r := &Reloader{
		source: o.Source, engine: o.Engine, log: o.Log, prepare: o.Prepare, rejected: o.Rejected, now: o.Now,
		first: o.Config, config: o.Config, database: o.Database, changed: make(chan struct{}, 1),
	}
	r.resolver.Store(o.Resolver)
	r.note(o.Config)
	r.status = r.inUse()
	if err := o.Config.descriptorProblems.Err(); err != nil {
		r.status.Problem, r.status.ProblemAt = err.Error(), r.now()
		r.log.Error("files of Envoy rejected: calls of Envoy fail until they have no problems", "directory", o.Config.Envoy.Config, "problem", err.Error())
	}
	return r, nil
}

// Status returns the status of the configuration.
func (r *Reloader) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	s.NeedsRestart = slices.Clone(s.NeedsRestart)
	return s
}

// Resolver returns the one in use.
func (r *Reloader) Resolver() *identity.Resolver { return r.resolver.Load() }

// Config returns the configuration in use.
func (r *Reloader) Config() *Config {
	r.turn.Lock()
	defer r.turn.Unlock()
	return r.config
}

// Ready returns an error if tokens cannot be verified yet.
func (r *Reloader) Ready() error { return r.resolver.Load().Ready() }

// Start polls files for changes, until ctx ends or Stop is called. It may be called more
// than once.
func (r *Reloader) Start(ctx context.Context) {
	r.turn.Lock()
	defer r.turn.Unlock()
	if r.cancel != nil || r.closed || (r.source.Path == "" && len(r.named) == 0) {
		return
	}
	ctx, r.cancel = context.WithCancel(ctx)
	r.polling.Go(func() { r.poll(ctx) })
}

// Stop stops polling, and closes the resolver in use, which keeps working without
// refreshing its keys. It may be called more than once.
func (r *Reloader) Stop() {
	r.turn.Lock()
	r.closed = true
	if r.cancel != nil {
		r.cancel()
	}
	_ = r.resolver.Load().Close() // it never fails
	r.turn.Unlock()
	r.polling.Wait()
}

var errStopped = errors.New("daemon: the reloader was stopped")

// Reload reads the configuration and uses it, even if it has not changed.
func (r *Reloader) Reload(ctx context.Context) error {
	r.turn.Lock()
	defer r.turn.Unlock()
	if r.closed {
		return errStopped
	}
	data, _, err := r.read()
	if err != nil {
		r.reject(ctx, err)
		return err
	}
	return r.apply(ctx, data)
}

func (r *Reloader) poll(ctx context.Context) {
	for {
		var due <-chan time.Time
		if wait := r.wait(); wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.changed:
		case <-due:
			r.look(ctx)
		}
	}
}

// wait returns the time until the next look at the files. 0: never.
func (r *Reloader) wait() time.Duration {
	r.turn.Lock()
	defer r.turn.Unlock()
	interval := time.Duration(r.config.Server.ReloadInterval)
	if r.pending != [sha256.Size]byte{} {
		return min(interval, settle)
	}
	return interval
}

// look applies a change that has settled since the last look. A file that is being
// replaced may be missing for a moment, so that is only reported the second time.
func (r *Reloader) look(ctx context.Context) {
	r.turn.Lock()
	defer r.turn.Unlock()
	if r.closed {
		return
	}
	data, mark, err := r.read()
	switch pending := r.pending; {
	case err != nil:
		r.pending = [sha256.Size]byte{}
		if again := r.missed; again {
			r.reject(ctx, err)
		}
		r.missed = true
		return
	case mark == r.seen:
		r.pending = [sha256.Size]byte{}
	case mark != pending:
		r.pending = mark
	default:
		_ = r.apply(ctx, data) // which logs it
	}
	r.missed = false
}

// read returns the contents of the file, and a fingerprint of it and the files it names.
func (r *Reloader) read() (data []byte, mark [sha256.Size]byte, err error) {
	if data, err = r.source.read(); err != nil {
		return nil, mark, err
	}
	if r.source.Path != "" && len(bytes.TrimSpace(data)) == 0 && sha256.Sum256(data) != r.config.hash {
		// A writer may have truncated it, and not written it yet.
		return nil, mark, fmt.Errorf("%s is empty", r.source.Path)
	}
	var named []namedFile
	for _, f := range r.named {
		named = append(named, f.read())
	}
	return data, fingerprint(sha256.Sum256(data), named), nil
}

// read returns the file as it is now. It may be a directory.
func (f namedFile) read() namedFile {
	f.hash = [sha256.Size]byte{}
	if text, err := os.ReadFile(f.path); err == nil {
		f.hash = sha256.Sum256(text)
	} else if files, skipped, err := f.readDir(); err == nil {
		f.hash = hashFiles(files, skipped)
	}
	return f
}

// readDir reads a directory, and lists what is beside it, if that is not read but reported.
func (f namedFile) readDir() ([]descriptor.File, []descriptor.Skipped, error) {
	files, skipped, err := descriptor.ReadDir(f.path, f.dir)
	if f.reports && !f.dir.Siblings {
		skipped = append(skipped, descriptor.Siblings(f.path)...)
	}
	return files, skipped, err
}

func fingerprint(hash [sha256.Size]byte, named []namedFile) [sha256.Size]byte {
	all := hash[:]
	for _, f := range named {
		all = append(all, f.hash[:]...)
	}
	return sha256.Sum256(all)
}

// note remembers the files and the fingerprint of a configuration that was tried.
func (r *Reloader) note(c *Config) {
	r.named = c.named
	r.seen, r.pending = fingerprint(c.hash, c.named), [sha256.Size]byte{}
}

// apply uses a configuration, if it is valid.
func (r *Reloader) apply(ctx context.Context, data []byte) error {
	next, problems := r.source.parse(data)
	r.note(next)
	err := problems.Err()
	if err == nil {
		err = r.use(ctx, next)
	}
	if err != nil {
		r.reject(ctx, err)
		r.rejected(next)
		return err
	}
	before := r.config
	r.config = next
	r.mu.Lock()
	r.status = r.inUse()
	s := r.status
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
	added, removed, changed := compare(before.Rules, next.Rules)
	r.log.InfoContext(ctx, "configuration in use", "file", r.source.Path, "hash", s.Hash, "rules", s.Rules,
		"added", shorten(added), "removed", shorten(removed), "changed", shorten(changed), "needs_restart", s.NeedsRestart)
	return nil
}

// use replaces rules and resolver, atomically, and then what Prepare has built. If the
// resolver would be the same it is kept, with its cached tokens and fetched keys.
func (r *Reloader) use(ctx context.Context, next *Config) error {
	content, err := next.content(r.database)
	if err != nil {
		return err
	}
	use, err := r.prepare(next)
	if err != nil {
		return err
	}
	before := r.resolver.Load()
	resolver := before
	if !r.config.identifiesLike(next) {
		if resolver, err = next.Resolver(content, before); err != nil {
			return err
		}
	}
	if err := r.engine.Use(content.Rules, resolver); err != nil {
		if resolver != before {
			_ = resolver.Close() // it never fails
		}
		return err
	}
	if resolver != before {
		r.resolver.Store(resolver)
		_ = before.Close()
	}
	use(ctx)
	return nil
}

// Use replaces the rules and lists of the database, atomically.
func (r *Reloader) Use(rules *rule.Set, lists identity.Lists) error {
	r.turn.Lock()
	defer r.turn.Unlock()
	if r.closed {
		return errStopped
	}
	next := *r.database
	next.Rules, next.Lists = rules, lists
	resolver := r.resolver.Load().With(next.Lists)
	if err := r.engine.Use(next.Rules, resolver); err != nil {
		return err
	}
	r.resolver.Store(resolver)
	r.database = &next
	r.mu.Lock()
	r.status.Rules = next.Rules.Len()
	r.mu.Unlock()
	return nil
}

// identifiesLike reports whether both configure the same resolver.
func (c *Config) identifiesLike(o *Config) bool {
	type part struct {
		identity Identity
		people   any
		named    []namedFile
	}
	of := func(c *Config) part {
		named := slices.DeleteFunc(slices.Clone(c.named), func(f namedFile) bool { return f.other })
		people := c.Document
		people.File = rule.File{}
		return part{c.Identity, people, named}
	}
	return reflect.DeepEqual(of(c), of(o))
}

// inUse returns the status of the configuration in use, without problems.
func (r *Reloader) inUse() Status {
	s := Status{Loaded: r.now(), Hash: hex.EncodeToString(r.config.hash[:]), Rules: r.engine.Rules().Len()}
	before := r.first.settings()
	for i, after := range r.config.settings() {
		was, is := before[i].value, after.value
		switch {
		case strings.HasPrefix(after.name, "identity."), after.name == "server.reload_interval", after.name == "enabled", reflect.DeepEqual(was.Interface(), is.Interface()):
		case (strings.HasPrefix(after.name, "region.secret") || strings.HasPrefix(after.name, "region.listener.tls_")) && r.first.admitsLike(r.config):
		case strings.HasPrefix(after.name, "region."):
			s.NeedsRestart = append(s.NeedsRestart, after.name)
		case strings.HasSuffix(after.name, ".tls_client_ca"), strings.HasSuffix(after.name, ".tls_client_san"), strings.HasSuffix(after.name, ".tokens"), strings.HasSuffix(after.name, ".token_files"),
			strings.HasPrefix(after.name, ticketKeySetting):
		case after.name == "server.case" && r.config.Server.Database == "": // it was used to compile the rules of the file
		case strings.HasPrefix(after.name, "server.") && strings.Contains(after.name, ".tls_") && !was.IsZero() && !is.IsZero(): // a different file is loaded without a restart
		default:
			s.NeedsRestart = append(s.NeedsRestart, after.name)
		}
	}
	if !slices.Equal(r.first.Region.Peers, r.config.Region.Peers) {
		s.NeedsRestart = append(s.NeedsRestart, "region.peers")
	}
	if len(r.first.Upstreams) == 0 && len(r.config.Upstreams) > 0 {
		s.NeedsRestart = append(s.NeedsRestart, "upstreams") // the gateway does not listen
	}
	return s
}

// reject remembers why a configuration is not used, and logs it once.
func (r *Reloader) reject(ctx context.Context, why error) {
	r.mu.Lock()
	again := r.status.Problem == why.Error()
	if !again {
		r.status.Problem, r.status.ProblemAt = why.Error(), r.now()
	}
	r.mu.Unlock()
	if !again {
		r.log.ErrorContext(ctx, "configuration rejected, the previous one stays in use", "file", r.source.Path, "problem", why.Error())
	}
	var problems rule.Problems
	if !errors.As(why, &problems) {
		r.seen = [sha256.Size]byte{} // when the file is back, it is tried even if it is unchanged
	}
}

// compare returns the names of rules that were added, removed or changed.
func compare(before, after []rule.Rule) (added, removed, changed []string) {
	old := make(map[string]*rule.Rule, len(before))
	for i := range before {
		old[before[i].Name] = &before[i]
	}
	for i := range after {
		name := after[i].Name
		switch was, ok := old[name]; {
		case !ok:
			added = append(added, name)
		case !reflect.DeepEqual(*was, after[i]):
			changed = append(changed, name)
		}
		delete(old, name)
	}
	for _, r := range before {
		if old[r.Name] != nil {
			removed = append(removed, r.Name)
		}
	}
	return added, removed, changed
}

// shorten returns at most 20 names, for a log line.
func shorten(names []string) []string {
	const limit = 20
	if len(names) > limit {
		return append(slices.Clone(names[:limit]), fmt.Sprintf("and %d more", len(names)-limit))
	}
	return names
}
