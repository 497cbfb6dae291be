package main

import (
	"net"
	"strconv"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint/examples/trial"
)

func TestServer(t *testing.T) {
	server, err := newServer(trial.Store(t))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := grpc_testing.NewTestServiceClient(conn)
	for left := 99; left >= 0; left-- {
		var trailer metadata.MD
		if _, err := client.EmptyCall(t.Context(), &grpc_testing.Empty{}, grpc.Trailer(&trailer)); err != nil {
			t.Fatalf("with %d left: %v", left, err)
		}
		if got := trailer.Get("x-ratelimit-remaining"); len(got) != 1 || got[0] != strconv.Itoa(left) {
			t.Fatalf("x-ratelimit-remaining: %q, want %d", got, left)
		}
	}
	var trailer metadata.MD
	_, err = client.EmptyCall(t.Context(), &grpc_testing.Empty{}, grpc.Trailer(&trailer))
	if status.Code(err) != codes.ResourceExhausted || len(trailer.Get("retry-after")) == 0 || len(trailer.Get("ratelimit")) == 0 {
		t.Errorf("call 101: %v, %v", err, trailer)
	}
	retry := false
	for _, detail := range status.Convert(err).Details() {
		if _, ok := detail.(*errdetails.RetryInfo); ok {
			retry = true
		}
	}
	if !retry {
		t.Errorf("%v does not say when to come back", status.Convert(err).Details())
	}
	stream, err := client.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a stream after call 100: %v", err)
	}
}
