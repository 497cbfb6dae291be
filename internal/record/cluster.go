package record

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

// Board is where the nodes of a cluster leave notes for each other: the database, or Redis. Notes may be lost. It may be
// used by several goroutines at once.
type Board interface {
	// Ask asks all nodes for notes about a topic, for some time from now on.
	Ask(ctx context.Context, topic string, during time.Duration) error
	// Asked returns those of the topics that anyone asks for.
	Asked(ctx context.Context, topics ...string) ([]string, error)
	// Post leaves the note of a node, in place of the one before, for some time.
	Post(ctx context.Context, node string, note []byte, during time.Duration) error
	// Notes returns the notes of all nodes. The node that reads them is one.
	Notes(ctx context.Context, node string) (map[string][]byte, error)
}

// What notes are about. They always have the counts.
const topicCounts, topicDecisions = "counts", "decisions"

// MaxNote is the largest size of a note, in bytes.
const MaxNote = 48 << 10

const (
	// askEvery is how often a node looks whether it is asked, postEvery how often it posts then, and readEvery how often
	// notes are read while someone looks at them.
	askEvery, postEvery, readEvery = 500 * time.Millisecond, time.Second, 900 * time.Millisecond
	// askFor is how long an ask holds, and noteLife how long a note does.
	askFor, noteLife = 5 * time.Second, 5 * time.Second
	// firstWait is how long the first who looks waits for the notes of all nodes.
	firstWait = 1500 * time.Millisecond
	// boardLimit is the limit of a call of the board.
	boardLimit = 2 * time.Second
	// eventsPerSecond is how many decisions of other nodes are shown in a second. Each node posts its share.
	eventsPerSecond = 250
	// maxPlain is the largest size of a note before it is compressed.
	maxPlain = 1 << 20
)

// ClusterOptions are the settings of a [Cluster].
type ClusterOptions struct {
	// Live and Tap are those of this node.
	Live *Live
	Tap  *Tap
	// ID is that of this node among the notes.
	ID string
	// Board is where the other nodes are. Nil: there are none.
	Board Board
	// Nodes returns how many nodes are alive. Nil: this one.
	Nodes func() int
}

// Cluster shows the decisions of all nodes. A node posts to the [Board] only while someone looks, and no node asks another.
// While the board fails, it shows this node alone, and says why. It may be used by several goroutines at once.
type Cluster struct {
	o ClusterOptions

	mu     sync.Mutex           // held while notes are read, so that many who look read them once
	read   time.Time            // when they were last read
	asked  map[string]time.Time // by topic
	notes  map[string]*note
	failed error
}

// note is what a node posts.
type note struct {
	Part   Part    `json:"part"`
	Tapped *tapped `json:"tapped,omitempty"` // nil: decisions were not asked for
}

// tapped are the decisions of the last two posts. The number of the first is First, and Skipped is how many were not
// shown, both counted from the start of the node.
type tapped struct {
	Events  []Event `json:"events"`
	First   int64   `json:"first"`
	Skipped int64   `json:"skipped"`
}

// NewCluster returns a cluster. Run it, so that others see this node.
func NewCluster(o ClusterOptions) *Cluster {
	if o.Nodes == nil {
		o.Nodes = func() int { return 1 }
	}
	return &Cluster{o: o, asked: map[string]time.Time{}}
}

