// Package exact decides captured requests again, and says whether every decision is what it was, bit for bit.
//
//	report, err := exact.Run(ctx, exact.Options{}, reader)
//
// A decision is made of facts, rules, and the answers of counters. So two things are checked, which together are all of it:
//
//   - An [engine.Engine] with the rules of the capture makes each decision again from its facts. It must ask what was asked, and from
//     the answers that were given it must make the same verdict.
//   - All calls are made again, in one order, to counters that are the pure functions of package stint. They must answer what was
//     answered.
//
// Invariants:
//
//   - What is the same is proven: there is an order of all calls in which the counters give every answer. See [Options] for which.
//   - What cannot be known is not compared, and is counted: answers of counters that had been used before the capture, those
//     that no counter has given (of leases, of remembered denials, of a node by itself), and those that no order was found for, at
//     the microsecond of a call that gave back.
//   - Memory is bounded by the calls that overlap, the requests that are held, and the number of counters. If there are too many
//     counters, the others are not compared.
//
// It does not decide anything itself, and knows no rule: the engine and the root package do.
package exact

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/internal/record/capture"
	"github.com/stintdev/stint/rule"
)

// Options configure Run.
type Options struct {
	// Most is how many differences are described. Default 10.
	Most int
}

// Report says whether the decisions are what they were.
type Report struct {
	From    time.Time `json:"from,omitzero"`
	To      time.Time `json:"to,omitzero"`
	Summary string    `json:"summary"`
	// Exact means that every decision was made again, and is the same.
	Exact bool `json:"exact"`
	// Decisions is the sum of the next four.
	Decisions int64 `json:"decisions"`
	Same      int64 `json:"same"`
	Different int64 `json:"different"`
	// NotCompared are decisions of which the verdict is the same, with answers that are not known to be right.
	NotCompared int64 `json:"not_compared"`
	// Failed are decisions that ended with an error, so that there is nothing to compare.
	Failed      int64        `json:"failed"`
	Unfinished  int64        `json:"unfinished"`
	Lost        int64        `json:"lost"`
	Calls       int64        `json:"calls"`
	Differences []Difference `json:"differences" nullable:"false"` // the first ones
	Notes       []string     `json:"notes" nullable:"false"`
}

// Difference is a decision that is not what it was.
type Difference struct {
	ID   string    `json:"decision_id"`
	Time time.Time `json:"time"`
	What string    `json:"what"`
	Then string    `json:"then"`
	Now  string    `json:"now"`
}

// decision is one that is being compared.
type decision struct {
	calls   []*capture.Call
	waiting int // calls that are not judged yet
	decided bool
	failed  bool
	unknown bool
	diff    *Difference // nil: none
	id      string
	at      time.Time
}

// source is a file.
type source struct {
	r       *capture.Reader
	next    func() (capture.Record, error, bool)
	stop    func()
	engine  *engine.Engine
	answers answers
	open    map[uint64]*decision
	newest  int64 // the last instant
	marked  int64 // that before the last mark
	over    bool
}

type run struct {
	o       Options
	ctx     context.Context //nolint:containedctx // of the call of Run, which it lives as long as
	sources []*source
	order   order
	report  Report
	verdict engine.Verdict
	names   capture.Verdict
}

// Run decides what is in files again. The files of several nodes that share counters are merged.
func Run(ctx context.Context, o Options, files ...*capture.Reader) (Report, error) {
	o.Most = cmp.Or(o.Most, 10)
	r := &run{o: o, ctx: ctx, report: Report{Differences: []Difference{}, Notes: []string{}}}
	r.order = order{counters: counters{all: map[counterID]*counter{}, unsure: map[counterID]bool{}}, judged: r.judged, learns: window(files)}
	defer func() {
		for _, s := range r.sources {
			s.stop()
		}
	}()
	for _, f := range files {
		s, err := newSource(f)
		if err != nil {
			return Report{}, err
		}
		r.sources = append(r.sources, s)
	}
	if err := r.run(lagOf(files)); err != nil {
		return Report{}, err
	}
	return r.result(files), nil
}

func newSource(f *capture.Reader) (*source, error) {
	file := f.Header.Rules
	file.Case = f.Header.Case
	rules, err := rule.Compile(file)
	if err != nil {
		return nil, fmt.Errorf("the rules of the capture: %w", err)
	}
	s := &source{r: f, open: map[uint64]*decision{}}
	s.engine, err = engine.New(engine.Options{Store: &s.answers, Rules: rules, Timers: noTimers{}})
	if err != nil {
		return nil, err
	}
	s.next, s.stop = iter.Pull2(f.Records())
	return s, nil
}

