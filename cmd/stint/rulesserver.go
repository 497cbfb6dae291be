package main

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/sim"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

func newRules(t *terminal) *cobra.Command {
	k := &kind[rule.Rule]{
		path: "rules", one: "rule", key: "name", example: "search", unused: "reports", fields: "limits[0].limit=200/1m action=log_only", first: "--limit 20/1h --count-by user",
		flags: []fieldFlag{
			{"limit", "a limit, as `LIMIT` or NAME=LIMIT, such as 100/1m; can be repeated", addRuleLimit},
			listOf("count-by", "what has a counter of its own, as a `list`: user, tenant, api_key, ip, endpoint, method, header:NAME", "count_by"),
			listOf("path", "only requests with this `path`, such as /search/**; can be repeated", "match", "paths"),
			listOf("method", "only requests with this `method`; can be repeated", "match", "methods"),
			listOf("tier", "only those of this `tier`; can be repeated", "match", "tiers"),
			text("action", "action", "what to do with requests over the limit, as an `action`: reject, throttle, log_only, block or allow"),
			text("group", "group", "the `group`, of which the best rule applies alone"),
			{"priority", "the `number` that decides within a group: lower first", func(into tree, value string) error {
				n, err := strconv.Atoi(value)
				if err != nil {
					return errors.New("want a number")
				}
				into["priority"] = n
				return nil
			}},
		},
	}
	return family("rules", "Manage rules",
		newRulesList(t), k.show(t), k.create(t), k.set(t), k.edit(t), newRulesToggle(t, k, true), newRulesToggle(t, k, false), k.remove(t),
		newRulesHistory(t, k), newRulesValidate(t, k), newRulesPreview(t, k), newRulesOrder(t), newRulesCheck(t))
}

// addRuleLimit adds a limit, which has a name: that of the rule's first is requests.
func addRuleLimit(into tree, value string) error {
	name, limit, ok := strings.Cut(value, "=")
	if !ok {
		name, limit = "requests", value
	}
	list, _ := into["limits"].([]any)
	into["limits"] = append(list, tree{"name": name, "limit": limit})
	return nil
}

func newRulesToggle(t *terminal, k *kind[rule.Rule], on bool) *cobra.Command {
	var dry bool
	verb, short, long := "disable", "Take rules out of use", "Have rules decide nothing for now. They stay, and can be enabled again."
	if on {
		verb, short, long = "enable", "Take rules into use", "Have rules decide again."
	}
	c := serverCommand(t, &cobra.Command{
		Use: verb + " NAME...", Short: short, Long: long,
		Example: "  stint rules " + verb + " search",
		Args:    wants(1, math.MaxInt, "the name of one or more"),
	}, func(c *cobra.Command, a *client, args []string) error {
		for _, name := range args {
			was, err := k.get(c.Context(), a, name)
			if err != nil {
				return err
			}
			var now stored[rule.Rule]
			if err := a.do(c.Context(), call{method: http.MethodPost, path: k.at(name) + "/" + verb, query: dryRun(dry), into: &now}); err != nil {
				return err
			}
			if err := k.changed(t, &was, &now, dry); err != nil {
				return err
			}
		}
		return nil
	})
	completes(c, k.path)
	c.Flags().BoolVar(&dry, "dry-run", false, "check all, and change nothing")
	return c
}

func newRulesHistory(t *terminal, k *kind[rule.Rule]) *cobra.Command {
	var as string
	var limit int
	c := serverCommand(t, &cobra.Command{
		Use: "history NAME", Short: "Show the changes of a rule",
		Long:    "Show the changes of a rule, the newest first, also of one that was deleted.",
		Example: "  stint rules history search\n  stint changes revert 42",
		Args:    wants(1, 1, "the name of a rule"),
	}, func(c *cobra.Command, a *client, args []string) error {
		all, err := changesOf(c.Context(), t, a, k.at(args[0])+"/history", url.Values{}, limit)
		if err != nil {
			return err
		}
		return sayChanges(t, as, all)
	})
	completes(c, k.path)
	addLimit(c, &limit)
	addOutput(c, &as)
	return c
}

// ruleFlags name a rule: one of the server, perhaps changed, or one of a file.
type ruleFlags struct {
	file, replacing string
}

func (f *ruleFlags) add(c *cobra.Command) {
	c.Flags().StringVarP(&f.file, "file", "f", "", "a `FILE` with the rule, in TOML or JSON, or - for the standard input")
	c.Flags().StringVar(&f.replacing, "replacing", "", "the `name` of the rule that it is to replace (default: the one of its name, if there is one)")
	_ = c.MarkFlagFilename("file", "toml", "json") // it is there
}

// read returns the rule that is meant, and the parameters of the question.
func (f *ruleFlags) read(c *cobra.Command, a *client, k *kind[rule.Rule], args []string) (tree, url.Values, error) {
	q := url.Values{}
	if len(args) == 0 && f.file == "" {
		return nil, nil, advice{fmt.Errorf("%s wants the name of a rule, or -f FILE", c.CommandPath()), c.CommandPath() + " --help"}
	}
	var value rule.Rule
	var err error
	if f.file != "" {
		value, err = k.read(c.InOrStdin(), f.file)
	} else {
		var r stored[rule.Rule]
		r, err = k.get(c.Context(), a, args[0])
		value, args = r.Value, args[1:]
	}
	if err != nil {
		return nil, nil, err
	}
	out, err := treeOf(value)
	if err != nil {
		return nil, nil, err
	}
	for _, text := range args {
		if err := assign(reflect.TypeFor[rule.Rule](), out, text); err != nil {
			return nil, nil, err
		}
	}
	if f.replacing == "" {
		_, err := k.get(c.Context(), a, value.Name)
		if r := new(refused); err != nil && (!errors.As(err, &r) || r.Status != http.StatusNotFound) {
			return nil, nil, err
		} else if err == nil {
			f.replacing = value.Name
		}
	}
	if f.replacing != "" {
		q.Set("replacing", f.replacing)
	}
	return out, q, nil
}

