package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/rule"
)

// TestClient checks, reserves, extends, commits and cancels.
func TestClient(t *testing.T) {
	t.Parallel()
	w := worldOf(t, meteredRules, identity.Options{})
	api := apiOf(t, w)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			httplimit.Problem{Status: 401, Detail: "want a token"}.Write(rw, r)
			return
		}
		api.ServeHTTP(rw, r)
	}))
	defer server.Close()
	ctx, c := t.Context(), httplimit.Client{URL: server.URL + "/", Token: "secret"}
	type meters = map[rule.Meter]int64

	a, err := c.Check(ctx, httplimit.Ask{Path: "/", User: "alice", Cost: 2000})
	if err != nil || a.Allowed || a.Outcome != "denied" || a.Status != 429 || time.Duration(a.RetryAfter) != stint.Never || a.Reason == "" {
		t.Errorf("a check: %+v, %v", a, err)
	}
	a, err = c.Reserve(ctx, httplimit.Ask{Path: "/", User: "alice", Usage: meters{"llm.total_tokens": 200}, ExpiresIn: 60})
	if err != nil || !a.Allowed || a.Ticket == "" || time.Duration(a.ResetAfter) != time.Minute {
		t.Fatalf("a reservation: %+v, %v", a, err)
	}
	x, err := c.Extend(ctx, a.Ticket, engine.Usage{Cost: 100}, time.Hour)
	if err != nil || !x.Allowed || x.Ticket == a.Ticket || x.Limits[0].Reserved != 300 || x.ExpiresIn != 3600 {
		t.Fatalf("an extension: %+v, %v", x, err)
	}
	if x, err := c.Extend(ctx, x.Ticket, engine.Usage{Cost: 1000}, 0); err != nil || x.Allowed || x.Ticket == "" {
		t.Errorf("an extension: %+v, %v", x, err)
	}
	for _, repeated := range []bool{false, true} {
		s, err := c.Commit(ctx, x.Ticket, engine.Usage{Meters: meters{"llm.total_tokens": 0}})
		if err != nil || s.Repeated != repeated || s.DecisionID != a.DecisionID || len(s.Limits) != 3 {
			t.Errorf("a commit: %+v, %v", s, err)
		}
	}
	wantUsed(t, w, 1, 0, 1)
	if a, err = c.Reserve(ctx, httplimit.Ask{Path: "/", User: "alice"}); err != nil {
		t.Fatal(err)
	}
	// Nothing is known of any meter, so it stays as it was reserved.
	if s, err := c.Commit(ctx, a.Ticket, engine.Usage{Meters: meters{}}); err != nil || s.Limits[1].Used != 100 {
		t.Errorf("a commit of no meters: %+v, %v", s, err)
	}
	wantUsed(t, w, 2, 100, 2)
	if a, err = c.Reserve(ctx, httplimit.Ask{Path: "/", User: "alice"}); err != nil {
		t.Fatal(err)
	}
	if s, err := c.Cancel(ctx, a.Ticket); err != nil || s.Repeated {
		t.Errorf("a cancel: %+v, %v", s, err)
	}
	wantUsed(t, w, 2, 100, 2)

	for name, c := range map[string]struct {
		client httplimit.Client
		ticket string
		status int
	}{
		"a bad ticket": {c, "AAAA", 400},
		"no token":     {httplimit.Client{URL: server.URL}, a.Ticket, 401},
		"another path": {httplimit.Client{URL: server.URL + "/x", Token: "secret"}, a.Ticket, 404},
	} {
		rejected := new(httplimit.CallError)
		if _, err := c.client.Cancel(ctx, c.ticket); !errors.As(err, &rejected) || rejected.Status != c.status || rejected.Detail == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// transport answers calls by itself.
type transport func(r *http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestClientRetries sends commits and cancels again, and nothing else: after failures on the way, and while the server
// says that it will pass.
func TestClientRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var sent int
		answers := func(r *http.Request) (*http.Response, error) {
			sent++
			body := `{"decision_id":"x","repeated":false,"limits":[]}`
			status, h := 200, http.Header{}
			switch sent {
			case 1:
				return nil, errors.New("the connection was cut")
			case 2:
				status, body = 503, `{"detail":"not now"}`
				h.Set("Retry-After", "1")
			case 3:
				status, body = 502, `<html>`
			}
			return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		}
		c := httplimit.Client{URL: "http://stint", HTTP: &http.Client{Transport: transport(answers)}}
		began := time.Now()
		if s, err := c.Commit(t.Context(), "x", engine.Usage{}); err != nil || s.DecisionID != "x" || sent != 4 {
			t.Errorf("%+v, %v after %d calls", s, err, sent)
		}
		if took := time.Since(began); took != 100*time.Millisecond+time.Second+400*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		c.MaxRetries = -1
		for about, call := range map[string]func() error{
			"never": func() error { _, err := c.Cancel(t.Context(), "x"); return err },
			"check": func() error { _, err := c.Check(t.Context(), httplimit.Ask{Path: "/"}); return err },
		} {
			if sent = 0; call() == nil || sent != 1 {
				t.Errorf("%s: %d calls", about, sent)
			}
		}
		c.MaxRetries, sent = 1, 0
		_, err := c.Cancel(t.Context(), "x")
		if rejected := new(httplimit.CallError); !errors.As(err, &rejected) || rejected.Status != 503 || sent != 2 {
			t.Errorf("once: %v after %d calls", err, sent)
		}
		c.MaxRetries, sent = 0, 0
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := c.Cancel(ctx, "x"); err == nil || sent != 1 {
			t.Errorf("no time is left: %v after %d calls", err, sent)
		}
	})
}
