// Package envoystats shows the counts of the rate limit service under the names of
// envoyproxy/ratelimit: to Prometheus, to statsd, and as text.
//
// The names are those that its library gives them, such as
// ratelimit.service.rate_limit.shop.user.total_hits: the domain, keys and values of a limit are
// parts of the name. Prometheus gets the names and labels that the built-in mapping of
// envoyproxy/ratelimit makes of them.
//
// # Bounds
//
// Counts are read when someone asks for them, and at the interval of statsd. A call costs one
// addition. The number of names is bounded by package rls. A statsd server that does not answer
// costs one attempt to connect at each interval: nothing queues up, and what could not be sent is
// sent when it answers.
//
// # What it does not do
//
// It has no names of its own, and no counts of what Stint does not have: Redis connections, and
// the cache of envoyproxy/ratelimit.
package envoystats

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/grpclimit/rls"
)

// Options configure a Stats. Service and Loads are required.
type Options struct {
	Service *rls.Service
	// Loads returns how many configurations were used so far, and how many were rejected.
	Loads func() (used, rejected uint64)
	// LocalCache also counts over_limit_with_local_cache. envoyproxy/ratelimit has it only if its
	// cache is turned on, and many set-ups of statsd add it to over_limit.
	LocalCache bool
	// Tags are added to everything, each as name=value.
	Tags []string
}

// Stats are the counts of a service. Its methods are safe for concurrent use.
type Stats struct {
	o     Options
	tags  []tag
	calls [len(methods)]timer
}

// methods are the names of methods.
var methods = [...]string{Limit: "ShouldRateLimit", Check: "Check"}

// Method is a method of gRPC.
type Method int

// The methods whose calls are counted.
const (
	Limit Method = iota // of the rate limit service
	Check               // of health checks
)

// tag is added to everything.
type tag struct{ name, value string }

// New returns a Stats.
func New(o Options) *Stats {
	s := &Stats{o: o}
	for _, text := range o.Tags {
		name, value, _ := strings.Cut(text, "=")
		if name != "" && value != "" {
			s.tags = append(s.tags, tag{clean(name, ".:|"), clean(value, ".:|")})
		}
	}
	slices.SortStableFunc(s.tags, func(a, b tag) int { return cmp.Compare(a.name, b.name) })
	s.tags = slices.CompactFunc(s.tags, func(a, b tag) bool { return a.name == b.name })
	return s
}

// Served counts a call.
func (s *Stats) Served(m Method, took time.Duration) { s.calls[m].observe(took) }

const (
	ofLimits = "ratelimit.service.rate_limit."
	ofErrors = "ratelimit.service.call.should_rate_limit."
	ofCalls  = "ratelimit_server."
	ofGo     = "ratelimit.go."

	allCalls = ".total_requests"
	tookTime = ".response_time"
)

// each calls yield with all counters that are not 0, and all gauges.
func (s *Stats) each(yield func(name string, n uint64, gauge bool)) {
	count := func(name string, n uint64) {
		if n > 0 {
			yield(name, n, false)
		}
	}
	for limit, h := range s.o.Service.Stats() {
		if limit == rls.Others {
			limit += "." + rls.Others // a name has a domain and a key
		}
		name := ofLimits + sanitize(limit)
		count(name+".total_hits", h.Total)
		count(name+".within_limit", h.Within)
		count(name+".near_limit", h.Near)
		count(name+".over_limit", h.Over)
		count(name+".shadow_mode", h.Shadow)
		if s.o.LocalCache {
			count(name+".over_limit_with_local_cache", h.Remembered)
		}
	}
	for domain, n := range s.o.Service.UnknownDomains() {
		count(ofLimits+sanitize(domain)+".domain_not_found", n)
	}
	t := s.o.Service.Totals()
	// There, all of these calls fail. Alerts on them should not be silent.
	count(ofErrors+"redis_error", t.Undecided+t.Alone)
	count(ofErrors+"service_error", t.Invalid)
	count("ratelimit.service.global_shadow_mode", t.Shadowed)
	used, rejected := s.o.Loads()
	count("ratelimit.service.config_load_success", used)
	count("ratelimit.service.config_load_error", rejected)
	for m := range s.calls {
		count(ofCalls+methods[m]+allCalls, s.calls[m].count())
	}
	eachOfGo(yield)
}

// eachOfGo calls yield with the state of the process.
func eachOfGo(yield func(name string, n uint64, gauge bool)) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	for name, n := range map[string]uint64{
		"alloc": m.Alloc, "sys": m.Sys, "heapAlloc": m.HeapAlloc, "heapSys": m.HeapSys, "heapIdle": m.HeapIdle, "heapInuse": m.HeapInuse,
		"heapReleased": m.HeapReleased, "heapObjects": m.HeapObjects, "nextGC": m.NextGC, "lastGC": m.LastGC,
		"gcCPUPercent": uint64(m.GCCPUFraction * 100), "numGoroutine": uint64(runtime.NumGoroutine()),
	} {
		yield(ofGo+name, n, true)
	}
	for name, n := range map[string]uint64{
		"totalAlloc": m.TotalAlloc, "mallocs": m.Mallocs, "frees": m.Frees, "pauseTotalNs": m.PauseTotalNs, "numGC": uint64(m.NumGC),
	} {
		yield(ofGo+name, n, false)
	}
}

// WriteText writes a line for each count, and one for the memory of the process, as
// envoyproxy/ratelimit does at /stats.
func (s *Stats) WriteText(w io.Writer) error {
	lines := map[string]uint64{}
	s.each(func(name string, n uint64, _ bool) { lines[name] += n })
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		if _, err := fmt.Fprintf(w, "%s: %d\n", name, lines[name]); err != nil {
			return err
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	text, err := json.Marshal(&m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "memstats: %s\n", text)
	return err
}

var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// sanitize returns a name without what has a meaning in the protocol of statsd, like
// envoyproxy/ratelimit. The dots of addresses do not divide the name.
func sanitize(name string) string {
	return ipv4.ReplaceAllStringFunc(clean(name, ":|"), func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
}

// clean replaces some characters, and line breaks, which would end a line of statsd.
func clean(text, chars string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || strings.ContainsRune(chars, r) {
			return '_'
		}
		return r
	}, strings.ToValidUTF8(text, "_"))
}
