// Package importer turns the limits of other programs into rules: those of nginx,
// ingress-nginx, Kong, Traefik and Envoy.
//
// It reads their files as they are, and returns a config file in TOML, whose comments name the line
// that each rule comes from, and a report. It does not run these programs, follow their control
// planes, or change anything.
//
// Invariants:
//
//   - Nothing is dropped in silence. What a file says is used, is known to have nothing to do with limits
//     (the lists in the files of this package), or is in the report with its file and line.
//   - What would be decided differently than before is in the report as missing. A note is about what
//     is decided the same but looks different, or depends on a setting that only the operator knows.
//   - The rules are valid: what [rule.File.Check] refuses is taken out, and reported.
//   - Input is bounded: bytes, files, nesting, and what a file may expand to.
package importer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stintdev/stint/internal/kit/strict"
)

// Options say what is read, and how.
type Options struct {
	// Files are the files to read; for nginx, the main file, or those that the http block includes.
	Files []string
	// Host restricts the import to what is served at one host, so that rules need no condition on it.
	Host string
	// Nodes is on how many nodes, or replicas, the limits are counted today. Default 1.
	Nodes int64
	// Read reads a file, and Glob lists those that match a pattern. Default: of this machine.
	Read func(name string) ([]byte, error)
	Glob func(pattern string) ([]string, error)
}

// Sources are the names of what can be imported.
func Sources() []string { return slices.Sorted(maps.Keys(sources)) }

var sources = map[string]func(*importer) error{
	"nginx":         (*importer).nginx,
	"ingress-nginx": (*importer).ingress,
	"kong":          (*importer).kong,
	"traefik":       (*importer).traefik,
	"envoy":         (*importer).envoy,
}

// Limits of what is read.
const (
	maxBytes = 16 << 20 // of all files
	maxFiles = 4096
	maxDepth = 64      // of blocks, and of YAML
	maxNodes = 500_000 // of all files, with aliases expanded
)

// Import reads files of a source. The error is [strict.Problems] if a file cannot be parsed.
func Import(source string, o Options) (*Report, error) {
	read, ok := sources[source]
	switch {
	case !ok:
		return nil, fmt.Errorf("source %q: want one of %s", source, strings.Join(Sources(), ", "))
	case len(o.Files) == 0:
		return nil, errors.New("no files to import")
	}
	o.Nodes = max(o.Nodes, 1)
	if o.Read == nil {
		o.Read, o.Glob = os.ReadFile, filepath.Glob
	}
	m := &importer{Options: o, source: source, report: &Report{Source: source, Nodes: o.Nodes, Limits: []Limit{}, Missing: []Finding{}, Notes: []Finding{}}, names: map[string]bool{}}
	if err := read(m); err != nil {
		return nil, err
	}
	if o.Host != "" && !m.served {
		return nil, fmt.Errorf("host %q: the files serve nothing at it: want one of %s", o.Host, strings.Join(m.allHosts(), ", "))
	}
	m.build()
	return m.report, nil
}

// importer is one import.
type importer struct {
	Options
	source string
	report *Report
	read   int // bytes
	files  int
	nodes  int

	hosts    []string // that the files serve, except those that only redirect
	served   bool     // one of them is Options.Host
	counters []*counter
	ready    []*built // rules that a source has made itself
	identity settings
	extra    extra
	names    map[string]bool
}

// pos is a place in a file.
type pos struct {
	file string
	line int
}

func (p pos) String() string { return fmt.Sprintf("%s:%d", p.file, p.line) }

// load reads a file, within the bounds.
func (m *importer) load(name string) ([]byte, error) {
	data, err := m.Read(name)
	if err != nil {
		return nil, err
	}
	m.read += len(data)
	m.files++
	if m.read > maxBytes || m.files > maxFiles {
		return nil, fmt.Errorf("%s: the files have more than %d bytes, or are more than %d", name, maxBytes, maxFiles)
	}
	return data, nil
}

// broken is the error of a file that cannot be parsed.
func broken(at pos, format string, args ...any) error {
	return strict.Problems{{File: at.file, Line: at.line, Column: 1, Message: fmt.Sprintf(format, args...)}}
}

// missing reports what has no counterpart, why, and what to do instead.
func (m *importer) missing(at pos, what, why, instead string) {
	m.report.Missing = append(m.report.Missing, Finding{at.file, at.line, clip(what), why, instead})
}

// note reports what the operator should know.
func (m *importer) note(at pos, what, why string) {
	f := Finding{File: at.file, Line: at.line, What: clip(what), Why: why}
	if !slices.Contains(m.report.Notes, f) {
		m.report.Notes = append(m.report.Notes, f)
	}
}

// serves reports whether a server with these names is to be imported, and remembers them.
func (m *importer) serves(names ...string) bool {
	for _, n := range names {
		if !slices.Contains(m.hosts, n) {
			m.hosts = append(m.hosts, n)
		}
	}
	if m.Host == "" {
		return true
	}
	ours := slices.ContainsFunc(names, func(n string) bool { return hostMatches(n, m.Host) })
	m.served = m.served || ours
	return ours
}

func (m *importer) allHosts() []string {
	var out []string
	for _, h := range m.hosts {
		out = append(out, cmp.Or(h, "(any host)"))
	}
	return out
}

// hostMatches reports whether a name, which may begin with * or a dot, matches a host.
func hostMatches(name, host string) bool {
	if name == "" || name == "_" || strings.EqualFold(name, host) {
		return true
	}
	if rest, ok := strings.CutPrefix(name, "*."); ok {
		return strings.HasSuffix(strings.ToLower(host), "."+strings.ToLower(rest))
	}
	rest, ok := strings.CutPrefix(name, ".")
	return ok && (strings.EqualFold(rest, host) || strings.HasSuffix(strings.ToLower(host), strings.ToLower(name)))
}

// clip returns a text in one line, of a length for a table.
func clip(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if r := []rune(text); len(r) > 120 {
		return string(r[:119]) + "…"
	}
	return text
}
