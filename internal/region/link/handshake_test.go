package link_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint/internal/region/gossip"
	"github.com/stintdev/stint/internal/region/link"
	"github.com/stintdev/stint/internal/region/link/linkpb"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestHandshake connects, and looks at what both sides know.
func TestHandshake(t *testing.T) {
	t.Parallel()
	s, addr := serve(t, nil)
	servers := make(chan gossip.Sender, 1)
	l := connected(t, open(t, addr, func(o *link.Options) {
		slices.Reverse(o.Regions) // the order does not matter
		o.Connected = func(region string, server gossip.Sender) {
			if region != "us" {
				t.Errorf("connected to %s", region)
			}
			servers <- server
		}
	}))
	if got, want := <-servers, identity("us").Self; got != want || l.State().Server != want {
		t.Errorf("connected to %v, %v; want %v", got, l.State().Server, want)
	}
	if peers := s.Peers(); len(peers) != 1 || peers[0].Sender != identity("eu").Self || peers[0].Since.IsZero() {
		t.Errorf("%+v", peers)
	}
	l.Close()
	wait.For(t, "the server has no peer", func() bool { return len(s.Peers()) == 0 })
	if err := l.Send(batch(1)); err == nil || l.State().Up {
		t.Error("a closed link is up")
	}
}

// TestRefused opens links that must be refused, and looks at the reason on both sides.
func TestRefused(t *testing.T) {
	t.Parallel()
	asia := link.Region{Name: "asia", Weight: 0}
	for name, c := range map[string]struct {
		reason link.Reason
		says   string
		client func(*link.Options)
	}{
		"secret":  {link.WrongSecret, "another secret than region us has", func(o *link.Options) { o.Secrets = secrets("another secret...") }},
		"unknown": {link.UnknownRegion, `region "asia" is not one of the peers of region us`, func(o *link.Options) { o.Self.Region, o.Regions = "asia", append(o.Regions, asia) }},
		"own":     {link.OwnRegion, "region us is this one", func(o *link.Options) { o.Self.Region, o.Region = "us", "eu" }},
		"names":   {link.OtherNames, "region eu knows [asia=0 eu=40 us=60], and region us knows [eu=40 us=60]", func(o *link.Options) { o.Regions = append(o.Regions, asia) }},
		"weights": {link.OtherWeights, "region eu has the weights [eu=50 us=50], and region us has [eu=40 us=60]", func(o *link.Options) {
			o.Regions = []link.Region{{Name: "us", Weight: 50}, {Name: "eu", Weight: 50}}
		}},
		"central": {link.OtherCentral, `for region eu the central region is "eu", and for region us ""`, func(o *link.Options) { o.Central = "eu" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log lines
			s, addr := serve(t, func(o *link.ServerOptions) { o.Log = log.logger() })
			l := open(t, addr, func(o *link.Options) {
				o.Connected = func(string, gossip.Sender) { t.Error("connected") }
				c.client(o)
			})
			wait.For(t, "it is refused several times", func() bool { return l.State().Refused >= 5 })
			if s := l.State(); s.Up || !strings.Contains(s.Why.Error(), c.says) {
				t.Errorf("%+v, want %s", s, c.says)
			}
			for r, n := range s.Refused() {
				if (n > 0) != (r == c.reason) {
					t.Errorf("%d refused with the reason %s, want %s", n, r, c.reason)
				}
			}
			// The first is logged at once, and further ones at most once a second.
			if n := log.count("reason=" + string(c.reason)); n < 1 || n > 3 {
				t.Errorf("%d lines about %d refusals", n, s.Refused()[c.reason])
			}
		})
	}
}

// TestHandshakesApart has many connections that say nothing: nodes of other regions connect all the same, and the
// oldest of the silent ones make room.
func TestHandshakesApart(t *testing.T) {
	t.Parallel()
	s, addr := serve(t, func(o *link.ServerOptions) { o.Patient() })
	first := dial(t, addr)
	for range link.MaxHandshakes {
		dial(t, addr) // until the test ends
	}
	if err := first.end(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the oldest handshake ends with %v", err)
	}
	r := login(t, addr)
	if n := len(s.Peers()); n != 1 {
		t.Errorf("%d nodes are connected; want 1", n)
	}
	for range link.MaxHandshakes {
		dial(t, addr)
	}
	do(t, r.Send(&linkpb.Frame{Kind: &linkpb.Frame_Ping{Ping: &linkpb.Ping{Id: 1}}}))
	for {
		f, err := r.Recv()
		do(t, err)
		if f.GetPong() != nil {
			break
		}
	}
}

