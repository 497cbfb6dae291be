package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// Doors are measured by the processor time of a server process. This process is the client.
const (
	serveEmpty = "serve-empty" // this program as a server that does nothing
	serveProxy = "serve-proxy" // as a proxy
	servePool  = "serve-pool"  // as a proxy that reuses buffers
	serveGRPC  = "serve-grpc"  // as a rate limit service that passes everything

	doorConnections = 32
	doorCells       = 5 // in each round: short turns, because the speed of the machine may change
	doorBatch       = 64

	emptyDoor = "door: net/http, an empty handler"
	proxyDoor = "door: httputil.ReverseProxy"
)

// door is a server, and the request that it gets.
type door struct {
	name      string
	base      string // the door that it is compared with
	target    float64
	decisions int // in one request
	status    int
	request   []byte
	start     func(dir, upstream string) (*process, error)
}

func doors() []door {
	check := `{"method":"GET","path":"/search","user":"alice","ip":"192.0.2.1"}`
	batch := `{"requests":[` + strings.Repeat(check+",", doorBatch-1) + check + `]}`
	post := func(path, body string) []byte {
		return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: stint\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	}
	get := []byte("GET /search?q=cats HTTP/1.1\r\nHost: app\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n")
	return []door{
		{emptyDoor, emptyDoor, 0, 1, 200, post("/v1/check", check), startSelf(serveEmpty)},
		{"door: stint /v1/check", emptyDoor, 1.65, 1, 200, post("/v1/check", check), startStint("http", most)},
		{"door: stint /v1/check/batch of 64", emptyDoor, 0, doorBatch, 200, post("/v1/check/batch", batch), startStint("http", most)},
		{proxyDoor, proxyDoor, 0, 1, 200, get, startSelf(serveProxy)},
		{"door: httputil.ReverseProxy with a BufferPool", proxyDoor, 0, 1, 200, get, startSelf(servePool)},
		{"door: stint gateway", proxyDoor, 1.15, 1, 200, get, startStint("gateway", most)},
		{"door: stint gateway, refused", proxyDoor, 0.35, 1, 429, get, startStint("gateway", 1)},
		{"door: nginx limit_req, proxy_pass", proxyDoor, 0, 1, 200, get, startNginx},
	}
}

// process is a server in its own process.
type process struct {
	cmd  *exec.Cmd
	addr string
}

func (p *process) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// startProcess starts a server, which ends with this process. If addr is empty, find returns
// the address from a line of the server's output.
func startProcess(cmd *exec.Cmd, addr string, find func(line []byte) string) (*process, error) {
	out, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = cmd.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &process{cmd, addr}
	var said bytes.Buffer
	for lines := bufio.NewScanner(io.TeeReader(out, &said)); s.addr == "" && lines.Scan(); {
		s.addr = find(lines.Bytes())
	}
	for deadline := time.Now().Add(5 * time.Second); s.addr != ""; {
		c, err := net.Dial("tcp", s.addr)
		if err == nil {
			c.Close()
			go io.Copy(io.Discard, out) //nolint:errcheck // it ends with the process
			return s, nil
		}
		if time.Now().After(deadline) {
			break
		}
	}
	_ = cmd.Process.Kill()
	_, _ = io.Copy(&said, out)
	_ = cmd.Wait()
	return nil, fmt.Errorf("%s does not listen: %s", cmd.Path, said.String())
}

// freeAddr returns an address that nothing listens on.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// build builds a package of the module in from to the file.
func build(from, pkg, file string) error {
	text, err := exec.Command("go", "-C", from, "build", "-o", file, pkg).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	return nil
}

// inRounds measures all contestants in each round, in random order.
func inRounds(rounds, contestants int, measure func(i int) error) error {
	for range rounds {
		for _, i := range rand.Perm(contestants) {
			if err := measure(i); err != nil {
				return err
			}
		}
	}
	return nil
}

