package daemon_test

import (
	"strings"
	"testing"
)

// TestMetricsOfCandidate denies a request that a candidate would let pass: it counts as a denial of its rule, and not as one in shadow.
func TestMetricsOfCandidate(t *testing.T) {
	t.Parallel()
	p := start(t, "[[rules]]\nname = \"tried\"\ncount_by = [\"user\"]\nlimits = [{ name = \"l\", limit = \"1/1d fixed_window\", candidate = \"9/1d\" }]\n")
	p.askFor(t, "alice", 3)
	_, text := p.get(t, "admin", "/metrics")
	for line, want := range map[string]bool{
		`stint_shadow_denied_total{rule="tried"} 2`: false,
		`outcome="denied",rule="tried"`:             true,
	} {
		if strings.Contains(text, line) != want {
			t.Errorf("%s: want %v in\n%s", line, want, text)
		}
	}
}
