package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
)

// RunLeased compares a store that answers from leases with the specification, in random traces of one caller.
// Open is called in a testing/synctest bubble, and the store uses its time. Its leases have the given term.
//
// It may differ from the specification in this, and no more:
//
//   - Limits of fixed_window and sliding_window: verdicts are the same. Remaining is the same for a
//     fixed_window. Otherwise it is from up to one term before, and only compared with the capacity.
//   - Buckets and logs: units count from up to one term before they are taken. So a take may be allowed up to
//     one term before it should be; and since refunds of buckets are rounded in the limit's favour, one may be
//     denied that passes one term later.
//   - Decisions with the basis [stint.Leased] are dated when their units were charged: At is at most one term
//     ago, and RetryAfter and ResetAfter count from there.
//
// What several nodes keep from each other is not compared: it depends on their timing.
func RunLeased(t *testing.T, term time.Duration, open func(t testing.TB) stint.Store) {
	t.Helper()
	for _, text := range []string{
		"500/1s fixed_window", "500/1s sliding_window", "500/1s token_bucket", "500/1s burst=2000 token_bucket", "500/1s burst=300 leaky_bucket",
		"500/1s sliding_log", "2000/minute fixed_window", "3000/10s sliding_window", "20/1s fixed_window", "50/1s concurrency",
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(2) {
				synctest.Test(t, func(t *testing.T) {
					newLeasedTrace(t, seed, text, term, open(t)).run(seed)
				})
				if t.Failed() {
					return
				}
			}
		})
	}
}

type leasedTrace struct {
	t       rapid.TB
	r       *rand.Rand
	store   stint.Store
	term    time.Duration
	limit   stint.Limit
	model   counters
	charges [][2]stint.Charge // of the store, and of the model
	log     []string

	leased, decisions int
}

func newLeasedTrace(t rapid.TB, seed uint64, limit string, term time.Duration, store stint.Store) *leasedTrace {
	return &leasedTrace{
		t: t, r: rand.New(rand.NewPCG(seed, 7)), store: store, term: term, limit: must(stint.ParseLimit(limit)), model: counters{},
	}
}

func (tr *leasedTrace) run(seed uint64) {
	for range 400 {
		<-time.After(time.Duration(tr.r.ExpFloat64() * float64(tr.term) / 4).Truncate(time.Microsecond))
		synctest.Wait() // for what is given back
		switch n := tr.r.IntN(100); {
		case n == 0:
			tr.reset()
		case n == 1:
			tr.limit.Max = max(tr.limit.Max+tr.r.Int64N(21)-10, 1)
		case n < 5:
			tr.adjust(nil, tr.r.Int64N(41)-20)
			tr.charges = nil // some of them may have been given back
		case n < 15 && len(tr.charges) > 0:
			i := tr.r.IntN(len(tr.charges))
			both := tr.charges[i]
			tr.charges = slices.Delete(tr.charges, i, i+1)
			tr.adjust(&both, -1-tr.r.Int64N(both[0].Cost))
		case n < 20:
			tr.take(0)
		case n < 25:
			tr.take(1 + tr.r.Int64N(tr.limit.Cap()))
		default: // a burst
			for range tr.r.IntN(40) {
				if tr.take(1 + tr.r.Int64N(3)); tr.t.Failed() {
					break
				}
			}
		}
		if tr.t.Failed() {
			tr.t.Logf("seed %d", seed)
			return
		}
	}
	if err := tr.store.Close(); err != nil {
		tr.t.Error(err)
	}
	if tr.leased*20 < tr.decisions && tr.limit.Max > 100 {
		tr.t.Errorf("%d of %d decisions were leased, want more", tr.leased, tr.decisions)
	}
}

func (tr *leasedTrace) ask(cost int64) stint.Ask {
	return stint.Ask{
		Key: stint.Key{Subject: "alice", Name: "rule:limit"}, Limit: tr.limit, Cost: cost, Policy: &stint.Policy{Lease: tr.term},
	}
}

