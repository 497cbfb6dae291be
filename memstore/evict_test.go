package memstore_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/storetest"
)

// named returns an ask of a counter that the subject has under a name, as rules write names: the rule and
// the limit, and then what else is counted by.
func named(subject, name, limit string) stint.Ask {
	a := ask(subject, limit)
	a.Key.Name = name
	return a
}

// penalized returns a limit of a rule, which counts by the value too, and a penalty that bans who goes over
// it once, for as long.
func penalized(subject, rule, value, limit string, ban time.Duration) []stint.Ask {
	p := stint.Ask{
		Key:  stint.Key{Subject: subject, Name: rule + ":penalty!" + value},
		Cost: 1, Penalty: &stint.Penalty{Threshold: 1, Within: time.Minute, Cooldown: ban},
	}
	return []stint.Ask{named(subject, rule+":all"+value, limit), p}
}

// exhaust takes until it is denied, which is a violation of a penalty.
func exhaust(t testing.TB, s *memstore.Store, asks ...stint.Ask) {
	t.Helper()
	for range 100 {
		for _, d := range take(t, s, asks...) {
			if !d.Allowed {
				return
			}
		}
	}
	t.Fatalf("%v: 100 takes have passed", asks)
}

// denied reports whether an ask would be denied, and charges nothing: it asks along with one that is
// always denied.
func denied(t testing.TB, s *memstore.Store, a stint.Ask) bool {
	t.Helper()
	never := ask("never", "1/1h")
	never.Cost = 2
	return !take(t, s, a, never)[0].Allowed
}

// banned reports whether the penalty of some asks bans.
func banned(t testing.TB, s *memstore.Store, asks []stint.Ask) bool {
	t.Helper()
	p := asks[len(asks)-1]
	p.Cost = 0
	return !take(t, s, p)[0].Allowed
}

// TestEvictionByMadeUpValues has one client send made-up values that it is counted by, many times as many
// as the store holds. Whoever has used up a limit or is banned stays so, others and the client itself, and
// others lose hardly anything else.
func TestEvictionByMadeUpValues(t *testing.T) {
	t.Parallel()
	const most, attacker = 1200, "ip:192.0.2.66"
	floods := map[string]struct {
		others int // how many of the others' counters there are
		flood  func(i int) []stint.Ask
	}{
		"seen once, recovering late": {200, func(i int) []stint.Ask {
			return []stint.Ask{named(attacker, fmt.Sprint("search:all:5:", i), "1000/1d")}
		}},
		"used up, among many": {most, func(i int) []stint.Ask {
			return []stint.Ask{named(attacker, fmt.Sprint("search:all:5:", i), "1/1d")}
		}},
		"several limits at once": {200, func(i int) []stint.Ask {
			return []stint.Ask{
				named(attacker, fmt.Sprint("search:minute:5:", i), "10/1m"),
				named(attacker, fmt.Sprint("search:day:5:", i), "100/1d sliding_log"),
				named(attacker, "all:all", "1000000/1d"),
			}
		}},
		"every algorithm": {200, func(i int) []stint.Ask {
			limit := []string{"9/1d", "9/1d fixed_window", "9/1d sliding_log", "9/1d token_bucket", "9/1d burst=8 leaky_bucket", "9/1d concurrency"}[i%6]
			return []stint.Ask{named(attacker, fmt.Sprint("search:all:5:", i), limit)}
		}},
		"values that are used twice": {200, func(i int) []stint.Ask {
			return []stint.Ask{named(attacker, fmt.Sprint("search:all:5:", i/2), "1000/1d")}
		}},
		"bans of values": {200, func(i int) []stint.Ask {
			return penalized(attacker, "search", fmt.Sprint(":5:", i/2), "1/1d", 24*time.Hour)
		}},
	}
	for name, f := range floods {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := storetest.NewClock()
			s := newStore(t, memstore.Options{MaxKeys: most, Now: clock.Now})
			var used []stint.Ask
			var bans [][]stint.Ask
			for i := range 100 {
				subject := fmt.Sprint("user:", i)
				if i%10 == 0 {
					subject = attacker
				}
				used = append(used, named(subject, fmt.Sprint("login", i, ":all"), "5/1h"))
				bans = append(bans, penalized(subject, fmt.Sprint("orders", i), "", "2/1m", time.Hour))
				exhaust(t, s, used[i])
				exhaust(t, s, bans[i]...)
			}
			other := func(i int) stint.Ask { return named(fmt.Sprint("ip:", i), "all", "1000/1h") }
			for i := range f.others {
				take(t, s, other(i))
			}
			before := s.Stats()
			for i := range 3 * most {
				take(t, s, f.flood(i)...)
			}
			st := s.Stats()
			if st.Keys > most || st.Keys < most*85/100 {
				t.Errorf("%+v", st)
			}
			for i := range used {
				if !denied(t, s, used[i]) {
					t.Errorf("%v starts anew", used[i].Key)
				}
				if !banned(t, s, bans[i]) {
					t.Errorf("%v is no longer banned", bans[i][0].Key)
				}
			}
			lost := 0
			for i := range f.others {
				a := other(i)
				if a.Cost = 0; take(t, s, a)[0].Remaining == 1000 {
					lost++
				}
			}
			// The shards that are full before evict a little, and the flood may have its share.
			if allowed := int(before.Evicted) + most/16; lost > allowed {
				t.Errorf("%d of %d counters of others are lost, %+v", lost, f.others, st)
			}
		})
	}
}

