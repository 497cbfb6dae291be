// Package engine decides requests: who is asking, which rules apply, what the counters say, and why.
//
//	verdict, err := e.Decide(ctx, engine.Request{Method: "GET", Path: "/search", Peer: addr, Headers: h})
//
// A decision reads the clock once, resolves an identity, matches the rules, and makes one take for all
// limits of all rules. With a [Recorder] it reads the clock again, and records an event. Only two
// actions cost more: throttle, which may hold the request, and log_only, which makes a take for each
// such rule after the request has passed. So does a rule that is in force for a part of clients, for the others.
//
// # Guarantees
//
//   - A request passes only if every rule that applies lets it pass. A denied request is not charged.
//   - A block or a ban overrides everything, and an exemption overrides all limits, but not a
//     refusal of credentials. A ban holds for every identity that a request presents. Between a rule that
//     blocks and one that allows, the lower priority decides. If both are equal, the request is blocked.
//   - The binding limit is the denying limit with the longest wait, or, if none denies, the one with
//     the smallest share left.
//   - Rules and identity are replaced atomically. A request sees the old or the new ones, never both.
//   - The number of requests that are held at once is bounded.
//
// # What it does not do
//
// It does not speak any protocol: the HTTP and gRPC packages translate verdicts for clients. It holds
// no counters: a [stint.Store] does.
package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/rule"
)

// Request is the part of a request that decisions depend on.
type Request struct {
	Method string
	Path   string // as received; a query is ignored
	// IgnoreCase says that the server of this request ignores the case of paths, whatever
	// the rules say.
	IgnoreCase bool
	// Headers have canonical names, as in http.Header.
	Headers map[string][]string
	// Peer is the remote address of the connection.
	Peer netip.Addr
	// Subject, if not nil, is who is asking: any of User, Tenant, Key, Tier and IP. The caller is
	// trusted, but the headers may be the client's: they set costs only if the peer is a trusted
	// proxy, or if Subject.Trusted is set. If nil, it is determined from the headers and the peer.
	Subject *identity.Subject
	// Cost, if not 0, overrides the costs in rules: if a rule that applies has a meter, in those that
	// have one, and otherwise in all. Usage overrides the costs of the meters that it has.
	Cost  int64
	Usage map[rule.Meter]int64
	// Estimate, if not nil, returns what the request may use of a language model. It is called at most once,
	// before anything is counted, if a rule that applies has such a meter. It may read the request's body: who
	// is banned or exempt is known before. Its error is returned.
	Estimate func(context.Context) (Estimate, error)
	// Held says that this is a part of a request that is being served, such as a message of a stream: it
	// is counted by all limits but those of concurrency, under which the request holds its places already.
	Held bool
}

// Estimate is what a request may use, before it is served. At most a quarter of a limit is reserved for it. Of a meter that
// is 0 nothing is charged, whatever the request uses. One that is missing is charged as the rule says.
type Estimate struct {
	Meters map[rule.Meter]int64
	// Open says that the request declares no cap, so that it may use more. What 95 of 100 such requests of
	// its tenant, or else of its user, key or address, have used under a rule is reserved then, or else what the rule reserves.
	Open bool
}

// Options are an engine's settings. Store and Rules are required.
type Options struct {
	// Store holds the counters. The caller closes it. If it has no [layer.FailMode], the engine
	// adds one, so that rules determine what happens while the store cannot be reached.
	Store stint.Store
	Rules *rule.Set
	// Identity determines who is asking. Default: the address of the peer.
	Identity *identity.Resolver
	// Recorder, if not nil, records every verdict.
	Recorder Recorder
	// Ledger, if not nil, is told what becomes of reservations.
	Ledger Ledger
	// MaxWaiting is how many requests may be held at once. One client may have a sixteenth of
	// them. Further requests are denied instead of held. Default 10,000.
	MaxWaiting int
	// MaxPath is how many bytes the path of a request may have, without its query. Matching
	// a path takes time in proportion to its length, before anything is counted. Default 8192.
	MaxPath int
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Timers wait in the time of Now. By default, they wait in real time.
	Timers Timers
}

// Engine decides requests. It is safe for concurrent use.
type Engine struct {
	store    stint.Store
	recorder Recorder
	ledger   Ledger
	maxPath  int
	now      func() time.Time
	since    func(time.Time) time.Duration
	timers   Timers
	node     uint64 // identifies this engine among all

	current atomic.Pointer[setup]
	using   sync.Mutex // held while current is replaced
	bans    bans
	waits   waits
	lines   lines
	settler settler
	usual   histories
	watches watches
	off     atomic.Bool
	work    sync.Pool
}

// setup is what Use replaces atomically.
type setup struct {
	rules    *rule.Set
	identity *identity.Resolver
}

