package stint_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stintdev/stint"
)

func TestKeyString(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 129)
	for _, c := range []struct {
		key  stint.Key
		want string
	}{
		{stint.Key{Subject: "user:42", Name: "search"}, "{user:42}:search"},
		{stint.Key{Subject: "a", Name: "b_c"}, "{a}:b_c"},
		{stint.Key{Subject: "a_b", Name: "c"}, "{a_b}:c"},
		{stint.Key{Subject: "ip:2001:db8::/64", Name: "GET /x"}, "{ip:2001:db8::/64}:GET%20/x"},
		{stint.Key{Subject: "{a}", Name: "100%"}, "{%7Ba%7D}:100%25"},
		{stint.Key{Subject: "Zoë", Name: "日本"}, "{Zoë}:日本"},
		{stint.Key{Subject: "\xff\n", Name: ""}, "{%FF%0A}:"},
		{stint.Key{Subject: "#1", Name: "a#1"}, "{%231}:a#1"},
		{stint.Key{Subject: long[:128], Name: "n"}, "{" + long[:128] + "}:n"},
		{stint.Key{Subject: long, Name: "n"}, "{#DsnrM-dFELzdHy6lUgboLyFknFwr7L8rQz60dbNMAb0}:n"},
	} {
		if got := c.key.String(); got != c.want {
			t.Errorf("%q is encoded as %s, want %s", c.key, got, c.want)
		}
	}
}

func TestKeyValidate(t *testing.T) {
	t.Parallel()
	if err := (stint.Key{Subject: "user:42"}).Validate(); err != nil {
		t.Errorf("a key without a name: %v", err)
	}
	for _, c := range []struct {
		key         stint.Key
		field, says string
	}{
		{stint.Key{Name: "n"}, "subject", "at least one"},
		{stint.Key{Subject: strings.Repeat("x", 10<<20)}, "subject", "4096 bytes, not 10485760"},
		{stint.Key{Subject: "\xff"}, "subject", "UTF-8"},
		{stint.Key{Subject: "a", Name: strings.Repeat("x", 4097)}, "name", "4096"},
		{stint.Key{Subject: "a", Name: "\xff"}, "name", "UTF-8"},
	} {
		var invalid *stint.InvalidError
		err := c.key.Validate()
		if !errors.As(err, &invalid) || invalid.Field != c.field || !strings.Contains(invalid.Want, c.says) {
			t.Errorf("%.20q: %.200v; want an error about %s that says %q", c.key, err, c.field, c.says)
		}
		if err != nil && len(err.Error()) > 400 {
			t.Errorf("%.20q: an error of %d bytes", c.key, len(err.Error()))
		}
	}
}

// decodePart is the inverse of the encoding of a part that was not hashed.
func decodePart(t *testing.T, s string) string {
	t.Helper()
	var out []byte
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			out = append(out, s[i])
			continue
		}
		hi := strings.IndexByte("0123456789ABCDEF", s[i+1])
		lo := strings.IndexByte("0123456789ABCDEF", s[i+2])
		if hi < 0 || lo < 0 {
			t.Fatalf("bad escape in %q", s)
		}
		out = append(out, byte(hi<<4|lo))
		i += 2
	}
	return string(out)
}

// FuzzKey decodes what was encoded: an encoding that can be undone is one that
// no other key has. Hashed parts are told apart by SHA-256, and from the others
// by a mark that those cannot begin with.
func FuzzKey(f *testing.F) {
	f.Add("a", "b_c")
	f.Add("a_b", "c")
	f.Add("{x}", "}:{")
	f.Add("%7B", "%")
	f.Add("#", "#")
	f.Add("\xff\x00 \n", "日本\xe6")
	f.Add(strings.Repeat("x", 128), strings.Repeat("y", 129))
	f.Fuzz(func(t *testing.T, subject, name string) {
		text := stint.Key{Subject: subject, Name: name}.String()
		if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' }) {
			t.Fatalf("%q is not printable", text)
		}
		// Redis hashes what stands between the first { and the first } after it.
		end := strings.IndexByte(text, '}')
		if text[0] != '{' || end < 0 || text[end+1] != ':' {
			t.Fatalf("%q has no hash tag", text)
		}
		for _, p := range [][2]string{{text[1:end], subject}, {text[end+2:], name}} {
			part, want := p[0], p[1]
			if hashed := strings.HasPrefix(part, "#"); hashed != (len(want) > 128) {
				t.Fatalf("%q of %d bytes is encoded as %q", want, len(want), part)
			} else if !hashed && decodePart(t, part) != want {
				t.Fatalf("%q is encoded as %q", want, part)
			}
		}
	})
}

func TestKeyAppend(t *testing.T) {
	t.Parallel()
	k := stint.Key{Subject: "user:42", Name: "search"}
	if got := k.Append([]byte("rl:")); !bytes.Equal(got, []byte("rl:{user:42}:search")) {
		t.Errorf("got %s", got)
	}
}
