package rule

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"math"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/stintdev/stint"
)

// Asks appends the asks of the hits to dst, and records in each hit where its asks
// are. Rules that block or allow have none, nor does a limit that is unlimited for
// this request, or whose place it holds already. Under a limit of concurrency, every
// request costs one unit: its place. A rule's asks are its limits in order and then, if there are any, its
// penalty. Rules with a penalty come first, because a penalty covers the asks before
// it.
//
// The subject of a key is the first that the rule counts by of user, API key,
// address, tenant, claim, header, endpoint and method, such as user:42, or global.
// The name is the rule's and the limit's name, which have no colons, and the values
// of the rest, each with its length: search:burst:11:/api/search. Values of headers
// are there as their SHA-256, since they may be secrets, and so are others of more
// than 256 bytes or that are not UTF-8. Different rules, limits or values never have
// the same key.
//
// The burst of a leaky_bucket is lowered to what can leave within the rule's
// max_delay, or [MaxDelay] if it has none, so that a store denies what would wait
// longer.
//
// The hits must be of this set and of one request. Scratch is memory for the texts of
// keys, and is returned for reuse: if it and dst are large enough, there is at most
// one allocation for up to 32 asks.
func (s *Set) Asks(dst []stint.Ask, hits []Hit, a *Attrs, scratch []byte) ([]stint.Ask, []byte) {
	w := asking{asks: dst, text: scratch[:0], attrs: a, tier: s.tiers[a.Tier], plans: s.plans}
	var buf [32]keySpan
	spans := buf[:0] // of each new ask
	for _, penalized := range [...]bool{true, false} {
		for i := range hits {
			if h := &hits[i]; (h.Rule.Penalty != nil) == penalized {
				spans = w.add(spans, h)
			}
		}
	}
	text := string(w.text)
	for i, at := range spans {
		k := &w.asks[len(dst)+i].Key
		at.subject.cut(text, &k.Subject)
		at.name.cut(text, &k.Name)
	}
	return w.asks, w.text
}

// asking is a call of Asks. The parts of keys that depend on the request are written into
// one text, which is cut when it is complete.
type asking struct {
	asks  []stint.Ask
	text  []byte
	attrs *Attrs
	tier  Values
	plans map[stint.Limit]*stint.Plan
}

// keySpan is where the parts of a key are in the text. If a span is empty, the ask already
// has that part.
type keySpan struct{ subject, name span }

type span struct{ from, to int32 }

func (s span) cut(text string, part *string) {
	if s.from < s.to {
		*part = text[s.from:s.to]
	}
}

// add appends the asks of a hit, and where their keys are.
func (w *asking) add(spans []keySpan, h *Hit) []keySpan {
	r, e, dims := h.Rule, h.entry, h.Rule.countedBy(w.attrs)
	h.From, h.tried = len(w.asks), 0
	cost := r.costOf(w.attrs)
	if estimate, known := r.estimate(w.attrs); known {
		cost = min(estimate, max(r.least(w.attrs, w.tier)/4, 1))
	}
	for i := range r.limits {
		l := &r.limits[i]
		v, source := r.valueOf(l, w.attrs, w.tier)
		if v == (stint.Limit{}) {
			continue
		}
		plan := l.plan
		if source != fromRule {
			plan = w.plans[v] // nil for the limit of a single user or API key
		}
		units := cost
		if v.Algorithm == stint.Concurrency {
			if w.attrs.Held {
				continue
			}
			units = 1 // a request has one place, whatever it costs
		}
		if l.candidate != nil && source == fromRule {
			h.tried |= 1 << (len(w.asks) - h.From)
		}
		w.asks = append(w.asks, stint.Ask{
			Key: stint.Key{Subject: e.subject, Name: e.names[i]}, Limit: v, Cost: units, Plan: plan, Policy: l.policy,
		})
	}
	if r.Penalty != nil && len(w.asks) > h.From {
		w.asks = append(w.asks, stint.Ask{Key: stint.Key{Subject: e.subject, Name: e.names[len(r.limits)]}, Penalty: r.Penalty, Cost: 1, Policy: r.policy})
	}
	h.To = len(w.asks)
	if h.From == h.To {
		return spans
	}
	var at keySpan
	if e.subject == "" {
		at.subject.from = int32(len(w.text))
		w.text = dims[0].appendValue(append(w.text, dims[0].prefix...), w.attrs, e)
		at.subject.to = int32(len(w.text))
	}
	for i := h.From; i < h.To; i++ {
		if !e.whole && len(dims) > 1 {
			at.name.from = int32(len(w.text))
			w.text = append(w.text, w.asks[i].Key.Name...)
			for j := 1; j < len(dims); j++ {
				var buf [maxPattern]byte // no value is longer
				w.text = appendPart(w.text, dims[j].appendValue(buf[:0], w.attrs, e))
			}
			at.name.to = int32(len(w.text))
		}
		spans = append(spans, at)
	}
	return spans
}

