package identity_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stintdev/stint/identity"
)

func TestClientAddress(t *testing.T) {
	t.Parallel()
	const xff, rfc, single = "X-Forwarded-For", "Forwarded", "X-Real-Ip"
	many := strings.Repeat("10.0.0.2, ", 63) + "10.0.0.3"
	for name, c := range map[string]struct {
		header   string
		depth    int // 0: by networks
		peer     string
		lines    []string
		want     string
		distrust bool
	}{
		"nothing forwarded":    {header: xff, peer: "10.0.0.1", want: "10.0.0.1"},
		"no proxy":             {header: xff, peer: "198.51.100.7", want: "198.51.100.7", distrust: true},
		"one hop":              {header: xff, peer: "10.0.0.1", lines: []string{"198.51.100.7"}, want: "198.51.100.7"},
		"two hops":             {header: xff, peer: "10.0.0.1", lines: []string{"198.51.100.7, 10.0.0.2"}, want: "198.51.100.7"},
		"without spaces":       {header: xff, peer: "10.0.0.1", lines: []string{"198.51.100.7,10.0.0.2"}, want: "198.51.100.7"},
		"tabs":                 {header: xff, peer: "10.0.0.1", lines: []string{"198.51.100.7\t,\t10.0.0.2 "}, want: "198.51.100.7"},
		"several lines":        {header: xff, peer: "10.0.0.1", lines: []string{"192.0.2.1", "198.51.100.7", "10.0.0.2"}, want: "198.51.100.7"},
		"empty elements":       {header: xff, peer: "10.0.0.1", lines: []string{"198.51.100.7,, ,", "", ","}, want: "198.51.100.7"},
		"all are proxies":      {header: xff, peer: "10.0.0.1", lines: []string{"10.0.0.3, 10.0.0.2"}, want: "10.0.0.3"},
		"port":                 {header: xff, peer: "10.0.0.1", lines: []string{"198.51.100.7:4711, 10.0.0.2:80"}, want: "198.51.100.7"},
		"IPv6":                 {header: xff, peer: "fd00::1", lines: []string{"2001:db8::1, fd00::2"}, want: "2001:db8::1"},
		"IPv6 in brackets":     {header: xff, peer: "fd00::1", lines: []string{"[2001:db8::1], [fd00::2]:443"}, want: "2001:db8::1"},
		"IPv6, long form":      {header: xff, peer: "fd00::1", lines: []string{"2001:0DB8:0:0:0:0:0:1"}, want: "2001:db8::1"},
		"zone":                 {header: xff, peer: "fd00::1", lines: []string{"fe80::1%eth0"}, want: "fe80::1"},
		"zone of the peer":     {header: xff, peer: "fe80::1%eth0", want: "fe80::1", distrust: true},
		"mapped peer":          {header: xff, peer: "::ffff:10.0.0.1", lines: []string{"::ffff:198.51.100.7"}, want: "198.51.100.7"},
		"NAT64":                {header: xff, peer: "64:ff9b::198.51.100.7", want: "198.51.100.7", distrust: true},
		"NAT64 of private":     {header: xff, peer: "64:ff9b::10.0.0.1", lines: []string{"1.2.3.4"}, want: "64:ff9b::a00:1", distrust: true},
		"NAT64 of loopback":    {header: xff, peer: "10.0.0.1", lines: []string{"64:ff9b::127.0.0.1"}, want: "64:ff9b::7f00:1"},
		"other NAT64 prefix":   {header: xff, peer: "64:ff9b:1::198.51.100.7", want: "64:ff9b:1::c633:6407", distrust: true},
		"6to4":                 {header: xff, peer: "2002:c633:6407::1", want: "2002:c633:6407::1", distrust: true},
		"Teredo":               {header: xff, peer: "2001:0:4136:e378:8000:63bf:39cc:9bf8", want: "2001:0:4136:e378:8000:63bf:39cc:9bf8", distrust: true},
		"64 hops":              {header: xff, peer: "10.0.0.1", lines: []string{"198.51.100.7, " + many[:len(many)-len("10.0.0.2, ")]}, want: "198.51.100.7"},
		"65 hops":              {header: xff, peer: "10.0.0.1", lines: []string{"198.51.100.7, " + many}, want: "10.0.0.2"},
		"only this header":     {header: rfc, peer: "10.0.0.1", lines: nil, want: "10.0.0.1"},
		"garbage":              {header: xff, peer: "10.0.0.1", lines: []string{"192.0.2.1, garbage, 10.0.0.2"}, want: "10.0.0.2"},
		"garbage at the end":   {header: xff, peer: "10.0.0.1", lines: []string{"192.0.2.1, garbage"}, want: "10.0.0.1"},
		"depth 1":              {header: xff, depth: 1, peer: "203.0.113.1", lines: []string{"192.0.2.1, 198.51.100.7"}, want: "198.51.100.7"},
		"depth 2":              {header: xff, depth: 2, peer: "203.0.113.1", lines: []string{"192.0.2.1, 198.51.100.7, 203.0.113.2"}, want: "198.51.100.7"},
		"depth and lines":      {header: xff, depth: 2, peer: "203.0.113.1", lines: []string{"192.0.2.1", "198.51.100.7", "203.0.113.2"}, want: "198.51.100.7"},
		"deeper than the list": {header: xff, depth: 3, peer: "203.0.113.1", lines: []string{"198.51.100.7"}, want: "198.51.100.7"},
		"depth and garbage":    {header: xff, depth: 3, peer: "203.0.113.1", lines: []string{"192.0.2.1, x, 203.0.113.2"}, want: "203.0.113.2"},
		"real":                 {header: single, peer: "10.0.0.1", lines: []string{"198.51.100.7"}, want: "198.51.100.7"},
		"real is a list":       {header: single, peer: "10.0.0.1", lines: []string{"192.0.2.1, 198.51.100.7"}, want: "10.0.0.1"},
		"real twice":           {header: single, peer: "10.0.0.1", lines: []string{"192.0.2.1", "198.51.100.7"}, want: "10.0.0.1"},
		"real by anyone":       {header: single, peer: "203.0.113.1", lines: []string{"192.0.2.1"}, want: "203.0.113.1", distrust: true},
		"endless zone":         {header: xff, peer: "10.0.0.1", lines: []string{"fe80::1%" + strings.Repeat("a", 200)}, want: "10.0.0.1"},
		"any other":            {header: "CF-Connecting-IP", peer: "10.0.0.1", lines: []string{"2001:db8::1"}, want: "2001:db8::1"},
		"Forwarded":            {header: rfc, peer: "10.0.0.1", lines: []string{`for=198.51.100.7`}, want: "198.51.100.7"},
		"parameters":           {header: rfc, peer: "10.0.0.1", lines: []string{`proto=https;FOR=198.51.100.7;by=10.0.0.1`}, want: "198.51.100.7"},
		"spaces":               {header: rfc, peer: "10.0.0.1", lines: []string{`proto=https; For="198.51.100.7" ; by=10.0.0.1 , for=10.0.0.2`}, want: "198.51.100.7"},
		"quoted IPv6":          {header: rfc, peer: "10.0.0.1", lines: []string{`for="[2001:db8::1]:4711", for="10.0.0.2:80"`}, want: "2001:db8::1"},
		"obfuscated port":      {header: rfc, peer: "10.0.0.1", lines: []string{`for="198.51.100.7:_x.y"`}, want: "198.51.100.7"},
		"quoted comma":         {header: rfc, peer: "10.0.0.1", lines: []string{`for=198.51.100.7;secret="a, for=1.1.1.1;b\", for=1.2.3.4"`}, want: "198.51.100.7"},
		"quoted semicolon":     {header: rfc, peer: "10.0.0.1", lines: []string{`host="a;for=1.1.1.1";for=198.51.100.7`}, want: "198.51.100.7"},
		"Forwarded lines":      {header: rfc, peer: "10.0.0.1", lines: []string{`for=192.0.2.1`, `for=198.51.100.7`, `for=10.0.0.2`}, want: "198.51.100.7"},
		"unknown":              {header: rfc, peer: "10.0.0.1", lines: []string{`for=192.0.2.1, for=unknown, for=10.0.0.2`}, want: "10.0.0.2"},
		"hidden":               {header: rfc, peer: "10.0.0.1", lines: []string{`for=192.0.2.1, for=_hidden`}, want: "10.0.0.1"},
		"without for":          {header: rfc, peer: "10.0.0.1", lines: []string{`for=192.0.2.1, by=10.0.0.2`}, want: "10.0.0.1"},
		"for twice":            {header: rfc, peer: "10.0.0.1", lines: []string{`for=192.0.2.1;for=198.51.100.7`}, want: "10.0.0.1"},
		"for twice, empty":     {header: rfc, peer: "10.0.0.1", lines: []string{`for="";for=198.51.100.7`}, want: "10.0.0.1"},
		"escaped":              {header: rfc, peer: "10.0.0.1", lines: []string{`for="198.51.100.\7"`}, want: "10.0.0.1"},
		"after the quote":      {header: rfc, peer: "10.0.0.1", lines: []string{`for="198.51.100.7"x`}, want: "10.0.0.1"},
		"word":                 {header: rfc, peer: "10.0.0.1", lines: []string{`198.51.100.7`}, want: "10.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := identity.Options{ForwardedHeader: c.header, TrustedDepth: c.depth}
			if c.depth == 0 {
				o.TrustedProxies = inside
			}
			q := from(netip.MustParseAddr(c.peer), "X-Forwarded-Proto", "https")
			for other := range map[string]bool{xff: true, rfc: true, single: true} {
				if other != c.header {
					q.Headers[other] = []string{"for=192.0.2.99", "192.0.2.99"}
				}
			}
			q.Headers[canonicalName(c.header)] = c.lines
			s := resolve(t, open(t, o), q)
			if s.IP.String() != c.want || s.Trusted == c.distrust {
				t.Errorf("got %s, trusted %v; want %s", s.IP, s.Trusted, c.want)
			}
		})
	}
}

