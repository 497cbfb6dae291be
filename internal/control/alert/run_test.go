package alert_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/alert"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/rule"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testpostgres.StopShared()
	os.Exit(code)
}

// world is a database, with nodes that evaluate alerts, and receivers.
type world struct {
	*testing.T
	db    *database.DB
	store *alert.Store

	runners []*alert.Runner

	mu    sync.Mutex
	plus  time.Duration // on the clock
	defs  alert.Definitions
	found map[string][]string // by alert: subjects
	fails error               // of the source
}

func newWorld(t *testing.T, url string) *world {
	t.Helper()
	db, err := database.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := db.Up(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, db: db, found: map[string][]string{}}
	w.store = alert.NewStore(db, w.now)
	return w
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.plus)
}

// advance lets time pass, when nothing is being delivered to a webhook that answers: what is claimed for that long is delivered again.
func (w *world) advance(d time.Duration) {
	w.Helper()
	w.until("nothing is being delivered", func() bool {
		return !slices.ContainsFunc(w.runners, func(r *alert.Runner) bool {
			return slices.ContainsFunc(r.Busy(), func(webhook string) bool { return webhook != "slow" })
		})
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plus += d
}

func (w *world) set(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

// Look implements alert.Source.
func (w *world) Look(_ context.Context, a *alert.Alert, _ time.Time) (alert.Seen, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := alert.Seen{Known: true}
	for _, subject := range w.found[a.Name] {
		s.Findings = append(s.Findings, alert.Finding{Subject: subject, Text: subject + " is bad", Value: 7, Ripe: true})
	}
	return s, w.fails
}

// run starts a node.
func (w *world) run(node string) *alert.Runner {
	w.Helper()
	r, err := alert.NewRunner(alert.Options{
		Store: w.store, Node: node, Version: "test", Source: w, Log: slog.New(slog.DiscardHandler), Interval: 20 * time.Millisecond,
		Definitions: func(context.Context) (alert.Definitions, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return alert.Definitions{Alerts: slices.Clone(w.defs.Alerts), Webhooks: slices.Clone(w.defs.Webhooks)}, nil
		},
	})
	if err != nil {
		w.Fatal(err)
	}
	w.runners = append(w.runners, r)
	r.Start(w.Context())
	w.Cleanup(func() { r.Stop(context.WithoutCancel(w.Context())) })
	return r
}

// until waits for something.
func (w *world) until(what string, is func() bool) {
	w.Helper()
	err := testserver.Poll(time.Minute, func() error {
		if !is() {
			return errors.New("it has not come to that")
		}
		return nil
	})
	if err != nil {
		w.Fatalf("%s: %v", what, err)
	}
}

func (w *world) deliveries(webhook, state string) []alert.Delivery {
	w.Helper()
	all, _, err := w.store.Deliveries(w.Context(), alert.Query{Webhook: webhook, State: state, Limit: 1000})
	if err != nil {
		w.Fatal(err)
	}
	return all
}

// request is what a receiver got.
type request struct {
	http.Header
	body []byte
	alert.Message
}

// receiver is an HTTP server that keeps what it gets. A function may answer otherwise.
type receiver struct {
	*httptest.Server
	mu  sync.Mutex
	got []request
}

func newReceiver(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *receiver {
	t.Helper()
	v := &receiver{}
	v.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		one := request{Header: r.Header, body: body}
		_ = json.Unmarshal(body, &one.Message)
		v.mu.Lock()
		v.got = append(v.got, one)
		n := len(v.got)
		v.mu.Unlock()
		if answer != nil {
			answer(n, w, r)
		}
	}))
	t.Cleanup(v.Close)
	return v
}

func (v *receiver) all() []request {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.got)
}

func (v *receiver) types() (out []string) {
	for _, r := range v.all() {
		out = append(out, r.Type+" "+r.Subject)
	}
	return out
}

// each runs a test with both databases.
func each(t *testing.T, test func(w *world)) {
	t.Helper()
	for name, url := range map[string]func(*testing.T) string{
		"sqlite":   func(*testing.T) string { return "sqlite::memory:" },
		"postgres": func(t *testing.T) string { t.Helper(); return testpostgres.Shared(t).Database(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newWorld(t, url(t)))
		})
	}
}

