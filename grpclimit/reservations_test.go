package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/grpclimit"
	"github.com/stintdev/stint/grpclimit/stintpb"
	"github.com/stintdev/stint/identity"
)

const reserveRules = `
	[[rules]]
	name     = "requests"
	count_by = ["user"]
	limits   = [ { name = "requests", limit = "5/1h fixed_window" } ]
	[[rules]]
	name     = "tokens"
	count_by = ["user"]
	cost     = { meter = "llm.total_tokens", reserve = 500 }
	limits   = [ { name = "tokens", limit = "1000/1h fixed_window" } ]
`

// reservations is a client of the service, and what is behind it.
type reservations struct {
	stintpb.ReservationsClient
	world
	tickets *engine.Tickets
}

func reservationsOf(t *testing.T, onError func(context.Context, string, error) error) reservations {
	t.Helper()
	w := worldOf(t, reserveRules, identity.Options{})
	tickets, err := engine.NewTickets(w.clock.Now, []byte(strings.Repeat("k", 32)))
	if err != nil {
		t.Fatal(err)
	}
	s, err := grpclimit.NewReservations(grpclimit.ReservationsOptions{Engine: w.Engine, Tickets: tickets, OnError: onError})
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	s.Register(server)
	return reservations{stintpb.NewReservationsClient(dial(t, start(t, server))), w, tickets}
}

func alice() *stintpb.Request {
	return &stintpb.Request{Method: "POST", Path: "/v1/chat/completions", User: "alice"}
}

func tokens(n int64) *stintpb.Usage {
	return &stintpb.Usage{Meters: map[string]int64{"llm.total_tokens": n}}
}

// left returns what remains of alice's tokens and requests.
func (r *reservations) left(t *testing.T) string {
	t.Helper()
	v, err := r.Peek(t.Context(), engine.Request{Method: "POST", Path: "/v1/chat/completions", Subject: &identity.Subject{User: "alice"}})
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]int64{}
	for i := range v.Limits {
		left[v.Limits[i].Name] = v.Limits[i].Decision.Remaining
	}
	return fmt.Sprint(left["requests"], " ", left["tokens"])
}

func (r *reservations) leaves(t *testing.T, want string) {
	t.Helper()
	if got := r.left(t); got != want {
		t.Errorf("%s requests and tokens are left, want %s", got, want)
	}
}

