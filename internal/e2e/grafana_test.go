package e2e_test

import (
	"encoding/json"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// documentedMetrics are the metrics of docs/metrics.md, which a test of internal/daemon writes, and their labels.
func documentedMetrics(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{
		// Of the process, which every program has.
		"process_cpu_seconds_total": nil, "process_resident_memory_bytes": nil, "process_open_fds": nil, "process_max_fds": nil,
	}
	row := regexp.MustCompile("(?m)^\\| `(stint_[a-z_]+)` \\| (\\w+) \\| ([^|]*) \\|")
	for _, m := range row.FindAllStringSubmatch(read(t, "../../docs/metrics.md"), -1) {
		labels := strings.FieldsFunc(m[3], func(r rune) bool { return strings.ContainsRune("`, ", r) })
		if m[2] == "histogram" {
			out[m[1]+"_bucket"], out[m[1]+"_count"] = append(slices.Clone(labels), "le"), labels
			continue
		}
		out[m[1]] = labels
	}
	return out
}

// TestGrafana checks the dashboards: Prometheus can parse each expression, every metric and every label exists, and no two panels are in
// the same place.
func TestGrafana(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../deploy/grafana/*.json")
	if err != nil || len(files) < 4 {
		t.Fatalf("%q, %v", files, err)
	}
	metrics := documentedMetrics(t)
	seen := map[string]bool{}
	var rules struct {
		Groups []group `yaml:"groups"`
	}
	for _, file := range files {
		var board struct {
			UID, Title string
			Panels     []panel
			Templating struct{ List []struct{ Name string } }
		}
		if err := json.Unmarshal([]byte(read(t, file)), &board); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if board.UID+".json" != filepath.Base(file) {
			t.Errorf("%s has the identifier %q", file, board.UID)
		}
		var names []string
		for _, v := range board.Templating.List {
			names = append(names, v.Name)
		}
		if !slices.Equal(names, []string{"datasource", "job", "instance"}) {
			t.Errorf("%s has the variables %q", file, names)
		}
		g := group{Name: board.UID}
		for i, p := range board.Panels {
			for _, other := range board.Panels[:i] {
				if p.ID == other.ID || p.GridPos.overlaps(other.GridPos) {
					t.Errorf("%s: %q and %q are in the same place", file, other.Title, p.Title)
				}
			}
			if p.Type == "row" {
				continue
			}
			if len(p.Targets) == 0 || p.Title == "" {
				t.Errorf("%s: panel %d shows nothing", file, p.ID)
			}
			for _, target := range p.Targets {
				expr := strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
				g.Rules = append(g.Rules, recorded{Record: "checked", Expr: expr})
				for name := range checkNames(t, file+": "+p.Title, expr, metrics) {
					seen[name] = true
				}
			}
		}
		rules.Groups = append(rules.Groups, g)
	}
	text, err := yaml.Marshal(rules)
	if err != nil {
		t.Fatal(err)
	}
	all := filepath.Join(t.TempDir(), "rules.yml")
	write(t, all, string(text))
	if out, err := exec.Command(tool(t, "promtool"), "check", "rules", "--lint=none", all).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	// What an operator has to look at is on one of them.
	for name := range metrics {
		if strings.HasPrefix(name, "stint_envoy_") || seen[name] || seen[strings.TrimSuffix(name, "_count")+"_bucket"] || seen[strings.TrimSuffix(name, "_bucket")+"_count"] {
			continue
		}
		if !slices.Contains(notShown, name) {
			t.Errorf("no dashboard shows %s", name)
		}
	}
}

// notShown are metrics for which a dashboard has no room: what they say is in an alert, or beside what is shown.
var notShown = []string{
	"stint_model_answers_total", "stint_rules", "stint_config_loaded_timestamp_seconds", "stint_config_needs_restart", "stint_lease_counters",
	"stint_lease_others_most_units", "stint_lease_most_used_ratio", "stint_lease_full_total", "stint_database_replica_up",
	"stint_database_replica_lag_revisions", "stint_catalog_loads_total", "stint_directory_entries", "stint_record_usage_other_total",
}

type group struct {
	Name  string     `yaml:"name"`
	Rules []recorded `yaml:"rules"`
}

type recorded struct {
	Record string `yaml:"record,omitempty"`
	Alert  string `yaml:"alert,omitempty"`
	Expr   string `yaml:"expr"`
}

type panel struct {
	ID      int
	Type    string
	Title   string
	GridPos gridPlace
	Targets []struct{ Expr string }
}

type gridPlace struct{ X, Y, W, H int }

func (p gridPlace) overlaps(o gridPlace) bool {
	return p.X < o.X+o.W && o.X < p.X+p.W && p.Y < o.Y+o.H && o.Y < p.Y+p.H
}

var (
	metricName = regexp.MustCompile(`\b((?:stint|process)_[a-z_]+)(\{[^}]*\})?`)
	labelName  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"`)
	byLabels   = regexp.MustCompile(`\bby \(([^)]*)\)`)
)

// checkNames returns the metrics of an expression. Each must exist, with the labels that are asked for.
func checkNames(t *testing.T, where, expr string, metrics map[string][]string) map[string]bool {
	t.Helper()
	out, labels := map[string]bool{}, []string{"job", "instance"}
	for _, m := range metricName.FindAllStringSubmatch(expr, -1) {
		has, ok := metrics[m[1]]
		if !ok {
			t.Errorf("%s: there is no %s", where, m[1])
		}
		out[m[1]] = true
		labels = append(labels, has...)
		for _, l := range labelName.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(append([]string{"job", "instance"}, has...), l[1]) {
				t.Errorf("%s: %s has no label %s", where, m[1], l[1])
			}
		}
	}
	for _, m := range byLabels.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(m[1], ",") {
			if !slices.Contains(labels, strings.TrimSpace(l)) {
				t.Errorf("%s: nothing in it has the label %s", where, l)
			}
		}
	}
	return out
}

// TestRecordingRules checks the rules that record, and those that alert: each one fires in a test, and what they ask for exists.
func TestRecordingRules(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"check", "rules", "recording.yml"}, {"test", "rules", "recording_test.yml"}} {
		cmd := exec.Command(tool(t, "promtool"), args...)
		cmd.Dir = "../../deploy/prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	metrics := documentedMetrics(t)
	fires, asks := map[string]bool{}, map[string]bool{}
	var tests struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string
				Expected  []any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "../../deploy/prometheus/alerts_test.yml")), &tests); err != nil {
		t.Fatal(err)
	}
	for _, one := range tests.Tests {
		for _, a := range one.AlertRuleTest {
			fires[a.Alertname] = fires[a.Alertname] || len(a.Expected) > 0
		}
	}
	for _, file := range []string{"alerts.yml", "recording.yml"} {
		var rules struct{ Groups []group }
		if err := yaml.Unmarshal([]byte(read(t, "../../deploy/prometheus/"+file)), &rules); err != nil {
			t.Fatal(err)
		}
		for _, g := range rules.Groups {
			for _, r := range g.Rules {
				maps.Copy(asks, checkNames(t, file+": "+r.Alert+r.Record, r.Expr, metrics))
				if r.Alert != "" && !fires[r.Alert] {
					t.Errorf("no test has the alert %s fire", r.Alert)
				}
			}
		}
	}
	if len(asks) < 10 {
		t.Errorf("the rules ask for %v only", asks)
	}
}
