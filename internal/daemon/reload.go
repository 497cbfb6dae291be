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

// settle is how long a file that has changed must stay as it is before it is used: a
// file that is half written may well be one without problems.
const settle = 100 * time.Millisecond

// ReloaderOptions are what a reloader needs. All but Source, Database, Prepare and Now
// are required.
type ReloaderOptions struct {
	// Source is what Config was loaded from.
	Source Source
	Config *Config
	// Database is what the database has, if what decides is there: then the file has
	// settings only. What is new there comes by [Reloader.Use].
	Database *Content
	// Resolver is made from Config. The reloader closes it.
	Resolver *identity.Resolver
	// Engine uses the rules of Config, and Resolver.
	Engine *engine.Engine
	Log    *slog.Logger
	// Prepare builds whatever else depends on a configuration, and may reject it. The
	// function that it returns puts that to use, right after the engine uses the rest.
	Prepare func(next *Config) (use func(context.Context), err error)
	// Now is the clock of Status. Default time.Now.
	Now func() time.Time
}

// Reloader has an engine use what the configuration says, whenever that changes: the
// file, or one of those that it names. The files are read again and again and their
// content is compared, so it does not matter how they are replaced.
//
// A configuration that is wrong, and a file that is missing or empty, change nothing.
type Reloader struct {
	source  Source
	engine  *engine.Engine
	log     *slog.Logger
	prepare func(*Config) (func(context.Context), error)
	now     func() time.Time
	first   *Config // what [server] settings were at the start

	resolver atomic.Pointer[identity.Resolver] // replaced by the holder of turn
	turn     sync.Mutex                        // held while a configuration is read and applied
	config   *Config                           // in use
	database *Content                          // nil: the file has it all
	closed   bool
	named    []string          // files that the last configuration named, good or bad
	seen     [sha256.Size]byte // what was tried last
	pending  [sha256.Size]byte // what is new, if it stays
	missed   bool              // the file could not be read the last time

	mu     sync.Mutex
	status Status

	changed chan struct{} // has room for one: there may be another interval
	cancel  context.CancelFunc
	polling sync.WaitGroup
}

// Status is which configuration is in use, and what is wrong with a newer one.
type Status struct {
	Loaded time.Time `json:"loaded"` // when it came into use
	Hash   string    `json:"hash"`   // SHA-256 of the file
	Rules  int       `json:"rules"`

	// Problem is why the file as it is now is not in use. Empty: it is.
	Problem   string    `json:"problem,omitempty"`
	ProblemAt time.Time `json:"problem_at,omitzero"` // since when
	// NeedsRestart are the settings that have changed and are read at the start only.
	NeedsRestart []string `json:"needs_restart,omitempty"`
}

