// Package runner stands in for src/service_cmd/runner of envoyproxy/ratelimit, in a copy of
// its module, so that its own integration tests start Stint: see TestReferenceSuite in
// internal/e2e. It gives Stint the variables of the settings, and its metrics to the tests.
package runner

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kelseyhightower/envconfig"
	gostats "github.com/lyft/gostats"

	"github.com/envoyproxy/ratelimit/src/settings"
)

// Runner is a stint.
type Runner struct {
	cmd     *exec.Cmd
	log     *log
	started chan error
	ended   chan struct{}
	stop    *sync.Once
	stats   store
}

// NewRunner prepares a stint. SUITE_PROGRAM is its path. Its metrics are at PROMETHEUS_ADDR.
//
// The tests expect that no minute ends while they count to a limit, which takes a second: so it
// waits for the next one if this one ends soon.
func NewRunner(s settings.Settings) Runner {
	if now := time.Now(); now.Second() >= 50 {
		time.Sleep(now.Truncate(time.Minute).Add(time.Minute).Sub(now))
	}
	r := Runner{
		cmd: exec.Command(os.Getenv("SUITE_PROGRAM"), "serve", "--envoy-env"), log: new(log),
		started: make(chan error, 1), ended: make(chan struct{}), stop: new(sync.Once),
	}
	r.stats = store{gostats.NewStore(gostats.NewNullSink(), false), "http://" + os.Getenv("PROMETHEUS_ADDR") + "/metrics"}
	r.cmd.Env = append(os.Environ(), environ(s)...)
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log
	return r
}

// Run runs it. It panics if it fails, as the one of envoyproxy/ratelimit does.
func (r *Runner) Run() {
	defer close(r.ended)
	err := r.cmd.Start()
	r.started <- err
	if err == nil {
		err = r.cmd.Wait()
	}
	if err != nil {
		panic(fmt.Sprintf("stint: %v\n%s", err, r.log))
	}
}

// Stop stops it, and waits until it has ended.
func (r *Runner) Stop() {
	r.stop.Do(func() {
		if <-r.started == nil {
			_ = r.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		}
		<-r.ended
	})
}

// GetStatsStore returns the metrics of the stint.
func (r *Runner) GetStatsStore() gostats.Store { return r.stats }

// environ returns the variables of settings that are not the defaults.
func environ(s settings.Settings) (all []string) {
	var defaults settings.Settings
	if err := envconfig.Process("UNLIKELY", &defaults); err != nil {
		panic(err)
	}
	set, unset := reflect.ValueOf(s), reflect.ValueOf(defaults)
	for i := range set.NumField() {
		name := set.Type().Field(i).Tag.Get("envconfig")
		if name != "" && !reflect.DeepEqual(set.Field(i).Interface(), unset.Field(i).Interface()) {
			all = append(all, name+"="+text(set.Field(i).Interface()))
		}
	}
	return all
}

// text writes a value as envconfig reads it.
func text(value any) string {
	switch v := value.(type) {
	case []string:
		return strings.Join(v, ",")
	case map[string]string:
		var pairs []string
		for k, v := range v {
			pairs = append(pairs, k+":"+v)
		}
		slices.Sort(pairs)
		return strings.Join(pairs, ",")
	}
	return fmt.Sprint(value)
}

// store is a store whose counters and gauges have the values of metrics.
type store struct {
	base
	url string // of the metrics
}

type base = gostats.Store // by a name that is not that of its method

func (s store) NewCounter(name string) gostats.Counter { return s.NewCounterWithTags(name, nil) }

func (s store) NewCounterWithTags(name string, tags map[string]string) gostats.Counter {
	c := s.base.NewCounterWithTags(name, tags)
	c.Set(s.value(name, tags))
	return c
}

func (s store) NewGauge(name string) gostats.Gauge {
	g := s.base.NewGauge(name)
	g.Set(s.value(name, nil))
	return g
}

// value returns the value of a statistic; 0 if there is none.
func (s store) value(name string, tags map[string]string) uint64 {
	var limit, kind string
	if rest, ok := strings.CutPrefix(name, "ratelimit.service.rate_limit."); ok {
		i := strings.LastIndexByte(rest, '.')
		limit, kind = rest[:i], rest[i+1:]
	}
	labels := []string{}
	for k, v := range tags {
		labels = append(labels, fmt.Sprintf("%s=%q", k, v))
	}
	flat := strings.ReplaceAll(name, ".", "_")
	if slices.Contains([]string{"total_hits", "within_limit", "near_limit", "over_limit", "shadow_mode"}, kind) {
		domain, key, _ := strings.Cut(limit, ".")
		flat = "ratelimit_service_rate_limit_" + kind
		labels = append(labels, fmt.Sprintf("domain=%q", domain), fmt.Sprintf("key1=%q", key))
	}
	return sum(s.url, flat, labels)
}

// sum returns the sum of the series of a metric that have the labels.
func sum(url, metric string, labels []string) (total uint64) {
	client := http.Client{Timeout: 10 * time.Second}
	answer, err := client.Get(url)
	if err != nil {
		panic(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		series, value, _ := strings.Cut(lines.Text(), " ")
		name, rest, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		has := strings.Split(rest, ",")
		if name != metric || slices.ContainsFunc(labels, func(l string) bool { return !slices.Contains(has, l) }) {
			continue
		}
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			panic(err)
		}
		total += n
	}
	return total
}

// log is what a stint writes.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
