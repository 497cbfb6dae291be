package daemon

import (
	"maps"
	"sync"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/rule"
)

// ledger counts reservations, for metrics. Its zero value is empty.
type ledger struct {
	mu          sync.Mutex
	units       map[account]*units
	settlements struct{ committed, cancelled, repeated uint64 }
}

// account is what units are counted by. Both are of the configuration, or of tickets that were made by it.
type account struct {
	rule  string
	meter rule.Meter
}

type units struct{ reserved, used, givenBack, overshoot uint64 }

var _ engine.Ledger = (*ledger)(nil)

// Reserved implements [engine.Ledger].
func (l *ledger) Reserved(rule string, m rule.Meter, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(account{rule, m}).reserved += uint64(n)
}

// Settled implements [engine.Ledger].
func (l *ledger) Settled(r *engine.Receipt, cancelled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch s := &l.settlements; {
	case r.Repeated:
		s.repeated++
		return
	case cancelled:
		s.cancelled++
	default:
		s.committed++
	}
	for s := range r.Rules() {
		u := l.of(account{s.Rule, s.Meter})
		u.used += uint64(s.Used)
		u.givenBack += uint64(max(s.Reserved-s.Used, 0))
		u.overshoot += uint64(max(s.Used-s.Reserved, 0))
	}
}

func (l *ledger) of(a account) *units {
	u := l.units[a]
	if u == nil {
		if l.units == nil {
			l.units = map[account]*units{}
		}
		u = new(units)
		l.units[a] = u
	}
	return u
}

// keep forgets the units of rules that are not to be kept.
func (l *ledger) keep(kept func(rule string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.units, func(a account, _ *units) bool { return !kept(a.rule) })
}

func (l *ledger) collect(count func(name string, n uint64, labels ...string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for a, u := range l.units {
		for what, n := range map[string]uint64{"reserved": u.reserved, "used": u.used, "given_back": u.givenBack, "overshoot": u.overshoot} {
			count("stint_units_total", n, a.rule, string(a.meter), what)
		}
	}
	s := &l.settlements
	count("stint_settlements_total", s.committed, "committed")
	count("stint_settlements_total", s.cancelled, "cancelled")
	count("stint_settlements_total", s.repeated, "repeated")
}

// collectModels counts what language models were used for.
func collectModels(c httplimit.ModelCounts, total func(name string, n float64, labels ...string)) {
	for kind, n := range map[string]uint64{"all": c.Answers, "estimated": c.Estimated, "failed": c.Failed, "cut": c.Cut} {
		total("stint_model_answers_total", float64(n), kind)
	}
	for kind, n := range map[string]uint64{
		"input": c.Input, "cached": c.Cached, "cache_written": c.CacheWritten, "output": c.Output, "reasoning": c.Reasoning,
	} {
		total("stint_model_tokens_total", float64(n), kind)
	}
}

// ledgers tells several ledgers.
type ledgers []engine.Ledger

// Reserved implements [engine.Ledger].
func (l ledgers) Reserved(rule string, m rule.Meter, n int64) {
	for _, one := range l {
		one.Reserved(rule, m, n)
	}
}

// Settled implements [engine.Ledger].
func (l ledgers) Settled(r *engine.Receipt, cancelled bool) {
	for _, one := range l {
		one.Settled(r, cancelled)
	}
}
