package replay_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/internal/control/replay"
	"github.com/stintdev/stint/internal/control/sim"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

var noon = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

func those(all ...recorded.Request) iter.Seq2[recorded.Request, error] {
	return func(yield func(recorded.Request, error) bool) {
		for _, q := range all {
			if !yield(q, nil) {
				return
			}
		}
	}
}

func parse(t testing.TB, text string) replay.Rules {
	t.Helper()
	f, err := rule.ParseTOML("rules.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return replay.Rules{File: f}
}

var (
	drawnLimits = []string{"3/2s", "3/2s fixed_window", "5/3s sliding_log", "4/2s token_bucket", "2/1s burst=4 token_bucket", "1/700ms", "20/1h", "2/1s leaky_bucket burst=2"}
	drawnPaths  = []string{"/", "/search", "/users/{id}", "/users/*/orders", "/admin/**"}
)

// drawn returns random rules of any kind that look at nothing but what is recorded.
func drawn(r *rand.Rand) rule.File {
	f := rule.File{Tiers: []rule.Tier{{Name: "gold", Limits: map[string]string{"a": "8/2s token_bucket"}}, {Name: "free", Limits: map[string]string{"b": "2/3s"}}}}
	f.Rules = []rule.Rule{{Name: "values", Match: rule.Match{Paths: []string{"/none"}}, Limits: []rule.Limit{{Name: "a", Limit: "1/1h"}, {Name: "b", Limit: "2/1m"}}}} // of tiers
	for i := range 1 + r.IntN(5) {
		c := rule.Rule{Name: fmt.Sprint("rule-", i), CountBy: []rule.Dimension{"user"}, Priority: r.IntN(3)}
		pick := func(of ...string) string { return of[r.IntN(len(of))] }
		if r.IntN(2) == 0 {
			c.Match.Paths = []string{pick(drawnPaths...)}
			if r.IntN(3) == 0 {
				c.CountBy = append(c.CountBy, "endpoint")
			}
		}
		if r.IntN(4) == 0 {
			c.Match.Methods = []string{"GET"}
		}
		if r.IntN(4) == 0 {
			c.Match.Tiers = []string{pick("gold", "free")}
		}
		if r.IntN(4) == 0 {
			c.Match.IPRanges = []string{"192.0.2.0/30"}
		}
		if r.IntN(3) == 0 {
			c.Group = "group"
		}
		switch r.IntN(9) {
		case 0:
			c.Action, c.CountBy = rule.Block, nil
		case 1:
			c.Action, c.CountBy = rule.Allow, nil
		case 2:
			c.Action = rule.LogOnly
		case 3, 4:
			c.Action, c.MaxDelay = rule.Throttle, rule.Duration(time.Duration(1+r.IntN(3000))*time.Millisecond)
		default:
			c.CountBy[0] = rule.Dimension(pick("user", "ip", "tenant"))
		}
		if c.Action != rule.Block && c.Action != rule.Allow {
			c.Limits = []rule.Limit{{Name: "a", Limit: pick(drawnLimits...)}}
			if r.IntN(2) == 0 {
				c.Limits = append(c.Limits, rule.Limit{Name: "b", Limit: pick(drawnLimits...)})
			}
			if c.Action != rule.LogOnly && c.CountBy[0] != "tenant" && r.IntN(3) == 0 {
				c.Penalty = &rule.Penalty{
					Threshold: 1 + r.Int64N(4), Within: rule.Duration(10 * time.Second), Cooldown: rule.Duration(time.Second), Multipliers: []int64{1, 2, 5},
				}
			}
		} else if len(c.Match.Paths)+len(c.Match.Methods)+len(c.Match.Tiers)+len(c.Match.IPRanges) == 0 {
			c.Match.Paths = []string{"/admin/**"}
		}
		if r.IntN(5) == 0 {
			c.Cost = rule.Cost{Units: 2}
		}
		f.Rules = append(f.Rules, c)
		if _, err := rule.Compile(f); err != nil {
			f.Rules = f.Rules[:len(f.Rules)-1] // it can never apply, or denies everything
		}
	}
	return f
}

// tape keeps all events.
type tape struct {
	mu  sync.Mutex
	all []engine.Event
}

func (p *tape) Record(_ context.Context, e *engine.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, *e)
}

