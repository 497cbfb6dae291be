package daemon_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/memstore"
)

// version returns a configuration with one rule of this name.
func version(name string) string {
	return "[[rules]]\nname = \"" + name + "\"\ncount_by = [\"ip\"]\nlimits = [{ name = \"requests\", limit = \"1000000/1s\" }]\n"
}

// rig is an engine and its reloader.
type rig struct {
	*daemon.Reloader
	engine *engine.Engine
	log    lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newRig(t *testing.T, path string, environ ...string) *rig {
	t.Helper()
	c, err := loadFile(path, environ)
	if err != nil {
		t.Fatal(err)
	}
	content, err := c.Content()
	if err != nil {
		t.Fatal(err)
	}
	who, err := c.Resolver(content, nil)
	if err != nil {
		t.Fatal(err)
	}
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{}
	if r.engine, err = engine.New(engine.Options{Store: store, Rules: content.Rules, Identity: who}); err != nil {
		t.Fatal(err)
	}
	if r.Reloader, err = daemon.NewReloader(daemon.ReloaderOptions{
		Source: daemon.Source{Path: path, Environ: environ}, Config: c, Resolver: who, Engine: r.engine, Log: slog.New(slog.NewTextHandler(&r.log, nil)),
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r
}

// rules returns the names of the rules in use, and whether there is a problem.
func (r *rig) rules() string {
	var names []string
	for _, c := range r.engine.Rules().Rules() {
		names = append(names, c.Name)
	}
	if r.Status().Problem != "" {
		names = append(names, "problem")
	}
	return strings.Join(names, " ")
}

// uses returns how often a configuration was applied.
func (r *rig) uses() int { return strings.Count(r.log.String(), "configuration in use") }

// pass lets time pass, in a bubble.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func do(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// enough is the time after which a change must be in use: an interval, and the time to
// settle.
const enough = 1200 * time.Millisecond

// TestReplaced replaces the file in every way that people and programs do.
func TestReplaced(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(t *testing.T, path, text string){
		"rewritten": put,
		"renamed": func(t *testing.T, path, text string) {
			t.Helper()
			put(t, path+".new", text)
			do(t, os.Rename(path+".new", path))
		},
		"edited": func(t *testing.T, path, text string) {
			t.Helper()
			do(t, os.Rename(path, path+"~"))
			pass(time.Second) // it is looked at once while it is not there
			put(t, path, text)
		},
		"in a ConfigMap": func(t *testing.T, path, text string) {
			t.Helper()
			dir := filepath.Dir(path)
			versions, err := filepath.Glob(filepath.Join(dir, "..v*"))
			do(t, err)
			next := fmt.Sprintf("..v%d", len(versions))
			do(t, os.Mkdir(filepath.Join(dir, next), 0o700))
			put(t, filepath.Join(dir, next, "stint.toml"), text)
			do(t, os.Symlink(next, filepath.Join(dir, "..data_tmp")),
				os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
			if _, err := os.Lstat(path); err != nil {
				do(t, os.Symlink(filepath.Join("..data", "stint.toml"), path))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "stint.toml")
				if name == "edited" {
					put(t, path, version("one"))
				} else {
					replace(t, path, version("one"))
				}
				r := newRig(t, path)
				r.Start(t.Context())
				r.Start(t.Context())
				if pass(enough); r.rules() != "one" || r.uses() != 0 {
					t.Fatalf("%s, after %d changes", r.rules(), r.uses())
				}
				first := r.Status()
				for i, next := range []string{"two", "three", "one"} {
					replace(t, path, version(next))
					if pass(enough); r.rules() != next || r.uses() != i+1 {
						t.Fatalf("%s, after %d changes, want %s: %s", r.rules(), r.uses(), next, r.log.String())
					}
				}
				last := r.Status()
				if last.Hash != first.Hash || len(last.Hash) != 64 || last.Rules != 1 || !last.Loaded.After(first.Loaded) {
					t.Errorf("%+v, and at first %+v", last, first)
				}
				if strings.Contains(r.log.String(), "configuration rejected") {
					t.Error(r.log.String())
				}
				r.Stop()
				r.Stop()
				replace(t, path, version("four"))
				if pass(enough); r.rules() != "one" {
					t.Errorf("%s, after it was stopped", r.rules())
				}
				if err := r.Reload(t.Context()); err == nil {
					t.Error("it was stopped, and reloads")
				}
			})
		})
	}
}

// TestNotUsed replaces the file by an invalid one, and then by a valid one.
func TestNotUsed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil  func(path string) error
		reason string
	}{
		"bad": {func(path string) error {
			return os.WriteFile(path, []byte(version("two")+"actoin = \"block\"\n[server]\nreplicas = -1\n"), 0o600)
		}, "stint.toml:7:12: server.replicas: -1: want 0 or more"},
		"deleted": {os.Remove, "no such file"},
		"emptied": {func(path string) error { return os.Truncate(path, 0) }, "stint.toml is empty"},
		"directory": {func(path string) error {
			return os.Rename(filepath.Dir(path), filepath.Dir(path)+"-away")
		}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "config", "stint.toml")
				do(t, os.Mkdir(filepath.Dir(path), 0o700))
				put(t, path, version("one"))
				r := newRig(t, path)
				r.Start(t.Context())
				for range 2 {
					do(t, c.spoil(path))
					pass(3 * time.Second)
					if s := r.Status(); r.rules() != "one problem" || !strings.Contains(s.Problem, c.reason) || s.ProblemAt.Before(s.Loaded) {
						t.Fatalf("%s: %+v", r.rules(), s)
					}
					if err := r.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), c.reason) {
						t.Fatal(err)
					}
					do(t, os.MkdirAll(filepath.Dir(path), 0o700), os.RemoveAll(filepath.Dir(path)+"-away"))
					put(t, path, version("one"))
					if pass(enough); r.rules() != "one" || !r.Status().ProblemAt.IsZero() {
						t.Fatalf("%s: %+v", r.rules(), r.Status())
					}
				}
				if n := strings.Count(r.log.String(), "configuration rejected"); n != 2 {
					t.Errorf("it was logged %d times, want 2: %s", n, r.log.String())
				}
			})
		})
	}
}

