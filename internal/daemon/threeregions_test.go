package daemon_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/testdoc"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/rule"
)

// TestThreeRegions starts all three regions of each file of deploy/config, and of those that docs/regions.md shows: they
// find each other, and every rule of theirs decides in each of them.
func TestThreeRegions(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../deploy/config/regions-*.toml")
	do(t, err)
	texts, more := map[string]string{}, ""
	for _, b := range testdoc.In(t, "docs/regions.md", "toml") {
		switch {
		case strings.Contains(b.Text, "[region]"):
			texts[b.String()] = b.Text
		case strings.Contains(b.Text, "[[rules]]"): // and not the settings of a database
			more += b.Text
		}
	}
	if len(texts) != 2 {
		t.Errorf("docs/regions.md has %d files of a region, want 2: with a secret, and with certificates alone", len(texts))
	}
	for where := range texts {
		texts[where] += more
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		do(t, err)
		texts[file] = string(text)
	}
	for where, text := range texts {
		t.Run(filepath.Base(where), func(t *testing.T) { // one after the other: each has three daemons and three Redis servers
			w := newWorld(t, text)
			var all []*process
			for i := range w.names {
				all = append(all, w.start(t, i))
			}
			for _, p := range all {
				p.becomes(t, "regions", "ok", "")
			}
			for i := range w.rules {
				w.ask(t, all, &w.rules[i])
			}
		})
	}
}

// world is three regions, of which a file describes one.
type world struct {
	text  string // without peers
	dir   string // in place of /etc/stint
	rules []rule.Rule
	// Of each region:
	names, addresses []string
	weights          []int
}

const httpToken = "the-token-of-their-services"

var (
	peerTable = regexp.MustCompile(`(?m)^\[\[region\.peers\]\]\n(\w+ *= .*\n)+`)
	worldURL  = regexp.MustCompile(`^https://stint\.([\w-]+)\.example\.com:7443$`)
)

func newWorld(t *testing.T, text string) *world {
	t.Helper()
	w := &world{dir: t.TempDir()}
	put(t, filepath.Join(w.dir, "http.token"), httpToken)
	put(t, filepath.Join(w.dir, "region.secret"), "the secret of three regions")
	testserver.WritePair(t, filepath.Join(w.dir, "tls.crt"), filepath.Join(w.dir, "tls.key"), "of no region")
	put(t, filepath.Join(w.dir, "regions-ca.crt"), string(mustRead(t, filepath.Join(w.dir, "tls.crt"))))
	text = strings.ReplaceAll(text, "/etc/stint", w.dir)
	c := load(t, text)
	w.rules, w.text = c.Rules, peerTable.ReplaceAllString(text, "")
	w.add(t, c.Region.Name, c.Region.Weight)
	for _, p := range c.Region.Peers {
		if m := worldURL.FindStringSubmatch(string(p.URL)); m == nil || m[1] != p.Name {
			t.Errorf("region %s is at %s", p.Name, p.URL)
		}
		w.add(t, p.Name, p.Weight)
	}
	if len(w.names) != 3 || strings.Contains(w.text, "region.peers") {
		t.Fatalf("the regions %v, and\n%s", w.names, w.text)
	}
	return w
}

// add adds a region, with a certificate that all of them trust.
func (w *world) add(t *testing.T, name string, weight int) {
	t.Helper()
	w.names, w.weights, w.addresses = append(w.names, name), append(w.weights, weight), append(w.addresses, testserver.FreeAddr(t))
	cert := filepath.Join(w.dir, name+".crt")
	testserver.WritePair(t, cert, filepath.Join(w.dir, name+".key"), name)
	ca := filepath.Join(w.dir, "regions-ca.crt")
	put(t, ca, string(mustRead(t, ca))+string(mustRead(t, cert)))
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	do(t, err)
	return text
}

// start starts a region, with a Redis of its own.
func (w *world) start(t *testing.T, i int) *process {
	t.Helper()
	text := w.text
	for j, name := range w.names {
		if j == i {
			continue
		}
		text += fmt.Sprintf("\n[[region.peers]]\nname = %q\nurl = \"https://%s\"\n", name, w.addresses[j])
		if w.weights[j] > 0 {
			text += fmt.Sprintf("weight = %d\n", w.weights[j])
		}
	}
	flags := []daemon.Flag{
		set("server.counters", testredis.Start(t).URL()), set("region.name", w.names[i]), set("region.interval", "100ms"), set("region.listener.address", w.addresses[i]),
		set("region.listener.tls_cert", filepath.Join(w.dir, w.names[i]+".crt")), set("region.listener.tls_key", filepath.Join(w.dir, w.names[i]+".key")),
		set("region.listener.tls_client_ca", filepath.Join(w.dir, "regions-ca.crt")), // which the machine does not trust by itself
	}
	if w.weights[i] > 0 {
		flags = append(flags, set("region.weight", strconv.Itoa(w.weights[i])))
	}
	return start(t, text, flags...)
}

// decided is a limit of an answer.
type decided struct {
	Rule, Basis string
	Max         int64
}

// ask has each region make a decision of a rule: in all of them the limit holds, or a part of it, which add up.
func (w *world) ask(t *testing.T, all []*process, r *rule.Rule) {
	t.Helper()
	path, method, whole := "/", http.MethodGet, r.Limits[0]
	if len(r.Match.Paths) > 0 {
		path = strings.ReplaceAll(r.Match.Paths[0], "**", "x")
	}
	if len(r.Match.Methods) > 0 {
		method = r.Match.Methods[0]
	}
	body := fmt.Sprintf(`{"path": %q, "method": %q, "user": "alice", "tenant": "acme", "ip": "192.0.2.1"}`, path, method)
	value, err := whole.Value()
	do(t, err)
	var parts []int64
	for i, p := range all {
		text, at := "", -1
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("the rule %s in %s: %s", r.Name, w.names[i], text)
			}
		})
		var answer struct {
			Allowed bool
			Limits  []decided
		}
		wait.For(t, "a decision of "+r.Name+" in "+w.names[i], func() bool { // a busy machine may make one locally
			_, text = p.send(t, p.client, http.MethodPost, p.URL("http")+"/v1/check", body, "Authorization", "Bearer "+httpToken)
			answer.Allowed, answer.Limits = false, nil
			do(t, json.Unmarshal([]byte(text), &answer))
			at = slices.IndexFunc(answer.Limits, func(l decided) bool { return l.Rule == r.Name })
			return answer.Allowed && at >= 0 && answer.Limits[at].Basis == ""
		})
		parts = append(parts, answer.Limits[at].Max)
	}
	sum, want := int64(0), value.Max*int64(len(all))
	for _, n := range parts {
		sum += n
	}
	if r.Regions == rule.RegionsQuota {
		want = value.Max
	}
	if sum != want {
		t.Errorf("the rule %s: the regions have %v of %d", r.Name, parts, value.Max)
	}
}
