// Package audittest makes events like those of a large service, to ask about very many of
// them: three in ten are refusals, and some users make far more requests than others.
//
// Of a seed, they are always the same but for their ids.
package audittest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/audit"
)

// Crowd is who makes requests.
type Crowd struct {
	random *rand.Rand
	users  *rand.Zipf
}

// NewCrowd returns a million users.
func NewCrowd(seed uint64) *Crowd {
	random := rand.New(rand.NewPCG(seed, seed))
	return &Crowd{random, rand.NewZipf(random, 1.1, 10, 1_000_000)}
}

// Event returns what became of a request of one of them.
func (c *Crowd) Event(at time.Time) audit.Event {
	user := c.users.Uint64()
	e := audit.Event{
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
func Fill(t testing.TB, s *audit.Store, n int, until time.Time) {
	t.Helper()
	c, step := NewCrowd(2), 24*time.Hour/time.Duration(n)
	began := time.Now()
	took := func() time.Duration { return time.Since(began).Round(time.Second) }
	var batch []audit.Event
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
	done, err := s.RollUp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d minutes and hours were rolled up in %v", done, took())
}
