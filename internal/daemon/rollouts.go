package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/alert"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

// systemActor is who takes rollouts back, in the log of changes.
const systemActor = "stint"

// checkRolloutStarts returns a problem for each rollout that does not say when it starts, if there is no database that could say it.
func (c *Config) checkRolloutStarts() rule.Problems {
	if c.Server.Database != "" {
		return nil
	}
	return c.CheckStarts(time.Now())
}

// checkRollouts takes back what has denied too much in the last whole minute. Of the nodes of a database, the one that evaluates
// alerts calls it, and the others follow the change; without a database, each node does for itself.
func (d *Daemon) checkRollouts(ctx context.Context, now time.Time) error {
	if len(d.engine.Watched()) == 0 {
		return nil
	}
	to := now.Add(-countedAfter).Truncate(time.Minute)
	from := to.Add(-time.Minute)
	minutes, err := d.alerts.store.Rolled(ctx, from, to)
	for name, m := range minutes {
		judge := func(o *rule.Rollout, changed time.Time) *rule.Rollout {
			// What was decided before the last change says nothing about the rule as it is.
			if o == nil || o.Stopped != nil || changed.After(from) || !o.BackIf.Passed(m.Requests, m.Denied) {
				return nil
			}
			return o.Stop(now, 0, fmt.Sprintf("it denied %.1f %% of %d requests in the minute of %s, more than %v",
				100*float64(m.Denied)/float64(m.Requests), m.Requests, from.UTC().Format("15:04"), rule.Percent(o.BackIf)))
		}
		back, failed := d.takeBack(ctx, name, judge)
		if err = errors.Join(err, failed); back != nil {
			d.log.WarnContext(ctx, "rollout taken back", "rule", name, "reason", back.Stopped.Reason)
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

// watchedSince returns what rules that are rolled out have decided since a former count, as minutes of alerts.
func watchedSince(before, now map[string]engine.Watched, into map[string]alert.Minute) {
	for name, n := range now {
		was := before[name]
		if n.Requests < was.Requests {
			was = engine.Watched{} // it was not watched meanwhile
		}
		if n.Requests > was.Requests {
			into[alert.RolledOut(name)] = alert.Minute{Requests: int64(n.Requests - was.Requests), Denied: int64(n.Denied - was.Denied)}
		}
	}
}

// rolloutFindings finds the rollouts that were taken back, and have neither gone on nor been replaced.
func rolloutFindings(a *alert.Alert, rules *rule.Set) (out []alert.Finding) {
	for _, r := range rules.Rules() {
		o := r.Rollout()
		if !r.Enabled || o == nil || o.Stopped == nil || o.Stopped.Share != 0 || a.Rule != "" && a.Rule != r.Name {
			continue
		}
		text := fmt.Sprintf("the rollout of the rule %s was taken back", r.Name)
		if o.Stopped.Reason != "" {
			text += ": " + o.Stopped.Reason
		}
		out = append(out, alert.Finding{Subject: r.Name, Text: text, Since: o.Stopped.At.Time, Ripe: true})
	}
	return out
}
