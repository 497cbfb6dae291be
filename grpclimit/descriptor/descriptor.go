// Package descriptor reads the configuration of envoyproxy/ratelimit, and finds the limit of
// a descriptor.
//
// [Read] reads files and reports all their problems at once. [Compile] does the same for
// domains that do not come from files. The result never changes, and [Tree.Find] neither
// locks nor allocates.
//
// # How a descriptor is matched
//
// A descriptor is a list of entries, each with a key and a value. Each entry leads one
// level down: by its key and value, or else by the first declared pattern that it matches,
// or else by its key alone. The limit is that of the level that the last entry leads to, if
// it has one.
//
// A pattern is a value in which each * stands for any number of characters, or a key that
// ends in * and has no value. An entry without a value matches no declared value or pattern
// of values.
//
// Keys and values are never joined: a with b_c is not a_b with c.
//
// [Config.Differences] and [General] list the differences from envoyproxy/ratelimit.
//
// # What it does not do
//
// It counts nothing, and knows no protocol: the server is package rls.
package descriptor

import (
	"fmt"
	"strconv"

	"github.com/stintdev/stint"
)

// Domain is the descriptors of one domain, as written in a file.
type Domain struct {
	Domain      string       `json:"domain"`
	Descriptors []Descriptor `json:"descriptors,omitempty"`
	// Compat says how the descriptors of one request are counted: all or none, or each
	// independently if it is "independent".
	Compat string `json:"compat,omitempty"`
}

// Descriptor is a key, possibly with a value, its limit, and the descriptors below it.
type Descriptor struct {
	Key            string         `json:"key"`
	Value          string         `json:"value,omitempty"` // * matches any text
	RateLimit      *RateLimit     `json:"rate_limit,omitempty"`
	Descriptors    []Descriptor   `json:"descriptors,omitempty"`
	ShadowMode     bool           `json:"shadow_mode,omitempty"`
	QuotaMode      bool           `json:"quota_mode,omitempty"`
	DetailedMetric bool           `json:"detailed_metric,omitempty"`
	ValueToMetric  bool           `json:"value_to_metric,omitempty"`
	ShareThreshold bool           `json:"share_threshold,omitempty"`
	Metadata       map[string]any `json:"metadata,omitempty"`
}

// RateLimit is how many requests may pass in a unit or window. envoyproxy/ratelimit does not
// have Window and the fields below it.
type RateLimit struct {
	Unit            string    `json:"unit,omitempty"`
	RequestsPerUnit uint32    `json:"requests_per_unit,omitempty"`
	Unlimited       bool      `json:"unlimited,omitempty"`
	Name            string    `json:"name,omitempty"`
	Replaces        []Replace `json:"replaces,omitempty"`

	Window    string `json:"window,omitempty"`    // as stint.ParseWindow reads it
	Algorithm string `json:"algorithm,omitempty"` // default fixed_window
	Burst     int64  `json:"burst,omitempty"`
	Penalty   string `json:"penalty,omitempty"` // as stint.ParsePenalty reads it
	// Mark lets requests over the limit pass, and tells their target so.
	Mark bool `json:"mark,omitempty"`
}

// Replace names a limit that does not apply to requests to which this one applies.
type Replace struct {
	Name string `json:"name"`
}

// Entry is a key and a value of a descriptor.
type Entry struct{ Key, Value string }

// Unit is a unit, by its number in the protocol.
type Unit int32

// The units. Unknown is for windows that are not units.
const (
	Unknown Unit = iota
	Second
	Minute
	Hour
	Day
	Month
	Year
	Week
)

var unitNames = [...]string{"UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"}

// String returns the unit's name in the protocol.
func (u Unit) String() string {
	if u < 0 || int(u) >= len(unitNames) {
		return strconv.Itoa(int(u))
	}
	return unitNames[u]
}

// Limit is the limit of a descriptor. It is shared and read-only.
type Limit struct {
	// Path identifies the limit for people and metrics: the domain, and the keys and values
	// that lead to it, joined by dots and underscores.
	Path     string
	Name     string
	Replaces []string
	// Limit is zero if Unlimited. If Requests is 0, its Max is 0, and nothing passes.
	Limit    stint.Limit
	Plan     *stint.Plan // of Limit; nil if Unlimited or nothing passes
	Penalty  *stint.Penalty
	Requests uint32
	Unit     Unit // Unknown for a window that is not a unit
	// Multiplier is how many units the window has, for a limit in a request; 0 means one.
	Multiplier uint32
	// Counter is the name of the counter. It depends on the window and the algorithm.
	Counter string

	Unlimited bool
	Shadow    bool // it denies nothing
	Mark      bool // Envoy adds the header Stint-Over to requests that are over it; Shadow is set, too
	Quota     bool
	// Shared says by what each entry is counted instead of its own key and value: its key
	// and the pattern of values, or the pattern of keys. It is zero for entries that are
	// counted by themselves, and nil if all are.
	Shared []Entry
	// Metadata is sent to Envoy when a request passes the limit.
	Metadata map[string]any

	tree     *Tree
	chain    []*node // the descriptors that lead to it, level by level
	detailed bool
	varies   bool
}

// String returns the limit in one line, like envoyproxy/ratelimit.
func (l *Limit) String() string {
	return fmt.Sprintf("%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t", l.Path, l.Unit, l.Requests, l.Shadow, l.Quota)
}
