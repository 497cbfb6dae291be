package memstore

import "github.com/stintdev/stint"

// log holds the entries of one sliding_log, oldest first, in a buffer that
// they move through from front to back: a ring that is brought back to the
// front, rather than bent around, so that it can be read as a slice.
type log struct {
	buf  []stint.Entry
	head int
}

func (l *log) live() []stint.Entry { return l.buf[l.head:] }

// forget drops the oldest units.
func (l *log) forget(units int64) {
	for units > 0 {
		units -= l.buf[l.head].Units
		l.head++
	}
}

// push appends an entry, or adds to the newest if that is of the same instant.
// A full buffer is brought back to the front if that frees half of it, and
// otherwise doubles, so a push costs two copies of an entry at most.
func (l *log) push(e stint.Entry) {
	if n := len(l.buf); n > l.head && l.buf[n-1].At == e.At {
		l.buf[n-1].Units += e.Units
		return
	}
	if len(l.buf) == cap(l.buf) {
		live, room := l.live(), l.buf
		if 2*len(live) >= cap(room) {
			room = make([]stint.Entry, max(2*len(live), 4))
		}
		l.buf, l.head = room[:copy(room, live)], 0
	}
	l.buf = append(l.buf, e)
}
