package testredis_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testredis"
)

func TestTLS(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		cert bool   // whether the client shows one
		name string // of the server
		want string // what it answers to PING
	}{
		"no certificate":        {cert: false, name: "127.0.0.1", want: "+PONG\r\n"},
		"certificate":           {cert: true, name: "localhost", want: "+PONG\r\n"},
		"required, and there":   {args: []string{"--tls-auth-clients", "yes"}, cert: true, name: "localhost", want: "+PONG\r\n"},
		"required, and missing": {args: []string{"--tls-auth-clients", "yes"}, cert: false, name: "localhost"},
		"another name":          {cert: true, name: "example.com"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testredis.StartTLS(t, c.args...)
			if s.Do(t, "PING") != "PONG" || s.URL() != "rediss://"+s.Addr() {
				t.Errorf("the server at %s is not well", s.URL())
			}
			config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: c.name, MinVersion: tls.VersionTLS12}
			ca, err := os.ReadFile(s.CAFile)
			if err != nil || !config.RootCAs.AppendCertsFromPEM(ca) {
				t.Fatalf("%s: %v", s.CAFile, err)
			}
			if c.cert {
				cert, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
				if err != nil {
					t.Fatal(err)
				}
				config.Certificates = []tls.Certificate{cert}
			}
			conn, err := net.Dial("tcp", s.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if got, err := ping(t, conn, tls.Client(conn, config)); got != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}

			plain, err := net.Dial("tcp", s.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer plain.Close()
			if got, err := ping(t, plain, plain); strings.Contains(got, "PONG") {
				t.Errorf("without TLS: got %q, %v", got, err)
			}
		})
	}
}

// ping returns the reply to PING on a stream over conn.
func ping(t *testing.T, conn net.Conn, stream io.ReadWriter) (string, error) {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(stream, "PING\r\n"); err != nil {
		return "", err
	}
	b := make([]byte, 16)
	n, err := stream.Read(b)
	return string(b[:n]), err
}
