package catalogtest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/stintdev/stint/internal/control/catalog"
)

// writers is the number of concurrent writers, and writes how often each of them writes.
const writers, writes = 8, 8

// together runs a function for each writer at the same time.
func together(run func(writer int)) {
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() { run(w) })
	}
	all.Wait()
}

// checkLostUpdates has all writers count in one record, each with a number of its own.
func checkLostUpdates(s *suite) {
	s.prepare()
	ctx := s.t.Context()
	s.must(s.Tenants.Create(ctx, actor, catalog.Tenant{ID: "acme", Name: strings.TrimSpace(strings.Repeat("0 ", writers))}))
	start := s.revision()
	together(func(w int) {
		for i := range writes {
			_, err := s.Tenants.Modify(ctx, fmt.Sprint("writer ", w), "acme", func(v *catalog.Tenant) error {
				counts := strings.Fields(v.Name)
				if counts[w] != strconv.Itoa(i) {
					s.t.Errorf("writer %d has counted to %d, but reads %s", w, i, counts[w])
				}
				counts[w] = strconv.Itoa(i + 1)
				v.Name = strings.Join(counts, " ")
				return nil
			})
			if err != nil {
				s.t.Error(err)
			}
		}
	})
	r, err := s.Tenants.Get(ctx, "acme")
	s.check(err)
	want := strings.TrimSpace(strings.Repeat(fmt.Sprint(writes, " "), writers))
	if end := s.revision(); r.Value.Name != want || end != start+writers*writes || r.Version != end {
		s.t.Errorf("got counts %s, revision %d and version %d, want %s and %d", r.Value.Name, end, r.Version, want, start+writers*writes)
	}
	s.checkLog(start)
}

// checkLog checks that the log has each revision after start, in order, and that each change
// begins with the value that the one before it left.
func (s *suite) checkLog(start int64) {
	s.t.Helper()
	last := map[[2]string]any{}
	for i, c := range s.changes(start) {
		if c.revision != start+1+int64(i) || c.place != 0 || !c.stamped || !c.timed || c.actor == "" {
			s.t.Fatalf("change %d after revision %d is %+v", i, start, c)
		}
		id := [2]string{c.kind, c.id}
		if before, ok := last[id]; ok {
			s.equal(fmt.Sprint("before revision ", c.revision), c.before, before)
		}
		last[id] = c.after
	}
}

// checkOneWinner has all writers create, update and delete the same record.
func checkOneWinner(s *suite) {
	s.prepare()
	for _, k := range s.kinds() {
		var seen int64
		write := func(doing string, do func(w int) (int64, error)) (winner int) {
			errs, versions := make([]error, writers), make([]int64, writers)
			together(func(w int) { versions[w], errs[w] = do(w) })
			winner = slices.Index(errs, nil)
			if winner < 0 {
				s.t.Fatalf("%s %s: all failed: %v", doing, k.name, errs)
			}
			for w, err := range errs {
				if w != winner && !errors.As(err, new(*catalog.ConflictError)) && !errors.As(err, new(*catalog.NotFoundError)) {
					s.t.Errorf("%s %s: writer %d won, and writer %d got %v", doing, k.name, winner, w, err)
				}
			}
			seen = versions[winner]
			return winner
		}
		is := func(n int) {
			r, err := k.get("alice")
			s.check(err)
			s.equal(k.name, r.Value, k.value("alice", n))
		}
		is(write("create", func(w int) (int64, error) { return k.create("alice", w) }))
		is(writers + write("update", func(w int) (int64, error) { return k.update("alice", writers+w, seen) }))
		write("delete", func(int) (int64, error) { return 0, k.remove("alice", seen) })
	}
}

// checkRevisions has all writers write different records. Revisions have no gaps, even if
// some writes fail or change nothing.
func checkRevisions(s *suite) {
	s.prepare()
	start, all := s.revision(), s.kinds()
	const each = 15
	got := make([][]int64, writers)
	together(func(w int) {
		k := all[w%len(all)]
		for i := range each {
			name := fmt.Sprintf("w%di%d", w, i)
			version, err := k.create(name, 0)
			if err != nil {
				s.t.Error(err)
			}
			got[w] = append(got[w], version)
			if err := failure(k.create(name, 0)); !errors.As(err, new(*catalog.ConflictError)) {
				s.t.Error(err)
			}
			if same, err := k.update(name, 0, version); err != nil || same != version {
				s.t.Error(same, err)
			}
		}
	})
	for w := range got {
		if !slices.IsSorted(got[w]) {
			s.t.Errorf("the revisions of writer %d are not in order: %v", w, got[w])
		}
	}
	revisions := slices.Sorted(slices.Values(slices.Concat(got...)))
	for i, n := range revisions {
		if n != start+1+int64(i) {
			s.t.Fatalf("the revision after %d is %d", start+int64(i), n)
		}
	}
	if end := s.revision(); end != start+writers*each {
		s.t.Errorf("got revision %d, want %d", end, start+writers*each)
	}
	s.checkLog(start)
}
