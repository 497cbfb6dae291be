package e2e_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stintdev/stint/internal/test/wait"
)

// gatewayRule is named as Envoy Gateway's translator names the limits of a route, by which its dashboard finds them.
const gatewayRule = "httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example"

// countedDomains have one limit of each kind of name. All last a year, so that no window ends
// during a test.
var countedDomains = map[string]string{
	"gateway": `
domain: eg/http
descriptors:
  - key: ` + gatewayRule + `
    value: ` + gatewayRule + `
    descriptors:
      - key: rule-0-match-0
        value: rule-0-match-0
        rate_limit: {unit: year, requests_per_unit: 4}
`,
	"shop": `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 10}
  - key: plan
    value: free
    rate_limit: {unit: year, requests_per_unit: 7}
  - key: closed
    rate_limit: {unit: year, requests_per_unit: 0}
  - key: open
    rate_limit: {unlimited: true}
  - key: watched
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: host
    detailed_metric: true
    rate_limit: {unit: year, requests_per_unit: 6}
  - key: file
    value: img/*
    share_threshold: true
    rate_limit: {unit: year, requests_per_unit: 20}
  - key: a
    value_to_metric: true
    descriptors:
      - key: b
        rate_limit: {unit: year, requests_per_unit: 9}
        descriptors:
          - key: c
            rate_limit: {unit: year, requests_per_unit: 9}
          - key: d
            value: x
            rate_limit: {unit: year, requests_per_unit: 9}
`,
	"dotted": `
domain: with.dots
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 3}
`,
}

// countedRequests are played in a random order, with random numbers of hits.
var countedRequests = []string{
	"user=x", "user=y", "plan=free", "closed=x", "open=x", "watched=x", "host=www.example.com", "host=10.0.0.1:8080", "host=a|b", "host",
	"file=img/1", "file=img/2", "a=1,b=2", "a=2,b=2", "a=1,b=2,c=3", "a=1,b=2,d=x", "unknown=x", "user=z limit=4/YEAR", "user=x | plan=free | watched=x",
}

// play sends the same random requests to all, and some that are special.
func play(t *testing.T, peers ...*peer) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("the seed is %d", seed)
	m := rand.New(rand.NewPCG(seed, 0))
	var texts []string
	for range 300 {
		texts = append(texts, fmt.Sprintf("shop hits=%d: %s", m.IntN(4), countedRequests[m.IntN(len(countedRequests))]))
	}
	texts = append(texts, "with.dots: user=x", "with.dots hits=5: user=x", "nowhere: user=x | user=y", "no-where: user=x", ": user=x", "shop: ")
	for range 6 {
		texts = append(texts, "eg/http: "+gatewayRule+"="+gatewayRule+",rule-0-match-0=rule-0-match-0")
	}
	for _, text := range texts {
		for _, p := range peers {
			_, _ = p.try(t, short(t, text)) // two must fail
		}
	}
}

// sameSeries waits until both have the same series.
func sameSeries(t *testing.T, theirs, ours func() map[string]string) {
	t.Helper()
	wait.Nil(t, "the same series", func() error {
		want, got := theirs(), ours()
		if len(want) > 30 && maps.Equal(want, got) {
			t.Logf("%d series are the same", len(want))
			return nil
		}
		differ := []error{fmt.Errorf("there are %d there", len(want))}
		for _, name := range slices.Sorted(maps.Keys(want)) {
			if got[name] != want[name] {
				differ = append(differ, fmt.Errorf("%s is %q here, and %q there", name, got[name], want[name]))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(got)) {
			if want[name] == "" {
				differ = append(differ, fmt.Errorf("%s is %q here, and not there", name, got[name]))
			}
		}
		return errors.Join(differ...)
	})
}

// scrape returns the series of the service for Prometheus. How long calls took differs, and how
// often tests asked for health.
func scrape(t *testing.T, url string) map[string]string {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		return nil // it does not listen yet
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status, err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "# TYPE ratelimit_service_"):
			name, kind, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "# TYPE ")), " ")
			out["the type of "+name] = kind
		case !strings.HasPrefix(line, "ratelimit_service_"), strings.Contains(line, `grpc_method="Check"`),
			strings.Contains(line, "response_time_seconds_bucket"), strings.Contains(line, "response_time_seconds_sum"):
		default:
			i := strings.LastIndexByte(line, ' ')
			out[line[:i]] = strings.TrimSpace(line[i:])
		}
	}
	return out
}

// statsd is a server of statsd.
type statsd struct {
	net.Listener
	mu   sync.Mutex
	sums map[string]uint64
}

