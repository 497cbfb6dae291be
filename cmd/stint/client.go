package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/kit/strict"
)

// The variables of commands that ask a server. They are no settings of one.
const (
	envServer    = "STINT_SERVER"
	envToken     = "STINT_TOKEN"
	envTokenFile = "STINT_TOKEN_FILE"
)

const defaultServer = "http://127.0.0.1:9090"

// settings is the environment without what is for commands only.
func (t *terminal) settings() []string {
	return slices.DeleteFunc(slices.Clone(t.environ), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == envServer || name == envToken || name == envTokenFile
	})
}

// serverFlags are the flags of commands that ask the admin API of a server.
type serverFlags struct{ server, tokenFile, caFile string }

func (f *serverFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.server, "server", "", "the admin API of a server, as a `URL` (default: $"+envServer+", or "+defaultServer+")")
	c.Flags().StringVar(&f.tokenFile, "token-file", "", "a `file` that holds the token (default: $"+envToken+" is the token, or $"+envTokenFile+" the file)")
	c.Flags().StringVar(&f.caFile, "ca-file", "", "a `file` with the certificates that vouch for the server, in PEM (default: those of the system)")
	for _, name := range []string{"token-file", "ca-file"} {
		_ = c.MarkFlagFilename(name) // it is there
	}
}

// client asks the admin API of a server.
type client struct {
	base  string // of the URL, without a slash at its end
	token string
	http  http.Client
}

// open returns a client. It reaches for nothing yet. Close it.
func (f *serverFlags) open(t *terminal) (*client, error) {
	given := cmp.Or(f.server, t.variable(envServer), defaultServer)
	u, err := url.Parse(given)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		if strings.Contains(given, "@") {
			given = "***" // it may hold a password
		}
		return nil, advice{fmt.Errorf("--server: %q, want the URL of an admin API", given), "--server " + defaultServer}
	}
	if u.User != nil {
		return nil, advice{errors.New("--server: a URL with a password or a token, want one without"), "--server " + u.Scheme + "://" + u.Host + ", and --token-file"}
	}
	a := &client{base: strings.TrimSuffix(given, "/")}
	if a.token, err = f.token(t); err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if f.caFile != "" {
		pem, err := os.ReadFile(f.caFile)
		if err != nil {
			return nil, advice{err, "--ca-file with a file that is there and can be read"}
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, advice{fmt.Errorf("--ca-file %s: it has no certificate in PEM", f.caFile), "--ca-file with a file that begins with -----BEGIN CERTIFICATE-----"}
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	transport.ResponseHeaderTimeout = time.Minute
	a.http.Transport = transport
	// A token goes to whom it was meant for.
	a.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return a, nil
}

func (a *client) close() { a.http.CloseIdleConnections() }

// token is what tells the server who asks. Empty: nothing does.
func (f *serverFlags) token(t *terminal) (string, error) {
	from, file := "--token-file", f.tokenFile
	text := ""
	if file == "" {
		if from, text = envToken, t.variable(envToken); text == "" {
			from, file = envTokenFile, t.variable(envTokenFile)
		}
	}
	if file != "" {
		const most = 4096
		opened, err := os.Open(file)
		if err != nil {
			return "", advice{fmt.Errorf("%s: %w", from, err), from + " with a file that is there and can be read"}
		}
		defer opened.Close()
		data, err := io.ReadAll(io.LimitReader(opened, most))
		if err != nil {
			return "", fmt.Errorf("%s: %w", from, err)
		}
		text = string(data)
	}
	text = strings.TrimSpace(text)
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) || file != "" && text == "" {
		return "", advice{fmt.Errorf("%s: want a token and nothing else", from), "stint tokens create, which prints one"}
	}
	return text, nil
}

// refused is what a server says of a request that it does not do.
type refused struct {
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Errors []struct {
		Field   string `json:"field"`
		Message string `json:"message"`
		Hint    string `json:"hint"`
	} `json:"errors"`
	Version int64 `json:"version"` // that was found, in place of the one that was meant
}

