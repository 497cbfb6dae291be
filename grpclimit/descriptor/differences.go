package descriptor

import (
	"fmt"
	"strconv"
	"strings"
)

// Difference is something that envoyproxy/ratelimit does otherwise with a
// configuration. Line and Column are 0 if they are not known.
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

// Differences returns what envoyproxy/ratelimit would do otherwise with this
// configuration, in the order of declaration; [General] is what it always does.
func (c *Config) Differences() []Difference { return c.differences }

// General returns what is otherwise than in envoyproxy/ratelimit whatever the
// configuration.
func General() []string {
	return []string{
		"A request that is refused is not charged; only where its descriptors are counted for themselves does one that does not fit use up what is left. There every request is charged, also those that are over the limit.",
		"The descriptors of a request are charged all or none, unless the domain has compat: independent. There each is charged for itself.",
		"A key and its value are never joined, neither to find a limit nor to count: a client cannot choose a value that is counted with those of another descriptor.",
		"An entry without a value does not match a descriptor with a value. There it matches key_* and whatever has a key that ends in _.",
		"What is counted together is charged in one step, at one clock. There counters are raised one by one, at the clock of each node.",
		"A check without hits (hits_addend: 0) of a limit of which nothing is left says that it is over. There it does so only after one more was refused.",
		"If Redis is out of reach, this node's memory decides, by its share of the limits. There calls fail, as they do here with envoy.on_store_failure = \"error\".",
		"Files are read whose names end in .yaml or .yml, in the directory itself. There all files are, also in directories below.",
		"A limit keeps its counters when its requests_per_unit is changed, and begins anew when its unit is.",
	}
}

// differ notes a difference, with what is being compiled.
func (c *compiler) differ(path, text string) { c.differAt(c.origin(path), path, text) }

func (c *compiler) differAt(at origin, path, text string) {
	c.config.differences = append(c.config.differences, Difference{path, at.file, at.line, at.column, text})
}

func (c *compiler) differDescriptor(path string, n *node, d *Descriptor) {
	switch star := strings.Index(n.value, "*"); {
	case n.kind == ValuePattern && star < len(n.value)-1:
		text := "only newer versions have a * elsewhere than at the end: for others it is a character"
		if n.shared && !strings.HasSuffix(n.value, "*") {
			text += ", and share_threshold an error"
		}
		c.differ(path+".value", text)
	case n.kind == KeyPattern && strings.Contains(n.key, "_"):
		c.differ(path+".key", fmt.Sprintf("%s matches keys here; there also values, of the key before the _", quote(n.key)))
	}
	if n.kind == KeyPattern && n.shared {
		c.differ(path+".share_threshold", "all keys that fit share one counter; there each key has one of its own")
	}
	if d.Metadata != nil {
		c.differ(path+".metadata", "only newer versions know this field")
	}
}

func (c *compiler) differLimit(path string, r *RateLimit) {
	for _, f := range []struct {
		name  string
		given bool
	}{{"window", r.Window != ""}, {"algorithm", r.Algorithm != ""}, {"burst", r.Burst != 0}, {"penalty", r.Penalty != ""}} {
		if f.given {
			c.differ(path+"."+f.name, "it does not know this field")
		}
	}
	if c.o.FixedMonths {
		return
	}
	for u, there := range map[Unit]string{
		Week:  "from Thursday to Thursday, seven days from the epoch",
		Month: "30 days, counted from the epoch",
		Year:  "365 days, counted from the epoch",
	} {
		if strings.EqualFold(r.Unit, words[u]) {
			c.differ(path+".unit", "a "+words[u]+" is one of the calendar, in UTC; there it is "+there)
		}
	}
}

// differWhole notes what can only be said of the whole configuration.
func (c *compiler) differWhole() {
	for _, r := range c.replaces {
		if !c.names[r.tree][r.name] {
			c.differAt(r.at, r.path, fmt.Sprintf("no limit of the domain is named %s: this replaces nothing, here as there", quote(r.name)))
		}
	}
	// What is counted under one name there, of what has a value on every level.
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
			continue // they stand beside each other, and have been noted
		}
		c.differAt(n.at, n.path, fmt.Sprintf("there %s is counted together with what is at %s; here each is counted for itself",
			strings.Join(levels, " "), m.at))
	}
}
