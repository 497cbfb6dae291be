package daemon

import (
	_ "embed"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/stintdev/stint/httplimit"
)

const demoFile = "demo.toml"

var (
	//go:embed demo.toml
	demoText string
	//go:embed demo-rules.toml
	demoRules []byte
)

// demo is the setup of a daemon without a configuration: rules to try, and an upstream
// that echoes requests.
type demo struct {
	listener net.Listener
	server   http.Server
}

func newDemo() (*demo, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &demo{listener: l, server: http.Server{Handler: httplimit.Echo(), ReadHeaderTimeout: 10 * time.Second}}, nil
}

// text returns the config file of the demo.
func (d *demo) text() []byte {
	return fmt.Appendf(nil, "%s\ndatabase = %q\n[[upstreams]]\ntargets = [%q]\n", demoText, inMemoryDatabase, "http://"+d.listener.Addr().String())
}

// serve serves the upstream until stop is called.
func (d *demo) serve() { _ = d.server.Serve(d.listener) }

func (d *demo) stop() {
	_ = d.server.Close()
	_ = d.listener.Close() // if it was never served
}

func (*demo) help(of *Daemon) string {
	gateway, api, admin := of.URL(gatewayListener), of.URL(httpListener), of.URL(adminListener)
	sign, use := "with the token in this file, which is new at every start:\n\n                "+of.token, "export STINT_TOKEN_FILE="+quote(of.token)
	if of.token == "" {
		sign, use = "with the value of server.admin.token", "export STINT_TOKEN=... # the value of server.admin.token"
	}
	from := "Only this machine can reach it."
	var open []string
	for _, s := range of.servers {
		if isOpen(s.listener) {
			open = append(open, s.name+" at "+s.listener.Addr().String())
		}
	}
	if len(open) > 0 {
		from = "Other machines can reach " + strings.Join(open, " and ") + "."
	}
	return fmt.Sprintf(`
Stint is running a demo: counters and rules are in memory, and an upstream echoes requests.
%[7]s

  dashboard     %[3]s   sign in %[4]s

  gateway       %[1]s   in front of the upstream
  decision API  %[2]s
  metrics       %[3]s/metrics

Try

  # five requests in ten seconds pass, then 429 with the reason
  for i in 1 2 3 4 5 6 7; do curl -s -o /dev/null -w '%%{http_code} ' %[1]s/search/cats; done; echo
  curl -i %[1]s/search/cats

  # clients that keep trying to log in are banned, for longer each time
  for i in 1 2 3 4 5 6 7; do curl -s -o /dev/null -w '%%{http_code} ' -X POST %[1]s/login; done; echo

  # ask for a decision without sending the request
  curl -s %[2]s/v1/check -d '{"method":"GET","path":"/search/cats","ip":"192.0.2.1"}' -H 'Content-Type: application/json'
  %[5]s check /search/cats --ip 192.0.2.1 --http %[2]s

  # the command line can do what the dashboard can
  %[6]s
  %[5]s rules list --server %[3]s
  %[5]s usage ip:127.0.0.1 --server %[3]s

Next: %[5]s serve --config stint.toml, with your own rules; stint.example.toml has every
setting. Press Ctrl-C to stop.
`, gateway, api, admin, sign, of.program, use, from)
}

// quote quotes a text for the shell, if that is needed.
func quote(text string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@%", r)
	}
	if !strings.ContainsFunc(text, func(r rune) bool { return !plain(r) }) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
