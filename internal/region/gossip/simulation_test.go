package gossip

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/memstore"
)

// world is regions with their nodes, stores and links, in virtual time. Everything in it happens in one
// goroutine, in an order that follows from the seed.
type world struct {
	t      *testing.T
	random *rand.Rand
	now    time.Time
	events events
	seq    int

	regions []*simRegion
	limits  []stint.Ask
	faults  bool

	requests int
	commits  int
	admitted [][]*simUnit // by counter
	lost     []int64      // by counter: what killed nodes had not told
}

type simUnit struct{ at, cost int64 }

// reserved is the cost of a request of which all but one unit is given back.
const reserved = 4

type simRegion struct {
	name  string
	skew  time.Duration
	store stint.Store
	nodes []*simNode
	// deaf has the regions to which no message of this region arrives.
	deaf map[*simRegion]bool
}

type simNode struct {
	w      *world
	region *simRegion
	name   string
	run    uint64
	store  *Store
	links  []*simLink
	paused bool
	cut    bool // from all other regions, though its siblings may not be
}

// simLink is a stream of a node to another region.
type simLink struct {
	from  *simNode
	to    *simRegion
	at    *simNode // the node that it ends at; nil: it is down
	epoch int      // of the connection
	delay time.Duration
	// blocked says that no connection is made, though there may be one the other way.
	blocked bool
	// queue has the batches that have arrived, and are not charged or acknowledged yet.
	queue []Batch
}

type event struct {
	at  time.Time
	seq int
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return cmp.Or(e[i].at.Compare(e[j].at), e[i].seq-e[j].seq) < 0
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.events, event{w.now.Add(d), w.seq, do})
}

// every repeats something about that often.
func (w *world) every(d time.Duration, do func()) {
	var again func()
	again = func() {
		do()
		w.after(d*9/10+w.between(0, d/5), again)
	}
	w.after(w.between(0, d), again)
}

func (w *world) between(a, b time.Duration) time.Duration {
	return a + time.Duration(w.random.Int64N(int64(b-a)+1))
}

// run lets everything happen for so long.
func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); len(w.events) > 0 && w.events[0].at.Before(end); {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.do()
	}
}

// shared is a store that several nodes use, so that none closes it.
type shared struct{ stint.Store }

func (shared) Close() error { return nil }

func newWorld(t *testing.T, seed uint64, regions, nodes int, asks []stint.Ask) *world {
	t.Helper()
	w := &world{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_800_000_000, 0), limits: asks,
		admitted: make([][]*simUnit, len(asks)), lost: make([]int64, len(asks)),
	}
	for i := range regions {
		r := &simRegion{name: fmt.Sprint("r", i), skew: w.between(-250*time.Millisecond, 250*time.Millisecond), deaf: map[*simRegion]bool{}}
		store, err := memstore.New(memstore.Options{Now: func() time.Time { return w.now.Add(r.skew) }})
		if err != nil {
			t.Fatal(err)
		}
		r.store = store
		w.regions = append(w.regions, r)
	}
	for _, r := range w.regions {
		for i := range nodes {
			n := &simNode{w: w, region: r, name: fmt.Sprint("n", i)}
			r.nodes = append(r.nodes, n)
			n.start()
			for _, to := range w.regions {
				if to != r {
					l := &simLink{from: n, to: to, delay: w.between(time.Millisecond/2, 150*time.Millisecond)}
					n.links = append(n.links, l)
					l.run()
				}
			}
			w.every(500*time.Millisecond, func() {
				if !n.paused {
					n.store.Tick(context.Background())
				}
			})
		}
	}
	return w
}