// TestSecrets connects regions that are at different steps of replacing their secret: those that are one step apart
// accept each other, and others only by a secret that both have.
func TestSecrets(t *testing.T) {
	t.Parallel()
	const next = "fedcba9876543210"
	steps := []func() [][]byte{secrets(secret), secrets(secret, next), secrets(next, secret), secrets(next)}
	for here, mine := range steps {
		for there, theirs := range steps {
			s, addr := serve(t, func(o *link.ServerOptions) { o.Secrets = theirs })
			l := open(t, addr, func(o *link.Options) { o.Secrets = mine })
			if slices.ContainsFunc(theirs(), func(s []byte) bool { return string(s) == string(mine()[0]) }) {
				connected(t, l)
				continue
			}
			if max(here-there, there-here) == 1 {
				t.Errorf("step %d has to be accepted at step %d", here, there)
			}
			wait.For(t, "it is refused", func() bool { return s.Refused()[link.WrongSecret] > 0 })
			if l.State().Up {
				t.Errorf("step %d is accepted at step %d", here, there)
			}
		}
	}
	// They are read for each handshake.
	var current atomic.Pointer[func() [][]byte]
	current.Store(&steps[0])
	s, addr := serve(t, func(o *link.ServerOptions) { o.Secrets = steps[3] })
	l := open(t, addr, func(o *link.Options) { o.Secrets = func() [][]byte { return (*current.Load())() } })
	wait.For(t, "it is refused", func() bool { return s.Refused()[link.WrongSecret] > 0 })
	current.Store(&steps[2])
	connected(t, l)
}

// TestHellos says hello as no link does.
func TestHellos(t *testing.T) {
	t.Parallel()
	s, addr := serve(t, nil)
	good := func(challenge []byte, change func(*linkpb.Hello)) *linkpb.Sealed {
		m, err := identity("eu").Answer(challenge, change)
		do(t, err)
		return m
	}
	other := dial(t, addr)
	recorded := good(other.challenge, nil)
	for name, c := range map[string]struct {
		code  codes.Code
		hello func(challenge []byte) *linkpb.Sealed
	}{
		"newer":      {codes.FailedPrecondition, func(c []byte) *linkpb.Sealed { return good(c, func(m *linkpb.Hello) { m.Version = 2 }) }},
		"no version": {codes.FailedPrecondition, func(c []byte) *linkpb.Sealed { return good(c, func(m *linkpb.Hello) { m.Version = 0 }) }},
		"no node":    {codes.InvalidArgument, func(c []byte) *linkpb.Sealed { return good(c, func(m *linkpb.Hello) { m.Node = "" }) }},
		"no nonce":   {codes.InvalidArgument, func(c []byte) *linkpb.Sealed { return good(c, func(m *linkpb.Hello) { m.Nonce = nil }) }},
		"no region":  {codes.PermissionDenied, func(c []byte) *linkpb.Sealed { return good(c, func(m *linkpb.Hello) { m.Region = "" }) }},
		"no regions": {codes.FailedPrecondition, func(c []byte) *linkpb.Sealed { return good(c, func(m *linkpb.Hello) { m.Regions = nil }) }},
		"many": {codes.InvalidArgument, func(c []byte) *linkpb.Sealed {
			return good(c, func(m *linkpb.Hello) { m.Regions = slices.Repeat(m.GetRegions(), 40) })
		}},
		"replayed":      {codes.Unauthenticated, func([]byte) *linkpb.Sealed { return recorded }},
		"unsealed":      {codes.Unauthenticated, func(c []byte) *linkpb.Sealed { m := good(c, nil); m.Mac = nil; return m }},
		"cut seal":      {codes.Unauthenticated, func(c []byte) *linkpb.Sealed { m := good(c, nil); m.Mac = m.GetMac()[:31]; return m }},
		"changed":       {codes.Unauthenticated, func(c []byte) *linkpb.Sealed { m := good(c, nil); m.Hello[3] ^= 1; return m }},
		"nothing":       {codes.Unauthenticated, func([]byte) *linkpb.Sealed { return new(linkpb.Sealed) }},
		"large":         {codes.InvalidArgument, func([]byte) *linkpb.Sealed { return &linkpb.Sealed{Hello: make([]byte, 100_000)} }},
		"as it must be": {codes.OK, func(c []byte) *linkpb.Sealed { return good(c, nil) }},
	} {
		r := dial(t, addr)
		if err := r.greet(t, c.hello(r.challenge)); status.Code(err) != c.code {
			t.Errorf("%s: %v, want %v", name, err, c.code)
		}
	}
	// On its own stream the recorded one is good.
	do(t, other.greet(t, recorded))

	r := dial(t, addr)
	do(t, r.Send(&linkpb.Frame{Kind: &linkpb.Frame_Ack{Ack: 1}}))
	if err := r.end(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no hello: %v", err)
	}
	if n := s.Refused(); n[link.NewerVersion] != 2 || n[link.WrongSecret] != 5 {
		t.Errorf("%v", n)
	}

	s, addr = serve(t, func(o *link.ServerOptions) { o.Hurry() })
	if err := dial(t, addr).end(); status.Code(err) != codes.DeadlineExceeded || s.Refused()[link.TooSlow] != 1 {
		t.Errorf("a client that says nothing: %v", err)
	}
}

