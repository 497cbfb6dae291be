package rule

import (
	"time"

	"github.com/stintdev/stint"
)

// File is a file of rules, and of tiers that override their limits.
type File struct {
	Rules []Rule `json:"rules,omitempty"`
	Tiers []Tier `json:"tiers,omitempty"`
	// Case says whether paths that differ only in case are the same. It is not in a file:
	// it depends on the servers that rules protect, not on the rules. Default ExactCase.
	Case Case `json:"-"`
}

// Case says whether the case of letters in paths matters.
type Case string

// The choices.
const (
	ExactCase  Case = "exact"  // /search and /SEARCH are two paths
	IgnoreCase Case = "ignore" // they are one, as [strings.EqualFold] says
)

// Rule says which requests it limits, what it counts by, how much may pass, and
// what happens to requests over the limit.
type Rule struct {
	// Name identifies the rule and its counters: letters and digits, with . _ or -
	// between them, at most 64 bytes.
	Name  string `json:"name"`
	Match Match  `json:"match,omitzero"`
	// CountBy is what has its own counter; empty means global. The rule does not
	// match a request that lacks one of these values.
	CountBy []Dimension `json:"count_by,omitempty"`
	Limits  []Limit     `json:"limits,omitempty"`
	Cost    Cost        `json:"cost,omitzero"`
	Action  Action      `json:"action,omitempty"` // default Reject
	// MaxDelay is how long Throttle, or a leaky_bucket under any action, may hold a
	// request. The default for a leaky_bucket is [MaxDelay].
	MaxDelay Duration `json:"max_delay,omitzero"`
	// Priority decides among the rules of a group: lower first.
	Priority int    `json:"priority,omitempty"`
	Group    string `json:"group,omitempty"`
	// Replaces is the name of a rule that this one may take the place of. Until then this one decides nothing: it counts, and what
	// it would do in place of the other is recorded.
	Replaces string `json:"replaces,omitempty"`
	// Enforce is for which part of clients the rule is in force. Zero: for all. On the others it is tried out: it
	// counts their requests, and what it would do is recorded. Always the same clients are among a part, and among
	// every larger one.
	Enforce Percent `json:"enforce,omitzero"`
	// Rollout, in place of Enforce, is in which steps the rule comes into force.
	Rollout *Rollout `json:"rollout,omitempty"`

	Penalty        *Penalty  `json:"penalty,omitempty"`
	OnStoreFailure OnFailure `json:"on_store_failure,omitempty"` // default Local
	// Regions is how the counters are shared among regions. Credit and OnCredit are for those
	// that gossip, Weights for those that have a quota.
	Regions  Regions  `json:"regions,omitempty"` // default: each region counts by itself
	Credit   Credit   `json:"credit,omitempty"`
	OnCredit OnCredit `json:"on_credit,omitempty"` // default CreditShare
	Weights  Weights  `json:"weights,omitempty"`   // default WeightsFixed
	Response Response `json:"response,omitzero"`
	Enabled  *bool    `json:"enabled,omitempty"` // nil: yes
}

// Match holds the conditions of a rule. All of them must hold; a condition holds if
// one of its values does.
type Match struct {
	Paths    []string          `json:"paths,omitempty"`
	Methods  []string          `json:"methods,omitempty"` // as [Set.Method] returns them
	Tiers    []string          `json:"tiers,omitempty"`
	IPRanges []string          `json:"ip_ranges,omitempty"`
	Headers  map[string]string `json:"headers,omitempty"` // "*": any value that is not empty
}

// Limit is a named limit. Its value applies unless the client's API key, user or
// tier has another for this name.
type Limit struct {
	Name  string `json:"name"`
	Limit string `json:"limit"` // as stint.ParseLimit reads it
	// Algorithm and Burst may be given here instead of in Limit.
	Algorithm string `json:"algorithm,omitempty"`
	Burst     int64  `json:"burst,omitempty"`
	// Lease is for how long a node may take units ahead of requests, from 10ms to 10s and at
	// most the window. Zero: every request asks the store.
	Lease Duration `json:"lease,omitzero"`
	// Split is among how many counters the limit is divided, from 2 to 64. Zero: it has one.
	Split int `json:"split,omitempty"`
	// Candidate is a limit that may take the place of this one, as [stint.ParseLimit] reads it. It counts by itself, and what it
	// would do is recorded, but it denies nothing. It is about requests for which the rule's own value applies.
	Candidate string `json:"candidate,omitempty"`
	// Counter numbers the counters of the limit, if that is more than 1: when a candidate takes its place, the limit goes on with
	// the counters of the candidate, which have the next number. 0 is 1.
	Counter int `json:"counter,omitempty"`
}

