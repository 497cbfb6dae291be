package stint_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
)

// TestDivide holds the multiplication that stands for a division to it, above all where it would
// go wrong first: at and next to multiples of the divisor, and for large numbers.
func TestDivide(t *testing.T) {
	t.Parallel()
	const most = 1<<53 - 1
	check := func(t interface{ Fatalf(string, ...any) }, a, n int64) {
		if a < 0 || a > most {
			return
		}
		floor, ceil := stint.Divide(a, n)
		if wantFloor, wantCeil := a/n, (a+n-1)/n; floor != wantFloor || ceil != wantCeil {
			t.Fatalf("%d / %d: %d and %d, want %d and %d", a, n, floor, ceil, wantFloor, wantCeil)
		}
	}
	around := func(t interface{ Fatalf(string, ...any) }, a, n int64) {
		for _, a := range [...]int64{a, a - a%n, most, most - most%n} {
			for d := int64(-1); d <= 1; d++ {
				check(t, a+d, n)
			}
		}
	}
	for power := range 53 {
		for d := int64(-1); d <= 1; d++ {
			if n := int64(1)<<power + d; n > 0 {
				around(t, most/2, n)
				around(t, n, n)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, most>>rapid.IntRange(0, 52).Draw(t, "fewer")).Draw(t, "n")
		around(t, rapid.Int64Range(0, most).Draw(t, "a"), n)
	})
}