// impostor is a server without the secret.
type impostor struct {
	linkpb.UnimplementedLinkServer
	welcome func(hello *linkpb.Sealed) *linkpb.Frame
}

func (i impostor) Open(s grpc.BidiStreamingServer[linkpb.Frame, linkpb.Frame]) error {
	if err := s.Send(&linkpb.Frame{Kind: &linkpb.Frame_Challenge{Challenge: make([]byte, 32)}}); err != nil {
		return err
	}
	f, err := s.Recv()
	if err != nil {
		return err
	}
	if err := s.Send(i.welcome(f.GetHello())); err != nil {
		return err
	}
	_, err = s.Recv()
	return err
}

// TestImpostors connects to servers that are not what they seem.
func TestImpostors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		says    string
		welcome func(hello *linkpb.Sealed) *linkpb.Frame
	}{
		"reflects": {"another secret", func(m *linkpb.Sealed) *linkpb.Frame {
			return &linkpb.Frame{Kind: &linkpb.Frame_Welcome{Welcome: m}}
		}},
		"no seal": {"another secret", func(m *linkpb.Sealed) *linkpb.Frame {
			return &linkpb.Frame{Kind: &linkpb.Frame_Welcome{Welcome: &linkpb.Sealed{Hello: m.GetHello()}}}
		}},
		"something else": {"another secret", func(*linkpb.Sealed) *linkpb.Frame { return &linkpb.Frame{Kind: &linkpb.Frame_Ack{Ack: 1}} }},
	} {
		server := grpc.NewServer()
		linkpb.RegisterLinkServer(server, impostor{welcome: c.welcome})
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		do(t, err)
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
		l := open(t, listener.Addr().String(), func(o *link.Options) {
			o.Connected = func(string, gossip.Sender) { t.Errorf("%s: connected", name) }
		})
		wait.For(t, name+" is noticed", func() bool { s := l.State(); return !s.Up && strings.Contains(s.Why.Error(), c.says) })
	}

	// Another region than was expected, with the secret.
	regions := slices.Concat(identity("eu").Regions, []link.Region{{Name: "asia"}})
	_, addr := serve(t, func(o *link.ServerOptions) { o.Regions = regions })
	l := open(t, addr, func(o *link.Options) { o.Regions, o.Region = regions, "asia" })
	wait.For(t, "the other region is noticed", func() bool { return strings.Contains(l.State().Why.Error(), `is region "us", want asia`) })
}

