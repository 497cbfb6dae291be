package httplimit_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
	"github.com/stintdev/stint/storetest"
)

var update = flag.Bool("update", false, "write golden files")

// world is an engine, its store and its clock.
type world struct {
	*engine.Engine
	store stint.Store
	clock *storetest.Clock
}

// broken is a store out of reach, if it is so.
type broken struct {
	stint.Store
	down bool
	bad  bool // a counter is broken
}

func (b *broken) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	switch {
	case b.down:
		return stint.ErrUnavailable
	case b.bad:
		return errors.New("secret of ours")
	}
	return b.Store.Take(ctx, asks, ds)
}

func (b *broken) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	switch {
	case b.down:
		return stint.ErrUnavailable
	case b.bad:
		return errors.New("secret of ours")
	}
	return b.Store.Adjust(ctx, asks, ds)
}

func (b *broken) Reset(ctx context.Context, asks []stint.Ask) error {
	if b.down {
		return stint.ErrUnavailable
	}
	return b.Store.Reset(ctx, asks)
}

// worldOf is a world with rules in TOML. Users are who the header X-User says, if the
// peer is 10.0.0.1.
func worldOf(tb testing.TB, toml string, o identity.Options) world {
	tb.Helper()
	w := world{clock: storetest.NewClock()}
	store, err := memstore.New(memstore.Options{Now: w.clock.Now})
	if err != nil {
		tb.Fatal(err)
	}
	w.store = &broken{Store: store}
	f, err := rule.ParseTOML("test.toml", []byte(toml))
	if err != nil {
		tb.Fatal(err)
	}
	rules, err := rule.Compile(f)
	if err != nil {
		tb.Fatal(err)
	}
	o.UserHeader, o.TrustedProxies = "X-User", []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}
	who, err := identity.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = who.Close() })
	w.Engine, err = engine.New(engine.Options{Store: w.store, Rules: rules, Identity: who, Now: w.clock.Now})
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// limited is a handler behind the middleware.
func limited(tb testing.TB, o httplimit.Options, next http.HandlerFunc) http.Handler {
	tb.Helper()
	limit, err := httplimit.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return limit(next)
}

// from is a request of a client.
func from(client, method, target string) *http.Request {
	r := httptest.NewRequest(method, target, http.NoBody)
	r.RemoteAddr = client + ":4711"
	return r
}

var ids = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`)

var tickets = regexp.MustCompile(`"ticket":"[A-Za-z0-9_-]+"`)

// transcript is a response as text.
func transcript(rec *httptest.ResponseRecorder) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s\n", rec.Code, http.StatusText(rec.Code))
	for _, name := range slices.Sorted(mapKeys(rec.Header())) {
		fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(rec.Header()[name], " | "))
	}
	if body := rec.Body.String(); body != "" {
		fmt.Fprintf(&b, "\n%s\n", strings.TrimSpace(body))
	}
	return tickets.ReplaceAllString(ids.ReplaceAllString(b.String(), "ID"), `"ticket":"TICKET"`)
}

func mapKeys(h http.Header) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range h {
			if !yield(k) {
				return
			}
		}
	}
}

// golden compares text with a file.
func golden(t *testing.T, file, got string) {
	t.Helper()
	name := "testdata/" + file
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; run with -update and look at what changes:\n%s", name, got)
	}
}

const oneLimit = `
	[[rules]]
	name     = "search"
	match    = { paths = ["/search"] }
	count_by = ["ip"]
	limits   = [ { name = "search", limit = "2/1m fixed_window" } ]
