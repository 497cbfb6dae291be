package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/kit/strict"
)

// Environment variables of commands that use a server. They are not settings.
const (
	envServer    = "STINT_SERVER"
	envToken     = "STINT_TOKEN"
	envTokenFile = "STINT_TOKEN_FILE"
	envHTTPToken = "STINT_HTTP_TOKEN" // of the decision API
)

const defaultServer = "http://127.0.0.1:9090"

// settings returns the environment without the variables that are only for commands.
func (t *terminal) settings() []string {
	return slices.DeleteFunc(slices.Clone(t.environ), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == envServer || name == envToken || name == envTokenFile || name == envHTTPToken
	})
}

// serverFlags are the flags of commands that use the admin API of a server.
type serverFlags struct{ server, tokenFile, caFile string }

func (f *serverFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.server, "server", "", "the `URL` of a server's admin API (default: $"+envServer+", or "+defaultServer+")")
	c.Flags().StringVar(&f.tokenFile, "token-file", "", "a `file` that contains the token (default: $"+envToken+" is the token, or $"+envTokenFile+" the file, or the one that a server on this machine has created)")
	c.Flags().StringVar(&f.caFile, "ca-file", "", "a `file` with the CA certificates to verify the server, in PEM (default: those of the system)")
	_, _ = c.MarkFlagFilename("token-file"), c.MarkFlagFilename("ca-file") // both exist
}

// serverCommand completes a command that uses the admin API of a server.
func serverCommand(t *terminal, c *cobra.Command, run func(c *cobra.Command, a *client, args []string) error) *cobra.Command {
	var f serverFlags
	f.add(c)
	if c.Args == nil {
		c.Args = noArgs
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		a, err := f.open(t)
		if err != nil {
			return err
		}
		defer a.close()
		return run(c, a, args)
	}
	return c
}

// queryCommand is serverCommand for commands that have -o.
func queryCommand(t *terminal, c *cobra.Command, run func(c *cobra.Command, a *client, args []string) error) *cobra.Command {
	addOutput(c)
	return serverCommand(t, c, run)
}

// client calls the admin API of a server.
type client struct {
	base  string // the URL, without a slash at the end
	token string
	http  http.Client
}

// open returns a client, which is to be closed. It does not connect yet.
func (f *serverFlags) open(t *terminal) (*client, error) {
	given := cmp.Or(f.server, t.variable(envServer), defaultServer)
	u, err := url.Parse(given)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		if strings.Contains(given, "@") {
			given = "***" // it may contain a password
		}
		return nil, advice{fmt.Errorf("--server: %q, want the URL of an admin API", given), "--server " + defaultServer}
	}
	if u.User != nil {
		return nil, advice{errors.New("--server: want a URL without a password or token"), "--server " + u.Scheme + "://" + u.Host + ", and --token-file"}
	}
	a := &client{base: strings.TrimSuffix(given, "/")}
	if a.token, err = f.token(t, given); err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if f.caFile != "" {
		pem, err := os.ReadFile(f.caFile)
		if err != nil {
			return nil, advice{err, "--ca-file with a file that exists and can be read"}
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, advice{fmt.Errorf("--ca-file %s: it has no certificate in PEM", f.caFile), "--ca-file with a file that starts with -----BEGIN CERTIFICATE-----"}
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	transport.ResponseHeaderTimeout = time.Minute
	a.http.Transport = transport
	// Another server must not get the token.
	a.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return a, nil
}

func (a *client) close() { a.http.CloseIdleConnections() }

// token returns the token to send to a server, or an empty text if there is none.
func (f *serverFlags) token(t *terminal, server string) (string, error) {
	from, file := "--token-file", f.tokenFile
	text := ""
	if file == "" {
		if from, text = envToken, t.variable(envToken); text == "" {
			from, file = envTokenFile, t.variable(envTokenFile)
		}
	}
	if text == "" && file == "" {
		from = "the token file of the server"
		file = daemon.TokenFile(t.environ, server)
	}
	if file != "" {
		return readToken(from, file)
	}
	return cleanToken(from, text)
}

// readToken returns the token in a file that from names.
func readToken(from, file string) (string, error) {
	opened, err := os.Open(file)
	if err != nil {
		return "", advice{fmt.Errorf("%s: %w", from, err), from + " with a file that exists and can be read"}
	}
	defer opened.Close()
	const maxToken = 4096
	data, err := io.ReadAll(io.LimitReader(opened, maxToken))
	if err != nil {
		return "", fmt.Errorf("%s: %w", from, err)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return "", errToken(from)
	}
	return cleanToken(from, string(data))
}

// cleanToken returns a token without the space around it.
func cleanToken(from, text string) (string, error) {
	text = strings.TrimSpace(text)
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errToken(from)
	}
	return text, nil
}

func errToken(from string) error {
	return advice{fmt.Errorf("%s: want a token and nothing else", from), "stint tokens create, which prints one"}
}

// problem is an error response of a server.
type problem struct {
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Errors []struct {
		Field   string `json:"field"`
		Message string `json:"message"`
		Hint    string `json:"hint"`
	} `json:"errors"`
	Version int64 `json:"version"` // on a conflict, the current version
}

