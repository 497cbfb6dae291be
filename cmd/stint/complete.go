package main

import (
	"context"
	"net/url"
	"time"

	"github.com/spf13/cobra"
)

// addCompletion completes flags that name objects of a server.
func addCompletion(t *terminal, c *cobra.Command) {
	for _, child := range c.Commands() {
		addCompletion(t, child)
	}
	if c.Flags().Lookup("server") == nil {
		return
	}
	for flag, path := range map[string]string{"rule": "rules", "tier": "tiers", "user": "users", "tenant": "tenants", "key": "keys"} {
		if c.Flags().Lookup(flag) != nil {
			_ = c.RegisterFlagCompletionFunc(flag, completeIDs(t, path)) // the flag exists
		}
	}
}

// completeIDs completes ids of one kind with those of a server, if it answers quickly.
func completeIDs(t *terminal, path string) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		const timeout, limit = time.Second, "100"
		ctx, cancel := context.WithTimeout(c.Context(), timeout)
		defer cancel()
		var f serverFlags
		for name, into := range map[string]*string{"server": &f.server, "token-file": &f.tokenFile, "ca-file": &f.caFile} {
			*into = c.Flags().Lookup(name).Value.String()
		}
		a, err := f.open(t)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer a.close()
		type object struct {
			ID string `json:"id"`
		}
		list, _ := items[object](ctx, a, "/"+path, url.Values{"prefix": {prefix}, "limit": {limit}}) // empty on errors
		var out []string
		for _, o := range list {
			if clean(o.ID) == o.ID {
				out = append(out, o.ID)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
