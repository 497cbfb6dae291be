package daemon_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/internal/test/testllm"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
)

// events returns the recorded events by user, each with what became of its reservation.
func (p *process) events(t *testing.T) map[string]string {
	t.Helper()
	code, body := p.get(t, "admin", "/admin/v1/events?limit=1000")
	var list admin.EventList
	if err := json.Unmarshal([]byte(body), &list); err != nil || code != http.StatusOK {
		return map[string]string{"problem": body} // such as that the database is down
	}
	out := map[string]string{}
	for _, e := range list.Items {
		text := fmt.Sprintf("%s %d", e.Outcome, e.Cost)
		for _, s := range e.Settled {
			text += fmt.Sprintf(", %s %s %d of %d -%d +%d %q", s.Rule, s.Meter, s.Used, s.Reserved, s.GivenBack, s.Overshoot, s.Model)
			if s.Cancelled {
				text += " cancelled"
			}
			if s.Estimated {
				text += " estimated"
			}
			if s.At.Before(e.Time) {
				text += fmt.Sprintf(" at %v, before %v", s.At, e.Time)
			}
		}
		out[e.User] += text
	}
	return out
}

// shows waits until these are the events.
func (p *process) shows(t *testing.T, want map[string]string) {
	t.Helper()
	var got map[string]string
	defer func() {
		if t.Failed() {
			t.Logf("got %q", got)
		}
	}()
	wait.For(t, fmt.Sprintf("%q", want), func() bool { got = p.events(t); return fmt.Sprint(got) == fmt.Sprint(want) })
}

// settledRows returns how many settlements a database has.
func settledRows(t *testing.T, url string) (n int) {
	t.Helper()
	do(t, openCatalog(t, url).Database().Record.Read.QueryRowContext(t.Context(), "SELECT count(*) FROM stint_settlements").Scan(&n))
	return n
}

// TestSettledEvents tells with each event what became of its reservation, whatever that is. Dropping the month drops it.
func TestSettledEvents(t *testing.T) {
	t.Parallel()
	provider := httptest.NewServer(&testllm.Provider{Decide: func(testllm.Call) testllm.Answer { return testllm.Answer{Input: 40, Output: 9} }})
	t.Cleanup(provider.Close)
	for name, url := range map[string]string{"sqlite": testdatabase.SQLite(t), "postgres": testdatabase.Postgres(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fillAt(t, url, metered+"[[rules]]\nname = \"requests\"\nlimits = [ { name = \"hour\", limit = \"1000/1h\" } ]\n")
			p := start(t, strings.ReplaceAll(inDatabase, "%", url)+fmt.Sprintf("record = { sample_every = 1, max_rate = 0, spool = %q }\n[[upstreams]]\ntargets = [%q]\n", t.TempDir(), provider.URL))
			c := httplimit.Client{URL: p.URL("http"), HTTP: p.client}
			reserve := func(user string) string {
				a, err := c.Reserve(t.Context(), httplimit.Ask{Path: "/", User: user})
				do(t, err)
				return a.Ticket
			}
			commit := func(ticket string, used engine.Usage) {
				_, err := c.Commit(t.Context(), ticket, used)
				do(t, err)
			}
			commit(reserve("less"), engine.Usage{Cost: 40, Model: "gpt"})
			commit(reserve("more"), engine.Usage{Cost: 250})
			_, err := c.Cancel(t.Context(), reserve("cancelled"))
			do(t, err)
			reserve("open")
			twice := reserve("twice")
			for used := range int64(3) {
				commit(twice, engine.Usage{Cost: 90 + used})
			}
			code, body := p.send(t, p.client, http.MethodPost, p.URL("gateway")+"/v1/chat/completions", `{"model": "m-1", "stream": true, "max_tokens": 60, "messages": []}`, "Authorization", "Bearer sk-1")
			if code != http.StatusOK || !strings.HasSuffix(body, "data: [DONE]\n\n") {
				t.Fatal(code, body)
			}
			const one = "requests  1 of 1 -0 +0 "
			var stream string
			wait.For(t, "the stream", func() bool { stream = p.events(t)[""]; return stream != "" })
			var reserved int64
			_, err = fmt.Sscanf(stream, "allowed %d", &reserved) // which was estimated
			do(t, err)
			p.shows(t, map[string]string{
				"less":      `allowed 100, ` + one + `"gpt", tokens llm.total_tokens 40 of 100 -60 +0 "gpt"`,
				"more":      `allowed 100, ` + one + `"", tokens llm.total_tokens 250 of 100 -0 +150 ""`,
				"cancelled": `allowed 100, requests  0 of 1 -1 +0 "" cancelled, tokens llm.total_tokens 0 of 100 -100 +0 "" cancelled`,
				"open":      "allowed 100",
				"twice":     `allowed 100, ` + one + `"", tokens llm.total_tokens 90 of 100 -10 +0 ""`,
				"":          fmt.Sprintf(`allowed %d, tokens llm.total_tokens 49 of %d -%d +0 "m-1"`, reserved, reserved, reserved-49),
			})
			if n := settledRows(t, url); n != 9 {
				t.Errorf("there are %d settlements", n)
			}
			if s := p.series(t); s[`stint_record_settlements_total{what="written"}`] != "9" || s[`stint_record_settlements_total{what="dropped"}`] != "0" {
				t.Error(s)
			}

			// Two months later.
			store, err := rollup.New(openCatalog(t, url).Database(), rollup.Options{Now: func() time.Time { return time.Now().AddDate(0, 2, 0) }})
			do(t, err)
			months, err := store.Months(t.Context())
			do(t, err)
			for _, m := range months {
				do(t, store.Drop(t.Context(), m.Month, m.Events))
			}
			if n := settledRows(t, url); n != 0 {
				t.Errorf("%d settlements are left", n)
			}
			p.shows(t, nil)
		})
	}
}

