package testredis

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// Error is an error reply, as in "WRONGTYPE Operation ...".
type Error string

func (e Error) Error() string { return string(e) }

// ask sends a command on a new connection: one that is reused may have been closed by
// a failover or a test.
func (s *Server) ask(limit time.Duration, args ...string) (any, error) {
	reply, err := s.exchange(limit, args)
	if err == nil {
		if e, ok := reply.(Error); ok {
			err = e
		}
	}
	if err != nil {
		return nil, fmt.Errorf("redis-server %s: %.80s: %w", s.Addr(), strings.Join(args, " "), err)
	}
	return reply, nil
}

// askText is ask for a text like that of INFO, with glanceLimit.
func (s *Server) askText(args ...string) (string, error) {
	reply, err := s.ask(glanceLimit, args...)
	if err != nil {
		return "", err
	}
	text, ok := reply.(string)
	if !ok {
		return "", fmt.Errorf("redis-server %s: %s: got %v, want text", s.Addr(), strings.Join(args, " "), reply)
	}
	return text, nil
}

func (s *Server) exchange(limit time.Duration, args []string) (any, error) {
	dialer := &net.Dialer{Timeout: limit}
	conn, err := dialer.Dial("tcp", s.Addr())
	if err != nil {
		return nil, err
	}
	// Closing needs no clock, unlike a deadline.
	timer := time.AfterFunc(limit, func() { _ = conn.Close() })
	defer conn.Close()
	var stream io.ReadWriter = conn
	if s.tls != nil {
		stream = tls.Client(conn, s.tls)
	}
	_, err = stream.Write(command(args))
	var reply any
	if err == nil {
		reply, err = readReply(bufio.NewReader(stream))
	}
	if !timer.Stop() && err != nil {
		err = fmt.Errorf("no answer within %s", limit)
	}
	return reply, err
}

// command encodes a command as an array of bulk strings.
func command(args []string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, a := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b
}

// readReply reads a reply of version 2 of the protocol. An error reply is returned as
// an Error, since it may be part of an array.
func readReply(r *bufio.Reader) (any, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, errors.New("the reply is an empty line")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return Error(rest), nil
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("reply %q: %w", line, err)
	}
	switch {
	case kind == ':':
		return n, nil
	case kind == '$' && n < 0, kind == '*' && n < 0:
		return nil, nil
	case kind == '$':
		b := make([]byte, n+2) // with CRLF
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		return string(b[:n]), nil
	case kind == '*':
		list := make([]any, n)
		for i := range list {
			if list[i], err = readReply(r); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	return nil, fmt.Errorf("reply %q has an unknown type", line)
}

// infoField returns a field of a text like that of INFO, or "".
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
