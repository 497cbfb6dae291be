package httplimit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/rule"
)

// Client asks the decision API of a server. It is safe for concurrent use, and its fields must not be changed
// after the first call.
//
// Commit and Cancel are sent again if they fail for reasons that may pass: they are applied once, however often they
// arrive. Check, Reserve and Extend are sent once.
type Client struct {
	URL   string // of the server, such as http://localhost:8080
	Token string // of server.http.tokens, if the server has some
	// HTTP sends the calls. Default: a client that waits 10 seconds for an answer.
	HTTP *http.Client
	// MaxRetries is how often Commit and Cancel are sent again, after 100 ms, 200 ms and so on, or when the
	// server says, and after 10 seconds at most. Default 5; negative: never.
	MaxRetries int
}

// Ask describes a request to the server. Path is required. If User, Tenant, APIKey and Tier are empty, Headers and IP
// say who is asking.
type Ask struct {
	Method  string              `json:"method,omitempty"` // default GET
	Path    string              `json:"path"`
	IP      string              `json:"ip,omitempty"`
	User    string              `json:"user,omitempty"`
	Tenant  string              `json:"tenant,omitempty"`
	APIKey  string              `json:"api_key,omitempty"` // the id, without the secret
	Tier    string              `json:"tier,omitempty"`
	Headers map[string][]string `json:"headers,omitempty"`
	Cost    int64               `json:"cost,omitempty"` // default: as the rules say
	Peek    bool                `json:"peek,omitempty"` // decide, and count nothing; not in Reserve
	// Usage and ExpiresIn are for Reserve: how many units to reserve by meter, instead of Cost, and for how
	// many seconds the ticket is valid. Default 600.
	Usage     map[rule.Meter]int64 `json:"usage,omitempty"`
	ExpiresIn int                  `json:"expires_in,omitempty"`
}

// Seconds is a time in an answer. Null is [stint.Never].
type Seconds time.Duration

// UnmarshalJSON implements [json.Unmarshaler].
func (s *Seconds) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*s = Seconds(stint.Never)
		return nil
	}
	f, err := strconv.ParseFloat(string(b), 64)
	if *s = Seconds(f * float64(time.Second)); f >= float64(stint.Never)/float64(time.Second) {
		*s = Seconds(stint.Never)
	}
	return err
}

// Answer is what the server has decided.
type Answer struct {
	Allowed    bool    `json:"allowed"`
	Outcome    string  `json:"outcome"`
	Rule       string  `json:"rule"`  // that decided, if there is one
	Limit      int64   `json:"limit"` // the capacity of the binding limit; this and the next two are 0 if none was counted
	Remaining  int64   `json:"remaining"`
	ResetAfter Seconds `json:"reset_after"`
	RetryAfter Seconds `json:"retry_after"`
	Status     int     `json:"status"` // for the client, if it is denied
	Reason     string  `json:"reason"` // for the client, if it is denied
	DecisionID string  `json:"decision_id"`
	// Over says which limits of mark rules the request is over, and by how much: for the header Stint-Over of the request that
	// is passed on.
	Over string `json:"over"`
	// Ticket is what settles a reservation. It is empty if there is nothing to settle.
	Ticket string `json:"ticket"`
}

// SettledLimit is a limit in the answer to a settlement or an extension.
type SettledLimit struct {
	Rule      string     `json:"rule"`
	Name      string     `json:"name"`
	Meter     rule.Meter `json:"meter"`
	Reserved  int64      `json:"reserved"`
	Used      int64      `json:"used"`
	Max       int64      `json:"max"`
	Remaining int64      `json:"remaining"`
}

// Settlement is the answer to Commit and Cancel.
type Settlement struct {
	DecisionID string         `json:"decision_id"`
	Repeated   bool           `json:"repeated"` // it had been settled before: nothing was changed, and Used is not told
	Limits     []SettledLimit `json:"limits"`
}

