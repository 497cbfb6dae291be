package fitting

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/internal/control/sim"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// Verdict is what a rule's limits are to its clients.
type Verdict string

// The verdicts.
const (
	NeverBinds    Verdict = "never_binds"    // the largest use seen is far below the limits
	Fits          Verdict = "fits"           // they deny at most one client in so many
	BindsMany     Verdict = "binds_many"     // they deny more
	BindsEveryone Verdict = "binds_everyone" // they deny at least half of all clients
	TooLittle     Verdict = "too_little"     // there is too little traffic to tell
)

const (
	// Fewer requests, or clients, say too little.
	leastRequests, leastClients = 100, 10
	// far is how many times its largest use a limit is that never binds.
	far = 4
)

// AdviceOptions configure advice about a rule. From, To and what is known of the requests are those of a preview.
type AdviceOptions struct {
	sim.Options
	// OneIn says that the suggested limits may deny one client in so many, at least 2. Default 1000.
	OneIn int64
	// Check, if not nil, returns what is wrong with the suggested rule beside all others.
	Check func(*rule.Rule) (strict.Problems, error)

	endpoint string // that it is about, in place of a rule
}

// Advice is how clients use what a rule limits, and the limits that would fit that.
type Advice struct {
	Rule     string    `json:"rule,omitempty"`     // one of both
	Endpoint string    `json:"endpoint,omitempty"` // is empty
	CountBy  []string  `json:"count_by" nullable:"false"`
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	OneIn    int64     `json:"one_in"`
	Verdict  Verdict   `json:"verdict,omitempty" enum:"never_binds,fits,binds_many,binds_everyone,too_little"` // of an endpoint only the last
	Summary  string    `json:"summary"`
	Requests int64     `json:"requests"` // that match
	Unclear  int64     `json:"unclear"`  // whether they match
	Clients  int64     `json:"clients"`  // with separate counters
	Limits   []Use     `json:"limits" nullable:"false"`
	Denies   *Denials  `json:"denies,omitempty"` // what the limits deny as they are; nil for an endpoint
	// Suggestion is nil if no limits fit.
	Suggestion *Suggestion `json:"suggestion,omitempty"`
	Notes      []string    `json:"notes" nullable:"false"`
}

// Use is how much clients have used of a limit. For each, that is the most within a window: the smallest limit of the kind that would
// never have denied it, or -1 if there is none, or if that is not known.
type Use struct {
	Name      string `json:"name"`
	Limit     string `json:"limit,omitempty"` // as it is; empty for an endpoint
	P50       int64  `json:"p50"`
	P95       int64  `json:"p95"`
	P99       int64  `json:"p99"`
	Max       int64  `json:"max"`
	Suggested string `json:"suggested,omitempty"`
}

// Denials are what limits deny, by a replay.
type Denials struct {
	Denied  int64         `json:"denied"`
	Clients int64         `json:"denied_clients"`
	Top     []sim.Subject `json:"top" nullable:"false"` // most denied first
}

// Suggestion is a rule whose limits fit, and what it would have denied.
type Suggestion struct {
	Rule rule.Rule `json:"rule"`
	TOML string    `json:"toml"`
	Denials
}

// adviser is a call of Advise.
type adviser struct {
	o       AdviceOptions
	out     Advice
	limits  []measured
	clients map[string]*asker
	matched []recorded.Request
	sampled bool
	apart   map[string]bool // tiers with values of their own
	// The times of requests that were read, and that of the last that matches.
	first, last, now time.Time
}

// measured is a limit of the rule, by its place there.
type measured struct {
	at    int
	shape stint.Limit
	use   Use
	fit   int64 // 0: none
}

// asker is a client: what it has taken, and the smallest limits that never deny it, where 0 is none.
type asker struct {
	name  string
	taken []taking
	needs []int64
}

type taking struct{ at, units int64 } // at is in microseconds

