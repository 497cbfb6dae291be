package rls

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
)

// prefix distinguishes the counters of descriptors from all others in a store.
const prefix = "envoy!"

// writeKeys writes the subjects of all keys into one string.
func (w *work) writeKeys() {
	for i := range w.items {
		it := &w.items[i]
		if !it.counted() {
			continue
		}
		it.from = len(w.text)
		w.text = appendSubject(w.text, w.q.domain, w.q.of(i), it.limit)
		it.to = len(w.text)
	}
	w.keys = string(w.text)
}

// key returns the key of the item's counter.
func (w *work) key(it *item) (k stint.Key) {
	if it.counted() {
		k = stint.Key{Subject: w.keys[it.from:it.to], Name: it.limit.Counter}
	}
	return k
}

// client returns the address in the i-th descriptor, as Envoy's own actions have it. The subject of a key is
// the whole descriptor, with values of headers that a client may make up.
func (w *work) client(i int) string {
	for _, e := range w.q.of(i) {
		if e.Key == "remote_address" || e.Key == "masked_remote_address" {
			return e.Value
		}
	}
	return ""
}

// appendSubject appends what a limit counts by: the domain, and the keys and values or,
// where values share a threshold, their pattern. Different descriptors never have the same
// subject.
func appendSubject(b []byte, domain string, entries []descriptor.Entry, l *descriptor.Limit) []byte {
	start := len(b)
	b = append(b, prefix...)
	b = appendEscaped(b, domain)
	for i, e := range entries {
		b = append(b, '|')
		if i < len(l.Shared) && l.Shared[i] != (descriptor.Entry{}) {
			b = appendEscaped(b, l.Shared[i].Key)
			b = append(b, '~')
			b = appendEscaped(b, l.Shared[i].Value)
			continue
		}
		b = appendEscaped(b, e.Key)
		b = append(b, '=')
		b = appendEscaped(b, e.Value)
	}
	if len(b)-start > stint.MaxKeyPart {
		sum := sha256.Sum256(b[start:])
		b = append(b[:start], prefix+"#"...)
		b = hex.AppendEncode(b, sum[:])
	}
	return b
}

// special are the bytes that structure a subject.
var special = [256]bool{'|': true, '=': true, '~': true, '#': true, '\\': true}

func appendEscaped(b []byte, s string) []byte {
	from := 0
	for i := range len(s) {
		if special[s[i]] {
			b = append(append(b, s[from:i]...), '\\')
			from = i
		}
	}
	return append(b, s[from:]...)
}
