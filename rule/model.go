package rule

import (
	"time"

	"github.com/stintdev/stint"
)

// File is what people write: rules, and the tiers that give values to their
// limits.
type File struct {
	Rules []Rule `json:"rules,omitempty"`
	Tiers []Tier `json:"tiers,omitempty"`
}

// Rule says whom it is about, what to count, how much may pass, and what happens
// to the rest.
type Rule struct {
	// Name tells the rule, and its counters, from others: letters, digits, and
	// any of . _ - between them; at most 64 bytes.
	Name  string `json:"name"`
	Match Match  `json:"match,omitzero"`
	// CountBy is what has a counter of its own; none is global. A request that has
	// no value for one of them is not matched.
	CountBy []Dimension `json:"count_by,omitempty"`
	Limits  []Limit     `json:"limits,omitempty"`
	Cost    Cost        `json:"cost,omitzero"`
	Action  Action      `json:"action,omitempty"` // default Reject
	// MaxDelay is how long Throttle may hold a request, and a leaky_bucket under
	// any action, for which it is [MaxDelay] if there is none.
	MaxDelay Duration `json:"max_delay,omitzero"`
	// Priority decides among the rules of a group: lower first.
	Priority int    `json:"priority,omitempty"`
	Group    string `json:"group,omitempty"`

	Penalty        *Penalty  `json:"penalty,omitempty"`
	OnStoreFailure OnFailure `json:"on_store_failure,omitempty"` // default Local
	Response       Response  `json:"response,omitzero"`
	Enabled        *bool     `json:"enabled,omitempty"` // nil: yes
}

// Match is the conditions of a rule. All that are given must hold; within one,
// any of its values may.
type Match struct {
	Paths    []string          `json:"paths,omitempty"`
	Methods  []string          `json:"methods,omitempty"` // as [Set.Method] returns them
	Tiers    []string          `json:"tiers,omitempty"`
	IPRanges []string          `json:"ip_ranges,omitempty"`
	Headers  map[string]string `json:"headers,omitempty"` // "*": any value, but one
}

// Limit is a named limit: the value is the rule's own, for those for whom
// neither API key, user nor tier has another under this name.
type Limit struct {
	Name  string `json:"name"`
	Limit string `json:"limit"` // as stint.ParseLimit reads it
	// Algorithm and Burst may stand here rather than in Limit.
	Algorithm string `json:"algorithm,omitempty"`
	Burst     int64  `json:"burst,omitempty"`
}

// Cost is what a request takes: so many units, or what a header says, if it comes
// from a trusted proxy, up to Max.
type Cost struct {
	Units  int64  `json:"units,omitempty"` // default 1
	Header string `json:"header,omitempty"`
	Max    int64  `json:"max,omitempty"`
}

// Penalty is a [stint.Penalty], as it is written.
type Penalty struct {
	Threshold   int64    `json:"threshold"`
	Within      Duration `json:"within"`
	Cooldown    Duration `json:"cooldown"`
	Multipliers []int64  `json:"multipliers,omitempty"`
}

// Response is the answer to a request that is denied.
type Response struct {
	Status  int    `json:"status,omitempty"` // default 429, and 403 for Block
	Message string `json:"message,omitempty"`
}

// Tier is a plan: a name, and values for named limits, as stint.ParseLimit reads
// them, or "unlimited".
type Tier struct {
	Name        string            `json:"name"`
	DisplayName string            `json:"display_name,omitempty"` // for people
	Price       string            `json:"price,omitempty"`        // for people: 49 EUR a month
	Limits      map[string]string `json:"limits,omitempty"`
}

// Duration is a time.Duration that is written like a window: 500ms, 1h, 7d.
type Duration time.Duration

// Values are the limits that a tier, a user or an API key has of its own, by
// name. The zero Limit means that there is none: it is not limited.
type Values = map[string]stint.Limit

// Action is what a rule does with a request.
type Action string

// The actions.
const (
	Reject   Action = "reject"   // refuse what is over a limit
	Throttle Action = "throttle" // hold it, up to MaxDelay, and then refuse it
	LogOnly  Action = "log_only" // decide and record, and let it pass
	Block    Action = "block"    // refuse everything that matches, and count nothing
	Allow    Action = "allow"    // let everything pass that matches, and count nothing
)

// OnFailure is what becomes of a request when the store cannot count it.
type OnFailure string

// What may become of it.
const (
	Local  OnFailure = "local"  // this node's share of the limit decides
	Open   OnFailure = "open"   // it passes
	Closed OnFailure = "closed" // it is refused
)

// Dimension is something that is counted by: global, tenant, user, api_key, ip,
// endpoint, method, header:NAME or claim:NAME.
type Dimension string