// LimitOf returns the name of the limit, or penalty, of the hit's rule that the i-th ask of
// [Set.Asks] is about.
func (h *Hit) LimitOf(asks []stint.Ask, i int) string {
	r := h.Rule
	all := len(r.limits)
	if r.Penalty != nil {
		all++
	}
	if n := i - h.From; n < len(r.limits) && h.To-h.From == all { // no limit was left out
		return r.limits[n].name
	}
	name, _, _ := strings.Cut(asks[i].Key.Name[len(r.Name)+1:], ":")
	name, _, _ = strings.Cut(name, counterMark)
	return name
}

// valueOf returns the value of a limit for a request, and where it comes from.
func (r *Compiled) valueOf(l *limit, a *Attrs, tier Values) (value stint.Limit, source string) {
	if a.KeyLimits == nil && a.UserLimits == nil && tier == nil {
		return l.value, fromRule
	}
	for i, values := range [...]Values{a.KeyLimits, a.UserLimits, tier} {
		if v, ok := values[l.name]; ok {
			return heldWithin(v, r.longestDelay()), [...]string{fromKey, fromUser, fromTier}[i]
		}
	}
	return l.value, fromRule
}

const (
	fromKey  = "api_key"
	fromUser = "user"
	fromTier = "tier"
	fromRule = "rule"
)

// costOf returns the cost of a request under the rule. With several lines of the
// header the highest counts: a client may send one through the proxy.
func (r *Compiled) costOf(a *Attrs) int64 {
	switch metered := r.cost.Meter != ""; {
	case metered && a.Usage[r.cost.Meter] > 0:
		return a.Usage[r.cost.Meter]
	case a.Cost > 0 && (metered || !a.Metered):
		return a.Cost
	case r.cost.Header == "" || !a.Trusted:
		return r.cost.Units
	}
	var most int64
	for _, text := range a.lines(r.cost.Header) {
		if n, err := strconv.ParseUint(text, 10, 63); err == nil || errors.Is(err, strconv.ErrRange) {
			most = max(most, int64(n))
		}
	}
	if most == 0 {
		return r.cost.Units
	}
	return min(most, r.cost.Max)
}

// estimate returns what to reserve for a request that says what it may use.
func (r *Compiled) estimate(a *Attrs) (units int64, known bool) {
	if units, known = a.Estimate[r.cost.Meter]; !known || a.Usage[r.cost.Meter] > 0 || a.Cost > 0 {
		return 0, false
	}
	if a.Usual != nil {
		units = max(units, cmp.Or(a.Usual(r.Name), r.cost.Reserve, 1))
	}
	if r.cost.Max > 0 {
		units = min(units, r.cost.Max)
	}
	return units, true
}

// least returns the smallest of the rule's limits for a request, apart from places.
func (r *Compiled) least(a *Attrs, tier Values) int64 {
	least := int64(math.MaxInt64)
	for i := range r.limits {
		if v, _ := r.valueOf(&r.limits[i], a, tier); v != (stint.Limit{}) && v.Algorithm != stint.Concurrency {
			least = min(least, v.Cap())
		}
	}
	return least
}

// dim is a [Dimension], compiled.
type dim struct {
	kind   kind
	name   string // of a claim or header
	prefix string // of a subject
}

type kind int

// The order is that of keys. The first dimension names the subject, so those that
// identify a client come before those that anyone may send.
const (
	byUser kind = iota
	byKey
	byIP
	byTenant
	byClaim
	byHeader
	byEndpoint
	byMethod
)

