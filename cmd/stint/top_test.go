package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/internal/record"
)

// adminToken is the token of servers that tests start.
const adminToken = "the-token-of-these-tests-0123456789"

// busy is a snapshot of a server with a malicious client.
const busy = `{"at":"2026-03-01T12:00:00Z","node":"node-7","nodes":[{"name":"node-7","requests_per_second":1234.5,"refused_per_second":34.25}],"nodes_alive":1,"seconds":9.5,"requests_per_second":1234.5,"refused_per_second":34.25,"shadow_refused_per_second":2,` +
	`"outcomes_per_second":{"allowed":1200,"banned":4.25,"blocked":0,"denied":30,"exempt":0.25,"throttled":0,"unauthorized":0,"unavailable":0},` +
	`"latency_us":{"p50":0,"p95":180,"p99":2500},"rules":[{"name":"search","requests_per_second":1100.5,"refused_per_second":30},{"name":"lo\u001b[2Jgin","requests_per_second":4,"refused_per_second":0}],"talkers":{"seconds":15,` +
	`"users":{"by_requests":[{"name":"alice","requests":9000,"refused":0},{"name":"bob\u001b[2J\u0007","requests":4500,"refused":300},{"name":"a-name-that-is-longer-than-there-is-room-for","requests":1,"refused":0}],` +
	`"by_refused":[{"name":"bob\u001b[2J\u0007","requests":4500,"refused":300}],"requests_off":0,"refused_off":0},` +
	`"tenants":{"by_requests":[],"by_refused":[],"requests_off":0,"refused_off":0},"keys":{"by_requests":[{"name":"0123456789ABCDEF","requests":3,"refused":0}],"by_refused":[],"requests_off":0,"refused_off":0},` +
	`"addresses":{"by_requests":[{"name":"192.0.2.1","requests":700,"refused":20},{"name":"2001:db8::1","requests":650,"refused":90}],` +
	`"by_refused":[{"name":"2001:db8::1","requests":650,"refused":90},{"name":"192.0.2.1","requests":700,"refused":20}],"requests_off":17,"refused_off":2}},` +
	`"units":[{"rule":"tokens","meter":"llm.total_tokens","used_per_second":51200.5},{"rule":"lo\u001b[2Jgin","meter":"json:a.very.long.path.of.a.number","used_per_second":0.25}],` +
	`"leases":[{"limit":"search:hourly","counters":12,"held":340,"lent":300000000,"spent":299998000,"given_back":1660,"kept":0,"denied":70,"denied_early":9,"others_most":25,"most_used":998,"capacity":1000},` +
	`{"limit":"lo\u001b[2Jgin:per-minute","counters":0,"held":0,"lent":8,"spent":5,"given_back":2,"kept":1,"denied":0,"denied_early":0,"others_most":0,"most_used":7,"capacity":50}]}`

