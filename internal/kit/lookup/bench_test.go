package lookup_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stintdev/stint/internal/kit/lookup"
)

// BenchmarkGet reads fresh answers, of 100,000: always the same id, ids as they come
// (a few often, most rarely), and all alike, which is what the memory costs.
func BenchmarkGet(b *testing.B) {
	const n = 100_000
	c, err := lookup.New(lookup.Options[int]{
		Size: 2 * n,
		Load: func(context.Context, string) (lookup.Answer[int], error) {
			return lookup.Answer[int]{Value: new(int)}, nil
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	ids := make([]string, n)
	for i := range ids {
		ids[i] = "key_" + strconv.Itoa(i)
		if _, err := c.Get(b.Context(), ids[i]); err != nil {
			b.Fatal(err)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	skewed := rand.NewZipf(random, 1.1, 1, n-1)
	for _, bench := range []struct {
		name string
		next func() int
	}{
		{"one", func() int { return 1 }},
		{"skewed", func() int { return int(skewed.Uint64()) }},
		{"alike", func() int { return random.IntN(n) }},
	} {
		asked := make([]string, 1<<16)
		for i := range asked {
			asked[i] = ids[bench.next()]
		}
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := rand.IntN(len(asked)); pb.Next(); i++ {
					if v, err := c.Get(b.Context(), asked[i%len(asked)]); v == nil || err != nil {
						b.Error(v, err)
					}
				}
			})
		})
	}
}