func (tr *leasedTrace) take(cost int64) {
	asks := []stint.Ask{tr.ask(cost)}
	got, err := Take(context.Background(), tr.store, asks)
	if err != nil {
		tr.t.Error(err)
		return
	}
	synctest.Wait() // for what it fetches
	now := time.Now()
	next, want := tr.model.take(asks, now)
	g, w := got[0], want[0]
	tr.decisions++
	if g.Basis == stint.Leased {
		tr.leased++
	}
	tr.log = append(tr.log, fmt.Sprintf("%v take %d: %v %v, want %v", now.UTC().Format("05.000000"), cost, g.Basis, Format(g), Format(w)))
	tr.check(g, w, now)
	switch {
	case !g.Allowed:
	case w.Allowed:
		tr.model = next
	default: // it was charged, all the same
		tr.model, want = tr.model.adjust(asks, now)
		w = want[0]
		w.Cost = cost
	}
	if g.Cost > 0 && tr.limit.Algorithm != stint.Concurrency {
		tr.charges = append(tr.charges, [2]stint.Charge{g.Charge(), w.Charge()})
	}
}

// check compares a decision about a take.
func (tr *leasedTrace) check(got, want stint.Decision, now time.Time) {
	windows := false
	switch tr.limit.Algorithm {
	case stint.FixedWindow, stint.SlidingWindow, stint.Concurrency:
		windows = true
	default:
	}
	fail := func(why string) {
		tr.t.Errorf("%s: %s\n  %s", tr.limit, why, strings.Join(tr.log[max(0, len(tr.log)-12):], "\n  "))
	}
	late := now.Sub(time.UnixMicro(got.At))
	switch {
	case got.Allowed && !want.Allowed && (windows || want.RetryAfter > tr.term):
		fail("it is beyond the limit")
	case !got.Allowed && want.Allowed && (windows || got.RetryAfter > tr.term):
		fail("it is within the limit")
	case got.Limit != want.Limit || got.Remaining < 0 || got.Remaining > got.Limit:
		fail("it describes another limit")
	case got.Allowed == want.Allowed && tr.limit.Algorithm == stint.FixedWindow && got.Remaining != want.Remaining:
		fail("another number remains")
	case got.Basis == stint.Counted && tr.limit.Algorithm != stint.Concurrency && late != 0,
		got.Basis == stint.Leased && (late < 0 || late > tr.term):
		fail("its time is wrong")
	case got.Basis != stint.Counted && got.Basis != stint.Leased:
		fail("it was not counted")
	}
}

// adjust charges more, or gives back, of a charge or in general.
func (tr *leasedTrace) adjust(of *[2]stint.Charge, by int64) {
	there, here := []stint.Ask{tr.ask(by)}, []stint.Ask{tr.ask(by)}
	if of != nil {
		there[0].Charge, here[0].Charge = &of[0], &of[1]
	}
	got, err := Adjust(context.Background(), tr.store, there)
	if err != nil {
		tr.t.Error(err)
		return
	}
	var want []stint.Decision
	tr.model, want = tr.model.adjust(here, time.Now())
	tr.log = append(tr.log, fmt.Sprintf("adjust %d of %v: %v, want %v", by, of, Format(got[0]), Format(want[0])))
	if tr.limit.Algorithm == stint.FixedWindow && got[0].Remaining != want[0].Remaining {
		tr.t.Errorf("%s: another number remains\n  %s", tr.limit, strings.Join(tr.log[max(0, len(tr.log)-12):], "\n  "))
	}
}

func (tr *leasedTrace) reset() {
	asks := []stint.Ask{tr.ask(0)}
	if err := tr.store.Reset(context.Background(), asks); err != nil {
		tr.t.Error(err)
	}
	tr.model = tr.model.reset(asks, time.Now())
	tr.charges = nil
	tr.log = append(tr.log, "reset")
}
