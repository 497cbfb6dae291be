// Package identity finds out who sends a request.
//
// A [Resolver] reads, in order: an API key, a JWT, the headers of a trusted proxy,
// and the client's address, which is always there. The result is a [Subject].
//
// # Invariants
//
//   - Claims of a client about itself count only if they are proven: a key by its
//     secret, a token by its signature. Headers and forwarded addresses are accepted
//     from trusted proxies only, and an address only if every proxy that forwarded
//     it is trusted.
//   - An invalid API key or token is rejected, never treated as none: otherwise its
//     holder would be counted as someone else, while a more lenient service behind us
//     may accept it. [JWTOptions.IgnoreBad] is the exception, and says so in the subject.
//   - Every credential that a request presents counts. Those that agree are one subject;
//     those of different users or tenants are rejected, unless FirstWins is set, and a
//     ban of any of them holds.
//   - An unknown key and a wrong secret get the same answer in the same time. Only a
//     client with the right secret learns that its key is revoked or expired.
//   - Keys that are not valid are limited by address, before they are looked up. Keys
//     that the directory has in memory are not affected.
//   - A ban wins over an exemption. A banned address is not identified any further,
//     so it costs no lookup and no signature check.
//   - No error, and nothing that these types print or log, contains a secret.
//   - Work and memory are bounded, whatever a client sends: tokens above 8 KiB are
//     not read, at most 64 hops in the last 8 KiB of forwarding headers are, and the
//     numbers of cached tokens and of addresses with bad keys are limited.
//
// # What it does not do
//
// It reads no clock, logs nothing and decides nothing: its callers reject banned
// clients and count subjects. It reads only one forwarding header, because a client
// can add the others. It stores no users and keys; a [Directory] does.
package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// Request is what a server knows of a request.
type Request struct {
	// Peer is the peer of the connection, or the address that the PROXY protocol
	// names.
	Peer netip.Addr
	// Headers have canonical names, as in http.Header.
	Headers map[string][]string
}

// Format prints the peer alone: headers hold secrets.
func (q Request) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "request from %s", q.Peer) }

// LogValue implements [slog.LogValuer]. It shows as much as Format.
func (q Request) LogValue() slog.Value {
	return slog.GroupValue(slog.String("peer", q.Peer.String()))
}

// Subject is who sends a request. Its maps are shared and read-only.
type Subject struct {
	// User, Tenant and Key are empty if unknown. Key is the id of an API key.
	User, Tenant, Key string
	// Tier is that of the key, or else of the token or header, the user, the tenant, or
	// the default.
	Tier string
	// IP is the client's address: unmapped, without a zone. It is not valid if
	// unknown.
	IP netip.Addr
	// Net is what is counted by: an IPv4 address, or a network of IPv6.
	Net netip.Prefix
	// Source is how the subject was identified.
	Source Source
	// Verified says that user, tenant and key were proven, by a key or a token. A
	// trusted header is not a proof.
	Verified bool
	// Trusted says that the peer is a trusted proxy, so its headers may be used.
	Trusted bool
	// Exempt and Banned are the matching entries of lists, if any. A banned subject
	// is not exempt.
	Exempt, Banned *Entry
	// Claims are the strings, numbers and booleans of a verified token. A claim inside
	// an object has a name with a dot, as in "org.id".
	Claims map[string]string
	// KeyLimits and UserLimits override the limits of the tier, by the name of the
	// limit.
	KeyLimits, UserLimits map[string]stint.Limit
	// Others are identities that the request presents beside this one, and that are of
	// another user or tenant. Bans hold for them, too; nothing else counts them.
	Others []Subject
	// Unaccepted is why a token or a trusted header was not accepted.
	Unaccepted Reason
	// BadToken says that the request has a token that was not accepted, and goes on without
	// it. A service behind us might accept it, so it must not get it.
	BadToken bool
	// UserError is the error of a lookup of the user, whose tier, limits and block are
	// then missing, or of the tenant, whose tier is.
	UserError error
}

// Source is how a subject was identified.
type Source uint8

// The sources. ByIP is the last resort: there is always an address.
const (
	ByIP Source = iota
	ByKey
	ByJWT
	ByHeader
)

var sourceNames = [...]string{ByIP: "ip", ByKey: "key", ByJWT: "jwt", ByHeader: "header"}

// String returns "ip", "key", "jwt" or "header".
func (s Source) String() string { return nameOf(sourceNames[:], s) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Source) UnmarshalText(text []byte) error {
	return parseName("source", sourceNames[:], text, s)
}