// Cost is what a request costs: a number of units, or the value of a header, up to
// Max, if a trusted proxy sent it. With a meter, it is what the request turns out to have
// used, up to Max: Reserve is charged before, and corrected when that is known. What no door
// can measure stays as it was reserved: that is the case for all meters with Envoy, forward-auth and
// /v1/check without a ticket, for json:PATH in gRPC servers, and for those that begin with llm. everywhere
// but in calls that commit a reservation.
type Cost struct {
	Units   int64  `json:"units,omitempty"` // default 1
	Header  string `json:"header,omitempty"`
	Meter   Meter  `json:"meter,omitempty"`
	Reserve int64  `json:"reserve,omitempty"` // default 1
	Max     int64  `json:"max,omitempty"`
	// OnError is what a request with a meter costs that the server fails to answer. Default
	// OnErrorCharge.
	OnError OnError `json:"on_error,omitempty"`
	// OnOverrun is what happens to an answer of a language model that uses more than was reserved. Default
	// OnOverrunFinish.
	OnOverrun OnOverrun `json:"on_overrun,omitempty"`
}

// OnOverrun is what happens to an answer that uses more than was reserved.
type OnOverrun string

// The choices.
const (
	OnOverrunFinish OnOverrun = "finish" // it ends as it would, and what it uses is charged
	// OnOverrunCut reserves more while the answer is sent. If there is no more, a stream is ended with an
	// error event; another answer ends as it would.
	OnOverrunCut OnOverrun = "cut"
)

// OnError is what a request costs that ends with a server error: a status of 500 or more, a target
// that does not answer or breaks off, or a handler that panics. A client that leaves pays.
type OnError string

// The choices.
const (
	OnErrorCharge OnError = "charge" // what was measured, or else reserved
	OnErrorRefund OnError = "refund" // nothing
)

// Penalty is a [stint.Penalty] as written in a file.
type Penalty struct {
	Threshold   int64    `json:"threshold"`
	Within      Duration `json:"within"`
	Cooldown    Duration `json:"cooldown"`
	Multipliers []int64  `json:"multipliers,omitempty"`
}

// Response is what a client gets whose request does not pass.
type Response struct {
	Status  int    `json:"status,omitempty"` // default 429, and 403 for Block
	Message string `json:"message,omitempty"`
	// RetryAfter is how long the client is told to wait, in place of the time until the request could pass. It is not said
	// of requests that never could, nor of bans. Zero: that time.
	RetryAfter Duration `json:"retry_after,omitzero"`
	// Style is whose clients understand the responses, also of requests that pass: their headers tell about
	// limits as those clients know it. Default: clients of HTTP.
	Style Style `json:"style,omitempty"`
}

// Style is whose clients understand a response.
type Style string

// The choices.
const (
	StyleOpenAI    Style = "openai"
	StyleAnthropic Style = "anthropic"
	StyleAuto      Style = "auto" // that of the API whose path was requested
)

// Tier is a plan: a name, and values for named limits, as stint.ParseLimit reads
// them, or "unlimited".
type Tier struct {
	Name        string            `json:"name"`
	DisplayName string            `json:"display_name,omitempty"` // for people
	Price       string            `json:"price,omitempty"`        // for people, such as 49 EUR a month
	Limits      map[string]string `json:"limits,omitempty"`
}

// Duration is a time.Duration, written like a window: 500ms, 1h, 7d.
type Duration time.Duration

// Values are the limits of a tier, a user or an API key, by name. The zero Limit
// means unlimited.
type Values = map[string]stint.Limit

// Action is what a rule does with a request.
type Action string

// The actions.
const (
	Reject   Action = "reject"   // deny requests over a limit
	Throttle Action = "throttle" // hold them for up to MaxDelay, and then deny them
	LogOnly  Action = "log_only" // decide and record, and let them pass
	Mark     Action = "mark"     // the same, and tell the target that they are over a limit, and by how much
	Block    Action = "block"    // let no matching request pass, and count nothing
	Allow    Action = "allow"    // let every matching request pass, and count nothing
)

// Passes reports whether requests over a limit pass all the same: the rule denies nothing.
func (a Action) Passes() bool { return a == LogOnly || a == Mark }

// OnFailure is what happens to a request when the store cannot count it.
type OnFailure string

// The choices.
const (
	Local  OnFailure = "local"  // this node's share of the limit decides
	Open   OnFailure = "open"   // it passes
	Closed OnFailure = "closed" // it is rejected
)

// Dimension is something that a rule counts by: global, tenant, user, api_key, ip,
// endpoint, method, header:NAME or claim:NAME.
type Dimension string
