// Package fitting says how often clients ask, and which limits would fit that: which would deny at most one client in so many.
//
//	a := fitting.New(fitting.Options{})
//	a.Survey(requests)           // what there is
//	a.Measure(requests)          // of the busiest endpoints, in the same requests again
//	rules := a.Result().Rules()  // for package replay, which says what they would deny
//
// For each client, it keeps the smallest limit that would never have denied it, by the arithmetic of sliding windows. A limit fits if
// it is that of all clients but one in so many.
//
// Memory is bounded: of more clients than fit, a sample is kept, chosen by their hash, and then numbers of clients are estimates. The
// package decides no request.
package fitting

import (
	"cmp"
	"iter"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/internal/record"
)

// Options configure an analysis.
type Options struct {
	// OneIn says that limits may deny one client in so many. Default 1000.
	OneIn int64
	// By is what clients are told apart by: ip, which is the default, or user.
	By string
	// Endpoints is how many of the busiest endpoints have limits of their own. Default 10.
	Endpoints int
}

// Result is what an analysis has found.
type Result struct {
	OneIn     int64     `json:"one_in"`
	By        string    `json:"by"`
	From      time.Time `json:"from,omitzero"`
	To        time.Time `json:"to,omitzero"`
	Requests  int64     `json:"requests"`
	Nameless  int64     `json:"nameless"` // requests without a user, if clients are told apart by user
	Clients   int64     `json:"clients"`
	Exact     bool      `json:"exact"` // the number of clients is, and all of them were measured
	Endpoints int64     `json:"endpoints"`
	More      bool      `json:"more_endpoints"` // there are more than could be counted
	Windows   []Window  `json:"windows" nullable:"false"`
	Limits    []Limit   `json:"limits" nullable:"false"`
}

// Window is how many requests clients send within a second, a minute or an hour in which they send any. Numbers from 32 are off by at
// most one part in 32, except for Max.
type Window struct {
	Window string `json:"window"`
	P50    int64  `json:"p50"`
	P90    int64  `json:"p90"`
	P99    int64  `json:"p99"`
	P999   int64  `json:"p99_9"`
	Max    int64  `json:"max"`
}

// Limit is what fits an endpoint, or all requests if that is empty.
type Limit struct {
	Rule      string `json:"rule"`
	Endpoint  string `json:"endpoint"`
	Requests  int64  `json:"requests"`
	Clients   int64  `json:"clients"`
	PerMinute int64  `json:"per_minute"`
	PerSecond int64  `json:"per_second,omitempty"` // 0: the other limit is enough
}

// The windows: clients are measured in all, and limits are about the first two.
var windows = [...]struct {
	name  string
	width int64 // in microseconds
}{{"1s", 1e6}, {"1m", 60e6}, {"1h", 3600e6}}

const second, minute = 0, 1

// The bounds. Tests have lower ones.
var (
	mostClients   = 1 << 18 // of all requests
	mostOfOne     = 1 << 16 // of an endpoint
	mostEndpoints = 20_000
)

// Analysis measures clients. Not for concurrent use.
type Analysis struct {
	o         Options
	result    Result
	all       scope
	endpoints map[string]int64
	normals   map[string]string
	busy      map[string]*scope
	sketches  [len(windows)]record.Sketch
	longest   [len(windows)]int64
}

// New returns an analysis.
func New(o Options) *Analysis {
	o.OneIn, o.By, o.Endpoints = cmp.Or(o.OneIn, 1000), cmp.Or(o.By, "ip"), cmp.Or(o.Endpoints, 10)
	a := &Analysis{o: o, endpoints: map[string]int64{}, normals: map[string]string{}, all: scope{most: mostClients, clients: map[uint64]*client{}}}
	a.all.over = func(window int, n int64) {
		a.sketches[window].Add(time.Duration(n)*time.Microsecond, 1)
		a.longest[window] = max(a.longest[window], n)
	}
	return a
}

// scope is the clients of an endpoint, or of all.
type scope struct {
	requests int64
	most     int
	level    int // clients are kept whose hash begins with so many zeros
	clients  map[uint64]*client
	over     func(window int, n int64) // a client's window is over
}

// client is what a client has sent.
type client struct{ windows [len(windows)]counter }

// counter is a window that slides, as package stint has it.
type counter struct {
	start          int64
	previous, used int64
	need           int64 // the smallest limit that would not have denied anything
}

// add counts a request at a time in microseconds.
func (s *scope) add(hash uint64, at int64) {
	s.requests++
	if bits.LeadingZeros64(hash) < s.level {
		return
	}
	c := s.clients[hash]
	if c == nil {
		for len(s.clients) >= s.most {
			s.level++
			maps.DeleteFunc(s.clients, func(h uint64, _ *client) bool { return bits.LeadingZeros64(h) < s.level })
		}
		if bits.LeadingZeros64(hash) < s.level {
			return
		}
		c = new(client)
		s.clients[hash] = c
	}
	for i := range c.windows {
		w := &c.windows[i]
		width := windows[i].width
		if start := at - at%width; start > w.start {
			s.close(i, w)
			if w.previous = 0; start == w.start+width {
				w.previous = w.used
			}
			w.start, w.used = start, 0
		}
		e := max(at-w.start, 0)
		carried := (w.previous*(width-e) + width - 1) / width
		w.used++
		w.need = max(w.need, carried+w.used)
	}
}

