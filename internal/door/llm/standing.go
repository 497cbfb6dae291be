package llm

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Standing is how a client stands with a limit, in plain values.
type Standing struct {
	Limit, Remaining int64
	// Reset is how long it takes until the whole limit is available again.
	Reset time.Duration
}

// Standings are the limits that clients of the providers know. Those that are nil are left
// out.
type Standings struct {
	Requests, Tokens *Standing
	// Input and Output are limits of Anthropic's. For clients of OpenAI, the tightest limit of tokens counts.
	Input, Output *Standing
}

// SetHeaders sets the headers that clients of this shape know: x-ratelimit-limit-requests
// and the like with times as 6m0s, or anthropic-ratelimit-requests-limit and the like with
// times of RFC 3339. Times are rounded up, to milliseconds and seconds. Headers of that kind that the provider has set
// are removed.
//
// Retry-After is not among them: package field sets it.
func (s Shape) SetHeaders(h http.Header, now time.Time, to Standings) {
	for name := range h {
		if strings.HasPrefix(name, "Anthropic-Ratelimit-") || strings.HasPrefix(name, "X-Ratelimit-") && isOpenAI(name) {
			delete(h, name) // those of the provider
		}
	}
	if s.anthropic() {
		setAnthropic(h, now, "Requests", to.Requests)
		setAnthropic(h, now, "Tokens", to.Tokens)
		setAnthropic(h, now, "Input-Tokens", to.Input)
		setAnthropic(h, now, "Output-Tokens", to.Output)
		return
	}
	setOpenAI(h, "Requests", to.Requests)
	tokens := to.Tokens
	for _, s := range [...]*Standing{to.Input, to.Output} {
		if s != nil && (tokens == nil || s.Remaining < tokens.Remaining) {
			tokens = s
		}
	}
	setOpenAI(h, "Tokens", tokens)
}

func isOpenAI(name string) bool {
	return strings.HasSuffix(name, "-Requests") || strings.HasSuffix(name, "-Tokens")
}

func setOpenAI(h http.Header, of string, s *Standing) {
	if s == nil {
		return
	}
	h["X-Ratelimit-Limit-"+of] = []string{strconv.FormatInt(s.Limit, 10)}
	h["X-Ratelimit-Remaining-"+of] = []string{strconv.FormatInt(max(s.Remaining, 0), 10)}
	h["X-Ratelimit-Reset-"+of] = []string{roundUp(s.Reset, time.Millisecond).String()}
}

func setAnthropic(h http.Header, now time.Time, of string, s *Standing) {
	if s == nil {
		return
	}
	prefix := "Anthropic-Ratelimit-" + of
	at := now.Add(max(s.Reset, 0)).UTC()
	if whole := at.Truncate(time.Second); whole.Before(at) {
		at = whole.Add(time.Second)
	}
	h[prefix+"-Limit"] = []string{strconv.FormatInt(s.Limit, 10)}
	h[prefix+"-Remaining"] = []string{strconv.FormatInt(max(s.Remaining, 0), 10)}
	h[prefix+"-Reset"] = []string{at.Format(time.RFC3339)}
}

// roundUp rounds a duration up to a multiple of the unit.
func roundUp(d, unit time.Duration) time.Duration {
	whole := max(d, 0).Truncate(unit)
	if whole < d {
		whole += unit
	}
	return max(whole, 0) // the largest durations overflow
}
