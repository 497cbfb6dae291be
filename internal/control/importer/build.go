package importer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

// hostHeader is where rules find the host of a request.
const hostHeader = "X-Forwarded-Host"

// counter is what counts together in the source: a zone with its parameters, a plugin, a middleware.
type counter struct {
	pos
	what   string     // as the file says it
	of     *directive // the zone, of nginx
	name   string     // of the rule, if it is free
	keys   []branch   // who is counted: the first that holds
	limits []limit
	rule   rule.Rule // action, max_delay, response, on_store_failure
	places []place   // where it holds
	except []place   // where it does not, although a place above does
	apart  bool      // each host has its own counters in the source, too
}

// limit is a limit of a counter.
type limit struct {
	name   string // after that of the rule; may be empty
	text   string // as rules say it
	before amount
}

// place is where requests arrive.
type place struct {
	host    string // "" for any
	pattern string // "" for any path
	match   rule.Match
}

// branch is a way to count.
type branch struct {
	match rule.Match
	by    []rule.Dimension
	none  bool // these requests are not counted
}

// settings are those of [identity] that the source knows of.
type settings struct {
	TrustedProxies  []string `json:"trusted_proxies,omitempty"`
	ForwardedHeader string   `json:"forwarded_header,omitempty"`
	APIKeyPrefix    string   `json:"api_key_prefix,omitempty"`
}

// extra is what a source has beside rules.
type extra struct {
	doc catalog.Document
	at  map[string]pos // of tiers, users and keys
}

// built is a rule that was made.
type built struct {
	rule.Rule
	from *counter
	why  string  // in a comment
	rows []Limit // of the report
}

// build makes the rules of the counters, and writes the report.
func (m *importer) build() {
	all := m.ready
	for _, c := range m.counters {
		all = append(all, m.rules(c)...)
	}
	all = m.check(all)
	for _, r := range all {
		m.report.Limits = append(m.report.Limits, r.rows...)
	}
	m.checkUsers(all)
	byPos := func(a, b Finding) int { return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line)) }
	slices.SortStableFunc(m.report.Missing, byPos)
	slices.SortStableFunc(m.report.Notes, byPos)
	m.report.Text = m.write(all)
}

// side is the part of a counter for requests with the same conditions beside their path.
type side struct {
	host  string
	match rule.Match
	in    []string // patterns; "" for any
	out   []string
}

// rules returns the rules for a counter.
func (m *importer) rules(c *counter) (out []*built) {
	sides := m.sides(c)
	if len(sides) == 0 {
		return nil
	}
	if len(sides) > 1 && !c.apart {
		m.missing(c.pos, c.what, "was one counter for several hosts or conditions, and becomes "+strconv.Itoa(len(sides))+" rules that count apart",
			"import with --host for the host that Stint is for, or write one rule for all of them")
	}
	for _, s := range sides {
		out = append(out, m.sideRules(c, s)...)
	}
	return out
}

func (m *importer) sideRules(c *counter, s side) (out []*built) {
	base := m.name(c.name)
	patterns, carved := s.patterns(), s.carved()
	paths := func() []string { return slices.Clone(patterns) }
	// Where several ways may match one request, the first by name does.
	counted := slices.DeleteFunc(slices.Clone(c.keys), func(k branch) bool { return k.none })
	plain := len(counted) == 1 && isEmpty(counted[0].match)
	add := func(suffix string, match rule.Match, why string) *built {
		r := &built{Rule: c.rule, from: c, why: why}
		r.Name = base
		if suffix != "" {
			r.Name = m.name(base + suffix)
		}
		r.Match = merge(s.match, match)
		if s.host != "" {
			r.Match = merge(r.Match, rule.Match{Headers: map[string]string{hostHeader: s.host}})
		}
		out = append(out, r)
		return r
	}
	for i, k := range c.keys {
		suffix := ""
		switch {
		case plain && k.none:
			suffix = "-none"
		case !plain && i > 0:
			suffix = fmt.Sprintf("-%0*d", len(strconv.Itoa(len(c.keys))), i+1)
		}
		switch {
		case k.none && isEmpty(k.match):
		case k.none:
			r := add(suffix, k.match, "These are not counted.")
			r.Match.Paths = paths()
			m.unlimited(r)
		default:
			r := add(suffix, k.match, "")
			r.Match.Paths = paths()
			r.CountBy = k.by
			m.count(r, base)
		}
	}
	if len(counted) == 0 {
		return nil // nothing is counted
	}
	if len(carved) > 0 {
		r := add("-elsewhere", rule.Match{}, "Requests to these paths are not counted.")
		r.Match.Paths = carved
		m.unlimited(r)
	}
	for _, r := range out {
		if len(out) > 1 {
			r.Group = base
		}
	}
	return out
}

