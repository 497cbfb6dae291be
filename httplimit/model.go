package httplimit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/door/llm"
	"github.com/stintdev/stint/internal/door/settle"
	"github.com/stintdev/stint/rule"
)

// maxPrompt is how many bytes of a request to a language model are read before it is decided. Of a longer one, the
// rest is estimated by its length.
const maxPrompt = 1 << 20

// modelCall is a request to a language model that passes through a gateway, and its answer.
type modelCall struct {
	prices  *llm.Prices
	meter   *ModelMeter
	maxBody int64  // of a request; 0: any
	method  string // empty: any, as a header may replace it
	path    string
	request llm.Request
	read    bool // the request
	idle    bool // it asks a model for nothing
	asked   bool // for usage, in the client's name

	ctx      context.Context // of the request
	serving  *engine.Serving // nil: nothing is counted
	body     *body           // what the provider gets
	response *llm.Response   // nil before the answer
	upgraded bool            // the connection is for something else than an answer
	failed   bool            // it is an error
	cut      bool
}

// cuts reports whether an answer is cut that uses too much, and changes whether one may be changed on its way.
func (c *modelCall) cuts() bool    { return c.serving != nil && c.serving.Cuts() }
func (c *modelCall) changes() bool { return c.asked || c.cuts() }

// estimator returns what finds out what a request may use of a language model.
func (c *modelCall) estimator(r *http.Request) func(context.Context) (engine.Estimate, error) {
	return func(context.Context) (engine.Estimate, error) { return c.estimate(r) }
}

// estimate reads the request's body, or the beginning of it, and returns what it may use. The request gets a body
// that begins with what was read.
func (c *modelCall) estimate(r *http.Request) (engine.Estimate, error) {
	c.read = true
	var begin []byte
	switch bodiless := r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0; {
	case bodiless && r.Header["Upgrade"] != nil:
		return engine.Estimate{}, nil // what is asked for is not known
	case !bodiless && llm.Generates(c.method, c.path):
		var err error
		if begin, err = io.ReadAll(io.LimitReader(r.Body, maxPrompt)); err != nil {
			return engine.Estimate{}, &bodyError{err}
		}
	}
	if c.idle = len(begin) == 0; c.idle {
		return engine.Estimate{Meters: c.units(&llm.Usage{})}, nil
	}
	size := max(r.ContentLength, -1)
	if size < 0 && len(begin) < maxPrompt {
		size = int64(len(begin))
	}
	c.request = llm.ReadRequest(llm.ShapeOf(c.path), begin, size)
	spliced, ok := c.request.AskUsage(begin)
	if fits := c.maxBody == 0 || int64(len(spliced)) <= c.maxBody; ok && fits && !isSigned(r.Header) {
		c.asked, begin = true, spliced
		r.ContentLength = int64(len(spliced))
	}
	r.Body = &begunBody{Reader: io.MultiReader(bytes.NewReader(begin), r.Body), Closer: r.Body}
	u, capped := c.request.Reserve()
	units := c.units(&u)
	for m, n := range units {
		units[m] = max(n, 1) // so that it is settled
	}
	return engine.Estimate{Meters: units, Open: !capped}, nil
}

// begunBody is a body of which the beginning was read before.
type begunBody struct {
	io.Reader
	io.Closer
}

// bodyError is the error for a body that could not be read.
type bodyError struct{ error }

func (e *bodyError) Unwrap() error { return e.error }

func isUnread(err error) bool {
	_, ok := errors.AsType[*bodyError](err)
	return ok
}

// isSigned reports whether a request's headers depend on its body, so that it must not be changed.
func isSigned(h http.Header) bool {
	for _, name := range [...]string{"Content-Digest", "Digest", "Content-Md5", "Signature", "X-Amz-Content-Sha256", "Content-Encoding"} {
		if len(h[name]) > 0 {
			return true
		}
	}
	return false
}

// units returns a usage in the units of meters. Without a price there is no cost.
func (c *modelCall) units(u *llm.Usage) map[rule.Meter]int64 {
	units := map[rule.Meter]int64{}
	for _, m := range [...]llm.Meter{llm.InputTokens, llm.OutputTokens, llm.TotalTokens, llm.Cost} {
		if n, ok := c.unitsOf(u, m); ok {
			units[rule.Meter(m.String())] = n
		}
	}
	return units
}

