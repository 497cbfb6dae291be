// Package quiet bounds logs. Clients, and servers that come and go, can make a program log
// the same line any number of times: a [Handler] writes the first of such lines at once and
// then one a second, with the number of those that it left out.
//
// Lines are the same if they have the same level and message, and the same values of some
// attributes that the handler is told of. The values of others may differ, since clients may
// have chosen them.
//
// # Invariants
//
//   - A line that has not been logged for a second is written at once.
//   - The last of lines that repeat is written, at most a second late, even if nothing is
//     logged after it. The attribute left_out is the number of lines that were left out
//     before it, so that the lines written and left out are all that were logged.
//   - A line that is logged in the context of [Every] is written, at once.
//   - There are at most [MaxLines] different lines a second, and further ones count as one.
//     So is the memory bounded.
//
// It does not sample: a line that does not repeat is never left out.
package quiet

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	// MaxLines is how many different lines are told apart at a time.
	MaxLines = 256
	// interval is how often a line is written.
	interval = time.Second
)

// Handler bounds the lines of another handler. It is a [slog.Handler].
type Handler struct {
	next  slog.Handler
	lines *lines
	bound string // the attributes of With that tell lines apart
}

// lines are shared by a handler and those made from it.
type lines struct {
	by []string // the names of attributes that tell lines apart

	mu  sync.Mutex
	all map[string]*line // at most MaxLines, and one for all others
}

// line is one that was written less than an interval ago, or that is held.
type line struct {
	until time.Time // when the next one may be written

	// The last one that was not written, if held.
	held    bool
	ctx     context.Context // of the record
	record  slog.Record
	to      slog.Handler
	leftOut int         // how many were left out before it
	timer   *time.Timer // writes it
}

// others is the key of all lines that exceed MaxLines. No line has it.
const others = ""

// New returns a handler that passes lines on to next. The names are those of attributes
// that tell lines apart: those whose values clients do not choose. If next is a Handler, it
// is returned.
func New(next slog.Handler, by ...string) *Handler {
	if h, ok := next.(*Handler); ok {
		return h
	}
	return &Handler{next: next, lines: &lines{by: by, all: map[string]*line{}}}
}

type everyKey struct{}

// Every returns a context in which no line is left out. It is for what authenticated people did, which
// someone may look for in the log.
func Every(ctx context.Context) context.Context { return context.WithValue(ctx, everyKey{}, true) }

// Enabled implements [slog.Handler].
func (h *Handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// WithAttrs implements [slog.Handler].
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	bound := h.bound
	for _, a := range attrs {
		bound = h.lines.mark(bound, a)
	}
	return &Handler{h.next.WithAttrs(attrs), h.lines, bound}
}

// WithGroup implements [slog.Handler].
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{h.next.WithGroup(name), h.lines, h.bound}
}

// mark appends an attribute to a key if it tells lines apart.
func (l *lines) mark(key string, a slog.Attr) string {
	if !slices.Contains(l.by, a.Key) {
		return key
	}
	return key + " " + a.Key + "=" + strconv.Quote(a.Value.Resolve().String())
}

// Handle implements [slog.Handler].
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	key := r.Level.String() + " " + strconv.Quote(r.Message) + h.bound
	r.Attrs(func(a slog.Attr) bool {
		key = h.lines.mark(key, a)
		return true
	})
	if ctx.Value(everyKey{}) == nil && h.lines.hold(ctx, key, h.next, r) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

// hold holds a line that was written less than an interval ago, or reports that it may be
// written now.
func (l *lines) hold(ctx context.Context, key string, to slog.Handler, r slog.Record) bool {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.find(key, now)
	if !x.held && !now.Before(x.until) {
		x.until = now.Add(interval)
		return false
	}
	if x.held {
		x.leftOut++
	} else {
		x.held = true
		x.timer = time.AfterFunc(x.until.Sub(now), func() { l.release(x) })
	}
	x.ctx, x.to, x.record = context.WithoutCancel(ctx), to, r.Clone()
	return true
}

// find returns the line with a key. If there are too many, it forgets those that are over,
// and otherwise takes the line for all others.
func (l *lines) find(key string, now time.Time) *line {
	x := l.all[key]
	if x == nil && len(l.all) >= MaxLines {
		for key, x := range l.all {
			if !x.held && !now.Before(x.until) {
				delete(l.all, key)
			}
		}
		if len(l.all) >= MaxLines {
			key = others
			x = l.all[key]
		}
	}
	if x == nil {
		x = new(line)
		l.all[key] = x
	}
	return x
}

// release writes a line that is held.
func (l *lines) release(x *line) {
	l.mu.Lock()
	if !x.held { // Flush was faster
		l.mu.Unlock()
		return
	}
	ctx, to, r, leftOut := x.ctx, x.to, x.record, x.leftOut
	x.timer.Stop()
	*x = line{until: time.Now().Add(interval)}
	l.mu.Unlock()
	if leftOut > 0 {
		r.AddAttrs(slog.Int("left_out", leftOut))
	}
	_ = to.Handle(ctx, r) // as slog.Logger does
}

// Flush writes all lines that are held, for a program that ends.
func (h *Handler) Flush() {
	h.lines.mu.Lock()
	var held []*line
	for _, x := range h.lines.all {
		if x.held {
			held = append(held, x)
		}
	}
	h.lines.mu.Unlock()
	slices.SortFunc(held, func(a, b *line) int { return a.record.Time.Compare(b.record.Time) })
	for _, x := range held {
		h.lines.release(x)
	}
}
