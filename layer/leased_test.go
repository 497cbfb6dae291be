package layer_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/storetest"
)

// TestLeaseTraces compares leases with the specification, within the bounds that they declare.
func TestLeaseTraces(t *testing.T) {
	t.Parallel()
	const term = 50 * time.Millisecond
	storetest.RunLeased(t, term, func(t testing.TB) stint.Store {
		t.Helper()
		m, err := memstore.New(memstore.Options{Now: time.Now})
		return must(t)(layer.Lease(must(t)(m, err), layer.LeaseOptions{Begin: 2}))
	})
}

// TestLeaseConforms runs the suite through leases that nothing asks for.
func TestLeaseConforms(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB, now func() time.Time) stint.Store {
		t.Helper()
		return must(t)(layer.Lease(memory(t, now), layer.LeaseOptions{}))
	})
}

var _ = synctest.Wait
