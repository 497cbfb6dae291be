package grpclimit_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/grpclimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// newEngine returns an engine for the examples.
func newEngine() *engine.Engine {
	file, err := rule.ParseTOML("rules.toml", []byte(`
		[[rules]]
		name     = "calls"
		match    = { paths = ["/grpc.testing.TestService/*"] }
		count_by = ["ip"]
		limits   = [ { name = "calls", limit = "2/1h token_bucket" } ]
	`))
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
	e := newEngine()
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
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		var trailer metadata.MD
		_, err := grpc_testing.NewTestServiceClient(conn).EmptyCall(context.Background(), &grpc_testing.Empty{}, grpc.Trailer(&trailer))
		fmt.Println(status.Code(err), trailer["ratelimit"])
	}
	conn.Close()
	server.Stop()
	<-done
	// Output:
	// 1 more
	// OK ["calls";r=1;t=1800]
	// 0 more
	// OK ["calls";r=0;t=1800]
	// ResourceExhausted ["calls";r=0;t=1800]
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