// Advise reads requests, oldest first, and says how their clients use what a rule limits. What the limits deny, and what those that it
// suggests would have denied, is found by replaying the requests, with package sim. If the rule is invalid, the error is of type
// [rule.Problems].
func Advise(ctx context.Context, o AdviceOptions, requests iter.Seq2[recorded.Request, error]) (Advice, error) {
	o.OneIn = cmp.Or(o.OneIn, 1000)
	a := &adviser{o: o, clients: map[string]*asker{}, apart: map[string]bool{}}
	for i, l := range o.Rule.Limits {
		v, err := l.Value()
		if err == nil && v.Algorithm != stint.LeakyBucket && v.Algorithm != stint.Concurrency {
			a.limits = append(a.limits, measured{at: i, shape: v, use: Use{Name: l.Name}})
		}
	}
	for _, t := range o.Tiers {
		own := slices.ContainsFunc(o.Rule.Limits, func(l rule.Limit) bool { return t.Limits[l.Name] != "" })
		if only := o.Rule.Match.Tiers; own && (len(only) == 0 || slices.Contains(only, t.Name)) {
			a.apart[t.Name] = true
		}
	}
	a.o.Each = a.see
	now, err := sim.Run(ctx, a.o.Options, a.counted(requests))
	if err != nil {
		return Advice{}, err
	}
	a.measure()
	a.begin(&now)
	if err := a.suggest(ctx); err != nil {
		return Advice{}, err
	}
	a.list()
	a.judge()
	a.say(&now)
	return a.out, nil
}

// counted leaves out the clients of tiers with values of their own: the limits of the rule are not theirs.
func (a *adviser) counted(requests iter.Seq2[recorded.Request, error]) iter.Seq2[recorded.Request, error] {
	return func(yield func(recorded.Request, error) bool) {
		for q, err := range requests {
			if err == nil && a.apart[q.Tier] {
				continue
			}
			if !yield(q, err) {
				return
			}
		}
	}
}

// see takes down what a request takes.
func (a *adviser) see(q *recorded.Request, m sim.Match) {
	if a.first.IsZero() {
		a.first = q.At
	}
	if q.At.After(a.last) {
		a.last = q.At
	}
	if m.Answer != recorded.Yes {
		return
	}
	if q.At.After(a.now) {
		a.now = q.At // or it was recorded out of order
	}
	a.sampled = a.sampled || q.Times() > 1
	a.matched = append(a.matched, *q)
	c := a.clients[m.Subject]
	if c == nil {
		c = &asker{name: m.Subject}
		a.clients[m.Subject] = c
	}
	c.taken = append(c.taken, taking{a.now.UnixMicro(), m.Units})
}

// measure finds the limits that each client needs, and those that all need but one in so many.
func (a *adviser) measure() {
	if a.o.endpoint != "" && a.sampled {
		a.limits = a.limits[:1] // how many requests came at once is not known
	}
	all := slices.SortedFunc(maps.Values(a.clients), func(x, y *asker) int { return strings.Compare(x.name, y.name) })
	for _, c := range all {
		for _, l := range a.limits {
			c.needs = append(c.needs, need(l.shape, c.taken))
		}
	}
	if len(all) == 0 {
		return
	}
	median := make([]int64, len(a.limits))
	for i := range a.limits {
		needs := make([]int64, len(all))
		for j, c := range all {
			needs[j] = cmp.Or(c.needs[i], never)
		}
		slices.Sort(needs)
		u := &a.limits[i].use
		for percent, into := range map[int]*int64{50: &u.P50, 95: &u.P95, 99: &u.P99, 100: &u.Max} {
			if *into = quantile(needs, percent); *into == never {
				*into = -1
			}
		}
		median[i] = quantile(needs, 50)
	}
	// The same clients may be denied by all limits: those that need most, compared with others.
	most := func(c *asker) (times float64) {
		for i, n := range c.needs {
			times = max(times, float64(cmp.Or(n, never))/float64(median[i]))
		}
		return times
	}
	slices.SortStableFunc(all, func(x, y *asker) int { return cmp.Compare(most(y), most(x)) })
	rest := all[int64(len(all))/a.o.OneIn:]
	for i := range a.limits {
		fit := int64(0)
		for _, c := range rest {
			fit = max(fit, cmp.Or(c.needs[i], never))
		}
		if fit != never {
			a.limits[i].fit = rounded(fit)
		}
	}
}

// quantile returns the value that so many percent of sorted values do not exceed.
func quantile(sorted []int64, percent int) int64 {
	return sorted[(len(sorted)*percent+99)/100-1]
}

// begin returns what the replay of the rule as it is has shown.
func (a *adviser) begin(now *sim.Preview) {
	out := &a.out
	out.From, out.To, out.OneIn = now.From, now.To, a.o.OneIn
	out.Requests, out.Unclear, out.Clients = now.Matched, now.Unclear, int64(len(a.clients))
	out.CountBy, out.Notes = []string{}, []string{}
	for _, d := range a.o.Rule.CountBy {
		out.CountBy = append(out.CountBy, string(d))
	}
	if out.Endpoint = a.o.endpoint; out.Endpoint == "" {
		out.Rule, out.Denies = a.o.Rule.Name, denials(now)
	}
}

