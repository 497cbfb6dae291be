// Package testllm is a provider of language models, for tests. It speaks OpenAI's chat
// completions, responses and embeddings, and Anthropic's messages, as JSON and as
// server-sent events, by their public documentation.
//
//	p := &testllm.Provider{Decide: func(testllm.Call) testllm.Answer {
//		return testllm.Answer{Input: 12, Output: 30}
//	}}
//	server := httptest.NewServer(p)
//
// A test decides what each request has used, and what happens while it is answered. The
// provider honours stream, stream_options.include_usage, n and the caps of the output, and
// answers 401 without a key and 400 to what it cannot read. It keeps a ledger of what it
// has sent, so that a test can compare it with what was counted.
//
// It has no model: its answers are words, whatever was asked. It shares no code with what
// it tests.
package testllm

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
)

// maxBody is how many bytes of a request are read.
const maxBody = 32 << 20

// Provider is an http.Handler that answers like a provider of language models. The zero value
// is ready to use. It is safe for concurrent use.
type Provider struct {
	// Decide says how a call is answered. It may be called concurrently. Nil: an Answer with
	// an input of 10 and an output of 5 tokens.
	Decide func(Call) Answer

	calls atomic.Int64

	mu         sync.Mutex
	sent       []Sent
	open, most int
}

// Call is a request, as the provider has understood it.
type Call struct {
	// ID is the X-Request-Id of the request, or one that the provider has made up.
	ID     string
	Path   string
	Model  string
	Stream bool
	// AsksUsage is stream_options.include_usage.
	AsksUsage bool
	// N is how many answers are wanted, at least 1, and Max how many output tokens each may
	// have, or 0.
	N, Max int64
	Header http.Header
}

// Answer is what a call is answered with.
type Answer struct {
	// Input, Cached and Output are the tokens that are used. Cached is a part of Input. Output
	// is for all answers together, and is lowered to what the request allows.
	Input, Cached, Output int64
	// Pieces is in how many pieces a stream sends the text of each answer. Zero: 3.
	Pieces int
	// Status is that of an error: 500, 529. Zero: there is none.
	Status int
	// Silent leaves the usage out.
	Silent bool
	// Gzip encodes the body, if the request accepts that.
	Gzip bool
	// Step is called before each piece of a stream, from 0, and with Pieces before its end;
	// otherwise with 0 before the body. It may wait, until the context is done. If it returns
	// an error, the connection breaks off there, after what was sent before.
	Step func(ctx context.Context, piece int) error
}

// Sent is what was sent to answer a call.
type Sent struct {
	Call
	Status int
	// Input, Cached and Output are what was used.
	Input, Cached, Output int64
	// Pieces is how many pieces of a stream were sent.
	Pieces int
	// Reported says that the usage was written, and Complete that all of the answer was.
	Reported, Complete bool
}

// Ledger returns what was sent, in the order in which it ended. An answer is in it before its
// client sees the end.
func (p *Provider) Ledger() []Sent {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Sent(nil), p.sent...)
}

// Open returns how many calls are being answered, and the most that there were at once.
func (p *Provider) Open() (now, most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open, p.most
}

// ServeHTTP implements [http.Handler].
func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := p.calls.Add(1)
	sh := shapeOf(r.URL.Path)
	if sh == nil || r.Method != http.MethodPost {
		http.NotFound(w, r)
		return
	}
	if sh.key(r.Header) == "" {
		sh.fail(w, http.StatusUnauthorized, "authentication_error", "there is no key")
		return
	}
	c, err := readCall(r, n)
	if err != nil {
		sh.fail(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	a := p.decide(c)
	if sh.stream == nil {
		a.Output = 0
	}
	s := &Sent{Call: c, Status: http.StatusOK, Input: a.Input, Cached: a.Cached, Output: a.Output}
	p.begin()
	defer func() { p.end(s) }() // also if the connection breaks off
	if a.Status != 0 {
		s.Status = a.Status
		sh.fail(w, a.Status, "server_error", "The server had an error.")
		return
	}
	w.Header().Set(sh.idHeader, c.ID)
	out := &writer{ctx: r.Context(), response: w, answer: a, sent: s}
	if a.Gzip && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		out.gzip = gzip.NewWriter(w)
	}
	if !c.Stream || sh.stream == nil {
		w.Header().Set("Content-Type", "application/json")
		out.step(0)
		s.Reported = !a.Silent
		out.object(sh.whole(c, a))
	} else {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		sh.stream(out, c, a)
	}
	out.close()
	s.Complete = true
}

func (p *Provider) decide(c Call) Answer {
	a := Answer{Input: 10, Output: 5}
	if p.Decide != nil {
		a = p.Decide(c)
	}
	if a.Pieces == 0 {
		a.Pieces = 3
	}
	if c.Max > 0 {
		a.Output = min(a.Output, c.Max*c.N)
	}
	return a
}

func (p *Provider) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open++
	p.most = max(p.most, p.open)
}

func (p *Provider) end(s *Sent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	p.sent = append(p.sent, *s)
}

// readCall reads a request. n is its number.
func readCall(r *http.Request, n int64) (Call, error) {
	var body struct {
		Model         string
		Stream        bool
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
		N                   int64
		MaxTokens           int64 `json:"max_tokens"`
		MaxCompletionTokens int64 `json:"max_completion_tokens"`
		MaxOutputTokens     int64 `json:"max_output_tokens"`
		Messages, Input     json.RawMessage
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		return Call{}, err
	}
	if err := json.Unmarshal(text, &body); err != nil {
		return Call{}, err
	}
	if body.Model == "" || (body.Messages == nil && body.Input == nil) {
		return Call{}, errors.New("want a model, and messages or an input")
	}
	c := Call{
		ID: r.Header.Get("X-Request-ID"), Path: r.URL.Path, Model: body.Model, Stream: body.Stream,
		AsksUsage: body.StreamOptions.IncludeUsage, N: max(body.N, 1),
		Max: max(body.MaxTokens, body.MaxCompletionTokens, body.MaxOutputTokens), Header: r.Header.Clone(),
	}
	if c.ID == "" {
		c.ID = fmt.Sprintf("call-%d", n)
	}
	return c, nil
}
