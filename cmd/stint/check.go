package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/textproto"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// asked is a request, as the decision API takes it.
type asked struct {
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
		q       asked
		api     string
		headers []string
		take    bool
		as      string
	)
	c := &cobra.Command{
		Use:   "check PATH",
		Short: "Check whether a request would be allowed, and why",
		Long: `Check whether a request would be allowed, and why: by a running server, or, with --config,
by a config file, where nothing has been counted yet.

The client is given by --user, --tenant, --api-key or --tier; without these, it is
identified by --ip and headers, as a request is. Nothing is counted, unless
--take is given. The exit code is 1 if the request is denied.`,
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
				return checkServer(c.Context(), t, &q, api, as)
			case take:
				return advice{errors.New("--take: a file counts nothing"), "--take with --http URL"}
			}
			return checkFile(c.Context(), t, &q, source, as)
		},
	}
	f.add(c)
	c.Flags().StringVarP(&q.Method, "method", "X", http.MethodGet, "the `method`")
	q.add(c, &headers)
	c.Flags().StringVar(&api, "http", "http://localhost:8080", "the decision API of a running server, as a `URL`")
	c.Flags().BoolVar(&take, "take", false, "count it")
	addOutput(c, &as)
	return c
}

// add adds the flags that say who is asking, and how.
func (q *asked) add(c *cobra.Command, headers *[]string) {
	c.Flags().StringVar(&q.IP, "ip", "", "the client's `address`")
	c.Flags().StringVar(&q.User, "user", "", "the `user`")
	c.Flags().StringVar(&q.Tenant, "tenant", "", "the `tenant`")
	c.Flags().StringVar(&q.APIKey, "api-key", "", "the `id` of an API key, without its secret")
	c.Flags().StringVar(&q.Tier, "tier", "", "the `tier`, in place of the user's")
	c.Flags().StringArrayVarP(headers, "header", "H", nil, "a `header`, as Name: value; can be repeated")
	c.Flags().Int64Var(&q.Cost, "cost", 0, "how many `units` it costs, whatever rules say")
}

// addHeaders adds headers that are written as Name: value.
func (q *asked) addHeaders(headers []string) error {
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

// explained is what a file makes of a request.
type explained struct {
	Allowed bool             `json:"allowed"`
	Outcome string           `json:"outcome"`
	Reason  string           `json:"reason,omitempty"`
	Rule    string           `json:"rule,omitempty"`
	Rules   []rule.Explained `json:"rules"`
}

// checkFile asks a file, with counters that are all fresh.
func checkFile(ctx context.Context, t *terminal, q *asked, source daemon.Source, as string) error {
	r, err := q.request()
	if err != nil {
		return err
	}
	config, err := source.Load()
	if err != nil {
		return advise(source, err)
	}
	x, err := explain(ctx, config, r)
	if err != nil {
		return err
	}
	out := explained{Allowed: x.Verdict.Outcome.Passed(), Outcome: x.Verdict.Outcome.String(), Reason: x.Verdict.Reason, Rules: x.Rules}
	if x.Verdict.Rule != nil {
		out.Rule = x.Verdict.Rule.Name
	}
	err = t.say(as, out, out.Rules, func() error { return out.show(t) })
	if err == nil && !out.Allowed {
		err = errNo
	}
	return err
}

// request is what is asked, for an engine.
func (q *asked) request() (engine.Request, error) {
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

func explain(ctx context.Context, c *daemon.Config, r engine.Request) (engine.Explanation, error) {
	content, done, err := c.Read(ctx)
	if err != nil {
		return engine.Explanation{}, err
	}
	defer done()
	who, err := c.Resolver(content, nil)
	if err != nil {
		return engine.Explanation{}, err
	}
	defer who.Close()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		return engine.Explanation{}, err
	}
	defer store.Close()
	e, err := engine.New(engine.Options{Store: store, Rules: content.Rules, Identity: who})
	if err != nil {
		return engine.Explanation{}, err
	}
	return e.Explain(ctx, r)
}

// show writes what a file makes of a request for people.
func (x *explained) show(t *terminal) error {
	text := x.Outcome
	if x.Rule != "" {
		text += " by " + x.Rule
	}
	if x.Reason != "" {
		text += ": " + x.Reason
	}
	fmt.Fprintln(t.out, text)
	if len(x.Rules) == 0 {
		return nil
	}
	fmt.Fprintln(t.out)
	all := make([]why, len(x.Rules))
	for i, r := range x.Rules {
		all[i] = why{r.Rule, r.Matched, r.Reason, r.BeatenBy, nil}
		for _, l := range r.Limits {
			all[i].limits = append(all[i].limits, fmt.Sprintf("%s %s (%s)", l.Name, l.Limit, l.Source))
		}
	}
	return showWhy(t, all)
}
