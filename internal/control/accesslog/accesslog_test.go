package accesslog_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stintdev/stint/internal/control/accesslog"
	"github.com/stintdev/stint/internal/control/recorded"
)

// read reads a log.
func read(t testing.TB, o accesslog.Options, text string) ([]recorded.Request, accesslog.Stats) {
	t.Helper()
	r := accesslog.NewReader(o)
	var all []recorded.Request
	for q, err := range r.Read("access.log", strings.NewReader(text)) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, q)
	}
	return all, r.Stats
}

func TestLines(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	get := func(path, ip, user string) recorded.Request {
		return recorded.Request{At: at, Method: "GET", Path: path, IP: ip, User: user}
	}
	millis := func(q recorded.Request, n int) recorded.Request {
		q.At = q.At.Add(time.Duration(n) * time.Millisecond)
		return q
	}
	denied := get("/a", "192.0.2.1", "")
	denied.Refused = true
	for name, c := range map[string]struct {
		line string
		want recorded.Request
	}{
		"combined":     {`192.0.2.1 - - [31/Jan/2026:12:00:00 +0000] "GET /a?b=c HTTP/1.1" 200 12 "-" "curl/8"`, get("/a", "192.0.2.1", "")},
		"common":       {`192.0.2.1 - - [31/Jan/2026:12:00:00 +0000] "GET /a HTTP/1.1" 429 12`, denied},
		"zone":         {`192.0.2.1 - - [31/Jan/2026:17:30:00 +0530] "GET /a HTTP/1.1" 200 12`, get("/a", "192.0.2.1", "")},
		"user":         {`192.0.2.1 - alice [31/Jan/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 12`, get("/a", "192.0.2.1", "alice")},
		"odd user":     {`192.0.2.1 - al [ice] x [31/Jan/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 12`, get("/a", "192.0.2.1", "al [ice] x")},
		"IPv6":         {`2001:db8::1 - - [31/Jan/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 12`, get("/a", "2001:db8::1", "")},
		"mapped":       {`::ffff:192.0.2.1 - - [31/Jan/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 12`, get("/a", "192.0.2.1", "")},
		"virtual host": {`example.com:443 192.0.2.1 - - [31/Jan/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 12 "-" "-"`, get("/a", "192.0.2.1", "")},
		"escapes":      {`192.0.2.1 - - [31/Jan/2026:12:00:00 +0000] "GET /a\x22b\"c HTTP/1.1" 200 12`, get(`/a"b"c`, "192.0.2.1", "")},
		"absolute":     {`192.0.2.1 - - [31/Jan/2026:12:00:00 +0000] "GET http://example.com/a?b HTTP/1.1" 200 12`, get("/a", "192.0.2.1", "")},
		"old":          {`192.0.2.1 - - [31/Jan/2026:12:00:00 +0000] "GET /a" 200 12`, get("/a", "192.0.2.1", "")},
		"nginx JSON":   {`{"time":"2026-01-31T12:00:00+00:00","remote_addr":"192.0.2.1","request":"GET /a?b HTTP/1.1","status":"200","http_x_forwarded_for":"203.0.113.9"}`, get("/a", "192.0.2.1", "")},
		"msec":         {`{"msec":1769860800.250,"remote_addr":"192.0.2.1","request_method":"GET","uri":"/a","remote_user":"alice"}`, millis(get("/a", "192.0.2.1", "alice"), 250)},
		"Caddy":        {`{"level":"info","ts":1769860800.5,"request":{"remote_ip":"192.0.2.1","client_ip":"192.0.2.1","proto":"HTTP/2.0","method":"GET","host":"example.com","uri":"/a?b=1","headers":{"X-Forwarded-For":["203.0.113.9"]}},"status":200}`, millis(get("/a", "192.0.2.1", ""), 500)},
		"Traefik":      {`{"ClientAddr":"192.0.2.1:5000","ClientHost":"192.0.2.1","ClientUsername":"-","RequestMethod":"GET","RequestPath":"/a","DownstreamStatus":429,"StartUTC":"2026-01-31T12:00:00.000000001Z","time":"2026-01-31T12:00:00Z"}`, denied},
		"Envoy":        {`{"start_time":"2026-01-31T12:00:00.007Z","method":"GET","path":"/a","downstream_remote_address":"192.0.2.1:1234","x_forwarded_for":"203.0.113.9"}`, millis(get("/a", "192.0.2.1", ""), 7)},
		"milliseconds": {`{"ts":1769860800007,"ip":"[2001:db8::1]:80","method":"GET","path":"\/a"}`, millis(get("/a", "2001:db8::1", ""), 7)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, stats := read(t, accesslog.Options{}, c.line+"\r\n")
			if len(got) != 1 || fmt.Sprintf("%+v", got[0]) != fmt.Sprintf("%+v", c.want) {
				t.Errorf("\ngot  %+v\nwant %+v\n%+v", got, c.want, stats)
			}
		})
	}
	got, _ := read(t, accesslog.Options{User: "a.b", Address: "real"}, `{"time":"2026-01-31T12:00:00Z","remote_addr":"192.0.2.1","real":"192.0.2.7","method":"GET","path":"/a","a":{"b":42},"user":"x"}`)
	if len(got) != 1 || got[0].IP != "192.0.2.7" || got[0].User != "42" {
		t.Errorf("%+v", got)
	}
}