// TestSettledNotable has two nodes that sample no requests: those that a log_only rule would have denied are recorded, with
// what became of their reservation even if the other node has settled it. Of the others nothing is.
func TestSettledNotable(t *testing.T) {
	t.Parallel()
	url := fill(t, metered+`
[[rules]]
name   = "trial"
action = "log_only"
cost   = { meter = "response_bytes" }
limits = [ { name = "hour", limit = "10/1h fixed_window" } ]
`)
	redis := testredis.Start(t).URL()
	var clients []httplimit.Client
	var nodes []*process
	for range 2 {
		p := start(t, strings.ReplaceAll(inDatabase, "%", url)+fmt.Sprintf("counters = %q\nrecord = { sample_every = 0, spool = %q }\n", redis, t.TempDir()))
		nodes, clients = append(nodes, p), append(clients, httplimit.Client{URL: p.URL("http"), HTTP: p.client})
	}
	for _, user := range []string{"routine", "notable"} {
		a, err := clients[0].Reserve(t.Context(), httplimit.Ask{Path: "/", User: user})
		do(t, err)
		_, err = clients[1].Commit(t.Context(), a.Ticket, engine.Usage{Cost: 70})
		do(t, err)
	}
	nodes[0].shows(t, map[string]string{"notable": `allowed 1, tokens llm.total_tokens 70 of 100 -30 +0 ""`})
	if n := settledRows(t, url); n != 1 {
		t.Errorf("there are %d settlements", n)
	}
}

// TestSettledOutage settles while the database is down: when it is back, each settlement is there once.
func TestSettledOutage(t *testing.T) {
	t.Parallel()
	server := testpostgres.Start(t)
	url := server.Database(t)
	fillAt(t, url, metered)
	p := start(t, strings.ReplaceAll(inDatabase, "%", url)+fmt.Sprintf("record = { sample_every = 1, max_rate = 0, spool = %q }\n", t.TempDir()))
	c := httplimit.Client{URL: p.URL("http"), HTTP: p.client}
	tickets, open, settled := map[string]string{}, map[string]string{}, map[string]string{}
	for i := range 5 {
		user := fmt.Sprint("user", i)
		a, err := c.Reserve(t.Context(), httplimit.Ask{Path: "/", User: user})
		do(t, err)
		tickets[user], open[user], settled[user] = a.Ticket, "allowed 100", fmt.Sprintf(`allowed 100, tokens llm.total_tokens %d of 100 -%d +0 ""`, i, 100-i)
	}
	p.shows(t, open)
	server.Kill(t)
	for i := range 5 {
		_, err := c.Commit(t.Context(), tickets[fmt.Sprint("user", i)], engine.Usage{Cost: int64(i)})
		do(t, err)
	}
	p.becomes(t, "record", "degraded", "usage cannot be written")
	server.Restart(t)
	p.shows(t, settled)
	p.becomes(t, "record", "ok", "")
	if n := settledRows(t, url); n != len(settled) {
		t.Errorf("there are %d settlements, want %d", n, len(settled))
	}
}
