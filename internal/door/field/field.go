// Package field writes a verdict as fields: headers in HTTP, metadata in gRPC. It decides
// what they say about limits, and how numbers are rounded and written.
//
// # Invariants
//
//   - Every number is rounded against the client: a client that follows the fields is not
//     denied, as long as no one else uses the same limits.
//   - A number that was not counted is not sent.
//
// # What it does not do
//
// It reads no fields, and knows nothing of protocols except how they spell names.
package field

import (
	"math/bits"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
)

// Set chooses the fields. The zero value is X, IETF and ID.
type Set uint8

const (
	// X is X-RateLimit-Limit, -Remaining and -Reset, of the binding limit, and
	// X-RateLimit-Cost if the request does not cost 1.
	X Set = 1 << iota
	// IETF is RateLimit-Policy and RateLimit, of all limits, by
	// draft-ietf-httpapi-ratelimit-headers-11.
	IETF
	// None is none of them. A denied client still gets Retry-After.
	None
	// ID is Stint-Decision, the id of the decision, whether a limit applied or not.
	ID
)

// Has reports whether one of the sets is chosen.
func (s Set) Has(one Set) bool { return s&one != 0 || s == 0 && one != None }

// Set sets the headers of a verdict. They describe limits that were counted for this
// request, without those of log_only rules and without penalties; if there are none, only the
// id is set. A limit that could not be counted has a policy without numbers. For a
// client that is banned by a penalty, nothing remains of that rule's limits until the ban
// ends.
//
// A policy has the name of its limit, or rule/limit if limits of several rules that
// applied have the same name.
//
// Retry-After is set if the request was answered with 429 or 503 and can pass later.
func (s Set) Set(h http.Header, v *engine.Verdict) { s.set(h, v, false) }

// SetLower is Set for maps with names in lower case, as in gRPC.
func (s Set) SetLower(md map[string][]string, v *engine.Verdict) { s.set(md, v, true) }

func (s Set) set(to map[string][]string, v *engine.Verdict, lower bool) {
	f := pool.Get().(*fields)
	defer pool.Put(f)
	f.text, f.start, f.n = f.text[:0], 0, 0
	if s.Has(X) {
		f.addX(v)
	}
	if s.Has(IETF) {
		f.addPolicies(v)
		f.addStandings(v)
	}
	if s.Has(ID) && v.ID != (engine.ID{}) {
		f.text, _ = v.ID.AppendText(f.text) // it never fails
		f.end(&decision)
	}
	if wait, ok := RetryAfter(v); ok && (v.Status == http.StatusTooManyRequests || v.Status == http.StatusServiceUnavailable) {
		f.number(&retryAfter, Seconds(wait))
	}
	f.set(to, lower)
}

// RetryAfter returns how long to wait, if the request did not pass and waiting helps.
func RetryAfter(v *engine.Verdict) (wait time.Duration, ok bool) {
	return v.RetryAfter, !v.Outcome.Passed() && v.RetryAfter > 0 && v.RetryAfter != stint.Never
}

// isPolicy reports whether the limit is sent to clients.
func isPolicy(l *engine.Limit) bool { return l.Penalty == nil && !l.Shadow }

// Next iterates over the policies in the order in which they are sent: first the binding
// one or, if that is a penalty, those of its rule. It returns a policy and where to go
// on, or nil after the last.
func Next(v *engine.Verdict, at int) (l *engine.Limit, after int) {
	for n := len(v.Limits); at < 2*n; at++ { // twice: once for those that lead
		i := at % n
		l = &v.Limits[i]
		if isPolicy(l) && (i == 0 || Banned(v, l)) == (at < n) {
			return l, at + 1
		}
	}
	return nil, at
}

// Banned reports whether a penalty of the limit's rule denies the request.
func Banned(v *engine.Verdict, l *engine.Limit) bool {
	first := &v.Limits[0]
	return first.Penalty != nil && !first.Decision.Allowed && first.Rule == l.Rule
}

// PolicyName returns the limit's name, prefixed with its rule's if the name is not unique.
func PolicyName(v *engine.Verdict, l *engine.Limit) (rule, slash, name string) {
	for i := range v.Limits {
		if other := &v.Limits[i]; other.Rule != l.Rule && other.Name == l.Name && isPolicy(other) {
			return l.Rule.Name, "/", l.Name
		}
	}
	return "", "", l.Name
}

