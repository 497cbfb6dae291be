package testserver

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Process is one server. Packages embed it in their own types.
type Process struct {
	Port int
	Dir  string // its working directory, removed with the group

	name   string
	group  *Group
	hold   net.Listener // reserves the port, see reservePort
	launch func() error
	cmd    *exec.Cmd // nil when dead
}

// Run starts the process, and returns when ready returns nil. The process ends with
// its group.
func (p *Process) Run(cmd *exec.Cmd, ready func() error) error {
	log, err := os.OpenFile(p.logFile(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Dir = p.Dir
	// With a file, exec starts no goroutine.
	cmd.Stdout, cmd.Stderr = log, log
	err = Spawn(cmd)
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%s is not installed, make deps installs it: %w", p.name, err)
	}
	if err != nil {
		return err
	}
	p.cmd = cmd

	died := false
	err = Poll(ReadyLimit, func() error {
		if died = p.state() == zombie; died {
			return nil
		}
		return ready()
	})
	if died {
		err = errors.New("exited")
	}
	if err != nil {
		return fmt.Errorf("%s: %w; it wrote:\n%s", p, err, p.logTail())
	}
	return nil
}

// Addr returns the server's address, as in 127.0.0.1:12345.
func (p *Process) Addr() string { return addr(p.Port) }

// String names the server in messages.
func (p *Process) String() string { return p.name + " " + p.Addr() }

// Pid returns the process of a server that runs.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Kill kills the server and its children with SIGKILL, and returns when all are gone.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	p.refuseShared(t, "Kill")
	if err := p.kill(); err != nil {
		t.Fatal(err)
	}
}

// Restart restarts the server with the same port, directory and arguments, and
// returns when it answers.
func (p *Process) Restart(t testing.TB) {
	t.Helper()
	p.Kill(t)
	if err := p.launch(); err != nil {
		t.Fatal(err)
	}
}

// Pause stops the server and its children with SIGSTOP: connections stay open, and
// nothing answers. It returns when all are stopped.
func (p *Process) Pause(t testing.TB) {
	t.Helper()
	p.refuseShared(t, "Pause")
	p.refuseDead(t, "Pause")
	if _, err := p.freeze(); err != nil {
		t.Fatal(err)
	}
}

// Resume continues a paused server.
func (p *Process) Resume(t testing.TB) {
	t.Helper()
	p.refuseDead(t, "Resume")
	for _, pid := range family(p.Pid()) {
		// The parent continues first, and may end its children.
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatalf("Resume of %s: process %d: %v", p, pid, err)
		}
	}
}

func (p *Process) refuseShared(t testing.TB, what string) {
	t.Helper()
	if p.group.shared {
		t.Fatalf("%s of %s, which other tests share", what, p)
	}
}

func (p *Process) refuseDead(t testing.TB, what string) {
	t.Helper()
	switch {
	case p.cmd == nil:
		t.Fatalf("%s of %s, which was killed", what, p)
	case p.state() == zombie:
		t.Fatalf("%s of %s, which has exited", what, p)
	}
}

func (p *Process) kill() error {
	if p.cmd == nil {
		return nil
	}
	// They are stopped first, so that none can fork.
	pids, err := p.freeze()
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	_ = p.cmd.Wait() // the error says that it was killed
	for _, pid := range pids[1:] {
		for again := true; again; {
			_, err := syscall.Wait4(pid, nil, 0, nil) // spawner has adopted it
			again = errors.Is(err, syscall.EINTR)
		}
	}
	p.cmd = nil
	return err
}

// freeze stops the process and its descendants, and returns them, parents first.
func (p *Process) freeze() (pids []int, err error) {
	const limit = time.Minute
	signaled := map[int]bool{}
	err = Poll(limit, func() error {
		var running error
		pids = family(p.Pid())
		for _, pid := range pids {
			// One that waits in the kernel stops before it runs again. It may be the parent of a
			// vfork whose child is stopped, and never leave that state.
			if s := state(pid); s != stopped && s != zombie && (s != waiting || !signaled[pid]) {
				signaled[pid] = true
				_ = syscall.Kill(pid, syscall.SIGSTOP) // it may have ended
				running = fmt.Errorf("%s: process %d is in state %c, not stopped", p, pid, s)
			}
		}
		return running
	})
	return pids, err
}

// family returns a process and its descendants, parents first. It is complete if none
// of them can end or fork.
func family(pid int) []int {
	out := []int{pid}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is valid
	for _, file := range threads {
		children, _ := os.ReadFile(file) // the thread may have ended
		for word := range strings.FieldsSeq(string(children)) {
			if child, err := strconv.Atoi(word); err == nil {
				out = append(out, family(child)...)
			}
		}
	}
	return out
}

// States of a process, as in /proc.
const (
	waiting = 'D'
	stopped = 'T'
	zombie  = 'Z'
)

// state returns the state of a process, from the kernel, so that no goroutine has to
// wait for its end.
func state(pid int) byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The state follows the name, which is in parentheses.
	if i := bytes.LastIndexByte(stat, ')'); err == nil && i >= 0 && i+2 < len(stat) {
		return stat[i+2]
	}
	return '?'
}

func (p *Process) state() byte { return state(p.Pid()) }

// logTail returns the end of the log of the server.
func (p *Process) logTail() string {
	const limit = 4096
	text, err := os.ReadFile(p.logFile())
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-limit):]))
}

func (p *Process) logFile() string { return filepath.Join(p.Dir, "log") }

// Spawn starts a process that the kernel kills when the test process ends, for
// programs that are not servers of a group. The caller must wait for it.
func Spawn(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	done := make(chan error)
	spawnRequests() <- spawnRequest{cmd, done}
	return <-done
}

type spawnRequest struct {
	cmd  *exec.Cmd
	done chan<- error
}

var spawnRequests = sync.OnceValue(func() chan<- spawnRequest {
	requests := make(chan spawnRequest)
	go spawner(requests)
	return requests
})

// spawner starts processes. The kernel sends the signal of Pdeathsig when the thread
// that started the process ends, and Go may end threads at any time. So one goroutine
// starts all processes, on a thread that it keeps.
//
// It also makes the test process adopt the children of a killed server, for kill to
// reap: not every container has an init that does.
func spawner(requests <-chan spawnRequest) {
	runtime.LockOSThread()
	const setChildSubreaper = 36
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0)
	for r := range requests {
		r.done <- r.cmd.Start()
	}
}
