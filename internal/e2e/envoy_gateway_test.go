//go:build gateway

package e2e_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/testserver"
)

// TestEnvoyGateway runs Stint as the rate limit service of Envoy Gateway: in its container's
// environment, with what its translator makes of policies, from its xDS server.
func TestEnvoyGateway(t *testing.T) {
	buildProgram(t)
	text, err := os.ReadFile("gateway/resources.yaml")
	if err != nil {
		t.Fatal(err)
	}
	g := startGateway(t)
	g.use(t, string(text))
	stint := g.startStint(t)
	for _, c := range []struct {
		what, route, headers, address string
		tokens                        uint64 // what the response costs
		passed                        int    // of 8 requests
	}{
		{"a header and a user", "shop", "x-plan=free x-user=ann", "203.0.113.1", 0, 3},
		{"another user", "shop", "x-plan=free x-user=bob", "203.0.113.1", 0, 3},
		{"another plan", "shop", "x-plan=gold x-user=ann", "203.0.113.1", 0, 8},
		{"no user", "shop", "x-plan=free", "203.0.113.1", 0, 8},
		{"each of a network", "shop", "", "192.0.2.7", 0, 2},
		{"another of it", "shop", "", "192.0.2.8", 0, 2},
		{"a network", "shop", "", "198.51.100.7", 0, 3},
		{"another of it", "shop", "", "198.51.100.8", 0, 0},
		{"a shared limit", "left", "", "203.0.113.1", 0, 4},
		{"of another route", "right", "", "203.0.113.1", 0, 0},
		{"what a response has cost", "chat", "x-user=ann", "203.0.113.1", 30, 4},
		{"only in shadow", "trial", "", "203.0.113.1", 0, 8},
	} {
		passed := 0
		for range 8 {
			if g.send(t, stint, c.route, c.headers, c.address, c.tokens) {
				passed++
			}
		}
		if passed != c.passed {
			t.Errorf("%s: %d requests pass, want %d", c.what, passed, c.passed)
		}
	}

	g.use(t, strings.Replace(string(text), "requests: 3, unit: Hour", "requests: 5, unit: Hour", 1))
	g.wait(t, func() error {
		if !g.send(t, stint, "shop", "x-plan=free x-user=ann", "203.0.113.1", 0) {
			return errors.New("the new limit does not apply")
		}
		return nil
	})
}

// gateway is the part of Envoy Gateway that is in internal/e2e/gateway.
type gateway struct {
	*process
	dir    string // of its certificates and files
	input  io.WriteCloser
	files  int
	limits map[string][]*filterv3.RateLimitPerRoute // by route, what Envoy gets
}

