package daemon

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/internal/daemon/envoyenv"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// The names of listeners.
const (
	gatewayListener = "gateway"
	httpListener    = "http"
	grpcListener    = "grpc"
	adminListener   = "admin"
	regionListener  = "region"
	debugListener   = "debug"
	metricsListener = "metrics"
)

// door is a listener and its name.
type door struct {
	name string
	*Listener
}

// path returns the name of the door's settings.
func (d door) path() string {
	switch d.name {
	case regionListener:
		return "region.listener"
	case debugListener, metricsListener:
		return "envoy." + d.name
	}
	return "server." + d.name
}

// isGRPC reports whether only gRPC is spoken at the door.
func (d door) isGRPC() bool { return d.name == grpcListener || d.name == regionListener }

// doors returns the listeners, in the order in which they are opened, except that of other regions and those for
// the operators of Envoy.
func (s *Server) doors() []door {
	return []door{{gatewayListener, &s.Gateway}, {httpListener, &s.HTTP.Listener}, {grpcListener, &s.GRPC.Listener}, {adminListener, &s.Admin.Listener}}
}

func (k *checker) checkListeners() {
	c := k.config
	c.credentials.tls = map[string]*tls.Config{}
	var before []door
	for _, l := range slices.Concat(c.Server.doors(), []door{c.Region.door()}, c.Envoy.doors()) {
		path := l.path()
		if l.name != grpcListener || !strings.HasPrefix(l.Address, unixPrefix) {
			k.checkAddress(path, l.Address)
		}
		if i := slices.IndexFunc(before, func(o door) bool { return clash(o.Address, l.Address) }); i >= 0 {
			k.Refuse(path+".address", l.Address, "a different address: "+before[i].path()+" uses "+before[i].Address, "")
		}
		before = append(before, l)
		switch {
		case l.TLSCert != "" && l.TLSKey != "":
			k.checkTLS(l)
		case l.TLSCert != "":
			k.Add(path+".tls_cert", "needs tls_key, the file with its key", "")
		case l.TLSKey != "":
			k.Add(path+".tls_key", "needs tls_cert, the file with the certificate", "")
		case l.TLSClientCA != "":
			k.Add(path+".tls_client_ca", "needs tls_cert and tls_key: clients present certificates only over TLS", "")
		}
		if l.TLSClientSAN != "" && l.TLSClientCA == "" {
			k.Add(path+".tls_client_san", "needs tls_client_ca: without it, clients present no certificates", "")
		}
		if l.ProxyProtocol && l.isGRPC() {
			k.Add(path+".proxy_protocol", "is not supported here: the gRPC service does not use the client address", "")
		}
		if l.ProxyProtocol && len(c.Identity.TrustedProxies) == 0 {
			k.Add(path+".proxy_protocol", "needs identity.trusted_proxies, the proxies that may use it", "")
		}
	}
	if a := &c.Server.Admin; a.Address != "" && !k.has("server.admin.address") && !envoyenv.IsLoopback(a.Address) && a.TLSCert == "" && !a.Insecure {
		k.Refuse("server.admin.address", a.Address,
			"a loopback address, such as 127.0.0.1:9090, or server.admin.tls_cert, or server.admin.insecure = true", "")
	}
	k.checkToken()
	k.checkOIDC()
	c.credentials.tokens = map[string]tokens{}
	k.readTokens(httpListener, &c.Server.HTTP)
	k.readTokens(grpcListener, &c.Server.GRPC)
}

// clash reports whether two addresses cannot be listened on at the same time.
func clash(a, b string) bool {
	host, port, err := net.SplitHostPort(a)
	other, same, _ := net.SplitHostPort(b)
	return err == nil && port == same && port != "0" && (host == other || isAny(host) || isAny(other))
}

// isAny reports whether a host means all addresses of this machine.
func isAny(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "" || err == nil && a.IsUnspecified()
}

// checkToken reads the administrator's token, which clients send in a header.
func (k *checker) checkToken() {
	a := &k.config.Server.Admin
	token := k.readSecret("server.admin.token", a.Token, a.TokenFile)
	k.config.credentials.adminToken = token
	if token != "" && !fitToken(token) {
		name := "server.admin.token"
		if a.TokenFile != "" {
			name += "_file"
		}
		k.Add(name, wantToken, "")
	}
}

func (k *checker) checkAddress(path, address string) {
	if address == "" {
		return
	}
	_, port, err := net.SplitHostPort(address)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || strconv.FormatUint(n, 10) != port {
		k.Refuse(path+".address", address, `host:port, such as 127.0.0.1:8080, :8080 for all addresses, or "" to disable it`, "")
	}
}

