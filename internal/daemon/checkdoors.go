package daemon

import (
	"cmp"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/internal/strict"
)

// The names of listeners.
const (
	gatewayListener = "gateway"
	httpListener    = "http"
	adminListener   = "admin"
)

// door is a listener with its name.
type door struct {
	name string
	*Listener
}

// doors are all there may be, in the order in which they open.
func (s *Server) doors() []door {
	return []door{{gatewayListener, &s.Gateway}, {httpListener, &s.HTTP}, {adminListener, &s.Admin.Listener}}
}

func (k *checker) checkListeners() {
	c := k.config
	c.credentials.pairs = map[string]*tls.Certificate{}
	taken := map[string]string{}
	for _, l := range c.Server.doors() {
		path := "server." + l.name
		k.checkAddress(path, l.Address)
		if other := taken[l.Address]; other != "" {
			k.refuse(path+".address", l.Address, "another: it is that of "+other, "")
		} else if _, port, _ := net.SplitHostPort(l.Address); port != "" && port != "0" {
			taken[l.Address] = path
		}
		switch {
		case l.TLSCert != "" && l.TLSKey != "":
			k.checkPair(l)
		case l.TLSCert != "":
			k.add(path+".tls_cert", "want tls_key, too: the file with its key", "")
		case l.TLSKey != "":
			k.add(path+".tls_key", "want tls_cert, too: the file with the certificate", "")
		}
		if l.ProxyProtocol && len(c.Identity.TrustedProxies) == 0 {
			k.add(path+".proxy_protocol", "want identity.trusted_proxies, too: those who may speak it", "")
		}
	}
	if a := &c.Server.Admin; a.Address != "" && !k.has("server.admin.address") && !isLoopback(a.Address) && a.TLSCert == "" && !a.Insecure {
		k.refuse("server.admin.address", a.Address,
			"one that only this machine can reach, such as 127.0.0.1:9090, or server.admin.tls_cert, or server.admin.insecure = true", "")
	}
}

func (k *checker) checkAddress(path, address string) {
	if address == "" {
		return
	}
	_, port, err := net.SplitHostPort(address)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || strconv.FormatUint(n, 10) != port {
		k.refuse(path+".address", address, "host:port, such as 127.0.0.1:8080, :8080 for all addresses, or nothing", "")
	}
}

// isLoopback reports whether only this machine can reach the address.
func isLoopback(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// checkPair reads a certificate and its key.
func (k *checker) checkPair(l door) {
	c, path := k.config, "server."+l.name
	cert, err := c.readNamed(l.TLSCert)
	if err != nil {
		k.refuseFile(path+".tls_cert", l.TLSCert, err)
	}
	key, keyErr := c.readNamed(l.TLSKey)
	if keyErr != nil {
		k.refuseFile(path+".tls_key", l.TLSKey, keyErr)
	}
	for i := range 2 {
		c.named[len(c.named)-1-i].tls = true
	}
	if err != nil || keyErr != nil {
		return
	}
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		k.refuse(path+".tls_cert", l.TLSCert, "a certificate in PEM, with tls_key the file of its key: "+err.Error(), "")
		return
	}
	c.credentials.pairs[l.name] = &pair
}

// routeSettings are the settings behind the fields of a route, and how one is made
// right.
var routeSettings = map[string]struct {
	name  string
	clear func(*httplimit.Route)
}{
	"Host":       {".host", func(r *httplimit.Route) { r.Host = "" }},
	"Prefix":     {".path_prefix", func(r *httplimit.Route) { r.Prefix = "" }},
	"Targets":    {".targets", func(r *httplimit.Route) { r.Targets = []string{"http://localhost"} }},
	"Cost":       {".cost", func(r *httplimit.Route) { r.Cost = 0 }},
	"Check.Path": {".check.path", func(r *httplimit.Route) { r.Check = nil }},
}

// checkUpstreams has package httplimit check routes, each by itself, and again without
// what was wrong, until it finds no more.
func (k *checker) checkUpstreams() {
	seen := map[[2]string]bool{}
	for i, r := range k.config.routes() {
		path := strict.Item("upstreams", i)
		place := [2]string{r.Host, cmp.Or(r.Prefix, "/")}
		k.checkTargets(path, r.Targets)
		r.Targets = slices.Repeat([]string{"http://localhost"}, len(r.Targets)) // of which the number may be wrong
		for invalid := tryRoute(r); invalid != nil; invalid = tryRoute(r) {
			setting, known := routeSettings[invalid.Field]
			k.refuse(path+setting.name, invalid.Value, invalid.Want, "")
			if !known {
				break
			}
			setting.clear(&r)
		}
		if seen[place] {
			k.add(path, "has the host and path_prefix of another, want each only once", "")
		}
		seen[place] = true
	}
}

func (k *checker) checkTargets(path string, targets []string) {
	seen := map[string]bool{}
	for j, t := range targets {
		item := strict.Item(path+".targets", j)
		if invalid := tryRoute(httplimit.Route{Targets: []string{t}}); invalid != nil {
			k.refuse(item, URL(t).String(), invalid.Want, "") // it may hold a password
		} else if seen[t] {
			k.refuse(item, t, "it only once", "")
		}
		seen[t] = true
	}
}

// tryRoute tells the first thing that is wrong with a route.
func tryRoute(r httplimit.Route) *stint.InvalidError {
	_, err := httplimit.NewGateway(httplimit.GatewayOptions{Engine: new(engine.Engine), Routes: []httplimit.Route{r}})
	invalid := new(stint.InvalidError)
	if errors.As(err, &invalid) {
		return invalid
	}
	return nil
}
