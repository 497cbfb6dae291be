package engine

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/rule"
)

// perCall is how many counters one call asks, so that it does not block the store for long.
const perCall = 64

// attributes returns what rules see of a subject, given any of User, Tenant, Key and IP.
func (e *Engine) attributes(ctx context.Context, w *work, given identity.Subject) (a rule.Attrs, err error) {
	s := given
	if err := w.setup.identity.Describe(ctx, w.now, &s); err != nil && !errors.As(err, new(*identity.RefusedError)) {
		return a, err
	}
	// Use given.Tenant: the counters of a user's tenant are not the user's.
	return rule.Attrs{
		Trusted: true, IP: s.IP, Net: s.Net, User: given.User, Tenant: given.Tenant, APIKey: given.Key, Tier: s.Tier,
		KeyLimits: s.KeyLimits, UserLimits: s.UserLimits, Now: w.now,
	}, nil
}

// every returns every counter that rules have for a subject.
func every(w *work, a *rule.Attrs) ([]rule.Hit, []stint.Ask) {
	hits := w.setup.rules.Every(nil, a)
	asks, _ := w.setup.rules.Asks(nil, hits, a, nil)
	return hits, asks
}

// Usage returns every limit of a subject and its current state, given any of User, Tenant, Key and IP. A
// rule that counts by endpoint has one limit for each. Limits that all clients share, and those that
// depend on other parts of a request, are left out.
func (e *Engine) Usage(ctx context.Context, s identity.Subject) ([]Limit, error) {
	w := e.begin(e.now())
	defer e.end(w)
	a, err := e.attributes(ctx, w, s)
	if err != nil {
		return nil, err
	}
	hits, asks := every(w, &a)
	ds := make([]stint.Decision, len(asks))
	for i := range asks {
		rule.Peek(&asks[i])
	}
	for from := 0; from < len(asks); from += perCall {
		to := min(from+perCall, len(asks))
		if err := e.take(ctx, asks[from:to], ds[from:to]); err != nil {
			return nil, err
		}
	}
	if slices.ContainsFunc(ds, func(d stint.Decision) bool { return d.Basis == stint.Open }) {
		return nil, stint.ErrUnavailable // the store could not be reached
	}
	var v Verdict
	v.add(hits, asks, ds)
	return v.Limits, nil
}

