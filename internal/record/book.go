package record

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/rule"
)

// Other is the name of accounts that are not counted one by one.
const Other = "other"

// BookOptions are the settings of a [Book].
type BookOptions struct {
	// Add adds entries to the database, as [Store.AddConsumption] does. It is required.
	Add func(ctx context.Context, id string, entries []Entry) error
	// Interval is how often entries are written. Default 5 s.
	Interval time.Duration
	// MaxAccounts is how many accounts are counted one by one between two writes; as many again may wait for a write
	// that fails. Beyond that, users, keys and models are counted as [Other], and at twice that tenants, too: nothing is
	// dropped. Default 20,000, of about 500 bytes each.
	MaxAccounts int
	// Settle stores what became of the reservations of single events, as [Store.AddSettlements] does, and Keeps says whether
	// an event is recorded, as [Recorder.Keeps] does. Nil: none are stored.
	Settle func(ctx context.Context, all []Settlement) error
	Keeps  func(r *engine.Receipt) bool
	// MaxSettlements is how many of these are kept between two writes; as many again may wait for a write that fails.
	// Beyond that they are dropped and counted. Default 20,000, of about 300 bytes each.
	MaxSettlements int
	// Log reports writes that fail. Default: none are reported.
	Log *slog.Logger
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Book adds up what requests have used under rules with a meter, and adds that to the database from time to time, as
// other nodes do. Settlements that are repeated, and reservations that are never settled, are not in it. Of events that are
// recorded it also stores each settlement.
//
// What could not be written is kept, and written later, once. A process that is killed loses what it has settled since
// the last write.
type Book struct {
	o BookOptions

	mu       sync.Mutex
	accounts map[Account]*Units
	other    int64
	settled  []Settlement
	dropped  int64

	turn    chan struct{} // of capacity 1: held by the writer, and guards waiting
	waiting []batch       // taken, and not written yet

	state struct {
		sync.Mutex
		problem string
		since   time.Time
		waiting int   // accounts that are taken, and not written
		written int64 // settlements
	}
	stop, abort context.CancelFunc // nil: it was not started
	work        sync.WaitGroup
}

// batch is what is written at once: accounts, or settlements. Write adds it once, however often it is called.
type batch struct {
	accounts, settlements int
	write                 func(context.Context) error
}

// batchEntries is how many accounts, or settlements, are written in one transaction.
const batchEntries = 2000

var _ engine.Ledger = (*Book)(nil)

// NewBook returns an empty book. Start it, and Stop it.
func NewBook(o BookOptions) (*Book, error) {
	o.Interval, o.MaxAccounts, o.MaxSettlements = cmp.Or(o.Interval, 5*time.Second), cmp.Or(o.MaxAccounts, 20_000), cmp.Or(o.MaxSettlements, 20_000)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	switch {
	case o.Add == nil:
		return nil, invalid("Add", "nil", "a database")
	case o.Interval < 0:
		return nil, invalid("Interval", o.Interval.String(), "some time, or 0 for the default")
	case o.MaxAccounts < 0:
		return nil, invalid("MaxAccounts", "less than 0", "a number of accounts, or 0 for the default")
	case o.MaxSettlements < 0:
		return nil, invalid("MaxSettlements", "less than 0", "a number of settlements, or 0 for the default")
	case (o.Settle == nil) != (o.Keeps == nil):
		return nil, invalid("Keeps", "without Settle, or Settle without it", "both or none")
	}
	return &Book{o: o, accounts: map[Account]*Units{}, turn: make(chan struct{}, 1)}, nil
}

// Reserved implements [engine.Ledger]. What is reserved counts when it is settled.
func (*Book) Reserved(string, rule.Meter, int64) {}

// Settled implements [engine.Ledger].
func (b *Book) Settled(r *engine.Receipt, cancelled bool) {
	if r.Repeated {
		return
	}
	now := b.o.Now().UTC()
	account := Account{
		Start: now.Truncate(time.Hour), Tenant: nameOf(r.Payer.Tenant), User: nameOf(r.Payer.User), Key: nameOf(r.Payer.Key), Model: nameOf(r.Model),
	}
	var kept []Settlement
	if b.o.Keeps != nil && b.o.Keeps(r) {
		kept = settlementsOf(r, cancelled, now)
	}
	var whole []engine.Settled // the most of each meter, without a rule
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note(kept)
	for s := range r.Rules() {
		if s.Meter == "" {
			continue
		}
		b.add(account, s, r.Estimated, cancelled)
		at := slices.IndexFunc(whole, func(w engine.Settled) bool { return w.Meter == s.Meter && w.Shadow == s.Shadow })
		if at < 0 {
			at, whole = len(whole), append(whole, engine.Settled{Meter: s.Meter, Shadow: s.Shadow})
		}
		whole[at].Reserved, whole[at].Used = max(whole[at].Reserved, s.Reserved), max(whole[at].Used, s.Used)
	}
	for i := range whole {
		b.add(account, &whole[i], r.Estimated, cancelled)
	}
}

// note keeps settlements to be stored, as far as there is room.
func (b *Book) note(all []Settlement) {
	room := min(len(all), b.o.MaxSettlements-len(b.settled))
	b.settled = append(b.settled, all[:room]...)
	b.dropped += int64(len(all) - room)
}

// nameOf returns a name as a database can have it, without what it may be a part of.
func nameOf(text string) string { return strings.Clone(clean(beginning(text, longestName))) }

func (b *Book) add(a Account, s *engine.Settled, estimated, cancelled bool) {
	a.Rule, a.Meter, a.Shadow = s.Rule, string(s.Meter), s.Shadow
	u := Units{Requests: 1, Reserved: s.Reserved, Used: s.Used, GivenBack: max(s.Reserved-s.Used, 0), Overshoot: max(s.Used-s.Reserved, 0)}
	if estimated {
		u.Estimated = s.Used
	}
	if cancelled {
		u.Requests = 0
	}
	b.of(a).add(&u)
}

// of returns the units of an account, or of one that stands for it.
func (b *Book) of(a Account) *Units {
	for most := b.o.MaxAccounts; ; most *= 2 {
		u := b.accounts[a]
		all := a.Tenant == Other && a.User == Other && a.Key == Other && a.Model == Other // of which there are few
		if u == nil && (len(b.accounts) < most || all) {
			u = new(Units)
			b.accounts[a] = u
		}
		if u != nil {
			return u
		}
		if most == b.o.MaxAccounts {
			b.other++
		} else {
			a.Tenant = Other
		}
		a.User, a.Key, a.Model = Other, Other, Other
	}
}

// BookState is the state of a [Book].
type BookState struct {
	Waiting int   // accounts that are not written yet
	Other   int64 // how often units were counted as [Other]
	// Settled is how many settlements were stored, and Dropped for how many there was no room.
	Settled, Dropped int64
	// Problem is why nothing is written, and Since when that began. Empty: there is none.
	Problem string
	Since   time.Time
}

// State returns the current state, without accounts whose first write is under way.
func (b *Book) State() (s BookState) {
	b.mu.Lock()
	s.Waiting, s.Other, s.Dropped = len(b.accounts), b.other, b.dropped
	b.mu.Unlock()
	b.state.Lock()
	defer b.state.Unlock()
	s.Waiting += b.state.waiting
	s.Settled = b.state.written
	s.Problem, s.Since = b.state.problem, b.state.since
	return s
}

// Start writes at every interval, until ctx ends or Stop is called.
func (b *Book) Start(ctx context.Context) {
	writing, abort := context.WithCancel(context.WithoutCancel(ctx)) // a write that has begun may finish
	ctx, b.stop = context.WithCancel(ctx)
	b.abort = abort
	b.work.Go(func() {
		defer abort()
		tick := time.NewTicker(b.o.Interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_ = b.Flush(writing) // which logs the error
			}
		}
	})
}

