package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
)

const (
	envoyCallers     = 64
	envoyConnections = 4
	envoyUsers       = 10_000
	envoyMany        = 16

	emptyEnvoy = "envoy: an empty grpc-go server"
	theirEnvoy = "envoy: envoyproxy/ratelimit, Redis"
)

// service is a rate limit service.
type service struct {
	name        string
	descriptors int
	redis       bool // it has its own Redis
	start       func(dir, redis string) (*process, error)
	// How much it may cost, × the empty server and × envoyproxy/ratelimit. 0: any.
	empty, theirs, redisCPU, p99 float64
}

func services() []service {
	many := fmt.Sprintf(", %d descriptors", envoyMany)
	return []service{
		{name: emptyEnvoy, descriptors: 1, start: startSelf(serveGRPC)},
		{name: theirEnvoy, descriptors: 1, redis: true, start: startRatelimit},
		{name: "envoy: stint, Redis", descriptors: 1, redis: true, start: startEnvoy(), empty: 1.3, theirs: 0.35, redisCPU: 0.6, p99: 0.5},
		{name: "envoy: stint, in memory", descriptors: 1, start: startEnvoy(), empty: 1.1},
		{name: emptyEnvoy + many, descriptors: envoyMany, start: startSelf(serveGRPC)},
		{name: theirEnvoy + many, descriptors: envoyMany, redis: true, start: startRatelimit},
		{name: "envoy: stint, Redis" + many, descriptors: envoyMany, redis: true, start: startEnvoy(), theirs: 0.35, redisCPU: 1.1},
		{name: "envoy: stint, Redis, independent" + many, descriptors: envoyMany, redis: true, start: startEnvoy("STINT_ENVOY_INDEPENDENT=true"), theirs: 0.35, redisCPU: 1.1, p99: 0.5},
		{name: "envoy: stint, in memory" + many, descriptors: envoyMany, start: startEnvoy()},
	}
}

// emptyService shows what the transport costs, with the messages of protobuf.
type emptyService struct{}

func (emptyService) ShouldRateLimit(context.Context, *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	return &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OK}, nil
}

// envoyConfig writes the configuration of both services.
func envoyConfig(dir string) (string, error) {
	var text strings.Builder
	text.WriteString("domain: bench\ndescriptors:\n")
	for i := range envoyMany {
		fmt.Fprintf(&text, "  - key: user%d\n    rate_limit: {unit: day, requests_per_unit: 4294967295}\n", i)
	}
	dir = filepath.Join(dir, "ratelimit", "config")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "bench.yaml"), []byte(text.String()), 0o600)
}

// startEnvoy starts Stint with some settings.
func startEnvoy(settings ...string) func(dir, redis string) (*process, error) {
	return func(dir, redis string) (*process, error) {
		config, err := envoyConfig(dir)
		if err != nil {
			return nil, err
		}
		cmd := exec.Command(filepath.Join(dir, "stint"), "serve")
		cmd.Env = append([]string{
			"STINT_ENVOY_CONFIG=" + config, "STINT_SERVER_GRPC_ADDRESS=127.0.0.1:0", "STINT_SERVER_HTTP_ADDRESS=127.0.0.1:0", "STINT_SERVER_ADMIN_ADDRESS=",
		}, settings...)
		if redis != "" {
			cmd.Env = append(cmd.Env, "STINT_SERVER_COUNTERS=redis://"+redis)
		}
		return startProcess(cmd, "", listening("grpc"))
	}
}

func startRatelimit(dir, redis string) (*process, error) {
	if _, err := envoyConfig(dir); err != nil {
		return nil, err
	}
	var ports [3]string
	for i := range ports {
		addr, err := freeAddr()
		if err != nil {
			return nil, err
		}
		_, ports[i], _ = net.SplitHostPort(addr)
	}
	cmd := exec.Command(filepath.Join(dir, "envoyproxy-ratelimit"))
	cmd.Env = []string{
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis, "USE_STATSD=false", "LOG_LEVEL=error",
		"RUNTIME_ROOT=" + dir, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
		"GRPC_PORT=" + ports[0], "PORT=" + ports[1], "DEBUG_PORT=" + ports[2],
	}
	return startProcess(cmd, "127.0.0.1:"+ports[0], nil)
}

// envoyRequests are the requests of all users, as gRPC sends them.
func envoyRequests(descriptors int) ([][]byte, error) {
	var out [][]byte
	for user := range envoyUsers {
		q := &rlsv3.RateLimitRequest{Domain: "bench"}
		for i := range descriptors {
			q.Descriptors = append(q.Descriptors, &ratelimitv3.RateLimitDescriptor{
				Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "user" + strconv.Itoa(i), Value: "user-" + strconv.Itoa(user)}},
			})
		}
		b, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 5), q)
		if err != nil {
			return nil, err
		}
		binary.BigEndian.PutUint32(b[1:], uint32(len(b)-5)) // behind a byte that says: not compressed
		out = append(out, b)
	}
	return out, nil
}

// envoyResult is the measurements of a service.
type envoyResult struct{ cpu, redis, p50, p99, perSecond samples }