const fine = `192.0.2.1 - - [31/Jan/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 12`

// TestMalformed reads lines that are no requests: each is counted and told, and those around them are read.
func TestMalformed(t *testing.T) {
	t.Parallel()
	for line, why := range map[string]string{
		"hello": "no time in brackets",
		`192.0.2.1 - - [yesterday] "GET / HTTP/1.1" 200 1`: "no time in brackets",
		fine[:50]:                     "has no end",
		fine[:len(fine)-7]:            "no status",
		"x" + fine:                    "is not an address",
		strings.Repeat("x", 70_000):   "more than 65536 bytes",
		"\x00\xff\x01\x02":            "no time",
		`{"time":`:                    "not valid JSON",
		`{"time":"12:00"}`:            "is not one with a zone",
		`{"method":"GET"}`:            "no time",
		`{"ts":1769860800}`:           "no address",
		`{"ts":1769860800,"ip":"me"}`: "is not an address",
	} {
		all, stats := read(t, accesslog.Options{}, fine+"\n"+line+"\n\n"+fine)
		if len(all) != 2 || stats.Malformed != 1 || stats.Lines != 3 || len(stats.Problems) != 1 {
			t.Errorf("%.40q: %+v %+v", line, all, stats)
			continue
		}
		if p := stats.Problems[0]; p.Line != 2 || p.File != "access.log" || !strings.Contains(p.Why, why) || len(p.Text) > 700 {
			t.Errorf("%.40q: %+v, want %q", line, p, why)
		}
	}
	for _, line := range []string{
		`192.0.2.1 - - [31/Jan/2026:12:00:00 +0000] "" 400 0`, `192.0.2.1 - - [31/Jan/2026:12:00:00 +0000] "-" 408 0`,
		`192.0.2.1 - - [31/Jan/2026:12:00:00 +0000] "\x16\x03\x01 \x00" 400 157`, `192.0.2.1 - - [31/Jan/2026:12:00:00 +0000] "CONNECT a:443 HTTP/1.1" 400 157`,
	} {
		if all, stats := read(t, accesslog.Options{}, line); len(all) != 0 || stats.Empty != 1 || stats.Malformed != 0 {
			t.Errorf("%s: %+v %+v", line, all, stats)
		}
	}
	if _, stats := read(t, accesslog.Options{Format: accesslog.JSON}, fine); stats.Malformed != 1 {
		t.Error(stats)
	}
	_, stats := read(t, accesslog.Options{}, strings.Repeat("x\n", 1000))
	if stats.Malformed != 1000 || len(stats.Problems) != 10 {
		t.Error(stats.Malformed, len(stats.Problems))
	}
}