const secret = "whsec_for_this_test"

// verify is how a receiver checks a signature, as docs/alerts.md says.
func verify(header string, body []byte, now time.Time) error {
	at, sum, ok := strings.Cut(strings.TrimPrefix(header, "t="), ",v1=")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if !ok || err != nil {
		return errors.New("this is not a signature")
	}
	if now.Sub(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return errors.New("it is old: someone may have recorded it")
	}
	h := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(h, "%s.%s", at, body)
	want, err := hex.DecodeString(sum)
	if err != nil || !hmac.Equal(h.Sum(nil), want) {
		return errors.New("it is not signed with this secret")
	}
	return nil
}

// TestDelivery has an alert fire and resolve, with receivers of all kinds. Those that fail keep no other waiting.
func TestDelivery(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		good := newReceiver(w.T, nil)
		slack, manager := newReceiver(w.T, nil), newReceiver(w.T, nil)
		late := newReceiver(w.T, func(n int, rw http.ResponseWriter, _ *http.Request) {
			if n <= 2 {
				rw.WriteHeader(http.StatusInternalServerError)
			}
		})
		elsewhere := newReceiver(w.T, nil)
		moved := newReceiver(w.T, func(_ int, rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, elsewhere.URL, http.StatusTemporaryRedirect)
		})
		reset := newReceiver(w.T, func(int, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		stop := make(chan struct{})
		slow := newReceiver(w.T, func(_ int, _ http.ResponseWriter, r *http.Request) {
			select {
			case <-stop:
			case <-r.Context().Done():
			}
		})
		w.Cleanup(func() { close(stop) })
		closed := newReceiver(w.T, nil)
		closed.Close()
		hooks := []alert.Webhook{
			{Name: "good", URL: good.URL, Secret: secret},
			{Name: "slack", URL: slack.URL, Format: "slack"},
			{Name: "manager", URL: manager.URL, Format: "alertmanager"},
			{Name: "late", URL: late.URL},
			{Name: "moved", URL: moved.URL},
			{Name: "reset", URL: reset.URL},
			{Name: "slow", URL: slow.URL},
			{Name: "closed", URL: closed.URL + "/{secret}", Secret: "hidden-secret"},
		}
		var all []string
		for _, h := range hooks {
			all = append(all, h.Name)
		}
		w.set(func() {
			w.defs = alert.Definitions{Webhooks: hooks, Alerts: []alert.Alert{{Name: "bad", Kind: alert.KindHealth, Webhooks: all, Text: "see <the runbook>"}}}
			w.found["bad"] = []string{"redis"}
		})
		r := w.run("one")
		w.until("all hear of it", func() bool {
			return len(good.all()) == 1 && len(slack.all()) == 1 && len(manager.all()) == 1 && len(late.all()) == 3 && len(moved.all()) > 0 && len(reset.all()) > 0
		})
		w.set(func() { w.found["bad"] = nil })
		w.advance(2 * time.Minute)
		w.until("they hear that it is over", func() bool {
			return len(good.all()) == 2 && len(slack.all()) == 2 && len(manager.all()) == 2 && len(late.all()) == 4
		})

		if got := good.types(); !slices.Equal(got, []string{"alert.firing redis", "alert.resolved redis"}) {
			w.Errorf("got %q", got)
		}
		for _, one := range good.all() {
			if err := verify(one.Get(alert.HeaderSignature), one.body, w.now()); err != nil {
				w.Errorf("%v: %s", err, one.body)
			}
			if verify(one.Get(alert.HeaderSignature), append(one.body, ' '), w.now()) == nil {
				w.Error("another body has the same signature")
			}
			if one.Get(alert.HeaderDelivery) == "" || one.Get(alert.HeaderAttempt) != "1" || one.Get("User-Agent") != "stint/test" || one.Get("Content-Type") != "application/json" {
				w.Errorf("%v", one.Header)
			}
		}
		if got := late.all(); got[0].Get(alert.HeaderDelivery) != got[2].Get(alert.HeaderDelivery) || got[2].Get(alert.HeaderAttempt) != "3" || got[0].Get(alert.HeaderSignature) != "" {
			w.Errorf("%v, %v", got[0].Header, got[2].Header)
		}
		if got := string(slack.all()[0].body); got != `{"text":"*FIRING* bad: redis is bad\nsee \u0026lt;the runbook\u0026gt;"}` {
			w.Errorf("Slack got %s", got)
		}
		var posted [2][]struct {
			Labels, Annotations map[string]string
			StartsAt, EndsAt    time.Time
		}
		for i, one := range manager.all() {
			if err := json.Unmarshal(one.body, &posted[i]); err != nil || len(posted[i]) != 1 {
				w.Fatalf("%v: %s", err, one.body)
			}
		}
		before, after := posted[0][0], posted[1][0]
		if fmt.Sprint(before.Labels) != "map[alertname:bad kind:health severity:warning source:stint subject:redis]" || fmt.Sprint(after.Labels) != fmt.Sprint(before.Labels) ||
			!before.EndsAt.After(w.now()) || after.EndsAt.After(w.now()) || !after.StartsAt.Equal(before.StartsAt) {
			w.Errorf("Alertmanager got %+v and %+v", before, after)
		}
		if len(elsewhere.all()) != 0 {
			w.Error("a redirect was followed")
		}
		for webhook, want := range map[string]string{"moved": "it answers 307, and redirects are not followed", "reset": "EOF", "closed": "refused"} {
			some := w.deliveries(webhook, alert.Waiting)
			if len(some) == 0 || !slices.ContainsFunc(some, func(d alert.Delivery) bool { return strings.Contains(d.Problem, want) }) {
				w.Errorf("%s: %+v, want %q", webhook, some, want)
			}
			for _, d := range some {
				if strings.Contains(d.Problem, "hidden-secret") {
					w.Errorf("%s: %s", webhook, d.Problem)
				}
			}
		}
		w.until("all is counted", func() bool { delivered, failed, _ := r.Counts(); return delivered >= 8 && failed >= 4 })
	})
}

