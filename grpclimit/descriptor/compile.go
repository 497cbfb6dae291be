package descriptor

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/strict"
)

// words are the units as written in files.
var words = [...]string{Second: "second", Minute: "minute", Hour: "hour", Day: "day", Month: "month", Year: "year", Week: "week"}

// lengths are the lengths of units in envoyproxy/ratelimit.
var lengths = [...]time.Duration{
	Second: time.Second, Minute: time.Minute, Hour: time.Hour, Day: 24 * time.Hour,
	Month: 30 * 24 * time.Hour, Year: 365 * 24 * time.Hour, Week: 7 * 24 * time.Hour,
}

// windows are the windows of units.
type windows [len(words)]stint.Window

func newWindows(fixedMonths bool) (w windows) {
	for u := Second; u <= Week; u++ {
		// All days in UTC have the same length.
		if fixedMonths || lengths[u] <= lengths[Day] {
			w[u] = stint.Every(lengths[u])
			continue
		}
		w[u], _ = stint.ParseWindow(words[u]) // all words are valid windows
	}
	return w
}

// unit returns the unit with this window, or Unknown.
func (w *windows) unit(window stint.Window) Unit {
	if calendar, _ := stint.ParseWindow(words[Day]); window == calendar {
		return Day // the same as 24 hours
	}
	return Unit(slices.Index(w[Second:], window) + 1)
}

// Window returns a window of several units; 0 means one. Several weeks, months or years are
// multiples of 7, 30 and 365 days.
func (c *Config) Window(u Unit, multiplier uint32) (stint.Window, error) {
	if u < Second || u > Week {
		return stint.Window{}, &stint.InvalidError{Field: "unit", Value: u.String(), Want: "one of " + strings.Join(words[Second:], ", ")}
	}
	if multiplier <= 1 {
		return c.windows[u], nil
	}
	if time.Duration(multiplier) > stint.MaxWindow/lengths[u] {
		return stint.Window{}, &stint.InvalidError{
			Field: "unit_multiplier", Value: strconv.FormatUint(uint64(multiplier), 10),
			Want: "at most " + strconv.FormatInt(int64(stint.MaxWindow/lengths[u]), 10) + " for the unit " + words[u],
		}
	}
	return stint.Every(time.Duration(multiplier) * lengths[u]), nil
}

// Counter returns the [Limit.Counter] of a limit. It does not depend on the maximum, which
// can thus be changed without resetting counters.
func Counter(l stint.Limit) string {
	text := l.Window.String()
	if l.Algorithm != stint.FixedWindow {
		text += " " + l.Algorithm.String()
	}
	return text
}

// origin is a place in a file.
type origin struct {
	file         string
	line, column int
}

func (o origin) String() string {
	if o.line == 0 {
		return o.file
	}
	return o.file + ":" + strconv.Itoa(o.line) + ":" + strconv.Itoa(o.column)
}

type compiler struct {
	o      Options
	config *Config
	began  map[string]origin           // where each domain is declared first
	nodes  map[*level]map[Entry]*node  // as declared
	joined map[*level]map[string]*node // by the key that envoyproxy/ratelimit makes of them
	names  map[*Tree]map[string]bool   // of limits
	count  int                         // of problems

	// The document that is being compiled:
	tree     *Tree
	file     string
	at       func(path string) (line, column int)
	broken   func(path string) bool // whether the path could not be decoded
	problems Problems
	chain    []*node
	replaces []replace
}

// replace is a name that a limit replaces.
type replace struct {
	tree *Tree
	at   origin
	path string
	name string
}

func newCompiler(o Options) *compiler {
	return &compiler{
		o:      o,
		config: &Config{trees: map[string]*Tree{}, windows: newWindows(o.FixedMonths)},
		began:  map[string]origin{},
		nodes:  map[*level]map[Entry]*node{},
		joined: map[*level]map[string]*node{},
		names:  map[*Tree]map[string]bool{},
	}
}

