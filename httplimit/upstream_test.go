package httplimit_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/storetest"
)

// post sends a body, and returns the name of the target that has read it.
func post(tb testing.TB, url string) string {
	tb.Helper()
	r := get(tb, url+"/")
	r.Method, r.Body, r.ContentLength = http.MethodPost, io.NopCloser(strings.NewReader("hello")), -1
	res, body := ask(tb, r)
	if res.status != http.StatusOK {
		return strconv.Itoa(res.status)
	}
	return body
}

// reader is a server that says its name and what it has read.
func reader(tb testing.TB, name string) string {
	tb.Helper()
	return serve(tb, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s:%s", name, body)
	}), false).URL
}

// TestUpstreamTurns has targets take turns, and one that cannot be reached left out.
func TestUpstreamTurns(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	gone := "http://" + closedPort(t)
	g, s := gateway(t, httplimit.GatewayOptions{Routes: to(reader(t, "a"), gone, reader(t, "b")), Now: clock.Now})
	health := func() (failures int, until time.Time) {
		t.Helper()
		for _, h := range g.Health() {
			if h.Target == gone {
				if h.Healthy != (h.Until.IsZero() || !clock.Now().Before(h.Until)) {
					t.Errorf("%+v", h)
				}
				return h.Failures, h.Until
			}
			if !h.Healthy || h.Failures != 0 {
				t.Errorf("%+v", h)
			}
		}
		t.Fatal("the target is missing")
		return
	}
	count := func(n int) map[string]int {
		t.Helper()
		served := map[string]int{}
		for range n {
			served[post(t, s.URL)]++
		}
		if served["a:hello"]+served["b:hello"] != n {
			t.Fatalf("%v", served)
		}
		return served
	}
	// Each failure is seen by no client: the request goes elsewhere, with its body.
	for pause := time.Second; ; pause *= 2 {
		pause = min(pause, 30*time.Second)
		before, _ := health()
		count(30)
		failures, until := health()
		if want := max(before+1, 3); failures != want || until.Sub(clock.Now()) != pause {
			t.Fatalf("%d failures, left out for %v; want %d, %v", failures, until.Sub(clock.Now()), want, pause)
		}
		// Meanwhile the others share alike.
		if served := count(30); served["a:hello"] != 15 {
			t.Errorf("%v; want half each", served)
		}
		if clock.Add(pause); pause == 30*time.Second {
			break
		}
	}
}

// TestUpstreamReturn has a target that was left out come back.
func TestUpstreamReturn(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	var slow atomic.Bool
	slow.Store(true)
	target := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slow.Load() {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}
		_, _ = io.WriteString(w, "back")
	}), false).URL
	g, s := gateway(t, httplimit.GatewayOptions{
		Routes: []httplimit.Route{{Targets: []string{target}, ResponseTimeout: 20 * time.Millisecond}}, Now: clock.Now,
	})
	for i := range 5 { // it is the only one, so it is tried all the same
		if got := post(t, s.URL); got != "504" {
			t.Fatal(got)
		}
		if h := g.Health()[0]; h.Healthy != (i < 2) || h.Failures != min(i+1, 3) {
			t.Errorf("%d: %+v", i, h)
		}
	}
	slow.Store(false)
	wait.For(t, "the target is back", func() bool { return post(t, s.URL) == "back" }) // it may still be too slow on a busy machine
	if h := g.Health()[0]; !h.Healthy || h.Failures != 0 || !h.Until.IsZero() {
		t.Errorf("%+v", h)
	}
}

