package identity

import (
	"net/netip"
	"strings"

	"github.com/stintdev/stint/internal/kit/network"
)

const (
	maxHops   = 64
	maxHeader = 8 << 10 // bytes that are read, from the right
)

// proxies finds the client's address.
type proxies struct {
	trusted network.Table[struct{}]
	depth   int // 0 if trusted networks are set
	header  string
	last    func(list string) int               // where the last element begins, less one
	node    func(element string) (string, bool) // the address in an element
}

func newProxies(o *Options, p *problems) *proxies {
	x := &proxies{depth: o.TrustedDepth, header: p.header("ForwardedHeader", o.ForwardedHeader)}
	switch x.header {
	case "":
		x.header = "X-Forwarded-For"
		fallthrough
	case "X-Forwarded-For":
		x.last, x.node = lastComma, whole
	case "Forwarded":
		x.last, x.node = lastUnquotedComma, forParameter
	default:
		// The header holds one address, so there are no elements.
	}
	if x.depth < 0 || x.depth > maxHops {
		p.add("TrustedDepth", x.depth, "0 to 64")
	}
	if x.depth > 0 && len(o.TrustedProxies) > 0 {
		p.add("TrustedDepth", x.depth, "either a depth or trusted proxies")
	}
	trusted := map[netip.Prefix]struct{}{}
	for _, t := range o.TrustedProxies {
		want := network.Check(t)
		if want == "" && t.Bits() == 0 {
			want = "the networks of the proxies: anyone could name any address"
		}
		if want != "" {
			p.add("TrustedProxies", t, want)
			continue
		}
		trusted[t] = struct{}{}
	}
	x.trusted = network.NewTable(trusted)
	return x
}

func (x *proxies) trusts(a netip.Addr) bool { return x.trusted.Smallest(a) != nil }

// peer reports whether the headers of a peer may be used.
func (x *proxies) peer(a netip.Addr) bool { return x.depth > 0 || x.trusts(a) }

// client returns the address of the client, and whether the peer is trusted. The walk
// begins at the peer and goes left as long as the writer of an address is trusted. An
// element that cannot be parsed ends it, because the writer of those to its left is unknown.
func (x *proxies) client(q *Request) (client netip.Addr, trusted bool) {
	client = canonical(q.Peer)
	if !x.peer(client) {
		return client, false
	}
	lines := q.Headers[x.header]
	if x.last == nil {
		if len(lines) == 1 {
			if a, ok := parseNode(lines[0]); ok {
				client = a
			}
		}
		return client, true
	}
	hops := maxHops
	if x.depth > 0 {
		hops = x.depth
	}
	w := walk{lines: lines, left: maxHeader}
	for range hops {
		text, ok := w.next(x.last)
		if !ok {
			break
		}
		if text, ok = x.node(text); !ok {
			break
		}
		a, ok := parseNode(text)
		if !ok {
			break
		}
		client = a
		if x.depth == 0 && !x.trusts(a) {
			break
		}
	}
	return client, true
}

// walk goes through the elements of a list, which may be in several lines, from the
// right.
type walk struct {
	lines []string
	rest  string // of the line after lines, if more
	more  bool
	left  int // bytes that may still be read
}

// next returns the next element that is not empty. It never returns part of an element
// that exceeds the bytes that may be read.
func (w *walk) next(last func(string) int) (string, bool) {
	for w.left > 0 {
		if !w.more {
			n := len(w.lines)
			if n == 0 {
				return "", false
			}
			w.lines, w.rest, w.more = w.lines[:n-1], w.lines[n-1], true
		}
		seen := w.rest[max(len(w.rest)-w.left, 0):]
		i := last(seen)
		if i < 0 && len(seen) < len(w.rest) {
			return "", false
		}
		element := strings.Trim(seen[i+1:], " \t")
		w.left -= len(seen) - i
		w.more = i >= 0
		w.rest = w.rest[:len(w.rest)-len(seen)+max(i, 0)]
		if element != "" {
			return element, true
		}
	}
	return "", false
}

func lastComma(list string) int { return strings.LastIndexByte(list, ',') }

