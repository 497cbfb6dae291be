package identity_test

import (
	"encoding/base64"
	"errors"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stintdev/stint/identity"
)

// extractors are how services take a token from an Authorization header: the middlewares and
// tutorials of several languages.
var extractors = map[string]func(string) []string{
	"everything after seven bytes": func(h string) []string { return []string{h[min(len(h), 7):]} },
	"what follows the first space": func(h string) []string { _, token, _ := strings.Cut(h, " "); return []string{token} },
	"the second word":              func(h string) []string { return second(strings.Split(h, " ")) },
	"the second word, any space":   func(h string) []string { return second(strings.Fields(h)) },
	"the second word, as ISO 8859-1": func(h string) []string {
		return second(strings.FieldsFunc(h, func(r rune) bool { return r <= ' ' || r == 0x85 || r == 0xa0 || r == '\uFFFD' }))
	},
	"what follows Bearer": func(h string) []string { return []string{strings.ReplaceAll(h, "Bearer", "")} },
	"two words":           func(h string) []string { return second(append([]string{""}, words.FindStringSubmatch(h)...)[1:]) },
	"any of a list": func(h string) (all []string) {
		for part := range strings.SplitSeq(h, ",") {
			all = append(all, second(strings.Fields(part))...)
		}
		return all
	},
	"anything like a token": func(h string) []string { return tokens.FindAllString(h, -1) },
}

var (
	words  = regexp.MustCompile(`\S+\s+(\S+)`)
	tokens = regexp.MustCompile(`[\w-]+\.[\w-]+\.[\w-]+`)
)

func second(words []string) []string {
	if len(words) < 2 {
		return nil
	}
	return words[1:2]
}

// lenient returns the user that one of these services reads in the header. They decode
// signatures as Python and Node do: padding does not matter, and other letters are skipped.
func lenient(header string, key []byte) (user, reading string) {
	for name, read := range extractors {
		for _, token := range read(header) {
			parts := strings.Split(strings.TrimSpace(token), ".")
			if len(parts) != 3 {
				continue
			}
			signature := strings.Map(func(r rune) rune {
				if r < 0x80 && strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", r) {
					return r
				}
				return -1
			}, parts[2])
			sum, err := base64.RawURLEncoding.DecodeString(signature)
			if err != nil || jwt.SigningMethodHS256.Verify(parts[0]+"."+parts[1], sum, key) != nil {
				continue
			}
			said := jwt.MapClaims{}
			if _, _, err := jwt.NewParser().ParseUnverified(parts[0]+"."+parts[1]+".", said); err == nil {
				user, _ = said.GetSubject()
				return user, name
			}
		}
	}
	return "", ""
}

// dodges are headers in which services find a token, or may find one.
func dodges(token string) map[string]string {
	return map[string]string{
		"padded":             "Bearer " + token + "=",
		"padded twice":       "Bearer " + token + "==",
		"letters to skip":    "Bearer " + token + "!!!!",
		"a comma":            "Bearer " + token + ",",
		"something after it": "Bearer " + token + " x",
		"a tab":              "Bearer\t" + token,
		"a space and a tab":  "Bearer \t" + token,
		"a tab and a space":  "bEARER\t " + token,
		"a wide space":       "Bearer\xa0" + token,
		"a colon":            "Bearer: " + token,
		"no space":           "Bearer" + token,
		"no scheme":          token,
		"another scheme":     "Token " + token,
		"a proof":            "DPoP " + token,
		"a parameter":        `Bearer token="` + token + `"`,
		"another parameter":  `Token token="` + token + `"`,
		"a list":             "Basic YTpi, Bearer " + token,
		"a list of tokens":   "Bearer " + token + ", Bearer " + token,
		"a short list":       "Basic YTpi,bearer " + token,
		"Bearer twice":       "Bearer Bearer " + token,
		"an opaque token":    "Bearer 2YotnFZFEjr1zCsicMWpAA",
		"opaque, and a tab":  "Bearer\t2YotnFZFEjr1zCsicMWpAA",
		"in pieces":          "Bearer " + token[:20] + " " + token[20:],
	}
}

