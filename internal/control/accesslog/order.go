package accesslog

import (
	"iter"
	"slices"
	"time"

	"github.com/stintdev/stint/internal/control/recorded"
)

// Lines are in the order in which requests ended, and some servers write when they began. Those within horizon are sorted, as long as
// there are at most maxHeld.
const (
	horizon = 10 * time.Second
	maxHeld = 1 << 16
)

// entry is a request of a line.
type entry struct {
	request recorded.Request
	coarse  bool // only the second is known
}

// order sorts requests, and divides those of a second evenly.
type order struct {
	yield  func(recorded.Request, error) bool
	late   *int64
	held   []*entry // by time; those before from have passed
	from   int
	last   time.Time
	second []*entry // those that only the same second is known of
	free   []*entry
}

func (r *Reader) ordered(entries iter.Seq2[entry, error]) iter.Seq2[recorded.Request, error] {
	return func(yield func(recorded.Request, error) bool) {
		o := order{yield: yield, late: &r.Stats.Late}
		for e, err := range entries {
			if err != nil {
				yield(recorded.Request{}, err)
				return
			}
			o.hold(e)
			newest := o.held[len(o.held)-1].request.At
			for len(o.held)-o.from > maxHeld || newest.Sub(o.held[o.from].request.At) > horizon {
				if !o.pass() {
					return
				}
			}
		}
		for o.from < len(o.held) {
			if !o.pass() {
				return
			}
		}
		o.flush()
	}
}

// hold adds a request after those of its time. Most are the newest.
func (o *order) hold(e entry) {
	var p *entry
	if n := len(o.free); n > 0 {
		p, o.free = o.free[n-1], o.free[:n-1]
	} else {
		p = new(entry)
	}
	*p = e
	if o.from > len(o.held)/2 {
		n := copy(o.held, o.held[o.from:])
		clear(o.held[n:])
		o.held, o.from = o.held[:n], 0
	}
	if n := len(o.held); n == o.from || !e.request.At.Before(o.held[n-1].request.At) {
		o.held = append(o.held, p)
		return
	}
	at, _ := slices.BinarySearchFunc(o.held[o.from:], e.request.At, func(x *entry, at time.Time) int {
		if x.request.At.After(at) {
			return 1
		}
		return -1
	})
	o.held = slices.Insert(o.held, o.from+at, p)
}

// pass lets the oldest request pass, and reports whether to go on.
func (o *order) pass() bool {
	e := o.held[o.from]
	o.held[o.from] = nil
	o.from++
	if e.request.At.Before(o.last) {
		*o.late++
		e.request.At = o.last
	}
	o.last = e.request.At
	if n := len(o.second); n > 0 && (!e.coarse || n == maxHeld || !e.request.At.Equal(o.second[0].request.At)) && !o.flush() {
		return false
	}
	if e.coarse {
		o.second = append(o.second, e)
		return true
	}
	o.free = append(o.free, e)
	return o.yield(e.request, nil)
}

// flush lets the requests of a second pass.
func (o *order) flush() bool {
	n := time.Duration(len(o.second))
	for i, e := range o.second {
		e.request.At = e.request.At.Add(time.Duration(i) * time.Second / n)
		if !o.yield(e.request, nil) {
			return false
		}
	}
	o.free = append(o.free, o.second...)
	o.second = o.second[:0]
	return true
}