// TestHalfWritten writes a file in parts, each of which is valid.
func TestHalfWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := write(t, "stint.toml", version("one"))
		r := newRig(t, path)
		r.Start(t.Context())
		var text string
		for i := range 100 {
			text += version(fmt.Sprint("rule-", i))
			put(t, path, text)
			if pass(50 * time.Millisecond); r.rules() != "one" {
				t.Fatalf("after %d parts: %s", i+1, r.rules())
			}
		}
		if pass(enough); r.Status().Rules != 100 || r.uses() != 1 {
			t.Errorf("%d rules, after %d changes", r.Status().Rules, r.uses())
		}
		if log := r.log.String(); !strings.Contains(log, "and 80 more") || !strings.Contains(log, "removed=[one]") {
			t.Error(log)
		}
	})
}

func TestInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := write(t, "stint.toml", version("one"))
		r := newRig(t, path)
		r.Start(t.Context())
		put(t, path, version("two")+"[server]\nreload_interval = \"0\"\nreplicas = 3\nlog_level = \"warn\"\n")
		pass(enough)
		put(t, path, version("three")+"[server]\nreload_interval = \"1m\"\n")
		pass(time.Hour)
		if r.rules() != "two" || !slices.Equal(r.Status().NeedsRestart, []string{"server.replicas", "server.log_level"}) {
			t.Errorf("%s: %+v", r.rules(), r.Status())
		}
		do(t, r.Reload(t.Context()))
		if r.rules() != "three" || r.Status().NeedsRestart != nil {
			t.Errorf("%s: %+v", r.rules(), r.Status())
		}
		put(t, path, version("four"))
		if pass(30 * time.Second); r.rules() != "three" {
			t.Errorf("%s, before it was time", r.rules())
		}
		if pass(31 * time.Second); r.rules() != "four" {
			t.Errorf("%s, though it was time", r.rules())
		}
		put(t, path, version("four")+"priority = 7\n")
		if do(t, r.Reload(t.Context())); !strings.Contains(r.log.String(), "added=[] removed=[] changed=[four]") {
			t.Error(r.log.String())
		}
	})
}

