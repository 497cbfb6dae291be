package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"sync"
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

// TestEnvoyIdleMemory serves Envoy for a while, and checks that the memory which that took is given
// back: a server that is idle again has at most 2.5 times the memory of the reference.
func TestEnvoyIdleMemory(t *testing.T) {
	t.Parallel()
	dir := writeDomains(t, countedDomains)
	theirs, ours := startReference(t, dir), serveEnvoy(t, dir, inRedis(t)...)
	for _, p := range []*peer{theirs, ours.peer} {
		var work sync.WaitGroup
		for i := range 8 {
			work.Go(func() {
				q := short(t, fmt.Sprintf("shop: user=%d", i))
				for range 2000 {
					if _, err := p.try(t, q); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		work.Wait()
	}
	const most = 2.5
	eventually(t, 2*time.Minute, func() error {
		there, _ := theirs.process.rss(t)
		here, _ := ours.rss(t)
		if ratio := float64(here) / float64(there); ratio > most {
			return fmt.Errorf("%d MB are resident, %.1f times those of the reference, want at most %v", here>>20, ratio, most)
		}
		t.Logf("%d MB are resident, and %d MB of the reference", here>>20, there>>20)
		return nil
	})
}
