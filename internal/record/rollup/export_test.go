//go:build !scale

package rollup

// Bounds are small here, so that few events are enough to reach them: counting in slices,
// lists of several pages, merging in several steps, heads that have no room for all.
func init() {
	eventsAtOnce, countedApart = 200, 1<<11
	pageSize, pagesAtOnce, headSize, lastSize = 1<<10, 16<<10, 50, 1000
}

// SetSeen sets the bounds of names that were seen, and returns a function that resets them.
func SetSeen(fresh, known, all int) (reset func()) {
	a, b, c := maxNewSeen, maxKnownSeen, maxSeen
	maxNewSeen, maxKnownSeen, maxSeen = fresh, known, all
	return func() { maxNewSeen, maxKnownSeen, maxSeen = a, b, c }
}
