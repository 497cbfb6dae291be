package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/wait"
)

// counts waits until a node knows of so many.
func (f *follower) counts(t *testing.T, want int) {
	t.Helper()
	wait.Nil(t, "the count of nodes", func() error {
		if got := f.Replicas(); got != want {
			return fmt.Errorf("%d replicas, want %d", got, want)
		}
		return nil
	})
}

func TestReplicas(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
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
			wait.Nil(t, "what both serve", func() error {
				nodes, err := c.Nodes(t.Context(), time.Hour)
				if err != nil {
					return err
				}
				if len(nodes) != 2 || nodes[0].Name != "a" || nodes[1].Name != "b" || nodes[0].Revision != at || nodes[1].Revision != at {
					return fmt.Errorf("%+v, want a and b at %d", nodes, at)
				}
				n := nodes[0]
				if n.Version != "1.2.3" || n.Problem != "" || time.Since(n.Started) > time.Hour || n.Seen.Before(n.Started.Add(-time.Second)) || time.Since(n.Seen) > time.Hour {
					return fmt.Errorf("%+v", n)
				}
				return nil
			})
			a.refuseWith(errors.New("no room for it"))
			ban(t, c, "mallory")
			wait.Nil(t, "that a has a problem", func() error {
				nodes, err := c.Nodes(t.Context(), time.Hour)
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
			a.counts(t, 1)
			killed := newFollower(t, url, catalog.Options{}, node("killed"))
			if _, err := killed.First(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, kill := context.WithCancel(t.Context())
			killed.Start(ctx, killed.use)
			a.counts(t, 2)
			kill()
			a.counts(t, 1)
		})
	}
}

// TestReplicasWithoutTheDatabase has heartbeats only when they are asked for, so that none is late.
func TestReplicasWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	server := testpostgres.Start(t)
	url := server.Database(t)
	c := open(t, url)
	nodes := []*follower{follow(t, url, catalog.Options{}, catalog.NodeOptions{}), follow(t, url, catalog.Options{}, catalog.NodeOptions{})}
	// report has both report until a condition holds for each.
	report := func(what string, is func(f *follower) bool) {
		t.Helper()
		for _, f := range nodes {
			wait.For(t, what, func() bool { f.Report(); return is(f) })
		}
	}
	same := func(when string) {
		t.Helper()
		for _, f := range nodes {
			if got := f.Replicas(); got != 2 {
				t.Errorf("%s: %d replicas, want 2", when, got)
			}
		}
	}
	report("the other", func(f *follower) bool { return f.Replicas() == 2 })
	server.Kill(t)
	report("that they cannot be counted", func(f *follower) bool { return f.CountProblem() != "" })
	same("without the database")
	server.Restart(t)
	report("that they can be counted", func(f *follower) bool { return f.CountProblem() == "" })
	same("with the database")
	wait.Nil(t, "the loss of all reports", func() error {
		_, err := c.Database().Write.ExecContext(t.Context(), "DELETE FROM stint_nodes")
		return err
	})
	report("a new report", func(f *follower) bool {
		all, err := c.Nodes(t.Context(), time.Hour)
		return err == nil && slices.ContainsFunc(all, func(n catalog.NodeInfo) bool { return n.ID == f.ID() })
	})
	same("without the reports from before")
}
