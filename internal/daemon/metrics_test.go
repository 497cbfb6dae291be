package daemon_test

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/testdoc"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/wait"
)

// series returns the series of the daemon with their values, without those of Go and the
// process.
func (p *process) series(t testing.TB) map[string]string {
	t.Helper()
	_, text := p.get(t, "admin", "/metrics")
	out := map[string]string{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "stint_") {
			i := strings.LastIndexByte(line, ' ')
			out[line[:i]] = strings.TrimSpace(line[i:])
		}
	}
	return out
}

// TestFlood sends requests that all differ in every field. No series is added.
func TestFlood(t *testing.T) {
	t.Parallel()
	p := start(t, few+"[[rules]]\nname = \"per-path\"\nmatch = { paths = [\"/**\"] }\ncount_by = [\"user\", \"endpoint\", \"header:X-App\"]\nlimits = [{ name = \"all\", limit = \"1/1h\" }]\n"+
		"[identity]\ntrusted_proxies = [\"127.0.0.1\"]\nuser_header = \"X-User\"\n[[api_keys]]\nid = \"abcdefgh\"\nhash = \"sha256:"+someSum+"\"\n"+
		"[identity.jwt]\nsecret = \""+secret+"\"\n"+echo(t))
	send := func(i int) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL("gateway")+"/"+strconv.Itoa(i), nil)
		do(t, err)
		r.Host = fmt.Sprintf("host-%d.example", i)
		r.Header.Set("X-Forwarded-For", fmt.Sprintf("10.%d.%d.1", i/250, i%250))
		r.Header.Set("X-App", fmt.Sprint("app-", i))
		switch i % 3 {
		case 0:
			r.Header.Set("X-User", fmt.Sprint("user-", i))
		case 1:
			r.Header.Set("X-Api-Key", fmt.Sprintf("stint_%08d_123456789012345678901234567", i))
		default:
			r.Header.Set("Authorization", fmt.Sprint("Bearer ", i, ".", i, ".", i))
		}
		answer, err := p.client.Do(r)
		do(t, err)
		do(t, answer.Body.Close())
	}
	for i := range 30 {
		send(i)
	}
	before := p.series(t)
	for i := range 300 {
		send(1000 + i)
	}
	after := p.series(t)
	if !slices.Equal(slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after))) || len(after) > 100 {
		t.Errorf("%d series, and then %d", len(before), len(after))
	}
	const unauthorized = `stint_decisions_total{outcome="unauthorized",rule="",source="ip"}`
	if got := after[unauthorized]; got != "220" {
		t.Errorf("%s keys and tokens were not accepted, want 220: %v", got, after)
	}
	if got := after[`stint_credentials_unaccepted_total{reason="token_malformed"}`]; got != "110" {
		t.Errorf("%s tokens were not accepted, want 110: %v", got, after)
	}
}

// TestRulesVanish replaces the rules. Those that were removed have no series any more, and
// others keep theirs.
func TestRulesVanish(t *testing.T) {
	t.Parallel()
	p := start(t, few+many)
	other := strings.ReplaceAll(few, `"few"`, `"other"`)
	check(t, p)
	const of = `stint_decisions_total{outcome="allowed",rule="%s",source="ip"}`
	if s := p.series(t); s[fmt.Sprintf(of, "few")] != "1" || s["stint_rules"] != "2" {
		t.Error(s)
	}
	put(t, p.path, other+many)
	do(t, p.Reload(t.Context()))
	check(t, p)
	if s := p.series(t); s[fmt.Sprintf(of, "few")] != "" || s[fmt.Sprintf(of, "other")] != "1" {
		t.Error(s)
	}
	put(t, p.path, few+other)
	do(t, p.Reload(t.Context()))
	check(t, p)
	if s := p.series(t); s[fmt.Sprintf(of, "few")] == "" && s[fmt.Sprintf(of, "other")] != "2" {
		t.Error(s)
	}
}

