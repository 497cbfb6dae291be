package testserver

import (
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy is a TCP proxy that simulates network faults. An existing library would add
// more modules to go.mod than everything else.
type Proxy struct {
	addr, target string

	mu       sync.Mutex
	listener net.Listener // nil while connections are refused
	links    map[*link]bool
	fault    Fault
	work     sync.WaitGroup
}

// Fault is a network fault. The zero Fault is none.
type Fault struct {
	Refuse  bool          // new connections are refused, and open ones closed
	Swallow bool          // data is lost; connections stay open
	Mute    bool          // what clients send is lost
	Deaf    bool          // what servers answer is lost
	Latency time.Duration // in each direction
	Reset   float64       // the fraction of packets that reset the connection
	Trickle time.Duration // between bytes
}

// link is a connection of a client and that to the server. Once a direction has lost a byte
// it is dead, but stays open.
type link struct {
	client, server net.Conn
	mute, deaf     bool // what the client sends, and what the server answers, is lost
}

// StartProxy starts a proxy to an address, until t ends.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	// It is not ephemeral: while connections are refused, no other process must get it.
	p := &Proxy{target: target, addr: FreeAddr(t), links: map[*link]bool{}}
	if err := p.listen(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.mu.Lock()
		p.refuse()
		p.mu.Unlock()
		p.work.Wait()
	})
	return p
}

// Addr returns the address of the proxy, which never changes.
func (p *Proxy) Addr() string { return p.addr }

// Set sets the fault.
func (p *Proxy) Set(t testing.TB, f Fault) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	switch {
	case f.Refuse:
		p.refuse()
	case p.listener == nil:
		if err := p.listen(); err != nil {
			t.Fatal(err)
		}
	}
}

// Forget makes all connections half-open: the server has closed them, and the client
// does not know. New ones work.
func (p *Proxy) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.mute, l.deaf = true, true
		l.server.Close()
	}
}

// Links returns the number of connections.
func (p *Proxy) Links() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// refuse closes all connections, and accepts no more. The lock must be held.
func (p *Proxy) refuse() {
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
	for l := range p.links {
		l.client.Close()
		l.server.Close()
	}
}

func (p *Proxy) listen() error {
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		return err
	}
	p.addr, p.listener = l.Addr().String(), l
	p.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.link(c)
		}
	})
	return nil
}

func (p *Proxy) link(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		client.Close()
		return
	}
	l := &link{client: client, server: server}
	p.mu.Lock()
	p.links[l] = true
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.copy(l, client, server, true) })
	both.Go(func() { p.copy(l, server, client, false) })
	p.work.Go(func() {
		both.Wait()
		client.Close()
		server.Close()
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	})
}

// copy forwards data in one direction.
func (p *Proxy) copy(l *link, from, to net.Conn, fromClient bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		f, dead := p.fault, &l.deaf
		lost := f.Swallow || f.Deaf
		if fromClient {
			dead, lost = &l.mute, f.Swallow || f.Mute
		}
		*dead = *dead || lost && n > 0
		isDead := *dead
		p.mu.Unlock()
		if isDead && (err == nil || !fromClient) {
			if err != nil {
				return // without closing the connection of the client
			}
			continue
		}
		if n > 0 && !p.pass(f, buf[:n], to, l) {
			err = net.ErrClosed
		}
		if err != nil {
			from.Close()
			to.Close()
			return
		}
	}
}

// pass writes data, subject to the fault.
func (p *Proxy) pass(f Fault, data []byte, to net.Conn, l *link) bool {
	if f.Reset > rand.Float64() {
		for _, c := range []net.Conn{l.client, l.server} {
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
		}
		return false
	}
	if f.Latency > 0 {
		<-time.After(f.Latency)
	}
	if f.Trickle == 0 {
		_, err := to.Write(data)
		return err == nil
	}
	for i := range data {
		<-time.After(f.Trickle)
		if _, err := to.Write(data[i : i+1]); err != nil {
			return false
		}
	}
	return true
}
