package ruletest

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/virtual"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// Options are what is tested. Rules are required.
type Options struct {
	Rules rule.File
	// Identity returns what identifies clients, for one test: the clock is that of the test. The test closes it.
	// Default: requests are identified by the addresses that they come from.
	Identity func(now func() time.Time) (*identity.Resolver, error)
	// Headers are those of responses, MaxPath and MaxWaiting as in [engine.Options], and MaxKeys as in
	// [memstore.Options].
	Headers                      httplimit.HeaderSet
	MaxPath, MaxWaiting, MaxKeys int
}

// Runner runs tests of one set of rules. It must be used by one goroutine.
type Runner struct {
	options  Options
	set      *rule.Set
	rules    map[string]*rule.Rule
	coverage tracker
	free     []*call
}

// New returns a runner. If the rules have problems, the error is of type [rule.Problems].
func New(o Options) (*Runner, error) {
	set, err := rule.Compile(o.Rules)
	if err != nil {
		return nil, err
	}
	if o.Identity == nil {
		o.Identity = func(func() time.Time) (*identity.Resolver, error) { return identity.New(identity.Options{}) }
	}
	r := &Runner{options: o, set: set, rules: make(map[string]*rule.Rule, len(o.Rules.Rules)), coverage: newTracker()}
	for i := range o.Rules.Rules {
		r.rules[o.Rules.Rules[i].Name] = &o.Rules.Rules[i]
	}
	return r, nil
}

// Result is the result of a file.
type Result struct {
	File  string       `json:"file"`
	Tests []TestResult `json:"tests"`
}

// Passed reports whether all tests have passed.
func (r *Result) Passed() bool {
	return !slices.ContainsFunc(r.Tests, func(t TestResult) bool { return !t.Passed() })
}

// TestResult is the result of a test.
type TestResult struct {
	Name     string    `json:"name"`
	Line     int       `json:"line"`
	Requests int       `json:"requests"`
	Failures []Failure `json:"failures"`
}

// Passed reports whether everything was as expected.
func (t *TestResult) Passed() bool { return len(t.Failures) == 0 }

// Failure is a step that was not as expected.
type Failure struct {
	Line int    `json:"line"`
	Step string `json:"step"`
	Want string `json:"want"`
	// Got is what has happened, in the form of what is expected; of a step that could not be made, the error.
	Got   string `json:"got"`
	Error bool   `json:"error,omitempty"`
	// Limits are the limits of the last request, and their state.
	Limits []string `json:"limits,omitempty"`

	step *step
}

// Check finds names in a file that the rules do not have. The error is of type [strict.Problems].
func (r *Runner) Check(f *File) error {
	var report strict.Report
	for _, n := range f.names {
		message, among := r.checkName(n)
		if message == "" {
			continue
		}
		report.Add("", strict.Quote(n.text)+": "+message, report.Closest(n.text, among))
		last := &report.Problems[len(report.Problems)-1]
		last.File, last.Line, last.Column = f.Name, n.line, n.column
	}
	return report.Problems.Err()
}

// checkName returns what is wrong with a name, or "", and the names that there are.
func (r *Runner) checkName(n name) (message string, among []string) {
	ruleOf, limit, whole := strings.Cut(n.text, "/")
	switch {
	case n.kind == byName && n.text == none:
		return "", nil
	case n.kind == meterName:
		for _, x := range r.rules {
			if string(x.Cost.Meter) == n.text {
				return "", nil
			}
			among = append(among, string(x.Cost.Meter))
		}
		return "no rule has this meter", among
	case n.kind == limitName && !whole:
		return r.checkLimit(n.text)
	case n.kind == ruleName || !whole:
		ruleOf, limit = n.text, ""
	}
	of, ok := r.rules[ruleOf]
	if !ok {
		for other := range r.rules {
			among = append(among, strings.TrimSuffix(other+"/"+limit, "/"))
		}
		return "there is no such rule", among
	}
	if limit == "" || limit == penaltyName && of.Penalty != nil {
		return "", nil
	}
	for _, l := range of.Limits {
		if l.Name == limit {
			return "", nil
		}
		among = append(among, ruleOf+"/"+l.Name)
	}
	return "the rule has no such limit", among
}

