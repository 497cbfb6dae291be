package main_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stintdev/stint/httplimit"
)

// TestTopScreen draws on a terminal, and checks that it is restored.
func TestTopScreen(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	next := make(chan struct{}, 1)
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			httplimit.Problem{Status: http.StatusServiceUnavailable, Detail: "it is away for a while"}.Write(w, r)
			return
		}
		for {
			fmt.Fprintf(w, "event: live\ndata: %s\n\n", busy)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-next:
				return
			case <-time.After(time.Second):
			}
		}
	}))
	defer admin.Close()
	const rows = 15
	ours, theirs := openTerminal(t, rows, 90)
	c := exec.CommandContext(t.Context(), os.Args[0], "top", "--server", admin.URL)
	c.Env = append(os.Environ(), asStint+"=1", "TERM=xterm")
	c.Stdout = theirs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	var all strings.Builder
	read := func() bool {
		part := make([]byte, 64<<10)
		n, err := ours.Read(part)
		all.Write(part[:n])
		return err == nil // reading fails when the other side is closed
	}
	// shows waits for words that were not shown before.
	shows := func(words string) {
		t.Helper()
		for from := all.Len(); !strings.Contains(all.String()[from:], words); {
			if !read() {
				t.Fatalf("it ended without %s: %q", words, all.String())
			}
		}
	}
	shows("requests/s")
	away.Store(true)
	next <- struct{}{}
	shows("it is away for a while")
	away.Store(false)
	for range 3 {
		shows("\x1b[J")
	}
	if err := c.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for read() {
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	text := all.String()
	const enter, leave = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
	if !strings.HasPrefix(text, enter) || !strings.HasSuffix(text, leave) {
		t.Errorf("the screen is not restored: %q", text)
	}
	for picture := range strings.SplitSeq(text, "\x1b[H") {
		if n := strings.Count(picture, "\n"); n >= rows {
			t.Errorf("%d lines do not fit on the screen:\n%s", n+1, picture)
		}
		if strings.Contains(picture, "\x1b[2J") {
			t.Errorf("the output has control characters of a client: %q", picture)
		}
	}
}

// TestTopKeys presses keys on a terminal.
func TestTopKeys(t *testing.T) {
	t.Parallel()
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "event: live\ndata: %s\n\n", busy)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(admin.CloseClientConnections)
	ours, theirs := openTerminal(t, 60, 100)
	c := exec.CommandContext(t.Context(), os.Args[0], "top", "--server", admin.URL)
	c.Env = append(os.Environ(), asStint+"=1", "TERM=xterm")
	c.Stdin, c.Stdout = theirs, theirs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	var all strings.Builder
	part := make([]byte, 64<<10)
	// press presses keys, and waits until the last picture is right.
	press := func(keys string, right func(picture string) bool) {
		t.Helper()
		if _, err := ours.WriteString(keys); err != nil {
			t.Fatal(err)
		}
		for {
			n, err := ours.Read(part)
			all.Write(part[:n])
			text := all.String()
			if picture := text[strings.LastIndex(text, "\x1b[H")+1:]; strings.HasSuffix(picture, "\x1b[J") && right(picture) {
				return
			}
			if err != nil {
				t.Fatalf("%q: it ended: %q", keys, text)
			}
		}
	}
	has := func(words ...string) func(string) bool {
		return func(picture string) bool {
			for _, w := range words {
				if without, ok := strings.CutPrefix(w, "!"); strings.Contains(picture, without) == ok {
					return false
				}
			}
			return true
		}
	}
	press("", has("requests/s", "q quit", "sort: requests", "alice", "\x1b[32m"))
	press("?", has("show or hide this help", "!alice"))
	press("?", has("alice"))
	press("s", has("sort: denied"))
	press("s", func(p string) bool {
		return strings.Contains(p, "sort: name") && strings.Index(p, "192.0.2.1") < strings.Index(p, "2001:db8::1")
	})
	press("/AL", has("/AL", "alice", "!192.0.2.1", "!search"))
	press("\x7f\x7fse\r", has(`only "se"`, "search", "!alice"))
	press("\x1b[A", has("search")) // an arrow
	press("\x1b", has("alice", "!only"))
	press(" ", has("stopped: space goes on"))
	press(" ", has("!stopped"))
	if _, err := ours.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	for err := error(nil); err == nil; {
		var n int
		n, err = ours.Read(part)
		all.Write(part[:n])
	}
	if err := c.Wait(); err != nil || !strings.HasSuffix(all.String(), "\x1b[?7h\x1b[?25h\x1b[?1049l") {
		t.Errorf("%v: %q", err, all.String())
	}
}

// TestConfirmation asks for confirmation on a terminal.
func TestConfirmation(t *testing.T) {
	t.Parallel()
	h := serveAdmin(t, "")
	run := func(answer string, args ...string) (int, string) {
		t.Helper()
		ours, theirs := openTerminal(t, 24, 80)
		c := exec.CommandContext(t.Context(), os.Args[0], args...)
		c.Env = append(append(os.Environ(), asStint+"=1"), h.environ...)
		c.Stdin = theirs
		var out bytes.Buffer
		c.Stdout, c.Stderr = &out, &out
		if _, err := ours.WriteString(answer + "\n"); err != nil {
			t.Fatal(err)
		}
		_ = c.Run() // the exit code is checked
		theirs.Close()
		return c.ProcessState.ExitCode(), out.String()
	}
	run("", "tenants", "create", "acme")
	for _, c := range []struct {
		answer string
		code   int
		want   string
	}{
		{"", 1, "Tenant acme will be deleted. Continue? [y/N] nothing was changed\n"},
		{"no", 1, "Tenant acme will be deleted. Continue? [y/N] nothing was changed\n"},
		{"y", 0, "Tenant acme will be deleted. Continue? [y/N] - tenant acme\n"},
	} {
		if code, out := run(c.answer, "tenants", "delete", "acme"); code != c.code || out != c.want {
			t.Errorf("%q: exit code %d, %q", c.answer, code, out)
		}
	}
	h.end(t)
}

// openTerminal returns the two sides of a terminal.
func openTerminal(t *testing.T, rows, columns uint16) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	control := func(request uintptr, argument unsafe.Pointer) {
		t.Helper()
		if _, _, failed := syscall.Syscall(syscall.SYS_IOCTL, ours.Fd(), request, uintptr(argument)); failed != 0 {
			t.Fatal(failed)
		}
	}
	var locked, number int32
	size := [4]uint16{rows, columns}
	control(syscall.TIOCSPTLCK, unsafe.Pointer(&locked))
	control(syscall.TIOCGPTN, unsafe.Pointer(&number))
	control(syscall.TIOCSWINSZ, unsafe.Pointer(&size))
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return ours, theirs
}
