package main

import (
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/rule"
)

func newRulesRollout(t *terminal, k *kind[rule.Rule]) *cobra.Command {
	var (
		stop, resume, dryRun bool
		to, reason           string
	)
	c := serverCommand(t, &cobra.Command{
		Use: "rollout NAME", Short: "Show how far a rule is rolled out, and change that",
		Long: `Show for which part of clients a rule is in force now, its steps, and when the next one begins.

With --stop it is taken back: the rule is only tried out, on all clients. With --to it stays at
a step. With --resume it goes on, at the beginning of the step at which it was stopped.`,
		Example: "  stint rules rollout search\n  stint rules rollout search --stop --reason 'complaints of two customers'\n  stint rules rollout search --to 50%\n  stint rules rollout search --resume",
		Args:    wants(1, 1, "the NAME of a rule"), ValidArgsFunction: completeIDs(t, k.path),
	}, func(c *cobra.Command, a *client, args []string) error {
		path := k.at(args[0]) + "/rollout"
		change := admin.RolloutChange{Reason: reason}
		switch {
		case stop:
			change.Do = "stop"
		case resume:
			change.Do = "resume"
		case to != "":
			change.Do, change.Share = "to", new(rule.Percent)
			if err := change.Share.UnmarshalText([]byte(to)); err != nil {
				return usageError(c, "--to: %v", err)
			}
		case reason != "" || dryRun:
			return usageError(c, "--reason and --dry-run are for --stop, --to and --resume")
		}
		if change.Do != "" {
			if err := a.do(c.Context(), call{method: http.MethodPost, path: path, query: dryRunParameter(dryRun), body: change}); err != nil {
				return err
			}
		}
		if dryRun {
			_, err := fmt.Fprintln(t.out, "no problems; nothing was changed")
			return err
		}
		var o admin.Rollout
		if err := a.do(c.Context(), call{path: path, into: &o}); err != nil {
			return err
		}
		return t.print(o, o.Steps, func() error { return showRollout(t, &o) })
	})
	c.Flags().BoolVar(&stop, "stop", false, "take it back: the rule is only tried out")
	c.Flags().BoolVar(&resume, "resume", false, "go on with the step at which it was stopped")
	c.Flags().StringVar(&to, "to", "", "stay at this `step`, such as 50%")
	c.Flags().StringVar(&reason, "reason", "", "why it is stopped, as a `text` for people")
	c.MarkFlagsMutuallyExclusive("stop", "resume", "to")
	addDryRun(c, &dryRun)
	addOutput(c)
	return c
}

func showRollout(t *terminal, o *admin.Rollout) error {
	state := "in force for " + o.Share + " of clients"
	if o.Share == "0%" {
		state = "tried out on all clients"
	}
	fmt.Fprintf(t.out, "%s is %s\n", printable(o.Rule), state)
	switch s := o.Stopped; {
	case s == nil && o.Step < len(o.Steps):
		fmt.Fprintf(t.out, "the next step, %s, begins at %s\n", o.Steps[o.Step].Share, o.Steps[o.Step].Begins.Format(time.RFC3339))
	case s == nil:
	case s.Share == 0:
		fmt.Fprintf(t.out, "its rollout was taken back at %s: %s\n", s.At.UTC().Format(time.RFC3339), printable(s.Reason))
	default:
		fmt.Fprintf(t.out, "its rollout was stopped at %s: %s\n", s.At.UTC().Format(time.RFC3339), printable(s.Reason))
	}
	if o.BackIf != "" && o.Stopped == nil {
		fmt.Fprintf(t.out, "it is taken back if in a minute %s\n", o.BackIf)
	}
	fmt.Fprintln(t.out)
	step := 0
	return printTable(t, o.Steps, "", []string{"STEP", "SHARE", "BEGINS", "NOW"}, func(s *admin.RolloutStep) []any {
		step++
		now := ""
		if step == o.Step && o.Stopped == nil {
			now = "now"
		}
		return []any{step, s.Share.String(), s.Begins, now}
	})
}
