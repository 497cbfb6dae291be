// Package identity answers one question about a request: who is asking?
//
// A [Resolver] tries what a request may bring, in order: an API key, a JWT, the
// headers of a trusted proxy, and at last the client's address, which is always
// there. The answer is a [Subject].
//
// # What holds
//
//   - What a client writes about itself counts for nothing unless it is proven. A
//     key is proven by its secret and a token by its signature; headers and
//     forwarded addresses are believed from trusted proxies only, and each address
//     only as far as all those who passed it on are trusted.
//   - An API key that is not good is refused, never taken for no key: its holder
//     would otherwise be counted as someone else. A token that is not good falls to
//     the address and the subject says why, unless Require is set.
//   - Of an unknown key and a wrong secret a client learns the same, in the same
//     time. That a key is revoked or expired learns only who has its secret.
//   - A ban wins over an exemption. A banned address is not identified any further,
//     and so costs no lookup and no signature.
//   - Secrets are in no error, and in nothing that these types print or log.
//   - Work and memory are bounded, whatever a client sends: tokens above 8 KiB are
//     not looked at, of forwarding headers no more than 64 hops in the last 8 KiB,
//     and the tokens remembered are counted.
//
// # What it refuses to do
//
// It reads no clock, logs nothing and decides nothing: whether the banned are turned
// away, and what is counted of a subject, is for others to say. It does not guess
// among forwarding headers: one is read, since a client can add the others. It keeps
// no users and keys; these are a [Directory]'s.
package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stintdev/stint"
)

// Request is what a door knows of a request.
type Request struct {
	// Peer is the other end of the connection. A door that speaks the PROXY protocol
	// puts the address of that here.
	Peer netip.Addr
	// Headers have canonical names, as http.Header has.
	Headers map[string][]string
}

// Format prints the peer alone: headers hold secrets.
func (q Request) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "request from %s", q.Peer) }

// LogValue implements [slog.LogValuer], and tells as much as Format.
func (q Request) LogValue() slog.Value {
	return slog.GroupValue(slog.String("peer", q.Peer.String()))
}

// Subject is who is asking. Its maps belong to others and are read-only.
type Subject struct {
	// User, Tenant and Key are empty if they are not known. Key is an API key's id.
	User, Tenant, Key string
	// Tier is what the key says, or else the token or header, the user, the tenant, the
	// default.
	Tier string
	// IP is the client's address: unmapped, without a zone. It is not valid if the
	// door knows none.
	IP netip.Addr
	// Net is what is counted of it: all of an IPv4 address, a part of an IPv6 one.
	Net netip.Prefix
	// Source is what told who it is.
	Source Source
	// Verified says that user, tenant and key were proven, by a key or a token. What
	// a trusted header says is believed, not proven.
	Verified bool
	// Trusted says that the peer is a trusted proxy, so that headers may be believed.
	Trusted bool
	// Exempt and Banned are the entries that say so, if any. One who is banned is
	// not exempt.
	Exempt, Banned *Entry
	// Claims are those of a verified token that are text, numbers or truth values.
	// One of an object has a name with a dot, as in "org.id".
	Claims map[string]string
	// KeyLimits and UserLimits are what the key and the user have in place of what
	// their tier says, by the name of the limit.
	KeyLimits, UserLimits map[string]stint.Limit
	// Unaccepted is why a token or a trusted header was sent and not accepted.
	Unaccepted Reason
	// UserError is why the directory could not tell about the user, whose tier, limits and
	// block are missing then, or about the tenant, whose tier is.
	UserError error
}

// Source is what told who a subject is.
type Source uint8

// The sources. An address is always there, and so is the last.
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

// Directory knows keys, users and tenants. It is asked on every request that has one, by
// several goroutines at once, so it should remember. What it returns is not changed
// by either side; nil without an error says that there is none.
type Directory interface {
	Key(ctx context.Context, id string) (*Key, error)
	User(ctx context.Context, id string) (*User, error)
	Tenant(ctx context.Context, id string) (*Tenant, error)
}

// ErrDirectory is wrapped, beside the directory's own error, by an error that says that
// the directory could not tell about a key. It may be able to later.
var ErrDirectory = errors.New("the directory could not tell")

func unknownKey(id string, err error) error {
	return fmt.Errorf("identity: key %s: %w: %w", id, ErrDirectory, err)
}

// User is what is known of a user.
type User struct {
	ID, Tenant, Tier string
	Limits           map[string]stint.Limit
	// Blocked, if it is not nil and not over, bans the user.
	Blocked *Entry
}

// Tenant is what is known of a tenant.
type Tenant struct {
	ID   string
	Tier string // of those of it who have no other
}