// Counted reports whether there are numbers to send.
func Counted(l *engine.Limit) bool { return l.Decision.Basis < stint.Open }

// Standing returns what remains of a limit, and when the whole of it is available again.
func Standing(v *engine.Verdict, l *engine.Limit) (remaining int64, reset time.Duration) {
	d := &l.Decision
	if Banned(v, l) {
		return 0, max(d.ResetAfter, v.Limits[0].Decision.RetryAfter)
	}
	return d.Remaining, d.ResetAfter
}

// during returns for how long at most no more than what remains can pass.
func during(v *engine.Verdict, l *engine.Limit) time.Duration {
	d := &l.Decision
	switch {
	case Banned(v, l):
		return v.Limits[0].Decision.RetryAfter
	case !d.Allowed && d.RetryAfter != stint.Never:
		return d.RetryAfter
	case d.ResetAfter > 0 && (d.Basis == stint.Local || l.Limit.Algorithm == stint.FixedWindow):
		return d.ResetAfter // a share of a limit takes longer than the limit; a window ends
	case d.ResetAfter > 0:
		return min(d.ResetAfter, longest(v, l))
	}
	return longest(v, l)
}

// longest returns how long it can take until the same cost can pass again, however the
// limit was used.
func longest(v *engine.Verdict, l *engine.Limit) time.Duration {
	window := windowOf(v, l)
	if l.Limit.Algorithm == stint.FixedWindow || l.Limit.Algorithm == stint.SlidingLog {
		return window
	}
	part := stint.MaxWindow // the time in which the cost is restored
	if high, low := bits.Mul64(uint64(window), uint64(max(l.Cost, 1))); high < uint64(l.Limit.Max) {
		quotient, rest := bits.Div64(high, low, uint64(l.Limit.Max))
		part = time.Duration(min(quotient+min(rest, 1), uint64(part)))
	}
	if tick := l.Limit.Tick(); tick > time.Microsecond {
		part += tick // times are rounded to it
	}
	if l.Limit.Algorithm == stint.SlidingWindow {
		// What was used in one window is restored during the next.
		next := window
		if reset := l.Decision.ResetAfter; reset > 0 {
			next = max(min(next, reset-window), 0)
		}
		part += next
	}
	return part
}

// windowOf returns the length of the limit's window: of the current one, if they differ.
func windowOf(v *engine.Verdict, l *engine.Limit) time.Duration {
	if n := l.Limit.Window.Length(); n > 0 {
		return n
	}
	start, end := l.Limit.Window.Bounds(v.At)
	return end.Sub(start)
}

// Seconds rounds up, to 1 at least.
func Seconds(d time.Duration) int64 { return max(int64((d-1)/time.Second)+1, 1) }

// name is the name of a field, canonical and in lower case.
type name struct{ canonical, lower string }

var (
	limit      = name{"X-Ratelimit-Limit", "x-ratelimit-limit"}
	remaining  = name{"X-Ratelimit-Remaining", "x-ratelimit-remaining"}
	reset      = name{"X-Ratelimit-Reset", "x-ratelimit-reset"}
	cost       = name{"X-Ratelimit-Cost", "x-ratelimit-cost"}
	policy     = name{"Ratelimit-Policy", "ratelimit-policy"}
	rateLimit  = name{"Ratelimit", "ratelimit"}
	retryAfter = name{"Retry-After", "retry-after"}
	decision   = name{Decision, "stint-decision"}
)

// Decision is the header with the id of the decision.
const Decision = "Stint-Decision"

// Over is the header of a request that passes and is over limits of mark rules: for its target.
const Over = "Stint-Over"

// OverOf returns the value of [Over], or an empty text if the request is over no such limit. It is a list of structured fields: of
// each limit its rule and name, how much it allows, how many units were missing, and in how many seconds they are there, if ever.
func OverOf(v *engine.Verdict) string {
	if !v.Outcome.Passed() {
		return ""
	}
	var text []byte
	for i := range v.Limits {
		if l := &v.Limits[i]; l.Marks() {
			text = AppendOver(text, l.Rule.Name+"/"+l.Name, l.Cost, &l.Decision)
		}
	}
	return string(text)
}

