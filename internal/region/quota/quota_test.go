package quota_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region/quota"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

func TestMain(m *testing.M) {
	defer testredis.StopShared() // and PostgreSQL
	m.Run()
}

var (
	divided   = &stint.Policy{Regions: stint.RegionsQuota}
	following = &stint.Policy{Regions: stint.RegionsQuota, Follow: true, Rule: "api"}
)

func memory(t testing.TB, now func() time.Time) stint.Store {
	t.Helper()
	s, err := memstore.New(memstore.Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func table(t testing.TB, own string, regions ...quota.Region) *quota.Table {
	t.Helper()
	table, err := quota.NewTable(own, regions)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func around(t testing.TB, next stint.Store, o quota.Options) stint.Store {
	t.Helper()
	s, err := quota.New(next, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// times has every limit be n times the one that is asked for, if that is a limit: so its part by a weight of one in n is
// what is asked for.
func times(next stint.Store, n int64) stint.Store {
	return storetest.Rewrite(next, func(a *stint.Ask) {
		more := a.Limit
		more.Max *= n
		more.Burst *= n
		if more.Validate() == nil && a.Limit.Validate() == nil {
			a.Limit, a.Plan, a.Policy = more, nil, divided
		}
	})
}

// TestStore runs the suite with the whole of each limit, and with parts that are what is asked for.
func TestStore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		table *quota.Table
		n     int64
	}{
		"one region": {table(t, "eu", quota.Region{Name: "eu", Weight: 100}), 1},
		"half":       {table(t, "us", quota.Region{Name: "eu"}, quota.Region{Name: "us"}), 2},
		"a quarter":  {table(t, "us", quota.Region{Name: "ap", Weight: 50}, quota.Region{Name: "eu", Weight: 25}, quota.Region{Name: "us", Weight: 25}), 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t testing.TB, now func() time.Time) stint.Store {
				t.Helper()
				return times(around(t, memory(t, now), quota.Options{Table: c.table}), c.n)
			})
		})
	}
}

func take(t testing.TB, s stint.Store, asks ...stint.Ask) []stint.Decision {
	t.Helper()
	ds, err := storetest.Take(t.Context(), s, asks)
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

func ask(t testing.TB, limit string, cost int64, p *stint.Policy) stint.Ask {
	t.Helper()
	return stint.Ask{Key: stint.Key{Subject: "user:42", Name: "api:main"}, Limit: limitOf(t, limit), Cost: cost, Policy: p}
}

// TestTake is of decisions that are not those of a store with a smaller limit.
func TestTake(t *testing.T) {
	t.Parallel()
	three := table(t, "ap", quota.Region{Name: "ap", Weight: 20}, quota.Region{Name: "eu", Weight: 40}, quota.Region{Name: "us", Weight: 40})
	for name, c := range map[string]struct {
		limit   string
		cost    int64
		policy  *stint.Policy
		allowed bool
		want    int64 // the limit of the decision
		retry   time.Duration
	}{
		"its part":                     {"100/1m", 20, divided, true, 20, 0},
		"above the part":               {"100/1m", 21, divided, false, 20, stint.Never},
		"above the part that follows":  {"100/1m", 21, following, false, 2, time.Minute},
		"above the limit":              {"100/1m", 101, following, false, 2, stint.Never},
		"no part":                      {"2/1m", 1, divided, false, 0, stint.Never},
		"no part, above the limit":     {"2/1m", 3, divided, false, 0, stint.Never},
		"a peek of no part":            {"2/1m", 0, divided, true, 0, 0},
		"no part that could follow":    {"2/1m", 1, following, false, 0, stint.Never},
		"months do not follow":         {"100/month", 21, following, false, 20, stint.Never},
		"nor does concurrency":         {"100/1m concurrency", 20, following, true, 20, 0},
		"a bucket without a part":      {"100/1s burst=2 token_bucket", 1, divided, false, 0, stint.Never},
		"a leaky bucket":               {"10/1s leaky_bucket", 1, divided, true, 1, 0},
		"no policy":                    {"100/1m", 100, nil, true, 100, 0},
		"a policy of another kind":     {"100/1m", 100, &stint.Policy{Regions: stint.RegionsGossip}, true, 100, 0},
		"the lowest part, of a bucket": {"1000/1s burst=100 token_bucket", 3, following, false, 2, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := around(t, memory(t, nil), quota.Options{Table: three})
			d := take(t, s, ask(t, c.limit, c.cost, c.policy))[0]
			if d.Allowed != c.allowed || d.Limit != c.want || d.RetryAfter != c.retry || d.Remaining > d.Limit {
				t.Errorf("%+v", d)
			}
		})
	}
}

