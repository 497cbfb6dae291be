package rollup_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/torture"
)

// each runs a test with a store in each kind of database, where it is always the same time.
func each(t *testing.T, now time.Time, test func(t *testing.T, s *rollup.Store, db *database.DB)) {
	t.Helper()
	testdatabase.Each(t, func(t *testing.T, url string) {
		t.Helper()
		db := recordtest.Open(t, url)
		test(t, recordtest.Store(t, db, recordtest.At(now)), db)
	})
}

func rollUp(t testing.TB, s *rollup.Store) int {
	t.Helper()
	n, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", strconv.Itoa(torture.Rounds(15))); err != nil {
		panic(err)
	}
	code := m.Run()
	testpostgres.StopShared()
	buf := make([]byte, 1<<20)
	if stacks := string(buf[:runtime.Stack(buf, true)]); code == 0 && strings.Contains(stacks, "rollup.(*Store)") {
		fmt.Fprintf(os.Stderr, "goroutines are left:\n%s\n", stacks)
		code = 1
	}
	os.Exit(code)
}
