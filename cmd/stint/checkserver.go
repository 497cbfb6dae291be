package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// answered is what the decision API says, as far as it is shown.
type answered struct {
	Allowed    bool       `json:"allowed"`
	Outcome    string     `json:"outcome"`
	Rule       string     `json:"rule"`
	Reason     string     `json:"reason"`
	RetryAfter *float64   `json:"retry_after"`
	Limits     []standing `json:"limits"`
}

// standing is how a limit stands.
type standing struct {
	Rule      string  `json:"rule"`
	Name      string  `json:"name"`
	Max       int64   `json:"max"`
	Remaining int64   `json:"remaining"`
	Reset     float64 `json:"reset_after"`
	Allowed   bool    `json:"allowed"`
	Shadow    bool    `json:"shadow"`
}

// checkServer asks a server that is running.
func checkServer(ctx context.Context, t *terminal, q *asked, server string, as string) error {
	text, err := post(ctx, strings.TrimSuffix(server, "/")+"/v1/check", q)
	if err != nil {
		return err
	}
	var a answered
	if err := json.Unmarshal(text, &a); err != nil {
		return advice{fmt.Errorf("%s does not answer as Stint does: %w", server, err), "--http with the URL of the decision API"}
	}
	if err := t.say(as, json.RawMessage(text), a.Limits, func() error { return a.show(t) }); err != nil {
		return err
	}
	if !a.Allowed {
		return errNo
	}
	return nil
}

// post sends what is asked, and returns what is answered if all is well.
func post(ctx context.Context, url string, q *asked) ([]byte, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, advice{fmt.Errorf("--http: %w", err), "--http http://localhost:8080"}
	}
	r.Header.Set("Content-Type", "application/json")
	client := http.Client{Timeout: 30 * time.Second}
	defer client.CloseIdleConnections()
	answer, err := client.Do(r)
	if err != nil {
		return nil, advice{err, "stint serve, to have a server; --http URL, to ask another; or --config FILE, to ask a file"}
	}
	defer answer.Body.Close()
	const most = 4 << 20
	text, err := io.ReadAll(io.LimitReader(answer.Body, most))
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusOK {
		return text, nil
	}
	var problem struct{ Detail string }
	if json.Unmarshal(text, &problem) != nil || problem.Detail == "" {
		return nil, advice{fmt.Errorf("%s answers %s", url, answer.Status), "--http with the URL of the decision API"}
	}
	return nil, advice{fmt.Errorf("%s: %s", answer.Status, problem.Detail), "stint check --help"}
}

// show writes a verdict for people.
func (a *answered) show(t *terminal) error {
	text := a.Outcome
	if a.Rule != "" {
		text += " by " + a.Rule
	}
	if a.Reason != "" {
		text += ": " + a.Reason
	}
	if a.RetryAfter != nil && *a.RetryAfter > 0 {
		text += fmt.Sprintf("\nIt can pass in %gs.", *a.RetryAfter)
	}
	fmt.Fprintln(t.out, text)
	if len(a.Limits) == 0 {
		return nil
	}
	fmt.Fprintln(t.out)
	w := t.grid("RULE", "LIMIT", "REMAINING", "OF", "FULL IN", "SAYS")
	for _, l := range a.Limits {
		note := "passes"
		if !l.Allowed {
			note = "refuses"
		}
		if l.Shadow {
			note += " (log_only)"
		}
		w.row(l.Rule, l.Name, l.Remaining, l.Max, fmt.Sprintf("%gs", l.Reset), note)
	}
	return w.Flush()
}
