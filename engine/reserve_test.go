package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
	"github.com/stintdev/stint/storetest"
)

// tokens has a rule that counts requests, one that counts tokens, and one that is tried out.
const tokens = `
[[rules]]
name = "requests"
count_by = ["user"]
limits = [ { name = "requests", limit = "10/1m fixed_window" } ]
[[rules]]
name = "tokens"
count_by = ["user"]
cost = { meter = "llm.total_tokens", reserve = 100, max = 5000 }
limits = [ { name = "minute", limit = "1000/1m fixed_window" }, { name = "hour", limit = "50000/1h token_bucket" } ]
[[rules]]
name = "trial"
count_by = ["user"]
action = "log_only"
cost = { meter = "llm.output_tokens" }
limits = [ { name = "trial", limit = "500/1m fixed_window" } ]
`

// used returns what is used of all limits of tokens by alice.
func used(tb testing.TB, e *engine.Engine) string {
	tb.Helper()
	return strings.TrimSpace(taken(tb, e, "requests", "minute", "hour", "trial"))
}

func reserve(tb testing.TB, e *engine.Engine, q engine.Request) *engine.Reservation {
	tb.Helper()
	v, r, err := e.Reserve(tb.Context(), q)
	if err != nil || r == nil {
		tb.Fatalf("%s: no reservation, %v", summary(v), err)
	}
	return r
}

// TestReserve settles reservations of several meters: what is charged afterwards is what was used.
func TestReserve(t *testing.T) {
	t.Parallel()
	type meters = map[rule.Meter]int64
	const total, output = "llm.total_tokens", "llm.output_tokens"
	for name, c := range map[string]struct {
		request          func(q *engine.Request)
		reserved         string
		settle           func(e *engine.Engine, r *engine.Reservation) (engine.Receipt, error)
		left             string // what is charged afterwards
		overshoot, given int64
	}{
		"less is used": {nil, "1 100 100 1", func(e *engine.Engine, r *engine.Reservation) (engine.Receipt, error) {
			return e.Commit(t.Context(), r, engine.Usage{Meters: meters{total: 40, output: 1}})
		}, "1 40 40 1", 0, 120},
		"more is used": {nil, "1 100 100 1", func(e *engine.Engine, r *engine.Reservation) (engine.Receipt, error) {
			return e.Commit(t.Context(), r, engine.Usage{Meters: meters{total: 150, output: 51}})
		}, "1 150 150 51", 150, 0},
		"more than max": {nil, "1 100 100 1", func(e *engine.Engine, r *engine.Reservation) (engine.Receipt, error) {
			return e.Commit(t.Context(), r, engine.Usage{Meters: meters{total: 1 << 60, output: 1}})
		}, "1 1000 5000", 9800, 0},
		"one meter is not told": {nil, "1 100 100 1", func(e *engine.Engine, r *engine.Reservation) (engine.Receipt, error) {
			return e.Commit(t.Context(), r, engine.Usage{Meters: meters{output: 5}})
		}, "1 100 100 5", 4, 0},
		"one number": {func(q *engine.Request) { q.Cost = 300 }, "1 300 300 300", func(e *engine.Engine, r *engine.Reservation) (engine.Receipt, error) {
			return e.Commit(t.Context(), r, engine.Usage{Cost: 30})
		}, "1 30 30 30", 0, 810},
		"by meter": {func(q *engine.Request) { q.Usage = meters{total: 200} }, "1 200 200 1", func(e *engine.Engine, r *engine.Reservation) (engine.Receipt, error) {
			return e.Commit(t.Context(), r, engine.Usage{})
		}, "1 0 0 0", 0, 401},
		"cancelled": {nil, "1 100 100 1", func(e *engine.Engine, r *engine.Reservation) (engine.Receipt, error) {
			return e.Cancel(t.Context(), r)
		}, "0 0 0 0", 0, 202},
		"extended": {nil, "1 100 100 1", func(e *engine.Engine, r *engine.Reservation) (engine.Receipt, error) {
			if x, err := e.Extend(t.Context(), r, engine.Usage{Meters: meters{total: 200}}); err != nil || !x.Allowed {
				t.Errorf("the extension: %+v, %v", x, err)
			}
			if got, want := used(t, e), "1 300 300 1"; got != want {
				t.Errorf("extended: %s is used, want %s", got, want)
			}
			return e.Commit(t.Context(), r, engine.Usage{Meters: meters{total: 50}})
		}, "1 50 50 1", 0, 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := storetest.NewClock()
			e := start(t, tokens, engine.Options{Now: clock.Now})
			q := from("alice", "POST", "/v1/chat/completions")
			if c.request != nil {
				c.request(&q)
			}
			r := reserve(t, e, q)
			if got := used(t, e); got != c.reserved {
				t.Errorf("%s is reserved, want %s", got, c.reserved)
			}
			for i := range 3 {
				receipt, err := c.settle(e, r)
				if err != nil {
					t.Fatal(err)
				}
				if receipt.Repeated != (i > 0) {
					t.Errorf("settlement %d: repeated is %t", i+1, receipt.Repeated)
				}
				var overshoot, given int64
				for _, l := range receipt.Limits {
					overshoot, given = overshoot+max(l.Used-l.Reserved, 0), given+max(l.Reserved-l.Used, 0)
				}
				if i == 0 && (overshoot != c.overshoot || given != c.given) {
					t.Errorf("overshoot %d, given back %d, want %d and %d", overshoot, given, c.overshoot, c.given)
				}
				if name == "extended" {
					break // each would extend it
				}
			}
			if _, err := e.Cancel(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if got := used(t, e); got != c.left {
				t.Errorf("%s is used, want %s", got, c.left)
			}
		})
	}
}

