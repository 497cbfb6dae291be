// Package xds gets the configuration of rate limits from an xDS management server. It is a
// client of an aggregated discovery stream (state of the world) for resources of the type
// ratelimit.config.ratelimit.v3.RateLimitConfig.
//
// A response is used as a whole or not at all. If it is rejected, the server gets the
// reason, and the previous configuration stays in use, as it does while there is no
// connection. The next response is read when the last one is in use, so a fast server is
// slowed down and nothing queues up.
//
// # What it does not do
//
// It does not check configurations, which is up to Options.Use, and stores nothing on disk.
// It requests no other resources, and does not support delta streams.
package xds

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
)

// TypeURL is the type of the resources.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// Options are a client's settings. Server and Use are required.
type Options struct {
	// Server is the address of the management server: host:port, or another gRPC target,
	// such as unix:/run/xds.sock.
	Server string
	// NodeID is the ID of this node. Default "default".
	NodeID string
	// Metadata is the metadata of this node.
	Metadata map[string]string
	// Headers are sent with each stream.
	Headers map[string]string
	// TLS is the configuration for TLS. Nil: plain text.
	TLS *tls.Config
	// MaxMessage is how many bytes a response may have. Default 16 MiB.
	MaxMessage int
	// Use puts a configuration to use, or rejects it with an error, which is sent to the
	// server. Run calls it, never concurrently, and reads no response until it returns.
	Use func(context.Context, []descriptor.Named) error
	// Log logs connections and configurations. Default: none.
	Log *slog.Logger
	// MinPause is the maximum of the first pause between attempts to connect. It doubles
	// with each attempt, up to MaxPause, which is at most an hour. Pauses are random between
	// 0 and this maximum. Defaults 1 s and 30 s.
	MinPause, MaxPause time.Duration
	// Ping is after how much silence the server is pinged. The connection is closed if there
	// is no answer within 20 s. Default 5 minutes, at least 10 s; many servers disconnect
	// clients that ping more often.
	Ping time.Duration
	// Now is the clock of State. Default time.Now.
	Now func() time.Time
}

// State is the state of a client.
type State struct {
	Connected bool      `json:"connected"`      // there is a stream
	Since     time.Time `json:"since,omitzero"` // when the stream began or ended; zero if there was none

	Version string    `json:"version,omitempty"` // the server's name for the version in use
	Used    time.Time `json:"used,omitzero"`     // since when it is in use; zero if there is none

	Accepted uint64 `json:"accepted"`        // versions that were used so far
	Rejected uint64 `json:"rejected"`        // and that were not
	Stale    bool   `json:"stale,omitempty"` // the last response was rejected

	// Problem is why there is no stream, or why the last response is not in use. It is empty
	// if there is no problem.
	Problem   string    `json:"problem,omitempty"`
	ProblemAt time.Time `json:"problem_at,omitzero"` // when it began
}

// Client is a client of one server. Its methods are safe for concurrent use, except that
// only one Run may be active.
type Client struct {
	o       Options
	node    *core.Node
	headers metadata.MD
	dial    []grpc.DialOption

	mu    sync.Mutex
	state State
}

// New returns a client. It connects in Run.
func New(o Options) (*Client, error) {
	o.NodeID, o.MaxMessage = cmp.Or(o.NodeID, "default"), cmp.Or(o.MaxMessage, 16<<20)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.MinPause, o.Ping = cmp.Or(o.MinPause, time.Second), cmp.Or(o.Ping, 5*time.Minute)
	o.MaxPause = cmp.Or(o.MaxPause, max(30*time.Second, o.MinPause))
	if o.Now == nil {
		o.Now = time.Now
	}
	switch {
	case o.Server == "":
		return nil, invalid("Server", o.Server, "host:port")
	case !utf8.ValidString(o.NodeID):
		return nil, invalid("NodeID", o.NodeID, "UTF-8")
	case o.MaxMessage < 0:
		return nil, invalid("MaxMessage", strconv.Itoa(o.MaxMessage), "1 or more, or 0 for 16 MiB")
	case o.Use == nil:
		return nil, invalid("Use", "nil", "a function that uses configurations")
	case o.MinPause < 0:
		return nil, invalid("MinPause", o.MinPause.String(), "a positive duration")
	case o.MaxPause < o.MinPause || o.MaxPause > time.Hour:
		return nil, invalid("MaxPause", o.MaxPause.String(), "MinPause, "+o.MinPause.String()+", to 1h")
	case o.Ping < 10*time.Second:
		return nil, invalid("Ping", o.Ping.String(), "10s or more")
	}
	c := &Client{o: o, headers: metadata.MD{}}
	for name, value := range o.Headers {
		if err := checkHeader(name, value); err != nil {
			return nil, err
		}
		c.headers.Append(name, value)
	}
	fields := make(map[string]*structpb.Value, len(o.Metadata))
	for k, v := range o.Metadata {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return nil, invalid("Metadata", k+"="+v, "UTF-8")
		}
		fields[k] = structpb.NewStringValue(v)
	}
	c.node = &core.Node{Id: o.NodeID, UserAgentName: "stint", Metadata: &structpb.Struct{Fields: fields}}

	secure := insecure.NewCredentials()
	if o.TLS != nil {
		secure = credentials.NewTLS(o.TLS)
	}
	c.dial = []grpc.DialOption{
		grpc.WithTransportCredentials(secure),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: o.Ping, Timeout: 20 * time.Second}),
		grpc.WithDisableServiceConfig(), // only Run retries
	}
	conn, err := grpc.NewClient(o.Server, c.dial...)
	if err != nil {
		return nil, invalid("Server", o.Server, "host:port, or another target of gRPC ("+err.Error()+")")
	}
	return c, conn.Close()
}

