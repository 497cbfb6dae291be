package record_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
)

// hand is a clock that is set.
type hand struct{ time.Time }

func (c *hand) now() time.Time { return c.Time }

func newLive(tb testing.TB, o record.LiveOptions) *record.Live {
	tb.Helper()
	l, err := record.NewLive(o)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// TestLive asks for ten seconds, and then stops.
func TestLive(t *testing.T) {
	t.Parallel()
	c := &hand{noon}
	l := newLive(t, record.LiveOptions{Node: "n1", Now: c.now})
	for i := range 1000 {
		e := denial(noon.Add(time.Duration(i) * 10 * time.Millisecond))
		e.Latency = time.Duration(i+1) * time.Microsecond
		switch i % 10 {
		case 0:
		case 1: // it has begun earlier, and was held
			e.Outcome, e.Waited = engine.Throttled, time.Minute
			e.At = e.At.Add(-e.Waited)
		case 2:
			e.Outcome, e.Shadow, e.User = engine.Allowed, true, "bob"
		default:
			e.Outcome = engine.Allowed
		}
		l.Record(t.Context(), &e)
	}
	c.Time = noon.Add(9999 * time.Millisecond)
	s := l.Snapshot()
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > want/20 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	near("seconds", s.Seconds, 10)
	near("requests", s.Requests, 100)
	near("refused", s.Refused, 10)
	near("shadow", s.Shadow, 10)
	for outcome, want := range map[string]float64{"allowed": 80, "throttled": 10, "exempt": 0, "denied": 10, "banned": 0, "blocked": 0, "unauthorized": 0, "unavailable": 0} {
		got, ok := s.Outcomes[outcome]
		if near(outcome, got, want); !ok {
			t.Errorf("nothing is said of %s", outcome)
		}
	}
	near("p50", float64(s.Latency.P50), 500)
	near("p95", float64(s.Latency.P95), 950)
	near("p99", float64(s.Latency.P99), 990)
	alice, bob := record.Talker{Name: "u-48213", Requests: 900, Refused: 100}, record.Talker{Name: "bob", Requests: 100}
	all := record.Talker{Requests: 1000, Refused: 100}
	named := func(name string) []record.Talker {
		all.Name = name
		return []record.Talker{all}
	}
	for _, k := range []struct {
		got                   record.Talkers
		byRequests, byRefused []record.Talker
	}{
		{s.Talkers.Users, []record.Talker{alice, bob}, []record.Talker{alice}},
		{s.Talkers.Tenants, named("acme"), named("acme")},
		{s.Talkers.Keys, named("0123456789ABCDEF"), named("0123456789ABCDEF")},
		{s.Talkers.Addresses, named("203.0.113.77"), named("203.0.113.77")},
	} {
		if !slices.Equal(k.got.ByRequests, k.byRequests) || !slices.Equal(k.got.ByRefused, k.byRefused) || k.got.RequestsOff != 0 || k.got.RefusedOff != 0 {
			t.Errorf("%+v, want %+v and %+v", k.got, k.byRequests, k.byRefused)
		}
	}

	for _, step := range []struct {
		after         time.Duration
		rate, seconds float64 // of requests, and of talkers
		users         int
	}{
		{14 * time.Second, 500 / 9.0, 14, 2}, // the current second has just begun
		{18 * time.Second, 100 / 9.0, 18, 2},
		{19500 * time.Millisecond, 0, 19.5, 2},
		{20 * time.Second, 0, 10, 0},
		{400 * 24 * time.Hour, 0, 10, 0},
	} {
		c.Time = noon.Add(step.after)
		s := l.Snapshot()
		near(step.after.String(), s.Requests, step.rate)
		near(step.after.String(), s.Talkers.Seconds, step.seconds)
		if len(s.Talkers.Users.ByRequests) != step.users {
			t.Errorf("%v: %+v", step.after, s.Talkers.Users)
		}
	}
	// It goes on after a pause, and after the clock was set back.
	for _, at := range []time.Time{c.Time, noon.Add(time.Minute)} {
		c.Time = at
		l.Record(t.Context(), new(denial(at)))
		if s := l.Snapshot(); s.Requests == 0 || len(s.Talkers.Users.ByRefused) != 1 || s.Talkers.Users.ByRefused[0].Requests != 1 {
			t.Errorf("%v: %+v", at, s)
		}
	}
}

// TestLiveEmpty is what is shown as JSON before anything was decided: lists, and no null.
func TestLiveEmpty(t *testing.T) {
	t.Parallel()
	s := newLive(t, record.LiveOptions{Now: (&hand{noon}).now}).Snapshot()
	text, err := json.Marshal(s)
	const none = `{"by_requests":[],"by_refused":[],"requests_off":0,"refused_off":0}`
	const want = `{"at":"2026-03-01T12:00:00.000001999Z","nodes":[{"name":"","requests_per_second":0,"refused_per_second":0}],"nodes_alive":1,"seconds":1,"requests_per_second":0,"refused_per_second":0,"shadow_refused_per_second":0,` +
		`"outcomes_per_second":{"allowed":0,"banned":0,"blocked":0,"denied":0,"exempt":0,"throttled":0,"unauthorized":0,"unavailable":0},` +
		`"latency_us":{"p50":0,"p95":0,"p99":0},"rules":[],"talkers":{"seconds":1,"users":` + none + `,"tenants":` + none + `,"keys":` + none + `,"addresses":` + none + `}}`
	if err != nil || string(text) != want {
		t.Errorf("%v, %s, want\n%s", err, text, want)
	}
}

// TestLiveRules has some rules decide, and then more than can be told apart.
func TestLiveRules(t *testing.T) {
	t.Parallel()
	c := &hand{noon}
	l := newLive(t, record.LiveOptions{Now: c.now})
	decide := func(n int, rule string, outcome engine.Outcome) {
		for i := range n {
			e := engine.Event{At: c.Time, Rule: rule, Outcome: outcome}
			e.ID[15] = byte(i)
			l.Record(t.Context(), &e)
		}
	}
	decide(30, "search", engine.Allowed)
	decide(10, "search", engine.Denied)
	decide(40, "abuse", engine.Blocked)
	decide(5, "login", engine.Throttled)
	decide(100, "", engine.Allowed)
	want := []record.RuleRate{{Name: "abuse", Requests: 40, Refused: 40}, {Name: "search", Requests: 40, Refused: 10}, {Name: "login", Requests: 5}}
	if got := l.Snapshot().Rules; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}

	c.Time = noon.Add(time.Minute)
	if got := l.Snapshot().Rules; len(got) != 0 {
		t.Errorf("after a minute: %v", got)
	}
	const rules = 1000
	for i := range rules {
		e := engine.Event{At: c.Time, Rule: "rule-" + strconv.Itoa(i)}
		l.Record(t.Context(), &e)
		l.Record(t.Context(), &e)
	}
	c.Time = c.Add(time.Second)
	got := l.Snapshot()
	other, perSecond := got.Rules[0], 1/got.Seconds
	if other.Name != "other" || math.Abs(other.Requests/perSecond-2*(rules-256)) > 1 || len(got.Rules) != 50 {
		t.Errorf("%d rules, the first %+v", len(got.Rules), other)
	}
	for i, r := range got.Rules[1:] {
		if math.Abs(r.Requests/perSecond-2) > 0.1 || i > 0 && r.Name <= got.Rules[i].Name {
			t.Errorf("%+v", r)
		}
	}
}

