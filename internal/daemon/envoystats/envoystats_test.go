package envoystats_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/grpclimit/rls"
	"github.com/stintdev/stint/internal/daemon/envoystats"
	"github.com/stintdev/stint/memstore"
)

const limits = `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 5}
  - key: a
    descriptors:
      - key: b
        rate_limit: {unit: day, requests_per_unit: 5}
        descriptors:
          - key: c
            detailed_metric: true
            rate_limit: {unit: day, requests_per_unit: 5}
  - key: addr
    detailed_metric: true
    rate_limit: {unit: day, requests_per_unit: 5}
`

// patience is how long a test waits for an expected event.
const patience = time.Minute

// world is a service and its counts.
type world struct {
	t testing.TB
	*rls.Service
	*envoystats.Stats
}

func newWorld(t testing.TB, tags ...string) *world {
	t.Helper()
	store, err := memstore.New(memstore.Options{})
	do(t, err)
	c, err := descriptor.Read([]descriptor.File{{Name: "shop.yaml", Data: []byte(limits)}}, descriptor.Options{})
	do(t, err)
	s, err := rls.New(rls.Options{Store: store, Config: c})
	do(t, err)
	return &world{t, s, envoystats.New(envoystats.Options{Service: s, Tags: tags, LocalCache: true, Loads: func() (uint64, uint64) { return 2, 1 }})}
}

func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// hit asks for a descriptor n times.
func (w *world) hit(n int, domain string, entries ...string) {
	w.t.Helper()
	d := &commonv3.RateLimitDescriptor{}
	for _, e := range entries {
		key, value, _ := strings.Cut(e, "=")
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	for range n {
		_, err := w.ShouldRateLimit(w.t.Context(), &rlsv3.RateLimitRequest{Domain: domain, Descriptors: []*commonv3.RateLimitDescriptor{d}})
		do(w.t, err)
	}
}

// gathered returns the series that Prometheus sees, without those of Go.
func (w *world) gathered(milliseconds bool) map[string]string {
	w.t.Helper()
	r := prometheus.NewPedanticRegistry()
	do(w.t, r.Register(w.Collector(milliseconds)))
	families, err := r.Gather()
	do(w.t, err)
	out := map[string]string{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := f.GetName() + "{" + strings.Join(labels, ",") + "}"
			switch {
			case strings.HasPrefix(name, "ratelimit_go_"):
			case m.GetHistogram() != nil:
				text := fmt.Sprintf("%d %g", m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum())
				for _, b := range m.GetHistogram().GetBucket() {
					text += fmt.Sprintf(" %g:%d", b.GetUpperBound(), b.GetCumulativeCount())
				}
				out[name] = text
			default:
				out[name] = fmt.Sprint(m.GetCounter().GetValue())
			}
		}
	}
	return out
}

// TestLabels checks that all tags become labels, whatever their names are.
func TestLabels(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "__name__=x", "a-b=1", "a_b=2", "tag_a_b=3", "0=zero", "é=4", "ü=5", "key1=6", "éé=7")
	w.hit(1, "shop", "user=x")
	got := w.gathered(false)
	const want = `ratelimit_service_rate_limit_total_hits{_="4",a_b="1",domain="shop",key1="user",tag_0="zero",tag__="5",tag___="7",tag___name__="x",tag_a_b="2",tag_key1="6",tag_tag_a_b="3"}`
	if _, ok := got[want]; !ok {
		t.Errorf("there is no %s in %v", want, got)
	}
}

// alone is a store whose decisions are those of this process, because Redis is out of reach.
type alone struct{ stint.Store }

func (s alone) Take(ctx context.Context, asks []stint.Ask, out []stint.Decision) error {
	err := s.Store.Take(ctx, asks, out)
	for i := range out {
		out[i].Basis = stint.Local
	}
	return err
}

// TestRedisError checks that alerts on Redis see calls that were decided without it.
func TestRedisError(t *testing.T) {
	t.Parallel()
	store, err := memstore.New(memstore.Options{})
	do(t, err)
	c, err := descriptor.Read([]descriptor.File{{Name: "shop.yaml", Data: []byte(limits)}}, descriptor.Options{})
	do(t, err)
	s, err := rls.New(rls.Options{Store: alone{store}, Config: c})
	do(t, err)
	w := &world{t, s, envoystats.New(envoystats.Options{Service: s, Loads: func() (uint64, uint64) { return 1, 0 }})}
	w.hit(3, "shop", "user=x")
	const want = `ratelimit_service_should_rate_limit_error{err_type="redis_error"}`
	if got := w.gathered(false)[want]; got != "3" {
		t.Errorf("%s is %s, want 3", want, got)
	}
}

