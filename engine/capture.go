package engine

import (
	"context"
	"maps"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/rule"
)

// Capturer is given all that decisions depend on, so that they can be decided again: see [Engine.Capture]. Its methods must not
// block. They must not change what they are given, or keep it after they have returned.
type Capturer interface {
	// Begin returns a number for a decision that begins, or false if it is not captured.
	Begin() (number uint64, ok bool)
	// Called is told of each call to the store, after it: of decisions that are captured, and of all others.
	Called(c *Call)
	// Decided is told of each decision that Begin has numbered, after its calls, and before the next one of its reservation. If
	// err is not nil, there is no verdict.
	Decided(f *Facts, v *Verdict, err error)
	// Replaced says that the engine has other rules from now on. Nothing more is captured.
	Replaced()
}

// Call is a call to the store.
type Call struct {
	Number uint64 // of the decision that has made it; 0: none that is captured
	Kind   CallKind
	Asks   []stint.Ask
	// Decisions are those of the asks. Reset has none.
	Decisions []stint.Decision
	// Failed means that the store returned an error. It may have charged.
	Failed bool
	Began  time.Time // by the engine's clock
}

// CallKind is which method of the store was called.
type CallKind uint8

// The kinds of calls.
const (
	TakeCall CallKind = iota
	AdjustCall
	ResetCall
)

// Facts are what a decision depended on beside the rules and the answers of the store. Of headers and claims, they have those that
// the rules look at, and of the path not the query.
type Facts struct {
	Number       uint64
	At           time.Time
	Method, Path string
	IgnoreCase   bool
	Headers      map[string][]string
	// Named says that the caller has named the client.
	Named bool
	// Subject is who was asking, with tier, limits and the entries of lists. Refused, if not nil, is why the credentials were
	// rejected.
	Subject identity.Subject
	Refused *identity.RefusedError
	Cost    int64
	Usage   map[rule.Meter]int64
	Held    bool
	// Reserves means that it was made by Reserve.
	Reserves bool
	// Estimate is what it might use of a language model, and Usual what most such requests used, by rule.
	Estimate map[rule.Meter]int64
	Open     bool
	Usual    map[string]int64
	// Left is how long its context had until its deadline, or 0.
	Left time.Duration
	// Turns are what became of it each time it was to be held, in order. That depends on time, and on others who are held.
	Turns []Turn
}

// Turn is what became of a request that was to be held.
type Turn struct {
	At TurnPoint
	// Ok means that it went on: it was held, or had a place among those that may be.
	Ok     bool
	Waited time.Duration   // in all, so far
	Banned *identity.Entry // it was banned meanwhile
}

// TurnPoint is where a decision depends on time, and on others who are held.
type TurnPoint uint8

// The points of turns.
const (
	TurnLine  TurnPoint = iota // others wait for the same place already
	TurnQueue                  // it may have to wait for its turn in a leaky_bucket
	TurnHold                   // it was denied, and may be held
)

// capture is a capture of the decisions of an engine.
type capture struct {
	to              Capturer
	era             uint64 // of the rules
	headers, claims []string
}

// Capture has all decisions that begin from now on captured, until stop is called or the rules are replaced by others. There is one
// capturer at a time: it replaces that before. Calls to the store that have begun before are not captured.
func (e *Engine) Capture(to Capturer) (stop func()) {
	now := e.current.Load()
	c := &capture{to: to, era: now.era}
	c.headers, c.claims = now.rules.LooksAt()
	e.capture.Store(c)
	if e.current.Load().era != c.era { // Use has not seen it
		e.endCapture(c)
	}
	return func() { e.capture.CompareAndSwap(c, nil) }
}

func (e *Engine) endCapture(c *capture) {
	if e.capture.CompareAndSwap(c, nil) {
		c.to.Replaced()
	}
}

// eraOf returns the era of rules that are to be used after others. While there is a capture, rules that are compiled again, since lists
// have changed, are of the same era.
func (e *Engine) eraOf(rules *rule.Set) uint64 {
	before := e.current.Load()
	switch {
	case before == nil:
		return 0
	case before.rules == rules, e.capture.Load() != nil && reflect.DeepEqual(before.rules.File(), rules.File()):
		return before.era
	default:
		return before.era + 1
	}
}

// begin returns the tape for a decision, or nil if it is not captured.
func (c *capture) begin(ctx context.Context, q *Request, w *work) *tape {
	if w.setup.era != c.era || w.purpose == peeking {
		return nil
	}
	number, ok := c.to.Begin()
	if !ok {
		return nil
	}
	t := &tape{to: c.to, facts: &Facts{
		Number: number, At: w.now, Method: method(q.Method, w.setup.rules), Path: rule.WithoutQuery(q.Path), IgnoreCase: q.IgnoreCase, Named: q.Subject != nil,
		Cost: q.Cost, Usage: maps.Clone(q.Usage), Held: q.Held, Reserves: w.purpose == reserving,
	}}
	f := t.facts
	for _, name := range c.headers {
		if lines := q.Headers[name]; len(lines) > 0 {
			if f.Headers == nil {
				f.Headers = make(map[string][]string, len(c.headers))
			}
			f.Headers[name] = lines
		}
	}
	if deadline, ok := ctx.Deadline(); ok {
		f.Left = max(deadline.Sub(w.now), 1)
	}
	t.claims = c.claims
	return t
}