// TestLiveLeases shows the limits with the most units lent.
func TestLiveLeases(t *testing.T) {
	t.Parallel()
	var leased []record.Leased
	l := newLive(t, record.LiveOptions{Now: (&hand{noon}).now, Leases: func() []record.Leased { return slices.Clone(leased) }})
	for i := range int64(100) {
		leased = append(leased, record.Leased{Limit: fmt.Sprintf("rule:limit-%02d", i), Lent: i / 2, Held: i})
	}
	got := l.Snapshot().Leases
	if len(got) != 50 || got[0] != leased[98] || got[1] != leased[99] || got[49] != leased[51] {
		t.Errorf("%d: %+v", len(got), got)
	}
	leased = []record.Leased{{
		Limit: "search:hourly", Counters: 1, Held: 2, Lent: 3, Spent: 4, Back: 5, Kept: 6, Denied: 7, Early: 8, MostOut: 9, MostUsed: 10, Cap: 11,
	}}
	text, err := json.Marshal(l.Snapshot())
	const want = `"leases":[{"limit":"search:hourly","counters":1,"held":2,"lent":3,"spent":4,"given_back":5,"kept":6,` +
		`"denied":7,"denied_early":8,"others_most":9,"most_used":10,"capacity":11}]}`
	if err != nil || !strings.HasSuffix(string(text), want) {
		t.Errorf("%v, %s, want\n%s", err, text, want)
	}
}