`

// TestAnswers compares what clients see, as it is, with a file.
func TestAnswers(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for _, c := range []struct {
		about  string
		rules  string
		o      identity.Options
		sets   httplimit.HeaderSet
		method string
		cost   int64
		before int  // requests before the one that is shown
		down   bool // the store
		ban    *identity.Entry
	}{
		{about: "one limit, the first request", rules: oneLimit},
		{about: "the last of one limit", rules: oneLimit, before: 1},
		{about: "a limit that is used up", rules: oneLimit, before: 2},
		{about: "HEAD has no body", rules: oneLimit, before: 2, method: "HEAD"},
		{about: "X headers only", rules: oneLimit, before: 2, sets: httplimit.X},
		{about: "IETF headers only", rules: oneLimit, before: 2, sets: httplimit.IETF},
		{about: "no headers but Retry-After", rules: oneLimit, before: 2, sets: httplimit.None},
		{about: "what a request costs", rules: oneLimit, cost: 2},
		{about: "a cost that can never pass", rules: oneLimit, cost: 3},
		{about: "several limits: the one that is nearest to its end comes first", before: 1, rules: `
			[[rules]]
			name     = "everyone"
			limits   = [ { name = "all", limit = "1000/1h" } ]
			[[rules]]
			name     = "each"
			count_by = ["ip"]
			limits   = [ { name = "minute", limit = "50/1m" }, { name = "burst", limit = "10/1s burst=20 token_bucket" } ]
		`},
		{about: "limits of several rules that have one name", before: 1, rules: `
			[[rules]]
			name     = "everyone"
			limits   = [ { name = "hourly", limit = "1000/1h sliding_log" }, { name = "daily", limit = "5000/day" } ]
			[[rules]]
			name     = "each"
			count_by = ["ip"]
			limits   = [ { name = "hourly", limit = "1/1h" } ]
			response = { message = "One an hour is enough." }
		`},
		{about: "calendar windows and short windows", rules: `
			[[rules]]
			name     = "each"
			count_by = ["ip"]
			limits   = [ { name = "monthly", limit = "500/month" }, { name = "short", limit = "100/250ms" } ]
		`},
		{about: "more than the fields can say", rules: `
			[[rules]]
			name     = "each"
			count_by = ["ip"]
			limits   = [ { name = "large", limit = "9007199254740991/1s fixed_window" } ]
		`},
		{about: "a rule that is only tried out is not told of", before: 3, rules: oneLimit + `action = "log_only"`},
		{about: "banned for not stopping", before: 3, rules: oneLimit + `penalty = { threshold = 1, within = "1h", cooldown = "10m" }`},
		{about: "banned for good", rules: oneLimit, ban: &identity.Entry{Value: "192.0.2.1"}},
		{
			about: "banned for a while", rules: oneLimit,
			ban: &identity.Entry{Value: "192.0.2.0/24", Until: storetest.Epoch.Add(time.Hour), Reason: "Please write to us."},
		},
		{about: "blocked", rules: `
			[[rules]]
			name   = "closed"
			action = "block"
		`},
		{about: "another status", before: 2, rules: oneLimit + `response = { status = 420, message = "Calm down." }`},
		{about: "a time to wait that the rule says", before: 2, rules: oneLimit + `response = { retry_after = "2m" }`},
		{about: "it is not said of a ban", before: 3, rules: oneLimit + `penalty = { threshold = 1, within = "1h", cooldown = "10m" }` + "\n" + `response = { retry_after = "2m" }`},
		{about: "nor of what never passes", cost: 1000, rules: oneLimit + `response = { retry_after = "2m" }`},
		{about: "closed for a while", rules: `
			[[rules]]
			name     = "closed"
			action   = "block"
			response = { status = 503, retry_after = "1h" }
		`},
		{about: "credentials are required", rules: oneLimit, o: identity.Options{Require: true}},
		{about: "exempt", rules: `
			[[rules]]
			name   = "free"
			action = "allow"
		`},
		{about: "no rule applies", rules: ``},
		{about: "the store is out of reach, and the rule is closed", rules: oneLimit + `on_store_failure = "closed"`, down: true},
		{about: "the store is out of reach, and the rule is open: no numbers", rules: oneLimit + `on_store_failure = "open"`, down: true},
	} {
		w := worldOf(t, c.rules, c.o)
		if c.ban != nil {
			if err := w.Ban(*c.ban); err != nil {
				t.Fatal(err)
			}
		}
		h := limited(t, httplimit.Options{
			Engine: w.Engine, Headers: c.sets, Cost: func(*http.Request) int64 { return c.cost },
		}, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
		for range c.before {
			h.ServeHTTP(httptest.NewRecorder(), from("192.0.2.1", "GET", "/search"))
		}
		w.clock.Add(1500 * time.Millisecond)
		w.store.(*broken).down = c.down
		rec := httptest.NewRecorder()
		if c.method == "" {
			c.method = "GET"
		}
		h.ServeHTTP(rec, from("192.0.2.1", c.method, "/search"))
		fmt.Fprintf(&all, "# %s\n%s\n", c.about, transcript(rec))
	}
	golden(t, "answers.txt", all.String())
}

func TestParseHeaderSets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		names []string
		want  httplimit.HeaderSet
		says  string
	}{
		{names: nil},
		{names: []string{"x"}, want: httplimit.X},
		{names: []string{"ietf", "x"}, want: httplimit.X | httplimit.IETF},
		{names: []string{"none"}, want: httplimit.None},
		{names: []string{"x", "none"}, says: `headers "none": want one or more of "x", "ietf" and "id", or "none" alone`},
		{names: []string{"X"}, says: `headers "X"`},
	} {
		got, err := httplimit.ParseHeaderSets(c.names)
		if got != c.want || (err == nil) != (c.says == "") || (err != nil && !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%q: %v, %v; want %v, %q", c.names, got, err, c.want, c.says)
		}
	}
}

// item is an item of a list of structured fields: a string, and integers by name.
type item struct {
	name       string
	parameters map[string]int64
}

// parseList reads a list of strings with integer parameters, as strictly as RFC 9651
// says.
func parseList(s string) ([]item, error) {
	var out []item
	at := 0
	fail := func(want string) error { return fmt.Errorf("%q at %d: want %s", s, at, want) }
	peek := func() byte {
		if at < len(s) {
			return s[at]
		}
		return 0
	}
	for {
		it := item{parameters: map[string]int64{}}
		if peek() != '"' {
			return nil, fail("a string")
		}
		for at++; peek() != '"'; at++ {
			c := peek()
			if c < ' ' || c > '~' {
				return nil, fail("printable ASCII")
			}
			if c == '\\' {
				at++
				if c = peek(); c != '"' && c != '\\' {
					return nil, fail("an escape")
				}
			}
			it.name += string(c)
		}
		for at++; peek() == ';'; {
			at++
			start := at
			for c := peek(); c == '*' || c == '_' || c == '-' || (c >= 'a' && c <= 'z') || (at > start && c >= '0' && c <= '9'); c = peek() {
				at++
			}
			key := s[start:at]
			if key == "" || peek() != '=' {
				return nil, fail("a parameter and its value")
			}
			at++
			for start = at; peek() == '-' || (peek() >= '0' && peek() <= '9'); {
				at++
			}
			n, err := strconv.ParseInt(s[start:at], 10, 64)
			if err != nil || at-start > 15 {
				return nil, fail("an integer of 15 digits at most")
			}
			if _, twice := it.parameters[key]; twice {
				return nil, fail("it only once")
			}
			it.parameters[key] = n
		}
		out = append(out, it)
		if at == len(s) {
			return out, nil
		}
		if peek() != ',' {
			return nil, fail("a comma")
		}
		for at++; peek() == ' ' || peek() == '\t'; {
			at++
		}
	}
}

// TestFields reads the fields of any verdict as a strict reader does.
func TestFields(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(rapid.StringMatching(`[a-z]{1,8}`), rapid.String())
		v := engine.Verdict{At: storetest.Epoch}
		rules := []*rule.Compiled{{Name: name.Draw(t, "rule")}, {Name: name.Draw(t, "rule")}}
		for range rapid.IntRange(0, 5).Draw(t, "limits") {
			l := engine.Limit{
				Rule: rules[rapid.IntRange(0, 1).Draw(t, "of")], Name: name.Draw(t, "name"), Limit: drawLimit(t),
				Cost: rapid.Int64Range(1, 1<<53-1).Draw(t, "cost"),
				Decision: stint.Decision{
					Allowed: rapid.Bool().Draw(t, "allowed"), Basis: stint.Basis(rapid.IntRange(0, 4).Draw(t, "basis")),
					Limit: rapid.Int64Range(1, 1<<53-1).Draw(t, "max"), Remaining: rapid.Int64Range(0, 1<<53-1).Draw(t, "remaining"),
					ResetAfter: time.Duration(rapid.Int64Range(0, int64(stint.MaxWindow)).Draw(t, "reset")),
				},
				Shadow: rapid.IntRange(0, 4).Draw(t, "shadow") == 0,
			}
			if !l.Decision.Allowed {
				l.Decision.RetryAfter = time.Duration(rapid.OneOf(rapid.Int64Range(1, 1e15), rapid.Just(int64(stint.Never))).Draw(t, "retry"))
			}
			if rapid.IntRange(0, 4).Draw(t, "penalty") == 0 {
				l.Penalty = &stint.Penalty{}
			}
			v.Limits = append(v.Limits, l)
		}
		h := http.Header{}
		httplimit.HeaderSet(0).Set(h, &v)
		for field, least := range map[string]map[string]int64{"RateLimit-Policy": {"q": 0, "w": 1}, "RateLimit": {"r": 0, "t": 1}} {
			if h.Get(field) == "" {
				continue
			}
			items, err := parseList(h.Get(field))
			if err != nil {
				t.Fatal(field, err)
			}
			for _, it := range items {
				for key, n := range least {
					if got, ok := it.parameters[key]; !ok || got < n || len(it.parameters) != len(least) {
						t.Fatalf("%s: %v, want %s of at least %d", field, it, key, n)
					}
				}
			}
		}
	})
}

func BenchmarkHeaders(b *testing.B) {
	w := worldOf(b, `
		[[rules]]
		name     = "everyone"
		limits   = [ { name = "all", limit = "1000/1h" } ]
		[[rules]]
		name     = "each"
		count_by = ["ip"]
		limits   = [ { name = "minute", limit = "500/1m" }, { name = "burst", limit = "10/1s burst=20 token_bucket" } ]
	`, identity.Options{})
	v, err := w.Decide(b.Context(), engine.Request{Method: "GET", Path: "/search", Peer: netip.MustParseAddr("192.0.2.1")})
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		sets httplimit.HeaderSet
	}{{"x", httplimit.X}, {"ietf", httplimit.IETF}, {"both", 0}} {
		b.Run(c.name, func(b *testing.B) {
			h := http.Header{}
			b.ReportAllocs()
			for b.Loop() {
				c.sets.Set(h, &v)
			}
		})
	}
}
