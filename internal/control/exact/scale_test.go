//go:build scale

package exact_test

import "testing"

// TestScaleSame is TestSame with a million requests.
func TestScaleSame(t *testing.T) { same(t, world(t), 1_000_000) }
