package record

import (
	"sync"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/rule"
)

// UnitRate is how many units per second requests have used under a rule with a meter. The tags document its fields.
type UnitRate struct {
	Rule  string  `json:"rule" doc:"The name of the rule. The name other stands for those that are not counted one by one." example:"tokens"`
	Meter string  `json:"meter" doc:"The meter of the rule." example:"llm.total_tokens"`
	Used  float64 `json:"used_per_second" doc:"Units per second that requests have used, when they ended." example:"5120.5"`
}

// metered is a rule and its meter.
type metered struct{ rule, meter string }

// liveUnits counts the units that were used in the last seconds.
type liveUnits struct {
	mu      sync.Mutex
	seconds [liveRing]struct {
		at   int64 // seconds since the start
		used map[metered]int64
	}
}

var _ engine.Ledger = (*Live)(nil)

// Reserved implements [engine.Ledger]. Only what was used is shown.
func (*Live) Reserved(string, rule.Meter, int64) {}

// Settled implements [engine.Ledger].
func (l *Live) Settled(r *engine.Receipt, cancelled bool) {
	if r.Repeated || cancelled {
		return
	}
	second := int64(max(0, l.o.Now().Sub(l.began)) / time.Second)
	l.units.mu.Lock()
	defer l.units.mu.Unlock()
	now := &l.units.seconds[second%liveRing]
	if now.used == nil || now.at != second {
		now.at, now.used = second, map[metered]int64{}
	}
	for s := range r.Rules() {
		if s.Meter == "" || s.Shadow {
			continue
		}
		of := metered{s.Rule, string(s.Meter)}
		if _, known := now.used[of]; !known && len(now.used) >= liveRules {
			of.rule = otherRules
		}
		now.used[of] += s.Used
	}
}

// sums returns the units that were used in the last seconds.
func (u *liveUnits) sums(last int64) (out []partUnits) {
	sums := map[metered]int64{}
	u.mu.Lock()
	for at := max(0, last-liveSeconds+1); at <= last; at++ {
		if one := &u.seconds[at%liveRing]; one.at == at {
			for of, n := range one.used {
				sums[of] += n
			}
		}
	}
	u.mu.Unlock()
	for of, n := range sums {
		out = append(out, partUnits{of.rule, of.meter, n})
	}
	return out
}
