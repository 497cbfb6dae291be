package database_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/wait"
)

// open opens a file, with a table for numbers.
func open(t *testing.T, path string) *database.DB {
	t.Helper()
	d, err := database.Open("sqlite:" + path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := d.Write.ExecContext(t.Context(), "CREATE TABLE IF NOT EXISTS numbers (n INTEGER PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	return d
}

// put writes a number in a transaction, as all writers do.
func put(ctx context.Context, d *database.DB, n int) error {
	tx, err := d.Write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit there is nothing to undo
	if _, err := tx.ExecContext(ctx, "INSERT INTO numbers (n) VALUES ($1)", n); err != nil {
		return err
	}
	return tx.Commit()
}

// numbers returns what a file has, as another process reads it.
func numbers(t *testing.T, path string) map[int]bool {
	t.Helper()
	d, err := database.Open("sqlite:" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	rows, err := d.Read.QueryContext(t.Context(), "SELECT n FROM numbers")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	out := map[int]bool{}
	for rows.Next() {
		var n int
		if err := rows.Scan(&n); err != nil {
			t.Fatal(err)
		}
		out[n] = true
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func remove(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// backup returns the path of a complete copy of a database with one number.
func backup(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backup.db")
	d := open(t, path)
	if err := put(t.Context(), d, n); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// watch returns a channel that gets a value whenever something may have changed.
func watch(t *testing.T, d *database.DB) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	notified := make(chan struct{}, 1)
	var work sync.WaitGroup
	work.Go(func() {
		d.Watch(ctx, func() {
			select {
			case notified <- struct{}{}:
			default:
			}
		})
	})
	t.Cleanup(func() { cancel(); work.Wait() })
	<-notified // it watches
	return notified
}

// TestMovedFile takes the file of a database away while it is in use. That is noticed, and
// no write succeeds until there is another file, which then has it.
func TestMovedFile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		take func(t *testing.T, path string)
		kept string // where its content is now, beside the path
	}{
		"deleted": {take: func(t *testing.T, path string) { t.Helper(); remove(t, path) }},
		"deleted with its log": {take: func(t *testing.T, path string) {
			t.Helper()
			remove(t, path, path+"-wal", path+"-shm")
		}},
		"renamed":   {take: func(t *testing.T, path string) { t.Helper(); rename(t, path, path+".old") }, kept: ".old"},
		"truncated": {take: func(t *testing.T, path string) { t.Helper(); must(t, os.Truncate(path, 0)) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "stint.db")
			d := open(t, path)
			notified := watch(t, d)
			reading, err := d.Read.Conn(t.Context()) // one more, so that there are several
			if err != nil {
				t.Fatal(err)
			}
			must(t, put(t.Context(), d, 1))
			must(t, reading.Close())
			<-notified // of the write
			c.take(t, path)
			// Neither in a transaction, nor without.
			if err := put(t.Context(), d, 2); !errors.Is(err, database.ErrUnavailable) || !errors.Is(err, database.ErrMoved) {
				t.Errorf("a write: %v", err)
			}
			if _, err := d.Write.ExecContext(t.Context(), "INSERT INTO numbers (n) VALUES (3)"); !errors.Is(err, database.ErrMoved) {
				t.Errorf("a statement: %v", err)
			}
			if err := d.Read.QueryRowContext(t.Context(), "SELECT n FROM numbers").Scan(new(int)); !errors.Is(err, database.ErrMoved) {
				t.Errorf("a query: %v", err)
			}
			<-notified
			if _, err := os.Stat(path); err == nil && name != "truncated" {
				t.Error("the file was created again")
			}
			if c.kept != "" {
				if got := numbers(t, path+c.kept); !got[1] || len(got) != 1 {
					t.Errorf("the renamed file has %v", got)
				}
			}
			rename(t, backup(t, 10), path)
			wait.Nil(t, "the other file is used", func() error { return put(t.Context(), d, 11) })
			if got := numbers(t, path); len(got) != 2 || !got[10] || !got[11] {
				t.Errorf("the file in its place has %v, want 10 and 11", got)
			}
		})
	}
}

// TestMovedUnderWriters replaces the file again and again while there are writers and
// readers. Each number of which a writer was told that it is stored is in a file that was
// there when it began, or later; and no file is damaged.
func TestMovedUnderWriters(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "stint.db")
	d := open(t, path)
	watch(t, d)
	const writers, rounds = 3, 5
	var (
		next, round atomic.Int64
		mu          sync.Mutex
		stored      = map[int]int64{} // the round in which its write began
		work        sync.WaitGroup
	)
	ctx, cancel := context.WithCancel(t.Context())
	for range writers {
		work.Go(func() {
			for ctx.Err() == nil {
				n, began := int(next.Add(1)), round.Load()
				if put(ctx, d, n) == nil {
					mu.Lock()
					stored[n] = began
					mu.Unlock()
				}
			}
		})
	}
	work.Go(func() {
		for ctx.Err() == nil {
			_ = d.Read.QueryRowContext(ctx, "SELECT count(*) FROM numbers").Scan(new(int))
		}
	})
	progress := func() {
		t.Helper()
		mu.Lock()
		before := len(stored)
		mu.Unlock()
		must(t, testserver.Poll(time.Minute, func() error {
			mu.Lock()
			defer mu.Unlock()
			if len(stored) < before+20 {
				return errors.New("nothing is written")
			}
			return nil
		}))
	}
	olds := make([]string, 0, rounds)
	for i := range rounds {
		progress()
		old := path + ".old" + string(rune('0'+i))
		fresh := backup(t, -1-i)
		// A link keeps what is replaced, so that it can be read.
		must(t, os.Link(path, old))
		rename(t, fresh, path)
		round.Add(1)
		olds = append(olds, old)
	}
	progress()
	cancel()
	work.Wait()
	must(t, d.Close())
	has := make([]map[int]bool, 0, rounds+1)
	for _, file := range append(olds, path) {
		var state string
		other, err := sql.Open("sqlite", file)
		must(t, err)
		must(t, other.QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&state))
		must(t, other.Close())
		if state != "ok" {
			t.Errorf("%s: %s", file, state)
		}
		has = append(has, numbers(t, file))
	}
	lost := 0
	for n, began := range stored {
		found := false
		for _, file := range has[began:] {
			found = found || file[n]
		}
		if !found {
			lost++
		}
	}
	t.Logf("%d writes succeeded, of %d", len(stored), next.Load())
	if lost > 0 {
		t.Errorf("%d of %d writes that succeeded are lost", lost, len(stored))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
