package catalog_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/wait"
)

// TestBoard has two processes that leave notes for each other, which end.
func TestBoard(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			furnished(t, url)
			a, b := connect(t, url).Board(), connect(t, url).Board()
			asked := func(want ...string) error {
				got, err := b.Asked(t.Context(), "counts", "decisions")
				if slices.Sort(got); err != nil || !slices.Equal(got, want) {
					return fmt.Errorf("%v, %w; want %v", got, errors.Join(err), want)
				}
				return nil
			}
			do := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			do(asked())
			do(a.Ask(t.Context(), "counts", time.Hour))
			do(a.Ask(t.Context(), "decisions", time.Millisecond))
			do(a.Ask(t.Context(), "something else", time.Hour))
			wait.Nil(t, "the end of a question", func() error { return asked("counts") })
			do(a.Ask(t.Context(), "decisions", time.Hour))
			do(asked("counts", "decisions"))

			do(a.Post(t.Context(), "a", []byte{0, 1, 255}, time.Hour))
			do(b.Post(t.Context(), "b", []byte("old"), time.Millisecond))
			wait.Nil(t, "the end of the old note", func() error {
				all, err := a.Notes(t.Context(), "a")
				if err != nil || len(all) != 1 || !slices.Equal(all["a"], []byte{0, 1, 255}) {
					return fmt.Errorf("%v, %w", all, errors.Join(err))
				}
				return nil
			})
			do(b.Post(t.Context(), "b", []byte("new"), time.Hour))
			if all, err := a.Notes(t.Context(), "a"); err != nil || len(all) != 2 || string(all["b"]) != "new" {
				t.Errorf("%v, %v", all, err)
			}
		})
	}
}