// checkTLS reads a certificate and its key, and the certificate authorities of clients.
func (k *checker) checkTLS(l door) {
	c, path := k.config, l.path()
	cert, err := c.readNamed(l.TLSCert)
	if err != nil {
		k.refuseFile(path+".tls_cert", l.TLSCert, err)
	}
	key, keyErr := c.readNamed(l.TLSKey)
	if keyErr != nil {
		k.refuseFile(path+".tls_key", l.TLSKey, keyErr)
	}
	for i := range 2 {
		c.named[len(c.named)-1-i].other = true
	}
	clients := k.readClientCA(l)
	if err != nil || keyErr != nil {
		return
	}
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		k.Refuse(path+".tls_cert", l.TLSCert, "a certificate in PEM whose key is in tls_key: "+err.Error(), "")
		return
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}}
	if !l.isGRPC() {
		t.NextProtos = append(t.NextProtos, "http/1.1")
	}
	if clients != nil {
		t.ClientCAs, t.ClientAuth = clients, tls.RequireAndVerifyClientCert
		if l.TLSClientSAN != "" {
			t.VerifyConnection = func(s tls.ConnectionState) error { return s.PeerCertificates[0].VerifyHostname(l.TLSClientSAN) }
		}
	}
	c.credentials.tls[l.name] = t
}

// readClientCA returns nil if clients need no certificate, or if there is a problem.
func (k *checker) readClientCA(l door) *x509.CertPool {
	if l.TLSClientCA == "" {
		return nil
	}
	path := l.path() + ".tls_client_ca"
	text, err := k.config.readNamed(l.TLSClientCA)
	k.config.named[len(k.config.named)-1].other = true
	if err != nil {
		k.refuseFile(path, l.TLSClientCA, err)
		return nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(text)) {
		k.Refuse(path, l.TLSClientCA, "a file with certificates in PEM", "")
		return nil
	}
	return pool
}

// tlsPointer is the TLS configuration of a listener, or nil. A reload replaces it.
type tlsPointer struct{ atomic.Pointer[tls.Config] }

// config returns a configuration that uses the current value for each handshake.
func (p *tlsPointer) config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return p.Load(), nil },
	}
}

// replace replaces it, unless that would turn TLS on or off, which needs a restart.
func (p *tlsPointer) replace(next *tls.Config) {
	if next != nil && p.Load() != nil {
		p.Store(next)
	}
}

// routeSettings are the settings of the fields of a route, and functions that clear a
// field that is invalid.
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

// checkUpstreams lets package httplimit check each route, again and again without the
// field that was invalid, until it finds no more problems.
func (k *checker) checkUpstreams() {
	routes := k.config.routes()
	for i, r := range routes {
		path := strict.Item("upstreams", i)
		if c := k.config.Upstreams[i].Case; c != "" {
			k.oneOf(path+".case", c, string(rule.ExactCase), string(rule.IgnoreCase))
		}
		k.checkTargets(path, r.Targets)
		r.Targets = slices.Repeat([]string{"http://localhost"}, len(r.Targets)) // to check their number only
		for invalid := tryRoute(r); invalid != nil; invalid = tryRoute(r) {
			setting, known := routeSettings[invalid.Field]
			k.Refuse(path+setting.name, invalid.Value, invalid.Want, "")
			if !known {
				break
			}
			setting.clear(&r)
		}
		if slices.ContainsFunc(routes[:i], func(other httplimit.Route) bool { return samePlace(&routes[i], &other) }) {
			k.Add(path, "has the same host and path_prefix as another upstream, want each only once", "")
		}
	}
}

// samePlace reports whether two routes are for the same host and prefix.
func samePlace(a, b *httplimit.Route) bool {
	p, q := cmp.Or(a.Prefix, "/"), cmp.Or(b.Prefix, "/")
	return a.Host == b.Host && (p == q || (a.IgnoreCase || b.IgnoreCase) && rule.FoldCase(p) == rule.FoldCase(q))
}

func (k *checker) checkTargets(path string, targets []string) {
	seen := map[string]bool{}
	for j, t := range targets {
		item := strict.Item(path+".targets", j)
		if invalid := tryRoute(httplimit.Route{Targets: []string{t}}); invalid != nil {
			k.Refuse(item, URL(t).String(), invalid.Want, "") // it may contain a password
		} else if seen[t] {
			k.Refuse(item, t, "each target only once", "")
		}
		seen[t] = true
	}
}

// tryRoute returns the first problem of a route, or nil.
func tryRoute(r httplimit.Route) (invalid *stint.InvalidError) {
	_, err := httplimit.NewGateway(httplimit.GatewayOptions{Engine: new(engine.Engine), Routes: []httplimit.Route{r}})
	errors.As(err, &invalid)
	return invalid
}

