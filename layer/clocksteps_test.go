//go:build scale

package layer_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testredis"
)

// stepped builds this test anew, with a wall clock that is stepped every 130 ms, forward by five minutes and back by
// seven, while the monotonic clock goes on. It changes one line of package time, so all of the process has that
// clock, as if someone set that of the machine.
func stepped(t *testing.T) (binary string) {
	t.Helper()
	const line = "sec, nsec, mono := runtimeNow()\n"
	file := filepath.Join(runtime.GOROOT(), "src", "time", "time.go") //nolint:staticcheck // of the Go that built this test
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(text), line) != 1 {
		t.Fatalf("%s has changed: time.Now should have %q once", file, line)
	}
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	binary = filepath.Join(dir, "stepped.test")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{file: changed}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		changed: strings.Replace(string(text), line, line+"\tsec += [...]int64{0, 300, -120, 300, -120}[uint64(mono)/130_000_000%5]\n", 1),
		overlay: string(replace),
	} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return binary
}

// TestLeaseClockSteps has processes lease whose wall clocks are stepped while they hold units, beside one whose clock is
// right. Every second window is calm, so that they hold units when it ends, and the next is exhausted: if these were
// spent there, as a lease would be whose clock has been set back, it would have more than the limit.
func TestLeaseClockSteps(t *testing.T) {
	t.Parallel()
	binary := stepped(t)
	const limit, want = 5000, 50_000
	for _, text := range []string{"5000/1s fixed_window", "5000/1s sliding_window"} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			c := startLeaseCluster(t, leaseWorker{
				URL: testredis.Start(t).URL() + "?timeout=1s", Limit: text, Term: 100 * time.Millisecond, Nodes: 3, Callers: 4,
				Pause: 4 * time.Millisecond, Calm: 4 * time.Millisecond, Binary: binary,
			})
			c.worker.Binary = ""
			c.running = append(c.running, nil)
			c.start(3) // its clock is right
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for range tick.C {
				if _, allowed, _, _ := c.read(); allowed > want {
					break
				}
			}
			windows, allowed, denied, leased := c.stop()
			t.Logf("%d allowed, %d of them leased, %d denied in %d windows", allowed, leased, denied, len(windows))
			for w, n := range windows {
				if n > limit {
					t.Errorf("%d admitted in window %d, want at most %d", n, w, limit)
				}
			}
			if leased < allowed/2 {
				t.Errorf("%d of %d were leased, want most", leased, allowed)
			}
			for i, tally := range c.tallies {
				ahead, behind := tally.ahead.Load(), tally.behind.Load()
				if i < 3 != (ahead > 0) || i < 3 != (behind > 0) {
					t.Errorf("process %d: %d takes while its clock was ahead, and %d while it was behind", i, ahead, behind)
				}
			}
		})
	}
}
