package xds

import (
	"context"
	"net"

	"google.golang.org/grpc"
)

// DialWith has the client connect in another way, such as within a bubble of
// testing/synctest.
func (c *Client) DialWith(dial func(context.Context, string) (net.Conn, error)) {
	c.dial = append(c.dial, grpc.WithContextDialer(dial))
}
