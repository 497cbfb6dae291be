package identity

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/MicahParks/jwkset"
)

// tokenKey is a key that verifies tokens.
type tokenKey struct {
	id        string
	algorithm string // the only one it is for, if any
	key       any    // []byte, *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey
}

// fits reports whether the key may verify tokens of the algorithm. This prevents a public
// key from being used as an HMAC secret.
func (k *tokenKey) fits(algorithm string) bool {
	if k.algorithm != "" && k.algorithm != algorithm {
		return false
	}
	switch key := k.key.(type) {
	case []byte:
		return slices.Contains([]string{"HS256", "HS384", "HS512"}, algorithm)
	case *rsa.PublicKey:
		return slices.Contains([]string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}, algorithm)
	case *ecdsa.PublicKey:
		return map[int]string{256: "ES256", 384: "ES384", 521: "ES512"}[key.Curve.Params().BitSize] == algorithm
	case ed25519.PublicKey:
		return algorithm == "EdDSA"
	}
	return false
}

// check says what would be right if the key is unusable, or "".
func (k *tokenKey) check() string {
	switch key := k.key.(type) {
	case []byte:
		if len(key) < shortestHMAC {
			return "a secret of at least 32 bytes"
		}
	case *rsa.PublicKey:
		// Signatures by long keys are slow to check, and anyone can make us check them.
		if n := key.N.BitLen(); n < 2048 || n > 8192 {
			return "an RSA key of 2048 to 8192 bits"
		}
	case *ecdsa.PublicKey:
		if n := key.Curve.Params().BitSize; n < 256 {
			return "an ECDSA key on P-256, P-384 or P-521"
		}
	case ed25519.PublicKey:
	default:
		return "an RSA, ECDSA or Ed25519 key"
	}
	return ""
}

// parsePEM reads public keys.
func parsePEM(text string, p *problems) []tokenKey {
	const field, want = "JWT.PublicKeys", "public keys in PEM: PUBLIC KEY, RSA PUBLIC KEY or CERTIFICATE"
	var keys []tokenKey
	for rest := []byte(text); len(strings.TrimSpace(string(rest))) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			p.add(field, "text that is not PEM", want)
			return nil
		}
		var key any
		var err error
		switch block.Type {
		case "PUBLIC KEY":
			key, err = x509.ParsePKIXPublicKey(block.Bytes)
		case "RSA PUBLIC KEY":
			key, err = x509.ParsePKCS1PublicKey(block.Bytes)
		case "CERTIFICATE":
			var c *x509.Certificate
			if c, err = x509.ParseCertificate(block.Bytes); err == nil {
				key = c.PublicKey
			}
		default:
			// A private key is never shown, and should not be here.
			err = errors.ErrUnsupported
		}
		if err != nil {
			p.add(field, block.Type, want)
			continue
		}
		k := tokenKey{key: key}
		if want := k.check(); want != "" {
			p.add(field, block.Type, want)
			continue
		}
		keys = append(keys, k)
	}
	if len(keys) > mostTried {
		p.add(field, len(keys), "at most 8 keys, since each token is tried with all of them; a JWKS can have more")
	}
	return keys
}

const (
	fetchTimeout = 5 * time.Second
	retryAfter   = 10 * time.Second // a fetch that failed
	restAfter    = 30 * time.Second // a fetch for an unknown key
	longestWait  = 250 * time.Millisecond
	largestSet   = 1 << 20
)

