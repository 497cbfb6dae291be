package catalog

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint/identity"
)

// static is the directory of a document. But for limits that are over, it does not
// change.
type static struct {
	now     func() time.Time
	keys    map[string]*passing[identity.Key]
	users   map[string]*passing[identity.User]
	tenants map[string]*identity.Tenant
}

// passing is something that holds until a time, and what it is after that.
type passing[T any] struct {
	at    func(time.Time) (*T, time.Time)
	state atomic.Pointer[held[T]]
}

type held[T any] struct {
	value *T
	until time.Time // zero: for good
}

func (p *passing[T]) get(now func() time.Time) *T {
	if p == nil {
		return nil
	}
	h := p.state.Load()
	if h != nil && h.until.IsZero() {
		return h.value
	}
	t := now()
	if h == nil || !t.Before(h.until) {
		h = &held[T]{}
		h.value, h.until = p.at(t)
		p.state.Store(h)
	}
	return h.value
}

// Key implements [identity.Directory].
func (s *static) Key(_ context.Context, id string) (*identity.Key, error) {
	return s.keys[id].get(s.now), nil
}

// User implements [identity.Directory].
func (s *static) User(_ context.Context, id string) (*identity.User, error) {
	return s.users[id].get(s.now), nil
}

// Tenant implements [identity.Directory].
func (s *static) Tenant(_ context.Context, id string) (*identity.Tenant, error) {
	return s.tenants[id], nil
}

// Directory returns the tenants, users and keys of the document, which is not to be
// changed any more. The clock tells whether an override is over; nil is time.Now.
func (d *Document) Directory(now func() time.Time) identity.Directory {
	if now == nil {
		now = time.Now
	}
	s := &static{
		now: now, keys: make(map[string]*passing[identity.Key], len(d.APIKeys)),
		users: make(map[string]*passing[identity.User], len(d.Users)), tenants: make(map[string]*identity.Tenant, len(d.Tenants)),
	}
	for i := range d.APIKeys {
		s.keys[d.APIKeys[i].ID] = &passing[identity.Key]{at: d.APIKeys[i].at}
	}
	for i := range d.Users {
		s.users[d.Users[i].ID] = &passing[identity.User]{at: d.Users[i].at}
	}
	for i := range d.Tenants {
		s.tenants[d.Tenants[i].ID] = d.Tenants[i].identity()
	}
	return s
}
