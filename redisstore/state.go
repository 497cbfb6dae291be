package redisstore

import (
	"github.com/stintdev/stint"
)

// penaltySuffix is the end of penalty keys.
const penaltySuffix = ":pn"

const numberSize = 7 // bytes

// noState is the state of a counter that is not there.
const noState = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// decodeState reads a counter's state as lua/main.lua writes it: 12 bytes for windows of whole
// seconds with small counts and for buckets that recover soon, otherwise 28. The script rejects
// other sizes.
func decodeState(s string, a stint.Algorithm, now int64) (c stint.Counter) {
	const second, wrap, ahead = 1_000_000, 1 << 48, 1 << 43
	switch {
	case s == noState:
	case len(s) == 12 && (a == stint.TokenBucket || a == stint.LeakyBucket):
		c.At = now + ahead - (now+ahead-uintOf(s[:6])+wrap)%wrap
		c.Used = uintOf(s[6:10])
		c.Until = c.At + c.Used
		code := uintOf(s[10:])
		for c.Aux = code / 16; code%16 > 0; code-- {
			c.Aux *= 10
		}
	case len(s) == 12:
		c.At = uintOf(s[:5]) * second
		c.Until = c.At + uintOf(s[5:8])*second
		c.Used, c.Aux = uintOf(s[8:10]), uintOf(s[10:])
		if a == stint.FixedWindow {
			c.Aux = c.Until
		}
	case len(s) == 4*numberSize:
		c = stint.Counter{At: number(s), Used: number(s[7:]), Aux: number(s[14:]), Until: number(s[21:])}
	}
	return c
}

// decodePenalty reads the state of a penalty as lua/penalty.lua writes it. The script has checked
// its size.
func decodePenalty(s string) (st stint.State) {
	for i := numberSize; i+numberSize <= len(s); i += numberSize {
		st.At = number(s[i:])
		st.Log = append(st.Log, stint.Entry{At: st.At, Units: 1})
	}
	if n := len(st.Log); n > 0 {
		st.Used, st.Until = int64(n), number(s)
	}
	return st
}

func number(s string) int64 { return uintOf(s[:numberSize]) }

func uintOf(s string) (n int64) {
	for i := range len(s) {
		n = n<<8 | int64(s[i])
	}
	return n
}
