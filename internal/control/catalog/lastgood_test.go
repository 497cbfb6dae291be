package catalog_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/torture"
)

// goodFile returns the one file in a directory.
func goodFile(t testing.TB, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "last-good-*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v: want one file", files, err)
	}
	return files[0]
}

func TestStartWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	server := testpostgres.Start(t)
	url, dir := server.Database(t), t.TempDir()
	c := furnished(t, url)
	at := ban(t, c, "eve")
	node := catalog.NodeOptions{LastGood: dir, Poll: often}
	follow(t, url, catalog.Options{}, node).stop()
	server.Kill(t)

	// Who asks, and how, makes no difference.
	other := strings.NewReplacer("postgres@", "someone:secret@", "sslmode=disable", "sslmode=prefer&application_name=x").Replace(url)
	for _, url := range []string{url, other} {
		f := newFollower(t, url, catalog.Options{}, node)
		s, err := f.First(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s.Revision != at || s.Rules.Len() != 1 || !banned(s, "eve") {
			t.Errorf("it begins with revision %d and %d rules", s.Revision, s.Rules.Len())
		}
		if now := f.Status(); now.Saved.IsZero() || !errors.Is(now.Away, catalog.ErrUnavailable) || now.Revision != at {
			t.Errorf("it does not say so: %+v", now)
		}
		f.stop()
	}
	// The rules of another database are not those of this one.
	f := newFollower(t, strings.Replace(url, "/test1", "/test2", 1), catalog.Options{}, node)
	if _, err := f.First(t.Context()); !errors.Is(err, catalog.ErrUnavailable) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("another database: %v", err)
	}
	f = newFollower(t, url, catalog.Options{}, catalog.NodeOptions{})
	if _, err := f.First(t.Context()); !errors.Is(err, catalog.ErrUnavailable) || !strings.Contains(err.Error(), "no last good rules are kept") {
		t.Errorf("without a directory: %v", err)
	}

	f = follow(t, url, catalog.Options{}, node)
	server.Restart(t)
	f.serves(t, banAtLast(t, c, "mallory"))
	if now := f.Status(); !now.Saved.IsZero() || now.Away != nil || !banned(f.last(), "mallory") {
		t.Errorf("the database is there, and it is not caught up: %+v", now)
	}
	f.knows(t, "ann", "iron")
}

func TestDamagedLastGood(t *testing.T) {
	t.Parallel()
	dir, path := t.TempDir(), filepath.Join(t.TempDir(), "stint.db")
	url := "sqlite:" + path
	c := furnished(t, url)
	ban(t, c, "eve")
	node := catalog.NodeOptions{LastGood: dir}
	follow(t, url, catalog.Options{}, node).stop()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	database, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Repeat([]byte("no database "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	file := goodFile(t, dir)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	first := func(text []byte) error {
		t.Helper()
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		f := newFollower(t, url, catalog.Options{}, node)
		defer f.stop()
		s, err := f.First(t.Context())
		if err == nil && (s.Rules.Len() != 1 || !banned(s, "eve")) {
			t.Error("half of it is served")
		}
		return err
	}
	if err := first(good); err != nil {
		t.Fatal(err)
	}
	header, body, _ := strings.Cut(string(good), "\n")
	for name, text := range map[string]string{
		"empty":           "",
		"one byte":        "s",
		"header":          header,
		"no body":         header + "\n",
		"half":            string(good[:len(good)/2]),
		"more":            string(good) + "\n{}",
		"another version": strings.Replace(string(good), "good 1", "good 2", 1),
		"a database":      string(database),
		"zeros":           strings.Repeat("\x00", 4096),
		"body alone":      body,
	} {
		err := first([]byte(text))
		if err == nil || !strings.Contains(err.Error(), file) || !errors.Is(err, catalog.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%s: %v", name, err)
	}
	for at := 0; at < len(good)-1; at += 7 { // the last newline is not looked at
		flipped := bytes.Clone(good)
		flipped[at] ^= 1 << (at % 8)
		if err := first(flipped); err == nil {
			t.Errorf("bit %d of byte %d flipped: not noticed", at%8, at)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	f := newFollower(t, url, catalog.Options{}, node)
	if _, err := f.First(t.Context()); err == nil {
		t.Error("a directory is served")
	}
}

// TestUnkeptLastGood is a place where nothing can be kept. That is said, and no more.
func TestUnkeptLastGood(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f := follow(t, testdatabase.SQLite(t), catalog.Options{}, catalog.NodeOptions{LastGood: filepath.Join(file, "dir")})
	if f.Status().Unkept == nil {
		t.Error("it does not say so")
	}
	f.serves(t, ban(t, f.c, "eve"))
}

const saverDir = "STINT_TEST_LAST_GOOD"

// TestLastGoodSaver is the process that TestKilledWhileSaving kills.
func TestLastGoodSaver(t *testing.T) { //nolint:paralleltest // it never ends
	dir := os.Getenv(saverDir)
	if dir == "" {
		t.Skip("it is for another test")
	}
	c := furnished(t, "sqlite::memory:")
	ban(t, c, "eve")
	for {
		n, err := c.NewNode(catalog.NodeOptions{LastGood: dir, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.First(t.Context()); err != nil || n.Status().Unkept != nil {
			t.Fatal(err, n.Status().Unkept)
		}
		fmt.Println("saved")
	}
}

func TestKilledWhileSaving(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for round := range torture.Rounds(3) {
		cmd := exec.Command(os.Args[0], "-test.run=^TestLastGoodSaver$")
		cmd.Env = append(os.Environ(), saverDir+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := testserver.Spawn(cmd); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		for range round%5 + 1 { // then it is at the next
			if line, err := lines.ReadString('\n'); line != "saved\n" {
				rest, _ := io.ReadAll(lines)
				t.Fatal(line, err, string(rest))
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // says that it was killed
		// Of a database whose schema is not there, nothing can be read.
		f := newFollower(t, "sqlite::memory:", catalog.Options{}, catalog.NodeOptions{LastGood: dir})
		s, err := f.First(t.Context())
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if !banned(s, "eve") || s.Rules.Len() != 1 {
			t.Fatalf("round %d: half of it is served", round)
		}
		f.stop()
	}
	// What was not finished is left behind, but not for good.
	drafts := func() []string {
		left, err := filepath.Glob(filepath.Join(dir, ".last-good-*"))
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	t.Logf("%d were killed at it", len(drafts()))
	for _, draft := range drafts() {
		if err := os.Chtimes(draft, time.Time{}, time.Now().Add(-2*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	f := follow(t, "sqlite::memory:", catalog.Options{}, catalog.NodeOptions{LastGood: dir, Migrate: true})
	if err := f.Look(t.Context()); err != nil { // it is another database
		t.Fatal(err)
	}
	f.stop()
	if left := drafts(); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}