// Reset resets the counters of a subject, its violations and the bans that resulted from them. If
// ruleName is not empty, only those of that rule. It resets those of all tiers, since the subject may have
// been seen with others: an address is used by many. Counters with a window that only another API key of
// the user has are left.
func (e *Engine) Reset(ctx context.Context, s identity.Subject, ruleName string) error {
	w := e.begin(e.now())
	defer e.end(w)
	a, err := e.attributes(ctx, w, s)
	if err != nil {
		return err
	}
	type counter struct {
		key     stint.Key
		kind    uint64
		penalty bool
	}
	seen := map[counter]bool{}
	var chosen []stint.Ask
	choose := func() {
		hits, asks := every(w, &a)
		for _, h := range hits {
			for i := h.From; i < h.To; i++ {
				c := counter{asks[i].Key, asks[i].Limit.Kind(), asks[i].Penalty != nil}
				if !seen[c] && (ruleName == "" || h.Rule.Name == ruleName) {
					seen[c] = true
					chosen = append(chosen, asks[i])
				}
			}
		}
	}
	choose()
	a.KeyLimits, a.UserLimits = nil, nil
	for _, a.Tier = range append(w.setup.rules.Tiers(), "") {
		choose()
	}
	for part := range slices.Chunk(chosen, perCall) {
		if err := e.store.Reset(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// MaxBans is how many bans an engine can have.
const MaxBans = 10_000

// bans holds the bans set by Engine.Ban, in addition to the resolver's list. They survive a change of
// rules.
type bans struct {
	list atomic.Pointer[identity.List]

	mu      sync.Mutex
	entries []identity.Entry
}

func (b *bans) find(s *identity.Subject, now time.Time) *identity.Entry {
	list := b.list.Load()
	if list == nil {
		return nil
	}
	entry := list.Find(s, now)
	for i := 0; i < len(s.Others) && entry == nil; i++ {
		entry = list.Find(&s.Others[i], now)
	}
	return entry
}

// change replaces the entries by the result of edit, which gets those that have not expired.
func (b *bans) change(now time.Time, edit func([]identity.Entry) ([]identity.Entry, error)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	next, err := edit(current(b.entries, now))
	if err != nil {
		return err
	}
	if len(next) > MaxBans {
		return invalid("bans", strconv.Itoa(len(next)), "at most "+strconv.Itoa(MaxBans)+": lift some, or ban whole networks")
	}
	list, err := identity.NewList(next)
	if err != nil {
		return err
	}
	b.entries = next
	b.list.Store(list)
	return nil
}

// Ban bans addresses, networks, users, tenants or keys on this node. It replaces existing bans of the same
// subjects.
func (e *Engine) Ban(entries ...identity.Entry) error {
	return e.bans.change(e.now(), func(all []identity.Entry) ([]identity.Entry, error) {
		return append(without(all, entries), entries...), nil
	})
}

// Unban lifts bans that were set by Ban. Addresses are compared by value, not by spelling. It is an error
// if there is no such ban. Bans that resulted from violations are lifted by Reset.
func (e *Engine) Unban(entries ...identity.Entry) error {
	return e.bans.change(e.now(), func(all []identity.Entry) ([]identity.Entry, error) {
		n := len(all)
		rest := without(all, entries)
		if n == len(rest) && len(entries) > 0 {
			return nil, invalid("ban", entries[0].Kind.String()+" "+entries[0].Value, "an existing ban")
		}
		return rest, nil
	})
}

// Bans returns the bans set by Ban that have not expired.
func (e *Engine) Bans() []identity.Entry {
	e.bans.mu.Lock()
	defer e.bans.mu.Unlock()
	return current(e.bans.entries, e.now())
}

// current returns the entries that have not expired.
func current(entries []identity.Entry, now time.Time) []identity.Entry {
	return slices.DeleteFunc(slices.Clone(entries), func(e identity.Entry) bool { return !e.Holds(now) })
}

// without returns the entries whose subject is in none of others.
func without(entries, others []identity.Entry) []identity.Entry {
	type subject struct {
		kind  identity.Kind
		value string
	}
	of := func(e *identity.Entry) subject {
		if e.Kind == identity.KindIP {
			if a, err := netip.ParseAddr(e.Value); err == nil {
				return subject{e.Kind, a.String()}
			}
			if p, err := netip.ParsePrefix(e.Value); err == nil {
				return subject{e.Kind, p.String()}
			}
		}
		return subject{e.Kind, e.Value}
	}
	removed := map[subject]bool{}
	for i := range others {
		removed[of(&others[i])] = true
	}
	return slices.DeleteFunc(entries, func(e identity.Entry) bool { return removed[of(&e)] })
}

// Explanation says how rules decide a request, and why.
type Explanation struct {
	// Verdict is what Peek returns.
	Verdict Verdict
	// Rules are all rules, by priority and name.
	Rules []rule.Explained
}

// Explain returns how a request would be decided, and why each rule applies or does not. It changes nothing.
// It evaluates every rule, so it is slow.
func (e *Engine) Explain(ctx context.Context, q Request) (Explanation, error) {
	now := e.now()
	w := e.begin(now)
	defer e.end(w)
	var x Explanation
	x.Verdict.ID, x.Verdict.At = NewID(now), now
	if err := e.decide(ctx, &q, w, &x.Verdict, true); err != nil {
		return Explanation{}, err
	}
	if o := x.Verdict.Outcome; o != Unauthorized && x.Verdict.Subject.Banned == nil && x.Verdict.Subject.Exempt == nil {
		x.Rules = w.setup.rules.Explain(&w.attrs)
	}
	return x, nil
}
