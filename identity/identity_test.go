package identity_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
)

// This file is long: one resolver and a case for each way to say who one is, true or forged.

var (
	start  = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	client = netip.MustParseAddr("198.51.100.7")
	proxy  = netip.MustParseAddr("10.0.0.1")
	inside = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
)

const pepper = identity.Secret("a pepper that no one else has")

var errBroken = errors.New("the directory is broken")

// directory is a [identity.Directory] in maps. The ids "brokenbroken" and "broken"
// make it fail.
type directory struct {
	keys  map[string]*identity.Key
	users map[string]*identity.User

	tenants map[string]*identity.Tenant
}

var _ identity.Directory = (*directory)(nil)

func (d *directory) Key(_ context.Context, id string) (*identity.Key, error) {
	if id == "brokenbroken" {
		return nil, errBroken
	}
	return d.keys[id], nil
}

func (d *directory) User(_ context.Context, id string) (*identity.User, error) {
	if id == "broken" {
		return nil, errBroken
	}
	return d.users[id], nil
}

func (d *directory) Tenant(_ context.Context, id string) (*identity.Tenant, error) {
	if id == "broken" {
		return nil, errBroken
	}
	return d.tenants[id], nil
}

// add makes a key and returns what its client sends.
func (d *directory) add(t testing.TB, pepper identity.Secret, k identity.Key) (text string) {
	t.Helper()
	text, made, err := identity.GenerateKey(rand.Reader, "stint", pepper)
	if err != nil {
		t.Fatal(err)
	}
	k.ID, k.Hash, k.Hashing = made.ID, made.Hash, made.Hashing
	if d.keys == nil {
		d.keys = map[string]*identity.Key{}
	}
	d.keys[k.ID] = &k
	return text
}

func open(t testing.TB, o identity.Options) *identity.Resolver {
	t.Helper()
	r, err := identity.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// from is a request, with headers as name, value, name, value.
func from(peer netip.Addr, headers ...string) *identity.Request {
	h := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		h.Add(headers[i], headers[i+1])
	}
	return &identity.Request{Peer: peer, Headers: h}
}

