package descriptor

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// ConvertOptions say what the keys of descriptors mean to rules.
type ConvertOptions struct {
	// Map maps keys to ip, user, tenant, api_key, path, method, header:NAME, or ignore, for a
	// key that every request has with the same value. Keys of Envoy's own actions have
	// defaults; for any other key the default is header: and the key.
	Map map[string]string
}

var meanings = map[string]string{
	"remote_address": "ip", "masked_remote_address": "ip",
	"path": "path", ":path": "path",
	"method": "method", ":method": "method",
	"generic_key": "ignore", "source_cluster": "ignore", "destination_cluster": "ignore",
}

// Convert returns the limits as rules in TOML, and notes on what differs or could not be
// converted, which are also in the text. The rules are valid for [rule.ParseTOML].
func (c *Config) Convert(o ConvertOptions) (text string, notes []string) {
	v := converter{o: o, names: map[string]int{}, noted: map[string]bool{}}
	if n := len(c.trees); n > 1 {
		v.note("", fmt.Sprintf("there are %d domains, and rules have no domains: all rules apply to all requests", n))
	}
	for _, d := range c.Domains() {
		if c.trees[d].independent {
			v.note(d, "its descriptors are charged independently, but rules are charged all or none")
		}
	}
	for _, l := range c.limits {
		v.limit(l)
	}
	v.group()
	v.check()
	return v.write(), v.notes
}

type converter struct {
	o     ConvertOptions
	rules []*converted
	notes []string
	noted map[string]bool
	names map[string]int // how often a name was requested
}

// converted is a rule, and the limit that it was made from.
type converted struct {
	rule.Rule
	limit *Limit
	group string // the same for rules of which at most one applies to a descriptor
	ranks []int  // the rank at each level: lower comes first
	notes []string
}

func (v *converter) note(about, text string) {
	if about != "" {
		text = about + ": " + text
	}
	if !v.noted[text] {
		v.noted[text] = true
		v.notes = append(v.notes, text)
	}
}

// limit converts a limit, or adds a note why it cannot be converted.
func (v *converter) limit(l *Limit) {
	r := &converted{limit: l, group: l.tree.domain}
	if why := v.fill(r); why != "" {
		v.note(l.Path, "not converted: "+why)
		return
	}
	r.Name = v.name(l.Path)
	for i := range r.Limits {
		r.Limits[i].Name = cmp.Or(valid(l.Name), r.Name)
	}
	v.rules = append(v.rules, r)
	for _, n := range r.notes {
		v.note(l.Path, n)
	}
}

// fill fills in the rule, or returns why it cannot.
func (v *converter) fill(r *converted) (why string) {
	l := r.limit
	switch {
	case l.Quota:
		return "rules have no quota_mode"
	case l.Unlimited:
		r.Action = rule.Allow
		r.notes = append(r.notes, "an allow rule lets requests pass whatever other rules say")
	case l.Requests == 0 && l.Shadow:
		return "a block rule cannot be in shadow_mode, or mark"
	case l.Requests == 0:
		r.Action = rule.Block
	case l.Mark:
		r.Action = rule.Mark
	case l.Shadow:
		r.Action = rule.LogOnly
	}
	seen := map[string]bool{}
	for _, n := range l.chain {
		meaning := cmp.Or(v.o.Map[n.key], meanings[n.key], "header:"+n.key)
		r.group += "\x00" + n.key
		r.ranks = append(r.ranks, n.rank())
		if n.kind == KeyPattern {
			return "rules have no patterns for keys, such as " + quote(n.key)
		}
		if meaning == "ignore" {
			r.group += "\x00" + n.value
			v.note("", fmt.Sprintf("the key %s is ignored, since it is always the same on a route", quote(n.key)))
			continue
		}
		if seen[meaning] {
			return "the key " + quote(n.key) + " is used twice"
		}
		seen[meaning] = true
		if why := r.step(n, meaning); why != "" {
			return why
		}
	}
	if len(l.Replaces) > 0 {
		r.notes = append(r.notes, "replaces is left out: of the rules of a group only one applies")
	}
	if l.Metadata != nil {
		r.notes = append(r.notes, "metadata is left out")
	}
	if r.Action == rule.Allow || r.Action == rule.Block {
		return ""
	}
	r.Limits = []rule.Limit{{Limit: l.Limit.String()}}
	if p := l.Penalty; p != nil {
		r.Penalty = &rule.Penalty{Threshold: p.Threshold, Within: rule.Duration(p.Within), Cooldown: rule.Duration(p.Cooldown), Multipliers: p.Multipliers}
	}
	return ""
}

// rank orders the descriptors of a level: the lowest that matches wins.
func (n *node) rank() int {
	switch n.kind {
	case Exact:
		return 0
	case KeyAlone:
		return math.MaxInt
	default:
		return 1 + n.order
	}
}

// step adds the conditions of one level.
func (r *converted) step(n *node, meaning string) (why string) {
	counts := r.Action != rule.Allow && r.Action != rule.Block
	kind, name, named := strings.Cut(meaning, ":")
	if n.kind == KeyAlone && kind != "header" && kind != "path" {
		switch {
		case counts:
			r.CountBy = append(r.CountBy, rule.Dimension(kind))
		case kind != "ip" && kind != "method": // every request has these
			return "rules cannot match every request that has a " + kind
		}
	}
	switch {
	case kind == "header" && named:
		return r.header(n, name, counts)
	case named || !slices.Contains([]string{"ip", "user", "tenant", "api_key", "path", "method"}, kind):
		return fmt.Sprintf("%s maps to %s: want ip, user, tenant, api_key, path, method, header:NAME or ignore", quote(n.key), quote(meaning))
	case kind == "path":
		return r.path(n, counts)
	case n.kind == KeyAlone:
	case n.kind == ValuePattern:
		return "rules have no patterns for " + kind + ", such as " + quote(n.value)
	case kind == "ip":
		if !isNetwork(n.value) {
			return quote(n.value) + " is neither an address nor a network"
		}
		r.Match.IPRanges = []string{n.value}
	case kind == "method":
		r.Match.Methods = []string{strings.ToUpper(n.value)}
	default:
		return "rules cannot match a single " + kind + ": give " + quote(n.value) + " limits of its own, or exempt or ban it"
	}
	return ""
}

