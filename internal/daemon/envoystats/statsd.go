package envoystats

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strconv"
	"time"
)

// The protocols of statsd.
const (
	TCP       = "tcp"
	UDP       = "udp"
	DogStatsD = "dogstatsd" // over UDP, with tags of its own
)

// Statsd configures where counts are sent.
type Statsd struct {
	Address  string // host:port
	Protocol string // TCP, UDP or DogStatsD
	Interval time.Duration
	Log      *slog.Logger
}

const (
	dialTimeout, writeTimeout = 1500 * time.Millisecond, time.Second

	maxDatagram = 1432 // bytes, which fit into a packet of common networks
	maxChunk    = 64 << 10
)

// Send sends what has been counted at each interval, until ctx ends, and then a last time if the
// server answers.
func (s *Stats) Send(ctx context.Context, o Statsd) {
	c := &sender{stats: s, o: o, sent: map[string]uint64{}}
	defer c.close()
	tick := time.NewTicker(o.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			if c.conn != nil {
				c.flush()
			}
			return
		case <-tick.C:
			if c.connect(ctx) {
				c.flush()
			}
		}
	}
}

// sender sends counts to one server.
type sender struct {
	stats *Stats
	o     Statsd
	conn  net.Conn // nil: there is none
	away  bool     // the server does not answer, which was logged

	sent  map[string]uint64 // the counts that the server knows
	calls [len(methods)][slots]uint64

	chunk []byte
	known []func() // what the server knows when it has the chunk
}

// connect connects, unless there is a connection.
func (c *sender) connect(ctx context.Context) bool {
	if c.conn != nil {
		return true
	}
	network := c.o.Protocol
	if network == DogStatsD {
		network = UDP
	}
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, network, c.o.Address)
	if err != nil {
		c.failed(err)
		return false
	}
	c.conn = conn
	if network == TCP {
		// The server sends nothing. When it closes the connection, so do we: otherwise the next
		// write would get lost.
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}()
	}
	return true
}

// failed closes the connection, and logs that the server does not answer, once.
func (c *sender) failed(err error) {
	c.close()
	if !c.away {
		c.away = true
		c.o.Log.Info("statsd does not answer, and gets the counts when it does", "address", c.o.Address, "error", err.Error())
	}
}

func (c *sender) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// flush sends what the server does not know. If that fails, it is sent the next time.
func (c *sender) flush() {
	c.chunk, c.known = c.chunk[:0], c.known[:0]
	still := make(map[string]uint64, len(c.sent))
	c.stats.each(func(name string, n uint64, gauge bool) {
		if gauge {
			c.line(name, n, "|g", nil)
			return
		}
		before := c.sent[name]
		if before > n {
			before = 0 // the count began anew
		}
		if still[name] = before; n > before {
			c.line(name, n-before, "|c", func() { still[name] = n })
		}
	})
	for m := range c.stats.calls {
		for slot := range slots {
			n, before := c.stats.calls[m].slots[slot].Load(), &c.calls[m][slot]
			if n > *before {
				c.line(ofCalls+methods[m]+tookTime, inMillis(slot), "|ms"+sampled(n-*before), func() { *before = n })
			}
		}
	}
	c.write()
	c.sent = still // without names that are no longer in use
	if c.conn != nil && c.away {
		c.away = false
		c.o.Log.Info("statsd answers", "address", c.o.Address)
	}
}

// sampled returns the sample rate of a line that stands for n equal ones. It is a trifle lower
// than 1/n, because servers divide by it and round down.
func sampled(n uint64) string {
	if n == 1 {
		return ""
	}
	return "|@" + strconv.FormatFloat(1/(float64(n)*(1+1e-9)), 'f', -1, 64)
}

// line adds a line to the chunk. known is called when the server has it.
func (c *sender) line(name string, n uint64, kind string, known func()) {
	text := []byte(name)
	if c.o.Protocol != DogStatsD {
		for _, t := range c.stats.tags {
			text = append(text, ".__"+t.name+"="+t.value...)
		}
	}
	text = append(strconv.AppendUint(append(text, ':'), n, 10), kind...)
	if c.o.Protocol == DogStatsD {
		mark := "|#"
		for _, t := range c.stats.tags {
			text = append(text, mark+t.name+":"+t.value...)
			mark = ","
		}
	}
	most := maxDatagram
	if c.o.Protocol == TCP {
		most = maxChunk
	}
	if len(c.chunk)+len(text)+1 > most {
		c.write()
	}
	c.chunk = append(append(c.chunk, text...), '\n')
	if known != nil {
		c.known = append(c.known, known)
	}
}

// write sends the chunk.
func (c *sender) write() {
	defer func() { c.chunk, c.known = c.chunk[:0], c.known[:0] }()
	if c.conn == nil || len(c.chunk) == 0 {
		return
	}
	err := c.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err == nil {
		_, err = c.conn.Write(c.chunk)
	}
	if err != nil {
		c.failed(err)
		return
	}
	for _, known := range c.known {
		known()
	}
}
