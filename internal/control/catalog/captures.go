package catalog

import (
	"context"
	"encoding/json"
	"time"
)

// kindCapture is the kind of captures of decisions in the log of changes. Nodes ignore them.
const kindCapture = "capture"

// LogCapture logs that an actor has the decisions of a node captured.
func (c *Catalog) LogCapture(ctx context.Context, actor, node string, length time.Duration, maxBytes int64) error {
	body, err := json.Marshal(struct {
		Seconds  float64 `json:"for_seconds"`
		MaxBytes int64   `json:"max_bytes"`
	}{length.Seconds(), maxBytes})
	if err != nil {
		return err
	}
	_, err = c.write(ctx, actor, func(t *tx) error {
		t.note(Change{Kind: kindCapture, ID: node, After: body}, "")
		return nil
	})
	return err
}
