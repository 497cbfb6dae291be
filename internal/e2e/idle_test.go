package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"testing"
	"time"
)

// TestIdleMemory starts the demo, sends some requests, and checks its memory.
func TestIdleMemory(t *testing.T) {
	t.Parallel()
	buildProgram(t)
	cmd := exec.Command(program.path, "serve", "--http", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--set", "server.log_format=json")
	cmd.Env = []string{"HOME=" + t.TempDir()}
	s := &server{process: run(t, cmd)}
	t.Cleanup(func() { s.stop(t) })
	s.wait(t, func() error {
		if s.gateway = s.url("gateway"); s.gateway == "" || s.url("admin") == "" {
			return errors.New("stint does not listen")
		}
		return nil
	})
	for range 10 {
		answer, err := http.Get(s.gateway + "/search/cats")
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
	}
	const limit = 70 << 20
	// What the start needed is given back in the background, which takes long on a busy machine.
	eventually(t, 2*time.Minute, func() error {
		resident, _ := s.rss(t)
		if resident > limit {
			return fmt.Errorf("%d MB are resident, want at most %d", resident>>20, limit>>20)
		}
		t.Logf("%d MB are resident", resident>>20)
		return nil
	})
}
