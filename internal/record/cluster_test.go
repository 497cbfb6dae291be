package record_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
)

// TestMerge spreads requests over nodes at random, and checks that together they show what one node shows that has
// decided all of them.
func TestMerge(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 0))
		c := &hand{noon}
		all := newLive(t, record.LiveOptions{Node: "all", Now: c.now})
		nodes := make([]*record.Live, 1+random.IntN(5))
		for i := range nodes {
			nodes[i] = newLive(t, record.LiveOptions{Node: fmt.Sprint("n", i), Now: c.now})
		}
		for range 2000 {
			c.Time = c.Add(time.Duration(random.IntN(20)) * time.Millisecond)
			e := denial(c.Time)
			e.Outcome, e.Rule, e.User = engine.Outcome(random.IntN(int(engine.Unavailable)+1)), fmt.Sprint("rule", random.IntN(5)), fmt.Sprint("user", random.IntN(40))
			e.Latency, e.Shadow = time.Duration(random.IntN(1e6)), random.IntN(10) == 0
			all.Record(t.Context(), &e)
			nodes[random.IntN(len(nodes))].Record(t.Context(), &e)
		}
		parts := make([]record.Part, len(nodes))
		for i, n := range nodes {
			parts[i] = n.Part()
		}
		got, want := record.Merge(parts, 10), all.Snapshot()
		same := func(what string, a, b float64) {
			t.Helper()
			if a-b > 1e-9 || b-a > 1e-9 {
				t.Errorf("seed %d, %d nodes: %s: %v, want %v", seed, len(nodes), what, a, b)
			}
		}
		same("requests", got.Requests, want.Requests)
		same("refused", got.Refused, want.Refused)
		same("shadow", got.Shadow, want.Shadow)
		for o, n := range want.Outcomes {
			same(o, got.Outcomes[o], n)
		}
		for _, r := range want.Rules { // those with as many requests are in any order
			i := slices.IndexFunc(got.Rules, func(g record.RuleRate) bool { return g.Name == r.Name })
			same(r.Name, got.Rules[i].Requests, r.Requests)
			same(r.Name+" refused", got.Rules[i].Refused, r.Refused)
		}
		if got.Latency != want.Latency {
			t.Errorf("seed %d: latency %v, want %v", seed, got.Latency, want.Latency)
		}
		if !slices.Equal(got.Talkers.Users.ByRequests, want.Talkers.Users.ByRequests) || !slices.Equal(got.Talkers.Users.ByRefused, want.Talkers.Users.ByRefused) {
			t.Errorf("seed %d: users %v, want %v", seed, got.Talkers.Users, want.Talkers.Users)
		}
		if len(got.Nodes) != len(nodes) {
			t.Errorf("seed %d: nodes %v", seed, got.Nodes)
		}
	}
}

// TestMergeMany has more clients than nodes tell of: a count is too low by what is said at most, and never too high.
func TestMergeMany(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		c := &hand{noon}
		nodes := make([]*record.Live, 3)
		for i := range nodes {
			nodes[i] = newLive(t, record.LiveOptions{Now: c.now, Counters: 64, Top: 3})
		}
		sums := map[string]int64{}
		for range 5000 {
			e := passed(noon)
			e.User = fmt.Sprint("user", int(random.ExpFloat64()*40))
			sums[e.User]++
			nodes[random.IntN(len(nodes))].Record(t.Context(), &e)
		}
		parts := make([]record.Part, len(nodes))
		for i, n := range nodes {
			parts[i] = n.Part()
		}
		users := record.Merge(parts, 3).Talkers.Users
		least := int64(0)
		for _, u := range users.ByRequests {
			if n := sums[u.Name]; u.Requests > n || u.Requests < n-users.RequestsOff {
				t.Errorf("seed %d: %s has %d, which may be %d too low; want %d", seed, u.Name, u.Requests, users.RequestsOff, n)
			}
			least = u.Requests
		}
		for name, n := range sums {
			shown := slices.ContainsFunc(users.ByRequests, func(u record.Talker) bool { return u.Name == name })
			if !shown && n > least+users.RequestsOff {
				t.Errorf("seed %d: %s has %d, and is not shown", seed, name, n)
			}
		}
	}
}

// board is a board in memory, as slow as it is told to be.
type board struct {
	mu    sync.Mutex
	asks  map[string]time.Time
	notes map[string]posted
	posts int
	err   error
}

type posted struct {
	until time.Time
	text  []byte
}

func (b *board) Ask(_ context.Context, topic string, during time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asks[topic] = time.Now().Add(during)
	return b.err
}

func (b *board) Asked(_ context.Context, topics ...string) (out []string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, topic := range topics {
		if b.asks[topic].After(time.Now()) {
			out = append(out, topic)
		}
	}
	return out, b.err
}

func (b *board) Post(_ context.Context, node string, note []byte, during time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.posts++
	b.notes[node] = posted{time.Now().Add(during), note}
	return b.err
}

func (b *board) Notes(context.Context, string) (map[string][]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string][]byte{}
	for node, n := range b.notes {
		if n.until.After(time.Now()) {
			out[node] = n.text
		}
	}
	return out, b.err
}

// member is a node of a cluster in a test.
type member struct {
	*record.Cluster
	live *record.Live
	tap  *record.Tap
	stop context.CancelFunc
}

func (m *member) decide(t *testing.T, outcome engine.Outcome, n int) {
	t.Helper()
	for range n {
		e := denial(time.Now())
		e.Outcome = outcome
		m.live.Record(t.Context(), &e)
		m.tap.Record(t.Context(), &e)
	}
}

