package httplimit_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/rule"
)

// meteredRules count requests, tokens, and tokens of a rule that is tried out.
const meteredRules = `
	[[rules]]
	name     = "requests"
	count_by = ["user"]
	limits   = [ { name = "requests", limit = "10/1m fixed_window" } ]
	[[rules]]
	name     = "tokens"
	count_by = ["user"]
	cost     = { meter = "llm.total_tokens", reserve = 100, max = 5000 }
	limits   = [ { name = "minute", limit = "1000/1m fixed_window" } ]
	[[rules]]
	name     = "trial"
	count_by = ["user"]
	action   = "log_only"
	cost     = { meter = "llm.output_tokens" }
	limits   = [ { name = "trial", limit = "500/1m fixed_window" } ]
`

// ticketsOf are tickets by the clock of a world. A key is a letter.
func ticketsOf(tb testing.TB, w world, keys ...string) *engine.Tickets {
	tb.Helper()
	var all [][]byte
	for _, k := range keys {
		all = append(all, []byte(strings.Repeat(k, 32)))
	}
	tickets, err := engine.NewTickets(w.clock.Now, all...)
	if err != nil {
		tb.Fatal(err)
	}
	return tickets
}

// ticketOf reserves, and returns the ticket.
func ticketOf(tb testing.TB, h http.Handler, request string) string {
	tb.Helper()
	return ticketIn(tb, call(h, "POST", "/v1/reserve", request))
}

func ticketIn(tb testing.TB, rec *httptest.ResponseRecorder) string {
	tb.Helper()
	var got struct{ Ticket string }
	if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil || rec.Code != 200 || got.Ticket == "" {
		tb.Fatalf("there is no ticket: %v, %s", err, transcript(rec))
	}
	return got.Ticket
}

// usedOf is how much alice has used of the limits, by their names.
func usedOf(tb testing.TB, w world, names ...string) (out []int64) {
	tb.Helper()
	limits, err := w.Usage(tb.Context(), identity.Subject{User: "alice"})
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range names {
		for i := range limits {
			if d := &limits[i].Decision; limits[i].Name == name {
				out = append(out, d.Limit-d.Remaining)
			}
		}
	}
	return out
}

func wantUsed(tb testing.TB, w world, want ...int64) {
	tb.Helper()
	if got := usedOf(tb, w, "requests", "minute", "trial"); fmt.Sprint(got) != fmt.Sprint(want) {
		tb.Errorf("%d is used, want %d", got, want)
	}
}

const (
	aliceAsks = `{"method":"POST","path":"/v1/chat/completions","user":"alice"}`
	oneTicket = `{"ticket":%q}`
	usedCost  = `{"ticket":%q,"cost":%d}`
)

