package e2e_test

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/internal/test/wait"
)

// outage is a fault of Redis, and how to end it.
type outage struct {
	url        string
	server     string // that health names
	client     string // an address whose counter is there
	other      string // one whose counter is on another server; empty: there is none
	begin, end func(t *testing.T)
	doctor     string // what stint doctor finds
}

// onServer returns a fault of one server that commands make and end.
func onServer(doctor string, begin, end func(*testing.T, *testredis.Server)) func(*testing.T) outage {
	return func(t *testing.T) outage {
		t.Helper()
		s := testredis.Start(t)
		return outage{
			url: s.URL(), server: s.Addr(), client: "192.0.2.1", doctor: doctor,
			begin: func(t *testing.T) { t.Helper(); begin(t, s) }, end: func(t *testing.T) { t.Helper(); end(t, s) },
		}
	}
}

// basis returns what a decision about an address rests on.
func (s *server) basis(t testing.TB, ip string) string {
	t.Helper()
	var v struct {
		Limits []struct{ Basis string }
	}
	if err := post(http.DefaultClient, s.api+"/v1/check", fmt.Sprintf(`{"path": "/", "ip": %q}`, ip), &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Limits) != 1 {
		t.Fatalf("%+v", v)
	}
	return cmp.Or(v.Limits[0].Basis, "counted")
}

// decides waits until a decision about an address rests on something.
func (s *server) decides(t testing.TB, ip, want string) {
	t.Helper()
	wait.Nil(t, "what decides", func() error {
		if b := s.basis(t, ip); b != want {
			return fmt.Errorf("%s is decided by %s, want %s", ip, b, want)
		}
		return nil
	})
}

// outages are the ways in which Redis fails: under make torture there are more.
var outages = map[string]func(*testing.T) outage{
	"killed": onServer("counters.reach", func(t *testing.T, s *testredis.Server) { t.Helper(); s.Kill(t) }, func(t *testing.T, s *testredis.Server) { t.Helper(); s.Restart(t) }),
}

// TestHealthFollowsDecisions makes Redis fail, with and without requests.
// Health, metrics, the doctor and the alerts say that decisions are local, and which server is to blame; and
// when it is over, that they are not, and they are not.
func TestHealthFollowsDecisions(t *testing.T) {
	t.Parallel()
	for name, make := range outages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := make(t)
			config := fmt.Sprintf("[server]\ncounters = %q\nreplicas = 2\n[[rules]]\nname = \"all\"\ncount_by = [\"ip\"]\nlimits = [{ name = \"all\", limit = \"1000000/1h\" }]\n", o.url)
			s := serve(t, config, "STINT_SERVER_ADMIN_ADDRESS=127.0.0.1:0")
			s.ready(t, allWell)
			wait.Nil(t, "/metrics has the share of the server", func() error {
				return says(t, s.url("admin")+"/metrics", fmt.Sprintf("\nstint_redis_server_share{server=%q} ", o.server))
			})
			well := s.scrape(t)
			alerts(t, well, well, "")
			for _, busy := range []bool{false, true} {
				s.decides(t, o.client, "counted")
				s.ready(t, allWell)
				quit := func() {}
				if busy {
					quit = s.keepAsking(t, o.client)
				}
				watch := torture.Start(t)
				o.begin(t)
				s.ready(t, `"status": "degraded"`, "cannot be used", o.server)
				noticed := watch.Took()
				s.measures(t, "stint_redis_up 0", fmt.Sprintf("stint_redis_server_up{server=%q} 0", o.server))
				s.decides(t, o.client, "local")
				if o.other != "" {
					s.decides(t, o.other, "counted")
				}
				if busy {
					first := s.scrape(t)
					s.examine(t, o)
					alerts(t, first, s.scrape(t), "StintCountsAlone")
				}
				s.ready(t, `"status": "degraded"`, o.server) // it stays so
				o.end(t)
				end := watch.Took()
				s.decides(t, o.client, "counted")
				back := watch.Took() - end
				s.ready(t, allWell)
				well := watch.Took() - end
				s.measures(t, "stint_redis_up 1", fmt.Sprintf("stint_redis_server_up{server=%q} 1", o.server))
				quit()
				const promise = 2 * time.Second
				torture.AtMost(t, fmt.Sprintf("requests %t: health says so", busy), noticed, promise)
				torture.AtMost(t, fmt.Sprintf("requests %t: Redis decides again", busy), back, promise)
				torture.AtMost(t, fmt.Sprintf("requests %t: health says that all is well", busy), well, promise)
			}
		})
	}
}

// keepAsking asks for decisions about an address until the returned function is called.
func (s *server) keepAsking(t testing.TB, ip string) (quit func()) {
	t.Helper()
	end := make(chan struct{})
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			for {
				var v any
				if err := post(http.DefaultClient, s.api+"/v1/check", fmt.Sprintf(`{"path": "/", "ip": %q}`, ip), &v); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-end:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
	}
	return func() {
		close(end)
		work.Wait()
	}
}

// examine runs stint doctor, which finds the fault.
func (s *server) examine(t testing.TB, o outage) {
	t.Helper()
	cmd := exec.Command(program.path, "doctor", "--counters", o.url)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("stint doctor: exit code %d, %v\n%s", code, err, out)
	}
	host, _, _ := strings.Cut(o.server, ":")
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "fail  "+o.doctor+" ") && strings.Contains(line, host) {
			return
		}
	}
	t.Errorf("stint doctor does not find %s of %s:\n%s", o.doctor, o.server, out)
}

// scrape returns the metrics of Stint, by series.
func (s *server) scrape(t testing.TB) map[string]float64 {
	t.Helper()
	s.measures(t) // waits for the listener
	_, text := get(t, s.url("admin")+"/metrics")
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if series += "}"; !strings.Contains(line, "}") {
			series, value, _ = strings.Cut(strings.TrimSpace(line), " ")
		}
		if n, err := strconv.ParseFloat(value, 64); err == nil && strings.HasPrefix(series, "stint_") {
			out[series] = n
		}
	}
	return out
}

// alerts has Prometheus evaluate the documented alerts, for metrics that go on as they did between two
// scrapes. The alert fires; or none does, if it is empty.
func alerts(t testing.TB, first, second map[string]float64, want string) {
	t.Helper()
	rules, err := filepath.Abs("../../deploy/prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "rule_files: [%q]\nevaluation_interval: 15s\ntests:\n- interval: 15s\n  input_series:\n", rules)
	for series, value := range second {
		fmt.Fprintf(&b, "  - series: %s\n    values: %v+%vx60\n", strconv.Quote(series), first[series], value-first[series])
	}
	b.WriteString("  promql_expr_test:\n  - eval_time: 10m\n")
	if want == "" {
		b.WriteString("    expr: ALERTS{alertstate=\"firing\"}\n")
	} else {
		fmt.Fprintf(&b, "    expr: count(ALERTS{alertstate=\"firing\", alertname=%q})\n    exp_samples: [{ labels: \"{}\", value: 1 }]\n", want)
	}
	file := filepath.Join(t.TempDir(), "test.yml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(tool(t, "promtool"), "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s\n%s", err, out, b.String())
	}
}

// TestAlerts checks the alerts, and that they are those of the document.
func TestAlerts(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		cmd := exec.Command(tool(t, "promtool"), args...)
		cmd.Dir = "../../deploy/prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	rules, err := os.ReadFile("../../deploy/prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```yaml\n"+string(rules)+"```\n") {
		t.Error("docs/metrics.md does not show deploy/prometheus/alerts.yml")
	}
}
