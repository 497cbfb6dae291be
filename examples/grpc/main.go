// Program grpc limits a gRPC server: 100 calls a minute from each address, whatever they
// call. Health checks are not counted.
package main

import (
	"context"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit"
	"github.com/stintdev/stint/memstore"
)

func main() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	server, err := newServer(store)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "localhost:8001")
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(server.Serve(listener))
}

func newServer(store stint.Store) (*grpc.Server, error) {
	limit, err := grpclimit.Limit(store, "100/1m", grpclimit.ByPeer)
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(limit.Unary),
		grpc.ChainStreamInterceptor(limit.Stream),
	)
	grpc_testing.RegisterTestServiceServer(server, service{})
	return server, nil
}

// service stands for your own.
type service struct {
	grpc_testing.UnimplementedTestServiceServer
}

func (service) EmptyCall(context.Context, *grpc_testing.Empty) (*grpc_testing.Empty, error) {
	return &grpc_testing.Empty{}, nil
}
