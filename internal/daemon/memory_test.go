package daemon_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// TestMadeUpValues attacks a daemon whose memory is small: one address sends made-up values of a header
// that a rule counts by. Whoever has used up the limit of another rule or is banned stays so, itself as
// well, and metrics and health say what happened. Then very many addresses come.
func TestMadeUpValues(t *testing.T) {
	t.Parallel()
	const config = `
[server]
max_keys = 200
[identity]
trusted_proxies = ["127.0.0.1"]
[[rules]]
name     = "orders"
match    = { paths = ["/orders"] }
count_by = ["ip"]
limits   = [{ name = "orders", limit = "3/1000h" }]
[[rules]]
name     = "login"
match    = { paths = ["/login"] }
count_by = ["ip"]
limits   = [{ name = "login", limit = "2/1000h" }]
penalty  = { threshold = 1, within = "100h", cooldown = "100h" }
[[rules]]
name     = "search"
match    = { paths = ["/search"] }
count_by = ["ip", "header:X-Session"]
limits   = [{ name = "search", limit = "1/1000h" }]
`
	for name, counters := range map[string]string{"memory": "memory:", "local decisions": "redis://127.0.0.1:1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, config+echo(t), set("server.counters", counters), set("server.replicas", "1"))
			send := func(ip, path, session string) int {
				t.Helper()
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL("gateway")+path, nil)
				do(t, err)
				r.Header.Set("X-Forwarded-For", ip)
				r.Header.Set("X-Session", session)
				answer, err := p.client.Do(r)
				do(t, err)
				do(t, answer.Body.Close())
				return answer.StatusCode
			}
			const attacker = "192.0.2.66"
			clients := []string{attacker, "2001:db8:1:2:3::4"}
			for i := range 8 {
				clients = append(clients, fmt.Sprint("198.51.100.", i))
			}
			for _, ip := range clients {
				for range 4 {
					send(ip, "/orders", "")
					send(ip, "/login", "")
				}
			}
			stay := func(when string) {
				t.Helper()
				for _, ip := range clients {
					if status := send(ip, "/orders", ""); status != http.StatusTooManyRequests {
						t.Errorf("%s, %s has used up its orders: %d", when, ip, status)
					}
					if status := send(ip, "/login", ""); status != http.StatusTooManyRequests {
						t.Errorf("%s, %s is banned: %d", when, ip, status)
					}
				}
			}
			stay("before")
			for i := range 300 {
				if status := send(attacker, "/search", fmt.Sprint("made-up-", i)); status != http.StatusOK {
					t.Fatalf("value %d: %d", i, status)
				}
			}
			stay("after made-up values")
			s := p.series(t)
			const evicted = `stint_memory_evictions_total{reason="%s"}`
			if s[fmt.Sprintf(evicted, "share")] == "0" || s[fmt.Sprintf(evicted, "full")] != "0" || s[fmt.Sprintf(evicted, "bans")] != "0" {
				t.Error(s)
			}
			if bans := s[`stint_memory_counters{kind="bans"}`]; bans != strconv.Itoa(len(clients)) {
				t.Errorf("%s bans, want %d", bans, len(clients))
			}
			if _, status, detail := p.health(t, "memory"); status != "ok" {
				t.Error(status, detail)
			}
			for i := range 250 {
				send(fmt.Sprint("10.0.0.", i), "/orders", "")
			}
			stay("after many addresses")
			if s := p.series(t); s[fmt.Sprintf(evicted, "full")] == "0" {
				t.Error(s)
			}
			if _, status, detail := p.health(t, "memory"); status != "degraded" || !strings.Contains(detail, "server.max_keys (200) is too low") {
				t.Error(status, detail)
			}
		})
	}
}
