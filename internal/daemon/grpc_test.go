package daemon_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	quotav3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint/grpclimit/stintpb"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/testserver"
)

// overGRPC connects to the gRPC listener.
func overGRPC(t *testing.T, p *process) (stintpb.ReservationsClient, grpc_health_v1.HealthClient) {
	t.Helper()
	cc := p.dial(t)
	return stintpb.NewReservationsClient(cc), grpc_health_v1.NewHealthClient(cc)
}

func (p *process) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+p.URL("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	do(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// reserving is a call that reserves, as both doors read it.
var reserving = &stintpb.ReserveRequest{
	Request: &stintpb.Request{Path: "/", User: "alice"}, Usage: &stintpb.Usage{Meters: map[string]int64{"llm.total_tokens": 80}},
}

// TestReservationsOverGRPC settles by gRPC what was reserved by HTTP, and the other way round, without Envoy.
func TestReservationsOverGRPC(t *testing.T) {
	t.Parallel()
	p := start(t, metered)
	c, health := overGRPC(t, p)
	h, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || h.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("%v, %v", h, err)
	}
	post := func(path, body string) (out struct {
		Ticket   string
		Repeated bool
	},
	) {
		t.Helper()
		code, text := p.send(t, p.client, "POST", p.URL("http")+path, body)
		if err := json.Unmarshal([]byte(text), &out); err != nil || code != 200 {
			t.Fatal(code, text, err)
		}
		return out
	}
	ticket := post("/v1/reserve", `{"path": "/", "user": "alice", "usage": {"llm.total_tokens": 80}}`).Ticket
	receipt, err := c.Commit(t.Context(), &stintpb.CommitRequest{Ticket: ticket, Usage: &stintpb.Usage{Meters: map[string]int64{"llm.total_tokens": 50}}})
	if err != nil || receipt.GetRepeated() || receipt.GetLimits()[0].GetUsed() != 50 {
		t.Fatalf("%v, %v", receipt, err)
	}
	reserved, err := c.Reserve(t.Context(), reserving)
	do(t, err)
	if out := post("/v1/cancel", `{"ticket": "`+reserved.GetTicket()+`"}`); out.Repeated {
		t.Errorf("%+v", out)
	}
	receipt, err = c.Cancel(t.Context(), &stintpb.CancelRequest{Ticket: reserved.GetTicket()})
	if err != nil || !receipt.GetRepeated() {
		t.Errorf("%v, %v: want that HTTP has settled it before", receipt, err)
	}
}

// TestReservationsGuarded requires of reservations over gRPC what server.grpc says, and otherwise no less than HTTP.
func TestReservationsGuarded(t *testing.T) {
	t.Parallel()
	const forHTTP, forGRPC = "a-token-for-http-calls", "a-token-for-grpc-calls"
	path := func(name string) string { return filepath.Join(t.TempDir(), name) }
	cert, key := path("server.crt"), path("server.key")
	testserver.WritePair(t, cert, key, "server")
	certified := []daemon.Flag{set("server.http.tls_cert", cert), set("server.http.tls_key", key), set("server.http.tls_client_ca", cert)}
	for name, c := range map[string]struct {
		flags []daemon.Flag
		codes map[string]codes.Code // by token
		says  string
	}{
		"open":            {nil, map[string]codes.Code{"": codes.OK}, ""},
		"tokens of HTTP":  {[]daemon.Flag{set("server.http.tokens", forHTTP)}, map[string]codes.Code{"": codes.Unauthenticated, forHTTP: codes.OK, forGRPC: codes.Unauthenticated}, "server.http.tokens"},
		"tokens of both":  {[]daemon.Flag{set("server.http.tokens", forHTTP), set("server.grpc.tokens", forGRPC)}, map[string]codes.Code{"": codes.Unauthenticated, forHTTP: codes.Unauthenticated, forGRPC: codes.OK}, "server.grpc.tokens"},
		"certificates":    {certified, map[string]codes.Code{"": codes.Unimplemented}, ""},
		"or tokens there": {append(certified, set("server.grpc.tokens", forGRPC)), map[string]codes.Code{"": codes.Unauthenticated, forGRPC: codes.OK}, "server.grpc.tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, metered, c.flags...)
			client, _ := overGRPC(t, p)
			reflection := grpc_reflection_v1.NewServerReflectionClient(p.dial(t))
			for token, want := range c.codes {
				ctx := t.Context()
				if token != "" {
					ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
				}
				_, err := client.Reserve(ctx, reserving)
				described := describes(ctx, reflection)
				if refused := want == codes.Unauthenticated; refused != (status.Code(described) == codes.Unauthenticated) {
					t.Errorf("reflection with %q: %v", token, described)
				}
				if status.Code(err) != want || want == codes.Unauthenticated && !strings.Contains(err.Error(), c.says) {
					t.Errorf("with %q: %v, want %v, %s", token, err, want, c.says)
				}
			}
		})
	}
}

// describes asks which services there are.
func describes(ctx context.Context, c grpc_reflection_v1.ServerReflectionClient) error {
	stream, err := c.ServerReflectionInfo(ctx)
	if err == nil {
		_ = stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
		_, err = stream.Recv()
	}
	return err
}

// TestNoGRPC has no gRPC listener unless its address is set, or Envoy is served.
func TestNoGRPC(t *testing.T) {
	t.Parallel()
	load := func(text string) bool {
		t.Helper()
		c, err := daemon.Source{Path: write(t, "stint.toml", text)}.Load()
		do(t, err)
		return c.ServesGRPC()
	}
	if load("") {
		t.Error("there is a gRPC listener at its default address")
	}
	if !load("[server.grpc]\naddress = \"127.0.0.1:8081\"\n") {
		t.Error("there is no gRPC listener at the address that is set")
	}
}

// quota gets an assignment for a bucket, as Envoy does.
func (p *process) quota(t *testing.T, bucket map[string]string) {
	t.Helper()
	stream, err := quotav3.NewRateLimitQuotaServiceClient(p.dial(t)).StreamRateLimitQuotas(t.Context())
	do(t, err)
	do(t, stream.Send(&quotav3.RateLimitQuotaUsageReports{Domain: "shop", BucketQuotaUsages: []*quotav3.RateLimitQuotaUsageReports_BucketQuotaUsage{{
		BucketId: &quotav3.BucketId{Bucket: bucket}, NumRequestsAllowed: 1,
	}}}))
	_, err = stream.Recv()
	do(t, err)
}
