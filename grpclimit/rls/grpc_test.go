package rls_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/grpclimit/rls"
	"github.com/stintdev/stint/memstore"
)

// dial serves, and connects to it.
func dial(t testing.TB, server *grpc.Server, o ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	c, err := grpc.NewClient("passthrough:///x", append(o, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return l.Dial() }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return c
}

// raw is a codec of bytes that are messages already.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// randomRequest has everything that a request can have.
func randomRequest(r *rand.Rand) *rlsv3.RateLimitRequest {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	q := &rlsv3.RateLimitRequest{Domain: pick("d", "d", "d", "x", ""), HitsAddend: uint32(r.IntN(3))}
	for range r.IntN(6) {
		d := &ratelimitv3.RateLimitDescriptor{IsNegativeHits: r.IntN(8) == 0}
		for range 1 + r.IntN(2) {
			d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{
				Key: pick("user", "path", "banned", "free", "shadow", "q1", "q2", "special", "file", "open", ""), Value: pick("a", "b", "img/a", "", "ü", strings.Repeat("long", 100)),
			})
		}
		if r.IntN(3) == 0 {
			d.HitsAddend = wrapperspb.UInt64([]uint64{0, 1, 2, 1 << 60}[r.IntN(4)])
		}
		if r.IntN(4) == 0 {
			d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(r.IntN(4)), Unit: typev3.RateLimitUnit(r.IntN(8))}
			if r.IntN(2) == 0 {
				d.Limit.UnitMultiplier = wrapperspb.UInt32(uint32(r.IntN(300)))
			}
		}
		q.Descriptors = append(q.Descriptors, d)
	}
	return q
}

// TestSameAnswers: the short way through gRPC answers as the long one does.
func TestSameAnswers(t *testing.T) {
	t.Parallel()
	full := func(o *rls.Options) { o.Headers, o.Metadata = &rls.DefaultHeaders, true }
	for name, change := range map[string]func(*rls.Options){"plain": nil, "full": full} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			short, long := newBench(t, plain, change), newBench(t, plain, change)
			c := rlsv3.NewRateLimitServiceClient(dial(t, rls.NewGRPC(short.Service)))
			seed := rand.Uint64()
			r := rand.New(rand.NewPCG(seed, 0))
			for i := range 2000 {
				q := randomRequest(r)
				got, err := c.ShouldRateLimit(t.Context(), q)
				want, wantErr := long.ShouldRateLimit(t.Context(), q)
				if fmt.Sprint(err) != fmt.Sprint(wantErr) || !proto.Equal(got, want) {
					t.Fatalf("seed %d, request %d, %v:\ngot  %v %v\nwant %v %v", seed, i, q, got, err, want, wantErr)
				}
			}
		})
	}
}

// TestRegister: a server that has other services can have this one, too.
func TestRegister(t *testing.T) {
	t.Parallel()
	b := newBench(t, plain, nil)
	server := grpc.NewServer()
	b.Register(server)
	a, err := rlsv3.NewRateLimitServiceClient(dial(t, server)).ShouldRateLimit(t.Context(), ask("d", "user=a"))
	if err != nil || brief(a) != "OK [OK 2]" {
		t.Error(a, err)
	}
}

// TestOtherServices: a server of this package can have others.
func TestOtherServices(t *testing.T) {
	t.Parallel()
	seen := ""
	server := rls.NewGRPC(newBench(t, plain, nil).Service, grpc.UnaryInterceptor(
		func(ctx context.Context, q any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			seen = info.FullMethod
			return next(ctx, q)
		}))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	c := dial(t, server)
	if a, err := grpc_health_v1.NewHealthClient(c).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil || a.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Error(a, err)
	}
	if _, err := rlsv3.NewRateLimitServiceClient(c).ShouldRateLimit(t.Context(), ask("d", "user=a")); err != nil || seen != rlsv3.RateLimitService_ShouldRateLimit_FullMethodName {
		t.Error(seen, err)
	}
}

