package replay

import (
	"context"
	"iter"

	"github.com/stintdev/stint/internal/control/recorded"
)

// RunTelling is [Run], and calls a function with how many of the requests of each event the sets deny.
func RunTelling(ctx context.Context, o Options, requests iter.Seq2[recorded.Request, error], told func(event int64, denied []int64)) (Report, error) {
	r := newRun(ctx, o)
	r.told = told
	return r.run(requests)
}

// SetBounds lowers the bounds.
func SetBounds(keys, names int) { maxKeys, maxNames = keys, names }
