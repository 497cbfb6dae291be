package testserver

import (
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy stands between clients and a server, and does to connections what
// networks do. A library for that exists, and would bring more modules into
// go.mod than all the rest of it.
type Proxy struct {
	addr, target string

	mu       sync.Mutex
	listener net.Listener // nil while connections are refused
	links    map[*link]bool
	fault    Fault
	work     sync.WaitGroup
}

// Fault is what a proxy does. The zero Fault is a good network.
type Fault struct {
	Refuse  bool          // nothing listens, and connections are cut
	Swallow bool          // what is sent disappears; connections stay
	Latency time.Duration // of everything, each way
	Reset   float64       // the part of packets that a reset answers
	Trickle time.Duration // between one byte and the next
}

// link is a connection and its other half. Once it has lost a byte it is dead,
// though no one is told.
type link struct {
	client, server net.Conn
	dead           bool
}

// StartProxy starts a proxy in front of an address, until t ends.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{target: target, addr: addr(0), links: map[*link]bool{}}
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

// Addr returns the proxy's address, which stays the same.
func (p *Proxy) Addr() string { return p.addr }

// Set makes the network bad, or good again.
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

// Forget makes all connections half-open: the server has closed them, and the
// client was never told. New ones are good.
func (p *Proxy) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.dead = true
		l.server.Close()
	}
}

// Links is how many connections there are.
func (p *Proxy) Links() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// refuse cuts all connections, and takes no more. It is called with the lock held.
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

// copy passes on what one side sends to the other.
func (p *Proxy) copy(l *link, from, to net.Conn, fromClient bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		f := p.fault
		if f.Swallow && n > 0 {
			l.dead = true
		}
		dead := l.dead
		p.mu.Unlock()
		if dead && (err == nil || !fromClient) {
			if err != nil {
				return // the client is not told
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

// pass writes what has arrived, as the fault has it.
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
