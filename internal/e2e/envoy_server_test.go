package e2e_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
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

func TestEnvoyMany(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("domain: many\ndescriptors:\n")
	for i := range 10_000 {
		fmt.Fprintf(&text, "  - {key: path, value: /%d%s, rate_limit: {name: n%d, unit: year, requests_per_unit: 2}}\n", i, []string{"", "/*"}[i%2], i)
	}
	dir := writeDomains(t, map[string]string{"many": text.String()})
	for _, environ := range [][]string{nil, inRedis(t)} {
		p := serveEnvoy(t, dir, environ...).peer
		q := &rlsv3.RateLimitRequest{Domain: "many"}
		for i := range 1000 {
			value := fmt.Sprintf("/%d%s", i*10+i%2, []string{"", "/x"}[i%2])
			q.Descriptors = append(q.Descriptors, &commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "path", Value: value}}})
		}
		for round := range 3 {
			a := p.ask(t, q)
			if len(a.GetStatuses()) != 1000 {
				t.Fatalf("%s: got %d statuses", p.name, len(a.GetStatuses()))
			}
			for i, s := range a.GetStatuses() {
				want := fmt.Sprintf("OK n%d %d", i*10+i%2, 1-round)
				if round == 2 {
					want = fmt.Sprintf("OVER_LIMIT n%d 0", i*10+i%2)
				}
				if got := fmt.Sprintf("%v %s %d", s.GetCode(), s.GetCurrentLimit().GetName(), s.GetLimitRemaining()); got != want {
					t.Fatalf("%s: round %d: got %s, want %s", p.name, round, got, want)
				}
			}
		}
	}
}

// A request may repeat a descriptor, even with a penalty.
func TestEnvoyTwice(t *testing.T) {
	t.Parallel()
	dir := writeDomains(t, map[string]string{"contract": `
domain: contract
descriptors:
  - key: three
    rate_limit: {unit: year, requests_per_unit: 3, penalty: 2/1h cooldown=1h}
`})
	for _, environ := range [][]string{nil, inRedis(t)} {
		p := serveEnvoy(t, dir, environ...).peer
		for i, want := range []string{"OK", "OVER_LIMIT", "OVER_LIMIT", "OVER_LIMIT"} {
			if got, _, _ := strings.Cut(brief(p.try(t, short(t, "three=x | three=x"))), ":"); got != want {
				t.Errorf("%s: request %d: got %s, want %s", p.name, i, got, want)
			}
		}
	}
}

