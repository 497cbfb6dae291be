//go:build torture

package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/torture"
)

// falls waits for memory to be given back, which happens in the background, and returns what is resident then,
// in MB.
func (p *process) falls(t testing.TB, most int64) int64 {
	t.Helper()
	var resident int64
	_ = testserver.Poll(2*time.Minute, func() error { // the caller judges
		if resident, _ = p.rss(t); resident > most {
			return errors.New("there is more")
		}
		return nil
	})
	return resident >> 20
}

// TestIdleMemory starts the demo, sends some requests, and measures its memory.
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
	const most = 70
	torture.AtMost(t, "MB of an idle stint", s.falls(t, most<<20), most)
}

// TestEnvoyIdleMemory serves Envoy for a while, and measures whether the memory which that took is given
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
	there, _ := theirs.process.rss(t)
	most := there * 5 / 2
	torture.AtMost(t, "MB of an idle stint that has served Envoy", ours.server.falls(t, most), most>>20)
}
