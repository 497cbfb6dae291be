package wait_test

import (
	"errors"
	"testing"

	"github.com/stintdev/stint/internal/test/wait"
)

func TestFor(t *testing.T) {
	t.Parallel()
	looks := 0
	wait.For(t, "the third look", func() bool { looks++; return looks == 3 })
	wait.Nil(t, "the sixth look", func() error {
		if looks++; looks < 6 {
			return errors.New("too early")
		}
		return nil
	})
	if looks != 6 {
		t.Errorf("%d looks, want 6", looks)
	}
}