// TestTopOutput compares the output with that in testdata.
func TestTopOutput(t *testing.T) {
	t.Parallel()
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/admin/v1/live/stream":
			if r.Header.Get("Authorization") != "Bearer hunter2" {
				httplimit.Problem{Status: http.StatusUnauthorized, Detail: "there is no token with the request"}.Write(w, r)
				return
			}
			fmt.Fprintf(w, "retry: 2000\n\nevent: live\ndata: %s\n\n: still here\n\n", busy)
		case "/three/admin/v1/live/stream":
			several := strings.Replace(busy, `"node":"node-7","nodes":[{"name":"node-7",`, `"nodes":[{"name":"n\u001b[2Jode-1","requests_per_second":0.5,"refused_per_second":0},{"name":"node-7",`, 1)
			several = strings.Replace(several, `"nodes_alive":1,`, `"nodes_alive":3,"problem":"the other nodes cannot be read: it is away\u001b[2J",`, 1)
			fmt.Fprintf(w, "event: live\ndata: %s\n\n", several)
		case "/one/admin/v1/live/stream":
			fmt.Fprintf(w, "event: live\ndata: {\"node\":%q}\n\n", r.FormValue("node"))
		case "/nonsense/admin/v1/live/stream":
			fmt.Fprint(w, "event: live\ndata: nonsense\n\n")
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(admin.Close)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, c := range []struct {
		line string
		code int
	}{
		{"top --once --server " + admin.URL + " --token-file " + token, 0},
		{"top --once -o json --server " + admin.URL + "/ --token-file " + token, 0},
		{"top --once -o csv --server " + admin.URL + " --token-file " + token, 0},
		{"top -o csv --server " + admin.URL + " --token-file " + token, 2},
		{"top --once --server " + admin.URL + "/three", 0},
		{"top --once --node node-9 --server " + admin.URL + "/one", 0},
		{"top --server " + admin.URL, 2},
		{"top --server http://127.0.0.1:1", 2},
		{"top --server " + admin.URL + "/elsewhere", 2},
		{"top --server " + admin.URL + "/nonsense", 2},
		{"top --server " + strings.Replace(admin.URL, "//", "//me:hunter2@", 1), 2},
		{"top --server localhost:9090", 2},
		{"top --server ftp://me:hunter2@localhost", 2},
		{"top --token-file " + token + ".none", 2},
		{"top --token-file " + os.DevNull, 2},
		{"top --ca-file " + token, 2},
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
	text = strings.ReplaceAll(text, token, "TOKEN")
	text = regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d `).ReplaceAllString(text, "TIME ") // local time
	compare(t, "testdata/top.txt", text)
}

// TestTopWidths draws for terminals of every width: no line is wider.
func TestTopWidths(t *testing.T) {
	t.Parallel()
	var s record.Snapshot
	if err := json.Unmarshal([]byte(busy), &s); err != nil {
		t.Fatal(err)
	}
	for width := 26; width < 200; width++ {
		lines := stint.Picture(&s, width, 3)
		for _, line := range lines {
			if n := stint.ScreenWidth(line); n > width {
				t.Errorf("%d: a line has %d: %q", width, n, line)
			}
		}
		for _, name := range []string{"search", "alice", "192.0.2.1"} {
			if !strings.Contains(strings.Join(lines, "\n"), name) {
				t.Errorf("%d: %s is missing:\n%s", width, name, strings.Join(lines, "\n"))
			}
		}
	}
}

// TestTopWideNames draws names of which a character takes two columns or none: columns stay below each other.
func TestTopWideNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"検索サービスの規則", "🙂🙃😀 emoji", "e\u0301te\u0301", strings.Repeat("検", 60)} {
		text := strings.NewReplacer(`"search"`, `"`+name+`"`, `"alice"`, `"`+name+`"`, `"search:hourly"`, `"`+name+`"`, `"tokens"`, `"`+name+`"`, `"llm.total_tokens"`, `"`+name+`"`).Replace(busy)
		var s record.Snapshot
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		for _, wide := range []int{26, 40, 61, 80, 120} {
			lines, plain := stint.Picture(&s, wide, 3), stint.Picture(plainly(t, text, name), wide, 3)
			for i, line := range lines {
				if n, want := stint.ScreenWidth(line), stint.ScreenWidth(plain[i]); n != want {
					t.Errorf("%d: a line has %d columns, want %d: %q", wide, n, want, line)
				}
			}
		}
	}
	for text, want := range map[string]int{"alice": 5, "検索": 4, "🙂": 2, "e\u0301": 1, "ｱ": 1, "Ａ": 2, "█≥µ…": 4} {
		if n := stint.ScreenWidth(text); n != want {
			t.Errorf("%q: %d columns, want %d", text, n, want)
		}
	}
}

// plainly returns a snapshot with letters that take the columns of a name instead of it.
func plainly(t *testing.T, text, name string) *record.Snapshot {
	t.Helper()
	s := new(record.Snapshot)
	if err := json.Unmarshal([]byte(strings.ReplaceAll(text, name, strings.Repeat("x", stint.ScreenWidth(name)))), s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTopLines writes a line of JSON per snapshot, until the command or the server stops.
func TestTopLines(t *testing.T) {
	t.Parallel()
	for _, away := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "event: live\ndata: %s\n\n", busy)
			_ = http.NewResponseController(w).Flush()
			if !away {
				<-r.Context().Done()
			}
		}))
		out, errs := &lineWriter{seen: func() {
			if !away {
				cancel()
			}
		}}, new(bytes.Buffer)
		code := stint.Run(ctx, []string{"top", "-o", "json", "--server", admin.URL}, nil, out, errs)
		admin.Close()
		cancel()
		if lines := strings.Count(out.String(), busy+"\n"); lines != 1 || (code == 2) != away || (errs.Len() > 0) != away {
			t.Errorf("exit code %d, %d lines: %s%s", code, lines, out.String(), errs.String())
		}
	}
}

// lineWriter calls seen at each write.
type lineWriter struct {
	bytes.Buffer
	seen func()
}

func (w *lineWriter) Write(p []byte) (int, error) {
	defer w.seen()
	return w.Buffer.Write(p)
}

// TestTop shows the traffic of a server.
func TestTop(t *testing.T) {
	t.Parallel()
	s := serveIn(t, []string{"STINT_SERVER_ADMIN_TOKEN=" + adminToken})
	url := s.logs(t, "listener=http url=(.*)")
	admin := s.logs(t, "listener=admin url=(.*)")
	for range 7 { // at most three are allowed per minute, so at least one is denied
		var out bytes.Buffer
		stint.Run(t.Context(), strings.Fields("check /login -X POST --ip 192.0.2.1 --user alice --take --http "+url), nil, &out, &out)
	}
	var out, errs bytes.Buffer
	code := stint.Run(t.Context(), []string{"top", "--once", "-o", "json", "--server", admin}, []string{"STINT_TOKEN=" + adminToken}, &out, &errs)
	var seen record.Snapshot
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