// add compiles a domain, from a document unless doc is nil, and returns its problems.
func (c *compiler) add(file string, d *Domain, doc *strict.Doc) Problems {
	c.file, c.problems = file, nil
	c.at = func(string) (line, column int) { return 0, 0 }
	c.broken = func(string) bool { return false }
	if doc != nil {
		c.at = doc.At
		c.broken = func(path string) bool { return doc.Locate(Problems{{Path: path}}) == nil }
	}
	if d.Domain == "" && d.Compat == "" && d.Descriptors == nil {
		c.problem("", "empty, want a domain and its descriptors", "")
		return c.problems
	}
	if d.Compat != "" && d.Compat != "independent" {
		c.problem("compat", quote(d.Compat)+`: want "independent", or nothing`, closest(d.Compat, "independent"))
	}
	c.open(d)
	c.tree.independent = c.tree.independent || d.Compat == "independent"
	c.descriptors(&c.tree.root, "descriptors", d.Descriptors)
	return c.problems
}

// open finds or makes the tree of a domain. That of one that is wrong is no one's.
func (c *compiler) open(d *Domain) {
	c.tree = &Tree{domain: d.Domain, independent: c.o.Independent}
	first, again := c.began[d.Domain]
	switch {
	case d.Domain == "":
		c.problem("domain", "missing, want the name of the domain", "")
	case again && c.o.Merge:
		c.tree = c.config.trees[d.Domain]
		c.differ("domain", fmt.Sprintf("the domain %s is in %s, too; in envoyproxy/ratelimit that is an error without MERGE_DOMAIN_CONFIG", quote(d.Domain), first.file))
	case again:
		c.problem("domain", fmt.Sprintf("%s is the domain of %s already", quote(d.Domain), first.file), "put each domain into one file, or merge domains")
	default:
		c.began[d.Domain] = c.origin("domain")
		c.config.trees[d.Domain] = c.tree
	}
	if d.Compat != "" {
		c.differ("compat", "envoyproxy/ratelimit does not support this field")
	}
}

func (c *compiler) descriptors(l *level, path string, all []Descriptor) {
	if len(c.chain) == MaxLevels && len(all) > 0 {
		c.problem(path, "nested more than "+strconv.Itoa(MaxLevels)+" descriptors deep", "")
		return
	}
	for i := range all {
		if c.count >= strict.MaxProblems {
			return
		}
		c.descriptor(l, strict.Item(path, i), &all[i])
	}
}

func (c *compiler) descriptor(l *level, path string, d *Descriptor) {
	n := &node{
		key: d.Key, value: d.Value, kind: kindOf(d.Key, d.Value), at: c.origin(path), path: path,
		valueToMetric: d.ValueToMetric, shared: d.ShareThreshold,
	}
	if d.Key == "" {
		c.problem(path+".key", "missing, want a key", "")
	} else if c.declare(l, path, n) {
		l.add(n)
	}
	if d.ShareThreshold && n.kind != ValuePattern && n.kind != KeyPattern {
		if n.shared = false; strings.Contains(n.key, "*") {
			c.differ(path+".share_threshold", "it has no effect: a * in a key is a character, unless it ends the key and there is no value")
		} else {
			c.problem(path+".share_threshold", "it applies to patterns, and there is no * in the value", "")
		}
	}
	c.differDescriptor(path, n, d)
	c.chain = append(c.chain, n)
	if d.RateLimit != nil {
		n.limit = c.limit(path, d)
		c.config.limits = append(c.config.limits, n.limit)
	}
	c.descriptors(&n.below, path+".descriptors", d.Descriptors)
	c.chain = c.chain[:len(c.chain)-1]
}

// declare adds a descriptor to those of a level, and reports whether it is new.
func (c *compiler) declare(l *level, path string, n *node) bool {
	if c.nodes[l] == nil {
		c.nodes[l], c.joined[l] = map[Entry]*node{}, map[string]*node{}
	}
	e := Entry{n.key, n.value}
	if first := c.nodes[l][e]; first != nil {
		where := first.path
		if first.at.file != c.file || first.at.line > 0 {
			where = first.at.String()
		}
		c.problem(path, quote(n.name())+" is already declared at "+where, "")
		return false
	}
	c.nodes[l][e] = n
	if first := c.joined[l][n.name()]; first != nil {
		c.differ(path, fmt.Sprintf("key %s and value %s are the same as key %s and value %s in envoyproxy/ratelimit, which is an error; here they are different",
			quote(n.key), quote(n.value), quote(first.key), quote(first.value)))
	} else {
		c.joined[l][n.name()] = n
	}
	return true
}

