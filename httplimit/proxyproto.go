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

// ProxyListener returns a listener of connections whose RemoteAddr is what trusted
// peers say in a PROXY header, of version 1 or 2. Peers are trusted by their
// networks, and must send one: a balancer that forgets it would be counted as if it
// were all its clients. They say UNKNOWN or LOCAL of connections of their own, which
// are then from the peer. What version 2 says beside the addresses is skipped.
//
// Peers that are not trusted are who they are. If they send a header they are cut off.
//
// Accept waits for no one. The header is read on the first call of Read or RemoteAddr,
// which a server makes in the connection's own goroutine; it has five seconds.
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
	early *bufio.Reader // what came along with the header; nil when it is read
	from  net.Addr      // whom the header names; nil: the peer
	err   error
}

// begin reads the header. It is given its time by closing the connection: a deadline
// would take the place of the server's.
func (c *proxyConn) begin() {
	c.once.Do(func() {
		c.early = bufio.NewReaderSize(c.Conn, mostV1)
		if !c.trusted {
			c.err = refuseHeader(c.early)
		} else {
			timer := time.AfterFunc(proxyTimeout, func() { _ = c.Close() })
			var from netip.AddrPort
			from, c.err = readHeader(c.early)
			if !timer.Stop() && c.err == nil {
				c.err = errors.New("the PROXY header came too late")
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

// RemoteAddr returns the address that the header names, or else that of the peer.
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

// CloseWrite ends what is sent, for a server that wants its last answer to arrive.
func (c *proxyConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported
}

const (
	startV1 = "PROXY "
	mostV1  = 107 // bytes, by the specification
	startV2 = "\r\n\r\n\x00\r\nQUIT\n"
)

// refuseHeader looks at no more bytes than it takes to see that this is no header.
func refuseHeader(r *bufio.Reader) error {
	for n := 1; ; n++ {
		b, err := r.Peek(n)
		switch got := string(b); {
		case err != nil && n == 1:
			return err
		case err != nil: // it ends here, for others to see
			return nil
		case got == startV1 || got == startV2:
			return errors.New("a PROXY header from a peer that is not trusted")
		case !strings.HasPrefix(startV1, got) && !strings.HasPrefix(startV2, got):
			return nil
		}
	}
}

// readHeader reads a header. The address is not valid if it names none.
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
	line, err := r.ReadSlice('\n') // no longer than the reader's buffer
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

// readV2 reads the binary form: after the start one byte for version and command, one
// for the family, two for the length of the rest, which is addresses and more.
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
		// Neither an address nor a stream of ours: the peer is all that is known.
	}
	if _, err := r.Discard(size); err != nil {
		return from, fmt.Errorf("PROXY header: %w", err)
	}
	return from, nil
}
