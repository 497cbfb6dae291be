package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/memstore"
)

const onePlace = `
[[rules]]
name = "exports"
action = "throttle"
max_delay = "10s"
limits = [ { name = "exports", limit = "1/30s concurrency" } ]
`

// TestLine has requests wait for a place: first come first served, at once when it is released here, and soon when
// it is released elsewhere.
func TestLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		here := start(t, onePlace, engine.Options{Store: store, Now: time.Now})
		there := start(t, onePlace, engine.Options{Store: store, Now: time.Now})
		s, _ := serve(t, here)
		type passed struct {
			user string
			s    *engine.Serving
			v    engine.Verdict
		}
		order := make(chan passed)
		for i := range 5 {
			go func() {
				p := passed{user: fmt.Sprint("user-", i)}
				q := from(p.user, "GET", "/")
				p.s, _ = here.Serve(t.Context(), &q, &p.v)
				order <- p
			}()
			synctest.Wait()
		}
		if n := here.Waiting(); n != 5 {
			t.Fatalf("%d wait", n)
		}
		began := time.Now()
		for i := range 3 {
			<-time.After(time.Second)
			s.End(engine.Usage{}, false)
			p := <-order
			if p.user != fmt.Sprint("user-", i) || p.s == nil || p.v.Outcome != engine.Throttled {
				t.Errorf("%s is next: %s", p.user, summary(p.v))
			}
			if got, want := time.Since(began), time.Duration(i+1)*time.Second; got != want {
				t.Errorf("%s passes after %v, want %v", p.user, got, want)
			}
			s = p.s
		}
		// One that comes now waits behind those that are there, although a place is free for a moment.
		s.End(engine.Usage{}, false)
		p := <-order
		if p.user != "user-3" {
			t.Errorf("%s is next", p.user)
		}
		p.s.End(engine.Usage{}, false)
		if p = <-order; p.user != "user-4" {
			t.Errorf("%s is next", p.user)
		}
		if n := here.Waiting(); n != 0 {
			t.Errorf("%d wait", n)
		}
		// What is released elsewhere is noticed soon.
		began = time.Now()
		other := make(chan *engine.Serving)
		go func() {
			v, q := new(engine.Verdict), from("bob", "GET", "/")
			s, _ := there.Serve(t.Context(), &q, v)
			other <- s
		}()
		synctest.Wait()
		p.s.End(engine.Usage{}, false)
		s = <-other
		if took := time.Since(began); s == nil || took > 100*time.Millisecond {
			t.Errorf("after %v: %v", took, s)
		}
		// Who waits too long is denied, and who leaves is gone.
		v, q := new(engine.Verdict), from("carol", "GET", "/")
		began = time.Now()
		if none, err := there.Serve(t.Context(), &q, v); none != nil || err != nil || v.Outcome != engine.Denied {
			t.Errorf("%s, %v", summary(*v), err)
		}
		if took := time.Since(began); took != 10*time.Second || v.Waited != took {
			t.Errorf("denied after %v, waited %v", took, v.Waited)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		gone, leave := context.WithCancel(ctx)
		time.AfterFunc(time.Millisecond, leave)
		if none, err := there.Serve(gone, &q, v); none != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("who has left: %v", err)
		}
		if n := there.Waiting(); n != 0 {
			t.Errorf("%d wait", n)
		}
		s.End(engine.Usage{}, false)
		settled(t, there)
	})
}