// Error implements error: a sentence, or a line for each field.
func (r *refused) Error() string {
	switch lines := r.lines(); len(lines) {
	case 0:
		return clean(cmp.Or(r.Detail, http.StatusText(r.Status)))
	case 1:
		return lines[0]
	default:
		return "there are problems:\n  " + strings.Join(lines, "\n  ")
	}
}

func (r *refused) lines() []string {
	var out []string
	for _, e := range r.Errors {
		line := e.Message
		if e.Field != "" {
			line = e.Field + ": " + line
		}
		if e.Hint != "" {
			line += "; " + e.Hint
		}
		out = append(out, clean(line))
	}
	return out
}

// problems are the same, for those who know where the fields stand.
func (r *refused) problems() strict.Problems {
	var out strict.Problems
	for _, e := range r.Errors {
		out = append(out, strict.Problem{Path: clean(e.Field), Message: clean(e.Message), Hint: clean(e.Hint)})
	}
	return out
}

// try is what to do about it.
func (r *refused) try(a *client) string {
	switch r.Status {
	case http.StatusUnauthorized:
		if a.token == "" {
			return "--token-file, $" + envToken + " or $" + envTokenFile + " with a token of the server; stint tokens create --config FILE makes one"
		}
		return "another token; stint tokens create --config FILE makes one"
	case http.StatusForbidden:
		return "a token with a role that may do this; stint tokens create --role"
	case http.StatusNotFound:
		return "the list, for what there is"
	case http.StatusConflict, http.StatusPreconditionFailed:
		if r.Version == 0 {
			return "stint status, which tells where rules are, and whether there is a record"
		}
		return "to look at how it is now; nothing was changed"
	case http.StatusBadRequest:
		return "correct what is said; --help tells what flags want"
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return "the same in a moment"
	}
	return "correct what is said; nothing was changed"
}

// call is a request of the admin API.
type call struct {
	method string // GET, unless set
	path   string // after /admin/v1, escaped
	query  url.Values
	match  *int64 // the version that is meant; 0 is whatever is there, as in a file
	body   any    // in JSON; nil: none
	kind   string // of the body, if it is not JSON
	into   any    // what is answered; nil: it does not matter
}

// most is how many bytes of an answer are read.
const most = 64 << 20

// do asks, and reads what is answered if all is well.
func (a *client) do(ctx context.Context, c call) error {
	const long = 2 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	answer, err := a.send(ctx, c)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, most))
	if err != nil {
		return advice{fmt.Errorf("%s: %w", a.base, err), "the same again"}
	}
	if c.into == nil {
		return nil
	}
	if err := json.Unmarshal(text, c.into); err != nil {
		return advice{fmt.Errorf("%s does not answer as Stint does: %w", a.base, err), "--server with the URL of an admin API, and a stint of its version"}
	}
	return nil
}

