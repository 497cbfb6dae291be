package identity_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stintdev/stint/identity"
)

func TestGenerateKey(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^acme_live_([0-9A-Za-z]{16})_([0-9A-Za-z]{32})$`)
	counts := map[byte]int{}
	for range 500 {
		text, k, err := identity.GenerateKey(rand.Reader, "acme_live", pepper)
		if err != nil {
			t.Fatal(err)
		}
		m := form.FindStringSubmatch(text)
		if m == nil || m[1] != k.ID {
			t.Fatalf("%s has not the form, with the id %s", text, k.ID)
		}
		for _, c := range []byte(m[1] + m[2]) {
			counts[c]++
		}
		h := hmac.New(sha256.New, []byte(pepper))
		h.Write([]byte(m[2]))
		if !bytes.Equal(h.Sum(nil), k.Hash[:]) || k.Hashing != identity.HMAC {
			t.Fatalf("%s is hashed as %x by %v", m[2], k.Hash, k.Hashing)
		}
	}
	for c, n := range counts { // 24,000 letters: 387 of each, within six deviations
		if n < 270 || n > 505 {
			t.Errorf("%d times %q", n, c)
		}
	}
	if len(counts) != 62 {
		t.Errorf("%d letters, want 62", len(counts))
	}

	sum, how := identity.HashSecret("secret", "")
	if sum != sha256.Sum256([]byte("secret")) || how != identity.SHA256 {
		t.Errorf("%x by %v", sum, how)
	}
	if _, _, err := identity.GenerateKey(rand.Reader, "a-b", ""); err == nil || !strings.Contains(err.Error(), `prefix "a-b": want 1 to 32`) {
		t.Error(err)
	}
	if _, _, err := identity.GenerateKey(iotest.ErrReader(io.ErrClosedPipe), "a", ""); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	// Bytes that would favour some letters are not used.
	random := io.MultiReader(bytes.NewReader([]byte{255, 248, 0}), rand.Reader)
	if text, _, err := identity.GenerateKey(random, "a", ""); err != nil || !strings.HasPrefix(text, "a_0") {
		t.Error(text, err)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	d := &directory{}
	mine := d.add(t, "", identity.Key{User: "mine"})
	peppered := d.add(t, pepper, identity.Key{User: "peppered"})
	other := d.add(t, "", identity.Key{User: "other"})
	disabled := d.add(t, "", identity.Key{Disabled: true})
	revoked := d.add(t, "", identity.Key{Revoked: start, Expires: start, Disabled: true})
	expired := d.add(t, "", identity.Key{Expires: start})
	soon := d.add(t, "", identity.Key{User: "soon", Expires: start.Add(1), Revoked: start.Add(time.Hour)})
	r := open(t, identity.Options{Directory: d, Pepper: pepper, KeyBearer: true})
	id := func(text string) string { return strings.Split(text, "_")[1] }
	secret := func(text string) string { return strings.Split(text, "_")[2] }

	for text, user := range map[string]string{mine: "mine", peppered: "peppered", soon: "soon"} {
		if s := resolve(t, r, from(client, "X-API-Key", text)); s.User != user || s.Key != id(text) {
			t.Errorf("%s is %+v", user, s)
		}
	}
	for name, c := range map[string]struct {
		text string
		want identity.Reason
	}{
		"unknown":              {"stint_" + strings.Repeat("a", 16) + "_" + secret(mine), identity.KeyInvalid},
		"wrong secret":         {"stint_" + id(mine) + "_" + strings.Repeat("a", 32), identity.KeyInvalid},
		"other key's secret":   {"stint_" + id(mine) + "_" + secret(other), identity.KeyInvalid},
		"shorter":              {mine[:len(mine)-1], identity.KeyInvalid},
		"longer":               {mine + "a", identity.KeyInvalid},
		"wrong prefix":         {"other_" + id(mine) + "_" + secret(mine), identity.KeyInvalid},
		"prefix in capitals":   {strings.Replace(mine, "stint", "STINT", 1), identity.KeyInvalid},
		"no prefix":            {id(mine) + "_" + secret(mine), identity.KeyInvalid},
		"prefix alone":         {"stint_", identity.KeyInvalid},
		"no secret":            {"stint_" + id(mine), identity.KeyInvalid},
		"empty secret":         {"stint_" + id(mine) + "_", identity.KeyInvalid},
		"short id":             {"stint_abcdefg_" + secret(mine), identity.KeyInvalid},
		"long id":              {"stint_" + strings.Repeat("a", 65) + "_" + secret(mine), identity.KeyInvalid},
		"short secret":         {"stint_" + id(mine) + "_" + secret(mine)[:26], identity.KeyInvalid},
		"long secret":          {"stint_" + id(mine) + "_" + strings.Repeat("a", 129), identity.KeyInvalid},
		"a megabyte":           {"stint_" + id(mine) + "_" + strings.Repeat("a", 1<<20), identity.KeyInvalid},
		"a megabyte of dashes": {strings.Repeat("_", 1<<20), identity.KeyInvalid},
		"unicode":              {strings.Replace(mine, id(mine)[:1], "\uff41", 1), identity.KeyInvalid},
		"unicode underscore":   {strings.ReplaceAll(mine, "_", "\uff3f"), identity.KeyInvalid},
		"null":                 {mine + "\x00", identity.KeyInvalid},
		"space":                {" " + mine, identity.KeyInvalid},
		"two in one":           {mine + ", " + other, identity.KeyInvalid},
		"case of the secret":   {"stint_" + id(mine) + "_" + swapCase(secret(mine)), identity.KeyInvalid},
		"disabled":             {disabled, identity.KeyDisabled},
		"revoked":              {revoked, identity.KeyRevoked},
		"expired":              {expired, identity.KeyExpired},
		"revoked, no secret":   {"stint_" + id(revoked) + "_" + secret(mine), identity.KeyInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := refused(t, r, from(client, "X-API-Key", c.text))
			if e.Reason != c.want {
				t.Errorf("%v, want %v", e, c.want)
			}
			if (e.Key != "") != (c.want != identity.KeyInvalid) {
				t.Errorf("it tells of the key %q", e.Key)
			}
			if strings.HasPrefix(c.text, "stint_") {
				if e := refused(t, r, from(client, "Authorization", "Bearer "+c.text)); e.Reason != c.want {
					t.Errorf("as a bearer: %v, want %v", e, c.want)
				}
			}
		})
	}
	if e := refused(t, r, from(client, "X-API-Key", mine, "X-API-Key", other)); e.Reason != identity.Ambiguous {
		t.Error(e)
	}
	if e := refused(t, r, from(client, "Authorization", "Bearer "+mine, "Authorization", "Bearer "+other)); e.Reason != identity.Ambiguous {
		t.Error(e)
	}

	var s identity.Subject
	err := r.Resolve(t.Context(), from(client, "X-API-Key", "stint_brokenbroken_"+secret(mine)), start, &s)
	if !errors.Is(err, errBroken) || errors.As(err, new(*identity.RefusedError)) {
		t.Errorf("a broken directory: %v", err)
	}
	// Without the pepper nothing can be said of a key that needs it.
	bare := open(t, identity.Options{Directory: d})
	if e := refused(t, bare, from(client, "X-API-Key", peppered)); e.Reason != identity.KeyUncheckable {
		t.Error(e)
	}
	if s := resolve(t, bare, from(client, "Authorization", "Bearer "+mine)); s.Source != identity.ByIP {
		t.Errorf("a key as bearer is accepted and not asked for: %+v", s)
	}
	// With another one, it is wrong.
	wrong := open(t, identity.Options{Directory: d, Pepper: pepper + "!", KeyHeader: "x-token"})
	if e := refused(t, wrong, from(client, "X-Token", peppered)); e.Reason != identity.KeyInvalid {
		t.Error(e)
	}
}

func swapCase(s string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' {
			return c - 'a' + 'A'
		}
		if c >= 'A' && c <= 'Z' {
			return c - 'A' + 'a'
		}
		return c
	}, s)
}

func FuzzAPIKey(f *testing.F) {
	d := &directory{}
	mine := d.add(f, "", identity.Key{User: "mine"})
	peppered := d.add(f, pepper, identity.Key{User: "peppered"})
	r := open(f, identity.Options{Directory: d, Pepper: pepper})
	for _, seed := range []string{
		mine, peppered, mine + "a", mine[1:], "stint__", "stint_a_b", "_", "stint_" + peppered, strings.ToUpper(mine),
		strings.Repeat("stint_", 1<<17), strings.Repeat("a", 1<<20), "stint_" + strings.Repeat("a", 64) + "_" + strings.Repeat("b", 128),
		"stint_' OR 1=1 --_x", "stint_\u0661\u0662_\u0663", "\xff\xfe", mine + "\x00", mine + " ", strings.Replace(mine, "_", "\u005f\u0332", 1),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var s identity.Subject
		err := r.Resolve(t.Context(), from(client, "X-API-Key", text), start, &s)
		accepted := err == nil && s.Source == identity.ByKey
		if accepted != (text == mine || text == peppered) {
			t.Fatalf("%q: %+v, %v", text, s, err)
		}
		if text != "" && !accepted {
			if e := new(identity.RefusedError); !errors.As(err, &e) || len(e.Error()) > 200 {
				t.Fatalf("%q is not refused: %v", text, err)
			}
		}
	})
}