// startGateway starts it. Its xDS server has a fixed port.
func startGateway(t *testing.T) *gateway {
	t.Helper()
	const port = ":18001"
	l, err := net.Listen("tcp", port)
	if err != nil {
		t.Fatalf("the xDS server of Envoy Gateway needs its port: %v", err)
	}
	l.Close()
	path := filepath.Join(t.TempDir(), "gateway")
	if out, err := exec.Command("go", "build", "-C", "gateway", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	g := &gateway{dir: t.TempDir()}
	certs := filepath.Join(g.dir, "certs/envoy-gateway")
	if err := os.MkdirAll(certs, 0o700); err != nil {
		t.Fatal(err)
	}
	testserver.WritePair(t, certs+"/tls.crt", certs+"/tls.key", "localhost")
	if err := os.Symlink("tls.crt", certs+"/ca.crt"); err != nil { // it is signed by itself
		t.Fatal(err)
	}
	cmd := exec.Command(path, g.dir, testredis.Start(t).Addr())
	if g.input, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	g.process = run(t, cmd)
	return g
}

// read waits for a file that it writes, and reads its JSON.
func (g *gateway) read(t *testing.T, path string, into any) {
	t.Helper()
	var text []byte
	g.wait(t, func() (err error) {
		text, err = os.ReadFile(path)
		return err
	})
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

// use gives it resources.
func (g *gateway) use(t *testing.T, resources string) {
	t.Helper()
	g.files++
	path := filepath.Join(g.dir, "resources"+strconv.Itoa(g.files)+".yaml")
	if err := os.WriteFile(path, []byte(resources), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(g.input, path+"\n"); err != nil {
		t.Fatal(err)
	}
	var routes map[string][]json.RawMessage
	g.read(t, path+".limits", &routes)
	g.limits = map[string][]*filterv3.RateLimitPerRoute{}
	for route, texts := range routes {
		name := strings.Split(route, "/")[2] // httproute/default/shop/rule/0/match/0/*
		for _, text := range texts {
			limit := new(filterv3.RateLimitPerRoute)
			if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, limit); err != nil {
				t.Fatal(err)
			}
			g.limits[name] = append(g.limits[name], limit)
		}
	}
}

// startStint starts Stint as the container of the rate limit service, and waits until it is ready.
func (g *gateway) startStint(t *testing.T) *peer {
	t.Helper()
	var container struct {
		Command        []string
		Env            []struct{ Name, Value string }
		ReadinessProbe struct{ HTTPGet struct{ Path string } }
	}
	g.read(t, filepath.Join(g.dir, "container.json"), &container)
	command := filepath.Join(t.TempDir(), container.Command[0])
	if err := os.MkdirAll(filepath.Dir(command), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program.path, command); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(command, container.Command[1:]...)
	// What the pod would have: its addresses, the name of the service, and the mounted secret.
	here := strings.NewReplacer("/certs/", filepath.Join(g.dir, "certs/envoy-gateway")+"/", "envoy-gateway:", "localhost:", ":19001", freeAddress(t))
	for _, v := range container.Env {
		cmd.Env = append(cmd.Env, v.Name+"="+here.Replace(v.Value))
	}
	api, target := freeAddress(t), freeAddress(t)
	_, apiPort, _ := net.SplitHostPort(api)
	_, targetPort, _ := net.SplitHostPort(target)
	cmd.Env = append(cmd.Env, "PORT="+apiPort, "GRPC_PORT="+targetPort,
		"TMPDIR=/dev/null",              // its filesystem is read-only
		"STINT_SERVER_STORE_BUDGET=30s") // a slow machine must not make a node decide on its own
	p := run(t, cmd)
	p.wait(t, func() error {
		answer, err := http.Get("http://" + api + container.ReadinessProbe.HTTPGet.Path)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return errors.New(answer.Status)
		}
		return nil
	})
	ca, err := os.ReadFile(filepath.Join(g.dir, "certs/envoy-gateway/ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(ca)
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS13})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	stint := &peer{rlsv3.NewRateLimitServiceClient(conn), "stint", conn, p}
	p.wait(t, func() error { // with FORCE_START_WITHOUT_INITIAL_CONFIG it is ready without limits
		_, err := stint.try(t, short(t, "none: a=b"))
		return err
	})
	return stint
}

// send does what Envoy does with a request, and reports whether it passes.
func (g *gateway) send(t *testing.T, stint *peer, route, headers, address string, tokens uint64) bool {
	t.Helper()
	r := arrival{headers: map[string]string{}, address: netip.MustParseAddr(address), tokens: tokens}
	for header := range strings.FieldsSeq(headers) {
		name, value, _ := strings.Cut(header, "=")
		r.headers[name] = value
	}
	if len(g.limits[route]) == 0 {
		t.Fatalf("the route %s has no limits", route)
	}
	passed := true
	for _, done := range []bool{false, true} { // before the request, and after the response
		for _, limit := range g.limits[route] {
			q := &rlsv3.RateLimitRequest{Domain: limit.GetDomain()}
			for _, l := range limit.GetRateLimits() {
				if d := r.describe(t, l); d != nil && l.GetApplyOnStreamDone() == done {
					q.Descriptors = append(q.Descriptors, d)
				}
			}
			if passed && len(q.GetDescriptors()) > 0 {
				a := stint.ask(t, q)
				passed = done || a.GetOverallCode() == rlsv3.RateLimitResponse_OK
			}
		}
	}
	return passed
}
