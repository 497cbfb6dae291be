package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
[[rules]]
name = "paid"
match = { tiers = ["pro"] }
regions = "quota"
limits = [{ name = "replaced", limit = "2/1h" }]
[[tiers]]
name = "free"
limits = { slow = "100/1s", many = "8/1h", few = "unlimited" }
[[tiers]]
name = "pro"
limits = { slow = "1000/1h", many = "1000/1h", replaced = "1000/1h" }
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
	has(t, all, "rules.credit", "warn", "^told/slow of the tier free: at the rate of the limit, the credit of 2 lasts for 20ms")
	has(t, all, "rules.quota", "warn", "^parts/few: the region us has 4 of 9 units")
	has(t, all, "rules.quota", "warn", "^parts/many of the tier free: the region eu has 4 of 8 units")
	has(t, all, "rules.quota", "warn", "^parts/many of the tier free: the region us has 4 of 8 units")
	warned := 0
	for _, f := range all {
		if f.Status == "warn" && (f.Check == "rules.credit" || f.Check == "rules.quota") {
			warned++
		}
	}
	if warned != 5 {
		t.Errorf("%d warnings, want 5: %+v", warned, all)
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

// TestDoctorTLS examines a region whose links are over TLS, with a secret, with certificates, and with what other regions
// do not accept.
func TestDoctorTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	var trusted []byte
	for _, name := range []string{"eu", "us", "asia", "stranger"} {
		testserver.WritePair(t, path(name+".crt"), path(name+".key"), strings.Replace(name, "stranger", "us", 1))
		if text, err := os.ReadFile(path(name + ".crt")); err != nil {
			t.Fatal(err)
		} else if name != "stranger" {
			trusted = append(trusted, text...)
		}
	}
	if err := os.WriteFile(path("ca.crt"), trusted, 0o600); err != nil {
		t.Fatal(err)
	}
	secret, ca := "secret = \"the secret of regions\"\n", fmt.Sprintf("tls_client_ca = %q\n", path("ca.crt"))
	pair := func(name string) string {
		return fmt.Sprintf("tls_cert = %q\ntls_key = %q\n", path(name+".crt"), path(name+".key"))
	}
	// configure writes the file of a region, and returns arguments with it.
	configure := func(file, own, other, url, region, listener string) []string {
		text := fmt.Sprintf("[server]\ndrain_delay = \"0\"\nlog_format = \"text\"\n[region]\nname = %q\n%s[region.listener]\n%s[[region.peers]]\nname = %q\nurl = %q\n", own, region, listener, other, url)
		if err := os.WriteFile(path(file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return append([]string{"--config", path(file)}, elsewhere...)
	}
	var servers []*server
	serve := func(file, region, listener string) (address string) {
		address = testserver.FreeAddr(t)
		h := serveIn(t, nil, configure(file, "eu", "us", "https://"+testserver.FreeAddr(t), region, fmt.Sprintf("address = %q\n", address)+listener)...)
		h.logs(t, "msg=(ready) ")
		servers = append(servers, h)
		return address
	}
	byCertificate := serve("certificate.toml", "", pair("eu")+ca)
	bySecret := serve("secret.toml", secret, pair("eu"))
	const refused = " refuses this region: "
	// A server that rejects a certificate may close the connection before the client has read why.
	cases := map[string]struct{ url, region, listener, status, found string }{
		"certificates":       {"https://" + byCertificate, "", pair("us") + ca, "ok", " accepts this region; a message there and back takes "},
		"a secret":           {"https://" + bySecret, secret, pair("us") + ca, "ok", " accepts this region; a message there and back takes "},
		"another region's":   {"https://" + byCertificate, "", pair("asia") + ca, "fail", refused + ".*certificate: the certificate is not for region us"},
		"of no authority":    {"https://" + byCertificate, "", pair("stranger") + ca, "fail", " cannot be reached: "},
		"no certificate":     {"https://" + byCertificate, secret, "", "fail", " cannot be reached: "},
		"another secret":     {"https://" + bySecret, "secret = \"not the secret of regions\"\n", pair("us") + ca, "fail", refused + ".*secret: another secret than region eu has"},
		"of the machine":     {"https://" + bySecret, secret, "", "fail", " cannot be reached: .*unknown authority"},
		"without encryption": {"http://" + bySecret, secret, "", "fail", " cannot be reached: "},
	}
	t.Run("examine", func(t *testing.T) { // until all have ended
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				code, all := examine(t, nil, configure(name+".toml", "us", "eu", c.url, c.region, c.listener)...)
				has(t, all, "regions.link", c.status, "^eu: "+c.url+c.found)
				if (code == 0) != (c.status == "ok") {
					t.Errorf("exit code %d: %+v", code, all)
				}
			})
		}
	})
	for _, h := range servers {
		h.signal(t, syscall.SIGTERM)
		if code := h.ends(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}