// must fails the test if a call has failed.
func must[M any](t *testing.T) func(M, error) M {
	t.Helper()
	return func(m M, err error) M {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
}

// TestReservations reserves, extends, commits, again, and cancels.
func TestReservations(t *testing.T) {
	t.Parallel()
	r := reservationsOf(t, nil)
	reserved := must[*stintpb.Reserved](t)(r.Reserve(t.Context(), &stintpb.ReserveRequest{Request: alice(), Usage: tokens(600), ExpiresIn: 60}))
	v := reserved.GetVerdict()
	if !v.GetAllowed() || v.GetOutcome() != "allowed" || v.GetDecisionId() == "" || reserved.GetExpiresIn() != 60 || v.RetryAfter == nil || v.GetRetryAfter() != 0 {
		t.Errorf("%v", reserved)
	}
	r.leaves(t, "4 400")

	more := must[*stintpb.Extended](t)(r.Extend(t.Context(), &stintpb.ExtendRequest{Ticket: reserved.GetTicket(), Usage: tokens(300)}))
	if !more.GetAllowed() || more.GetExpiresIn() != 600 || more.GetLimits()[0].GetReserved() != 900 || more.GetLimits()[0].GetRemaining() != 100 {
		t.Errorf("%v", more)
	}
	// That there is no more is an answer, and no error.
	over := must[*stintpb.Extended](t)(r.Extend(t.Context(), &stintpb.ExtendRequest{Ticket: more.GetTicket(), Usage: tokens(300)}))
	if over.GetAllowed() || over.GetRetryAfter() <= 0 || over.GetTicket() == "" {
		t.Errorf("%v", over)
	}
	for i, repeated := range []bool{false, true} {
		receipt := must[*stintpb.Receipt](t)(r.Commit(t.Context(), &stintpb.CommitRequest{Ticket: over.GetTicket(), Usage: tokens(950), Model: "large"}))
		l := receipt.GetLimits()[slices.IndexFunc(receipt.GetLimits(), func(l *stintpb.SettledLimit) bool { return l.GetName() == "tokens" })]
		if receipt.GetRepeated() != repeated || receipt.GetDecisionId() != v.GetDecisionId() || l.GetReserved() != 900 || l.GetMeter() != "llm.total_tokens" || (l.Used == nil) != repeated ||
			!repeated && l.GetUsed() != 950 {
			t.Errorf("commit %d: %v", i, receipt)
		}
		r.leaves(t, "4 50")
	}

	denied := must[*stintpb.Reserved](t)(r.Reserve(t.Context(), &stintpb.ReserveRequest{Request: alice()}))
	if v := denied.GetVerdict(); v.GetAllowed() || v.GetOutcome() != "denied" || v.GetRule() != "tokens" || v.GetStatus() != 429 || v.GetReason() == "" || v.GetRetryAfter() <= 0 || denied.GetTicket() != "" || denied.GetExpiresIn() != 0 {
		t.Errorf("%v", denied)
	}
	never := must[*stintpb.Reserved](t)(r.Reserve(t.Context(), &stintpb.ReserveRequest{Request: alice(), Usage: tokens(1001)}))
	if never.GetVerdict().GetAllowed() || never.GetVerdict().RetryAfter != nil {
		t.Errorf("%v: want no time to retry", never)
	}

	again := must[*stintpb.Reserved](t)(r.Reserve(t.Context(), &stintpb.ReserveRequest{Request: alice(), Usage: tokens(50)}))
	r.leaves(t, "3 0")
	must[*stintpb.Receipt](t)(r.Cancel(t.Context(), &stintpb.CancelRequest{Ticket: again.GetTicket()}))
	r.leaves(t, "4 50")

	peek := must[*stintpb.Verdict](t)(r.Check(t.Context(), &stintpb.CheckRequest{Request: alice(), Cost: 20, Peek: true}))
	check := must[*stintpb.Verdict](t)(r.Check(t.Context(), &stintpb.CheckRequest{Request: alice(), Cost: 20}))
	if !peek.GetAllowed() || !check.GetAllowed() {
		t.Errorf("%v, %v", peek, check)
	}
	r.leaves(t, "3 30")
}

// TestBadReservations rejects what HTTP rejects, with the place and what would be right, and changes nothing.
func TestBadReservations(t *testing.T) {
	t.Parallel()
	r := reservationsOf(t, nil)
	ticket := must[*stintpb.Reserved](t)(r.Reserve(t.Context(), &stintpb.ReserveRequest{Request: alice(), Usage: tokens(600), ExpiresIn: 60})).GetTicket()
	other, err := engine.NewTickets(r.clock.Now, []byte(strings.Repeat("x", 32)))
	if err != nil {
		t.Fatal(err)
	}
	_, reservation, err := r.Engine.Reserve(t.Context(), engine.Request{Method: "GET", Path: "/", Subject: &identity.Subject{User: "bob"}})
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.Seal(reservation, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	reserve := func(q *stintpb.ReserveRequest) func(context.Context) error {
		return func(ctx context.Context) error { _, err := r.Reserve(ctx, q); return err }
	}
	request := func(change func(*stintpb.Request)) func(context.Context) error {
		q := alice()
		change(q)
		return reserve(&stintpb.ReserveRequest{Request: q})
	}
	commit := func(ticket string, u *stintpb.Usage, model string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := r.Commit(ctx, &stintpb.CommitRequest{Ticket: ticket, Usage: u, Model: model})
			return err
		}
	}
	cancel := func(ticket string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := r.Cancel(ctx, &stintpb.CancelRequest{Ticket: ticket})
			return err
		}
	}
	extend := func(x *stintpb.ExtendRequest) func(context.Context) error {
		return func(ctx context.Context) error { _, err := r.Extend(ctx, x); return err }
	}
	many := &stintpb.Usage{Meters: map[string]int64{}}
	for i := range 17 {
		many.Meters[fmt.Sprint("header:X-", i)] = 1
	}
	bad := []struct {
		want string
		call func(context.Context) error
	}{
		{"request.path: want the path", reserve(&stintpb.ReserveRequest{})},
		{`request.path: want a path that begins with a slash, such as /search, found "x"`, request(func(q *stintpb.Request) { q.Path = "x" })},
		{`request.method: want a method in upper case, such as GET, found "post"`, request(func(q *stintpb.Request) { q.Method = "post" })},
		{`request.ip: want an address, such as 192.0.2.1 or 2001:db8::1, found "x"`, request(func(q *stintpb.Request) { q.Ip = "x" })},
		{"request.user: want at most 255 bytes", request(func(q *stintpb.Request) { q.User = strings.Repeat("u", 256) })},
		{"request.tier: want at most 255 bytes", request(func(q *stintpb.Request) { q.Tier = "\n" })},
		{`request.headers: "X-A": want it only once`, request(func(q *stintpb.Request) { q.Headers = []*stintpb.Header{{Name: "x-a"}, {Name: "X-A"}} })},
		{"path", request(func(q *stintpb.Request) { q.Path = "/" + strings.Repeat("p", 1<<16) })},
		{"usage.cost: want a whole number from 1 to 9007199254740991, found 0", reserve(&stintpb.ReserveRequest{Request: alice(), Usage: &stintpb.Usage{Cost: proto.Int64(0)}})},
		{"usage: want either cost or meters", reserve(&stintpb.ReserveRequest{Request: alice(), Usage: &stintpb.Usage{Cost: proto.Int64(1), Meters: map[string]int64{"request_bytes": 1}}})},
		{"usage.meters: want a meter, such as", reserve(&stintpb.ReserveRequest{Request: alice(), Usage: &stintpb.Usage{Meters: map[string]int64{"bottles": 1}}})},
		{"usage.meters: want at most 16 meters, found 17", reserve(&stintpb.ReserveRequest{Request: alice(), Usage: many})},
		{"usage.meters.llm.total_tokens: want a whole number", reserve(&stintpb.ReserveRequest{Request: alice(), Usage: tokens(1 << 53)})},
		{"expires_in: want a whole number of seconds from 1 to 3600, found 3601", reserve(&stintpb.ReserveRequest{Request: alice(), ExpiresIn: 3601})},
		{"expires_in", extend(&stintpb.ExtendRequest{Ticket: ticket, ExpiresIn: -1})},
		{"cost: want a whole number", func(ctx context.Context) error {
			_, err := r.Check(ctx, &stintpb.CheckRequest{Request: alice(), Cost: -1})
			return err
		}},
		{"ticket: want the ticket", commit("", tokens(1), "")},
		{"ticket: want the ticket", cancel("")},
		{"ticket: want the ticket", extend(&stintpb.ExtendRequest{})},
		{"usage: want what was used", commit(ticket, nil, "")},
		{"usage: want what was used", commit(ticket, &stintpb.Usage{}, "")},
		{"usage.cost: want", commit(ticket, &stintpb.Usage{Cost: proto.Int64(-1)}, "")},
		{"model: want at most 128 bytes", commit(ticket, tokens(1), strings.Repeat("m", 256))},
		{"ticket: it was not made by this cluster, or was altered", commit("nonsense", tokens(1), "")},
		{"ticket: it was not made by this cluster, or was altered", cancel(ticket[:len(ticket)-2])},
		{"ticket: it was not made by this cluster, or was altered", extend(&stintpb.ExtendRequest{Ticket: foreign, Usage: tokens(1)})},
	}
	check := func(want string, call func(context.Context) error) {
		t.Helper()
		if err := call(t.Context()); status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), want) {
			t.Errorf("%v, want InvalidArgument, and %s", err, want)
		}
	}
	for i := range bad {
		check(bad[i].want, bad[i].call)
	}
	r.leaves(t, "4 400")
	r.clock.Add(time.Minute)
	for _, call := range []func(context.Context) error{commit(ticket, tokens(1), ""), cancel(ticket), extend(&stintpb.ExtendRequest{Ticket: ticket})} {
		check("ticket: it has expired", call)
	}
	r.leaves(t, "4 400")
}

