//go:build !scale

package rollup

// Bounds are small here, so that few events are enough to reach them: counting in slices,
// lists of several pages, merging in several steps, heads that have no room for all.
func init() {
	eventsAtOnce, countedApart = 200, 1<<11
	pageSize, pagesAtOnce, headSize, lastSize = 1<<10, 16<<10, 50, 1000
}