// kinds are the names of kinds in files and, except for byKey, in keys.
var kinds = [...]string{
	byUser: "user", byKey: "api_key", byIP: "ip", byTenant: "tenant",
	byClaim: "claim", byHeader: "header", byEndpoint: "endpoint", byMethod: "method",
}

// dimsOf returns what is counted by if headers are not trusted, and if they are.
func dimsOf(by []Dimension) [2][]dim {
	var dims []dim
	for _, d := range by {
		word, name, _ := strings.Cut(string(d), ":")
		k := kind(slices.Index(kinds[:], word))
		switch k {
		case -1:
			continue // global
		case byKey:
			word = "key"
		case byClaim:
			word += ":" + name
		case byHeader:
			name = textproto.CanonicalMIMEHeaderKey(name)
			word += ":" + name
		default:
		}
		dims = append(dims, dim{k, name, word + ":"})
	}
	order := func(a, b dim) int { return cmp.Or(cmp.Compare(a.kind, b.kind), strings.Compare(a.name, b.name)) }
	slices.SortFunc(dims, order)
	has := func(k kind) bool { return slices.ContainsFunc(dims, func(d dim) bool { return d.kind == k }) }
	if !has(byHeader) || has(byIP) {
		return [2][]dim{dims, dims}
	}
	untrusted := append(slices.Clone(dims), dim{kind: byIP, prefix: "ip:"})
	slices.SortFunc(untrusted, order)
	return [2][]dim{untrusted, dims}
}

// countedBy returns what the request is counted by.
func (c *conditions) countedBy(a *Attrs) []dim {
	if a.Trusted || a.Named {
		return c.dims[1]
	}
	return c.dims[0]
}

// in reports whether the request has a value of the dimension.
func (d *dim) in(a *Attrs) bool {
	switch d.kind {
	case byIP:
		return a.IP.IsValid()
	case byEndpoint:
		return true // the rule has paths
	default:
		return d.value(a) != ""
	}
}

// value returns the request's value, except for addresses and endpoints.
func (d *dim) value(a *Attrs) string {
	switch d.kind {
	case byUser:
		return a.User
	case byKey:
		return a.APIKey
	case byTenant:
		return a.Tenant
	case byClaim:
		return a.Claims[d.name]
	case byHeader:
		// Proxies append lines, so the lines before may be the client's.
		lines := a.lines(d.name)
		for i := len(lines) - 1; i >= 0; i-- {
			if lines[i] != "" {
				return lines[i]
			}
		}
		return ""
	case byMethod:
		return a.Method
	default:
		return ""
	}
}

// appendValue appends the request's value as keys have it.
func (d *dim) appendValue(b []byte, a *Attrs, e *entry) []byte {
	switch d.kind {
	case byIP:
		return appendAddress(b, a)
	case byHeader:
		return appendHash(b, d.value(a))
	case byEndpoint:
		return append(b, e.path.text...)
	default:
		return appendBounded(b, d.value(a))
	}
}

// appendPart appends a value with its length, so that no two lists of values look the same.
func appendPart(b, value []byte) []byte {
	b = strconv.AppendInt(append(b, ':'), int64(len(value)), 10)
	return append(append(b, ':'), value...)
}

// appendAddress appends the network that the address is counted by, or the address if the
// network has no other.
func appendAddress(b []byte, a *Attrs) []byte {
	switch {
	case !a.Net.IsValid():
		return a.IP.AppendTo(b)
	case a.Net.IsSingleIP():
		return a.Net.Addr().AppendTo(b)
	default:
		return a.Net.AppendTo(b)
	}
}

// appendBounded appends a value, or # and its hash if it is long, not UTF-8, or could be
// mistaken for a hash.
func appendBounded(b []byte, value string) []byte {
	const longest = 256
	if len(value) <= longest && !strings.HasPrefix(value, "#") && utf8.ValidString(value) {
		return append(b, value...)
	}
	return appendHash(b, value)
}

func appendHash(b []byte, value string) []byte {
	var buf [512]byte // few values are longer
	sum := sha256.Sum256(append(buf[:0], value...))
	return base64.RawURLEncoding.AppendEncode(append(b, '#'), sum[:])
}