// TestOrder reads lines that are out of order, and those of the same second.
func TestOrder(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for _, second := range []int{5, 5, 3, 5, 20, 1, 20, 40} {
		fmt.Fprintf(&text, "192.0.2.1 - - [31/Jan/2026:12:00:%02d +0000] \"GET /%d HTTP/1.1\" 200 12\n", second, second)
	}
	all, stats := read(t, accesslog.Options{}, text.String())
	var got []string
	for _, q := range all {
		got = append(got, q.At.Format("05.000 ")+q.Path)
	}
	// The line of second 1 comes after those of second 5 have passed.
	want := []string{"03.000 /3", "05.000 /5", "05.250 /5", "05.500 /5", "05.750 /1", "20.000 /20", "20.500 /20", "40.000 /40"}
	if !slices.Equal(got, want) || stats.Late != 1 {
		t.Errorf("\ngot  %q\nwant %q; %+v", got, want, stats)
	}
}

// TestReaders reads what is compressed, cut off, and fails.
func TestReaders(t *testing.T) {
	t.Parallel()
	var file bytes.Buffer
	z := gzip.NewWriter(&file)
	if _, err := io.WriteString(z, strings.Repeat(fine+"\n", 1000)); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	count := func(from io.Reader) (n int, failed error) {
		for _, err := range accesslog.NewReader(accesslog.Options{}).Read("a", from) {
			if failed = err; err == nil {
				n++
			}
		}
		return n, failed
	}
	if n, err := count(iotest.OneByteReader(bytes.NewReader(file.Bytes()))); n != 1000 || err != nil {
		t.Error(n, err)
	}
	if _, err := count(bytes.NewReader(file.Bytes()[:file.Len()-20])); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	if _, err := count(strings.NewReader("\x1f\x8bnothing that gzip knows")); !errors.Is(err, gzip.ErrHeader) {
		t.Error(err)
	}
	if n, err := count(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader(fine)))); n != 0 || !errors.Is(err, iotest.ErrTimeout) {
		t.Error(n, err)
	}
}

// FuzzRead reads anything: each line is a request with what rules need, or is counted.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		fine, "x", `{"time":"2026-01-31T12:00:00Z","remote_addr":"192.0.2.1","request":"GET /a HTTP/1.1"}`, `{"ts":1e9,"ip":"::1","method":"GET","a":{"b":[1,{"c":"}"}]},"path":"/\u0000"}`,
		`a b c [31/Jan/2026:12:00:00 +0000] [31/Jan/2026:12:00:00 +0000] "GET \x" 1`, "{}", "{ }\n{\"a\" : 1 , \"b\":\"\\\\\"}", "\x1f\x8b\x00",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := accesslog.NewReader(accesslog.Options{})
		var n int64
		var last time.Time
		for q, err := range r.Read("a", bytes.NewReader(data)) {
			if err != nil {
				return // gzip
			}
			if n++; q.At.Before(last) || q.At.IsZero() || q.Method == "" || q.Path == "" || q.Path[0] != '/' && q.Path != "*" {
				t.Errorf("%+v after %v", q, last)
			}
			if last = q.At; strings.ContainsAny(q.Path, "?#") {
				t.Errorf("%+v", q)
			}
			if a, err := netip.ParseAddr(q.IP); err != nil || a.String() != q.IP {
				t.Errorf("%+v: %v", q, err)
			}
		}
		if s := &r.Stats; s.Lines != n+s.Malformed+s.Empty || int64(len(s.Problems)) != min(s.Malformed, 10) {
			t.Errorf("%d requests, %+v", n, s)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	var text bytes.Buffer
	for i := range 100_000 {
		fmt.Fprintf(&text, "10.0.%d.%d - - [31/Jan/2026:12:%02d:%02d +0000] \"GET /api/items/%d?q=1 HTTP/1.1\" 200 1234 \"https://example.com/\" \"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36\"\n", i%7, i%250, i/60_00%60, i/100%60, i%5000)
	}
	b.SetBytes(int64(text.Len()))
	for b.Loop() {
		n := 0
		for _, err := range accesslog.NewReader(accesslog.Options{}).Read("a", bytes.NewReader(text.Bytes())) {
			if n++; err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(100_000*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}
