package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpctls "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit"
	"github.com/stintdev/stint/grpclimit/rls"
)

const (
	maxCall  = 1 << 20 // bytes, more than descriptors and requests need
	maxCalls = 10_000  // at once, per connection
)

// grpcServer is the gRPC listener, for Envoy and for reservations.
type grpcServer struct {
	health   *health.Server
	ending   chan struct{} // closed when it stops
	acceptor *acceptor
	grpc     *grpc.Server
	tls      tlsPointer
}

// ServesGRPC reports whether there is a gRPC listener: Envoy is served, or its address is set.
func (c *Config) ServesGRPC() bool {
	return c.Server.GRPC.Address != "" && (c.Envoy.used() || c.origins["server.grpc.address"] != "")
}

// reservesOverGRPC reports whether reservations are served there, too: not to callers without a certificate, if those of
// HTTP need one.
func (s *Server) reservesOverGRPC() bool {
	g := &s.GRPC
	return s.HTTP.TLSClientCA == "" || g.TLSClientCA != "" || len(g.Tokens) > 0 || len(g.TokenFiles) > 0
}

// registerReservations adds reservations to the gRPC listener.
func (d *Daemon) registerReservations(s *grpc.Server) error {
	if !d.config.Server.reservesOverGRPC() {
		return nil
	}
	reservations, err := grpclimit.NewReservations(grpclimit.ReservationsOptions{
		Engine: d.engine, Tickets: d.tickets.tickets, OnError: func(ctx context.Context, method string, err error) error {
			if ctx.Err() == nil && !errors.Is(err, stint.ErrUnavailable) {
				d.log.ErrorContext(ctx, "call failed", "path", method, "error", err.Error())
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	reservations.Register(s)
	return nil
}

// startGRPC serves gRPC in the background.
func (d *Daemon) startGRPC(ctx context.Context) {
	s := d.grpc
	d.work.Go(func() {
		if err := s.serve(); err != nil {
			d.failed <- err
		}
	})
	d.logBound(ctx, grpcListener, s.URL(), s.acceptor)
}

// listenGRPC opens the gRPC listener.
func (d *Daemon) listenGRPC(ctx context.Context) (*grpcServer, error) {
	c, e, log := d.config, d.envoy, d.log
	l := &c.Server.GRPC
	network, address := "tcp", l.Address
	if path, ok := strings.CutPrefix(l.Address, unixPrefix); ok {
		network, address = "unix", path
		// Remove a stale socket of a process that was killed.
		if conn, err := net.Dial(network, address); err == nil {
			_ = conn.Close()
		} else if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeSocket != 0 {
			_ = os.Remove(path) // otherwise listening fails
		}
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, network, address)
	if err != nil {
		return nil, &ListenError{grpcListener, err}
	}
	s := &grpcServer{acceptor: &acceptor{Listener: listener, log: log.With("listener", grpcListener)}, ending: make(chan struct{})}
	options := []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: time.Duration(c.Server.IdleTimeout), MaxConnectionAge: time.Duration(c.Envoy.MaxConnectionAge),
			MaxConnectionAgeGrace: time.Duration(c.Server.Drain),
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.ConnectionTimeout(time.Duration(c.Server.HeaderTimeout)),
		grpc.MaxHeaderListSize(maxHeader), grpc.MaxRecvMsgSize(maxCall), grpc.MaxConcurrentStreams(maxCalls),
		grpc.StreamInterceptor(s.stream), grpc.InTapHandle(d.admitCall),
	}
	if t := c.credentials.tls[grpcListener]; t != nil {
		s.tls.Store(t)
		options = append(options, grpc.Creds(grpctls.NewTLS(s.tls.config())))
	}
	if e != nil {
		s.health, s.grpc = e.health, rls.NewGRPC(e.service, options...)
		if e.quotas != nil {
			e.quotas.Register(s.grpc)
		}
	} else {
		s.health, s.grpc = health.NewServer(), grpc.NewServer(options...)
	}
	if e != nil && c.Envoy.isWatched() {
		grpc_health_v1.RegisterHealthServer(s.grpc, countedHealth{s.health, e.stats})
	} else {
		grpc_health_v1.RegisterHealthServer(s.grpc, s.health)
	}
	reflection.Register(s.grpc)
	if err := d.registerReservations(s.grpc); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return s, nil
}

// unixPrefix is the prefix of addresses of unix sockets.
const unixPrefix = "unix:"

// serve serves until the server is stopped.
func (s *grpcServer) serve() error {
	if err := s.grpc.Serve(s.acceptor); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("%s: %w", grpcListener, err)
	}
	return nil
}

// stream serves a stream, and ends it when the server stops: streams of health checks and
// of reflection would never end.
func (s *grpcServer) stream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ended := make(chan error, 1)
	go func() { ended <- next(srv, stream) }() // it ends with the stream, at the latest
	select {
	case err := <-ended:
		return err
	case <-s.ending:
		return status.Error(codes.Unavailable, "the server is stopping")
	}
}

// stop stops listening and waits for calls to end. When ctx ends, it cuts off the rest and
// returns an error.
func (s *grpcServer) stop(ctx context.Context) error {
	close(s.ending)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.grpc.GracefulStop()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
	}
	const moment = 100 * time.Millisecond // in which it ends if there are no calls
	select {
	case <-ended:
		return nil
	case <-time.After(moment):
		s.grpc.Stop()
		<-ended
		return fmt.Errorf("%s: calls were cut off: %w", grpcListener, ctx.Err())
	}
}

// URL returns the address of the server on this machine.
func (s *grpcServer) URL() string { return localAddress(s.acceptor) }
