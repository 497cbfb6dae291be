package identity

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// JWTOptions say how tokens are verified. At least one of Secret, PublicKeys and JWKS
// is needed.
//
// The key determines the algorithm: HS256, HS384 and HS512 for a secret, RS and PS
// for an RSA key, ES256, ES384 or ES512 for the curve of an ECDSA key, EdDSA for
// Ed25519. A token cannot choose another, bring a key, or link to one.
type JWTOptions struct {
	// Secret is the HMAC secret. At least 32 bytes.
	Secret Secret
	// PublicKeys are in PEM: PUBLIC KEY, RSA PUBLIC KEY or CERTIFICATE, of which only
	// the key is used. At most 8.
	PublicKeys string
	// JWKS is a JSON Web Key Set: an http or https URL, or the name of a file. While a URL
	// cannot be reached, tokens that need its keys are not accepted, and Ready returns an
	// error. A file must exist. Symmetric keys are read from a file only.
	JWKS string
	// Refresh is how often the set is fetched, 1 minute or more. It is fetched
	// earlier, but at most every 30 s, if a token names a key that is not in it; the
	// token waits for that, for up to 250 ms. Default 15 minutes.
	Refresh time.Duration
	// Client fetches it. Default [http.DefaultClient].
	Client *http.Client

	// IgnoreBad identifies a client whose token is not accepted as if it had sent none, and
	// sets [Subject.BadToken]. Rules by user and bans of users then do not hold for it,
	// although a service that is more lenient may accept the token: so it must not get it.
	// Default: the request is rejected.
	IgnoreBad bool

	// Issuer is the required issuer. Default: any.
	Issuer string
	// Audience lists the accepted audiences, one of which a token must name. Default:
	// any.
	Audience []string
	// Leeway is the tolerated clock difference, at most 5 minutes. Default 30 s.
	Leeway time.Duration

	// UserClaim, TenantClaim and TierClaim are the names of these claims; a claim inside
	// an object has a dot, as in "org.id". Defaults: sub for the user, none.
	UserClaim, TenantClaim, TierClaim string

	// Remember is how many verified tokens are cached; beyond it, the least recently
	// used are dropped, and verified again. A token is cached until it expires, and for 5
	// minutes at most. Default 100,000, at least 128.
	Remember int
}

// Format prints the options without their secret, by whatever verb.
func (o JWTOptions) Format(f fmt.State, _ rune) {
	type plain JWTOptions
	fmt.Fprintf(f, "%+v", plain(o))
}

const (
	longestToken  = 8 << 10
	shortestHMAC  = 32
	largestClaims = 16 << 10 // bytes of names and values
	longestLeeway = 5 * time.Minute
	longestMemory = 5 * time.Minute // of a verified token
	mostTried     = 8               // keys, for one token
)

// verifier verifies tokens.
type verifier struct {
	options            []jwt.ParserOption
	ignoreBad          bool
	leeway             time.Duration
	user, tenant, tier string // claims
	static             []tokenKey
	set                *keySource // nil if there is none
	seen               *seen
}

func newVerifier(o *JWTOptions, p *problems) *verifier {
	v := &verifier{ignoreBad: o.IgnoreBad, leeway: o.Leeway, user: o.UserClaim, tenant: o.TenantClaim, tier: o.TierClaim}
	v.leeway, v.user = cmp.Or(v.leeway, 30*time.Second), cmp.Or(v.user, "sub")
	if v.leeway < 0 || v.leeway > longestLeeway {
		p.add("JWT.Leeway", v.leeway, "0 to "+longestLeeway.String())
	}
	v.options = []jwt.ParserOption{
		jwt.WithExpirationRequired(), jwt.WithLeeway(v.leeway), jwt.WithIssuer(o.Issuer),
		jwt.WithJSONNumber(), jwt.WithStrictDecoding(),
	}
	if len(o.Audience) > 0 {
		v.options = append(v.options, jwt.WithAudience(o.Audience...))
	}
	v.options = slices.Clip(v.options)

	size := cmp.Or(o.Remember, 100_000)
	if size < fewestSeen {
		p.add("JWT.Remember", size, "128 or more, or 0 for the default")
	}
	v.seen = newSeen(size)

	if o.Secret != "" {
		if len(o.Secret) < shortestHMAC {
			p.add("JWT.Secret", o.Secret, "at least 32 bytes")
		}
		v.static = append(v.static, tokenKey{key: []byte(o.Secret)})
	}
	v.static = append(v.static, parsePEM(o.PublicKeys, p)...)
	if o.JWKS != "" {
		v.set = newKeySource(o, p)
	}
	if o.Secret == "" && o.PublicKeys == "" && o.JWKS == "" {
		p.add("JWT", "", "a Secret, PublicKeys or JWKS")
	}
	return v
}

// claims are the claims of a verified token. They do not change.
type claims struct {
	user, tenant, tier string
	all                map[string]string
	from, until        time.Time
}