// requestOf is what the record has of an event, if paths and addresses are kept.
func requestOf(e *engine.Event) recorded.Request {
	return recorded.Request{
		At: e.At, Method: e.Method, Path: e.Path, Endpoint: e.Endpoint, User: e.User, Tenant: e.Tenant, Key: e.Key, Tier: e.Tier,
		IP: e.IP.String(), Cost: e.Cost, Rule: e.Rule, Refused: !e.Outcome.Passed(), Rejected: e.Outcome == engine.Unauthorized,
	}
}

// TestAsDecided sends random traffic through an engine with random rules, records every event, and replays them: each request is
// decided as it was. No two requests of a user are held at once, because then chance decides which of them goes on first.
func TestAsDecided(t *testing.T) {
	t.Parallel()
	const runs, users, each = 40, 6, 40
	outcomes := map[engine.Outcome]int{}
	for seed := range uint64(runs) {
		r := rand.New(rand.NewPCG(seed, 1))
		from := replay.Rules{File: drawn(r)}
		var events tape
		synctest.Test(t, func(t *testing.T) {
			until := time.Now().Add(20 * time.Second)
			banned, err1 := identity.NewList([]identity.Entry{{Kind: identity.KindUser, Value: "user-5", Until: until}})
			exempt, err2 := identity.NewList([]identity.Entry{{Kind: identity.KindIP, Value: "192.0.2.4/32", Until: until}})
			set, err3 := rule.Compile(from.File)
			from.Lists = identity.Lists{Banned: banned, Exempt: exempt}
			store, err4 := memstore.New(memstore.Options{})
			who, err5 := identity.New(identity.Options{Lists: from.Lists})
			if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
				t.Fatal(err)
			}
			e, err := engine.New(engine.Options{Store: store, Rules: set, Identity: who, Recorder: &events})
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for u := range users {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(2+u)))
					subject := identity.Subject{User: fmt.Sprint("user-", u), Tenant: fmt.Sprint("tenant-", u/2), Tier: []string{"gold", "free", ""}[u%3], IP: netip.AddrFrom4([4]byte{192, 0, 2, byte(u)})}
					paths := []string{"/", "/search", "/users/42", "/users/42/orders", "/admin/a/b"}
					for range each {
						<-time.After(time.Duration(1+r.IntN(1_500_000)) * time.Microsecond)
						if _, err := e.Decide(context.Background(), engine.Request{
							Method: []string{"GET", "POST"}[r.IntN(2)], Path: paths[r.IntN(len(paths))], Subject: &subject,
						}); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
		})
		slices.SortStableFunc(events.all, func(a, b engine.Event) int { return a.At.Compare(b.At) })
		all := make([]recorded.Request, len(events.all))
		for i := range events.all {
			all[i] = requestOf(&events.all[i])
			outcomes[events.all[i].Outcome]++
		}
		told := 0
		report, err := replay.RunTelling(t.Context(), replay.Options{Live: from}, those(all...), func(event int64, denied []int64) {
			told++
			if e := &events.all[event-1]; (denied[0] == 1) == e.Outcome.Passed() {
				t.Errorf("seed %d: event %d at %v of %s to %s was %v, and is replayed as denied: %d\n%+v", seed, event, e.At.Sub(events.all[0].At), e.User, e.Path, e.Outcome, denied, from.File.Rules)
			}
		})
		if err != nil || told != len(all) || report.Differently != 0 || report.Requests != int64(len(all)) || report.Unclear != 0 {
			t.Fatalf("seed %d: %v %d of %d: %+v", seed, err, told, len(all), report)
		}
	}
	for _, o := range []engine.Outcome{engine.Allowed, engine.Throttled, engine.Exempt, engine.Denied, engine.Banned, engine.Blocked} {
		if outcomes[o] < 100 {
			t.Errorf("%d requests were %v: too few to compare", outcomes[o], o)
		}
	}
	t.Log(outcomes)
}