// send sends a request, and returns an answer that says that all is well.
func (a *client) send(ctx context.Context, c call) (*http.Response, error) {
	var body io.Reader
	if c.body != nil {
		var data bytes.Buffer
		if raw, ok := c.body.([]byte); ok {
			data.Write(raw)
		} else if err := json.NewEncoder(&data).Encode(c.body); err != nil {
			return nil, err
		}
		body = &data
	}
	to := a.base + "/admin/v1" + c.path
	if len(c.query) > 0 {
		to += "?" + c.query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, cmp.Or(c.method, http.MethodGet), to, body)
	if err != nil {
		return nil, advice{fmt.Errorf("--server: %w", err), "--server " + defaultServer}
	}
	if body != nil {
		r.Header.Set("Content-Type", cmp.Or(c.kind, "application/json"))
	}
	if a.token != "" {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	if c.match != nil && *c.match == 0 {
		r.Header.Set("If-Match", "*")
	} else if c.match != nil {
		r.Header.Set("If-Match", fmt.Sprintf("%q", strconv.FormatInt(*c.match, 10)))
	}
	answer, err := a.http.Do(r)
	if err != nil {
		return nil, advice{fmt.Errorf("the server cannot be reached: %w", err), "--server with the URL of an admin API, server.admin.address of \"stint config\"; or stint serve, to have a server"}
	}
	if answer.StatusCode/100 == 2 {
		return answer, nil
	}
	defer answer.Body.Close()
	return nil, a.refusal(answer)
}

// refusal reads what an answer says that is not well.
func (a *client) refusal(answer *http.Response) error {
	const most = 1 << 20
	p := refused{}
	text, err := io.ReadAll(io.LimitReader(answer.Body, most))
	if err != nil || !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/problem+json") || json.Unmarshal(text, &p) != nil {
		return advice{fmt.Errorf("%s answers %s, and not as an admin API does", a.base, clean(answer.Status)), "--server with the URL of an admin API, server.admin.address of \"stint config\""}
	}
	p.Status = answer.StatusCode
	return advice{&p, p.try(a)}
}

// copy writes what is answered as it is.
func (a *client) copy(ctx context.Context, c call, w io.Writer) error {
	answer, err := a.send(ctx, c)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(w, answer.Body); err != nil {
		return advice{fmt.Errorf("%s has ended it: %w", a.base, err), "the same again"}
	}
	return nil
}

// fetch asks anyone, and reads what is answered in JSON.
func fetch(r *http.Request, into any) error {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	const most = 1 << 20
	return json.NewDecoder(io.LimitReader(answer.Body, most)).Decode(into)
}

// errEnough ends a stream from within.
var errEnough = errors.New("enough")

// stream has each event of a stream looked at, until one of both ends it.
func (a *client) stream(ctx context.Context, c call, each func(event string, data []byte) error) error {
	const silent = time.Minute // servers say something each 15 seconds
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answer, err := a.send(ctx, c)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	watch := time.AfterFunc(silent, cancel)
	defer watch.Stop()
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 4<<20)
	event, data := "", []byte(nil)
	for lines.Scan() {
		watch.Reset(silent)
		switch name, value, _ := strings.Cut(lines.Text(), ":"); name {
		case "event":
			event = strings.TrimSpace(value)
		case "data":
			data = append(data, strings.TrimPrefix(value, " ")...)
		case "":
			if value == "" && len(data) > 0 { // and no comment
				if err := each(event, data); errors.Is(err, errEnough) {
					return nil
				} else if err != nil {
					return err
				}
				event, data = "", nil
			}
		}
	}
	return advice{fmt.Errorf("%s has ended it: %w", a.base, cmp.Or(lines.Err(), io.EOF)), "the same again"}
}

// eitherFlags are the flags of commands that ask a server, or, where a config file or a
// database is named, look there themselves.
type eitherFlags struct {
	databaseFlags
	serverFlags
}

func (f *eitherFlags) add(c *cobra.Command) {
	f.databaseFlags.add(c)
	f.serverFlags.add(c)
}

// remote returns a client, or nil where something else is named. Close it.
func (f *eitherFlags) remote(t *terminal) (*client, error) {
	here := ""
	switch {
	case f.path != "":
		here = "--config"
	case f.url != "":
		here = "--database"
	case len(f.sets) > 0:
		here = "--set"
	case f.envoyEnv:
		here = "--envoy-env"
	}
	switch {
	case here != "" && f.server != "":
		return nil, advice{fmt.Errorf("%s and --server: want one of them", here), "--server URL, to ask a server, or --config FILE, to look at a file or its database"}
	case f.server == "" && (here != "" || t.variable("STINT_CONFIG") != "" || t.variable("STINT_SERVER_DATABASE") != ""):
		return nil, nil
	}
	return f.open(t)
}