// holds reports whether the token is still valid.
func (c *claims) holds(now time.Time) bool { return !now.Before(c.from) && now.Before(c.until) }

// verify returns the claims of a token, or why it is not accepted.
func (v *verifier) verify(ctx context.Context, token string, now time.Time) (*claims, Reason) {
	if len(token) > longestToken {
		return nil, TokenTooLong
	}
	var room [2 << 10]byte // most tokens fit
	sum := sha256.Sum256(append(room[:0], token...))
	if c := v.seen.get(&sum, now); c != nil {
		return c, NoReason
	}
	c, err := v.parse(ctx, token, now)
	if err != nil {
		return nil, reasonOf(err)
	}
	v.seen.put(&sum, c)
	return c, NoReason
}

func (v *verifier) parse(ctx context.Context, token string, now time.Time) (*claims, error) {
	if strings.ContainsAny(token, "\r\n") { // the decoder would skip these, and make many tokens of one
		return nil, reasonError(TokenMalformed)
	}
	said := jwt.MapClaims{}
	clock := jwt.WithTimeFunc(func() time.Time { return now })
	_, err := jwt.NewParser(append(v.options, clock)...).ParseWithClaims(token, said, func(t *jwt.Token) (any, error) {
		return v.keys(ctx, t)
	})
	if err != nil {
		return nil, err
	}
	c := &claims{all: map[string]string{}, until: now.Add(longestMemory)}
	size := flatten(c.all, "", said, 0)
	c.user, c.tenant, c.tier = c.all[v.user], c.all[v.tenant], c.all[v.tier]
	if c.user == "" || size > largestClaims {
		return nil, reasonError(TokenClaims)
	}
	// That both can be read has been checked.
	if nbf, _ := said.GetNotBefore(); nbf != nil {
		c.from = nbf.Add(-v.leeway)
	}
	if exp, _ := said.GetExpirationTime(); exp != nil && exp.Add(v.leeway).Before(c.until) {
		c.until = exp.Add(v.leeway)
	}
	return c, nil
}

// keys returns the keys that may have signed the token. The client writes the
// algorithm and the rest of the header: they only choose among keys, and a key has its
// own algorithms.
func (v *verifier) keys(ctx context.Context, t *jwt.Token) (any, error) {
	if _, critical := t.Header["crit"]; critical {
		return nil, reasonError(TokenMalformed) // no critical extension is supported
	}
	kid, ok := t.Header["kid"].(string)
	if _, present := t.Header["kid"]; present && !ok {
		return nil, reasonError(TokenMalformed)
	}
	keys, err := v.static, error(reasonError(TokenAlgorithm))
	if v.set != nil {
		named, missing := v.set.named(ctx, kid)
		if missing != nil {
			err = missing
		}
		keys = slices.Concat(named, v.static)
	}
	var fit jwt.VerificationKeySet
	for i := range keys {
		if keys[i].fits(t.Method.Alg()) {
			fit.Keys = append(fit.Keys, keys[i].key)
		}
	}
	switch {
	case len(fit.Keys) == 0:
		return nil, err
	case len(fit.Keys) > mostTried:
		return nil, reasonError(TokenUnknownKey) // it must name one
	}
	return fit, nil
}

func reasonOf(err error) Reason {
	var known reasonError
	if errors.As(err, &known) {
		return Reason(known)
	}
	for _, c := range [...]struct {
		err error
		why Reason
	}{
		{jwt.ErrTokenMalformed, TokenMalformed},
		{jwt.ErrTokenUnverifiable, TokenAlgorithm},
		{jwt.ErrTokenSignatureInvalid, TokenSignature},
		{jwt.ErrTokenExpired, TokenExpired},
		{jwt.ErrTokenNotValidYet, TokenNotYetValid},
		{jwt.ErrTokenInvalidIssuer, TokenIssuer},
		{jwt.ErrTokenInvalidAudience, TokenAudience},
	} {
		if errors.Is(err, c.err) {
			return c.why
		}
	}
	return TokenClaims
}

// flatten collects the claims that rules can count by; claims inside objects have names
// with dots. If two have the same name, the less nested one wins: names with dots are
// common at the top, as in "https://example.org/tenant". It returns how many bytes they
// take: one long name before many claims can make a short token large.
func flatten(into map[string]string, prefix string, said map[string]any, depth int) (size int) {
	const deepest = 4
	for name, value := range said {
		var text string
		switch x := value.(type) {
		case string:
			text = x
		case json.Number:
			text = x.String()
		case bool:
			text = strconv.FormatBool(x)
		default:
			continue
		}
		if _, taken := into[prefix+name]; !taken && ValidID(text) {
			into[prefix+name] = text
			size += len(prefix) + len(name) + len(text)
		}
	}
	if depth == deepest || size > largestClaims {
		return size
	}
	for _, name := range slices.Sorted(maps.Keys(said)) {
		if object, ok := said[name].(map[string]any); ok {
			size += flatten(into, prefix+name+".", object, depth+1)
		}
	}
	return size
}
