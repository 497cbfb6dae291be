package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/stintdev/stint/internal/control/catalog"
)

// A client that got no answer does not know whether its write was carried out. If it has sent an Idempotency-Key, it sends
// the request again, and it is carried out once: the answer is stored in the transaction of the change. Errors are not
// stored: what failed has changed nothing, and is tried again.

const (
	keyHeader, repeatHeader = "Idempotency-Key", "Idempotent-Replayed"
	// minOnce is the least number of characters of an Idempotency-Key. It encrypts what is stored.
	minOnce, maxOnce = 16, 255
)

// Repeatable is the header of writes.
type Repeatable struct {
	Key string `header:"Idempotency-Key" maxLength:"255" doc:"16 to 255 random characters, such as a UUID. A request that is sent again with the same text within 24 hours is not carried out again, and has the same answer." example:"5f0c6b2a-9d1e-4b7f-8a3c-6d9e0b1a2c3d"`
}

// Replayed is the header of their answers.
type Replayed struct {
	Replayed string `header:"Idempotent-Replayed" doc:"True if this is the answer to an earlier request with the same Idempotency-Key." example:"true"`
}

// writes reports whether the operation changes something.
func (op *operation) writes() bool {
	return op.Method != http.MethodGet && op.Role != anyone && op.Role != catalog.Viewer
}

// inFlight are the requests that this node is carrying out.
type inFlight struct {
	mu  sync.Mutex
	ids map[string]bool // no more than there are requests
}

// enter reports whether no other request has the id. The caller leaves.
func (f *inFlight) enter(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ids[id] {
		return false
	}
	if f.ids == nil {
		f.ids = map[string]bool{}
	}
	f.ids[id] = true
	return true
}

func (f *inFlight) leave(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.ids, id)
}

// repeatable returns the request for once, or nil if it has no Idempotency-Key. The hash is of its body.
func repeatable(r *http.Request, body hash.Hash) (*catalog.Once, error) {
	text := r.Header.Get(keyHeader)
	if text == "" || r.URL.Query().Get("dry_run") == "true" {
		return nil, nil
	}
	text = strings.TrimSuffix(strings.TrimPrefix(text, `"`), `"`) // some send a string of RFC 8941
	if len(text) < minOnce || len(text) > maxOnce || strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return nil, blame(http.StatusBadRequest, keyHeader, fmt.Sprintf("want %d to %d visible ASCII characters, chosen at random", minOnce, maxOnce), "a UUID")
	}
	request, err := json.Marshal([]any{r.Method, r.URL.EscapedPath(), r.URL.Query(), r.Header.Get("If-Match"), r.Header.Get("Content-Type"), body.Sum(nil)})
	if err != nil {
		return nil, err
	}
	return catalog.NewOnce(personOf(r.Context()).ID, text, request), nil
}

// hashed has what is read of a body hashed.
type hashed struct {
	io.Reader
	io.Closer
}

func hashing(body io.ReadCloser, into hash.Hash) io.ReadCloser {
	return hashed{io.TeeReader(body, into), body}
}

// answered is an answer before it is sent.
type answered struct {
	Status int         `json:"status"`
	Head   http.Header `json:"head"`
	Body   []byte      `json:"body"`
}

func (a *answered) Header() http.Header    { return a.Head }
func (a *answered) WriteHeader(status int) { a.Status = status }
func (a *answered) Write(p []byte) (int, error) {
	a.Body = append(a.Body, p...)
	return len(p), nil
}

// send sends the answer.
func (a *answered) send(w http.ResponseWriter) {
	for name, values := range a.Head {
		w.Header()[name] = values
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body)
}

// pending is what to do when what is held was committed.
type pending struct{ look bool }

type pendingKey struct{}

// once carries out a request with an Idempotency-Key, or repeats its answer. do writes the answer.
func (a *API) once(w http.ResponseWriter, r *http.Request, o *catalog.Once, do func(context.Context, http.ResponseWriter) error) (status int, err error) {
	if !a.running.enter(o.ID()) {
		return 0, catalog.ErrInFlight
	}
	defer a.running.leave(o.ID())
	if status, err := a.repeat(w, r, o); status != 0 || err != nil {
		return status, err
	}
	var after pending
	out := answered{Head: http.Header{}}
	defer o.Drop()
	err = do(o.In(context.WithValue(r.Context(), pendingKey{}, &after)), &out)
	if err == nil {
		var text []byte
		if text, err = json.Marshal(&out); err == nil {
			err = a.options.Tokens.Finish(r.Context(), o, text)
		}
	}
	if err != nil {
		if errors.Is(err, catalog.ErrInFlight) {
			return 0, err
		}
		// Maybe another node was faster: what it has changed is then in the way.
		o.Drop()
		if status, again := a.repeat(w, r, o); status != 0 || again != nil && !errors.Is(again, catalog.ErrUnavailable) {
			return status, again
		}
		return 0, err
	}
	if after.look {
		a.look(r.Context())
	}
	out.send(w)
	return out.Status, nil
}

// repeat sends the answer that is stored, if there is one.
func (a *API) repeat(w http.ResponseWriter, r *http.Request, o *catalog.Once) (status int, err error) {
	text, err := a.options.Tokens.Answer(r.Context(), o)
	switch {
	case errors.Is(err, catalog.ErrOther):
		return 0, blame(http.StatusUnprocessableEntity, keyHeader, "was sent with another request, want a new one for each", "")
	case err != nil || text == nil:
		return 0, err
	}
	var out answered
	if err := json.Unmarshal(text, &out); err != nil {
		return 0, err
	}
	if out.Head == nil {
		out.Head = http.Header{}
	}
	out.Head.Set(repeatHeader, "true")
	out.send(w)
	return out.Status, nil
}

// written makes this node load what was written. An error does not matter: the node polls.
func (a *API) written(ctx context.Context, d DryRun) {
	if d.DryRun || a.options.Look == nil {
		return
	}
	if p, ok := ctx.Value(pendingKey{}).(*pending); ok {
		p.look = true
		return
	}
	a.look(ctx)
}

func (a *API) look(ctx context.Context) {
	if err := a.options.Look(ctx); err != nil {
		a.log.WarnContext(ctx, "admin: the change is not in use on this node yet", "error", err)
	}
}