// Directory looks up keys, users and tenants. It is called on every request that has one,
// by several goroutines at once, so it should cache. Neither side changes what it
// returns; nil without an error means that there is none.
type Directory interface {
	Key(ctx context.Context, id string) (*Key, error)
	User(ctx context.Context, id string) (*User, error)
	Tenant(ctx context.Context, id string) (*Tenant, error)
}

// KnownKeys is implemented by directories for which a lookup is expensive, as in a
// database, and which have the keys that are in use in memory.
type KnownKeys interface {
	// KnownKey is like Key if the answer is in memory, even that there is no such key.
	// Otherwise known is false, and nothing is looked up.
	KnownKey(ctx context.Context, id string) (k *Key, known bool, err error)
}

// ErrDirectory is wrapped, beside the directory's own error, if a key could not be looked
// up. A later attempt may succeed.
var ErrDirectory = errors.New("the directory could not be read")

func unknownKey(id string, err error) error {
	return fmt.Errorf("identity: key %s: %w: %w", id, ErrDirectory, err)
}

// User is a user in a [Directory].
type User struct {
	ID, Tenant, Tier string
	Limits           map[string]stint.Limit
	// Blocked, unless nil or expired, bans the user.
	Blocked *Entry
}

// Tenant is a tenant in a [Directory].
type Tenant struct {
	ID   string
	Tier string // of its users who have no other
}

// Options are a resolver's settings. The zero value identifies by the peer's address.
type Options struct {
	// Methods are read in this order. [ByIP] is not among them: it is the last resort.
	// Default: a key if there is a Directory, a JWT if there is JWT, headers if one is
	// named.
	Methods []Source
	// Directory looks up keys, users and tenants. Without one there are no API keys, and
	// users and tenants have no tiers.
	Directory Directory
	// Require rejects requests without a valid key, a valid token or a trusted header.
	Require bool
	// FirstWins says what happens to a request with credentials of different users or
	// tenants: the first in the order of Methods is the client, the others count for bans
	// only. Default: it is rejected.
	FirstWins bool
	// DefaultTier is the tier of subjects that have no other.
	DefaultTier string

	// KeyHeader is the header of API keys. Default X-API-Key.
	KeyHeader string
	// KeyPrefix is what they begin with, before the first underscore. Default stint.
	KeyPrefix string
	// KeyBearer accepts them as Authorization: Bearer, too.
	KeyBearer bool
	// Pepper is the secret of keys that are hashed with HMAC. At least 16 bytes.
	Pepper Secret
	// FailedKeys is how many different keys that are not valid an address may send in a
	// minute. Then keys that the directory does not have in memory are rejected without a
	// lookup, if it implements [KnownKeys]. Default 30, at most 1,000; negative: no limit.
	FailedKeys int

	// JWT says how tokens are verified. Default: there are none.
	JWT *JWTOptions

	// UserHeader, TenantHeader and TierHeader are headers in which trusted proxies
	// identify the client. Default: none.
	UserHeader, TenantHeader, TierHeader string

	// TrustedProxies are the networks of trusted proxies.
	TrustedProxies []netip.Prefix
	// TrustedDepth is, instead of networks, the number of proxies that every request
	// comes through: the peer is the first, and always trusted. At most 64.
	TrustedDepth int
	// ForwardedHeader is the one header with the client's address. Forwarded is read by
	// RFC 7239, X-Forwarded-For as a list; any other, such as X-Real-IP, holds
	// one address. Default X-Forwarded-For.
	ForwardedHeader string
	// IPv6Prefix is how many bits of an IPv6 address are counted, from 32 to 128.
	// Default 64: a client with one address of such a network usually has all.
	IPv6Prefix int

	// Lists are the exemptions and bans.
	Lists Lists

	// Previous is the resolver that this one replaces, if any. Keys that it has fetched
	// from the same URL are used until they are fetched again, and what it has counted of
	// FailedKeys stays.
	Previous *Resolver
}

// Format prints the options without their secrets, by whatever verb.
func (o Options) Format(f fmt.State, _ rune) {
	type plain Options
	fmt.Fprintf(f, "%+v", plain(o))
}

// Lists are the exemptions and bans. Nil lists are empty.
type Lists struct{ Exempt, Banned *List }

