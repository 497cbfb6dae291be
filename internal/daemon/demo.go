package daemon

import (
	"cmp"
	_ "embed"
	"fmt"
	"net"
	"net/http"
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

// demo is what a daemon without any configuration has: rules to try, and an upstream
// that echoes.
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

// text is the config file of the demo.
func (d *demo) text() []byte {
	return fmt.Appendf(nil, "%s\ndatabase = %q\n[[upstreams]]\ntargets = [%q]\n", demoText, inMemoryDatabase, "http://"+d.listener.Addr().String())
}

// serve echoes until stop is called.
func (d *demo) serve() { _ = d.server.Serve(d.listener) }

func (d *demo) stop() {
	_ = d.server.Close()
	_ = d.listener.Close() // if it was never served
}

func (*demo) help(of *Daemon) string {
	gateway, api, admin := of.URL(gatewayListener), of.URL(httpListener), of.URL(adminListener)
	return fmt.Sprintf(`
Stint is running: counters in memory, rules to try in a database in memory, and an
upstream that echoes.

  dashboard     %[3]s   sign in with this token, which is made anew at every start:

                %[4]s

  gateway       %[1]s   what it serves comes from the upstream
  decision API  %[2]s
  metrics       %[3]s/metrics

Try

  # five in ten seconds, and then 429 with the reason
  for i in 1 2 3 4 5 6 7; do curl -s -o /dev/null -w '%%{http_code} ' %[1]s/search/cats; done; echo
  curl -i %[1]s/search/cats

  # who keeps on trying to log in is banned, for longer each time
  for i in 1 2 3 4 5 6 7; do curl -s -o /dev/null -w '%%{http_code} ' -X POST %[1]s/login; done; echo

  # ask without a request
  curl -s %[2]s/v1/check -d '{"method":"GET","path":"/search/cats","ip":"192.0.2.1"}' -H 'Content-Type: application/json'
  %[5]s check /search/cats --ip 192.0.2.1 --http %[2]s

  # what the dashboard can do, the command line can
  export STINT_TOKEN=%[4]s
  %[5]s rules list --server %[3]s
  %[5]s usage ip:127.0.0.1 --server %[3]s

To go on: %[5]s serve --config stint.toml, with rules of your own; stint.example.toml
has every setting. Ctrl-C stops.
`, gateway, api, admin, cmp.Or(of.token, "that of server.admin.token"), of.program)
}
