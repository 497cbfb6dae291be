package main

import (
	"context"
	"net/url"
	"time"

	"github.com/spf13/cobra"
)

// completing is the annotation of commands whose arguments are ids of a kind.
const completing = "ids"

// completes has the arguments of a command completed by the ids of a kind.
func completes(c *cobra.Command, path string) {
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[completing] = path
}

// addCompletion has a server complete the arguments and flags that are names of things
// that it has. One that does not answer at once is not waited for.
func addCompletion(t *terminal, c *cobra.Command) {
	for _, child := range c.Commands() {
		addCompletion(t, child)
	}
	if c.Flags().Lookup("server") == nil {
		return
	}
	if path := c.Annotations[completing]; path != "" && c.ValidArgsFunction == nil {
		c.ValidArgsFunction = ids(t, path)
	}
	for flag, path := range map[string]string{"rule": "rules", "tier": "tiers", "user": "users", "tenant": "tenants", "key": "keys"} {
		if c.Flags().Lookup(flag) != nil {
			_ = c.RegisterFlagCompletionFunc(flag, ids(t, path)) // the flag is there
		}
	}
}

// ids completes the ids of a kind.
func ids(t *terminal, path string) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		const long, many = time.Second, "100"
		ctx, cancel := context.WithTimeout(c.Context(), long)
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
		var list struct {
			Items []struct {
				ID string `json:"id"`
			} `json:"items"`
		}
		if err := a.do(ctx, call{path: "/" + path, query: url.Values{"prefix": {begun}, "limit": {many}}, into: &list}); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var out []string
		for _, i := range list.Items {
			if id := clean(i.ID); id == i.ID {
				out = append(out, id)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