// TestMetrics checks that a daemon has exactly the documented metrics, and that
// docs/metrics.md has their table.
func TestMetrics(t *testing.T) {
	t.Parallel()
	redis := testredis.Start(t)
	_, _, database, replica := fillPair(t, many+"[[rules]]\nname = \"tried\"\naction = \"log_only\"\nlimits = [{ name = \"none\", limit = \"1/1h\" }]\n[[rules]]\nname = \"told\"\nregions = \"gossip\"\nlimits = [{ name = \"l\", limit = \"1000/1h\" }]\n")
	names, addresses := []string{"asia", "europe"}, []string{testserver.FreeAddr(t), testserver.FreeAddr(t)}
	start(t, regionsText(0, names, addresses, few))
	p := startIn(t, []string{"STATE_DIRECTORY=" + t.TempDir()}, "[server]\ncounters = \""+redis.URL()+"\"\ndatabase = \""+database+"\"\ncatalog = { last_good = \"none\" }\n"+
		"[identity.jwt]\nsecret = \""+secret+"\"\n"+regionsText(1, names, addresses, echo(t)), set("envoy.config", write(t, "shop.yaml", shop)), set("envoy.quota_term", "1s"), set("server.database_replica", replica))
	p.becomes(t, "regions", "ok", "")
	p.commit(t, p.reserve(t))
	for range 3 {
		check(t, p)
	}
	answer, err := p.client.Post(p.URL("http")+"/v1/check", "application/json", strings.NewReader(`{"method": "GET", "path": "/", "user": "alice", "tenant": "acme", "api_key": "abcdefgh"}`))
	do(t, err)
	do(t, answer.Body.Close())
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL("gateway"), nil)
	do(t, err)
	r.Header.Set("Authorization", "Bearer nonsense")
	answer, err = p.client.Do(r)
	do(t, err)
	do(t, answer.Body.Close())
	answer, err = p.client.Post(p.URL("http")+"/json", "application/json",
		strings.NewReader(`{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "alice"}]}]}`))
	do(t, err)
	do(t, answer.Body.Close())
	p.lease(t, "many:many")
	p.quota(t, map[string]string{"user": "alice"})
	wait.For(t, "the other region has answered", func() bool {
		_, text := p.get(t, "admin", "/metrics")
		return strings.Contains(text, "\nstint_region_round_trip_seconds{")
	})
	_, text := p.get(t, "admin", "/metrics")
	var has, want []string
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "# TYPE stint_"); ok {
			has = append(has, "stint_"+strings.TrimSpace(rest))
		}
	}
	table := "\n| metric | type | labels | meaning |\n|---|---|---|---|\n"
	for _, m := range daemon.Metrics() {
		want = append(want, m.Name+" "+m.Type)
		labels := ""
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		table += "| `" + m.Name + "` | " + m.Type + " | " + labels + " | " + m.Help + " |\n"
	}
	slices.Sort(want)
	if !slices.Equal(has, want) {
		t.Errorf("it has\n%s\nwant\n%s", strings.Join(has, "\n"), strings.Join(want, "\n"))
	}
	keepTable(t, "../../docs/metrics.md", "metrics", table)
}

// TestDocumentedAlerts checks that the alerts of docs/metrics.md are about metrics and labels
// that exist.
func TestDocumentedAlerts(t *testing.T) {
	t.Parallel()
	labels := map[string][]string{}
	for _, m := range daemon.Metrics() {
		labels[m.Name] = m.Labels
		if m.Type == "histogram" {
			labels[m.Name+"_bucket"], labels[m.Name+"_count"] = append(slices.Clone(m.Labels), "le"), m.Labels
		}
	}
	for _, b := range testdoc.In(t, "docs/metrics.md", "yaml") {
		var rules struct {
			Groups []struct {
				Name  string
				Rules []struct {
					Alert, Expr string
					For         time.Duration
					Annotations map[string]string
				}
			}
		}
		d := yaml.NewDecoder(strings.NewReader(b.Text))
		d.KnownFields(true)
		if err := d.Decode(&rules); err != nil || len(rules.Groups) == 0 || len(rules.Groups[0].Rules) == 0 {
			t.Fatalf("%s: %v, %v", b, rules, err)
		}
		for _, g := range rules.Groups {
			for _, r := range g.Rules {
				for _, m := range regexp.MustCompile(`(stint_\w+)(?:\{(\w+)=)?`).FindAllStringSubmatch(r.Expr, -1) {
					if known, ok := labels[m[1]]; !ok || m[2] != "" && !slices.Contains(known, m[2]) {
						t.Errorf("%s: %s: there is no %s", b, r.Alert, m[0])
					}
				}
			}
		}
	}
}

// keepTable checks that a document has the table between its marks, or puts it there.
func keepTable(t *testing.T, path, name, table string) {
	t.Helper()
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->\n"
	text, err := os.ReadFile(path)
	do(t, err)
	before, rest, ok := strings.Cut(string(text), begin)
	old, after, found := strings.Cut(rest, end)
	switch table += "\n"; {
	case !ok || !found:
		t.Fatalf("%s has no place for the table of %s", path, name)
	case table != old && !*update:
		t.Errorf("%s has another table of %s: go test ./internal/daemon -update", path, name)
	case table != old:
		do(t, os.WriteFile(path, []byte(before+begin+table+end+after), 0o644))
	}
}