func TestEnvoyReload(t *testing.T) {
	t.Parallel()
	// Like a ConfigMap in Kubernetes: names are links through ..data.
	dir := t.TempDir()
	version := 0
	put := func(files map[string]string) {
		t.Helper()
		version++
		data := fmt.Sprintf("..v%d", version)
		if err := os.Mkdir(filepath.Join(dir, data), 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, data, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrExist) {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(data, filepath.Join(dir, "..next")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..next"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	other := strings.Replace(threeAYear, "contract", "other", 1)
	put(map[string]string{"a.yaml": threeAYear, "b.yaml": other})
	s := serveEnvoy(t, dir, "STINT_SERVER_RELOAD_INTERVAL=100ms")
	p := s.peer
	p.same(t, "three=x", "OK: OK 2")
	caller := newClient(t, "127.0.0.1", s.api)
	ready := func() string {
		t.Helper()
		w := caller.do(t, http.MethodGet, "/readyz", "")
		if w.status != http.StatusOK {
			t.Fatalf("/readyz: %d %s", w.status, w.body)
		}
		return w.body
	}

	put(map[string]string{"a.yaml": strings.Replace(threeAYear, ": 3", ": 7", 1), "b.yaml": other})
	s.wait(t, func() error {
		if got := brief(p.try(t, short(t, "three=x hits=0"))); got != "OK: OK 6" {
			return errors.New(got)
		}
		return nil
	})
	if text := ready(); strings.Contains(text, ".yaml") {
		t.Errorf("/readyz: %s", text)
	}

	for broken, want := range map[string]string{
		strings.Replace(threeAYear, "unit: year", "unit: fortnight", 1): "a.yaml:4:24",
		threeAYear + "  - key: three\n":                                 "a.yaml:5:5",
		"domain: other\n":                                               "",
		"domain: [\n":                                                   "a.yaml:1:1",
	} {
		put(map[string]string{"a.yaml": broken, "b.yaml": strings.Replace(other, ": 3", ": 9", 1)})
		s.wait(t, func() error {
			if text := ready(); !strings.Contains(text, cmp.Or(want, ".yaml:1:9")) {
				return fmt.Errorf("/readyz: %s, want %s", text, want)
			}
			return nil
		})
		s.wait(t, func() error { // the second rejection in a second is logged when it is over
			if !strings.Contains(s.output(), cmp.Or(want, ".yaml:1:9")) {
				return fmt.Errorf("%q is not in the log", want)
			}
			return nil
		})
		p.same(t, "three=x hits=0", "OK: OK 6")
		p.same(t, "other: three=x hits=0", "OK: OK 3")
	}

	put(map[string]string{"a.yaml": threeAYear, "b.yaml": other})
	s.wait(t, func() error {
		if got := brief(p.try(t, short(t, "three=x hits=0"))); got != "OK: OK 2" {
			return errors.New(got)
		}
		if text := ready(); strings.Contains(text, ".yaml") {
			return errors.New(text)
		}
		return nil
	})
}

// rawCodec sends raw bytes.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = slices.Clone(data)
	return nil
}

func (rawCodec) Name() string { return "proto" }

func TestEnvoyBadInput(t *testing.T) {
	t.Parallel()
	dir := writeDomains(t, map[string]string{"contract": threeAYear})
	s := serveEnvoy(t, dir)
	send := func(raw []byte) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var out []byte
		return s.conn.Invoke(ctx, rlsv3.RateLimitService_ShouldRateLimit_FullMethodName, &raw, &out, grpc.ForceCodec(rawCodec{}))
	}
	good, err := proto.Marshal(short(t, "three=x"))
	if err != nil {
		t.Fatal(err)
	}
	bytes := func(num protowire.Number, parts ...[]byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), slices.Concat(parts...))
	}
	entry := func(key, value string) []byte { return bytes(1, bytes(1, []byte(key)), bytes(2, []byte(value))) }
	many := func(n int, part []byte) []byte { return slices.Concat(slices.Repeat([][]byte{part}, n)...) }
	for name, c := range map[string]struct {
		raw  []byte
		code codes.Code
		want string
	}{
		"nothing":                   {nil, codes.InvalidArgument, "domain: must not be empty"},
		"no domain":                 {bytes(2, entry("three", "x")), codes.InvalidArgument, "domain"},
		"no descriptors":            {bytes(1, []byte("contract")), codes.InvalidArgument, "descriptors: want at least one"},
		"no entries":                {slices.Concat(good, bytes(2)), codes.InvalidArgument, "descriptors[1].entries: want at least one"},
		"an empty key":              {slices.Concat(good, bytes(2, entry("a", "b"), entry("", "x"))), codes.InvalidArgument, "descriptors[1].entries[1].key: must not be empty"},
		"a key that is not text":    {slices.Concat(good, bytes(2, entry("\xff\xfe", "x"))), codes.InvalidArgument, "descriptors[1].entries[0].key: not valid UTF-8"},
		"a value that is not text":  {slices.Concat(good, bytes(2, entry("three", "\xc0\x80"))), codes.InvalidArgument, "descriptors[1].entries[0].value: not valid UTF-8"},
		"a domain that is not text": {slices.Concat(good, bytes(1, []byte{0xff})), codes.InvalidArgument, "domain: not valid UTF-8"},
		"no message":                {[]byte{0x0a, 0xff}, codes.InvalidArgument, "not a message"},
		"cut off":                   {good[:len(good)-1], codes.InvalidArgument, "not a message"},
		"2,001 descriptors":         {slices.Concat(good, many(2000, bytes(2, entry("three", "x")))), codes.InvalidArgument, "descriptors: want at most 2000"},
		"65 entries":                {slices.Concat(good, bytes(2, many(65, entry("a", "b")))), codes.InvalidArgument, "descriptors[1].entries: want at most 64"},
		"10 MB":                     {slices.Concat(good, many(10, bytes(2, entry("three", strings.Repeat("x", 1<<20))))), codes.ResourceExhausted, "larger than max"},
		"no unit":                   {slices.Concat(good, bytes(2, entry("three", "x"), bytes(2, []byte{8, 5}))), codes.InvalidArgument, "descriptors[1].limit"},
		"an unknown unit":           {slices.Concat(good, bytes(2, entry("three", "x"), bytes(2, []byte{8, 5, 16, 99}))), codes.InvalidArgument, "descriptors[1].limit"},
		"a negative unit":           {slices.Concat(good, bytes(2, entry("three", "x"), bytes(2, append([]byte{8, 5, 16}, protowire.AppendVarint(nil, 1<<64-3)...)))), codes.InvalidArgument, "descriptors[1].limit"},
	} {
		err := send(c.raw)
		if got := status.Convert(err); got.Code() != c.code || !strings.Contains(got.Message(), c.want) {
			t.Errorf("%s: got %v, want %v: %s", name, err, c.code, c.want)
		}
	}

	caller := newClient(t, "127.0.0.1", s.api)
	// The whitespace of protojson is random.
	plain := strings.NewReplacer(`\"`, `"`, "\u00a0", " ", `": "`, `":"`, `": `, `":`)
	for body, want := range map[string]string{
		``:                               `400 `,
		`{`:                              `400 unexpected EOF`,
		`[]`:                             `400 `,
		`null`:                           `400 `,
		`{"domain":"contract"}`:          `400 descriptors: want at least one`,
		`{"domain":7}`:                   `400 `,
		`{"domain":"\ud800"}`:            `400 `,
		`{"domain":"contract","more":1}`: `400 unknown field "more"`,
		`{"domain":"contract","descriptors":[{"entries":[{"key":"three","value":"x"}]},{"entries":[{"key":""}]}]}`: `400 descriptors[1].entries[0].key: must not be empty`,
		strings.Repeat("[", 1<<20): `400 `,
		strings.Repeat("a", 5<<20): `413 the body has more than`,
	} {
		w := caller.do(t, http.MethodPost, "/json", body, "Content-Type", "application/json")
		code, part, _ := strings.Cut(want, " ")
		if strconv.Itoa(w.status) != code || !strings.Contains(plain.Replace(w.body), part) || w.header.Get("Content-Type") != "application/json" {
			t.Errorf("%.80s: got %d %s, want %s", body, w.status, w.body, want)
		}
	}

	// It is alive, and has counted nothing.
	s.same(t, "three=x", "OK: OK 2")
	for _, want := range []string{`200 "limitRemaining":1`, `200 "overallCode":"OK"`, `429 "overallCode":"OVER_LIMIT"`} {
		w := caller.do(t, http.MethodPost, "/json", `{"domain":"contract","descriptors":[{"entries":[{"key":"three","value":"x"}]}]}`, "Content-Type", "application/json")
		code, part, _ := strings.Cut(want, " ")
		if strconv.Itoa(w.status) != code || !strings.Contains(plain.Replace(w.body), part) {
			t.Errorf("got %d %s, want %s", w.status, w.body, want)
		}
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