// book notes what a ledger is told.
type book []string

func (b *book) Reserved(rule string, m rule.Meter, units int64) {
	*b = append(*b, fmt.Sprintf("%s %s %d reserved", rule, m, units))
}

func (b *book) Settled(r *engine.Receipt, cancelled bool) {
	note := fmt.Sprintf("cancelled %t repeated %t:", cancelled, r.Repeated)
	for _, l := range r.Limits {
		note += fmt.Sprintf(" %s %d of %d", l.Name, l.Used, l.Reserved)
	}
	*b = append(*b, note)
}

// TestLedger is told of reservations by rule, and of all settlements.
func TestLedger(t *testing.T) {
	t.Parallel()
	var b book
	e := start(t, tokens, engine.Options{Now: storetest.NewClock().Now, Ledger: &b})
	r := reserve(t, e, from("alice", "POST", "/"))
	denied := from("alice", "POST", "/")
	denied.Cost = 1001
	if _, none, err := e.Reserve(t.Context(), denied); none != nil || err != nil {
		t.Fatal(none, err)
	}
	for _, more := range []int64{50, 1000} { // of which the second is denied
		if _, err := e.Extend(t.Context(), r, engine.Usage{Cost: more}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := e.Commit(t.Context(), r, engine.Usage{Cost: 70}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.Cancel(t.Context(), reserve(t, e, from("bob", "POST", "/"))); err != nil {
		t.Fatal(err)
	}
	const reserved = "requests  1 reserved, tokens llm.total_tokens 100 reserved, trial llm.output_tokens 1 reserved, "
	want := reserved + "tokens llm.total_tokens 50 reserved, " +
		"cancelled false repeated false: requests 1 of 1 minute 70 of 150 hour 70 of 150 trial 70 of 1, " +
		"cancelled false repeated true: requests 1 of 1 minute 70 of 150 hour 70 of 150 trial 70 of 1, " +
		reserved + "cancelled true repeated false: requests 0 of 1 minute 0 of 100 hour 0 of 100 trial 0 of 1"
	if got := strings.Join(b, ", "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestReserveDenied gives no reservation if one limit does not suffice, and no extension; then nothing is charged.
func TestReserveDenied(t *testing.T) {
	t.Parallel()
	e := start(t, tokens, engine.Options{Now: storetest.NewClock().Now})
	q := from("alice", "POST", "/")
	q.Cost = 1001
	v, r, err := e.Reserve(t.Context(), q)
	if err != nil || r != nil || v.Outcome != engine.Denied || v.RetryAfter != stint.Never {
		t.Errorf("more than the limit: %s, %v, %v", summary(v), r, err)
	}
	q.Cost = 600
	r = reserve(t, e, q)
	x, err := e.Extend(t.Context(), r, engine.Usage{Meters: map[rule.Meter]int64{"llm.total_tokens": 401}})
	if err != nil || x.Allowed || x.RetryAfter <= 0 {
		t.Errorf("401 more of 400: %+v, %v", x, err)
	}
	if got, want := used(t, e), "1 600 600 0"; got != want {
		t.Errorf("%s is used, want %s", got, want)
	}
	for _, u := range []engine.Usage{{Cost: -1}, {Meters: map[rule.Meter]int64{"llm.total_tokens": -1}}} {
		if _, err := e.Commit(t.Context(), r, u); !errors.As(err, new(*stint.InvalidError)) {
			t.Errorf("%+v: %v", u, err)
		}
	}
}

// TestPlainReserve settles the cost of rules that have no meter.
func TestPlainReserve(t *testing.T) {
	t.Parallel()
	e := start(t, strings.Split(tokens, "[[rules]]\nname = \"tokens\"")[0], engine.Options{Now: storetest.NewClock().Now})
	q := from("alice", "POST", "/")
	q.Cost = 8
	if _, err := e.Commit(t.Context(), reserve(t, e, q), engine.Usage{Cost: 3}); err != nil {
		t.Fatal(err)
	}
	if got := used(t, e); got != "3" {
		t.Errorf("%s is used, want 3", got)
	}
}

func newTickets(tb testing.TB, now func() time.Time, keys ...string) *engine.Tickets {
	tb.Helper()
	var all [][]byte
	for _, k := range keys {
		all = append(all, []byte(strings.Repeat(k, 32)))
	}
	tickets, err := engine.NewTickets(now, all...)
	if err != nil {
		tb.Fatal(err)
	}
	return tickets
}

// TestTickets settles a reservation on another node by its ticket, a hundred times at once: it is applied once.
func TestTickets(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	store := newStore(t, clock.Now)
	first, second := start(t, tokens, engine.Options{Store: store, Now: clock.Now}), start(t, tokens, engine.Options{Store: store, Now: clock.Now})
	text, err := newTickets(t, clock.Now, "a").Seal(reserve(t, first, from("alice", "POST", "/")), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, "alice") || len(text) > 700 {
		t.Errorf("the ticket has %d bytes: %s", len(text), text)
	}
	var wait sync.WaitGroup
	var applied atomic.Int64
	for range 100 {
		wait.Go(func() {
			r, err := newTickets(t, clock.Now, "b", "a").Open(text)
			if err != nil {
				t.Error(err)
				return
			}
			receipt, err := second.Commit(t.Context(), r, engine.Usage{Cost: 70})
			if err != nil {
				t.Error(err)
			}
			if !receipt.Repeated {
				applied.Add(1)
			}
		})
	}
	wait.Wait()
	if n := applied.Load(); n != 1 {
		t.Errorf("applied %d times", n)
	}
	if got, want := used(t, first), "1 70 70 70"; got != want {
		t.Errorf("%s is used, want %s", got, want)
	}
}

// TestPayer has on the receipt who has reserved, which model was used, and whether that is an estimate, also if
// another node settles the ticket.
func TestPayer(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	store := newStore(t, clock.Now)
	first, second := start(t, tokens, engine.Options{Store: store, Now: clock.Now}), start(t, tokens, engine.Options{Store: store, Now: clock.Now})
	who := identity.Subject{User: "alice", Tenant: "acme", Key: "k1", Tier: "pro"}
	tickets := newTickets(t, clock.Now, "a")
	for _, other := range []bool{false, true} {
		r, at := reserve(t, first, engine.Request{Subject: &who, Method: "POST", Path: "/"}), first
		if other {
			text, err := tickets.Seal(r, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if r, err = tickets.Open(text); err != nil {
				t.Fatal(err)
			}
			at = second
		}
		receipt, err := at.Commit(t.Context(), r, engine.Usage{Cost: 7, Model: "gpt", Estimated: true})
		if err != nil {
			t.Fatal(err)
		}
		if want := (engine.Payer{User: "alice", Tenant: "acme", Key: "k1", Tier: "pro"}); receipt.Payer != want || receipt.Model != "gpt" || !receipt.Estimated {
			t.Errorf("another node %t: %+v %q %t", other, receipt.Payer, receipt.Model, receipt.Estimated)
		}
		var rules []string
		for s := range receipt.Rules() {
			rules = append(rules, fmt.Sprintf("%s %s %d", s.Rule, s.Meter, s.Used))
		}
		if got, want := strings.Join(rules, ", "), "requests  1, tokens llm.total_tokens 7, trial llm.output_tokens 7"; got != want {
			t.Errorf("another node %t: %s, want %s", other, got, want)
		}
	}
}

// TestBadTickets rejects what is not a ticket of this cluster, and what has expired.
func TestBadTickets(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	e := start(t, tokens, engine.Options{Now: clock.Now})
	tickets := newTickets(t, clock.Now, "a")
	text, err := tickets.Seal(reserve(t, e, from("alice", "POST", "/")), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	later := newTickets(t, func() time.Time { return clock.Now().Add(time.Minute) }, "a")
	if _, err := later.Open(text); fmt.Sprint(err) != "ticket: it has expired" {
		t.Errorf("expired: %v", err)
	}
	bad := []string{"", "x", text + "A", text + "\n", "\r\n" + text, text[:9] + "\n" + text[9:], text[1:], text[:len(text)-4], strings.Repeat("A", engine.MaxTicket+4)}
	for i := range text {
		b := []byte(text)
		b[i] ^= 1
		bad = append(bad, string(b))
	}
	for _, b := range bad {
		if r, err := tickets.Open(b); r != nil || !errors.As(err, new(*engine.TicketError)) {
			t.Fatalf("%q: %v", b, err)
		}
	}
	if _, err := newTickets(t, clock.Now, "b").Open(text); !errors.As(err, new(*engine.TicketError)) {
		t.Errorf("a ticket of another cluster: %v", err)
	}
	if _, err := engine.NewTickets(nil, []byte("short")); err == nil {
		t.Error("a key of 5 bytes is accepted")
	}
}

// TestTicketTooLong says so, if a ticket would be longer than it may be.
func TestTicketTooLong(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	e := start(t, tokens, engine.Options{Now: clock.Now})
	r := reserve(t, e, from("alice", "POST", "/"))
	for n := 0; ; n++ {
		_, err := newTickets(t, clock.Now, "a").Seal(r, time.Minute)
		if err != nil && n > 10 && strings.Contains(err.Error(), "extended too often") {
			return
		}
		if err != nil || n > 1000 {
			t.Fatalf("after %d extensions: %v", n, err)
		}
		if x, err := e.Extend(t.Context(), r, engine.Usage{Cost: 1}); err != nil || !x.Allowed {
			t.Fatal(x, err)
		}
	}
}

// TestTicketOfChangedRule settles what was reserved under a rule that has changed since, or is gone.
func TestTicketOfChangedRule(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	e := start(t, tokens, engine.Options{Now: clock.Now})
	tickets := newTickets(t, clock.Now, "a")
	text, err := tickets.Seal(reserve(t, e, from("alice", "POST", "/")), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	old := e.Rules()
	if err := e.Use(compile(t, `
[[rules]]
name = "other"
limits = [ { name = "other", limit = "1/1h" } ]
`), e.Identity()); err != nil {
		t.Fatal(err)
	}
	r, err := tickets.Open(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Commit(t.Context(), r, engine.Usage{Cost: 7}); err != nil {
		t.Fatal(err)
	}
	if err := e.Use(old, e.Identity()); err != nil {
		t.Fatal(err)
	}
	if got, want := used(t, e), "1 7 7 7"; got != want {
		t.Errorf("%s is used, want %s", got, want)
	}
}

// FuzzTicket opens any text.
func FuzzTicket(f *testing.F) {
	f.Add("AAAA")
	tickets := newTickets(f, nil, "a")
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := tickets.Open(text); (r == nil) == (err == nil) {
			t.Fatal(r, err)
		}
	})
}

// TestSettledIsUsed has requests reserve, extend, commit and cancel at random: what is counted is the sum of what
// was used, and of what is still reserved.
func TestSettledIsUsed(t *testing.T) {
	t.Parallel()
	rules := compile(t, `
[[rules]]
name = "tokens"
count_by = ["user"]
cost = { meter = "response_bytes", reserve = 10 }
limits = [ { name = "all", limit = "10000/1h sliding_log" } ]
`)
	who := resolver(t, identity.Options{})
	rapid.Check(t, func(t *rapid.T) {
		clock := storetest.NewClock()
		store, err := memstore.New(memstore.Options{Now: clock.Now})
		if err != nil {
			t.Fatal(err)
		}
		e, err := engine.New(engine.Options{Store: store, Rules: rules, Identity: who, Now: clock.Now})
		if err != nil {
			t.Fatal(err)
		}
		var open []*engine.Reservation
		held := map[*engine.Reservation]int64{}
		var sum int64
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			clock.Add(time.Duration(rapid.IntRange(0, 1000).Draw(t, "ms")) * time.Millisecond)
			q := from("alice", "POST", "/")
			q.Cost = rapid.Int64Range(1, 300).Draw(t, "cost")
			switch step := rapid.SampledFrom([]string{"reserve", "extend", "commit", "cancel"}).Draw(t, "step"); {
			case step == "reserve" || len(open) == 0:
				_, r, err := e.Reserve(t.Context(), q)
				if err != nil || r == nil {
					t.Fatal(err)
				}
				open, held[r] = append(open, r), q.Cost
			case step == "extend":
				r := rapid.SampledFrom(open).Draw(t, "of")
				if _, err := e.Extend(t.Context(), r, engine.Usage{Cost: q.Cost}); err != nil {
					t.Fatal(err)
				}
				held[r] += q.Cost
			default:
				i := rapid.IntRange(0, len(open)-1).Draw(t, "of")
				r, used := open[i], int64(0)
				if step == "commit" {
					used = q.Cost
					_, err = e.Commit(t.Context(), r, engine.Usage{Cost: used})
				} else {
					_, err = e.Cancel(t.Context(), r)
				}
				if err != nil {
					t.Fatal(err)
				}
				sum += used
				delete(held, r)
				open = append(open[:i:i], open[i+1:]...)
			}
		}
		for _, n := range held {
			sum += n
		}
		v, err := e.Peek(t.Context(), from("alice", "POST", "/"))
		if err != nil {
			t.Fatal(err)
		}
		if d := v.Limits[0].Decision; d.Limit-d.Remaining != sum {
			t.Fatalf("%d is counted, want %d", d.Limit-d.Remaining, sum)
		}
	})
}
