//go:build race

package layer_test

import "time"

// recovers is how long it may take until a store that is back is used. The race detector makes
// everything take several times as long.
const recovers = 6 * time.Second

// patience is how long a decision may take without a store.
const patience = 500 * time.Millisecond
