package quota_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region/quota"
	"github.com/stintdev/stint/storetest"
)

// sim is several regions with a store and a clock each, whose nodes divide one limit by weights that follow demand.
// All of it happens in virtual time, and is the same for the same seed.
type sim struct {
	t       testing.TB
	r       *rand.Rand
	limit   stint.Limit
	regions []*simRegion
	book    *quota.Book
	now     time.Duration
	faults  bool

	began, phase time.Duration // when the demand last moved, and when it moves again
	alone        int           // the region that has all the demand, or -1
	weights      []float64     // of the demand
	load         float64       // the demand, of the limit
	sum          bound

	least          int64 // the smallest part of a region that has had all the demand for three minutes; 0: none has
	restarts, cuts int
}

type simRegion struct {
	name  string
	skew  time.Duration
	table *quota.Table
	store stint.Store
	nodes []*simNode
	cut   time.Duration // until when it is without the database
}

type simNode struct {
	weights *quota.Weights
	layer   stint.Store
	next    time.Duration
	steps   int
}

func newSim(t testing.TB, text string, regions int, seed uint64, faults bool) *sim {
	t.Helper()
	s := &sim{t: t, r: rand.New(rand.NewPCG(seed, uint64(regions))), limit: limitOf(t, text), faults: faults, alone: -1}
	skewed := time.Duration(s.r.IntN(7200)) * time.Second
	s.book = &quota.Book{Now: func() time.Time { return storetest.Epoch.Add(s.now + skewed) }}
	for i := range regions {
		g := &simRegion{table: equalTable(t, regions, i), name: fmt.Sprintf("region-%02d", i)}
		if faults {
			g.skew = time.Duration(s.r.IntN(4000)-2000) * time.Millisecond
		}
		g.store = memory(t, func() time.Time { return storetest.Epoch.Add(time.Hour + s.now + g.skew) })
		for range 1 + s.r.IntN(3) {
			g.nodes = append(g.nodes, s.start(g))
		}
		s.regions = append(s.regions, g)
	}
	s.sum = boundOf(s.limit, regions)
	s.move()
	return s
}

// start returns a new process of a region.
func (s *sim) start(g *simRegion) *simNode {
	s.restarts++
	born := s.now
	w := s.book.Join(s.t, func() bool { return s.now < g.cut }, quota.WeightsOptions{
		Table: g.table, Node: strconv.Itoa(s.restarts), Now: func() time.Duration { return s.now - born },
	})
	return &simNode{weights: w, layer: around(s.t, g.store, quota.Options{Table: g.table, Weights: w}), next: s.now + time.Duration(s.r.IntN(5000))*time.Millisecond}
}

// move has the demand move, and things break.
func (s *sim) move() {
	s.began, s.phase = s.now, s.now+time.Duration(240+s.r.IntN(180))*time.Second
	if s.faults && s.r.IntN(2) == 0 {
		s.phase = s.now + time.Duration(10+s.r.IntN(60))*time.Second
	}
	if s.load = 1.5; s.faults {
		s.load = []float64{0.5, 1.5, 1.5, 8}[s.r.IntN(4)]
	}
	s.weights = make([]float64, len(s.regions))
	if s.alone = s.r.IntN(2*len(s.regions)) - len(s.regions); s.alone >= 0 {
		s.weights[s.alone] = 1
	} else {
		s.alone = -1
		for i := range s.weights {
			s.weights[i] = s.r.ExpFloat64()
		}
	}
}

func (s *sim) breaks() {
	g := s.regions[s.r.IntN(len(s.regions))]
	if s.r.IntN(2) == 0 && s.now >= g.cut {
		s.cuts++
		g.cut = s.now + time.Duration(1+s.r.IntN([]int{60, 300}[s.r.IntN(2)]))*time.Second
	} else {
		g.nodes[s.r.IntN(len(g.nodes))] = s.start(g)
	}
}

// region draws where a request comes from.
func (s *sim) region() *simRegion {
	sum := 0.0
	for _, w := range s.weights {
		sum += w
	}
	at := s.r.Float64() * sum
	for i, w := range s.weights {
		if at -= w; at < 0 {
			return s.regions[i]
		}
	}
	return s.regions[len(s.regions)-1]
}

// run makes requests.
func (s *sim) run(requests int) {
	perSecond := float64(s.limit.Max) / s.limit.Window.Length().Seconds()
	ctx := context.Background()
	a := stint.Ask{Key: stint.Key{Subject: "everyone", Name: "api:main"}, Limit: s.limit, Policy: following}
	plan, err := s.limit.Compile()
	if err != nil {
		s.t.Fatal(err)
	}
	a.Plan = plan
	asks, ds := []stint.Ask{a}, make([]stint.Decision, 1)
	breaks := time.Duration(0)
	for range requests {
		asks[0].Cost = 1
		if s.r.IntN(8) == 0 {
			asks[0].Cost = 1 + s.r.Int64N(4)
		}
		// Requests come in bursts, too.
		if s.r.IntN(4) > 0 {
			s.now += time.Duration(s.r.ExpFloat64() * 4 / 3 * 1.2 / perSecond / s.load * float64(time.Second))
		}
		if s.now >= s.phase {
			s.move()
		}
		if s.faults && s.now >= breaks {
			breaks = s.now + time.Duration(s.r.IntN(30))*time.Second
			s.breaks()
		}
		s.steps(ctx)
		g := s.region()
		if err := g.nodes[s.r.IntN(len(g.nodes))].layer.Take(ctx, asks, ds); err != nil {
			s.t.Fatal(err)
		}
		if d := &ds[0]; d.Allowed {
			if why := s.sum.add(s.now, time.UnixMicro(d.At), d.Cost); why != "" {
				s.t.Fatalf("%v in %d regions: at %v %s", s.limit, len(s.regions), s.now, why)
			}
		}
		s.count(ds[0].Limit)
	}
}

