package alert_test

import (
	"bytes"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/alert"
	"github.com/stintdev/stint/internal/test/testdoc"
)

// TestPeople acknowledges, silences, and looks at what was.
func TestPeople(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		v := newReceiver(w.T, nil)
		w.set(func() {
			w.defs = alert.Definitions{
				Webhooks: []alert.Webhook{{Name: "ops", URL: v.URL}}, Alerts: []alert.Alert{{Name: "bad", Kind: alert.KindHealth, Webhooks: []string{"ops"}}},
			}
			w.found["bad"] = []string{"a", "b"}
		})
		ctx, s := w.Context(), w.store
		made, err := s.Silence(ctx, alert.Silence{Alert: "bad", Subject: "b", Until: w.now().Add(time.Hour), Reason: "known", By: "ann"})
		if err != nil {
			w.Fatal(err)
		}
		w.run("one")
		causes := func(phase string) []*alert.Cause {
			w.Helper()
			all, _, err := s.Causes(ctx, alert.Query{State: phase, Limit: 10})
			if err != nil {
				w.Fatal(err)
			}
			return all
		}
		w.until("a is told", func() bool { return len(v.all()) == 1 && len(causes("")) == 2 })
		if got := v.types(); got[0] != "alert.firing a" {
			w.Errorf("got %q", got)
		}
		for _, c := range causes(alert.Firing) {
			if c.Subject != "a" {
				continue
			}
			if err := s.Acknowledge(ctx, c.ID, "bob", "on it"); err != nil {
				w.Fatal(err)
			}
			if c, err = s.Cause(ctx, c.ID); err != nil || c.AckedBy != "bob" || c.AckNote != "on it" || c.AckedAt.IsZero() {
				w.Errorf("%+v, %v", c, err)
			}
		}
		if err := s.Acknowledge(ctx, "none", "bob", ""); !errors.Is(err, alert.ErrNotFound) {
			w.Errorf("got %v", err)
		}
		if err := s.Unsilence(ctx, made.ID); err != nil {
			w.Fatal(err)
		}
		w.until("b is told when the silence ends", func() bool { return len(v.all()) == 2 })
		w.advance(5 * time.Hour) // only of b again
		w.until("b is told again", func() bool { return len(v.all()) == 3 })
		if got := v.types(); !slices.Equal(got[1:], []string{"alert.firing b", "alert.still_firing b"}) {
			w.Errorf("got %q", got)
		}
		w.set(func() { w.defs.Alerts = nil })
		w.advance(2 * time.Minute)
		w.until("both are over", func() bool { return len(causes(alert.Resolved)) == 2 && len(causes("")) == 0 && len(v.all()) == 5 })
		if all, next, err := s.Causes(ctx, alert.Query{State: alert.Resolved, Limit: 1}); err != nil || len(all) != 1 || next == "" {
			w.Errorf("%v, %q, %v", all, next, err)
		} else if more, last, err := s.Causes(ctx, alert.Query{State: alert.Resolved, Limit: 1, Before: next}); err != nil || len(more) != 1 || more[0].ID == all[0].ID || last != "" {
			w.Errorf("%v, %q, %v", more, last, err)
		}
		for _, bad := range []alert.Silence{{}, {Until: w.now().Add(-time.Hour)}, {Until: w.now().Add(40 * 24 * time.Hour)}, {Until: w.now().Add(time.Hour), Subject: "a"}, {Until: w.now().Add(time.Hour), Reason: "\x00"}} {
			if _, err := s.Silence(ctx, bad); err == nil {
				w.Errorf("%+v is accepted", bad)
			}
		}
	})
}

// TestBounded has a receiver that never answers: what waits for it is bounded, and others go on.
func TestBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "sqlite::memory:")
	for range alert.MaxWaiting + 5 {
		if _, err := w.store.Test(t.Context(), "ops", "ann"); err != nil {
			t.Fatal(err)
		}
	}
	w.set(func() {
		w.defs = alert.Definitions{
			Webhooks: []alert.Webhook{{Name: "ops", URL: "http://127.0.0.1:1"}}, Alerts: []alert.Alert{{Name: "bad", Kind: alert.KindHealth, Webhooks: []string{"ops"}}},
		}
		w.found["bad"] = []string{"a"}
	})
	w.run("one")
	w.until("the oldest are given up", func() bool { return len(w.deliveries("ops", alert.Dead)) >= 6 })
	w.until("the rest waits", func() bool { return len(w.deliveries("ops", alert.Waiting)) <= alert.MaxWaiting })
	w.set(func() { w.defs.Webhooks = nil })
	w.until("none waits for what is gone", func() bool { return len(w.deliveries("ops", alert.Waiting)) == 0 })
}

// TestStandsStill has a source that fails: that is said, and nothing changes.
func TestStandsStill(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "sqlite::memory:")
	w.set(func() {
		w.defs = alert.Definitions{Alerts: []alert.Alert{{Name: "bad", Kind: alert.KindHealth}}}
		w.found["bad"] = []string{"a"}
	})
	r := w.run("one")
	w.until("it fires", func() bool { s, _ := r.State(); return s.Firing == 1 && !s.Evaluated.IsZero() })
	w.set(func() { w.fails, w.found["bad"] = errors.New("the record is away"), nil })
	w.until("it is said", func() bool { s, _ := r.State(); return strings.Contains(s.Problem, "the record is away") })
	if s, _ := r.State(); s.Firing != 1 {
		t.Errorf("%+v", s)
	}
	w.set(func() { w.fails = nil })
	w.until("it goes on", func() bool { s, _ := r.State(); return s.Problem == "" && s.Firing == 0 })
	if !bytes.Contains([]byte(alert.Sign("k", noon, []byte("x"))), []byte("t=1769860800,v1=")) {
		t.Error(alert.Sign("k", noon, []byte("x")))
	}
}

// TestDocumentedSignature runs the command of the document that verifies a signature.
func TestDocumentedSignature(t *testing.T) {
	t.Parallel()
	ran := 0
	for _, b := range testdoc.Blocks(t) {
		if b.File != "docs/alerts.md" || b.Language != "console" {
			continue
		}
		for _, c := range b.Commands() {
			ran++
			out, err := exec.CommandContext(t.Context(), "sh", "-c", c.Text).CombinedOutput()
			if err != nil || string(out) != c.Output {
				t.Errorf("%s prints %q, %v, and the document says %q", c.Text, out, err, c.Output)
			}
			sum, _, _ := strings.Cut(string(out), " ")
			if want := alert.Sign("whsec_0123456789abcdefghijklmnop", time.Unix(1769860800, 0), []byte(`{"type":"test"}`)); want != "t=1769860800,v1="+sum {
				t.Errorf("it prints %s, and the header is %s", sum, want)
			}
		}
	}
	if ran == 0 {
		t.Error("the document has no such command")
	}
}