// keySource has the keys of a JSON Web Key Set, and fetches them periodically.
type keySource struct {
	place   string
	shown   string // without a password
	file    bool
	client  *http.Client
	refresh time.Duration

	state  atomic.Pointer[keyState]
	wanted chan struct{} // has room for one: an unknown key was asked for
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// keyState is the result of the last fetch. It does not change.
type keyState struct {
	keys    []tokenKey
	err     error         // of the last fetch
	resting bool          // there was a fetch for an unknown key, and the next has to wait
	next    chan struct{} // closed after the next fetch
}

var errNotFetched = errors.New("not fetched yet")

func newKeySource(o *JWTOptions, p *problems) *keySource {
	s := &keySource{place: o.JWKS, shown: o.JWKS, client: o.Client, refresh: o.Refresh, wanted: make(chan struct{}, 1)}
	s.client, s.refresh = cmp.Or(s.client, http.DefaultClient), cmp.Or(s.refresh, 15*time.Minute)
	if s.refresh < time.Minute {
		p.add("JWT.Refresh", s.refresh, "1m or more")
	}
	scheme, _, isURL := strings.Cut(s.place, "://")
	s.file = !isURL
	if isURL {
		u, err := url.Parse(s.place)
		if err != nil || u.Host == "" || (scheme != "https" && scheme != "http") {
			p.add("JWT.JWKS", scheme+"://...", "an http or https URL, or the name of a file")
		} else {
			s.shown = u.Redacted()
		}
	}
	s.state.Store(&keyState{next: make(chan struct{}), err: errNotFetched})
	return s
}

// inherit takes over the keys that another source has fetched from the same URL.
func (s *keySource) inherit(from *keySource) {
	if s != nil && from != nil && !s.file && s.place == from.place {
		s.state.Load().keys = from.state.Load().keys // no one else has seen this state yet
	}
}

// start begins to fetch. It does not wait for a URL, which may be unreachable.
func (s *keySource) start() error {
	if s == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // the source's own life, which ends with stop
	s.cancel = cancel
	if s.file {
		if s.fetch(ctx, false); s.ready() != nil {
			cancel()
			return s.ready()
		}
	}
	s.done.Go(func() { s.run(ctx) })
	return nil
}

func (s *keySource) stop() {
	if s != nil {
		s.cancel()
		s.done.Wait()
	}
}

func (s *keySource) ready() error {
	if s == nil || s.state.Load().err == nil {
		return nil
	}
	return fmt.Errorf("identity: keys of %s: %w", s.shown, s.state.Load().err)
}

func (s *keySource) run(ctx context.Context) {
	if !s.file {
		s.fetch(ctx, false)
	}
	due := time.NewTimer(s.pause())
	defer due.Stop()
	var rested <-chan time.Time
	for {
		asked := false
		select {
		case <-ctx.Done():
			s.rest(true) // no one should wait for what will not come
			return
		case <-rested:
			s.rest(false)
			continue
		case <-s.wanted:
			asked = true
		case <-due.C:
		}
		s.fetch(ctx, asked)
		if asked {
			rested = time.After(restAfter)
		}
		due.Reset(s.pause())
	}
}

// rest sets whether a fetch for an unknown key has to wait.
func (s *keySource) rest(resting bool) {
	state := *s.state.Load()
	state.resting = resting
	s.state.Store(&state)
}

// pause is how long to wait for the next fetch.
func (s *keySource) pause() time.Duration {
	if s.state.Load().err != nil {
		return retryAfter
	}
	return s.refresh
}

// named returns the keys with the id, or all of them if it is empty. For a key that is
// not there it waits for a fetch, if one is allowed and the last one, if any, succeeded:
// no one should wait for an unreachable server.
func (s *keySource) named(ctx context.Context, id string) ([]tokenKey, error) {
	state := s.state.Load()
	keys := state.named(id)
	if keys == nil && !state.resting && (state.err == nil || errors.Is(state.err, errNotFetched)) {
		select {
		case s.wanted <- struct{}{}:
		default:
		}
		wait := time.NewTimer(longestWait)
		defer wait.Stop()
		select {
		case <-state.next:
		case <-wait.C:
		case <-ctx.Done():
		}
		state = s.state.Load()
		keys = state.named(id)
	}
	switch {
	case keys != nil:
		return keys, nil
	case state.err != nil && state.keys == nil:
		return nil, reasonError(TokenNoKeys)
	default:
		return nil, reasonError(TokenUnknownKey)
	}
}

func (s *keyState) named(id string) []tokenKey {
	if id == "" {
		return s.keys
	}
	var keys []tokenKey
	for i := range s.keys {
		if s.keys[i].id == id {
			keys = append(keys, s.keys[i])
		}
	}
	return keys
}

// fetch reads the set. If that fails, the old keys stay.
func (s *keySource) fetch(ctx context.Context, asked bool) {
	before := s.state.Load()
	after := &keyState{keys: before.keys, resting: before.resting || asked, next: make(chan struct{})}
	text, err := s.read(ctx)
	if err == nil {
		var keys []tokenKey
		if keys, err = parseSet(text, s.file); err == nil {
			after.keys = keys
		}
	}
	after.err = err
	select { // whoever wanted a key has waited for this
	case <-s.wanted:
	default:
	}
	s.state.Store(after)
	close(before.next)
}

func (s *keySource) read(ctx context.Context) ([]byte, error) {
	if s.file {
		return os.ReadFile(s.place)
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, s.place, http.NoBody)
	if err != nil {
		return nil, err
	}
	q.Close = true // the next one is minutes away
	a, err := s.client.Do(q)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is %s", a.Status)
	}
	text, err := io.ReadAll(io.LimitReader(a.Body, largestSet+1))
	if err == nil && len(text) > largestSet {
		err = errors.New("the answer is longer than 1 MiB")
	}
	return text, err
}

// parseSet returns the keys of a set that can verify tokens. An empty set is an error, so
// the old keys stay.
func parseSet(text []byte, secrets bool) ([]tokenKey, error) {
	var set jwkset.JWKSMarshal
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, fmt.Errorf("not a JSON Web Key Set: %w", err)
	}
	var keys []tokenKey
	for _, m := range set.Keys {
		if m.USE == jwkset.UseEnc || (len(m.KEYOPS) > 0 && !slices.Contains(m.KEYOPS, jwkset.KeyOpsVerify)) {
			continue
		}
		symmetric := m.KTY == jwkset.KtyOct
		if symmetric && !secrets {
			continue // a secret that a server publishes is not secret
		}
		m.X5U, m.X5C, m.X5T, m.X5TS256 = "", nil, "", "" // the key counts, and nothing else is fetched
		jwk, err := jwkset.NewJWKFromMarshal(m, jwkset.JWKMarshalOptions{Private: symmetric}, jwkset.JWKValidateOptions{})
		if err != nil {
			continue // of an unknown kind; there may be others
		}
		if k := (tokenKey{id: m.KID, algorithm: m.ALG.String(), key: jwk.Key()}); k.check() == "" {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("it has no key that can verify tokens")
	}
	return keys, nil
}
