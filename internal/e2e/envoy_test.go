package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stintdev/stint/internal/test/testredis"
)

// reference is envoyproxy/ratelimit, in the version of the module bench/ratelimit, or the program in
// the variable STINT_REFERENCE: to look for differences from another version.
var reference struct {
	build sync.Once
	err   error
}

// buildReference builds it, once, and returns its path.
func buildReference(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("STINT_REFERENCE"); path != "" {
		return path
	}
	path := filepath.Join(filepath.Dir(program.path), "ratelimit")
	reference.build.Do(func() {
		out, err := exec.Command("go", "build", "-C", "../../bench/ratelimit", "-ldflags=-s -w", "-o", path, "github.com/envoyproxy/ratelimit/src/service_cmd").CombinedOutput()
		if err != nil {
			reference.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	if reference.err != nil {
		t.Fatal(reference.err)
	}
	return path
}

// peer is a rate limit service, and a connection to it.
type peer struct {
	rlsv3.RateLimitServiceClient
	name    string
	conn    *grpc.ClientConn
	process *process
}

// connect connects to a service, and waits until it is serving.
func connect(t testing.TB, name string, p *process, target string) *peer {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	p.wait(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		h, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "ratelimit"})
		if err == nil && h.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			err = errors.New(h.GetStatus().String())
		}
		return err
	})
	return &peer{rlsv3.NewRateLimitServiceClient(conn), name, conn, p}
}

// startReference starts envoyproxy/ratelimit with the files of a directory.
func startReference(t testing.TB, dir string, environ ...string) *peer {
	t.Helper()
	return startFrom(t, "envoyproxy/ratelimit", exec.Command(buildReference(t)), dir, environ...)
}

// startInPlace starts a stint in the same environment.
func startInPlace(t testing.TB, dir string, environ ...string) *peer {
	t.Helper()
	buildProgram(t)
	return startFrom(t, "stint --envoy-env", exec.Command(program.path, "serve", "--envoy-env"), dir, environ...)
}

// startFrom starts a program that has its settings from the variables of envoyproxy/ratelimit, with a Redis of its own.
func startFrom(t testing.TB, name string, cmd *exec.Cmd, dir string, environ ...string) *peer {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "grpc")
	cmd.Env = append([]string{
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + testredis.Start(t).Addr(), "REDIS_TIMEOUT=20s", "DISABLE_STATS=true", "LOG_LEVEL=error",
		"RUNTIME_ROOT=" + filepath.Dir(dir), "RUNTIME_APPDIRECTORY=" + filepath.Base(dir), "RUNTIME_WATCH_ROOT=false",
		"HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", "PORT=0", "DEBUG_PORT=0", "GRPC_UDS=" + socket,
	}, environ...)
	return connect(t, name, run(t, cmd), "unix:"+socket)
}

// envoyServer is a stint that serves Envoy.
type envoyServer struct {
	*server
	*peer
}

// serveEnvoy starts a stint with the files of a directory. Variables override the defaults
// of tests: counters in memory, and the behavior of the reference.
func serveEnvoy(t testing.TB, dir string, environ ...string) *envoyServer {
	t.Helper()
	s := serve(t, "# all is in the environment\n", append([]string{
		"STINT_SERVER_GRPC_ADDRESS=127.0.0.1:0", "STINT_ENVOY_CONFIG=" + dir,
		"STINT_ENVOY_INDEPENDENT=true", "STINT_ENVOY_FIXED_MONTHS=true",
	}, environ...)...)
	name := "stint in memory"
	for _, e := range environ {
		if strings.HasPrefix(e, "STINT_SERVER_COUNTERS=") {
			name = "stint with Redis"
		}
	}
	s.wait(t, func() error {
		if s.url("grpc") == "" {
			return errors.New("stint does not listen for Envoy")
		}
		return nil
	})
	return &envoyServer{s, connect(t, name, s.process, s.url("grpc"))}
}

// inRedis returns the variables for counters in a new Redis.
func inRedis(t testing.TB) []string {
	t.Helper()
	return counting(testredis.Start(t).URL())
}

// writeDomains writes files to a directory and returns it.
func writeDomains(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "config")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// ask sends a request, which must succeed.
func (p *peer) ask(t testing.TB, q *rlsv3.RateLimitRequest) *rlsv3.RateLimitResponse {
	t.Helper()
	a, err := p.try(t, q)
	if err != nil {
		t.Fatalf("%s: %v\n%v", p.name, err, q)
	}
	return a
}