// AppendOver appends a limit that a request of this cost is over to the value of [Over].
func AppendOver(text []byte, name string, cost int64, d *stint.Decision) []byte {
	f := fields{text: text}
	f.begin(name)
	f.parameter(";q=", d.Limit)
	f.parameter(";over=", max(cost-d.Remaining, 1))
	if d.RetryAfter != stint.Never {
		f.parameter(";t=", Seconds(d.RetryAfter))
	}
	return f.text
}

// fields are written into one text that is cut when it is complete.
type fields struct {
	text  []byte
	start int // of the value that is being written
	names [8]*name
	ends  [8]int
	n     int
}

// pool has buffers for fields. Clients do not determine their length.
var pool = sync.Pool{New: func() any { return new(fields) }}

// end ends the value of a field. Empty values are left out.
func (f *fields) end(n *name) {
	if len(f.text) > f.start {
		f.start = len(f.text)
		f.names[f.n], f.ends[f.n] = n, f.start
		f.n++
	}
}

func (f *fields) number(n *name, value int64) {
	f.text = strconv.AppendInt(f.text, value, 10)
	f.end(n)
}

func (f *fields) set(to map[string][]string, lower bool) {
	text, values, start := string(f.text), make([]string, f.n), 0
	for i, end := range f.ends[:f.n] {
		values[i] = text[start:end]
		name := f.names[i].canonical
		if lower {
			name = f.names[i].lower
		}
		to[name] = values[i : i+1 : i+1]
		start = end
	}
}

func (f *fields) addX(v *engine.Verdict) {
	l, _ := Next(v, 0)
	if l == nil {
		return
	}
	if Counted(l) {
		left, full := Standing(v, l)
		f.number(&limit, l.Decision.Limit)
		f.number(&remaining, left)
		f.number(&reset, v.At.Add(v.Waited+full+time.Second-1).Unix())
	}
	if l.Cost != 1 {
		f.number(&cost, l.Cost)
	}
}

func (f *fields) addPolicies(v *engine.Verdict) {
	for l, at := Next(v, 0); l != nil; l, at = Next(v, at) {
		f.item(v, l)
		f.parameter(";q=", l.Decision.Limit)
		f.parameter(";w=", Seconds(windowOf(v, l)))
	}
	f.end(&policy)
}

func (f *fields) addStandings(v *engine.Verdict) {
	for l, at := Next(v, 0); l != nil; l, at = Next(v, at) {
		if Counted(l) {
			left, _ := Standing(v, l)
			f.item(v, l)
			f.parameter(";r=", left)
			f.parameter(";t=", Seconds(during(v, l)))
		}
	}
	f.end(&rateLimit)
}

// item begins an item of a list with the name of a policy.
func (f *fields) item(v *engine.Verdict, l *engine.Limit) {
	rule, slash, name := PolicyName(v, l)
	f.begin(rule, slash, name)
}

// begin begins an item of a list: a string of these parts.
func (f *fields) begin(parts ...string) {
	if len(f.text) > f.start {
		f.text = append(f.text, ", "...)
	}
	f.text = append(f.text, '"')
	for _, part := range parts {
		f.text = appendEscaped(f.text, part)
	}
	f.text = append(f.text, '"')
}

// appendEscaped appends the content of a structured string, which is printable ASCII.
func appendEscaped(b []byte, s string) []byte {
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~':
			b = append(b, '%', upperHex[c>>4], upperHex[c&15])
		default:
			b = append(b, c)
		}
	}
	return b
}

const upperHex = "0123456789ABCDEF"

// parameter writes an integer, up to the largest that structured fields have.
func (f *fields) parameter(name string, n int64) {
	const largest = 999_999_999_999_999
	f.text = strconv.AppendInt(append(f.text, name...), min(n, largest), 10)
}

// Violated reports whether the request is over the limit, or banned because it was. A limit
// that could not be counted is not violated.
func Violated(v *engine.Verdict, l *engine.Limit) bool {
	return !l.Decision.Allowed && l.Decision.Basis != stint.Closed || Banned(v, l)
}
