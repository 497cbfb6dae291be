package e2e_test

import (
	"bufio"
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/importer"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// sent is a request to nginx, and what nginx made of it.
type sent struct {
	number             int
	from, path, method string
	header             [2]string // empty: none

	at      time.Duration // when nginx began with it, by its clock
	took    time.Duration
	outcome string // PASSED, DELAYED, REJECTED, or - if nothing was counted
}

// imported are configurations of nginx, and what is asked of each. The log is added.
var imported = []struct {
	name, http string
	paths      []string
	methods    []string
	headers    [][2]string
	froms      []string
	slow       bool // nginx holds requests
	missing    int  // that the import reports
}{
	{name: "nodelay", http: `limit_req_zone $binary_remote_addr zone=a:1m rate=20r/s; server { %s location / { limit_req zone=a burst=8 nodelay; } }`},
	{name: "no burst", http: `limit_req_zone $binary_remote_addr zone=a:1m rate=10r/s; limit_req zone=a; server { %s }`},
	{name: "minute", http: `limit_req_zone $binary_remote_addr zone=a:1m rate=120r/m; server { %s limit_req zone=a burst=3 nodelay; }`},
	{name: "queue", slow: true, http: `limit_req_zone $binary_remote_addr zone=a:1m rate=10r/s; server { %s location / { limit_req zone=a burst=4; } }`},
	{name: "part of the queue", missing: 1, slow: true, http: `limit_req_zone $binary_remote_addr zone=a:1m rate=10r/s; server { %s location / { limit_req zone=a burst=6 delay=3; } }`},
	{
		name: "several limits", http: `limit_req_zone $binary_remote_addr zone=a:1m rate=10r/s; limit_req_zone $server_name zone=b:1m rate=25r/s;
			server { %s limit_req zone=a burst=5 nodelay; limit_req zone=b burst=10 nodelay; location / { } }`,
	},
	{
		name: "locations", paths: []string{"/", "/shop/", "/shop/x", "/shop/cart/1", "/shop/cart/pay", "/shop/help/a", "/other", "/static/x", "/login"},
		http: `limit_req_zone $binary_remote_addr zone=a:1m rate=5r/s; limit_req_zone $binary_remote_addr zone=b:1m rate=10r/s;
			server { %s limit_req zone=b burst=3 nodelay;
				location /shop/ { limit_req zone=a burst=2 nodelay;
					location /shop/cart/ { limit_req zone=a burst=2 nodelay; limit_req zone=b burst=3 nodelay; location = /shop/cart/pay { } }
					location /shop/help/ { return 204; } }
				location ~ ^/(static|media)/[^/]+$ { limit_req zone=a burst=2 nodelay; }
				location = /login { limit_req zone=a burst=2 nodelay; } }`,
	},
	{
		name: "networks", froms: []string{"127.0.0.2", "127.0.5.1", "127.0.5.7", "127.0.6.1"},
		http: `geo $kind { default 0; 127.0.5.0/24 1; 127.0.5.7 2; 127.0.6.1 3; } map $kind $slow { 0 $binary_remote_addr; 3 $binary_remote_addr; default ""; } map $kind $fast { 1 all; default ""; }
			limit_req_zone $slow zone=slow:1m rate=3r/s; limit_req_zone $fast zone=fast:1m rate=10r/s;
			server { %s location / { limit_req zone=slow burst=4 nodelay; limit_req zone=fast burst=5 nodelay; } }`,
	},
	{
		name: "header or address", headers: [][2]string{{}, {"X-Api-Key", "k1"}, {"X-Api-Key", "k2"}},
		http: `map $http_x_api_key $client { "" $binary_remote_addr; default $http_x_api_key; } limit_req_zone $client zone=a:1m rate=5r/s;
			server { %s location / { limit_req zone=a burst=4 nodelay; } }`,
	},
	{
		name: "header and address", headers: [][2]string{{}, {"X-Device", "d1"}, {"X-Device", "d2"}},
		http: `limit_req_zone $binary_remote_addr$http_x_device zone=a:1m rate=5r/s; server { %s location / { limit_req zone=a burst=4 nodelay; } }`,
	},
	{
		name: "plans", headers: [][2]string{{}, {"X-Plan", "premium"}, {"X-Plan", "other"}},
		http: `map $http_x_plan $key { premium ""; default $binary_remote_addr; } limit_req_zone $key zone=a:1m rate=5r/s;
			server { %s location /a/ { limit_req zone=a burst=2 nodelay; } }`, paths: []string{"/a/1", "/b"},
	},
	{
		name: "methods", methods: []string{"GET", "POST", "PUT"},
		http: `map $request_method $key { POST $binary_remote_addr; PUT ""; default everyone; } limit_req_zone $key zone=a:1m rate=5r/s;
			server { %s location / { limit_req zone=a burst=5 nodelay; } }`,
	},
}

// tolerance is by how much the times of nginx's log may differ from those by which it counts: that clock is a coarse
// one of 4 ms or 10, which is late on a virtual machine that gets no processor when it should tick.
const tolerance = 40 * time.Millisecond

// atTheEdge reports whether a limit that lets a request pass would have denied it a little earlier.
func atTheEdge(l engine.Limit) bool {
	queue := l.Limit.Burst // of a token_bucket, how many pass at once
	if l.Limit.Algorithm == stint.TokenBucket {
		queue--
	}
	return l.Decision.ResetAfter+tolerance > time.Duration(queue)*l.Limit.Window.Length()/time.Duration(l.Limit.Max)
}

// TestImportNginx sends the same requests to nginx, with its limits, and at the same instants to an engine with the
// imported rules: both decide the same.
func TestImportNginx(t *testing.T) {
	t.Parallel()
	type trial struct {
		text, log string
		all       []*sent
	}
	trials := make([]trial, len(imported))
	var asking sync.WaitGroup // all nginx at once: most of the time, they wait
	for i, c := range imported {
		dir, address := t.TempDir(), freeAddress(t)
		const main = "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr crit;\nevents {}\nhttp {\n" +
			"    log_format decisions '$http_x_number $msec $request_time $limit_req_status';\n    access_log decisions.log decisions;\n" +
			"    client_body_temp_path body;\n    proxy_temp_path proxy;\n    fastcgi_temp_path fastcgi;\n    uwsgi_temp_path uwsgi;\n    scgi_temp_path scgi;\n    %s\n}\n"
		config := filepath.Join(dir, "nginx.conf")
		write(t, config, fmt.Sprintf(main, fmt.Sprintf(c.http, "listen "+address+";")))
		report, err := importer.Import("nginx", importer.Options{Files: []string{config}})
		if err != nil {
			t.Fatal(err)
		}
		if len(report.Missing) != c.missing {
			t.Fatalf("%s: the import reports %v", c.name, report.Missing)
		}
		startProxy(t, address, exec.Command(tool(t, "nginx"), "-e", "stderr", "-p", dir, "-c", config))
		trials[i] = trial{report.Text, filepath.Join(dir, "decisions.log"), nginxTraffic(c.paths, c.methods, c.headers, c.froms)}
		asking.Go(func() { askNginx(t, "http://"+address, trials[i].all) })
	}
	asking.Wait()
	for i, c := range imported {
		t.Run(c.name, func(t *testing.T) {
			readDecisions(t, trials[i].log, trials[i].all)
			replayImported(t, trials[i].text, trials[i].all, c.slow && c.missing == 0)
		})
	}
}

// nginxTraffic returns requests of a few clients.
func nginxTraffic(paths, methods []string, headers [][2]string, froms []string) []*sent {
	r := rand.New(rand.NewPCG(1, uint64(len(paths)+len(headers)))) //nolint:gosec // the same each time
	if paths == nil {
		paths = []string{"/", "/a", "/a/b"}
	}
	if methods == nil {
		methods = []string{"GET"}
	}
	if headers == nil {
		headers = [][2]string{{}}
	}
	if froms == nil {
		froms = []string{"127.0.0.2", "127.0.0.3"}
	}
	out := make([]*sent, 300)
	for i := range out {
		out[i] = &sent{number: i, from: froms[r.IntN(len(froms))], path: paths[r.IntN(len(paths))], method: methods[r.IntN(len(methods))], header: headers[r.IntN(len(headers))]}
	}
	return out
}

// askNginx sends the requests: some at once, some after a while, because nginx has only the real clock.
func askNginx(t *testing.T, url string, all []*sent) {
	t.Helper()
	r := rand.New(rand.NewPCG(2, 2)) //nolint:gosec // the same each time
	clients := map[string]*client{}
	for _, q := range all {
		if clients[q.from] == nil {
			clients[q.from] = newClient(t, q.from, url)
		}
	}
	var wg sync.WaitGroup
	pause := time.NewTimer(0)
	for _, q := range all {
		<-pause.C
		wait := time.Duration(r.IntN(12)) * time.Millisecond
		if r.IntN(25) == 0 {
			wait = time.Duration(r.IntN(400)) * time.Millisecond
		}
		pause.Reset(wait)
		wg.Go(func() {
			headers := []string{"X-Number", strconv.Itoa(q.number)}
			if q.header[0] != "" {
				headers = append(headers, q.header[0], q.header[1])
			}
			clients[q.from].do(t, q.method, q.path, "", headers...)
		})
	}
	wg.Wait()
}

// readDecisions reads from the log of nginx what it made of each request.
func readDecisions(t *testing.T, file string, all []*sent) {
	t.Helper()
	var lines []string
	wait.Nil(t, "the whole log", func() error {
		text, err := os.ReadFile(file)
		lines = strings.Split(strings.TrimSpace(string(text)), "\n")
		if err == nil && len(lines) < len(all) {
			err = fmt.Errorf("the log has %d lines of %d", len(lines), len(all))
		}
		return err
	})
	s := bufio.NewScanner(strings.NewReader(strings.Join(lines, "\n")))
	for s.Scan() {
		f := strings.Fields(s.Text())
		if len(f) != 4 || f[0] == "-" {
			t.Fatalf("the log has %q", s.Text())
		}
		n, err := strconv.Atoi(f[0])
		if err != nil {
			t.Fatal(err)
		}
		ended, err := strconv.ParseInt(strings.Replace(f[1], ".", "", 1), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		took, err := strconv.ParseInt(strings.Replace(f[2], ".", "", 1), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		q := all[n]
		q.took, q.outcome = time.Duration(took)*time.Millisecond, f[3]
		q.at = time.Duration(ended)*time.Millisecond - q.took
	}
}

// replayImported asks an engine with the rules at the same instants, and compares.
func replayImported(t *testing.T, text string, all []*sent, holds bool) {
	t.Helper()
	f, err := rule.ParseTOML("imported", []byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	rules, err := rule.Compile(f)
	if err != nil {
		t.Fatal(err)
	}
	proxy := netip.MustParseAddr("10.0.0.1")
	rank := map[string]int{"PASSED": 0, "DELAYED": 1, "REJECTED": 2}
	slices.SortStableFunc(all, func(a, b *sent) int { // of those of one instant, nginx has let the first ones pass
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(rank[a.outcome], rank[b.outcome]), cmp.Compare(a.number, b.number))
	})
	counts, unsure := map[string]int{}, 0
	synctest.Test(t, func(t *testing.T) {
		who, err := identity.New(identity.Options{TrustedProxies: []netip.Prefix{netip.PrefixFrom(proxy, 32)}})
		if err != nil {
			t.Fatal(err)
		}
		defer who.Close()
		store, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		e, err := engine.New(engine.Options{Store: store, Rules: rules, Identity: who})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now().Add(time.Second).Add(-all[0].at)
		var wg sync.WaitGroup
		var mu sync.Mutex
		left := map[string][]time.Duration{} // when Stint lets requests of a client go
		for _, q := range all {
			counts[q.outcome]++
			if d := time.Until(begin.Add(q.at)); d > 0 {
				<-time.After(d)
			}
			h := http.Header{"X-Forwarded-For": {q.from}}
			if q.header[0] != "" {
				h.Set(q.header[0], q.header[1])
			}
			r := engine.Request{Method: q.method, Path: q.path, Headers: h, Peer: proxy}
			v, err := e.Peek(t.Context(), r)
			passes := q.outcome != "REJECTED"
			if err != nil {
				t.Fatal(err)
			}
			if passes && !v.Outcome.Passed() && v.RetryAfter <= tolerance {
				unsure++
				<-time.After(v.RetryAfter)
				if v, err = e.Peek(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
			if !passes && v.Outcome.Passed() && slices.ContainsFunc(v.Limits, atTheEdge) {
				unsure++
				continue // as nginx, charge nothing
			}
			if v.Outcome.Passed() != passes {
				t.Errorf("%s %s of %s %v: nginx says %s, and Stint %v at %v: %v", q.method, q.path, q.from, q.header, q.outcome, v.Outcome, q.at-all[0].at, v.Limits)
			}
			if !passes {
				continue
			}
			wg.Go(func() {
				if _, err := e.Decide(t.Context(), r); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				left[q.from] = append(left[q.from], time.Since(begin))
			})
			synctest.Wait()
		}
		wg.Wait()
		for from, ours := range left {
			if !holds {
				break
			}
			var nginx []time.Duration
			for _, q := range all {
				if q.from == from && q.outcome != "REJECTED" {
					nginx = append(nginx, q.at+q.took)
				}
			}
			slices.Sort(nginx)
			for i := range ours {
				if off := nginx[i] - ours[i]; off < -2*tolerance || off > time.Second {
					t.Errorf("request %d of %s: nginx lets it go %v later than Stint", i, from, off)
				}
			}
		}
	})
	t.Logf("%v, and too close to tell: %d", counts, unsure)
	if unsure > len(all)/10 {
		t.Errorf("%d of %d requests are too close to tell", unsure, len(all))
	}
	if counts["REJECTED"] < 5 || counts["PASSED"]+counts["DELAYED"] < 5 {
		t.Errorf("the requests show nothing: %v", counts)
	}
}
