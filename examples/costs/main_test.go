package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/examples/trial"
)

// TestHandler checks that users are charged with what their requests have taken, and with
// nothing for those that failed.
func TestHandler(t *testing.T) {
	store := trial.Store(t)
	fails := false
	handler, err := newHandler(store, func(ctx context.Context, prompt string) (string, int64, error) {
		if fails {
			return "", 0, errors.New("the model is down")
		}
		return repeat(ctx, prompt)
	})
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := stint.New(store, stint.Options{Limit: stint.PerHour(10_000), Name: "tokens"})
	if err != nil {
		t.Fatal(err)
	}
	send := func(status int, used int64) {
		t.Helper()
		request := httptest.NewRequest(http.MethodGet, "/?prompt="+url.QueryEscape("say hello"), http.NoBody)
		request.Header.Set("X-User-Id", "42")
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		if answer.Code != status {
			t.Fatalf("status %d, want %d", answer.Code, status)
		}
		if n, err := limiter.Usage(t.Context(), "user:42"); err != nil || n != used {
			t.Fatalf("%d tokens used, %v, want %d", n, err, used)
		}
	}
	send(http.StatusOK, 2)
	send(http.StatusOK, 4)
	fails = true
	send(http.StatusBadGateway, 4)
	if _, err := limiter.TakeN(t.Context(), "user:42", 9_000); err != nil {
		t.Fatal(err)
	}
	send(http.StatusTooManyRequests, 9_004)
}
