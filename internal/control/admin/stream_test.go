package admin_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/test/wait"
)

// serve serves the API on a socket.
func (h *testAPI) serve() string {
	h.Helper()
	server := httptest.NewServer(h.api)
	h.Cleanup(func() {
		h.api.Close() // or it would wait for streams
		server.Close()
	})
	return server.URL + admin.Prefix
}

// sent is an event of a stream.
type sent struct{ name, data string }

// listener reads a stream.
type listener struct {
	testing.TB
	in *bufio.Scanner
}

// listen opens a stream.
func (h *testAPI) listen(url, path string) *listener {
	h.Helper()
	ctx, cancel := context.WithCancel(h.Context())
	h.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+path, http.NoBody)
	if err != nil {
		h.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+h.viewer)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { answer.Body.Close() })
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/event-stream" || answer.Header.Get("Cache-Control") != "no-store" {
		h.Fatalf("%s: %v", answer.Status, answer.Header)
	}
	l := &listener{h.TB, bufio.NewScanner(answer.Body)}
	l.in.Buffer(nil, 1<<20)
	l.in.Scan()
	if l.in.Text() != "retry: 2000" {
		h.Fatalf("it begins with %q", l.in.Text())
	}
	return l
}

// next returns the next event.
func (l *listener) next() (e sent) {
	l.Helper()
	for l.in.Scan() {
		switch line := l.in.Text(); {
		case strings.HasPrefix(line, "event: "):
			e.name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			e.data = line[len("data: "):]
		case line == "" && e.name != "":
			return e
		}
	}
	l.Fatalf("it has ended: %v", l.in.Err())
	return e
}

// decide requests a decision from the engine.
func (h *testAPI) decide(path, user string) engine.Outcome {
	h.Helper()
	v, err := h.engine.Decide(h.Context(), engine.Request{Method: http.MethodGet, Path: path, Subject: &identity.Subject{User: user}})
	if err != nil {
		h.Fatal(err)
	}
	return v.Outcome
}

// TestLiveStream has two clients, which receive the same.
func TestLiveStream(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	h.do(http.MethodPost, "/rules", steadyRule()).want(http.StatusCreated)
	for range 101 {
		h.decide("/search", "alice")
	}
	var now record.Snapshot
	h.get("/live").want(http.StatusOK).into(&now)
	if now.Refused == 0 || len(now.Rules) != 1 || now.Rules[0].Name != "search" || now.Rules[0].Refused != now.Refused {
		t.Errorf("%+v", now)
	}
	url := h.serve()
	one, other := h.listen(url, "/live/stream"), h.listen(url, "/live/stream")
	seen := map[string]bool{}
	for range 2 {
		e := one.next()
		var s record.Snapshot
		if err := json.Unmarshal([]byte(e.data), &s); err != nil || e.name != "live" || s.Node != "node-1" || s.Rules == nil {
			t.Fatalf("%v: %+v", err, e)
		}
		seen[e.data] = true
	}
	if len(seen) != 2 {
		t.Error("the same was told again")
	}
	if first, second := other.next().data, other.next().data; !seen[first] && !seen[second] {
		t.Error("two who look on at the same time do not see the same")
	}
}

// TestFollow has a client that follows all decisions, and one that follows those of a user.
func TestFollow(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	h.do(http.MethodPost, "/rules", steadyRule()).want(http.StatusCreated)
	url := h.serve()
	all, bob := h.listen(url, "/events/follow"), h.listen(url, "/events/follow?user=bob&outcome=denied&shadow=false")
	for _, user := range []string{"alice", "bob"} {
		for range 103 {
			h.decide("/search", user)
		}
	}
	read := func(l *listener) (e admin.Event) {
		for {
			s := l.next()
			if s.name != "decision" {
				t.Fatalf("%+v", s)
			}
			e = admin.Event{}
			if err := json.Unmarshal([]byte(s.data), &e); err != nil {
				t.Fatal(err)
			}
			if e.Outcome == "denied" {
				return e
			}
		}
	}
	for i := range 3 {
		if e := read(bob); e.User != "bob" || e.Rule != "search" || e.Limit != "searches" || e.Status != 429 || e.Max != 100 || e.Region != "test" || e.RetryAfter <= 0 {
			t.Errorf("%d: %+v", i, e)
		}
	}
	for _, user := range []string{"alice", "alice", "alice", "bob", "bob", "bob"} {
		if e := read(all); e.User != user {
			t.Errorf("%s: %+v", user, e)
		}
	}
	h.get("/events/follow?outcome=refused").want(http.StatusBadRequest).says("want one of allowed")
	h.get("/events/follow?from=2026-01-01T00:00:00Z").want(http.StatusBadRequest).says("unknown parameter")
}