func newStatsd(t *testing.T) *statsd {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &statsd{Listener: l, sums: map[string]uint64{}}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer c.Close()
				for in := bufio.NewScanner(c); in.Scan(); {
					s.take(t, in.Text())
				}
			})
		}
	})
	t.Cleanup(func() { l.Close() }) // connections end with the processes
	return s
}

// take adds up a line. Of times only their number counts.
func (s *statsd) take(t *testing.T, line string) {
	t.Helper()
	name, rest, _ := strings.Cut(line, ":")
	fields := strings.Split(rest, "|")
	for _, other := range []string{"ratelimit.go.", "ratelimit.redis_pool.", "runtime.", "ratelimit_server.Check."} {
		if strings.HasPrefix(name, other) {
			return
		}
	}
	n, err := strconv.ParseUint(fields[0], 10, 64)
	if err != nil || len(fields) < 2 {
		t.Errorf("what is %q?", line)
		return
	}
	if fields[1] == "ms" {
		if n = 1; len(fields) > 2 {
			rate, _ := strconv.ParseFloat(strings.TrimPrefix(fields[2], "@"), 64)
			n = uint64(1 / rate)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sums[name+" "+fields[1]] += n
}

func (s *statsd) read() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]string{}
	for name, n := range s.sums {
		out[name] = strconv.FormatUint(n, 10)
	}
	return out
}

// TestEnvoyStatsd plays the same requests to the reference and to Stint. A server of statsd gets the
// same of both.
func TestEnvoyStatsd(t *testing.T) {
	t.Parallel()
	dir := writeDomains(t, countedDomains)
	ofTheirs, ofOurs := newStatsd(t), newStatsd(t)
	host, port, _ := net.SplitHostPort(ofTheirs.Addr().String())
	theirs := startReference(t, dir, "DISABLE_STATS=false", "USE_STATSD=true", "STATSD_HOST="+host, "STATSD_PORT="+port, "STATS_FLUSH_INTERVAL=50ms", "EXTRA_TAGS=zone:a.b,env:test")
	ours := serveEnvoy(t, dir, "STINT_ENVOY_METRICS_STATSD="+ofOurs.Addr().String(), "STINT_ENVOY_METRICS_INTERVAL=100ms", "STINT_ENVOY_METRICS_TAGS=zone=a.b,env=test")
	play(t, theirs, ours.peer)
	sameSeries(t, ofTheirs.read, ofOurs.read)
}

// linesOf returns the lines of a page, sorted.
func linesOf(t *testing.T, url string) []string {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(url, answer.Status, err)
	}
	return slices.Sorted(strings.Lines(string(text)))
}

// TestEnvoyOperators starts the reference and Stint with the same variables. Operators find what
// they know where it was: the metrics, the limits in use, and the other pages of the debug port.
func TestEnvoyOperators(t *testing.T) {
	t.Parallel()
	dir := writeDomains(t, countedDomains)
	metrics, debug := map[string]string{}, map[string]string{}
	environ := func(who string) []string {
		metrics[who], debug[who] = freeAddress(t), freeAddress(t)
		_, port, _ := net.SplitHostPort(debug[who])
		return []string{
			"DISABLE_STATS=false", "USE_STATSD=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=" + metrics[who], "PROMETHEUS_PATH=/stats/prometheus",
			"STATS_FLUSH_INTERVAL=100ms", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + port,
		}
	}
	theirs := startReference(t, dir, environ("theirs")...)

	ours := startInPlace(t, dir, append(environ("ours"), "HOME="+t.TempDir(), "STINT_SERVER_ADMIN_ADDRESS=", "STINT_SERVER_STORE_BUDGET=30s")...)
	play(t, theirs, ours)
	sameSeries(t, func() map[string]string { return scrape(t, "http://"+metrics["theirs"]+"/stats/prometheus") },
		func() map[string]string { return scrape(t, "http://"+metrics["ours"]+"/stats/prometheus") })
	for _, address := range metrics { // what Envoy Gateway's dashboard shows beside limits
		has(t, strings.Join(linesOf(t, "http://"+address+"/stats/prometheus"), ""), "\nprocess_resident_memory_bytes ", "\nprocess_virtual_memory_bytes ")
	}
	if there, here := linesOf(t, "http://"+debug["theirs"]+"/rlconfig"), linesOf(t, "http://"+debug["ours"]+"/rlconfig"); !slices.Equal(there, here) {
		t.Errorf("/rlconfig is\n%s\nand there\n%s", here, there)
	}
	for _, line := range linesOf(t, "http://"+debug["theirs"]+"/") {
		path, _, _ := strings.Cut(line, ":")
		if path != "/debug/pprof/profile" && path != "/debug/pprof/trace" { // which take long
			linesOf(t, "http://"+debug["ours"]+path)
		}
	}
}
