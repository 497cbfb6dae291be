package identity_test

import (
	"errors"
	"testing"

	"github.com/stintdev/stint/identity"
)

// TestConflict sends several credentials with one request.
func TestConflict(t *testing.T) {
	t.Parallel()
	d := &directory{users: map[string]*identity.User{
		"ann":     {ID: "ann", Tenant: "acme"},
		"blocked": {ID: "blocked", Blocked: &identity.Entry{Reason: "chargeback"}},
		"member":  {ID: "member", Tenant: "banned-tenant"},
	}}
	key := func(k identity.Key) string { return d.add(t, "", k) }
	ann, bob, service := key(identity.Key{User: "ann"}), key(identity.Key{User: "bob"}), key(identity.Key{Tenant: "acme"})
	blocked, mallory, nobody := key(identity.Key{User: "blocked"}), key(identity.Key{User: "mallory"}), key(identity.Key{})
	hs := newSigner(t, "HS256")
	bearer := func(user, tenant string) string {
		return "Bearer " + hs.sign(t, claims{"sub": user, "org": tenant})
	}
	banned, err := identity.NewList([]identity.Entry{
		{Kind: identity.KindUser, Value: "mallory", Reason: "fraud"}, {Kind: identity.KindTenant, Value: "banned-tenant", Reason: "unpaid"},
	})
	if err != nil {
		t.Fatal(err)
	}
	exempt, err := identity.NewList([]identity.Entry{{Kind: identity.KindUser, Value: "ann"}, {Kind: identity.KindUser, Value: "bob"}})
	if err != nil {
		t.Fatal(err)
	}
	o := identity.Options{
		Directory: d, JWT: &identity.JWTOptions{Secret: hs.secret(), TenantClaim: "org"}, UserHeader: "X-User-ID", TenantHeader: "X-Tenant-ID",
		TrustedProxies: inside, Lists: identity.Lists{Banned: banned, Exempt: exempt},
	}
	strict := open(t, o)
	o.FirstWins = true
	first := open(t, o)
	for name, c := range map[string]struct {
		q        *identity.Request
		conflict bool
		user     string // whoever is first
		banned   bool   // is one of them
	}{
		"the same user":            {from(client, "X-API-Key", ann, "Authorization", bearer("ann", "")), false, "ann", false},
		"the same tenant":          {from(client, "X-API-Key", service, "Authorization", bearer("ann", "")), false, "ann", false},
		"a key of no one":          {from(client, "X-API-Key", nobody, "Authorization", bearer("bob", "")), false, "bob", false},
		"a key and a header":       {from(proxy, "X-API-Key", service, "X-User-ID", "ann"), false, "ann", false},
		"all three":                {from(proxy, "X-API-Key", service, "Authorization", bearer("ann", "acme"), "X-User-ID", "ann"), false, "ann", false},
		"a stranger's header":      {from(client, "X-API-Key", ann, "X-User-ID", "bob"), false, "ann", false},
		"another user":             {from(client, "X-API-Key", bob, "Authorization", bearer("ann", "")), true, "bob", false},
		"another tenant":           {from(client, "X-API-Key", ann, "Authorization", bearer("ann", "other")), true, "ann", false},
		"a tenant by directory":    {from(client, "X-API-Key", service, "Authorization", bearer("bob", "initech")), true, "", false},
		"another user in a header": {from(proxy, "Authorization", bearer("ann", ""), "X-User-ID", "bob"), true, "ann", false},
		"the third":                {from(proxy, "X-API-Key", ann, "Authorization", bearer("ann", ""), "X-User-ID", "bob"), true, "ann", false},
		"a banned token":           {from(client, "X-API-Key", bob, "Authorization", bearer("mallory", "")), true, "bob", true},
		"a banned key":             {from(client, "X-API-Key", mallory, "Authorization", bearer("bob", "")), true, "mallory", true},
		"a banned header":          {from(proxy, "X-API-Key", bob, "X-User-ID", "mallory"), true, "bob", true},
		"a blocked user":           {from(client, "X-API-Key", bob, "Authorization", bearer("blocked", "")), true, "bob", true},
		"a blocked key":            {from(client, "X-API-Key", blocked, "Authorization", bearer("bob", "")), true, "blocked", true},
		"a banned tenant":          {from(client, "X-API-Key", bob, "Authorization", bearer("ann", "banned-tenant")), true, "bob", true},
		"a tenant of a user":       {from(client, "X-API-Key", bob, "Authorization", bearer("member", "")), true, "bob", true},
		"banned, no user":          {from(client, "X-API-Key", nobody, "Authorization", bearer("mallory", "")), false, "mallory", true},
		"banned, the same tenant":  {from(client, "X-API-Key", service, "Authorization", bearer("mallory", "")), false, "mallory", true},
	} {
		var s identity.Subject
		err := strict.Resolve(t.Context(), c.q, start, &s)
		refused := new(identity.RefusedError)
		if conflict := errors.As(err, &refused); conflict != c.conflict || conflict && refused.Reason != identity.Conflict || (s.Banned != nil) != c.banned {
			t.Errorf("%s: %v, %+v", name, err, s)
		}
		if c.conflict && (s.User != "" || s.Key != "" || s.Others != nil || s.Exempt != nil) {
			t.Errorf("%s: refused, and yet %+v", name, s)
		}
		s = resolve(t, first, c.q)
		if s.User != c.user || (s.Banned != nil) != c.banned || (len(s.Others) > 0) != c.conflict || s.Banned != nil && s.Exempt != nil {
			t.Errorf("%s: the first wins: %+v", name, s)
		}
	}
	// Bad credentials are rejected beside good ones.
	for name, q := range map[string]*identity.Request{
		"a bad token": from(client, "X-API-Key", ann, "Authorization", "Bearer x"),
		"a bad key":   from(client, "X-API-Key", ann+"x", "Authorization", bearer("ann", "")),
		"two tokens":  from(client, "X-API-Key", ann, "Authorization", bearer("ann", ""), "Authorization", bearer("ann", "")),
	} {
		_ = refused(t, strict, q)
		if why := refused(t, first, q).Reason; why == identity.Conflict {
			t.Errorf("%s: %v", name, why)
		}
	}
}