func denials(p *sim.Preview) *Denials { return &Denials{p.WouldRefuse, p.Denied, p.Top} }

// suggest makes a rule of the limits that fit, and replays the requests that match through it.
func (a *adviser) suggest(ctx context.Context) error {
	r := a.o.Rule
	r.Limits = slices.Clone(r.Limits)
	if a.o.endpoint != "" {
		r.Limits = r.Limits[:len(a.limits)]
	}
	texts := map[string]string{}
	for _, l := range a.limits {
		if l.fit == 0 || a.o.Unsampled {
			continue
		}
		into := &r.Limits[l.at]
		text := sized(l.shape, l.fit).String()
		if texts[into.Name] = text; into.Limit != text {
			into.Limit, into.Algorithm, into.Burst = text, "", 0
		}
	}
	if len(texts) == 0 {
		return nil
	}
	text, problems, err := a.written(&r)
	for i := unreached(len(r.Limits), problems); i >= 0 && len(r.Limits) > 1; i = unreached(len(r.Limits), problems) {
		a.note("The limit %s is left out: beside the others, %s would never be reached.", r.Limits[i].Name, r.Limits[i].Limit)
		delete(texts, r.Limits[i].Name)
		r.Limits = slices.Delete(r.Limits, i, i+1)
		text, problems, err = a.written(&r)
	}
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		a.note("No limits are suggested, because the rule would not be valid: %v.", problems[0])
		return nil
	}
	o := a.o.Options
	o.Rule, o.Each = r, nil
	would, err := sim.Run(ctx, o, those(a.matched))
	if err != nil {
		return err
	}
	for i := range a.limits {
		u := &a.limits[i].use
		u.Suggested = texts[u.Name]
	}
	a.out.Suggestion = &Suggestion{r, text, *denials(&would)}
	return nil
}

// list lists the limits, also those that are not measured.
func (a *adviser) list() {
	a.out.Limits = []Use{}
	measured := a.limits
	for i, l := range a.o.Rule.Limits {
		u := Use{Name: l.Name, P50: -1, P95: -1, P99: -1, Max: -1}
		if len(measured) > 0 && measured[0].at == i {
			u, measured = measured[0].use, measured[1:]
		} else if a.o.endpoint != "" {
			continue // it is not suggested
		}
		if v, err := l.Value(); err == nil && a.o.endpoint == "" {
			u.Limit = v.String()
		}
		a.out.Limits = append(a.out.Limits, u)
	}
}

func those(requests []recorded.Request) iter.Seq2[recorded.Request, error] {
	return func(yield func(recorded.Request, error) bool) {
		for i := range requests {
			if !yield(requests[i], nil) {
				return
			}
		}
	}
}

// written returns the rule as a file has it, once that was read and checked.
func (a *adviser) written(r *rule.Rule) (text string, problems strict.Problems, err error) {
	b, err := strict.AppendTOML(nil, rule.File{Rules: []rule.Rule{*r}})
	if err != nil {
		return "", nil, err
	}
	whole, err := strict.AppendTOML(nil, alone(r, a.o.Tiers))
	if err != nil {
		return "", nil, err
	}
	if _, err = rule.ParseTOML("", whole); errors.As(err, &problems) {
		return "", problems, nil
	}
	if err == nil && a.o.Check != nil {
		problems, err = a.o.Check(r)
	}
	return string(b), problems, err
}

// unreached returns the first of some limits of a rule that the others keep from ever being reached, or -1.
func unreached(limits int, problems strict.Problems) int {
	for i := range limits {
		at := strict.Item("rules[0].limits", i)
		if slices.ContainsFunc(problems, func(p strict.Problem) bool { return p.Path == at && strings.Contains(p.Message, "never reached") }) {
			return i
		}
	}
	return -1
}

// alone returns a file with a rule, and what it names.
func alone(r *rule.Rule, tiers []rule.Tier) rule.File {
	f := rule.File{Rules: []rule.Rule{*r}}
	f.Rules[0].Replaces = "" // that rule is not here
	for _, t := range tiers {
		f.Tiers = append(f.Tiers, rule.Tier{Name: t.Name})
	}
	return f
}
