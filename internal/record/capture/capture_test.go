package capture_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/record/capture"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

const rules = `
[[rules]]
name = "search"
match = { paths = ["/search/**"], headers = { "X-App" = "*" } }
count_by = ["ip", "claim:plan"]
limits = [ { name = "few", limit = "3/1h" } ]
penalty = { threshold = 2, within = "1h", cooldown = "1m" }
`

func newEngine(t testing.TB, text string) *engine.Engine {
	t.Helper()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(engine.Options{Store: store, Rules: compile(t, text)})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func compile(t testing.TB, text string) *rule.Set {
	t.Helper()
	file, err := rule.ParseTOML("rules.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	set, err := rule.Compile(file)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func start(t testing.TB, e *engine.Engine, o capture.Options) (*capture.Session, string) {
	t.Helper()
	o.Engine, o.Path = e, filepath.Join(t.TempDir(), "file")
	if o.Settle == 0 {
		o.Settle = -1
	}
	s, err := capture.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop(context.Background(), capture.EndedByCaller) })
	return s, o.Path
}

func search(n int) engine.Request {
	return engine.Request{
		Method: "GET", Path: fmt.Sprint("/search/", n, "?key=secret-query"),
		Headers: map[string][]string{"X-App": {"mobile"}, "Authorization": {"Bearer secret-token"}, "X-Api-Key": {"secret-key"}, "Cookie": {"secret-cookie"}},
		Subject: &identity.Subject{User: "alice", IP: netip.MustParseAddr("192.0.2.1"), Claims: map[string]string{"plan": "gold", "mail": "secret-mail"}},
	}
}

func decide(t testing.TB, e *engine.Engine, n int) {
	t.Helper()
	for i := range n {
		if _, err := e.Decide(t.Context(), search(i)); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t testing.TB, path string) (r *capture.Reader, all []capture.Record) {
	t.Helper()
	r, err := capture.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for record, err := range r.Records() {
		if err != nil {
			t.Fatal(err)
		}
		if record != (capture.Record{}) {
			all = append(all, record)
		}
	}
	return r, all
}

// TestFile captures decisions, and reads what they depended on: that, and no secret.
func TestFile(t *testing.T) {
	t.Parallel()
	e := newEngine(t, rules)
	s, path := start(t, e, capture.Options{Node: "node-7", Region: "here", Revision: 42, Version: "1.2.3"})
	decide(t, e, 5)
	if err := e.Reset(t.Context(), identity.Subject{User: "alice"}, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is there before its time: %v", err)
	}
	if err := s.Stop(t.Context(), capture.EndedByCaller); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	r, all := read(t, path)
	if h := r.Header; h.Node != "node-7" || h.Region != "here" || h.Revision != 42 || h.Version != "1.2.3" || len(h.Rules.Rules) != 1 || fmt.Sprint(h.Headers, h.Claims) != "[X-App] [plan]" {
		t.Errorf("%+v", h)
	}
	if sum := r.Summary; sum.Decisions != 5 || sum.Lost != 0 || sum.Unfinished != 0 || sum.Reason != capture.EndedByCaller {
		t.Errorf("%+v", sum)
	}
	outcomes := make([]engine.Outcome, 5)
	for _, one := range all {
		if f := one.Facts; f != nil {
			outcomes[f.Number-1] = one.Verdict.Outcome
			if !strings.HasPrefix(f.Path, "/search/") || f.Subject.User != "alice" || fmt.Sprint(f.Headers, f.Subject.Claims) != "map[X-App:[mobile]] map[plan:gold]" {
				t.Errorf("%+v", f)
			}
		}
	}
	if want := []engine.Outcome{engine.Allowed, engine.Allowed, engine.Allowed, engine.Denied, engine.Banned}; !slices.Equal(outcomes, want) {
		t.Error(outcomes)
	}
	dump := fmt.Sprintf("%+v", r.Header)
	for _, one := range all {
		dump += fmt.Sprintf("%+v %+v %+v", one.Call, one.Facts, one.Verdict)
	}
	if i := strings.Index(dump, "secret"); i >= 0 {
		t.Errorf("a secret was captured: %s", dump[max(i-100, 0):i+20])
	}
}

// TestEnds has captures end by themselves: after their time, at their size, without room on the disk, and when the rules are others. The
// file is never too large, and whole.
func TestEnds(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]struct {
		o  capture.Options
		do func(e *engine.Engine, s *capture.Session)
	}{
		capture.EndedByTime: {capture.Options{For: time.Second}, func(*engine.Engine, *capture.Session) {}},
		capture.EndedBySize: {capture.Options{MaxBytes: capture.MinBytes}, func(e *engine.Engine, s *capture.Session) {
			for {
				select {
				case <-s.Done():
					return
				default:
					decide(t, e, 100)
				}
			}
		}},
		capture.EndedByDisk: {capture.Options{MinFree: 1 << 62}, nil},
		capture.EndedByRules: {capture.Options{}, func(e *engine.Engine, _ *capture.Session) {
			if err := e.Use(compile(t, rules), e.Identity()); err != nil { // the same, compiled again
				t.Error(err)
			}
			decide(t, e, 1)
			if err := e.Use(compile(t, strings.Replace(rules, "3/1h", "4/1h", 1)), e.Identity()); err != nil {
				t.Error(err)
			}
			decide(t, e, 1)
		}},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t, rules)
			if c.do == nil { // there is no room for the header
				c.o.Engine, c.o.Path = e, filepath.Join(t.TempDir(), "file")
				if _, err := capture.Start(c.o); err == nil || !strings.Contains(err.Error(), "no more room") {
					t.Error(err)
				}
				return
			}
			s, path := start(t, e, c.o)
			c.do(e, s)
			<-s.Done()
			sum, err := s.Summary()
			if err != nil || sum.Reason != want || sum.Lost > 0 {
				t.Errorf("%+v %v", sum, err)
			}
			if info, err := os.Stat(path); err != nil || info.Size() != sum.Bytes || c.o.MaxBytes > 0 && sum.Bytes > c.o.MaxBytes {
				t.Errorf("%d bytes, %+v, %v", info.Size(), sum, err)
			}
			r, all := read(t, path)
			decisions := int64(0)
			for _, one := range all {
				if one.Facts != nil {
					decisions++
				}
			}
			if r.Summary != sum && decisions != sum.Decisions || want == capture.EndedByRules && decisions != 1 {
				t.Errorf("%d decisions; %+v, %+v", decisions, r.Summary, sum)
			}
		})
	}
}