// FuzzReservations sends any message: there is an answer, or a status that a caller can understand.
func FuzzReservations(f *testing.F) {
	w := worldOf(f, reserveRules, identity.Options{})
	tickets, err := engine.NewTickets(w.clock.Now, []byte(strings.Repeat("k", 32)))
	if err != nil {
		f.Fatal(err)
	}
	s, err := grpclimit.NewReservations(grpclimit.ReservationsOptions{Engine: w.Engine, Tickets: tickets})
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range []proto.Message{
		&stintpb.ReserveRequest{Request: alice(), Usage: tokens(5), ExpiresIn: 9}, &stintpb.CheckRequest{Request: alice(), Cost: 3},
		&stintpb.CommitRequest{Ticket: "x", Usage: &stintpb.Usage{Cost: proto.Int64(1)}, Model: "m"},
	} {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		check := func(m, answer proto.Message, call func() (proto.Message, error)) {
			if proto.Unmarshal(data, m) != nil {
				return
			}
			switch out, err := call(); {
			case err != nil && status.Code(err) != codes.InvalidArgument:
				t.Errorf("%v: %v", m, err)
			case err == nil:
				text, err := proto.Marshal(out)
				if err != nil || proto.Unmarshal(text, answer) != nil {
					t.Errorf("%v: %v", m, err)
				}
			}
		}
		var (
			ask      stintpb.CheckRequest
			reserve  stintpb.ReserveRequest
			commit   stintpb.CommitRequest
			extend   stintpb.ExtendRequest
			verdict  stintpb.Verdict
			reserved stintpb.Reserved
			receipt  stintpb.Receipt
			extended stintpb.Extended
		)
		check(&ask, &verdict, func() (proto.Message, error) { return s.Check(t.Context(), &ask) })
		check(&reserve, &reserved, func() (proto.Message, error) { return s.Reserve(t.Context(), &reserve) })
		check(&commit, &receipt, func() (proto.Message, error) { return s.Commit(t.Context(), &commit) })
		check(&extend, &extended, func() (proto.Message, error) { return s.Extend(t.Context(), &extend) })
	})
}

