package replay

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/recorded"
)

// tally is some requests.
type tally struct {
	requests, newlyDenied, newlyPassed float64
	denied, shadow                     [2]float64
	applied                            [2]float64 // of a rule
}

// kind is names with figures of their own.
type kind struct {
	names map[string]*tally
	full  bool
}

// of returns the figures of a name, or nil if there are too many names. Those of which no request was denied make room for others.
func (k *kind) of(name string) *tally {
	t := k.names[name]
	if t != nil {
		return t
	}
	if len(k.names) >= maxNames {
		if !k.full {
			k.full = true
			maps.DeleteFunc(k.names, func(_ string, t *tally) bool { return t.quiet() })
		}
		if len(k.names) >= maxNames {
			return nil
		}
		k.full = len(k.names) > maxNames/2
	}
	t = new(tally)
	k.names[name] = t
	return t
}

func (t *tally) quiet() bool { return t.denied[0]+t.denied[1]+t.shadow[0]+t.shadow[1] == 0 }

// figures are what a report has.
type figures struct {
	events                            int64
	all                               tally
	then, differently                 float64
	throttled, waited, longest        [2]float64
	rules, endpoints, tiers, subjects kind
	deniedBy                          map[denial]struct{}
	normals                           map[string]string
	last                              time.Time

	most     int
	from, to int64 // of the series, in seconds; 0: those of the requests
	step     int64 // in seconds
	points   map[int64]*tally
	point    *tally // the one that was used last
	start    int64

	by     []share // what a job counts for
	part   int64   // the part of the time that covers is about, in nanoseconds
	covers []share
}

// share is figures, and how much of a request counts for them.
type share struct {
	of   *tally
	part float64
}

// denial is that a subject was denied: by a rule of the candidate, or by any rule of a side.
type denial struct {
	side          int
	rule, subject string
}

func (f *figures) begin(points int, from, to time.Time) {
	for _, k := range f.kinds() {
		k.names = map[string]*tally{}
	}
	f.normals, f.deniedBy, f.points = map[string]string{}, map[denial]struct{}{}, map[int64]*tally{}
	f.most, f.step = points, 1
	if from.IsZero() || to.IsZero() || !from.Before(to) {
		return
	}
	f.from, f.to = from.Unix(), to.Add(time.Second-1).Unix()
	for i := 1; i < len(steps) && f.to-f.startOf(f.from) > int64(points)*f.step; i++ {
		f.step = steps[i]
	}
}

// startOf returns when the point of a time starts.
func (f *figures) startOf(unix int64) int64 { return unix - mod(unix, f.step) }

func (f *figures) kinds() []*kind { return []*kind{&f.rules, &f.endpoints, &f.tiers, &f.subjects} }

func (f *figures) full() bool {
	return slices.ContainsFunc(f.kinds(), func(k *kind) bool { return k.full }) || len(f.deniedBy) >= maxNames
}

// count counts the requests of a job. The outcomes of both sides are those of the same requests, in the same order.
func (f *figures) count(j *job, sides int) {
	if at := time.Unix(j.at.unix, 0); at.After(f.last) {
		f.last = at
	}
	f.by = append(f.by[:0], share{&f.all, 1})
	for _, t := range []*tally{f.endpoints.of(j.at.endpoint), f.tiers.of(j.at.tier), f.subjects.of(j.at.subject)} {
		if t != nil {
			f.by = append(f.by, share{t, 1})
		}
	}
	if f.from < f.to && j.at.part < j.at.partEnd {
		f.by = append(f.by, f.covered(j.at.part, j.at.partEnd)...)
	} else {
		f.by = append(f.by, share{f.at(j.at.unix), 1})
	}
	var next [2]int
	var used [2]int64
	for left := j.times; left > 0; {
		n := left
		var is [2]*outcome
		for i := range sides {
			o := &j.outcomes[i][next[i]]
			is[i] = o
			n = min(n, o.n-used[i])
		}
		for i := range sides {
			if used[i] += n; used[i] == is[i].n {
				next[i], used[i] = next[i]+1, 0
			}
		}
		left -= n
		f.add(j, is, float64(n)*j.scale)
	}
}

// add counts n requests.
func (f *figures) add(j *job, is [2]*outcome, n float64) {
	if j.refused {
		f.then += n
	}
	if is[live].denied != j.refused {
		f.differently += n
	}
	for _, s := range f.by {
		s.of.add(is, n*s.part)
	}
	for i, o := range is {
		if o == nil {
			continue
		}
		if o.waited > 0 && !o.denied {
			f.throttled[i] += n
			f.waited[i] += n * o.waited
			f.longest[i] = max(f.longest[i], o.waited)
		}
		if o.denied {
			f.mark(denial{i, "", j.at.subject})
			if i == candidate && o.rule != "" {
				f.mark(denial{i, o.rule, j.at.subject})
			}
		}
	}
	for i, o := range is {
		if o == nil {
			continue
		}
		for _, name := range o.applied {
			if t := f.rules.of(name); t != nil {
				t.applied[i] += n
				t.decided(i, name, is, n)
			}
		}
	}
}

// decided counts n requests to which a rule applied in a side.
func (t *tally) decided(side int, name string, is [2]*outcome, n float64) {
	o, other := is[side], is[1-side]
	switch {
	case o.denied && o.rule == name:
		t.denied[side] += n
	case o.shadow == name:
		t.shadow[side] += n
	}
	if other == nil || !o.denied || other.denied || o.rule != name {
		return
	}
	if side == candidate {
		t.newlyDenied += n
	} else {
		t.newlyPassed += n
	}
}

