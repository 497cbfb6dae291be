package alert

import (
	"maps"
	"slices"
)

// Crash stops a runner as if its process had ended: it keeps the turn until that ends by itself.
func (r *Runner) Crash() {
	r.cancel()
	r.work.Wait()
}

// Busy returns the webhooks to which something is being delivered.
func (r *Runner) Busy() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.busy))
}