func resolve(t testing.TB, r *identity.Resolver, q *identity.Request) identity.Subject {
	t.Helper()
	s := identity.Subject{User: "who was here before"}
	if err := r.Resolve(t.Context(), q, start, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// refused returns why the request is refused, and fails if it is not.
func refused(t testing.TB, r *identity.Resolver, q *identity.Request) *identity.RefusedError {
	t.Helper()
	var s identity.Subject
	var e *identity.RefusedError
	if err := r.Resolve(t.Context(), q, start, &s); !errors.As(err, &e) {
		t.Fatalf("got %v and %+v, want a refusal", err, s)
	}
	if s.User != "" || s.Key != "" || s.Verified || !s.IP.IsValid() {
		t.Errorf("refused, and yet %+v", s)
	}
	return e
}

func TestResolve(t *testing.T) {
	t.Parallel()
	limits := map[string]stint.Limit{"search": stint.PerMinute(5)}
	d := &directory{users: map[string]*identity.User{
		"ann":  {ID: "ann", Tenant: "acme", Tier: "gold", Limits: limits},
		"bob":  {ID: "bob", Blocked: &identity.Entry{Reason: "chargeback"}},
		"carl": {ID: "carl", Blocked: &identity.Entry{Until: start}},
	}}
	full := d.add(t, "", identity.Key{User: "ann", Tenant: "other", Tier: "silver", Limits: limits})
	bare := d.add(t, "", identity.Key{User: "ann"})
	service := d.add(t, "", identity.Key{Tenant: "acme"})
	blocked := d.add(t, "", identity.Key{User: "bob"})
	broken := d.add(t, "", identity.Key{User: "broken", Tier: "silver"})
	hs := newSigner(t, "HS256")
	token := hs.sign(t, claims{"sub": "ann", "org": claims{"id": "initech"}, "plan": "bronze"})
	plain := hs.sign(t, claims{"sub": "ann"})
	r := open(t, identity.Options{
		Directory: d, DefaultTier: "free", KeyBearer: true, TrustedProxies: inside,
		JWT:        &identity.JWTOptions{Secret: hs.secret(), TenantClaim: "org.id", TierClaim: "plan", IgnoreBad: true},
		UserHeader: "X-User-ID", TenantHeader: "X-Tenant-ID", TierHeader: "X-Tier",
	})
	for name, c := range map[string]struct {
		q    *identity.Request
		want string // source user/tenant/key?/tier verified
	}{
		"nobody":            {from(client), "ip -/- free"},
		"key":               {from(client, "X-API-Key", full), "key ann/other silver verified key-limits user-limits"},
		"user's tier":       {from(client, "X-API-Key", bare), "key ann/acme gold verified user-limits"},
		"key of a tenant":   {from(client, "X-API-Key", service), "key -/acme free verified"},
		"key as bearer":     {from(client, "Authorization", "Bearer "+bare), "key ann/acme gold verified user-limits"},
		"key and token":     {from(client, "X-API-Key", bare, "Authorization", "Bearer "+plain), "key ann/acme gold verified user-limits claims"},
		"service and token": {from(client, "X-API-Key", service, "Authorization", "Bearer "+plain), "key ann/acme gold verified user-limits claims"},
		"key and header":    {from(proxy, "X-API-Key", service, "X-User-ID", "ann"), "key ann/acme gold trusted user-limits"},
		"empty key":         {from(client, "X-API-Key", ""), "ip -/- free"},
		"blocked user":      {from(client, "X-API-Key", blocked), "key bob/- free verified banned"},
		"directory broken":  {from(client, "X-API-Key", broken), "key broken/- silver verified user-error"},
		"token":             {from(client, "Authorization", "Bearer "+token), "jwt ann/initech bronze verified user-limits claims"},
		"scheme":            {from(client, "Authorization", "bearer  "+token), "jwt ann/initech bronze verified user-limits claims"},
		"basic":             {from(client, "Authorization", "Basic YTpi"), "ip -/- free"},
		"no scheme":         {from(client, "Authorization", token), "ip -/- free token_scheme bad-token"},
		"bad token":         {from(client, "Authorization", "Bearer x.y.z"), "ip -/- free token_malformed bad-token"},
		"no token":          {from(client, "Authorization", "Bearer "), "ip -/- free"},
		"header":            {from(proxy, "X-User-ID", "ann"), "header ann/acme gold trusted user-limits"},
		"all headers":       {from(proxy, "X-User-ID", "ann", "X-Tenant-ID", "t", "X-Tier", "x"), "header ann/t x trusted user-limits"},
		"tenant's header":   {from(proxy, "X-Tenant-ID", "t"), "header -/t free trusted"},
		"tier's header":     {from(proxy, "X-Tier", "x"), "ip -/- free trusted"},
		"empty header":      {from(proxy, "X-User-ID", ""), "ip -/- free trusted"},
		"block is over":     {from(proxy, "X-User-ID", "carl"), "header carl/- free trusted"},
		"header by anyone":  {from(client, "X-User-ID", "ann", "X-Tenant-ID", "t", "X-Tier", "x"), "ip -/- free"},
		"header too long":   {from(proxy, "X-User-ID", strings.Repeat("a", 256)), "ip -/- free trusted header_invalid"},
		"header longest":    {from(proxy, "X-User-ID", strings.Repeat("a", 255)), "header " + strings.Repeat("a", 255) + "/- free trusted"},
		"control character": {from(proxy, "X-User-ID", "a\x00b"), "ip -/- free trusted header_invalid"},
		"not UTF-8":         {from(proxy, "X-User-ID", "a\xff"), "ip -/- free trusted header_invalid"},
		"bad tenant":        {from(proxy, "X-User-ID", "ann", "X-Tenant-ID", "\u0085"), "ip -/- free trusted header_invalid"},
		"bad token, header": {from(proxy, "Authorization", "Bearer x", "X-User-ID", "ann"), "header ann/acme gold trusted user-limits token_malformed bad-token"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := resolve(t, r, c.q)
			got := describe(&s)
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if (s.Key != "") != (s.Source == identity.ByKey) {
				t.Errorf("the key is %q", s.Key)
			}
			if s.IP != c.q.Peer || s.Net != netip.PrefixFrom(c.q.Peer, 32) {
				t.Errorf("the address is %s, %s", s.IP, s.Net)
			}
		})
	}
}

// describe puts a subject in a line.
func describe(s *identity.Subject) string {
	or := func(a string) string {
		if a == "" {
			return "-"
		}
		return a
	}
	out := fmt.Sprintf("%s %s/%s %s", s.Source, or(s.User), or(s.Tenant), or(s.Tier))
	for _, f := range []struct {
		is   bool
		name string
	}{
		{s.Verified, "verified"},
		{s.Trusted, "trusted"},
		{s.KeyLimits != nil, "key-limits"},
		{s.UserLimits != nil, "user-limits"},
		{s.Claims != nil, "claims"},
		{s.Exempt != nil, "exempt"},
		{s.Banned != nil, "banned"},
		{errors.Is(s.UserError, errBroken), "user-error"},
		{s.Unaccepted != identity.NoReason, s.Unaccepted.String()},
		{s.BadToken, "bad-token"},
		{s.Others != nil, "others"},
	} {
		if f.is {
			out += " " + f.name
		}
	}
	return out
}

func TestRequire(t *testing.T) {
	t.Parallel()
	d := &directory{}
	key := d.add(t, "", identity.Key{User: "ann"})
	hs := newSigner(t, "HS256")
	r := open(t, identity.Options{
		Directory: d, Require: true, TrustedProxies: inside, UserHeader: "X-User-ID",
		JWT: &identity.JWTOptions{Secret: hs.secret()},
	})
	for _, q := range []*identity.Request{
		from(client, "X-API-Key", key),
		from(client, "Authorization", "Bearer "+hs.sign(t, claims{"sub": "ann"})),
		from(proxy, "X-User-ID", "ann"),
	} {
		if s := resolve(t, r, q); s.User != "ann" {
			t.Errorf("%v: %+v", q.Headers, s)
		}
	}
	for name, c := range map[string]struct {
		q    *identity.Request
		want identity.Reason
	}{
		"nothing":          {from(client), identity.NoCredentials},
		"bad token":        {from(client, "Authorization", "Bearer "+hs.sign(t, claims{"sub": "ann", "exp": 1})), identity.TokenExpired},
		"header by anyone": {from(client, "X-User-ID", "ann"), identity.NoCredentials},
		"two tokens":       {from(client, "Authorization", "Bearer a", "Authorization", "Bearer b"), identity.Ambiguous},
		"two users":        {from(proxy, "X-User-ID", "ann", "X-User-ID", "bob"), identity.Ambiguous},
	} {
		if got := refused(t, r, c.q); got.Reason != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestMethods(t *testing.T) {
	t.Parallel()
	d := &directory{}
	key := d.add(t, "", identity.Key{User: "of the key"})
	hs := newSigner(t, "HS256")
	token := hs.sign(t, claims{"sub": "of the token"})
	q := from(proxy, "X-API-Key", key, "Authorization", "Bearer "+token, "X-User-ID", "of the header")
	names := map[identity.Source]string{identity.ByKey: "key", identity.ByJWT: "token", identity.ByHeader: "header"}
	for _, c := range []struct {
		methods []identity.Source
		want    identity.Source
	}{
		{nil, identity.ByKey},
		{[]identity.Source{}, identity.ByIP},
		{[]identity.Source{identity.ByJWT, identity.ByKey}, identity.ByJWT},
		{[]identity.Source{identity.ByHeader, identity.ByKey}, identity.ByHeader},
	} {
		r := open(t, identity.Options{
			Methods: c.methods, FirstWins: true, Directory: d, JWT: &identity.JWTOptions{Secret: hs.secret()},
			UserHeader: "X-User-ID", TrustedProxies: inside,
		})
		if s := resolve(t, r, q); s.Source != c.want || s.Source != identity.ByIP && s.User != "of the "+names[c.want] {
			t.Errorf("%v: by %v, %q, want %v", c.methods, s.Source, s.User, c.want)
		}
	}
	// A key that comes as a bearer is not taken for a token.
	r := open(t, identity.Options{
		Methods: []identity.Source{identity.ByJWT, identity.ByKey}, Directory: d, KeyBearer: true, Require: true,
		JWT: &identity.JWTOptions{Secret: hs.secret()},
	})
	if s := resolve(t, r, from(client, "Authorization", "Bearer "+key)); s.Source != identity.ByKey || s.Unaccepted != identity.NoReason {
		t.Errorf("%+v", s)
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	d := &directory{users: map[string]*identity.User{"ann": {ID: "ann", Tenant: "acme"}}}
	key := d.add(t, "", identity.Key{User: "ann"})
	id := slices.Collect(maps.Keys(d.keys))[0]
	for name, c := range map[string]struct {
		exempt, banned []identity.Entry
		peer           string
		want           string // exempt or banned, and by which value
	}{
		"no lists":          {nil, nil, "198.51.100.7", ""},
		"exempt address":    {[]identity.Entry{{Value: "198.51.100.7"}}, nil, "198.51.100.7", "exempt 198.51.100.7"},
		"exempt network":    {[]identity.Entry{{Value: "198.51.100.0/24"}}, nil, "198.51.100.7", "exempt 198.51.100.0/24"},
		"other address":     {[]identity.Entry{{Value: "198.51.100.8"}}, nil, "198.51.100.7", ""},
		"mapped":            {[]identity.Entry{{Value: "198.51.100.7"}}, nil, "::ffff:198.51.100.7", "exempt 198.51.100.7"},
		"exempt key":        {[]identity.Entry{{Kind: identity.KindKey, Value: id}}, nil, "198.51.100.7", "exempt " + id},
		"exempt user":       {[]identity.Entry{{Kind: identity.KindUser, Value: "ann"}}, nil, "198.51.100.7", "exempt ann"},
		"exempt tenant":     {[]identity.Entry{{Kind: identity.KindTenant, Value: "acme"}}, nil, "198.51.100.7", "exempt acme"},
		"banned user":       {nil, []identity.Entry{{Kind: identity.KindUser, Value: "ann"}}, "198.51.100.7", "banned ann"},
		"kinds are apart":   {[]identity.Entry{{Kind: identity.KindTenant, Value: "ann"}}, []identity.Entry{{Kind: identity.KindKey, Value: "ann"}}, "198.51.100.7", ""},
		"over":              {[]identity.Entry{{Kind: identity.KindUser, Value: "ann", Until: start}}, nil, "198.51.100.7", ""},
		"not over":          {[]identity.Entry{{Kind: identity.KindUser, Value: "ann", Until: start.Add(1)}}, nil, "198.51.100.7", "exempt ann"},
		"ban wins":          {[]identity.Entry{{Kind: identity.KindKey, Value: id}}, []identity.Entry{{Value: "0.0.0.0/0"}}, "198.51.100.7", "banned 0.0.0.0/0"},
		"ban of user wins":  {[]identity.Entry{{Value: "198.51.100.7"}}, []identity.Entry{{Kind: identity.KindUser, Value: "ann"}}, "198.51.100.7", "banned ann"},
		"ban that is over":  {[]identity.Entry{{Value: "198.51.100.7"}}, []identity.Entry{{Value: "198.51.100.7", Until: start}}, "198.51.100.7", "exempt 198.51.100.7"},
		"longest":           {[]identity.Entry{{Value: "198.51.0.0/16"}, {Value: "198.51.100.0/24"}}, nil, "198.51.100.7", "exempt 198.51.100.0/24"},
		"longest that is":   {[]identity.Entry{{Value: "198.51.0.0/16"}, {Value: "198.51.100.0/24", Until: start}}, nil, "198.51.100.7", "exempt 198.51.0.0/16"},
		"IPv6":              {nil, []identity.Entry{{Value: "2001:db8::/32"}}, "2001:db8::9", "banned 2001:db8::/32"},
		"IPv6 address":      {nil, []identity.Entry{{Value: "2001:db8::1"}}, "2001:db8::9", ""},
		"not across family": {nil, []identity.Entry{{Value: "0.0.0.0/0"}}, "2001:db8::9", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lists identity.Lists
			for _, l := range []struct {
				entries []identity.Entry
				list    **identity.List
			}{{c.exempt, &lists.Exempt}, {c.banned, &lists.Banned}} {
				if l.entries == nil {
					continue
				}
				var err error
				if *l.list, err = identity.NewList(l.entries); err != nil {
					t.Fatal(err)
				}
			}
			r := open(t, identity.Options{Directory: d})
			r.SetLists(lists)
			s := resolve(t, r, from(netip.MustParseAddr(c.peer), "X-API-Key", key))
			got := ""
			if s.Exempt != nil {
				got += "exempt " + s.Exempt.Value
			}
			if s.Banned != nil {
				got += "banned " + s.Banned.Value
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if s.Banned != nil && s.Banned.Kind == identity.KindIP && s.Source != identity.ByIP {
				t.Error("a banned address was identified further")
			}
		})
	}
}

func TestNewList(t *testing.T) {
	t.Parallel()
	_, err := identity.NewList([]identity.Entry{
		{Value: "10.0.0.0/8"},
		{Value: "10.0.0.1/8"},
		{Value: "10.0.0.0/8"},
		{Value: "10.0.0.256"},
		{Value: "::ffff:10.0.0.1"},
		{Value: "fe80::1%eth0"},
		{Value: ""},
		{Kind: identity.KindUser, Value: "ann"},
		{Kind: identity.KindUser, Value: "ann"},
		{Kind: identity.KindTenant, Value: ""},
		{Kind: 9, Value: "x"},
	})
	if err == nil {
		t.Fatal("all of it was taken")
	}
	for _, want := range []string{
		`entries[1] "ip 10.0.0.1/8": want 10.0.0.0/8, or 10.0.0.1 for the one address`,
		`entries[2] "ip 10.0.0.0/8": want it only once`,
		`entries[3] "ip 10.0.0.256": want an address or a network`,
		`entries[4] "ip ::ffff:10.0.0.1": want 10.0.0.1: mapped addresses count as IPv4`,
		`entries[5] "ip fe80::1%eth0": want an address without a zone`,
		`entries[6] "ip ": want an address or a network`,
		`entries[8] "user ann": want it only once`,
		`entries[9] "tenant ": want 1 to 255 bytes`,
		`entries[10] "unknown(9) x": want a kind`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %s:\n%v", want, err)
		}
	}
	if n := strings.Count(err.Error(), "\n") + 1; n != 9 {
		t.Errorf("%d problems, want 9:\n%v", n, err)
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	hs := &identity.JWTOptions{Secret: identity.Secret(strings.Repeat("x", 32))}
	for want, o := range map[string]identity.Options{
		`KeyHeader "X Key": want a header's name`:                                       {KeyHeader: "X Key"},
		`KeyPrefix "_a": want 1 to 32 letters`:                                          {KeyPrefix: "_a"},
		`Pepper "[redacted]": want at least 16 bytes`:                                   {Pepper: "short"},
		`IPv6Prefix "31": want 32 to 128`:                                               {IPv6Prefix: 31},
		`IPv6Prefix "129": want 32 to 128`:                                              {IPv6Prefix: 129},
		`DefaultTier "a\n": want`:                                                       {DefaultTier: "a\n"},
		`TrustedDepth "65": want 0 to 64`:                                               {TrustedDepth: 65},
		`TrustedDepth "-1": want 0 to 64`:                                               {TrustedDepth: -1},
		`TrustedDepth "1": want either a depth or trusted proxies`:                      {TrustedDepth: 1, TrustedProxies: inside},
		`TrustedProxies "0.0.0.0/0": want the networks of the proxies`:                  {TrustedProxies: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}},
		`TrustedProxies "10.0.0.1/8": want 10.0.0.0/8, or 10.0.0.1 for the one address`: {TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")}},
		`TrustedProxies "invalid Prefix": want a network`:                               {TrustedProxies: make([]netip.Prefix, 1)},
		`ForwardedHeader "X/Y": want a header's name`:                                   {ForwardedHeader: "X/Y"},
		`UserHeader "X-User-ID": want trusted proxies`:                                  {UserHeader: "X-User-ID"},
		`Methods "key": want`:                                                           {Methods: []identity.Source{identity.ByKey}},
		`Methods "ip": want`:                                                            {Methods: []identity.Source{identity.ByIP}},
		`Methods "jwt": want key, jwt and header at most once`:                          {JWT: hs, Methods: []identity.Source{identity.ByJWT, identity.ByJWT}},
		`JWT "": want a Secret, PublicKeys or JWKS`:                                     {JWT: &identity.JWTOptions{}},
		`JWT.Secret "[redacted]": want at least 32 bytes`:                               {JWT: &identity.JWTOptions{Secret: "short"}},
		`JWT.Leeway "6m0s": want 0 to 5m0s`:                                             {JWT: &identity.JWTOptions{Secret: hs.Secret, Leeway: 6 * time.Minute}},
		`JWT.Remember "-1": want 128 or more`:                                           {JWT: &identity.JWTOptions{Secret: hs.Secret, Remember: -1}},
		`JWT.PublicKeys "text that is not PEM": want public keys`:                       {JWT: &identity.JWTOptions{PublicKeys: "ssh-rsa AAAA"}},
		`JWT.PublicKeys "PRIVATE KEY": want public keys`:                                {JWT: &identity.JWTOptions{PublicKeys: "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"}},
		`JWT.JWKS "ftp://...": want an http or https URL`:                               {JWT: &identity.JWTOptions{JWKS: "ftp://user:password@example.org"}},
		`JWT.Refresh "1s": want 1m or more`:                                             {JWT: &identity.JWTOptions{JWKS: "https://example.org", Refresh: time.Second}},
		`keys of testdata/missing.json: open testdata/missing.json`:                     {JWT: &identity.JWTOptions{JWKS: "testdata/missing.json"}},
	} {
		if r, err := identity.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, %v\nwant %s", r, err, want)
		}
	}
	_, err := identity.New(identity.Options{KeyPrefix: "-", IPv6Prefix: 1, TrustedDepth: 99})
	if got := strings.Count(fmt.Sprint(err), "\n") + 1; got != 3 {
		t.Errorf("%d problems, want 3:\n%v", got, err)
	}
	var invalid *stint.InvalidError
	if !errors.As(err, &invalid) {
		t.Errorf("%T is no InvalidError", err)
	}
}

// TestSecretsAreNotShown prints everything in every way.
func TestSecretsAreNotShown(t *testing.T) {
	t.Parallel()
	d := &directory{}
	key := d.add(t, pepper, identity.Key{User: "ann"})
	secret := key[strings.LastIndexByte(key, '_')+1:]
	hs := newSigner(t, "HS256")
	token := hs.sign(t, claims{"sub": "ann"})
	jwt := identity.JWTOptions{Secret: hs.secret()}
	o := identity.Options{Directory: d, Pepper: pepper, JWT: &jwt}
	r := open(t, o)
	q := from(client, "X-API-Key", key, "Authorization", "Bearer "+token)
	s := resolve(t, r, q)

	shown := []any{o, &o, jwt, &jwt, *q, q, s, &s, *d.keys[s.Key], d.keys[s.Key], r, pepper, pepper.String()}
	for _, bad := range []string{
		key + "x", key[:len(key)-1], "x" + key, strings.Replace(key, "stint_", "other_", 1), "stint_brokenbroken_" + secret, secret,
		"stint_" + secret, "stint__" + secret, "stint_" + strings.Repeat("a", 16) + "_" + secret,
	} {
		var s identity.Subject
		err := r.Resolve(t.Context(), from(client, "X-API-Key", bad), start, &s)
		if err == nil {
			t.Fatalf("%s was accepted", bad)
		}
		shown = append(shown, err, s)
	}
	var out strings.Builder
	text := slog.New(slog.NewTextHandler(&out, nil))
	json := slog.New(slog.NewJSONHandler(&out, nil))
	for _, x := range shown {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
			fmt.Fprintf(&out, verb+"\n", x)
		}
		if reflect.TypeOf(x) != reflect.TypeFor[*identity.Resolver]() { // it cannot be marshalled
			text.Info("x", "x", x)
			json.Info("x", "x", x)
		}
	}
	for _, s := range []string{secret, string(pepper), string(hs.secret()), token} {
		for _, form := range []string{s, fmt.Sprintf("%x", s), fmt.Sprintf("%X", s), strings.Trim(fmt.Sprintf("%d", []byte(s)), "[]")} {
			if i := strings.Index(out.String(), form); i >= 0 {
				t.Errorf("%q is shown: %q", s, out.String()[max(i-200, 0):i+len(form)])
			}
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]identity.Kind{
		"ip": identity.KindIP, "user": identity.KindUser, "tenant": identity.KindTenant, "key": identity.KindKey,
	} {
		var k identity.Kind
		if err := k.UnmarshalText([]byte(text)); err != nil || k != want {
			t.Errorf("%s: %v, %v", text, k, err)
		}
		if back, err := k.MarshalText(); err != nil || string(back) != text {
			t.Errorf("%s: %s, %v", text, back, err)
		}
	}
	for text, want := range map[string]identity.Hashing{"sha256": identity.SHA256, "hmac-sha256": identity.HMAC} {
		var h identity.Hashing
		if err := h.UnmarshalText([]byte(text)); err != nil || h != want {
			t.Errorf("%s: %v, %v", text, h, err)
		}
		if back, err := h.MarshalText(); err != nil || string(back) != text {
			t.Errorf("%s: %s, %v", text, back, err)
		}
	}
	var m identity.Source
	if err := m.UnmarshalText([]byte("jwt")); err != nil || m != identity.ByJWT {
		t.Errorf("%v, %v", m, err)
	}
	if err := m.UnmarshalText([]byte("cookie")); err == nil || !strings.Contains(err.Error(), `"cookie": want ip or key or jwt or header`) {
		t.Error(err)
	}
	names := map[string]bool{}
	for r := identity.NoReason; r <= identity.HeaderInvalid; r++ {
		if names[r.String()] || (r.String() == "") != (r == identity.NoReason) {
			t.Errorf("reason %d is named %q", r, r)
		}
		names[r.String()] = true
		if e := (&identity.RefusedError{Reason: r}); !strings.HasPrefix(e.Error(), "identity: ") || len(e.Error()) < 15 {
			t.Errorf("reason %d says %q", r, e)
		}
	}
	if got := (&identity.RefusedError{Reason: identity.KeyRevoked, Key: "abc"}).Error(); got != "identity: key abc: the API key was revoked" {
		t.Error(got)
	}
	for _, text := range []string{identity.Reason(99).String(), (&identity.RefusedError{Reason: 99}).Error(), identity.Kind(99).String(), identity.Source(99).String()} {
		if !strings.Contains(text, "99") {
			t.Error(text)
		}
	}
}

// TestAtOnce has many ask while lists change.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	d := &directory{}
	keys := [2]string{d.add(t, "", identity.Key{User: "key"}), d.add(t, pepper, identity.Key{User: "key"})}
	hs := newSigner(t, "HS256")
	r := open(t, identity.Options{Directory: d, Pepper: pepper, JWT: &identity.JWTOptions{Secret: hs.secret(), Remember: 128}})
	var tokens []string
	for i := range 40 {
		tokens = append(tokens, hs.sign(t, claims{"sub": fmt.Sprint("user", i)}))
	}
	list, err := identity.NewList([]identity.Entry{{Value: "198.51.100.7"}, {Kind: identity.KindUser, Value: "user1"}})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			var s identity.Subject
			for i := range 400 {
				n := (i + g) % len(tokens)
				q := from(client, "Authorization", "Bearer "+tokens[n])
				want := fmt.Sprint("user", n)
				if i%5 == 0 {
					q, want = from(client, "X-API-Key", keys[i/5%2]), "key"
				}
				if err := r.Resolve(t.Context(), q, start, &s); err != nil || s.User != want {
					t.Errorf("%v is %q, %v", want, s.User, err)
					return
				}
				if i%50 == 0 {
					r.SetLists(identity.Lists{Exempt: list})
				}
			}
		})
	}
	all.Wait()
}

