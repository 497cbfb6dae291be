package daemon_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/alert"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testredis"
)

// told is a receiver of messages.
type told struct {
	*httptest.Server
	mu  sync.Mutex
	all []alert.Message
	ids map[string]bool
}

func newTold(t *testing.T) *told {
	t.Helper()
	v := &told{ids: map[string]bool{}}
	v.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var m alert.Message
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(body, &m)
		}
		if err != nil {
			t.Error(err)
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		if id := r.Header.Get(alert.HeaderDelivery); !v.ids[id] { // a message may come twice
			v.ids[id] = true
			v.all = append(v.all, m)
		}
	}))
	t.Cleanup(v.Close)
	return v
}

// has returns the messages of a type about an alert.
func (v *told) has(of, what string) (out []alert.Message) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, m := range v.all {
		if m.Alert == of && m.Type == what {
			out = append(out, m)
		}
	}
	return out
}

// hears waits for a message, longer than until: alerts count whole minutes.
func (v *told) hears(t *testing.T, of, what string) alert.Message {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(4 * time.Minute); ; {
		if all := v.has(of, what); len(all) > 0 {
			return all[0]
		}
		select {
		case <-end:
			v.mu.Lock()
			defer v.mu.Unlock()
			t.Fatalf("no %s about %s, only %+v", what, of, v.all)
		case <-tick.C:
		}
	}
}

// withinMinute waits until what follows is counted in one minute: not at the end of one, nor at the beginning of the next, when a
// busy node may not have turned to it yet.
func withinMinute() {
	now := time.Now()
	minute := now.Truncate(time.Minute)
	const from, to = 5 * time.Second, 35 * time.Second
	switch at := now.Sub(minute); {
	case at < from:
		<-time.After(from - at)
	case at > to:
		<-time.After(time.Minute + from - at)
	}
}

// askFor asks for decisions about a client.
func (p *process) askFor(t *testing.T, user string, n int) {
	t.Helper()
	for range n {
		answer, err := p.client.Post(p.URL("http")+"/v1/check", "application/json", strings.NewReader(`{"path": "/", "ip": "192.0.2.1", "user": "`+user+`"}`))
		do(t, err)
		do(t, answer.Body.Close())
	}
}

const toldOf = `
[[webhooks]]
name   = "ops"
url    = %q
secret = "a-secret-of-the-file"
[[alerts]]
name     = "denials"
kind     = "rule"
percent  = 50
for      = "1m"
webhooks = ["ops"]
[[alerts]]
name     = "greedy"
kind     = "client"
denials  = 5
within   = "1m"
webhooks = ["ops"]
[[alerts]]
name     = "store"
kind     = "health"
when     = ["store_away"]
for      = "1s"
webhooks = ["ops"]
`

// TestAlertsOfTraffic denies requests, with a database and without: people hear of the rule and of the client.
func TestAlertsOfTraffic(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"file", "database"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newTold(t)
			text := few + fmt.Sprintf(toldOf, v.URL)
			if name == "database" {
				text = "[server]\ndatabase = \"" + fill(t, text) + "\"\ncatalog = { last_good = \"none\" }\n"
			}
			p := start(t, text, set("server.record.spool", "none"))
			withinMinute()
			p.askFor(t, "alice", 40)
			m := v.hears(t, "denials", alert.TypeFiring)
			if m.Subject != "few" || m.Value < 90 || m.Threshold != 50 || !strings.Contains(m.Text, "the rule few denied 92.5 % of 40 requests") {
				t.Errorf("%+v", m)
			}
			if m = v.hears(t, "greedy", alert.TypeFiring); m.Subject != "user:alice" || m.Value != 37 || !strings.Contains(m.Text, "was denied 37 times in one minute") {
				t.Errorf("%+v", m)
			}
			if status, body := p.get(t, "admin", "/admin/v1/causes"); status != http.StatusOK || !strings.Contains(body, `"phase":"firing"`) {
				t.Error(status, body)
			}
			for _, path := range []string{"/admin/v1/webhooks", "/admin/v1/export?format=toml", "/admin/v1/deliveries", "/admin/v1/changes"} {
				if _, body := p.get(t, "admin", path); strings.Contains(body, "a-secret-of-the-file") {
					t.Errorf("%s shows the secret: %s", path, body)
				}
			}
			if _, text := p.get(t, "admin", "/metrics"); !strings.Contains(text, "stint_alerts_firing 2") || !strings.Contains(text, `stint_alert_deliveries_total{what="delivered"} 2`) || !strings.Contains(text, "stint_alerts_evaluated_timestamp_seconds") {
				t.Error(text)
			}
			p.becomes(t, "alerts", "ok", "")
		})
	}
}

// TestAlertsOfStore stops Redis under two nodes: people hear of it once, and that it is back. The node that evaluates is stopped
// meanwhile, and the other goes on.
func TestAlertsOfStore(t *testing.T) {
	t.Parallel()
	v, redis, url := newTold(t), testredis.Start(t), testpostgres.Shared(t).Database(t)
	fillAt(t, url, few+fmt.Sprintf(toldOf, v.URL))
	text := "[server]\ndatabase = \"" + url + "\"\ncatalog = { last_good = \"none\", poll = \"1s\" }\nrecord = { spool = \"none\" }\n"
	nodes := []*process{
		start(t, text, set("server.counters", redis.URL()), set("server.catalog.node", "one")),
		start(t, text, set("server.counters", redis.URL()), set("server.catalog.node", "two")),
	}
	redis.Kill(t)
	m := v.hears(t, "store", alert.TypeFiring)
	if m.Subject != "store_away" || !strings.Contains(m.Text, "nodes get too few decisions from Redis") {
		t.Errorf("%+v", m)
	}
	do(t, nodes[0].Stop(t.Context())) // whichever has the turn: the other takes it, or keeps it
	redis.Restart(t)
	m = v.hears(t, "store", alert.TypeResolved)
	if m.At.Sub(v.has("store", alert.TypeFiring)[0].At) < time.Minute {
		t.Errorf("told twice within a minute: %+v", m)
	}
	if got := len(v.has("store", alert.TypeFiring)); got != 1 {
		t.Errorf("told %d times", got)
	}
	if status, body := nodes[1].get(t, "admin", "/admin/v1/status"); status != http.StatusOK || !strings.Contains(body, `"alerts_firing":0`) {
		t.Error(status, body)
	}
}

// TestAlertsReloaded changes the alerts in the file.
func TestAlertsReloaded(t *testing.T) {
	t.Parallel()
	p := start(t, few, set("server.reload_interval", "20ms"))
	names := func() (out []string) {
		var list struct{ Items []struct{ ID string } }
		_, body := p.get(t, "admin", "/admin/v1/alerts")
		do(t, json.Unmarshal([]byte(body), &list))
		for _, one := range list.Items {
			out = append(out, one.ID)
		}
		return out
	}
	if len(names()) != 0 {
		t.Error(names())
	}
	do(t, os.WriteFile(p.path, []byte(few+fmt.Sprintf(toldOf, "http://127.0.0.1:1")), 0o600))
	until(t, "the alerts are used", func() bool { return slices.Equal(names(), []string{"denials", "greedy", "store"}) })
	do(t, os.WriteFile(p.path, []byte(few+"[[alerts]]\nname = \"x\"\nkind = \"rul\"\n"), 0o600))
	until(t, "a bad alert is refused", func() bool {
		_, _, detail := p.health(t, "config")
		return strings.Contains(detail, `alerts[0].kind: "rul": want one of rule, client, health, rollout; did you mean "rule"?`)
	})
}
