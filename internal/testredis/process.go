package testredis

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	host = "127.0.0.1"

	answerLimit = 5 * time.Second        // for one command
	glanceLimit = 300 * time.Millisecond // for one command, where another try follows
	readyLimit  = 15 * time.Second       // to start, to find each other, to take over
)

// Server is one redis-server process.
type Server struct {
	spec
	group *group
	port  int
	hold  net.Listener // what makes the port ours, see reservePort
	dir   string
	cmd   *exec.Cmd // nil when dead
}

// spec is what makes one server different from another.
type spec struct {
	args   []string    // more of them, which win over those of launch
	config string      // what the configuration file says before the first start
	setup  []string    // a command for it after each start, if any
	tls    *tls.Config // how to talk to it; nil without TLS
}

// group is servers that live and die together, with one directory for their
// files.
//
// The directory is removed by a keeper, a shell that waits for the end of a pipe
// to which nobody writes. The test process and the servers hold its other end,
// so the end comes when all of them are gone: in close, or when they are killed.
// No hook of the test process could do that.
type group struct {
	dir     string
	shared  bool
	alive   *os.File // our end of the pipe
	keeper  *exec.Cmd
	servers []*Server
}

func newGroup() (*group, error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return nil, fmt.Errorf("redis-server is not installed, make deps installs it: %w", err)
	}
	dir, err := os.MkdirTemp("", "testredis-")
	if err != nil {
		return nil, err
	}
	end, alive, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	defer end.Close()
	keeper := exec.Command("sh", "-c", `read -r _; rm -rf -- "$1"`, "keeper", dir)
	keeper.Stdin = end
	// A Ctrl-C in the terminal is for the tests, not for the keeper.
	keeper.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := keeper.Start(); err != nil {
		return nil, errors.Join(err, alive.Close(), os.Remove(dir))
	}
	return &group{dir: dir, alive: alive, keeper: keeper}, nil
}

// close kills the servers, removes their files and gives their ports back.
func (g *group) close() error {
	var errs []error
	for _, s := range g.servers {
		errs = append(errs, s.kill())
	}
	errs = append(errs, g.alive.Close(), g.keeper.Wait())
	for _, s := range g.servers {
		errs = append(errs, s.hold.Close())
	}
	return errors.Join(errs...)
}

func (g *group) logIfFailed(t testing.TB) {
	t.Helper()
	if !t.Failed() {
		return
	}
	for _, s := range g.servers {
		t.Logf("redis-server %s wrote:\n%s", s.Addr(), s.logTail())
	}
}

// start starts a server. A port that was free may be taken before the server
// has it, by a program that does not use this package: then another one is
// tried.
func (g *group) start(what spec) (*Server, error) {
	for tries := 5; ; tries-- {
		s, err := g.create(what)
		if err != nil {
			return nil, err
		}
		if err = s.launch(); err == nil {
			return s, nil
		}
		if tries == 1 || !strings.Contains(s.logTail(), "Address already in use") {
			return nil, err
		}
	}
}

// create gives a server a port and a directory. The rest is launch's.
func (g *group) create(what spec) (*Server, error) {
	port, hold, err := reservePort()
	if err != nil {
		return nil, err
	}
	s := &Server{spec: what, group: g, port: port, hold: hold, dir: filepath.Join(g.dir, strconv.Itoa(port))}
	g.servers = append(g.servers, s)
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return nil, err
	}
	return s, os.WriteFile(s.configFile(), []byte(s.config), 0o600)
}

// launch starts the process and waits until it answers.
func (s *Server) launch() error {
	log, err := os.OpenFile(s.logFile(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()

	port := []string{"--port", s.portText()}
	if s.tls != nil {
		port = []string{"--port", "0", "--tls-port", s.portText()}
	}
	args := slices.Concat([]string{s.configFile()}, port, []string{
		"--bind", host, "--protected-mode", "no", "--dir", s.dir,
		"--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0",
	}, s.args)
	cmd := exec.Command("redis-server", args...)
	cmd.Dir = s.dir
	// Files, not buffers: exec starts no goroutine for them.
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{s.group.alive}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := spawn(cmd); err != nil {
		return err
	}
	s.cmd = cmd

	died := false
	err = poll(readyLimit, func() error {
		if died = s.state() == zombie; died {
			return nil
		}
		return s.ready()
	})
	if died {
		err = errors.New("exited")
	}
	if err == nil && len(s.setup) > 0 {
		_, err = s.Try(s.setup...)
	}
	if err != nil {
		return fmt.Errorf("redis-server %s: %w; it wrote:\n%s", s.Addr(), err, s.logTail())
	}
	return nil
}

// ready returns nil when the server answers. It may be another's server that
// does, on a port that ours did not get, so the process must be ours.
func (s *Server) ready() error {
	info, err := s.askText("INFO", "server")
	if err != nil {
		return err
	}
	if pid := strconv.Itoa(s.cmd.Process.Pid); infoField(info, "process_id") != pid {
		return fmt.Errorf("process %s answers, not %s", infoField(info, "process_id"), pid)
	}
	_, err = s.ask(glanceLimit, "PING") // An error while it still loads.
	return err
}

// kill kills the server, and the children that it forks to save or replicate.
func (s *Server) kill() error {
	if s.cmd == nil {
		return nil
	}
	if err := syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill redis-server %s: %w", s.Addr(), err)
	}
	_ = s.cmd.Wait() // Says that it was killed.
	for err := error(nil); !errors.Is(err, syscall.ECHILD); {
		_, err = syscall.Wait4(-s.cmd.Process.Pid, nil, 0, nil) // See spawner.
	}
	s.cmd = nil
	return nil
}

// The states of a process that matter here, as /proc has them.
const (
	stopped = 'T'
	zombie  = 'Z'
)

// state returns the state of a server that was started. It asks the kernel, so
// that no goroutine has to wait for the server's end.
func (s *Server) state() byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	// The state follows the name, which is in parentheses.
	if i := bytes.LastIndexByte(stat, ')'); err == nil && i >= 0 && i+2 < len(stat) {
		return stat[i+2]
	}
	return '?'
}

// spawn starts a process from the spawner's thread.
func spawn(cmd *exec.Cmd) error {
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

// spawner starts processes. The kernel sends the signal of Pdeathsig when the
// thread that started the process ends, and Go ends threads as it sees fit. So
// one goroutine starts them all, on a thread that it never gives back, and it
// ends with the test process.
//
// It also makes the test process adopt the children that a killed server leaves
// behind, for kill to reap: not every container has an init that does.
func spawner(requests <-chan spawnRequest) {
	runtime.LockOSThread()
	const setChildSubreaper = 36
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0)
	for r := range requests {
		r.done <- r.cmd.Start()
	}
}

// reservePort returns a port that is free, as is the one 10000 above it, where
// a cluster's nodes talk to each other. Both are below those that the kernel
// hands out to clients.
//
// The port is reserved among all processes that use this package: by a socket
// with its number in the kernel's abstract namespace, which leaves no file and
// ends with its process.
func reservePort() (int, net.Listener, error) {
	const first, count, bus = 10000, 10000, 10000
	var last error
	for range 200 {
		port := first + rand.IntN(count)
		hold, err := net.Listen("unix", fmt.Sprintf("@stint-testredis-%d", port))
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

func tryListen(port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}

// poll calls check every few milliseconds until it returns nil. After limit it
// returns what check said last.
func poll(limit time.Duration, check func() error) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(limit)
	defer end.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-end.C:
			return fmt.Errorf("still after %s: %w", limit, err)
		}
	}
}
