package record

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"net/netip"
	"strconv"
)

// Privacy says how addresses are stored.
type Privacy uint8

const (
	// KeepIP keeps addresses as they are.
	KeepIP Privacy = iota
	// TruncateIP keeps the network: 24 bits of an IPv4 address, 48 of an IPv6 address.
	TruncateIP
	// HashIP keeps 128 bits of an HMAC-SHA-256, in hexadecimal digits: the same for the
	// same address and key. Whoever has the key can try all addresses.
	HashIP
)

func (p Privacy) check(key []byte) error {
	switch {
	case p > HashIP:
		return invalid("Privacy", strconv.Itoa(int(p)), "KeepIP, TruncateIP or HashIP")
	case p == HashIP && len(key) < 16:
		return invalid("HashKey", strconv.Itoa(len(key))+" bytes", "16 bytes or more")
	}
	return nil
}

// kept returns the part of an address that is stored or hashed.
func (p Privacy) kept(ip netip.Addr) [16]byte {
	raw := ip.As16()
	switch {
	case p != TruncateIP:
	case ip.Is4() || ip.Is4In6():
		raw[15] = 0
	default:
		clear(raw[6:])
	}
	return raw
}

// text formats what kept has returned, after it was hashed if it is to be.
func (p Privacy) text(raw [16]byte) string {
	ip := netip.AddrFrom16(raw).Unmap()
	switch p {
	case HashIP:
		return hex.EncodeToString(raw[:])
	case TruncateIP:
		size := 48
		if ip.Is4() {
			size = 24
		}
		return netip.PrefixFrom(ip, size).String()
	default:
		return ip.String()
	}
}

// hasher replaces addresses by hashes. Only one goroutine may use it at a time.
type hasher struct {
	mac hash.Hash
	sum [sha256.Size]byte // a field, so that it is not allocated each time
}

func newHasher(key []byte) *hasher { return &hasher{mac: hmac.New(sha256.New, key)} }

func (h *hasher) hash(raw []byte) {
	h.mac.Reset()
	h.mac.Write(raw)
	copy(raw, h.mac.Sum(h.sum[:0]))
}