func startSelf(as string) func(dir, upstream string) (*process, error) {
	return func(_, upstream string) (*process, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		return startProcess(exec.Command(self, as, upstream), "", func(line []byte) string { return string(line) })
	}
}

// serve runs this program as a server, which prints its address.
func serve(as, upstream string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, l.Addr())
	if as == serveGRPC {
		s := grpc.NewServer()
		rlsv3.RegisterRateLimitServiceServer(s, emptyService{})
		return s.Serve(l)
	}
	var h http.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	if as != serveEmpty {
		to := &url.URL{Scheme: "http", Host: upstream}
		proxy := &httputil.ReverseProxy{
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to); r.SetXForwarded() },
			Transport: &http.Transport{MaxIdleConnsPerHost: 2 * doorConnections},
		}
		if as == servePool {
			proxy.BufferPool = new(bufferPool)
		}
		h = proxy
	}
	s := http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	return s.Serve(l)
}

type bufferPool struct{ sync.Pool }

func (p *bufferPool) Get() []byte {
	if b, ok := p.Pool.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 32<<10)
}

func (p *bufferPool) Put(b []byte) { p.Pool.Put(&b) }

// startStint starts stint with one rule.
func startStint(listener string, limit int) func(dir, upstream string) (*process, error) {
	return func(dir, upstream string) (*process, error) {
		config := filepath.Join(dir, fmt.Sprintf("%s-%d.toml", listener, limit))
		text := fmt.Sprintf(`
[[rules]]
name     = "per-address"
count_by = ["ip"]
limits   = [{ name = "address", limit = "%d/month" }]

[[upstreams]]
targets = ["http://%s"]
`, limit, upstream)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			return nil, err
		}
		cmd := exec.Command(filepath.Join(dir, "stint"), "serve", "--config", config)
		cmd.Env = []string{"STINT_SERVER_GATEWAY_ADDRESS=127.0.0.1:0", "STINT_SERVER_HTTP_ADDRESS=127.0.0.1:0", "STINT_SERVER_ADMIN_ADDRESS="}
		return startProcess(cmd, "", listening(listener))
	}
}

// listening finds the address of a listener in the log of stint.
func listening(listener string) func(line []byte) string {
	return func(line []byte) string {
		var entry struct{ Listener, URL string }
		if json.Unmarshal(line, &entry) != nil || entry.Listener != listener {
			return ""
		}
		return strings.TrimPrefix(entry.URL, "http://")
	}
}

// startNginx starts nginx as one process, with a limit that is never reached.
func startNginx(dir, upstream string) (*process, error) {
	path, err := findNginx()
	if err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`
daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events { worker_connections 4096; }
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path       proxy;
    fastcgi_temp_path     fastcgi;
    uwsgi_temp_path       uwsgi;
    scgi_temp_path        scgi;
    keepalive_requests    1000000000;
    limit_req_zone $binary_remote_addr zone=address:1m rate=1000000r/s;
    upstream app {
        server %s;
        keepalive %d;
        keepalive_requests 1000000000;
    }
    server {
        listen %s;
        location / {
            limit_req zone=address burst=1000000 nodelay;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_pass http://app;
        }
    }
}
`, upstream, 2*doorConnections, addr)
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	return startProcess(exec.Command(path, "-e", "stderr", "-p", dir, "-c", file), addr, nil)
}

func findNginx() (string, error) {
	path, err := exec.LookPath("nginx")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/nginx")
	}
	return path, err
}

// doorResult is the measurements of a door.
type doorResult struct{ cpu, perSecond samples }