// TestLivePrivacy shows addresses as they are recorded.
func TestLivePrivacy(t *testing.T) {
	t.Parallel()
	key := []byte("0123456789abcdef")
	for _, privacy := range []record.Privacy{record.KeepIP, record.TruncateIP, record.HashIP} {
		for _, ip := range []string{"203.0.113.77", "::ffff:203.0.113.77", "fe80::1%eth0", "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff", ""} {
			r := newRecorder(t, record.RecorderOptions{Privacy: privacy, HashKey: key})
			l := newLive(t, record.LiveOptions{Privacy: privacy, HashKey: key, Now: (&hand{noon}).now})
			e := denial(noon)
			e.IP, _ = netip.ParseAddr(ip)
			r.Record(t.Context(), &e)
			l.Record(t.Context(), &e)
			want := events(t, r.Take(nil))[0].IP
			got := l.Snapshot().Talkers.Addresses.ByRequests
			if (want != "" || len(got) > 0) && (len(got) != 1 || got[0].Name != want) {
				t.Errorf("%d: %s is shown as %v, and recorded as %s", privacy, ip, got, want)
			}
		}
	}
	// Those of one network are one.
	l := newLive(t, record.LiveOptions{Privacy: record.TruncateIP, Now: (&hand{noon}).now})
	for i := range byte(100) {
		l.Record(t.Context(), &engine.Event{At: noon, IP: netip.AddrFrom4([4]byte{203, 0, 113, i})})
	}
	if got := l.Snapshot().Talkers.Addresses.ByRequests; !slices.Equal(got, []record.Talker{{Name: "203.0.113.0/24", Requests: 100}}) {
		t.Errorf("%+v", got)
	}
}

// TestLiveFlood has every request made by someone else, with long names, by several at
// once and while others look. Those who ask again and again are still found.
func TestLiveFlood(t *testing.T) {
	t.Parallel()
	l := newLive(t, record.LiveOptions{Now: (&hand{noon}).now})
	const threads, each = 4, 5_000
	long := strings.Repeat("ü", 1000)
	done := make(chan struct{})
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		for {
			select {
			case <-done:
				return
			default:
				l.Snapshot()
			}
		}
	}()
	var wg sync.WaitGroup
	for thread := range threads {
		wg.Go(func() {
			for i := range each {
				var ip [16]byte
				binary.BigEndian.PutUint64(ip[:], uint64(thread*each+i))
				e := engine.Event{At: noon, Outcome: engine.Denied, User: string(ip[:8]) + long, IP: netip.AddrFrom16(ip)}
				if i%20 == 0 {
					e.User, e.IP = "mallory", netip.MustParseAddr("192.0.2.1")
				}
				e.ID[15] = byte(i + thread)
				l.Record(t.Context(), &e)
			}
		})
	}
	wg.Wait()
	close(done)
	<-looked
	s := l.Snapshot()
	const n, heavy = threads * each, threads * each / 20
	for want, k := range map[string]record.Talkers{"mallory": s.Talkers.Users, "192.0.2.1": s.Talkers.Addresses} {
		for _, list := range [][]record.Talker{k.ByRequests, k.ByRefused} {
			if first := list[0]; first.Name != want || first.Requests > heavy || first.Requests < heavy-k.RequestsOff || k.RequestsOff > 2*n/1024 {
				t.Errorf("%+v, off by %d", first, k.RequestsOff)
			}
			for _, o := range list {
				if len(o.Name) > 255 {
					t.Errorf("a name of %d bytes is kept", len(o.Name))
				}
			}
		}
	}
}

// TestLiveOptions refuses what makes no sense.
func TestLiveOptions(t *testing.T) {
	t.Parallel()
	for field, o := range map[string]record.LiveOptions{
		"Counters": {Counters: 1},
		"Top":      {Top: -1},
		"Privacy":  {Privacy: 7},
		"HashKey":  {Privacy: record.HashIP, HashKey: []byte("secret")},
	} {
		_, err := record.NewLive(o)
		if e := new(stint.InvalidError); !errors.As(err, &e) || e.Field != field || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := record.NewLive(record.LiveOptions{Counters: 1<<15 + 1}); err == nil {
		t.Error("more counters are taken than have places")
	}
}

// BenchmarkLive records requests of clients that are known, and of ever new ones.
func BenchmarkLive(b *testing.B) {
	for _, c := range []struct {
		name    string
		outcome engine.Outcome
		flood   bool
	}{{"allowed", engine.Allowed, false}, {"denied", engine.Denied, false}, {"flood", engine.Denied, true}} {
		b.Run(c.name, func(b *testing.B) {
			l := newLive(b, record.LiveOptions{})
			users := make([]string, 500)
			for i := range users {
				users[i] = "user-" + strings.Repeat("x", i%8) + time.Duration(i).String()
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				e := denial(time.Now())
				e.Outcome = c.outcome
				for i := 0; pb.Next(); i++ {
					e.User, e.ID[15] = users[i%len(users)], byte(i)
					if c.flood {
						var ip [4]byte
						binary.BigEndian.PutUint32(ip[:], uint32(i))
						e.IP = netip.AddrFrom4(ip)
					}
					l.Record(b.Context(), &e)
				}
			})
		})
	}
}
