package grpclimit_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"net"
	"net/netip"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/grpclimit"
	"github.com/stintdev/stint/grpclimit/stintpb"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

const (
	callRules = `
		[[rules]]
		name     = "calls"
		match    = { paths = ["/grpc.testing.TestService/*"] }
		count_by = ["ip"]
		limits   = [ { name = "calls", limit = "2/1h token_bucket" } ]
	`
	tokenRules = `
		[[rules]]
		name     = "tokens"
		cost     = { meter = "llm.total_tokens", reserve = 500 }
		limits   = [ { name = "tokens", limit = "100000/month" } ]
	`
)

// newEngine returns an engine for the examples.
func newEngine(text string) *engine.Engine {
	file, err := rule.ParseTOML("rules.toml", []byte(text))
	if err != nil {
		log.Fatal(err)
	}
	rules, err := rule.Compile(file)
	if err != nil {
		log.Fatal(err)
	}
	who, err := identity.New(identity.Options{})
	if err != nil {
		log.Fatal(err)
	}
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	e, err := engine.New(engine.Options{Store: store, Rules: rules, Identity: who})
	if err != nil {
		log.Fatal(err)
	}
	return e
}

func Example() {
	e := newEngine(callRules)
	limit, err := grpclimit.New(grpclimit.Options{Engine: e})
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(limit.Unary),
		grpc.ChainStreamInterceptor(limit.Stream),
	)

	grpc_testing.RegisterTestServiceServer(server, &service{call: func(ctx context.Context) error {
		verdict := grpclimit.VerdictOf(ctx)
		fmt.Println(verdict.Binding().Decision.Remaining, "more")
		return nil
	}})
	conn, stop := serveExample(server)
	for range 3 {
		var trailer metadata.MD
		_, err := grpc_testing.NewTestServiceClient(conn).EmptyCall(context.Background(), &grpc_testing.Empty{}, grpc.Trailer(&trailer))
		fmt.Println(status.Code(err), trailer["ratelimit"])
	}
	stop()
	// Output:
	// 1 more
	// OK ["calls";r=1;t=1800]
	// 0 more
	// OK ["calls";r=0;t=1800]
	// ResourceExhausted ["calls";r=0;t=1800]
}

// serveExample starts a server, and returns a connection to it, and what ends both.
func serveExample(server *grpc.Server) (conn *grpc.ClientConn, stop func()) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	conn, err = grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	return conn, func() {
		conn.Close()
		server.Stop()
		<-done
	}
}

func ExampleUse() {
	e := newEngine(tokenRules)
	limit, err := grpclimit.New(grpclimit.Options{Engine: e})
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(limit.Unary), grpc.ChainStreamInterceptor(limit.Stream))
	grpc_testing.RegisterTestServiceServer(server, &service{call: func(ctx context.Context) error {
		// Here a model answers, and reports what it has used.
		grpclimit.Use(ctx, engine.Usage{Meters: map[rule.Meter]int64{"llm.total_tokens": 650}, Model: "large"})
		return nil
	}})
	conn, stop := serveExample(server)
	ctx := context.Background()
	if _, err := grpc_testing.NewTestServiceClient(conn).EmptyCall(ctx, &grpc_testing.Empty{}); err != nil {
		log.Fatal(err)
	}
	stop()
	if err := e.Settled(ctx); err != nil { // it is counted in the background
		log.Fatal(err)
	}
	v, err := e.Peek(ctx, engine.Request{Method: "POST", Path: "/", Peer: netip.MustParseAddr("127.0.0.1")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(v.Limits[0].Decision.Remaining, "tokens remain")
	// Output: 99350 tokens remain
}

func ExampleReservations() {
	e := newEngine(tokenRules)
	tickets, err := engine.NewTickets(nil, []byte(rand.Text()+rand.Text()))
	if err != nil {
		log.Fatal(err)
	}
	reservations, err := grpclimit.NewReservations(grpclimit.ReservationsOptions{Engine: e, Tickets: tickets})
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer() // with the credentials of those who may call it
	reservations.Register(server)

	conn, stop := serveExample(server)
	client := stintpb.NewReservationsClient(conn)

	ctx := context.Background()
	answer, err := client.Reserve(ctx, &stintpb.ReserveRequest{
		Request: &stintpb.Request{Method: "POST", Path: "/v1/chat/completions", User: "alice"},
		Usage:   &stintpb.Usage{Meters: map[string]int64{"llm.total_tokens": 800}},
	})
	if err != nil {
		log.Fatal(err)
	}
	if !answer.GetVerdict().GetAllowed() {
		fmt.Println(answer.GetVerdict().GetStatus(), answer.GetVerdict().GetReason())
		return
	}
	// Here the model answers. If it cannot be reached: client.Cancel
	receipt, err := client.Commit(ctx, &stintpb.CommitRequest{
		Ticket: answer.GetTicket(), Usage: &stintpb.Usage{Meters: map[string]int64{"llm.total_tokens": 650}}, Model: "large",
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range receipt.GetLimits() {
		fmt.Println(l.GetName(), "used", l.GetUsed(), "of", l.GetReserved(), "reserved; remaining", l.GetRemaining())
	}
	stop()
	// Output: tokens used 650 of 800 reserved; remaining 99350
}

func ExampleLimit() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	limit, err := grpclimit.Limit(store, "100/1m", grpclimit.ByPeer)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(limit.Unary),
		grpc.ChainStreamInterceptor(limit.Stream),
	)

	fmt.Println(len(server.GetServiceInfo()), "services")
	// Output: 0 services
}

func ExampleClient() {
	limits := &grpclimit.Client{}
	conn, err := grpc.NewClient("dns:///shop.example:9000",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(limits.Unary),
		grpc.WithChainStreamInterceptor(limits.Stream),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Println(conn.Target())
	// Output: dns:///shop.example:9000
}
