package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// onceHeader has a random text for each write, so that the server carries it out once, although it may be sent again.
const onceHeader = "Idempotency-Key"

// address returns the URL of a call.
func (a *client) address(c call) string {
	to := a.base + "/admin/v1" + c.path
	if len(c.query) > 0 {
		to += "?" + c.query.Encode()
	}
	return to
}

// repeatedly sends a request. A write whose answer was lost, such as when the connection broke, is sent again.
func (a *client) repeatedly(r *http.Request) (*http.Response, error) {
	const tries = 4
	for n := 1; ; n++ {
		response, err := a.http.Do(r)
		if n == tries || r.Header.Get(onceHeader) == "" || r.Context().Err() != nil || !a.lost(r.Context(), response, err) {
			return response, err
		}
		if err == nil {
			_ = response.Body.Close()
		}
		select {
		case <-time.After(time.Duration(n) * 250 * time.Millisecond):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
		if r.GetBody != nil {
			if r.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// lost reports whether a request may have been carried out, or is being carried out, without an answer, and can be sent again.
func (a *client) lost(ctx context.Context, response *http.Response, err error) bool {
	if err == nil {
		return response.StatusCode == http.StatusConflict && response.Header.Get("Retry-After") != ""
	}
	dial := new(net.OpError)
	if errors.As(err, &dial) && dial.Op == "dial" {
		return false // nothing was sent
	}
	// An older server would carry it out again.
	described, err := a.get(ctx, "/openapi.json")
	return err == nil && bytes.Contains(described, []byte(onceHeader))
}

// get returns a response that needs no token.
func (a *client) get(ctx context.Context, path string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+"/admin/v1"+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := a.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	const most = 16 << 20
	return io.ReadAll(io.LimitReader(response.Body, most))
}