// Options are a resolver's settings. The zero value identifies by the peer's address.
type Options struct {
	// Methods are tried in this order; the address, [ByIP], is not among them, being
	// what remains. Default: a key if there is a Directory, a JWT if there is JWT,
	// headers if one is named.
	Methods []Source
	// Directory knows keys, users and tenants. Without one there are no API keys, and
	// users and tenants have no tier of their own.
	Directory Directory
	// Require refuses who brings neither a good key, nor a good token, nor a trusted
	// header.
	Require bool
	// DefaultTier is the tier of those who have no other.
	DefaultTier string

	// KeyHeader is the header of API keys. Default X-API-Key.
	KeyHeader string
	// KeyPrefix is what they begin with, before the first underscore. Default stint.
	KeyPrefix string
	// KeyBearer accepts them as Authorization: Bearer, too.
	KeyBearer bool
	// Pepper is the secret of keys that are hashed with HMAC. At least 16 bytes.
	Pepper Secret

	// JWT says how tokens are verified. Default: there are none.
	JWT *JWTOptions

	// UserHeader, TenantHeader and TierHeader are headers of trusted proxies that say
	// who is asking. Default: none.
	UserHeader, TenantHeader, TierHeader string

	// TrustedProxies are the networks of proxies whose headers are believed.
	TrustedProxies []netip.Prefix
	// TrustedDepth is, in place of them, the number of proxies that every request
	// comes through: the peer is the first, and always trusted. At most 64.
	TrustedDepth int
	// ForwardedHeader is the one header that tells the client's address. Forwarded is
	// read by RFC 7239, X-Forwarded-For as a list; any other, such as X-Real-IP, holds
	// one address. Default X-Forwarded-For.
	ForwardedHeader string
	// IPv6Prefix is how many bits of an IPv6 address are counted, from 32 to 128.
	// Default 64: whoever has one address of such a network has them all.
	IPv6Prefix int

	// Lists are who is exempt and who is banned.
	Lists Lists

	// Previous is the resolver that this one takes the place of, if any. The keys that it
	// has fetched from the same URL hold until they are fetched again.
	Previous *Resolver
}

// Format prints the options without their secrets, by whatever verb.
func (o Options) Format(f fmt.State, _ rune) {
	type plain Options
	fmt.Fprintf(f, "%+v", plain(o))
}

// Lists are who is exempt and who is banned. Nil lists are empty.
type Lists struct{ Exempt, Banned *List }

// Resolver tells who is asking. It may be used by several goroutines at once.
type Resolver struct {
	methods   []Source
	directory Directory
	require   bool
	tier      string
	keys      *keyChecker
	tokens    *verifier // nil: there are none
	headers   trustedHeaders
	proxies   *proxies
	bits      int // of an IPv6 address
	lists     atomic.Pointer[Lists]
}

// Format prints nothing of what is inside.
func (*Resolver) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "identity.Resolver") }

// New returns a resolver. Close it if it has JWT options.
func New(o Options) (*Resolver, error) {
	var p problems
	r := &Resolver{
		methods: o.Methods, directory: o.Directory, require: o.Require, tier: o.DefaultTier, bits: o.IPv6Prefix,
		headers: trustedHeaders{
			user: p.header("UserHeader", o.UserHeader), tenant: p.header("TenantHeader", o.TenantHeader),
			tier: p.header("TierHeader", o.TierHeader),
		},
		keys: newKeyChecker(&o, &p), proxies: newProxies(&o, &p),
	}
	if r.bits == 0 {
		r.bits = 64
	}
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
	}
	if err := errors.Join(p...); err != nil {
		return nil, err
	}
	if o.Previous != nil {
		r.tokens.inherit(o.Previous.tokens)
	}
	if err := r.tokens.start(); err != nil {
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

// SetLists replaces who is exempt and who is banned.
func (r *Resolver) SetLists(l Lists) { r.lists.Store(&l) }

// With returns a resolver that is the same but for its lists. All else is shared: to
// close one of them closes both.
func (r *Resolver) With(l Lists) *Resolver {
	other := &Resolver{
		methods: r.methods, directory: r.directory, require: r.require, tier: r.tier, keys: r.keys, tokens: r.tokens,
		headers: r.headers, proxies: r.proxies, bits: r.bits,
	}
	other.SetLists(l)
	return other
}

// Ready returns nil, or why the last fetch of a key set failed or that there was none
// yet. Tokens of keys that are known are accepted all the same, and so is everything
// that needs no token.
func (r *Resolver) Ready() error { return r.tokens.ready() }

// KeyHeader returns the header of API keys, in its canonical form.
func (r *Resolver) KeyHeader() string { return r.keys.header }

// Close ends what fetches keys. The resolver goes on with those it has.
func (r *Resolver) Close() error {
	r.tokens.stop()
	return nil
}

// Resolve tells who is asking, in s, which it overwrites. A [*RefusedError] says that
// the request must be refused for what it brought or did not bring; s then has the
// address. Any other error is [ErrDirectory].
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
		return err
	}
	if s.Source == ByIP && r.require {
		return &RefusedError{Reason: NoCredentials}
	}
	r.complete(ctx, now, s)
	return nil
}