// New returns an engine.
func New(o Options) (*Engine, error) {
	if o.MaxWaiting == 0 {
		o.MaxWaiting = 10_000
	}
	if o.MaxPath == 0 {
		o.MaxPath = 8 << 10
	}
	since := func(t time.Time) time.Duration { return o.Now().Sub(t) }
	if o.Now == nil {
		o.Now, since = time.Now, time.Since // time.Since takes half the time
	}
	if o.Timers == nil {
		o.Timers = realTimers{}
	}
	switch {
	case o.Store == nil:
		return nil, invalid("Store", "nil", "a store, such as memstore.New returns")
	case o.MaxWaiting < 0:
		return nil, invalid("MaxWaiting", strconv.Itoa(o.MaxWaiting), "1 or more, or 0 for the default")
	case o.MaxPath < 0:
		return nil, invalid("MaxPath", strconv.Itoa(o.MaxPath), "1 or more, or 0 for the default")
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
	e := &Engine{store: store, recorder: o.Recorder, ledger: o.Ledger, maxPath: o.MaxPath, waits: newWaits(o.MaxWaiting), now: o.Now, since: since, timers: o.Timers, node: rand.Uint64() &^ 1}
	e.lines.now, e.lines.timers = o.Now, o.Timers
	e.work.New = func() any { return &work{event: new(Event)} }
	if err := e.Use(o.Rules, o.Identity); err != nil {
		return nil, err
	}
	return e, nil
}

func invalid(field, value, want string) error {
	return &stint.InvalidError{Field: field, Value: value, Want: want}
}

// Use replaces rules and identity atomically, while requests are decided. Requests that have started
// still use the old ones: the old resolver can be closed, but must keep working for them.
func (e *Engine) Use(rules *rule.Set, who *identity.Resolver) error {
	if rules == nil {
		return invalid("Rules", "nil", "the result of rule.Compile")
	}
	if who == nil {
		return invalid("Identity", "nil", "the result of identity.New")
	}
	e.watches.keep(rules)
	e.using.Lock()
	defer e.using.Unlock()
	e.current.Store(&setup{rules: rules, identity: who})
	e.usual.keep(rules)
	return nil
}

// Disable lets every request pass, whatever rules and bans say, or ends that. Nothing is counted meanwhile. Credentials that
// are not accepted are still rejected: targets trust that.
func (e *Engine) Disable(off bool) { e.off.Store(off) }

// Disabled reports whether every request passes.
func (e *Engine) Disabled() bool { return e.off.Load() }

// Rules returns the rules in use.
func (e *Engine) Rules() *rule.Set { return e.current.Load().rules }

// Identity returns the resolver in use.
func (e *Engine) Identity() *identity.Resolver { return e.current.Load().identity }

// Waiting returns how many requests are held now.
func (e *Engine) Waiting() int { return int(e.waits.all.Load()) }

// work is the state of one decision. It is pooled.
type work struct {
	now   time.Time
	setup *setup
	who   identity.Request
	// refused is why the credentials were rejected. Rules that count by address still count such
	// a request: otherwise guessing credentials would be free.
	refused     *identity.RefusedError
	client      client
	attrs       rule.Attrs
	hits        []rule.Hit
	step        Step
	ds          []stint.Decision // for the step's asks
	text        []byte
	spot        *spot // in a line for a place
	purpose     purpose
	reservation *Reservation  // what was charged, if that will be settled
	estimating  time.Duration // how long the estimate took
	// event is for the recorder. It is reused, since each would have to be allocated.
	event *Event
}

func (e *Engine) begin(now time.Time) *work {
	w := e.work.Get().(*work)
	w.now, w.setup = now, e.current.Load()
	return w
}

// end clears the work and returns it to the pool.
func (e *Engine) end(w *work) {
	clear(w.hits)
	clear(w.step.Asks)
	const maxText = 64 << 10 // clients can make it grow
	if cap(w.text) > maxText {
		w.text = nil
	}
	*w = work{hits: w.hits[:0], step: Step{Asks: w.step.Asks[:0]}, ds: w.ds[:0], text: w.text[:0], event: w.event}
	e.work.Put(w)
}

// PathError is the error for a request whose path is too long.
type PathError struct {
	Most int // how many bytes it may have
}

func (e *PathError) Error() string {
	return "path: want at most " + strconv.Itoa(e.Most) + " bytes, without the query"
}

// Decide decides whether the request may pass, and holds it as long as it has to wait. An error means
// that it could not be decided: the context is done, the lookup of a key failed, a counter cannot be
// read, or it is a [*PathError]. If the store cannot be reached, that is not an error: rules determine what happens.
func (e *Engine) Decide(ctx context.Context, q Request) (v Verdict, err error) {
	_, err = e.answer(ctx, &q, &v, deciding)
	return v, err
}

// DecideInto is like Decide, but stores the verdict in v and reuses the memory of v.Limits, which copies
// of v share. After an error v is zero. The request must not point into v.
func (e *Engine) DecideInto(ctx context.Context, q *Request, v *Verdict) error {
	_, err := e.answer(ctx, q, v, deciding)
	return err
}

// Peek returns what Decide would, without changing anything or holding the request.
func (e *Engine) Peek(ctx context.Context, q Request) (v Verdict, err error) {
	_, err = e.answer(ctx, &q, &v, peeking)
	return v, err
}

// purpose is what a decision is for.
type purpose uint8

const (
	deciding purpose = iota
	peeking
	reserving // all that is charged will be settled
	serving   // what has a meter will be settled, and places
)

// answer decides a request. It returns what will be settled of it if it passes.
func (e *Engine) answer(ctx context.Context, q *Request, v *Verdict, p purpose) (*Reservation, error) {
	limits := v.Limits[:0]
	if q.Cost < 0 {
		*v = Verdict{}
		return nil, invalid("cost", strconv.FormatInt(q.Cost, 10), "1 or more, or 0 for the costs in rules")
	}
	if err := (&Usage{Meters: q.Usage}).validate(); err != nil {
		*v = Verdict{}
		return nil, err
	}
	if len(q.Path) > e.maxPath && !strings.ContainsAny(q.Path[:e.maxPath+1], "?#") {
		*v = Verdict{}
		return nil, &PathError{Most: e.maxPath}
	}
	now := e.now()
	*v = Verdict{ID: NewID(now), At: now, Limits: limits}
	w := e.begin(now)
	defer e.end(w)
	w.purpose = p
	err := e.decide(ctx, q, w, v, p == peeking)
	r := w.reservation
	if r != nil {
		e.tell(r)
		who := &v.Subject
		r.Payer = Payer{who.User, who.Tenant, who.Key, who.Tier}
		r.notable = !routine(v.Outcome, v.Shadowed() != nil)
		if r.ID = v.ID; err != nil || !v.Outcome.Passed() {
			e.abandon(ctx, r, err != nil)
			r = nil
		}
	}
	if err != nil {
		*v = Verdict{}
		return nil, err
	}
	if e.recorder != nil && p != peeking {
		v.fill(w.event, q.Path, e.since(now)-w.estimating)
		e.recorder.Record(ctx, w.event)
		w.event.Path = "" // the pool must not keep the request
	}
	return r, nil
}

func (e *Engine) decide(ctx context.Context, q *Request, w *work, v *Verdict, peek bool) error {
	done, err := e.identify(ctx, q, w, v)
	if err == nil && e.off.Load() {
		if *v = (Verdict{ID: v.ID, At: v.At, Limits: v.Limits, Subject: v.Subject, Method: v.Method}); w.refused != nil {
			v.refuse(w.refused)
		}
		return nil
	}
	if done || err != nil {
		return err
	}
	if len(v.Subject.Others) > 0 {
		if banned, err := e.penalized(ctx, w, v); banned || err != nil {
			return err
		}
	}
	w.hits = w.setup.rules.Match(w.hits, &w.attrs)
	if !decided(w.hits, v) {
		w.attrs.Metered = (q.Cost > 0 || w.purpose == reserving) && rule.Metered(w.hits)
		if err := e.estimate(ctx, q, w); err != nil {
			return err
		}
		enforced := partition(w.hits)
		if err := e.enforce(ctx, w, v, enforced, peek); err != nil {
			return err
		}
		if w.refused == nil {
			e.tryOut(ctx, w, v, enforced, peek)
		}
	}
	if v.Outcome.Passed() && w.refused != nil {
		v.refuse(w.refused)
	}
	return nil
}

// identify determines who is asking, and reports whether that already decides the request.
func (e *Engine) identify(ctx context.Context, q *Request, w *work, v *Verdict) (done bool, err error) {
	s := &v.Subject
	v.Method = w.setup.rules.Method(q.Method)
	if q.Subject != nil {
		*s = *q.Subject
		s.Trusted = s.Trusted || w.setup.identity.Trusts(q.Peer)
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
	case s.Exempt != nil && w.refused != nil: // it is not counted, and does not pass
		v.refuse(w.refused)
		return true, nil
	case s.Exempt != nil:
		v.Outcome, v.Reason = Exempt, s.Exempt.Reason
		return true, nil
	}
	w.client = clientOf(s)
	w.attrs = rule.Attrs{
		Method: v.Method, Path: q.Path, IgnoreCase: q.IgnoreCase, Headers: q.Headers, Trusted: s.Trusted, Named: q.Subject != nil,
		IP: s.IP, Net: s.Net, User: s.User, Tenant: s.Tenant, APIKey: s.Key, Tier: s.Tier, Claims: s.Claims,
		KeyLimits: s.KeyLimits, UserLimits: s.UserLimits, Cost: q.Cost, Usage: q.Usage, Held: q.Held, Now: w.now,
	}
	return false, nil
}
