package identity_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint/identity"
)

// database is a directory with a slow part, which it counts, and a cache of the keys that
// were found there.
type database struct {
	directory
	asked  atomic.Int64
	cached sync.Map
	answer chan struct{} // if it is not nil, lookups wait for it
}

func (d *database) Key(ctx context.Context, id string) (*identity.Key, error) {
	d.asked.Add(1)
	if d.answer != nil {
		select {
		case <-d.answer:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	k, err := d.directory.Key(ctx, id)
	if err == nil {
		d.cached.Store(id, k)
	}
	return k, err
}

func (d *database) KnownKey(_ context.Context, id string) (*identity.Key, bool, error) {
	k, known := d.cached.Load(id)
	if !known {
		return nil, false, nil
	}
	return k.(*identity.Key), true, nil
}

// guess is the n-th key that does not exist.
func guess(n int) string { return fmt.Sprintf("stint_guess%05d_%s", n, strings.Repeat("x", 32)) }

// TestFailedKeys sends keys that are not valid, until no more are looked up.
func TestFailedKeys(t *testing.T) {
	t.Parallel()
	const most = 5
	d := &database{}
	used, unused, revoked := d.add(t, "", identity.Key{User: "ann"}), d.add(t, "", identity.Key{User: "bob"}), d.add(t, "", identity.Key{Revoked: start})
	o := identity.Options{Directory: d, FailedKeys: most}
	r := open(t, o)
	at := func(peer netip.Addr, key string, now time.Time) (why identity.Reason, wait time.Duration) {
		t.Helper()
		var s identity.Subject
		err := r.Resolve(t.Context(), from(peer, "X-API-Key", key), now, &s)
		if refused := new(identity.RefusedError); errors.As(err, &refused) {
			return refused.Reason, refused.RetryAfter
		} else if err != nil {
			t.Fatal(err)
		}
		return identity.NoReason, 0
	}
	check := func(about, key string, want identity.Reason, asked int64) {
		t.Helper()
		before := d.asked.Load()
		if why, wait := at(client, key, start); why != want || (wait > 0) != (want == identity.KeyFailures) || wait > time.Minute {
			t.Errorf("%s: %v, %v; want %v", about, why, wait, want)
		}
		if n := d.asked.Load() - before; n != asked {
			t.Errorf("%s: %d lookups, want %d", about, n, asked)
		}
	}
	check("a good key", used, identity.NoReason, 1)
	check("a revoked key", revoked, identity.KeyRevoked, 1)
	for range 3 * most {
		check("a revoked key again", revoked, identity.KeyRevoked, 0)
	}
	check("a bad key", guess(0), identity.KeyInvalid, 1)
	for range 3 * most {
		check("the same again", guess(0), identity.KeyInvalid, 0)
	}
	check("a wrong secret", used[:len(used)-1]+"!", identity.KeyInvalid, 0) // not even a key
	for i := range most - 2 {
		check("another", guess(1+i), identity.KeyInvalid, 1)
	}
	check("a wrong secret", used[:len(used)-4]+"wxyz", identity.KeyInvalid, 0)
	check("one more", guess(100), identity.KeyFailures, 0)
	check("one of the first", guess(0), identity.KeyFailures, 0)
	check("a wrong secret", used[:len(used)-4]+"wxyz", identity.KeyFailures, 0)
	check("a good key that is not in memory", unused, identity.KeyFailures, 0)
	check("a good key that is", used, identity.NoReason, 0)
	check("a revoked one that is", revoked, identity.KeyRevoked, 0)

	if why, _ := at(netip.MustParseAddr("198.51.100.99"), guess(101), start); why != identity.KeyInvalid {
		t.Errorf("another address: %v", why)
	}
	o.Previous = r
	r = open(t, o)
	check("after a reload", guess(102), identity.KeyFailures, 0)
	if why, _ := at(client, unused, start.Add(time.Minute)); why != identity.NoReason {
		t.Errorf("a minute later: %v", why)
	}

	for about, o := range map[string]identity.Options{
		"no limit":            {Directory: d, FailedKeys: -1},
		"not known in memory": {Directory: &d.directory, FailedKeys: most},
	} {
		r = open(t, o)
		for i := range 3 * most {
			if why, _ := at(client, guess(200+i), start); why != identity.KeyInvalid {
				t.Errorf("%s: %v", about, why)
			}
		}
	}
	if _, err := identity.New(identity.Options{FailedKeys: 1001}); err == nil || !strings.Contains(err.Error(), "FailedKeys") {
		t.Errorf("1001: %v", err)
	}
}

// TestFailedKeysAtOnce sends many keys at once: as many are looked up as may fail, and the
// others wait for them. Good keys behind the same address all pass.
func TestFailedKeysAtOnce(t *testing.T) {
	t.Parallel()
	for about, c := range map[string]struct{ good, bad, asked int }{
		"bad":  {0, 100, 5},
		"good": {100, 0, 100},
	} {
		t.Run(about, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &database{answer: make(chan struct{})}
				r, err := identity.New(identity.Options{Directory: d, FailedKeys: 5})
				if err != nil {
					t.Fatal(err)
				}
				var keys []string
				for range c.good {
					keys = append(keys, d.add(t, "", identity.Key{User: "ann"}))
				}
				for i := range c.bad {
					keys = append(keys, guess(i))
				}
				var passed, invalid, tooMany atomic.Int64
				var wg sync.WaitGroup
				for _, key := range keys {
					wg.Go(func() {
						var s identity.Subject
						err, refused := r.Resolve(t.Context(), from(client, "X-API-Key", key), start, &s), new(identity.RefusedError)
						switch {
						case err == nil:
							passed.Add(1)
						case errors.As(err, &refused) && refused.Reason == identity.KeyFailures:
							tooMany.Add(1)
						case errors.As(err, &refused) && refused.Reason == identity.KeyInvalid:
							invalid.Add(1)
						default:
							t.Error(err)
						}
					})
				}
				synctest.Wait()
				if n := d.asked.Load(); n != 5 {
					t.Errorf("%d lookups at once, want 5", n)
				}
				gone, cancel := context.WithCancel(t.Context())
				cancel()
				if err := r.Resolve(gone, from(client, "X-API-Key", guess(1000)), start, new(identity.Subject)); !errors.Is(err, context.Canceled) || !errors.Is(err, identity.ErrDirectory) {
					t.Errorf("a client that has left: %v", err)
				}
				close(d.answer)
				wg.Wait()
				if n := d.asked.Load(); n != int64(c.asked) || passed.Load() != int64(c.good) || invalid.Load()+tooMany.Load() != int64(c.bad) {
					t.Errorf("%d lookups, want %d; %d passed, %d were invalid, %d too many", n, c.asked, passed.Load(), invalid.Load(), tooMany.Load())
				}
			})
		})
	}
}

// TestFailedKeysMemory sends keys from more addresses than are remembered.
func TestFailedKeysMemory(t *testing.T) {
	t.Parallel()
	d := &database{}
	r := open(t, identity.Options{Directory: d, FailedKeys: 1})
	send := func(n int) identity.Reason {
		t.Helper()
		return refused(t, r, from(netip.AddrFrom4([4]byte{100, byte(n >> 16), byte(n >> 8), byte(n)}), "X-API-Key", guess(n%7))).Reason
	}
	for n := range 30_000 {
		if why := send(n); why != identity.KeyInvalid {
			t.Fatalf("address %d: %v", n, why)
		}
	}
	if why := send(29_999 + 7); why != identity.KeyInvalid { // another address
		t.Error(why)
	}
	again := 0
	for n := range 30_000 {
		if send(n) == identity.KeyInvalid {
			again++
		}
	}
	if again < 15_000 {
		t.Errorf("%d of 30,000 addresses were forgotten, want most", again)
	}
	if n := identity.RememberedAddresses(r); n > 10_000 {
		t.Errorf("%d addresses are remembered, want 10,000 at most", n)
	}
}