// checkCatalog checks the settings of the database, without connecting to it.
func (k *checker) checkCatalog() {
	s, c := &k.config.Server, &k.config.Server.Catalog
	if s.Database == "" && s.ReadReplica != "" {
		k.Add("server.database_replica", "is set without server.database: want the URL of the database that it is a replica of", "")
	}
	if s.Database != "" {
		if db, err := k.config.OpenCatalog(nil); err != nil { // which does not connect
			k.refuseDatabase(err)
		} else {
			_ = db.Close()
		}
		if k.named && !k.config.Empty() {
			k.Add(k.config.firstSection(), "cannot be in this file if server.database is set: it is in the database", "stint apply -f FILE copies it there")
		}
	}
	k.between("server.catalog.poll", c.Poll, 100*time.Millisecond, 10*time.Minute)
	k.between("server.catalog.cache_ttl", c.CacheTTL, time.Second, 24*time.Hour)
	k.atLeast("server.catalog.cache_size", c.CacheSize, 1000)
	if len(c.Node) > longestName || !utf8.ValidString(c.Node) {
		k.Refuse("server.catalog.node", c.Node, "at most 255 bytes of UTF-8", "")
	}
}

// checkRecord checks the settings of the record.
func (k *checker) checkRecord() {
	r := &k.config.Server.Record
	k.atLeast("server.record.sample_every", r.SampleEvery, 0)
	k.atLeast("server.record.max_rate", r.MaxRate, 0)
	const smallest = 16 << 20 // so that there is room for roll-ups
	if r.MaxSize != 0 && r.MaxSize < smallest {
		k.Refuse("server.record.max_size", strconv.FormatInt(r.MaxSize, 10), strconv.Itoa(smallest)+" or more, or 0 for no limit", "")
	}
	if r.MinFree < 0 {
		k.Refuse("server.record.min_free", strconv.FormatInt(r.MinFree, 10), "a number of bytes, or 0 for none", "")
	}
	k.oneOf("server.record.ip", r.IP, keepIP, truncateIP, hashIP)
	k.oneOf("server.record.path", r.Path, redactPath, keepPath, offPath)
	k.config.credentials.ipKey = k.readSecret("server.record.ip_key", r.IPKey, r.IPKeyFile)
	const shortest = 16
	if n := len(k.config.credentials.ipKey); r.IP == hashIP && n < shortest && !k.has("server.record.ip_key") {
		k.Add("server.record.ip_key", "has "+strconv.Itoa(n)+" bytes, want at least 16 to hash addresses", "")
	}
	k.between("server.record.retention", r.Retention, 24*time.Hour, 10*365*24*time.Hour)
	k.atLeast("server.record.spool_size", r.SpoolSize, 1<<20)
	if r.ArchiveYears < 0 || r.ArchiveYears > maxYears {
		k.Refuse("server.record.archive_years", strconv.Itoa(r.ArchiveYears), "1 to 100, or 0 to keep months forever", "")
	} else if r.ArchiveYears > 0 && time.Duration(r.Retention) > years(r.ArchiveYears) {
		k.Add("server.record.archive_years", strconv.Itoa(r.ArchiveYears)+": want at least server.record.retention, which is "+r.Retention.String(), "")
	}
	if len(r.Region) > longestName || !utf8.ValidString(r.Region) {
		k.Refuse("server.record.region", r.Region, "at most 255 bytes of UTF-8", "")
	}
	if a := string(r.Archive); a != "" && a != archiveNone && !strings.HasPrefix(a, "file:///") && !strings.HasPrefix(a, "s3://") {
		k.Refuse("server.record.archive", r.Archive.String(), `file:///path, s3://bucket/prefix, none, or ""`, "")
	}
}

const longestName, maxYears = 255, 100

func years(n int) time.Duration { return time.Duration(n) * 366 * 24 * time.Hour }

// refuseDatabase adds a problem with the URL, which is not shown if it may contain a
// password.
func (k *checker) refuseDatabase(err error) {
	if invalid := new(stint.InvalidError); errors.As(err, &invalid) && invalid.Value == "" {
		k.Add(databaseSetting(err), "want "+invalid.Want, "")
	} else {
		k.refuseErr(databaseSetting(err), err)
	}
}

// firstSection returns the first section of the catalog in the file.
func (c *Config) firstSection() string {
	for _, s := range []struct {
		name string
		n    int
	}{
		{"rules", len(c.Rules)},
		{"tiers", len(c.Tiers)},
		{"tenants", len(c.Tenants)},
		{"users", len(c.Users)},
		{"api_keys", len(c.APIKeys)},
		{"exemptions", len(c.Exemptions)},
		{"bans", len(c.Bans)},
	} {
		if s.n > 0 {
			return s.name
		}
	}
	return ""
}
