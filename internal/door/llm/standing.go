package llm

import (
	"net/http"
	"strconv"
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
	// Input and Output are limits of Anthropic's.
	Input, Output *Standing
}

// SetHeaders sets the headers that clients of this shape know: x-ratelimit-limit-requests
// and the like with times as 6m0s, or anthropic-ratelimit-requests-limit and the like with
// times of RFC 3339. Times are rounded up, to milliseconds and seconds.
//
// Retry-After is not among them: package field sets it.
func (s Shape) SetHeaders(h http.Header, now time.Time, to Standings) {
	if s.anthropic() {
		setAnthropic(h, now, "Requests", to.Requests)
		setAnthropic(h, now, "Tokens", to.Tokens)
		setAnthropic(h, now, "Input-Tokens", to.Input)
		setAnthropic(h, now, "Output-Tokens", to.Output)
		return
	}
	setOpenAI(h, "Requests", to.Requests)
	setOpenAI(h, "Tokens", to.Tokens)
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
