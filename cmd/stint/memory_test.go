package main_test

import (
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
)

// TestRelief checks when memory is given back: when a server that has some is calm, and once.
func TestRelief(t *testing.T) {
	t.Parallel()
	var r stint.Relief
	for i, row := range []struct {
		mb, cycles uint64
		want       bool
	}{
		{40, 1, false},  // the start
		{41, 1, false},  // it is calm, and there is nothing to give
		{80, 1, true},   // it is calm, and there is some
		{41, 2, false},  // as it was given
		{90, 12, false}, // it is busy
		{85, 20, false},
		{85, 20, true}, // it has become calm
		{60, 21, false},
		{62, 21, false}, // these 60 are in use
		{45, 22, false},
		{60, 22, true},
	} {
		got := r.Note(row.mb<<20, row.cycles)
		if got != row.want {
			t.Errorf("row %d: got %v", i, got)
		}
		if got && i == 2 {
			r.Given(40<<20, 2)
		}
		if got && i == 6 {
			r.Given(60<<20, 21)
		}
	}
}
