package alert

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// Source tells whether conditions hold.
type Source interface {
	// Look returns what it finds for an alert. What it does not know is not an error.
	Look(ctx context.Context, a *Alert, now time.Time) (Seen, error)
}

// Definitions are all alerts and webhooks, with their secrets.
type Definitions struct {
	Alerts   []Alert
	Webhooks []Webhook
}

// Options are the options of [NewRunner].
type Options struct {
	Store       *Store
	Node        string // a name that no other node has
	Version     string // of the program, for receivers
	Definitions func(context.Context) (Definitions, error)
	Source      Source
	// Turn, if not nil, is called before alerts are evaluated, while this node has the turn.
	Turn func(ctx context.Context, now time.Time) error
	Log  *slog.Logger // required
	// Interval is how often it evaluates alerts. Default 5 s.
	Interval time.Duration
	// Transport is how messages are sent. Default: that of package http, without the connections of others.
	Transport http.RoundTripper
}

// Runner evaluates alerts and delivers messages, while its node has the turn.
type Runner struct {
	o      Options
	client *http.Client
	wake   chan struct{} // of capacity 1: there may be something to deliver

	mu      sync.Mutex
	state   State
	failed  error // why the state is not known
	busy    map[string]bool
	cleaned time.Time

	counts [3]atomic.Uint64 // attempts that delivered, failed, and made a dead letter

	cancel context.CancelFunc
	work   sync.WaitGroup
}

// NewRunner returns a runner. Start it.
func NewRunner(o Options) (*Runner, error) {
	if o.Store == nil || o.Definitions == nil || o.Source == nil || o.Log == nil || o.Node == "" {
		return nil, errors.New("alert: want a Store, a Node, Definitions, a Source and a Log")
	}
	if o.Interval < 0 {
		return nil, &stint.InvalidError{Field: "Interval", Value: o.Interval.String(), Want: "some time, or 0 for the default"}
	}
	o.Interval = cmp.Or(o.Interval, 5*time.Second)
	return &Runner{o: o, client: newClient(o.Transport), wake: make(chan struct{}, 1), busy: map[string]bool{}}, nil
}

// Start evaluates until Stop is called.
func (r *Runner) Start(ctx context.Context) {
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	r.work.Go(func() {
		tick := time.NewTicker(r.o.Interval)
		defer tick.Stop()
		for {
			r.evaluate(ctx)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	r.work.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			case <-r.wake:
			}
			if r.leads() {
				r.deliver(ctx)
			}
		}
	})
}

// Stop stops, and gives the turn to another node.
func (r *Runner) Stop(ctx context.Context) {
	if r.cancel == nil {
		return
	}
	r.cancel()
	r.work.Wait()
	r.client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = r.o.Store.leave(ctx, r.o.Node) // or it ends by itself
}

// Wake looks at once for something to deliver.
func (r *Runner) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// State returns how evaluation went when this node last looked, and why that is not known.
func (r *Runner) State() (State, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state, r.failed
}

// Counts returns how many attempts to deliver this node has made: those that delivered, those that failed, and those of
// them after which a message was given up.
func (r *Runner) Counts() (delivered, failed, dead uint64) {
	return r.counts[0].Load(), r.counts[1].Load(), r.counts[2].Load()
}

func (r *Runner) leads() bool {
	s, err := r.State()
	return err == nil && s.Node == r.o.Node
}