// Extended is the answer to Extend.
type Extended struct {
	Allowed    bool           `json:"allowed"`
	RetryAfter Seconds        `json:"retry_after"`
	Ticket     string         `json:"ticket"`     // to use from now on, whether it is allowed or not
	ExpiresIn  int64          `json:"expires_in"` // how many seconds it is valid
	Limits     []SettledLimit `json:"limits"`
}

// CallError is the error of a call that the server has rejected.
type CallError struct {
	Status int
	Detail string

	wait time.Duration // that the server wants
}

func (e *CallError) Error() string {
	return "httplimit: the server answered " + strconv.Itoa(e.Status) + ": " + cmp.Or(e.Detail, http.StatusText(e.Status))
}

// Check decides a request. That it does not pass is not an error.
func (c *Client) Check(ctx context.Context, a Ask) (out Answer, err error) {
	return out, c.call(ctx, "check", a, &out, 0)
}

// Reserve decides a request, and reserves what it may cost.
func (c *Client) Reserve(ctx context.Context, a Ask) (out Answer, err error) {
	return out, c.call(ctx, "reserve", a, &out, 0)
}

// settling is the body of a call with a ticket.
type settling struct {
	Ticket    string               `json:"ticket"`
	Cost      *int64               `json:"cost,omitempty"`
	Usage     map[rule.Meter]int64 `json:"usage,omitzero"`
	Model     string               `json:"model,omitempty"`
	ExpiresIn int64                `json:"expires_in,omitempty"`
}

func settlingOf(ticket string, u *engine.Usage) settling {
	if u.Meters != nil {
		return settling{Ticket: ticket, Usage: u.Meters}
	}
	return settling{Ticket: ticket, Cost: &u.Cost}
}

// Commit settles a reservation by what was used, and tells the model.
func (c *Client) Commit(ctx context.Context, ticket string, used engine.Usage) (out Settlement, err error) {
	body := settlingOf(ticket, &used)
	body.Model = used.Model
	return out, c.call(ctx, "commit", body, &out, c.retries())
}

// Cancel gives a reservation back.
func (c *Client) Cancel(ctx context.Context, ticket string) (out Settlement, err error) {
	return out, c.call(ctx, "cancel", settling{Ticket: ticket}, &out, c.retries())
}

// Extend reserves more, and has the ticket be valid for that long, in whole seconds; 0: 10 minutes. It is never shortened. That
// there is no more is not an error.
func (c *Client) Extend(ctx context.Context, ticket string, more engine.Usage, life time.Duration) (out Extended, err error) {
	body := settlingOf(ticket, &more)
	body.ExpiresIn = int64(life / time.Second)
	return out, c.call(ctx, "extend", body, &out, 0)
}

func (c *Client) retries() int { return cmp.Or(c.MaxRetries, 5) }

// call sends a call, and again up to a number of times.
func (c *Client) call(ctx context.Context, name string, in, out any, retries int) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	const first, longest = 100 * time.Millisecond, 10 * time.Second
	for wait := first; ; wait = min(2*wait, longest) {
		err := c.send(ctx, name, body, out)
		rejected := new(CallError)
		if err == nil || retries <= 0 || ctx.Err() != nil || errors.As(err, &rejected) && rejected.Status < 500 {
			return err
		}
		retries--
		select {
		case <-time.After(max(wait, min(rejected.wait, longest))):
		case <-ctx.Done():
			return err // which says more
		}
	}
}

// patient is the default client.
var patient = &http.Client{Timeout: 10 * time.Second}

func (c *Client) send(ctx context.Context, name string, body []byte, out any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(c.URL, "/")+"/v1/"+name, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header["Content-Type"] = typeJSON
	if c.Token != "" {
		r.Header.Set("Authorization", "Bearer "+c.Token)
	}
	answer, err := cmp.Or(c.HTTP, patient).Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxBatch))
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		rejected := &CallError{Status: answer.StatusCode}
		_ = json.Unmarshal(text, &struct{ Detail *string }{&rejected.Detail}) // a proxy may have answered
		if seconds, err := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 16); err == nil {
			rejected.wait = time.Duration(seconds) * time.Second
		}
		return rejected
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("httplimit: the answer of %s: %w", r.URL.Redacted(), err)
	}
	return nil
}
