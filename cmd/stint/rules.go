package main

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/sim"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

func newRules(t *terminal) *cobra.Command {
	k := &kind[rule.Rule]{
		path: "rules", one: "rule", key: "name", example: "search", unused: "reports", fields: "limits[0].limit=200/1m action=log_only", firstFields: "--limit 20/1h --count-by user",
		flags: []fieldFlag{
			{"limit", "a limit, as `LIMIT` or NAME=LIMIT, such as 100/1m; can be repeated", addRuleLimit},
			listFlag("count-by", "what has separate counters, as a `list` of user, tenant, api_key, ip, endpoint, method and header:NAME", "count_by"),
			listFlag("path", "only requests with this `path`, such as /search/**; can be repeated", "match", "paths"),
			listFlag("method", "only requests with this `method`; can be repeated", "match", "methods"),
			listFlag("tier", "only clients of this `tier`; can be repeated", "match", "tiers"),
			textFlag("action", "action", "what to do with requests over the limit, as an `action`: reject, throttle, log_only, mark, block or allow"),
			textFlag("enforce", "enforce", "for which `part` of clients it is in force, such as 10%; on the others it is tried out"),
			textFlag("group", "group", "the `group`; only its best matching rule applies"),
			{"priority", "the `number` that decides within a group: the lowest applies", func(into tree, value string) error {
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
		newRulesHistory(t, k), newRulesValidate(t, k), newRulesPreview(t, k), newRulesCandidates(t), newRulesPromote(t), newRulesRollout(t, k), newRulesOrder(t), newRulesCheck(t), newRulesTest(t))
}

// addRuleLimit adds a limit. Its default name is requests.
func addRuleLimit(into tree, value string) error {
	name, limit, ok := strings.Cut(value, "=")
	if !ok {
		name, limit = "requests", value
	}
	list, _ := into["limits"].([]any)
	into["limits"] = append(list, tree{"name": name, "limit": limit})
	return nil
}

// listFlag returns a flag for a field that is a list, and may be nested.
func listFlag(flag, usage string, path ...string) fieldFlag {
	return fieldFlag{flag, usage, func(into tree, value string) error {
		last := len(path) - 1
		for _, name := range path[:last] {
			into = child(into, name)
		}
		list, _ := into[path[last]].([]any)
		for item := range strings.SplitSeq(value, ",") {
			list = append(list, item)
		}
		into[path[last]] = list
		return nil
	}}
}

func newRulesToggle(t *terminal, k *kind[rule.Rule], on bool) *cobra.Command {
	var dryRun bool
	verb, short, long := "disable", "Disable rules", "Disable rules. They are kept, and can be enabled again."
	if on {
		verb, short, long = "enable", "Enable rules", "Enable rules that were disabled."
	}
	c := serverCommand(t, &cobra.Command{
		Use: verb + " NAME...", Short: short, Long: long,
		Example: "  stint rules " + verb + " search",
		Args:    wants(1, math.MaxInt, "one NAME or more"), ValidArgsFunction: completeIDs(t, k.path),
	}, func(c *cobra.Command, a *client, args []string) error {
		for _, name := range args {
			was, err := k.get(c.Context(), a, name)
			if err != nil {
				return err
			}
			var now stored[rule.Rule]
			if err := a.do(c.Context(), call{method: http.MethodPost, path: k.at(name) + "/" + verb, query: dryRunParameter(dryRun), into: &now}); err != nil {
				return err
			}
			if err := k.printChange(t, &was, &now, dryRun); err != nil {
				return err
			}
		}
		return nil
	})
	addDryRun(c, &dryRun)
	return c
}

func newRulesHistory(t *terminal, k *kind[rule.Rule]) *cobra.Command {
	var limit int
	c := queryCommand(t, &cobra.Command{
		Use: "history NAME", Short: "Show the changes of a rule",
		Long:    "Show the changes of a rule, newest first. The rule may have been deleted.",
		Example: "  stint rules history search\n  stint changes revert 42",
		Args:    wants(1, 1, "the NAME of a rule"), ValidArgsFunction: completeIDs(t, k.path),
	}, func(c *cobra.Command, a *client, args []string) error {
		return listChanges(c, t, a, k.at(args[0])+"/history", url.Values{}, limit)
	})
	addLimit(c, &limit, 1000)
	return c
}

// ruleFlags are the flags of commands that try out a rule: one of the server, with changes,
// or one in a file.
type ruleFlags struct {
	file, replacing string
}

func (f *ruleFlags) add(c *cobra.Command) {
	addFile(c, &f.file, "a `FILE` with the rule, in TOML or JSON")
	c.Flags().StringVar(&f.replacing, "replacing", "", "the `name` of the rule that it replaces (default: the rule with the same name, if there is one)")
}

// read returns the rule, and the parameters of the request.
func (f *ruleFlags) read(c *cobra.Command, a *client, k *kind[rule.Rule], args []string) (tree, url.Values, error) {
	if len(args) == 0 && f.file == "" {
		return nil, nil, usageError(c, "%s needs the NAME of a rule, or -f FILE", c.CommandPath())
	}
	var r stored[rule.Rule]
	if f.file == "" {
		var err error
		if r, err = k.get(c.Context(), a, args[0]); err != nil {
			return nil, nil, err
		}
		args = args[1:]
	}
	fields, err := k.readOr(c, f.file, r.Value)
	if err != nil {
		return nil, nil, err
	}
	if name, _ := fields["name"].(string); f.replacing == "" {
		_, err := k.get(c.Context(), a, name)
		if err != nil && !hasStatus(err, http.StatusNotFound) {
			return nil, nil, err
		} else if err == nil {
			f.replacing = name
		}
	}
	return fields, parameters("replacing", f.replacing), k.assignAll(fields, args)
}

func newRulesValidate(t *terminal, k *kind[rule.Rule]) *cobra.Command {
	var f ruleFlags
	c := queryCommand(t, &cobra.Command{
		Use: "validate [NAME] [FIELD=VALUE...]", Short: "Check a rule together with all others of a server",
		Long: `Check a rule in a file, or a rule of the server with some fields changed, together with all
other rules and tiers of the server: list all problems, or show the rule as a sentence.
Nothing is changed. The exit code is 1 if there are problems.`,
		Example: "  stint rules validate -f search.toml\n  stint rules validate search limits[0].limit=10/1m",
		Args:    cobra.ArbitraryArgs, ValidArgsFunction: completeIDs(t, k.path),
	}, func(c *cobra.Command, a *client, args []string) error {
		value, q, err := f.read(c, a, k, args)
		if err != nil {
			return err
		}
		var x admin.Checked
		if err := a.do(c.Context(), call{method: http.MethodPost, path: "/rules/validate", query: q, body: value, into: &x}); err != nil {
			return err
		}
		return answer(t.print(x, x.Problems, func() error {
			if x.OK {
				_, err := fmt.Fprintf(t.out, "no problems\n%s\n", clean(x.Reading))
				return err
			}
			for _, p := range x.Problems {
				fmt.Fprintln(t.out, clean(strict.Problem{Path: p.Field, Message: p.Message, Hint: p.Hint}.String()))
			}
			return nil
		}), x.OK)
	})
	f.add(c)
	return c
}

func newRulesPreview(t *terminal, k *kind[rule.Rule]) *cobra.Command {
	var f ruleFlags
	var since string
	c := queryCommand(t, &cobra.Command{
		Use: "preview [NAME] [FIELD=VALUE...]", Short: "Show what a rule would have denied",
		Long: `Replay the recorded requests of the last hour, or of another time, against a rule in a file,
or a rule of the server with some fields changed: show how many requests match, do not
match, or are unclear because the record does not tell, how many of them the rule would
have denied, and whose. Of more than 20,000 events, a part is read evenly from the whole
time. Nothing is changed.`,
		Example: "  stint rules preview -f search.toml --since 24h\n  stint rules preview search limits[0].limit=10/1m",
		Args:    cobra.ArbitraryArgs, ValidArgsFunction: completeIDs(t, k.path),
	}, func(c *cobra.Command, a *client, args []string) error {
		d, err := parseDuration(since)
		if err != nil {
			return advice{fmt.Errorf("--since %s: %w", strict.Quote(since), err), "--since 24h"}
		}
		value, q, err := f.read(c, a, k, args)
		if err != nil {
			return err
		}
		q.Set("since_seconds", strconv.FormatFloat(d.Seconds(), 'f', -1, 64))
		var p sim.Preview
		if err := t.waits("the server replays the requests of the last "+since, func() error {
			return a.do(c.Context(), call{method: http.MethodPost, path: "/rules/preview", query: q, body: value, into: &p})
		}); err != nil {
			return err
		}
		return t.print(p, p.Top, func() error { return printPreview(t, &p) })
	})
	f.add(c)
	c.Flags().StringVar(&since, "since", "1h", "how far to look back, as a `time`")
	return c
}

func printPreview(t *terminal, p *sim.Preview) error {
	fmt.Fprintf(t.out, "%s to %s\n%s\n", cell(p.From), cell(p.To), clean(p.Summary))
	for _, n := range p.Notes {
		t.notes(clean(n))
	}
	if len(p.Top) == 0 {
		return nil
	}
	fmt.Fprintln(t.out)
	return printTable(t, p.Top, "", []string{"SUBJECT", "REQUESTS", "WOULD BE DENIED"}, func(s *sim.Subject) []any {
		return []any{s.Subject, s.Requests, s.WouldRefuse}
	})
}

func newRulesOrder(t *terminal) *cobra.Command {
	var dryRun bool
	c := serverCommand(t, &cobra.Command{
		Use: "order NAME NAME...", Short: "Set priorities by the order of names",
		Long: `Set the priorities of rules in steps of 10, in the order of their names on the command line,
as one change. The priority decides which rule of a group applies. Other rules keep theirs.`,
		Example: "  stint rules order login search per-client",
		Args:    wants(2, math.MaxInt, "the NAMEs of rules, in order"), ValidArgsFunction: completeIDs(t, "rules"),
	}, func(c *cobra.Command, a *client, args []string) error {
		var r admin.Revision
		if err := a.do(c.Context(), call{method: http.MethodPost, path: "/rules/order", query: dryRunParameter(dryRun), body: admin.RuleOrder{Names: args}, into: &r}); err != nil {
			return err
		}
		text := fmt.Sprintf("revision %d", r.Revision)
		if dryRun {
			text = "no problems; nothing was changed"
		}
		_, err := fmt.Fprintln(t.out, text)
		return err
	})
	addDryRun(c, &dryRun)
	return c
}

// checked is the output of "rules check" for a file.
type checked struct {
	File     string        `json:"file"`
	Rules    int           `json:"rules"`
	Tiers    int           `json:"tiers"`
	Envoy    int           `json:"envoy_limits,omitempty"`
	Problems rule.Problems `json:"problems"`
}

func newRulesCheck(t *terminal) *cobra.Command {
	c := &cobra.Command{
		Use:   "check FILE...",
		Short: "Check config files and list all problems",
		Long: `Check config files, and list all problems with file, line and column. The exit code is 1 if
there are any.

Environment variables and files named by settings are checked as well: run this on the
machine that will use the file, or set the same variables.`,
		Example: `  stint rules check stint.toml
  stint rules check -o json stint.toml rules.toml`,
		Args: wants(1, math.MaxInt, "one FILE or more"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"toml"}, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: func(_ *cobra.Command, files []string) error {
			var all []checked
			problems := []rule.Problem{}
			for _, file := range files {
				x, err := checkRules(t, file)
				if err != nil {
					return err
				}
				all, problems = append(all, x), append(problems, x.Problems...)
			}
			return answer(t.print(all, problems, func() error { return printChecked(t, all) }), len(problems) == 0)
		},
	}
	addOutput(c)
	return c
}

func checkRules(t *terminal, file string) (checked, error) {
	x := checked{File: file, Problems: rule.Problems{}}
	source := daemon.Source{Path: file, Environ: t.settings()}
	config, err := source.Load()
	if errors.As(err, &x.Problems) {
		return x, nil
	}
	if err != nil {
		return x, advice{err, "stint rules check with a file that exists and can be read"}
	}
	x.Rules, x.Tiers = len(config.Rules), len(config.Tiers)
	if d := config.Descriptors(); d != nil {
		for range d.Limits() {
			x.Envoy++
		}
	}
	return x, nil
}

func printChecked(t *terminal, all []checked) error {
	for _, x := range all {
		if len(x.Problems) > 0 {
			fmt.Fprintln(t.out, x.Problems.Error())
		} else {
			text := fmt.Sprintf("%s: rules: %d, tiers: %d, ", x.File, x.Rules, x.Tiers)
			if x.Envoy > 0 {
				text += fmt.Sprintf("limits of descriptors: %d, ", x.Envoy)
			}
			fmt.Fprintln(t.out, text+"no problems")
		}
	}
	return nil
}
