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

// perCall is how many counters are asked for in one call, so that others can come
// between.
const perCall = 64

// every returns every counter that rules keep for a subject, of which User, Tenant,
// Key and IP are given, any of them.
func (e *Engine) every(ctx context.Context, w *work, given identity.Subject) ([]rule.Hit, []stint.Ask, error) {
	s := given
	if err := w.setup.identity.Describe(ctx, w.now, &s); err != nil && !errors.As(err, new(*identity.RefusedError)) {
		return nil, nil, err
	}
	// What is counted for a user's tenant is not the user's.
	a := rule.Attrs{
		Trusted: true, IP: s.IP, Net: s.Net, User: given.User, Tenant: given.Tenant, APIKey: given.Key, Tier: s.Tier,
		KeyLimits: s.KeyLimits, UserLimits: s.UserLimits,
	}
	hits := w.setup.rules.Every(nil, &a)
	asks, _ := w.setup.rules.Asks(nil, hits, &a, nil)
	return hits, asks, nil
}

// Usage returns every limit of a subject, of which User, Tenant, Key and IP are
// given, any of them, and how it stands. A rule that counts by endpoints has one for
// each. Limits that are shared by all, and those that count by what only a request
// has, are left out.
func (e *Engine) Usage(ctx context.Context, s identity.Subject) ([]Limit, error) {
	w := e.begin(e.now())
	defer e.end(w)
	hits, asks, err := e.every(ctx, w, s)
	if err != nil {
		return nil, err
	}
	ds := make([]stint.Decision, len(asks))
	for i := range asks {
		asks[i].Cost, asks[i].Policy = 0, nil // this is no request that could be let pass or denied
	}
	for from := 0; from < len(asks); from += perCall {
		to := min(from+perCall, len(asks))
		if err := e.take(ctx, asks[from:to], ds[from:to]); err != nil {
			return nil, err
		}
	}
	if slices.ContainsFunc(ds, func(d stint.Decision) bool { return d.Basis == stint.Open }) {
		return nil, stint.ErrUnavailable // no one has counted, and nothing is known
	}
	var v Verdict
	v.add(hits, asks, ds, false)
	return v.Limits, nil
}

// Reset forgets what a subject has used, and its violations and the bans that came
// of them; of one rule only, if it is named.
func (e *Engine) Reset(ctx context.Context, s identity.Subject, ruleName string) error {
	w := e.begin(e.now())
	defer e.end(w)
	hits, asks, err := e.every(ctx, w, s)
	if err != nil {
		return err
	}
	var chosen []stint.Ask
	for _, h := range hits {
		if ruleName == "" || h.Rule.Name == ruleName {
			chosen = append(chosen, asks[h.From:h.To]...)
		}
	}
	for part := range slices.Chunk(chosen, perCall) {
		if err := e.store.Reset(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// MaxBans is how many bans an engine can be told.
const MaxBans = 10_000

// bans are what the engine was told, beside those of the resolver's list. They
// outlive a change of rules.
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
	return list.Find(s, now)
}

// change replaces the entries by what edit makes of those that are not over.
func (b *bans) change(now time.Time, edit func([]identity.Entry) ([]identity.Entry, error)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	next, err := edit(current(b.entries, now))
	if err != nil {
		return err
	}
	if len(next) > MaxBans {
		return invalid("bans", strconv.Itoa(len(next)), "at most "+strconv.Itoa(MaxBans)+": lift some, or ban networks")
	}
	list, err := identity.NewList(next)
	if err != nil {
		return err
	}
	b.entries = next
	b.list.Store(list)
	return nil
}

// Ban refuses all requests of addresses, networks, users, tenants or keys, on this
// node, from now on. A ban of the same replaces one that was there.
func (e *Engine) Ban(entries ...identity.Entry) error {
	return e.bans.change(e.now(), func(all []identity.Entry) ([]identity.Entry, error) {
		return append(without(all, entries), entries...), nil
	})
}

// Unban lifts what Ban has said of the same, however an address is spelled. It is an
// error if it has said nothing. Bans that came of violations are lifted by Reset.
func (e *Engine) Unban(entries ...identity.Entry) error {
	return e.bans.change(e.now(), func(all []identity.Entry) ([]identity.Entry, error) {
		n := len(all)
		rest := without(all, entries)
		if n == len(rest) && len(entries) > 0 {
			return nil, invalid("ban", entries[0].Kind.String()+" "+entries[0].Value, "one that there is")
		}
		return rest, nil
	})
}

// Bans returns what Ban has said and is not over.
func (e *Engine) Bans() []identity.Entry {
	e.bans.mu.Lock()
	defer e.bans.mu.Unlock()
	return current(e.bans.entries, e.now())
}

// current returns the entries that are not over.
func current(entries []identity.Entry, now time.Time) []identity.Entry {
	return slices.DeleteFunc(slices.Clone(entries), func(e identity.Entry) bool { return !e.Holds(now) })
}

// without returns the entries that are not about any of others.
func without(entries, others []identity.Entry) []identity.Entry {
	type about struct {
		kind  identity.Kind
		value string
	}
	of := func(e *identity.Entry) about {
		if e.Kind == identity.KindIP {
			if a, err := netip.ParseAddr(e.Value); err == nil {
				return about{e.Kind, a.String()}
			}
			if p, err := netip.ParsePrefix(e.Value); err == nil {
				return about{e.Kind, p.String()}
			}
		}
		return about{e.Kind, e.Value}
	}
	gone := map[about]bool{}
	for i := range others {
		gone[of(&others[i])] = true
	}
	return slices.DeleteFunc(entries, func(e identity.Entry) bool { return gone[of(&e)] })
}

// Explanation says what rules make of a request, and why.
type Explanation struct {
	// Verdict is what Peek says.
	Verdict Verdict
	// Rules are all there are, by priority and name.
	Rules []rule.Explained
}

// Explain tells what would become of a request, and of every rule why it applies or
// does not. It changes nothing. It looks at every rule: it is for people.
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
