package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/stintdev/stint"
)

// options are those of every connection.
func (c *config) options() rueidis.ClientOption {
	return rueidis.ClientOption{
		InitAddress:         c.addrs,
		Username:            c.user,
		Password:            c.password,
		SelectDB:            c.db,
		TLSConfig:           c.tls,
		ClientName:          c.clientName,
		ClientSetInfo:       rueidis.DisableClientSetInfo,
		Dialer:              net.Dialer{Timeout: c.dialTimeout, KeepAlive: time.Second},
		ConnWriteTimeout:    c.timeout,
		PipelineMultiplex:   c.multiplex,
		MaxFlushDelay:       c.flushDelay,
		ReadBufferEachConn:  c.buffer,
		WriteBufferEachConn: c.buffer,
		DisableCache:        true,
		DisableRetry:        true, // what may be sent again is decided here
		ForceSingleClient:   c.topology == single,
	}
}

// connect makes the client, or notes why it cannot.
func (s *Store) connect() bool {
	c := &s.config
	o := c.options()
	switch c.topology {
	case single:
	case sentinel:
		o.Sentinel = rueidis.SentinelOption{
			MasterSet: c.primary,
			Username:  c.sentinelUser,
			Password:  c.sentinelPassword,
			TLSConfig: c.tls,
			Dialer:    o.Dialer,

			ClientName: c.clientName,
			// An announcement of a new primary can be missed.
			TopologyRefreshInterval: time.Second,
		}
	case cluster:
		o.ClusterOption.MaxMovedRedirections = 8
	}
	client, err := rueidis.NewClient(o)
	if err != nil {
		s.why.Store(&err)
		return false
	}
	s.client.Store(&client)
	return true
}

// reconnect makes the client as soon as it can be made.
func (s *Store) reconnect() {
	const least, most = 20 * time.Millisecond, time.Second
	for pause := least; ; pause = min(2*pause, most) {
		if wait(s.base, pause) != nil || s.connect() {
			return
		}
	}
}

// wait waits for about that long, or until ctx is done.
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

// retry runs f, again and again while the servers are changing places. Nothing
// is applied by a server that says so. What may have been applied is not tried
// again.
func (s *Store) retry(ctx context.Context, f func(rueidis.Client) error) error {
	const least, most = 2 * time.Millisecond, 50 * time.Millisecond
	for pause := least; ; pause = min(2*pause, most) {
		client := s.client.Load()
		if client == nil {
			return untouched(*s.why.Load())
		}
		err := f(*client)
		if err == nil || errors.Is(err, errAnswer) {
			return err
		}
		if s.base.Err() != nil {
			return stint.ErrClosed
		}
		var dial *net.OpError
		reply, ok := rueidis.IsRedisErr(err)
		switch {
		case tryAgain(err):
			return err
		case ok && moving(reply.Error()):
			s.stats.retries.Add(1)
			if wait(ctx, pause) == nil {
				continue
			}
			return untouched(err)
		case errors.As(err, &dial) && dial.Op == "dial":
			return untouched(err)
		}
		return unavailable(err)
	}
}

// moving reports whether the error is of a server that is not, or not yet, the
// one to ask.
func moving(reply string) bool {
	word, _, _ := strings.Cut(reply, " ")
	switch word {
	case "LOADING", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "MOVED", "ASK":
		return true
	}
	// Before Redis 7, what the first write of a script meets is told like this.
	return strings.Contains(reply, " -READONLY ")
}

// tryAgain reports whether the error is that some keys of a call are already in
// their new place and others are not.
func tryAgain(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && reply.IsTryAgain()
}