// Error implements error: a sentence, or a line for each field.
func (p *problem) Error() string {
	switch lines := p.lines(); len(lines) {
	case 0:
		return clean(cmp.Or(p.Detail, http.StatusText(p.Status)))
	case 1:
		return lines[0]
	default:
		return "there are problems:\n  " + strings.Join(lines, "\n  ")
	}
}

func (p *problem) lines() []string {
	var out []string
	for _, e := range p.fields() {
		out = append(out, e.String())
	}
	return out
}

func (p *problem) fields() strict.Problems {
	var out strict.Problems
	for _, e := range p.Errors {
		out = append(out, strict.Problem{Path: clean(e.Field), Message: clean(e.Message), Hint: clean(e.Hint)})
	}
	return out
}

// hasStatus reports whether err is an error response with the status.
func hasStatus(err error, status int) bool {
	p := new(problem)
	return errors.As(err, &p) && p.Status == status
}

func (p *problem) hint(a *client) string {
	switch p.Status {
	case http.StatusUnauthorized:
		if a.token == "" {
			return "--token-file, $" + envToken + " or $" + envTokenFile + " with a token of the server; stint tokens create --config FILE creates one"
		}
		return "another token; stint tokens create --config FILE creates one"
	case http.StatusForbidden:
		return "a token with a role that permits this; stint tokens create --role"
	case http.StatusNotFound:
		return "the list command, to see what exists"
	case http.StatusConflict, http.StatusPreconditionFailed:
		if p.Version == 0 {
			return "stint status, to see where rules are stored and whether decisions are recorded"
		}
		return "the show command, to see the current version; nothing was changed"
	case http.StatusBadRequest:
		return "--help, to see what flags accept"
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if strings.Contains(p.Detail, acceptFlag) {
			return tryAccept
		}
		return "again in a moment"
	}
	return "correct the problem; nothing was changed"
}

// call is a request to the admin API.
type call struct {
	method      string // default GET
	path        string // after /admin/v1, escaped
	query       url.Values
	version     *int64 // for If-Match; 0 matches any
	body        any    // encoded as JSON; nil: none
	contentType string // of the body, if it is not JSON
	into        any    // the response is decoded into this; nil: it is ignored
}

// do sends a request, and decodes the response if it is a success.
func (a *client) do(ctx context.Context, c call) error {
	const timeout = 2 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	response, err := a.send(ctx, c)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	const maxResponse = 64 << 20
	text, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	if err != nil {
		return advice{fmt.Errorf("%s: %w", a.base, err), "the same command again"}
	}
	if c.into == nil {
		return nil
	}
	return a.decode(text, c.into)
}

func (a *client) decode(text []byte, into any) error {
	if err := json.Unmarshal(text, into); err != nil {
		return advice{fmt.Errorf("invalid response from %s: %w", a.base, err), "--server with the URL of an admin API, and the same version of stint as the server"}
	}
	return nil
}

// send sends a request and returns the response if it is a success.
func (a *client) send(ctx context.Context, c call) (*http.Response, error) {
	var body io.Reader
	if c.body != nil {
		data, err := json.Marshal(c.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(ctx, cmp.Or(c.method, http.MethodGet), a.address(c), body)
	if err != nil {
		return nil, advice{fmt.Errorf("--server: %w", err), "--server " + defaultServer}
	}
	if body != nil {
		r.Header.Set("Content-Type", cmp.Or(c.contentType, "application/json"))
	}
	if a.token != "" {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	if c.version != nil && *c.version == 0 {
		r.Header.Set("If-Match", "*")
	} else if c.version != nil {
		r.Header.Set("If-Match", fmt.Sprintf("%q", strconv.FormatInt(*c.version, 10)))
	}
	if r.Method != http.MethodGet {
		r.Header.Set(onceHeader, rand.Text())
	}
	response, err := a.repeatedly(r)
	if err != nil {
		return nil, advice{fmt.Errorf("cannot reach the server: %w", err), "--server with the URL of an admin API, server.admin.address in \"stint config\"; or stint serve, to start a server"}
	}
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	defer response.Body.Close()
	const maxProblem = 1 << 20
	p := problem{}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxProblem))
	if err != nil || !strings.HasPrefix(response.Header.Get("Content-Type"), "application/problem+json") || json.Unmarshal(text, &p) != nil {
		return nil, advice{fmt.Errorf("%s is not an admin API: it answers %s", a.base, clean(response.Status)), "--server with the URL of an admin API, server.admin.address in \"stint config\""}
	}
	p.Status = response.StatusCode
	return nil, advice{&p, p.hint(a)}
}

// copy writes the response as it is.
func (a *client) copy(ctx context.Context, c call, w io.Writer) error {
	response, err := a.send(ctx, c)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(w, response.Body); err != nil {
		return a.interrupted(err)
	}
	return nil
}

func (a *client) interrupted(err error) error {
	return advice{fmt.Errorf("%s closed the connection: %w", a.base, err), "the same command again"}
}

// errEnough ends a stream without an error.
var errEnough = errors.New("enough")

// stream calls each for the events of a stream. It returns nil when ctx is done.
func (a *client) stream(ctx context.Context, c call, each func(event string, data []byte) error) (err error) {
	const silence = time.Minute // servers send something every 15 seconds
	streaming, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() {
		if ctx.Err() != nil || errors.Is(err, errEnough) {
			err = nil
		}
	}()
	response, err := a.send(streaming, c)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	watchdog := time.AfterFunc(silence, cancel)
	defer watchdog.Stop()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 4<<20)
	event, data := "", []byte(nil)
	for lines.Scan() {
		watchdog.Reset(silence)
		switch name, value, _ := strings.Cut(lines.Text(), ":"); name {
		case "event":
			event = strings.TrimSpace(value)
		case "data":
			data = append(data, strings.TrimPrefix(value, " ")...)
		case "":
			if value == "" && len(data) > 0 { // not a comment
				if err := each(event, data); err != nil {
					return err
				}
				event, data = "", nil
			}
		}
	}
	return a.interrupted(cmp.Or(lines.Err(), io.EOF))
}