// TestDeadLetters gives a message up, and tries it again. Later ones about the same cause wait for it, and those about others do not.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		var mu sync.Mutex
		broken := true
		v := newReceiver(w.T, func(_ int, rw http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if broken {
				rw.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		w.set(func() {
			w.defs = alert.Definitions{
				Webhooks: []alert.Webhook{{Name: "ops", URL: v.URL, RetryFor: rule.Duration(10 * time.Minute)}},
				Alerts:   []alert.Alert{{Name: "bad", Kind: alert.KindHealth, Webhooks: []string{"ops"}}},
			}
			w.found["bad"] = []string{"redis"}
		})
		w.run("one")
		w.until("it is tried", func() bool { return len(v.all()) > 0 })
		w.set(func() { w.found["bad"] = nil })
		w.advance(2 * time.Minute)
		w.until("the next message waits", func() bool { return len(w.deliveries("ops", alert.Waiting)) == 2 })
		for range 3 {
			w.advance(4 * time.Minute)
			n := len(v.all())
			w.until("it is tried again", func() bool { return len(v.all()) > n || len(w.deliveries("ops", alert.Dead)) > 0 })
		}
		w.advance(6 * time.Minute)
		w.until("it is given up", func() bool { return len(w.deliveries("ops", alert.Dead)) > 0 })
		dead := w.deliveries("ops", alert.Dead)[len(w.deliveries("ops", alert.Dead))-1]
		if dead.Message.Type != alert.TypeFiring || dead.Status != http.StatusServiceUnavailable || dead.Problem != "it answers 503" || dead.Attempts < 2 {
			w.Errorf("%+v", dead)
		}
		mu.Lock() // no attempt after it is tried again fails
		err := w.store.Retry(w.Context(), dead.ID)
		broken = false
		mu.Unlock()
		if err != nil {
			w.Fatal(err)
		}
		w.advance(10 * time.Minute)
		w.until("all is delivered", func() bool {
			w.advance(time.Second) // the next about the same cause waits for a minute
			return len(w.deliveries("ops", alert.Waiting)) == 0 && slices.ContainsFunc(w.deliveries("ops", alert.Delivered), func(d alert.Delivery) bool { return d.ID == dead.ID })
		})
		if err := w.store.Retry(w.Context(), dead.ID); !errors.Is(err, alert.ErrNotFound) {
			w.Errorf("a message that was delivered is tried again: %v", err)
		}
	})
}