// method returns a method as it was sent, or a short form of one that is longer than any that rules name.
func method(m string, rules *rule.Set) string {
	const longest = 64
	if len(m) > longest {
		return rules.Method(m)
	}
	return m
}

// tape is what a decision that is captured has looked at; or what one that is made again looks at. A nil tape is of other decisions.
type tape struct {
	facts  *Facts
	to     Capturer // nil: it is made again
	claims []string // that rules look at
	next   int      // of the turns
	// number is that of the facts until the decision has ended: what becomes of a reservation is no part of it.
	number *atomic.Uint64
}

// again reports whether the decision is made again.
func (t *tape) again() bool { return t != nil && t.to == nil }

// numberKey is the context key of the number of a decision that is captured.
type numberKey struct{}

// within returns a context from which calls to the store know the decision.
func (t *tape) within(ctx context.Context) context.Context {
	if t == nil || t.to == nil {
		return ctx
	}
	t.number = new(atomic.Uint64)
	t.number.Store(t.facts.Number)
	return context.WithValue(ctx, numberKey{}, t.number)
}

// identified notes who was asking.
func (t *tape) identified(w *work, s *identity.Subject) {
	if t == nil || t.to == nil {
		return
	}
	f := t.facts
	f.Subject, f.Refused = *s, w.refused
	f.Subject.Claims = t.seen(s.Claims)
	if len(s.Others) > 0 {
		f.Subject.Others = append([]identity.Subject(nil), s.Others...)
		for i := range f.Subject.Others {
			f.Subject.Others[i].Claims = t.seen(s.Others[i].Claims)
		}
	}
}

// seen returns the claims that rules look at.
func (t *tape) seen(claims map[string]string) map[string]string {
	var out map[string]string
	for _, name := range t.claims {
		if value, ok := claims[name]; ok {
			if out == nil {
				out = make(map[string]string, len(t.claims))
			}
			out[name] = value
		}
	}
	return out
}

// estimated notes what the request may use of a language model, and how much others used.
func (t *tape) estimated(a *rule.Attrs) {
	if t == nil || t.to == nil {
		return
	}
	f := t.facts
	if f.Estimate = maps.Clone(a.Estimate); a.Usual != nil {
		f.Open, f.Usual = true, map[string]int64{}
		usual := a.Usual
		a.Usual = func(rule string) int64 {
			n := usual(rule)
			f.Usual[rule] = n
			return n
		}
	}
}

// turn does what depends on time and on others. If the decision is made again, it returns what became of that.
func (t *tape) turn(at TurnPoint, s *Step, do func() bool) bool {
	if t == nil {
		return do()
	}
	f := t.facts
	if t.to != nil {
		ok := do()
		f.Turns = append(f.Turns, Turn{At: at, Ok: ok, Waited: s.Waited})
		return ok
	}
	if !t.at(at) {
		return false
	}
	turn := &f.Turns[t.next]
	t.next++
	s.Waited = turn.Waited
	return turn.Ok
}

// at reports whether the next turn is at that point.
func (t *tape) at(p TurnPoint) bool {
	return t.next < len(t.facts.Turns) && t.facts.Turns[t.next].At == p
}

// banned notes, or returns, the ban that a request met while it was held.
func (t *tape) banned(find func() *identity.Entry) *identity.Entry {
	if t == nil {
		return find()
	}
	if t.to == nil {
		return t.facts.Turns[t.next-1].Banned
	}
	entry := find()
	t.facts.Turns[len(t.facts.Turns)-1].Banned = entry
	return entry
}

// decided tells of the decision. The verdict is copied, so that it need not be allocated while nothing is captured.
func (t *tape) decided(v *Verdict, err error) {
	t.number.Store(0)
	verdict := *v
	t.to.Decided(t.facts, &verdict, err)
}

// call makes a call to the store, and tells of it.
func (e *Engine) call(ctx context.Context, to Capturer, kind CallKind, asks []stint.Ask, ds []stint.Decision, do func() error) error {
	call := Call{Kind: kind, Asks: asks, Decisions: ds, Began: e.now()}
	if n, ok := ctx.Value(numberKey{}).(*atomic.Uint64); ok {
		call.Number = n.Load()
	}
	err := do()
	call.Failed = err != nil
	to.Called(&call)
	return err
}

// Again makes a decision again from its facts, without looking anyone up or holding anyone: it asks the engine's store, which has to
// answer as it did. The verdict has everything but the id. It must not be used on an engine that serves.
func (e *Engine) Again(ctx context.Context, f *Facts, v *Verdict) error {
	*v = Verdict{At: f.At, Limits: v.Limits[:0]}
	w := e.begin(f.At)
	defer e.end(w)
	w.tape = &tape{facts: f}
	if f.Reserves {
		w.purpose = reserving
	}
	if f.Left > 0 {
		ctx = limited{ctx, f.At.Add(f.Left)}
	}
	q := Request{Method: f.Method, Path: f.Path, IgnoreCase: f.IgnoreCase, Headers: f.Headers, Cost: f.Cost, Usage: f.Usage, Held: f.Held}
	if f.Named {
		q.Subject = &f.Subject
	}
	return e.decide(ctx, &q, w, v, false)
}

// limited is a context that says when its deadline was, and is never done.
type limited struct {
	context.Context //nolint:containedctx // it is one
	deadline        time.Time
}

func (l limited) Deadline() (time.Time, bool) { return l.deadline, true }