// lagOf returns by how much records may be later than their instants, in microseconds.
func lagOf(files []*capture.Reader) int64 {
	lag := time.Duration(0)
	for _, f := range files {
		lag = max(lag, f.Summary.Lag)
	}
	return 2*lag.Microseconds() + 1000
}

// window returns when counters can be known: while all nodes that use them are captured.
func window(files []*capture.Reader) func(at int64) bool {
	first, last, nodes := int64(0), int64(math.MaxInt64), map[string]bool{}
	for _, f := range files {
		nodes[f.Header.Node] = true
		if f.Summary.First > 0 {
			first, last = max(first, f.Summary.First), min(last, f.Summary.Last)
		}
	}
	for _, f := range files {
		if f.Header.Shared && f.Header.Nodes > len(nodes) {
			return func(int64) bool { return false }
		}
	}
	return func(at int64) bool { return first <= at && at <= last }
}

// run reads all files, in the order of instants.
func (r *run) run(lag int64) error {
	for s := r.oldest(); s != nil; s = r.oldest() {
		record, err, ok := s.next()
		switch {
		case !ok:
			s.over = true
		case err != nil:
			return err
		case record.Call != nil:
			r.called(s, record.Call)
			continue
		case record.Facts != nil:
			r.decided(s, &record)
			continue
		default:
			s.marked = s.newest
		}
		if err := r.ctx.Err(); err != nil {
			return err
		}
		if s := r.oldest(); s != nil {
			r.order.advance(s.marked - lag)
		}
	}
	r.order.advance(math.MaxInt64)
	return nil
}

// oldest returns the file that has been read least far, or nil if all have ended.
func (r *run) oldest() (out *source) {
	for _, s := range r.sources {
		if !s.over && (out == nil || s.marked < out.marked) {
			out = s
		}
	}
	return out
}

// called adds a call to the order.
func (r *run) called(s *source, call *capture.Call) {
	r.report.Calls++
	var of *decision
	if call.Number > 0 {
		if of = s.open[call.Number]; of == nil {
			of = new(decision)
			s.open[call.Number] = of
		}
		of.calls = append(of.calls, call)
	}
	file := 0
	if !s.r.Header.Shared {
		file = 1 + slices.Index(r.sources, s)
	}
	if call.Failed || call.Kind == engine.ResetCall {
		if r.order.counters.doubt(file, call); of != nil {
			of.unknown = true
		}
		return
	}
	parts := []*capture.Call{call}
	if call.Kind == engine.AdjustCall {
		parts = apart(call)
	}
	for _, part := range parts {
		x := newItem(file, part, of)
		if of != nil {
			of.waiting++
		}
		s.newest = max(s.newest, x.at)
		r.order.add(x)
	}
}

// apart returns a change of several charges as one for each counter: each is made on its own.
func apart(call *capture.Call) (parts []*capture.Call) {
	of := map[counterID]*capture.Call{}
	for i := range call.Asks {
		id := idOf(0, &call.Asks[i])
		if of[id] == nil {
			of[id] = &capture.Call{Number: call.Number, Kind: call.Kind}
			parts = append(parts, of[id])
		}
		of[id].Asks, of[id].Decisions = append(of[id].Asks, call.Asks[i]), append(of[id].Decisions, call.Decisions[i])
	}
	return parts
}

// decided makes a decision again.
func (r *run) decided(s *source, record *capture.Record) {
	f, then := record.Facts, record.Verdict
	of := s.open[f.Number]
	if of == nil {
		of = new(decision)
	}
	delete(s.open, f.Number)
	of.decided, of.failed, of.id, of.at = true, then.Failed, then.ID.String(), f.At
	if r.report.From.IsZero() || f.At.Before(r.report.From) {
		r.report.From = f.At
	}
	if f.At.After(r.report.To) {
		r.report.To = f.At
	}
	if !of.failed {
		s.answers.begin(of.calls)
		err := s.engine.Again(r.ctx, f, &r.verdict)
		capture.NewVerdict(&r.verdict, &r.names)
		switch {
		case err != nil:
			of.differs("asks", s.answers.asked(), err.Error())
		case s.answers.left():
			of.differs("asks", "a call more", "no such call")
		default:
			compare(of, then, &r.names)
		}
	}
	of.calls = nil
	if of.waiting == 0 {
		r.finish(of)
	}
}