// checkHeader rejects headers that gRPC would reject for each stream, or not send.
func checkHeader(name, value string) error {
	key := strings.ToLower(name)
	switch key {
	case "", "connection", "content-type", "host", "te", "user-agent":
		return invalid("Headers", name, "a header that is not the protocol's own")
	}
	if strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || strings.HasPrefix(key, "grpc-") {
		return invalid("Headers", name, "a name of letters, digits, -, _ and . that does not begin with grpc-")
	}
	if strings.HasSuffix(key, "-bin") {
		return nil // gRPC encodes it
	}
	for _, b := range []byte(value) {
		if b < ' ' || b > '~' {
			return invalid("Headers", name, "a value of printable ASCII, or a name that ends in -bin") // the value may be a secret
		}
	}
	return nil
}

func invalid(field, value, want string) error {
	return &stint.InvalidError{Field: field, Value: value, Want: want}
}

// State returns the client's state.
func (c *Client) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

func (c *Client) change(f func(s *State, now time.Time)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.state, c.o.Now())
}

// Run connects and uses what the server sends, and reconnects as needed, until ctx ends. It
// returns the error of ctx.
func (c *Client) Run(ctx context.Context) error {
	for bound := c.o.MinPause; ; bound = min(2*bound, c.o.MaxPause) {
		answered, err := c.stream(ctx)
		c.lost(ctx, err)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if answered {
			bound = c.o.MinPause
		}
		t := time.NewTimer(rand.N(bound))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

// stream serves one stream until it ends. It has its own connection, so that names are
// looked up again and only Run decides when to retry.
func (c *Client) stream(ctx context.Context) (answered bool, err error) {
	conn, err := grpc.NewClient(c.o.Server, c.dial...)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).
		StreamAggregatedResources(metadata.NewOutgoingContext(ctx, c.headers))
	if err != nil {
		return false, err
	}
	c.change(func(s *State, now time.Time) {
		s.Connected, s.Since, s.Problem, s.ProblemAt = true, now, "", time.Time{}
	})
	c.o.Log.LogAttrs(ctx, slog.LevelInfo, "xds connected", slog.String("server", c.o.Server))

	ask := c.request("", nil)
	for {
		if ask != nil {
			// Recv returns the reason why a stream has ended, not Send.
			if err := stream.Send(ask); err != nil && !errors.Is(err, io.EOF) {
				return answered, err
			}
		}
		answer, err := stream.Recv()
		if err != nil {
			return answered, err
		}
		answered = true
		if ask = c.answer(ctx, answer); ctx.Err() != nil {
			return answered, ctx.Err()
		}
	}
}

// request returns a request for newer versions than the one in use. It accepts the response
// with the nonce, or rejects it if there is an error.
func (c *Client) request(nonce string, rejected error) *discovery.DiscoveryRequest {
	r := &discovery.DiscoveryRequest{
		VersionInfo: c.State().Version, Node: c.node, TypeUrl: TypeURL, ResponseNonce: nonce,
	}
	if rejected != nil {
		r.ErrorDetail = &status.Status{Code: int32(codes.InvalidArgument), Message: rejected.Error()}
	}
	return r
}

// brief shortens an error, which may list thousands of problems, and makes it valid UTF-8.
func brief(err error) error {
	const maxBytes = 8 << 10
	text := err.Error()
	return errors.New(strings.ToValidUTF8(text[:min(len(text), maxBytes)], ""))
}

// answer uses a response, and returns the request that accepts or rejects it, or nil if the
// response is ignored.
func (c *Client) answer(ctx context.Context, r *discovery.DiscoveryResponse) *discovery.DiscoveryRequest {
	if r.GetTypeUrl() != TypeURL {
		c.o.Log.LogAttrs(ctx, slog.LevelWarn, "xds answer ignored", slog.String("type", r.GetTypeUrl()), slog.String("want", TypeURL))
		return nil
	}
	domains, err := read(r.GetResources())
	if err == nil {
		err = c.o.Use(ctx, domains)
	}
	version := slog.String("version", r.GetVersionInfo())
	switch {
	case err == nil:
		c.change(func(s *State, now time.Time) {
			s.Version, s.Used, s.Problem, s.ProblemAt = r.GetVersionInfo(), now, "", time.Time{}
			s.Accepted, s.Stale = s.Accepted+1, false
		})
		c.o.Log.LogAttrs(ctx, slog.LevelInfo, "xds version used", version, slog.Int("resources", len(domains)))
	case ctx.Err() == nil: // otherwise Use failed because ctx has ended
		err = brief(err)
		c.change(func(s *State, _ time.Time) { s.Rejected, s.Stale = s.Rejected+1, true })
		c.problem("version " + strconv.Quote(r.GetVersionInfo()) + " was rejected: " + err.Error())
		c.o.Log.LogAttrs(ctx, slog.LevelError, "xds version rejected", version, slog.Any("error", err))
	}
	return c.request(r.GetNonce(), err)
}

// lost records that there is no stream.
func (c *Client) lost(ctx context.Context, err error) {
	c.change(func(s *State, now time.Time) {
		if s.Connected || s.Since.IsZero() {
			s.Connected, s.Since = false, now
		}
	})
	if ctx.Err() != nil {
		return
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the server has ended the stream")
	}
	c.problem("no stream from " + c.o.Server + ": " + err.Error())
	c.o.Log.LogAttrs(ctx, slog.LevelWarn, "xds connection lost", slog.String("server", c.o.Server), slog.Any("error", err))
}

// problem records a problem, and when it began.
func (c *Client) problem(text string) {
	c.change(func(s *State, now time.Time) {
		if s.Problem != text {
			s.Problem, s.ProblemAt = text, now
		}
	})
}
