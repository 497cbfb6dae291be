package rule_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// manyRules returns n rules, two for each of n/2 paths, and requests for them. Some
// have no path: for those there are networks and headers.
func manyRules(n int) (rule.File, []request) {
	f := rule.File{Tiers: []rule.Tier{{Name: "free"}, {Name: "pro"}, {Name: "team"}}}
	var requests []request
	for i := range n {
		r := rule.Rule{
			Name: "rule-" + strconv.Itoa(i), CountBy: []rule.Dimension{"user"},
			Limits: []rule.Limit{{Name: "minute", Limit: "100/1m"}, {Name: "hour", Limit: "1000/1h"}},
		}
		p := i / 2
		ip := netip.AddrFrom4([4]byte{10, byte(p >> 8), byte(p), 7})
		base := fmt.Sprintf("/api/v%d/service-%d/resource-%d", p%2, p/50, p)
		path := base
		switch p % 10 {
		case 0, 1, 2, 3:
			r.Match.Paths = []string{base}
		case 4, 5, 6:
			r.Match.Paths = []string{base + "/{id}"}
			path += "/42"
			r.CountBy = append(r.CountBy, "endpoint")
		case 7, 8:
			r.Match.Paths = []string{base + "/**"}
			path += "/42/items/7"
		case 9:
			if i%2 == 0 {
				r.Match.IPRanges = []string{netip.PrefixFrom(ip, 24).Masked().String()}
			} else {
				r.Match.Headers = map[string]string{"X-App": "app-" + strconv.Itoa(p)}
			}
		}
		switch {
		case p%10 == 9:
		case i%2 == 0:
			r.Match.Methods = []string{"GET", "HEAD"}
		case p%3 == 0:
			r.Match.Tiers = []string{"free", "pro"}
		case p%3 == 1:
			r.Match.IPRanges = []string{"10.0.0.0/8", "192.168.0.0/16"}
		default:
			r.Group = "group-" + strconv.Itoa(p)
		}
		f.Rules = append(f.Rules, r)
		if i%2 == 0 {
			requests = append(requests, request{path, "app-" + strconv.Itoa(p), ip})
		}
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(requests), func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })
	return f, requests
}

// request is what differs between requests.
type request struct {
	path, app string
	ip        netip.Addr
}

// attrs returns what is the same in all of them.
func attrs() *rule.Attrs {
	return &rule.Attrs{
		Method: "GET", User: "42", Tier: "free", Headers: map[string][]string{"X-App": {""}, "Accept": {"*/*"}, "User-Agent": {"bench"}},
	}
}

func (r *request) set(a *rule.Attrs) {
	a.Path, a.IP, a.Net = r.path, r.ip, netip.PrefixFrom(r.ip, 32)
	a.Headers["X-App"][0] = r.app
}

func benchSet(b *testing.B, n int) (*rule.Set, []request) {
	b.Helper()
	f, requests := manyRules(n)
	s, err := rule.Compile(f)
	if err != nil {
		b.Fatal(err)
	}
	return s, requests
}

// BenchmarkMatch has requests as there are: a few paths have most of them.
func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run("rules="+strconv.Itoa(n), func(b *testing.B) {
			s, all := benchSet(b, n)
			zipf := rand.NewZipf(rand.New(rand.NewPCG(3, 4)), 1.1, 1, uint64(len(all)-1))
			requests := make([]request, 4096)
			for i := range requests {
				requests[i] = all[zipf.Uint64()]
			}
			benchMatch(b, s, requests)
		})
	}
}

// BenchmarkMatchCold has as many requests for each path, the worst for the
// processor's caches.
func BenchmarkMatchCold(b *testing.B) {
	s, requests := benchSet(b, 10_000)
	benchMatch(b, s, requests)
}

func benchMatch(b *testing.B, s *rule.Set, requests []request) {
	b.Helper()
	var hits []rule.Hit
	a := attrs()
	found, i := 0, 0
	b.ReportAllocs()
	for b.Loop() {
		requests[i].set(a)
		hits = s.Match(hits[:0], a)
		found += len(hits)
		if i++; i == len(requests) {
			i = 0
		}
	}
	b.ReportMetric(float64(found)/float64(b.N), "hits/op")
}

func BenchmarkAsks(b *testing.B) {
	s, requests := benchSet(b, 100)
	var hits []rule.Hit
	var asks []stint.Ask
	var scratch []byte
	a := attrs()
	requests[1].set(a)
	hits = s.Match(hits, a)
	b.ReportAllocs()
	for b.Loop() {
		asks, scratch = s.Asks(asks[:0], hits, a, scratch)
	}
	b.ReportMetric(float64(len(asks)), "asks/op")
}

func BenchmarkCompile(b *testing.B) {
	f, _ := manyRules(10_000)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := rule.Compile(f); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCleanPath(b *testing.B) {
	for _, path := range []string{"/api/v1/service-7/resource-350/42", "/api//v1/%73ervice-7/./resource-350/42/"} {
		b.Run(path[:6], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rule.CleanPath(path)
			}
		})
	}
}

// hostilePaths are parts of long paths that have many readings.
var hostilePaths = []string{";", "/;", "%2F", ";%2F", "a;b%2Fc/", `a;x%2Fb\c/`, `a;b%2F..\c/`}

// BenchmarkMatchLong has paths of 8 KiB, the longest that a server takes by default.
func BenchmarkMatchLong(b *testing.B) {
	f, _ := manyRules(100)
	s, err := rule.Compile(f)
	if err != nil {
		b.Fatal(err)
	}
	for _, part := range append([]string{"a"}, hostilePaths...) {
		b.Run(strings.ReplaceAll(part, "/", "|"), func(b *testing.B) {
			a := attrs()
			a.Path = "/" + strings.Repeat(part, 8<<10/len(part))
			var hits []rule.Hit
			for b.Loop() {
				hits = s.Match(hits[:0], a)
			}
		})
	}
}
