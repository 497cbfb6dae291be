package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/rule"
)

// decisionID matches what is an id, or a part of one, and no path.
var decisionID = regexp.MustCompile(`^[0-9a-fA-F]{8}-?[0-9a-fA-F-]*$`)

// explainDecision explains a recorded decision.
func explainDecision(ctx context.Context, t *terminal, a *client, id string, all bool) error {
	var x struct {
		admin.ExplainedDecision
		Now *struct {
			admin.Explanation
			Rules []rule.Explained `json:"rules"` // the same, in the type that a file has
		} `json:"now,omitempty"`
	}
	if err := a.do(ctx, call{method: http.MethodGet, path: "/decisions/" + url.PathEscape(id), into: &x}); err != nil {
		if hasStatus(err, http.StatusNotFound) {
			return advice{err, "stint events list, to see what is recorded"}
		}
		return err
	}
	passed := x.Event.Outcome == "allowed" || x.Event.Outcome == "throttled" || x.Event.Outcome == "exempt"
	return answer(t.print(x, []admin.Event{x.Event}, func() error {
		for i, s := range x.Steps {
			fmt.Fprintf(t.out, "%d. %s\n", i+1, clean(s))
		}
		if x.Now != nil {
			now := "it would pass"
			switch after := x.Now.RetryAfter; {
			case !x.Now.Allowed && after != nil && *after > 0:
				now = "it would be " + x.Now.Outcome + ", and pass in " + seconds(*after)
			case !x.Now.Allowed:
				now = "it would be " + x.Now.Outcome
			}
			fmt.Fprintf(t.out, "\nNow: %s.\n", now)
		}
		if len(x.Changes) > 0 {
			was := ""
			if x.Revision > 0 {
				was = fmt.Sprintf(" (the rule was that of revision %d)", x.Revision)
			}
			fmt.Fprintf(t.out, "\nChanged since%s:\n", was)
			if err := printTable(t, x.Changes, "", []string{"REVISION", "TIME", "BY", "CHANGE", "FIELDS"}, func(c *admin.Change) []any {
				var fields []string
				for _, f := range c.Fields {
					fields = append(fields, formatDiff(f))
				}
				return []any{c.Revision, c.At, c.Actor, actionSigns[c.Action] + " " + c.Kind + " " + c.ID, fields}
			}); err != nil {
				return err
			}
		}
		if err := printSharing(t, x.Sharing); err != nil {
			return err
		}
		if all && x.Now != nil {
			if err := printRules(t, x.Now.Rules); err != nil {
				return err
			}
		}
		if len(x.Unknown) > 0 {
			fmt.Fprintln(t.out, "\nNot known:")
		}
		for _, s := range x.Unknown {
			fmt.Fprintf(t.out, "- %s\n", clean(s))
		}
		fmt.Fprintf(t.out, "\nFor the customer:\n%s\n", clean(x.Customer))
		return nil
	}), passed)
}

// printSharing prints who used the counter of a decision.
func printSharing(t *terminal, s *admin.Sharing) error {
	if s == nil {
		return nil
	}
	fmt.Fprintf(t.out, "\nThe counter, by %s, from %s on:\n", strings.Join(s.CountBy, ", "), s.From.Format(time.RFC3339))
	s.Own.User = "this client"
	if err := printTable(t, append([]admin.Sharer{s.Own}, s.Others...), "", []string{"CLIENT", "API KEY", "ADDRESS", "PASSED", "DENIED", "LAST"}, func(c *admin.Sharer) []any {
		return []any{cmp.Or(c.User, c.Tenant), c.Key, c.IP, c.Passed, c.Denied, c.Last}
	}); err != nil {
		return err
	}
	if s.More > 0 {
		fmt.Fprintf(t.out, "and %d others\n", s.More)
	}
	return nil
}
