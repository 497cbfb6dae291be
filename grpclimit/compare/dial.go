package compare

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Dial returns a client of the service at an address: host:port, tls://host:port, or unix:/path. With TLS, the
// certificate of the server must be of an authority in the file ca, or of one of the system if that is empty.
func Dial(address, ca string) (client rlsv3.RateLimitServiceClient, closer func() error, err error) {
	host, secure := strings.CutPrefix(address, "tls://")
	target := "passthrough:///" + host
	if strings.HasPrefix(address, "unix:") {
		target = address
	} else if _, _, err := net.SplitHostPort(host); err != nil {
		return nil, nil, fmt.Errorf("%q: want host:port, tls://host:port or unix:/path", address)
	}
	c := insecure.NewCredentials()
	if secure {
		config := &tls.Config{MinVersion: tls.VersionTLS12}
		if ca != "" {
			text, err := os.ReadFile(ca)
			if err != nil {
				return nil, nil, err
			}
			config.RootCAs = x509.NewCertPool()
			if !config.RootCAs.AppendCertsFromPEM(text) {
				return nil, nil, fmt.Errorf("%s has no certificate in PEM", ca)
			}
		}
		c = credentials.NewTLS(config)
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(c))
	if err != nil {
		return nil, nil, err
	}
	return rlsv3.NewRateLimitServiceClient(conn), conn.Close, nil
}