func (c *modelCall) unitsOf(u *llm.Usage, m llm.Meter) (units int64, ok bool) {
	switch {
	case m != llm.Cost:
		return u.Tokens(m), true
	case u.Total == 0:
		return 0, true // whatever the price
	}
	units, err := c.prices.Cost(u, c.request.Model)
	return units, err == nil
}

// answer has a response read on its way to the client.
func (c *modelCall) answer(res *http.Response) {
	if c.upgraded = res.StatusCode == http.StatusSwitchingProtocols; c.upgraded || res.Body == nil {
		return
	}
	c.failed = res.StatusCode >= http.StatusBadRequest
	c.response = llm.NewResponse(c.request.Shape, c.request.Prompt, res.Header)
	b := &answerBody{ReadCloser: res.Body, call: c, cuts: c.cuts()}
	if c.asked && strings.Contains(strings.ToLower(res.Header.Get("Content-Type")), "event-stream") && res.Header.Get("Content-Encoding") == "" {
		b.filter = llm.NewFilter()
		res.Header.Del("Content-Length")
		res.ContentLength = -1
	}
	res.Body = b
}

// used adds what the answer has used. Providers do not bill what they were never sent, nor errors without usage.
// Without an answer, the provider may have read the prompt. What an upgraded connection was used for is not known.
func (c *modelCall) used(u *engine.Usage) (failed bool) {
	if u.Model = c.request.Model; !settle.ValidModel(u.Model) {
		u.Model = "" // the client has sent it
	}
	if c.upgraded {
		return false
	}
	got := llm.Usage{Failed: true}
	switch {
	case c.response != nil:
		got = c.response.End()
		if got.Estimated && c.failed {
			got = llm.Usage{Model: got.Model, Failed: true}
		}
	case c.body.begun.Load():
		got.Input, got.Total, got.Estimated = c.request.Prompt, c.request.Prompt, true
	}
	maps.Copy(u.Meters, c.units(&got))
	if got.Model != "" && settle.ValidModel(got.Model) {
		u.Model = got.Model
	}
	u.Estimated = u.Estimated || got.Estimated
	failed = c.failed || got.Failed
	if c.response != nil {
		c.meter.add(&got, failed, c.cut)
	}
	return failed
}

// answerBody is the body of an answer. What passes is read, the report that the client has not asked for is removed,
// and a stream that uses too much is cut.
type answerBody struct {
	io.ReadCloser
	call   *modelCall
	filter *llm.Filter // nil: everything passes
	cuts   bool
	late   int // reads since it should have been cut

	pending, room []byte // what was read and is to be passed on
	err           error  // after that
}

const (
	maxLate    = 16 // reads until a stream is cut within an event
	cutMessage = "The answer uses more than the limit allows, and was cut."
)

func (b *answerBody) Read(p []byte) (int, error) {
	for len(b.pending) == 0 {
		if b.err != nil || len(p) == 0 {
			return 0, b.err
		}
		n, err := b.ReadCloser.Read(p)
		b.call.response.Write(p[:n])
		cut := b.cut(err)
		if b.filter == nil && cut == nil {
			return n, err
		}
		b.err = err
		b.room = b.pass(b.room[:0], p[:n], cut)
		b.pending = b.room
	}
	n := copy(p, b.pending)
	b.pending = b.pending[n:]
	return n, nil
}

// pass adds what is passed on of a piece.
func (b *answerBody) pass(dst, p, cut []byte) []byte {
	if b.filter == nil {
		dst = append(dst, p...)
	} else {
		dst = b.filter.Append(dst, p)
	}
	switch {
	case cut != nil:
		b.err, b.call.cut = io.EOF, true
		return append(dst, cut...)
	case b.filter != nil && errors.Is(b.err, io.EOF):
		dst = b.filter.Flush(dst)
	}
	return dst
}

// cut returns the end of a stream that uses more than was reserved, or nil if it goes on.
func (b *answerBody) cut(err error) []byte {
	if !b.cuts || err != nil || b.call.covered() {
		return nil
	}
	if b.late++; b.late < maxLate && !b.call.response.Between() {
		return nil
	}
	return b.call.response.Cut(nil, cutMessage)
}

// covered reports whether what the answer has used so far is reserved.
func (c *modelCall) covered() bool {
	u := c.response.Usage()
	return c.serving.Covers(c.ctx, func(of rule.Meter) int64 {
		m, err := llm.ParseMeter(string(of))
		if err != nil {
			return 0 // another meter cuts nothing
		}
		n, _ := c.unitsOf(&u, m)
		return n
	})
}
