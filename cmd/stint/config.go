package main

import (
	"github.com/spf13/cobra"
)

func newConfig(t *terminal) *cobra.Command {
	var f sourceFlags
	var as string
	c := &cobra.Command{
		Use:   "config",
		Short: "Show every setting, its value and where it comes from",
		Long: `Show every setting, its value and where it comes from: a flag, a variable of the
environment, a line of the config file, or the default. Secrets are masked.

Rules, tiers, users and keys are in the file or in the database, and upstreams in the
file; these are not shown here.`,
		Example: `  stint config
  stint config --config stint.toml -o json
  STINT_SERVER_REPLICAS=3 stint config --set server.http.address=:9000
  REDIS_URL=redis:6379 stint config --envoy-env`,
		Args: nothing,
		RunE: func(*cobra.Command, []string) error {
			source, err := f.source(t)
			if err != nil {
				return err
			}
			config, err := source.Load()
			if err != nil {
				return advise(source, err)
			}
			t.notes(f.notes...)
			all := config.Settings()
			return t.say(as, all, nil, func() error {
				w := t.grid("SETTING", "VALUE", "FROM", "VARIABLE")
				for _, s := range all {
					w.row(s.Name, s.Value, s.Origin, s.Env)
				}
				return w.Flush()
			})
		},
	}
	f.add(c)
	f.addEnvoy(c)
	addOutput(c, &as)
	return c
}
