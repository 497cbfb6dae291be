package quiet_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint/internal/kit/quiet"
)

// newLog returns a logger, what it has written without the time, and its handler.
func newLog(by ...string) (*slog.Logger, func() string, *quiet.Handler) {
	var out bytes.Buffer
	var mu sync.Mutex
	h := quiet.New(slog.NewTextHandler(&locked{&mu, &out}, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey && len(groups) == 0 {
				return slog.Attr{}
			}
			return a
		},
	}), by...)
	return slog.New(h), func() string {
		mu.Lock()
		defer mu.Unlock()
		defer out.Reset()
		return out.String()
	}, h
}

type locked struct {
	mu  *sync.Mutex
	out *bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(p)
}

// TestRepeated logs a line again and again.
func TestRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, written, _ := newLog("target")
		want := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := written(); got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		}
		// The first is written at once, whatever its attributes.
		for i := range 1000 {
			log.Warn("failed", "target", "a", "error", "from port "+strconv.Itoa(i))
		}
		want("level=WARN msg=failed target=a error=\"from port 0\"\n")
		// Another target, another message and another level are other lines.
		log.Warn("failed", "target", "b")
		log.With("target", "c").Warn("failed")
		log.Warn("failed")
		log.Error("failed", "target", "a")
		want("level=WARN msg=failed target=b\nlevel=WARN msg=failed target=c\nlevel=WARN msg=failed\nlevel=ERROR msg=failed target=a\n")
		// The last is written, though nothing follows.
		<-time.After(time.Second)
		want("level=WARN msg=failed target=a error=\"from port 999\" left_out=998\n")
		// That one counts, too.
		log.Warn("failed", "target", "a", "n", 1)
		want("")
		<-time.After(time.Second)
		want("level=WARN msg=failed target=a n=1\n")
		// After a second without it, it is new.
		<-time.After(time.Second)
		log.Warn("failed", "target", "a", "n", 2)
		want("level=WARN msg=failed target=a n=2\n")
		<-time.After(time.Hour)
		want("")
	})
}

// TestFlush ends a program that has lines left.
func TestFlush(t *testing.T) {
	t.Parallel()
	log, written, h := newLog()
	for i := range 3 {
		log.Info("a", "n", i)
		log.WithGroup("g").Info("b", "n", i)
	}
	written()
	h.Flush()
	if got, want := written(), "level=INFO msg=a n=2 left_out=1\nlevel=INFO msg=b g.n=2 g.left_out=1\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	h.Flush()
	if got := written(); got != "" {
		t.Error(got)
	}
	if quiet.New(h) != h {
		t.Error("lines are held twice")
	}
}

// TestMany logs more different lines than are told apart, from several goroutines: none is
// lost from the count, and memory is bounded.
func TestMany(t *testing.T) {
	t.Parallel()
	log, written, h := newLog("id")
	const workers, each = 8, 5000
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				log.Error("failed", "id", w*each+i, "error", errors.New("x"))
			}
		})
	}
	wg.Wait()
	h.Flush()
	sum, lines := 0, 0
	for line := range strings.Lines(written()) {
		lines++
		sum++
		if _, count, ok := strings.Cut(line, "left_out="); ok {
			n := 0
			if _, err := fmt.Sscan(count, &n); err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	// A slow machine may need some seconds.
	if sum != workers*each || lines > workers*each/2 {
		t.Errorf("%d lines stand for %d, want %d", lines, sum, workers*each)
	}
	// When it is over, lines are told apart again.
	synctest.Test(t, func(*testing.T) {
		log, written, h := newLog("id")
		for i := range 2 * quiet.MaxLines {
			log.Error("failed", "id", i)
		}
		if n := strings.Count(written(), "\n"); n != quiet.MaxLines+1 {
			t.Errorf("%d lines", n)
		}
		h.Flush()
		written()
		<-time.After(2 * time.Second)
		log.Error("failed", "id", "new")
		log.Error("failed", "id", "newer")
		if got := written(); strings.Count(got, "\n") != 2 {
			t.Error(got)
		}
	})
}

// TestEvery logs lines that must not be left out.
func TestEvery(t *testing.T) {
	t.Parallel()
	log, written, _ := newLog()
	for i := range 3 {
		log.InfoContext(quiet.Every(t.Context()), "a write", "n", i)
	}
	if got, want := written(), "level=INFO msg=\"a write\" n=0\nlevel=INFO msg=\"a write\" n=1\nlevel=INFO msg=\"a write\" n=2\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
