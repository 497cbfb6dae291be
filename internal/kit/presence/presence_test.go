package presence_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint/internal/kit/presence"
)

const interval = 5 * time.Second

// world is a store of heartbeats, and a node that reads it.
type world struct {
	t      *testing.T
	log    bytes.Buffer
	roster *presence.Roster
	beats  map[string]int64
	left   []string
}

func start(t *testing.T, file string) *world {
	t.Helper()
	w := &world{t: t, beats: map[string]int64{}}
	w.roster = presence.New(presence.Options{Self: "me", Interval: interval, File: file, Log: slog.New(slog.NewTextHandler(&w.log, nil))})
	return w
}

// read has the node read the store after an interval, in which these nodes have sent a heartbeat.
func (w *world) read(alive ...string) {
	w.t.Helper()
	<-time.After(interval)
	for _, n := range append(alive, "me") {
		w.beats[n]++
	}
	var beats []presence.Beat
	for n, at := range w.beats {
		beats = append(beats, presence.Beat{Node: n, At: at})
	}
	w.roster.Seen(w.t.Context(), beats, w.left)
	w.left = nil
}

// away has the node fail to read the store for some time.
func (w *world) away(long time.Duration) {
	w.t.Helper()
	for begin := time.Now(); time.Since(begin) < long; <-time.After(interval) {
		w.roster.Failed(w.t.Context(), errors.New("away"))
	}
}

func (w *world) counts(want int) {
	w.t.Helper()
	if got := w.roster.Count(); got != want {
		w.t.Errorf("%d nodes, want %d", got, want)
	}
}

func TestRises(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := start(t, "")
		w.counts(1)
		w.read("a", "b")
		w.counts(3)
		w.read("a", "b", "c")
		w.counts(4)
	})
}

// TestFalls has nodes fall silent, and leave.
func TestFalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := start(t, "")
		w.read("a", "b", "c")
		w.left = []string{"c"}
		delete(w.beats, "c")
		w.read("a", "b")
		w.counts(3)
		// A node is gone a lifetime after its last heartbeat, whether the store still has it or not.
		delete(w.beats, "a")
		begin := time.Now()
		for w.roster.Count() == 3 {
			w.read()
		}
		w.counts(1)
		if took := time.Since(begin); took < w.roster.Lifetime() || took > w.roster.Lifetime()+2*interval {
			t.Errorf("gone after %v, want %v", took, w.roster.Lifetime())
		}
	})
}

// TestOutage has the store go away for long, and come back empty.
func TestOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := start(t, "")
		w.read("a", "b")
		w.read("a") // b is silent for a while already
		w.away(10 * time.Minute)
		w.counts(3)
		clear(w.beats)
		for range 3 {
			w.read("a") // while it can be read
			w.counts(3)
		}
		w.away(interval) // which begins anew
		for range 4 {
			w.read("a")
			w.counts(3)
		}
		w.read("a")
		w.counts(2)
		// Logged once a minute, and once when it is over.
		if warned, told := strings.Count(w.log.String(), "cannot be counted"), strings.Count(w.log.String(), "counted again"); warned != 10 && warned != 11 || told != 2 {
			t.Errorf("%d warnings and %d notes:\n%s", warned, told, w.log.String())
		}
	})
}

// TestPause has this process not run for long: the others are not gone for that.
func TestPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := start(t, "")
		w.read("a", "b")
		<-time.After(time.Hour)
		w.read()
		w.counts(3)
	})
}

// TestStart has a node start while the store is away: it begins with the last number, which is kept for a
// lifetime after the store is back.
func TestStart(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "state", "nodes")
	synctest.Test(t, func(t *testing.T) {
		start(t, file).read("a", "b", "c")
		w := start(t, file)
		w.counts(4)
		w.away(time.Minute)
		w.counts(4)
		for range 4 {
			w.read("a")
			w.counts(4)
		}
		w.read("a")
		w.counts(2)
		start(t, file).counts(2)
		for _, bad := range []string{"", "x", "0", "-3", "1e9", "99999999999999999999"} {
			if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
				t.Fatal(err)
			}
			start(t, file).counts(1)
		}
		// A file that cannot be written is logged once.
		w = start(t, filepath.Join(file, "below"))
		w.read("a")
		w.read("b")
		w.counts(3)
		if n := strings.Count(w.log.String(), "cannot be kept"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, w.log.String())
		}
	})
}

func TestProblem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := start(t, "")
		w.read("a")
		w.away(interval)
		if p := w.roster.Problem(); !strings.Contains(p, "2 are assumed: away") {
			t.Errorf("%q", p)
		}
		w.read("a")
		if p := w.roster.Problem(); p != "" {
			t.Errorf("%q, want none", p)
		}
		if m := w.roster.Missing([]presence.Beat{{Node: "me"}, {Node: "z"}}); len(m) != 1 || m[0] != "a" {
			t.Errorf("missing %v, want a", m)
		}
	})
}