// TestReservationsUndecided has the store out of reach.
func TestReservationsUndecided(t *testing.T) {
	t.Parallel()
	var failed []string
	r := reservationsOf(t, func(_ context.Context, method string, err error) error {
		if !errors.Is(err, stint.ErrUnavailable) {
			t.Error(err)
		}
		failed = append(failed, method)
		return nil
	})
	ticket := must[*stintpb.Reserved](t)(r.Reserve(t.Context(), &stintpb.ReserveRequest{Request: alice()})).GetTicket()
	r.store.down.Store(true)
	// The rules say what becomes of a request that cannot be counted. There is nothing to settle then.
	if open := must[*stintpb.Reserved](t)(r.Reserve(t.Context(), &stintpb.ReserveRequest{Request: alice()})); !open.GetVerdict().GetAllowed() || open.GetTicket() != "" {
		t.Errorf("%v", open)
	}
	_, commit := r.Commit(t.Context(), &stintpb.CommitRequest{Ticket: ticket, Usage: tokens(1)})
	_, cancel := r.Cancel(t.Context(), &stintpb.CancelRequest{Ticket: ticket})
	for i, err := range []error{commit, cancel} {
		if status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "store") {
			t.Errorf("call %d: %v, want Unavailable, which does not say why", i, err)
		}
	}
	if !slices.Equal(failed, []string{"/stint.v1.Reservations/Commit", "/stint.v1.Reservations/Cancel"}) {
		t.Error(failed)
	}
	r.store.down.Store(false)
	if receipt := must[*stintpb.Receipt](t)(r.Commit(t.Context(), &stintpb.CommitRequest{Ticket: ticket, Usage: tokens(1)})); receipt.GetRepeated() {
		t.Errorf("%v", receipt)
	}
	r.leaves(t, "4 999")
	for name, o := range map[string]grpclimit.ReservationsOptions{"Engine": {Tickets: r.tickets}, "Tickets": {Engine: r.Engine}} {
		if _, err := grpclimit.NewReservations(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}
