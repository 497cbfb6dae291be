package lookup_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/kit/lookup"
)

type row struct{ version int }

// source is a database of versions, which can be made to fail and to take its time.
type source struct {
	mu       sync.Mutex
	revision int64
	rows     map[string]int
	until    time.Time
	before   func(ctx context.Context, id string) error // runs before it is read
	after    func(ctx context.Context, id string) error // runs once it has been
	calls    map[string][]time.Time
	at, most int // loads at once
}

var errDown = errors.New("connection refused")

func (s *source) load(ctx context.Context, id string) (lookup.Answer[row], error) {
	s.mu.Lock()
	if s.calls == nil {
		s.calls = map[string][]time.Time{}
	}
	s.calls[id] = append(s.calls[id], time.Now())
	s.at++
	s.most = max(s.most, s.at)
	before, after := s.before, s.after
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.at--
		s.mu.Unlock()
	}()
	if before != nil {
		if err := before(ctx, id); err != nil {
			return lookup.Answer[row]{}, err
		}
	}
	s.mu.Lock()
	a := lookup.Answer[row]{Revision: s.revision, Until: s.until}
	if v, ok := s.rows[id]; ok {
		a.Value = &row{v}
	}
	s.mu.Unlock()
	if after != nil {
		return a, after(ctx, id)
	}
	return a, nil
}

// set changes a row, and returns the revision.
func (s *source) set(id string, version int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rows == nil {
		s.rows = map[string]int{}
	}
	s.revision++
	s.rows[id] = version
	return s.revision
}

func (s *source) hook(before, after func(ctx context.Context, id string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before, s.after = before, after
}

// fail, slow, hang and heal say how it is from now on.
func (s *source) fail() { s.hook(func(context.Context, string) error { return errDown }, nil) }
func (s *source) hang() { s.hook(hanging, nil) }
func (s *source) heal() { s.hook(nil, nil) }
func (s *source) slow(d time.Duration) {
	s.hook(func(ctx context.Context, _ string) error { return wait(ctx, d) }, nil)
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func hanging(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// loads returns when ann was loaded, total how many loads there were.
func (s *source) loads() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls["ann"])
}

func (s *source) total() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		n += len(c)
	}
	return n
}

func (s *source) atOnce() (now, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at, s.most
}

func open(t testing.TB, o lookup.Options[row]) *lookup.Cache[row] {
	t.Helper()
	c, err := lookup.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// get is a Get that must succeed. It returns the version, 0 if there is none, and how
// long it took.
func get(t testing.TB, c *lookup.Cache[row], id string) (version int, took time.Duration) {
	t.Helper()
	begin := time.Now()
	v, err := c.Get(context.Background(), id)
	if err != nil {
		t.Errorf("%s: %v", id, err)
	}
	if v != nil {
		version = v.version
	}
	return version, time.Since(begin)
}

// want is a Get that must answer this, and take no longer nor less.
func want(t testing.TB, c *lookup.Cache[row], id string, version int, took time.Duration) {
	t.Helper()
	if v, d := get(t, c, id); v != version || d != took {
		t.Errorf("%s: version %d after %v; want %d after %v", id, v, d, version, took)
	}
}

// refused is a Get that must fail at once, for the source's reason.
func refused(t testing.TB, c *lookup.Cache[row], id string) {
	t.Helper()
	begin := time.Now()
	v, err := c.Get(context.Background(), id)
	if v != nil || !errors.Is(err, lookup.ErrUnavailable) || !errors.Is(err, errDown) || time.Since(begin) > 0 {
		t.Errorf("%s: %v, %v after %v; want it to be refused at once", id, v, err, time.Since(begin))
	}
}
