//go:build torture

package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/torture"
)

// TestStalledNode stops a node again and again, for longer than its budget, as a CPU quota or a busy host
// does. Redis is well: its breaker stays closed, and nearly all decisions are counted. The budget is five
// times the default, since Redis also has to wait for a processor on a busy machine.
func TestStalledNode(t *testing.T) {
	t.Parallel()
	redis := testredis.Start(t)
	config := fmt.Sprintf("[server]\ncounters = %q\nstore_budget = \"250ms\"\n[[rules]]\nname = \"all\"\ncount_by = [\"ip\"]\nlimits = [{ name = \"all\", limit = \"1000000/1h\" }]\n", redis.URL())
	s := serve(t, config, "STINT_SERVER_ADMIN_ADDRESS=127.0.0.1:0")
	s.decides(t, "192.0.2.1", "counted")
	var quits []func()
	for i := range 4 {
		quits = append(quits, s.keepAsking(t, fmt.Sprint("192.0.2.", i)))
	}
	before := s.scrape(t)
	signal := func(what syscall.Signal) {
		t.Helper()
		if err := s.Process.Signal(what); err != nil {
			t.Fatal(err)
		}
	}
	const stalls = 10
	for i := range stalls {
		signal(syscall.SIGSTOP)
		<-time.After(300*time.Millisecond + time.Duration(i%4)*30*time.Millisecond)
		signal(syscall.SIGCONT)
		<-time.After(300 * time.Millisecond)
	}
	for _, quit := range quits {
		quit()
	}
	after := s.scrape(t)
	counted, alone := 0.0, 0.0
	for series, n := range after {
		if !strings.HasPrefix(series, "stint_store_seconds_count{") || !strings.Contains(series, `layer="failmode"`) || !strings.Contains(series, `call="take"`) {
			continue
		}
		if n -= before[series]; slices.ContainsFunc([]string{"local", "open", "closed"}, func(b string) bool { return strings.Contains(series, `basis="`+b+`"`) }) {
			alone += n
		} else {
			counted += n
		}
	}
	t.Logf("%d stalls: %v decisions counted, %v by this node alone", stalls, counted, alone)
	torture.AtMost(t, "times that the breaker opened", strings.Count(s.output(), `"state":"open"`), 1) // if Redis had to wait for that long
	torture.AtMost(t, "decisions by this node alone", alone, counted/10)
}