// authority issues certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func (a *authority) issue(t testing.TB, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	do(t, err)
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	do(t, err)
	leaf, err := x509.ParseCertificate(der)
	do(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func newAuthority(t testing.TB) (*authority, *x509.CertPool) {
	t.Helper()
	a := new(authority)
	c := a.issue(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "authority"}})
	a.certificate, a.key = c.Leaf, c.PrivateKey.(*ecdsa.PrivateKey)
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return a, pool
}

// TestTLS connects with certificates, with a secret, and with both.
func TestTLS(t *testing.T) {
	t.Parallel()
	ca, pool := newAuthority(t)
	other, _ := newAuthority(t)
	server := ca.issue(t, &x509.Certificate{IPAddresses: []net.IP{{127, 0, 0, 1}}})
	cn := &x509.Certificate{Subject: pkix.Name{CommonName: "eu"}}
	dns := &x509.Certificate{DNSNames: []string{"stint.example.com", "eu"}}
	us := &x509.Certificate{Subject: pkix.Name{CommonName: "us"}, DNSNames: []string{"us"}}
	one, none := secrets(secret), secrets()
	for name, c := range map[string]struct {
		auth           tls.ClientAuthType
		server, client func() [][]byte // secrets
		certificate    *tls.Certificate
		reason         link.Reason // or none
		says           string
	}{
		"common name":         {auth: tls.RequireAndVerifyClientCert, certificate: new(ca.issue(t, cn))},
		"DNS name":            {auth: tls.RequireAndVerifyClientCert, certificate: new(ca.issue(t, dns))},
		"another region's":    {auth: tls.RequireAndVerifyClientCert, certificate: new(ca.issue(t, us)), reason: link.WrongCertificate, says: "not for region eu"},
		"another authority's": {auth: tls.RequireAndVerifyClientCert, certificate: new(other.issue(t, cn)), says: "certificate"},
		"not verified":        {auth: tls.RequireAnyClientCert, certificate: new(ca.issue(t, cn)), reason: link.WrongSecret, says: "neither a secret nor a certificate"},
		"secret":              {server: one, client: one},
		"both":                {auth: tls.RequireAndVerifyClientCert, server: one, client: one, certificate: new(ca.issue(t, cn))},
		"both, another region's": {
			auth: tls.RequireAndVerifyClientCert, server: one, client: one, certificate: new(ca.issue(t, us)),
			reason: link.WrongCertificate, says: "not for region eu",
		},
		"a certificate, and no secret": {auth: tls.RequireAndVerifyClientCert, server: one, client: none, certificate: new(ca.issue(t, cn)), reason: link.WrongSecret, says: "another secret"},
		"a secret, and none there":     {server: none, client: one, reason: link.WrongSecret, says: "neither a secret nor a certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, addr := serve(t, func(o *link.ServerOptions) {
				o.Secrets = c.server
				o.TLS = &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: c.auth, ClientCAs: pool, MinVersion: tls.VersionTLS12}
			})
			l := open(t, addr, func(o *link.Options) {
				o.URL, o.Secrets = "https://"+addr, c.client
				config := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
				if c.certificate != nil {
					config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.certificate, nil }
				}
				o.TLS = func() *tls.Config { return config }
			})
			if c.says == "" {
				connected(t, l)
				return
			}
			wait.For(t, "it is refused", func() bool { s := l.State(); return !s.Up && strings.Contains(s.Why.Error(), c.says) })
			if c.reason != "" && s.Refused()[c.reason] == 0 {
				t.Errorf("%v, want %s", s.Refused(), c.reason)
			}
		})
	}
	// A server whose certificate is not trusted.
	_, addr := serve(t, func(o *link.ServerOptions) {
		o.TLS = &tls.Config{Certificates: []tls.Certificate{other.issue(t, &x509.Certificate{IPAddresses: []net.IP{{127, 0, 0, 1}}})}, MinVersion: tls.VersionTLS12}
	})
	l := open(t, addr, func(o *link.Options) {
		o.URL, o.TLS = "https://"+addr, func() *tls.Config { return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12} }
	})
	wait.For(t, "it is not trusted", func() bool { return strings.Contains(l.State().Why.Error(), "unknown authority") })
}
