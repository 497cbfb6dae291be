package meter

import (
	"fmt"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/kit/scan"
)

// kind is what a meter looks at.
type kind uint8

const (
	requestBytes kind = iota
	responseBytes
	responseSeconds
	headerField
	jsonNumber
)

// plain are the meters without an argument.
var plain = map[string]kind{
	"request_bytes":    requestBytes,
	"response_bytes":   responseBytes,
	"response_seconds": responseSeconds,
}

// Meter is what is counted of a response. It is comparable.
type Meter struct {
	kind kind
	arg  string // the name of the header, or the path
}

// Parse reads the name of a meter: request_bytes, response_bytes, response_seconds,
// header:NAME or json:PATH. The header may also be a trailer. The path is that of a number,
// such as usage.total or results[0].cost ([scan.Paths]).
func Parse(name string) (Meter, error) {
	if kind, ok := plain[name]; ok {
		return Meter{kind: kind}, nil
	}
	switch before, arg, _ := strings.Cut(name, ":"); before {
	case "header":
		if !isToken(arg) {
			return Meter{}, fmt.Errorf("meter %q: want the name of a header after header:, such as header:X-Cost", name)
		}
		return Meter{headerField, textproto.CanonicalMIMEHeaderKey(arg)}, nil
	case "json":
		if err := scan.CheckPath(arg); err != nil {
			return Meter{}, fmt.Errorf("meter %q: %w", name, err)
		}
		return Meter{jsonNumber, arg}, nil
	}
	return Meter{}, fmt.Errorf("meter %q: want request_bytes, response_bytes, response_seconds, header:NAME or json:PATH", name)
}

// isToken reports whether s can be the name of a header, by RFC 9110.
func isToken(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != "" && len(s) <= scan.MaxName
}

// String returns the meter's name.
func (m Meter) String() string {
	switch m.kind {
	case headerField:
		return "header:" + m.arg
	case jsonNumber:
		return "json:" + m.arg
	default:
		for name, kind := range plain {
			if kind == m.kind {
				return name
			}
		}
		return ""
	}
}

// Why says why units are an estimate.
type Why uint8

const (
	// Exact: they are not an estimate.
	Exact Why = iota
	// Missing: there is no such header, or no such number in the JSON as far as it came.
	Missing
	// Encoded: the body has an encoding that is not decoded, or is damaged.
	Encoded
	// TooLarge: the body is larger than what is decoded of it.
	TooLarge
)

// String returns one word, for metrics and logs.
func (w Why) String() string {
	return [...]string{"exact", "missing", "encoded", "too_large"}[w]
}

// Units are what a response has used, by one meter.
type Units struct {
	N   int64
	Why Why
}

// Estimated reports whether the units are an estimate.
func (u Units) Estimated() bool { return u.Why != Exact }

// BytesPerUnit is for how many bytes of a body one unit is estimated. It is about the bytes
// of a token in a text.
const BytesPerUnit = 4

// Set is a list of meters, compiled. It is safe for concurrent use.
type Set struct {
	meters []Meter
	paths  *scan.Paths // nil if there are none
	index  []int       // of a meter's path
}

// NewSet compiles meters. They are those of [Parse], in any number and order.
func NewSet(meters ...Meter) *Set {
	s := &Set{meters: meters, index: make([]int, len(meters))}
	var paths []string
	seen := map[string]int{}
	for i, m := range meters {
		if m.kind != jsonNumber {
			continue
		}
		if _, twice := seen[m.arg]; !twice {
			seen[m.arg] = len(paths)
			paths = append(paths, m.arg)
		}
		s.index[i] = seen[m.arg]
	}
	if paths == nil {
		return s
	}
	var err error
	if s.paths, err = scan.NewPaths(paths...); err != nil {
		panic("meter: " + err.Error()) // Parse has checked them
	}
	return s
}

// Response observes one response. It is not safe for concurrent use.
type Response struct {
	set    *Set
	header http.Header
	bytes  int64
	body   *Body // nil if no meter needs it
	found  []Units
	event  []Units // of the JSON text that is being read
}

// Response begins to observe a response. The header is read now for how the body is
// encoded, and at the end for meters.
func (s *Set) Response(header http.Header) *Response {
	r := &Response{set: s, header: header}
	if s.paths != nil {
		both := make([]Units, 2*len(s.meters))
		for i := range both {
			both[i].Why = Missing
		}
		r.found, r.event = both[:len(s.meters)], both[len(s.meters):]
		r.body = NewBody(header, s.paths, r)
	}
	return r
}

// Write observes a piece of the body, as it is sent. It never fails.
func (r *Response) Write(p []byte) (int, error) {
	r.bytes = min(r.bytes+int64(len(p)), scan.MaxNumber)
	if r.body != nil {
		r.body.Write(p)
	}
	return len(p), nil
}

// End is what is known at the end of a response.
type End struct {
	Trailer      http.Header
	RequestBytes int64 // how long the request's body was
	Took         time.Duration
}

// End ends the response, whole or not, and appends what it has used to units, in the order
// of the meters. It must be called once.
func (r *Response) End(units []Units, e End) []Units {
	if r.body != nil {
		r.body.Close()
	}
	for i, m := range r.set.meters {
		var u Units
		switch m.kind {
		case requestBytes:
			u.N = clamp(e.RequestBytes)
		case responseBytes:
			u.N = r.bytes
		case responseSeconds:
			u.N = seconds(e.Took)
		case headerField:
			u = r.fromHeader(m.arg, e.Trailer)
		case jsonNumber:
			u = r.fromJSON(r.set.index[i])
		}
		units = append(units, u)
	}
	return units
}

func clamp(n int64) int64 { return min(max(n, 0), scan.MaxNumber) }

// seconds rounds up.
func seconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Second) + 1
}

// fromHeader reads a trailer, or else a header. Of several values, the last one holds.
func (r *Response) fromHeader(name string, trailer http.Header) Units {
	for _, h := range [...]http.Header{trailer, r.header} {
		if values := h[name]; len(values) > 0 {
			if n, ok := scan.Ceil(values[len(values)-1]); ok {
				return Units{N: n}
			}
		}
	}
	return Units{1, Missing}
}

func (r *Response) fromJSON(path int) Units {
	u := r.found[path]
	if u.Why == Exact {
		return u
	}
	read := max(r.bytes, r.body.Decoded())
	return Units{max((read+BytesPerUnit-1)/BytesPerUnit, 1), max(u.Why, r.body.Why())}
}

// Value implements [scan.Finder].
func (r *Response) Value(path int, v scan.Value) {
	if v.Kind == scan.Number {
		r.event[path] = Units{N: v.Number}
	}
}

// Text implements [scan.Finder].
func (r *Response) Text(int, []byte) {}

// EndText implements [Reader]: what the text has holds from now on, if it is whole.
func (r *Response) EndText(e Event) {
	for i, u := range r.event {
		if e.Whole && u.Why == Exact {
			r.found[i] = u
		}
		r.event[i] = Units{Why: Missing}
	}
}
