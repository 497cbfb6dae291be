package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
)

const threeAYear = "domain: contract\ndescriptors:\n  - key: three\n    rate_limit: {unit: year, requests_per_unit: 3}\n"

// same fails the test unless the response is this one, in brief.
func (p *peer) same(t *testing.T, text, want string) {
	t.Helper()
	if got := brief(p.try(t, short(t, text))); got != want {
		t.Errorf("%s: %s answers %q, want %q", text, p.name, got, want)
	}
}

// The difference "calendar".
func TestEnvoyCalendar(t *testing.T) {
	t.Parallel()
	dir := writeDomains(t, contractDomains)
	fixed, plain := serveEnvoy(t, dir).peer, serveEnvoy(t, dir, "STINT_ENVOY_FIXED_MONTHS=false").peer
	q := short(t, "week=x | month=x | year=x")
	from := time.Now().UTC()
	a, b := fixed.ask(t, q), plain.ask(t, q)
	to := time.Now().UTC()
	for i, s := range a.GetStatuses() {
		if !(span{from.Unix(), to.Unix()}).resets(s.GetCurrentLimit().GetUnit(), s.GetDurationUntilReset().GetSeconds()) {
			t.Errorf("fixed: descriptor %d: %v", i, s)
		}
	}
	ends := func(now time.Time) []time.Time {
		y, m, d := now.Date()
		return []time.Time{
			time.Date(y, m, d+7-(int(now.Weekday())+6)%7, 0, 0, 0, 0, time.UTC),
			time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC), time.Date(y+1, 1, 1, 0, 0, 0, 0, time.UTC),
		}
	}
	for i, s := range b.GetStatuses() {
		left := s.GetDurationUntilReset().AsDuration()
		if most, least := ends(from)[i].Sub(from)+time.Second, ends(to)[i].Sub(to); left > most || left < least {
			t.Errorf("calendar: descriptor %d: %v left, want %v to %v", i, left, least, most)
		}
	}
}

// The difference "invalid".
func TestEnvoyReferenceDies(t *testing.T) {
	t.Parallel()
	dir := writeDomains(t, map[string]string{"contract": threeAYear})
	theirs, ours := startReference(t, dir), serveEnvoy(t, dir).peer
	q := short(t, "three=x limit=5/UNKNOWN")
	if _, err := theirs.try(t, q); err == nil {
		t.Error("the reference answers")
	}
	wait.For(t, "the reference has died", func() bool { return isClosed(theirs.process.ended) })
	ours.same(t, "three=x | three=x limit=5/UNKNOWN", "InvalidArgument")
	ours.same(t, "three=x", "OK: OK 2")
}

// The difference "newer".
func TestEnvoyNewer(t *testing.T) {
	t.Parallel()
	dir := writeDomains(t, map[string]string{"contract": threeAYear})
	theirs, ours := startReference(t, dir), serveEnvoy(t, dir).peer

	q := short(t, "three=x limit=5/DAY")
	q.Descriptors[0].Limit.UnitMultiplier = wrapperspb.UInt32(30)
	var resets []time.Duration
	for _, p := range []*peer{theirs, ours} {
		s := p.ask(t, q).GetStatuses()[0]
		resets = append(resets, s.GetDurationUntilReset().AsDuration())
		if got, want := s.GetCurrentLimit().GetUnitMultiplier().GetValue(), map[*peer]uint32{ours: 30}[p]; got != want {
			t.Errorf("unit_multiplier: %s tells %d, want %d", p.name, got, want)
		}
	}
	if day := 24 * time.Hour; resets[0] > day || resets[1] > 30*day || resets[1] <= 0 {
		t.Errorf("30 days end after %v there and %v here", resets[0], resets[1])
	}

	back := short(t, "three=y hits=2")
	back.Descriptors[0].IsNegativeHits = true
	for _, c := range []struct {
		p          *peer
		back, next string
	}{{theirs, "OVER_LIMIT: OVER_LIMIT 0", "OVER_LIMIT: OVER_LIMIT 0"}, {ours, "OK: OK 2", "OK: OK 1"}} {
		c.p.same(t, "three=y hits=3", "OK: OK 0")
		if got := brief(c.p.try(t, back)); got != c.back {
			t.Errorf("two are given back: %s answers %q, want %q", c.p.name, got, c.back)
		}
		c.p.same(t, "three=y", c.next)
	}

	if isNewer() {
		return
	}
	refused := startReference(t, writeDomains(t, map[string]string{"newer": newerDomains}))
	if _, err := refused.try(t, short(t, "newer: plan=x")); err == nil {
		t.Error("the reference has read metadata")
	}
}

