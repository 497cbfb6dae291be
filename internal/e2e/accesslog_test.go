package e2e_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/accesslog"
	logged "github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestAccessLog has nginx serve requests of many kinds, and reads the logs that it writes, in its own format and in JSON: both have every
// request, with the address of the connection, whatever clients send as X-Forwarded-For.
func TestAccessLog(t *testing.T) {
	t.Parallel()
	dir, address := t.TempDir(), freeAddress(t)
	runNginx(t, address, fmt.Sprintf(`
log_format as_json escape=json '{"time":"$time_iso8601","remote_addr":"$remote_addr","remote_user":"$remote_user",'
    '"request":"$request","status":$status,"forwarded":"$http_x_forwarded_for","agent":"$http_user_agent"}';
server {
    listen %s;
    access_log %s/access.log combined;
    access_log %s/access.json as_json;
    location / { return 200 "ok"; }
    location /busy { return 429; }
}`, address, dir, dir))
	begin := time.Now().Truncate(time.Second)
	type sent struct{ method, uri, user string }
	all := []sent{
		{"GET", "/", ""},
		{"GET", "/search?q=a%20b", ""},
		{"POST", "/orders/123456", "alice"},
		{"GET", "/busy", ""},
		{"DELETE", "/a%22b%5Cc%5B%5D", ""},
		{"GET", "/%C3%A9/" + strings.Repeat("x", 2000), `a [b] "c" é`},
		{"HEAD", "//a/../b", ""},
	}
	for _, s := range all {
		r, err := http.NewRequestWithContext(t.Context(), s.method, "http://"+address+s.uri, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Forwarded-For", "203.0.113.9")
		r.Header.Set("User-Agent", `"quoted" [31/Jan/2026:12:00:00 +0000] \`)
		if s.user != "" {
			r.SetBasicAuth(s.user, "secret")
		}
		w, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Body.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, raw := range []string{"\x16\x03\x01\x02\x00\x01\x00\xff\"\\\r\n\r\n", "GET /quoted\"path\" HTTP/1.0\r\n\r\n"} { // TLS, and what no client of Go sends
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, raw); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(conn); err != nil {
			t.Log(err) // it may be reset
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	all = append(all, sent{"GET", `/quoted"path"`, ""})
	for _, name := range []string{"access.log", "access.json"} {
		var got []logged.Request
		var stats accesslog.Stats
		wait.Nil(t, name, func() error { // nginx writes after it has answered
			f, err := os.Open(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			reader := accesslog.NewReader(accesslog.Options{})
			got = nil
			for q, err := range reader.Read(name, f) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, q)
			}
			if stats = reader.Stats; stats.Lines != int64(len(all))+1 {
				return fmt.Errorf("%+v", stats)
			}
			return nil
		})
		if stats.Malformed != 0 || stats.Empty != 1 || len(got) != len(all) {
			t.Fatalf("%s: %+v", name, stats)
		}
		for i, s := range all {
			q := &got[i]
			path, _, _ := strings.Cut(s.uri, "?")
			if q.Method != s.method || q.Path != path || q.User != s.user || q.IP != "127.0.0.1" || q.Refused != (path == "/busy") ||
				q.At.Before(begin) || q.At.After(time.Now().Add(time.Second)) {
				t.Errorf("%s: got %+v\nwant %+v", name, q, s)
			}
		}
	}
}
