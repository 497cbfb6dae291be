package llm

import (
	"fmt"

	"github.com/stintdev/stint/internal/kit/scan"
)

// Usage is what an answer has used, in tokens.
type Usage struct {
	// Input is all input tokens, also those that were read from a cache or written to it.
	Input int64
	// Output is all output tokens, also those of reasoning.
	Output int64
	// Total is Input and Output, or what the provider says if that is more.
	Total int64
	// Cached is the part of Input that was read from a cache, and CacheWritten the part that
	// was written to it.
	Cached, CacheWritten int64
	// Reasoning is the part of Output that is not part of the answer.
	Reasoning int64
	// Model is the model that has answered, or empty.
	Model string
	// Estimated says that some of it was not reported, and counted from the text.
	Estimated bool
	// Complete says that the answer has ended as such answers end. Otherwise it was cut.
	Complete bool
	// Failed says that the answer is an error, or has ended in one.
	Failed bool
}

// Meter is what a rule counts of an answer.
type Meter uint8

const (
	// InputTokens is llm.input_tokens.
	InputTokens Meter = iota
	// OutputTokens is llm.output_tokens.
	OutputTokens
	// TotalTokens is llm.total_tokens.
	TotalTokens
	// Cost is llm.cost, in millionths of a currency's unit: see [Prices].
	Cost
)

var meterNames = [...]string{"llm.input_tokens", "llm.output_tokens", "llm.total_tokens", "llm.cost"}

// ParseMeter reads the name of a meter.
func ParseMeter(name string) (Meter, error) {
	for i, n := range meterNames {
		if n == name {
			return Meter(i), nil
		}
	}
	return 0, fmt.Errorf("meter %q: want llm.input_tokens, llm.output_tokens, llm.total_tokens or llm.cost", name)
}

// String returns the meter's name.
func (m Meter) String() string { return meterNames[m] }

// Tokens returns the tokens that a meter counts. Of Cost there are none: [Prices.Cost].
func (u *Usage) Tokens(m Meter) int64 {
	switch m {
	case InputTokens:
		return u.Input
	case OutputTokens:
		return u.Output
	case TotalTokens:
		return u.Total
	default:
		return 0
	}
}

// The numbers of a report.
const (
	nInput        = iota // OpenAI's has what was cached in it
	nOutput              //
	nTotal               //
	nCached              // part of the input
	nReasoning           // part of the output
	nCacheRead           // Anthropic's, beside the input
	nCacheWritten        // likewise
	numbers
)

// reported are numbers that a provider has reported.
type reported struct {
	n   [numbers]int64
	has [numbers]bool
}

func (r *reported) set(i int, n int64) { r.n[i], r.has[i] = n, true }

// isUsage reports whether this is a report, and not only a part that means nothing alone.
func (r *reported) isUsage() bool { return r.has[nInput] || r.has[nOutput] || r.has[nTotal] }

// merge adds a later report: a number that is in both is cumulative, so the later one holds.
func (r *reported) merge(later *reported) {
	for i, has := range later.has {
		if has {
			r.set(i, later.n[i])
		}
	}
}

// usage returns what was reported, with more output that was seen after it.
func (r *reported) usage(more int64) Usage {
	u := Usage{
		Input:        add(r.n[nInput], r.n[nCacheRead], r.n[nCacheWritten]),
		Output:       add(r.n[nOutput], more),
		Cached:       max(r.n[nCached], r.n[nCacheRead]),
		CacheWritten: r.n[nCacheWritten],
		Reasoning:    r.n[nReasoning],
	}
	u.Total = max(r.n[nTotal], add(u.Input, u.Output))
	return u
}

// add adds up to scan.MaxNumber.
func add(ns ...int64) int64 {
	sum := int64(0)
	for _, n := range ns {
		sum = min(sum+n, scan.MaxNumber)
	}
	return sum
}
