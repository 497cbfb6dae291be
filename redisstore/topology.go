package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/stintdev/stint"
)

// options returns the options of every connection.
func (c *config) options() rueidis.ClientOption {
	o := rueidis.ClientOption{
		InitAddress:   c.addrs,
		Username:      c.user,
		Password:      c.password,
		SelectDB:      c.db,
		TLSConfig:     c.tls,
		ClientName:    c.clientName,
		ClientSetInfo: rueidis.DisableClientSetInfo,
		// A connection without replies is pinged that often, and closed if no reply comes within the
		// timeout. Until then, a server that is back behind it cannot be used.
		Dialer:              net.Dialer{Timeout: c.dialTimeout, KeepAlive: 500 * time.Millisecond},
		ConnWriteTimeout:    c.timeout,
		PipelineMultiplex:   c.multiplex,
		MaxFlushDelay:       c.flushDelay,
		ReadBufferEachConn:  c.buffer,
		WriteBufferEachConn: c.buffer,
		DisableCache:        true,
		DisableRetry:        true, // Store.retry does it
		ForceSingleClient:   c.topology == single || c.topology == ring,
	}
	if c.socket != "" {
		o.DialCtxFn = c.dialSocket
	}
	return o
}

// dialSocket connects to the unix socket.
func (c *config) dialSocket(ctx context.Context, _ string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
	if t != nil {
		d := tls.Dialer{NetDialer: d, Config: t}
		return d.DialContext(ctx, "unix", c.socket)
	}
	return d.DialContext(ctx, "unix", c.socket)
}

// link is a client of a server of a ring, or of all servers.
type link struct {
	addr   string // of the server; empty: those in the URL
	client atomic.Pointer[rueidis.Client]
	err    atomic.Pointer[error] // why there is no client
}

// link returns the link to a place.
func (s *Store) link(place int) *link {
	if s.ring == nil {
		return s.links[0]
	}
	return s.links[place]
}

// linkOf returns the link to the server of a key that is not of a counter.
func (s *Store) linkOf(key string) *link {
	if s.ring == nil {
		return s.links[0]
	}
	return s.links[s.ring.of(key).now]
}

// connectAll creates the clients. Those that cannot connect are tried again in the background.
func (s *Store) connectAll() {
	if s.config.own != nil {
		l := new(link)
		l.err.Store(&errOwn)
		s.links = []*link{l}
		return
	}
	addrs := []string{""}
	if s.ring != nil {
		addrs = s.ring.addrs
	}
	var wg sync.WaitGroup
	for _, addr := range addrs {
		l := &link{addr: addr}
		s.links = append(s.links, l)
		wg.Go(func() {
			if !s.connect(l) {
				s.work.Go(func() { s.reconnect(l) })
			}
		})
	}
	wg.Wait()
}

// connect creates the client of a link, or stores the error.
func (s *Store) connect(l *link) bool {
	c := &s.config
	o := c.options()
	switch c.topology {
	case single:
	case ring:
		o.InitAddress = []string{l.addr}
	case sentinel:
		o.Sentinel = rueidis.SentinelOption{
			MasterSet: c.primary,
			Username:  c.sentinelUser,
			Password:  c.sentinelPassword,
			TLSConfig: c.tls,
			Dialer:    o.Dialer,

			ClientName: c.clientName,
			// The announcement of a new primary can be missed.
			TopologyRefreshInterval: time.Second,
		}
	case cluster:
		o.ClusterOption.MaxMovedRedirections = 8
	}
	client, err := rueidis.NewClient(o)
	if err != nil {
		l.err.Store(&err)
		return false
	}
	l.client.Store(&client)
	return true
}

// reconnect tries to create the client until it succeeds or the store is closed.
func (s *Store) reconnect(l *link) {
	const minPause, maxPause = 20 * time.Millisecond, time.Second
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		if wait(s.base, pause) != nil || s.connect(l) {
			return
		}
	}
}

// wait waits for about d, or until ctx is done.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// retry runs f, and repeats it during failovers and migrations: a server that replies with such an
// error has applied nothing. It does not repeat a call that may have been applied.
func (s *Store) retry(ctx context.Context, l *link, f func(rueidis.Client) error) error {
	return s.repeat(ctx, func() error {
		client := l.client.Load()
		if client == nil {
			return notApplied(*l.err.Load())
		}
		if s.handedOver(*client) {
			return errHandover
		}
		return f(*client)
	})
}

func (s *Store) repeat(ctx context.Context, f func() error) error {
	const minPause, maxPause = 2 * time.Millisecond, 50 * time.Millisecond
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		err := f()
		if err == nil || errors.Is(err, errAnswer) || errors.Is(err, stint.ErrNotApplied) {
			return err
		}
		if s.base.Err() != nil {
			return stint.ErrClosed
		}
		var dial *net.OpError
		reply, ok := errorReply(err)
		switch {
		case tryAgain(err):
			return err
		case ok && moving(reply), errors.Is(err, errHandover):
			s.stats.retries.Add(1)
			if wait(ctx, pause) == nil {
				continue
			}
			return notApplied(err)
		case errors.As(err, &dial) && dial.Op == "dial":
			return notApplied(err)
		}
		return unavailable(err)
	}
}

// moving reports whether the error says that another server is responsible, or that this one is
// not ready yet.
func moving(reply string) bool {
	word, _, _ := strings.Cut(reply, " ")
	switch word {
	case "LOADING", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "MOVED", "ASK":
		return true
	}
	// Before Redis 7, an error of the first write in a script looks like this.
	return strings.Contains(reply, " -READONLY ")
}

// tryAgain reports whether the error says that some keys of a call have been migrated and others
// have not.
func tryAgain(err error) bool {
	reply, ok := errorReply(err)
	return ok && strings.HasPrefix(reply, "TRYAGAIN")
}
