package main

import (
	"fmt"

	"github.com/stintdev/stint/rule"
)

func (d *doctor) rules(f *rule.File) {
	problems := f.Check()
	for _, p := range problems {
		d.note("rules", findFail, p.String(), "correct the rule; until then, the previous rules stay in use")
	}
	logOnly, disabled := 0, 0
	for i := range f.Rules {
		switch r := &f.Rules[i]; {
		case r.Enabled != nil && !*r.Enabled:
			disabled++
		case r.Action == rule.LogOnly:
			logOnly++
		}
	}
	switch {
	case len(problems) > 0:
	case len(f.Rules) == disabled:
		d.note("rules", findWarn, fmt.Sprintf("none of %d rules is enabled: every request passes", len(f.Rules)), "stint rules create, or [[rules]] in the config file")
	case len(f.Rules) == disabled+logOnly:
		d.note("rules", findWarn, "all rules are log_only: every request passes", "another action, once the record shows what they would deny")
	default:
		d.note("rules", findOK, fmt.Sprintf("rules: %d, of which log_only: %d, disabled: %d; tiers: %d", len(f.Rules), logOnly, disabled, len(f.Tiers)), "")
	}
}