type benchCase struct {
	resolver *identity.Resolver
	request  *identity.Request
	source   identity.Source
}

// cases are what happens all the time, with full lists.
func cases(t testing.TB) map[string]benchCase {
	t.Helper()
	var entries []identity.Entry
	for i := range 1000 {
		entries = append(entries,
			identity.Entry{Value: fmt.Sprintf("203.0.%d.%d", i/250, i%250)},
			identity.Entry{Value: fmt.Sprintf("100.%d.%d.0/24", i/250, i%250)},
			identity.Entry{Kind: identity.KindUser, Value: fmt.Sprint("u", i)})
	}
	list, err := identity.NewList(entries)
	if err != nil {
		t.Fatal(err)
	}
	d := &directory{users: map[string]*identity.User{"ann": {ID: "ann", Tier: "gold"}}}
	plain, peppered := d.add(t, "", identity.Key{User: "ann"}), d.add(t, pepper, identity.Key{User: "ann"})
	es := newSigner(t, "ES256")
	r := open(t, identity.Options{
		Directory: d, Pepper: pepper, TrustedProxies: inside, UserHeader: "X-User-ID",
		JWT:   &identity.JWTOptions{PublicKeys: es.pem(t)},
		Lists: identity.Lists{Exempt: list, Banned: list},
	})
	forwarded := open(t, identity.Options{TrustedProxies: inside, ForwardedHeader: "Forwarded"})
	token := es.sign(t, claims{
		"sub": "ann", "iss": "https://issuer.example.org/realms/main", "aud": []string{"api", "account"}, "email": "ann@example.org",
		"scope": "openid profile email", "jti": "3f1c9a52-72bb-4a9e-9d0d-1f7a3f0f7c11",
	})
	return map[string]benchCase{
		"ip":             {r, from(client), identity.ByIP},
		"ip-forwarded":   {r, from(proxy, "X-Forwarded-For", "192.0.2.1, 198.51.100.7, 10.0.0.9"), identity.ByIP},
		"ip-rfc7239":     {forwarded, from(proxy, "Forwarded", `for=192.0.2.1, for="[2001:db8::1]:99";proto=https`), identity.ByIP},
		"key":            {r, from(client, "X-API-Key", plain), identity.ByKey},
		"key-pepper":     {r, from(client, "X-API-Key", peppered), identity.ByKey},
		"jwt-seen":       {r, from(client, "Authorization", "Bearer "+token), identity.ByJWT},
		"trusted-header": {r, from(proxy, "X-User-ID", "ann"), identity.ByHeader},
	}
}

func BenchmarkResolve(b *testing.B) {
	all := cases(b)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		c := all[name]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var s identity.Subject
			for b.Loop() {
				if err := c.resolver.Resolve(b.Context(), c.request, start, &s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	for _, alg := range []string{"HS256", "RS256", "ES256", "EdDSA"} {
		b.Run("jwt-new/"+alg, func(b *testing.B) {
			signer := newSigner(b, alg)
			r := open(b, identity.Options{JWT: signer.options(b)})
			q := from(client, "Authorization", "Bearer "+signer.sign(b, claims{"sub": "ann", "exp": int64(1) << 37}))
			b.ReportAllocs()
			var s identity.Subject
			now := start
			for b.Loop() {
				now = now.Add(5 * time.Minute) // as long as it is remembered
				if err := r.Resolve(b.Context(), q, now, &s); err != nil || s.Source != identity.ByJWT {
					b.Fatal(s, err)
				}
			}
		})
	}
}
