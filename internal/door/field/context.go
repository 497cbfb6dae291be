package field

import (
	"context"

	"github.com/stintdev/stint/engine"
)

// Decided is the context of a request that has passed.
type Decided struct {
	context.Context
	Verdict engine.Verdict
}

type verdictKey struct{}

// Value implements [context.Context].
func (d *Decided) Value(key any) any {
	if key == (verdictKey{}) {
		return &d.Verdict
	}
	return d.Context.Value(key)
}

// VerdictOf returns the verdict on the request of the context, or nil if there is none.
func VerdictOf(ctx context.Context) *engine.Verdict {
	v, _ := ctx.Value(verdictKey{}).(*engine.Verdict)
	return v
}
