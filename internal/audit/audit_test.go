package audit_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/audit"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

func newRecorder(tb testing.TB, o audit.RecorderOptions) *audit.Recorder {
	tb.Helper()
	r, err := audit.NewRecorder(o)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func openSpool(tb testing.TB, o audit.SpoolOptions) *audit.Spool {
	tb.Helper()
	s, err := audit.OpenSpool(o)
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
func events(tb testing.TB, b audit.Batch) []audit.Event {
	tb.Helper()
	out, size, err := b.Events(nil, 1<<30)
	if err != nil || size != len(b) {
		tb.Fatalf("%d bytes of %d: %v", size, len(b), err)
	}
	return out
}

// eventually waits until something is so.
func eventually(tb testing.TB, what string, is func() bool) {
	tb.Helper()
	if !poll(time.Minute, is) {
		tb.Fatal("not " + what)
	}
}

// poll asks until something is so, or for some time.
func poll(most time.Duration, is func() bool) bool {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(most); !is(); <-tick.C {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(child(dir))
	}
	code := m.Run()
	testpostgres.StopShared()
	buf := make([]byte, 1<<20)
	stacks := string(buf[:runtime.Stack(buf, true)])
	if code == 0 && (strings.Contains(stacks, "audit.(*Pipeline)") || strings.Contains(stacks, "audit.(*Store)")) {
		fmt.Fprintf(os.Stderr, "goroutines are left:\n%s\n", stacks)
		code = 1
	}
	os.Exit(code)
}
