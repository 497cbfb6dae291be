package httplimit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
)

// apiOf is the decision API of a world.
func apiOf(tb testing.TB, w world) http.Handler {
	tb.Helper()
	h, err := httplimit.API(httplimit.APIOptions{Engine: w.Engine, Store: w.store, Operators: operators, Tickets: ticketsOf(tb, w, "a")})
	if err != nil {
		tb.Fatal(err)
	}
	return h
}

// operators lets requests through, unless a header says how they are to be refused.
func operators(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status, err := strconv.Atoi(r.Header.Get("X-Refuse")); err == nil {
			httplimit.Problem{Status: status, Detail: "want a token"}.Write(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// TestReset checks that only operators can reset counters, and that this is logged before it
// happens.
func TestReset(t *testing.T) {
	t.Parallel()
	w := worldOf(t, apiRules, identity.Options{})
	var logged []string
	o := httplimit.APIOptions{Engine: w.Engine, Store: w.store}
	api := func() http.Handler {
		h, err := httplimit.API(o)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	used := func() bool {
		return !strings.Contains(call(api(), "GET", "/v1/usage?user=alice", "").Body.String(), `"remaining":5`)
	}
	call(api(), "POST", "/v1/check", `{"path":"/","user":"alice"}`)
	const reset = "/v1/usage?user=alice&ip=192.0.2.1&rule=users"
	if rec := call(api(), "DELETE", reset, ""); rec.Code != http.StatusMethodNotAllowed || rec.Header().Get("Allow") != "GET" || !used() {
		t.Errorf("without operators: %d %s", rec.Code, rec.Body)
	}
	o.Operators = operators
	o.OnReset = func(_ context.Context, who identity.Subject, rule string) error {
		logged = append(logged, who.User+" "+who.IP.String()+" "+rule)
		return stint.ErrUnavailable
	}
	r := httptest.NewRequest(http.MethodDelete, reset, http.NoBody)
	r.Header.Set("X-Refuse", "401")
	rec := httptest.NewRecorder()
	if api().ServeHTTP(rec, r); rec.Code != http.StatusUnauthorized || !used() || len(logged) > 0 {
		t.Errorf("by a stranger: %d %s %q", rec.Code, rec.Body, logged)
	}
	if rec := call(api(), "DELETE", "/v1/usage?user=alice&rule=none", ""); rec.Code != http.StatusBadRequest || len(logged) > 0 {
		t.Errorf("of no rule: %d %s %q", rec.Code, rec.Body, logged)
	}
	if rec := call(api(), "DELETE", reset, ""); rec.Code != http.StatusServiceUnavailable || !used() || !slices.Equal(logged, []string{"alice 192.0.2.1 users"}) {
		t.Errorf("what cannot be logged: %d %s %q", rec.Code, rec.Body, logged)
	}
	o.OnReset = func(context.Context, identity.Subject, string) error { return nil }
	if rec := call(api(), "DELETE", reset, ""); rec.Code != http.StatusNoContent || used() {
		t.Errorf("by an operator: %d %s", rec.Code, rec.Body)
	}
}

// call calls the API. A body is JSON.
func call(h http.Handler, method, target, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec
}

const apiRules = `
	[[rules]]
	name     = "users"
	count_by = ["user"]
	limits   = [ { name = "hourly", limit = "5/1h" } ]
	[[rules]]
	name     = "search"
	match    = { paths = ["/search"] }
	count_by = ["user", "endpoint"]
	limits   = [ { name = "search", limit = "2/1m fixed_window" } ]
	penalty  = { threshold = 2, within = "1h", cooldown = "10m" }
	[[rules]]
	name     = "mobile"
	match    = { headers = { "X-App" = "mobile" } }
	count_by = ["ip"]
	limits   = [ { name = "mobile", limit = "1/1s token_bucket" } ]
	[[rules]]
	name     = "tried-out"
	match    = { paths = ["/new"] }
	count_by = ["user"]
	limits   = [ { name = "new", limit = "1/1h" } ]
	action   = "log_only"
	[[rules]]
	name     = "admin"
	match    = { paths = ["/admin/**"] }
	action   = "block"
	response = { message = "Not here." }
`

// TestCalls compares a conversation with the API, as it is, with a file.
func TestCalls(t *testing.T) {
	t.Parallel()
	w := worldOf(t, apiRules, identity.Options{})
	h := apiOf(t, w)
	var all strings.Builder
	for _, c := range []struct{ about, method, target, body string }{
		{"a request is described, and passes", "POST", "/v1/check", `{"method":"GET","path":"/search?q=1","user":"alice","ip":"192.0.2.1"}`},
		{"a peek takes nothing", "POST", "/v1/check", `{"path":"/search","user":"alice","peek":true}`},
		{"the second", "POST", "/v1/check", `{"path":"/search","user":"alice"}`},
		{"the third is denied, and the status is still 200", "POST", "/v1/check", `{"path":"/search","user":"alice"}`},
		{"the fourth leads to a ban", "POST", "/v1/check", `{"path":"/search","user":"alice"}`},
		{"who is someone else is not concerned", "POST", "/v1/check", `{"path":"/search","user":"bob","cost":2}`},
		{"a cost that can never pass", "POST", "/v1/check", `{"path":"/other","user":"bob","cost":6}`},
		{"blocked", "POST", "/v1/check", `{"path":"/admin/x"}`},
		{"by headers and address", "POST", "/v1/check", `{"path":"/","ip":"192.0.2.1","headers":{"x-app":["mobile"]}}`},
		{"tried out", "POST", "/v1/check", `{"path":"/new","user":"carol","cost":2}`},
		{"no rule applies", "POST", "/v1/check", `{"path":"/"}`},
		{"several at once", "POST", "/v1/check/batch", `{"requests":[{"path":"/","user":"dave"},{"path":"/admin"},{"path":"/","ip":"2001:db8::1"}]}`},
		{"how a user stands", "GET", "/v1/usage?user=alice", ""},
		{"a rule's counters are forgotten", "DELETE", "/v1/usage?user=alice&rule=search", ""},
		{"how the user stands then", "GET", "/v1/usage?user=alice", ""},
		{"a bare counter", "POST", "/v1/take", `{"subject":"user:42","name":"mails","limit":"2/1m","cost":2}`},
		{"it is used up", "POST", "/v1/take", `{"subject":"user:42","name":"mails","limit":"2/1m"}`},
		{"all or nothing", "POST", "/v1/take", `{"asks":[{"subject":"user:43","limit":"2/1m"},{"subject":"user:42","name":"mails","limit":"2/1m"}]}`},
		{"nothing was taken", "POST", "/v1/take", `{"subject":"user:43","limit":"2/1m","cost":0}`},
		{"above what it allows", "POST", "/v1/take", `{"subject":"user:43","limit":"2/1m","cost":3}`},
		{"to be spaced", "POST", "/v1/take", `{"asks":[{"subject":"a","limit":"1/1s burst=2 leaky_bucket"},{"subject":"a","limit":"1/1s burst=2 leaky_bucket"}]}`},
	} {
		rec := call(h, c.method, c.target, c.body)
		fmt.Fprintf(&all, "# %s\n%s %s %s\n\n%s\n", c.about, c.method, c.target, c.body, transcript(rec))
		w.clock.Add(time.Millisecond)
	}
	golden(t, "calls.txt", all.String())
}

// TestCallsRejected sends what is wrong. It is named, and nothing is counted.
func TestCallsRejected(t *testing.T) {
	t.Parallel()
	w := worldOf(t, apiRules, identity.Options{})
	h := apiOf(t, w)
	many := func(one string, n int) string { return strings.TrimSuffix(strings.Repeat(one+",", n), ",") }
	for _, c := range []struct {
		method, target, body string
		status               int
		says                 string
	}{
		{"POST", "/v1/check", ``, 415, `Content-Type "": want application/json`},
		{"POST", "/v1/check", ` `, 400, "want an object, found the end"},
		{"POST", "/v1/check", `[]`, 400, "want an object, found ["},
		{"POST", "/v1/check", `null`, 400, "want an object, found null"},
		{"POST", "/v1/check", `{}`, 400, "path: want the path"},
		{"POST", "/v1/check", `{"path":"/"`, 400, "want a comma or the end of the object, found the end"},
		{"POST", "/v1/check", `{"path":"/",}`, 400, "want a name in quotes, found }"},
		{"POST", "/v1/check", `{"path" "/"}`, 400, "path: want a colon"},
		{"POST", "/v1/check", `{"path":"/"}}`, 400, "want nothing after the object, found }"},
		{"POST", "/v1/check", `{"path":"/"} {"path":"/"}`, 400, "want nothing after the object"},
		{"POST", "/v1/check", `{"path":"/","path":"/"}`, 400, "path: want it only once"},
		{"POST", "/v1/check", `{"path":"/","Path":"/"}`, 400, `"Path": unknown field, want method`},
		{"POST", "/v1/check", `{"path":"/","usr":"a"}`, 400, `"usr": unknown field, want method, path`},
		{"POST", "/v1/check", `{"path":""}`, 400, `path: want a path that begins with a slash`},
		{"POST", "/v1/check", `{"path":"search"}`, 400, `found "search"`},
		{"POST", "/v1/check", `{"path":1}`, 400, "path: want a string, found 1"},
		{"POST", "/v1/check", `{"path":"/` + "\x01" + `"}`, 400, "path: want control characters in a string to be escaped"},
		{"POST", "/v1/check", `{"path":"/` + "\xff" + `"}`, 400, "path: want valid UTF-8"},
		{"POST", "/v1/check", `{"path":"/\x"}`, 400, "path: want a valid escape"},
		{"POST", "/v1/check", `{"path":"/\ud800"}`, 400, "path: want a valid escape"},
		{"POST", "/v1/check", `{"path":"/\ud800\u0041"}`, 400, "path: want a valid escape"},
		{"POST", "/v1/check", `{"path":"/\u00"}`, 400, "path: want a valid escape"},
		{"POST", "/v1/check", `{"path":"/`, 400, "path: want a closing quote"},
		{"POST", "/v1/check", `{"path":"/\`, 400, "path: want a closing quote"},
		{"POST", "/v1/check", `{"path":"/","method":"get"}`, 400, `method: want a method in upper case, such as GET, found "get"`},
		{"POST", "/v1/check", `{"path":"/","method":""}`, 400, `method: want`},
		{"POST", "/v1/check", `{"path":"/","ip":"192.0.2.256"}`, 400, `ip: want an address`},
		{"POST", "/v1/check", `{"path":"/","user":"` + strings.Repeat("a", 256) + `"}`, 400, `user: want at most 255 bytes`},
		{"POST", "/v1/check", `{"path":"/","tenant":"a\nb"}`, 400, `tenant: want at most 255 bytes without control characters`},
		{"POST", "/v1/check", `{"path":"/","api_key":null}`, 400, `api_key: want a string, found null`},
		{"POST", "/v1/check", `{"path":"/","tier":{}}`, 400, `tier: want a string, found {`},
		{"POST", "/v1/check", `{"path":"/","cost":0}`, 400, `cost: want a whole number from 1 to 9007199254740991, found 0`},
		{"POST", "/v1/check", `{"path":"/","cost":-1}`, 400, `found -1`},
		{"POST", "/v1/check", `{"path":"/","cost":01}`, 400, `found 01`},
		{"POST", "/v1/check", `{"path":"/","cost":1.5}`, 400, `found 1.5`},
		{"POST", "/v1/check", `{"path":"/","cost":1e3}`, 400, `found 1e3`},
		{"POST", "/v1/check", `{"path":"/","cost":9007199254740992}`, 400, `found 9007199254740992`},
		{"POST", "/v1/check", `{"path":"/","cost":"1"}`, 400, `cost: want a whole number`},
		{"POST", "/v1/check", `{"path":"/","peek":1}`, 400, `peek: want true or false, found 1`},
		{"POST", "/v1/check", `{"path":"/","peek":trueish}`, 400, `want a comma or the end`},
		{"POST", "/v1/check", `{"path":"/","headers":[]}`, 400, `headers: want an object`},
		{"POST", "/v1/check", `{"path":"/","headers":{"A":1}}`, 400, `headers.A: want a string, found 1`},
		{"POST", "/v1/check", `{"path":"/","headers":{"A":["x",1]}}`, 400, `headers.A[1]: want a string, found 1`},
		{"POST", "/v1/check", `{"path":"/","headers":{"a":"x","A":"y"}}`, 400, `headers.A: want it only once`},
		{"POST", "/v1/check", `{"path":"/","headers":{"A":[` + many(`"x"`, 1001) + `]}}`, 400, `headers.A: want at most 1000 elements`},
		{"POST", "/v1/check", `{"path":"/` + strings.Repeat("a", 1<<20) + `"}`, 413, `body: want at most 1048576 bytes`},
		{"GET", "/v1/check", ``, 405, "method GET: want POST"},
		{"POST", "/v1/check/batch", `{}`, 400, `requests: want at least one request`},
		{"POST", "/v1/check/batch", `{"requests":[]}`, 400, `requests: want at least one request`},
		{"POST", "/v1/check/batch", `{"requests":{}}`, 400, `requests: want an array, found {`},
		{"POST", "/v1/check/batch", `{"requests":[{"path":"/"},{"path":"/","user":1}]}`, 400, `requests[1].user: want a string, found 1`},
		{"POST", "/v1/check/batch", `{"requests":[{"path":"/"} {"path":"/"}]}`, 400, `requests: want a comma or the end of the array`},
		{"POST", "/v1/check/batch", `{"requests":[{"path":"/","user":"alice"},{}]}`, 400, `requests[1].path: want the path`},
		{"POST", "/v1/check/batch", `{"requests":[` + many(`{"path":"/","user":"alice"}`, 1001) + `]}`, 400, `requests: want at most 1000 elements`},
		{"POST", "/v1/check/batch", `{"requests":[` + strings.Repeat(" ", 4<<20) + `]}`, 413, `body: want at most 4194304 bytes`},
		{"POST", "/v1/take", `{}`, 400, `subject: want at least one character`},
		{"POST", "/v1/take", `{"subject":"a"}`, 400, `limit: want a limit, such as 100/1m`},
		{"POST", "/v1/take", `{"subject":"a","limit":"100"}`, 400, `limit: limit "100"`},
		{"POST", "/v1/take", `{"subject":"a","limit":"1/1s","cost":-1}`, 400, `cost: want a whole number from 0`},
		{"POST", "/v1/take", `{"subject":"a","limit":"1/1s","name":"` + strings.Repeat("a", 4097) + `"}`, 400, `name: want at most 4096 bytes`},
		{"POST", "/v1/take", `{"asks":[],"subject":"a"}`, 400, `limit: want a limit`},
		{"POST", "/v1/take", `{"asks":[{"subject":"a","limit":"1/1s"}],"subject":"a"}`, 400, `asks: want either asks or the fields of one ask`},
		{"POST", "/v1/take", `{"asks":[{"subject":"a","limit":"1/1s"},{"subject":"b"}]}`, 400, `asks[1].limit: want a limit`},
		{"POST", "/v1/take", `{"asks":[` + many(`{"subject":"a","limit":"1/1s"}`, 101) + `]}`, 400, `asks: want at most 100 elements`},
		{"GET", "/v1/usage", ``, 400, `query: want one of user, tenant, api_key, ip`},
		{"GET", "/v1/usage?user=", ``, 400, `query: want one of user, tenant, api_key, ip`},
		{"GET", "/v1/usage?user=a&user=b", ``, 400, `user: want it only once`},
		{"GET", "/v1/usage?user=%zz", ``, 400, `query: want names and values`},
		{"GET", "/v1/usage?user=%00", ``, 400, `user: want at most 255 bytes`},
		{"GET", "/v1/usage?usr=a", ``, 400, `"usr": unknown parameter, want user`},
		{"GET", "/v1/usage?user=a&rule=search", ``, 400, `"rule": unknown parameter, want user`},
		{"GET", "/v1/usage?ip=x", ``, 400, `ip: want an address, such as 192.0.2.1 or 2001:db8::1, found "x"`},
		{"DELETE", "/v1/usage?user=a&rule=serach", ``, 400, `rule: there is no rule "serach"`},
		{"POST", "/v1/usage?user=a", `{}`, 405, "method POST: want DELETE, GET"},
		{"GET", "/v1/checks", ``, 404, "There is nothing at this path"},
		{"GET", "/v1/forward-auth", ``, 400, "X-Forwarded-Uri: want the path"},
	} {
		rec := call(h, c.method, c.target, c.body)
		var p struct {
			Type, Title, Detail string
			Status              int
		}
		if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil {
			t.Errorf("%s: %v in %s", brief(c.body), err, rec.Body)
		}
		if rec.Code != c.status || p.Status != c.status || !strings.Contains(p.Detail, c.says) || p.Type != "about:blank" {
			t.Errorf("%s %s %s: %d, %q; want %d, %q", c.method, c.target, brief(c.body), rec.Code, p.Detail, c.status, c.says)
		}
		if kind := rec.Header().Get("Content-Type"); kind != "application/problem+json" {
			t.Errorf("%s: Content-Type %q", brief(c.body), kind)
		}
		if rec.Code == http.StatusMethodNotAllowed && rec.Header().Get("Allow") == "" {
			t.Errorf("%s %s: 405 without Allow", c.method, c.target)
		}
	}
	limits, err := w.Usage(t.Context(), identity.Subject{User: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range limits {
		if l.Decision.Remaining != l.Decision.Limit {
			t.Errorf("%s: %d of %d remain, though nothing has passed", l.Name, l.Decision.Remaining, l.Decision.Limit)
		}
	}
}

func brief(s string) string { return s[:min(len(s), 80)] }

// TestContentType checks what is taken for JSON.
func TestContentType(t *testing.T) {
	t.Parallel()
	h := apiOf(t, worldOf(t, oneLimit, identity.Options{}))
	for kind, want := range map[string]int{
		"application/json":                  200,
		"application/json; charset=utf-8":   200,
		"Application/JSON":                  200,
		"text/plain":                        415,
		"application/x-www-form-urlencoded": 415,
		"application/json; charset":         415,
	} {
		r := httptest.NewRequest(http.MethodPost, "/v1/check", strings.NewReader(`{"path":"/"}`))
		r.Header.Set("Content-Type", kind)
		rec := httptest.NewRecorder()
		if h.ServeHTTP(rec, r); rec.Code != want {
			t.Errorf("%s: %d, want %d", kind, rec.Code, want)
		}
	}
}

// remaining returns what remains of the user's limit "hourly".
func remaining(t *testing.T, w world, user string) int64 {
	t.Helper()
	limits, err := w.Usage(t.Context(), identity.Subject{User: user})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(limits, func(l engine.Limit) bool { return l.Name == "hourly" })
	return limits[i].Decision.Remaining
}

// TestTakeReachesNoRule takes from a counter that has the name of a rule's.
func TestTakeReachesNoRule(t *testing.T) {
	t.Parallel()
	w := worldOf(t, apiRules, identity.Options{})
	h := apiOf(t, w)
	if rec := call(h, "POST", "/v1/take", `{"subject":"user:alice","name":"users:hourly","limit":"5/1h","cost":5}`); rec.Code != 200 {
		t.Fatal(rec.Body)
	}
	if n := remaining(t, w, "alice"); n != 5 {
		t.Errorf("%d of 5 remain", n)
	}
}

// TestBatch decides about many requests at once. As many pass as may.
func TestBatch(t *testing.T) {
	t.Parallel()
	h := apiOf(t, worldOf(t, apiRules, identity.Options{}))
	var requests []string
	for i := range 1000 {
		requests = append(requests, fmt.Sprintf(`{"path":"/","user":"user-%d"}`, i%100))
	}
	rec := call(h, "POST", "/v1/check/batch", `{"requests":[`+strings.Join(requests, ",")+`]}`)
	var got struct{ Verdicts []struct{ Allowed bool } }
	if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil || len(got.Verdicts) != 1000 {
		t.Fatal(err, len(got.Verdicts), brief(rec.Body.String()))
	}
	passed := map[int]int{}
	for i, v := range got.Verdicts {
		if v.Allowed {
			passed[i%100]++
		}
	}
	for user := range 100 {
		if passed[user] != 5 {
			t.Errorf("user %d: %d requests have passed, want 5", user, passed[user])
		}
	}
}

// TestNothingIsLeft describes no one after someone, for whom limits apply, whom headers
// name, or who only looks: what a call has said is not there in the next.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	h := apiOf(t, worldOf(t, apiRules, identity.Options{}))
	const someone, peeking, noone = `{"path":"/search","user":"alice","headers":{"X-App":"mobile"},"cost":2}`, `{"path":"/search","user":"bob","peek":true}`, `{"path":"/other"}`
	for range 10 {
		for _, c := range []struct{ path, body string }{
			{"/v1/check", someone},
			{"/v1/check", noone},
			{"/v1/check", peeking},
			{"/v1/check", noone},
			{"/v1/check/batch", `{"requests":[` + someone + `,` + peeking + `,` + noone + `]}`},
			{"/v1/check/batch", `{"requests":[` + noone + `,` + noone + `,` + noone + `,` + noone + `]}`},
		} {
			rec := call(h, "POST", c.path, c.body)
			got, asked := rec.Body.String(), strings.Count(c.body, noone)
			if rec.Code != 200 || strings.Count(got, `"limits":[]`) != asked || (rec.Header().Get("Ratelimit") != "") != (c.body == someone || c.body == peeking) {
				t.Fatalf("%s %s: %d %v %s, want %d without limits", c.path, c.body, rec.Code, rec.Header(), got, asked)
			}
		}
	}
}

// TestContentLength is told of answers of any size: none comes in pieces.
func TestContentLength(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(apiOf(t, worldOf(t, roomy, identity.Options{})))
	defer server.Close()
	for _, n := range []int{1, 4, 16, 1000} {
		batch := `{"requests":[` + strings.TrimSuffix(strings.Repeat(`{"path":"/search","user":"alice"},`, n), ",") + `]}`
		answer, err := server.Client().Post(server.URL+"/v1/check/batch", "application/json", strings.NewReader(batch))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || answer.ContentLength != int64(len(body)) || strings.Count(string(body), `"decision_id"`) != n {
			t.Errorf("of %d: %d bytes are said, and %d there: %v", n, answer.ContentLength, len(body), err)
		}
	}
}

// patient is a store that takes its time.
type patient struct {
	stint.Store
	takes time.Duration
}

func (s *patient) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if s.takes > 0 {
		<-time.After(s.takes)
	}
	return s.Store.Take(ctx, asks, ds)
}

// TestBatchWaits asks a store that is far away for many decisions: sixteen wait at a time,
// in the first batch as soon as one has waited a moment.
func TestBatchWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := worldOf(t, roomy, identity.Options{})
		far := &patient{w.store.(*broken).Store, 10 * time.Millisecond}
		w.store.(*broken).Store = far
		h := apiOf(t, w)
		batch := `{"requests":[` + strings.TrimSuffix(strings.Repeat(`{"path":"/search","user":"alice"},`, 64), ",") + `]}`
		for i, want := range []int64{1 + 40, 40, 40, 0, 0, 1 + 40} {
			if far.takes = 10 * time.Millisecond; i == 3 || i == 4 {
				far.takes = 0
			}
			began := time.Now()
			rec := call(h, "POST", "/v1/check/batch", batch)
			if took := time.Since(began); rec.Code != 200 || took.Milliseconds() != want {
				t.Errorf("batch %d: %d after %v, want %dms", i, rec.Code, took, want)
			}
		}
	})
}

// TestStoreOutOfReach calls while nothing can be counted.
func TestStoreOutOfReach(t *testing.T) {
	t.Parallel()
	w := worldOf(t, oneLimit, identity.Options{})
	w.store.(*broken).down = true
	h := apiOf(t, w)
	rec := call(h, "POST", "/v1/take", `{"subject":"a","limit":"1/1s"}`)
	if rec.Code != 503 || rec.Header().Get("Retry-After") != "1" || !strings.Contains(rec.Body.String(), "temporary-reduced-capacity") {
		t.Errorf("%s", transcript(rec))
	}
	rec = call(h, "POST", "/v1/check", `{"path":"/search","ip":"192.0.2.1"}`)
	if rec.Code != 200 || strings.Contains(rec.Body.String(), "remaining") || !strings.Contains(rec.Body.String(), `"basis":"open"`) {
		t.Errorf("%s", transcript(rec))
	}
}

// empty is a handler that reads the body and answers as much as a check does.
func empty(w http.ResponseWriter, r *http.Request) {
	var room [512]byte
	_, _ = r.Body.Read(room[:])
	w.Header()["Content-Type"] = []string{"application/json"}
	_, _ = w.Write(room[:300])
}

// sink is a response that is thrown away.
type sink struct{ h http.Header }

func (s *sink) Header() http.Header { return s.h }

func (s *sink) Write(b []byte) (int, error) { return len(b), nil }

func (s *sink) WriteHeader(int) {}

type again struct{ *strings.Reader }

func (again) Close() error { return nil }

func benchAPI(b *testing.B, h http.Handler, path, body string) {
	b.Helper()
	r := httptest.NewRequest(http.MethodPost, path, nil)
	r.Header.Set("Content-Type", "application/json")
	reader := again{strings.NewReader(body)}
	r.Body = reader
	w := &sink{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		reader.Reset(body)
		h.ServeHTTP(w, r)
	}
}

const roomy = `
	[[rules]]
	name     = "users"
	count_by = ["user"]
	limits   = [ { name = "hourly", limit = "100000000000/1h" } ]
`

func BenchmarkCheck(b *testing.B) {
	w := worldOf(b, roomy, identity.Options{})
	h := apiOf(b, w)
	one := `{"method":"GET","path":"/search","user":"alice","ip":"192.0.2.1"}`
	b.Run("empty", func(b *testing.B) { benchAPI(b, http.HandlerFunc(empty), "/v1/check", one) })
	b.Run("decide", func(b *testing.B) {
		q := engine.Request{Method: "GET", Path: "/search", Subject: &identity.Subject{User: "alice"}}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := w.Decide(b.Context(), q); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("check", func(b *testing.B) { benchAPI(b, h, "/v1/check", one) })
	b.Run("take", func(b *testing.B) {
		benchAPI(b, h, "/v1/take", `{"subject":"user:42","name":"mails","limit":"100000000000/1m"}`)
	})
	b.Run("batch of 64", func(b *testing.B) {
		benchAPI(b, h, "/v1/check/batch", `{"requests":[`+strings.TrimSuffix(strings.Repeat(one+",", 64), ",")+`]}`)
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/decision")
	})
}
