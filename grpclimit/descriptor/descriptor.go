// Package descriptor reads what envoyproxy/ratelimit is configured with, and finds
// the limit of a descriptor.
//
// [Read] takes files as they are, and has all that is wrong with them said at once.
// [Compile] does the same with what came another way. What they return is never
// changed, and [Tree.Find] neither locks nor allocates.
//
// # How a descriptor is matched
//
// A descriptor is a list of entries, each with a key and a value. Each entry leads one
// level down: by its key and value, or else by the first pattern, in the order of
// declaration, that it fits, or else by its key alone. The limit found is that of the
// level that the last entry leads to. A descriptor that ends before, or goes on after,
// has none.
//
// A pattern is a value in which each * stands for any characters, also none, or a key
// that ends in * and has no value, which keys fit that begin with what is before it. An
// entry without a value fits no value, be it a pattern.
//
// Keys and values are never joined to be compared: a with b_c is not a_b with c.
//
// # What is not as in envoyproxy/ratelimit
//
// [Config.Differences] and [General] say it.
//
// # What it refuses to do
//
// It counts nothing, and speaks no protocol: the server is package rls.
package descriptor

import (
	"fmt"
	"strconv"

	"github.com/stintdev/stint"
)

// Domain is what people write: the descriptors of one domain.
type Domain struct {
	Domain      string       `json:"domain"`
	Descriptors []Descriptor `json:"descriptors,omitempty"`
	// Compat is how the descriptors of one request are counted: together, all or none,
	// or with "independent" each for itself.
	Compat string `json:"compat,omitempty"`
}

// Descriptor is a key, or a key and a value, what it may take, and what may follow it.
type Descriptor struct {
	Key            string         `json:"key"`
	Value          string         `json:"value,omitempty"` // * stands for anything
	RateLimit      *RateLimit     `json:"rate_limit,omitempty"`
	Descriptors    []Descriptor   `json:"descriptors,omitempty"`
	ShadowMode     bool           `json:"shadow_mode,omitempty"`
	QuotaMode      bool           `json:"quota_mode,omitempty"`
	DetailedMetric bool           `json:"detailed_metric,omitempty"`
	ValueToMetric  bool           `json:"value_to_metric,omitempty"`
	ShareThreshold bool           `json:"share_threshold,omitempty"`
	Metadata       map[string]any `json:"metadata,omitempty"`
}

// RateLimit is so many requests in a unit or, in its place, a window, which
// envoyproxy/ratelimit does not have, nor what is below it.
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
}

// Replace names a limit that does not count where this one does.
type Replace struct {
	Name string `json:"name"`
}

// Entry is a key and a value of a descriptor.
type Entry struct{ Key, Value string }

// Unit is a unit of the protocol, by its number there.
type Unit int32

// The units. The protocol has none for a window that is not one of them.
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

// String returns the name of the unit in the protocol.
func (u Unit) String() string {
	if u < 0 || int(u) >= len(unitNames) {
		return strconv.Itoa(int(u))
	}
	return unitNames[u]
}

// Limit is the limit of a descriptor. It is shared, and not to be changed.
type Limit struct {
	// Path is where it stands, for people and metrics: the domain, and the keys and
	// values that lead to it, joined by dots and underscores.
	Path     string
	Name     string
	Replaces []string
	// Limit is what is counted. It is the zero Limit if Unlimited, and its Max is 0 if
	// Requests is: then nothing passes.
	Limit    stint.Limit
	Plan     *stint.Plan // of Limit; nil if that is none or lets nothing pass
	Penalty  *stint.Penalty
	Requests uint32
	Unit     Unit // of the protocol; Unknown for a window that is no unit
	// Multiplier is how many units the window has, of a limit that a request brings; 0
	// is one.
	Multiplier uint32
	// Counter tells the counters of a descriptor apart: what counts in other windows, or
	// otherwise, counts for itself.
	Counter string

	Unlimited bool
	Shadow    bool
	Quota     bool
	// Shared is, by the number of the entry, what is counted in place of it: its key and
	// the pattern of values, or the pattern of keys alone. It is the zero Entry where
	// the entry itself is counted, and nil if all of them are.
	Shared []Entry
	// Metadata is what is told to Envoy when it passes.
	Metadata map[string]any

	tree     *Tree
	chain    []*node // what leads to it, level by level
	detailed bool
	varies   bool
}

// String returns the limit in a line, as envoyproxy/ratelimit lists it.
func (l *Limit) String() string {
	return fmt.Sprintf("%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t", l.Path, l.Unit, l.Requests, l.Shadow, l.Quota)
}