// count gives a rule the limits of its counter.
func (m *importer) count(r *built, base string) {
	c := r.from
	for _, l := range c.limits {
		name := base // a tier's value is for all ways to count
		if l.name != "" {
			name = m.limitName(base, l.name)
		}
		r.Limits = append(r.Limits, rule.Limit{Name: name, Limit: l.text})
		r.rows = append(r.rows, Limit{
			File: c.file, Line: c.line, What: clip(c.what), By: byText(r.CountBy), Node: l.before.of(1), All: l.before.of(m.Nodes),
			Rule: r.Name, Name: name, After: l.text, Scope: l.before.scope,
		})
	}
}

// unlimited makes a rule that takes part in its group and never denies.
func (m *importer) unlimited(r *built) {
	const never = "1000000000/1s token_bucket"
	r.Action, r.MaxDelay, r.Response, r.CountBy, r.OnStoreFailure = "", 0, rule.Response{}, nil, rule.Open
	r.Limits = []rule.Limit{{Name: "not-counted", Limit: never}}
}

// patterns returns the paths of a rule, nil for all: what one covers is left out, unless it is inside of what is
// carved out.
func (s *side) patterns() (out []string) {
	in, carved := compact(s.in), s.carved()
	for _, p := range in {
		within := slices.ContainsFunc(carved, func(c string) bool { return covers(c, p) })
		if within || !slices.ContainsFunc(in, func(q string) bool { return q != p && covers(q, p) }) {
			out = append(out, p)
		}
	}
	if len(out) > 0 && out[0] == "" {
		if out[0] = "/**"; len(out) == 1 {
			return nil
		}
	}
	return out
}

// carved returns the patterns that the side leaves out, and that one of its own covers.
func (s *side) carved() (out []string) {
	for _, p := range compact(s.out) {
		if p != "" && !slices.Contains(s.in, p) && slices.ContainsFunc(s.in, func(q string) bool { return covers(q, p) }) {
			out = append(out, p)
		}
	}
	return out
}

// covers reports whether a pattern matches all paths of a longer one.
func covers(pattern, other string) bool {
	prefix, rest := strings.CutSuffix(pattern, "/**")
	return pattern == "" || pattern == other || rest && (other == prefix || strings.HasPrefix(other, prefix+"/"))
}

// sides divides the places of a counter. A host is left out if it makes no difference.
func (m *importer) sides(c *counter) (out []side) {
	find := func(host string, match rule.Match) *side {
		for i := range out {
			if out[i].host == host && equal(out[i].match, match) {
				return &out[i]
			}
		}
		out = append(out, side{host: host, match: match})
		return &out[len(out)-1]
	}
	for _, p := range c.places {
		s := find(p.host, p.match)
		s.in = append(s.in, p.pattern)
	}
	for _, p := range c.except {
		for i := range out {
			if out[i].host == p.host {
				out[i].out = append(out[i].out, p.pattern)
			}
		}
	}
	if len(m.hosts) <= 1 || m.Host != "" || sameEverywhere(out, m.hosts) && !c.apart {
		var joined []side
		for _, s := range out {
			if i := slices.IndexFunc(joined, func(j side) bool { return equal(j.match, s.match) }); i >= 0 {
				joined[i].in = append(joined[i].in, s.in...)
				joined[i].out = append(joined[i].out, s.out...)
				continue
			}
			s.host = ""
			joined = append(joined, s)
		}
		return joined
	}
	kept := out[:0]
	for _, s := range out {
		switch {
		case s.host == "" || s.host == "_" || strings.HasPrefix(s.host, "."):
			m.missing(c.pos, c.what, "holds for hosts that no other server names ("+cmp.Or(s.host, "any")+"), and rules cannot match those",
				"import with --host for each host, or run a Stint for each")
		case strings.ContainsAny(s.host, "*~^$"):
			m.missing(c.pos, c.what, "holds for hosts that match "+s.host+", and rules have no patterns for headers", "import with --host for each host")
		default:
			m.note(c.pos, c.what, "holds for the host "+s.host+": the proxy in front of Stint must set "+hostHeader+" to it, whatever the client sent")
			kept = append(kept, s)
		}
	}
	return kept
}

// sameEverywhere reports whether there are the same places at all hosts.
func sameEverywhere(sides []side, hosts []string) bool {
	key := func(s side) string {
		return strings.Join(s.patterns(), "\n") + "\x00" + strings.Join(s.carved(), "\n")
	}
	for _, h := range hosts {
		i := slices.IndexFunc(sides, func(s side) bool { return s.host == h })
		if i < 0 || !equal(sides[i].match, sides[0].match) || key(sides[i]) != key(sides[0]) {
			return false
		}
	}
	return len(sides) == len(hosts)
}

// compact returns patterns in order, each once.
func compact(patterns []string) []string {
	out := slices.Clone(patterns)
	slices.Sort(out)
	return slices.Compact(out)
}

func equal(a, b rule.Match) bool {
	return slices.Equal(a.Methods, b.Methods) && slices.Equal(a.Tiers, b.Tiers) && slices.Equal(a.IPRanges, b.IPRanges) && maps.Equal(a.Headers, b.Headers) && slices.Equal(a.Paths, b.Paths)
}

func isEmpty(m rule.Match) bool { return equal(m, rule.Match{}) }