// TestOvertaken tries a dead letter again after a newer message about its cause was delivered: that is refused. One of another cause is
// tried again.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		var v *receiver
		v = newReceiver(w.T, func(n int, rw http.ResponseWriter, _ *http.Request) {
			if one := v.all()[n-1]; one.Type == alert.TypeFiring {
				rw.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		w.set(func() {
			w.defs = alert.Definitions{
				Webhooks: []alert.Webhook{{Name: "ops", URL: v.URL, RetryFor: rule.Duration(time.Minute)}},
				Alerts:   []alert.Alert{{Name: "bad", Kind: alert.KindHealth, Webhooks: []string{"ops"}}},
			}
			w.found["bad"] = []string{"a", "b"}
		})
		w.run("one")
		w.until("both are given up", func() bool {
			w.advance(time.Second)
			return len(w.deliveries("ops", alert.Dead)) == 2
		})
		w.set(func() { w.found["bad"] = []string{"b"} })
		w.until("a is over", func() bool {
			w.advance(time.Second)
			return len(w.deliveries("ops", alert.Delivered)) == 1
		})
		for _, d := range w.deliveries("ops", alert.Dead) {
			var want error
			if d.Message.Subject == "a" {
				want = alert.ErrOvertaken
			}
			if err := w.store.Retry(w.Context(), d.ID); !errors.Is(err, want) {
				w.Errorf("%s: %v, want %v", d.Message.Subject, err, want)
			}
		}
	})
}

// TestAfterOutage has a cause come and go while a receiver is away. When it is back it hears all of it, with a minute between two
// messages, by the clock that evaluates; those about other causes, and tests, do not wait.
func TestAfterOutage(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		var mu sync.Mutex
		away := true
		var heard []time.Time
		var v *receiver
		v = newReceiver(w.T, func(n int, rw http.ResponseWriter, _ *http.Request) {
			at, subject := w.now(), v.all()[n-1].Subject
			mu.Lock()
			defer mu.Unlock()
			if away {
				rw.WriteHeader(http.StatusServiceUnavailable)
			} else if subject == "redis" {
				heard = append(heard, at)
			}
		})
		count := func(subject string) (n int) { // that of tests is empty
			for _, d := range w.deliveries("ops", alert.Delivered) {
				if d.Message.Subject == subject {
					n++
				}
			}
			return n
		}
		w.set(func() {
			w.defs = alert.Definitions{
				Webhooks: []alert.Webhook{{Name: "ops", URL: v.URL}}, Alerts: []alert.Alert{{Name: "bad", Kind: alert.KindHealth, Webhooks: []string{"ops"}}},
			}
		})
		w.run("one")
		const messages = 6
		for i := range messages {
			w.set(func() {
				if w.found["bad"] = []string{"redis"}; i%2 == 1 {
					w.found["bad"] = nil
				}
			})
			w.advance(61 * time.Second)
			w.until("a message is made", func() bool { return len(w.deliveries("ops", "")) == i+1 })
		}
		mu.Lock()
		away = false
		mu.Unlock()
		w.until("the first is delivered", func() bool {
			w.advance(time.Second)
			return count("redis") > 0
		})
		for range 2 {
			if _, err := w.store.Test(w.Context(), "ops", "ann"); err != nil {
				w.Fatal(err)
			}
		}
		w.until("tests do not wait", func() bool { return count("") == 2 })
		w.until("all is delivered", func() bool {
			w.advance(time.Second)
			return count("redis") == messages
		})
		mu.Lock()
		defer mu.Unlock()
		for i := 1; i < len(heard); i++ {
			if gap := heard[i].Sub(heard[i-1]); gap < time.Minute-time.Millisecond {
				w.Errorf("two messages about one cause within %v", gap)
			}
		}
	})
}

