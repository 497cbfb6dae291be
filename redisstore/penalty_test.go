package redisstore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// penalized returns asks of a limit of one per hour for alice, with a penalty.
func penalized(t testing.TB, penalty string) []stint.Ask {
	t.Helper()
	p, err := stint.ParsePenalty(penalty)
	if err != nil {
		t.Fatal(err)
	}
	return []stint.Ask{
		{Key: stint.Key{Subject: "alice", Name: "a"}, Limit: parse(t, "1/1000h"), Cost: 1},
		{Key: stint.Key{Subject: "alice", Name: "b"}, Limit: parse(t, "9/1000h"), Cost: 1},
		{Key: stint.Key{Subject: "alice", Name: "ban"}, Cost: 1, Penalty: p},
	}
}

const banKey = "rl:{alice}:ban:pn"

// TestPenaltyState checks what Redis stores about violations: for how long, how many, and what happens if
// the key holds something else.
func TestPenaltyState(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := openURL(t, server.URL(), redisstore.Options{})
	asks := penalized(t, "3/1000h cooldown=1us multipliers=1,2")
	if _, err := storetest.Take(t.Context(), s, asks); err != nil {
		t.Fatal(err)
	}
	if n := server.Do(t, "EXISTS", banKey); n != int64(0) {
		t.Error("a penalty without violations is kept")
	}
	for range 10 {
		asked := time.Now()
		out, err := storetest.Take(t.Context(), s, asks)
		if err != nil || out[0].Allowed || !out[1].Allowed {
			t.Fatal(out, err)
		}
		ms := server.Do(t, "PTTL", banKey).(int64)
		ttl := time.Duration(ms) * time.Millisecond
		if ttl < out[2].ResetAfter-time.Since(asked) || ttl > out[2].ResetAfter+2*time.Second {
			t.Errorf("lives for %v, resets after %v", ttl, out[2].ResetAfter)
		}
		server.Do(t, "PERSIST", banKey)
		if _, err := storetest.Take(t.Context(), s, asks[2:]); err != nil { // a look heals it
			t.Fatal(err)
		}
	}
	if n := server.Do(t, "STRLEN", banKey); n != int64(7*(1+4)) {
		t.Errorf("%d bytes for the 4 violations that matter", n)
	}
	for name, put := range map[string][]string{
		"a list":         {"RPUSH", banKey, "x"},
		"a number":       {"SET", banKey, "17"},
		"no violation":   {"SET", banKey, strings.Repeat("\x01", 7)},
		"another schema": {"SET", banKey, strings.Repeat("\xff", 14)},
	} {
		server.Do(t, "DEL", banKey)
		server.Do(t, put...)
		out, err := storetest.Take(t.Context(), s, asks)
		if state := new(redisstore.StateError); !errors.As(err, &state) || out != nil {
			t.Errorf("%s: %v, %v; want a StateError", name, out, err)
		}
	}
	if err := s.Reset(t.Context(), asks[2:3]); err != nil {
		t.Fatal(err)
	}
	if out, err := storetest.Take(t.Context(), s, asks); err != nil || out[2].Remaining != 2 {
		t.Errorf("after reset: %v, %v; want 2 violations left", out, err)
	}
}
