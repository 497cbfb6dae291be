package httplimit

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// proxyTimeout is how long a peer may take to send its PROXY header.
const proxyTimeout = 5 * time.Second

// ProxyListener returns a listener that reads a PROXY header, of version 1 or 2, from
// peers in the trusted networks: the RemoteAddr of their connections is the client's
// address in it. These peers must send a header: without it, all clients of a balancer
// would be counted as one. For UNKNOWN and LOCAL, which are for connections of the
// balancer's own, RemoteAddr is the peer's address. Extensions of version 2 are skipped.
//
// For other peers, RemoteAddr is their own address, and a connection on which they send a
// header is closed.
//
// Accept does not wait for the header. It is read by the first call of Read or RemoteAddr,
// which a server makes in the goroutine of the connection, within five seconds.
func ProxyListener(l net.Listener, trusted []netip.Prefix) net.Listener {
	return &proxyListener{Listener: l, trusted: slices.Clone(trusted)}
}

type proxyListener struct {
	net.Listener
	trusted []netip.Prefix
}

func (l *proxyListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &proxyConn{Conn: c, trusted: l.trusts(c.RemoteAddr())}, nil
}

func (l *proxyListener) trusts(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return false
	}
	peer := tcp.AddrPort().Addr().WithZone("").Unmap()
	return slices.ContainsFunc(l.trusted, func(p netip.Prefix) bool { return p.Contains(peer) })
}

// proxyConn is a connection that may begin with a PROXY header.
type proxyConn struct {
	net.Conn
	trusted bool

	once  sync.Once
	early *bufio.Reader // bytes that came with the header; nil once they are read
	from  net.Addr      // the client's address from the header; nil if it has none
	err   error
}

// begin reads the header. Its time limit closes the connection: a read deadline would
// replace the server's.
func (c *proxyConn) begin() {
	c.once.Do(func() {
		c.early = bufio.NewReaderSize(c.Conn, maxV1)
		if !c.trusted {
			c.err = rejectHeader(c.early)
		} else {
			timer := time.AfterFunc(proxyTimeout, func() { _ = c.Close() })
			var from netip.AddrPort
			from, c.err = readHeader(c.early)
			if !timer.Stop() && c.err == nil {
				c.err = errors.New("PROXY header: timeout")
			}
			if c.err == nil && from.IsValid() {
				c.from = net.TCPAddrFromAddrPort(from)
			}
		}
		if c.err != nil {
			_ = c.Close()
		}
	})
}

// RemoteAddr returns the address in the header, or else that of the peer.
func (c *proxyConn) RemoteAddr() net.Addr {
	if c.trusted {
		c.begin()
		if c.from != nil {
			return c.from
		}
	}
	return c.Conn.RemoteAddr()
}

func (c *proxyConn) Read(p []byte) (int, error) {
	c.begin()
	if c.err != nil {
		return 0, c.err
	}
	if c.early != nil && c.early.Buffered() > 0 {
		return c.early.Read(p)
	}
	c.early = nil
	return c.Conn.Read(p)
}

// CloseWrite closes the writing side. Servers call it so that their last response
// arrives.
func (c *proxyConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported
}

const (
	startV1 = "PROXY "
	maxV1   = 107 // bytes, by the specification
	startV2 = "\r\n\r\n\x00\r\nQUIT\n"
)

// rejectHeader returns an error if the connection begins with a header. It waits for no
// more bytes than it needs to tell.
func rejectHeader(r *bufio.Reader) error {
	for n := 1; ; n++ {
		b, err := r.Peek(n)
		switch got := string(b); {
		case err != nil && n == 1:
			return err
		case err != nil: // Read will return it
			return nil
		case got == startV1 || got == startV2:
			return errors.New("a PROXY header from a peer that is not trusted")
		case !strings.HasPrefix(startV1, got) && !strings.HasPrefix(startV2, got):
			return nil
		}
	}
}

// readHeader reads a header. The address is invalid if the header has none.
func readHeader(r *bufio.Reader) (netip.AddrPort, error) {
	start, err := r.Peek(len(startV2)) // no header is shorter
	switch {
	case err != nil:
		return netip.AddrPort{}, fmt.Errorf("no PROXY header: %w", err)
	case string(start) == startV2:
		return readV2(r)
	case strings.HasPrefix(string(start), startV1):
		return readV1(r)
	default:
		return netip.AddrPort{}, fmt.Errorf("%q is not the start of a PROXY header", start)
	}
}

// readV1 reads a line: PROXY TCP4 192.0.2.1 198.51.100.1 56324 443.
func readV1(r *bufio.Reader) (from netip.AddrPort, err error) {
	line, err := r.ReadSlice('\n') // at most the size of the buffer
	if err != nil {
		return from, fmt.Errorf("PROXY header: %w", err)
	}
	text, ok := strings.CutSuffix(string(line), "\r\n")
	words := strings.Split(text, " ")
	if ok && words[1] == "UNKNOWN" {
		return from, nil
	}
	if ok && len(words) == 6 && (words[1] == "TCP4" || words[1] == "TCP6") {
		src, ok1 := parseEnd(words[1], words[2], words[4])
		_, ok2 := parseEnd(words[1], words[3], words[5])
		if ok1 && ok2 {
			return src, nil
		}
	}
	return from, fmt.Errorf("PROXY header %q: want PROXY TCP4 or TCP6, two addresses, two ports", line)
}

func parseEnd(family, addr, port string) (netip.AddrPort, bool) {
	a, err := netip.ParseAddr(addr)
	n, err2 := strconv.ParseUint(port, 10, 16)
	ok := err == nil && err2 == nil && a.Zone() == "" && a.Is4() == (family == "TCP4")
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), ok
}

// readV2 reads the binary form: the start, a byte for version and command, a byte for
// the family, two bytes for the length of the rest, the addresses, and extensions.
func readV2(r *bufio.Reader) (from netip.AddrPort, err error) {
	const (
		local, proxy = 0x20, 0x21
		tcp4, tcp6   = 0x11, 0x21
		size4, size6 = 12, 36
	)
	head, err := r.Peek(len(startV2) + 4)
	if err != nil {
		return from, fmt.Errorf("PROXY header: %w", err)
	}
	command, family := head[12], head[13]
	size := int(binary.BigEndian.Uint16(head[14:]))
	_, _ = r.Discard(len(head))
	addresses, err := r.Peek(min(size, size6))
	if err != nil {
		return from, fmt.Errorf("PROXY header: %w", err)
	}
	port := binary.BigEndian.Uint16
	switch {
	case command == local:
	case command != proxy:
		return from, fmt.Errorf("PROXY header: version and command %#02x, want 0x20 or 0x21", command)
	case family == tcp4 && size >= size4:
		from = netip.AddrPortFrom(netip.AddrFrom4([4]byte(addresses)), port(addresses[8:]))
	case family == tcp6 && size >= size6:
		from = netip.AddrPortFrom(netip.AddrFrom16([16]byte(addresses)).Unmap(), port(addresses[32:]))
	case family == tcp4 || family == tcp6:
		return from, fmt.Errorf("PROXY header: %d bytes are too few for its addresses", size)
	default:
		// Another kind of address, such as a Unix socket: only the peer is known.
	}
	if _, err := r.Discard(size); err != nil {
		return from, fmt.Errorf("PROXY header: %w", err)
	}
	return from, nil
}