// pages iterates over a list of a server, which is read page by page. The parameter cursor
// continues it.
func pages[T any](ctx context.Context, a *client, path, cursor string, query url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		const page = 1000
		if n, err := strconv.Atoi(query.Get("limit")); err != nil || n > page {
			query.Set("limit", strconv.Itoa(page))
		}
		for {
			var list struct {
				Items []T    `json:"items"`
				Next  string `json:"next"`
			}
			if err := a.do(ctx, call{path: path, query: query, into: &list}); err != nil {
				yield(*new(T), err)
				return
			}
			for _, item := range list.Items {
				if !yield(item, nil) {
					return
				}
			}
			if list.Next == "" {
				return
			}
			query.Set(cursor, list.Next)
		}
	}
}

// gather returns a list of a server, up to a limit. A note says if there is more.
func gather[T any](ctx context.Context, t *terminal, a *client, path, cursor string, query url.Values, limit int) ([]T, error) {
	if limit < 0 {
		return nil, advice{fmt.Errorf("--limit %d: want 0, for all, or more", limit), "--limit 1000"}
	}
	all, more := []T{}, false
	err := t.waits("waiting for the server", func() error {
		for item, err := range pages[T](ctx, a, path, cursor, query) {
			if err != nil {
				return err
			}
			if more = limit > 0 && len(all) == limit; more {
				break
			}
			all = append(all, item)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if more {
		t.notes(fmt.Sprintf("there are more than %d: --limit 0 shows all", limit))
	}
	return all, nil
}

// items returns a list of a server that has only one page.
func items[T any](ctx context.Context, a *client, path string, query url.Values) ([]T, error) {
	var list struct {
		Items []T `json:"items"`
	}
	err := a.do(ctx, call{path: path, query: query, into: &list})
	return append([]T{}, list.Items...), err
}

func addLimit(c *cobra.Command, limit *int, standard int) {
	c.Flags().IntVar(limit, "limit", standard, "show at most this `number`; 0 shows all")
}

// parameters returns those of the names and values that have a value.
func parameters(namesAndValues ...string) url.Values {
	q := url.Values{}
	for i := 0; i < len(namesAndValues); i += 2 {
		if value := namesAndValues[i+1]; value != "" {
			q.Set(namesAndValues[i], value)
		}
	}
	return q
}

func dryRunParameter(dryRun bool) url.Values {
	if !dryRun {
		return nil
	}
	return url.Values{"dry_run": {"true"}}
}

// eitherFlags are the flags of commands that use a server, or read a config file or a
// database themselves.
type eitherFlags struct {
	databaseFlags
	serverFlags
}

func (f *eitherFlags) add(c *cobra.Command) {
	f.databaseFlags.add(c)
	f.serverFlags.add(c)
}

// run calls server, or database if a config file or a database is named.
func (f *eitherFlags) run(ctx context.Context, t *terminal, server func(*client) error, database func(*catalog.Catalog) error) error {
	a, err := f.remote(t)
	if err != nil {
		return err
	}
	if a == nil {
		return f.use(ctx, t, upToDate, database)
	}
	defer a.close()
	return server(a)
}

// remote returns a client, which is to be closed, or nil if a config file or a database is
// named.
func (f *eitherFlags) remote(t *terminal) (*client, error) {
	local := ""
	switch {
	case f.path != "":
		local = "--config"
	case f.url != "":
		local = "--database"
	case len(f.sets) > 0:
		local = "--set"
	case f.envoyEnv:
		local = "--envoy-env"
	}
	switch {
	case local != "" && f.server != "":
		return nil, advice{fmt.Errorf("%s and --server: want one of them", local), "--server URL, for a server, or --config FILE, for a file or its database"}
	case f.server == "" && (local != "" || t.variable("STINT_CONFIG") != "" || t.variable("STINT_SERVER_DATABASE") != ""):
		return nil, nil
	}
	return f.open(t)
}
