package catalog

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint/identity"
)

// static is the directory of a document. It does not change, except that overrides end.
type static struct {
	now     func() time.Time
	keys    map[string]*timed[identity.Key]
	users   map[string]*timed[identity.User]
	tenants map[string]*identity.Tenant
}

// timed is a record whose value depends on the time.
type timed[T any] struct {
	at    func(time.Time) (*T, time.Time)
	state atomic.Pointer[valueUntil[T]]
}

type valueUntil[T any] struct {
	value *T
	until time.Time // zero: for good
}

func (p *timed[T]) get(now func() time.Time) *T {
	if p == nil {
		return nil
	}
	h := p.state.Load()
	if h != nil && h.until.IsZero() {
		return h.value
	}
	t := now()
	if h == nil || !t.Before(h.until) {
		h = &valueUntil[T]{}
		h.value, h.until = p.at(t)
		p.state.Store(h)
	}
	return h.value
}

// Key implements [identity.Directory].
func (s *static) Key(_ context.Context, id string) (*identity.Key, error) {
	return s.keys[id].get(s.now), nil
}

// KnownKey implements [identity.KnownKeys]: all of them are in memory.
func (s *static) KnownKey(_ context.Context, id string) (*identity.Key, bool, error) {
	return s.keys[id].get(s.now), true, nil
}

// User implements [identity.Directory].
func (s *static) User(_ context.Context, id string) (*identity.User, error) {
	return s.users[id].get(s.now), nil
}

// Tenant implements [identity.Directory].
func (s *static) Tenant(_ context.Context, id string) (*identity.Tenant, error) {
	return s.tenants[id], nil
}

// Directory returns a directory of the tenants, users and keys of the document, which must
// not be changed afterwards. The clock tells whether an override has ended; nil is time.Now.
func (d *Document) Directory(now func() time.Time) identity.Directory {
	if now == nil {
		now = time.Now
	}
	s := &static{
		now: now, keys: make(map[string]*timed[identity.Key], len(d.APIKeys)),
		users: make(map[string]*timed[identity.User], len(d.Users)), tenants: make(map[string]*identity.Tenant, len(d.Tenants)),
	}
	for i := range d.APIKeys {
		s.keys[d.APIKeys[i].ID] = &timed[identity.Key]{at: d.APIKeys[i].at}
	}
	for i := range d.Users {
		s.users[d.Users[i].ID] = &timed[identity.User]{at: d.Users[i].at}
	}
	for i := range d.Tenants {
		s.tenants[d.Tenants[i].ID] = d.Tenants[i].identity()
	}
	return s
}
