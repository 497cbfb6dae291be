package catalogtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
)

// writers is how many write at once, and writes how often each does.
const writers, writes = 8, 50

// together runs a function for each writer, at once.
func together(run func(writer int)) {
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() { run(w) })
	}
	all.Wait()
}

// checkLostUpdates has many add to one thing at once.
func checkLostUpdates(h *house) {
	t := h.t
	h.furnish(t)
	_, err := h.Tenants.Create(t.Context(), actor, catalog.Tenant{ID: "acme"})
	check(t, err)
	start := h.revision(t)
	// Each writer has a letter, and appends it.
	together(func(w int) {
		for range writes {
			_, err := h.Tenants.Modify(t.Context(), fmt.Sprint("writer ", w), "acme", func(v *catalog.Tenant) error {
				v.Name = addLetter(v.Name, w)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
	r, err := h.Tenants.Get(t.Context(), "acme")
	check(t, err)
	for w := range writers {
		if n := count(r.Value.Name, w); n != writes {
			t.Errorf("writer %d has added %d times, want %d", w, n, writes)
		}
	}
	if end := h.revision(t); end != start+writers*writes || r.Version != end {
		t.Errorf("revision %d and version %d after %d, want %d of both", end, r.Version, start, start+writers*writes)
	}
	checkLog(t, h, start)
}

// A name holds a number for each writer: it has room for 255 bytes.
func addLetter(name string, w int) string {
	counts := parse(name)
	counts[w]++
	return strings.Trim(fmt.Sprint(counts), "[]")
}

func count(name string, w int) int { return parse(name)[w] }

func parse(name string) (counts [writers]int) {
	for i, field := range strings.Fields(name) {
		_, _ = fmt.Sscan(field, &counts[i])
	}
	return counts
}

// checkLog checks that each revision after start is there, in order, and that each
// change begins where the last of the same thing ended.
func checkLog(t *testing.T, h *house, start int64) {
	t.Helper()
	last := map[[2]string]any{}
	for i, c := range h.changes(t, start) {
		if c.revision != start+1+int64(i) || c.place != 0 || !c.stamped || !c.timed || c.actor == "" {
			t.Fatalf("change %d after revision %d is %+v", i, start, c)
		}
		key := [2]string{c.kind, c.id}
		if before, ok := last[key]; ok {
			equal(t, fmt.Sprint("revision ", c.revision, " is of"), c.before, before)
		}
		last[key] = c.after
	}
}

// checkOneWriter has many write what one of them has seen, and create one thing.
func checkOneWriter(h *house) {
	t := h.t
	h.furnish(t)
	for _, k := range kinds {
		outcomes := make([]error, writers)
		versions := make([]int64, writers)
		together(func(w int) { versions[w], outcomes[w] = k.create(t.Context(), h, "alice", w) })
		winner := one(t, k.kindName()+" created", outcomes)
		value, _, err := k.get(t.Context(), h, "alice")
		check(t, err)
		equal(t, "created", value, k.value("alice", winner))

		seen := versions[winner]
		together(func(w int) { versions[w], outcomes[w] = k.update(t.Context(), h, "alice", writers+w, seen) })
		winner = one(t, k.kindName()+" updated", outcomes)
		value, _, err = k.get(t.Context(), h, "alice")
		check(t, err)
		equal(t, "updated", value, k.value("alice", writers+winner))

		seen = versions[winner]
		together(func(w int) { outcomes[w] = k.remove(t.Context(), h, "alice", seen) })
		one(t, k.kindName()+" deleted", outcomes)
	}
}

// one returns which of the writes has passed. The others have to fail as they should.
func one(t *testing.T, what string, outcomes []error) int {
	t.Helper()
	winner := slices.Index(outcomes, nil)
	for w, err := range outcomes {
		switch {
		case w == winner:
		case err == nil:
			t.Errorf("%s: by %d and by %d", what, winner, w)
		case !errors.As(err, new(*catalog.ConflictError)) && !errors.As(err, new(*catalog.NotFoundError)):
			t.Errorf("%s: %v", what, err)
		}
	}
	if winner < 0 {
		t.Fatalf("%s: by none: %v", what, outcomes)
	}
	return winner
}

// checkRevisions has many write different things at once. Their revisions have no gaps,
// also if some of the writes fail or change nothing.
func checkRevisions(h *house) {
	t := h.t
	h.furnish(t)
	start := h.revision(t)
	const some = 15
	got := make([][]int64, writers)
	together(func(w int) {
		k := kinds[w%len(kinds)]
		for i := range some {
			name := fmt.Sprintf("w%di%d", w, i)
			version, err := k.create(t.Context(), h, name, 0)
			if err != nil {
				t.Error(err)
			}
			got[w] = append(got[w], version)
			switch i % 3 {
			case 0:
				_, err = k.create(t.Context(), h, name, 0) // there is one
				if !errors.As(err, new(*catalog.ConflictError)) {
					t.Error(err)
				}
			case 1:
				same, err := k.update(t.Context(), h, name, 0, version) // it is the same
				if err != nil || same != version {
					t.Error(same, err)
				}
			}
		}
	})
	var all []int64
	for w := range got {
		if !slices.IsSorted(got[w]) {
			t.Errorf("revisions of writer %d go back: %v", w, got[w])
		}
		all = append(all, got[w]...)
	}
	slices.Sort(all)
	for i, n := range all {
		if n != start+1+int64(i) {
			t.Fatalf("the revision after %d is %d", start+int64(i), n)
		}
	}
	if end := h.revision(t); end != start+writers*some {
		t.Errorf("revision %d, want %d", end, start+writers*some)
	}
	checkLog(t, h, start)
}
