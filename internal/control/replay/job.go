package replay

import (
	"cmp"
	"slices"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/internal/record"
)

// job is a request that is decided by both sides, as often as it represents others.
type job struct {
	event    int64
	region   string
	request  engine.Request
	subject  identity.Subject
	times    int64
	scale    float64
	refused  bool // at the time
	open     int  // turns that are held, and 1 while there may be more
	outcomes [2][]outcome
	at       recordedAt
}

// recordedAt is what figures are kept by.
type recordedAt struct {
	unix                    int64
	part, partEnd           int64 // of the time, in nanoseconds, if the request stands for all of it
	endpoint, tier, subject string
}

// outcome is that of some of the requests of a job, in the order in which they were sent.
type outcome struct {
	n            int64
	denied       bool
	rule, shadow string // that decided, and that would have denied it
	waited       float64
	applied      []string // all rules that did
}

// turn is a request that one side decides. It may be held.
type turn struct {
	run     *run
	job     *job
	side    int
	slot    int
	request engine.Request
	verdict engine.Verdict
	held    bool
	done    bool
	begin   func() // the method decide, which is made once
}

func (r *run) newJob(q *recorded.Request, times int64) *job {
	var j *job
	if n := len(r.idle); n > 0 {
		j, r.idle = r.idle[n-1], r.idle[:n-1]
		*j = job{outcomes: [2][]outcome{j.outcomes[0][:0], j.outcomes[1][:0]}}
	} else {
		j = new(job)
	}
	j.event, j.times, j.scale, j.refused, j.open = r.figures.events, times, q.Counts(1), q.Refused, 1
	j.region = q.Region
	j.subject = identity.Subject{User: q.User, Tenant: q.Tenant, Key: q.Key, Tier: q.Tier, IP: addressOf(q.IP)}
	j.request = engine.Request{Method: q.Method, Path: cmp.Or(q.Path, q.Endpoint), Subject: &j.subject, Usage: q.Usage, Held: true}
	j.at = recordedAt{unix: q.At.Unix(), endpoint: r.figures.normal(q), tier: q.Tier, subject: subjectOf(q)}
	if q.Part.Before(q.PartEnd) {
		j.at.part, j.at.partEnd = q.Part.UnixNano(), q.PartEnd.UnixNano()
	}
	return j
}

// subjectOf returns the name of a client.
func subjectOf(q *recorded.Request) string {
	switch {
	case q.User != "":
		return "user:" + q.User
	case q.Key != "":
		return "key:" + q.Key
	case q.IP != "":
		return "ip:" + q.IP
	case q.Tenant != "":
		return "tenant:" + q.Tenant
	default:
		return ""
	}
}

// decide has one side decide the requests of a job. What is known of the next without asking is not asked: after a request that was
// denied, the same one is denied at the same instant; and as many pass as fit, which are taken at once.
func (r *run) decide(j *job, side int) {
	if r.sides[side].empty {
		j.outcomes[side] = append(j.outcomes[side], outcome{n: j.times})
		return
	}
	for left := j.times; left > 0; {
		t := r.send(j, side, 1, 0)
		left--
		if t.held {
			continue
		}
		slot := &j.outcomes[side][t.slot]
		more, cost := r.alike(t, left)
		r.turns = append(r.turns, t)
		switch {
		case more == 0:
		case cost == 0:
			slot.n += more
			left -= more
		default:
			if bulk := r.send(j, side, more, cost); !bulk.held {
				r.turns = append(r.turns, bulk)
			}
			left -= more
		}
	}
}

// send decides a request with a cost, which stands for n of them.
func (r *run) send(j *job, side int, n, cost int64) *turn {
	var t *turn
	if k := len(r.turns); k > 0 {
		t, r.turns = r.turns[k-1], r.turns[:k-1]
	} else {
		t = &turn{run: r}
		t.begin = t.decide
	}
	t.job, t.side, t.slot, t.request, t.held, t.done = j, side, len(j.outcomes[side]), j.request, false, false
	if cost > 0 {
		t.request.Cost = cost
	}
	if t.slot == cap(j.outcomes[side]) {
		j.outcomes[side] = append(j.outcomes[side], outcome{})
	}
	j.outcomes[side] = j.outcomes[side][:t.slot+1]
	out := &j.outcomes[side][t.slot]
	*out = outcome{n: n, applied: out.applied[:0]}
	j.open++
	r.world.Go(t.begin)
	t.held = !t.done
	return t
}

// decide runs in virtual time.
func (t *turn) decide() {
	r, j, v := t.run, t.job, &t.verdict
	e, err := r.sides[t.side].engineOf(j.region)
	if err == nil {
		err = e.DecideInto(r.ctx, &t.request, v)
	}
	r.failed = cmp.Or(r.failed, err)
	r.sides[t.side].see(v.Limits, v.At)
	out := &j.outcomes[t.side][t.slot]
	out.denied, out.waited = !v.Outcome.Passed(), v.Waited.Seconds()
	if v.Rule != nil {
		out.rule = v.Rule.Name
		out.applied = append(out.applied, out.rule)
	}
	for i := range v.Limits {
		if name := v.Limits[i].Rule.Name; !slices.Contains(out.applied, name) {
			out.applied = append(out.applied, name)
		}
	}
	if l := v.Shadowed(); l != nil && !out.denied {
		out.shadow = l.Rule.Name
	}
	t.done = true
	if t.held {
		r.turns = append(r.turns, t)
	}
	if j.open--; j.open == 0 {
		r.settle(j)
	}
}

// alike returns how many of the next requests, at most left, have the same outcome as this one, and what has to be taken for them.
// It returns 0 if that has to be found out one by one.
func (r *run) alike(t *turn, left int64) (more, cost int64) {
	v := &t.verdict
	if left == 0 || len(v.Limits) == 0 {
		return left, 0 // it is not counted
	}
	if !v.Outcome.Passed() {
		for i := range v.Limits {
			if v.Limits[i].Penalty != nil && v.Outcome != engine.Banned {
				return 0, 0 // each of them is a violation
			}
		}
		return left, 0
	}
	each := int64(0)
	for i := range v.Limits {
		l := &v.Limits[i]
		if l.Penalty != nil {
			continue
		}
		if m, _ := l.Rule.Meter(); m != "" || l.Limit.Algorithm == stint.LeakyBucket || each != 0 && l.Cost != each {
			return 0, 0
		}
		each = l.Cost
		if l.Decision.Allowed {
			left = min(left, l.Decision.Remaining/each)
		}
	}
	const large = 1 << 40
	if each == 0 || left <= 1 || left > large/each {
		return 0, 0
	}
	return left, left * each
}

// settle counts a job that has ended.
func (r *run) settle(j *job) {
	if r.told != nil {
		r.told(j.event, j.denied(len(r.sides)))
	}
	r.figures.count(j, len(r.sides))
	r.idle = append(r.idle, j)
}

// denied returns how many of the requests each side denies.
func (j *job) denied(sides int) []int64 {
	out := make([]int64, sides)
	for i := range sides {
		for _, o := range j.outcomes[i] {
			if o.denied {
				out[i] += o.n
			}
		}
	}
	return out
}

// normal returns the endpoint of a request: its path without ids, or the pattern that has matched.
func (f *figures) normal(q *recorded.Request) string {
	if q.Path == "" {
		return q.Endpoint
	}
	if name, ok := f.normals[q.Path]; ok {
		return name
	}
	const most = 10_000
	if len(f.normals) >= most {
		clear(f.normals)
	}
	name := record.EndpointOf(q.Path)
	f.normals[q.Path] = name
	return name
}
