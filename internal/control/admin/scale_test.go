//go:build scale

package admin_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/catalog/catalogtest"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

var (
	scaleUsers  = flag.Int("users", 1_000_000, "how many users there are, each with an API key")
	scaleEvents = flag.Int("events", 10_000_000, "how many events there are in a day")
)

// TestScale lists among 10,000 rules, very many users and very many events.
func TestScale(t *testing.T) {
	const rules, asks = 10_000, 300
	users := *scaleUsers
	url := testpostgres.Start(t).Database(t)
	c, err := catalog.Open(url, catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Up(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	catalogtest.Fill(func(s string) { testpostgres.Exec(t, url, s) }, rules, users)
	h := newTestAPIAt(t, url)
	recordtest.Fill(t, h.record, *scaleEvents, h.clock.now())
	testpostgres.Exec(t, url, "analyze")
	user := func() int { return rand.IntN(users) + 1 }
	for _, list := range []struct {
		name string
		path func() string
	}{
		{"100 rules", func() string { return fmt.Sprintf("/rules?limit=100&after=rule%d", rand.IntN(rules)) }},
		{"rules that have a text in their name", func() string { return fmt.Sprintf("/rules?limit=100&q=%d", rand.IntN(rules)) }},
		{"100 users", func() string { return fmt.Sprintf("/users?limit=100&after=user%d", user()) }},
		{"100 users of a tier", func() string { return fmt.Sprintf("/users?limit=100&tier=tier3&after=user%d", user()) }},
		{"users of a tenant", func() string { return fmt.Sprintf("/users?limit=100&tenant=tenant%d", rand.IntN(1000)) }},
		{"users that are blocked", func() string { return "/users?blocked=true" }},
		{"100 keys", func() string { return fmt.Sprintf("/keys?limit=100&after=key%d", user()) }},
		{"keys of a user", func() string { return fmt.Sprintf("/keys?user=user%d", user()) }},
		{"subjects that begin so", func() string { return fmt.Sprintf("/subjects?q=user%d", user()/100) }},
		{"tiers", func() string { return "/tiers" }},
		{"100 changes", func() string { return "/changes?limit=100" }},
		{"changes by one actor", func() string { return "/changes?limit=100&actor=someone3" }},
		{"100 events", func() string { return "/events?limit=100" }},
		{"1,000 events", func() string { return "/events?limit=1000" }},
		{"100 denials of a user", func() string { return fmt.Sprintf("/events?outcome=denied&user=user-%d", rand.IntN(1000)) }},
		{"100 denials by a rule", func() string { return fmt.Sprintf("/events?outcome=denied&rule=rule-%d", rand.IntN(10)) }},
		{"events of an address", func() string { return fmt.Sprintf("/events?ip=198.51.%d.7", rand.IntN(256)) }},
		{"top 10 users", func() string { return "/top" }},
		{"top 10 addresses", func() string { return "/top?by=ip" }},
		{"top 100 users by a rule", func() string { return fmt.Sprintf("/top?limit=100&rule=rule-%d", rand.IntN(10)) }},
		{"top 10 rules", func() string { return "/top?by=rule" }},
		{"100 violations", func() string { return "/violations" }},
		{"violations of a user", func() string { return fmt.Sprintf("/violations?user=user-%d", rand.IntN(1000)) }},
		{"how many users were limited", func() string { return "/clients" }},
		{"series by outcome", func() string { return "/series?by=outcome" }},
		{"series by rule", func() string { return "/series?by=rule" }},
		{"series by endpoint, denied", func() string { return "/series?by=endpoint&outcome=denied" }},
		{"series of a rule by outcome", func() string { return fmt.Sprintf("/series?by=outcome&rule=rule-%d", rand.IntN(10)) }},
		{"series of a rule by endpoint", func() string { return fmt.Sprintf("/series?by=endpoint&rule=rule-%d", rand.IntN(10)) }},
		{"series of an endpoint by rule", func() string {
			return fmt.Sprintf("/series?by=rule&endpoint=/v1/resource-%d/%%7Bid%%7D", rand.IntN(20))
		}},
		{"series of a tier by endpoint", func() string { return "/series?by=endpoint&tier=free" }},
		{"top 1,000 users", func() string { return "/top?limit=1000" }},
		{"top 1,000 users by a rule", func() string { return fmt.Sprintf("/top?limit=1000&rule=rule-%d", rand.IntN(10)) }},
		{"1,000 violations", func() string { return "/violations?limit=1000" }},
		{"how many tenants a rule limited", func() string { return fmt.Sprintf("/clients?by=tenant&rule=rule-%d", rand.IntN(10)) }},
		{"changes of one user", func() string { return fmt.Sprintf("/changes?kind=user&id=user%d", user()/10+1) }},
	} {
		var took []time.Duration
		for range asks {
			r, w := httptest.NewRequest(http.MethodGet, admin.Prefix+list.path(), http.NoBody), httptest.NewRecorder()
			r.Header.Set("Authorization", "Bearer "+h.viewer)
			at := time.Now()
			h.api.ServeHTTP(w, r)
			took = append(took, time.Since(at))
			if w.Code != http.StatusOK {
				t.Fatalf("%s: %d %s", list.name, w.Code, w.Body)
			}
		}
		slices.Sort(took)
		t.Logf("%-40s p50 %7.2f ms, p99 %7.2f ms, at most %7.2f ms", list.name,
			ms(took[len(took)/2]), ms(took[len(took)*99/100]), ms(took[len(took)-1]))
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
