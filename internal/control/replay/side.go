package replay

import (
	"cmp"
	"context"
	"crypto/sha256"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/internal/control/virtual"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// side is one of the rule sets.
type side struct {
	engines map[string]*engine.Engine // by region
	options engine.Options
	store   *memstore.Store
	costs   map[string]rule.Cost // of the rules

	left            []string            // rules that are left out
	headers         []*recorded.Matcher // of these
	paths, networks []*recorded.Matcher // of rules with paths, and with networks
	byIP            bool                // a rule counts by address
	empty           bool                // everything passes
	places, regions bool                // there are limits of concurrency, and rules of regions

	window time.Duration // the longest of a limit that applied
	known  map[stint.Window]bool
}

func newSide(from *Rules, w *virtual.World, o *Options) (*side, error) {
	s := &side{engines: map[string]*engine.Engine{}, costs: map[string]rule.Cost{}, known: map[stint.Window]bool{}}
	s.empty = len(from.File.Rules) == 0 && from.Lists.Banned == nil && from.Directory == nil
	whole, err := rule.Compile(from.File) // with all problems
	if err != nil {
		return nil, err
	}
	by := map[string][]rule.Dimension{}
	for _, c := range whole.Rules() {
		by[c.Name] = c.CountBy()
	}
	file := from.File
	file.Rules = slices.Clone(file.Rules)
	for i := range file.Rules {
		r := &file.Rules[i]
		s.costs[r.Name] = r.Cost
		if r.Enabled != nil && !*r.Enabled {
			continue
		}
		m, err := recorded.NewMatcher(r, whole, by[r.Name])
		if err != nil {
			return nil, err
		}
		if m.Headers {
			r.Enabled = new(bool)
			s.left, s.headers = append(s.left, r.Name), append(s.headers, m)
			continue
		}
		if m.Paths() {
			s.paths = append(s.paths, m)
		}
		if m.Networks() {
			s.networks = append(s.networks, m)
		}
		s.byIP = s.byIP || slices.Contains(by[r.Name], "ip")
		s.regions = s.regions || r.Regions != ""
		for _, l := range r.Limits {
			s.places = s.places || strings.Contains(l.Limit+l.Algorithm, "concurrency")
		}
	}
	set := whole
	if len(s.left) > 0 {
		if set, err = rule.Compile(file); err != nil {
			return nil, err
		}
	}
	if s.store, err = memstore.New(memstore.Options{MaxKeys: o.MaxKeys, Now: w.Now}); err != nil {
		return nil, err
	}
	ids := identity.Options{Lists: from.Lists, DefaultTier: from.DefaultTier, IPv6Prefix: from.IPv6Prefix}
	if from.Directory != nil {
		ids.Directory, ids.Methods = from.Directory(w.Now), []identity.Source{}
	}
	who, err := identity.New(ids)
	if err != nil {
		return nil, err
	}
	s.options = engine.Options{Store: s.store, Rules: set, Identity: who, Now: w.Now, Timers: w}
	return s, nil
}

// engineOf returns the engine of a region.
func (s *side) engineOf(region string) (*engine.Engine, error) {
	if e := s.engines[region]; e != nil {
		return e, nil
	}
	o := s.options
	if n := len(s.engines); n > 0 {
		o.Store = &regional{Store: s.store, prefix: strconv.Itoa(n) + "/"}
	}
	e, err := engine.New(o)
	if err == nil {
		s.engines[region] = e
	}
	return e, err
}

// regional is the store of a region, beside that of another. It has counters of its own, but for the rules that regions share. World
// has one call of it at a time.
type regional struct {
	stint.Store

	prefix string // of the subjects of its counters
	asks   []stint.Ask
}

// Take implements [stint.Store].
func (s *regional) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	return s.Store.Take(ctx, s.own(asks), ds)
}

// Adjust implements [stint.Store].
func (s *regional) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	return s.Store.Adjust(ctx, s.own(asks), ds)
}

// Reset implements [stint.Store].
func (s *regional) Reset(ctx context.Context, asks []stint.Ask) error {
	return s.Store.Reset(ctx, s.own(asks))
}

func (s *regional) own(asks []stint.Ask) []stint.Ask {
	s.asks = append(s.asks[:0], asks...)
	for i := range s.asks {
		if a := &s.asks[i]; a.Policy == nil || a.Policy.Regions == stint.RegionsOwn {
			a.Key.Subject = s.prefix + a.Key.Subject
		}
	}
	return s.asks
}

// unclear says why it is unclear which rules apply to a request, if it is.
func (s *side) unclear(q *recorded.Request) recorded.Answer {
	for _, m := range s.headers {
		if _, a := m.Match(q); a.Unclear() {
			return a
		}
	}
	if path := cmp.Or(q.Path, q.Endpoint); path == "" || strings.ContainsAny(path, "{*") {
		if a := s.first(s.paths, q); a.Unclear() {
			return a
		}
	}
	if len(s.networks) > 0 && q.IP != "" {
		if _, err := netip.ParseAddr(q.IP); err != nil {
			return s.first(s.networks, q)
		}
	}
	return recorded.No
}

func (s *side) first(matchers []*recorded.Matcher, q *recorded.Request) recorded.Answer {
	for _, m := range matchers {
		if _, a := m.Match(q); a.Unclear() {
			return a
		}
	}
	return recorded.No
}

// costOf returns the recorded cost of a request, if its rule says that it depends on the request, or if it is not that of the
// rule: then its caller has set it. Otherwise it returns 0, for the costs in rules.
func (s *side) costOf(q *recorded.Request) int64 {
	if q.Cost <= 0 || q.Rule == "" {
		return 0
	}
	c, ok := s.costs[q.Rule]
	switch {
	case !ok || c.Meter != "":
		return 0
	case q.Cost == max(c.Units, 1):
		return 0
	case c.Header != "":
		return min(q.Cost, c.Max)
	default:
		return q.Cost
	}
}

// see notes the windows of limits that applied.
func (s *side) see(limits []engine.Limit, now time.Time) {
	for i := range limits {
		l := &limits[i]
		if l.Penalty != nil || s.known[l.Limit.Window] {
			continue
		}
		s.known[l.Limit.Window] = true
		from, to := l.Limit.Window.Bounds(now)
		s.window = max(s.window, to.Sub(from))
	}
}

// addressOf returns the address that stands for what is recorded of one: a network is its first address, and a hash an address that
// no client has, in a network of its own.
func addressOf(text string) netip.Addr {
	if text == "" {
		return netip.Addr{}
	}
	if p, ok := recorded.Network(text); ok {
		return p.Addr()
	}
	sum := sha256.Sum256([]byte(text))
	const reserved = 1 // 100::/8
	sum[0] = reserved
	return netip.AddrFrom16([16]byte(sum[:16]))
}

func sortedKeys(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }
