package record_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/rule"
)

var settledAt = time.Date(2026, 10, 31, 12, 34, 56, 0, time.UTC)

// settled is a limit of a receipt.
func settled(rule string, meter rule.Meter, reserved, used int64) engine.Settled {
	return engine.Settled{Rule: rule, Name: "hour", Meter: meter, Reserved: reserved, Used: used}
}

// receiptOf is a receipt of alice of acme.
func receiptOf(model string, limits ...engine.Settled) *engine.Receipt {
	return &engine.Receipt{Payer: engine.Payer{User: "alice", Tenant: "acme", Key: "k1", Tier: "pro"}, Model: model, Limits: limits}
}

// shelf keeps what books write, and fails if it has to.
type shelf struct {
	mu     sync.Mutex
	err    error
	ids    []string
	stored map[record.Account]record.Units
}

func (s *shelf) add(_ context.Context, id string, entries []record.Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids = append(s.ids, id)
	if s.err != nil {
		return s.err
	}
	for _, e := range entries {
		if s.stored == nil {
			s.stored = map[record.Account]record.Units{}
		}
		if _, twice := s.stored[e.Account]; twice {
			return fmt.Errorf("%+v is written twice", e.Account)
		}
		s.stored[e.Account] = e.Units
	}
	return nil
}

// String has a line for each account.
func (s *shelf) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []string
	for a, u := range s.stored {
		shadow := ""
		if a.Shadow {
			shadow = " shadow"
		}
		lines = append(lines, fmt.Sprintf("%s %q %s%s %s/%s/%s %s: %d requests, reserved %d, used %d, given back %d, overshoot %d, estimated %d", a.Start.Format("15:04"), a.Rule, a.Meter, shadow,
			a.Tenant, a.User, a.Key, a.Model, u.Requests, u.Reserved, u.Used, u.GivenBack, u.Overshoot, u.Estimated))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func newBook(tb testing.TB, o record.BookOptions) *record.Book {
	tb.Helper()
	b, err := record.NewBook(o)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func flush(tb testing.TB, b *record.Book) {
	tb.Helper()
	if err := b.Flush(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// TestBook adds up what was used: a rule counts once for a request, whatever its limits, and all rules of a meter
// together, too.
func TestBook(t *testing.T) {
	t.Parallel()
	var s shelf
	now := settledAt
	b := newBook(t, record.BookOptions{Add: s.add, Now: func() time.Time { return now }})
	const total, output = "llm.total_tokens", "llm.output_tokens"
	place := settled("tokens", total, 1, 0)
	place.Limit = stint.Limit{Algorithm: stint.Concurrency}
	trial := settled("trial", total, 1, 90)
	trial.Shadow = true
	b.Reserved("tokens", total, 1000)
	r := receiptOf("gpt", settled("requests", "", 1, 1), place, settled("tokens", total, 100, 70), settled("tokens", total, 100, 70), settled("month", total, 10, 60), settled("answers", output, 1, 5), trial)
	b.Settled(r, false)
	r.Repeated = true
	b.Settled(r, false)
	r.Repeated, r.Estimated = false, true
	b.Settled(r, false)
	b.Settled(receiptOf("", settled("tokens", total, 100, 0)), true)
	now = now.Add(time.Hour)
	b.Settled(receiptOf("bad\x00\xff"+strings.Repeat("x", 500), settled("tokens", total, 1<<60, 1<<62)), false)
	flush(t, b)
	flush(t, b)
	want := `12:00 "" llm.output_tokens acme/alice/k1 gpt: 2 requests, reserved 2, used 10, given back 0, overshoot 8, estimated 5
12:00 "" llm.total_tokens acme/alice/k1 : 0 requests, reserved 100, used 0, given back 100, overshoot 0, estimated 0
12:00 "" llm.total_tokens acme/alice/k1 gpt: 2 requests, reserved 200, used 140, given back 60, overshoot 0, estimated 70
12:00 "" llm.total_tokens shadow acme/alice/k1 gpt: 2 requests, reserved 2, used 180, given back 0, overshoot 178, estimated 90
12:00 "answers" llm.output_tokens acme/alice/k1 gpt: 2 requests, reserved 2, used 10, given back 0, overshoot 8, estimated 5
12:00 "month" llm.total_tokens acme/alice/k1 gpt: 2 requests, reserved 20, used 120, given back 0, overshoot 100, estimated 60
12:00 "tokens" llm.total_tokens acme/alice/k1 : 0 requests, reserved 100, used 0, given back 100, overshoot 0, estimated 0
12:00 "tokens" llm.total_tokens acme/alice/k1 gpt: 2 requests, reserved 200, used 140, given back 60, overshoot 0, estimated 70
12:00 "trial" llm.total_tokens shadow acme/alice/k1 gpt: 2 requests, reserved 2, used 180, given back 0, overshoot 178, estimated 90
`
	long := "bad\uFFFD\uFFFD" + strings.Repeat("x", 255-5)
	for _, rule := range []string{`""`, `"tokens"`} {
		want += fmt.Sprintf("13:00 %s llm.total_tokens acme/alice/k1 %s: 1 requests, reserved 9007199254740991, used 9007199254740991, given back 0, overshoot 9007199254740991, estimated 0\n", rule, long)
	}
	if got := s.String() + "\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestBookBound counts what is beyond the bound as other, and loses nothing.
func TestBookBound(t *testing.T) {
	t.Parallel()
	var s shelf
	b := newBook(t, record.BookOptions{Add: s.add, MaxAccounts: 6, Now: func() time.Time { return settledAt }})
	const users = 30
	for i := range users {
		r := receiptOf("gpt", settled("tokens", "llm.total_tokens", 1, 10))
		r.Payer = engine.Payer{User: fmt.Sprint("u", i), Tenant: fmt.Sprint("t", i)}
		b.Settled(r, false)
	}
	if got := b.State(); got.Waiting != 14 || got.Other != 2*(users-3) {
		t.Errorf("%+v", got)
	}
	flush(t, b)
	var used, other int64
	for a, u := range s.stored {
		if a.Rule == "" {
			used += u.Used
		}
		if a.Rule == "" && a.User == record.Other {
			other += u.Used
		}
	}
	if used != users*10 || other != (users-3)*10 {
		t.Errorf("%d were used, of which %d by others", used, other)
	}
	if everyone := s.stored[record.Account{Start: settledAt.Truncate(time.Hour), Rule: "tokens", Meter: "llm.total_tokens", Tenant: "other", User: "other", Key: "other", Model: "other"}]; everyone.Used != 240 {
		t.Errorf("other tenants: %+v", everyone)
	}
	if got := b.State(); got.Waiting != 0 || got.Other != 2*(users-3) {
		t.Errorf("afterwards: %+v", got)
	}
}

// TestBookKeeps keeps what cannot be written, and writes it later under the same id.
func TestBookKeeps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := shelf{err: errors.New("the database is down")}
		b := newBook(t, record.BookOptions{Add: s.add})
		b.Start(t.Context())
		began := time.Now()
		b.Settled(receiptOf("gpt", settled("tokens", "llm.total_tokens", 100, 70)), false)
		pass(time.Minute)
		if got := b.State(); got.Waiting != 2 || got.Problem != "the database is down" || got.Since.Sub(began) != 5*time.Second {
			t.Errorf("%+v", got)
		}
		if ids := slices.Compact(slices.Clone(s.ids)); len(ids) != 1 || len(s.ids) < 11 {
			t.Errorf("it was tried under %q", s.ids)
		}
		b.Settled(receiptOf("other", settled("tokens", "llm.total_tokens", 1, 2)), false)
		s.mu.Lock()
		s.err = nil
		s.mu.Unlock()
		if err := b.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if len(s.stored) != 4 || len(slices.Compact(s.ids)) != 2 {
			t.Errorf("under %q:\n%s", s.ids, &s)
		}
		if got := b.State(); got != (record.BookState{}) {
			t.Errorf("%+v", got)
		}
	})
}

// notes keeps what books settle, and fails if it has to.
type notes struct {
	mu  sync.Mutex
	err error
	all []record.Settlement
}

func (n *notes) settle(_ context.Context, all []record.Settlement) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err == nil {
		n.all = append(n.all, all...)
	}
	return n.err
}

// String has a line for each settlement.
func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var lines []string
	for _, s := range n.all {
		lines = append(lines, fmt.Sprintf("%d %q %q %d of %d %q, shadow %t, estimated %t, cancelled %t, %s", number(s.Event), s.Rule, s.Meter, s.Used, s.Reserved, s.Model, s.Shadow, s.Estimated, s.Cancelled, s.At.Format("15:04:05.999999999")))
	}
	return strings.Join(lines, "\n")
}

// TestBookSettles stores each settlement of an event that is recorded, by rule, and once.
func TestBookSettles(t *testing.T) {
	t.Parallel()
	var n notes
	r := newRecorder(t, record.RecorderOptions{Sample: 0.5})
	b := newBook(t, record.BookOptions{Add: new(shelf).add, Settle: n.settle, Keeps: r.Keeps, Now: func() time.Time { return settledAt.Add(1234 * time.Nanosecond) }})
	at := func(id int, receipt *engine.Receipt) *engine.Receipt {
		receipt.ID = numbered(id)
		return receipt
	}
	trial := settled("trial", "", 1, 0)
	trial.Shadow = true
	first := at(1, receiptOf("gpt\x00", settled("requests", "", 1, 1), settled("tokens", tokens, 100, 70), settled("tokens", tokens, 100, 70), trial))
	first.Estimated = true
	b.Settled(first, false)
	first.Repeated = true
	b.Settled(first, false)
	b.Settled(at(2, receiptOf("", settled("tokens", tokens, 1<<60, 1<<61))), true)
	other := at(3, receiptOf("gpt", settled("tokens", tokens, 100, 70)))
	other.ID[8] = 0x20 // in the second half of the sample
	b.Settled(other, false)
	other.ID, other.Notable = numbered(4), true
	other.ID[8] = 0x20
	b.Settled(other, false)
	flush(t, b)
	flush(t, b)
	const want = `1 "requests" "" 1 of 1 "gpt\uFFFD", shadow false, estimated true, cancelled false, 12:34:56.000001
1 "tokens" "llm.total_tokens" 70 of 100 "gpt\uFFFD", shadow false, estimated true, cancelled false, 12:34:56.000001
1 "trial" "" 0 of 1 "gpt\uFFFD", shadow true, estimated true, cancelled false, 12:34:56.000001
2 "tokens" "llm.total_tokens" 9007199254740991 of 9007199254740991 "", shadow false, estimated false, cancelled true, 12:34:56.000001
4 "tokens" "llm.total_tokens" 70 of 100 "gpt", shadow false, estimated false, cancelled false, 12:34:56.000001`
	if got := strings.ReplaceAll(n.String(), "\uFFFD", `\uFFFD`); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := b.State(); got.Settled != 5 || got.Dropped != 0 {
		t.Errorf("%+v", got)
	}
}

// TestBookSettlesLater keeps settlements that cannot be written, up to a number, and writes them later.
func TestBookSettlesLater(t *testing.T) {
	t.Parallel()
	n := notes{err: errors.New("the database is down")}
	add := func(context.Context, string, []record.Entry) error { return nil }
	b := newBook(t, record.BookOptions{Add: add, Settle: n.settle, Keeps: func(*engine.Receipt) bool { return true }, MaxSettlements: 3})
	settle := func() {
		b.Settled(receiptOf("gpt", settled("tokens", tokens, 100, 70), settled("answers", tokens, 100, 70)), false)
	}
	settle()
	for range 2 {
		if err := b.Flush(t.Context()); err == nil {
			t.Error("no error")
		}
	}
	for range 3 {
		settle()
	}
	if got := b.State(); got.Settled != 0 || got.Dropped != 3 || got.Problem == "" {
		t.Errorf("%+v", got)
	}
	n.err = nil
	flush(t, b)
	if got := b.State(); got.Settled != 5 || got.Dropped != 3 || got.Problem != "" || len(n.all) != 5 {
		t.Errorf("%+v, and %d are stored", got, len(n.all))
	}
}

// TestBadBook rejects settings.
func TestBadBook(t *testing.T) {
	t.Parallel()
	add := new(shelf).add
	for field, o := range map[string]record.BookOptions{"Add": {}, "Interval": {Add: add, Interval: -1}, "MaxAccounts": {Add: add, MaxAccounts: -1}, "MaxSettlements": {Add: add, MaxSettlements: -1}, "Keeps": {Add: add, Settle: new(notes).settle}} {
		invalid := new(stint.InvalidError)
		if _, err := record.NewBook(o); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
