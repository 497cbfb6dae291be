package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/daemon"
)

// newHealth asks a server on this machine whether it is ready, as containers do that have no
// other program. It needs no token.
func newHealth(t *terminal) *cobra.Command {
	var f sourceFlags
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "health",
		Short: "Ask a server on this machine whether it is ready",
		Long: `Ask a server on this machine whether it is ready, for health checks of containers. It needs no
token. The same settings as those of "stint serve" say where the server listens: the admin
API is asked or, if it is disabled or wants certificates of clients, the decision API.

The exit code is 1 if the server is not ready or does not answer in time.`,
		Example: `  stint health
  stint health --config stint.toml --timeout 1s
  stint health --set server.admin.address=127.0.0.1:9091 -o json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return usageError(c, "--timeout %v: want more than 0", timeout)
			}
			config, err := f.load(t, true)
			if err != nil {
				return err
			}
			url, err := healthURL(config)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			h, err := askHealth(ctx, url)
			if err != nil {
				h = admin.Health{Status: notReady, Checks: []admin.Check{{Name: "server", Status: notReady, Detail: clean(err.Error())}}}
			}
			return answer(t.print(h, nil, func() error {
				fmt.Fprintln(t.out, strings.ReplaceAll(h.Status, "_", " "))
				for _, check := range h.Checks {
					if check.Status != "ok" {
						fmt.Fprintf(t.out, "%s: %s\n", check.Name, clean(cmp.Or(check.Detail, check.Status)))
					}
				}
				return nil
			}), h.Status != notReady)
		},
	}
	f.add(c)
	f.addEnvoy(c)
	c.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "how long to wait for the answer")
	addOutput(c)
	return c
}

const notReady = "not_ready"

// healthURL returns where a server with this configuration says whether it is ready.
func healthURL(c *daemon.Config) (string, error) {
	for _, l := range []daemon.Listener{c.Server.Admin.Listener, c.Server.HTTP.Listener} {
		switch {
		case l.Address == "" || l.TLSClientCA != "":
		case l.TLSCert != "":
			return "https://" + local(l.Address) + "/readyz", nil
		default:
			return "http://" + local(l.Address) + "/readyz", nil
		}
	}
	err := errors.New("the admin API and the decision API are disabled, or want certificates of clients")
	return "", advice{err, "server.admin.address or server.http.address without tls_client_ca; or check that the port accepts connections"}
}

// askHealth asks a server on this machine. Who answers need not prove its name: nothing secret
// is sent, and the certificate is for the name that others call it by.
func askHealth(ctx context.Context, url string) (h admin.Health, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return h, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12} //nolint:gosec // as above
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	if err != nil {
		return h, err
	}
	defer response.Body.Close()
	const maxResponse = 1 << 20
	if json.NewDecoder(io.LimitReader(response.Body, maxResponse)).Decode(&h) != nil || h.Status == "" {
		return h, fmt.Errorf("%s is not Stint: it answers %s", url, response.Status)
	}
	return h, nil
}