// newMembers starts nodes that share a board.
func newMembers(t *testing.T, b record.Board, n int) []*member {
	t.Helper()
	out := make([]*member, n)
	for i := range out {
		name := fmt.Sprint("n", i)
		m := &member{live: newLive(t, record.LiveOptions{Node: name}), tap: newTap(t, record.TapOptions{Node: name})}
		m.Cluster = record.NewCluster(record.ClusterOptions{Live: m.live, Tap: m.tap, ID: name, Board: b, Nodes: func() int { return n }})
		var ctx context.Context
		ctx, m.stop = context.WithCancel(t.Context())
		go m.Run(ctx)
		out[i] = m
	}
	return out
}

func newBoard() *board { return &board{asks: map[string]time.Time{}, notes: map[string]posted{}} }

// TestCluster has 50 nodes, of which one is asked: all are shown from the first answer on. Without anyone who looks, none
// posts.
func TestCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBoard()
		all := newMembers(t, b, 50)
		<-time.After(time.Minute)
		if b.posts != 0 {
			t.Errorf("%d posts that no one has asked for", b.posts)
		}
		for i, m := range all {
			m.decide(t, engine.Allowed, 10*i)
			m.decide(t, engine.Denied, i)
		}
		begin := time.Now()
		s := all[7].Snapshot(t.Context(), "")
		if took := time.Since(begin); took > time.Second {
			t.Errorf("the first answer took %v", took)
		}
		const sum = 50 * 49 / 2
		if len(s.Nodes) != 50 || s.Alive != 50 || s.Problem != "" || s.Node != "" {
			t.Fatalf("%d nodes of %d, %q: %v", len(s.Nodes), s.Alive, s.Problem, s.Nodes)
		}
		if got := s.Refused * s.Seconds; got < sum*0.97 || got > sum*1.03 { // nodes have counted for a moment more or less
			t.Errorf("%v are refused, want %v", got, sum)
		}
		if got := s.Talkers.Users.ByRequests; len(got) != 1 || got[0].Requests != 11*sum || got[0].Refused != sum {
			t.Errorf("users %v, want one with %d and %d", got, 11*sum, sum)
		}
		if one := all[7].Snapshot(t.Context(), "n31"); len(one.Nodes) != 1 || one.Node != "n31" || one.Talkers.Users.ByRequests[0].Refused != 31 {
			t.Errorf("n31 alone: %v", one)
		}
		if none := all[7].Snapshot(t.Context(), "elsewhere"); len(none.Nodes) != 0 || none.Requests != 0 || none.At.IsZero() {
			t.Errorf("a node that is not there: %v", none)
		}

		// Who looks on sees that a node is gone, some seconds later.
		all[3].stop()
		for range 7 {
			<-time.After(time.Second)
			s = all[7].Snapshot(t.Context(), "")
		}
		if len(s.Nodes) != 49 || s.Alive != 50 {
			t.Errorf("%d nodes of %d after one has stopped", len(s.Nodes), s.Alive)
		}
		b.mu.Lock()
		b.err = errors.New("the database is away")
		b.mu.Unlock()
		<-time.After(time.Second)
		if s = all[7].Snapshot(t.Context(), ""); len(s.Nodes) != 1 || s.Problem == "" || s.Node != "n7" {
			t.Errorf("without a board: %d nodes, problem %q", len(s.Nodes), s.Problem)
		}
		b.mu.Lock()
		b.err = nil
		before := b.posts
		b.mu.Unlock()
		<-time.After(time.Second)
		if s = all[7].Snapshot(t.Context(), ""); len(s.Nodes) != 49 || s.Problem != "" {
			t.Errorf("with a board again: %d nodes, problem %q", len(s.Nodes), s.Problem)
		}
		<-time.After(10 * time.Second) // no one looks any more
		end := b.posts
		<-time.After(time.Minute)
		if b.posts != end || end == before {
			t.Errorf("%d posts after no one looked, %d before", b.posts-end, end-before)
		}
		for _, m := range all {
			m.stop()
		}
		synctest.Wait()
	})
}

// TestClusterWatch follows the decisions of three nodes: each is shown once, and those that are not are counted.
func TestClusterWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBoard()
		all := newMembers(t, b, 3)
		w := all[0].Watch()
		w.Take(t.Context(), nil)
		<-time.After(2 * time.Second)
		w.Take(t.Context(), nil)
		shown, skipped, made := map[engine.ID]int{}, int64(0), 0
		nodes := map[string]int{}
		look := func() {
			<-time.After(250 * time.Millisecond)
			events, more := w.Take(t.Context(), nil)
			skipped += more
			for i, e := range events {
				shown[e.ID]++
				nodes[e.Node]++
				if i > 0 && e.At.Before(events[i-1].At) {
					t.Errorf("%v is after %v", e.At, events[i-1].At)
				}
			}
		}
		for second := range 20 {
			for _, m := range all {
				n := 1 + second*5 // beyond 50 a second there are too many
				m.decide(t, engine.Denied, n)
				made += n
			}
			for range 4 {
				look()
			}
		}
		for range 12 {
			look()
		}
		if most := slices.Max(slices.Collect(maps.Values(shown))); most != 1 {
			t.Errorf("a decision is shown %d times", most)
		}
		if len(shown)+int(skipped) != made {
			t.Errorf("%d are shown and %d skipped of %d", len(shown), skipped, made)
		}
		if len(nodes) != 3 || nodes["n1"] != nodes["n2"] {
			t.Errorf("by node: %v", nodes)
		}
		w.Close()
		for _, m := range all {
			m.stop()
		}
		synctest.Wait()
	})
}
