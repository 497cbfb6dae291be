package identity

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"hash"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stintdev/stint"
)

// Key is an API key as a [Directory] stores it: everything but its secret.
//
// A client sends PREFIX_ID_SECRET. The id has 8 to 64 letters and digits; it identifies
// the key and may be shown. The secret has 27 to 128 letters and digits, 160 random
// bits or more, so that it cannot be guessed and a quick hash is enough.
type Key struct {
	ID      string
	Hash    [sha256.Size]byte
	Hashing Hashing

	User, Tenant, Tier string
	Limits             map[string]stint.Limit

	Disabled bool
	// Expires and Revoked are when the key stops being valid. Zero: never.
	Expires, Revoked time.Time
}

// Hashing is how a key's hash was made of its secret.
type Hashing uint8

// The ways of hashing.
const (
	SHA256 Hashing = iota // of the secret
	HMAC                  // with SHA-256, and the pepper as its key
)

var hashingNames = [...]string{SHA256: "sha256", HMAC: "hmac-sha256"}

// String returns "sha256" or "hmac-sha256".
func (h Hashing) String() string { return nameOf(hashingNames[:], h) }

// MarshalText implements [encoding.TextMarshaler].
func (h Hashing) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (h *Hashing) UnmarshalText(text []byte) error {
	return parseName("hashing", hashingNames[:], text, h)
}

const (
	shortestID, longestKeyID    = 8, 64
	shortestSecret, longestText = 27, 128
	madeID, madeSecret          = 16, 32 // 95 and 190 bits
	shortestPepper              = 16
)

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// GenerateKey makes a key from random bytes, such as those of crypto/rand.Reader. The
// text is what the client sends; show it once, because the key does not contain it.
func GenerateKey(random io.Reader, prefix string, pepper Secret) (text string, k Key, err error) {
	if !validPrefix(prefix) {
		return "", Key{}, &stint.InvalidError{Field: "identity prefix", Value: prefix, Want: wantPrefix}
	}
	var made [madeID + madeSecret]byte
	for i := range made {
		// 248 is the largest multiple of 62 that fits: beyond it, some letters would
		// be likelier than others.
		b := made[i : i+1]
		for {
			if _, err := io.ReadFull(random, b); err != nil {
				return "", Key{}, fmt.Errorf("identity: random bytes: %w", err)
			}
			if b[0] < 248 {
				break
			}
		}
		b[0] = base62[b[0]%62]
	}
	k.ID = string(made[:madeID])
	secret := string(made[madeID:])
	k.Hash, k.Hashing = HashSecret(secret, pepper)
	return prefix + "_" + k.ID + "_" + secret, k, nil
}

// HashSecret returns what a directory stores of a key's secret, and how it was hashed:
// with the pepper if there is one.
func HashSecret(secret string, pepper Secret) ([sha256.Size]byte, Hashing) {
	if pepper == "" {
		return sha256.Sum256([]byte(secret)), SHA256
	}
	h := hmac.New(sha256.New, []byte(pepper))
	h.Write([]byte(secret))
	return [sha256.Size]byte(h.Sum(nil)), HMAC
}

// keyChecker finds keys in requests and checks them.
type keyChecker struct {
	header, prefix string // the prefix with its underscore
	bearer         bool
	usual          Hashing
	macs           *sync.Pool // of *mac; nil if there is no pepper

	known      KnownKeys // the directory; nil if failures are not limited
	failures   *failures
	mostFailed int
}

// mac is a keyed hash with buffers for its input and output, which saves allocations.
type mac struct {
	hash.Hash
	text [longestText]byte
	sum  [sha256.Size]byte
}

func newKeyChecker(o *Options, p *problems) *keyChecker {
	c := &keyChecker{header: p.header("KeyHeader", o.KeyHeader), prefix: o.KeyPrefix, bearer: o.KeyBearer}
	c.header, c.prefix = cmp.Or(c.header, "X-Api-Key"), cmp.Or(c.prefix, "stint")
	if !validPrefix(c.prefix) {
		p.add("KeyPrefix", c.prefix, wantPrefix)
	}
	c.prefix += "_"
	c.mostFailed = cmp.Or(o.FailedKeys, defaultFailed)
	if c.mostFailed > mostFailed {
		p.add("FailedKeys", c.mostFailed, "at most "+strconv.Itoa(mostFailed)+", or negative for no limit")
	}
	if c.known, _ = o.Directory.(KnownKeys); c.mostFailed < 0 {
		c.known = nil
	}
	if c.failures = newFailures(); o.Previous != nil {
		c.failures = o.Previous.keys.failures
	}
	if o.Pepper != "" {
		pepper := []byte(o.Pepper)
		if len(pepper) < shortestPepper {
			p.add("Pepper", o.Pepper, "at least 16 bytes")
		}
		c.usual = HMAC
		c.macs = &sync.Pool{New: func() any { return &mac{Hash: hmac.New(sha256.New, pepper)} }}
	}
	return c
}

