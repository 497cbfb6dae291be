package sim

import (
	"context"
	"iter"
)

// RunTelling is Run, and calls a function with the outcome of each request, by its number
// from 1.
func RunTelling(ctx context.Context, o Options, requests iter.Seq2[Request, error], told func(event int64, refused bool)) (Preview, error) {
	r, err := newReplay(o)
	if err != nil {
		return Preview{}, err
	}
	r.told = told
	return r.run(ctx, o, requests)
}
