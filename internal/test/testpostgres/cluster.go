package testpostgres

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stintdev/stint/internal/test/testserver"
)

// initialize creates a cluster in the directory of a group and returns its path.
func initialize(g *testserver.Group) (string, error) {
	dir := filepath.Join(g.Dir, "template")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	if err := handOver(g, dir); err != nil {
		return "", err
	}
	data := dataIn(dir)
	return data, run(dir, "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
		"--locale=C.UTF-8", "--no-sync", "--no-instructions")
}

// startNew starts a server with a copy of the template.
func startNew(g *testserver.Group) (*Server, error) {
	from, err := template()
	if err != nil {
		return nil, err
	}
	return start(g, func(dir string) error { return run(dir, "cp", "-a", from, dataIn(dir)) })
}

// startCopy starts a standby of the server at a URL.
func startCopy(g *testserver.Group, url string) (*Server, error) {
	return start(g, func(dir string) error {
		return run(dir, "pg_basebackup", "-d", url, "-D", dataIn(dir), "-R", "-X", "stream", "-c", "fast", "--no-sync")
	})
}

// start starts a server with the data that fill puts in its directory.
func start(g *testserver.Group, fill func(dir string) error) (*Server, error) {
	s := new(Server)
	return s, g.Start("postgres", func(p *testserver.Process) error {
		s.Process = p
		if err := handOver(g, p.Dir); err != nil {
			return err
		}
		return fill(p.Dir)
	}, s.launch)
}

// launch starts the process and waits until it answers.
func (s *Server) launch() error {
	cmd, err := command("postgres", "-D", dataIn(s.Dir), "-p", strconv.Itoa(s.Port))
	if err != nil {
		return err
	}
	for _, setting := range []string{
		"listen_addresses=" + testserver.Host,
		"unix_socket_directories=", // paths of sockets must be short
		"fsync=off",
		"dynamic_shared_memory_type=mmap", // in its directory, which is removed
		"wal_keep_size=256MB",             // for paused standbys
		"max_connections=400",             // for parallel tests, and one with fifty nodes
	} {
		cmd.Args = append(cmd.Args, "-c", setting)
	}
	if err := s.Run(cmd, s.ready); err != nil {
		return err
	}
	return s.releaseMemory()
}

// ready returns nil when the server answers. It compares the data directory, since
// another server may have taken the port.
func (s *Server) ready() error {
	const glance = time.Second
	rows, err := try(s.URL(), "show data_directory", glance)
	if err != nil {
		return err
	}
	if at := rows[0][0]; at != dataIn(s.Dir) {
		return fmt.Errorf("another server answers, with data in %s", at)
	}
	return nil
}

// releaseMemory makes the kernel remove the System V shared memory of the server
// when its last process ends. A killed server would not remove it, and the kernel
// has room for only a few thousand segments.
func (s *Server) releaseMemory() error {
	file := filepath.Join(dataIn(s.Dir), "postmaster.pid")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	const line = 6 // its key, and its id
	lines := strings.Split(string(text), "\n")
	if len(lines) <= line || len(strings.Fields(lines[line])) != 2 {
		return fmt.Errorf("%s: no shared memory in line %d:\n%s", file, line+1, text)
	}
	return run(s.Dir, "ipcrm", "-m", strings.Fields(lines[line])[1])
}

func dataIn(dir string) string { return filepath.Join(dir, "data") }

// run runs a command in a directory.
func run(dir, name string, args ...string) error {
	cmd, err := command(name, args...)
	if err != nil {
		return err
	}
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w; it wrote:\n%s", name, err, out)
	}
	return nil
}

// command is Command without a test.
func command(name string, args ...string) (*exec.Cmd, error) {
	bin, err := binaries(debian)
	if err != nil {
		return nil, err
	}
	if path, err := exec.LookPath(filepath.Join(bin, name)); err == nil {
		name = path
	}
	as, err := account()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	return cmd, nil
}

// debian is where Debian installs the versions of PostgreSQL, which is not in PATH.
const debian = "/usr/lib/postgresql/*/bin"

// binaries returns the directory with the programs of the newest version that
// matches a pattern, or of the one in PATH.
func binaries(pattern string) (string, error) {
	found, err := filepath.Glob(filepath.Join(pattern, "postgres"))
	if err != nil {
		return "", err
	}
	if len(found) > 0 {
		version := func(file string) float64 {
			v, _ := strconv.ParseFloat(filepath.Base(filepath.Dir(filepath.Dir(file))), 64) // 0, the oldest, if it is not a number
			return v
		}
		return filepath.Dir(slices.MaxFunc(found, func(a, b string) int {
			return cmp.Compare(version(a), version(b))
		})), nil
	}
	path, err := exec.LookPath("postgres")
	if err != nil {
		return "", fmt.Errorf("postgres is not installed, make deps installs it: %w", err)
	}
	return filepath.Dir(path), nil
}

// account returns the user of the servers, or nil for the user of the test.
func account() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(nobody.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(nobody.Gid, 10, 32)
	if err = errors.Join(err, gidErr); err != nil {
		return nil, fmt.Errorf("user nobody: %w", err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// handOver gives a directory in that of a group to the user of the servers.
func handOver(g *testserver.Group, dir string) error {
	as, err := account()
	if err != nil || as == nil {
		return err
	}
	// The user must be able to enter the parent, but not to list it.
	return errors.Join(os.Chmod(g.Dir, 0o711), os.Chown(dir, int(as.Uid), int(as.Gid)))
}
