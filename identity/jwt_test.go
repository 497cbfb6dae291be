package identity_test

import (
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"

	"github.com/stintdev/stint/identity"
)

// This file is long: one issuer, in the test, and a case for each way to forge or break a token.

type claims = map[string]any

// signer issues tokens.
type signer struct {
	alg, kid string
	key      any // []byte or a crypto.Signer
}

var newRSA = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

func newSigner(t testing.TB, alg string) *signer {
	t.Helper()
	s := &signer{alg: alg}
	var err error
	switch alg {
	case "HS256", "HS384", "HS512":
		s.key = []byte(rand.Text() + rand.Text())
	case "RS256", "RS384", "RS512", "PS256", "PS384", "PS512":
		s.key, err = newRSA()
	case "ES256":
		s.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ES384":
		s.key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ES512":
		s.key, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "EdDSA":
		_, s.key, err = ed25519.GenerateKey(rand.Reader)
	default:
		t.Fatalf("no algorithm %s", alg)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *signer) secret() identity.Secret { return identity.Secret(s.key.([]byte)) }

func (s *signer) pem(t testing.TB) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(s.key.(crypto.Signer).Public())
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func (s *signer) options(t testing.TB) *identity.JWTOptions {
	t.Helper()
	if _, symmetric := s.key.([]byte); symmetric {
		return &identity.JWTOptions{Secret: s.secret()}
	}
	return &identity.JWTOptions{PublicKeys: s.pem(t)}
}

// sign issues a token that is good for an hour, unless its claims say otherwise.
func (s *signer) sign(t testing.TB, c claims) string {
	t.Helper()
	return s.signWith(t, c, nil)
}

func (s *signer) signWith(t testing.TB, c, header claims) string {
	t.Helper()
	c = maps.Clone(c)
	if exp, ok := c["exp"]; !ok {
		c["exp"] = start.Add(time.Hour).Unix()
	} else if exp == nil {
		delete(c, "exp")
	}
	token := jwt.NewWithClaims(jwt.GetSigningMethod(s.alg), jwt.MapClaims(c))
	if s.kid != "" {
		token.Header["kid"] = s.kid
	}
	maps.Copy(token.Header, header)
	text, err := token.SignedString(s.key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// jwk is the signer's key in a set.
func (s *signer) jwk(t testing.TB) jwkset.JWKMarshal {
	t.Helper()
	key := s.key
	if k, ok := key.(crypto.Signer); ok {
		key = k.Public()
	}
	o := jwkset.JWKOptions{Marshal: jwkset.JWKMarshalOptions{Private: true}, Metadata: jwkset.JWKMetadataOptions{KID: s.kid}}
	k, err := jwkset.NewJWKFromKey(key, o)
	if err != nil {
		t.Fatal(err)
	}
	return k.Marshal()
}

func keySet(t testing.TB, keys ...jwkset.JWKMarshal) []byte {
	t.Helper()
	text, err := json.Marshal(jwkset.JWKSMarshal{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// accept returns why the resolver does not accept the token, or nothing.
func accept(t testing.TB, r *identity.Resolver, token string, now time.Time) identity.Reason {
	t.Helper()
	var s identity.Subject
	err, why := r.Resolve(t.Context(), from(client, "Authorization", "Bearer "+token), now, &s), identity.NoReason
	if refused := new(identity.RefusedError); errors.As(err, &refused) {
		why = refused.Reason
	} else if err != nil {
		t.Fatal(err)
	}
	if accepted := s.Source == identity.ByJWT; accepted != (why == identity.NoReason) || accepted != (s.User != "") || accepted != s.Verified {
		t.Fatalf("%+v, %v", s, err)
	}
	return why
}

func TestAlgorithms(t *testing.T) {
	t.Parallel()
	all := []string{
		"HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
	}
	for _, alg := range all {
		t.Run(alg, func(t *testing.T) {
			t.Parallel()
			s := newSigner(t, alg)
			s.kid = "k"
			file := filepath.Join(t.TempDir(), "keys.json")
			if err := os.WriteFile(file, keySet(t, s.jwk(t)), 0o600); err != nil {
				t.Fatal(err)
			}
			for name, o := range map[string]*identity.JWTOptions{"static": s.options(t), "set": {JWKS: file}} {
				r := open(t, identity.Options{JWT: o})
				if err := r.Ready(); err != nil {
					t.Fatal(err)
				}
				if why := accept(t, r, s.sign(t, claims{"sub": "ann"}), start); why != identity.NoReason {
					t.Errorf("%s: %v", name, why)
				}
				for _, other := range all {
					if family(other) == family(alg) {
						continue
					}
					if why := accept(t, r, newSigner(t, other).sign(t, claims{"sub": "ann"}), start); why != identity.TokenAlgorithm {
						t.Errorf("%s: %s: %v", name, other, why)
					}
				}
			}
		})
	}
}

// family is what one kind of key is for.
func family(alg string) string {
	switch alg[:2] {
	case "HS":
		return "HMAC"
	case "RS", "PS":
		return "RSA"
	}
	return alg // a curve each
}

func TestClaims(t *testing.T) {
	t.Parallel()
	s := newSigner(t, "HS256")
	o := s.options(t)
	o.Issuer, o.Audience = "https://issuer.example.org", []string{"api", "admin"}
	o.UserClaim, o.TenantClaim, o.TierClaim = "user.id", "https://example.org/tenant", "plan"
	r := open(t, identity.Options{JWT: o})
	at := func(d time.Duration) int64 { return start.Add(d).Unix() }
	for name, c := range map[string]struct {
		change claims
		want   identity.Reason
	}{
		"good":               {nil, identity.NoReason},
		"one of audiences":   {claims{"aud": []string{"x", "admin"}}, identity.NoReason},
		"other audience":     {claims{"aud": "web"}, identity.TokenAudience},
		"no audience":        {claims{"aud": nil}, identity.TokenClaims},
		"other issuer":       {claims{"iss": "https://issuer.example.org/"}, identity.TokenIssuer},
		"no issuer":          {claims{"iss": nil}, identity.TokenClaims},
		"expired":            {claims{"exp": at(-30 * time.Second)}, identity.TokenExpired},
		"within leeway":      {claims{"exp": at(-29 * time.Second)}, identity.NoReason},
		"no expiry":          {claims{"exp": nil}, identity.TokenClaims},
		"expiry is text":     {claims{"exp": "tomorrow"}, identity.TokenClaims},
		"expiry is huge":     {claims{"exp": 1e300}, identity.TokenExpired},
		"expiry is fraction": {claims{"exp": float64(at(time.Hour)) + 0.5}, identity.NoReason},
		"not yet":            {claims{"nbf": at(31 * time.Second)}, identity.TokenNotYetValid},
		"nearly":             {claims{"nbf": at(30 * time.Second)}, identity.NoReason},
		"no user":            {claims{"user": nil}, identity.TokenClaims},
		"user is an object":  {claims{"user": claims{"id": claims{}}}, identity.TokenClaims},
		"user is a list":     {claims{"user": claims{"id": []string{"ann"}}}, identity.TokenClaims},
		"user is empty":      {claims{"user": claims{"id": ""}}, identity.TokenClaims},
		"user is a number":   {claims{"user": claims{"id": 9007199254740993}}, identity.NoReason},
		"user is long":       {claims{"user": claims{"id": strings.Repeat("a", 255)}}, identity.NoReason},
		"user is too long":   {claims{"user": claims{"id": strings.Repeat("a", 256)}}, identity.TokenClaims},
		"user has control":   {claims{"user": claims{"id": "a\tb"}}, identity.TokenClaims},
		"user is not UTF-8":  {claims{"user": claims{"id": "a\xff"}}, identity.TokenClaims},
		"too much":           {claims{strings.Repeat("a", 1000): manyClaims(50)}, identity.TokenClaims},
		"much":               {claims{"a": manyClaims(50)}, identity.NoReason},
		"deep":               {claims{"a": deepClaims(500)}, identity.NoReason},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said := claims{
				"iss": o.Issuer, "aud": "api", "user": claims{"id": "ann"}, "https://example.org/tenant": "acme", "plan": "gold",
				"exp": at(time.Hour),
			}
			maps.Copy(said, c.change)
			if got := accept(t, r, s.sign(t, said), start); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func manyClaims(n int) claims {
	c := claims{}
	for i := range n {
		c[fmt.Sprint("c", i)] = i
	}
	return c
}

func deepClaims(n int) claims {
	c := claims{"a": 1}
	for range n {
		c = claims{"a": c}
	}
	return c
}

func TestClaimsAreGiven(t *testing.T) {
	t.Parallel()
	s := newSigner(t, "HS256")
	r := open(t, identity.Options{JWT: s.options(t)})
	token := s.sign(t, claims{
		"sub": "ann", "n": 12345678901234567, "yes": true, "no": false, "null": nil, "list": []int{1},
		"a.b": "top", "a": claims{"b": "nested", "c": 1.5, "d": claims{"e": claims{"f": claims{"g": "too deep"}}}}, "empty": "",
	})
	got := resolve(t, r, from(client, "Authorization", "Bearer "+token)).Claims
	want := map[string]string{
		"sub": "ann", "exp": strconv.FormatInt(start.Add(time.Hour).Unix(), 10), "n": "12345678901234567", "yes": "true", "no": "false",
		"a.b": "top", "a.c": "1.5", "a.d.e.f.g": "too deep",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// TestForgedTokens has tokens that must change nothing but the reason.
func TestForgedTokens(t *testing.T) {
	t.Parallel()
	rs, es, hs := newSigner(t, "RS256"), newSigner(t, "ES256"), newSigner(t, "HS256")
	rs.kid, es.kid, hs.kid = "rsa", "ec", "oct"
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("a key was fetched from where a token said")
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(file, keySet(t, rs.jwk(t), es.jwk(t), hs.jwk(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	r := open(t, identity.Options{JWT: &identity.JWTOptions{JWKS: file, Issuer: "me"}})
	ann := claims{"sub": "ann", "iss": "me"}
	good := es.sign(t, ann)
	if why := accept(t, r, good, start); why != identity.NoReason {
		t.Fatal(why)
	}
	parts := strings.Split(good, ".")
	thief := newSigner(t, "ES256")
	thief.kid = "ec"
	encode := func(x any) string {
		text, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	body := encode(claims{"sub": "ann", "iss": "me", "exp": start.Add(time.Hour).Unix()})
	unsigned := func(header claims) string { return encode(header) + "." + body + "." }
	hmacOf := func(header claims, key []byte) string {
		text := encode(header) + "." + body
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return text + "." + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
	}
	der, err := x509.MarshalPKIXPublicKey(rs.key.(crypto.Signer).Public())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		token string
		want  identity.Reason
	}{
		"none":                 {unsigned(claims{"alg": "none"}), identity.TokenAlgorithm},
		"None":                 {unsigned(claims{"alg": "None"}), identity.TokenAlgorithm},
		"none with a key":      {unsigned(claims{"alg": "none", "kid": "ec"}), identity.TokenAlgorithm},
		"no algorithm":         {unsigned(claims{"kid": "ec"}), identity.TokenAlgorithm},
		"algorithm is a list":  {unsigned(claims{"alg": []string{"ES256"}}), identity.TokenAlgorithm},
		"no signature":         {parts[0] + "." + parts[1] + ".", identity.TokenSignature},
		"PEM as secret":        {hmacOf(claims{"alg": "HS256", "kid": "rsa"}, []byte(rs.pem(t))), identity.TokenAlgorithm},
		"DER as secret":        {hmacOf(claims{"alg": "HS256", "kid": "rsa"}, der), identity.TokenAlgorithm},
		"PEM, no key named":    {hmacOf(claims{"alg": "HS256"}, []byte(rs.pem(t))), identity.TokenSignature},
		"empty secret":         {hmacOf(claims{"alg": "HS256", "kid": "oct"}, nil), identity.TokenSignature},
		"key of a thief":       {thief.sign(t, ann), identity.TokenSignature},
		"embedded key":         {thief.signWith(t, ann, claims{"jwk": thief.jwk(t)}), identity.TokenSignature},
		"jku":                  {thief.signWith(t, ann, claims{"jku": server.URL}), identity.TokenSignature},
		"x5u":                  {thief.signWith(t, ann, claims{"x5u": server.URL}), identity.TokenSignature},
		"kid is a path":        {hmacOf(claims{"alg": "HS256", "kid": "../../../../dev/null"}, nil), identity.TokenUnknownKey},
		"kid is SQL":           {hmacOf(claims{"alg": "HS256", "kid": "x' UNION SELECT 'a"}, []byte("a")), identity.TokenUnknownKey},
		"kid is a URL":         {thief.signWith(t, ann, claims{"kid": server.URL}), identity.TokenUnknownKey},
		"kid is a number":      {thief.signWith(t, ann, claims{"kid": 1}), identity.TokenMalformed},
		"kid of another key":   {es.signWith(t, ann, claims{"kid": "rsa"}), identity.TokenAlgorithm},
		"crit":                 {es.signWith(t, ann, claims{"crit": []string{"b64"}, "b64": false}), identity.TokenMalformed},
		"other issuer":         {es.sign(t, claims{"sub": "ann", "iss": "you"}), identity.TokenIssuer},
		"other claims":         {parts[0] + "." + encode(claims{"sub": "eve", "exp": 1e12}) + "." + parts[2], identity.TokenSignature},
		"header changed":       {encode(claims{"alg": "ES256", "kid": "ec", "x": 1}) + "." + parts[1] + "." + parts[2], identity.TokenSignature},
		"four parts":           {good + ".x", identity.TokenMalformed},
		"two parts":            {parts[0] + "." + parts[1], identity.TokenMalformed},
		"encrypted":            {good + "..", identity.TokenMalformed},
		"line break":           {good[:20] + "\n" + good[20:], identity.TokenMalformed},
		"trailing bits":        {good[:len(good)-1] + string(good[len(good)-1]+1), identity.TokenMalformed},
		"padding":              {good + "=", identity.TokenMalformed},
		"unicode":              {good[:20] + "\u00e9" + good[20:], identity.TokenMalformed},
		"null":                 {encode(nil) + "." + encode(nil) + ".", identity.TokenAlgorithm},
		"header is a list":     {encode([]int{1}) + "." + body + ".", identity.TokenMalformed},
		"claims are a list":    {encode(claims{"alg": "ES256"}) + "." + encode([]int{1}) + ".", identity.TokenMalformed},
		"longest":              {good + strings.Repeat("A", 8<<10-len(good)), identity.TokenSignature},
		"too long":             {good + strings.Repeat("A", 8<<10-len(good)+1), identity.TokenTooLong},
		"a megabyte":           {strings.Repeat("a.", 1<<19), identity.TokenTooLong},
		"dots":                 {strings.Repeat(".", 8<<10), identity.TokenMalformed},
		"curve's psychic zero": {parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 64)), identity.TokenSignature},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 2 { // also if it was seen before
				if got := accept(t, r, c.token, start); got != c.want {
					t.Errorf("got %v, want %v", got, c.want)
				}
			}
		})
	}
}

// TestSeenTokens checks that a token that was seen is treated as a new one would be.
func TestSeenTokens(t *testing.T) {
	t.Parallel()
	s := newSigner(t, "HS256")
	o := s.options(t)
	o.Remember = 256 // two for each half of a shard
	r := open(t, identity.Options{JWT: o})
	token := s.sign(t, claims{"sub": "ann", "nbf": start.Unix(), "exp": start.Add(7 * time.Minute).Unix()})
	for _, c := range []struct {
		at   time.Duration
		want identity.Reason
	}{
		{0, identity.NoReason},
		{-30 * time.Second, identity.NoReason},
		{-31 * time.Second, identity.TokenNotYetValid},
		{6 * time.Minute, identity.NoReason},
		{7*time.Minute + 29*time.Second, identity.NoReason},
		{7*time.Minute + 30*time.Second, identity.TokenExpired},
		{time.Minute, identity.NoReason},
	} {
		if got := accept(t, r, token, start.Add(c.at)); got != c.want {
			t.Errorf("at %v: %v, want %v", c.at, got, c.want)
		}
	}
	// Far more tokens than are remembered, twice: all are who they were.
	var tokens []string
	for i := range 2000 {
		tokens = append(tokens, s.sign(t, claims{"sub": fmt.Sprint("user", i)}))
	}
	for range 2 {
		for i, token := range tokens {
			if got := resolve(t, r, from(client, "Authorization", "Bearer "+token)); got.User != fmt.Sprint("user", i) {
				t.Fatalf("user%d is %+v", i, got)
			}
		}
	}
}

func TestPublicKeys(t *testing.T) {
	t.Parallel()
	rs, es, ed := newSigner(t, "RS256"), newSigner(t, "ES256"), newSigner(t, "EdDSA")
	pkcs1 := pem.EncodeToMemory(&pem.Block{Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&rs.key.(*rsa.PrivateKey).PublicKey)})
	r := open(t, identity.Options{JWT: &identity.JWTOptions{PublicKeys: string(pkcs1) + "\n" + es.pem(t) + ed.pem(t) + "\n"}})
	for _, s := range []*signer{rs, es, ed} {
		s.kid = "ignored"
		if why := accept(t, r, s.sign(t, claims{"sub": "ann"}), start); why != identity.NoReason {
			t.Errorf("%s: %v", s.alg, why)
		}
	}
	_, err := identity.New(identity.Options{JWT: &identity.JWTOptions{PublicKeys: strings.Repeat(es.pem(t), 9)}})
	if err == nil || !strings.Contains(err.Error(), "at most 8 keys") {
		t.Error(err)
	}
}

func TestCertificate(t *testing.T) {
	t.Parallel()
	es := newSigner(t, "ES256")
	key := es.key.(crypto.Signer)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: start}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	r := open(t, identity.Options{JWT: &identity.JWTOptions{PublicKeys: string(text)}})
	if why := accept(t, r, es.sign(t, claims{"sub": "ann"}), start); why != identity.NoReason {
		t.Error(why)
	}
}

// TestWeakKeys has keys that are refused, one by one and in a set.
func TestWeakKeys(t *testing.T) {
	t.Parallel()
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsa1024, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	x25519, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for want, public := range map[string]any{
		"an ECDSA key on P-256, P-384 or P-521": p224.Public(),
		"an RSA key of 2048 to 8192 bits":       rsa1024.Public(),
		"an RSA, ECDSA or Ed25519 key":          x25519.Public(),
	} {
		der, err := x509.MarshalPKIXPublicKey(public)
		if err != nil {
			t.Fatal(err)
		}
		text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
		if _, err := identity.New(identity.Options{JWT: &identity.JWTOptions{PublicKeys: string(text)}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	file := filepath.Join(t.TempDir(), "keys.json")
	weak := []jwkset.JWKMarshal{(&signer{key: rsa1024}).jwk(t), (&signer{key: []byte("short")}).jwk(t)}
	if err := os.WriteFile(file, keySet(t, weak...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := identity.New(identity.Options{JWT: &identity.JWTOptions{JWKS: file}}); err == nil || !strings.Contains(err.Error(), "it has no key that can verify tokens") {
		t.Error(err)
	}
}

// TestKeysWithoutName checks that a token that names no key is tried with a few, and
// one that would have to be tried with many is not tried at all.
func TestKeysWithoutName(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]identity.Reason{8: identity.NoReason, 9: identity.TokenUnknownKey} {
		var keys []jwkset.JWKMarshal
		var last *signer
		for i := range n {
			last = newSigner(t, "EdDSA")
			last.kid = strconv.Itoa(i)
			keys = append(keys, last.jwk(t))
		}
		file := filepath.Join(t.TempDir(), "keys.json")
		if err := os.WriteFile(file, keySet(t, keys...), 0o600); err != nil {
			t.Fatal(err)
		}
		r := open(t, identity.Options{JWT: &identity.JWTOptions{JWKS: file}})
		if why := accept(t, r, last.sign(t, claims{"sub": "ann"}), start); why != identity.NoReason {
			t.Errorf("%d keys, one named: %v", n, why)
		}
		last.kid = ""
		if why := accept(t, r, last.sign(t, claims{"sub": "ann"}), start); why != want {
			t.Errorf("%d keys, none named: %v, want %v", n, why, want)
		}
	}
}

// issuer is a server with a key set that changes.
type issuer struct {
	set     atomic.Pointer[[]byte] // of nil: it is broken
	fetched chan struct{}          // one for each fetch
}

func newIssuer(set []byte) *issuer {
	i := &issuer{fetched: make(chan struct{}, 1000)}
	i.set.Store(&set)
	return i
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	i.fetched <- struct{}{}
	set := *i.set.Load()
	if set == nil {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write(set)
}

// RoundTrip answers without a network, so that time can be virtual.
func (i *issuer) RoundTrip(q *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	i.ServeHTTP(w, q)
	return w.Result(), nil
}

// TestPrevious replaces a resolver while the server of keys is away: what was fetched
// from the same place still holds, and from another it does not.
func TestPrevious(t *testing.T) {
	t.Parallel()
	key := newSigner(t, "ES256")
	key.kid = "1"
	i := newIssuer(keySet(t, key.jwk(t)))
	server := httptest.NewServer(i)
	url := server.URL
	old := open(t, identity.Options{JWT: &identity.JWTOptions{JWKS: url + "/keys"}})
	if why := accept(t, old, key.sign(t, claims{"sub": "ann"}), start); why != identity.NoReason {
		t.Fatal(why)
	}
	server.Close()
	for place, want := range map[string]identity.Reason{"/keys": identity.NoReason, "/others": identity.TokenNoKeys} {
		r := open(t, identity.Options{Previous: old, JWT: &identity.JWTOptions{JWKS: url + place}})
		if why := accept(t, r, key.sign(t, claims{"sub": "bob"}), start); why != want {
			t.Errorf("%s: %v, want %v", place, why, want)
		}
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	first, second, oct := newSigner(t, "ES256"), newSigner(t, "EdDSA"), newSigner(t, "HS256")
	first.kid, second.kid, oct.kid = "1", "2", "3"
	broken := first.jwk(t)
	broken.KID, broken.X = "broken", "AAAA"
	encrypts := newSigner(t, "ES256")
	encrypts.kid = "enc"
	encJWK := encrypts.jwk(t)
	encJWK.USE = jwkset.UseEnc
	signs := newSigner(t, "ES256")
	signs.kid = "sign"
	signJWK := signs.jwk(t)
	signJWK.KEYOPS = []jwkset.KEYOPS{jwkset.KeyOpsSign}
	probabilistic := newSigner(t, "RS256")
	probabilistic.kid = "ps"
	psJWK := probabilistic.jwk(t)
	psJWK.ALG = jwkset.AlgPS256
	elsewhere := first.jwk(t)
	elsewhere.X5U = "https://192.0.2.1/never-fetched"

	i := newIssuer(keySet(t, broken, elsewhere))
	server := httptest.NewServer(i)
	t.Cleanup(server.Close)
	r := open(t, identity.Options{JWT: &identity.JWTOptions{JWKS: server.URL + "/keys"}})
	ann := claims{"sub": "ann"}

	// The first token waits for the first fetch.
	if why := accept(t, r, first.sign(t, ann), start); why != identity.NoReason {
		t.Fatal(why)
	}
	<-i.fetched
	if err := r.Ready(); err != nil {
		t.Fatal(err)
	}
	// A new key is fetched when a token has it.
	set := keySet(t, second.jwk(t), oct.jwk(t), encJWK, signJWK, psJWK)
	i.set.Store(&set)
	if why := accept(t, r, second.sign(t, ann), start); why != identity.NoReason {
		t.Fatal(why)
	}
	<-i.fetched
	// A key has its algorithm, where the set says so.
	if why := accept(t, r, probabilistic.sign(t, ann), start); why != identity.TokenAlgorithm {
		t.Error(why)
	}
	probabilistic.alg = "PS256"
	if why := accept(t, r, probabilistic.sign(t, ann), start); why != identity.NoReason {
		t.Error(why)
	}
	// The old one is gone, a secret is none if it is public, and some keys are not for
	// this. Asking for them does not fetch again so soon.
	for _, s := range []*signer{first, oct, encrypts, signs} {
		if why := accept(t, r, s.sign(t, claims{"sub": "eve"}), start); why != identity.TokenUnknownKey {
			t.Errorf("%s: %v", s.kid, why)
		}
	}
	if len(i.fetched) != 0 {
		t.Error("it was fetched again at once")
	}
	// A token that was seen is remembered for a while, and no longer.
	if why := accept(t, r, first.sign(t, ann), start.Add(5*time.Minute)); why != identity.TokenUnknownKey {
		t.Error(why)
	}
}

// TestKeysOutOfReach is about an issuer that is not there when the resolver starts.
func TestKeysOutOfReach(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSigner(t, "ES256")
		s.kid = "1"
		i := newIssuer(nil)
		hs := newSigner(t, "HS256")
		r, err := identity.New(identity.Options{JWT: &identity.JWTOptions{
			JWKS: "https://user:password@issuer.example.org/keys", Client: &http.Client{Transport: i}, Secret: hs.secret(),
		}})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "keys of https://user:xxxxx@issuer.example.org/keys: the answer is 503") {
			t.Error(err)
		}
		token := s.sign(t, claims{"sub": "ann"})
		begin := time.Now()
		if why := accept(t, r, token, start); why != identity.TokenNoKeys {
			t.Error(why)
		}
		if why := accept(t, r, hs.sign(t, claims{"sub": "ann"}), start); why != identity.NoReason {
			t.Error(why, "a static key needs no issuer")
		}
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("a token waited %v for an issuer that is out of reach", waited)
		}
		// It is tried again, and found.
		set := keySet(t, s.jwk(t))
		i.set.Store(&set)
		<-time.After(10 * time.Second)
		synctest.Wait()
		if why := accept(t, r, token, start); why != identity.NoReason || r.Ready() != nil {
			t.Error(why, r.Ready())
		}
		// When it breaks, the keys stay.
		for _, bad := range []string{"", "{", "[]", `{"keys":[]}`, `{"keys":[{"kty":"EC"}]}`, string(set) + strings.Repeat(" ", 1<<20)} {
			text := []byte(bad)
			if bad == "" {
				text = nil
			}
			i.set.Store(&text)
			<-time.After(15 * time.Minute)
			synctest.Wait()
			if r.Ready() == nil {
				t.Errorf("%.20q is taken for a key set", bad)
			}
		}
		if why := accept(t, r, s.sign(t, claims{"sub": "bob"}), start); why != identity.NoReason {
			t.Error(why)
		}
		r.Close()
	})
}

// slowStart is an issuer whose first answer takes so long that requests wait for it.
type slowStart struct {
	*issuer
	first sync.Once
}

func (s *slowStart) RoundTrip(q *http.Request) (*http.Response, error) {
	s.first.Do(func() { <-time.After(time.Millisecond) })
	return s.issuer.RoundTrip(q)
}

// TestFetches counts how often keys are fetched.
func TestFetches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		known, unknown := newSigner(t, "ES256"), newSigner(t, "ES256")
		known.kid, unknown.kid = "1", "2"
		i := newIssuer(keySet(t, known.jwk(t)))
		r, err := identity.New(identity.Options{JWT: &identity.JWTOptions{
			JWKS: "https://issuer.example.org/keys", Client: &http.Client{Transport: &slowStart{issuer: i}}, Refresh: time.Hour,
		}})
		if err != nil {
			t.Fatal(err)
		}
		token := unknown.sign(t, claims{"sub": "ann"})
		if why := accept(t, r, token, start); why != identity.TokenUnknownKey {
			t.Error(why) // it has waited for the first fetch
		}
		begin := time.Now()
		fetched := func(what string, want int) {
			t.Helper()
			synctest.Wait()
			if got := len(i.fetched); got != want {
				t.Errorf("%s: after %v fetched %d times, want %d", what, time.Since(begin), got, want)
			}
		}
		fetched("start", 1)
		// A flood of unknown keys for a minute fetches twice, and none has to wait.
		for range 60 {
			for range 10 {
				accept(t, r, token, start)
			}
			<-time.After(time.Second)
		}
		fetched("flood", 3)
		if got := time.Since(begin); got != time.Minute {
			t.Errorf("tokens waited %v", got-time.Minute)
		}
		// Without one, every hour.
		<-time.After(30 * time.Second)
		fetched("pause", 3)
		<-time.After(3 * time.Hour)
		fetched("hours", 6)
		// In the end, no one waits.
		r.Close()
		begin = time.Now()
		accept(t, r, token, start)
		if got := time.Since(begin); got != 0 {
			t.Errorf("waited %v for what has ended", got)
		}
		fetched("closed", 6)
	})
}

// TestSlowIssuer checks that no one waits long for an issuer that hangs.
func TestSlowIssuer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSigner(t, "ES256")
		r, err := identity.New(identity.Options{JWT: &identity.JWTOptions{
			JWKS: "https://issuer.example.org/keys", Client: &http.Client{Transport: hanging{}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if why := accept(t, r, s.sign(t, claims{"sub": "ann"}), start); why != identity.TokenNoKeys {
			t.Error(why)
		}
		if got := time.Since(begin); got != 250*time.Millisecond {
			t.Errorf("waited %v", got)
		}
		// Once it has failed, no one waits, whether it is being tried or not.
		for _, at := range []time.Duration{6 * time.Second, 16 * time.Second} {
			<-time.After(at - time.Since(begin))
			if why := accept(t, r, s.sign(t, claims{"sub": "ann"}), start); why != identity.TokenNoKeys {
				t.Error(why)
			}
			if got := time.Since(begin); got != at {
				t.Errorf("waited %v", got-at)
			}
		}
		r.Close() // ends the fetch
		if got := time.Since(begin); got != 16*time.Second {
			t.Errorf("closing took until %v", got)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

type hanging struct{}

func (hanging) RoundTrip(q *http.Request) (*http.Response, error) {
	<-q.Context().Done()
	return nil, q.Context().Err()
}

func TestLeavesNothing(t *testing.T) { //nolint:paralleltest // it looks at all goroutines
	ours := func() (out []string) {
		buf := make([]byte, 1<<20)
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "identity.(*keySource)") {
				out = append(out, g)
			}
		}
		return out
	}
	i := newIssuer(nil)
	server := httptest.NewServer(i)
	defer server.Close()
	for range 10 {
		r, err := identity.New(identity.Options{JWT: &identity.JWTOptions{JWKS: server.URL}})
		if err != nil {
			t.Fatal(err)
		}
		<-i.fetched
		r.Close()
	}
	if left := ours(); left != nil {
		t.Errorf("still there:\n%s", strings.Join(left, "\n\n"))
	}
}

func FuzzJWT(f *testing.F) {
	s := newSigner(f, "HS256")
	r := open(f, identity.Options{JWT: &identity.JWTOptions{Secret: s.secret(), Issuer: "me"}})
	good := s.sign(f, claims{"sub": "ann", "iss": "me"})
	head, rest, _ := strings.Cut(good, ".")
	for _, seed := range []string{
		good, good + ".", head, head + ".", "." + rest, "..", "eyJhbGciOiJub25lIn0." + rest, "eyJhbGciOiJub25lIn0.e30.",
		"eyJhbGciOiJIUzI1NiIsImtpZCI6Ii4uLy4uL2Rldi9udWxsIn0.e30.", "eyJhbGciOiJIUzI1NiJ9.W10.", "bnVsbA.bnVsbA.bnVsbA",
		s.sign(f, claims{"sub": "ann", "iss": "you"}), s.sign(f, claims{"sub": "ann", "iss": "me", "exp": 1}),
		s.sign(f, claims{"sub": claims{}, "iss": "me"}), s.sign(f, claims{"sub": deepClaims(100), "iss": []int{1}}),
		strings.Repeat("A", 1<<20), strings.Repeat(".", 1<<20), "Bearer " + good, "\x00", "\u0661.\u0662.\u0663", good[:30] + "\r\n" + good[30:],
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		var s identity.Subject
		err := r.Resolve(t.Context(), from(client, "Authorization", "Bearer "+token), start, &s)
		given := strings.TrimRight(strings.TrimLeft(token, " "), " \t")
		if accepted := s.Source == identity.ByJWT; accepted != (given == good) || accepted != (err == nil && given != "") {
			t.Fatalf("%q is accepted: %v, %+v, %v", token, accepted, s, err)
		}
		if s.IP != client {
			t.Fatalf("the address is %s", s.IP)
		}
	})
}
