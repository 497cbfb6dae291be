package daemon_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/torture"
)

// TestLogBounded has clients call an upstream that is gone, on paths of their own, and call
// the admin API without a token. The log has a line a second for each, and
// they add up.
func TestLogBounded(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	p := start(t, many+"[[upstreams]]\ntargets = [\""+gone.URL+"\"]\n")
	const calls = 300
	began := time.Now()
	for i := range calls {
		if status, body := p.get(t, "gateway", "/"+strings.Repeat("x", i)); status != http.StatusBadGateway {
			t.Fatalf("%d %s", status, body)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL("admin")+"/api/v1/rules", strings.NewReader("{}"))
		do(t, err)
		r.Header.Set("X-Real-IP", strings.Repeat("x", i))
		answer, err := p.client.Do(r)
		do(t, err)
		do(t, answer.Body.Close())
	}
	most := int(time.Since(began)/time.Second) + 2
	do(t, p.Stop(t.Context())) // which writes what is left
	lines, logged := map[string]int{}, map[string]int{}
	for line := range strings.Lines(p.log.String()) {
		var entry struct {
			Msg     string
			LeftOut int `json:"left_out"`
		}
		do(t, json.Unmarshal([]byte(line), &entry))
		lines[entry.Msg]++
		logged[entry.Msg] += 1 + entry.LeftOut
	}
	if n := logged["target failed"]; n != calls {
		t.Errorf("the log tells of %d failures, want %d", n, calls)
	}
	torture.AtMost(t, "lines about failures", lines["target failed"], most)
	torture.AtMost(t, "lines of any message", slices.Max(slices.Collect(maps.Values(lines))), 4*most) // some for each listener, or each status
}