// TestTakeAll has a part of nothing deny what it is taken with, and an invalid limit be the store's error.
func TestTakeAll(t *testing.T) {
	t.Parallel()
	s := around(t, memory(t, nil), quota.Options{Table: table(t, "eu", quota.Region{Name: "ap"}, quota.Region{Name: "eu"})})
	other, none := ask(t, "10/1m", 1, nil), ask(t, "1/1h", 1, divided)
	other.Key.Name = "other"
	ds := take(t, s, other, none)
	if !ds[0].Allowed || ds[0].Cost != 0 || ds[0].Remaining != 10 || ds[1].Allowed {
		t.Errorf("%+v", ds)
	}
	none.Limit.Max = -1
	if _, err := storetest.Take(t.Context(), s, []stint.Ask{none}); !errors.As(err, new(*stint.InvalidError)) {
		t.Error(err)
	}
	none.Limit = limitOf(t, "1/1h")
	if ds, err := storetest.Adjust(t.Context(), s, []stint.Ask{none}); err != nil || ds[0].Limit != 0 || ds[0].Remaining != 0 {
		t.Errorf("%+v, %v", ds, err)
	}
}

func TestBadTables(t *testing.T) {
	t.Parallel()
	for want, regions := range map[string][]quota.Region{
		`stint: regions "0": want from 1 to 64`:                           {},
		`stint: region "eu": want one of the table`:                       {{Name: "us"}},
		`stint: region "eu": want a name that no other region has`:        {{Name: "eu"}, {Name: "eu"}},
		`stint: weight of region eu "-1": want from 1 to 1000000`:         {{Name: "eu", Weight: -1}},
		`stint: weights "1": want one for each of the 2 regions, or none`: {{Name: "eu", Weight: 1}, {Name: "us"}},
		`stint: region "": want a name that no other region has`:          {{Name: "eu"}, {}},
	} {
		if _, err := quota.NewTable("eu", regions); err == nil || err.Error() != want {
			t.Errorf("%v: got %v, want %s", regions, err, want)
		}
	}
	if _, err := quota.New(nil, quota.Options{}); err == nil {
		t.Error("no store is wrapped")
	}
	if _, err := quota.New(memory(t, nil), quota.Options{}); err == nil {
		t.Error("there are no regions")
	}
}

// BenchmarkTake compares takes through the layer with those of the store alone.
func BenchmarkTake(b *testing.B) {
	three := table(b, "eu", quota.Region{Name: "ap"}, quota.Region{Name: "eu"}, quota.Region{Name: "us"})
	for _, of := range []struct {
		name string
		open func(testing.TB) stint.Store
	}{
		{"memory", func(t testing.TB) stint.Store {
			t.Helper()
			return memory(t, nil)
		}},
		{"redis", func(t testing.TB) stint.Store {
			t.Helper()
			s, err := redisstore.Open(testredis.Shared(t).URL(), redisstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		}},
	} {
		for _, with := range []struct {
			name   string
			policy *stint.Policy
			bare   bool
		}{{"bare", nil, true}, {"passed", nil, false}, {"fixed", divided, false}, {"follow", following, false}} {
			b.Run(of.name+"/"+with.name, func(b *testing.B) {
				s := of.open(b)
				if !with.bare {
					s = around(b, s, quota.Options{Table: three, Weights: quota.Known(b, three)})
				}
				a := ask(b, "1000000000000/1s", 1, with.policy)
				plan, err := a.Limit.Compile()
				if err != nil {
					b.Fatal(err)
				}
				a.Plan = plan
				asks, ds := []stint.Ask{a}, make([]stint.Decision, 1)
				b.ReportAllocs()
				for b.Loop() {
					if err := s.Take(b.Context(), asks, ds); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