// TestUpstreamSentOnce counts requests that reach targets that then fail.
func TestUpstreamSentOnce(t *testing.T) {
	t.Parallel()
	var got atomic.Int64
	abort := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		got.Add(1)
		panic(http.ErrAbortHandler)
	}), false).URL
	for _, target := range []string{abort, "h2c" + strings.TrimPrefix(abort, "http")} {
		_, s := gateway(t, httplimit.GatewayOptions{Routes: to(target, target, target)})
		got.Store(0)
		for i := range 6 {
			if status := post(t, s.URL); status != "502" || got.Load() != int64(i+1) {
				t.Fatalf("%s: %d requests to targets after %d", status, got.Load(), i+1)
			}
		}
	}
	// Three are tried, and not the same twice.
	_, s := gateway(t, httplimit.GatewayOptions{
		Routes: to("http://"+closedPort(t), "http://"+closedPort(t), "http://"+closedPort(t), "http://"+closedPort(t), reader(t, "a")),
	})
	served := map[string]int{}
	for range 10 {
		served[post(t, s.URL)]++
	}
	if served["a:hello"] == 0 || served["a:hello"]+served["502"] != 10 {
		t.Errorf("%v", served)
	}
}

// TestUpstreamBlame does not hold against a target what is not its fault.
func TestUpstreamBlame(t *testing.T) {
	t.Parallel()
	silent := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}), false).URL
	g, s := gateway(t, httplimit.GatewayOptions{Routes: []httplimit.Route{{Targets: []string{silent}, Timeout: time.Millisecond}}})
	for range 3 { // all of it took too long, which may be the client's doing
		if got := post(t, s.URL); got != "504" {
			t.Error(got)
		}
	}
	if h := g.Health()[0]; !h.Healthy || h.Failures != 0 {
		t.Errorf("%+v", h)
	}
	// A request that no one takes is a failure of those that it was offered to: three
	// at most, and none of them twice.
	for n, want := range []int{1: 1, 2: 2, 3: 3, 4: 3} {
		if n == 0 {
			continue
		}
		var gone []string
		for range n {
			gone = append(gone, "http://"+closedPort(t))
		}
		g, s := gateway(t, httplimit.GatewayOptions{Routes: to(gone...)})
		if got := post(t, s.URL); got != "502" {
			t.Error(got)
		}
		failures := 0
		for _, h := range g.Health() {
			failures += h.Failures
		}
		if failures != want {
			t.Errorf("%d tries of %d targets; want %d", failures, n, want)
		}
	}
}

// TestUpstreamChecks has targets checked. It is not parallel: it looks at all
// goroutines.
func TestUpstreamChecks(t *testing.T) {
	begun, answers := make(chan struct{}), make(chan int)
	sick := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/base/live" {
			_, _ = io.WriteString(w, "sick")
			return
		}
		select {
		case begun <- struct{}{}:
		case <-r.Context().Done():
			return
		}
		select {
		case status := <-answers:
			w.WriteHeader(status)
		case <-r.Context().Done():
		}
	}), false).URL + "/base"
	g, err := httplimit.NewGateway(httplimit.GatewayOptions{
		Engine: gatewayEngine(t, noRules, identity.Options{}),
		Routes: []httplimit.Route{{
			Targets: []string{sick, reader(t, "well")},
			Check:   &httplimit.Check{Path: "/live", Interval: time.Millisecond, Timeout: time.Minute},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, g, false)
	start := func() {
		t.Helper()
		for range 2 {
			if err := g.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		<-begun
	}
	start()
	for i, c := range []struct {
		status int
		down   bool
	}{{503, false}, {200, false}, {500, false}, {404, true}, {503, true}, {204, false}, {302, false}} {
		answers <- c.status
		<-begun // of the next one: this one has been seen
		down := false
		for _, h := range g.Health() {
			if down = down || h.Down; h.Healthy == h.Down {
				t.Errorf("%d: %+v", i, h)
			}
		}
		served := map[string]int{}
		for range 4 {
			served[post(t, s.URL)]++
		}
		if down != c.down || (served["sick"] == 0) != c.down {
			t.Errorf("%d: after %d down is %v, served %v", i, c.status, down, served)
		}
	}
	stop := func() {
		t.Helper()
		for range 2 {
			if err := g.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		var stacks bytes.Buffer
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		if strings.Contains(stacks.String(), "httplimit.(*target)") {
			t.Errorf("checks go on: %s", &stacks)
		}
	}
	stop()
	start() // once more
	stop()
}