// TestReserveCalls compares a conversation about reservations, as it is, with a file.
func TestReserveCalls(t *testing.T) {
	t.Parallel()
	w := worldOf(t, meteredRules, identity.Options{})
	h := apiOf(t, w)
	var first, second, extended, bobs string
	var all strings.Builder
	for _, c := range []struct {
		about, target, body string
		ticket              *string // of the call
		keep                *string // of the answer
	}{
		{"what the rules say is reserved", "/v1/reserve", aliceAsks, nil, &first},
		{"less was used", "/v1/commit", `{"ticket":"TICKET","usage":{"llm.total_tokens":40,"llm.output_tokens":12}}`, &first, nil},
		{"it is said again, and changes nothing", "/v1/commit", `{"ticket":"TICKET","usage":{"llm.total_tokens":40,"llm.output_tokens":12}}`, &first, nil},
		{"what is settled cannot be cancelled", "/v1/cancel", `{"ticket":"TICKET"}`, &first, nil},
		{"what the caller says is reserved", "/v1/reserve", `{"path":"/","user":"alice","usage":{"llm.total_tokens":500},"expires_in":60}`, nil, &second},
		{"more than remains", "/v1/reserve", `{"path":"/","user":"alice","cost":501}`, nil, nil},
		{"more is reserved", "/v1/extend", `{"ticket":"TICKET","usage":{"llm.total_tokens":200},"expires_in":3600}`, &second, &extended},
		{"there is no more", "/v1/extend", `{"ticket":"TICKET","cost":261}`, &extended, nil},
		{"more was used than was reserved", "/v1/commit", `{"ticket":"TICKET","cost":750}`, &extended, nil},
		{"someone else's", "/v1/reserve", `{"path":"/","user":"bob","cost":7}`, nil, &bobs},
		{"which was not needed", "/v1/cancel", `{"ticket":"TICKET"}`, &bobs, nil},
		{"several at once", "/v1/reserve/batch", `{"requests":[{"path":"/","user":"carol"},{"path":"/","user":"alice","cost":800}]}`, nil, nil},
		{"a ticket that is none among others", "/v1/commit/batch", `{"requests":[{"ticket":"AAAA","cost":1},{"ticket":"TICKET","cost":1}]}`, &extended, nil},
		{"nothing to settle", "/v1/reserve", `{"path":"/"}`, nil, nil},
	} {
		body := c.body
		if c.ticket != nil {
			body = strings.ReplaceAll(body, "TICKET", *c.ticket)
		}
		rec := call(h, "POST", c.target, body)
		if c.keep != nil {
			*c.keep = ticketIn(t, rec)
		}
		fmt.Fprintf(&all, "# %s\nPOST %s %s\n\n%s\n", c.about, c.target, c.body, transcript(rec))
		w.clock.Add(time.Millisecond)
	}
	golden(t, "reserve.txt", all.String())
}

// TestReserveRejected sends what is wrong. It is named, and nothing is counted.
func TestReserveRejected(t *testing.T) {
	t.Parallel()
	w := worldOf(t, meteredRules, identity.Options{})
	h := apiOf(t, w)
	ticket := ticketOf(t, h, aliceAsks)
	many := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`"header:X-%d":1`, i))
		}
		return strings.Join(all, ",")
	}
	for _, c := range []struct{ target, body, says string }{
		{"reserve", `{}`, "path: want the path"},
		{"reserve", `{"path":"/","peek":true}`, `"peek": unknown field, want method, path`},
		{"reserve", `{"path":"/","cost":0}`, "cost: want a whole number from 1"},
		{"reserve", `{"path":"/","usage":{"llm.total_tokens":0}}`, "usage.llm.total_tokens: want a whole number from 1"},
		{"reserve", `{"path":"/","usage":{"llm.tokens":1}}`, `usage."llm.tokens": want a meter, such as llm.total_tokens`},
		{"reserve", `{"path":"/","usage":{"` + strings.Repeat("x", 1000) + `":1}}`, `usage."` + strings.Repeat("x", 64) + `": want a meter`},
		{"reserve", `{"path":"/","usage":{"llm.cost":1,"llm.cost":1}}`, "usage.llm.cost: want it only once"},
		{"reserve", `{"path":"/","usage":{` + many(17) + `}}`, "usage.header:X-16: want it only once, and at most 16 meters"},
		{"reserve", `{"path":"/","usage":[]}`, "usage: want an object"},
		{"reserve", `{"path":"/","cost":1,"usage":{"llm.cost":1}}`, "usage: want either cost or usage, not both"},
		{"reserve", `{"path":"/","expires_in":0}`, "expires_in: want a whole number of seconds from 1 to 3600, found 0"},
		{"reserve", `{"path":"/","expires_in":3601}`, "expires_in: want a whole number of seconds from 1 to 3600, found 3601"},
		{"reserve", `{"path":"/","expires_in":"1m"}`, `expires_in: want a whole number of seconds from 1 to 3600, found "1m"`},
		{"reserve", `{"path":"/` + strings.Repeat("x", 9000) + `"}`, "path: want at most 8192 bytes"},
		{"commit", `{}`, "ticket: want the ticket of a reservation"},
		{"commit", `{"ticket":"","cost":1}`, "ticket: want the ticket of a reservation"},
		{"commit", `{"ticket":7,"cost":1}`, "ticket: want a string, found 7"},
		{"commit", `{"ticket":"AAAA"}`, "cost: want what was used: cost, or usage by meter"},
		{"commit", `{"ticket":"AAAA","cost":-1}`, "cost: want a whole number from 0"},
		{"commit", `{"ticket":"AAAA","cost":1,"usage":{}}`, "usage: want either cost or usage, not both"},
		{"commit", `{"ticket":"AAAA","cost":1,"expires_in":1}`, `"expires_in": unknown field, want ticket, cost, usage, model`},
		{"commit", `{"ticket":"AAAA","cost":1,"model":"` + strings.Repeat("x", 129) + `"}`, `model: want at most 128 bytes without control characters, found "xxx`},
		{"commit", `{"ticket":"AAAA","cost":1,"model":"a\u0000b"}`, `model: want at most 128 bytes without control characters, found "a\u0000b"`},
		{"commit", `{"ticket":"AAAA","cost":1,"model":7}`, "model: want a string, found 7"},
		{"extend", `{"ticket":"AAAA","model":"gpt"}`, `"model": unknown field, want ticket, cost, usage, expires_in`},
		{"commit", `{"ticket":"` + strings.Repeat("A", 10_000) + `","cost":1}`, "ticket: it was not made by this cluster, or was altered"},
		{"cancel", `{"ticket":"AAAA","cost":1}`, `"cost": unknown field, want ticket`},
		{"extend", `{"ticket":"AAAA","usage":{"none":1}}`, `usage."none": want a meter`},
		{"extend", `{"ticket":"AAAA","expires_in":3601}`, "expires_in: want a whole number of seconds from 1 to 3600"},
		{"extend", `{"path":"/"}`, `"path": unknown field, want ticket, cost, usage, expires_in`},
		{"commit/batch", `{"requests":[]}`, "requests: want at least one request"},
		{"commit/batch", fmt.Sprintf(`{"requests":[{"ticket":%q,"cost":1},{"cost":1}]}`, ticket), "requests[1].ticket: want the ticket"},
		{"cancel/batch", fmt.Sprintf(`{"requests":[`+strings.Repeat(oneTicket+",", 2)+`{"ticket":1}]}`, ticket, ticket), "requests[2].ticket: want a string, found 1"},
		{"reserve/batch", `{"requests":[` + aliceAsks + `,{}]}`, "requests[1].path: want the path"},
	} {
		rec := call(h, "POST", "/v1/"+c.target, c.body)
		var p struct{ Detail string }
		if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil || rec.Code != 400 || !strings.HasPrefix(p.Detail, c.says) {
			t.Errorf("%s %s: %d %q, want 400 %q", c.target, brief(c.body), rec.Code, p.Detail, c.says)
		}
	}
	wantUsed(t, w, 1, 100, 1)
}

