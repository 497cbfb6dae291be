package pulse_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint/internal/kit/pulse"
	"github.com/stintdev/stint/internal/test/torture"
)

// TestPulse reads a pulse in a process that always runs: nothing is lost, and the goroutine ends when
// no one reads it.
func TestPulse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := pulse.New()
		first := p.Read()
		for range 100 {
			<-time.After(37 * time.Millisecond)
			if ran, lost := p.Read().Since(first); lost != 0 || ran != p.Read().Now-first.Now {
				t.Fatalf("ran for %v, lost %v; want nothing lost", ran, lost)
			}
		}
		// Nobody reads it for an hour, and it does not run for all that time: that is no stall.
		before := p.Read()
		<-time.After(time.Hour)
		if ran, lost := p.Read().Since(before); ran != time.Hour || lost != 0 {
			t.Errorf("ran for %v, lost %v; want an hour", ran, lost)
		}
		p.Close()
		p.Close()
		before = p.Read()
		<-time.After(time.Hour)
		if _, lost := p.Read().Since(before); lost != 0 {
			t.Errorf("lost %v after Close", lost)
		}
	})
}

// TestStopped stops a process for a while: it knows for how long.
func TestStopped(t *testing.T) {
	if os.Getenv("STINT_PULSE") != "" {
		p := pulse.New()
		before := p.Read()
		fmt.Println("ready")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		ran, lost := p.Read().Since(before)
		fmt.Println("lost", lost.Milliseconds(), "ran", ran.Milliseconds())
		return
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestStopped$")
	cmd.Env = append(os.Environ(), "STINT_PULSE=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now() // a busy machine may let it wait before it is stopped, too
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	<-time.After(300 * time.Millisecond)
	fmt.Fprintln(in)
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	var lost, ran int64
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "lost") {
			if _, err := fmt.Sscanf(lines.Text(), "lost %d ran %d", &lost, &ran); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	if most := time.Since(begin).Milliseconds(); lost < 1 || lost > most {
		t.Errorf("lost %d ms and ran for %d ms, want 1 to %d lost", lost, ran, most)
	}
	torture.AtLeast(t, "milliseconds lost of 300", lost, 250)
}
