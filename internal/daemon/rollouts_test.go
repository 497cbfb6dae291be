package daemon_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/rule"
)

const rolled = `
[[rules]]
name     = "few"
count_by = ["user"]
limits   = [{ name = "three", limit = "3/1h" }]
rollout  = { steps = ["50%%", "100%%"], every = "30d", start = %q, back_if = "denied > 2%%" }
`

// rolloutClock is the clock of rollouts: that of this machine, until it is set.
type rolloutClock struct {
	mu    sync.Mutex
	ahead time.Duration
	last  time.Time // at which it stands still, if any
}

func (c *rolloutClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now().Add(c.ahead)
	if !c.last.IsZero() && now.After(c.last) {
		return c.last
	}
	return now
}

// set sets the clock, which goes on for so long.
func (c *rolloutClock) set(at time.Time, most time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead, c.last = time.Until(at), at.Add(most)
}

// start starts a daemon whose rollouts go by the clock.
func (c *rolloutClock) start(t *testing.T, text string, flags ...daemon.Flag) *process {
	t.Helper()
	var o daemon.Options
	minutes := make(chan time.Time)
	o.SetRolloutClock(c.now, minutes)
	p := startAs(t, o, text, flags...)
	p.minutes = minutes
	return p
}

// endMinute has what nodes have decided so far count in a minute that is over, and returns its end.
func (c *rolloutClock) endMinute(nodes ...*process) time.Time {
	end := time.Now().Truncate(time.Minute).Add(2 * time.Minute) // what happens before the minute is not judged
	for _, p := range nodes {
		p.minutes <- end.Add(-time.Minute)
		p.minutes <- end // when the other one is written
	}
	c.set(end.Add(30*time.Second), 30*time.Second)
	return end
}

// inForceFor returns a user for whom the rule is in force.
func inForceFor(t *testing.T) string {
	t.Helper()
	s, err := rule.Compile(rule.File{Rules: []rule.Rule{{Name: "few", CountBy: []rule.Dimension{"user"}, Enforce: 50_00, Limits: []rule.Limit{{Name: "three", Limit: "3/1h"}}}}})
	do(t, err)
	for i := 0; ; i++ {
		if user := fmt.Sprint("user", i); !s.Match(nil, &rule.Attrs{User: user})[0].Shadow {
			return user
		}
	}
}

// rollout returns how far the rule is rolled out.
func (p *process) rollout(t *testing.T) (o admin.Rollout) {
	t.Helper()
	status, body := p.get(t, "admin", "/admin/v1/rules/few/rollout")
	if status != http.StatusOK {
		t.Fatal(status, body)
	}
	do(t, json.Unmarshal([]byte(body), &o))
	return o
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

// denies reports whether one of some requests of a user is denied.
func (p *process) denies(t *testing.T, user string) bool {
	t.Helper()
	for range 5 {
		answer, err := p.client.Post(p.URL("http")+"/v1/check", "application/json", strings.NewReader(`{"path": "/", "ip": "192.0.2.1", "user": "`+user+`"}`))
		do(t, err)
		var v struct{ Allowed bool }
		do(t, json.NewDecoder(answer.Body).Decode(&v))
		do(t, answer.Body.Close())
		if !v.Allowed {
			return true
		}
	}
	return false
}

// TestRolloutTakenBack has one of three nodes of a database deny too much: within a minute after the minute in which it has, the
// rollout is taken back on all of them, once. Without a database, a node takes it back for itself, until the
// file is read again.
func TestRolloutTakenBack(t *testing.T) {
	t.Parallel()
	user := inForceFor(t)
	for name, n := range map[string]int{"database": 3, "file": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := new(rolloutClock)
			text := fmt.Sprintf(rolled, time.Now().Add(-time.Hour).UTC().Format(time.RFC3339))
			if name == "database" {
				text = "[server]\ndatabase = \"" + fillAt(t, testdatabase.Postgres(t), text) + "\"\ncatalog = { last_good = \"none\" }\n"
			}
			var nodes []*process
			for i := range n {
				nodes = append(nodes, c.start(t, text, set("server.record.spool", "none"), set("server.catalog.node", fmt.Sprint("node", i))))
			}
			if o := nodes[0].rollout(t); o.Share != "50%" || o.Step != 1 || len(o.Steps) != 2 || o.Stopped != nil || o.BackIf != "denied > 2%" {
				t.Fatalf("%+v", o)
			}
			nodes[n-1].askFor(t, user, 40)
			if !nodes[n-1].denies(t, user) {
				t.Fatal("the rule is not in force")
			}
			end := c.endMinute(nodes...)
			for i, p := range nodes {
				wait.For(t, fmt.Sprintf("node %d has taken it back", i), func() bool { return !p.denies(t, user) })
				o := p.rollout(t)
				if o.Share != "0%" || o.Stopped == nil || o.Stopped.Share != 0 || !strings.HasPrefix(o.Stopped.Reason, "it denied ") || !strings.HasSuffix(o.Stopped.Reason, "more than 2%") {
					t.Fatalf("node %d: %+v", i, o)
				}
				if late := o.Stopped.At.Sub(end); late > time.Minute || late < 0 {
					t.Errorf("taken back %v after the minute", late)
				}
			}
			if name == "file" {
				c.set(end.Add(2*time.Minute), 24*time.Hour) // the minute is judged no more
				wait.For(t, "the file is read again", func() bool {
					text += "# again\n"
					do(t, os.WriteFile(nodes[0].path, []byte(text), 0o600), nodes[0].Reload(t.Context()))
					o := nodes[0].rollout(t)
					return o.Share == "50%" && o.Stopped == nil
				})
				return
			}
			_, body := nodes[0].get(t, "admin", "/admin/v1/rules/few/history")
			if strings.Count(body, `"actor":"stint"`) != 1 {
				t.Error(body)
			}
		})
	}
}

// TestRolloutStarts wants to know when a rollout starts if there is no database that could say it.
func TestRolloutStarts(t *testing.T) {
	t.Parallel()
	path := write(t, "stint.toml", strings.Replace(fmt.Sprintf(rolled, ""), `start = "", `, "", 1))
	_, err := daemon.Source{Path: path}.Load()
	if err == nil || !strings.Contains(err.Error(), ":6:") || !strings.Contains(err.Error(), "rules[0].rollout.start: missing, and without a database nodes cannot agree on it: want when the first step begins, such as 20") {
		t.Error(err)
	}
}