// TestBrokenMessages: what is not a message is refused, and says where.
func TestBrokenMessages(t *testing.T) {
	t.Parallel()
	c := dial(t, rls.NewGRPC(newBench(t, plain, nil).Service), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{})))
	good, err := proto.Marshal(ask("d", "user=a", "path=/"))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		data string
		code codes.Code
		want string
	}{
		"good":               {string(good), codes.OK, ""},
		"unknown fields":     {string(good) + "\x98\x06\x01\xa2\x06\x02hi\xa9\x06xxxxxxxx", codes.OK, ""},
		"domain not UTF-8":   {"\x0a\x01\xff", codes.InvalidArgument, "domain: not valid UTF-8"},
		"value not UTF-8":    {"\x0a\x01d\x12\x0f\x0a\x05\x0a\x01k\x12\x00\x0a\x06\x0a\x01k\x12\x01\xff", codes.InvalidArgument, "descriptors[0].entries[1].value: not valid UTF-8"},
		"key not UTF-8":      {"\x0a\x01d\x12\x05\x0a\x03\x0a\x01\xff", codes.InvalidArgument, "descriptors[0].entries[0].key: not valid UTF-8"},
		"cut off":            {string(good[:len(good)-1]), codes.InvalidArgument, "request: not a message"},
		"cut off in a field": {"\x0a\x01d\x12\x03\x0a\x05x", codes.InvalidArgument, "descriptors[0]: not a message"},
		"many descriptors":   {"\x0a\x01d" + strings.Repeat("\x12\x00", 1<<20), codes.InvalidArgument, "descriptors: want at most 2000"},
		"many entries":       {"\x0a\x01d\x12\xc8\x01" + strings.Repeat("\x0a\x00", 100), codes.InvalidArgument, "descriptors[0].entries: want at most 64"},
		"no tag":             {"\x00", codes.InvalidArgument, "request: not a message"},
		"bad group":          {"\x0b\x13", codes.InvalidArgument, "request: not a message"},
		"endless number":     {"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", codes.InvalidArgument, "request: not a message"},
	} {
		in, out := []byte(test.data), []byte(nil)
		err := c.Invoke(t.Context(), rlsv3.RateLimitService_ShouldRateLimit_FullMethodName, &in, &out)
		if s := status.Convert(err); s.Code() != test.code || s.Message() != test.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	huge := make([]byte, 10<<20)
	if err := c.Invoke(t.Context(), rlsv3.RateLimitService_ShouldRateLimit_FullMethodName, &huge, new([]byte)); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
}