func (c *compiler) limit(path string, d *Descriptor) *Limit {
	r := d.RateLimit
	l := &Limit{
		Path: c.tree.domain, Name: r.Name, Requests: r.RequestsPerUnit, Unlimited: r.Unlimited,
		Shadow: d.ShadowMode || r.Mark, Mark: r.Mark, Quota: d.QuotaMode, Metadata: d.Metadata,
		tree: c.tree, chain: slices.Clone(c.chain), detailed: d.DetailedMetric,
	}
	for i, n := range l.chain {
		l.Path += "." + n.name()
		if !n.shared {
			continue
		}
		if l.Shared == nil {
			l.Shared = make([]Entry, len(l.chain))
		}
		l.Shared[i] = Entry{n.key, n.value}
	}
	l.varies = l.statVaries()
	path += ".rate_limit"
	c.replacesOf(path+".replaces", l, r)
	if r.Name != "" {
		if c.names[c.tree] == nil {
			c.names[c.tree] = map[string]bool{}
		}
		c.names[c.tree][r.Name] = true
	}
	if r.Unlimited {
		fields := r.extensions()
		if slices.Contains(words[Second:], strings.ToLower(r.Unit)) {
			fields = append([]string{"unit"}, fields...)
		} else if r.Unit != "" {
			c.ignore(c.origin(path+".unit"), path+".unit", "an unlimited rate_limit has no unit: it has no effect", "")
		}
		for _, name := range fields {
			c.problem(path+"."+name, "an unlimited rate_limit has none", "remove it, or unlimited")
		}
		return l
	}
	c.counted(path, l, r)
	c.penalty(path+".penalty", l, r)
	if l.Mark && l.Quota {
		c.problem(path+".mark", "with quota_mode this limit denies requests together with others", "remove one of them")
	}
	c.differLimit(path, r)
	return l
}

func (c *compiler) replacesOf(path string, l *Limit, r *RateLimit) {
	for i, other := range r.Replaces {
		path := strict.Item(path, i) + ".name"
		switch other.Name {
		case "":
			c.problem(path, "missing, want the name of a limit", "")
		case r.Name:
			c.problem(path, quote(other.Name)+" is the limit's own name: want the name of another limit", "")
		default:
			l.Replaces = append(l.Replaces, other.Name)
			c.replaces = append(c.replaces, replace{c.tree, c.origin(path), path, other.Name})
		}
	}
}

// counted sets the limit, its counter and its unit.
func (c *compiler) counted(path string, l *Limit, r *RateLimit) {
	limit := stint.Limit{Algorithm: stint.FixedWindow, Max: max(int64(r.RequestsPerUnit), 1), Burst: r.Burst}
	var ok bool
	if limit.Window, ok = c.window(path, r); !ok {
		return
	}
	l.Unit = c.config.windows.unit(limit.Window)
	if r.Algorithm != "" {
		var algorithms []string
		for _, a := range stint.Algorithms() {
			algorithms = append(algorithms, a.String())
		}
		var err error
		if limit.Algorithm, err = stint.ParseAlgorithm(r.Algorithm); err != nil {
			c.invalid(path+".algorithm", err, closest(r.Algorithm, append(algorithms, "gcra")...))
			return
		}
		if err = limit.ValidateRate(); err != nil {
			c.invalid(path+".algorithm", err, "")
			return
		}
	}
	if limit.Algorithm == stint.LeakyBucket && r.Burst > 0 {
		c.problem(path+".burst", "a leaky_bucket holds requests, which Envoy does not support", "remove it, or use token_bucket")
		return
	}
	// As in the text of limits, a day and a week are lengths, not calendar periods.
	for _, u := range []Unit{Day, Week} {
		if w, _ := stint.ParseWindow(words[u]); limit.Algorithm != stint.FixedWindow && limit.Window == w {
			limit.Window = stint.Every(lengths[u])
		}
	}
	if err := limit.Validate(); err != nil {
		field, hint := "unit", "write window: 30d, or another length, in place of the unit"
		if r.Window != "" {
			field, hint = "window", ""
		}
		var e *stint.InvalidError
		switch errors.As(err, &e); {
		case e == nil || e.Field == "max":
			field, hint = "requests_per_unit", ""
		case e.Field == "burst":
			field, hint = "burst", ""
		}
		c.invalid(path+"."+field, err, hint)
		return
	}
	l.Counter, l.Limit = Counter(limit), limit
	l.Plan, _ = limit.Compile() // nil for a limit of 0
	l.Limit.Max = int64(r.RequestsPerUnit)
}

