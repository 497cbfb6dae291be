package identity_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
)

// people is a directory of one key and one user.
type people struct{ err error }

func (d people) Key(_ context.Context, id string) (*identity.Key, error) {
	if id != "k1" || d.err != nil {
		return nil, d.err
	}
	return &identity.Key{ID: "k1", User: "alice", Tenant: "acme", Tier: "gold", Limits: map[string]stint.Limit{"a": stint.PerHour(1)}}, nil
}

func (d people) User(_ context.Context, id string) (*identity.User, error) {
	if id != "alice" {
		return nil, nil
	}
	return &identity.User{ID: id, Tenant: "other", Tier: "free", Limits: map[string]stint.Limit{"a": stint.PerHour(2)}}, nil
}

func (people) Tenant(context.Context, string) (*identity.Tenant, error) { return nil, nil }

// TestTenant has the tier of a tenant stand in for that of its users, and for nothing
// nearer.
func TestTenant(t *testing.T) {
	t.Parallel()
	d := &directory{
		users:   map[string]*identity.User{"ann": {ID: "ann", Tenant: "acme"}, "bob": {ID: "bob", Tenant: "acme", Tier: "free"}},
		tenants: map[string]*identity.Tenant{"acme": {ID: "acme", Tier: "gold"}, "bare": {ID: "bare"}},
	}
	r := open(t, identity.Options{Directory: d, DefaultTier: "basic"})
	for _, c := range []struct {
		who  identity.Subject
		tier string
		err  error
	}{
		{identity.Subject{Tenant: "acme"}, "gold", nil},
		{identity.Subject{User: "ann"}, "gold", nil},
		{identity.Subject{User: "bob"}, "free", nil},
		{identity.Subject{User: "bob", Tier: "trial"}, "trial", nil},
		{identity.Subject{User: "eve", Tenant: "bare"}, "basic", nil},
		{identity.Subject{Tenant: "unheard-of"}, "basic", nil},
		{identity.Subject{Tenant: "broken"}, "basic", errBroken},
		{identity.Subject{Tenant: "broken", Tier: "gold"}, "gold", nil},
	} {
		who := c.who
		if err := r.Describe(t.Context(), time.Now(), &who); err != nil || who.Tier != c.tier || !errors.Is(who.UserError, c.err) {
			t.Errorf("%+v: %q, %v, %v; want %q, %v", c.who, who.Tier, who.UserError, err, c.tier, c.err)
		}
	}
}

// TestWith replaces the lists of a resolver and shares the rest.
func TestWith(t *testing.T) {
	t.Parallel()
	banned, err := identity.NewList([]identity.Entry{{Kind: identity.KindUser, Value: "ann"}})
	if err != nil {
		t.Fatal(err)
	}
	r := open(t, identity.Options{Directory: &directory{users: map[string]*identity.User{"ann": {ID: "ann", Tier: "gold"}}}})
	other := r.With(identity.Lists{Banned: banned})
	for r, want := range map[*identity.Resolver]bool{r: false, other: true} {
		who := identity.Subject{User: "ann"}
		if err := r.Describe(t.Context(), time.Now(), &who); err != nil || (who.Banned != nil) != want || who.Tier != "gold" {
			t.Errorf("%+v, %v; want it banned: %v", who, err, want)
		}
	}
}

// TestDescribe adds what is known to subjects that a caller has named.
func TestDescribe(t *testing.T) {
	t.Parallel()
	list := func(entries ...identity.Entry) *identity.List {
		l, err := identity.NewList(entries)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	now := time.Unix(1e9, 0)
	r, err := identity.New(identity.Options{Directory: people{}, DefaultTier: "basic", Lists: identity.Lists{
		Exempt: list(identity.Entry{Kind: identity.KindTenant, Value: "acme"}, identity.Entry{Kind: identity.KindIP, Value: "2001:db8::/32"}),
		Banned: list(identity.Entry{Kind: identity.KindIP, Value: "192.0.2.0/24"}, identity.Entry{Kind: identity.KindUser, Value: "mallory", Until: now}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		given                                   identity.Subject
		user, tenant, tier, network             string
		keyLimits, userLimits, exempt, isBanned bool
	}{
		"no one":         {tier: "basic"},
		"a key":          {given: identity.Subject{Key: "k1"}, user: "alice", tenant: "acme", tier: "gold", keyLimits: true, userLimits: true, exempt: true},
		"given stays":    {given: identity.Subject{Key: "k1", User: "bob", Tier: "own"}, user: "bob", tenant: "acme", tier: "own", keyLimits: true, exempt: true},
		"an unknown key": {given: identity.Subject{Key: "k2"}, tier: "basic"},
		"a user":         {given: identity.Subject{User: "alice"}, user: "alice", tenant: "other", tier: "free", userLimits: true},
		"mapped":         {given: identity.Subject{IP: netip.MustParseAddr("::ffff:198.51.100.1")}, tier: "basic", network: "198.51.100.1/32"},
		"a network":      {given: identity.Subject{IP: netip.MustParseAddr("2001:db8:1:2:3::1")}, tier: "basic", network: "2001:db8:1:2::/64", exempt: true},
		"a banned one":   {given: identity.Subject{IP: netip.MustParseAddr("192.0.2.9"), User: "alice"}, user: "alice", tier: "basic", network: "192.0.2.9/32", isBanned: true},
		"no longer":      {given: identity.Subject{User: "mallory"}, user: "mallory", tier: "basic"},
	} {
		s := c.given
		if err := r.Describe(t.Context(), now, &s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		network := ""
		if s.Net.IsValid() {
			network = s.Net.String()
		}
		if s.User != c.user || s.Tenant != c.tenant || s.Tier != c.tier || network != c.network ||
			(s.KeyLimits != nil) != c.keyLimits || (s.UserLimits != nil) != c.userLimits ||
			(s.Exempt != nil) != c.exempt || (s.Banned != nil) != c.isBanned {
			t.Errorf("%s: %+v", name, s)
		}
	}
	broken := errors.New("broken")
	if r, err = identity.New(identity.Options{Directory: people{broken}}); err != nil {
		t.Fatal(err)
	}
	if err := r.Describe(t.Context(), now, &identity.Subject{Key: "k1"}); !errors.Is(err, broken) {
		t.Errorf("a directory that is broken: %v", err)
	}
}