// FuzzMessage: any bytes are answered as protobuf's own reader would have them.
func FuzzMessage(f *testing.F) {
	for i := range 20 {
		b, err := proto.Marshal(randomRequest(rand.New(rand.NewPCG(uint64(i), 0))))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		short, long := newBench(t, plain, nil), newBench(t, plain, nil)
		out, err := rls.Serve(t.Context(), short.Service, data)
		var q rlsv3.RateLimitRequest
		if broken := proto.Unmarshal(data, &q); broken != nil {
			if status.Code(err) != codes.InvalidArgument {
				t.Fatalf("%v: got %v", broken, err)
			}
			return
		}
		want, wantErr := long.ShouldRateLimit(t.Context(), &q)
		if fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Fatalf("%v: got %v, want %v", &q, err, wantErr)
		}
		if err == nil {
			var got rlsv3.RateLimitResponse
			if err := proto.Unmarshal(out.Materialize(), &got); err != nil || !proto.Equal(&got, want) {
				t.Fatalf("%v: got %v %v, want %v", &q, &got, err, want)
			}
		}
	})
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	var resets []string
	refused := false
	b := newBench(t, plain, func(o *rls.Options) {
		o.Operators = func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if refused {
					w.WriteHeader(http.StatusUnauthorized)
				} else {
					next.ServeHTTP(w, r)
				}
			})
		}
		o.OnReset = func(_ context.Context, domain string, entries []descriptor.Entry) error {
			resets = append(resets, fmt.Sprint(domain, entries))
			return nil
		}
	})
	h := b.Handler()
	for _, c := range []struct {
		name, method, url, body string
		status                  int
		want                    string
	}{
		{"passes", "POST", "/json", `{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"a"}]}],"hitsAddend":3}`, 200, `"overallCode":"OK"`},
		{"refused", "POST", "/json", `{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}`, 429, `"overallCode":"OVER_LIMIT"`},
		{"no JSON", "POST", "/json", `{`, 400, `"code":3`},
		{"unknown field", "POST", "/json", `{"domian":"d"}`, 400, `domian`},
		{"no domain", "POST", "/json", `{}`, 400, `domain: must not be empty`},
		{"too large", "POST", "/json", strings.Repeat(" ", 5<<20), 413, `bytes`},
		{"many objects", "POST", "/json", `{"descriptors":[` + strings.Repeat("{},", 20_000) + `{}]}`, 400, `more than 16000 objects`},
		{"not POST", "GET", "/json", ``, 405, ``},
		{"usage", "GET", "/v1/descriptors?domain=d&entry=user%3Da", ``, 200, `"limit":"d.user","rate":"3/1m fixed_window","max":3,"used":3,"remaining":0,"reset_after":15`},
		{"reset", "DELETE", "/v1/descriptors?domain=d&entry=user%3Da", ``, 204, ``},
		{"usage after that", "GET", "/v1/descriptors?domain=d&entry=user%3Da", ``, 200, `"used":0,"remaining":3`},
		{"of none", "GET", "/v1/descriptors?domain=d&entry=x%3Da", ``, 404, `no limit applies`},
		{"reset of none", "DELETE", "/v1/descriptors?domain=d&entry=x%3Da", ``, 404, `no limit applies`},
		{"of what", "GET", "/v1/descriptors?domain=d", ``, 400, `entries: want at least one`},
		{"no value", "GET", "/v1/descriptors?domain=d&entry=user", ``, 400, `entry 1: \"user\"; want key=value`},
		{"unknown", "DELETE", "/v1/descriptors?domian=d", ``, 400, `domian: unknown`},
		{"unlimited", "GET", "/v1/descriptors?domain=d&entry=free%3Da", ``, 200, `"unlimited":true`},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, newRequest(c.method, c.url, strings.NewReader(c.body)))
		if text := strings.ReplaceAll(w.Body.String(), ": ", ":"); w.Code != c.status || !strings.Contains(strings.ReplaceAll(text, ", ", ","), strings.ReplaceAll(strings.ReplaceAll(c.want, ": ", ":"), ", ", ",")) {
			t.Errorf("%s: got %d %s", c.name, w.Code, text)
		}
	}
	if want := "d[{user a}]"; len(resets) != 1 || resets[0] != want {
		t.Errorf("resets of %q, want one of %s", resets, want)
	}
	refused = true
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, newRequest("DELETE", "/v1/descriptors?domain=d&entry=user%3Da", http.NoBody)); w.Code != http.StatusUnauthorized || len(resets) > 1 {
		t.Error(w.Code, resets)
	}
	w = httptest.NewRecorder()
	if newBench(t, plain, nil).Handler().ServeHTTP(w, newRequest("DELETE", "/v1/descriptors?domain=d&entry=user%3Da", http.NoBody)); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("without operators: %d", w.Code)
	}
	failing := newBench(t, plain, func(o *rls.Options) { o.Store = broken{o.Store, stint.ErrUnavailable} })
	w = httptest.NewRecorder()
	failing.Handler().ServeHTTP(w, newRequest(http.MethodPost, "/json", strings.NewReader(`{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}`)))
	if w.Code != http.StatusServiceUnavailable {
		t.Error(w.Code, w.Body)
	}
	w = httptest.NewRecorder()
	h.ServeHTTP(w, newRequest(http.MethodPost, "/json", io.MultiReader(strings.NewReader("{"), &failingReader{})))
	if w.Code != http.StatusBadRequest {
		t.Error(w.Code, w.Body)
	}
	w = httptest.NewRecorder()
	b.ServeConfig(w, httptest.NewRequest(http.MethodGet, "/rlconfig", http.NoBody))
	if want := "d.user: unit=MINUTE requests_per_unit=3, shadow_mode: false, quota_mode: false\n"; !strings.HasPrefix(w.Body.String(), want) {
		t.Error(w.Body)
	}
}