// traffic is random requests as a record has them: of weights, with redacted paths, networks, hashes, and out of order.
func traffic(r *rand.Rand, n int) (all []recorded.Request) {
	at := noon
	for range n {
		at = at.Add(time.Duration(r.IntN(600)-20) * time.Millisecond)
		u := r.IntN(8)
		all = append(all, recorded.Request{
			At: at, Method: []string{"GET", "POST", ""}[r.IntN(3)], User: fmt.Sprint("user-", u), Tenant: fmt.Sprint("tenant-", u/2), Tier: []string{"gold", "free", ""}[u%3],
			Path:   []string{"/", "/search", "/users/42", "/users/{id}", "/users/**", "", "/admin/x"}[r.IntN(7)],
			IP:     []string{"192.0.2.1", "192.0.2.0/24", "2001:db8::/48", "0123456789abcdef0123456789abcdef", "", fmt.Sprintf("192.0.2.%d", u)}[r.IntN(6)],
			Weight: []int64{0, 1, 1, 2, 7, 100}[r.IntN(6)],
		})
	}
	return all
}

// TestTwins replays random traffic through two equal rule sets: no request is decided otherwise.
func TestTwins(t *testing.T) {
	t.Parallel()
	var denied, held int64
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 7))
		rules := replay.Rules{File: drawn(r)}
		all := traffic(r, 300)
		p, err := replay.Run(t.Context(), replay.Options{Live: rules, Candidate: &rules}, those(all...))
		if err != nil {
			t.Fatal(err)
		}
		var want int64
		for i := range all {
			want += all[i].Times()
		}
		if p.NewlyDenied != 0 || p.NewlyPassed != 0 || *p.Candidate != p.Live || p.Requests != want {
			t.Fatalf("seed %d: %+v\n%+v", seed, p, rules.File.Rules)
		}
		denied, held = denied+p.Live.Denied, held+p.Live.Throttled
	}
	if denied < 400 || held < 400 {
		t.Error("too few to compare:", denied, held)
	}
}

// TestWeight replays events that represent several requests, and the same requests one by one: as many are denied.
func TestWeight(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 9))
		rules := replay.Rules{File: drawn(r)}
		all := traffic(r, 150)
		var single []recorded.Request
		for _, q := range all {
			n := q.Times()
			q.Weight = 1
			single = append(single, slices.Repeat([]recorded.Request{q}, int(n))...)
		}
		got, err1 := replay.Run(t.Context(), replay.Options{Live: rules}, those(all...))
		want, err2 := replay.Run(t.Context(), replay.Options{Live: rules}, those(single...))
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		for _, p := range []*replay.Report{&got, &want} {
			p.Events, p.Notes = 0, nil
			p.Live.Waited = 0 // a sum of floats in another order
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d:\n%+v\n%+v\n%+v", seed, got, want, rules.File.Rules)
		}
	}
}

// TestPreview compares a replay of one rule with its preview: both deny the same.
func TestPreview(t *testing.T) {
	t.Parallel()
	for seed := range uint64(25) {
		r := rand.New(rand.NewPCG(seed, 11))
		f := drawn(r)
		f.Rules = slices.DeleteFunc(f.Rules, func(c rule.Rule) bool {
			return c.Action != "" || c.Name == "values" || strings.Contains(c.Limits[0].Limit, "leaky") || c.CountBy[0] == "ip" || c.Match.Tiers != nil || c.Match.IPRanges != nil
		})
		if len(f.Rules) == 0 {
			continue
		}
		f.Rules, f.Tiers = f.Rules[:1], nil
		all := slices.DeleteFunc(traffic(r, 300), func(q recorded.Request) bool { return q.Path == "" || strings.ContainsAny(q.Path, "{*") })
		from := all[0].At.Add(-time.Hour)
		want, err1 := sim.Run(t.Context(), sim.Options{Rule: f.Rules[0], Tiers: f.Tiers, From: from, To: from.Add(5 * time.Hour)}, those(all...))
		got, err2 := replay.Run(t.Context(), replay.Options{Live: replay.Rules{File: f}}, those(all...))
		if err1 != nil && err2 != nil {
			continue // one of its limits hides the other
		}
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if got.Live.Denied != want.WouldRefuse {
			t.Errorf("seed %d: denied: %d, by the preview: %d\n%+v", seed, got.Live.Denied, want.WouldRefuse, f.Rules)
		}
	}
}