// In each domain all descriptors are charged or none, like the reference with
// STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT, if all requests are for one hit.
func TestEnvoyAllOrNone(t *testing.T) {
	t.Parallel()
	dir := writeDomains(t, map[string]string{"contract": differentDomains})
	theirs := startReference(t, dir, "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true")
	memory := serveEnvoy(t, dir, "STINT_ENVOY_INDEPENDENT=false").peer
	redis := serveEnvoy(t, dir, append(inRedis(t), "STINT_ENVOY_INDEPENDENT=false")...).peer
	texts := []string{"three=a", "three=b", "star=a", "star=b", "closed=a", "a=a", "a=b", "pre1=a", "unknown=a"}
	refused := 0
	for i := range 400 {
		// Which are asked is a number's bits, so that all of them meet.
		var asked []string
		for j, text := range texts {
			if i*37>>j&1 == 1 && (j != 4 || i%7 == 0) {
				asked = append(asked, text)
			}
		}
		if asked == nil {
			continue
		}
		text := strings.Join(asked, " | ")
		want := brief(theirs.try(t, short(t, text)))
		if strings.HasPrefix(want, "OVER") {
			refused++
		}
		memory.same(t, text, want)
		// The difference "remembered": of what is refused only that is compared.
		if got := brief(redis.try(t, short(t, text))); got != want && (!strings.HasPrefix(got, "OVER") || !strings.HasPrefix(want, "OVER")) {
			t.Errorf("%s: %s answers %q, want %q", text, redis.name, got, want)
		}
	}
	if refused < 50 || refused > 399 {
		t.Errorf("%d were refused, which shows little", refused)
	}
}

// The difference "stopped".
func TestEnvoyStopped(t *testing.T) {
	t.Parallel()
	dir := writeDomains(t, map[string]string{"contract": threeAYear + `
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: quota
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: room
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 100}
`})
	const stop = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true"
	theirs, ours := startReference(t, dir, stop), startInPlace(t, dir, stop)
	for _, text := range []string{"shadow=x | three=shadow", "quota=x | room=x | three=quota"} {
		for i, want := range []struct{ theirs, ours string }{{"OK 2", "OK 2"}, {"OK 2", "OK 1"}, {"OK 2", "OK 0"}, {"OK 2", "OVER_LIMIT 0"}} {
			for p, want := range map[*peer]string{theirs: want.theirs, ours: want.ours} {
				all := p.ask(t, short(t, text)).GetStatuses()
				last := all[len(all)-1]
				if got := fmt.Sprint(last.GetCode(), " ", last.GetLimitRemaining()); got != want {
					t.Errorf("%s, request %d: %s answers %s, want %s", text, i+1, p.name, got, want)
				}
			}
		}
	}
}

// The difference "down".
func TestEnvoyRedisDown(t *testing.T) {
	t.Parallel()
	dir := writeDomains(t, map[string]string{"contract": threeAYear})
	for _, c := range []struct {
		name, want string
		start      func(testing.TB, string, ...string) *peer
	}{{"there", "Unknown", startReference}, {"here", "OK: OK 2", startInPlace}} {
		redis, metrics := testredis.Start(t), freeAddress(t)
		p := c.start(t, dir, "REDIS_URL="+redis.Addr(), "REDIS_TIMEOUT=1s", "DISABLE_STATS=false", "USE_STATSD=false", "USE_PROMETHEUS=true",
			"PROMETHEUS_ADDR="+metrics, "STATS_FLUSH_INTERVAL=100ms")
		redis.Kill(t)
		p.same(t, "three=x", c.want)
		caller := newClient(t, "127.0.0.1", "http://"+metrics)
		p.process.wait(t, func() error {
			if w := caller.do(t, http.MethodGet, "/metrics", ""); !strings.Contains(w.body, `ratelimit_service_should_rate_limit_error{err_type="redis_error"} 1`) {
				return errors.New(c.name + ": there is no redis_error")
			}
			return nil
		})
	}
}