// TestFollowFromTheStart checks that the source of a hub is open once it is joined, so that
// nothing after that is missed.
func TestFollowFromTheStart(t *testing.T) {
	t.Parallel()
	var opened atomic.Bool
	admin.Join(t.Context(), func() { opened.Store(true) }, func() {
		if !opened.Load() {
			t.Error("it has begun, and what happens now is not told")
		}
	})
}

// TestFollowFlood denies more requests than are shown, and checks the number that were
// skipped.
func TestFollowFlood(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	l := h.listen(h.serve(), "/events/follow")
	const n = 5000
	now := h.clock.now()
	for range n {
		h.tap.Record(t.Context(), &engine.Event{ID: engine.NewID(now), At: now, Outcome: engine.Denied})
	}
	shown, skipped := 0, 0
	for shown+skipped < n {
		switch e := l.next(); e.name {
		case "decision":
			shown++
		case "skipped":
			var s struct{ N int }
			if err := json.Unmarshal([]byte(e.data), &s); err != nil {
				t.Fatal(err)
			}
			skipped += s.N
		}
	}
	if shown != 50 || shown+skipped != n {
		t.Errorf("%d shown, %d skipped", shown, skipped)
	}
}

// TestUsageStream streams the usage of a limit.
func TestUsageStream(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	h.do(http.MethodPost, "/rules", steadyRule()).want(http.StatusCreated)
	url := h.serve()
	one, other := h.listen(url, "/subjects/user/alice/live"), h.listen(url, "/subjects/ip/192.0.2.1/live")
	used := func(l *listener) int64 {
		e := l.next()
		var u admin.Usage
		if err := json.Unmarshal([]byte(e.data), &u); err != nil || e.name != "usage" || len(u.Items) != 1 {
			t.Fatalf("%v: %+v", err, e)
		}
		return u.Items[0].Used
	}
	if n := used(one); n != 0 {
		t.Errorf("%d are used", n)
	}
	h.decide("/search", "alice")
	for used(one) != 1 { // it was asked before
	}
	used(other)
	h.get("/subjects/ip/192.0.2.0%2F24/live").want(http.StatusBadRequest).says("want an address")
}

// writer is a client that can stop reading.
type writer struct {
	header http.Header
	headed chan struct{} // closed when the head was sent
	begun  chan struct{} // closed when something was sent
	once   sync.Once

	mu     sync.Mutex
	body   bytes.Buffer
	stuck  chan struct{} // not nil: it does not read until it is closed
	broken error
}

func newWriter() *writer {
	return &writer{header: http.Header{}, headed: make(chan struct{}), begun: make(chan struct{})}
}

func (w *writer) Header() http.Header { return w.header }

func (w *writer) WriteHeader(int) { close(w.headed) }

func (w *writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	stuck := w.stuck
	w.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		return 0, w.broken
	}
	return w.body.Write(p)
}

func (w *writer) FlushError() error {
	w.once.Do(func() { close(w.begun) })
	return nil
}

// read returns what was written since the last time.
func (w *writer) read() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := w.body.String()
	w.body.Reset()
	return text
}

// watch opens a stream that ends with a context, and returns a channel that is closed at
// its end.
func (h *testAPI) watch(ctx context.Context, path string, w *writer, token string) (ended chan struct{}) {
	ended = make(chan struct{})
	r := h.request(http.MethodGet, path, nil, "", token).WithContext(ctx)
	go func() {
		defer close(ended)
		h.api.ServeHTTP(w, r)
	}()
	return ended
}

// TestStreamBeats checks the heartbeat of a stream, and that it ends when its token is
// revoked.
func TestStreamBeats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newTestAPI(t)
		text, token, err := h.tokens.CreateToken(t.Context(), "test", catalog.Token{Name: "guest", Role: catalog.Viewer})
		if err != nil {
			t.Fatal(err)
		}
		w := newWriter()
		ended := h.watch(t.Context(), "/events/follow", w, text)
		<-w.begun
		for range 3 {
			w.read()
			<-time.After(15 * time.Second)
			synctest.Wait()
			if got := w.read(); got != ": still here\n\n" {
				t.Errorf("%q", got)
			}
		}
		if err := h.tokens.RevokeToken(t.Context(), "test", token.ID); err != nil {
			t.Fatal(err)
		}
		<-ended
	})
}