// steps has nodes do what is due.
func (s *sim) steps(ctx context.Context) {
	for _, g := range s.regions {
		for _, n := range g.nodes {
			for ; n.next <= s.now; n.next += quota.ReadEvery {
				n.steps++
				n.weights.Step(ctx, n.steps%int(quota.ReportEvery/quota.ReadEvery) == 0)
			}
		}
	}
}

// count notes the part of a region that has had all the demand for three minutes.
func (s *sim) count(part int64) {
	if s.alone >= 0 && s.now >= s.began+3*time.Minute && (s.least == 0 || part < s.least) {
		s.least = part
	}
}

// bound is what all regions together may admit.
type bound interface {
	// add adds what was admitted, at a time and by the clock of the store, and says if it is too much.
	add(now time.Duration, at time.Time, units int64) string
}

func boundOf(l stint.Limit, regions int) bound {
	switch l.Algorithm {
	case stint.SlidingLog:
		return &anyWindow{limit: l}
	case stint.TokenBucket, stint.LeakyBucket:
		// The burst is rounded in each region.
		return &bucket{limit: l, most: float64(l.Cap() + int64(regions))}
	default:
		return &aligned{limit: l, used: map[int64]int64{}}
	}
}

// aligned adds up windows by their number.
type aligned struct {
	limit stint.Limit
	used  map[int64]int64
}

func (b *aligned) add(_ time.Duration, at time.Time, units int64) string {
	n := at.UnixMicro() / b.limit.Window.Length().Microseconds()
	if b.used[n] += units; b.used[n] > b.limit.Max {
		return fmt.Sprintf("a window has %d", b.used[n])
	}
	delete(b.used, n-10)
	return ""
}

// anyWindow adds up the window that ends now.
type anyWindow struct {
	limit stint.Limit
	log   []logged
	sum   int64
}

type logged struct {
	at    time.Duration
	units int64
}

func (b *anyWindow) add(now time.Duration, _ time.Time, units int64) string {
	b.log, b.sum = append(b.log, logged{now, units}), b.sum+units
	for b.log[0].at <= now-b.limit.Window.Length()-time.Microsecond {
		b.sum -= b.log[0].units
		b.log = b.log[1:]
	}
	if b.sum > b.limit.Max {
		return fmt.Sprintf("the last window has %d", b.sum)
	}
	return ""
}

// bucket holds what any interval may have: the capacity, and what drains in it.
type bucket struct {
	limit stint.Limit
	most  float64
	used  float64
	last  time.Duration
}

func (b *bucket) add(now time.Duration, _ time.Time, units int64) string {
	drained := float64(b.limit.Max) * (now - b.last).Seconds() / b.limit.Window.Length().Seconds()
	b.used, b.last = max(b.used-drained, 0)+float64(units), now
	if b.used > b.most {
		return fmt.Sprintf("a bucket has %f", b.used)
	}
	return ""
}

// simulate runs limits in three and five regions, with that many requests in all.
func simulate(t *testing.T, requests int, limits ...string) {
	t.Helper()
	each := requests / len(limits) / 2
	restarts, cuts := 0, 0
	for i, text := range limits {
		for _, regions := range []int{3, 5} {
			const most = 1_000_000 // of a seed
			for seed := 0; seed*most < each; seed++ {
				s := newSim(t, text, regions, uint64(i*1000+seed), true)
				s.run(min(each, most))
				restarts, cuts = restarts+s.restarts, cuts+s.cuts
			}
		}
	}
	t.Logf("%d requests, %d starts of nodes, %d times without the database", each*2*len(limits), restarts, cuts)
}

// TestSum has demand move, nodes restart, and regions be without the database, and adds up what all regions admit.
func TestSum(t *testing.T) {
	t.Parallel()
	simulate(t, 150_000, "20/1s fixed_window", "200/10s sliding_log", "600/30s", "20/1s burst=150 token_bucket", "7/1s")
}

// TestFollows has demand move, and looks at the part of the region that has all of it three minutes later.
func TestFollows(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"100/5s fixed_window", "1200/1m fixed_window", "600/30s"} {
		for _, regions := range []int{3, 5} {
			s := newSim(t, text, regions, 7, false)
			s.run(40_000)
			if float64(s.least) < 0.95*float64(s.limit.Cap()) {
				t.Errorf("%s in %d regions: a region with all the demand has %d", text, regions, s.least)
			}
		}
	}
}
