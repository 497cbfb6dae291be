package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/alert"
	"github.com/stintdev/stint/rule"
)

// alerts is what evaluates alerts, and tells people of them.
type alerts struct {
	store  *alert.Store
	runner *alert.Runner
	source *alertSource
	node   string // this one, by a name that no other has
	about  atomic.Pointer[aboutRules]
	// definitions are those of the database or of the file.
	definitions func(context.Context) (alert.Definitions, error)
	bounds      passedBounds
}

// aboutRules are the rules that alerts are about.
type aboutRules struct {
	all   bool
	names map[string]bool
}

// alertClock is the time by which alerts are evaluated.
type alertClock struct {
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

// alertsAbout reports whether an alert is about what a rule denies.
func (d *Daemon) alertsAbout(rule string) bool {
	about := d.alerts.about.Load()
	return about != nil && (about.all || about.names[rule])
}

// denials is who was denied: by the record or, without one, by what this node has counted. It is not whole if some of it is not known
// yet. At most so many are returned, the most often denied first.
type denials func(ctx context.Context, from, to time.Time, by, rule string, than int64, most int) (clients []deniedClient, whole bool, err error)

type deniedClient struct {
	name   string
	denied int64
}

// alertSource finds what alerts are about.
type alertSource struct {
	store   *alert.Store
	rules   func() *rule.Set
	denials denials // nil: decisions are not recorded
	nodes   func(context.Context) ([]admin.Node, error)
	life    time.Duration // how long after its last report a node is missing

	mu     sync.Mutex
	looked map[string]lookedAt // by alert
}

// lookedAt is the end of the minutes that were looked at for an alert, as it was then.
type lookedAt struct {
	as string
	to time.Time
}

var _ alert.Source = (*alertSource)(nil)

// countedAfter is how long after its end a minute is counted, usually.
const countedAfter = 20 * time.Second

// Look implements [alert.Source].
func (s *alertSource) Look(ctx context.Context, a *alert.Alert, now time.Time) (alert.Seen, error) {
	if a.Kind == alert.KindHealth {
		all, err := s.nodes(ctx)
		if err != nil {
			return alert.Seen{}, err
		}
		return alert.Seen{Known: true, Findings: healthFindings(a, all, now, s.life), Over: givenUp(all)}, nil
	}
	if a.Kind == alert.KindRollout {
		return alert.Seen{Known: true, Findings: rolloutFindings(a, s.rules())}, nil
	}
	if s.denials == nil && a.Kind == alert.KindClient {
		return alert.Seen{}, errors.New("decisions are not recorded: want server.record.enabled")
	}
	to := now.Add(-countedAfter).Truncate(time.Minute)
	s.mu.Lock()
	defer s.mu.Unlock()
	at := lookedAt{fmt.Sprintf("%+v", *a), to}
	if s.looked[a.Name] == at {
		return alert.Seen{}, nil // there is nothing new
	}
	look := s.lookRules
	if a.Kind == alert.KindClient {
		look = s.lookClients
	}
	found, whole, err := look(ctx, a, to)
	if err != nil || !whole {
		return alert.Seen{}, err
	}
	if s.looked == nil || len(s.looked) > 10_000 { // of alerts that are gone
		s.looked = map[string]lookedAt{}
	}
	s.looked[a.Name] = at
	return alert.Seen{Known: true, Findings: found}, nil
}

// lookRules finds the rules that have denied too much in the last minute, and for how many minutes in a row.
func (s *alertSource) lookRules(ctx context.Context, a *alert.Alert, to time.Time) (out []alert.Finding, whole bool, err error) {
	from := to.Add(-a.Lasts())
	minutes, err := s.store.Minutes(ctx, from, to, a.Rule)
	for _, name := range slices.Sorted(maps.Keys(minutes)) {
		run := 0
		var all alert.Minute
		for _, m := range slices.Backward(minutes[name]) {
			if m.Requests < a.Least() || 100*float64(m.Denied) <= a.Percent*float64(m.Requests) {
				break
			}
			run++
			all.Requests, all.Denied = all.Requests+m.Requests, all.Denied+m.Denied
		}
		if run == 0 {
			continue
		}
		percent := 100 * float64(all.Denied) / float64(all.Requests)
		out = append(out, alert.Finding{
			Subject: name, Value: percent, Since: to.Add(-time.Duration(run) * time.Minute), Ripe: run == len(minutes[name]),
			Text: fmt.Sprintf("the rule %s denied %.1f %% of %d requests in %s, more than %g %%", name, percent, all.Requests, minutesOf(run), a.Percent),
		})
	}
	return out, true, err
}

func minutesOf(n int) string {
	if n == 1 {
		return "one minute"
	}
	return fmt.Sprintf("%d minutes", n)
}

// lookClients finds the clients that were denied too often.
func (s *alertSource) lookClients(ctx context.Context, a *alert.Alert, to time.Time) (out []alert.Finding, whole bool, err error) {
	window := a.Window()
	some, whole, err := s.denials(ctx, to.Add(-window), to, a.Clients(), a.Rule, a.Denials, 10*alert.MaxCauses)
	by := ""
	if a.Rule != "" {
		by = " by the rule " + a.Rule
	}
	word := map[string]string{"user": "the user", "tenant": "the tenant", "key": "the API key", "ip": "the address"}[a.Clients()]
	for _, c := range some {
		out = append(out, alert.Finding{
			Subject: a.Clients() + ":" + c.name, Value: float64(c.denied), Ripe: true,
			Text: fmt.Sprintf("%s %s was denied %d times%s in %s, more than %d times", word, c.name, c.denied, by, minutesOf(int(window/time.Minute)), a.Denials),
		})
	}
	return out, whole, err
}

// countMinutes writes what rules decide, minute by minute, if alerts are about that, and what those decide that are taken back if they
// deny too much. Events would not do: of requests that pass they
// are a sample. What cannot be written is written later.
func (d *Daemon) countMinutes(ctx context.Context) {
	type counted struct {
		start time.Time
		rules map[string]alert.Minute
	}
	var waiting []counted
	before, watched := d.metrics.decided(), d.engine.Watched()
	minute := d.clock.minute
	if minute == nil {
		minute = thisMinute
	}
	for {
		start, ok := minute(ctx)
		if !ok {
			return
		}
		after := d.metrics.decided()
		rules := map[string]alert.Minute{}
		for name, n := range after {
			n.Requests, n.Denied = n.Requests-before[name].Requests, n.Denied-before[name].Denied
			if n.Requests > 0 && d.alertsAbout(name) {
				rules[name] = n
			}
		}
		watchedNow := d.engine.Watched()
		watchedSince(watched, watchedNow, rules)
		before, watched = after, watchedNow
		const most = 60
		if waiting = append(waiting, counted{start, rules}); len(waiting) > most {
			waiting = waiting[1:]
		}
		for len(waiting) > 0 {
			if len(waiting[0].rules) > 0 && d.alerts.store.AddMinute(ctx, d.alerts.node, waiting[0].start, waiting[0].rules) != nil {
				break
			}
			waiting = waiting[1:]
		}
	}
}

// healthFindings finds what is wrong with the nodes. Nodes that say the same of their store are one finding.
func healthFindings(a *alert.Alert, all []admin.Node, now time.Time, life time.Duration) (out []alert.Finding) {
	add := func(condition, subject, text string) {
		if a.Watches(condition) {
			out = append(out, alert.Finding{Subject: strings.TrimSpace(condition + " " + subject), Text: text})
		}
	}
	latest := map[string]time.Time{} // by name: a node that was started again is not missing
	for i := range all {
		if n := &all[i]; latest[n.Name].Before(n.Seen) {
			latest[n.Name] = n.Seen
		}
	}
	type store struct{ away, nodes []string }
	stores := map[string]*store{} // by region
	why := map[string]string{}
	for i := range all {
		n := &all[i]
		if now.Sub(n.Seen) > life && !n.Self {
			if n.Seen.Equal(latest[n.Name]) {
				add(alert.NodeMissing, n.Name, fmt.Sprintf("the node %s has not reported since %s, and did not say that it leaves", n.Name, n.Seen.UTC().Format(time.RFC3339)))
			}
			continue
		}
		if n.State == nil {
			continue
		}
		st := stores[n.State.Region]
		if st == nil {
			st = new(store)
			stores[n.State.Region] = st
		}
		st.nodes = append(st.nodes, n.Name)
		for _, c := range n.State.Checks {
			switch {
			case c.Status == healthy:
			case c.Name == "counters":
				st.away = append(st.away, n.Name)
				why[n.State.Region] = cmp.Or(why[n.State.Region], c.Detail)
			case c.Name == "daemon": // it starts or stops
			default:
				add(alert.Unhealthy, n.Name+" "+c.Name, fmt.Sprintf("the node %s is not healthy: %s: %s", n.Name, c.Name, c.Detail))
			}
		}
		for _, p := range n.State.Passed {
			add(alert.BoundPassed, p.Limit, fmt.Sprintf("the node %s has seen more units beyond the limit %s than its credit of regions allows: %d, and the bound is %d", n.Name, p.Limit, p.Units, p.Bound))
		}
	}
	for _, region := range slices.Sorted(maps.Keys(stores)) {
		if st := stores[region]; len(st.away) > 0 {
			in := ""
			if region != "" {
				in = " of region " + region
			}
			add(alert.StoreAway, region, fmt.Sprintf("%d of %d nodes%s get too few decisions from Redis (%s): %s", len(st.away), len(st.nodes), in, strings.Join(shorten(slices.Compact(slices.Sorted(slices.Values(st.away)))), ", "), why[region]))
		}
	}
	return merged(out)
}

// givenUp says of missing nodes that none of the nodes has their name: they have not come back, and are forgotten after a day.
func givenUp(all []admin.Node) func(subject string) string {
	return func(subject string) string {
		name, missing := strings.CutPrefix(subject, alert.NodeMissing+" ")
		if !missing || slices.ContainsFunc(all, func(n admin.Node) bool { return n.Name == name }) {
			return ""
		}
		return "it has not come back for a day, and is given up"
	}
}

// merged leaves one finding of each subject: several nodes may have the same name, or find the same.
func merged(all []alert.Finding) (out []alert.Finding) {
	for _, f := range all {
		if !slices.ContainsFunc(out, func(o alert.Finding) bool { return o.Subject == f.Subject }) {
			out = append(out, f)
		}
	}
	return out
}

// passedBounds remembers when more was last admitted than a bound allows: what nodes count does not fall again.
type passedBounds struct {
	mu   sync.Mutex
	most map[string]passedAt
}

type passedAt struct {
	units int64
	at    time.Time
}

// passedFor is how long it is reported.
const passedFor = 10 * time.Minute

// passed returns the bounds that were passed within the last minutes.
func (d *Daemon) passed() (out []admin.Passed) {
	b := &d.alerts.bounds
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if d.regional == nil {
		return nil
	}
	for _, l := range d.regional.gossip.Stats().Limits {
		if l.Beyond <= l.Bound {
			continue
		}
		if b.most == nil {
			b.most = map[string]passedAt{}
		}
		if last := b.most[l.Limit]; l.Beyond > last.units && len(b.most) < 2*maxPassed {
			b.most[l.Limit] = passedAt{l.Beyond, now}
		}
		if now.Sub(b.most[l.Limit].at) < passedFor && len(out) < maxPassed {
			out = append(out, admin.Passed{Limit: l.Limit, Units: l.Beyond, Bound: l.Bound})
		}
	}
	return out
}

// maxPassed is how many passed bounds a node reports.
const maxPassed = 50

// alertsProblem describes why alerts are not evaluated, or not told.
func (d *Daemon) alertsProblem() string {
	const late = time.Minute
	if d.alerts.runner == nil {
		return "" // it is being built
	}
	s, err := d.alerts.runner.State()
	switch {
	case err != nil:
		return "alerts are not evaluated: " + err.Error()
	case s.Problem != "":
		return s.Problem
	case !s.Evaluated.IsZero() && s.Now.Sub(s.Evaluated) > late:
		return "alerts have not been evaluated since " + s.Evaluated.UTC().Format(time.RFC3339)
	}
	return ""
}

// firing returns how many causes of alerts fire.
func (d *Daemon) firing() int {
	if d.alerts.runner == nil {
		return 0
	}
	s, _ := d.alerts.runner.State()
	return s.Firing
}

// collect collects the metrics of alerts.
func (a *alerts) collect(gauge, total func(name string, n float64, labels ...string)) {
	s, err := a.runner.State()
	if err == nil {
		gauge("stint_alerts_firing", float64(s.Firing))
		gauge("stint_alert_messages", float64(s.Waiting), "waiting")
		gauge("stint_alert_messages", float64(s.Dead), "dead")
		if !s.Evaluated.IsZero() {
			gauge("stint_alerts_evaluated_timestamp_seconds", float64(s.Evaluated.UnixMicro())/1e6)
		}
	}
	delivered, failed, dead := a.runner.Counts()
	total("stint_alert_deliveries_total", float64(delivered), "delivered")
	total("stint_alert_deliveries_total", float64(failed), "failed")
	total("stint_alert_deliveries_total", float64(dead), "dead")
}
