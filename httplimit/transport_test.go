package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// replies are a server that gives one after another, and then 200.
type replies struct {
	mu     sync.Mutex
	list   []reply
	bodies []string
	at     []time.Duration // since the first
	first  time.Time
}

type reply struct {
	status  int
	headers string // name: value, in lines
}

func (a *replies) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.first.IsZero() {
		a.first = time.Now()
	}
	a.at = append(a.at, time.Since(a.first))
	text := ""
	if r.Body != nil {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		_ = r.Body.Close()
		text = string(b)
	}
	a.bodies = append(a.bodies, text)
	next := reply{status: 200}
	if len(a.list) > 0 {
		next, a.list = a.list[0], a.list[1:]
	}
	rec := httptest.NewRecorder()
	for line := range strings.Lines(next.headers) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		rec.Header().Add(name, value)
	}
	rec.WriteHeader(next.status)
	return rec.Result(), nil
}

// near reports whether it took as long as it should, and what is added to that.
func near(took, want time.Duration) bool {
	return took >= want && took <= want+min(want, 10*time.Second)/10+time.Millisecond
}

// TestTransportRetries sends a request, and looks at when it was sent again.
func TestTransportRetries(t *testing.T) {
	t.Parallel()
	s := time.Second
	for _, c := range []struct {
		about    string
		retries  int
		patience time.Duration
		method   string // default GET
		body     string
		once     bool // the body can be read once
		replies  []reply
		deadline time.Duration
		status   int
		waits    []time.Duration // between the times it was sent
	}{
		{about: "it passes", status: 200},
		{about: "after Retry-After", replies: []reply{{429, "Retry-After: 7"}}, status: 200, waits: []time.Duration{7 * s}},
		{about: "Retry-After comes first", replies: []reply{{429, "Retry-After: 7\nRateLimit: \"a\";r=0;t=3"}}, status: 200, waits: []time.Duration{7 * s}},
		{about: "after t", replies: []reply{{429, `RateLimit: "a";r=0;t=3`}}, status: 200, waits: []time.Duration{3 * s}},
		{about: "without a word", replies: []reply{{429, ""}, {503, ""}, {429, ""}}, status: 200, waits: []time.Duration{s, 2 * s, 4 * s}},
		{about: "no more than three times", replies: []reply{{429, ""}, {429, ""}, {429, ""}, {429, ""}}, status: 429, waits: []time.Duration{s, 2 * s, 4 * s}},
		{
			about: "as often as it is told", retries: 1,
			replies: []reply{{429, "Retry-After: 1"}, {429, "Retry-After: 1"}}, status: 429, waits: []time.Duration{s},
		},
		{about: "never", retries: -1, replies: []reply{{429, "Retry-After: 1"}}, status: 429},
		{about: "not for longer than a minute", replies: []reply{{429, "Retry-After: 61"}}, status: 429},
		{
			about: "not for longer in all than it is told", patience: 5 * s,
			replies: []reply{{429, "Retry-After: 3"}, {429, "Retry-After: 3"}}, status: 429, waits: []time.Duration{3 * s},
		},
		{about: "not after its deadline", deadline: 2 * s, replies: []reply{{429, "Retry-After: 3"}}, status: 429},
		{about: "before its deadline", deadline: 5 * s, replies: []reply{{429, "Retry-After: 3"}}, status: 200, waits: []time.Duration{3 * s}},
		{about: "503", replies: []reply{{503, "Retry-After: 1"}}, status: 200, waits: []time.Duration{s}},
		{about: "500 is no matter of limits", replies: []reply{{500, "Retry-After: 1"}}, status: 500},
		{about: "a body, again", method: "POST", body: "hello", replies: []reply{{429, "Retry-After: 1"}}, status: 200, waits: []time.Duration{s}},
		{about: "a body that can be read once", method: "POST", body: "hello", once: true, replies: []reply{{429, "Retry-After: 1"}}, status: 429},
		{about: "503 of what may have been done", method: "POST", body: "hello", replies: []reply{{503, "Retry-After: 1"}}, status: 503},
		{about: "503 of what may be done twice", method: "PUT", body: "hello", replies: []reply{{503, "Retry-After: 1"}}, status: 200, waits: []time.Duration{s}},
	} {
		t.Run(c.about, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := &replies{list: c.replies}
				ctx, cancel := context.WithCancel(t.Context())
				if c.deadline > 0 {
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
				}
				defer cancel()
				var body io.Reader
				if c.body != "" {
					body = strings.NewReader(c.body)
				}
				r, err := http.NewRequestWithContext(ctx, c.method, "http://api.example/", body)
				if err != nil {
					t.Fatal(err)
				}
				if c.once {
					r.GetBody = nil
				}
				transport := httplimit.Transport{Base: server, MaxRetries: c.retries, MaxWait: c.patience}
				response, err := transport.RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				if response.Body.Close(); response.StatusCode != c.status {
					t.Errorf("%d, want %d", response.StatusCode, c.status)
				}
				if len(server.at) != len(c.waits)+1 {
					t.Fatalf("sent at %v, want %d times", server.at, len(c.waits)+1)
				}
				for i, want := range c.waits {
					if !near(server.at[i+1]-server.at[i], want) {
						t.Errorf("sent at %v, want %v between", server.at, c.waits)
					}
				}
				for _, got := range server.bodies {
					if got != c.body {
						t.Errorf("the body was %q, want %q", got, c.body)
					}
				}
			})
		})
	}
}

