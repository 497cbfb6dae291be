package slot_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/stintdev/stint/internal/kit/slot"
)

// TestOf has slots as Redis' CLUSTER KEYSLOT says them.
func TestOf(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int{
		"": 0, "123456789": 0x31c3, "foo": 12182, "a{foo}b": 12182, "{foo}{bar}": 12182, "{}foo": 9500, "foo{": 7673, "{foo": 13308,
	} {
		if got := slot.Of(key); got != want {
			t.Errorf("%q: %d, want %d", key, got, want)
		}
		if got := slot.Of([]byte(key)); got != want {
			t.Errorf("%q as bytes: %d, want %d", key, got, want)
		}
	}
}

// TestEndings checks what endings of one length do to a slot.
func TestEndings(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[^{}]{0,40}`).Draw(t, "text")
		a, b := rapid.StringMatching(`[0-9a-z]{3}`).Draw(t, "a"), rapid.StringMatching(`[0-9a-z]{3}`).Draw(t, "b")
		if slot.Of(text+a)^slot.Of(text+b) != slot.Of(a)^slot.Of(b) {
			t.Fatalf("%q and %q after %q", a, b, text)
		}
	})
}
