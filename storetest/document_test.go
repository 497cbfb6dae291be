package storetest

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/stintdev/stint/internal/test/testdoc"
	"github.com/stintdev/stint/memstore"
)

// TestDocument runs the scripts of docs/behaviour-scripts.md, and has one fail as it says.
func TestDocument(t *testing.T) {
	t.Parallel()
	blocks := testdoc.In(t, "docs/behaviour-scripts.md", "text")
	if len(blocks) != 6 {
		t.Fatalf("it has %d blocks, want a script, limits, a penalty, a step, a start and a failure", len(blocks))
	}
	run := func(t rapid.TB, name, text string) {
		s, err := ParseScript(name, text)
		if err != nil {
			t.Fatal(err)
		}
		clock := NewClock()
		store, err := memstore.New(memstore.Options{Now: clock.Now})
		if err != nil {
			t.Fatal(err)
		}
		s.Run(t, store, clock)
	}
	run(t, "script", blocks[0].Text)
	for _, b := range []testdoc.Block{blocks[1], blocks[2], blocks[4]} {
		run(t, "lines", b.Text+"limit 10/1s\nat 0s take alice -> allow\n")
	}
	if line := blocks[3].Text; !strings.HasPrefix(line, "at TIME VERB SUBJECT ") {
		t.Errorf("a step is %s", line)
	}
	failure := attempt(func(t rapid.TB) {
		run(t, "token_bucket-burst.txt", "#\nlimit 20/1s token_bucket\n\nat 0s take alice x20 -> allow\n\nat 0s take alice -> deny retry=100ms")
	})
	if strings.TrimSpace(failure) != strings.TrimSpace(blocks[5].Text) {
		t.Errorf("got %s\nwant %s", failure, blocks[5].Text)
	}
}
