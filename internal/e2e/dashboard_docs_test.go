package e2e_test

import (
	"fmt"
	"testing"
)

// TestDocs reads the documentation of the APIs, without a token: it loads nothing from elsewhere, and is accessible.
func TestDocs(t *testing.T) {
	t.Parallel()
	s := newSite(t, inSQLite)
	for _, size := range [][2]int64{wide, narrow} {
		w := newTab(t, s.admin, size)
		w.open("/docs")
		w.injectAxe()
		w.settled("API documentation")
		w.says("Stint admin API", "Stint decision API", "/keys/{id}/rotate", "/v1/check")
		w.fill("Search the documentation", "rotate key")
		w.until(func() error {
			if n := eval[int](w, `document.querySelectorAll('main details').length`); n != 2 {
				return fmt.Errorf("%d operations are shown, want 2", n)
			}
			return nil
		})
		w.fill("Search the documentation", "")
		w.visit("/#createKey") // as a link does
		w.says("Role operator or admin", "Idempotency-Key", "curl -s -X POST", "mobile app", "Fields of value")
		w.looks("docs", size)
	}
	w := newTab(t, s.admin, wide)
	w.open("/docs#decisions-check")
	w.says("Stint decision API", "curl -s -X POST")
}