// TestTransportPaces looks at how long a request waits after an reply that said how
// much is left.
func TestTransportPaces(t *testing.T) {
	t.Parallel()
	s := time.Second
	for headers, want := range map[string]time.Duration{
		"":                                      0,
		`RateLimit: "a";r=1;t=30`:               0,
		`RateLimit: "a";r=0;t=30`:               30 * s,
		`RateLimit: "a";r=5;t=30, "b";r=0;t=10`: 10 * s,
		`RateLimit: "b";r=0;t=10,"a";r=0;t=30`:  30 * s,
		"RateLimit: \"b\";r=0;t=10\nRateLimit: \"a\";r=0;t=20":                      20 * s,
		`RateLimit: "a \"quoted\", \\";pk=:YTtiLGM=:; r=0;x;t=9`:                    9 * s,
		`RateLimit: "a";t=30;r=0;y="r=5;t=3, "`:                                     30 * s,
		`RateLimit: "a";r=0`:                                                        0,
		`RateLimit: "a";r=-1;t=5`:                                                   0,
		`RateLimit: "a";r=0;t=99999999999999999999`:                                 0,
		`RateLimit: limit=10, remaining=0, reset=5`:                                 0,
		`RateLimit: "open;r=0;t=5`:                                                  0,
		`RateLimit: "a";pk=:open;r=0;t=5`:                                           0,
		"X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 12":                           12 * s,
		"X-RateLimit-Remaining: 1\nX-RateLimit-Reset: 12":                           0,
		"X-RateLimit-Remaining: 0\nX-RateLimit-Reset: UNIX+15":                      15 * s,
		"X-RateLimit-Remaining: 0\nX-RateLimit-Reset: soon":                         0,
		"X-RateLimit-Remaining: 0":                                                  0,
		"X-RateLimit-Remaining: 0\nX-RateLimit-Reset: -5":                           0,
		"RateLimit: \"a\";r=3;t=5\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 12": 0,
		"Retry-After: 20":                                                           0, // it has passed
		"429 Retry-After: 20":                                                       20 * s,
		"429 Retry-After: DATE+20":                                                  20 * s,
		"429 Retry-After: DATE-20":                                                  0,
		"429 Retry-After: 20 s":                                                     0,
		`RateLimit: "a";r=0;t=61`:                                                   0, // for longer than it waits
		`RateLimit: "a";r=0;t=0`:                                                    0,
		`503 RateLimit: "a";r=0;t=4`:                                                4 * s,
		"RateLimit: \"a\";r=0;t=4;t=6":                                              6 * s,
		"RateLimit:  \"a\" ;r=0;t=4":                                                0,
		"RateLimit: \"a\";r=0;t=4 , \"b\";r=0;t=8":                                  8 * s,
	} {
		t.Run(headers, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				status := 200
				if n, err := strconv.Atoi(headers[:min(3, len(headers))]); err == nil {
					status, headers = n, headers[4:]
				}
				now := time.Now()
				headers = strings.NewReplacer(
					"UNIX+15", strconv.FormatInt(now.Unix()+15, 10),
					"DATE+20", now.Add(20*s).UTC().Format(http.TimeFormat), "DATE-20", now.Add(-20*s).UTC().Format(http.TimeFormat),
				).Replace(headers)
				server := &replies{list: []reply{{status, headers}}}
				client := http.Client{Transport: &httplimit.Transport{Base: server, MaxRetries: -1}}
				for _, url := range []string{"http://api.example/", "http://other.example/", "http://api.example/x"} {
					response, err := client.Get(url)
					if err != nil {
						t.Fatal(err)
					}
					_ = response.Body.Close()
				}
				if server.at[1] != 0 {
					t.Errorf("another host waited for %v", server.at[1])
				}
				if !near(server.at[2], want) || (want == 0 && server.at[2] != 0) {
					t.Errorf("waited for %v, want %v", server.at[2], want)
				}
			})
		})
	}
}

