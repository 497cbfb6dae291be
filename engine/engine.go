// Package engine takes a request to a verdict: who is asking, which rules apply,
// what the counters say, and why.
//
//	verdict, err := e.Decide(ctx, engine.Request{Method: "GET", Path: "/search", Peer: addr, Headers: h})
//
// A decision reads the clock once, resolves an identity, matches the rules, and makes
// one take for all limits of all rules; if there is a [Recorder] it reads the clock
// again, and tells it. Only what a rule asks for beyond that costs more: to be held
// (throttle), or to be tried out (log_only, a take for each such rule that applies,
// after the request has passed).
//
// # What holds
//
//   - Every rule that applies must let the request pass; what is refused is charged
//     to no one.
//   - A block and a ban win over everything, an exemption over all limits. Between a
//     rule that blocks and one that allows, the lower priority decides, and on equal
//     terms the block.
//   - The limit that is named is the one that matters: of those that deny, the one
//     that takes longest; otherwise the one of which the smallest share is left.
//   - Rules and identity are replaced at one instant. A request sees the old or the
//     new, never both.
//   - Requests that are held are counted, and no more are held than allowed.
//
// # What it refuses to do
//
// It speaks no protocol: what a verdict looks like to a client is for doors to say.
// It holds no counters; these are a [stint.Store]'s.
package engine

import (
	"context"
	"errors"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/rule"
)

// Request is a request, as far as it matters to whether it may pass.
type Request struct {
	Method string
	Path   string // as it came; a query is ignored
	// Headers have canonical names, as http.Header has.
	Headers map[string][]string
	// Peer is the other end of the connection.
	Peer netip.Addr
	// Subject, if it is not nil, is who is asking, on the word of a caller that is
	// trusted to know: User, Tenant, Key, Tier and IP, any of them. Otherwise it is
	// found out from the headers and the peer.
	Subject *identity.Subject
	// Cost, if it is not 0, is what the request costs, whatever rules say.
	Cost int64
}

