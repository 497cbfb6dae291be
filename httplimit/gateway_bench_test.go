package httplimit_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
)

// cpu is the processor time that this process has used.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// wire is a client that costs little.
type wire struct {
	conn net.Conn
	r    *bufio.Reader
}

func newWire(b *testing.B, s *httptest.Server) *wire {
	b.Helper()
	conn, r := connect(b, s)
	return &wire{conn, r}
}

func (w *wire) get() (status int, err error) {
	if _, err := io.WriteString(w.conn, "GET /items/7 HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"); err != nil {
		return 0, err
	}
	const first = "HTTP/1.1 "
	length := 0
	for {
		line, err := w.r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		if text, ok := bytes.CutPrefix(line, []byte(first)); ok {
			status, _ = strconv.Atoi(string(text[:3]))
		} else if text, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length, _ = strconv.Atoi(string(bytes.TrimSpace(text)))
		} else if len(line) == 2 {
			_, err := w.r.Discard(length)
			return status, err
		}
	}
}

// BenchmarkGateway is the cost of a request by way of a gateway, beside that of a bare
// proxy, and of asking the target directly. Client, gateway and target share the
// process, so what the client and the target cost is in all of them.
func BenchmarkGateway(b *testing.B) {
	target := serve(b, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello")
	}), false)
	u, err := url.Parse(target.URL)
	if err != nil {
		b.Fatal(err)
	}
	limited := func(limit string) http.Handler {
		g, err := httplimit.NewGateway(httplimit.GatewayOptions{
			Engine: gatewayEngine(b, "[[rules]]\nname = \"each\"\ncount_by = [\"ip\"]\nlimits = [ { name = \"each\", limit = \""+limit+"\" } ]", identity.Options{}),
			Routes: to(target.URL),
		})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = g.Stop(context.Background()) })
		return g
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}
	b.Cleanup(transport.CloseIdleConnections)
	for _, c := range []struct {
		name   string
		h      http.Handler
		status int
	}{
		{"direct", target.Config.Handler, http.StatusOK},
		{"bare", &httputil.ReverseProxy{
			Rewrite: func(pr *httputil.ProxyRequest) {
				pr.SetURL(u)
				pr.SetXForwarded()
			},
			Transport: transport,
		}, http.StatusOK},
		{"one-rule", limited("1000000000000/1h"), http.StatusOK},
		{"denied", limited("1/1000h"), http.StatusTooManyRequests},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := httptest.NewServer(c.h)
			defer s.Close()
			const clients = 8
			wires := make([]*wire, clients)
			for i := range wires { // what is limited to one is used up
				wires[i] = newWire(b, s)
				_, _ = wires[i].get()
			}
			b.ReportAllocs()
			b.ResetTimer()
			before := cpu(b)
			var wg sync.WaitGroup
			for i, w := range wires {
				wg.Go(func() {
					for n := i; n < b.N; n += clients {
						if status, err := w.get(); err != nil || status != c.status {
							b.Errorf("status %d, %v; want %d", status, err, c.status)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N)/1e3, "cpu-µs/op")
		})
	}
}