// penaltyName is what a penalty is called among the limits of its rule.
const penaltyName = "penalty!"

// checkLimit checks the name of a limit without its rule.
func (r *Runner) checkLimit(limit string) (message string, among []string) {
	var of []string
	for _, x := range r.rules {
		for _, l := range x.Limits {
			if l.Name == limit {
				of = append(of, x.Name+"/"+limit)
			}
			among = append(among, l.Name)
		}
	}
	switch len(of) {
	case 0:
		return "no rule has such a limit", among
	case 1:
		return "", nil
	}
	slices.Sort(of)
	return "several rules have such a limit: want " + strings.Join(of, " or "), nil
}

// Run runs the tests of a file that only accepts, by their names; nil accepts all. The error is of type
// [strict.Problems] if the file names what the rules do not have, or that of ctx.
func (r *Runner) Run(ctx context.Context, f *File, only func(name string) bool) (*Result, error) {
	if err := r.Check(f); err != nil {
		return nil, err
	}
	out := &Result{File: f.Name, Tests: []TestResult{}}
	for _, t := range f.Tests {
		if only != nil && !only(t.Name) {
			continue
		}
		failures, err := r.run(ctx, t)
		if err != nil {
			return nil, err
		}
		out.Tests = append(out.Tests, TestResult{t.Name, t.Line, t.Requests(), failures})
	}
	return out, nil
}

// play is a test that runs.
type play struct {
	*Runner
	ctx     context.Context
	world   *virtual.World
	engine  *engine.Engine
	results []result // by step
}

// result is what has happened in a step.
type result struct {
	tallies []tally
	last    *engine.Verdict // of the last request, once it is decided
	err     error
}

// call is a request that is being decided. It is used again unless it is the last of its step.
type call struct {
	play *play
	step *step
	n    int // which of the step
	out  *result
	q    engine.Request
	v    engine.Verdict
	do   func()
}

func (r *Runner) run(ctx context.Context, t *Test) ([]Failure, error) {
	w := virtual.New(t.start)
	defer w.Close()
	store, err := memstore.New(memstore.Options{Now: w.Now, MaxKeys: r.options.MaxKeys})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	who, err := r.options.Identity(w.Now)
	if err != nil {
		return nil, err
	}
	defer who.Close()
	e, err := engine.New(engine.Options{
		Store: store, Rules: r.set, Identity: who, Now: w.Now, Timers: w, MaxPath: r.options.MaxPath, MaxWaiting: r.options.MaxWaiting,
	})
	if err != nil {
		return nil, err
	}
	p := &play{Runner: r, ctx: ctx, world: w, engine: e, results: make([]result, len(t.steps))}
	if err := p.steps(t.steps); err != nil {
		return nil, err
	}
	w.Finish(lastYear.Add(2 * rule.MaxDelay)) // what is held
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	failures := []Failure{}
	for i, s := range t.steps {
		if f, failed := p.judge(s, &p.results[i]); failed {
			failures = append(failures, f)
		}
	}
	return failures, nil
}

// steps makes the steps at their times. Those at the same time are made in their order.
func (p *play) steps(all []*step) error {
	type repeated struct {
		step, n int
		at      time.Time
	}
	var open []repeated // in the order of their steps
	for next := 0; next < len(all) || len(open) > 0; {
		first := -1
		for i := range open {
			if first < 0 || open[i].at.Before(open[first].at) {
				first = i
			}
		}
		if next < len(all) && (first < 0 || all[next].at.Before(open[first].at)) {
			open = append(open, repeated{step: next, at: all[next].at})
			next++
			continue
		}
		x := &open[first]
		s := all[x.step]
		p.world.Advance(x.at)
		p.make(s, x.n, &p.results[x.step])
		if err := p.ctx.Err(); err != nil {
			return err
		}
		x.at = x.at.Add(s.every)
		if x.n++; x.n == s.times {
			open = slices.Delete(open, first, first+1)
		}
	}
	return nil
}

// make makes a step once.
func (p *play) make(s *step, n int, out *result) {
	switch s.verb {
	case reset:
		out.err = p.engine.Reset(p.ctx, s.who, s.rule)
	case ban:
		entry := s.entry
		if s.span > 0 {
			entry.Until = p.world.Now().Add(s.span)
		}
		out.err = p.engine.Ban(entry)
	case unban:
		out.err = p.engine.Unban(s.entry)
	case request, peek:
		c := p.call()
		c.play, c.step, c.n, c.out, c.q = p, s, n, out, s.q
		p.world.Go(c.do)
	}
}