func canonicalName(header string) string {
	for name := range from(client, header, "").Headers {
		return name
	}
	return ""
}

// TestSpoofedAddress has what attackers put into headers, in front of what the proxy
// adds to it, which is their own address.
func TestSpoofedAddress(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ xff, rfc []string }{
		"loopback":           {[]string{"127.0.0.1"}, []string{"for=127.0.0.1"}},
		"a proxy":            {[]string{"10.0.0.2"}, []string{"for=10.0.0.2"}},
		"many proxies":       {[]string{"192.0.2.1, 10.0.0.2, 10.0.0.3"}, []string{"for=192.0.2.1, for=10.0.0.2"}},
		"many lines":         {slices.Repeat([]string{"192.0.2.1"}, 1000), slices.Repeat([]string{"for=192.0.2.1"}, 1000)},
		"mapped":             {[]string{"::ffff:127.0.0.1"}, []string{`for="[::ffff:127.0.0.1]"`}},
		"port":               {[]string{"127.0.0.1:80"}, []string{`for="127.0.0.1:80"`}},
		"zone":               {[]string{"::1%lo"}, []string{`for="[::1%lo]"`}},
		"unicode digits":     {[]string{"\u0661\u0662\u0667.0.0.1"}, []string{"for=\uff11\uff10.0.0.1"}},
		"unicode comma":      {[]string{"127.0.0.1\uff0c"}, []string{"for=127.0.0.1\uff0c"}},
		"octal":              {[]string{"0177.0.0.1"}, []string{"for=0177.0.0.1"}},
		"number":             {[]string{"2130706433"}, []string{"for=2130706433"}},
		"open quote":         {[]string{`"`}, []string{`for="`}},
		"open quote, comma":  {[]string{`"127.0.0.1,`}, []string{`for="127.0.0.1,`}},
		"escaped quote":      {[]string{`\"`}, []string{`for="\`}},
		"many quotes":        {[]string{strings.Repeat(`"`, 999)}, []string{strings.Repeat(`"`, 999)}},
		"many backslashes":   {[]string{strings.Repeat(`\`, 999)}, []string{`"` + strings.Repeat(`\`, 999)}},
		"trailing comma":     {[]string{"127.0.0.1,"}, []string{"for=127.0.0.1,"}},
		"trailing semicolon": {[]string{"127.0.0.1;"}, []string{"for=127.0.0.1;"}},
		"obfuscated":         {[]string{"_hidden"}, []string{"for=_hidden"}},
		"line break":         {[]string{"127.0.0.1\r\nX-Forwarded-For: 127.0.0.1"}, []string{"for=127.0.0.1\r\nForwarded: for=127.0.0.1"}},
		"null":               {[]string{"127.0.0.1\x00"}, []string{"for=127.0.0.1\x00"}},
		"a megabyte":         {[]string{strings.Repeat("127.0.0.1, ", 1<<17)}, []string{strings.Repeat("for=127.0.0.1, ", 1<<17)}},
		"a megabyte of x":    {[]string{strings.Repeat("x", 1<<20)}, []string{strings.Repeat("x", 1<<20)}},
		"commas":             {[]string{strings.Repeat(",", 1<<20)}, []string{strings.Repeat(",", 1<<20)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			banned, err := identity.NewList([]identity.Entry{{Value: client.String()}})
			if err != nil {
				t.Fatal(err)
			}
			for header, sent := range map[string][]string{"X-Forwarded-For": c.xff, "Forwarded": c.rfc} {
				own := client.String()
				if header == "Forwarded" {
					own = "for=" + own
				}
				joined := slices.Clone(sent)
				joined[len(joined)-1] += ", " + own
				for way, lines := range map[string][]string{"joined": joined, "a line": append(slices.Clone(sent), own)} {
					for _, o := range []identity.Options{{TrustedProxies: inside}, {TrustedDepth: 1}} {
						o.ForwardedHeader, o.Lists.Banned = header, banned
						q := from(proxy)
						q.Headers[header] = lines
						if s := resolve(t, open(t, o), q); s.IP != client || s.Banned == nil {
							t.Errorf("%s, %s, depth %d: %s", header, way, o.TrustedDepth, s.IP)
						}
					}
				}
				// Without a proxy, it is as if they had sent nothing.
				q := from(client)
				q.Headers[header] = sent
				s := resolve(t, open(t, identity.Options{TrustedProxies: inside, ForwardedHeader: header}), q)
				if s.IP != client || s.Trusted {
					t.Errorf("%s, no proxy: %s", header, s.IP)
				}
			}
		})
	}
}

// TestCut has headers that are longer than what is looked at: what is cut off is not
// taken for an address.
func TestCut(t *testing.T) {
	t.Parallel()
	r := open(t, identity.Options{TrustedDepth: 64})
	for n := 8<<10 - 30; n < 8<<10+30; n++ {
		right := strings.Repeat(" ", n-len(",10.0.0.2")) + ",10.0.0.2"
		s := resolve(t, r, from(proxy, "X-Forwarded-For", "198.51.100.123"+right))
		want := "10.0.0.2"
		if n+len("198.51.100.123") <= 8<<10 {
			want = "198.51.100.123"
		}
		if s.IP.String() != want {
			t.Fatalf("with %d bytes to the right: %s, want %s", n, s.IP, want)
		}
	}
}

func TestCounted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		bits       int
		peer, want string
	}{
		{0, "198.51.100.7", "198.51.100.7/32"},
		{0, "::ffff:198.51.100.7", "198.51.100.7/32"},
		{0, "64:ff9b::198.51.100.7", "198.51.100.7/32"},
		{0, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
		{0, "fe80::1%eth0", "fe80::/64"},
		{48, "2001:db8:1:2:3:4:5:6", "2001:db8:1::/48"},
		{56, "198.51.100.7", "198.51.100.7/32"},
		{128, "2001:db8::1", "2001:db8::1/128"},
	} {
		r := open(t, identity.Options{IPv6Prefix: c.bits})
		if s := resolve(t, r, from(netip.MustParseAddr(c.peer))); s.Net.String() != c.want {
			t.Errorf("%s by %d: %s, want %s", c.peer, c.bits, s.Net, c.want)
		}
	}
	// A door may know no address.
	list, err := identity.NewList([]identity.Entry{{Value: "::/0"}, {Value: "0.0.0.0/0"}})
	if err != nil {
		t.Fatal(err)
	}
	r := open(t, identity.Options{TrustedProxies: inside, Lists: identity.Lists{Exempt: list, Banned: list}})
	if s := resolve(t, r, from(netip.Addr{}, "X-Forwarded-For", "127.0.0.1")); s.IP.IsValid() || s.Net.IsValid() || s.Trusted || s.Exempt != nil || s.Banned != nil {
		t.Errorf("%+v", s)
	}
}

