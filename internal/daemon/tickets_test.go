package daemon_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/internal/test/testredis"
)

// metered has a rule whose cost is known afterwards.
const metered = `
[[rules]]
name     = "tokens"
cost     = { meter = "llm.total_tokens", reserve = 100 }
limits   = [ { name = "minute", limit = "1000/1h fixed_window" } ]
`

// reserve reserves, and returns the ticket.
func (p *process) reserve(t *testing.T) string {
	t.Helper()
	code, body := p.send(t, p.client, "POST", p.URL("http")+"/v1/reserve", `{"path":"/"}`)
	var got struct{ Ticket string }
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != 200 || got.Ticket == "" {
		t.Fatalf("no ticket: %d %s", code, body)
	}
	return got.Ticket
}

// commit settles a ticket, and returns the status.
func (p *process) commit(t *testing.T, ticket string) int {
	t.Helper()
	code, _ := p.send(t, p.client, "POST", p.URL("http")+"/v1/commit", fmt.Sprintf(`{"ticket":%q,"cost":7}`, ticket))
	return code
}

// TestTicketKeyOfDatabase has two nodes that start at once on an empty database: each accepts the tickets of the
// other, and neither tells the key. A node that starts later accepts them, too.
func TestTicketKeyOfDatabase(t *testing.T) {
	t.Parallel()
	redis := testredis.Start(t)
	for name, url := range map[string]string{"sqlite": testdatabase.SQLite(t), "postgres": testdatabase.Postgres(t)} {
		t.Run(name, func(t *testing.T) {
			c := openCatalog(t, fillAt(t, url, metered))
			text := strings.ReplaceAll(inDatabase, "%", url) + fmt.Sprintf("counters = %q\n", redis.URL())
			nodes := []*process{start(t, text), start(t, text)}
			for i, p := range nodes {
				if code := nodes[1-i].commit(t, p.reserve(t)); code != 200 {
					t.Errorf("a ticket of node %d at the other: %d", i, code)
				}
			}
			ticket := nodes[0].reserve(t)
			if code := start(t, text).commit(t, ticket); code != 200 {
				t.Errorf("at a node that started later: %d", code)
			}
			key, err := c.TicketKey(t.Context())
			do(t, err)
			for _, p := range nodes {
				if strings.Contains(p.log.String(), string(key)) || strings.Contains(p.log.String(), hex.EncodeToString(key)) {
					t.Error("the log has the key")
				}
			}
		})
	}
}

// TestTicketKeys has keys in a file, which are replaced while the daemon runs: the first makes tickets, and all accept
// them. Without a key, tickets are those of the process.
func TestTicketKeys(t *testing.T) {
	t.Parallel()
	first, second := strings.Repeat("a", 32), strings.Repeat("b", 32)
	file := write(t, "keys", first+"\n")
	server := fmt.Sprintf("[server]\ncounters = %q\n", testredis.Start(t).URL())
	p := start(t, server+fmt.Sprintf("ticket_key_file = %q\n", file)+metered)
	with, without := start(t, server+fmt.Sprintf("ticket_key = %q\n", second)+metered), start(t, server+metered)
	ticket := p.reserve(t)
	accepted := func(p *process, ticket string, want bool) {
		t.Helper()
		if code := p.commit(t, ticket); (code == 200) != want || !want && code != 400 {
			t.Errorf("a ticket is answered with %d", code)
		}
	}
	accepted(p, ticket, true)
	accepted(with, ticket, false)
	accepted(without, ticket, false)
	accepted(without, without.reserve(t), true)

	put(t, file, second+"\n\n"+first+"\n")
	do(t, p.Reload(t.Context()))
	accepted(p, ticket, true)
	accepted(with, p.reserve(t), true)
	accepted(p, with.reserve(t), true)

	put(t, file, second)
	do(t, p.Reload(t.Context()))
	accepted(p, ticket, false)

	put(t, p.path, server+metered) // no key is configured any more
	do(t, p.Reload(t.Context()))
	accepted(p, p.reserve(t), true)
	accepted(with, p.reserve(t), false)
	if strings.Contains(p.log.String(), "needs_restart\":[\"") {
		t.Error(p.log.String())
	}
}

// TestTicketKeyProblems checks the problems of keys, which do not show them.
func TestTicketKeyProblems(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("hunter2", 5)
	for name, c := range map[string]struct{ text, want string }{
		"good":    {fmt.Sprintf("ticket_key = %q", long), ""},
		"short":   {`ticket_key = "hunter2"`, "server.ticket_key: a key has 7 bytes: want at least 32, such as openssl rand -hex 32 prints"},
		"a line":  {fmt.Sprintf("ticket_key_file = %q", write(t, "keys", long+"\nhunter2\n")), "server.ticket_key_file: a key has 7 bytes: want at least 32"},
		"many":    {fmt.Sprintf("ticket_key_file = %q", write(t, "many", strings.Repeat(long+"\n", 17))), "server.ticket_key_file: 17 keys: want at most 16"},
		"both":    {fmt.Sprintf("ticket_key = %q\nticket_key_file = %q", long, write(t, "both", long)), "server.ticket_key_file: is set together with ticket_key, want one of them"},
		"missing": {`ticket_key_file = "/not/there"`, `server.ticket_key_file: "/not/there": want a file that can be read: no such file or directory`},
		"empty":   {fmt.Sprintf("ticket_key_file = %q", write(t, "empty", "\n")), "want a file that is not empty"},
	} {
		got := problems(t, "[server]\n"+c.text)
		if !strings.Contains(got, c.want) || (c.want == "") != (got == "") || strings.Contains(got, "hunter2") {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestSettlementMetrics counts what was reserved, and what became of it.
func TestSettlementMetrics(t *testing.T) {
	t.Parallel()
	p := start(t, metered)
	less, more, none := p.reserve(t), p.reserve(t), p.reserve(t)
	p.reserve(t) // which no one settles
	for _, c := range []struct{ path, body string }{
		{"commit", fmt.Sprintf(`{"ticket":%q,"cost":40}`, less)},
		{"commit", fmt.Sprintf(`{"ticket":%q,"cost":40}`, less)},
		{"commit", fmt.Sprintf(`{"ticket":%q,"cost":130}`, more)},
		{"cancel", fmt.Sprintf(`{"ticket":%q}`, none)},
		{"cancel", `{"ticket":"AAAA"}`},
	} {
		p.send(t, p.client, "POST", p.URL("http")+"/v1/"+c.path, c.body)
	}
	series := p.series(t)
	for name, want := range map[string]string{
		`stint_units_total{meter="llm.total_tokens",rule="tokens",what="reserved"}`:   "400",
		`stint_units_total{meter="llm.total_tokens",rule="tokens",what="used"}`:       "170",
		`stint_units_total{meter="llm.total_tokens",rule="tokens",what="given_back"}`: "160",
		`stint_units_total{meter="llm.total_tokens",rule="tokens",what="overshoot"}`:  "30",
		`stint_settlements_total{result="committed"}`:                                 "2",
		`stint_settlements_total{result="cancelled"}`:                                 "1",
		`stint_settlements_total{result="repeated"}`:                                  "1",
		`stint_settlements_total{result="rejected"}`:                                  "1",
	} {
		if got := series[name]; got != want {
			t.Errorf("%s is %q, want %s", name, got, want)
		}
	}
}
