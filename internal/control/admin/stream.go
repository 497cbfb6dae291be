package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/record"
)

const (
	// maxStreams is the maximum number of streams at once, and maxExports that of exports,
	// each of which may hold a row group in memory.
	maxStreams, maxExports = 1000, 4
	// maxViewed is how many of the streams one token may hold, with all its sessions: the
	// others are for others.
	maxViewed = maxStreams / 10
	// writeLimit is how long a write to a client may take.
	writeLimit = 10 * time.Second
	// heartbeat is how often a stream sends a comment and checks its credentials again.
	heartbeat = 15 * time.Second
)

// streams are the open streams, and what they send.
type streams struct {
	open, exports, replays atomic.Int64
	follow                 hub

	mu   sync.Mutex
	hubs map[string]*hub // what is watched of nodes and subjects, by what it is
	held map[string]int  // the streams of each token that has any, by its id
}

// hub returns the hub of what is sent under a name once a second, which next returns. The caller must call leave.
func (s *streams) hub(name string, next func(context.Context) ([]item, int64)) (h *hub, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h = s.hubs[name]; h == nil {
		if s.hubs == nil {
			s.hubs = map[string]*hub{}
		}
		h = &hub{every: lookEvery, latest: true, open: func() source { return source{next: next} }}
		s.hubs[name] = h
	}
	h.users++
	return h, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if h.users--; h.users == 0 {
			delete(s.hubs, name)
		}
	}
}

// view takes one of the places of a token, if fewer than maxViewed are taken. The caller
// must call leave.
func (s *streams) view(token string) (leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[token] >= maxViewed {
		return nil, false
	}
	if s.held == nil {
		s.held = map[string]int{}
	}
	s.held[token]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[token]--; s.held[token] == 0 {
			delete(s.held, token)
		}
	}, true
}

// occupy takes a place, if fewer than limit are taken. The caller must call leave.
func occupy(places *atomic.Int64, limit int64) (leave func(), ok bool) {
	if places.Add(1) > limit {
		places.Add(-1)
		return nil, false
	}
	return func() { places.Add(-1) }, true
}

// item is an event of a stream.
type item struct {
	frame []byte        // as it is sent, encoded once for all clients
	about *record.Event // for filters; nil: for all clients
}

// newItems returns an event with a name, or none if the data has a number that JSON cannot
// represent.
func newItems(name string, data any, about *record.Event) []item {
	text, err := json.Marshal(data)
	if err != nil {
		return nil
	}
	return []item{{slices.Concat([]byte("event: "+name+"\ndata: "), text, []byte("\n\n")), about}}
}

// mailbox holds items that a stream has not sent yet. If it is full, the oldest are
// dropped and counted.
type mailbox struct {
	size  int
	wants func(*record.Event) bool // nil: all
	wake  chan struct{}            // has room for one signal: there are items

	mu      sync.Mutex
	items   []item
	skipped int64
}

func newMailbox(size int, wants func(*record.Event) bool) *mailbox {
	return &mailbox{size: size, wants: wants, wake: make(chan struct{}, 1)}
}

func (b *mailbox) put(items []item, skipped int64) {
	b.mu.Lock()
	b.skipped += skipped
	for _, i := range items {
		if i.about == nil || b.wants == nil || b.wants(i.about) {
			b.items = append(b.items, i)
		}
	}
	if over := len(b.items) - b.size; over > 0 {
		b.items = slices.Delete(b.items, 0, over)
		b.skipped += int64(over)
	}
	waiting := len(b.items) > 0 || b.skipped > 0
	b.mu.Unlock()
	if waiting {
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
}

// take appends the items to room.
func (b *mailbox) take(room []item) (_ []item, skipped int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	room = append(room, b.items...)
	skipped = b.skipped
	clear(b.items)
	b.items, b.skipped = b.items[:0], 0
	return room, skipped
}

// source is what a hub sends.
type source struct {
	next  func(ctx context.Context) (items []item, skipped int64) // since the last call
	close func()                                                  // may be nil
}

// hub sends the items of a source to all mailboxes, at an interval. It runs while there
// are any.
type hub struct {
	every time.Duration
	open  func() source
	// latest says that each item replaces the one before. A new mailbox gets the last one
	// at once.
	latest bool
	users  int // of a hub with a name: how many streams use it

	mu    sync.Mutex
	boxes map[*mailbox]struct{}
	last  []item
	run   *hubRun // nil: it is not running
}

type hubRun struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// join adds a mailbox. Nothing that happens after it has returned is missed.
func (h *hub) join(ctx context.Context, b *mailbox) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.run == nil {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // others may still listen when the first has left
		h.run = &hubRun{cancel: cancel, done: make(chan struct{})}
		h.boxes, h.last = map[*mailbox]struct{}{}, nil
		go h.tell(ctx, h.run, h.open())
	}
	h.boxes[b] = struct{}{}
	if h.last != nil {
		b.put(h.last, 0)
	}
}

