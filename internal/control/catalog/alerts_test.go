package catalog_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

const hidden = "whsec_that_no_one_may_see"

// TestAlerts stores alerts and webhooks. The secrets of webhooks are in no record, export or change.
func TestAlerts(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, ctx := open(t, url), t.Context()
			do := func(_ any, err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			refuses := func(err error, parts ...string) {
				t.Helper()
				if err == nil {
					t.Fatalf("it is accepted, want %q", parts)
				}
				for _, part := range parts {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%v: want %q", err, part)
					}
				}
				if strings.Contains(err.Error(), hidden) {
					t.Errorf("the error has the secret: %v", err)
				}
			}
			secretOf := func(webhook string) string {
				t.Helper()
				all, err := c.Definitions(ctx)
				if err != nil {
					t.Fatal(err)
				}
				for _, w := range all.Webhooks {
					if w.Name == webhook {
						return w.Secret
					}
				}
				return ""
			}
			do(c.Rules.Create(ctx, "ann", catalog.Rule{Name: "search", Limits: []rule.Limit{{Name: "searches", Limit: "5/1m"}}}))
			version, err := c.Webhooks.Create(ctx, "ann", catalog.Webhook{Name: "ops", URL: "https://example.com/{secret}", Secret: hidden})
			do(version, err)
			_, err = c.Webhooks.Create(ctx, "ann", catalog.Webhook{Name: "chat", URL: "https://example.com/{secret}"})
			refuses(err, "secret: missing, and url has {secret}")
			_, err = c.Alerts.Create(ctx, "ann", catalog.Alert{Name: "a", Kind: "rule", Percent: 10, Rule: "serach", Webhooks: []string{"op"}})
			refuses(err, `rule: "serach": want the name of a rule; did you mean "search"?`, `webhooks[0]: "op": want the name of a webhook; did you mean "ops"?`)
			do(c.Alerts.Create(ctx, "ann", catalog.Alert{Name: "a", Kind: "rule", Percent: 10, Rule: "search", Webhooks: []string{"ops"}}))
			refuses(c.Webhooks.Delete(ctx, "ann", "ops", version), `the webhook "ops" cannot be deleted: the alert "a" tells it`)

			// What is written back without the secret keeps it, and the rule that an alert is about may go.
			r, err := c.Webhooks.Get(ctx, "ops")
			do(r, err)
			if r.Value.Secret != "" || r.Value.SecretSet.IsZero() || secretOf("ops") != hidden {
				t.Errorf("%+v, %q", r, secretOf("ops"))
			}
			r.Value.RetryFor = 7200e9
			now, err := c.Webhooks.Update(ctx, "ann", r.Value, r.Version)
			do(now, err)
			if secretOf("ops") != hidden {
				t.Errorf("the secret is now %q", secretOf("ops"))
			}
			of, err := c.Rules.Get(ctx, "search")
			do(of, err)
			do(nil, c.Rules.Delete(ctx, "ann", "search", of.Version))
			do(c.Alerts.Modify(ctx, "ann", "a", func(a *catalog.Alert) error { a.Percent = 20; return nil }))

			// The export can be applied again, and changes nothing.
			d, err := c.Export(ctx, catalog.ExportOptions{Users: true})
			do(d, err)
			if len(d.Alerts) != 1 || len(d.Webhooks) != 1 {
				t.Errorf("%+v", d)
			}
			diff, err := c.Apply(ctx, d, catalog.ApplyOptions{Actor: "ann"})
			if do(diff, err); len(diff.Items) != 0 || secretOf("ops") != hidden {
				t.Errorf("%+v, %q", diff, secretOf("ops"))
			}
			// A document with the same secret changes nothing, and one with another does.
			d.Webhooks[0].Secret = hidden
			if diff, err = c.Apply(ctx, d, catalog.ApplyOptions{Actor: "ann"}); err != nil || len(diff.Items) != 0 {
				t.Errorf("%+v, %v", diff, err)
			}
			d.Webhooks[0].Secret = hidden + "2"
			if diff, err = c.Apply(ctx, d, catalog.ApplyOptions{Actor: "ann"}); err != nil || diff.Count(catalog.Updated) != 1 || secretOf("ops") != hidden+"2" {
				t.Errorf("%+v, %v, %q", diff, err, secretOf("ops"))
			}
			if _, err := c.Apply(ctx, d, catalog.ApplyOptions{Actor: "ann", Fixed: []string{"webhook"}}); err != nil {
				t.Errorf("nothing changes: %v", err)
			}
			d.Webhooks[0].Secret = hidden + "3"
			_, err = c.Apply(ctx, d, catalog.ApplyOptions{Actor: "ann", Fixed: []string{"webhook"}})
			refuses(err, `it would change the webhook "ops"`)

			// A document of before there were alerts prunes none, and one with others does.
			if diff, err = c.Apply(ctx, &catalog.Document{Bans: []catalog.Entry{{User: "x"}}}, catalog.ApplyOptions{Actor: "ann", Prune: true}); err != nil || diff.Count(catalog.Deleted) != 0 {
				t.Errorf("%+v, %v", diff, err)
			}
			diff, err = c.Apply(ctx, &catalog.Document{Alerts: []catalog.Alert{{Name: "h", Kind: "health"}}}, catalog.ApplyOptions{Actor: "ann", Prune: true})
			if do(diff, err); diff.Count(catalog.Deleted) != 3 || secretOf("ops") != "" { // the ban too
				t.Errorf("%+v, %q", diff, secretOf("ops"))
			}
			// What was deleted comes back without its secret.
			diff, err = c.Revert(ctx, catalog.RevertOptions{Actor: "ann", Revision: diff.Revision})
			if do(diff, err); diff.Count(catalog.Created) != 3 || secretOf("ops") != "" {
				t.Errorf("%+v, %q", diff, secretOf("ops"))
			}
			if r, err = c.Webhooks.Get(ctx, "ops"); err != nil || !r.Value.SecretSet.IsZero() {
				t.Errorf("%+v, %v", r, err)
			}
			changes, _, err := c.Changes(ctx, catalog.ChangeQuery{Limit: 1000})
			do(changes, err)
			if text, _ := json.Marshal(changes); strings.Contains(string(text), hidden) || !strings.Contains(string(text), "secret_set") {
				t.Errorf("the log of changes: %s", text)
			}
		})
	}
}