// start starts the process of a node.
func (n *simNode) start() {
	w := n.w
	local, err := memstore.New(memstore.Options{Now: func() time.Time { return w.now.Add(n.region.skew) }})
	if err != nil {
		w.t.Fatal(err)
	}
	var peers []string
	for _, r := range w.regions {
		if r != n.region {
			peers = append(peers, r.name)
		}
	}
	n.run++
	n.store, err = New(shared{n.region.store}, Options{
		Self: Sender{n.region.name, n.name, n.run}, Peers: peers, Weight: 1, Weights: len(w.regions),
		Nodes: func() int { return len(n.region.nodes) }, Local: local, Now: func() time.Time { return w.now },
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// kill kills the process of a node, and starts it again. What it has not told is lost.
func (n *simNode) kill() {
	w := n.w
	for i := range w.limits {
		if acc := n.store.ledger.account(&w.limits[i], n.store.clock()); acc != nil {
			most := int64(0)
			for p := range n.store.peers {
				most = max(most, acc.ahead(p, n.store.clock(), true))
			}
			w.lost[i] += most
			acc.shard.mu.Unlock()
		}
	}
	for _, l := range n.links {
		l.cut()
	}
	for _, r := range w.regions {
		for _, other := range r.nodes {
			for _, l := range other.links {
				if l.at == n {
					l.cut()
				}
			}
		}
	}
	n.start()
}

func (l *simLink) cut() {
	l.at, l.epoch, l.queue = nil, l.epoch+1, nil
}

// connects reports whether a connection can be made to a node.
func (l *simLink) connects(to *simNode) bool {
	a, b := l.from.region, l.to
	return !l.blocked && !l.from.cut && !to.cut && !to.paused && !a.deaf[b] && !b.deaf[a]
}

// deliver does something at the other end of a link, if the connection lasts until then.
func (l *simLink) deliver(do func()) { l.carry(l.from.region, l.to, do) }

// reply does something at this end of a link, if the connection lasts until then.
func (l *simLink) reply(do func()) { l.carry(l.to, l.from.region, do) }

func (l *simLink) carry(a, b *simRegion, do func()) {
	epoch := l.epoch
	l.from.w.after(l.delay+l.from.w.between(0, l.delay), func() {
		switch {
		case l.epoch != epoch:
		case a.deaf[b] || l.blocked || l.from.cut || l.at.cut || l.at.paused:
			l.cut() // what was sent is lost
		default:
			do()
		}
	})
}

// run connects, pings and tells.
func (l *simLink) run() {
	w, n := l.from.w, l.from
	w.every(time.Second, func() {
		switch {
		case n.paused:
		case l.at == nil:
			if to := l.to.nodes[w.random.IntN(len(l.to.nodes))]; l.connects(to) {
				l.at, l.epoch = to, l.epoch+1
				n.store.Connected(l.to.name)
				l.tell()
			}
		case l.at != nil && w.faults && w.random.IntN(60) == 0:
			l.cut()
		case l.at != nil:
			asked, store := w.now, n.store
			l.deliver(func() {
				alone, consent := l.at.store.Alone(), l.at.store.Consents()
				l.reply(func() { store.Heard(l.to.name, w.now.Sub(asked), alone, consent) })
			})
		}
	})
	w.every(time.Second, l.tell)
}

// tell sends what there is to tell.
func (l *simLink) tell() {
	for l.at != nil && !l.from.paused {
		b, ok := l.from.store.Next(l.to.name)
		if !ok {
			return
		}
		l.deliver(func() {
			l.queue = append(l.queue, b)
			l.receive()
		})
	}
}

// receive charges what has arrived, in its order, and acknowledges it.
func (l *simLink) receive() {
	if l.at == nil || len(l.queue) == 0 {
		return
	}
	w, epoch, store, b := l.from.w, l.epoch, l.at.store, l.queue[0]
	later := func(d time.Duration) {
		w.after(d, func() {
			if l.epoch == epoch {
				l.receive()
			}
		})
	}
	from := Sender{l.from.region.name, l.from.name, l.from.run}
	if err := store.check(from, &b); err != nil {
		w.t.Fatal(err)
	}
	wait, err := store.receive(context.Background(), from, &b)
	switch {
	case err != nil:
		w.t.Fatal(err)
	case wait > 0:
		later(wait)
	default:
		l.queue = l.queue[1:]
		if w.random.IntN(20) == 0 { // a batch that arrives twice
			if _, err := store.receive(context.Background(), from, &b); err != nil {
				w.t.Fatal(err)
			}
		}
		l.reply(func() { l.from.store.Acknowledged(l.to.name, b.Number) })
		l.receive()
	}
}

// request takes from a counter, at a node of a region.
func (w *world) request(r *simRegion, counter int, cost int64) {
	n := r.nodes[w.random.IntN(len(r.nodes))]
	if n.paused {
		return
	}
	w.requests++
	a := w.limits[counter]
	a.Cost = cost
	var ds [1]stint.Decision
	if err := n.store.Take(context.Background(), []stint.Ask{a}, ds[:]); err != nil {
		w.t.Fatal(err)
	}
	select {
	case <-n.store.Urgent():
		for _, l := range n.links {
			w.after(time.Millisecond, l.tell)
		}
	default:
	}
	if ds[0].Allowed {
		w.admitted[counter] = append(w.admitted[counter], &simUnit{ds[0].At, cost})
		if cost == reserved {
			w.commit(r, counter, ds[0], reserved-1)
		}
	}
}

// commit gives back, some time later, a part of what was admitted last, at another node of the region, and often twice.
func (w *world) commit(r *simRegion, counter int, d stint.Decision, by int64) {
	unit := w.admitted[counter][len(w.admitted[counter])-1]
	charge := d.Charge()
	w.commits++
	charge.ID = fmt.Sprint("commit ", w.commits)
	for range 1 + w.random.IntN(2) {
		w.after(w.between(0, 4*time.Second), func() {
			n := r.nodes[w.random.IntN(len(r.nodes))]
			if n.paused {
				return
			}
			a := w.limits[counter]
			a.Cost, a.Charge = -by, &charge
			var ds [1]stint.Decision
			if err := n.store.Adjust(context.Background(), []stint.Ask{a}, ds[:]); err != nil {
				w.t.Fatal(err)
			}
			if !ds[0].Repeated {
				unit.cost -= by
			}
		})
	}
}

// check has a single counter decide all that was admitted, in the order of the instants, with a limit that is
// larger by what the regions may be ahead of each other. It returns how far beyond the limit it was at most.
func (w *world) check(counter int, more int64) (denied int) {
	a := w.limits[counter]
	l := a.Limit
	if l.Max += more; l.Burst > 0 {
		l.Burst += more
	}
	units := w.admitted[counter]
	slices.SortStableFunc(units, func(a, b *simUnit) int { return cmp.Compare(a.at, b.at) })
	state := stint.State{}
	for _, u := range units {
		var d stint.Decision
		if state, d = l.Take(state, time.UnixMicro(u.at), u.cost); !d.Allowed {
			denied++
		}
	}
	return denied
}

// beyond returns the most that a node has measured beyond the limit of a counter since it was started.
func (w *world) beyond(counter int) (most int64) {
	for _, r := range w.regions {
		for _, n := range r.nodes {
			for _, l := range n.store.Stats().Limits {
				if l.Limit == w.limits[counter].Key.Limit() {
					most = max(most, l.Beyond)
				}
			}
		}
	}
	return most
}

// trouble breaks something now and then: links, whole regions, one way, processes.
func (w *world) trouble() {
	w.faults = true
	w.every(20*time.Second, func() {
		a := w.regions[w.random.IntN(len(w.regions))]
		lasts := w.between(time.Second, 40*time.Second)
		others := slices.Clone(w.regions)
		switch w.random.IntN(7) {
		case 0: // one region alone
		case 1: // two regions from each other
			others = []*simRegion{w.regions[w.random.IntN(len(w.regions))]}
		case 2: // a node is killed
			a.nodes[w.random.IntN(len(a.nodes))].kill()
			return
		case 3: // a node stands still
			n := a.nodes[w.random.IntN(len(a.nodes))]
			n.paused = true
			w.after(lasts/2, func() { n.paused = false })
			return
		case 4: // a region cannot connect to another one, which can connect to it
			b := w.regions[w.random.IntN(len(w.regions))]
			block := func(blocked bool) {
				for _, n := range a.nodes {
					for _, l := range n.links {
						if l.to == b {
							l.blocked = blocked
						}
					}
				}
			}
			block(true)
			w.after(lasts, func() { block(false) })
			return
		case 5: // what a region says is not heard, though it hears the others
			for _, b := range others {
				a.deaf[b] = true
			}
			w.after(lasts, func() { clear(a.deaf) })
			return
		case 6: // a node is cut off, and its siblings are not
			n := a.nodes[w.random.IntN(len(a.nodes))]
			n.cut = true
			w.after(lasts, func() { n.cut = false })
			return
		}
		for _, b := range others {
			a.deaf[b], b.deaf[a] = true, true
		}
		w.after(lasts, func() {
			for _, b := range others {
				delete(a.deaf, b)
				delete(b.deaf, a)
			}
		})
	})
}

func simAsk(t *testing.T, name, limit string, credit int64, on stint.OnCredit) stint.Ask {
	t.Helper()
	l, err := stint.ParseLimit(limit)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := l.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return stint.Ask{
		Key: stint.Key{Subject: name, Name: "rule:" + name}, Limit: l, Plan: plan,
		Policy: &stint.Policy{Regions: stint.RegionsGossip, Credit: credit, OnCredit: on},
	}
}

func simAsks(t *testing.T) []stint.Ask {
	t.Helper()
	return []stint.Ask{
		simAsk(t, "a", "100/10s fixed_window", 0, stint.CreditShare),
		simAsk(t, "b", "100/10s sliding_window", 0, stint.CreditShare),
		simAsk(t, "c", "200/20s sliding_log", 10, stint.CreditShare),
		simAsk(t, "d", "100/10s token_bucket", 0, stint.CreditShare),
		simAsk(t, "e", "1000/1m fixed_window", 30, stint.CreditDeny),
		simAsk(t, "f", "50/30s sliding_log", 8, stint.CreditDeny),
	}
}

// simulate lets attackers loose on all regions at once, and returns how much was beyond the bound.
func simulate(t *testing.T, seed uint64, regions, nodes, requests int, trouble bool) *world {
	t.Helper()
	w := newWorld(t, seed, regions, nodes, simAsks(t))
	if trouble {
		w.trouble()
	}
	w.attack()
	for w.requests < requests {
		w.run(time.Minute)
	}
	return w
}

// attack has bursts hit all regions within a moment, and a steady rain, which stops now and then, so that the next
// burst finds all that the limit has.
func (w *world) attack() {
	for i := range w.limits {
		dry := false
		burst := func(n int64) {
			for range n {
				for _, r := range w.regions {
					w.after(w.between(0, 50*time.Millisecond), func() { w.request(r, i, 1) })
				}
			}
		}
		w.every(3*time.Second, func() {
			if !dry {
				burst(w.random.Int64N(60))
			}
		})
		w.every(50*time.Millisecond, func() {
			if !dry {
				w.request(w.regions[w.random.IntN(len(w.regions))], i, 1+w.random.Int64N(2))
			}
		})
		w.every(200*time.Millisecond, func() {
			if !dry {
				w.request(w.regions[w.random.IntN(len(w.regions))], i, reserved)
			}
		})
		w.every(2*time.Minute, func() {
			dry = true
			w.after(w.between(40*time.Second, 70*time.Second), func() {
				dry = false
				burst(w.limits[i].Limit.Max)
			})
		})
	}
}

// TestSimulation has attackers hit three and five regions, while links fail, regions are cut off, and processes
// die: no counter is ever further beyond its limit than the credit of the other regions.
func TestSimulation(t *testing.T) {
	t.Parallel()
	simulations(t, 20_000, 3)
}

func simulations(t *testing.T, requests, seeds int) {
	t.Helper()
	for _, shape := range []struct{ regions, nodes int }{{3, 1}, {3, 2}, {5, 2}} {
		t.Run(fmt.Sprint(shape.regions, " regions of ", shape.nodes), func(t *testing.T) {
			t.Parallel()
			for seed := range seeds {
				w := simulate(t, uint64(seed), shape.regions, shape.nodes, requests, seed > 0)
				for i := range w.limits {
					a := &w.limits[i]
					bound := int64(shape.regions-1)*max(Credit(a.Policy, a.Limit), 2) + w.lost[i]
					if n := w.check(i, bound); n > 0 {
						t.Errorf("seed %d, %v: %d of %d units were admitted beyond %d more (lost %d)", seed, a.Limit, n, len(w.admitted[i]), bound, w.lost[i])
					}
					if n := w.beyond(i); n > bound {
						t.Errorf("seed %d, %v: %d units beyond the limit were measured; want at most %d", seed, a.Limit, n, bound)
					}
				}
				if testing.Verbose() {
					t.Logf("seed %d: %d requests in %v", seed, w.requests, w.now.Sub(time.Unix(1_800_000_000, 0)).Round(time.Second))
					for i := range w.limits {
						t.Logf("  %v: admitted %d, lost %d", w.limits[i].Limit, len(w.admitted[i]), w.lost[i])
					}
				}
			}
		})
	}
}
