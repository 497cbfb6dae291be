//go:build torture

package daemon_test

import (
	"fmt"
	"testing"
	"time"
)

// TestAlertsByTheClock denies requests in a minute of the clock, as the record of a database counts them.
func TestAlertsByTheClock(t *testing.T) {
	t.Parallel()
	v := newTold(t)
	text := "[server]\ndatabase = \"" + fill(t, few+fmt.Sprintf(toldOf, v.URL)) + "\"\ncatalog = { last_good = \"none\" }\n"
	p := start(t, text, set("server.record.spool", "none"))
	<-time.After(time.Until(time.Now().Truncate(time.Minute).Add(65 * time.Second))) // all of it is to be in one minute
	p.askFor(t, "alice", 40)
	p.toldOfAlice(t, v, "in one minute")
	p.becomes(t, "alerts", "ok", "")
}