// window returns the window of a limit.
func (c *compiler) window(path string, r *RateLimit) (w stint.Window, ok bool) {
	switch {
	case r.Unit != "" && r.Window != "":
		c.problem(path+".window", "there is also a unit: want one of them", "")
		return w, false
	case r.Window != "":
		w, err := stint.ParseWindow(r.Window)
		if err != nil {
			c.invalid(path+".window", err, "")
		}
		return w, err == nil
	case r.Unit == "" && (c.broken(path+".window") || c.broken(path+".unlimited")):
		return w, false // it may not be missing
	case r.Unit == "":
		c.problem(path+".unit", "missing, want one of "+strings.Join(words[Second:], ", ")+"; or a window, or unlimited", "")
		return w, false
	}
	if u := slices.Index(words[Second:], strings.ToLower(r.Unit)); u >= 0 {
		return c.config.windows[u+int(Second)], true
	}
	hint := closest(r.Unit, words[Second:]...)
	if _, err := stint.ParseWindow(r.Unit); err == nil && hint == "" {
		hint = "did you mean window: " + r.Unit + "?"
	}
	c.problem(path+".unit", quote(r.Unit)+": want one of "+strings.Join(words[Second:], ", "), hint)
	return w, false
}

func (c *compiler) penalty(path string, l *Limit, r *RateLimit) {
	if r.Penalty == "" {
		return
	}
	p, err := stint.ParsePenalty(r.Penalty)
	switch {
	case err != nil:
		c.invalid(path, err, "")
	case l.Shadow:
		c.problem(path, "with shadow_mode or mark no request is denied, so no client would be banned", "remove one of them")
	case l.Quota:
		c.problem(path, "with quota_mode this limit alone denies no request, so no client would be banned", "remove one of them")
	case r.RequestsPerUnit == 0:
		c.problem(path, "with requests_per_unit 0 nothing is counted, so no client would be banned", "remove it: nothing passes anyway")
	default:
		l.Penalty = p
	}
}

// finish returns the configuration, or the problems.
func (c *compiler) finish(problems Problems) (*Config, error) {
	if len(problems) > 0 {
		return nil, problems[:min(len(problems), strict.MaxProblems)]
	}
	c.differWhole()
	return c.config, nil
}

func (c *compiler) origin(path string) origin {
	line, column := c.at(path)
	return origin{c.file, line, column}
}

func (c *compiler) problem(path, message, hint string) {
	if c.count++; c.count <= strict.MaxProblems {
		c.problems = append(c.problems, Problem{Path: path, Message: message, Hint: hint})
	}
}

// invalid reports the error of a parser.
func (c *compiler) invalid(path string, err error, hint string) {
	message := err.Error()
	var e *stint.InvalidError
	if errors.As(err, &e) {
		message = quote(e.Value) + ": want " + e.Want
		if e.Field != "window" && e.Field != "max" && !strings.HasSuffix(path, e.Field) {
			message = e.Field + " " + message
		}
	}
	c.problem(path, message, hint)
}

func quote(text string) string { return strict.Quote(text) }

func closest(word string, among ...string) string {
	if w, ok := strict.Closest(word, among); ok {
		return strict.DidYouMean(w)
	}
	return ""
}