func (d *decision) differs(what string, then, now any) {
	if d.diff == nil {
		d.diff = &Difference{What: what, Then: fmt.Sprint(then), Now: fmt.Sprint(now)}
	}
}

// judged takes what the counters say of a call.
func (r *run) judged(x *item, j *judged) {
	d := x.of
	if d == nil {
		return
	}
	d.waiting--
	d.unknown = d.unknown || j.unknown
	for i, is := range j.results {
		if is == different && d.diff == nil {
			a := &x.call.Asks[i]
			d.differs("the answer of the counter "+a.Key.String(), describe(&x.call.Decisions[i]), "another")
		}
	}
	if d.decided && d.waiting == 0 {
		r.finish(d)
	}
}

func describe(d *stint.Decision) string {
	return fmt.Sprintf("allowed=%v remaining=%d retry=%v reset=%v delay=%v", d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter, d.Delay)
}

// finish counts a decision.
func (r *run) finish(d *decision) {
	p := &r.report
	p.Decisions++
	switch {
	case d.failed:
		p.Failed++
	case d.diff != nil:
		p.Different++
		if d.diff.ID, d.diff.Time = d.id, d.at; len(p.Differences) < r.o.Most {
			p.Differences = append(p.Differences, *d.diff)
		}
	case d.unknown:
		p.NotCompared++
	default:
		p.Same++
	}
}

// compare compares verdicts.
func compare(d *decision, then, now *capture.Verdict) {
	switch {
	case then.Outcome != now.Outcome:
		d.differs("outcome", then.Outcome, now.Outcome)
	case then.Rule != now.Rule:
		d.differs("rule", then.Rule, now.Rule)
	case then.Method != now.Method, then.Status != now.Status, then.Eased != now.Eased:
		d.differs("method, status or eased", fmt.Sprint(then.Method, then.Status, then.Eased), fmt.Sprint(now.Method, now.Status, now.Eased))
	case then.RetryAfter != now.RetryAfter:
		d.differs("retry_after", then.RetryAfter, now.RetryAfter)
	case then.Waited != now.Waited:
		d.differs("waited", then.Waited, now.Waited)
	case len(then.Limits) != len(now.Limits):
		d.differs("limits", len(then.Limits), len(now.Limits))
	}
	for i := range min(len(then.Limits), len(now.Limits)) {
		if a, b := then.Limits[i], now.Limits[i]; a != b {
			d.differs("limit "+a.Rule+" "+a.Name, fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", b))
		}
	}
}

// result returns the report.
func (r *run) result(files []*capture.Reader) Report {
	p := &r.report
	for _, f := range files {
		p.Unfinished += f.Summary.Unfinished
		p.Lost += f.Summary.Lost
	}
	p.Exact = p.Decisions > 0 && p.Same == p.Decisions && p.Lost == 0
	p.Summary = fmt.Sprintf("Of %s, %d were decided the same when they were decided again, and %d otherwise.", recorded.Count(p.Decisions, "captured decision"), p.Same+p.NotCompared, p.Different)
	say := func(applies bool, format string, args ...any) {
		if applies {
			p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
		}
	}
	shared, nodes := false, map[string]bool{}
	for _, f := range files {
		nodes[f.Header.Node] = true
	}
	for _, f := range files {
		shared = shared || f.Header.Shared && f.Header.Nodes > len(nodes)
	}
	say(shared, "The counters were used by other nodes too, so their answers were not compared: give the files of all nodes, of the same time.")
	say(p.NotCompared > 0, "Decided the same from the answers of counters that could not be compared: %s. The counters had been used before the capture, or the answers were leased, remembered, or of a node by itself.", recorded.Count(p.NotCompared, "decision"))
	say(p.Lost > 0, "The capture is not whole: %s came faster than they could be written, so what differs may not.", recorded.Count(p.Lost, "record"))
	say(p.Failed > 0, "Ended with an error, such as a client that has gone: %s.", recorded.Count(p.Failed, "decision"))
	say(p.Unfinished > 0, "Had not ended when the capture did: %s.", recorded.Count(p.Unfinished, "decision"))
	say(r.order.counters.full, "There are more than %d counters, and the others were not compared.", maxCounters)
	return *p
}