func (p *peer) try(t testing.TB, q *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return p.ShouldRateLimit(ctx, q)
}

// short parses a request of the form "domain hits=2: key=value,key=value hits=1 limit=5/DAY
// | key=value". The default domain is contract.
func short(t testing.TB, text string) *rlsv3.RateLimitRequest {
	t.Helper()
	number := func(text string) uint64 {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	q := &rlsv3.RateLimitRequest{Domain: "contract"}
	head, rest, ok := strings.Cut(text, ":")
	if ok {
		name, hits, _ := strings.Cut(strings.TrimSpace(head), " hits=")
		if q.Domain = name; hits != "" {
			q.HitsAddend = uint32(number(hits))
		}
		text = rest
	}
	for part := range strings.SplitSeq(text, "|") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		d := new(commonv3.RateLimitDescriptor)
		for i, word := range strings.Fields(part) {
			hits, isHits := strings.CutPrefix(word, "hits=")
			limit, isLimit := strings.CutPrefix(word, "limit=")
			switch {
			case i == 0:
				for entry := range strings.SplitSeq(word, ",") {
					key, value, _ := strings.Cut(entry, "=")
					d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
				}
			case isHits:
				d.HitsAddend = wrapperspb.UInt64(number(hits))
			case isLimit:
				requests, unit, _ := strings.Cut(limit, "/")
				d.Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{
					RequestsPerUnit: uint32(number(requests)), Unit: typev3.RateLimitUnit(typev3.RateLimitUnit_value[unit]),
				}
			default:
				t.Fatalf("what is %s in %s?", word, text)
			}
		}
		q.Descriptors = append(q.Descriptors, d)
	}
	return q
}

// lengths are the lengths of units in the reference, in seconds.
var lengths = map[rlsv3.RateLimitResponse_RateLimit_Unit]int64{
	rlsv3.RateLimitResponse_RateLimit_SECOND: 1,
	rlsv3.RateLimitResponse_RateLimit_MINUTE: 60,
	rlsv3.RateLimitResponse_RateLimit_HOUR:   3600,
	rlsv3.RateLimitResponse_RateLimit_DAY:    86400,
	rlsv3.RateLimitResponse_RateLimit_WEEK:   7 * 86400,
	rlsv3.RateLimitResponse_RateLimit_MONTH:  30 * 86400,
	rlsv3.RateLimitResponse_RateLimit_YEAR:   365 * 86400,
}

// span is the seconds, since the epoch, within which a response was made.
type span struct{ from, to int64 }

// resets reports whether a window had so many seconds left.
func (s span) resets(unit rlsv3.RateLimitResponse_RateLimit_Unit, seconds int64) bool {
	length := lengths[unit]
	for now := s.from; now <= s.to && length > 0; now++ {
		if seconds == length-now%length {
			return true
		}
	}
	return false
}

// settle replaces correct values that depend on the time: the time until a reset becomes
// one second, also in headers. Wrong values are kept, and will be noticed. Whitespace in
// the text of limits in metadata is normalized.
func settle(a *rlsv3.RateLimitResponse, during span) {
	for _, s := range a.GetStatuses() {
		d := s.GetDurationUntilReset()
		if d == nil || d.GetNanos() != 0 || !during.resets(s.GetCurrentLimit().GetUnit(), d.GetSeconds()) {
			continue
		}
		s.DurationUntilReset = durationpb.New(time.Second)
	}
	for _, h := range a.GetResponseHeadersToAdd() {
		seconds, err := strconv.ParseInt(h.GetValue(), 10, 64)
		if err == nil && h.GetKey() == "RateLimit-Reset" && slices.ContainsFunc(slices.Collect(maps.Keys(lengths)),
			func(u rlsv3.RateLimitResponse_RateLimit_Unit) bool { return during.resets(u, seconds) }) {
			h.Value = "soon"
		}
	}
	for _, d := range a.GetDynamicMetadata().GetFields()["descriptors"].GetListValue().GetValues() {
		if fields := d.GetStructValue().GetFields(); fields["limit"] != nil {
			fields["limit"] = structpb.NewStringValue(strings.Join(strings.Fields(fields["limit"].GetStringValue()), " "))
		}
	}
}
