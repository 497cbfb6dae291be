package identity

import (
	"context"
	"hash/maphash"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	failureWindow = time.Minute
	defaultFailed = 30
	mostFailed    = 1000
	mostAddresses = 10_000
)

// failures counts the API keys of each address that were not valid, so that made-up keys
// cost few lookups. A key that is sent again does not count again: a client that has kept a
// deleted key is not guessing, and must not shut out the others behind its address.
//
// There are two halves, as in [seen]: at most mostAddresses are kept, and roughly those that
// were used least recently are dropped.
type failures struct {
	seed maphash.Seed

	mu         sync.Mutex
	first, old map[netip.Prefix]*address
}

// address is what an address has sent. The lock of failures guards it.
type address struct {
	since   time.Time // when the first of the failed keys came
	failed  []uint64  // hashes of their texts
	running int       // lookups that may fail
	waiting int
	next    chan struct{} // wakes one that waits
}

func newFailures() *failures { return &failures{seed: maphash.MakeSeed()} }

// at returns the state of an address. The caller holds the lock.
func (f *failures) at(net netip.Prefix, now time.Time) *address {
	a := f.first[net]
	if a == nil {
		if a = f.old[net]; a == nil {
			a = &address{next: make(chan struct{}, 1)}
		}
		if len(f.first) >= mostAddresses/2 || f.first == nil {
			f.old, f.first = f.first, map[netip.Prefix]*address{}
		}
		f.first[net] = a
	}
	if over := now.Sub(a.since); over >= failureWindow || over < 0 {
		a.since, a.failed = now, a.failed[:0]
	}
	return a
}

// wake wakes one that waits, if there is one. It wakes the next.
func (a *address) wake() {
	if a.waiting > 0 {
		select {
		case a.next <- struct{}{}:
		default: // one is about to wake
		}
	}
}

// enter waits until a key may be looked up for the address: until fewer than most have failed,
// or may still fail. It returns how long no more may be, if most have failed. Otherwise the
// caller calls leave after the lookup.
func (f *failures) enter(ctx context.Context, net netip.Prefix, most int, now time.Time) (*address, time.Duration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for a := f.at(net, now); ; {
		switch {
		case ctx.Err() != nil:
			a.wake()
			return nil, 0, ctx.Err()
		case len(a.failed) >= most:
			a.wake()
			return nil, max(a.since.Add(failureWindow).Sub(now), 1), nil
		case len(a.failed)+a.running < most:
			a.running++
			a.wake()
			return a, 0, nil
		}
		a.waiting++
		f.mu.Unlock()
		select {
		case <-a.next:
		case <-ctx.Done():
		}
		f.mu.Lock()
		a.waiting--
	}
}

// leave ends what enter began.
func (f *failures) leave(a *address) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a.running--
	a.wake()
}

// add counts a key that was not valid. If most were before it, it returns how long no more
// may be sent.
func (f *failures) add(net netip.Prefix, text string, most int, now time.Time) time.Duration {
	sum := maphash.String(f.seed, text)
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.at(net, now)
	if len(a.failed) >= most {
		return max(a.since.Add(failureWindow).Sub(now), 1)
	}
	if !slices.Contains(a.failed, sum) {
		a.failed = append(a.failed, sum)
	}
	return 0
}
