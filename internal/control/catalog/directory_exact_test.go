//go:build exact

package catalog_test

import (
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
)

// TestDirectoryAllocations counts what it allocates to look up what is known.
func TestDirectoryAllocations(t *testing.T) {
	f := follow(t, "sqlite::memory:", catalog.Options{}, catalog.NodeOptions{Migrate: true})
	_, k, at, err := f.c.CreateKey(t.Context(), writer, catalog.APIKey{})
	if err != nil {
		t.Fatal(err)
	}
	f.serves(t, at)
	d, ctx := f.Directory(), t.Context()
	for name, ask := range map[string]func() error{
		"key":     func() error { _, err := d.Key(ctx, k.ID); return err },
		"no user": func() error { _, err := d.User(ctx, "no one"); return err },
	} {
		if n := testing.AllocsPerRun(1000, func() {
			if err := ask(); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}