// TestEvictionByManyClients has very many clients come once each, which no share prevents. Who has used up
// a limit or is banned stays so.
func TestEvictionByManyClients(t *testing.T) {
	t.Parallel()
	const most = 1200
	s := newStore(t, memstore.Options{MaxKeys: most})
	var used []stint.Ask
	var bans [][]stint.Ask
	for i := range 200 {
		used = append(used, ask(fmt.Sprint("user:", i), "1/1h"))
		bans = append(bans, penalized(fmt.Sprint("ip:", i), "login", "", "2/1m", time.Hour))
		exhaust(t, s, used[i])
		exhaust(t, s, bans[i]...)
	}
	for i := range 3 * most {
		take(t, s, named(fmt.Sprintf("ip:2001:db8:%x::/64", i), "all", "1000/1d"))
	}
	for i := range used {
		if !denied(t, s, used[i]) || !banned(t, s, bans[i]) {
			t.Errorf("%v starts anew", used[i].Key)
		}
	}
	if st := s.Stats(); st.Evicted < 2*most || st.EvictedByShare > 0 || st.EvictedBans > 0 {
		t.Errorf("%+v", st)
	}
	if ago := time.Since(s.Stats().LastLost); ago < 0 || ago > time.Hour {
		t.Errorf("the last counter was lost %v ago", ago)
	}
}

// TestShare fills a store by one client, and then has others come: one by one they get their room, and
// the client keeps no more than its share, of what it has used most.
func TestShare(t *testing.T) {
	t.Parallel()
	for _, most := range []int{100, 2000} {
		s := newStore(t, memstore.Options{MaxKeys: most})
		mine := func(i int) stint.Ask { return named("user:many", strconv.Itoa(i), "10/1d") }
		for i := range 2 * most {
			take(t, s, mine(i))
			if i >= 2*most-most/32 {
				take(t, s, mine(i))
			}
		}
		held := func(from, to int) (n int) {
			for i := from; i < to; i++ {
				a := mine(i)
				a.Cost = 0
				if take(t, s, a)[0].Remaining < 10 {
					n++
				}
			}
			return n
		}
		if n := held(0, 2*most); n < most*85/100 {
			t.Errorf("%d: alone, it has %d", most, n)
		}
		others := most - most/8 // shards are never equally full
		for i := range others {
			take(t, s, ask(fmt.Sprint("user:", i), "10/1h"))
		}
		for i := range most {
			take(t, s, mine(i))
		}
		if n := held(0, 2*most); n > max(most/8, 1) {
			t.Errorf("%d: among others, it has %d", most, n)
		}
		lost := 0
		for i := range others {
			if take(t, s, ask(fmt.Sprint("user:", i), "10/1h"))[0].Remaining == 9 {
				lost++
			}
		}
		if lost > most/16 {
			t.Errorf("%d: %d of %d others have lost their counters, %+v", most, lost, others, s.Stats())
		}
		if st := s.Stats(); st.EvictedByShare == 0 {
			t.Errorf("%d: %+v", most, st)
		}
	}
}