// TestBadTickets rejects what this cluster has not made, or no longer accepts, at every call that has a ticket. It
// changes nothing.
func TestBadTickets(t *testing.T) {
	t.Parallel()
	w := worldOf(t, meteredRules, identity.Options{})
	h := apiOf(t, w)
	foreign, err := httplimit.API(httplimit.APIOptions{Engine: w.Engine, Store: w.store, Tickets: ticketsOf(t, w, "b")})
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := worldOf(t, meteredRules, identity.Options{}) // which has the key, but not the counters
	expired := ticketOf(t, h, `{"path":"/","user":"alice","expires_in":1}`)
	w.clock.Add(time.Second)
	good := ticketOf(t, h, aliceAsks)
	altered := []byte(good)
	altered[len(altered)/2] ^= 1
	for about, c := range map[string]struct{ ticket, says string }{
		"forged":            {"AQ" + strings.Repeat("A", 200), "ticket: it was not made by this cluster, or was altered"},
		"altered":           {string(altered), "ticket: it was not made by this cluster, or was altered"},
		"foreign":           {ticketOf(t, foreign, aliceAsks), "ticket: it was not made by this cluster, or was altered"},
		"expired":           {expired, "ticket: it has expired"},
		"of other counters": {ticketOf(t, apiOf(t, elsewhere), aliceAsks), "ticket: what it reserved is not counted here, but in the memory of another node"},
	} {
		for path, body := range map[string]string{
			"/v1/commit": fmt.Sprintf(usedCost, c.ticket, 7), "/v1/cancel": fmt.Sprintf(oneTicket, c.ticket), "/v1/extend": fmt.Sprintf(usedCost, c.ticket, 7),
		} {
			if about == "of other counters" && path == "/v1/extend" {
				continue // which takes anew
			}
			if rec := call(h, "POST", path, body); rec.Code != 400 || !strings.Contains(rec.Body.String(), c.says) {
				t.Errorf("%s %s: %s", path, about, transcript(rec))
			}
			rec := call(h, "POST", path+"/batch", `{"requests":[`+body+`]}`)
			if rec.Code != 200 || !strings.Contains(rec.Body.String(), `"status":400,"detail":"`+c.says) {
				t.Errorf("%s/batch %s: %s", path, about, transcript(rec))
			}
		}
	}
	wantUsed(t, w, 3, 300, 3)
}

