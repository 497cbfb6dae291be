package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/textproto"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// checkRequest is a request to decide, as the decision API takes it.
type checkRequest struct {
	Method  string            `json:"method,omitempty"`
	Path    string            `json:"path"`
	IP      string            `json:"ip,omitempty"`
	User    string            `json:"user,omitempty"`
	Tenant  string            `json:"tenant,omitempty"`
	APIKey  string            `json:"api_key,omitempty"`
	Tier    string            `json:"tier,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Cost    int64             `json:"cost,omitempty"`
	Peek    bool              `json:"peek,omitempty"`
}

func newCheck(t *terminal) *cobra.Command {
	var (
		f       sourceFlags
		q       checkRequest
		api     decisionAPI
		headers []string
		take    bool
	)
	c := &cobra.Command{
		Use:   "check PATH",
		Short: "Check whether a request would be allowed, and why",
		Long: `Check whether a request would be allowed, and why: by a running server or, with --config,
by a config file, with no requests counted yet.

The client is given by --user, --tenant, --api-key or --tier; without these, it is
identified by --ip and headers, like any client. The request is not counted, unless
--take is given. The exit code is 1 if it is denied.`,
		Example: `  stint check /search --user alice --config stint.toml
  stint check /search --ip 192.0.2.1 --http http://localhost:8080
  stint check /login --method POST -H 'X-App: mobile' --tier free -o json`,
		Args: wants(1, 1, "one PATH, such as /search"),
		RunE: func(c *cobra.Command, args []string) error {
			q.Path, q.Method, q.Peek = args[0], strings.ToUpper(q.Method), !take
			if err := q.addHeaders(headers); err != nil {
				return err
			}
			source, err := f.source(t)
			if err != nil {
				return err
			}
			switch remote := c.Flags().Changed("http"); {
			case remote && f.path != "":
				return advice{errors.New("--config and --http: want one of them"), "--config FILE, to ask a file, or --http URL, to ask a server"}
			case remote || source.Path == "":
				return checkServer(c.Context(), t, &q, &api)
			case take:
				return advice{errors.New("--take: a file has no counters"), "--take with --http URL"}
			}
			return checkFile(c.Context(), t, &q, source)
		},
	}
	f.add(c)
	c.Flags().StringVarP(&q.Method, "method", "X", http.MethodGet, "the `method`")
	q.add(c, &headers)
	c.Flags().StringVar(&api.url, "http", "http://localhost:8080", "the `URL` of the decision API of a running server")
	c.Flags().StringVar(&api.tokenFile, "http-token-file", "", "a `file` that contains a token of server.http.tokens (default: $"+envHTTPToken+" is the token, if it needs one)")
	_ = c.MarkFlagFilename("http-token-file") // it exists
	c.Flags().BoolVar(&take, "take", false, "count the request")
	addOutput(c)
	return c
}

// add adds the flags that describe the client and the request.
func (q *checkRequest) add(c *cobra.Command, headers *[]string) {
	c.Flags().StringVar(&q.IP, "ip", "", "the client's `address`")
	c.Flags().StringVar(&q.User, "user", "", "the `user`")
	c.Flags().StringVar(&q.Tenant, "tenant", "", "the `tenant`")
	c.Flags().StringVar(&q.APIKey, "api-key", "", "the `id` of an API key, without its secret")
	c.Flags().StringVar(&q.Tier, "tier", "", "the `tier`, instead of the user's")
	c.Flags().StringArrayVarP(headers, "header", "H", nil, "a `header`, as Name: value; can be repeated")
	c.Flags().Int64Var(&q.Cost, "cost", 0, "the cost of the request in `units`, instead of what rules say")
}

// addHeaders adds headers that are written as Name: value.
func (q *checkRequest) addHeaders(headers []string) error {
	for _, h := range headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok {
			return advice{fmt.Errorf("--header %q: want a name, a colon and a value", h), "--header 'X-App: mobile'"}
		}
		if q.Headers == nil {
			q.Headers = map[string]string{}
		}
		q.Headers[textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))] = strings.TrimSpace(value)
	}
	return nil
}

func printVerdict(t *terminal, outcome, rule, reason string) {
	if rule != "" {
		outcome += " by " + rule
	}
	if reason != "" {
		outcome += ": " + reason
	}
	fmt.Fprintln(t.out, outcome)
}

// effect says what a limit does with a request.
func effect(allowed, shadow bool) string {
	text := "allows"
	if !allowed {
		text = "denies"
	}
	if shadow {
		text += " (not enforced)"
	}
	return text
}

// decisionAPI is the decision API of a server.
type decisionAPI struct{ url, tokenFile string }

// token returns the token to send, or an empty text if there is none.
func (a *decisionAPI) token(t *terminal) (string, error) {
	if a.tokenFile != "" {
		return readToken("--http-token-file", a.tokenFile)
	}
	return cleanToken("$"+envHTTPToken, t.variable(envHTTPToken))
}

// checkServer asks a running server.
func checkServer(ctx context.Context, t *terminal, q *checkRequest, api *decisionAPI) error {
	server := api.url
	token, err := api.token(t)
	if err != nil {
		return err
	}
	text, err := post(ctx, strings.TrimSuffix(server, "/")+"/v1/check", token, q)
	if err != nil {
		return err
	}
	type limit struct {
		Rule      string  `json:"rule"`
		Name      string  `json:"name"`
		Max       int64   `json:"max"`
		Remaining int64   `json:"remaining"`
		Reset     float64 `json:"reset_after"`
		Allowed   bool    `json:"allowed"`
		Shadow    bool    `json:"shadow"`
	}
	var x struct {
		Allowed    bool     `json:"allowed"`
		Outcome    string   `json:"outcome"`
		Rule       string   `json:"rule"`
		Reason     string   `json:"reason"`
		RetryAfter *float64 `json:"retry_after"`
		Limits     []limit  `json:"limits"`
	}
	if err := json.Unmarshal(text, &x); err != nil {
		return advice{fmt.Errorf("invalid response from %s: %w", server, err), "--http with the URL of the decision API"}
	}
	return answer(t.print(json.RawMessage(text), x.Limits, func() error {
		printVerdict(t, x.Outcome, x.Rule, x.Reason)
		if x.RetryAfter != nil && *x.RetryAfter > 0 {
			fmt.Fprintf(t.out, "It can pass in %gs.\n", *x.RetryAfter)
		}
		if len(x.Limits) == 0 {
			return nil
		}
		fmt.Fprintln(t.out)
		return printTable(t, x.Limits, "", []string{"RULE", "LIMIT", "REMAINING", "RESETS IN", "EFFECT"}, func(l *limit) []any {
			return []any{l.Rule, l.Name, fmt.Sprintf("%d of %d", l.Remaining, l.Max), seconds(l.Reset), effect(l.Allowed, l.Shadow)}
		})
	}), x.Allowed)
}

// post sends a request to the decision API and returns the response if it is a success.
func post(ctx context.Context, url, token string, q *checkRequest) ([]byte, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, advice{fmt.Errorf("--http: %w", err), "--http http://localhost:8080"}
	}
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	response, err := client.Do(r)
	if err != nil {
		return nil, advice{err, "stint serve, to start a server; --http URL, to ask another; or --config FILE, to ask a file"}
	}
	defer response.Body.Close()
	const maxResponse = 4 << 20
	text, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	if err != nil || response.StatusCode == http.StatusOK {
		return text, err
	}
	var p problem
	if json.Unmarshal(text, &p) != nil || p.Detail == "" {
		return nil, advice{fmt.Errorf("%s answers %s", url, response.Status), "--http with the URL of the decision API"}
	}
	try := "stint check --help"
	if response.StatusCode == http.StatusUnauthorized {
		try = "--http-token-file or $" + envHTTPToken + " with a token of server.http.tokens"
	}
	return nil, advice{fmt.Errorf("%s: %s", response.Status, clean(p.Detail)), try}
}

// checkFile asks a config file, with all counters at zero.
func checkFile(ctx context.Context, t *terminal, q *checkRequest, source daemon.Source) error {
	r, err := q.request()
	if err != nil {
		return err
	}
	config, err := source.Load()
	if err != nil {
		return advise(source, err)
	}
	e, err := explain(ctx, config, r)
	if err != nil {
		return err
	}
	x := struct {
		Allowed bool             `json:"allowed"`
		Outcome string           `json:"outcome"`
		Reason  string           `json:"reason,omitempty"`
		Rule    string           `json:"rule,omitempty"`
		Rules   []rule.Explained `json:"rules"`
	}{Allowed: e.Verdict.Outcome.Passed(), Outcome: e.Verdict.Outcome.String(), Reason: e.Verdict.Reason, Rules: e.Rules}
	if e.Verdict.Rule != nil {
		x.Rule = e.Verdict.Rule.Name
	}
	return answer(t.print(x, x.Rules, func() error {
		printVerdict(t, x.Outcome, x.Rule, x.Reason)
		return printRules(t, x.Rules)
	}), x.Allowed)
}

// request returns the request for an engine.
func (q *checkRequest) request() (engine.Request, error) {
	r := engine.Request{Method: q.Method, Path: q.Path, Cost: q.Cost, Headers: map[string][]string{}}
	for name, value := range q.Headers {
		r.Headers[name] = []string{value}
	}
	if q.IP != "" {
		var err error
		if r.Peer, err = netip.ParseAddr(q.IP); err != nil {
			return r, advice{fmt.Errorf("--ip %s: want an address", q.IP), "--ip 192.0.2.1"}
		}
	}
	if cmp.Or(q.User, q.Tenant, q.APIKey, q.Tier) != "" {
		r.Subject = &identity.Subject{User: q.User, Tenant: q.Tenant, Key: q.APIKey, Tier: q.Tier, IP: r.Peer}
	}
	return r, nil
}

// explain explains the decision of a request by the rules of a configuration.
func explain(ctx context.Context, c *daemon.Config, r engine.Request) (engine.Explanation, error) {
	content, done, err := c.Read(ctx)
	if err != nil {
		return engine.Explanation{}, err
	}
	defer done()
	resolver, err := c.Resolver(content, nil)
	if err != nil {
		return engine.Explanation{}, err
	}
	defer resolver.Close()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		return engine.Explanation{}, err
	}
	defer store.Close()
	e, err := engine.New(engine.Options{Store: store, Rules: content.Rules, Identity: resolver})
	if err != nil {
		return engine.Explanation{}, err
	}
	return e.Explain(ctx, r)
}

func newExplain(t *terminal) *cobra.Command {
	var (
		q       checkRequest
		headers []string
		all     bool
	)
	c := queryCommand(t, &cobra.Command{
		Use:   "explain [METHOD] PATH | ID",
		Short: "Explain how a server would decide a request, or has decided one",
		Long: `Explain step by step how a server would decide a request, with its current rules and
counters: who the client is and how it was identified, whether it is banned or exempt, each
rule that applies and the state of its limits, and the decision. The request is not counted.

The client is given by --user, --tenant, --api-key or --tier; without these, it is
identified by --ip and headers, like any client. The exit code is 1 if the request is
denied.

With the ID of a decision, from the header Stint-Decision or from decision_id, it explains
that decision, as it was recorded: what was decided and why, who else used the counter, what
has changed since, what would be decided now, and what to tell the customer.`,
		Example: `  stint explain 0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00
  stint explain GET /search --user alice
  stint explain POST /login --ip 192.0.2.1 -H 'X-App: mobile' --rules
  stint explain /search --api-key k3jq8w2n -o json`,
		Args: wants(1, 2, "a METHOD and a PATH, such as GET /search, or the ID of a decision"),
	}, func(c *cobra.Command, a *client, args []string) error {
		if len(args) == 1 && decisionID.MatchString(args[0]) {
			for _, name := range []string{"ip", "user", "tenant", "api-key", "tier", "header", "cost"} {
				if c.Flags().Changed(name) {
					return usageError(c, "--%s: the record has the client of a decision, want the id alone", name)
				}
			}
			return explainDecision(c.Context(), t, a, args[0], all)
		}
		if q.Path = args[len(args)-1]; len(args) == 2 {
			q.Method = strings.ToUpper(args[0])
		}
		if err := q.addHeaders(headers); err != nil {
			return err
		}
		var x struct {
			admin.Explanation
			Rules []rule.Explained `json:"rules"` // the same, in the type that a file has
		}
		if err := a.do(c.Context(), call{method: http.MethodPost, path: "/explain", body: q, into: &x}); err != nil {
			return err
		}
		return answer(t.print(x, x.Limits, func() error {
			for i, s := range x.Steps {
				fmt.Fprintf(t.out, "%d. %s\n", i+1, clean(s))
			}
			if len(x.Limits) > 0 {
				fmt.Fprintln(t.out)
				if err := printTable(t, x.Limits, "", []string{"RULE", "LIMIT", "VALUE", "REMAINING", "RESETS IN", "EFFECT"}, func(l *admin.ExplainedLimit) []any {
					return []any{l.Rule, l.Name, l.Limit, fmt.Sprintf("%d of %d", l.Remaining, l.Max), seconds(l.ResetAfter), effect(l.Allowed, l.Shadow)}
				}); err != nil {
					return err
				}
			}
			if !all {
				return nil
			}
			return printRules(t, x.Rules)
		}), x.Allowed)
	})
	q.add(c, &headers)
	c.Flags().BoolVar(&all, "rules", false, "show all rules, and why each applies or does not")
	return c
}

// printRules prints why each rule applies or does not.
func printRules(t *terminal, all []rule.Explained) error {
	if len(all) == 0 {
		return nil
	}
	fmt.Fprintln(t.out)
	return printTable(t, all, "", []string{"RULE", "APPLIES", "WHY"}, func(r *rule.Explained) []any {
		var limits []string
		for _, l := range r.Limits {
			limits = append(limits, fmt.Sprintf("%s %s%s (%s)", l.Name, l.Limit, spread(l.Lease, l.Split, l.Regions), l.Source))
		}
		switch {
		case !r.Matched:
			return []any{r.Rule, false, r.Reason}
		case r.BeatenBy != "":
			return []any{r.Rule, false, r.BeatenBy + " in the same group applies instead"}
		case len(limits) == 0:
			return []any{r.Rule, true, "it matches"}
		}
		if r.Shadow {
			limits = append(limits, "tried out: it denies nothing")
		}
		return []any{r.Rule, true, limits}
	})
}

// seconds returns a number of seconds as people read it.
func seconds(n float64) string {
	d := time.Duration(min(n, 1e9) * float64(time.Second))
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
