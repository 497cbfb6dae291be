package testserver

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Group is servers that are started and removed together, with one directory for
// their files.
//
// The directory is removed by a keeper, a shell that reads from a pipe. It gets a
// line when the group has ended. Otherwise the test process is gone, and the keeper
// kills all processes that work in the directory: the kernel only kills those that
// the test process has started itself.
type Group struct {
	Dir string // for files of the group; each server has a directory in it

	shared    bool
	alive     *os.File // our end of the pipe
	keeper    *exec.Cmd
	processes []*Process
}

const keep = `
read -r _ || while
	left=$(find /proc/[0-9]*/cwd -maxdepth 0 -lname "$1/*" 2>/dev/null | cut -d/ -f3)
	[ -n "$left" ]
do
	kill -9 $left
done
rm -rf -- "$1"
`

func newGroup() (*Group, error) {
	dir, err := os.MkdirTemp("", "testserver-")
	if err != nil {
		return nil, err
	}
	end, alive, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	defer end.Close()
	keeper := exec.Command("sh", "-c", keep, "keeper", dir)
	keeper.Stdin = end
	// Ctrl-C must not end the keeper.
	keeper.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := keeper.Start(); err != nil {
		return nil, errors.Join(err, alive.Close(), os.Remove(dir))
	}
	return &Group{Dir: dir, alive: alive, keeper: keeper}, nil
}

// close kills the servers, removes their files and releases their ports.
func (g *Group) close() error {
	var errs []error
	for _, p := range g.processes {
		errs = append(errs, p.kill())
	}
	if errors.Join(errs...) == nil {
		_, err := g.alive.WriteString("\n")
		errs = append(errs, err)
	}
	errs = append(errs, g.alive.Close(), g.keeper.Wait())
	for _, p := range g.processes {
		errs = append(errs, p.hold.Close())
	}
	return errors.Join(errs...)
}

func (g *Group) logIfFailed(t testing.TB) {
	t.Helper()
	if !t.Failed() {
		return
	}
	for _, p := range g.processes {
		t.Logf("%s wrote:\n%s", p, p.logTail())
	}
}

// Start adds a server to the group: a process with its own port and directory.
// prepare fills the directory, once, and launch calls [Process.Run], at every start.
// The name is for messages.
//
// If a program that does not use this package takes the port in the meantime, Start
// tries again with another one.
func (g *Group) Start(name string, prepare func(*Process) error, launch func() error) error {
	for tries := 5; ; tries-- {
		p, err := g.create(name)
		if err != nil {
			return err
		}
		p.launch = launch
		if err = prepare(p); err != nil {
			return err
		}
		if err = launch(); err == nil {
			return nil
		}
		if tries == 1 || !strings.Contains(p.logTail(), "Address already in use") {
			return err
		}
	}
}

func (g *Group) create(name string) (*Process, error) {
	port, hold, err := reservePort()
	if err != nil {
		return nil, err
	}
	p := &Process{Port: port, Dir: filepath.Join(g.Dir, strconv.Itoa(port)), name: name, group: g, hold: hold}
	g.processes = append(g.processes, p)
	return p, os.Mkdir(p.Dir, 0o700)
}

// FreeAddr reserves an address, as in 127.0.0.1:12345, until the test ends, for a
// program that cannot choose a port itself.
func FreeAddr(t testing.TB) string {
	t.Helper()
	port, hold, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hold.Close() })
	return addr(port)
}

// reservePort returns a free port. The one 10000 above it, which is the bus of a
// Redis cluster, is free, too. Both are below the ephemeral ports of the kernel.
//
// The port is reserved among all processes that use this package by an abstract unix
// socket with its number, which leaves no file and ends with its process.
func reservePort() (int, net.Listener, error) {
	const first, count, bus = 10000, 10000, 10000
	var last error
	for range 200 {
		port := first + rand.IntN(count)
		hold, err := net.Listen("unix", fmt.Sprintf("@stint-testserver-%d", port))
		if err != nil {
			last = err
			continue
		}
		if last = errors.Join(tryListen(port), tryListen(port+bus)); last == nil {
			return port, hold, nil
		}
		_ = hold.Close()
	}
	return 0, nil, fmt.Errorf("found no free port: %w", last)
}

// tryListen returns nil if a port is free. Nothing may be forked meanwhile: the child
// would inherit the port until it executes another program.
func tryListen(port int) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	l, err := net.Listen("tcp", addr(port))
	if err != nil {
		return err
	}
	return l.Close()
}

func addr(port int) string { return net.JoinHostPort(Host, strconv.Itoa(port)) }