// TestCommitOnce commits a ticket a hundred times at once, on two handlers that share a store, and cancels it: it is
// applied once, whoever is first.
func TestCommitOnce(t *testing.T) {
	t.Parallel()
	w := worldOf(t, meteredRules, identity.Options{})
	other, err := engine.New(engine.Options{Store: w.store, Rules: w.Rules(), Identity: w.Identity(), Now: w.clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	second, err := httplimit.API(httplimit.APIOptions{Engine: other, Store: w.store, Tickets: ticketsOf(t, w, "b", "a")})
	if err != nil {
		t.Fatal(err)
	}
	nodes := []http.Handler{apiOf(t, w), second}
	ticket := ticketOf(t, nodes[0], aliceAsks)
	var applied atomic.Int64
	var wait sync.WaitGroup
	for i := range 100 {
		wait.Go(func() {
			rec := call(nodes[i%2], "POST", "/v1/commit", fmt.Sprintf(usedCost, ticket, 70))
			switch body := rec.Body.String(); {
			case rec.Code == 200 && strings.Contains(body, `"repeated":false`):
				applied.Add(1)
			case rec.Code != 200 || !strings.Contains(body, `"repeated":true`):
				t.Error(transcript(rec))
			}
		})
	}
	wait.Wait()
	if n := applied.Load(); n != 1 {
		t.Errorf("it was applied %d times", n)
	}
	rec := call(second, "POST", "/v1/cancel", fmt.Sprintf(oneTicket, ticket))
	if rec.Code != 200 || !strings.Contains(rec.Body.String(), `"repeated":true`) {
		t.Errorf("cancelled afterwards: %s", transcript(rec))
	}
	wantUsed(t, w, 1, 70, 70)
}

// TestCommitLate commits a ticket again as long as it is valid, also when what it used has long recovered: it is applied
// once.
func TestCommitLate(t *testing.T) {
	t.Parallel()
	w := worldOf(t, `
		[[rules]]
		name     = "tokens"
		count_by = ["user"]
		cost     = { meter = "llm.total_tokens" }
		limits   = [ { name = "minute", limit = "100/1m token_bucket" } ]
	`, identity.Options{})
	h := apiOf(t, w)
	ticket := ticketOf(t, h, `{"path":"/","user":"alice","expires_in":3600}`)
	for i, after := range []time.Duration{0, 11 * time.Minute, 48*time.Minute + 59*time.Second} {
		w.clock.Add(after)
		rec := call(h, "POST", "/v1/commit", fmt.Sprintf(usedCost, ticket, 700))
		if rec.Code != 200 || !strings.Contains(rec.Body.String(), fmt.Sprintf(`"repeated":%t`, i > 0)) {
			t.Error(after, transcript(rec))
		}
	}
	if got := usedOf(t, w, "minute"); got[0] != 0 {
		t.Errorf("%d is used an hour later", got)
	}
	w.clock.Add(time.Second)
	if rec := call(h, "POST", "/v1/commit", fmt.Sprintf(usedCost, ticket, 700)); rec.Code != 400 {
		t.Error(transcript(rec))
	}
}

// TestPlaceByTicket holds a place by a ticket: it is kept by extensions, released by a settlement, and comes back by itself.
// One that was lost is taken again by an extension, if there is one.
func TestPlaceByTicket(t *testing.T) {
	t.Parallel()
	w := worldOf(t, `
		[[rules]]
		name     = "jobs"
		count_by = ["user"]
		limits   = [ { name = "jobs", limit = "1/30s concurrency" } ]
	`, identity.Options{})
	h := apiOf(t, w)
	const job = `{"path":"/","user":"alice"}`
	reserve := func() string {
		t.Helper()
		return ticketOf(t, h, job)
	}
	denied := func(about string) {
		t.Helper()
		if rec := call(h, "POST", "/v1/reserve", job); rec.Code != 200 || !strings.Contains(rec.Body.String(), `"outcome":"denied"`) {
			t.Errorf("%s: %s", about, transcript(rec))
		}
	}
	extend := func(ticket string, allowed bool) string {
		t.Helper()
		rec := call(h, "POST", "/v1/extend", fmt.Sprintf(oneTicket, ticket))
		if !strings.HasPrefix(rec.Body.String(), fmt.Sprintf(`{"allowed":%t,`, allowed)) {
			t.Errorf("extended: %s", transcript(rec))
		}
		return ticketIn(t, rec)
	}
	settle := func(path, ticket string) {
		t.Helper()
		body := fmt.Sprintf(oneTicket, ticket)
		if path == "/v1/commit" {
			body = fmt.Sprintf(usedCost, ticket, 0)
		}
		if rec := call(h, "POST", path, body); rec.Code != 200 {
			t.Error(transcript(rec))
		}
	}

	first := reserve()
	denied("while it is held")
	for range 4 { // longer than the window
		w.clock.Add(20 * time.Second)
		first = extend(first, true)
		denied("while it is renewed")
	}
	settle("/v1/commit", first)
	second := reserve()
	settle("/v1/cancel", second)

	lost := reserve()
	w.clock.Add(31 * time.Second)
	taken := extend(lost, true)
	denied("when it was taken again")
	w.clock.Add(31 * time.Second)
	other := reserve()
	taken = extend(taken, false)
	settle("/v1/commit", taken) // it has no place to release
	denied("while another has it")
	settle("/v1/commit", other)
	w.clock.Add(time.Second)
	settle("/v1/commit", other) // which is not there to be released again
	last := reserve()
	denied("at the end")
	settle("/v1/commit", last)
}

// TestExtendLater extends a ticket: it is never valid for less time than before.
func TestExtendLater(t *testing.T) {
	t.Parallel()
	w := worldOf(t, meteredRules, identity.Options{})
	h := apiOf(t, w)
	ticket := ticketOf(t, h, `{"path":"/","user":"alice","expires_in":3600}`)
	w.clock.Add(10 * time.Minute)
	for _, c := range []struct{ body, want string }{
		{`{"ticket":%q}`, `"expires_in":3000`},
		{`{"ticket":%q,"expires_in":1}`, `"expires_in":3000`},
		{`{"ticket":%q,"expires_in":3200}`, `"expires_in":3200`},
	} {
		rec := call(h, "POST", "/v1/extend", fmt.Sprintf(c.body, ticket))
		if rec.Code != 200 || !strings.Contains(rec.Body.String(), c.want) {
			t.Errorf("%s: %s", c.body, transcript(rec))
		}
		ticket = ticketIn(t, rec)
	}
	w.clock.Add(3199 * time.Second)
	if rec := call(h, "POST", "/v1/commit", fmt.Sprintf(usedCost, ticket, 1)); rec.Code != 200 {
		t.Error(transcript(rec))
	}
}

// TestCommitBatch settles many reservations, some of which are not to be settled: this does not concern the others.
func TestCommitBatch(t *testing.T) {
	t.Parallel()
	w := worldOf(t, meteredRules, identity.Options{})
	h := apiOf(t, w)
	var calls []string
	for i := range 8 {
		calls = append(calls, fmt.Sprintf(usedCost, ticketOf(t, h, aliceAsks), i), fmt.Sprintf(usedCost, "AAAA", 1))
	}
	rec := call(h, "POST", "/v1/commit/batch", `{"requests":[`+strings.Join(calls, ",")+`]}`)
	var got struct {
		Receipts []struct {
			Status   int
			Repeated *bool
		}
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil || len(got.Receipts) != len(calls) {
		t.Fatal(err, transcript(rec))
	}
	for i, r := range got.Receipts {
		if good := i%2 == 0; good != (r.Repeated != nil) || good != (r.Status == 0) {
			t.Errorf("%d: %+v", i, r)
		}
	}
	wantUsed(t, w, 8, 28, 28)
}

// TestCommitAfterChange settles what was reserved under rules that have changed since.
func TestCommitAfterChange(t *testing.T) {
	t.Parallel()
	w := worldOf(t, meteredRules, identity.Options{})
	h := apiOf(t, w)
	ticket := ticketOf(t, h, aliceAsks)
	before := w.Rules()
	after, err := rule.Compile(rule.File{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Use(after, w.Identity()); err != nil {
		t.Fatal(err)
	}
	if rec := call(h, "POST", "/v1/commit", fmt.Sprintf(usedCost, ticket, 9)); rec.Code != 200 || !strings.Contains(rec.Body.String(), `"rule":"tokens"`) {
		t.Error(transcript(rec))
	}
	if err := w.Use(before, w.Identity()); err != nil {
		t.Fatal(err)
	}
	wantUsed(t, w, 1, 9, 9)
}

// TestCommitWithoutStore commits while the store is out of reach, and afterwards twice: it is applied once.
func TestCommitWithoutStore(t *testing.T) {
	t.Parallel()
	w := worldOf(t, meteredRules, identity.Options{})
	h := apiOf(t, w)
	ticket := ticketOf(t, h, aliceAsks)
	w.store.(*broken).down = true
	for path, body := range map[string]string{"/v1/commit": fmt.Sprintf(usedCost, ticket, 30), "/v1/cancel": fmt.Sprintf(oneTicket, ticket)} {
		if rec := call(h, "POST", path, body); rec.Code != 503 || rec.Header().Get("Retry-After") != "1" {
			t.Error(path, transcript(rec))
		}
		if rec := call(h, "POST", path+"/batch", `{"requests":[`+body+`]}`); rec.Code != 200 || !strings.Contains(rec.Body.String(), `"status":503`) {
			t.Error(path, transcript(rec))
		}
	}
	// Rules are open by default: the request passes, and there is nothing to settle.
	rec := call(h, "POST", "/v1/reserve", aliceAsks)
	if rec.Code != 200 || strings.Contains(rec.Body.String(), `"ticket"`) || !strings.Contains(rec.Body.String(), `"allowed":true`) {
		t.Error(transcript(rec))
	}
	w.store.(*broken).down = false
	for _, repeated := range []string{`"repeated":false`, `"repeated":true`} {
		if rec := call(h, "POST", "/v1/commit", fmt.Sprintf(usedCost, ticket, 30)); rec.Code != 200 || !strings.Contains(rec.Body.String(), repeated) {
			t.Error(repeated, transcript(rec))
		}
	}
	wantUsed(t, w, 1, 30, 30)
}

// TestTicketTooLong reserves what no ticket can hold, and extends until none can: then nothing more is charged, and the
// ticket that there is can still be settled.
func TestTicketTooLong(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range 60 {
		fmt.Fprintf(&many, "[[rules]]\nname = \"rule-%d\"\ncount_by = [\"user\"]\nlimits = [ { name = \"limit\", limit = \"%d/1m fixed_window\" } ]\n", i, 1000+i)
	}
	w := worldOf(t, many.String(), identity.Options{})
	const says = "ticket: it would have more than 2048 bytes: too many limits apply"
	if rec := call(apiOf(t, w), "POST", "/v1/reserve", aliceAsks); rec.Code != 400 || !strings.Contains(rec.Body.String(), says) {
		t.Error(transcript(rec))
	}
	if got := usedOf(t, w, "limit"); got[0] != 0 || len(got) != 60 {
		t.Errorf("%d is used, want nothing", got)
	}

	w = worldOf(t, meteredRules, identity.Options{})
	h := apiOf(t, w)
	ticket := ticketOf(t, h, `{"path":"/","user":"alice","cost":1}`)
	for n := int64(1); ; n++ {
		rec := call(h, "POST", "/v1/extend", fmt.Sprintf(usedCost, ticket, 1))
		if rec.Code == 400 && n > 10 && strings.Contains(rec.Body.String(), "extended too often") {
			wantUsed(t, w, 1, n, 1)
			break
		}
		ticket = ticketIn(t, rec)
	}
	if rec := call(h, "POST", "/v1/commit", fmt.Sprintf(usedCost, ticket, 3)); rec.Code != 200 {
		t.Error(transcript(rec))
	}
	wantUsed(t, w, 1, 3, 3)
}

// TestNoTickets has no calls about reservations.
func TestNoTickets(t *testing.T) {
	t.Parallel()
	w := worldOf(t, meteredRules, identity.Options{})
	h, err := httplimit.API(httplimit.APIOptions{Engine: w.Engine, Store: w.store})
	if err != nil {
		t.Fatal(err)
	}
	if rec := call(h, "POST", "/v1/reserve", aliceAsks); rec.Code != 404 {
		t.Error(transcript(rec))
	}
}

func FuzzReserve(f *testing.F) {
	w := worldOf(f, meteredRules, identity.Options{})
	h := apiOf(f, w)
	f.Add("reserve", aliceAsks)
	f.Add("commit", fmt.Sprintf(usedCost, ticketOf(f, h, aliceAsks), 1))
	f.Add("extend/batch", `{"requests":[{"ticket":"AAAA","usage":{"header:x":1},"expires_in":9}]}`)
	f.Fuzz(func(t *testing.T, target, body string) {
		switch target {
		case "reserve", "commit", "cancel", "extend", "reserve/batch", "commit/batch", "cancel/batch", "extend/batch":
		default:
			return
		}
		rec := call(h, "POST", "/v1/"+target, body)
		if !json.Valid(rec.Body.Bytes()) || rec.Code != 200 && rec.Code != 400 && rec.Code != 413 && rec.Code != 415 {
			t.Fatal(transcript(rec))
		}
	})
}

func BenchmarkReserve(b *testing.B) {
	w := worldOf(b, roomy, identity.Options{})
	h := apiOf(b, w)
	const ask = `{"path":"/search","user":"alice","ip":"192.0.2.1"}`
	b.Run("reserve", func(b *testing.B) { benchAPI(b, h, "/v1/reserve", ask) })
	b.Run("reserve and commit", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if rec := call(h, "POST", "/v1/commit", fmt.Sprintf(usedCost, ticketOf(b, h, ask), 2)); rec.Code != 200 {
				b.Fatal(transcript(rec))
			}
		}
	})
}