// TestOrder has many changes of two causes go to a receiver that fails now and then: it gets those of each in order.
func TestOrder(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		v := newReceiver(w.T, func(n int, rw http.ResponseWriter, _ *http.Request) {
			if n%3 == 1 {
				rw.WriteHeader(http.StatusBadGateway)
			}
		})
		w.set(func() {
			w.defs = alert.Definitions{
				Webhooks: []alert.Webhook{{Name: "ops", URL: v.URL}}, Alerts: []alert.Alert{{Name: "bad", Kind: alert.KindHealth, Webhooks: []string{"ops"}}},
			}
		})
		w.run("one")
		made := 0
		for i := range 6 {
			w.set(func() {
				if w.found["bad"] = []string{"a", "b"}; i%2 == 1 {
					w.found["bad"] = nil
				}
			})
			w.advance(61 * time.Second)
			made += 2
			w.until("messages are made", func() bool { return len(w.deliveries("ops", "")) == made })
		}
		w.until("all is delivered", func() bool {
			if len(w.deliveries("ops", alert.Delivered)) == made {
				return true
			}
			w.advance(time.Second)
			return false
		})
		by, seen := map[string][]time.Time{}, map[string]bool{}
		for _, r := range slices.Backward(v.all()) { // the last attempt counts
			if id := r.Get(alert.HeaderDelivery); !seen[id] {
				seen[id] = true
				by[r.Subject] = append(by[r.Subject], r.At)
			}
		}
		for subject, times := range by {
			slices.Reverse(times)
			if len(times) != 6 || !slices.IsSortedFunc(times, time.Time.Compare) {
				w.Errorf("%s: %v", subject, times)
			}
		}
	})
}

// TestTurn has two nodes: one evaluates. When it is gone, the other goes on with what it knew.
func TestTurn(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*alert.Runner){
		"stopped": func(r *alert.Runner) { r.Stop(t.Context()) },
		"crashed": (*alert.Runner).Crash,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			takeOver(newWorld(t, testpostgres.Shared(t).Database(t)), end)
		})
	}
}

func takeOver(w *world, end func(*alert.Runner)) {
	t := w.T
	v := newReceiver(t, nil)
	w.set(func() {
		w.defs = alert.Definitions{
			Webhooks: []alert.Webhook{{Name: "ops", URL: v.URL}}, Alerts: []alert.Alert{{Name: "bad", Kind: alert.KindHealth, Webhooks: []string{"ops"}}},
		}
		w.found["bad"] = []string{"redis"}
	})
	one := w.run("one")
	w.until("the first has the turn", func() bool { s, _ := one.State(); return s.Node == "one" && s.Firing == 1 })
	two := w.run("two")
	w.until("it is told", func() bool { return len(v.all()) == 1 })
	w.until("the second knows", func() bool { s, _ := two.State(); return s.Node == "one" && s.Firing == 1 })
	end(one)
	w.until("the second has the turn", func() bool { s, _ := two.State(); return s.Node == "two" })
	w.set(func() { w.found["bad"] = nil })
	w.advance(2 * time.Minute)
	w.until("it is over", func() bool { return len(v.all()) == 2 })
	if got := v.types(); !slices.Equal(got, []string{"alert.firing redis", "alert.resolved redis"}) {
		t.Errorf("got %q", got)
	}
}

// TestMinutes adds up what nodes have counted.
func TestMinutes(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		ctx := w.Context()
		for i, node := range []string{"one", "two", "one"} { // what is written again replaces what was
			m := map[string]alert.Minute{"search": {Requests: int64(10 * (i + 1)), Denied: 5}, "login": {Requests: 1}}
			if err := w.store.AddMinute(ctx, node, noon, m); err != nil {
				w.Fatal(err)
			}
		}
		if err := w.store.AddMinute(ctx, "one", noon.Add(2*time.Minute), map[string]alert.Minute{"search": {Requests: 7, Denied: 7}}); err != nil {
			w.Fatal(err)
		}
		got, err := w.store.Minutes(ctx, noon, noon.Add(3*time.Minute), "")
		if want := "map[login:[{2 0} {0 0} {0 0}] search:[{50 10} {0 0} {7 7}]]"; err != nil || fmt.Sprint(got) != want {
			w.Errorf("got %v, %v, want %s", got, err, want)
		}
		if got, err = w.store.Minutes(ctx, noon.Add(time.Minute), noon.Add(3*time.Minute), "search"); err != nil || fmt.Sprint(got) != "map[search:[{0 0} {7 7}]]" {
			w.Errorf("got %v, %v", got, err)
		}
	})
}