func TestPrometheus(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "env=a.b", "domain=mine")
	w.hit(7, "shop", "user=x")
	w.hit(1, "shop", "a=1", "b=2")
	w.hit(1, "shop", "a=1", "b=2", "c=two\nlines")
	w.hit(1, "shop", "addr=10.0.0.1:80|x")
	w.hit(1, "no-where", "user=x")
	w.hit(1, "no_where", "user=x")
	for _, ms := range []int{0, 4, 5, 6, 70_000} {
		w.Served(envoystats.Limit, time.Duration(ms)*time.Millisecond+900*time.Microsecond)
	}
	const tags = `env="a_b"`
	want := map[string]string{}
	for name, n := range map[string]string{
		`rate_limit_total_hits{domain="shop",TAGS,key1="user",tag_domain="mine"}`:                 "7",
		`rate_limit_within_limit{domain="shop",TAGS,key1="user",tag_domain="mine"}`:               "5",
		`rate_limit_near_limit{domain="shop",TAGS,key1="user",tag_domain="mine"}`:                 "1",
		`rate_limit_over_limit{domain="shop",TAGS,key1="user",tag_domain="mine"}`:                 "2",
		`rate_limit_total_hits{domain="shop",TAGS,key1="a",key2="b",tag_domain="mine"}`:           "1",
		`rate_limit_within_limit{domain="shop",TAGS,key1="a",key2="b",tag_domain="mine"}`:         "1",
		`rate_limit_total_hits{domain="shop",TAGS,key1="a_1",key2="b_2",tag_domain="mine"}`:       "1",
		`rate_limit_within_limit{domain="shop",TAGS,key1="a_1",key2="b_2",tag_domain="mine"}`:     "1",
		`rate_limit_total_hits{domain="shop",TAGS,key1="addr_10_0_0_1_80_x",tag_domain="mine"}`:   "1",
		`rate_limit_within_limit{domain="shop",TAGS,key1="addr_10_0_0_1_80_x",tag_domain="mine"}`: "1",
		`rate_limit_no_where_domain_not_found{TAGS,tag_domain="mine"}`:                            "2",
		`config_load_success{TAGS,tag_domain="mine"}`:                                             "2",
		`config_load_error{TAGS,tag_domain="mine"}`:                                               "1",
		`total_requests{TAGS,grpc_method="ShouldRateLimit",tag_domain="mine"}`:                    "5",
		`response_time_seconds{TAGS,grpc_method="ShouldRateLimit",tag_domain="mine"}`:             "5 10.015 0.005:3 0.01:4 0.025:4 0.05:4 0.1:4 0.25:4 0.5:4 1:4 2.5:4 5:4 10:5",
	} {
		want["ratelimit_service_"+strings.ReplaceAll(name, "TAGS", tags)] = n
	}
	same(t, w.gathered(false), want)
	const inMillis = `ratelimit_service_response_time_seconds{env="a_b",grpc_method="ShouldRateLimit",tag_domain="mine"}`
	if got, want := w.gathered(true)[inMillis], "5 10015 0.005:1 0.01:1 0.025:1 0.05:1 0.1:1 0.25:1 0.5:1 1:1 2.5:1 5:3 10:4"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func same(t testing.TB, got, want map[string]string) {
	t.Helper()
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s is %q, want %s", name, got[name], n)
		}
	}
	for name, n := range got {
		if want[name] == "" {
			t.Errorf("%s %s is too much", name, n)
		}
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hit(1, "shop", "user=x")
	var out bytes.Buffer
	do(t, w.WriteText(&out))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if !slices.Contains(lines, "ratelimit.service.rate_limit.shop.user.total_hits: 1") || !strings.HasPrefix(lines[len(lines)-1], `memstats: {"Alloc":`) {
		t.Error(out.String())
	}
}

// A server divides by the sample rate and rounds down.
func TestSampled(t *testing.T) {
	t.Parallel()
	for _, n := range []uint64{2, 3, 7, 49, 98, 103, 1000, 12_345, 999_999, 50_000_000} {
		rate, err := strconv.ParseFloat(strings.TrimPrefix(envoystats.Sampled(n), "|@"), 64)
		do(t, err)
		if got := uint64(math.Floor(1 / rate)); got != n {
			t.Errorf("%d lines become %d", n, got)
		}
	}
}

// sink is what a server of statsd has got: counters are added up, and gauges of Go left out.
type sink struct {
	mu   sync.Mutex
	sums map[string]float64
	more chan struct{}
}

func newSink() *sink { return &sink{sums: map[string]float64{}, more: make(chan struct{}, 1)} }

