package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/testserver"
)

// TestDoctorLinks examines a region that another one accepts, refuses, or does not answer, and rules that they share.
func TestDoctorLinks(t *testing.T) {
	t.Parallel()
	dir, eu := t.TempDir(), testserver.FreeAddr(t)
	write := func(own, other, secret, at, more string) string {
		path := filepath.Join(dir, own+secret[:3]+".toml")
		text := fmt.Sprintf("[server]\ndrain_delay = \"0\"\nlog_format = \"text\"\n[region]\nname = %q\nsecret = %q\n%s[[region.peers]]\nname = %q\nurl = \"http://%s\"\n", own, secret, more, other, at)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const secret, another = "the secret of regions", "not the secret of regions"
	listener := fmt.Sprintf("[region.listener]\naddress = %q\n", eu)
	h := serveIn(t, nil, "--config", write("eu", "us", secret, testserver.FreeAddr(t), listener), "--set", "server.http.address=127.0.0.1:0", "--set", "server.admin.address=127.0.0.1:0")
	h.logs(t, "msg=(ready) ")

	rules := `[[rules]]
name = "told"
regions = "gossip"
credit = 2
limits = [{ name = "fast", limit = "100/1s" }, { name = "slow", limit = "100/1h" }]
[[rules]]
name = "parts"
regions = "quota"
limits = [{ name = "few", limit = "9/1h" }, { name = "many", limit = "10/1h" }]
`
	us := write("us", "eu", secret, eu, "")
	code, all := examine(t, nil, append([]string{"--config", us, "--counters", testredis.Start(t).URL()}, elsewhere...)...)
	has(t, all, "regions.link", "ok", "^eu: http://"+eu+" accepts this region; a message there and back takes ")
	has(t, all, "regions.clock", "ok", "^eu: the clocks of the stores differ by ")
	if code != 0 {
		t.Errorf("exit code %d: %+v", code, all)
	}

	text, err := os.ReadFile(us)
	if err == nil {
		err = os.WriteFile(us, append(text, rules...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, all = examine(t, nil, append([]string{"--config", us}, elsewhere...)...)
	has(t, all, "rules.credit", "warn", "^told/fast: at the rate of the limit, the credit of 2 lasts for 20ms, and the others know after up to 1")
	has(t, all, "rules.quota", "warn", "^parts/few: the region us has 4 of 9 units")
	for _, f := range all {
		if f.Status == "warn" && (f.Check == "rules.credit" && f.Found[:9] != "told/fast" || f.Check == "rules.quota" && f.Found[:9] != "parts/few") {
			t.Errorf("%+v", f)
		}
	}
	_, all = examine(t, nil, append([]string{"--config", us, "--set", "server.replicas=3"}, elsewhere...)...)
	has(t, all, "rules.credit", "warn", "^told/slow: the credit is 2, and this region has 3 nodes")

	code, all = examine(t, nil, append([]string{"--config", write("us", "eu", another, eu, "")}, elsewhere...)...)
	has(t, all, "regions.link", "fail", "^eu: http://"+eu+" refuses this region: .*secret")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	h.signal(t, syscall.SIGTERM)
	if code := h.ends(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	code, all = examine(t, nil, append([]string{"--config", us}, elsewhere...)...)
	has(t, all, "regions.link", "fail", "^eu: http://"+eu+" cannot be reached: .*connection refused")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
}