var headers = []string{
	"198.51.100.7", "192.0.2.1, 198.51.100.7, 10.0.0.2", "198.51.100.7:80, [fd00::1]:443", "fe80::1%eth0", "::ffff:127.0.0.1",
	"64:ff9b::127.0.0.1", "127.0.0.1, garbage, 10.0.0.2", ",,,", "10.0.0.1\n10.0.0.2", "\u0661.1.1.1", "010.0.0.1", "1.2.3.4.5", "[::1", "::1]:80",
	"[10.0.0.1]", "10.0.0.1%eth0", "1.1.1.1:65536, 10.0.0.1:", strings.Repeat("10.0.0.1,", 1<<17), strings.Repeat("1", 1<<20),
	`for=198.51.100.7`, `for="[2001:db8::1]:_x";proto=https, for=10.0.0.2`, `for="127.0.0.1, for=198.51.100.7`, `for=unknown, for=_hidden`,
	`for="\"127.0.0.1\"", for=10.0.0.2;by="a,b;for=127.0.0.1"`, `For=10.0.0.2;for=127.0.0.1`, `for=127.0.0.1;`, `="`, `for`, `for=`,
	strings.Repeat(`"`, 1<<20), strings.Repeat(`for="\",`, 1<<17),
}

func FuzzForwardedFor(f *testing.F) { fuzzAddress(f, "X-Forwarded-For") }