// TestDescribeOwner names a user together with a key of another user.
func TestDescribeOwner(t *testing.T) {
	t.Parallel()
	d := &directory{users: map[string]*identity.User{"blocked": {ID: "blocked", Blocked: &identity.Entry{}}}, keys: map[string]*identity.Key{
		"mallory1": {ID: "mallory1", User: "mallory"}, "blocked1": {ID: "blocked1", User: "blocked"}, "someones": {ID: "someones", User: "bob", Tenant: "acme"},
	}}
	banned, err := identity.NewList([]identity.Entry{{Kind: identity.KindUser, Value: "mallory"}})
	if err != nil {
		t.Fatal(err)
	}
	r := open(t, identity.Options{Directory: d, Lists: identity.Lists{Banned: banned}})
	for name, c := range map[string]struct {
		s              identity.Subject
		banned, others bool
	}{
		"its owner":       {identity.Subject{User: "bob", Key: "someones"}, false, false},
		"another user":    {identity.Subject{User: "ann", Key: "someones"}, false, true},
		"another tenant":  {identity.Subject{Tenant: "initech", Key: "someones"}, false, true},
		"a banned owner":  {identity.Subject{User: "ann", Key: "mallory1"}, true, true},
		"a blocked owner": {identity.Subject{User: "ann", Key: "blocked1"}, true, true},
	} {
		s := c.s
		if err := r.Describe(t.Context(), start, &s); err != nil || (s.Banned != nil) != c.banned || (s.Others != nil) != c.others {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
		if c.s.User != "" && s.User != c.s.User {
			t.Errorf("%s: %q is %q", name, c.s.User, s.User)
		}
	}
}
