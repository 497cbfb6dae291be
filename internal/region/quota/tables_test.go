package quota_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/region/quota"
	"github.com/stintdev/stint/internal/test/testdatabase"
)

// site is a node with its weights in a database.
type site struct {
	weights *quota.Weights
	store   stint.Store
}

func newSite(t *testing.T, db *database.DB, node, region string) site {
	t.Helper()
	of := table(t, region, quota.Region{Name: "eu"}, quota.Region{Name: "us"})
	w, err := quota.NewWeights(db, quota.WeightsOptions{Table: of, Node: node})
	if err != nil {
		t.Fatal(err)
	}
	return site{w, around(t, memory(t, nil), quota.Options{Table: of, Weights: w})}
}

func (s site) step(t *testing.T) {
	t.Helper()
	if err := quota.StepIn(t.Context(), s.weights, true); err != nil {
		t.Fatal(err)
	}
}

// TestDatabase has weights change in a database, in which time passes by moving what it has into the past.
func TestDatabase(t *testing.T) {
	t.Parallel()
	testdatabase.Each(t, func(t *testing.T, url string) {
		t.Helper()
		db := recordtest.Open(t, url)
		eu, us := newSite(t, db, "a", "eu"), newSite(t, db, "b", "us")
		expect := func(want ...string) {
			t.Helper()
			if got, err := quota.Kept(t.Context(), db); err != nil || !slices.Equal(got, want) {
				t.Fatalf("%q, %v, want %q", got, err, want)
			}
		}
		parts := func(inEU, inUS int64) {
			t.Helper()
			for s, want := range map[site]int64{eu: inEU, us: inUS} {
				if d := take(t, s.store, ask(t, "1000/1s", 0, following))[0]; d.Limit != want {
					t.Fatalf("a part of %d, want %d", d.Limit, want)
				}
			}
		}
		pass := func(d time.Duration) {
			t.Helper()
			if err := quota.Backdate(t.Context(), db, d); err != nil {
				t.Fatal(err)
			}
		}
		parts(20, 20)
		us.step(t)
		eu.step(t)
		expect()
		parts(500, 500)
		take(t, eu.store, ask(t, "1000/1s", 300, following))
		us.step(t)
		eu.step(t)
		eu.step(t)
		us.step(t)
		expect("api 10s 1 false [{eu 500000 980000} {us 500000 20000}]")
		parts(500, 20)
		pass(quota.Wait(limitOf(t, "1000/1s")) - time.Minute/4)
		take(t, eu.store, ask(t, "1000/1s", 1, following))
		eu.step(t)
		us.step(t)
		expect("api 10s 1 false [{eu 500000 980000} {us 500000 20000}]")
		pass(time.Minute / 4)
		us.step(t)
		eu.step(t)
		expect("api 10s 2 true [{eu 980000 980000} {us 20000 20000}]")
		parts(980, 20)

		// However many nodes take their turn at once, one does what is due.
		pass(time.Minute)
		take(t, us.store, ask(t, "1000/1s", 700, following))
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				if err := quota.StepIn(t.Context(), us.weights, false); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		us.step(t)
		us.step(t)
		eu.step(t)
		got, err := quota.Kept(t.Context(), db)
		if err != nil || len(got) != 1 || !strings.HasPrefix(got[0], "api 10s 3 false [{eu 980000 ") {
			t.Fatalf("%q, %v", got, err)
		}

		// Nobody reports any more.
		other := newSite(t, db, "c", "us")
		for range 3 {
			pass(quota.Forgotten + time.Minute)
			other.step(t)
			other.step(t)
		}
		expect()

		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if err := quota.StepIn(t.Context(), eu.weights, true); !errors.Is(err, database.ErrUnavailable) {
			t.Error(err)
		}
	})
}

func TestBadWeights(t *testing.T) {
	t.Parallel()
	if _, err := quota.NewWeights(nil, quota.WeightsOptions{}); err == nil {
		t.Error("weights without a database")
	}
	db := recordtest.Open(t, "sqlite::memory:")
	of := table(t, "eu", quota.Region{Name: "eu"})
	for _, o := range []quota.WeightsOptions{{Node: "a"}, {Table: of}} {
		if _, err := quota.NewWeights(db, o); err == nil {
			t.Errorf("%+v is valid", o)
		}
	}
}
