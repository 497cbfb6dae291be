// Package recordtest opens stores for tests, and makes events for them: single ones with a
// number, and very many, like those of a large service.
package recordtest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/rollup"
)

// Open opens the database of the record and brings its schema up to date. It is closed when the
// test ends.
func Open(t testing.TB, url string) *database.DB {
	t.Helper()
	db, err := database.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := db.Record.Up(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return db.Record
}

// Store returns the store in a database.
func Store(t testing.TB, db *database.DB, now func() time.Time) *rollup.Store {
	t.Helper()
	s, err := rollup.New(db, rollup.Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// At returns a clock that always shows the same time.
func At(now time.Time) func() time.Time { return func() time.Time { return now } }

// Count returns the number that a query is for.
func Count(t testing.TB, db *database.DB, query string) (n int64) {
	t.Helper()
	if err := db.Read.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Write writes events.
func Write(t testing.TB, s record.Sink, events ...record.Event) {
	t.Helper()
	if err := s.Write(t.Context(), events); err != nil {
		t.Fatal(err)
	}
}

// Same reports whether two events are the same in every field.
func Same(a, b record.Event) bool { return reflect.DeepEqual(a, b) }

// All returns the events of months, in order of time and id.
func All(t testing.TB, s *record.Store, months ...record.Month) (out []record.Event) {
	t.Helper()
	for _, m := range months {
		for e, err := range s.Events(t.Context(), m, record.Cursor{}) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, e)
		}
	}
	return out
}

// Denial returns the denial of a number, at a time. Its client and rule depend on the number.
func Denial(n int, at time.Time) record.Event {
	id := engine.NewID(at)
	copy(id[10:], fmt.Sprintf("%06d", n))
	return record.Event{
		ID: id, At: at.UTC(), Outcome: engine.Denied, User: "u" + strconv.Itoa(n%7), Tenant: "acme", Key: "k" + strconv.Itoa(n%5), Tier: "free",
		IP: "192.0.2." + strconv.Itoa(n%250), Rule: "r" + strconv.Itoa(n%3), Limit: "requests", Endpoint: "/v1/" + strconv.Itoa(n%2), Method: "GET", Path: "/v1/" + strconv.Itoa(n%4),
		Source: []string{"key", "jwt", "given"}[n%3], Unaccepted: []string{"", "", "", "token_expired"}[n%4],
		Used: 10, Max: 10, Cost: 1, Status: 429, RetryAfter: time.Second, Latency: time.Duration(n%1000) * time.Microsecond, Region: "eu", Node: "n1", Weight: 1,
	}
}

// Events returns events of the days before a time, in the order of time and id.
func Events(n int, until time.Time, over time.Duration) (out []record.Event) {
	random := rand.New(rand.NewPCG(3, 4))
	for i := range n {
		// They share minutes, of which there are at most a hundred.
		back := over/100*time.Duration(random.IntN(100)) + time.Duration(1+random.Int64N(20e6))*time.Microsecond
		e := Denial(random.IntN(1000), until.Add(-back))
		copy(e.ID[10:], fmt.Sprintf("%06d", i))
		e.Outcome = engine.Outcome(random.IntN(8))
		e.Shadow, e.Cached = e.Outcome == engine.Allowed && i%2 == 0, i%5 == 0
		e.Latency = time.Duration(random.ExpFloat64()*3000) * time.Microsecond
		if e.Outcome == engine.Allowed {
			e.Weight = 100
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b record.Event) int { return cmp.Or(a.At.Compare(b.At), slices.Compare(a.ID[:], b.ID[:])) })
	return out
}

// Crowd is a million users, of whom some make far more requests than others, and of whose
// requests three in ten are denied. With the same seed, their events are always the same
// but for the ids.
type Crowd struct {
	random *rand.Rand
	users  *rand.Zipf
}

// NewCrowd returns a crowd.
func NewCrowd(seed uint64) *Crowd {
	random := rand.New(rand.NewPCG(seed, seed))
	return &Crowd{random, rand.NewZipf(random, 1.1, 10, 1_000_000)}
}

// Event returns the event of a request of one of them.
func (c *Crowd) Event(at time.Time) record.Event {
	user := c.users.Uint64()
	e := record.Event{
		ID: engine.NewID(at), At: at.Truncate(time.Microsecond), User: fmt.Sprintf("user-%d", user), Tenant: fmt.Sprintf("tenant-%d", user%5000), Key: fmt.Sprintf("k%011d", user), Tier: "free",
		IP: fmt.Sprintf("198.51.%d.%d", user>>8&255, user&255), Rule: fmt.Sprintf("rule-%d", c.random.IntN(10)), Limit: "per-minute", Endpoint: fmt.Sprintf("/v1/resource-%d/{id}", c.random.IntN(20)), Method: "GET",
		Used: 600, Max: 600, Cost: 1, Status: 200, Latency: time.Duration(c.random.ExpFloat64()*2000) * time.Microsecond, Region: "eu", Node: "n1", Weight: 100,
	}
	if c.random.IntN(10) < 3 {
		e.Outcome, e.Status, e.RetryAfter, e.Weight = engine.Denied, 429, time.Second, 1
	}
	return e
}

// Fill writes n events of the day before a time, and rolls them up.
func Fill(t testing.TB, s *rollup.Store, n int, until time.Time) {
	t.Helper()
	c, step := NewCrowd(2), 24*time.Hour/time.Duration(n)
	began := time.Now()
	took := func() time.Duration { return time.Since(began).Round(time.Second) }
	var batch []record.Event
	for i := range n {
		batch = append(batch, c.Event(until.Add(-time.Duration(n-i)*step)))
		if len(batch) == 20_000 || i == n-1 {
			if err := s.Write(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
			batch = batch[:0]
		}
		if (i+1)%2_000_000 == 0 {
			t.Logf("%d of %d events are written after %v", i+1, n, took())
		}
	}
	t.Logf("%d events were written in %v", n, took())
	began = time.Now()
	done, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d minutes and hours were rolled up in %v", done, took())
}

// Month returns a month that is written as 2026-01.
func Month(text string) record.Month {
	m, err := record.ParseMonth(text)
	if err != nil {
		panic(err)
	}
	return m
}