// TestHiddenTokens sends tokens in ways that other services accept, or may accept: whoever
// does so is never counted as someone without a token.
func TestHiddenTokens(t *testing.T) {
	t.Parallel()
	hs := newSigner(t, "HS256")
	token := hs.sign(t, claims{"sub": "ann"})
	strict := open(t, identity.Options{JWT: hs.options(t)})
	o := hs.options(t)
	o.IgnoreBad = true
	ignoring := open(t, identity.Options{JWT: o})
	read := 0
	for name, header := range dodges(token) {
		if user, _ := lenient(header, hs.key.([]byte)); user == "ann" {
			read++
		}
		q := from(client, "Authorization", header)
		if why := refused(t, strict, q).Reason; why < identity.TokenScheme || why > identity.TokenClaims {
			t.Errorf("%s: %v", name, why)
		}
		if s := resolve(t, ignoring, q); !s.BadToken || s.Unaccepted == identity.NoReason || s.User != "" {
			t.Errorf("%s is not marked: %+v", name, s)
		}
	}
	if read < 15 {
		t.Errorf("services read %d of the headers, want most", read)
	}
	// What HTTP/2 does not trim, the next hop does.
	for _, header := range []string{" Bearer " + token, "\tbearer   " + token + " \t"} {
		if s := resolve(t, strict, from(client, "Authorization", header)); s.User != "ann" {
			t.Errorf("%q: %+v", header, s)
		}
	}
	for _, header := range []string{
		"", " ", "Bearer", "bearer ", "Basic YTpi", "Basic " + base64.StdEncoding.EncodeToString([]byte("bearer:"+token)), "Negotiate YIIZmgYGKw==",
		`Digest username="bearer", realm="a.example.com.au", uri="/eyes/eyx.b.c", qop=auth`,
		"AWS4-HMAC-SHA256 Credential=AKIA/20260101/eu-west-1/s3/aws4_request, SignedHeaders=host;range, Signature=fe5f80",
		"forbearer x", "Bearers x",
	} {
		if s := resolve(t, strict, from(client, "Authorization", header)); s.BadToken || s.Source != identity.ByIP || s.Unaccepted != identity.NoReason {
			t.Errorf("%q: %+v", header, s)
		}
	}
	// Where no tokens are read, nothing is.
	for _, r := range []*identity.Resolver{open(t, identity.Options{}), open(t, identity.Options{Methods: []identity.Source{}, JWT: hs.options(t)})} {
		if s := resolve(t, r, from(client, "Authorization", "Bearer\t"+token)); s.BadToken || s.Unaccepted != identity.NoReason {
			t.Errorf("%+v", s)
		}
	}
}

// TestHiddenKeys sends API keys as bearer tokens, in other forms.
func TestHiddenKeys(t *testing.T) {
	t.Parallel()
	d := &directory{}
	key := d.add(t, "", identity.Key{User: "ann"})
	r := open(t, identity.Options{Directory: d, KeyBearer: true})
	for _, header := range []string{"Bearer\t" + key, key, "Token " + key, "Basic YTpi, Bearer " + key, "Bearer " + key + "="} {
		if why := refused(t, r, from(client, "Authorization", header)).Reason; why != identity.KeyInvalid {
			t.Errorf("%q: %v", header, why)
		}
	}
	if s := resolve(t, r, from(client, "Authorization", "Bearer another-system")); s.Source != identity.ByIP {
		t.Errorf("%+v", s)
	}
}

// FuzzAuthorization looks for a header in which a lenient service finds a user, and Stint
// finds no one.
func FuzzAuthorization(f *testing.F) {
	hs := newSigner(f, "HS256")
	hs.key = []byte(strings.Repeat("k", 32)) // or what was found before would mean nothing
	token := hs.sign(f, claims{"sub": "ann"})
	r := open(f, identity.Options{JWT: hs.options(f)})
	for _, header := range dodges(token) {
		f.Add(header)
	}
	f.Add("Bearer " + token)
	f.Fuzz(func(t *testing.T, header string) {
		var s identity.Subject
		err := r.Resolve(t.Context(), &identity.Request{Peer: netip.MustParseAddr("192.0.2.1"), Headers: map[string][]string{"Authorization": {header}}}, start, &s)
		if refused := new(identity.RefusedError); errors.As(err, &refused) || s.User == "ann" {
			return
		}
		if user, reading := lenient(header, hs.key.([]byte)); user != "" {
			t.Errorf("%q is anonymous, but a service that reads %s finds %s", header, reading, user)
		}
	})
}
