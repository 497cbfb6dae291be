package quota

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/stintdev/stint"
)

// Part returns part i of a limit that is divided by weights, which may be percent, parts per million or
// anything else that is not negative. The parts of Max add up to that of the limit, and so do those of Burst,
// whatever the weights: what is left over by rounding goes to the largest remainders, and among equal ones to
// the first. A part has at least one unit of each that it needs.
//
// The burst is divided in proportion to the parts of Max, so that all parts drain in the same time, up to
// rounding. In a leaky_bucket, these are the slots that may wait. The slot that is free at once is not divided:
// each part has one.
//
// It returns false for a part of nothing, which has to deny every cost: that of a weight of 0, and of those
// with the smallest remainders if the limit has fewer units than there are weights.
//
// A bucket of more than 2^53 units times seconds of its window may have parts that would not be exact. These
// have a smaller burst, the largest that is. All others add up exactly.
func Part(l stint.Limit, weights []int, i int) (part stint.Limit, ok bool) {
	if l.Validate() != nil {
		return l, true // whoever is asked says what is wrong with it
	}
	part = l
	if part.Max, part.Burst = divide(l, weights, i); part.Max == 0 {
		return stint.Limit{}, false
	}
	return exact(part), true
}

// divide returns part i of a limit's Max and Burst.
func divide(l stint.Limit, weights []int, i int) (units, burst int64) {
	parts := apportion(l.Max, weights, true)
	switch {
	case l.Burst == 0:
		return parts[i], 0
	case l.Algorithm == stint.LeakyBucket:
		return parts[i], apportion(l.Burst, parts, false)[i]
	}
	bursts := apportion(l.Burst, parts, true)
	if slices.Contains(bursts, 0) {
		// A bucket that holds nothing passes nothing: the others get its rate, too.
		able := slices.Clone(weights)
		for j := range able {
			if bursts[j] == 0 {
				able[j] = 0
			}
		}
		parts = apportion(l.Max, able, true)
		bursts = apportion(l.Burst, parts, true)
	}
	return parts[i], bursts[i]
}

// apportion divides a number in proportion to weights, by largest remainders. If each is to have one, those
// that would have none are given one by whoever has most, and if there are not enough, the largest weights
// have one each.
func apportion[W int | int64](all int64, weights []W, each bool) []int64 {
	parts, rests, order := make([]int64, len(weights)), make([]uint64, len(weights)), make([]int, len(weights))
	var sum uint64
	having := int64(0)
	for i, w := range weights {
		order[i] = i
		sum += uint64(w)
		if w > 0 {
			having++
		}
	}
	if each && all < having {
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(weights[b], weights[a]) })
		for _, i := range order[:all] {
			parts[i] = 1
		}
		return parts
	}
	if sum == 0 {
		return parts
	}
	left := all
	for i, w := range weights {
		high, low := bits.Mul64(uint64(all), uint64(w))
		q, rest := bits.Div64(high, low, sum) // no weight is above the sum
		parts[i], rests[i] = int64(q), rest
		left -= int64(q)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rests[b], rests[a]) })
	for _, i := range order[:left] { // which is less than there are rests
		parts[i]++
	}
	for i, w := range weights {
		if each && w > 0 && parts[i] == 0 {
			parts[i]++
			parts[largest(parts)]--
		}
	}
	return parts
}

func largest(parts []int64) int {
	at := 0
	for i := range parts {
		if parts[i] > parts[at] {
			at = i
		}
	}
	return at
}

// exact returns the limit with the largest burst at which it is valid. Of the parts of a valid limit only those
// of a bucket can be invalid: the rate may have a smaller divisor in common with the window.
func exact(l stint.Limit) stint.Limit {
	if l.Validate() == nil {
		return l
	}
	valid, invalid := int64(1), l.Burst // a burst of one is valid at any rate
	if invalid == 0 {
		invalid = l.Max // of a token_bucket
	}
	for invalid-valid > 1 {
		if l.Burst = valid + (invalid-valid)/2; l.Validate() == nil {
			valid = l.Burst
		} else {
			invalid = l.Burst
		}
	}
	l.Burst = valid
	return l
}
