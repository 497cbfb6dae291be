// Package virtual runs an [engine.Engine] in virtual time: requests happen at the instants that one says, and those that are held go
// on when it is their time, in no time at all.
//
//	w := virtual.New(start)
//	defer w.Close()
//	store, err := memstore.New(memstore.Options{Now: w.Now})
//	e, err := engine.New(engine.Options{Store: store, Rules: rules, Now: w.Now, Timers: w})
//	w.Advance(start.Add(time.Second))
//	w.Go(func() { verdict, err = e.Decide(ctx, q) }) // returns when it is decided, or held
//	w.Advance(w.Now().Add(time.Minute))              // what was held has gone on
//
// Invariants:
//
//   - Only one of the functions runs at a time, and what they do depends on nothing but their order and instants: the same calls give
//     the same verdicts.
//   - What is due at one instant happens in the order in which it began to wait; what is woken goes on at the instant when it is.
//   - Time never goes back.
//
// It does not decide anything, and knows no rules. A World must be used by one goroutine, except by the functions that it runs.
package virtual

import (
	"container/heap"
	"context"
	"iter"
	"time"
)

// World is virtual time, and what waits in it. It implements [engine.Timers].
type World struct {
	now     time.Time
	running *worker
	idle    []*worker
	due     queue
	wakened []*event // those that can be woken, in the order in which they began to wait
	waiting int
	count   int64
	closed  bool
}

// New returns a world whose time is start.
func New(start time.Time) *World { return &World{now: start} }

// Now returns the time.
func (w *World) Now() time.Time { return w.now }

// Waiting returns how many functions wait.
func (w *World) Waiting() int { return w.waiting }

// worker runs functions as a coroutine, so that one of them can wait while others run.
type worker struct {
	task   func()
	resume func() (struct{}, bool)
	yield  func(struct{}) bool
	stop   func()
	waits  bool // it has yielded because its task waits
	waited bool // what the wait returns
}

// event is something that happens later: a function goes on, or is called.
type event struct {
	at     time.Time
	order  int64
	worker *worker
	call   func()
	wake   <-chan struct{}
	index  int // in the queue, or -1
}

// Go runs f now, until it ends or waits.
func (w *World) Go(f func()) {
	var k *worker
	if n := len(w.idle); n > 0 {
		k, w.idle = w.idle[n-1], w.idle[:n-1]
	} else {
		k = new(worker)
		k.resume, k.stop = iter.Pull(func(yield func(struct{}) bool) {
			k.yield = yield
			for more := true; more; more = yield(struct{}{}) {
				k.task()
			}
		})
	}
	k.task = f
	w.run(k)
	w.wake()
}

// run has a worker go on until its task ends or waits.
func (w *World) run(k *worker) {
	outer := w.running
	w.running, k.waits = k, false
	k.resume()
	if w.running = outer; !k.waits {
		k.task = nil
		w.idle = append(w.idle, k)
	}
}

// wake has those go on that can receive what they wait for.
func (w *World) wake() {
	for i := 0; i < len(w.wakened); {
		e := w.wakened[i]
		select {
		case <-e.wake:
			w.remove(e)
			e.worker.waited = true
			w.run(e.worker)
			i = 0
		default:
			i++
		}
	}
}

// Advance lets the time pass until then. What is due on the way happens at its instant.
func (w *World) Advance(until time.Time) {
	for len(w.due) > 0 && !w.due[0].at.After(until) {
		e := w.due[0]
		w.remove(e)
		if e.at.After(w.now) {
			w.now = e.at
		}
		if e.worker != nil {
			e.worker.waited = true
			w.run(e.worker)
		} else {
			w.Go(e.call)
		}
		w.wake()
	}
	if until.After(w.now) {
		w.now = until
	}
}

// Finish lets the time pass until no function waits any more, or until a time.
func (w *World) Finish(until time.Time) {
	for w.Waiting() > 0 && !w.due[0].at.After(until) {
		w.Advance(w.due[0].at)
	}
}

// Close ends what waits: for it, the context is done.
func (w *World) Close() {
	w.closed = true
	for len(w.due) > 0 {
		e := w.due[0]
		w.remove(e)
		if e.worker != nil {
			e.worker.waited = false
			w.run(e.worker)
		}
	}
	for _, k := range w.idle {
		k.stop()
	}
	w.idle = nil
}

// Pause implements [engine.Timers]: the function that calls it waits.
func (w *World) Pause(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	if w.closed || ctx.Err() != nil {
		return false
	}
	k := w.running
	e := w.add(&event{at: w.now.Add(max(d, 0)), worker: k, wake: wake})
	if wake != nil {
		w.wakened = append(w.wakened, e)
	}
	k.waits = true
	k.yield(struct{}{})
	return k.waited && ctx.Err() == nil
}

// AfterFunc implements [engine.Timers].
func (w *World) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	if w.closed {
		return func() bool { return false }
	}
	e := w.add(&event{at: w.now.Add(max(d, 0)), call: f})
	return func() bool {
		if e.index < 0 {
			return false
		}
		w.remove(e)
		return true
	}
}

func (w *World) add(e *event) *event {
	w.count++
	e.order = w.count
	if e.worker != nil {
		w.waiting++
	}
	heap.Push(&w.due, e)
	return e
}

func (w *World) remove(e *event) {
	heap.Remove(&w.due, e.index)
	if e.worker != nil {
		w.waiting--
	}
	if e.wake == nil {
		return
	}
	for i, other := range w.wakened {
		if other == e {
			w.wakened = append(w.wakened[:i], w.wakened[i+1:]...)
			return
		}
	}
}

// queue is a heap of events, by time and order.
type queue []*event

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	if c := q[i].at.Compare(q[j].at); c != 0 {
		return c < 0
	}
	return q[i].order < q[j].order
}

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *queue) Push(e any) {
	v := e.(*event)
	v.index = len(*q)
	*q = append(*q, v)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q, e.index = (*q)[:last], -1
	return e
}