func (s *scope) close(window int, w *counter) {
	if s.over != nil && w.used > 0 {
		s.over(window, w.used)
	}
}

// end closes all windows of a client.
func (s *scope) end(c *client) {
	for i := range c.windows {
		s.close(i, &c.windows[i])
	}
}

// count returns how many clients there are, if all are kept, or an estimate.
func (s *scope) count() int64 { return int64(len(s.clients)) << s.level }

// hashOf identifies a client: FNV-1a, mixed so that the first bits depend on all.
func hashOf(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// Survey reads all requests: who sends them, how often, and to which endpoints.
func (a *Analysis) Survey(requests iter.Seq2[recorded.Request, error]) error {
	for q, err := range requests {
		if err != nil {
			return err
		}
		if a.result.Requests++; a.result.From.IsZero() {
			a.result.From = q.At
		}
		if q.At.After(a.result.To) {
			a.result.To = q.At
		}
		endpoint := a.normal(&q)
		if _, known := a.endpoints[endpoint]; known || len(a.endpoints) < mostEndpoints {
			a.endpoints[endpoint]++
		} else {
			a.forget()
		}
		name := a.nameOf(&q)
		if name == "" {
			a.result.Nameless++
			continue
		}
		a.all.add(hashOf(name), q.At.UnixMicro())
	}
	for _, c := range a.all.clients {
		a.all.end(c)
	}
	a.choose()
	return nil
}

// forget makes room for endpoints, as the algorithm of Misra and Gries does: a count is too low by at most the number of requests
// divided by the number of endpoints.
func (a *Analysis) forget() {
	a.result.More = true
	maps.DeleteFunc(a.endpoints, func(name string, n int64) bool {
		a.endpoints[name] = n - 1
		return n == 1
	})
}

// nameOf returns what tells clients apart.
func (a *Analysis) nameOf(q *recorded.Request) string {
	if a.o.By == "user" {
		return q.User
	}
	return recorded.Counted(q.IP)
}

// normal returns the endpoint of a request.
func (a *Analysis) normal(q *recorded.Request) string {
	if name, ok := a.normals[q.Path]; ok {
		return name
	}
	const most = 20_000
	if len(a.normals) >= most {
		clear(a.normals)
	}
	name := record.EndpointOf(q.Path)
	a.normals[q.Path] = name
	return name
}

// choose finds the busiest endpoints: those with at least a hundredth of the requests, and 100.
func (a *Analysis) choose() {
	const share, least = 100, 100
	names := slices.SortedFunc(maps.Keys(a.endpoints), func(x, y string) int {
		return cmp.Or(cmp.Compare(a.endpoints[y], a.endpoints[x]), strings.Compare(x, y))
	})
	a.busy = map[string]*scope{}
	for _, name := range names[:min(len(names), a.o.Endpoints)] {
		if n := a.endpoints[name]; n >= least && n >= a.result.Requests/share && len(names) > 1 {
			a.busy[name] = &scope{most: mostOfOne, clients: map[uint64]*client{}}
		}
	}
}

// Measure reads the same requests again, and measures the clients of the busiest endpoints.
func (a *Analysis) Measure(requests iter.Seq2[recorded.Request, error]) error {
	for q, err := range requests {
		if err != nil {
			return err
		}
		s := a.busy[a.normal(&q)]
		if s == nil {
			continue
		}
		if name := a.nameOf(&q); name != "" {
			s.add(hashOf(name), q.At.UnixMicro())
		}
	}
	return nil
}

// Result returns what was found.
func (a *Analysis) Result() Result {
	r := a.result
	r.OneIn, r.By, r.Clients, r.Exact, r.Endpoints = a.o.OneIn, a.o.By, a.all.count(), a.all.level == 0, int64(len(a.endpoints))
	r.From, r.To = r.From.UTC(), r.To.UTC()
	r.Windows, r.Limits = []Window{}, []Limit{}
	for i := range windows {
		w := Window{Window: windows[i].name, Max: a.longest[i]}
		for q, into := range map[float64]*int64{0.5: &w.P50, 0.9: &w.P90, 0.99: &w.P99, 0.999: &w.P999} {
			*into = min(a.sketches[i].Quantile(q).Microseconds(), w.Max)
		}
		r.Windows = append(r.Windows, w)
	}
	names := slices.SortedFunc(maps.Keys(a.busy), func(x, y string) int {
		return cmp.Or(cmp.Compare(a.busy[y].requests, a.busy[x].requests), strings.Compare(x, y))
	})
	taken := map[string]bool{}
	for _, name := range append([]string{""}, names...) {
		s := &a.all
		if name != "" {
			s = a.busy[name]
		}
		if l, ok := s.limit(a.o.OneIn); ok {
			l.Endpoint = name
			if l.Rule = l.name(taken); l.valid(r.By) {
				taken[l.Rule] = true
				r.Limits = append(r.Limits, l)
			}
		}
	}
	return r
}