// leave removes a mailbox. The hub stops with the last one.
func (h *hub) leave(b *mailbox) {
	h.mu.Lock()
	delete(h.boxes, b)
	run, empty := h.run, len(h.boxes) == 0
	if empty {
		h.run, h.last = nil, nil
		run.cancel()
	}
	h.mu.Unlock()
	if empty {
		<-run.done
	}
}

// tell sends items until the last mailbox has left.
func (h *hub) tell(ctx context.Context, run *hubRun, from source) {
	defer close(run.done)
	if from.close != nil {
		defer from.close()
	}
	tick := time.NewTicker(h.every)
	defer tick.Stop()
	for {
		asking, cancel := context.WithTimeout(ctx, writeLimit)
		items, skipped := from.next(asking)
		cancel()
		h.mu.Lock()
		if h.run != run {
			h.mu.Unlock()
			return
		}
		if h.latest && len(items) > 0 {
			h.last = items
		}
		for b := range h.boxes {
			b.put(items, skipped)
		}
		h.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// streamed is the output of an operation that streams.
type streamed struct {
	Body func()
}

// eventStream is the content of a stream of events. [streamDoc] describes it.
var eventStream = []content{{"text/event-stream", reflect.TypeFor[string](), "Server-sent events, with JSON as their data."}}

func streamDoc(events string) string {
	return "Events, until either side closes the connection. " + events + " A client that reads too slowly misses events."
}

// stream responds with the items of a hub.
func (a *API) stream(ctx context.Context, h *hub, b *mailbox, left func()) (*streamed, error) {
	if a.closing.Err() != nil {
		left()
		return nil, fail(http.StatusServiceUnavailable, "this node is shutting down").with("Retry-After", "1")
	}
	unview, ok := a.streams.view(personOf(ctx).ID)
	if !ok {
		left()
		return nil, fail(http.StatusTooManyRequests, "this token has "+strconv.Itoa(maxViewed)+" open streams, which is the maximum for one").with("Retry-After", "5")
	}
	leave, ok := occupy(&a.streams.open, maxStreams)
	if !ok {
		unview()
		left()
		return nil, fail(http.StatusServiceUnavailable, "there are "+strconv.Itoa(maxStreams)+" open streams, which is the maximum").with("Retry-After", "5")
	}
	return &streamed{func() {
		defer unview()
		defer leave()
		defer left()
		s := newSender(ctx)
		defer s.end()
		if s.begin("text/event-stream"); s.Method == http.MethodHead {
			return
		}
		h.join(ctx, b)
		defer h.leave(b)
		a.send(ctx, s, b)
	}}, nil
}

// send sends the items of a mailbox.
func (a *API) send(ctx context.Context, s *sender, b *mailbox) {
	s.write([]byte("retry: 2000\n\n"))
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	var room []item
	for s.flush() {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			if !a.stillMay(s.Request) {
				return
			}
			s.write([]byte(": still here\n\n"))
		case <-b.wake:
			var skipped int64
			room, skipped = b.take(room[:0])
			for i := range room {
				s.write(room[i].frame)
			}
			clear(room)
			if skipped > 0 && b.size > 1 { // if only the latest counts, nothing is missed
				s.write([]byte(`event: skipped` + "\n" + `data: {"n":` + strconv.FormatInt(skipped, 10) + "}\n\n"))
			}
		}
	}
}

// stillMay reports whether the credentials of a stream are still valid. If the database
// does not answer, the stream goes on.
func (a *API) stillMay(r *http.Request) bool {
	was := personOf(r.Context())
	again, err := a.admit(r, catalog.Viewer, true)
	if err == nil && !slices.Equal(was.Tenants, personOf(again.Context()).Tenants) {
		return false // a stream is for the tenants that it began with
	}
	var p *Problem
	return !errors.As(err, &p) || p.Status != http.StatusUnauthorized && p.Status != http.StatusForbidden
}

// sender writes a response in parts. Each write has a deadline.
type sender struct {
	request
	control *http.ResponseController
	err     error
}

func newSender(ctx context.Context) *sender {
	q := requestOf(ctx)
	return &sender{request: q, control: http.NewResponseController(q.w)}
}

// begin sends the header.
func (s *sender) begin(contentType string) {
	_ = s.control.SetReadDeadline(time.Time{}) // that of the request; writers in tests have no deadlines
	s.w.Header().Set("Content-Type", contentType)
	s.w.Header().Set("X-Accel-Buffering", "no") // or a proxy would buffer the stream
	s.w.WriteHeader(http.StatusOK)
}

// Write implements [io.Writer].
func (s *sender) Write(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	_ = s.control.SetWriteDeadline(time.Now().Add(writeLimit)) //nolint:forbidigo // a connection goes by the real clock
	var n int
	n, s.err = s.w.Write(p)
	return n, s.err
}

func (s *sender) write(p []byte) { _, _ = s.Write(p) } // flush returns the error

// flush sends what was written, and reports whether the client is still there.
func (s *sender) flush() bool {
	if s.err == nil {
		s.err = s.control.Flush()
	}
	return s.err == nil
}

// end removes the deadline from the connection.
func (s *sender) end() { _ = s.control.SetWriteDeadline(time.Time{}) }