// Resolver identifies clients. It is safe for concurrent use.
type Resolver struct {
	settings
	lists atomic.Pointer[Lists]
}

type settings struct {
	methods   []Source
	directory Directory
	require   bool
	firstWins bool
	tier      string
	keys      *keyChecker
	tokens    *verifier  // nil if there are no tokens
	jwks      *keySource // of tokens; nil if there is none
	headers   trustedHeaders
	proxies   *proxies
	bits      int // of an IPv6 address
}

// Format prints no fields, because they hold secrets.
func (*Resolver) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "identity.Resolver") }

// New returns a resolver. Close it if it has JWT options.
func New(o Options) (*Resolver, error) {
	var p problems
	r := &Resolver{settings: settings{
		methods: o.Methods, directory: o.Directory, require: o.Require, firstWins: o.FirstWins, tier: o.DefaultTier, bits: cmp.Or(o.IPv6Prefix, 64),
		headers: trustedHeaders{
			user: p.header("UserHeader", o.UserHeader), tenant: p.header("TenantHeader", o.TenantHeader),
			tier: p.header("TierHeader", o.TierHeader),
		},
		keys: newKeyChecker(&o, &p), proxies: newProxies(&o, &p),
	}}
	if r.bits < 32 || r.bits > 128 {
		p.add("IPv6Prefix", r.bits, "32 to 128")
	}
	if o.DefaultTier != "" && !ValidID(o.DefaultTier) {
		p.add("DefaultTier", o.DefaultTier, wantID)
	}
	r.choose(&o, &p)
	r.SetLists(o.Lists)
	if o.JWT != nil {
		r.tokens = newVerifier(o.JWT, &p)
		r.jwks = r.tokens.set
	}
	if err := errors.Join(p...); err != nil {
		return nil, err
	}
	if o.Previous != nil {
		r.jwks.inherit(o.Previous.jwks)
	}
	if err := r.jwks.start(); err != nil {
		return nil, err
	}
	return r, nil
}

// choose checks the methods, or takes all that there are.
func (r *Resolver) choose(o *Options, p *problems) {
	has := map[Source]bool{
		ByKey: o.Directory != nil, ByJWT: o.JWT != nil, ByHeader: r.headers.user != "" || r.headers.tenant != "",
	}
	if has[ByHeader] && len(o.TrustedProxies) == 0 && o.TrustedDepth == 0 {
		p.add("UserHeader", o.UserHeader, "trusted proxies, without which it is never believed")
	}
	if r.methods == nil {
		for _, m := range []Source{ByKey, ByJWT, ByHeader} {
			if has[m] {
				r.methods = append(r.methods, m)
			}
		}
		return
	}
	seen := map[Source]bool{}
	for _, m := range r.methods {
		if !has[m] || seen[m] {
			p.add("Methods", m, "key, jwt and header at most once each, and only with their settings")
		}
		seen[m] = true
	}
}

// SetLists replaces the exemptions and bans.
func (r *Resolver) SetLists(l Lists) { r.lists.Store(&l) }

// With returns the same resolver with other lists. All else is shared: closing one
// closes both.
func (r *Resolver) With(l Lists) *Resolver {
	other := &Resolver{settings: r.settings}
	other.SetLists(l)
	return other
}

// Ready returns an error if the last fetch of the key set failed, or if there was none
// yet. Tokens with known keys are accepted all the same, and so are requests without a
// token.
func (r *Resolver) Ready() error { return r.jwks.ready() }

// KeyHeader returns the header of API keys, in its canonical form.
func (r *Resolver) KeyHeader() string { return r.keys.header }

// DefaultTier returns the tier of subjects that have no other.
func (r *Resolver) DefaultTier() string { return r.tier }

// IPv6Prefix returns how many bits of an IPv6 address are counted.
func (r *Resolver) IPv6Prefix() int { return r.bits }

// Headers are the names of the headers that a resolver reads, in their canonical form. One
// that it does not read is empty.
type Headers struct {
	// Key is the header of API keys.
	Key string
	// User, Tenant, Tier and Forwarded are read from trusted proxies only.
	User, Tenant, Tier, Forwarded string
}

// Headers returns the headers that the resolver reads beside Authorization.
func (r *Resolver) Headers() Headers {
	h := Headers{User: r.headers.user, Tenant: r.headers.tenant, Tier: r.headers.tier, Forwarded: r.proxies.header}
	if slices.Contains(r.methods, ByKey) {
		h.Key = r.keys.header
	}
	return h
}

