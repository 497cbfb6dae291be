package record

import (
	"encoding"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
)

// An encoded event of a [Batch] begins with fields at fixed offsets: numbers, which are
// little-endian, and the lengths of its texts. Then come the texts, then region, node and path, and last a byte each for the
// source and why credentials were not accepted.
const (
	versionAt = iota
	outcomeAt
	flagsAt
	privacyAt // Privacy of the address plus 1, or 0 without an address
	statusAt  // 4 bytes
	idAt      = statusAt + 4
	addressAt = idAt + 16
	numbersAt = addressAt + 16
	lengthsAt = numbersAt + numbers*8
	textsAt   = lengthsAt + texts*2

	numbers = 8 // at, used, max, cost, retry after, waited, latency, weight
	texts   = 8 // user, tenant, key, tier, rule, limit, endpoint, method

	// Other versions are rejected, but for those of events without a source, and without a path, which a spool may have.
	version, versionNoSource, versionNoPath = 5, 4, 3
)

const (
	// longestText is how many bytes of a text are stored. Names of clients and rules are
	// shorter.
	longestText = 512
	// longestRecord is the largest size of an event in a [Batch].
	longestRecord = frameBytes + textsAt + texts*longestText + 2*(2+longestText) + 2 + longestPath + 2
)

const (
	flagShadow = 1 << iota
	flagCached
)

var _ encoding.BinaryUnmarshaler = (*Event)(nil)

// encoder encodes events. Only one goroutine may use it at a time.
type encoder struct {
	place   []byte // region and node, encoded
	privacy Privacy
	hasher  *hasher // nil: addresses are not hashed
	paths   Paths
}

func newEncoder(region, node string, paths Paths, privacy Privacy, key []byte) encoder {
	c := encoder{privacy: privacy, paths: paths}
	for _, text := range []string{region, node} {
		text = beginning(text, longestText)
		c.place = append(binary.LittleEndian.AppendUint16(c.place, uint16(len(text))), text...)
	}
	if privacy == HashIP {
		c.hasher = newHasher(key)
	}
	return c
}

// append appends an event that stands for weight decisions, with a path that [Paths].appendPath has returned.
func (c *encoder) append(b Batch, e *engine.Event, path []byte, weight int64) Batch {
	b = slices.Grow(b, longestRecord)
	frame := b[len(b) : len(b)+longestRecord]
	p := frame[frameBytes:]
	head := (*[textsAt]byte)(p)
	var flags byte
	if e.Shadow {
		flags |= flagShadow
	}
	if e.Cached {
		flags |= flagCached
	}
	head[versionAt], head[outcomeAt], head[flagsAt], head[privacyAt] = version, byte(e.Outcome), flags, 0
	binary.LittleEndian.PutUint32(head[statusAt:], uint32(e.Status))
	*(*engine.ID)(head[idAt:]) = e.ID
	address := (*[16]byte)(head[addressAt:])
	*address = c.privacy.kept(e.IP)
	if e.IP.IsValid() {
		head[privacyAt] = byte(c.privacy) + 1
		if c.hasher != nil {
			c.hasher.hash(address[:])
		}
	}
	for i, v := range [numbers]int64{
		e.At.UnixMicro(), e.Used, e.Max, e.Cost, RetryMicros(e.RetryAfter), e.Waited.Microseconds(), e.Latency.Microseconds(), weight,
	} {
		binary.LittleEndian.PutUint64(head[numbersAt+8*i:], uint64(v))
	}
	n := textsAt
	for i, text := range [texts]*string{&e.User, &e.Tenant, &e.Key, &e.Tier, &e.Rule, &e.Limit, &e.Endpoint, &e.Method} {
		t := beginning(*text, longestText)
		binary.LittleEndian.PutUint16(head[lengthsAt+2*i:], uint16(len(t)))
		n += copy(p[n:], t)
	}
	n += copy(p[n:], c.place)
	stored := c.paths.appendStored(p[n+2:n+2:len(p)], path, e.Endpoint)
	binary.LittleEndian.PutUint16(p[n:], uint16(len(stored)))
	n += 2 + len(stored)
	p[n], p[n+1] = sourceOf(e), byte(e.Unaccepted)
	n += 2
	binary.LittleEndian.PutUint64(frame, frameOf(n))
	return b[:len(b)+frameBytes+n]
}

// sources are the names of sources, by what events have: 0 if the client is not known.
var sources = [...]string{"", identity.ByIP.String(), identity.ByKey.String(), identity.ByJWT.String(), identity.ByHeader.String(), SourceGiven}

func sourceOf(e *engine.Event) byte {
	named := e.User != "" || e.Tenant != "" || e.Key != ""
	switch {
	case !named && !e.IP.IsValid():
		return 0
	case named && e.Source == identity.ByIP:
		return byte(len(sources) - 1)
	}
	return byte(e.Source) + 1
}

// beginning returns the first bytes of a text, without half a character.
func beginning(text string, longest int) string {
	if len(text) <= longest {
		return text
	}
	n := longest
	for n > longest-utf8.UTFMax && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]. Invalid UTF-8 and zeros in texts are