// TestSlowStream has a client that does not read for a long time: nobody waits for it, and
// then it receives the latest.
func TestSlowStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newTestAPI(t)
		ctx, cancel := context.WithCancel(t.Context())
		slow, quick := newWriter(), newWriter()
		ended, other := h.watch(ctx, "/live/stream", slow, h.viewer), h.watch(ctx, "/live/stream", quick, h.viewer)
		<-slow.begun
		<-quick.begun
		synctest.Wait()
		slow.mu.Lock()
		stuck := make(chan struct{})
		slow.stuck = stuck
		slow.mu.Unlock()
		slow.read()
		quick.read()
		<-time.After(10 * time.Second)
		synctest.Wait()
		if got := strings.Count(quick.read(), "event: live"); got != 10 {
			t.Errorf("the quick one has seen %d", got)
		}
		slow.mu.Lock()
		slow.stuck = nil
		slow.mu.Unlock()
		close(stuck)
		synctest.Wait()
		if got := slow.read(); strings.Count(got, "event: live") != 2 || strings.Contains(got, "skipped") { // that it was stuck with, and the latest
			t.Errorf("the slow one has seen %q", got)
		}
		// One whose connection breaks is left.
		slow.mu.Lock()
		slow.broken = errors.New("gone")
		slow.mu.Unlock()
		<-ended
		cancel()
		<-other
	})
}

// TestStreamsEnd opens the maximum number of streams, and closes the API.
func TestStreamsEnd(t *testing.T) {
	h := newTestAPI(t)
	h.do(http.MethodPost, "/rules", steadyRule()).want(http.StatusCreated)
	const most, each = 1000, 100
	var viewers []string
	for i := range most / each {
		viewers = append(viewers, h.token("viewer"+strconv.Itoa(i), catalog.Viewer))
	}
	first, cancel := context.WithCancel(t.Context())
	var ends []chan struct{}
	var open []*writer
	for i := range most {
		ctx := t.Context()
		if i == 0 {
			ctx = first
		}
		w := newWriter()
		ends, open = append(ends, h.watch(ctx, []string{"/live/stream", "/events/follow", "/subjects/user/u" + strconv.Itoa(i) + "/live"}[i%3], w, viewers[i/each])), append(open, w)
		if i == each { // one viewer has all that it may have, and another gets a stream
			for _, w := range open {
				<-w.begun
			}
			a := h.ask(http.MethodGet, "/live/stream", nil, "", viewers[0])
			if a.want(http.StatusTooManyRequests).says("this token has 100 open streams"); a.Header.Get("Retry-After") == "" {
				t.Error("it does not say when to try again")
			}
			h.ask(http.MethodGet, "/subjects/user/alice/live", nil, "", viewers[0]).want(http.StatusTooManyRequests)
		}
	}
	for _, w := range open {
		<-w.begun
	}
	if a := h.get("/live/stream").want(http.StatusServiceUnavailable).says("1000 open streams"); a.Header.Get("Retry-After") == "" {
		t.Error("it does not say when to try again")
	}
	h.get("/subjects/user/alice/live").want(http.StatusServiceUnavailable)
	cancel() // and there is a place
	<-ends[0]
	w := newWriter()
	last := h.watch(t.Context(), "/live/stream", w, h.viewer)
	<-w.begun
	h.api.Close()
	for _, ended := range append(ends, last) {
		<-ended
	}
	h.get("/events/follow").want(http.StatusServiceUnavailable)
	h.get("/live").want(http.StatusOK)
	buf := make([]byte, 4<<20)
	wait.For(t, "the end of all goroutines", func() bool { // what tells a stream may end after it
		stacks := string(buf[:runtime.Stack(buf, true)])
		return !strings.Contains(stacks, "admin.(*hub)") && !strings.Contains(stacks, "admin.(*API).send")
	})
}

// TestStreamHead checks that HEAD of a stream ends.
func TestStreamHead(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	a := h.ask(http.MethodHead, "/live/stream", nil, "", h.viewer).want(http.StatusOK)
	if a.Header.Get("Content-Type") != "text/event-stream" || len(a.body) != 0 {
		t.Errorf("%v %q", a.Header, a.body)
	}
	h.ask(http.MethodGet, "/live/stream", nil).want(http.StatusUnauthorized)
}

// BenchmarkStreams decides without streams, and with 200.
func BenchmarkStreams(b *testing.B) {
	for _, n := range []int{0, 200} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			h := newTestAPI(b)
			h.do(http.MethodPost, "/rules", steadyRule()).want(http.StatusCreated)
			ctx, cancel := context.WithCancel(b.Context())
			var ends []chan struct{}
			for i := range n {
				w := newWriter()
				ends = append(ends, h.watch(ctx, []string{"/live/stream", "/events/follow"}[i%2], w, h.viewer))
				<-w.begun
			}
			users := make([]identity.Subject, 1000)
			for i := range users {
				users[i].User = "user-" + strconv.Itoa(i)
			}
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					if _, err := h.engine.Decide(ctx, engine.Request{Method: "GET", Path: "/search", Subject: &users[i%len(users)]}); err != nil {
						b.Error(err)
					}
				}
			})
			cancel()
			for _, ended := range ends {
				<-ended
			}
		})
	}
}
