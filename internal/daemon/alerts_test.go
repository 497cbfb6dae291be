package daemon_test

import (
	"encoding/json"
	"errors"
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
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
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

// hears waits for a message.
func (v *told) hears(t *testing.T, of, what string) (m alert.Message) {
	t.Helper()
	wait.Nil(t, what+" about "+of, func() error {
		if all := v.has(of, what); len(all) > 0 {
			m = all[0]
			return nil
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		return fmt.Errorf("only %+v", v.all)
	})
	return m
}

// alertClock is the clock of alerts: that of this machine, until it is set.
type alertClock struct {
	mu    sync.Mutex
	ahead time.Duration
	last  time.Time // at which it stands still, if any
}

func (c *alertClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now().Add(c.ahead)
	if !c.last.IsZero() && now.After(c.last) {
		return c.last
	}
	return now
}

// set sets the clock, which goes on for so long.
func (c *alertClock) set(at time.Time, most time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead, c.last = time.Until(at), at.Add(most)
}

// start starts a daemon whose alerts go by the clock.
func (c *alertClock) start(t *testing.T, text string, flags ...daemon.Flag) *process {
	t.Helper()
	var o daemon.Options
	minutes := make(chan time.Time)
	o.SetAlertClock(c.now, minutes)
	p := startAs(t, o, text, flags...)
	p.minutes = minutes
	wait.For(t, "the alerts are followed", p.FollowsAlerts)
	return p
}

// endMinute has what nodes have decided so far count in a minute that is over, and returns its end.
func (c *alertClock) endMinute(nodes ...*process) time.Time {
	end := time.Now().Truncate(time.Minute).Add(2 * time.Minute) // what happens before the minute is not judged
	for _, p := range nodes {
		p.minutes <- end.Add(-time.Minute)
		p.minutes <- end // when the other one is written
	}
	c.set(end.Add(30*time.Second), 30*time.Second)
	return end
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

// TestAlertsOfTraffic denies requests: people hear of the rule and of the client.
func TestAlertsOfTraffic(t *testing.T) {
	t.Parallel()
	v, c := newTold(t), new(alertClock)
	p := c.start(t, few+fmt.Sprintf(strings.Replace(toldOf, `within   = "1m"`, `within   = "1h"`, 1), v.URL))
	p.askFor(t, "alice", 40)
	p.becomes(t, "alerts", "ok", "")
	c.endMinute(p)
	p.toldOfAlice(t, v, "in 60 minutes")
}

// toldOfAlice waits until people hear of a rule that has denied 37 of 40 requests of one client.
func (p *process) toldOfAlice(t *testing.T, v *told, within string) {
	t.Helper()
	m := v.hears(t, "denials", alert.TypeFiring)
	if m.Subject != "few" || m.Value < 90 || m.Threshold != 50 || !strings.Contains(m.Text, "the rule few denied 92.5 % of 40 requests") {
		t.Errorf("%+v", m)
	}
	if m = v.hears(t, "greedy", alert.TypeFiring); m.Subject != "user:alice" || m.Value != 37 || !strings.Contains(m.Text, "was denied 37 times "+within) {
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
	wait.Nil(t, "the metrics of alerts", func() error {
		if _, text := p.get(t, "admin", "/metrics"); !strings.Contains(text, "stint_alerts_firing 2") || !strings.Contains(text, `stint_alert_deliveries_total{what="delivered"} 2`) || !strings.Contains(text, "stint_alerts_evaluated_timestamp_seconds") {
			return errors.New(text)
		}
		return nil
	})
}

// TestAlertsOfStore stops Redis under two nodes: people hear of it once, and that it is back. The node that evaluates is stopped
// meanwhile, and the other goes on.
func TestAlertsOfStore(t *testing.T) {
	t.Parallel()
	v, c, redis, url := newTold(t), new(alertClock), testredis.Start(t), testpostgres.Shared(t).Database(t)
	fillAt(t, url, few+fmt.Sprintf(toldOf, v.URL))
	text := "[server]\ndatabase = \"" + url + "\"\ncatalog = { last_good = \"none\", poll = \"1s\" }\nrecord = { spool = \"none\" }\n"
	nodes := []*process{
		c.start(t, text, set("server.counters", redis.URL()), set("server.catalog.node", "one")),
		c.start(t, text, set("server.counters", redis.URL()), set("server.catalog.node", "two")),
	}
	redis.Kill(t)
	m := v.hears(t, "store", alert.TypeFiring)
	if m.Subject != "store_away" || !strings.Contains(m.Text, "nodes get too few decisions from Redis") {
		t.Errorf("%+v", m)
	}
	do(t, nodes[0].Stop(t.Context())) // whichever has the turn: the other takes it, or keeps it
	redis.Restart(t)
	c.set(c.now().Add(time.Minute), 24*time.Hour) // people are not told twice within a minute
	v.hears(t, "store", alert.TypeResolved)
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
	wait.For(t, "the alerts are used", func() bool { return slices.Equal(names(), []string{"denials", "greedy", "store"}) })
	do(t, os.WriteFile(p.path, []byte(few+"[[alerts]]\nname = \"x\"\nkind = \"rul\"\n"), 0o600))
	wait.For(t, "a bad alert is refused", func() bool {
		_, _, detail := p.health(t, "config")
		return strings.Contains(detail, `alerts[0].kind: "rul": want one of rule, client, health, rollout; did you mean "rule"?`)
	})
}
