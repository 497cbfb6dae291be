package daemon

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
)

const (
	// maxRequests is how many requests an HTTP/2 connection may have at once. net/http does
	// not begin more, even if those before were cancelled but still run, and closes a
	// connection with four times as many waiting.
	maxRequests = 250
	// maxCancelled is how many requests of an HTTP/2 connection may be cancelled for nothing:
	// beyond the number of those that were answered.
	maxCancelled = 100
)

// cancels counts the requests of a connection. To cancel a request takes a client nine
// bytes, while a gateway has to give up a connection to an upstream for it.
type cancels struct {
	conn net.Conn
	more atomic.Int64 // cancelled requests, minus those that were answered, but not below 0
}

type cancelsKey struct{}

// countCancels is for [http.Server].ConnContext.
func countCancels(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, cancelsKey{}, &cancels{conn: c})
}

// noteEnd notes that a request has ended, and closes its connection if the client cancels more
// requests than it lets us answer.
func noteEnd(r *http.Request, log *slog.Logger) {
	c, ok := r.Context().Value(cancelsKey{}).(*cancels)
	switch {
	case !ok || r.ProtoMajor < 2:
	case r.Context().Err() == nil:
		for {
			if n := c.more.Load(); n == 0 || c.more.CompareAndSwap(n, n-1) {
				break
			}
		}
	case c.more.Add(1) == maxCancelled+1:
		log.Warn("connection closed: the client cancels requests and does not wait for answers", "client", r.RemoteAddr)
		_ = c.conn.Close()
	}
}