// evaluate evaluates all alerts, if this node has the turn, and notes the state.
func (r *Runner) evaluate(ctx context.Context) {
	const limit = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := r.evaluateAll(ctx)
	var s State
	if err == nil {
		s, err = r.o.Store.State(ctx)
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	r.mu.Lock()
	before := r.failed
	if r.failed = err; err == nil {
		r.state = s
	}
	r.mu.Unlock()
	switch {
	case err != nil && before == nil:
		r.o.Log.WarnContext(ctx, "alerts cannot be evaluated", "problem", err.Error())
	case err == nil && before != nil:
		r.o.Log.InfoContext(ctx, "alerts are evaluated again")
	}
	if err == nil && s.Waiting > 0 {
		r.Wake()
	}
}

func (r *Runner) evaluateAll(ctx context.Context) error {
	s := r.o.Store
	tx, now, err := s.take(ctx, r.o.Node)
	if err != nil || tx == nil {
		return s.wrap("take the turn", err)
	}
	if err := tx.Commit(); err != nil {
		return s.wrap("take the turn", err)
	}
	all, err := r.o.Definitions(ctx)
	if err != nil {
		return fmt.Errorf("alerts: read definitions: %w", err)
	}
	problem := ""
	if r.o.Turn != nil {
		if err := r.o.Turn(ctx, now); err != nil {
			problem = "rollouts cannot be checked: " + err.Error()
		}
	}
	seen, unknown := r.look(ctx, all.Alerts, now)
	problem = cmp.Or(problem, unknown)
	if tx, now, err = s.take(ctx, r.o.Node); err != nil || tx == nil {
		return s.wrap("take the turn", err) // looking took so long that another node has it
	}
	defer tx.Rollback() //nolint:errcheck // after a commit there is nothing to undo
	causes, err := s.load(ctx, tx, now)
	if err != nil {
		return s.wrap("read causes", err)
	}
	silences, err := s.silences(ctx, tx, now)
	if err != nil {
		return s.wrap("read silences", err)
	}
	exists, renewed := map[string]bool{}, map[string]bool{}
	for i := range all.Webhooks {
		w := &all.Webhooks[i]
		exists[w.Name], renewed[w.Name] = true, w.Style() == FormatAlertmanager
	}
	defined := map[string]*Alert{}
	for i := range all.Alerts {
		if a := &all.Alerts[i]; a.On() {
			defined[a.Name] = a
			if causes[a.Name] == nil {
				causes[a.Name] = []*Cause{}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(causes)) {
		after, messages := Step(now, defined[name], seen[name], causes[name], silences, renewed)
		if err := s.save(ctx, tx, after); err != nil {
			return s.wrap("write causes", err)
		}
		if err := s.enqueue(ctx, tx, now, messages, exists); err != nil {
			return s.wrap("write messages", err)
		}
	}
	if now.Sub(r.cleaned).Abs() > time.Minute {
		if err := s.clean(ctx, tx, now, names(all.Webhooks)); err != nil {
			return s.wrap("delete what is old", err)
		}
		r.cleaned = now
	}
	evaluated := "evaluated_at"
	if problem == "" {
		evaluated = s.db.Now()
	}
	if _, err := tx.ExecContext(ctx, "UPDATE stint_alert_turn SET evaluated_at = "+evaluated+", problem = $1", problem); err != nil {
		return s.wrap("note the evaluation", err)
	}
	return s.wrap("write", tx.Commit())
}

// look asks the source about all alerts.
func (r *Runner) look(ctx context.Context, all []Alert, now time.Time) (seen map[string]Seen, problem string) {
	seen = map[string]Seen{}
	for i := range all {
		a := &all[i]
		if !a.On() {
			continue
		}
		found, err := r.o.Source.Look(ctx, a, now)
		if err != nil {
			if problem == "" {
				problem = fmt.Sprintf("the alert %q cannot be evaluated: %v", a.Name, err)
			}
			continue
		}
		seen[a.Name] = found
	}
	return seen, problem
}

// deliver begins to deliver what is due, with a goroutine for each webhook that is not busy.
func (r *Runner) deliver(ctx context.Context) {
	now, err := r.o.Store.Time(ctx)
	if err != nil {
		return // evaluation fails too, and says so
	}
	due, err := r.o.Store.heads(ctx, now)
	if err != nil || len(due) == 0 {
		return
	}
	all, err := r.o.Definitions(ctx)
	if err != nil {
		return
	}
	for name, some := range due {
		at := slices.IndexFunc(all.Webhooks, func(w Webhook) bool { return w.Name == name })
		if at < 0 {
			_ = r.o.Store.drop(ctx, name, now) // or at the next look
			continue
		}
		r.mu.Lock()
		busy := r.busy[name]
		r.busy[name] = true
		r.mu.Unlock()
		if busy {
			continue
		}
		w := all.Webhooks[at]
		r.work.Go(func() {
			defer func() {
				r.mu.Lock()
				delete(r.busy, name)
				r.mu.Unlock()
			}()
			r.deliverTo(ctx, &w, some)
		})
	}
}

// deliverTo delivers messages to one webhook, until one fails: the others would most likely fail too.
func (r *Runner) deliverTo(ctx context.Context, w *Webhook, some []Delivery) {
	for i := range some {
		d := &some[i]
		ok, err := r.o.Store.claim(ctx, r.o.Node, d)
		if err != nil || !ok {
			return
		}
		at, err := r.o.Store.Time(ctx)
		if err != nil {
			return
		}
		status, failed := post(ctx, r.client, w, d, at, r.o.Version)
		if failed != nil && ctx.Err() != nil {
			return // the claim ends by itself, and another node tries it again
		}
		state, err := r.settle(ctx, w, d, status, failed)
		if err != nil {
			r.o.Log.WarnContext(ctx, "the end of a delivery cannot be written, so it is repeated", "webhook", w.Name, "problem", err.Error())
			return
		}
		if failed == nil {
			r.counts[0].Add(1)
			continue
		}
		r.counts[1].Add(1)
		if state == Dead {
			r.counts[2].Add(1)
			r.o.Log.WarnContext(ctx, "a message was given up", "webhook", w.Name, "delivery", d.ID, "attempts", d.Attempts, "problem", failed.Error())
		}
		return
	}
	r.Wake() // the next messages about the same causes
}

// settle writes how an attempt ended, also if this node stops: the receiver has had it.
func (r *Runner) settle(ctx context.Context, w *Webhook, d *Delivery, status int, failed error) (state string, err error) {
	const limit = 2 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	at, err := r.o.Store.Time(ctx)
	if err != nil {
		return "", err
	}
	return r.o.Store.settle(ctx, d, at, w.Patience(), status, failed)
}
