package descriptor

import (
	"fmt"
	"strconv"
	"strings"
)

// Difference is something that envoyproxy/ratelimit does differently with a configuration.
// Line and Column are 0 if unknown.
type Difference struct {
	Path   string
	File   string
	Line   int
	Column int
	Text   string
}

// String returns the difference in one line.
func (d Difference) String() string {
	p := Problem{File: d.File, Line: d.Line, Column: d.Column, Path: d.Path, Message: d.Text}
	return p.String()
}

// Differences returns what envoyproxy/ratelimit does differently with this configuration, in
// the order of declaration. [General] returns what it does differently with all of them.
func (c *Config) Differences() []Difference { return c.differences }

// General returns the differences from envoyproxy/ratelimit that apply to every
// configuration.
func General() []string {
	return []string{
		"A denied request is not charged, except that a descriptor that is counted independently and does not fit uses up what remains. envoyproxy/ratelimit charges every request, even over the limit.",
		"All descriptors of a request are charged, or none, unless the domain has compat: independent, or envoy.independent is set, as with --envoy-env. envoyproxy/ratelimit charges each independently.",
		"A key and its value are never joined, neither to find a limit nor to count, so no client can choose a value that is counted under another descriptor.",
		"An entry without a value does not match a descriptor with a value. In envoyproxy/ratelimit it matches key_* and keys that end in _.",
		"Counters of one request are charged in one step, by one clock. envoyproxy/ratelimit increments them one by one, by the clock of each node.",
		"A check without hits (hits_addend: 0) of a limit that is used up returns OVER_LIMIT. In envoyproxy/ratelimit it does so only after another request was denied.",
		"If Redis cannot be reached, each node decides by itself, with its share of the limits. In envoyproxy/ratelimit calls fail, as they do here with envoy.on_store_failure = \"error\".",
		"A volume of Kubernetes is read once. envoyproxy/ratelimit reads its files twice, which is an error, without RUNTIME_IGNOREDOTFILES=true.",
		"A limit keeps its counters when its requests_per_unit changes, and starts new ones when its unit changes.",
	}
}

// differ adds a difference in the current document.
func (c *compiler) differ(path, text string) { c.differAt(c.origin(path), path, text) }

func (c *compiler) differAt(at origin, path, text string) {
	c.config.differences = append(c.config.differences, Difference{path, at.file, at.line, at.column, text})
}

// ignore adds something that has no effect.
func (c *compiler) ignore(at origin, path, text, hint string) {
	text += ", as in envoyproxy/ratelimit"
	if hint != "" {
		text += "; " + hint
	}
	c.config.ignored = append(c.config.ignored, Difference{path, at.file, at.line, at.column, text})
}

func (c *compiler) differDescriptor(path string, n *node, d *Descriptor) {
	switch star := strings.Index(n.value, "*"); {
	case n.kind == ValuePattern && star < len(n.value)-1:
		text := "only newer versions support a * that is not at the end; for others it is a character"
		if n.shared && !strings.HasSuffix(n.value, "*") {
			text += ", and share_threshold an error"
		}
		c.differ(path+".value", text)
	case n.kind == KeyPattern && strings.Contains(n.key, "_"):
		c.differ(path+".key", fmt.Sprintf("%s matches only keys; in envoyproxy/ratelimit it also matches values of the key before the _", quote(n.key)))
	}
	if n.kind == KeyPattern && n.shared {
		c.differ(path+".share_threshold", "all matching keys share one counter; in envoyproxy/ratelimit each key has its own")
	}
	if d.Metadata != nil {
		c.differ(path+".metadata", "only newer versions support this field")
	}
}

func (c *compiler) differLimit(path string, r *RateLimit) {
	for _, name := range r.extensions() {
		c.differ(path+"."+name, "envoyproxy/ratelimit does not support this field")
	}
	if c.o.FixedMonths {
		return
	}
	for u, there := range map[Unit]string{
		Week:  "7 days, counted from the epoch, from Thursday to Thursday",
		Month: "30 days, counted from the epoch",
		Year:  "365 days, counted from the epoch",
	} {
		if strings.EqualFold(r.Unit, words[u]) {
			c.differ(path+".unit", "a "+words[u]+" is a calendar period in UTC; in envoyproxy/ratelimit it is "+there)
		}
	}
}

// extensions returns the names of the fields in use that envoyproxy/ratelimit does not have.
func (r *RateLimit) extensions() (names []string) {
	for i, used := range []bool{r.Window != "", r.Algorithm != "", r.Burst != 0, r.Penalty != "", r.Mark} {
		if used {
			names = append(names, []string{"window", "algorithm", "burst", "penalty", "mark"}[i])
		}
	}
	return names
}

// differWhole adds the differences that depend on the whole configuration.
func (c *compiler) differWhole() {
	for _, r := range c.replaces {
		if !c.names[r.tree][r.name] {
			c.differAt(r.at, r.path, fmt.Sprintf("no limit of the domain is named %s: this replaces nothing, also in envoyproxy/ratelimit", quote(r.name)))
		}
	}
	// Limits with a value on every level that envoyproxy/ratelimit counts under one name.
	first := map[string]*Limit{}
	for _, l := range c.config.limits {
		name, whole := l.tree.domain+"_", !l.Unlimited
		levels := make([]string, len(l.chain))
		for i, n := range l.chain {
			whole = whole && (n.kind == Exact || n.shared && n.kind == ValuePattern)
			name += n.key + "_" + n.value + "_"
			levels[i] = strconv.Quote(n.key) + "=" + strconv.Quote(n.value)
		}
		if !whole {
			continue
		}
		other := first[name]
		if other == nil {
			first[name] = l
			continue
		}
		n, m := l.chain[len(l.chain)-1], other.chain[len(other.chain)-1]
		if len(l.chain) == len(other.chain) && l.tree == other.tree && (len(l.chain) == 1 || l.chain[len(l.chain)-2] == other.chain[len(other.chain)-2]) {
			continue // siblings, which declare has compared
		}
		c.differAt(n.at, n.path, fmt.Sprintf("envoyproxy/ratelimit counts %s together with the limit at %s; here each has its own counter",
			strings.Join(levels, " "), m.at))
	}
}
