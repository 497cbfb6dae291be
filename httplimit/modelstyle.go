package httplimit

import (
	"cmp"
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

// deny answers a request that was denied.
func (g *Gateway) deny(w http.ResponseWriter, r *http.Request, to *route, v *engine.Verdict) {
	g.headers.Set(w.Header(), v)
	if shape, ok := modelStyle(v, r.URL.Path); ok {
		setModelHeaders(w.Header(), shape, v, g.now())
	}
	g.refuse(w, r, to, v, ProblemOf(v))
}

// refuse answers a request that gets no answer of a target: as its clients know it, if rules for its path are about language
// models, and else with the problem. The route is nil if there is none.
func (g *Gateway) refuse(w http.ResponseWriter, r *http.Request, to *route, v *engine.Verdict, p Problem) {
	shape, ok := g.shapeOf(r, to, v)
	if !ok {
		p.Write(w, r)
		return
	}
	what := llm.RefusedRequests
	if p.Status == http.StatusTooManyRequests {
		if v.Rule != nil {
			if m, _ := v.Rule.Meter(); m.OfModels() {
				what = llm.RefusedTokens
			}
		}
		// The providers' clients repeat a request by themselves, and wait for as long as Retry-After says.
		if wait, ok := field.RetryAfter(v); !ok || wait > longestRetry {
			w.Header()["X-Should-Retry"] = []string{"false"}
		}
	}
	writeError(w, r, p.Status, typeJSON, shape.Error(p.Status, cmp.Or(p.Detail, http.StatusText(p.Status)), what))
}

// shapeOf returns whose clients understand an error of a request, if rules are about these: those that apply, or else those
// for its path. Where none is, it is known by the path of the provider's API.
func (g *Gateway) shapeOf(r *http.Request, to *route, v *engine.Verdict) (llm.Shape, bool) {
	shape, ok := modelStyle(v, r.URL.Path)
	if !ok {
		shape = llm.ShapeOf(r.URL.Path)
		switch rules := g.engine.Rules(); rules.StyleOf(r.URL.EscapedPath(), to != nil && to.IgnoreCase) {
		case rule.StyleOpenAI:
			return llm.Chat, true
		case rule.StyleAnthropic:
			return llm.Messages, true
		case rule.StyleAuto:
			ok = true
		default:
			ok = rules.OfModels() && shape != llm.Unknown
		}
	}
	if shape == llm.Unknown && r.Header["Anthropic-Version"] != nil { // its clients always send it
		shape = llm.Messages
	}
	return shape, ok
}
