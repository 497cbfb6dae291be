package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/rollout"
	"github.com/stintdev/stint/rule"
)

// systemActor is who takes rollouts back, in the log of changes.
const systemActor = "stint"

// rolloutClock is the time by which rollouts are judged.
type rolloutClock struct {
	now    func() time.Time                                 // nil: the clock of the database
	minute func(context.Context) (start time.Time, ok bool) // returns at the end of a minute; nil: of the clock of this machine
}

// thisMinute returns at the end of this minute, unless ctx ends before.
func thisMinute(ctx context.Context) (start time.Time, ok bool) {
	now := time.Now()
	start = now.Truncate(time.Minute)
	select {
	case <-ctx.Done():
		return start, false
	case <-time.After(start.Add(time.Minute).Sub(now)):
		return start, true
	}
}

// checkRolloutStarts returns a problem for each rollout that does not say when it starts, if there is no database that could say it.
func (c *Config) checkRolloutStarts() rule.Problems {
	if c.Server.Database != "" {
		return nil
	}
	return c.CheckStarts(time.Now())
}

// countMinutes writes what rules that are rolled out decide, minute by minute. Events would not do: of requests that pass they are a
// sample. What cannot be written is written later.
func (d *Daemon) countMinutes(ctx context.Context) {
	type counted struct {
		start time.Time
		rules map[string]rollout.Minute
	}
	node, minute := "this", d.clock.minute
	if minute == nil {
		minute = thisMinute
	}
	if d.control != nil {
		node = d.control.node.ID()
	}
	var waiting []counted
	before := d.engine.Watched()
	for {
		start, ok := minute(ctx)
		if !ok {
			return
		}
		after := d.engine.Watched()
		if rules := watchedSince(before, after); len(rules) > 0 {
			waiting = append(waiting, counted{start, rules})
		}
		before = after
		const most = 60
		waiting = waiting[max(0, len(waiting)-most):]
		for len(waiting) > 0 && d.rollouts.Add(ctx, node, waiting[0].start, waiting[0].rules) == nil {
			waiting = waiting[1:]
		}
	}
}

// watchedSince returns what rules that are rolled out have decided since a former count.
func watchedSince(before, now map[string]engine.Watched) map[string]rollout.Minute {
	out := map[string]rollout.Minute{}
	for name, n := range now {
		was := before[name]
		if n.Requests < was.Requests {
			was = engine.Watched{} // it was not watched meanwhile
		}
		if n.Requests > was.Requests {
			out[name] = rollout.Minute{Requests: int64(n.Requests - was.Requests), Denied: int64(n.Denied - was.Denied)}
		}
	}
	return out
}

// countedAfter is how long after its end a minute is counted, usually.
const countedAfter = 20 * time.Second

// followRollouts judges rollouts until ctx ends.
func (d *Daemon) followRollouts(ctx context.Context) {
	failed := false
	every(ctx, 5*time.Second, func() bool {
		err := d.checkRollouts(ctx)
		if err != nil && !failed && ctx.Err() == nil {
			d.log.WarnContext(ctx, "rollouts cannot be checked", "problem", err.Error())
		}
		failed = err != nil
		return true
	})
}

// checkRollouts takes back what has denied too much in the last whole minute. All nodes of a database judge by the same figures and the
// same clock. One of them changes the rule, since the others find another version of it, and they follow the change. Without a
// database, each node does for itself.
func (d *Daemon) checkRollouts(ctx context.Context) error {
	if len(d.engine.Watched()) == 0 {
		return nil
	}
	now, err := d.rollouts.Time(ctx)
	if err != nil {
		return err
	}
	from := now.Add(-countedAfter).Truncate(time.Minute).Add(-time.Minute)
	minutes, err := d.rollouts.Sum(ctx, from)
	for _, r := range d.engine.Rules().Rules() {
		m := minutes[r.Name]
		judge := func(o *rule.Rollout, changed time.Time) *rule.Rollout {
			// What was decided before the last change says nothing about the rule as it is.
			if o == nil || o.Stopped != nil || changed.After(from) || !o.BackIf.Passed(m.Requests, m.Denied) {
				return nil
			}
			return o.Stop(now, 0, fmt.Sprintf("it denied %.1f %% of %d requests in the minute of %s, more than %v",
				100*float64(m.Denied)/float64(m.Requests), m.Requests, from.UTC().Format("15:04"), rule.Percent(o.BackIf)))
		}
		if judge(r.Rollout(), time.Time{}) == nil {
			continue // the rule itself need not be read
		}
		back, failed := d.takeBack(ctx, r.Name, judge)
		if err = errors.Join(err, failed); back != nil {
			d.log.WarnContext(ctx, "rollout taken back", "rule", r.Name, "reason", back.Stopped.Reason)
		}
	}
	return err
}

// takeBack replaces the rollout of a rule with what judge makes of it, unless that is nil.
func (d *Daemon) takeBack(ctx context.Context, name string, judge func(o *rule.Rollout, changed time.Time) *rule.Rollout) (*rule.Rollout, error) {
	if d.control == nil {
		return d.reloader.takeBack(name, judge)
	}
	rules := d.control.catalog.Rules
	r, err := rules.Get(ctx, name)
	if errors.As(err, new(*catalog.NotFoundError)) {
		return nil, nil // it was deleted
	}
	if err != nil {
		return nil, err
	}
	back := judge(r.Value.Rollout, r.Updated)
	if back == nil {
		return nil, nil
	}
	r.Value.Rollout = back
	if _, err = rules.Update(ctx, systemActor, r.Value, r.Version); err != nil {
		back = nil // if someone else has changed it, the next look says whether it still has to be taken back
	}
	if errors.As(err, new(*catalog.ConflictError)) {
		err = nil
	}
	return back, err
}

// takeBack replaces the rollout of a rule of the file, until the file is read again.
func (r *Reloader) takeBack(name string, judge func(o *rule.Rollout, changed time.Time) *rule.Rollout) (*rule.Rollout, error) {
	r.turn.Lock()
	defer r.turn.Unlock()
	i := slices.IndexFunc(r.config.Rules, func(one rule.Rule) bool { return one.Name == name })
	if i < 0 || r.closed {
		return nil, nil
	}
	back := judge(r.config.Rules[i].Rollout, r.Status().Loaded)
	if back == nil {
		return nil, nil
	}
	next := *r.config
	next.Rules = slices.Clone(next.Rules)
	next.Rules[i].Rollout = back
	rules, err := rule.Compile(next.File)
	if err == nil {
		err = r.engine.Use(rules, r.resolver.Load())
	}
	if err != nil {
		return nil, err
	}
	r.config = &next
	return back, nil
}
