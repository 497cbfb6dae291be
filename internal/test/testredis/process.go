package testredis

import (
	"crypto/tls"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/stintdev/stint/internal/test/testserver"
)

const (
	answerLimit = time.Minute            // for one command
	glanceLimit = 300 * time.Millisecond // for one command that is retried
)

// Server is one redis-server process. A Restart loses its data, unless its arguments
// make it persistent; a node of a cluster keeps its slots.
type Server struct {
	*testserver.Process
	spec
}

// spec configures a server.
type spec struct {
	args   []string    // override those of launch
	config string      // the contents of the config file before the first start
	setup  []string    // a command to send after each start, if any
	tls    *tls.Config // of clients; nil without TLS
}

func start(g *testserver.Group, what spec) (*Server, error) {
	s := &Server{spec: what}
	return s, g.Start("redis-server", s.prepare, s.launch)
}

func (s *Server) prepare(p *testserver.Process) error {
	s.Process = p
	return os.WriteFile(s.configFile(), []byte(s.config), 0o600)
}

// launch starts the process and waits until it answers.
func (s *Server) launch() error {
	port := []string{"--port", s.portText()}
	if s.tls != nil {
		port = []string{"--port", "0", "--tls-port", s.portText()}
	}
	args := slices.Concat([]string{s.configFile()}, port, []string{
		"--bind", testserver.Host, "--protected-mode", "no", "--dir", s.Dir,
		"--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0",
	}, s.args)
	err := s.Run(exec.Command("redis-server", args...), s.ready)
	if err == nil && len(s.setup) > 0 {
		_, err = s.Try(s.setup...)
	}
	return err
}

// ready returns nil when the server answers. It compares the process, since another
// server may have taken the port.
func (s *Server) ready() error {
	info, err := s.askText("INFO", "server")
	if err != nil {
		return err
	}
	if pid := strconv.Itoa(s.Pid()); infoField(info, "process_id") != pid {
		return fmt.Errorf("process %s answers, not %s", infoField(info, "process_id"), pid)
	}
	_, err = s.ask(glanceLimit, "PING") // an error while it is loading
	return err
}

func (s *Server) portText() string   { return strconv.Itoa(s.Port) }
func (s *Server) configFile() string { return filepath.Join(s.Dir, "redis.conf") }