// TestReport replays a few requests through different rules.
func TestReport(t *testing.T) {
	t.Parallel()
	const text = `
[[rules]]
name = "search"
match = { paths = ["/search"] }
count_by = ["user"]
limits = [ { name = "rate", limit = "%s" } ]
[[rules]]
name = "app"
match = { headers = { "X-App" = "mobile" }, paths = ["/search"] }
action = "block"
[[rules]]
name = "slow"
match = { paths = ["/slow/{id}"] }
count_by = ["user"]
limits = [ { name = "rate", limit = "1/10s fixed_window" } ]
action = "%s"
`
	live, other := parse(t, fmt.Sprintf(text, "2/1m fixed_window", "throttle\"\nmax_delay = \"20s")), parse(t, fmt.Sprintf(text, "1/1m fixed_window", "log_only"))
	at := func(after time.Duration, user, path string) recorded.Request {
		return recorded.Request{At: noon.Add(after), Method: "GET", User: user, Path: path, IP: "192.0.2.1"}
	}
	all := []recorded.Request{
		at(0, "a", "/search"), at(time.Second, "a", "/search"), at(2*time.Second, "a", "/search"), at(3*time.Second, "b", "/search"),
		at(4*time.Second, "b", "/slow/12345678"), at(5*time.Second, "b", "/slow/12345679"),
		{At: noon.Add(6 * time.Second), User: "b", Rejected: true, Refused: true},
	}
	all[2].Refused = true
	p, err := replay.Run(t.Context(), replay.Options{Live: live, Candidate: &other}, those(all...))
	if err != nil {
		t.Fatal(err)
	}
	want := replay.Report{
		From: noon, To: noon.Add(5 * time.Second), Events: 7, Requests: 6, DeniedThen: 1, Unclear: 4, NewlyDenied: 1, Step: 1,
		Live: replay.Side{Denied: 1, Throttled: 1, Waited: 5, Longest: 5, Subjects: 1}, Candidate: &replay.Side{Denied: 2, Subjects: 1},
		Rules: []replay.Row{
			{Name: "search", Requests: 4, Live: 1, Candidate: 2, NewlyDenied: 1, Subjects: 1},
			{Name: "slow", Requests: 2, ShadowCandidate: 1},
		},
		Endpoints: []replay.Row{{Name: "/search", Requests: 4, Live: 1, Candidate: 2, NewlyDenied: 1}, {Name: "/slow/{id}", Requests: 2, ShadowCandidate: 1}},
		Tiers:     []replay.Row{{Requests: 6, Live: 1, Candidate: 2, NewlyDenied: 1, ShadowCandidate: 1}},
		Subjects:  []replay.Row{{Name: "user:a", Requests: 3, Live: 1, Candidate: 2, NewlyDenied: 1}, {Name: "user:b", Requests: 3, ShadowCandidate: 1}},
		Summary:   "Of 6 requests, the live rules deny 1 (17 %), and the candidate 2 (33 %). It newly denies 1 and newly passes 0. At the time, 1 were denied.",
		Notes: []string{
			"Left out, because headers and claims are not recorded: app.",
			"Unclear, because headers and claims are not recorded: 4 requests.",
			"Not replayed, because their credentials were rejected: 1 request.",
			"Counters are empty at the start, and windows are up to 1m long: with earlier usage, more requests would be denied.",
		},
	}
	if len(p.Series) != 6 || p.Series[1].NewlyDenied != 1 || !p.Series[5].Start.Equal(noon.Add(5*time.Second)) {
		t.Errorf("%+v", p.Series)
	}
	p.Series = nil
	if !reflect.DeepEqual(p, want) {
		t.Errorf("\ngot  %+v\nwant %+v", p, want)
	}
}

