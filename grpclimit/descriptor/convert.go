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
	// Map is, by key, what it is to a rule: ip, user, tenant, api_key, path, method,
	// header:NAME, or ignore, for a key that is always there and always the same. Keys
	// that Envoy's own actions set are known, and any other is header: and the key.
	Map map[string]string
}

var meanings = map[string]string{
	"remote_address": "ip", "masked_remote_address": "ip",
	"path": "path", ":path": "path",
	"method": "method", ":method": "method",
	"generic_key": "ignore", "source_cluster": "ignore", "destination_cluster": "ignore",
}

// Convert returns the limits as rules, in TOML as [rule.ParseTOML] reads it, and notes
// on what is not the same, or could not be converted, which are also in the text. What
// it converts compiles.
func (c *Config) Convert(o ConvertOptions) (text string, notes []string) {
	v := converter{o: o, names: map[string]int{}, noted: map[string]bool{}}
	if n := len(c.trees); n > 1 {
		v.note("", fmt.Sprintf("there are %d domains, and rules have none: all rules apply wherever they are used", n))
	}
	for _, d := range c.Domains() {
		if c.trees[d].independent {
			v.note(d, "its descriptors are charged each for itself, and rules together, all or none")
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
	names map[string]int // how often a name was asked for
}

// converted is a rule, and what it was made of.
type converted struct {
	rule.Rule
	limit *Limit
	group string // rules of which one descriptor has at most one
	ranks []int  // of the levels: which comes first
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

// limit converts a limit, or notes why not.
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

// fill makes the rule, or returns why it cannot be.
func (v *converter) fill(r *converted) (why string) {
	l := r.limit
	switch {
	case l.Quota:
		return "rules have no quota_mode"
	case l.Unlimited:
		r.Action = rule.Allow
		r.notes = append(r.notes, "what is allowed passes whatever other rules say, not only this one")
	case l.Requests == 0 && l.Shadow:
		return "rules that block cannot be tried out"
	case l.Requests == 0:
		r.Action = rule.Block
	case l.Shadow:
		r.Action = rule.LogOnly
	}
	seen := map[string]bool{}
	for _, n := range l.chain {
		meaning := cmp.Or(v.o.Map[n.key], meanings[n.key], "header:"+n.key)
		r.group += "\x00" + n.key
		r.ranks = append(r.ranks, n.rank())
		if n.kind == KeyPattern {
			return "rules have no patterns for what is counted by, such as " + quote(n.key)
		}
		if meaning == "ignore" {
			r.group += "\x00" + n.value
			v.note("", fmt.Sprintf("the key %s is left out, as one that is always the same on a route", quote(n.key)))
			continue
		}
		if seen[meaning] {
			return "the key " + quote(n.key) + " is there twice"
		}
		seen[meaning] = true
		if why := r.step(n, meaning); why != "" {
			return why
		}
	}
	if len(l.Replaces) > 0 {
		r.notes = append(r.notes, "replaces is left out: rules of one group are alternatives")
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

// rank says which of the descriptors of a level comes first.
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

// step adds what a level means.
func (r *converted) step(n *node, meaning string) (why string) {
	counts := r.Action != rule.Allow && r.Action != rule.Block
	kind, name, named := strings.Cut(meaning, ":")
	if n.kind == KeyAlone && kind != "header" && kind != "path" {
		switch {
		case counts:
			r.CountBy = append(r.CountBy, rule.Dimension(kind))
		case kind != "ip" && kind != "method": // which every request has
			return "rules do not match by whether there is a " + kind
		}
	}
	switch {
	case kind == "header" && named:
		return r.header(n, name, counts)
	case named || !slices.Contains([]string{"ip", "user", "tenant", "api_key", "path", "method"}, kind):
		return fmt.Sprintf("%s is to be %s: want ip, user, tenant, api_key, path, method, header:NAME or ignore", quote(n.key), quote(meaning))
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
		return "rules do not match a single " + kind + ": give " + quote(n.value) + " limits of its own, or exempt or ban it"
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
		return "rules do not count by path; they do by pattern: name some"
	case n.kind == KeyAlone:
		return "" // every request has one
	case strings.Contains(before, "*") || n.kind == ValuePattern && !wild:
		return "rules have * for whole segments of a path, not as in " + quote(n.value)
	case strings.ContainsAny(n.value, "?{}"):
		return quote(n.value) + " is not a path alone"
	case wild:
		r.Match.Paths = []string{before + "/**"}
		r.notes = append(r.notes, quote(n.value)+" is written "+quote(before+"/**")+", which "+quote(cmp.Or(before, "/"))+" fits as well")
		if counts && !n.shared {
			r.notes = append(r.notes, "paths that fit "+quote(before+"/**")+" have one counter together, not one each")
		}
	default:
		r.Match.Paths = []string{n.value}
	}
	return ""
}

// group makes alternatives of rules of which a descriptor has at most one.
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

// check leaves out what does not compile.
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
		gone := map[int]bool{}
		for _, p := range problems {
			number, field, _ := strings.Cut(strings.TrimPrefix(p.Path, "rules["), "]")
			i, err := strconv.Atoi(number)
			if err != nil || i >= len(v.rules) || gone[i] {
				continue
			}
			r := v.rules[i]
			if strings.HasPrefix(field, ".penalty") {
				r.Penalty = nil
				v.note(r.limit.Path, "its penalty is left out: "+p.Message)
				continue
			}
			gone[i] = true
			v.note(r.limit.Path, "not converted: "+p.Message)
		}
		kept := v.rules[:0]
		for i, r := range v.rules {
			if !gone[i] {
				kept = append(kept, r)
			}
		}
		v.rules = kept
	}
}

// valid returns a name like this one that a rule may have, or none.
func valid(text string) string {
	const most = 56 // leaves room for a number
	var b strings.Builder
	for i := range len(text) {
		switch c := text[i]; {
		case b.Len() == most:
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("._-", c) >= 0:
			b.WriteByte(c)
		default:
			b.WriteByte('-')
		}
	}
	return strings.Trim(b.String(), "._-")
}

// name returns a name that no rule and no group has yet.
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
	b := []byte("# Rules, converted from descriptors. What is not quite the same is noted here.\n")
	for _, n := range v.notes {
		b = append(b, "#\n# "+comment(n)+"\n"...)
	}
	for _, r := range v.rules {
		b = append(b, "\n# "+comment(r.limit.Path)+"\n"...)
		b, _ = strict.AppendTOML(b, rule.File{Rules: []rule.Rule{r.Rule}}) // a rule can be written
	}
	return string(b)
}

// comment returns a text in one line.
func comment(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