func FuzzForwarded(f *testing.F) { fuzzAddress(f, "Forwarded") }

// fuzzAddress checks that the client is the peer, or an address that stands in the
// header with nothing but trusted addresses to its right, and that a client cannot
// change what the proxies say. Lines are apart by a line break.
func fuzzAddress(f *testing.F, header string) {
	f.Helper()
	r := open(f, identity.Options{TrustedProxies: inside, ForwardedHeader: header})
	plain := open(f, identity.Options{ForwardedHeader: header})
	for _, h := range headers {
		f.Add(h)
	}
	f.Fuzz(func(t *testing.T, text string) {
		q := from(proxy)
		q.Headers[header] = strings.Split(text, "\n")
		if s := resolve(t, plain, q); s.IP != proxy || s.Trusted {
			t.Fatalf("%q: a peer that is not trusted is %s", text, s.IP)
		}
		// Whatever a client sends, what the proxies add to it counts.
		for _, added := range []string{", 198.51.100.7", ",198.51.100.7:80,10.0.0.2 , 10.0.0.3"} {
			if header == "Forwarded" {
				added = strings.NewReplacer(",", ",for=", ":80", "", " ", "").Replace(added) + `;host="a,\"b"`
			}
			lines := strings.Split(text+added, "\n")
			if s := resolve(t, r, &identity.Request{Peer: proxy, Headers: map[string][]string{header: lines}}); s.IP != client {
				t.Fatalf("%q: with %q added, the client is %s", text, added, s.IP)
			}
		}
		s := resolve(t, r, q)
		if s.IP == proxy {
			return
		}
		trusted := func(a netip.Addr) bool {
			return slices.ContainsFunc(inside, func(p netip.Prefix) bool { return p.Contains(a) })
		}
		// Whatever the form is, addresses consist of these letters.
		words := strings.FieldsFunc(text, func(c rune) bool {
			return !strings.ContainsRune("0123456789abcdefABCDEF.:%", c)
		})
		for _, w := range slices.Backward(words) {
			for _, a := range readings(w) {
				if a == s.IP {
					return
				}
			}
			if all := readings(w); len(all) > 0 && !slices.ContainsFunc(all, trusted) && !quoted(text) {
				t.Fatalf("%q: %s stands to the left of %s, which is not trusted", text, s.IP, w)
			}
		}
		t.Fatalf("%q: %s does not stand in it", text, s.IP)
	})
}

// quoted says that addresses may stand where they mean nothing.
func quoted(text string) bool { return strings.ContainsAny(text, `"=;%[]_`) }

// readings are the addresses that a word may be, with a port or without.
func readings(w string) (out []netip.Addr) {
	w, _, _ = strings.Cut(w, "%")
	for _, text := range []string{w, strings.Trim(w, ":"), w[:max(strings.LastIndexByte(w, ':'), 0)]} {
		a, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		a = a.Unmap()
		out = append(out, a)
		if b := a.As16(); netip.MustParsePrefix("64:ff9b::/96").Contains(a) {
			out = append(out, netip.AddrFrom4([4]byte(b[12:])))
		}
	}
	return out
}