// TestRegions replays requests of three regions: each has counters of its own, but for a rule that they share.
func TestRegions(t *testing.T) {
	t.Parallel()
	const text = `
[[rules]]
name = "own"
match = { paths = ["/own"] }
count_by = ["user"]
limits = [ { name = "rate", limit = "2/1h fixed_window" } ]
[[rules]]
name = "line"
match = { paths = ["/line"] }
action = "throttle"
max_delay = "1m"
count_by = ["user"]
limits = [ { name = "rate", limit = "1/10s", algorithm = "leaky_bucket" } ]
[[rules]]
name = "shared"
match = { paths = ["/shared"] }
count_by = ["user"]
%s
limits = [ { name = "rate", limit = "2/1h fixed_window" } ]
`
	var all []recorded.Request
	for i, path := range []string{"/own", "/line", "/shared"} {
		for _, region := range []string{"ams", "", "sjc"} {
			for range 3 {
				all = append(all, recorded.Request{At: noon.Add(time.Duration(i) * time.Minute), User: "a", Path: path, Region: region})
			}
		}
	}
	for _, c := range []struct {
		shared string
		denied int64
		noted  bool
	}{
		{`regions = "gossip"`, 3 + 7, true}, {"", 3 + 3, false},
	} {
		p, err := replay.Run(t.Context(), replay.Options{Live: parse(t, fmt.Sprintf(text, c.shared))}, those(all...))
		if err != nil || p.Live.Denied != c.denied || p.Live.Throttled != 6 || p.Live.Longest != 20 {
			t.Errorf("%q: %+v %v", c.shared, p.Live, err)
		}
		if noted := strings.Contains(strings.Join(p.Notes, " "), "one counter for all of them"); noted != c.noted {
			t.Errorf("%q: %q", c.shared, p.Notes)
		}
	}
}

// TestSampled replays requests of two parts of an hour, each of which stands for ten of its part, and a part in which there were none.
func TestSampled(t *testing.T) {
	t.Parallel()
	rules := parse(t, "[[rules]]\nname = \"a\"\ncount_by = [\"user\"]\nlimits = [ { name = \"rate\", limit = \"3/1m\" } ]\n")
	var all []recorded.Request
	for part := range 2 {
		begin := noon.Add(time.Duration(part) * 20 * time.Minute)
		for i := range 6 {
			all = append(all, recorded.Request{
				At: begin.Add(7*time.Minute + time.Duration(i)*time.Second), User: "a", Path: "/a", Scale: 10, Part: begin, PartEnd: begin.Add(20 * time.Minute),
			})
		}
	}
	p, err := replay.Run(t.Context(), replay.Options{
		Live: rules, Candidate: &replay.Rules{}, From: noon, To: noon.Add(time.Hour), Recorded: 500, Stretch: 30 * time.Second, Unsampled: true,
	}, those(all...))
	if err != nil || p.Requests != 120 || p.Live.Denied != 60 || p.NewlyPassed != 60 || p.Events != 12 || p.Recorded != 500 {
		t.Errorf("%+v %v", p, err)
	}
	if len(p.Series) != 60 || p.Step != 60 || !p.Series[59].Start.Equal(noon.Add(59*time.Minute)) {
		t.Fatalf("%d points of %d s", len(p.Series), p.Step)
	}
	for i, at := range p.Series {
		if want := map[bool]int64{true: 3}[i < 40]; at.Requests != want {
			t.Errorf("point %d: %+v, want %d requests", i, at, want)
		}
	}
	if want := "These are estimates from 12 of 500 events, read evenly from the whole time."; !strings.HasSuffix(p.Summary, want) {
		t.Error(p.Summary)
	}
	for _, note := range []string{"Not all events were read: of each part of the time, only those of about 30s", "at the start of each of these", "more may be newly denied"} {
		if !strings.Contains(strings.Join(p.Notes, "\n"), note) {
			t.Errorf("no note of %s: %q", note, p.Notes)
		}
	}
	if p, err = replay.Run(t.Context(), replay.Options{Live: rules, Unsampled: true}, those()); err != nil || !strings.HasPrefix(p.Summary, "No requests were denied or delayed") {
		t.Errorf("%+v %v", p, err)
	}
}