// compareDoors measures every door, in rounds.
func compareDoors(out io.Writer, s settings) error {
	list := slices.DeleteFunc(doors(), func(d door) bool { return !s.only.MatchString(d.name) })
	if _, err := findNginx(); err != nil {
		list = slices.DeleteFunc(list, func(d door) bool { return strings.Contains(d.name, "nginx") })
	}
	if len(list) == 0 {
		return nil
	}
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := build("..", "./cmd/stint", filepath.Join(dir, "stint")); err != nil {
		return err
	}
	upstream, err := startSelf(serveEmpty)(dir, "")
	if err != nil {
		return err
	}
	defer upstream.stop()
	servers := make([]*process, len(list))
	for i, d := range list {
		if servers[i], err = d.start(dir, upstream.addr); err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		defer servers[i].stop()
		if _, err := knock(servers[i].addr, d, s.cell, 0); err != nil { // caches fill, and the limit of one is used up
			return fmt.Errorf("%s: %w", d.name, err)
		}
	}
	results := make([]doorResult, len(list))
	err = inRounds(doorCells*s.rounds, len(list), func(i int) error {
		if err := measureDoor(servers[i], list[i], s.cell, &results[i]); err != nil {
			return fmt.Errorf("%s: %w", list[i].name, err)
		}
		return nil
	})
	if err == nil {
		printDoors(out, list, results)
	}
	return err
}

func measureDoor(s *process, d door, length time.Duration, r *doorResult) error {
	before, err := s.cpu()
	if err != nil {
		return err
	}
	start := time.Now()
	n, err := knock(s.addr, d, length, d.status)
	took := time.Since(start)
	if err != nil {
		return err
	}
	after, err := s.cpu()
	r.cpu = append(r.cpu, float64(after-before)/float64(n))
	r.perSecond = append(r.perSecond, float64(n)/took.Seconds())
	return err
}

// cpu returns the processor time that the server has used.
func (p *process) cpu() (time.Duration, error) {
	const scheduler = 2 // the exact one of a process's clocks
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^p.cmd.Process.Pid<<3|scheduler), &used); err != nil {
		return 0, fmt.Errorf("the processor time of %s: %w", p.cmd.Path, err)
	}
	return time.Duration(used.Nano()), nil
}

// knock sends requests for this time, on connections that stay open, and returns how many
// were answered. All responses must have this status, unless it is 0.
func knock(addr string, d door, length time.Duration, status int) (int, error) {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		sum  int
		errs []error
		end  = time.Now().Add(length)
	)
	for range doorConnections {
		wg.Go(func() {
			n, err := knockOne(addr, d.request, end, status)
			mu.Lock()
			defer mu.Unlock()
			sum += n
			errs = append(errs, err)
		})
	}
	wg.Wait()
	return sum, errors.Join(errs...)
}

func knockOne(addr string, request []byte, end time.Time, status int) (n int, err error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	for ; time.Now().Before(end); n++ {
		if _, err := conn.Write(request); err != nil {
			return n, err
		}
		w, err := http.ReadResponse(r, nil)
		if err != nil {
			return n, err
		}
		_, err = io.Copy(io.Discard, w.Body)
		w.Body.Close()
		if err != nil {
			return n, err
		}
		if status != 0 && w.StatusCode != status {
			return n, fmt.Errorf("got %s, want %d", w.Status, status)
		}
	}
	return n, nil
}

func printDoors(out io.Writer, list []door, results []doorResult) {
	base := map[string]samples{}
	for i, d := range list {
		base[d.name] = results[i].cpu
	}
	t := table{{"", "CPU µs", "", "×base", "at most", "µs/decision", "requests/s", ""}}
	for i, d := range list {
		r := results[i]
		t.row(d.name, micros(r.cpu), spread(r.cpu), ratio(r.cpu, base[d.base]), atMost(d.target),
			fmt.Sprintf("%.1f", r.cpu.median()/1000/float64(d.decisions)), thousands(int(r.perSecond.median())), spread(r.perSecond))
	}
	t.print(out, fmt.Sprintf("Doors: processor time of the server for a request, HTTP/1.1, %d connections (×base: those to the API × an empty handler, the others × ReverseProxy)",
		doorConnections))
}