// Stop stops that, and writes what is left until ctx ends.
func (b *Book) Stop(ctx context.Context) error {
	if b.stop != nil {
		b.stop()
		defer context.AfterFunc(ctx, b.abort)()
		b.work.Wait()
	}
	return b.Flush(ctx)
}

// Flush writes everything now. What could not be written is kept.
func (b *Book) Flush(ctx context.Context) error {
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	err := b.write(ctx) // what waits
	if err == nil {
		b.take()
		err = b.write(ctx)
	}
	b.report(ctx, err)
	return err
}

// take takes what was added up.
func (b *Book) take() {
	b.mu.Lock()
	taken, settled := b.accounts, b.settled
	b.accounts, b.settled = map[Account]*Units{}, nil // maps do not shrink
	b.mu.Unlock()
	entries := make([]Entry, 0, len(taken))
	for a, u := range taken {
		entries = append(entries, Entry{a, *u})
	}
	for some := range slices.Chunk(entries, batchEntries) {
		id := rand.Text() // by which it is added once
		b.waiting = append(b.waiting, batch{accounts: len(some), write: func(ctx context.Context) error { return b.o.Add(ctx, id, some) }})
	}
	for some := range slices.Chunk(settled, batchEntries) {
		b.waiting = append(b.waiting, batch{settlements: len(some), write: func(ctx context.Context) error { return b.o.Settle(ctx, some) }})
	}
}

// write writes what waits.
func (b *Book) write(ctx context.Context) error {
	const limit = 10 * time.Second
	for len(b.waiting) > 0 {
		first := &b.waiting[0]
		ctx, cancel := context.WithTimeout(ctx, limit)
		err := first.write(ctx)
		cancel()
		if err != nil {
			return err
		}
		b.state.Lock()
		b.state.written += int64(first.settlements)
		b.state.Unlock()
		b.waiting = b.waiting[1:]
	}
	b.waiting = nil
	return nil
}

// report updates the state, and logs changes of it.
func (b *Book) report(ctx context.Context, err error) {
	b.state.Lock()
	defer b.state.Unlock()
	b.state.waiting = 0
	for i := range b.waiting {
		b.state.waiting += b.waiting[i].accounts
	}
	before := b.state.problem
	if b.state.problem = ""; err != nil {
		b.state.problem = err.Error()
	}
	switch {
	case before == "" && err != nil:
		b.state.since = b.o.Now()
		b.o.Log.WarnContext(ctx, "usage cannot be written and is kept in memory", "problem", err.Error())
	case before != "" && err == nil:
		b.state.since = time.Time{}
		b.o.Log.InfoContext(ctx, "usage is written again")
	}
}
