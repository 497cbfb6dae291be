package record_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/internal/test/wait"
)

// childDir is set for the processes that TestKilled kills.
const childDir = "STINT_TEST_RECORD_DIR"

// ledger is a database that is a file of ids, to which it adds.
type ledger struct{ file *os.File }

func (l ledger) Write(_ context.Context, events []record.Event) error {
	if rand.N(3) > 0 {
		return errAway
	}
	var ids []byte
	for i := range events {
		ids = append(ids, events[i].ID[:]...)
	}
	_, err := l.file.Write(ids)
	return err
}

// life is how many events a process may record.
const life = 1 << 20

// child records events, numbered on from what it reads, and prints how many are safe,
// until it is killed.
func child(dir string) int {
	err := func() error {
		var number int
		if _, err := fmt.Scan(&number); err != nil {
			return err
		}
		file, err := os.OpenFile(filepath.Join(dir, "ledger"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		s, err := record.OpenSpool(record.SpoolOptions{Dir: filepath.Join(dir, "spool"), SegmentBytes: 100_000})
		if err != nil {
			return err
		}
		r, err := record.NewRecorder(record.RecorderOptions{Buffer: 256})
		if err != nil {
			return err
		}
		p, err := record.NewPipeline(record.PipelineOptions{Recorder: r, Sink: ledger{file}, Spool: s, Interval: time.Millisecond})
		if err != nil {
			return err
		}
		p.Start(context.Background())
		for range life / 100 {
			recordSome(r, number, number+100)
			number += 100
			for range time.Tick(time.Millisecond) {
				if p.State().Buffered == 0 {
					break
				}
			}
			fmt.Println(number)
		}
		return errors.New("no one has killed it")
	}()
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// TestKilled kills processes that record events. What was written or spooled is there
// in the end, and nothing else but what was recorded.
func TestKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	safe := make([]int, torture.Rounds(4))
	for i := range safe {
		safe[i] = kill(t, exe, dir, i*life)
	}

	s := openSpool(t, record.SpoolOptions{Dir: filepath.Join(dir, "spool")})
	db := new(table)
	if err := load(db, filepath.Join(dir, "ledger")); err != nil {
		t.Fatal(err)
	}
	before := db.len()
	p := newPipeline(t, record.PipelineOptions{Recorder: newRecorder(t, record.RecorderOptions{}), Sink: db, Spool: s})
	p.Start(t.Context())
	wait.For(t, "written", func() bool { return p.State().Spooled == 0 })
	stop(t, p)
	t.Logf("%d events were written and %d spooled", before, db.len()-before)
	if s.Bad() != 0 {
		t.Errorf("%d segments are damaged", s.Bad())
	}
	for i, end := range safe {
		for n := i * life; n < end; n++ {
			if !db.ids[numbered(n)] {
				t.Fatalf("process %d: event %d of %d that were safe is lost", i, n-i*life, end-i*life)
			}
		}
	}
	for id := range db.ids {
		// It was recording the next hundred, at most, when it was killed.
		if n := number(id); n >= safe[n/life]+200 {
			t.Errorf("event %d was never recorded", n)
		}
	}
}

// kill starts a process and kills it after a while, and returns up to which number
// events were safe.
func kill(t *testing.T, exe, dir string, number int) (safe int) {
	t.Helper()
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait() //nolint:errcheck // it is killed
	fmt.Fprintln(in, number)
	lines := bufio.NewReader(out)
	safe = number
	for left := 1 + rand.N(40); ; left-- {
		if left == 0 {
			time.AfterFunc(rand.N(3*time.Millisecond), func() { _ = cmd.Process.Kill() })
		}
		n := 0
		if _, err := fmt.Fscan(lines, &n); err != nil {
			return safe // with what it has printed before it was killed
		}
		safe = n
	}
}

// load reads the file of a ledger.
func load(db *table, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	for {
		var e record.Event
		if _, err := io.ReadFull(file, e.ID[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := db.Write(context.Background(), []record.Event{e}); err != nil {
			return err
		}
	}
}