// The difference "http".
func TestEnvoyHTTP(t *testing.T) {
	t.Parallel()
	dir := writeDomains(t, map[string]string{"contract": threeAYear})
	const ask = `{"domain":"contract","descriptors":[{"entries":[{"key":"three","value":"x"}]}]}`
	clients := map[string]*client{}
	for name, start := range map[string]func(testing.TB, string, ...string) *peer{"there": startReference, "here": startInPlace} {
		address := freeAddress(t)
		_, port, _ := strings.Cut(address, ":")
		start(t, dir, "PORT="+port)
		clients[name] = newClient(t, "127.0.0.1", "http://"+address)
	}
	for _, c := range []struct {
		method, path, body string
		headers            []string
		theirs, ours       string
	}{
		{"POST", "/json", ask, nil, "200", "200"},
		{"POST", "/json", ask, []string{"Content-Type", "application/x-www-form-urlencoded"}, "200", "200"},
		{"POST", "/json", ask, []string{"Content-Type", "text/plain", "Origin", "http://elsewhere.test"}, "200", "403 JSON"},
		{"PUT", "/json", ask, nil, "429", "404 JSON"},
		{"POST", "/json", "{", nil, "400", "400 JSON"},
		{"POST", "/json", `{"domain":"contract"}`, nil, "400", "400 JSON"},
	} {
		for name, want := range map[string]string{"there": c.theirs, "here": c.ours} {
			w := clients[name].do(t, c.method, c.path, c.body, c.headers...)
			got := strconv.Itoa(w.status)
			if w.status >= 400 && w.status != http.StatusTooManyRequests && strings.HasPrefix(w.body, "{") {
				got += " JSON"
			}
			if got != want {
				t.Errorf("%s %s %s %q: %s: got %s, want %s: %s", c.method, c.path, c.body, c.headers, name, got, want, w.body)
			}
		}
	}
	for name, want := range map[string]string{"there": "OK", "here": `"status"`} {
		if w := clients[name].do(t, http.MethodGet, "/healthcheck", ""); w.status != http.StatusOK || !strings.Contains(w.body, want) {
			t.Errorf("/healthcheck: %s: got %d %s, want %s", name, w.status, w.body, want)
		}
	}
}

func TestEnvoyReflection(t *testing.T) {
	t.Parallel()
	p := serveEnvoy(t, writeDomains(t, map[string]string{"contract": threeAYear})).peer
	stream, err := grpc_reflection_v1.NewServerReflectionClient(p.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(q *grpc_reflection_v1.ServerReflectionRequest) *grpc_reflection_v1.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(q); err != nil {
			t.Fatal(err)
		}
		a, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	var names []string
	list := ask(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
	for _, s := range list.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	if slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, "RateLimitQuota") }) {
		t.Errorf("quotas are served without being asked for: %v", names)
	}
	for _, want := range []string{"envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"} {
		if !slices.Contains(names, want) {
			t.Errorf("there is no %s in %v", want, names)
		}
		a := ask(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: want}})
		if len(a.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
			t.Errorf("%s is not described: %v", want, a.GetErrorResponse())
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	h, err := grpc_health_v1.NewHealthClient(p.conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "unknown"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("the health of an unknown service: %v %v", h, err)
	}
}

// A call that has begun, but has sent no request yet, when Stint stops.
func TestEnvoyDrain(t *testing.T) {
	t.Parallel()
	s := serveEnvoy(t, writeDomains(t, map[string]string{"contract": threeAYear}), "STINT_SERVER_DRAIN_DELAY=2s")
	watch, err := grpc_health_v1.NewHealthClient(s.conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "ratelimit"})
	if err != nil {
		t.Fatal(err)
	}
	next := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if h, err := watch.Recv(); err != nil || h.GetStatus() != want {
			t.Fatalf("got %v %v, want %v", h, err, want)
		}
	}
	next(grpc_health_v1.HealthCheckResponse_SERVING)
	call, err := s.conn.NewStream(t.Context(), &grpc.StreamDesc{}, rlsv3.RateLimitService_ShouldRateLimit_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	s.same(t, "three=x", "OK: OK 2") // on the same connection, so the call before has begun
	s.terminate()
	next(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("those who watch are told %v, want that it is over", err)
	}
	var a rlsv3.RateLimitResponse
	if err := errors.Join(call.SendMsg(short(t, "three=x")), call.RecvMsg(&a)); err != nil {
		t.Errorf("the call was cut off: %v", err)
	}
	if got := brief(&a, nil); got != "OK: OK 1" {
		t.Errorf("got %s", got)
	}
	s.stop(t)
}
