package main_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"
)

// TestTopScreen draws on a terminal, which is left as it was.
func TestTopScreen(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintln(w, busy)
	}))
	defer admin.Close()
	const rows = 15
	ours, theirs := openTerminal(t, rows, 90)
	c := exec.CommandContext(t.Context(), os.Args[0], "top", "--interval", "100ms", "--admin", admin.URL)
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
		return err == nil // it fails once no one has the other side
	}
	// shows waits for words, after all that was shown before.
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
	shows("answers 503")
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
		t.Errorf("the screen is not left as it was: %q", text)
	}
	for picture := range strings.SplitSeq(text, "\x1b[H") {
		if n := strings.Count(picture, "\n"); n >= rows {
			t.Errorf("%d lines do not fit on the screen:\n%s", n+1, picture)
		}
		if strings.Contains(picture, "\x1b[2J") {
			t.Errorf("the terminal does what a client says: %q", picture)
		}
	}
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
