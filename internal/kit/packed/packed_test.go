package packed_test

import (
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/kit/packed"
)

func TestText(t *testing.T) {
	t.Parallel()
	want := strings.Repeat("a text that repeats itself, ", 1000)
	b := packed.Pack([]byte(want))
	if text := packed.Text(b); len(b) > len(want)/10 || string(text()) != want || string(text()) != want {
		t.Errorf("%d bytes of %d, unpacked %.50q", len(b), len(want), text())
	}
	defer func() {
		if recover() == nil {
			t.Error("something else is unpacked")
		}
	}()
	packed.Text([]byte(want))()
}