// call returns a call that can be used.
func (p *play) call() *call {
	if n := len(p.free); n > 0 {
		c := p.free[n-1]
		p.free = p.free[:n-1]
		return c
	}
	c := new(call)
	c.do = func() { c.decided(c.decide()) }
	return c
}

// decide decides the request, and serves it.
func (c *call) decide() error {
	p, s := c.play, c.step
	if s.verb == peek {
		var err error
		c.v, err = p.engine.Peek(p.ctx, c.q)
		return err
	}
	serving, err := p.engine.Serve(p.ctx, &c.q, &c.v)
	if serving == nil {
		_ = p.engine.Settled(p.ctx) // a place of a request that does not pass
		return err
	}
	end := func() {
		serving.End(engine.Usage{Meters: maps.Clone(s.uses)}, s.fails)
		_ = p.engine.Settled(p.ctx)
	}
	if s.hold > 0 {
		p.world.AfterFunc(s.hold, end)
	} else {
		end()
	}
	return nil
}

// decided notes what has happened.
func (c *call) decided(err error) {
	p, out, v := c.play, c.out, &c.v
	if err != nil {
		out.err = cmp.Or(out.err, err)
	} else {
		p.coverage.note(v)
		out.add(v)
	}
	if c.n == c.step.times-1 {
		out.last = v
		return
	}
	p.free = append(p.free, c)
}

// add counts a verdict.
func (r *result) add(v *engine.Verdict) {
	x := tally{outcome: v.Outcome, count: 1}
	if v.Rule != nil {
		x.rule = v.Rule.Name
		if l := v.Binding(); l != nil && l.Rule == v.Rule {
			x.limit = l.Name
		}
	}
	for i := range r.tallies {
		if t := &r.tallies[i]; t.outcome == x.outcome && t.rule == x.rule && t.limit == x.limit {
			t.count++
			return
		}
	}
	r.tallies = append(r.tallies, x)
}

// judge reports whether a step was not as expected.
func (p *play) judge(s *step, r *result) (f Failure, failed bool) {
	f = Failure{Line: s.line, Step: s.text, Want: s.want.String(), step: s}
	if r.err != nil {
		f.Got, f.Error = r.err.Error(), true
		return f, true
	}
	if s.verb != request && s.verb != peek {
		return f, false
	}
	got := s.happened(r.tallies, r.last, p.headers(s, r.last))
	f.Got = got.String()
	if f.Got == f.Want {
		return f, false
	}
	for i := range r.last.Limits {
		f.Limits = append(f.Limits, describe(&r.last.Limits[i]))
	}
	return f, true
}

// describe says what a limit has decided.
func describe(l *engine.Limit) string {
	text := l.Rule.Name + "/" + l.Name + ": "
	if l.Shadow {
		text = "shadow " + text
	}
	if !l.Decision.Allowed {
		text += "deny "
	} else {
		text += "allow "
	}
	for _, name := range []string{"remaining", "limit", "cost", "retry", "reset"} {
		if value := limitFields[name](l); value != "0s" {
			text += name + "=" + value + " "
		}
	}
	return strings.TrimSuffix(text, " ")
}

// headers returns those of the response, if the step expects some.
func (p *play) headers(s *step, v *engine.Verdict) http.Header {
	if !slices.ContainsFunc(s.want.items, func(x item) bool { return x.kind == header }) {
		return nil
	}
	a := answer{}
	if v.Outcome.Passed() {
		p.options.Headers.Set(http.Header(a), v)
	} else {
		httplimit.Deny(a, &http.Request{Method: s.q.Method}, p.options.Headers, v)
	}
	return http.Header(a)
}

// answer is a response of which only the header matters.
type answer http.Header

// Header implements [http.ResponseWriter].
func (a answer) Header() http.Header { return http.Header(a) }

// Write implements [http.ResponseWriter].
func (answer) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader implements [http.ResponseWriter].
func (answer) WriteHeader(int) {}
