package main

import (
	"errors"
	"fmt"
	"math"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/rule"
)

// checked is what "rules check" says of a file.
type checked struct {
	File     string        `json:"file"`
	Rules    int           `json:"rules"`
	Tiers    int           `json:"tiers"`
	Envoy    int           `json:"envoy_limits,omitempty"` // of descriptors
	Problems rule.Problems `json:"problems"`
}

func newRulesCheck(t *terminal) *cobra.Command {
	var as string
	c := &cobra.Command{
		Use:   "check FILE...",
		Short: "Check config files and list all problems",
		Long: `Check config files, and say all that is wrong with them, with file, line and column.
The exit code is 1 if anything is.

What differs between machines, such as variables and the files that settings name, is
checked as well: use this where the file will be used, or set the same variables.`,
		Example: `  stint rules check stint.toml
  stint rules check -o json stint.toml rules.toml`,
		Args: wants(1, math.MaxInt, "one FILE or more"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"toml"}, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: func(_ *cobra.Command, files []string) error {
			var all []checked
			bad := false
			for _, file := range files {
				x, err := checkRules(t, file)
				if err != nil {
					return err
				}
				bad = bad || len(x.Problems) > 0
				all = append(all, x)
			}
			rows := []rule.Problem{}
			for _, x := range all {
				rows = append(rows, x.Problems...)
			}
			if err := t.say(as, all, rows, func() error { return showChecked(t, all) }); err != nil {
				return err
			}
			if bad {
				return errNo
			}
			return nil
		},
	}
	addOutput(c, &as)
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
		return x, advice{err, "stint rules check with a file that is there and can be read"}
	}
	x.Rules, x.Tiers = len(config.Rules), len(config.Tiers)
	if d := config.Descriptors(); d != nil {
		for range d.Limits() {
			x.Envoy++
		}
	}
	return x, nil
}

func showChecked(t *terminal, all []checked) error {
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
