package testredis

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testserver"
)

// TLSServer is a server with TLS only. Its certificate is for 127.0.0.1 and localhost,
// from an authority that is created for the test. All files are in PEM.
type TLSServer struct {
	*Server
	CAFile            string // the authority's certificate
	CertFile, KeyFile string // of a client; Do uses them
}

// StartTLS is [Start] for a server with TLS. Clients need no certificate, unless args
// contain --tls-auth-clients yes.
func StartTLS(t testing.TB, args ...string) *TLSServer {
	t.Helper()
	return testserver.Own(t, func(g *testserver.Group) (*TLSServer, error) { return newTLS(g, args) })
}

// URL returns the server's address, as in rediss://127.0.0.1:12345.
func (s *TLSServer) URL() string { return "rediss://" + s.Addr() }

func newTLS(g *testserver.Group, args []string) (*TLSServer, error) {
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	caFile := filepath.Join(g.Dir, "ca.crt")
	if err := writePEM(caFile, "CERTIFICATE", ca.cert.Raw); err != nil {
		return nil, err
	}
	serverCert, serverKey, err := ca.issue(g.Dir, "server", x509.ExtKeyUsageServerAuth)
	if err != nil {
		return nil, err
	}
	clientCert, clientKey, err := ca.issue(g.Dir, "client", x509.ExtKeyUsageClientAuth)
	if err != nil {
		return nil, err
	}
	client, err := tls.LoadX509KeyPair(clientCert, clientKey)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{
		RootCAs:      x509.NewCertPool(),
		Certificates: []tls.Certificate{client},
		ServerName:   testserver.Host,
		MinVersion:   tls.VersionTLS12,
	}
	config.RootCAs.AddCert(ca.cert)

	server, err := start(g, spec{tls: config, args: append([]string{
		"--tls-ca-cert-file", caFile, "--tls-cert-file", serverCert, "--tls-key-file", serverKey,
		"--tls-auth-clients", "optional",
	}, args...)})
	if err != nil {
		return nil, err
	}
	return &TLSServer{Server: server, CAFile: caFile, CertFile: clientCert, KeyFile: clientKey}, nil
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// template returns a certificate without usages. It is valid until 2100, so that no
// clock matters.
func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes([]byte(name)), // only has to be distinct
		Subject:      pkix.Name{CommonName: "testredis " + name},
		NotBefore:    time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:     time.Date(2100, time.January, 1, 0, 0, 0, 0, time.UTC),
	}
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	c := template("authority")
	c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{cert, key}, nil
}

// issue writes a certificate and its key to dir and returns the files.
func (a *authority) issue(dir, name string, use x509.ExtKeyUsage) (certFile, keyFile string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	c := template(name)
	c.KeyUsage = x509.KeyUsageDigitalSignature
	c.ExtKeyUsage = []x509.ExtKeyUsage{use}
	c.IPAddresses = []net.IP{net.ParseIP(testserver.Host)}
	c.DNSNames = []string{"localhost"}
	certDER, err := x509.CreateCertificate(rand.Reader, c, a.cert, key.Public(), a.key)
	if err != nil {
		return "", "", err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", err
	}
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	if err := writePEM(certFile, "CERTIFICATE", certDER); err != nil {
		return "", "", err
	}
	return certFile, keyFile, writePEM(keyFile, "PRIVATE KEY", keyDER)
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