// TestTransportGone leaves while a request waits, before it is sent and after.
func TestTransportGone(t *testing.T) {
	t.Parallel()
	for _, first := range []reply{{200, `RateLimit: "a";r=0;t=30`}, {429, "Retry-After: 30"}} {
		synctest.Test(t, func(t *testing.T) {
			transport := &httplimit.Transport{Base: &replies{list: []reply{first, first}}}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			var err error
			for range 2 {
				closed := &closing{Reader: strings.NewReader("hello")}
				var r *http.Request
				if r, err = http.NewRequestWithContext(ctx, http.MethodPut, "http://api.example/", closed); err != nil {
					t.Fatal(err)
				}
				r.GetBody = func() (io.ReadCloser, error) { return closed, nil }
				var response *http.Response
				if response, err = transport.RoundTrip(r); err == nil {
					_ = response.Body.Close()
				}
				if !closed.done {
					t.Error("the body is still open")
				}
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want that it was canceled", err)
			}
		})
	}
}

type closing struct {
	io.Reader
	done bool
}

func (c *closing) Close() error {
	c.done = true
	return nil
}

// TestTransportForgets asks more hosts than are remembered.
func TestTransportForgets(t *testing.T) {
	t.Parallel()
	transport := &httplimit.Transport{Base: &replies{}}
	client := http.Client{Transport: transport}
	for i := range 3000 {
		response, err := client.Get(fmt.Sprintf("http://host-%d.example/", i))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
	}
	if n := transport.Hosts(); n != 1024 {
		t.Errorf("%d hosts, want 1024", n)
	}
}

// handled is a server without a network, a millisecond away.
type handled struct {
	http.Handler
	denied atomic.Int64
}

func (h *handled) RoundTrip(r *http.Request) (*http.Response, error) {
	<-time.After(time.Millisecond)
	rec := httptest.NewRecorder()
	r = r.Clone(r.Context())
	r.RemoteAddr = "192.0.2.1:80"
	h.ServeHTTP(rec, r)
	if rec.Code == http.StatusTooManyRequests {
		h.denied.Add(1)
	}
	return rec.Result(), nil
}

// TestTransportAgainstMiddleware has many parts of one program ask as fast as they
// can. All get what they want, and as much as there is. Of the first 50, which know
// nothing, 40 are denied, and hardly any later.
func TestTransportAgainstMiddleware(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"10/1s token_bucket", "10/1s", "10/1s sliding_log", "10/1s fixed_window"} {
		synctest.Test(t, func(t *testing.T) {
			rules, err := rule.Compile(rule.File{Rules: []rule.Rule{{
				Name: "each", CountBy: []rule.Dimension{"ip"}, Limits: []rule.Limit{{Name: "each", Limit: limit}},
			}}})
			if err != nil {
				t.Fatal(err)
			}
			who, err := identity.New(identity.Options{})
			if err != nil {
				t.Fatal(err)
			}
			store, err := memstore.New(memstore.Options{Now: time.Now})
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			e, err := engine.New(engine.Options{Store: store, Rules: rules, Identity: who})
			if err != nil {
				t.Fatal(err)
			}
			server := &handled{Handler: limited(t, httplimit.Options{Engine: e}, func(http.ResponseWriter, *http.Request) {})}
			client := http.Client{Transport: &httplimit.Transport{Base: server}}
			begin := time.Now()
			var wg sync.WaitGroup
			for range 50 {
				wg.Go(func() {
					for range 4 {
						response, err := client.Get("http://api.example/")
						if err != nil {
							t.Error(err)
							return
						}
						if response.Body.Close(); response.StatusCode != http.StatusOK {
							t.Errorf("%s: %s after %v", limit, response.Status, time.Since(begin))
						}
					}
				})
			}
			wg.Wait()
			if took := time.Since(begin); took > 45*time.Second {
				t.Errorf("%s: 200 requests took %v", limit, took)
			}
			if n := server.denied.Load(); n > 120 {
				t.Errorf("%s: %d requests were denied, want 120 at most", limit, n)
			}
		})
	}
}