func newRulesValidate(t *terminal, k *kind[rule.Rule]) *cobra.Command {
	var f ruleFlags
	var as string
	c := serverCommand(t, &cobra.Command{
		Use: "validate [NAME] [FIELD=VALUE...]", Short: "Check a rule against all others of a server",
		Long: `Check a rule of a file, or one that the server has, with fields changed, together with all
other rules and tiers of the server: say all that is wrong with it, or how it reads.
Nothing is changed. The exit code is 1 if anything is wrong.`,
		Example: "  stint rules validate -f search.toml\n  stint rules validate search limits[0].limit=10/1m",
		Args:    cobra.ArbitraryArgs,
	}, func(c *cobra.Command, a *client, args []string) error {
		value, q, err := f.read(c, a, k, args)
		if err != nil {
			return err
		}
		var x admin.Checked
		if err := a.do(c.Context(), call{method: http.MethodPost, path: "/rules/validate", query: q, body: value, into: &x}); err != nil {
			return err
		}
		if err := t.say(as, x, x.Problems, func() error {
			if x.OK {
				_, err := fmt.Fprintf(t.out, "no problems\n%s\n", clean(x.Reading))
				return err
			}
			for _, p := range x.Problems {
				fmt.Fprintln(t.out, clean(strict.Problem{Path: p.Field, Message: p.Message, Hint: p.Hint}.String()))
			}
			return nil
		}); err != nil {
			return err
		}
		if !x.OK {
			return errNo
		}
		return nil
	})
	completes(c, k.path)
	f.add(c)
	addOutput(c, &as)
	return c
}

func newRulesPreview(t *terminal, k *kind[rule.Rule]) *cobra.Command {
	var f ruleFlags
	var as, since string
	c := serverCommand(t, &cobra.Command{
		Use: "preview [NAME] [FIELD=VALUE...]", Short: "Show what a rule would have denied",
		Long: `Replay what the record has of the last hour, or of another time, against a rule of a file,
or one that the server has, with fields changed: say how many requests it would have
refused, and whose. Nothing is changed.`,
		Example: "  stint rules preview -f search.toml --since 24h\n  stint rules preview search limits[0].limit=10/1m",
		Args:    cobra.ArbitraryArgs,
	}, func(c *cobra.Command, a *client, args []string) error {
		d, err := length(since)
		if err != nil {
			return advice{fmt.Errorf("--since %s: %w", strict.Quote(since), err), "--since 24h"}
		}
		value, q, err := f.read(c, a, k, args)
		if err != nil {
			return err
		}
		q.Set("since_seconds", strconv.FormatFloat(d.Seconds(), 'f', -1, 64))
		var p sim.Preview
		if err := a.do(c.Context(), call{method: http.MethodPost, path: "/rules/preview", query: q, body: value, into: &p}); err != nil {
			return err
		}
		return t.say(as, p, p.Top, func() error { return showPreview(t, &p) })
	})
	completes(c, k.path)
	f.add(c)
	c.Flags().StringVar(&since, "since", "1h", "how far to look back, as a `time`")
	addOutput(c, &as)
	return c
}

func showPreview(t *terminal, p *sim.Preview) error {
	share := ""
	if p.Matched > 0 {
		share = fmt.Sprintf(", which is %.1f %%", 100*float64(p.WouldRefuse)/float64(p.Matched))
	}
	fmt.Fprintf(t.out, "%s to %s\nrequests: %d, of which the rule is about: %d\nit would have denied: %d%s; denied then: %d\n",
		cell(p.From), cell(p.To), p.Requests, p.Matched, p.WouldRefuse, share, p.RefusedNow)
	if p.Unclear > 0 {
		fmt.Fprintf(t.out, "of which it cannot be told: %d\n", p.Unclear)
	}
	for _, n := range p.Notes {
		t.notes(clean(n))
	}
	if len(p.Top) == 0 {
		return nil
	}
	fmt.Fprintln(t.out)
	w := t.grid("SUBJECT", "REQUESTS", "WOULD BE REFUSED")
	for _, s := range p.Top {
		w.row(s.Subject, s.Requests, s.WouldRefuse)
	}
	return w.Flush()
}

func newRulesOrder(t *terminal) *cobra.Command {
	var dry bool
	c := serverCommand(t, &cobra.Command{
		Use: "order NAME NAME...", Short: "Set priorities by the order of names",
		Long: `Give rules priorities that rise by 10, in the order in which they are named, as one change.
The priority decides among rules of one group. Other rules keep theirs.`,
		Example: "  stint rules order login search per-client",
		Args:    wants(2, math.MaxInt, "the names of rules, in their order"),
	}, func(c *cobra.Command, a *client, args []string) error {
		var r admin.Revision
		if err := a.do(c.Context(), call{method: http.MethodPost, path: "/rules/order", query: dryRun(dry), body: admin.RuleOrder{Names: args}, into: &r}); err != nil {
			return err
		}
		text := fmt.Sprintf("revision %d", r.Revision)
		if dry {
			text = "this can be done; nothing was changed"
		}
		_, err := fmt.Fprintln(t.out, text)
		return err
	})
	completes(c, "rules")
	c.Flags().BoolVar(&dry, "dry-run", false, "check all, and change nothing")
	return c
}