func whole(element string) (string, bool) { return element, true }

// lastUnquotedComma reads from the right, like everything here: read from the left, a
// quote that a client left open would swallow what the proxies have added.
func lastUnquotedComma(list string) int {
	quoted := false
	for i := len(list) - 1; i >= 0; i-- {
		switch list[i] {
		case '"':
			if quoted {
				before := list[:i]
				escapes := len(before) - len(strings.TrimRight(before, `\`))
				quoted = escapes%2 == 1
			} else {
				quoted = true
			}
		case ',':
			if !quoted {
				return i
			}
		}
	}
	return -1
}

// forParameter returns the value of the one parameter "for" in an element of Forwarded.
func forParameter(element string) (node string, ok bool) {
	found := false
	for element != "" {
		name, rest, ok := strings.Cut(element, "=")
		if !ok {
			return "", false
		}
		value, rest, ok := cutValue(rest)
		if !ok {
			return "", false
		}
		if strings.EqualFold(strings.Trim(name, " \t"), "for") {
			if found {
				return "", false
			}
			node, found = value, true
		}
		element = rest
	}
	return node, found
}

// cutValue cuts a token or a quoted string, and the semicolon after it. Escapes stay
// in it: no address has any.
func cutValue(s string) (value, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		value, rest, _ = strings.Cut(s, ";")
		return value, rest, true
	}
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			rest = strings.TrimLeft(s[i+1:], " \t")
			after, more := strings.CutPrefix(rest, ";")
			return s[1:i], after, more || rest == ""
		}
	}
	return "", "", false
}

// parseNode reads an address as proxies write it: with or without a port, and IPv6 with
// or without brackets.
func parseNode(s string) (netip.Addr, bool) {
	const longest = 128
	if len(s) > longest {
		return netip.Addr{}, false
	}
	s = strings.Trim(s, " \t")
	host, port, bracketed := s, "", strings.HasPrefix(s, "[")
	if bracketed {
		i := strings.IndexByte(s, ']')
		if i < 0 {
			return netip.Addr{}, false
		}
		host, port = s[1:i], s[i+1:]
	} else if i := strings.IndexByte(s, ':'); i >= 0 && i == strings.LastIndexByte(s, ':') {
		host, port = s[:i], s[i:]
	}
	if port != "" && !validPort(port) {
		return netip.Addr{}, false
	}
	host, zone, zoned := strings.Cut(host, "%") // parsed, a zone would be kept forever
	a, err := netip.ParseAddr(host)
	if err != nil || (zoned && zone == "") || ((zoned || bracketed) && a.Is4()) {
		return netip.Addr{}, false
	}
	return canonical(a), true
}

// validPort reports whether it is a colon and a port: a number or, as RFC 7239 has it,
// an underscore and a word.
func validPort(s string) bool {
	s, ok := strings.CutPrefix(s, ":")
	if word, obfuscated := strings.CutPrefix(s, "_"); obfuscated {
		return ok && word != "" && consists(word, base62+"._-")
	}
	return ok && s != "" && len(s) <= 5 && consists(s, "0123456789")
}

// nat64 is the well-known prefix of RFC 6052.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// canonical normalizes an address. IPv4 addresses inside IPv6 are unwrapped, or all
// clients of a translator would be one. RFC 6052 allows only public addresses in its
// prefix, and no others are unwrapped: no one should become 127.0.0.1 this way. 6to4 and
// Teredo addresses stay: anyone can send from them with someone else's IPv4 address.
func canonical(a netip.Addr) netip.Addr {
	a = a.WithZone("").Unmap()
	if !a.Is6() || !nat64.Contains(a) {
		return a
	}
	b := a.As16()
	v4 := netip.AddrFrom4([4]byte(b[12:]))
	if v4.IsGlobalUnicast() && !v4.IsPrivate() {
		return v4
	}
	return a
}

// counted returns the network that an address is counted by.
func counted(a netip.Addr, v6bits int) netip.Prefix {
	bits := a.BitLen()
	if a.Is6() {
		bits = v6bits
	}
	p, _ := a.Prefix(bits) // it fails only for too many bits
	return p
}
