package catalog

import (
	"context"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// kindCounters is the kind of resets of counters in the log of changes. Nodes ignore them.
const kindCounters = "counters"

// maxSubject is how many bytes of a subject the log has. PostgreSQL has no index for longer
// ones.
const maxSubject = 1024

// LogReset logs that an actor deletes the counters of a subject, such as user:alice: those
// of one rule or, if it is empty, of all.
func (c *Catalog) LogReset(ctx context.Context, actor, subject, rule string) error {
	subject = strings.ReplaceAll(strings.ToValidUTF8(subject, "\uFFFD"), "\x00", "\uFFFD")
	if len(subject) > maxSubject {
		end := maxSubject
		for !utf8.RuneStart(subject[end]) {
			end--
		}
		subject = subject[:end]
	}
	body, err := json.Marshal(struct {
		Rule string `json:"rule,omitempty"`
	}{rule})
	if err != nil {
		return err
	}
	_, err = c.write(ctx, actor, func(t *tx) error {
		t.note(Change{Kind: kindCounters, ID: subject, Before: body}, "")
		return nil
	})
	return err
}
