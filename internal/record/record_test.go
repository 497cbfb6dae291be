package record_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

func newRecorder(tb testing.TB, o record.RecorderOptions) *record.Recorder {
	tb.Helper()
	r, err := record.NewRecorder(o)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func openSpool(tb testing.TB, o record.SpoolOptions) *record.Spool {
	tb.Helper()
	s, err := record.OpenSpool(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
	return s
}

// numbered returns the id of the event of a number. All are of one shard.
func numbered(n int) (id engine.ID) {
	binary.BigEndian.PutUint64(id[:], uint64(n))
	return id
}

// number returns the number of an id.
func number(id engine.ID) int { return int(binary.BigEndian.Uint64(id[:])) }

// events returns what is in a batch.
func events(tb testing.TB, b record.Batch) []record.Event {
	tb.Helper()
	out, size, err := b.Events(nil, 1<<30)
	if err != nil || size != len(b) {
		tb.Fatalf("%d bytes of %d: %v", size, len(b), err)
	}
	return out
}

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(child(dir))
	}
	code := m.Run()
	testpostgres.StopShared()
	buf := make([]byte, 1<<20)
	stacks := string(buf[:runtime.Stack(buf, true)])
	if code == 0 && (strings.Contains(stacks, "record.(*Pipeline)") || strings.Contains(stacks, "record.(*Store)")) {
		fmt.Fprintf(os.Stderr, "goroutines are left:\n%s\n", stacks)
		code = 1
	}
	os.Exit(code)
}
