package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/rule"
)

// sourceFlags are the flags of commands that read a configuration.
type sourceFlags struct {
	path     string
	sets     []string
	envoyEnv bool

	more  []daemon.Flag // of the command itself
	notes []string      // what is to be known of the source
}

func (f *sourceFlags) add(c *cobra.Command) {
	c.Flags().StringVarP(&f.path, "config", "c", "", "the config `file` (default: $STINT_CONFIG, or none)")
	c.Flags().StringArrayVar(&f.sets, "set", nil, "a setting, as `name=value`, such as server.http.address=:9000; can be repeated")
	_ = c.MarkFlagFilename("config", "toml") // both flags are there
	_ = c.RegisterFlagCompletionFunc("set", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var names []string
		for _, s := range daemon.Defaults() {
			names = append(names, s.Name+"=\t"+s.Doc)
		}
		return names, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	})
}

// addEnvoy adds --envoy-env.
func (f *sourceFlags) addEnvoy(c *cobra.Command) {
	c.Flags().BoolVar(&f.envoyEnv, "envoy-env", false, "take settings from the variables of envoyproxy/ratelimit, such as REDIS_URL, too")
}

// source is where the configuration comes from: flags over environment over what the
// environment of another program means over file.
func (f *sourceFlags) source(t *terminal) (daemon.Source, error) {
	s := daemon.Source{Path: f.path, Environ: t.settings()}
	if s.Path == "" {
		s.Path = t.variable("STINT_CONFIG")
	}
	for _, set := range f.sets {
		name, value, ok := strings.Cut(set, "=")
		if !ok {
			return s, advice{fmt.Errorf("--set %s: want name=value", set), "--set server.http.address=:9000; stint config lists all settings"}
		}
		s.Flags = append(s.Flags, daemon.Flag{Name: "--set " + name, Setting: name, Value: value})
	}
	s.Flags = append(s.Flags, f.more...)
	if f.envoyEnv {
		var err error
		if s.Given, f.notes, err = daemon.EnvoyEnv(t.environ, s.Flags...); err != nil {
			return s, advice{err, "correct what is listed; stint config --envoy-env shows what comes of the variables"}
		}
	}
	return s, nil
}

// advise says what to do about a configuration that cannot be used.
func advise(source daemon.Source, err error) error {
	var problems rule.Problems
	switch {
	case errors.As(err, &problems) && source.Path != "":
		return advice{err, "correct what is listed, and then: stint rules check " + source.Path}
	case errors.As(err, &problems):
		return advice{err, "correct what is listed; stint config shows all settings"}
	case errors.Is(err, fs.ErrNotExist):
		return advice{err, "--config with a file that is there, or none, which shows what Stint can do"}
	}
	return err
}
