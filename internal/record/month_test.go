package record_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/record"
)

func TestParseMonth(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "2026", "2026-13", "2026-1", "26-01", "2026-01-01", "../2026-01", "x"} {
		if m, err := record.ParseMonth(text); err == nil || !strings.Contains(err.Error(), "as 2026-01") {
			t.Errorf("%q: %v, %v", text, m, err)
		}
	}
	if m, err := record.ParseMonth("2024-12"); err != nil || m.String() != "2024-12" || m.End() != time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC) {
		t.Errorf("got %v, %v", m, err)
	}
}
