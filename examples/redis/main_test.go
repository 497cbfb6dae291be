package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestProcesses checks that two processes share the limit, that each goes on alone
// without Redis, and that an outage gives no client a fresh start.
func TestProcesses(t *testing.T) {
	redis := testredis.Start(t)
	var processes [2]http.Handler
	for i := range processes {
		store, err := newStore("redis://" + redis.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		if processes[i], err = newHandler(store); err != nil {
			t.Fatal(err)
		}
	}
	send := func(n int, address string) int {
		rec := httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodGet, "/hello", http.NoBody)
		req.RemoteAddr = address
		processes[n%2].ServeHTTP(rec, req)
		return rec.Code
	}
	const busy, other = "192.0.2.1:1234", "192.0.2.2:1234"
	passed := 0
	for send(passed, busy) == http.StatusOK {
		passed++
	}
	// On a busy machine a call may take too long. It is then decided by its process alone,
	// and may be charged twice. Without a shared limit, 200 would pass.
	if passed < 50 || passed > 150 {
		t.Errorf("%d requests passed in two processes, want about 100", passed)
	}
	redis.Kill(t)
	if status := send(passed, busy); status != http.StatusTooManyRequests {
		t.Errorf("without Redis, an address that was denied: status %d", status)
	}
	for n := range processes {
		if status := send(n, other); status != http.StatusOK {
			t.Errorf("without Redis, process %d, another address: status %d", n, status)
		}
	}
}

// TestOwnClient counts with a client of the program's own.
func TestOwnClient(t *testing.T) {
	client, store, err := newStoreWith(testredis.Start(t).Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = store.Close(), client.Close() })
	limiter, err := stint.New(store, stint.Options{Limit: stint.PerHour(1_000_000), Name: "hello"})
	if err != nil {
		t.Fatal(err)
	}
	wait.Nil(t, "a take", func() error { // on a busy machine a call may take too long
		d, err := limiter.Take(t.Context(), "alice")
		if err == nil && (!d.Allowed || d.Remaining == 0) {
			t.Fatalf("%+v", d)
		}
		return err
	})
}