// TestNamedFiles changes a file that the configuration names.
func TestNamedFiles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path, named := write(t, "stint.toml", version("one")), write(t, "pepper", pepper)
		r := newRig(t, path, "STINT_IDENTITY_PEPPER_FILE="+named)
		r.Start(t.Context())
		put(t, named, pepper+"2")
		if pass(enough); r.uses() != 1 {
			t.Errorf("%d changes, want 1", r.uses())
		}
		do(t, os.Remove(named))
		if pass(enough); r.rules() != "one problem" || !strings.HasPrefix(r.Status().Problem, "STINT_IDENTITY_PEPPER_FILE: ") {
			t.Errorf("%+v", r.Status())
		}
		put(t, named, pepper)
		if pass(enough); r.uses() != 2 || r.rules() != "one" {
			t.Errorf("%d changes, want 2: %+v", r.uses(), r.Status())
		}
	})
}

// TestNamedAlone changes a file that a variable names, without a config file.
func TestNamedAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		named := write(t, "pepper", pepper)
		r := newRig(t, "", "STINT_IDENTITY_PEPPER_FILE="+named)
		r.Start(t.Context())
		put(t, named, pepper+"2")
		if pass(enough); r.uses() != 1 {
			t.Errorf("%d changes, want 1", r.uses())
		}
	})
}

// TestResolverKept checks that a resolver that would be the same is kept, so that its keys
// need not be fetched again.
func TestResolverKept(t *testing.T) {
	t.Parallel()
	fetched := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { fetched <- struct{}{} }))
	defer server.Close()
	jwt := "[identity.jwt]\njwks_url = \"" + server.URL + "\"\n"
	path := write(t, "stint.toml", version("one")+jwt)
	r := newRig(t, path)
	<-fetched
	put(t, path, version("two")+jwt)
	do(t, r.Reload(t.Context()))
	put(t, path, version("three")+jwt+"[[bans]]\nuser = \"eve\"\n")
	do(t, r.Reload(t.Context()))
	<-fetched
	r.Stop()
	if len(fetched) > 0 || r.rules() != "three" {
		t.Errorf("%d fetches too many, and %s", len(fetched), r.rules())
	}
}

// TestOneInstant decides requests while configurations change. In each, the tier of all
// callers is that of the only rule.
func TestOneInstant(t *testing.T) {
	t.Parallel()
	text := func(name string) string {
		return "[identity]\ndefault_tier = \"" + name + "\"\n" + version(name) + "match = { tiers = [\"" + name + "\"] }\n[[tiers]]\nname = \"" + name + "\"\n"
	}
	path := write(t, "stint.toml", text("one"))
	r := newRig(t, path)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				v, err := r.engine.Decide(t.Context(), engine.Request{Method: "GET", Path: "/", Peer: netip.MustParseAddr("192.0.2.1")})
				if err != nil || len(v.Limits) != 1 || v.Rule.Name != v.Subject.Tier {
					t.Errorf("%+v, %v", v, err)
					return
				}
			}
		})
	}
	for i := range 100 {
		put(t, path, text([]string{"one", "two"}[i%2]))
		do(t, r.Reload(t.Context()))
	}
	close(stop)
	wg.Wait()
	if r.uses() != 100 {
		t.Errorf("%d changes, want 100", r.uses())
	}
}

func TestReloaderWithout(t *testing.T) {
	t.Parallel()
	if _, err := daemon.NewReloader(daemon.ReloaderOptions{}); err == nil {
		t.Error("a reloader of nothing")
	}
	r := newRig(t, "", "STINT_SERVER_REPLICAS=2")
	r.Start(t.Context())
	do(t, r.Reload(t.Context()))
	if s := r.Status(); s.Rules != 0 || s.Problem != "" || s.NeedsRestart != nil {
		t.Errorf("%+v", s)
	}
}