// merge returns conditions that hold if both do. Where both have one, the caller has seen to it that b is the narrower.
func merge(a, b rule.Match) rule.Match {
	out := rule.Match{Paths: a.Paths, Methods: a.Methods, Tiers: a.Tiers, IPRanges: a.IPRanges}
	if b.Paths != nil {
		out.Paths = b.Paths
	}
	if b.Methods != nil {
		out.Methods = b.Methods
	}
	if b.IPRanges != nil {
		out.IPRanges = b.IPRanges
	}
	if len(a.Headers)+len(b.Headers) > 0 {
		out.Headers = map[string]string{}
		maps.Copy(out.Headers, a.Headers)
		maps.Copy(out.Headers, b.Headers)
	}
	return out
}

func byText(by []rule.Dimension) string {
	var words []string
	for _, d := range by {
		words = append(words, string(d))
	}
	return cmp.Or(strings.Join(words, ", "), "global")
}

// name returns a valid name that is still free.
func (m *importer) name(text string) string {
	const longest = 48 // leaves room for a number
	var b strings.Builder
	for i := range len(text) {
		switch c := text[i]; {
		case b.Len() == longest:
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("._-", c) >= 0:
			b.WriteByte(c)
		default:
			b.WriteByte('-')
		}
	}
	base := cmp.Or(strings.Trim(b.String(), "._-"), "limit")
	name := base
	for n := 2; m.names[name]; n++ {
		name = base + "-" + strconv.Itoa(n)
	}
	m.names[name] = true
	return name
}

// limitName is the name of a limit of a rule with several. Tiers and users name limits, so it is that of one rule.
func (m *importer) limitName(base, name string) string {
	return strings.Trim((base + "-" + name)[:min(len(base)+1+len(name), 64)], "._-")
}

// check takes out what is not valid, and reports it.
func (m *importer) check(all []*built) []*built {
	for range 10_000 { // each round takes something out
		f := rule.File{Tiers: m.extra.doc.Tiers}
		for _, r := range all {
			f.Rules = append(f.Rules, r.Rule)
		}
		problems := f.Check()
		if len(problems) == 0 {
			return all
		}
		gone := map[int]bool{}
		for _, p := range problems {
			number, field, ok := strings.Cut(strings.TrimPrefix(p.Path, "rules["), "]")
			i, err := strconv.Atoi(number)
			if !ok || err != nil || i >= len(all) || gone[i] {
				if number, _, ok = strings.Cut(strings.TrimPrefix(p.Path, "tiers["), "]"); ok {
					m.dropTier(number, p)
				}
				continue
			}
			gone[i] = !m.dropLimit(all[i], field, p)
			if !gone[i] {
				break // what the other problems say was of the whole
			}
			if all[i].rows == nil {
				m.note(all[i].from.pos, all[i].from.what, "the exception "+all[i].Name+" is left out: "+p.Message)
				continue
			}
			m.missing(all[i].from.pos, all[i].from.what, "not imported: "+p.Message, "correct the limit, and import again")
		}
		kept := all[:0]
		for i, r := range all {
			if !gone[i] {
				kept = append(kept, r)
			}
		}
		all = kept
	}
	return nil
}

// dropLimit takes out a limit that can never be reached, and reports whether that is what the problem is.
func (m *importer) dropLimit(r *built, field string, p rule.Problem) bool {
	number, ok := strings.CutPrefix(field, ".limits[")
	if !ok || len(r.Limits) < 2 || !strings.Contains(p.Message, "never") {
		return false
	}
	number, _, _ = strings.Cut(number, "]")
	i, err := strconv.Atoi(number)
	if err != nil || i >= len(r.Limits) {
		return false
	}
	l := r.Limits[i]
	m.note(r.from.pos, r.from.what, l.Limit+" is left out: "+p.Message)
	r.Limits = slices.Delete(slices.Clone(r.Limits), i, i+1)
	r.rows = slices.Delete(slices.Clone(r.rows), i, i+1)
	for n := range m.extra.doc.Tiers {
		delete(m.extra.doc.Tiers[n].Limits, l.Name)
	}
	return true
}

// checkUsers takes out values of users for limits that no rule has.
func (m *importer) checkUsers(all []*built) {
	has := map[string]bool{}
	for _, r := range all {
		for _, l := range r.Limits {
			has[l.Name] = true
		}
	}
	for _, u := range m.extra.doc.Users {
		for _, name := range slices.Sorted(maps.Keys(u.Limits)) {
			if !has[name] {
				m.missing(m.extra.at["user "+u.ID], "user "+u.ID, "its limit "+u.Limits[name].Limit+" is not imported: no rule has the limit "+name, "write it into the user, under the name of a limit")
				delete(u.Limits, name)
			}
		}
	}
}

func (m *importer) dropTier(number string, p rule.Problem) {
	i, err := strconv.Atoi(number)
	if err != nil || i >= len(m.extra.doc.Tiers) {
		return
	}
	t := &m.extra.doc.Tiers[i]
	m.missing(m.extra.at["tier "+t.Name], "tier "+t.Name, "its limits are not imported: "+p.Message, "write them into the tier")
	t.Limits = nil
}
