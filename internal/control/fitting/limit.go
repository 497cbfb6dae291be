package fitting

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stintdev/stint/rule"
)

// limit returns the limits that deny at most one client in so many: together, as each has a half of them.
func (s *scope) limit(oneIn int64) (l Limit, ok bool) {
	if len(s.clients) == 0 {
		return l, false
	}
	l.Requests, l.Clients = s.requests, s.count()
	denied := len(s.clients) / int(oneIn)
	byMinute := (denied + 1) / 2
	l.PerMinute = rounded(s.needed(minute, byMinute))
	l.PerSecond = rounded(s.needed(second, denied-byMinute))
	if l.PerSecond >= l.PerMinute {
		l.PerSecond = 0
	}
	return l, true
}

// needed returns the smallest limit that denies at most so many clients.
func (s *scope) needed(window, denied int) int64 {
	all := make([]int64, 0, len(s.clients))
	for _, c := range s.clients {
		all = append(all, c.windows[window].need)
	}
	slices.Sort(all)
	return all[len(all)-1-min(denied, len(all)-1)]
}

// rounded returns a number that people would write, which is not smaller.
func rounded(n int64) int64 {
	step := int64(1)
	for n/step >= 100 {
		step *= 10
	}
	digits := (n + step - 1) / step
	if digits > 20 {
		digits = (digits + 4) / 5 * 5
	}
	return digits * step
}

// name returns a name of the rule: a part of the path that no other rule has.
func (l *Limit) name(taken map[string]bool) string {
	if l.Endpoint == "" {
		return "all"
	}
	const longest = 40
	words := strings.FieldsFunc(strings.ToLower(l.Endpoint), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	base := strings.Trim(strings.Join(words, "-"), "-")
	if base = strings.TrimRight(base[:min(len(base), longest)], "-"); base == "" {
		base = "root"
	}
	name := base
	for n := 2; taken[name] || name == "all"; n++ {
		name = fmt.Sprintf("%s-%d", base, n)
	}
	return name
}

// rule returns the rule with the limits.
func (l *Limit) rule(by string) rule.Rule {
	r := rule.Rule{Name: l.Rule, CountBy: []rule.Dimension{rule.Dimension(by)}}
	if l.Endpoint != "" {
		r.Match.Paths = []string{l.Endpoint}
	}
	r.Limits = []rule.Limit{{Name: "minute", Limit: fmt.Sprintf("%d/1m", l.PerMinute)}}
	if l.PerSecond > 0 {
		r.Limits = append(r.Limits, rule.Limit{Name: "second", Limit: fmt.Sprintf("%d/1s", l.PerSecond)})
	}
	return r
}

// valid reports whether the rule is, of which limits that are never reached are left out. Paths of requests may have characters that a
// rule has no way to write.
func (l *Limit) valid(by string) bool {
	compiles := func() bool {
		_, err := rule.Compile(rule.File{Rules: []rule.Rule{l.rule(by)}})
		return err == nil
	}
	if compiles() {
		return true
	}
	l.PerSecond = 0
	return compiles()
}

// Rules returns the rules with the limits that fit.
func (r *Result) Rules() rule.File {
	var f rule.File
	for i := range r.Limits {
		f.Rules = append(f.Rules, r.Limits[i].rule(r.By))
	}
	return f
}