// TestLost has more captured at once than is kept in memory: no decision waits, and what is lost is counted.
func TestLost(t *testing.T) {
	t.Parallel()
	e := newEngine(t, rules)
	s, path := start(t, e, capture.Options{Buffer: 4 << 10})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { decide(t, e, 2000) })
	}
	wg.Wait()
	if err := s.Stop(t.Context(), capture.EndedByCaller); err != nil {
		t.Fatal(err)
	}
	r, all := read(t, path)
	if sum := r.Summary; sum.Lost == 0 || int64(len(all)) != sum.Decisions+sum.Calls {
		t.Errorf("%d records, %+v", len(all), sum)
	}
}

// TestRefused refuses captures that would have secrets, that are too long, or too small.
func TestRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	for want, o := range map[string]capture.Options{
		"Authorization": {Engine: newEngine(t, strings.Replace(rules, `"X-App" = "*"`, `"Authorization" = "*"`, 1)), Path: path},
		"X-Api-Key":     {Engine: newEngine(t, strings.Replace(rules, `"ip"`, `"ip", "header:x-api-key"`, 1)), Path: path},
		"1s to 1h":      {Engine: newEngine(t, rules), Path: path, For: 2 * time.Hour},
		"max_bytes":     {Engine: newEngine(t, rules), Path: path, MaxBytes: 1},
	} {
		if _, err := capture.Start(o); err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, new(*stint.InvalidError)) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestKeeper has one capture at a time, and keeps the file of the last. What a process that was killed has left is removed, and what
// another one writes is not.
func TestKeeper(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "captures")
	e := newEngine(t, rules)
	k, err := capture.NewKeeper(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Open(); !errors.Is(err, capture.ErrNone) {
		t.Error(err)
	}
	o := capture.Options{Engine: e, Settle: -1}
	if err := k.Start(o); err != nil {
		t.Fatal(err)
	}
	if err := k.Start(o); !errors.Is(err, capture.ErrRunning) {
		t.Error(err)
	}
	decide(t, e, 3)
	other, err := capture.NewKeeper(dir) // of another process
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(capture.Options{Engine: newEngine(t, rules), Settle: -1}); !errors.Is(err, capture.ErrRunning) {
		t.Error(err)
	}
	k.Close(t.Context())
	if r, all := read(t, filepath.Join(dir, capture.File)); r.Summary.Reason != capture.EndedByNode || len(all) == 0 {
		t.Errorf("%+v", r.Summary)
	}
	part := filepath.Join(dir, capture.File+capture.Part)
	if err := os.WriteFile(part, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err = capture.NewKeeper(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(part); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if err := k.Remove(); err != nil {
		t.Error(err)
	}
	if err := k.Stop(t.Context(), ""); !errors.Is(err, capture.ErrNone) {
		t.Error(err)
	}
}

// FuzzOpen reads files that were changed: that is an error or not, and nothing worse.
func FuzzOpen(f *testing.F) {
	e := newEngine(f, rules)
	s, path := start(f, e, capture.Options{})
	decide(f, e, 20)
	if err := s.Stop(f.Context(), capture.EndedByCaller); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte{})
	for i := 0; i < len(whole); i += 1 + len(whole)/50 {
		b := bytes.Clone(whole)
		b[i] ^= 0x55
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := capture.Open(path)
		if err != nil {
			return
		}
		defer r.Close()
		for _, err := range r.Records() {
			if err != nil {
				return
			}
		}
	})
}

// BenchmarkDecide decides without a capture, and with one.
func BenchmarkDecide(b *testing.B) {
	for _, captures := range []bool{false, true} {
		b.Run(fmt.Sprintf("captured=%v", captures), func(b *testing.B) {
			e := newEngine(b, strings.Replace(rules, "3/1h", "1000000000/1h", 1))
			if captures {
				start(b, e, capture.Options{MaxBytes: 1 << 40})
			}
			q := search(1)
			var v engine.Verdict
			b.ReportAllocs()
			for b.Loop() {
				if err := e.DecideInto(b.Context(), &q, &v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
