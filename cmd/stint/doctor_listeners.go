package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/daemon"
)

// ports checks the addresses that a server listens on.
func (d *doctor) ports(ctx context.Context, c *daemon.Config) {
	for _, l := range []struct {
		name    string
		at      daemon.Listener
		served  bool
		answers string // a path that only Stint answers
	}{
		{"http", c.Server.HTTP.Listener, true, "/healthz"},
		{"gateway", c.Server.Gateway, len(c.Upstreams) > 0, ""},
		{"grpc", c.Server.GRPC.Listener, c.ServesGRPC(), ""},
		{"admin", c.Server.Admin.Listener, true, "/healthz"},
	} {
		setting := "server." + l.name + ".address"
		if l.at.Address == "" || !l.served || strings.HasPrefix(l.at.Address, "unix:") {
			continue
		}
		var config net.ListenConfig
		listener, err := config.Listen(ctx, "tcp", l.at.Address)
		if err == nil {
			_ = listener.Close()
			d.note("ports", findOK, setting+": "+l.at.Address+" is free", "")
			continue
		}
		if health, ok := stintAt(ctx, l.at, l.answers); ok {
			d.note("ports", findOK, setting+": Stint is already running at "+l.at.Address, "")
			if l.name == "admin" && !d.named {
				d.health(&health)
				d.serverFlags.server = "http://" + local(l.at.Address)
				d.server(ctx)
			}
			continue
		}
		status := findFail
		if l.answers == "" { // it may be Stint
			status = findWarn
		}
		d.note("ports", status, setting+": "+err.Error(), "another address, or stop the program that uses this one")
	}
}

// guards checks who can use the listeners that give decisions.
func (d *doctor) guards(c *daemon.Config) {
	for _, l := range []struct {
		name   string
		at     *daemon.Guarded
		served bool
	}{{"http", &c.Server.HTTP, true}, {"grpc", &c.Server.GRPC, c.ServesGRPC()}} {
		if setting := "server." + l.name; l.served && l.at.Open() {
			d.note("ports", findWarn, setting+".address: other machines can ask for decisions at "+l.at.Address+" without a token",
				setting+".tokens or "+setting+".tls_client_ca; or a loopback address, or a firewall")
		}
	}
}

// local returns the address to reach a listener from this machine.
func local(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}

// stintAt returns the health of the Stint that answers at a listener, if one does.
func stintAt(ctx context.Context, l daemon.Listener, path string) (health daemon.Health, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if path == "" || l.TLSCert != "" {
		return health, false // the certificate may be for another name
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+local(l.Address)+path, nil)
	if err != nil {
		return health, false
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	if err != nil {
		return health, false
	}
	defer response.Body.Close()
	const maxResponse = 1 << 20
	err = json.NewDecoder(io.LimitReader(response.Body, maxResponse)).Decode(&health)
	return health, err == nil && health.Status != ""
}