// replaced, since databases reject them.
func (e *Event) UnmarshalBinary(data []byte) error {
	switch {
	case len(data) > 0 && (data[versionAt] < versionNoPath || data[versionAt] > version):
		return fmt.Errorf("record: event of version %d, want %d", data[versionAt], version)
	case len(data) < textsAt:
		return errTooShort
	}
	head := (*[textsAt]byte)(data)
	outcome, flags, privacy := engine.Outcome(head[outcomeAt]), head[flagsAt], head[privacyAt]
	if outcome > engine.Unavailable || flags > flagShadow|flagCached || privacy > byte(HashIP)+1 {
		return fmt.Errorf("record: event with unknown outcome %d, flags %d or kind of address %d", byte(outcome), flags, privacy)
	}
	var n [numbers]int64
	for i := range n {
		n[i] = int64(binary.LittleEndian.Uint64(head[numbersAt+8*i:]))
	}
	*e = Event{
		ID: engine.ID(head[idAt:]), At: time.UnixMicro(n[0]).UTC(), Outcome: outcome, Shadow: flags&flagShadow != 0, Cached: flags&flagCached != 0,
		Used: n[1], Max: n[2], Cost: n[3], Status: int(int32(binary.LittleEndian.Uint32(head[statusAt:]))),
		RetryAfter: RetryAfter(n[4]), Waited: time.Duration(n[5]) * time.Microsecond, Latency: time.Duration(n[6]) * time.Microsecond, Weight: n[7],
	}
	const longest = math.MaxInt64 / int64(time.Microsecond)
	for _, micros := range n[4:7] {
		if micros > longest || micros < -longest {
			return fmt.Errorf("record: event with a duration of %d microseconds, which is too long", micros)
		}
	}
	if privacy > 0 {
		e.IP = Privacy(privacy - 1).text([16]byte(head[addressAt:]))
	}
	rest := string(data[textsAt:]) // texts are cut from one copy
	for i, text := range [texts + 3]*string{&e.User, &e.Tenant, &e.Key, &e.Tier, &e.Rule, &e.Limit, &e.Endpoint, &e.Method, &e.Region, &e.Node, &e.Path} {
		var size int
		switch {
		case text == &e.Path && head[versionAt] == versionNoPath:
		case i < texts:
			size = int(binary.LittleEndian.Uint16(head[lengthsAt+2*i:]))
		case len(rest) < 2:
			return errTooShort
		default: // the place and the path have them before their texts
			size, rest = int(rest[0])|int(rest[1])<<8, rest[2:]
		}
		if size > len(rest) || size > longestText {
			return errTooShort
		}
		*text, rest = clean(rest[:size]), rest[size:]
	}
	if head[versionAt] == version {
		if len(rest) < 2 {
			return errTooShort
		}
		source, why := rest[0], identity.Reason(rest[1])
		if int(source) >= len(sources) || why > identity.HeaderInvalid {
			return fmt.Errorf("record: event with unknown source %d or reason %d", source, byte(why))
		}
		e.Source, e.Unaccepted, rest = sources[source], why.String(), rest[2:]
	}
	if rest != "" {
		return fmt.Errorf("record: event with %d extra bytes", len(rest))
	}
	return nil
}

var errTooShort = errors.New("record: event that ends too early")

// clean replaces what databases reject.
func clean(text string) string {
	if !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0 {
		text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	}
	return text
}

// Batch is a sequence of encoded events. Before each are its length, the complement of that,
// by which a frame is recognized, and room for a checksum.
type Batch []byte

// frameBytes is the size of a frame: two bytes each for the length and its complement, and
// four for the checksum.
const frameBytes = 8

// frameOf returns the frame of an event of n bytes, as a little-endian number.
func frameOf(n int) uint64 { return uint64(uint16(n)) | uint64(^uint16(n))<<16 }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// first returns the first record, with its frame. It is nil if the batch ends before that, and
// ok is false if it is not a record.
func (b Batch) first() (record []byte, ok bool) {
	if len(b) < frameBytes {
		return nil, true
	}
	n := binary.LittleEndian.Uint32(b)
	if uint16(n) != ^uint16(n>>16) {
		return nil, false
	}
	if end := frameBytes + int(uint16(n)); end <= len(b) {
		return b[:end], true
	}
	return nil, true
}

// Events decodes the first events and appends them, up to most in all, and returns their size
// in bytes. The error is about the next event.
func (b Batch) Events(events []Event, most int) (_ []Event, size int, err error) {
	for len(events) < most && size < len(b) {
		record, _ := b[size:].first()
		if record == nil {
			return events, size, errors.New("record: not a batch of events")
		}
		events = slices.Grow(events, 1)[:len(events)+1]
		if err := events[len(events)-1].UnmarshalBinary(record[frameBytes:]); err != nil {
			return events[:len(events)-1], size, err
		}
		size += len(record)
	}
	return events, size, nil
}

// Len returns the number of events.
func (b Batch) Len() (n int) {
	for {
		record, _ := b.first()
		if record == nil {
			return n
		}
		b = b[len(record):]
		n++
	}
}

// seal writes the checksums.
func (b Batch) seal() {
	for {
		record, _ := b.first()
		if record == nil {
			return
		}
		binary.LittleEndian.PutUint32(record[4:], crc32.Checksum(record[frameBytes:], castagnoli))
		b = b[len(record):]
	}
}

// intact returns how many bytes at the beginning are complete records with the right
// checksums, and whether the rest could be the beginning of another.
func (b Batch) intact() (n int, ok bool) {
	for {
		record, ok := b[n:].first()
		if record == nil {
			return n, ok
		}
		if binary.LittleEndian.Uint32(record[4:]) != crc32.Checksum(record[frameBytes:], castagnoli) {
			return n, false
		}
		n += len(record)
	}
}
