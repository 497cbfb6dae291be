package main

import (
	"context"
	"fmt"
	"time"

	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/redisstore"
	redisdoctor "github.com/stintdev/stint/redisstore/doctor"
)

var severities = map[redisdoctor.Severity]string{redisdoctor.OK: findOK, redisdoctor.Info: findOK, redisdoctor.Warning: findWarn, redisdoctor.Problem: findFail}

const inMemory = "memory:" // server.counters of a node by itself

// counters checks Redis.
func (d *doctor) counters(ctx context.Context, c *daemon.Config) {
	if c.Server.Counters == inMemory {
		d.note("counters", findOK, "each node has its own, in memory, and loses them when it stops", "")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	s, err := redisstore.Open(string(c.Server.Counters), redisstore.Options{})
	if err != nil {
		d.note("counters", findFail, "server.counters: "+err.Error(), "a URL such as redis://localhost:6379; docs/redis-url.md describes all forms")
		return
	}
	defer s.Close()
	found, err := redisdoctor.Examine(ctx, s)
	if err != nil {
		d.note("counters", findFail, err.Error(), "make sure that Redis is running and can be reached from this machine: "+c.Server.Counters.String())
		return
	}
	for _, f := range found {
		text := f.Found
		if f.Server != "" {
			text = f.Server + ": " + text
		}
		d.note("counters."+f.Check, severities[f.Severity], text, f.Advice)
	}
	d.budget(ctx, s, time.Duration(c.Server.StoreBudget))
}

// budget checks that each Redis server decides in time. The fastest of several decisions counts, since
// this machine may be busy.
func (d *doctor) budget(ctx context.Context, s *redisstore.Store, budget time.Duration) {
	for _, server := range s.Servers() {
		var best time.Duration
		for range 5 {
			start := time.Now()
			if s.PingServer(ctx, server) != nil {
				best = 0 // counters.script says why
				break
			}
			if took := time.Since(start); best == 0 || took < best {
				best = took
			}
		}
		switch {
		case best == 0:
		case best > budget:
			d.note("counters.budget", findFail, fmt.Sprintf("%s: a decision takes %v, more than server.store_budget (%v): nodes decide on their own", server, best.Round(time.Millisecond), budget),
				"find out what makes Redis or the network slow, or set server.store_budget to what clients can wait for")
		default:
			d.note("counters.budget", findOK, fmt.Sprintf("%s: a decision takes %v; server.store_budget is %v", server, best.Round(10*time.Microsecond), budget), "")
		}
	}
}
