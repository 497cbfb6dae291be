package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stintdev/stint/examples/trial"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestHandler checks that a user has three streams at once, and that one which ends makes room.
func TestHandler(t *testing.T) {
	handler, err := newHandler(trial.Store(t))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	open := func() (status int, end func()) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-User-Id", "42")
		answer, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = answer.Body.Close() })
		return answer.StatusCode, cancel
	}
	var end func()
	for range 3 {
		var status int
		if status, end = open(); status != http.StatusOK {
			t.Fatalf("one of three streams: status %d", status)
		}
	}
	if status, _ := open(); status != http.StatusTooManyRequests {
		t.Fatalf("a fourth stream: status %d", status)
	}
	end()
	// The server notices a moment later.
	wait.For(t, "there is room after one has ended", func() bool {
		status, _ := open()
		return status == http.StatusOK
	})
}