// compareServices measures every rate limit service, in rounds.
func compareServices(out io.Writer, s settings) error {
	list := slices.DeleteFunc(services(), func(v service) bool { return !s.only.MatchString(v.name) })
	if len(list) == 0 {
		return nil
	}
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	err = errors.Join(build("..", "./cmd/stint", filepath.Join(dir, "stint")),
		build("ratelimit", "github.com/envoyproxy/ratelimit/src/service_cmd", filepath.Join(dir, "envoyproxy-ratelimit")))
	if err != nil {
		return err
	}
	results := make([]envoyResult, len(list))
	running := make([]*runningService, len(list))
	for i, v := range list {
		if running[i], err = startService(dir, v); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		defer running[i].stop()
		if err := running[i].measure(5*s.cell, new(envoyResult)); err != nil { // warm up
			return fmt.Errorf("%s: %w", v.name, err)
		}
	}
	err = inRounds(s.rounds, len(list), func(i int) error {
		if err := running[i].measure(5*s.cell, &results[i]); err != nil {
			return fmt.Errorf("%s: %w", list[i].name, err)
		}
		return nil
	})
	if err == nil {
		printServices(out, list, results)
	}
	return err
}

type runningService struct {
	server   *process
	redis    *process // nil if there is none
	clients  []*h2Client
	requests [][]byte
}

func startService(dir string, v service) (r *runningService, err error) {
	r = &runningService{}
	defer func() {
		if err != nil {
			r.stop()
		}
	}()
	addr := ""
	if v.redis {
		if r.redis, err = startRedis(); err != nil {
			return r, err
		}
		addr = r.redis.addr
	}
	if r.server, err = v.start(dir, addr); err != nil {
		return r, err
	}
	for range envoyConnections {
		c, err := dialH2(r.server.addr, rlsv3.RateLimitService_ShouldRateLimit_FullMethodName)
		if err != nil {
			return r, err
		}
		r.clients = append(r.clients, c)
	}
	r.requests, err = envoyRequests(v.descriptors)
	return r, err
}

func (r *runningService) stop() {
	for _, c := range r.clients {
		c.conn.Close()
	}
	if r.server != nil {
		r.server.stop()
	}
	if r.redis != nil {
		r.redis.stop()
	}
}

// cpu returns the processor time of the service, and of its Redis.
func (r *runningService) cpu() (server, redis time.Duration, err error) {
	if server, err = r.server.cpu(); err != nil || r.redis == nil {
		return server, 0, err
	}
	redis, err = r.redis.cpu()
	return server, redis, err
}

func (r *runningService) measure(length time.Duration, to *envoyResult) error {
	server, redis, err := r.cpu()
	if err != nil {
		return err
	}
	took := make([][]time.Duration, envoyConnections)
	errs := make([]error, envoyConnections)
	var wg sync.WaitGroup
	start := time.Now()
	for i, c := range r.clients {
		wg.Go(func() {
			w := walk(rand.Uint64())
			took[i], errs[i] = c.run(envoyCallers/envoyConnections, length, func() []byte { return r.requests[w.next(len(r.requests))] })
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	serverAfter, redisAfter, err := r.cpu()
	if err != nil {
		return err
	}
	all := slices.Concat(took...)
	slices.Sort(all)
	n := float64(len(all))
	to.cpu = append(to.cpu, float64(serverAfter-server)/n)
	to.redis = append(to.redis, float64(redisAfter-redis)/n)
	to.perSecond = append(to.perSecond, n/elapsed.Seconds())
	to.p50 = append(to.p50, float64(all[len(all)/2]))
	to.p99 = append(to.p99, float64(all[len(all)*99/100]))
	return nil
}

func printServices(out io.Writer, list []service, results []envoyResult) {
	find := func(prefix string, descriptors int) (r envoyResult) {
		for i, v := range list {
			if v.descriptors == descriptors && strings.HasPrefix(v.name, prefix) {
				return results[i]
			}
		}
		return r
	}
	t := table{{"", "CPU µs", "", "×empty", "at most", "×theirs", "at most", "Redis µs", "×theirs", "at most", "p50 µs", "p99 µs", "×theirs", "below", "calls/s"}}
	for i, v := range list {
		r, empty, theirs := results[i], find(emptyEnvoy, v.descriptors), find(theirEnvoy, v.descriptors)
		redis, redisRatio := "", ""
		if v.redis {
			redis, redisRatio = micros(r.redis), ratio(r.redis, theirs.redis)
		}
		t.row(v.name, micros(r.cpu), spread(r.cpu), ratio(r.cpu, empty.cpu), atMost(v.empty), ratio(r.cpu, theirs.cpu), atMost(v.theirs),
			redis, redisRatio, atMost(v.redisCPU), micros(r.p50), micros(r.p99), ratio(r.p99, theirs.p99), atMost(v.p99), thousands(int(r.perSecond.median())))
	}
	t.print(out, fmt.Sprintf("Envoy's rate limit service: processor time of the server, and of its Redis, for a call; %d callers on %d connections, %s users",
		envoyCallers, envoyConnections, thousands(envoyUsers)))
}