// Options are an engine's settings. Store and Rules are required.
type Options struct {
	// Store is where to count. It is not closed with the engine. One that has no
	// [layer.FailMode] around it is given one: what becomes of requests while it is out of
	// reach is for rules to say.
	Store stint.Store
	Rules *rule.Set
	// Identity tells who is asking. Default: the address of the peer.
	Identity *identity.Resolver
	// Recorder is told every verdict. Nil: no one is.
	Recorder Recorder
	// MaxWaiting is how many requests may be held at once, and a sixteenth of it how
	// many of one client; further ones are refused rather than held. Default 10,000.
	MaxWaiting int
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Engine decides. It may be used by many goroutines at once.
type Engine struct {
	store    stint.Store
	recorder Recorder
	now      func() time.Time
	since    func(time.Time) time.Duration

	current atomic.Pointer[setup]
	bans    bans
	waits   waits
	work    sync.Pool
}

// setup is what is replaced as one.
type setup struct {
	rules    *rule.Set
	identity *identity.Resolver
}

// New returns an engine.
func New(o Options) (*Engine, error) {
	if o.MaxWaiting == 0 {
		o.MaxWaiting = 10_000
	}
	since := func(t time.Time) time.Duration { return o.Now().Sub(t) }
	if o.Now == nil {
		o.Now, since = time.Now, time.Since // which is half the price
	}
	switch {
	case o.Store == nil:
		return nil, invalid("Store", "nil", "a store, such as memstore.New returns")
	case o.MaxWaiting < 0:
		return nil, invalid("MaxWaiting", strconv.Itoa(o.MaxWaiting), "1 or more, or 0 for the default")
	}
	store := o.Store
	if layer.PlaceOf(store) < layer.PlaceFailMode {
		var err error
		if store, err = layer.FailMode(store, layer.FailModeOptions{}); err != nil {
			return nil, err
		}
	}
	if o.Identity == nil {
		who, err := identity.New(identity.Options{})
		if err != nil {
			return nil, err
		}
		o.Identity = who
	}
	e := &Engine{store: store, recorder: o.Recorder, waits: newWaits(o.MaxWaiting), now: o.Now, since: since}
	e.work.New = func() any { return &work{event: new(Event)} }
	if err := e.Use(o.Rules, o.Identity); err != nil {
		return nil, err
	}
	return e, nil
}

func invalid(field, value, want string) error {
	return &stint.InvalidError{Field: field, Value: value, Want: want}
}

// Use replaces rules and identity, at one instant, while requests are decided.
// Those that have begun end with what they began with: the old resolver can be
// closed, but has to go on working for them.
func (e *Engine) Use(rules *rule.Set, who *identity.Resolver) error {
	if rules == nil {
		return invalid("Rules", "nil", "what rule.Compile returns")
	}
	if who == nil {
		return invalid("Identity", "nil", "what identity.New returns")
	}
	e.current.Store(&setup{rules: rules, identity: who})
	return nil
}

// Rules returns the rules in use.
func (e *Engine) Rules() *rule.Set { return e.current.Load().rules }

// Waiting is how many requests are held now.
func (e *Engine) Waiting() int { return int(e.waits.all.Load()) }

// work is what a decision needs on its way. It is used again and again.
type work struct {
	now   time.Time
	setup *setup
	who   identity.Request
	// refused is why the credentials were. Such a request is no one's, and rules that
	// count by address count it: or guessing would be free.
	refused *identity.RefusedError
	client  client
	attrs   rule.Attrs
	hits    []rule.Hit
	step    Step
	ds      []stint.Decision // about the step's asks
	text    []byte
	// event is for a recorder: what it is shown would be allocated each time. It stays until
	// the next, or until the pool lets go of it.
	event *Event
}

func (e *Engine) begin(now time.Time) *work {
	w := e.work.Get().(*work)
	w.now, w.setup = now, e.current.Load()
	return w
}

// end lets go of what belongs to the request.
func (e *Engine) end(w *work) {
	clear(w.hits)
	clear(w.step.Asks)
	const maxText = 64 << 10 // a client's making
	if cap(w.text) > maxText {
		w.text = nil
	}
	*w = work{hits: w.hits[:0], step: Step{Asks: w.step.Asks[:0]}, ds: w.ds[:0], text: w.text[:0], event: w.event}
	e.work.Put(w)
}

// Decide decides whether the request may pass, and holds it as long as it has to
// wait for that. An error means that it could not be decided: the context has
// ended, the directory cannot tell about a key, or something is wrong with a
// counter. That a store is out of reach is not an error: rules say what then.
func (e *Engine) Decide(ctx context.Context, q Request) (v Verdict, err error) {
	err = e.answer(ctx, &q, &v, false)
	return v, err
}

// DecideInto is Decide for those who have room for the verdict. What v was is overwritten, and
// so are the limits that v.Limits has room for, which copies of it share. After an error it is
// zero. The request must not point into it.
func (e *Engine) DecideInto(ctx context.Context, q *Request, v *Verdict) error {
	return e.answer(ctx, q, v, false)
}

// Peek tells what Decide would, and changes nothing. It holds no one, and its
// RetryAfter is not exact: the request passes then at the latest.
func (e *Engine) Peek(ctx context.Context, q Request) (v Verdict, err error) {
	err = e.answer(ctx, &q, &v, true)
	return v, err
}

func (e *Engine) answer(ctx context.Context, q *Request, v *Verdict, peek bool) error {
	limits := v.Limits[:0]
	if q.Cost < 0 {
		*v = Verdict{}
		return invalid("cost", strconv.FormatInt(q.Cost, 10), "1 or more, or 0 for what rules say")
	}
	now := e.now()
	*v = Verdict{ID: NewID(now), At: now, Limits: limits}
	w := e.begin(now)
	defer e.end(w)
	if err := e.decide(ctx, q, w, v, peek); err != nil {
		*v = Verdict{}
		return err
	}
	if e.recorder != nil && !peek {
		v.tell(w.event, e.since(now))
		e.recorder.Record(w.event)
	}
	return nil
}

func (e *Engine) decide(ctx context.Context, q *Request, w *work, v *Verdict, peek bool) error {
	if done, err := e.identify(ctx, q, w, v); done || err != nil {
		return err
	}
	w.hits = w.setup.rules.Match(w.hits, &w.attrs)
	if !decided(w.hits, v) {
		enforced := partition(w.hits)
		if err := e.enforce(ctx, w, v, enforced, peek); err != nil {
			return err
		}
		if v.Outcome.Passed() && w.refused == nil {
			e.tryOut(ctx, w, v, w.hits[enforced:], peek)
		}
	}
	if v.Outcome.Passed() && w.refused != nil {
		v.Outcome, v.Status, v.Reason, v.Rule = Unauthorized, 401, w.refused.Error(), nil
	}
	return nil
}

// identify tells who is asking, and reports whether that decides.
func (e *Engine) identify(ctx context.Context, q *Request, w *work, v *Verdict) (done bool, err error) {
	s := &v.Subject
	if q.Subject != nil {
		*s = *q.Subject
		err = w.setup.identity.Describe(ctx, w.now, s)
	} else {
		w.who = identity.Request{Peer: q.Peer, Headers: q.Headers}
		err = w.setup.identity.Resolve(ctx, &w.who, w.now, s)
	}
	if err != nil {
		if !errors.As(err, &w.refused) {
			return true, err
		}
		s.Unaccepted = w.refused.Reason
	}
	if s.Banned == nil {
		s.Banned = e.bans.find(s, w.now)
	}
	switch {
	case s.Banned != nil:
		v.ban(s.Banned)
		return true, nil
	case s.Exempt != nil:
		v.Outcome, v.Reason = Exempt, s.Exempt.Reason
		return true, nil
	}
	w.client = clientOf(s)
	v.Method = w.setup.rules.Method(q.Method)
	w.attrs = rule.Attrs{
		Method: v.Method, Path: q.Path, Headers: q.Headers, Trusted: s.Trusted || q.Subject != nil,
		IP: s.IP, Net: s.Net, User: s.User, Tenant: s.Tenant, APIKey: s.Key, Tier: s.Tier, Claims: s.Claims,
		KeyLimits: s.KeyLimits, UserLimits: s.UserLimits, Cost: q.Cost,
	}
	return false, nil
}