func (s *sink) take(t testing.TB, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		fields := strings.Split(rest, "|")
		if strings.HasPrefix(name, "ratelimit.go.") {
			continue
		}
		n, err := strconv.ParseFloat(fields[0], 64)
		if err != nil || len(fields) < 2 {
			t.Errorf("%q", line)
			continue
		}
		key := name + " " + strings.Join(fields[1:], "|")
		if fields[1] == "ms" {
			key, n = name+" "+fields[0]+"ms", 1
			if len(fields) > 2 && fields[2][0] == '@' {
				rate, _ := strconv.ParseFloat(fields[2][1:], 64)
				n = math.Floor(1 / rate)
			}
		}
		s.mu.Lock()
		s.sums[key] += n
		s.mu.Unlock()
	}
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// wait waits until the server has got this, and nothing else.
func (s *sink) wait(t testing.TB, want map[string]float64) {
	t.Helper()
	late := time.After(patience)
	for {
		s.mu.Lock()
		got := maps.Clone(s.sums)
		s.mu.Unlock()
		if maps.Equal(got, want) {
			return
		}
		select {
		case <-s.more:
		case <-late:
			t.Fatalf("got %v\nwant %v", got, want)
		}
	}
}

// accept serves TCP until the listener is closed. It closes the connections then.
func (s *sink) accept(t testing.TB, l net.Listener) {
	t.Helper()
	var open sync.WaitGroup
	defer open.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		stop := context.AfterFunc(t.Context(), func() { _ = c.Close() })
		open.Go(func() {
			defer stop()
			for in := bufio.NewScanner(c); in.Scan(); {
				s.take(t, in.Text()+"\n")
			}
		})
	}
}

// send sends counts until the test ends.
func (w *world) send(t testing.TB, o envoystats.Statsd) {
	t.Helper()
	o.Interval, o.Log = 5*time.Millisecond, slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { w.Send(ctx, o) })
	t.Cleanup(func() { cancel(); work.Wait() })
}

// TestTCP starts with a server that does not answer. What was counted is not lost.
func TestTCP(t *testing.T) {
	t.Parallel()
	first, err := net.Listen("tcp", "127.0.0.1:0")
	do(t, err)
	address := first.Addr().String()
	do(t, first.Close())
	w := newWorld(t, "env=a.b", "b=c")
	w.hit(7, "shop", "user=x")
	w.send(t, envoystats.Statsd{Address: address, Protocol: envoystats.TCP})
	for range 1000 {
		w.Served(envoystats.Limit, 1900*time.Microsecond)
	}
	w.Served(envoystats.Check, 3*time.Second)
	l, err := net.Listen("tcp", address)
	do(t, err)
	s := newSink()
	var work sync.WaitGroup
	work.Go(func() { s.accept(t, l) })
	t.Cleanup(func() { _ = l.Close(); work.Wait() })
	want := map[string]float64{}
	for name, n := range map[string]float64{
		"ratelimit.service.rate_limit.shop.user.total_hits c": 7, "ratelimit.service.rate_limit.shop.user.within_limit c": 5,
		"ratelimit.service.rate_limit.shop.user.near_limit c": 1, "ratelimit.service.rate_limit.shop.user.over_limit c": 2,
		"ratelimit.service.config_load_success c": 2, "ratelimit.service.config_load_error c": 1,
		"ratelimit_server.ShouldRateLimit.total_requests c": 1000, "ratelimit_server.ShouldRateLimit.response_time 1ms": 1000,
		"ratelimit_server.Check.total_requests c": 1, "ratelimit_server.Check.response_time 3000ms": 1,
	} {
		name, kind, _ := strings.Cut(name, " ")
		want[name+".__b=c.__env=a_b "+kind] = n
	}
	s.wait(t, want)
	w.hit(1, "shop", "user=x")
	want["ratelimit.service.rate_limit.shop.user.total_hits.__b=c.__env=a_b c"]++
	want["ratelimit.service.rate_limit.shop.user.over_limit.__b=c.__env=a_b c"]++
	s.wait(t, want)
}

// TestUDP sends more than a datagram holds.
func TestUDP(t *testing.T) {
	t.Parallel()
	for protocol, suffix := range map[string]string{envoystats.UDP: ".__b=c.__env=x c", envoystats.DogStatsD: " c|#b:c,env:x"} {
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		do(t, err)
		s := newSink()
		var work sync.WaitGroup
		work.Go(func() {
			buf := make([]byte, 64<<10)
			for {
				n, _, err := conn.ReadFrom(buf)
				if err != nil {
					return
				}
				if n > 1432 {
					t.Errorf("a datagram of %d bytes", n)
				}
				s.take(t, string(buf[:n]))
			}
		})
		t.Cleanup(func() { _ = conn.Close(); work.Wait() })
		w := newWorld(t, "env=x", "b=c")
		want := map[string]float64{"ratelimit.service.config_load_success" + suffix: 2, "ratelimit.service.config_load_error" + suffix: 1}
		for i := range 50 {
			name := fmt.Sprint("value-", i)
			w.hit(1, "shop", "addr="+name)
			want["ratelimit.service.rate_limit.shop.addr_"+name+".total_hits"+suffix] = 1
			want["ratelimit.service.rate_limit.shop.addr_"+name+".within_limit"+suffix] = 1
		}
		w.send(t, envoystats.Statsd{Address: conn.LocalAddr().String(), Protocol: protocol})
		s.wait(t, want)
	}
}
