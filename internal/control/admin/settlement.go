package admin

import (
	"encoding/json"
	"time"

	"github.com/stintdev/stint/internal/record"
)

// Settlement is what became of the reservation of an event, under a rule.
type Settlement struct {
	Rule      string    `json:"rule" doc:"The rule." example:"tokens"`
	Meter     string    `json:"meter" doc:"The meter of the rule. Empty, if it has none." example:"llm.total_tokens"`
	Shadow    bool      `json:"shadow" doc:"True if the rule is log_only." example:"false"`
	At        time.Time `json:"at" doc:"When it was settled." example:"2026-01-31T12:00:04.5Z"`
	Reserved  int64     `json:"reserved" doc:"Units that were charged before it was known what the request uses." example:"1000"`
	Used      int64     `json:"used" doc:"Units that were used." example:"730"`
	GivenBack int64     `json:"given_back" doc:"Units that were reserved and not used." example:"270"`
	Overshoot int64     `json:"overshoot" doc:"Units that were used and not reserved." example:"0"`
	Model     string    `json:"model" doc:"The language model. Empty, if there is none or it is unknown." example:"gpt-5"`
	Estimated bool      `json:"estimated" doc:"True if some of what was used is an estimate, because it was not reported." example:"false"`
	Cancelled bool      `json:"cancelled" doc:"True if the reservation was cancelled: everything was given back." example:"false"`
}

// newSettlement converts a recorded settlement.
func newSettlement(s *record.Settlement) Settlement {
	return Settlement{
		Rule: s.Rule, Meter: s.Meter, Shadow: s.Shadow, At: s.At, Reserved: s.Reserved, Used: s.Used, GivenBack: s.GivenBack(), Overshoot: s.Overshoot(),
		Model: s.Model, Estimated: s.Estimated, Cancelled: s.Cancelled,
	}
}

// settledText returns settlements for a cell of a table: as JSON, or nothing.
func settledText(all []Settlement) string {
	if len(all) == 0 {
		return ""
	}
	text, _ := json.Marshal(all) // it does not fail
	return string(text)
}
