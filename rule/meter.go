package rule

import (
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/door/meter"
)

// Meter is what a cost is measured in that is known only after the request: request_bytes,
// response_bytes, response_seconds, header:NAME or json:PATH of the response, or one of llm.input_tokens,
// llm.output_tokens, llm.total_tokens and llm.cost.
type Meter string

// meters are the meters without a name or path.
var meters = []string{
	"request_bytes", "response_bytes", "response_seconds",
	"llm.input_tokens", "llm.output_tokens", "llm.total_tokens", "llm.cost",
}

var onErrors = []string{string(OnErrorCharge), string(OnErrorRefund)}

const maxMeter = 128 // bytes

// onOverruns and styles are the choices of rules.
var (
	onOverruns = []string{string(OnOverrunFinish), string(OnOverrunCut)}
	styles     = []string{string(StyleOpenAI), string(StyleAnthropic), string(StyleAuto)}
)

// OfModels reports whether a meter reads answers of language models.
func (m Meter) OfModels() bool { return strings.HasPrefix(string(m), "llm.") }

// OfModels reports whether one of the rules has a meter that reads answers of language models.
func OfModels(hits []Hit) bool {
	return slices.ContainsFunc(hits, func(h Hit) bool { return h.Rule.cost.Meter.OfModels() })
}

// Metered reports whether one of the rules has a meter.
func Metered(hits []Hit) bool {
	return slices.ContainsFunc(hits, func(h Hit) bool { return h.Rule.cost.Meter != "" })
}

// ParseMeter reads a meter.
func ParseMeter(text string) (Meter, bool) {
	if len(text) > maxMeter {
		return "", false
	}
	if m, err := meter.Parse(text); err == nil {
		return Meter(m.String()), true
	}
	return Meter(text), slices.Contains(meters, text)
}

func (c *checker) checkMeter(path string, m Meter) {
	if _, ok := ParseMeter(string(m)); ok {
		return
	}
	c.Refuse(path, string(m), "request_bytes, response_bytes, response_seconds, header:NAME, json:PATH such as json:usage.total, "+
		"llm.input_tokens, llm.output_tokens, llm.total_tokens or llm.cost, of at most "+strconv.Itoa(maxMeter)+" bytes", c.Closest(string(m), meters))
}

// least returns what a request is charged that says nothing about its cost.
func (c *Cost) least() int64 { return max(c.Units, c.Reserve) }

// checkMetered checks a cost with a meter.
func (c *checker) checkMetered(path string, r *checked) {
	cost := r.Cost
	c.checkMeter(path+".meter", cost.Meter)
	if cost.Header != "" || cost.Units != 0 {
		c.Add(path, "has a meter and a cost that is known before: want meter, or units and header", "")
	}
	if cost.Reserve < 0 || cost.Reserve > maxCost {
		c.refuseNumber(path+".reserve", cost.Reserve, "what a request is charged before its cost is known, from 1 to "+strconv.FormatInt(maxCost, 10))
	}
	if least := max(cost.Reserve, 1); cost.Max != 0 && (cost.Max < least || cost.Max > maxCost) {
		c.refuseNumber(path+".max", cost.Max, "the most that a request may cost, from "+strconv.FormatInt(least, 10)+", which is reserved, to "+strconv.FormatInt(maxCost, 10))
	}
	if cost.OnError != "" && !slices.Contains(onErrors, string(cost.OnError)) {
		c.refuseOf(path+".on_error", string(cost.OnError), onErrors)
	}
	if cost.OnOverrun != "" && !slices.Contains(onOverruns, string(cost.OnOverrun)) {
		c.refuseOf(path+".on_overrun", string(cost.OnOverrun), onOverruns)
	}
}
