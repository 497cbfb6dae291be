package httplimit_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
)

// TestGatewayErrors is about targets that fail, and clients that do.
func TestGatewayErrors(t *testing.T) {
	t.Parallel()
	raw := func(answer string) string { // a server that reads a request, and says something
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = http.ReadRequest(bufio.NewReader(c))
				_, _ = io.WriteString(c, answer)
				_ = c.Close()
			}
		}()
		return "http://" + l.Addr().String()
	}
	silent := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}), false).URL
	trickle := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}), false).URL
	secure := serve(t, httplimit.Echo(), true).URL
	echo := serve(t, httplimit.Echo(), false).URL
	chunked := "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
	plain := "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, c := range map[string]struct {
		route   httplimit.Route
		request string
		status  int
		says    string
	}{
		"refused":       {httplimit.Route{Targets: []string{"http://" + closedPort(t)}}, plain, 502, "refused"},
		"unknown":       {httplimit.Route{Targets: []string{"http://nowhere.invalid"}}, plain, 502, "reached"},
		"untrusted":     {httplimit.Route{Targets: []string{secure}}, plain, 502, "reached"},
		"reset":         {httplimit.Route{Targets: []string{raw("")}}, plain, 502, "reset"},
		"cut":           {httplimit.Route{Targets: []string{raw("HTTP/1.1 200 OK\r\nX: ")}}, plain, 502, "reset"},
		"not HTTP":      {httplimit.Route{Targets: []string{raw("220 mail.example.com ESMTP\r\n")}}, plain, 502, "no valid response"},
		"no response":   {httplimit.Route{Targets: []string{silent}, ResponseTimeout: time.Millisecond}, plain, 504, "no response in time"},
		"too long":      {httplimit.Route{Targets: []string{silent}, Timeout: time.Millisecond}, plain, 504, "took too long"},
		"no connection": {httplimit.Route{Targets: []string{echo}, DialTimeout: 1}, plain, 504, "no connection in time"},
		"chunk":         {httplimit.Route{Targets: []string{silent}}, chunked + "nonsense\r\n", 400, "could not be read"},
		"large":         {httplimit.Route{Targets: []string{silent}}, chunked + "20\r\n" + strings.Repeat("x", 32) + "\r\n", 413, "larger than 20 bytes"},
		"protocol":      {httplimit.Route{Targets: []string{echo}}, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: \xff\r\n\r\n", 400, "no valid name"},
		"CONNECT":       {httplimit.Route{Targets: []string{echo}}, "CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n", 405, "CONNECT is not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			_, s := gateway(t, httplimit.GatewayOptions{
				Routes: []httplimit.Route{c.route}, MaxBody: 20, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})
			conn, r := connect(t, s)
			_, _ = io.WriteString(conn, c.request)
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			body, _ := io.ReadAll(res.Body)
			wantProblem(t, answer{res.StatusCode, res.Header}, string(body), c.status, c.says)
			if strings.Contains(string(body), "127.0.0.1") {
				t.Errorf("the target is named to the client: %s", body)
			}
			_ = conn.Close()
			s.Close()
			if logged := strings.Contains(log.String(), c.route.Targets[0]); logged != (c.status >= 500) {
				t.Errorf("%d, and the log says %s", c.status, &log)
			}
		})
	}

	t.Run("cut off while the body is sent", func(t *testing.T) {
		t.Parallel()
		for timeout := time.Second; ; timeout *= 2 {
			_, s := gateway(t, httplimit.GatewayOptions{Routes: []httplimit.Route{{Targets: []string{trickle}, Timeout: timeout}}})
			res, err := http.DefaultTransport.RoundTrip(get(t, s.URL+"/"))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if _, err := io.ReadAll(res.Body); err != nil {
				break
			}
			if res.StatusCode != http.StatusGatewayTimeout { // it has begun in time
				t.Fatal("a response that was cut looks whole")
			}
		}
	})
	t.Run("client leaves", func(t *testing.T) {
		t.Parallel()
		arrived := make(chan struct{})
		hang := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(arrived)
			<-r.Context().Done()
		}), false).URL
		g, err := httplimit.NewGateway(httplimit.GatewayOptions{Engine: gatewayEngine(t, noRules, identity.Options{}), Routes: to(hang)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		w := httptest.NewRecorder()
		go func() {
			<-arrived
			cancel()
		}()
		g.ServeHTTP(w, get(t, "http://x/").WithContext(ctx))
		if w.Code != 499 || w.Body.Len() > 0 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if h := g.Health()[0]; h.Failures != 0 {
			t.Errorf("that is the target's fault: %+v", h)
		}
	})
}
