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

// Group is servers that live and die together, with one directory for their
// files.
//
// The directory is removed by a keeper, a shell that waits at a pipe of which
// the test process has the other end. It gets a line there when the group has
// ended well. Otherwise the test process is gone, and the keeper kills what is
// left: what works in the directory. No hook of the test process could do that,
// and the kernel kills only what the test process has started itself.
type Group struct {
	Dir string // for files of the group; each server has its own in it

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
	// A Ctrl-C in the terminal is for the tests, not for the keeper.
	keeper.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := keeper.Start(); err != nil {
		return nil, errors.Join(err, alive.Close(), os.Remove(dir))
	}
	return &Group{Dir: dir, alive: alive, keeper: keeper}, nil
}

// close kills the servers, removes their files and gives their ports back.
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

// Start adds a server to the group: a process with a port and a directory of
// its own. Then prepare fills the directory, once, and launch calls
// [Process.Run], now and whenever the server is restarted. The name is for
// messages.
//
// A port that was free may be taken before the server has it, by a program that
// does not use this package: then all is done again with another one.
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

// FreeAddr returns an address, as in 127.0.0.1:12345, that is the test's until
// it ends: for a program that cannot choose a port by itself.
func FreeAddr(t testing.TB) string {
	t.Helper()
	port, hold, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hold.Close() })
	return addr(port)
}

// reservePort returns a port that is free, as is the one 10000 above it, where
// the nodes of a Redis cluster talk to each other. Both are below those that the
// kernel hands out to clients.
//
// The port is reserved among all processes that use this package: by a socket
// with its number in the kernel's abstract namespace, which leaves no file and
// ends with its process.
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

// tryListen returns nil when no one has a port. Nothing may be forked meanwhile:
// it would have the port, too, until it is another program.
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
