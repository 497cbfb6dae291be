package daemon

import (
	"time"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/ruletest"
	"github.com/stintdev/stint/rule"
)

// Tested returns what tests of rules need: how a node with this configuration decides requests by a catalog. The
// catalog must not be changed afterwards.
func (c *Config) Tested(d *catalog.Document) (o ruletest.Options, err error) {
	content := Content{Keys: len(d.APIKeys) > 0}
	if content.Lists, err = d.Lists(); err != nil {
		return o, err
	}
	o = ruletest.Options{
		Rules: d.File, Headers: c.headers(), MaxPath: c.Server.MaxPath, MaxWaiting: c.Server.MaxWaiting, MaxKeys: c.Server.MaxKeys,
		Identity: func(now func() time.Time) (*identity.Resolver, error) {
			from := content
			from.Directory = d.Directory(now)
			return c.Resolver(from, nil)
		},
	}
	o.Rules.Case = rule.Case(c.Server.Case)
	return o, nil
}
