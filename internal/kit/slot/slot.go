// Package slot says in which of its slots a Redis Cluster keeps a key.
//
// A Cluster divides the slots among its primaries, by default into ranges of equal size.
package slot

// Count is the number of slots.
const Count = 16384

// Of returns the slot of a key. If there is text in braces it depends on that alone.
//
// For texts of one length that end differently, the slots differ, by an exclusive or, as those of the endings do,
// whatever is before these.
func Of[T string | []byte](key T) int {
	tag := key
	for i := range len(key) {
		if key[i] != '{' {
			continue
		}
		for j := i + 1; j < len(key); j++ {
			if key[j] == '}' {
				if j > i+1 {
					tag = key[i+1 : j]
				}
				break
			}
		}
		break
	}
	return int(crc16(tag)) % Count
}

// crc16 is the XMODEM variant, which Redis Cluster uses.
func crc16[T string | []byte](s T) (crc uint16) {
	for i := range len(s) {
		crc = crc<<8 ^ table[byte(crc>>8)^s[i]]
	}
	return crc
}

var table = func() (t [256]uint16) {
	for i := range t {
		c := uint16(i) << 8
		for range 8 {
			if c&0x8000 != 0 {
				c = c<<1 ^ 0x1021
			} else {
				c <<= 1
			}
		}
		t[i] = c
	}
	return t
}()
