package daemon

import (
	"context"
	"encoding/json"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/alert"
	"github.com/stintdev/stint/internal/kit/presence"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/rule"
)

// openAlerts builds what evaluates alerts. Their state is in the database or, if rules are in a file, in memory: then each node
// evaluates them for itself, and forgets their state when it stops.
func (d *Daemon) openAlerts() (err error) {
	// Roll-ups and heartbeats are those of all nodes. A roster knows how long a node may be silent.
	poll := time.Duration(d.config.Server.Catalog.Poll)
	a := &d.alerts
	a.source = &alertSource{nodes: d.knownNodes, rules: func() *rule.Set { return d.engine.Rules() }, life: presence.New(presence.Options{Interval: poll, Log: d.log}).Lifetime()}
	a.node = "this"
	definitions := d.fileDefinitions
	if c := d.control; c != nil {
		a.node, definitions = c.node.ID(), c.catalog.Definitions
		if c.record != nil {
			a.source.denials = recorded(c.record.store)
		}
	} else {
		a.source.denials = remembered(d.minutes)
	}
	a.store = alert.NewStore(d.operators.tokens.Database(), d.clock.now)
	a.source.store = a.store
	a.definitions = definitions
	a.runner, err = alert.NewRunner(alert.Options{
		Store: a.store, Node: a.node, Version: d.version, Definitions: definitions, Source: a.source, Log: d.log, Turn: d.checkRollouts,
	})
	return err
}

// fileDefinitions returns the definitions of the config file.
func (d *Daemon) fileDefinitions(context.Context) (alert.Definitions, error) {
	c := d.reloader.Config()
	return alert.Definitions{Alerts: c.Alerts, Webhooks: c.Webhooks}, nil
}

// followAlerts keeps what has to be counted for alerts, until ctx ends.
func (d *Daemon) followAlerts(ctx context.Context, definitions func(context.Context) (alert.Definitions, error)) {
	look := func() bool {
		all, err := definitions(ctx)
		if err != nil {
			return true // what was counted goes on
		}
		about, clients := &aboutRules{names: map[string]bool{}}, false
		for i := range all.Alerts {
			switch a := &all.Alerts[i]; {
			case !a.On():
			case a.Kind == alert.KindClient:
				clients = true
			case a.Kind == alert.KindRule:
				about.all = about.all || a.Rule == ""
				about.names[a.Rule] = true
			}
		}
		if d.minutes != nil {
			d.minutes.Turn(clients)
		}
		d.alerts.about.Store(about)
		return true
	}
	look()
	every(ctx, 5*time.Second, look)
}

// knownNodes returns the nodes that were seen within a day.
func (d *Daemon) knownNodes(ctx context.Context) ([]admin.Node, error) {
	self := admin.Node{Name: d.config.nodeName(), Seen: time.Now(), Self: true, State: new(d.nodeState())}
	if d.control == nil {
		return []admin.Node{self}, nil
	}
	all, err := d.control.catalog.Nodes(ctx, 24*time.Hour)
	if err != nil {
		return nil, err
	}
	out := []admin.Node{self}
	for i := range all {
		n := &all[i]
		if n.ID == d.control.node.ID() {
			out[0].Seen = n.Seen // by the clock of the database
			continue
		}
		one := admin.Node{ID: n.ID, Name: n.Name, Seen: n.Seen}
		var state admin.NodeState
		if n.State != nil && json.Unmarshal(n.State, &state) == nil {
			one.State = &state
		}
		out = append(out, one)
	}
	return out, nil
}

// recorded returns who was denied on all nodes, by the record.
func recorded(store *rollup.Store) denials {
	return func(ctx context.Context, from, to time.Time, by, rule string, than int64, most int) (out []deniedClient, whole bool, err error) {
		all, whole, err := store.DeniedMore(ctx, query.Range{From: from, To: to}, by, rule, than, most)
		for _, c := range all {
			out = append(out, deniedClient{c.Name, c.Denied})
		}
		return out, whole, err
	}
}

// remembered returns who was denied on this node.
func remembered(minutes *record.Minutes) denials {
	return func(_ context.Context, from, to time.Time, by, rule string, than int64, most int) (out []deniedClient, whole bool, err error) {
		all := minutes.DeniedMore(from, to, by, rule, than)
		for _, c := range all[:min(len(all), most)] {
			out = append(out, deniedClient{c.Name, c.Denied})
		}
		return out, true, nil
	}
}