func isNetwork(text string) bool {
	_, addr := netip.ParseAddr(text)
	_, network := netip.ParsePrefix(text)
	return addr == nil || network == nil
}

func (r *converted) header(n *node, name string, counts bool) (why string) {
	value := n.value
	switch {
	case n.kind == KeyAlone && counts:
		r.CountBy = append(r.CountBy, rule.Dimension("header:"+name))
		return ""
	case n.kind == KeyAlone:
		value = "*"
	case n.kind == ValuePattern && strings.Trim(n.value, "*") != "":
		return "rules have no patterns for headers, such as " + quote(n.value)
	case n.kind == ValuePattern:
		if value = "*"; counts && !n.shared {
			r.CountBy = append(r.CountBy, rule.Dimension("header:"+name))
			return ""
		}
	}
	if r.Match.Headers == nil {
		r.Match.Headers = map[string]string{}
	}
	r.Match.Headers[name] = value
	return ""
}

func (r *converted) path(n *node, counts bool) (why string) {
	before, wild := strings.CutSuffix(n.value, "/*")
	switch {
	case n.kind == KeyAlone && counts:
		return "rules do not count by each path, only by patterns of paths"
	case n.kind == KeyAlone:
		return "" // every request has one
	case strings.Contains(before, "*") || n.kind == ValuePattern && !wild:
		return "in rules, * stands for a whole segment of a path, unlike in " + quote(n.value)
	case strings.ContainsAny(n.value, "?{}"):
		return quote(n.value) + " is not just a path"
	case wild:
		r.Match.Paths = []string{before + "/**"}
		r.notes = append(r.notes, quote(n.value)+" is written "+quote(before+"/**")+", which "+quote(cmp.Or(before, "/"))+" matches as well")
		if counts && !n.shared {
			r.notes = append(r.notes, "paths that match "+quote(before+"/**")+" share one counter")
		}
	default:
		r.Match.Paths = []string{n.value}
	}
	return ""
}

// group puts rules of which at most one applies to a descriptor into one group.
func (v *converter) group() {
	groups := map[string][]*converted{}
	for _, r := range v.rules {
		groups[r.group] = append(groups[r.group], r)
	}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		rules := groups[key]
		if len(rules) == 1 {
			continue
		}
		slices.SortStableFunc(rules, func(a, b *converted) int { return slices.Compare(a.ranks, b.ranks) })
		name := v.name(strings.ReplaceAll(key, "\x00", "."))
		for i, r := range rules {
			r.Group = name
			if i > 0 {
				r.Priority = rules[i-1].Priority + min(1, slices.Compare(r.ranks, rules[i-1].ranks))
			}
		}
	}
}

// check removes rules that are invalid.
func (v *converter) check() {
	for {
		var f rule.File
		for _, r := range v.rules {
			f.Rules = append(f.Rules, r.Rule)
		}
		problems := f.Check()
		if len(problems) == 0 {
			return
		}
		removed := map[int]bool{}
		for _, p := range problems {
			number, field, _ := strings.Cut(strings.TrimPrefix(p.Path, "rules["), "]")
			i, err := strconv.Atoi(number)
			if err != nil || i >= len(v.rules) || removed[i] {
				continue
			}
			r := v.rules[i]
			if strings.HasPrefix(field, ".penalty") {
				r.Penalty = nil
				v.note(r.limit.Path, "the penalty is left out: "+p.Message)
				continue
			}
			removed[i] = true
			v.note(r.limit.Path, "not converted: "+p.Message)
		}
		kept := v.rules[:0]
		for i, r := range v.rules {
			if !removed[i] {
				kept = append(kept, r)
			}
		}
		v.rules = kept
	}
}

// valid returns the text as a valid name of a rule. It may be empty.
func valid(text string) string {
	const maxLength = 56 // leaves room for a number
	var b strings.Builder
	for i := range len(text) {
		switch c := text[i]; {
		case b.Len() == maxLength:
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("._-", c) >= 0:
			b.WriteByte(c)
		default:
			b.WriteByte('-')
		}
	}
	return strings.Trim(b.String(), "._-")
}

// name returns a name that no other rule or group has.
func (v *converter) name(text string) string {
	base := cmp.Or(valid(text), "limit")
	name := base
	for v.names[name] > 0 {
		v.names[base]++
		name = base + "-" + strconv.Itoa(v.names[base])
	}
	v.names[name] = 1
	return name
}

// write returns the rules as TOML.
func (v *converter) write() string {
	b := []byte("# Rules converted from descriptors. Notes list what differs.\n")
	for _, n := range v.notes {
		b = append(b, "#\n# "+comment(n)+"\n"...)
	}
	for _, r := range v.rules {
		b = append(b, "\n# "+comment(r.limit.Path)+"\n"...)
		b, _ = strict.AppendTOML(b, rule.File{Rules: []rule.Rule{r.Rule}}) // a rule can be written
	}
	return string(b)
}

// comment returns the text in one line.
func comment(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