// TestTooManyBans has more bans than the store has room for: they have half of it, and the one that is
// closest to its end goes first.
func TestTooManyBans(t *testing.T) {
	t.Parallel()
	const most = 40
	clock := storetest.NewClock()
	s := newStore(t, memstore.Options{MaxKeys: most, Now: clock.Now})
	ban := func(i int) []stint.Ask {
		return penalized(fmt.Sprint("ip:", i), "login", "", "1/1s", time.Hour+time.Duration(i)*time.Second)
	}
	for i := range 2 * most {
		exhaust(t, s, ban(i)...)
		for j := range 10 {
			take(t, s, ask(fmt.Sprint("user:", i, j), "10/1d"))
		}
	}
	if st := s.Stats(); st.Bans != most/2 || st.EvictedBans != 2*most-most/2 || st.Keys > most {
		t.Errorf("%+v", st)
	}
	for i := range 2 * most {
		if got, want := banned(t, s, ban(i)), i >= 2*most-most/2; got != want {
			t.Errorf("ban %d: %t", i, got)
		}
	}
	// Violations that have not led to a ban go before bans.
	for i := range most {
		asks := penalized(fmt.Sprint("new:", i), "login", "", "1/1s", time.Hour)
		asks[1].Penalty = &stint.Penalty{Threshold: 2, Within: 24 * time.Hour, Cooldown: time.Hour}
		take(t, s, asks...)
		take(t, s, asks...)
	}
	stay := 0
	for i := range 2 * most {
		if banned(t, s, ban(i)) {
			stay++
		}
	}
	if stay != most/2-1 {
		t.Errorf("%d bans are left, want all but the one that made room for the first of them", stay)
	}
	// They end as ever.
	clock.Add(25 * time.Hour)
	for i := range 2 * most {
		take(t, s, ask(fmt.Sprint("user:", i), "10/1h"))
	}
	if st := s.Stats(); st.Bans != 0 {
		t.Errorf("%+v", st)
	}
}

// TestOneKey has room for one thing.
func TestOneKey(t *testing.T) {
	t.Parallel()
	s := newStore(t, memstore.Options{MaxKeys: 1})
	for i := range 10 {
		exhaust(t, s, penalized("ip:1", "login", strconv.Itoa(i), "1/1h", time.Hour)...)
		take(t, s, ask("user:1", "10/1h"))
	}
	if st := s.Stats(); st.Keys != 1 {
		t.Errorf("%+v", st)
	}
}

// TestEvictionRaces has many make up values at once, of their own and the same, while others check that
// what is used up stays so and that units of a counter in use are neither lost nor counted twice.
func TestEvictionRaces(t *testing.T) {
	t.Parallel()
	const most, workers = 1200, 4
	rounds := torture.Rounds(400)
	s := newStore(t, memstore.Options{MaxKeys: most})
	used := named("user:used", "login", "3/1h")
	ban := penalized("user:banned", "login", "", "3/1h", time.Hour)
	exhaust(t, s, used)
	exhaust(t, s, ban...)
	busy := ask("user:busy", "1000000/1d")
	var charged atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				subject := fmt.Sprint("ip:", w%3)
				asks := []stint.Ask{named(subject, fmt.Sprint("a", i), "1/1d"), named(subject, fmt.Sprint("b", i, w), "9/1d sliding_log"), busy}
				switch i % 4 {
				case 0:
					asks = append(asks, penalized(subject, "c", fmt.Sprint(":5:", i), "1/1d", time.Hour)...)
				case 1:
					asks = asks[:1]
				}
				ds, err := storetest.Take(context.Background(), s, asks)
				if err != nil {
					t.Error(err)
					return
				}
				for j, d := range ds {
					if asks[j].Key == busy.Key {
						charged.Add(d.Cost)
					}
				}
				if i%50 == 0 && (!denied(t, s, used) || !banned(t, s, ban)) {
					t.Error("what was used up starts anew")
					return
				}
				if i%100 == 0 {
					if err := s.Reset(context.Background(), asks[:1]); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	busy.Cost = 0
	if d := take(t, s, busy)[0]; d.Limit-d.Remaining != charged.Load() {
		t.Errorf("%d units are used, and %d were charged", d.Limit-d.Remaining, charged.Load())
	}
	if st := s.Stats(); st.Keys > most+workers || st.Bans > most*5/8 || st.EvictedByShare == 0 {
		t.Errorf("%+v", st)
	}
}

// BenchmarkEvict inserts counters into a full store.
func BenchmarkEvict(b *testing.B) {
	for _, clients := range []int{1, 1 << 30} {
		for _, limit := range []string{"1000/1d", "1/1d"} {
			b.Run(fmt.Sprintf("clients=%d/%s", clients, limit), func(b *testing.B) {
				const most = 100_000
				s := newStore(b, memstore.Options{MaxKeys: most})
				l := ask("", limit).Limit
				plan, err := l.Compile()
				if err != nil {
					b.Fatal(err)
				}
				asks, ds := []stint.Ask{{Limit: l, Plan: plan, Cost: 1}}, make([]stint.Decision, 1)
				insert := func(i int) {
					asks[0].Key = stint.Key{Subject: strconv.Itoa(i % clients), Name: strconv.Itoa(i)}
					if err := s.Take(b.Context(), asks, ds); err != nil {
						b.Fatal(err)
					}
				}
				for i := range 2 * most {
					insert(i)
				}
				b.ReportAllocs()
				b.ResetTimer()
				for i := range b.N {
					insert(2*most + i)
				}
			})
		}
	}
}