// find returns the text of the request's key, and "" if it has none.
func (c *keyChecker) find(q *Request) (string, error) {
	switch lines := q.Headers[c.header]; {
	case len(lines) > 1:
		return "", &RefusedError{Reason: Ambiguous}
	case len(lines) == 1 && lines[0] != "":
		return lines[0], nil
	}
	if c.bearer {
		text, _, err := bearer(q)
		if err != nil || c.owns(text) {
			return text, err
		}
		if lines := q.Headers["Authorization"]; len(lines) > 0 && strings.Contains(lines[0], c.prefix) {
			return "", &RefusedError{Reason: KeyInvalid} // a key in another form
		}
	}
	return "", nil
}

// owns reports whether a bearer token is an API key.
func (c *keyChecker) owns(text string) bool { return c.bearer && strings.HasPrefix(text, c.prefix) }

// check returns the key of the text if it is valid. If too many that were not valid came
// from the same network, only keys that the directory has in memory are checked.
func (c *keyChecker) check(ctx context.Context, d Directory, text string, net netip.Prefix, now time.Time) (*Key, error) {
	id, secret, ok := c.split(text)
	if !ok {
		return nil, &RefusedError{Reason: KeyInvalid}
	}
	var k *Key
	var known bool
	var err error
	if c.known != nil {
		if k, known, err = c.known.KnownKey(ctx, id); err == nil && !known {
			a, wait, err := c.failures.enter(ctx, net, c.mostFailed, now)
			switch {
			case err != nil:
				return nil, unknownKey(id, err)
			case wait > 0:
				return nil, &RefusedError{Reason: KeyFailures, RetryAfter: wait}
			}
			defer c.failures.leave(a) // after the failure was counted
		}
	}
	if err == nil && !known {
		k, err = d.Key(ctx, id)
	}
	if err != nil {
		return nil, unknownKey(id, err)
	}
	unknown := Key{Hashing: c.usual} // costs as much to check as a known one
	found := k
	if found == nil {
		found = &unknown
	}
	sum, ok := c.hash(found.Hashing, secret)
	if !ok {
		return nil, &RefusedError{Reason: KeyUncheckable}
	}
	if subtle.ConstantTimeCompare(sum[:], found.Hash[:]) == 1 && k != nil {
		return k, k.good(now)
	}
	if c.known != nil {
		if wait := c.failures.add(net, text, c.mostFailed, now); wait > 0 {
			return nil, &RefusedError{Reason: KeyFailures, RetryAfter: wait}
		}
	}
	return nil, &RefusedError{Reason: KeyInvalid}
}

// good returns why the key is no longer valid.
func (k *Key) good(now time.Time) error {
	switch {
	case !k.Revoked.IsZero() && !now.Before(k.Revoked):
		return &RefusedError{Reason: KeyRevoked, Key: k.ID}
	case !k.Expires.IsZero() && !now.Before(k.Expires):
		return &RefusedError{Reason: KeyExpired, Key: k.ID}
	case k.Disabled:
		return &RefusedError{Reason: KeyDisabled, Key: k.ID}
	}
	return nil
}

func (c *keyChecker) split(text string) (id, secret string, ok bool) {
	rest, ok := strings.CutPrefix(text, c.prefix)
	if !ok || len(rest) > longestKeyID+1+longestText {
		return "", "", false
	}
	id, secret, _ = strings.Cut(rest, "_")
	ok = len(id) >= shortestID && len(id) <= longestKeyID &&
		len(secret) >= shortestSecret && len(secret) <= longestText && alphanumeric(id) && alphanumeric(secret)
	return id, secret, ok
}

// hash hashes a secret of at most longestText bytes. It reports false if that needs
// a pepper and there is none.
func (c *keyChecker) hash(how Hashing, secret string) (sum [sha256.Size]byte, ok bool) {
	if how == SHA256 {
		var text [longestText]byte
		n := copy(text[:], secret)
		return sha256.Sum256(text[:n]), true
	}
	if how != HMAC || c.macs == nil {
		return sum, false
	}
	m := c.macs.Get().(*mac)
	defer c.macs.Put(m)
	m.Reset()
	m.Write(m.text[:copy(m.text[:], secret)])
	m.Sum(m.sum[:0])
	return m.sum, true
}

const wantPrefix = "1 to 32 letters, digits and underscores, with letters or digits at both ends"

func validPrefix(p string) bool {
	return p != "" && len(p) <= 32 && strings.Trim(p, "_") == p && consists(p, base62+"_")
}

// alphanumeric is a faster consists for base62.
func alphanumeric(s string) bool {
	for i := range len(s) {
		if !isBase62[s[i]] {
			return false
		}
	}
	return true
}

var isBase62 = func() (is [256]bool) {
	for _, c := range base62 {
		is[c] = true
	}
	return is
}()