func (f *figures) mark(d denial) {
	if len(f.deniedBy) < maxNames {
		f.deniedBy[d] = struct{}{}
	}
}

// add counts n requests.
func (t *tally) add(is [2]*outcome, n float64) {
	t.requests += n
	for i, o := range is {
		switch {
		case o == nil:
		case o.denied:
			t.denied[i] += n
		case o.shadow != "":
			t.shadow[i] += n
		}
	}
	switch l, c := is[live], is[candidate]; {
	case c == nil || l.denied == c.denied:
	case c.denied:
		t.newlyDenied += n
	default:
		t.newlyPassed += n
	}
}

// steps are the distances of points. Each divides the next.
var steps = [...]int64{1, 5, 15, 60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 24 * 3600, 7 * 24 * 3600, 28 * 24 * 3600, 364 * 24 * 3600}

// at returns the point of a time. If there are too many, they are made longer.
func (f *figures) at(unix int64) *tally {
	start := f.startOf(unix)
	if f.point != nil && f.start == start {
		return f.point
	}
	t := f.points[start]
	if t == nil {
		t = new(tally)
		f.points[start] = t
		for len(f.points) > f.most && f.step < steps[len(steps)-1] {
			f.coarsen()
		}
		start = f.startOf(unix)
		t = f.points[start]
	}
	f.point, f.start = t, start
	return t
}

// covered returns the points of a part of the time, and how much of it is in each: what is read of it stands for all of it. The time
// of the series is known, so that no point becomes another.
func (f *figures) covered(from, to int64) []share {
	if from == f.part && f.covers != nil {
		return f.covers
	}
	f.part, f.covers = from, f.covers[:0]
	const second = int64(time.Second)
	for at := f.startOf(from / second); at*second < to; at += f.step {
		within := min(to, (at+f.step)*second) - max(from, at*second)
		f.covers = append(f.covers, share{f.at(at), float64(within) / float64(to-from)})
	}
	return f.covers
}

func mod(a, b int64) int64 { return ((a % b) + b) % b }

func (f *figures) coarsen() {
	i, _ := slices.BinarySearch(steps[:], f.step)
	f.step = steps[i+1]
	merged := map[int64]*tally{}
	for at, t := range f.points {
		start := f.startOf(at)
		if m := merged[start]; m != nil {
			m.merge(t)
		} else {
			merged[start] = t
		}
	}
	f.points = merged
}

func (t *tally) merge(o *tally) {
	t.requests += o.requests
	t.newlyDenied += o.newlyDenied
	t.newlyPassed += o.newlyPassed
	for i := range t.denied {
		t.denied[i] += o.denied[i]
		t.shadow[i] += o.shadow[i]
	}
}

// report returns the figures.
func (f *figures) report(top, sides int) Report {
	w := recorded.Whole
	p := Report{
		Events: f.events, Requests: w(f.all.requests), DeniedThen: w(f.then), Differently: w(f.differently),
		NewlyDenied: w(f.all.newlyDenied), NewlyPassed: w(f.all.newlyPassed),
		Rules: f.rules.rows(top), Endpoints: f.endpoints.rows(top), Tiers: f.tiers.rows(top), Subjects: f.subjects.rows(top),
		Series: []Point{}, Step: f.step,
	}
	by, all := map[string]int64{}, [2]int64{}
	for d := range f.deniedBy {
		if d.rule == "" {
			all[d.side]++
		} else {
			by[d.rule]++
		}
	}
	for i := range p.Rules {
		p.Rules[i].Subjects = by[p.Rules[i].Name]
	}
	side := func(i int) Side {
		return Side{Denied: w(f.all.denied[i]), Throttled: w(f.throttled[i]), Waited: f.waited[i], Longest: f.longest[i], Subjects: all[i]}
	}
	p.Live = side(live)
	if p.Requests > 0 && f.from < f.to { // also where there was nothing
		for at := f.startOf(f.from); at < f.to && len(f.points) <= f.most; at += f.step {
			f.at(at)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(f.points)) {
		t := f.points[at]
		p.Series = append(p.Series, Point{
			Start: time.Unix(at, 0).UTC(), Requests: w(t.requests), Live: w(t.denied[live]), Candidate: w(t.denied[candidate]),
			NewlyDenied: w(t.newlyDenied), NewlyPassed: w(t.newlyPassed),
		})
	}
	if sides > 1 {
		p.Candidate = new(side(candidate))
	}
	return p
}

// rows returns the first names: those with the most differences, then with the most denied requests, then with the most requests.
func (k *kind) rows(top int) []Row {
	out := make([]Row, 0, len(k.names))
	w := recorded.Whole
	for name, t := range k.names {
		out = append(out, Row{
			Name: name, Requests: w(max(t.requests, t.applied[live], t.applied[candidate])), Live: w(t.denied[live]), Candidate: w(t.denied[candidate]),
			NewlyDenied: w(t.newlyDenied), NewlyPassed: w(t.newlyPassed), ShadowLive: w(t.shadow[live]), ShadowCandidate: w(t.shadow[candidate]),
		})
	}
	slices.SortFunc(out, func(a, b Row) int {
		return cmp.Or(
			cmp.Compare(b.NewlyDenied+b.NewlyPassed, a.NewlyDenied+a.NewlyPassed), cmp.Compare(max(b.Live, b.Candidate), max(a.Live, a.Candidate)),
			cmp.Compare(b.Requests, a.Requests), strings.Compare(a.Name, b.Name),
		)
	})
	return slices.Clone(out[:min(len(out), top)])
}
