package importer

import "fmt"

// Report is the result of an import.
type Report struct {
	Source string `json:"source"`
	Nodes  int64  `json:"nodes"` // on which limits were counted before
	// Limits are the limits before and after, Missing is what has no counterpart, and Notes are about
	// what is decided the same, or depends on something that the files do not say.
	Limits  []Limit   `json:"limits"`
	Missing []Finding `json:"missing"`
	Notes   []Finding `json:"notes"`
	// Text is the config file, in TOML.
	Text string `json:"-"`
}

// Limit is a limit before and after.
type Limit struct {
	File  string `json:"file"`
	Line  int    `json:"line"`
	What  string `json:"what"` // as the file says it
	By    string `json:"counts_by"`
	Node  string `json:"before_node"`    // what one node let pass
	All   string `json:"before_cluster"` // and all nodes together
	Rule  string `json:"rule"`
	Name  string `json:"limit"`
	After string `json:"after"` // for all nodes together, as a rule says it
	Scope string `json:"scope"` // where it was counted before
}

// Finding is something to know, about a line.
type Finding struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	What    string `json:"what"`
	Why     string `json:"why"`
	Instead string `json:"instead,omitempty"` // what to do
}

// String returns the finding in one line.
func (f Finding) String() string {
	text := fmt.Sprintf("%s: %s: %s", pos{f.File, f.Line}, f.What, f.Why)
	if f.Instead != "" {
		text += "; instead: " + f.Instead
	}
	return text
}

// Scopes: where a limit was counted.
const (
	perNode = "each node"
	shared  = "all nodes"
)

// amount is how much passed before, in numbers.
type amount struct {
	max    int64
	window string // "" for what is held at once
	burst  int64  // at once; 0: as many as max
	scope  string
}

// of returns the amount on a number of nodes, in words.
func (a amount) of(nodes int64) string {
	if a.scope == shared {
		nodes = 1
	}
	switch {
	case a.window == "":
		return fmt.Sprintf("%d at once", a.max*nodes)
	case a.burst > 0:
		return fmt.Sprintf("%d/%s, %d at once", a.max*nodes, a.window, a.burst*nodes)
	default:
		return fmt.Sprintf("%d/%s", a.max*nodes, a.window)
	}
}
