package main_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
)

// TestAlertsCommands makes a webhook and an alert, tests the webhook while it works and while it does not, and silences.
func TestAlertsCommands(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if broken.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(receiver.Close)
	d := newDemo(t)
	says := func(code int, want string, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if got := stint.Run(t.Context(), args, d.environ, &out, &errs); got != code || !strings.Contains(out.String()+errs.String(), want) {
			t.Errorf("stint %v: exit code %d, want %d and %q:\n%s%s", args, got, code, want, out.String(), errs.String())
		}
		return out.String()
	}
	secret := strings.TrimSpace(says(0, "this is the secret of the webhook ops; it cannot be shown again", "webhooks", "create", "ops", "url="+receiver.URL))
	if !strings.HasPrefix(secret, "whsec_") || strings.Contains(says(0, "ops", "webhooks", "show", "ops"), secret) {
		t.Errorf("the secret is %q, or is shown again", secret)
	}
	says(0, "delivered to ops", "webhooks", "test", "ops")
	says(0, "alert busy", "alerts", "create", "busy", "kind=rule", "rule=search", "percent=20", "--webhook", "ops")
	says(2, `did you mean "search"?`, "alerts", "create", "lazy", "kind=rule", "rule=serach", "percent=20")
	says(2, "the alert \"busy\" tells it", "webhooks", "delete", "ops", "--yes")
	list := says(0, "", "alerts", "list")
	for _, line := range []string{
		"NAME     KIND    FIRES IF                                                  SEVERITY  WEBHOOKS",
		"busy     rule    search denies more than 20 % for 5m                       warning   ops",
		"health   health  store_away, node_missing, bound_passed, unhealthy for 1m  warning   -",
	} {
		if !strings.Contains(list, line) {
			t.Errorf("the list lacks %q:\n%s", line, list)
		}
	}
	broken.Store(true)
	says(1, "not delivered to ops: it answers 503", "webhooks", "test", "ops")
	says(0, "waiting", "webhooks", "deliveries", "--webhook", "ops")
	says(0, "the last message to ops is not delivered after", "doctor", "--server", d.admin, "--config", filepath.Join(d.files, "node.toml"))
	says(0, "nothing fires", "alerts", "firing")
	says(0, "+ silence", "alerts", "silence", "busy", "--for", "1h", "--reason", "a test")
	id := strings.Fields(strings.Split(says(0, "a test", "alerts", "silences"), "\n")[1])[0]
	says(2, "--for or --until", "alerts", "silence", "busy")
	says(0, "- silence "+id, "alerts", "unsilence", id)
	says(0, "nothing is silenced", "alerts", "silences")
	says(2, "stint alerts firing", "alerts", "ack", "none")
	says(2, "--state dead", "webhooks", "retry", "none")
	says(0, "there are no dead letters", "webhooks", "retry", "--all")
}

// TestRetryAll tries two dead letters again, of which one was overtaken by a newer message: that is said, and the other is sent.
func TestRetryAll(t *testing.T) {
	t.Parallel()
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/admin/v1/deliveries":
			_, _ = w.Write([]byte(`{"items": [{"id": "new", "webhook": "ops", "state": "dead"}, {"id": "old", "webhook": "ops", "state": "dead"}], "next": ""}`))
		case "/admin/v1/deliveries/old/retry":
			asked = append(asked, "old")
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusConflict)
			_, _ = w.Write([]byte(`{"title": "Conflict", "status": 409, "detail": "a newer message about the same cause was delivered"}`))
		default:
			asked = append(asked, r.URL.Path)
			_, _ = w.Write([]byte(`{"id": "new", "webhook": "ops", "state": "waiting"}`))
		}
	}))
	t.Cleanup(s.Close)
	run := func(code int, want string, args ...string) {
		t.Helper()
		var out, errs bytes.Buffer
		args = append([]string{"webhooks", "retry", "--server", s.URL}, args...)
		if got := stint.Run(t.Context(), args, []string{"STINT_TOKEN=x"}, &out, &errs); got != code || out.String()+errs.String() != want {
			t.Errorf("stint %v: exit code %d:\n%s%s", args, got, out.String(), errs.String())
		}
	}
	run(0, "new to ops is tried again\nnote: old stays: a newer message about the same cause was delivered\n", "--all")
	if strings.Join(asked, " ") != "old /admin/v1/deliveries/new/retry" {
		t.Errorf("it asked for %q", asked)
	}
	run(2, "stint: a newer message about the same cause was delivered\ntry: stint alerts firing; stint webhooks test tests the webhook\n", "old")
}