// Trusts reports whether headers from this peer may be used: it is a trusted proxy.
func (r *Resolver) Trusts(peer netip.Addr) bool { return r.proxies.peer(canonical(peer)) }

// Close stops fetching keys. The resolver keeps working with those it has.
func (r *Resolver) Close() error {
	r.jwks.stop()
	return nil
}

// Resolve identifies the client, and writes the result to s. A [*RefusedError] means that
// the request must be rejected for its credentials, or for the lack of them; s then has
// the address, and a ban if one of the credentials is banned. Any other error is
// [ErrDirectory].
func (r *Resolver) Resolve(ctx context.Context, q *Request, now time.Time, s *Subject) error {
	*s = Subject{}
	s.IP, s.Trusted = r.proxies.client(q)
	if s.IP.IsValid() {
		s.Net = counted(s.IP, r.bits)
	}
	if r.bannedAddress(now, s) {
		return nil
	}
	if err := r.identify(ctx, q, now, s); err != nil {
		*s = Subject{IP: s.IP, Net: s.Net, Trusted: s.Trusted, Banned: s.Banned}
		return err
	}
	r.complete(ctx, now, s)
	return nil
}

// Describe completes a subject that the caller has identified. Any of User, Tenant, Key,
// Tier and IP may be set, and stay, also if the key is of another user: that user is then
// among the Others. A [*RefusedError] means that the key is no longer valid; the rest of
// the subject is complete. Any other error is [ErrDirectory].
func (r *Resolver) Describe(ctx context.Context, now time.Time, s *Subject) error {
	if s.IP.IsValid() {
		s.IP = canonical(s.IP)
		s.Net = counted(s.IP, r.bits)
	}
	if r.bannedAddress(now, s) {
		return nil
	}
	var refused error
	if s.Key != "" && r.directory != nil {
		k, err := r.directory.Key(ctx, s.Key)
		if err != nil {
			return unknownKey(s.Key, err)
		}
		if k != nil {
			refused = k.good(now)
			s.KeyLimits = k.Limits
			r.addOwner(ctx, now, s, k)
			s.User, s.Tenant, s.Tier = cmp.Or(s.User, k.User), cmp.Or(s.Tenant, k.Tenant), cmp.Or(s.Tier, k.Tier)
		}
	}
	r.complete(ctx, now, s)
	return refused
}

// bannedAddress reports whether the subject's address is banned. It is then not identified
// any further.
func (r *Resolver) bannedAddress(now time.Time, s *Subject) bool {
	if s.Banned = r.lists.Load().Banned.address(s.IP, now); s.Banned == nil {
		return false
	}
	s.Tier = cmp.Or(s.Tier, r.tier)
	return true
}

// complete adds the user, the tenant, the default tier, and the entries of lists.
func (r *Resolver) complete(ctx context.Context, now time.Time, s *Subject) {
	if s.User != "" && r.directory != nil {
		r.addUser(ctx, now, s)
	}
	if s.Tier == "" && s.Tenant != "" && r.directory != nil {
		r.addTenant(ctx, s)
	}
	s.Tier = cmp.Or(s.Tier, r.tier)
	lists := r.lists.Load()
	if s.Banned == nil {
		s.Banned = lists.Banned.name(s, now)
	}
	if s.Banned == nil {
		s.Exempt = lists.Exempt.Find(s, now)
	}
}

// addUser adds what the directory has of the user, unless the key or token has set it.
func (r *Resolver) addUser(ctx context.Context, now time.Time, s *Subject) {
	u, err := r.directory.User(ctx, s.User)
	if err != nil {
		s.UserError = fmt.Errorf("identity: user %q: %w", s.User, err)
		return
	}
	if u == nil {
		return
	}
	s.Tenant, s.Tier = cmp.Or(s.Tenant, u.Tenant), cmp.Or(s.Tier, u.Tier)
	s.UserLimits = u.Limits
	if u.Blocked != nil && u.Blocked.Holds(now) {
		s.Banned = u.Blocked
	}
}

// addTenant adds the tier of the tenant.
func (r *Resolver) addTenant(ctx context.Context, s *Subject) {
	t, err := r.directory.Tenant(ctx, s.Tenant)
	switch {
	case err == nil && t != nil:
		s.Tier = t.Tier
	case err != nil && s.UserError == nil:
		s.UserError = fmt.Errorf("identity: tenant %q: %w", s.Tenant, err)
	}
}