// newRequest returns a request with JSON.
func newRequest(method, url string, body io.Reader) *http.Request {
	r := httptest.NewRequest(method, url, body)
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	return r
}

// TestJSONType checks that /json accepts any Content-Type, like envoyproxy/ratelimit.
func TestJSONType(t *testing.T) {
	t.Parallel()
	b := newBench(t, plain, nil)
	for i, kind := range []string{"", "application/x-www-form-urlencoded", "text/plain; charset=UTF-8", ";"} {
		r := newRequest("POST", "/json", strings.NewReader(`{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}`))
		r.Header.Set("Content-Type", kind)
		if kind == "" {
			r.Header.Del("Content-Type")
		}
		want := http.StatusOK
		if i == 3 {
			want = http.StatusTooManyRequests // the limit is 3
		}
		w := httptest.NewRecorder()
		if b.Handler().ServeHTTP(w, r); w.Code != want {
			t.Errorf("%q: got %d %s, want %d", kind, w.Code, w.Body, want)
		}
	}
}

// TestJSONOrigin checks that pages of other sites cannot use up limits from the browser of
// someone who can reach the server.
func TestJSONOrigin(t *testing.T) {
	t.Parallel()
	b := newBench(t, plain, nil)
	ask := func(name, value string) *httptest.ResponseRecorder {
		r := newRequest("POST", "http://limits.test/json", strings.NewReader(`{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}`))
		r.Header.Set("Content-Type", "text/plain") // of which browsers do not ask first
		r.Header.Set(name, value)
		w := httptest.NewRecorder()
		b.Handler().ServeHTTP(w, r)
		return w
	}
	for _, header := range [][2]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "http://elsewhere.test"}, {"Origin", "null"}} {
		w := ask(header[0], header[1])
		if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "cross-origin") {
			t.Errorf("%q: got %d %s", header, w.Code, w.Body)
		}
	}
	u, err := b.Usage(t.Context(), "d", []descriptor.Entry{{Key: "user", Value: "a"}})
	if err != nil || u.Decision.Remaining != 3 {
		t.Errorf("something was counted: %+v, %v", u, err)
	}
	for _, header := range [][2]string{{"Sec-Fetch-Site", "same-origin"}, {"Origin", "http://limits.test"}} {
		if w := ask(header[0], header[1]); w.Code != http.StatusOK {
			t.Errorf("%q: got %d %s", header, w.Code, w.Body)
		}
	}
}

type failingReader struct{}

func (*failingReader) Read([]byte) (int, error) { return 0, errors.New("cut off") }

func BenchmarkServe(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprintf("descriptors=%d", n), func(b *testing.B) {
			store, err := memstore.New(memstore.Options{})
			if err != nil {
				b.Fatal(err)
			}
			s, err := rls.New(rls.Options{Store: store, Config: limits(b, strings.ReplaceAll(plain, "requests_per_unit: 10", "requests_per_unit: 4294967295"))})
			if err != nil {
				b.Fatal(err)
			}
			q := ask("d")
			for i := range n {
				q.Descriptors = append(q.Descriptors, ask("d", fmt.Sprintf("path=/%d", i)).GetDescriptors()...)
			}
			data, err := proto.Marshal(q)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				out, err := rls.Serve(b.Context(), s, data)
				if err != nil {
					b.Fatal(err)
				}
				out.Free()
			}
		})
	}
}