// NewReloader returns a reloader. Stop it.
func NewReloader(o ReloaderOptions) (*Reloader, error) {
	if o.Config == nil || o.Resolver == nil || o.Engine == nil || o.Log == nil {
		return nil, errors.New("daemon: a reloader wants a Config, its Resolver, an Engine and a Log")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Prepare == nil {
		o.Prepare = func(*Config) (func(context.Context), error) { return func(context.Context) {}, nil }
	}
	r := &Reloader{
		source: o.Source, engine: o.Engine, log: o.Log, prepare: o.Prepare, now: o.Now,
		first: o.Config, config: o.Config, database: o.Database, changed: make(chan struct{}, 1),
	}
	r.resolver.Store(o.Resolver)
	r.note(o.Config)
	r.status = r.inUse()
	return r, nil
}

// Status returns which configuration is in use, and what is wrong with a newer one.
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

// Ready tells what keeps tokens from being verified, if anything does.
func (r *Reloader) Ready() error { return r.resolver.Load().Ready() }

// Start begins to look for changes, until ctx ends or Stop is called. It may be
// called more than once.
func (r *Reloader) Start(ctx context.Context) {
	r.turn.Lock()
	defer r.turn.Unlock()
	if r.cancel != nil || r.closed || (r.source.Path == "" && len(r.named) == 0) {
		return
	}
	ctx, r.cancel = context.WithCancel(ctx)
	r.polling.Go(func() { r.poll(ctx) })
}

// Stop ends that, and closes the resolver in use, which goes on working. It may be
// called more than once.
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

// Reload reads the configuration and uses it, now, whether it has changed or not.
func (r *Reloader) Reload(ctx context.Context) error {
	r.turn.Lock()
	defer r.turn.Unlock()
	if r.closed {
		return errors.New("daemon: the reloader was stopped")
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

// wait returns how long to wait before looking again. 0: for ever.
func (r *Reloader) wait() time.Duration {
	r.turn.Lock()
	defer r.turn.Unlock()
	interval := time.Duration(r.config.Server.ReloadInterval)
	if r.pending != [sha256.Size]byte{} {
		return min(interval, settle)
	}
	return interval
}

// look applies what has changed and has stayed so since the last look. A file that
// was replaced by renaming others may be missing for a moment, so that is said only
// if it is the second time.
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

// read returns the content of the file, and a fingerprint of it and of the files that
// it is known to name.
func (r *Reloader) read() (data []byte, mark [sha256.Size]byte, err error) {
	if data, err = r.source.read(); err != nil {
		return nil, mark, err
	}
	if r.source.Path != "" && len(bytes.TrimSpace(data)) == 0 && sha256.Sum256(data) != r.config.hash {
		// Whoever writes a file empties it first, and may get no further.
		return nil, mark, fmt.Errorf("%s is empty", r.source.Path)
	}
	var named []namedFile
	for _, path := range r.named {
		named = append(named, readMark(path))
	}
	return data, fingerprint(sha256.Sum256(data), named), nil
}

// readMark reads a file, or the files of a directory, to tell whether they have changed.
func readMark(path string) namedFile {
	f := namedFile{path: path}
	if text, err := os.ReadFile(path); err == nil {
		f.hash = sha256.Sum256(text)
	} else if files, err := descriptor.ReadDir(path); err == nil {
		f.hash = hashFiles(files)
	}
	return f
}

func fingerprint(hash [sha256.Size]byte, named []namedFile) [sha256.Size]byte {
	all := hash[:]
	for _, f := range named {
		all = append(all, f.hash[:]...)
	}
	return sha256.Sum256(all)
}

// note remembers which files were tried.
func (r *Reloader) note(c *Config) {
	r.named = nil
	for _, f := range c.named {
		r.named = append(r.named, f.path)
	}
	r.seen, r.pending = fingerprint(c.hash, c.named), [sha256.Size]byte{}
}

// apply has the engine use a configuration, if it has no problems.
func (r *Reloader) apply(ctx context.Context, data []byte) error {
	next, problems := r.source.parse(data)
	r.note(next)
	if err := problems.Err(); err != nil {
		r.reject(ctx, err)
		return err
	}
	if err := r.use(ctx, next); err != nil {
		r.reject(ctx, err)
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

// use replaces rules and resolver, at one instant, and what else was prepared. A
// resolver that would be the same is kept: it knows tokens, and has fetched keys.
func (r *Reloader) use(ctx context.Context, next *Config) error {
	content, err := r.content(next)
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

// content returns the rules and people in use: those of the database, if there is one.
func (r *Reloader) content(c *Config) (Content, error) {
	if r.database != nil {
		return *r.database, nil
	}
	return c.Content()
}

// Use has the engine use what is new in the database: rules and lists, at one instant.
func (r *Reloader) Use(rules *rule.Set, lists identity.Lists) error {
	r.turn.Lock()
	defer r.turn.Unlock()
	if r.closed {
		return errors.New("daemon: the reloader was stopped")
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

// identifiesLike reports whether both make the same resolver.
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

// inUse is the status of the configuration in use when nothing is wrong.
func (r *Reloader) inUse() Status {
	s := Status{Loaded: r.now(), Hash: hex.EncodeToString(r.config.hash[:]), Rules: r.engine.Rules().Len()}
	before := r.first.settings()
	for i, after := range r.config.settings() {
		was, is := before[i].value, after.value
		switch {
		case strings.HasPrefix(after.name, "identity."), after.name == "server.reload_interval", reflect.DeepEqual(was.Interface(), is.Interface()):
		case strings.HasSuffix(after.name, ".tls_client_ca"):
		case strings.HasPrefix(after.name, "server.") && strings.Contains(after.name, ".tls_") && !was.IsZero() && !is.IsZero(): // another file
		default:
			s.NeedsRestart = append(s.NeedsRestart, after.name)
		}
	}
	if len(r.first.Upstreams) == 0 && len(r.config.Upstreams) > 0 {
		s.NeedsRestart = append(s.NeedsRestart, "upstreams") // there is no listener for them
	}
	return s
}

// reject notes why a configuration is not used, and logs it once.
func (r *Reloader) reject(ctx context.Context, why error) {
	r.mu.Lock()
	again := r.status.Problem == why.Error()
	if !again {
		r.status.Problem, r.status.ProblemAt = why.Error(), r.now()
	}
	r.mu.Unlock()
	if !again {
		r.log.ErrorContext(ctx, "configuration not used, the one before stays in use", "file", r.source.Path, "problem", why.Error())
	}
	var problems rule.Problems
	if !errors.As(why, &problems) {
		r.seen = [sha256.Size]byte{} // when the file is back it is tried again, whatever it holds
	}
}

// compare returns the names of the rules that are new, gone, or not as they were.
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

// shorten returns no more names than a line of the log should have.
func shorten(names []string) []string {
	const limit = 20
	if len(names) > limit {
		return append(slices.Clone(names[:limit]), fmt.Sprintf("and %d more", len(names)-limit))
	}
	return names
}
