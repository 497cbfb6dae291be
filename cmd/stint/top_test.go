package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"syscall"
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/internal/audit"
)

// busy is what the admin listener of a server says, one of whose clients means harm.
const busy = `{"at":"2026-03-01T12:00:00Z","node":"node-7","seconds":9.5,"requests_per_second":1234.5,"refused_per_second":34.25,"shadow_refused_per_second":2,` +
	`"outcomes_per_second":{"allowed":1200,"banned":4.25,"blocked":0,"denied":30,"exempt":0.25,"throttled":0,"unauthorized":0,"unavailable":0},` +
	`"latency_us":{"p50":0,"p95":180,"p99":2500},"talkers":{"seconds":15,` +
	`"users":{"by_requests":[{"name":"alice","requests":9000,"refused":0},{"name":"bob\u001b[2J\u0007","requests":4500,"refused":300},{"name":"a-name-that-is-longer-than-there-is-room-for","requests":1,"refused":0}],` +
	`"by_refused":[{"name":"bob\u001b[2J\u0007","requests":4500,"refused":300}],"requests_off":0,"refused_off":0},` +
	`"tenants":{"by_requests":[],"by_refused":[],"requests_off":0,"refused_off":0},"keys":{"by_requests":[{"name":"0123456789ABCDEF","requests":3,"refused":0}],"by_refused":[],"requests_off":0,"refused_off":0},` +
	`"addresses":{"by_requests":[{"name":"192.0.2.1","requests":700,"refused":20},{"name":"2001:db8::1","requests":650,"refused":90}],` +
	`"by_refused":[{"name":"2001:db8::1","requests":650,"refused":90},{"name":"192.0.2.1","requests":700,"refused":20}],"requests_off":17,"refused_off":2}}}`

// TestTopSays compares what is shown with what is in testdata.
func TestTopSays(t *testing.T) {
	t.Parallel()
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/live":
			fmt.Fprintln(w, busy)
		case "/nonsense/live":
			fmt.Fprintln(w, "nonsense")
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(admin.Close)
	var got strings.Builder
	for _, c := range []struct {
		line string
		code int
	}{
		{"top --once --admin " + admin.URL, 0},
		{"top --once --json --admin " + admin.URL + "/", 0},
		{"top --admin http://127.0.0.1:1", 2},
		{"top --admin " + admin.URL + "/elsewhere", 2},
		{"top --admin " + strings.Replace(admin.URL, "//", "//me:hunter2@", 1) + "/nonsense", 2},
		{"top --admin localhost:9090", 2},
		{"top --admin ftp://me:hunter2@localhost", 2},
		{"top --interval 1ms", 2},
		{"top --interval often", 2},
		{"top now", 2},
	} {
		var out, errs bytes.Buffer
		code := stint.Run(t.Context(), strings.Fields(c.line), nil, &out, &errs)
		if code != c.code {
			t.Errorf("%s: exit code %d, want %d", c.line, code, c.code)
		}
		if strings.Contains(errs.String(), "hunter2") {
			t.Errorf("%s: a password is shown: %s", c.line, errs.String())
		}
		fmt.Fprintf(&got, "$ stint %s\n%s-- stderr --\n%s-- exit %d --\n\n", c.line, out.String(), errs.String(), code)
	}
	text := strings.ReplaceAll(got.String(), strings.TrimPrefix(admin.URL, "http://"), "ADMIN")
	text = regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d `).ReplaceAllString(text, "TIME ") // of this zone
	compare(t, "testdata/top.txt", text)
}

// TestTopLines writes a block, or a line of JSON, every interval, until it is stopped or
// the server is.
func TestTopLines(t *testing.T) {
	t.Parallel()
	for _, away := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		asked := 0
		admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if asked++; asked < 4 {
				fmt.Fprintln(w, busy)
				return
			}
			if !away {
				cancel()
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		var out, errs bytes.Buffer
		code := stint.Run(ctx, []string{"top", "--json", "--interval", "100ms", "--admin", admin.URL}, nil, &out, &errs)
		admin.Close()
		cancel()
		if lines := strings.Count(out.String(), busy+"\n"); lines != 3 || (code == 2) != away || (errs.Len() > 0) != away {
			t.Errorf("exit code %d, %d lines: %s%s", code, lines, out.String(), errs.String())
		}
	}
}

// TestTop looks at a server that was asked.
func TestTop(t *testing.T) {
	t.Parallel()
	s := serve(t)
	url := s.logs(t, "listener=http url=(.*)")
	admin := s.logs(t, "listener=admin url=(.*)")
	for range 4 {
		var out bytes.Buffer
		stint.Run(t.Context(), strings.Fields("check /login -X POST --ip 192.0.2.1 --user alice --take --server "+url), nil, &out, &out)
	}
	var out, errs bytes.Buffer
	code := stint.Run(t.Context(), []string{"top", "--once", "--json", "--admin", admin}, nil, &out, &errs)
	var seen audit.Snapshot
	if err := json.Unmarshal(out.Bytes(), &seen); err != nil || code != 0 {
		t.Fatal(code, err, errs.String())
	}
	users, addresses := seen.Talkers.Users.ByRequests, seen.Talkers.Addresses.ByRefused
	if seen.Requests <= 0 || seen.Refused <= 0 || len(users) != 1 || users[0].Name != "alice" || len(addresses) != 1 || addresses[0].Name != "192.0.2.1" {
		t.Errorf("%+v", seen)
	}
	s.signal(t, syscall.SIGINT)
	if code := s.ends(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
