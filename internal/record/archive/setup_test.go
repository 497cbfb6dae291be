package archive_test

import (
	"flag"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "40"); err != nil { // unless -rapid.checks says otherwise
		panic(err)
	}
	os.Exit(m.Run())
}