// Run posts what this node decides whenever it is asked for it, until ctx ends.
func (c *Cluster) Run(ctx context.Context) {
	if c.o.Board == nil {
		return
	}
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	var p poster
	defer func() { p.close() }()
	for {
		if c.o.Nodes() > 1 {
			c.tell(ctx, &p)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// tell posts a note, if it is asked for and due. What fails now is tried again at the next tick.
func (c *Cluster) tell(ctx context.Context, p *poster) {
	ctx, cancel := context.WithTimeout(ctx, boardLimit)
	defer cancel()
	asked, err := c.o.Board.Asked(ctx, topicCounts, topicDecisions)
	switch now := time.Now(); {
	case err != nil || len(asked) == 0:
		p.close()
	case now.Sub(p.posted) < postEvery-askEvery/2:
	default:
		p.posted = now
		if text, err := p.note(c.o.Live, c.o.Tap, slices.Contains(asked, topicDecisions), c.o.Nodes()); err == nil {
			_ = c.o.Board.Post(ctx, c.o.ID, text, noteLife)
		}
	}
}

// poster makes the notes of a node.
type poster struct {
	posted  time.Time
	watch   *Watch // nil: decisions are not asked for
	events  []Event
	before  int // how many of them were in the last note
	next    int64
	skipped int64
}

func (p *poster) close() {
	if p.watch != nil {
		p.watch.Close()
		p.watch, p.events, p.before = nil, nil, 0
	}
}

// note returns the next note.
func (p *poster) note(live *Live, tap *Tap, decisions bool, nodes int) ([]byte, error) {
	n := note{Part: live.Part()}
	if decisions {
		n.Tapped = p.tapped(tap, max(1, eventsPerSecond/nodes))
	} else {
		p.close()
	}
	for {
		text, err := json.Marshal(&n)
		if err != nil {
			return nil, err
		}
		packed := pack(text)
		switch t := n.Tapped; {
		case len(packed) <= MaxNote:
			return packed, nil
		case t != nil && len(t.Events) > 0:
			half := (len(t.Events) + 1) / 2 // who reads it sees that they are missing
			t.Events, t.First = t.Events[half:], t.First+int64(half)
		default:
			return nil, fmt.Errorf("record: a note has %d bytes, and may have %d", len(packed), MaxNote)
		}
	}
}

// tapped returns the decisions since the last note, at most so many, and those that were in it.
func (p *poster) tapped(tap *Tap, most int) *tapped {
	if p.watch == nil {
		p.watch = tap.Watch()
	}
	p.events = slices.Delete(p.events, 0, p.before)
	p.before = len(p.events)
	news, skipped := p.watch.Take(nil)
	if over := len(news) - most; over > 0 {
		news, skipped = news[over:], skipped+int64(over)
	}
	p.events, p.next, p.skipped = append(p.events, news...), p.next+int64(len(news)), p.skipped+skipped
	return &tapped{p.events, p.next - int64(len(p.events)), p.skipped}
}

func pack(text []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	_, _ = w.Write(text) // a buffer takes all
	_ = w.Close()
	return out.Bytes()
}

func unpack(packed []byte) (*note, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r, maxPlain+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxPlain {
		return nil, fmt.Errorf("record: a note has more than %d bytes", maxPlain)
	}
	n := new(note)
	return n, json.Unmarshal(text, n)
}

// others returns the notes of the other nodes, and asks them to go on.
func (c *Cluster) others(ctx context.Context, topic string) (map[string]*note, error) {
	if c.o.Board == nil || c.o.Nodes() < 2 {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	begin := time.Now()
	fresh := begin.Sub(c.asked[topic]) > askFor
	if !fresh && begin.Sub(c.read) < readEvery {
		return c.notes, c.failed
	}
	ctx, cancel := context.WithTimeout(ctx, boardLimit)
	defer cancel()
	err := c.o.Board.Ask(ctx, topic, askFor)
	for err == nil {
		if err = c.look(ctx); !fresh || len(c.notes) >= c.o.Nodes()-1 || time.Since(begin) > firstWait {
			break
		}
		// No one has looked before, so the others have just been asked.
		select {
		case <-ctx.Done():
		case <-time.After(askEvery / 5):
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return c.notes, c.failed // who looked is gone, which says nothing about the board
	}
	if c.read, c.asked[topic], c.failed = time.Now(), begin, err; err != nil {
		c.notes = nil
	}
	return c.notes, c.failed
}

// look reads the notes.
func (c *Cluster) look(ctx context.Context) error {
	all, err := c.o.Board.Notes(ctx, c.o.ID)
	if err != nil {
		return err
	}
	delete(all, c.o.ID)
	c.notes = map[string]*note{}
	for id, packed := range all {
		if n, err := unpack(packed); err == nil { // otherwise it is one less than are alive
			c.notes[id] = n
		}
	}
	return nil
}

// Snapshot returns what all nodes have decided in the last seconds or, given the name of one, what those of that name have.
func (c *Cluster) Snapshot(ctx context.Context, node string) Snapshot {
	others, err := c.others(ctx, topicCounts)
	var parts []Part
	add := func(p Part) {
		if node == "" || node == p.Node {
			parts = append(parts, p)
		}
	}
	add(c.o.Live.Part())
	for _, id := range slices.Sorted(maps.Keys(others)) {
		add(others[id].Part)
	}
	s := Merge(parts, c.o.Live.o.Top)
	s.Alive = max(len(others)+1, c.o.Nodes())
	if node != "" {
		s.Node = node
	}
	if err != nil {
		s.Problem = "the other nodes cannot be read: " + err.Error()
	}
	if s.At.IsZero() {
		s.At = c.o.Live.o.Now().UTC()
	}
	return s
}

// Watch begins to watch the decisions of all nodes. Close it.
func (c *Cluster) Watch() *ClusterWatch {
	return &ClusterWatch{c: c, own: c.o.Tap.Watch(), seen: map[string]seen{}}
}

// ClusterWatch reads decisions as they are made. Only one goroutine may use it at a time.
type ClusterWatch struct {
	c    *Cluster
	own  *Watch
	seen map[string]seen // of other nodes, by id
}

// seen is what was read of a node: the number of the next decision, and how many it had skipped.
type seen struct{ next, skipped int64 }

// Close stops watching.
func (w *ClusterWatch) Close() { w.own.Close() }

// Take appends the decisions since the last call, by the time they were made. Those of other nodes are a second late or two.
// It returns how many were skipped, because there were too many, or because the last call was long ago.
func (w *ClusterWatch) Take(ctx context.Context, events []Event) (_ []Event, skipped int64) {
	begin := len(events)
	events, skipped = w.own.Take(events)
	others, _ := w.c.others(ctx, topicDecisions) // if it fails, this node is shown
	for id, n := range others {
		t := n.Tapped
		if t == nil { // it was not asked yet
			continue
		}
		last, known := w.seen[id]
		if !known { // what was before is not missed
			last = seen{t.First, t.Skipped}
		}
		skipped += t.Skipped - last.skipped + max(0, t.First-last.next)
		events = append(events, t.Events[min(max(0, last.next-t.First), int64(len(t.Events))):]...)
		w.seen[id] = seen{max(t.First+int64(len(t.Events)), last.next), t.Skipped}
	}
	maps.DeleteFunc(w.seen, func(id string, _ seen) bool { return others[id] == nil && len(w.seen) > maxSeen })
	slices.SortStableFunc(events[begin:], func(a, b Event) int { return cmp.Compare(a.At.UnixMicro(), b.At.UnixMicro()) })
	return events, skipped
}

// maxSeen is how many nodes are remembered that are gone.
const maxSeen = 1000
