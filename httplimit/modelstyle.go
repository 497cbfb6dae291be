package httplimit

import (
	"net/http"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/door/field"
	"github.com/stintdev/stint/internal/door/llm"
	"github.com/stintdev/stint/rule"
)

// modelStyle returns whose clients understand the answers to a request, if a rule says so.
func modelStyle(v *engine.Verdict, path string) (llm.Shape, bool) {
	style := rule.Style("")
	if v.Rule != nil {
		style = v.Rule.Style
	}
	for i := 0; i < len(v.Limits) && style == ""; i++ {
		style = v.Limits[i].Rule.Style
	}
	switch style {
	case rule.StyleOpenAI:
		return llm.Chat, true
	case rule.StyleAnthropic:
		return llm.Messages, true
	case rule.StyleAuto:
		return llm.ShapeOf(path), true
	}
	return llm.Unknown, false
}

// setModelHeaders sets the headers about limits that clients of this shape know. Those of the target are removed first, as
// clients could not tell them apart.
func setModelHeaders(h http.Header, shape llm.Shape, v *engine.Verdict, now time.Time) {
	var to llm.Standings
	for l, at := field.Next(v, 0); l != nil; l, at = field.Next(v, at) {
		if !field.Counted(l) || l.Limit.Algorithm == stint.Concurrency {
			continue
		}
		remaining, reset := field.Standing(v, l)
		s := llm.Standing{Limit: l.Decision.Limit, Remaining: remaining, Reset: reset}
		switch m, _ := l.Rule.Meter(); m {
		case "":
			to.Requests = tighter(to.Requests, s)
		case "llm.input_tokens":
			to.Input = tighter(to.Input, s)
		case "llm.output_tokens":
			to.Output = tighter(to.Output, s)
		case "llm.total_tokens":
			to.Tokens = tighter(to.Tokens, s)
		}
	}
	shape.SetHeaders(h, now, to)
}

// tighter returns the limit of which less remains.
func tighter(known *llm.Standing, s llm.Standing) *llm.Standing {
	if known != nil && known.Remaining <= s.Remaining {
		return known
	}
	return &s
}

// longestRetry is how long clients should wait by themselves.
const longestRetry = time.Minute

// deny answers a request that was denied: if it is over a limit, as the clients know it that the rule names.
func (g *Gateway) deny(w http.ResponseWriter, r *http.Request, v *engine.Verdict) {
	shape, ok := modelStyle(v, r.URL.Path)
	if !ok || v.Status != http.StatusTooManyRequests {
		Deny(w, r, g.headers, v)
		return
	}
	g.headers.Set(w.Header(), v)
	setModelHeaders(w.Header(), shape, v, g.now())
	what := llm.RefusedRequests
	if v.Rule != nil {
		if m, _ := v.Rule.Meter(); m.OfModels() {
			what = llm.RefusedTokens
		}
	}
	h := w.Header()
	// The providers' clients repeat a request by themselves, and wait for as long as Retry-After says.
	if wait, ok := field.RetryAfter(v); !ok || wait > longestRetry {
		h["X-Should-Retry"] = []string{"false"}
	}
	h["Content-Type"] = typeJSON
	h["X-Content-Type-Options"] = noSniff
	w.WriteHeader(v.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(shape.Refusal(reason(v), what)) // the client may be gone
	}
}
