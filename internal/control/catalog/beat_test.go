package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

// counts waits until a node knows of so many.
func (f *follower) counts(t *testing.T, want int) time.Duration {
	t.Helper()
	return within(t, soon, func() error {
		if got := f.Replicas(); got != want {
			return fmt.Errorf("%d replicas, want %d", got, want)
		}
		return nil
	})
}

func TestReplicas(t *testing.T) {
	t.Parallel()
	for name, url := range both(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := furnished(t, url)
			node := func(name string) catalog.NodeOptions {
				return catalog.NodeOptions{Name: name, Version: "1.2.3", Poll: 4 * often}
			}
			a, b := follow(t, url, catalog.Options{}, node("a")), follow(t, url, catalog.Options{}, node("b"))
			a.counts(t, 2)
			b.counts(t, 2)

			// What each serves is known at once.
			at := ban(t, c, "eve")
			a.serves(t, at)
			b.serves(t, at)
			within(t, soon, func() error {
				nodes, err := c.Nodes(t.Context(), time.Minute)
				if err != nil {
					return err
				}
				if len(nodes) != 2 || nodes[0].Name != "a" || nodes[1].Name != "b" || nodes[0].Revision != at || nodes[1].Revision != at {
					return fmt.Errorf("%+v, want a and b at %d", nodes, at)
				}
				n := nodes[0]
				if n.Version != "1.2.3" || n.Problem != "" || time.Since(n.Started) > time.Minute || n.Seen.Before(n.Started.Add(-time.Second)) || time.Since(n.Seen) > time.Minute {
					return fmt.Errorf("%+v", n)
				}
				return nil
			})
			a.refuseWith(errors.New("no room for it"))
			ban(t, c, "mallory")
			within(t, soon, func() error {
				nodes, err := c.Nodes(t.Context(), time.Minute)
				if err != nil {
					return err
				}
				if nodes[0].Problem == "" || nodes[0].Revision != at || nodes[1].Problem != "" || nodes[1].Revision == at {
					return fmt.Errorf("%+v, want that a has a problem", nodes)
				}
				return nil
			})

			// One that stops is gone, one that is killed is missed.
			b.stop()
			t.Logf("stopped: gone after %v", a.counts(t, 1))
			killed := newFollower(t, url, catalog.Options{}, node("killed"))
			if _, err := killed.First(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, kill := context.WithCancel(t.Context())
			killed.Start(ctx, killed.use)
			a.counts(t, 2)
			kill()
			t.Logf("killed: gone after %v", a.counts(t, 1))
		})
	}
}

func TestReplicasWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	server := testpostgres.Start(t)
	url := server.Database(t)
	c := open(t, url)
	node := catalog.NodeOptions{Poll: 4 * often}
	a, b := follow(t, url, catalog.Options{}, node), follow(t, url, catalog.Options{}, node)
	a.counts(t, 2)
	b.counts(t, 2)
	server.Kill(t)
	a.looksOn(t)
	if a.Replicas() != 2 {
		t.Errorf("without the database there are %d replicas, want as many as before", a.Replicas())
	}
	<-time.After(3*node.Poll + 2*time.Second) // longer than a heartbeat holds
	server.Restart(t)
	// Nor are there fewer once it is back, before all have reported, or if it has lost their reports.
	for _, lose := range []bool{false, true} {
		if lose {
			if _, err := c.Database().Write.ExecContext(t.Context(), "DELETE FROM stint_nodes"); err != nil {
				t.Fatal(err)
			}
		}
		back := time.Now()
		within(t, soon, func() error {
			if a.Replicas() != 2 || b.Replicas() != 2 {
				t.Fatalf("%d and %d replicas, want 2", a.Replicas(), b.Replicas())
			}
			nodes, err := c.Nodes(t.Context(), time.Minute)
			if err == nil && (len(nodes) != 2 || nodes[0].Seen.Before(back) || nodes[1].Seen.Before(back)) {
				err = fmt.Errorf("%+v, want new reports of both", nodes)
			}
			return err
		})
	}
}
