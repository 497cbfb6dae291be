package grpclimit

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Client has interceptors for clients that keep to the limits of servers. The zero value
// is ready for use, by several goroutines and connections at once.
//
// After a call failed with ResourceExhausted or Unavailable and a time to wait (in
// RetryInfo, or else in the trailer retry-after), further calls of the same method on the
// same target wait before they are sent. A unary call that failed with ResourceExhausted
// and RetryInfo is sent again, since it was denied and not executed; streams and other
// failures are not. All waits are a little longer, so that clients do not come back all at
// once.
//
// No call waits longer than MaxWait in all, or past the deadline of its context: it is
// sent at once instead, or the denial is returned.
type Client struct {
	// MaxRetries is how many times a call is sent again. Default 3; negative: none.
	MaxRetries int
	// MaxWait is how long a call waits in all. Default 1 minute.
	MaxWait time.Duration

	mu     sync.Mutex
	denied map[route]time.Time // when to try again; at most maxRoutes
}

// route is what a denial applies to.
type route struct{ target, method string }

// maxRoutes is how many denials a client remembers. To add one more, it forgets another.
const maxRoutes = 1024

// Unary is a [grpc.UnaryClientInterceptor].
func (c *Client) Unary(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	retries, patience := cmp.Or(c.MaxRetries, 3), cmp.Or(c.MaxWait, time.Minute)
	to := route{cc.Target(), method}
	var trailer metadata.MD
	opts = append(slices.Clip(opts), grpc.Trailer(&trailer))
	for try := 0; ; try++ {
		if err := c.pause(ctx, to, &patience); err != nil {
			return err
		}
		trailer = nil // of the last attempt, in case this one has none
		err := invoke(ctx, method, request, reply, cc, opts...)
		wait, again := c.learn(to, err, trailer)
		if !again || try >= retries {
			return err
		}
		switch waited, ended := sleep(ctx, wait, &patience); {
		case ended != nil:
			return ended
		case !waited:
			return err
		}
	}
}

// Stream is a [grpc.StreamClientInterceptor].
func (c *Client) Stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	to, patience := route{cc.Target(), method}, cmp.Or(c.MaxWait, time.Minute)
	if err := c.pause(ctx, to, &patience); err != nil {
		return nil, err
	}
	stream, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		c.learn(to, err, nil)
		return nil, err
	}
	return &listening{stream, c, to}, nil
}

// listening is a stream that learns from its last status.
type listening struct {
	grpc.ClientStream
	client *Client
	to     route
}

// RecvMsg implements [grpc.ClientStream].
func (l *listening) RecvMsg(message any) error {
	err := l.ClientStream.RecvMsg(message)
	if err != nil {
		l.client.learn(l.to, err, l.Trailer())
	}
	return err
}

// pause waits while the server denies such calls, if patience and the deadline allow it.
func (c *Client) pause(ctx context.Context, to route, patience *time.Duration) error {
	for {
		c.mu.Lock()
		until, ok := c.denied[to]
		wait := time.Until(until)
		if ok && wait <= 0 {
			delete(c.denied, to)
		}
		c.mu.Unlock()
		if !ok || wait <= 0 {
			return nil
		}
		if waited, err := sleep(ctx, wait, patience); !waited {
			return err
		}
	}
}

// learn remembers how long a failed call says to wait, and returns it, and whether to send
// the call again then.
func (c *Client) learn(to route, err error, trailer metadata.MD) (wait time.Duration, again bool) {
	s := status.Convert(err)
	if s.Code() != codes.ResourceExhausted && s.Code() != codes.Unavailable {
		return 0, false
	}
	wait, again = retryInfo(s)
	if !again {
		if values := trailer.Get("retry-after"); len(values) > 0 {
			seconds, err := strconv.ParseUint(values[0], 10, 31)
			if err != nil {
				return 0, false
			}
			wait = time.Duration(seconds) * time.Second
		}
	}
	if wait > 0 {
		c.remember(to, time.Now().Add(wait))
	}
	return wait, again && s.Code() == codes.ResourceExhausted
}

// retryInfo returns how long the RetryInfo of a status says to wait, if it has one.
func retryInfo(s *status.Status) (time.Duration, bool) {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok && info.GetRetryDelay().IsValid() {
			const longest = 1 << 40 * time.Microsecond // longer ones would overflow, and no one waits that long
			return min(max(info.GetRetryDelay().AsDuration(), 0), longest), true
		}
	}
	return 0, false
}

func (c *Client) remember(to route, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.denied == nil {
		c.denied = map[route]time.Time{}
	}
	if _, ok := c.denied[to]; !ok && len(c.denied) >= maxRoutes {
		for other := range c.denied {
			delete(c.denied, other)
			break
		}
	}
	c.denied[to] = until
}

// sleep waits, if patience and the context's deadline allow it, and reports whether it
// has waited. The error is the status of a context that has ended.
func sleep(ctx context.Context, wait time.Duration, patience *time.Duration) (bool, error) {
	const maxSpread = 10 * time.Second
	wait += rand.N(min(wait, maxSpread)/10 + time.Millisecond)
	deadline, ok := ctx.Deadline()
	if wait > *patience || (ok && wait > time.Until(deadline)) {
		return false, ended(ctx)
	}
	*patience -= wait
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true, nil
	case <-ctx.Done():
		return false, ended(ctx)
	}
}

// ended returns the status of a context that has ended, or nil.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return nil
}