// Describe adds to a subject what is known of it, for callers who know who it is. Of
// User, Tenant, Key, Tier and IP any may be given, and what is given stays. A
// [*RefusedError] says that the key is not good any more; the rest of the subject is
// there. Any other error is [ErrDirectory].
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
			s.User, s.Tenant, s.Tier = cmp.Or(s.User, k.User), cmp.Or(s.Tenant, k.Tenant), cmp.Or(s.Tier, k.Tier)
		}
	}
	r.complete(ctx, now, s)
	return refused
}

// bannedAddress reports whether the subject's address is banned, which ends it: it is
// not identified any further.
func (r *Resolver) bannedAddress(now time.Time, s *Subject) bool {
	if s.Banned = r.lists.Load().Banned.address(s.IP, now); s.Banned == nil {
		return false
	}
	s.Tier = cmp.Or(s.Tier, r.tier)
	return true
}

// complete adds what is known of the user and the tenant, the default tier, and whether
// the subject is on a list.
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

// identify tries the methods in order, until one tells.
func (r *Resolver) identify(ctx context.Context, q *Request, now time.Time, s *Subject) error {
	for _, m := range r.methods {
		var err error
		switch m {
		case ByKey:
			err = r.byKey(ctx, q, now, s)
		case ByJWT:
			err = r.byToken(ctx, q, now, s)
		case ByHeader:
			err = r.headers.read(q, s)
		case ByIP: // never among them
		}
		if err != nil || s.Source != ByIP {
			return err
		}
	}
	return nil
}

func (r *Resolver) byKey(ctx context.Context, q *Request, now time.Time, s *Subject) error {
	text, err := r.keys.find(q)
	if text == "" || err != nil {
		return err
	}
	k, err := r.keys.check(ctx, r.directory, text, now)
	if err != nil {
		return err
	}
	s.Source, s.Verified = ByKey, true
	s.Key, s.User, s.Tenant, s.Tier, s.KeyLimits = k.ID, k.User, k.Tenant, k.Tier, k.Limits
	return nil
}

func (r *Resolver) byToken(ctx context.Context, q *Request, now time.Time, s *Subject) error {
	text, err := bearer(q)
	if text == "" || err != nil || r.keys.owns(text) {
		return err
	}
	c, why := r.tokens.verify(ctx, text, now)
	if why != NoReason {
		s.Unaccepted = why
		if r.require {
			return &RefusedError{Reason: why}
		}
		return nil
	}
	s.Source, s.Verified = ByJWT, true
	s.User, s.Tenant, s.Tier, s.Claims = c.user, c.tenant, c.tier, c.all
	return nil
}

// addUser adds what the directory knows of the user, where nothing nearer has said it.
func (r *Resolver) addUser(ctx context.Context, now time.Time, s *Subject) {
	u, err := r.directory.User(ctx, s.User)
	if err != nil {
		s.UserError = fmt.Errorf("identity: user %q: %w", s.User, err)
		return
	}
	if u == nil {
		return
	}
	if s.Tenant == "" {
		s.Tenant = u.Tenant
	}
	if s.Tier == "" {
		s.Tier = u.Tier
	}
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

// trustedHeaders are the names of headers by which a trusted proxy says who is asking.
type trustedHeaders struct{ user, tenant, tier string }

func (h *trustedHeaders) read(q *Request, s *Subject) error {
	if !s.Trusted {
		return nil
	}
	var values [3]string
	for i, name := range [...]string{h.user, h.tenant, h.tier} {
		lines := q.Headers[name]
		if name == "" || len(lines) == 0 || (len(lines) == 1 && lines[0] == "") {
			continue
		}
		if len(lines) > 1 { // of two lines, one may be the client's
			return &RefusedError{Reason: Ambiguous}
		}
		if !ValidID(lines[0]) {
			s.Unaccepted = HeaderInvalid
			return nil
		}
		values[i] = lines[0]
	}
	if values[0] == "" && values[1] == "" {
		return nil // a tier says nothing of who it is
	}
	s.Source = ByHeader
	s.User, s.Tenant, s.Tier = values[0], values[1], values[2]
	return nil
}

// longestID is the most bytes of a user, tenant or tier.
const longestID = 255

const wantID = "1 to 255 bytes of UTF-8 without control characters"

// ValidID reports whether a client may be counted by such a name: 1 to 255 bytes of
// UTF-8 without control characters. The replacement character stands for what was not
// UTF-8, and so for many names.
func ValidID(id string) bool {
	for _, c := range id {
		if c == utf8.RuneError || unicode.IsControl(c) {
			return false
		}
	}
	return id != "" && len(id) <= longestID
}