// TestEnds ends a replay early.
func TestEnds(t *testing.T) {
	t.Parallel()
	rules := parse(t, "[[rules]]\nname = \"a\"\nlimits = [ { name = \"rate\", limit = \"1/1h\" } ]\n")
	broken := errors.New("broken")
	if _, err := replay.Run(t.Context(), replay.Options{Live: rules}, func(yield func(recorded.Request, error) bool) { yield(recorded.Request{}, broken) }); !errors.Is(err, broken) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := replay.Run(ctx, replay.Options{Live: rules}, those(recorded.Request{At: noon})); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	invalid := replay.Rules{File: rule.File{Rules: []rule.Rule{{Name: "no limits"}}}}
	problems := rule.Problems(nil)
	if _, err := replay.Run(t.Context(), replay.Options{Live: rules, Candidate: &invalid}, those()); !errors.As(err, &problems) {
		t.Error(err)
	}
}

// TestBounds replays more subjects, endpoints and counters than are kept.
func TestBounds(t *testing.T) { //nolint:paralleltest // it changes the bounds
	replay.SetBounds(2000, 100)
	defer replay.SetBounds(1<<22, 100_000)
	rules := parse(t, "[[rules]]\nname = \"a\"\ncount_by = [\"user\"]\nlimits = [ { name = \"rate\", limit = \"2/1h\" } ]\n")
	const n = 9_000
	p, err := replay.Run(t.Context(), replay.Options{Live: rules, Candidate: &rules}, func(yield func(recorded.Request, error) bool) {
		for i := range n {
			user := fmt.Sprint("user-", i)
			if i%3 == 0 {
				user = "greedy"
			}
			if !yield(recorded.Request{At: noon.Add(time.Duration(i) * time.Millisecond), User: user, Path: fmt.Sprintf("/a%d/b", i)}, nil) {
				return
			}
		}
	})
	if err != nil || p.Requests != n || p.Subjects[0].Name != "user:greedy" || p.Subjects[0].Live < n/3-200 || len(p.Series) > 60 || len(p.Endpoints) > 10 {
		t.Errorf("%+v %v", p, err)
	}
	for _, note := range []string{"more than 100 subjects", "more than 2000 counters"} {
		if !strings.Contains(strings.Join(p.Notes, "\n"), note) {
			t.Errorf("no note of %s: %q", note, p.Notes)
		}
	}
}

// BenchmarkRun replays a million events through two sets of rules.
func BenchmarkRun(b *testing.B) {
	const text = `
[[rules]]
name = "all"
count_by = ["ip"]
limits = [ { name = "minute", limit = "%d/1m" }, { name = "second", limit = "50/1s", algorithm = "token_bucket" } ]
[[rules]]
name = "search"
match = { paths = ["/search/**"] }
count_by = ["user"]
limits = [ { name = "rate", limit = "30/1m" } ]
[[rules]]
name = "exports"
match = { paths = ["/exports/{id}"] }
count_by = ["user"]
limits = [ { name = "rate", limit = "20/1m" } ]
action = "throttle"
max_delay = "2s"
`
	live, other := parse(b, fmt.Sprintf(text, 300)), parse(b, fmt.Sprintf(text, 100))
	r := rand.New(rand.NewPCG(1, 1))
	const n, clients = 1_000_000, 20_000
	users, addresses := make([]string, clients), make([]string, clients)
	for i := range clients {
		users[i], addresses[i] = fmt.Sprint("user-", i), netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String()
	}
	paths := []string{"/", "/search/books", "/search/films", "/exports/12345678", "/login", "/users/{id}/orders"}
	all := make([]recorded.Request, n)
	for i := range all {
		c := int(float64(clients) * r.Float64() * r.Float64() * r.Float64())
		all[i] = recorded.Request{
			At: noon.Add(time.Duration(i) * 3600 * time.Microsecond), Method: "GET", User: users[c], IP: addresses[c], Path: paths[r.IntN(len(paths))], Weight: 1,
		}
	}
	for b.Loop() {
		p, err := replay.Run(b.Context(), replay.Options{Live: live, Candidate: &other}, those(all...))
		if err != nil || p.Requests != n {
			b.Fatal(err, p)
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
