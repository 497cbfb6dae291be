package audit

import (
	"encoding"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
)

// The versions of events, of which one begins each. What has another is refused.
const (
	withText    = 1 // its address is text
	withAddress = 2 // its address is 4 or 16 bytes: to write it as text takes longer than the rest
)

const (
	// longestText is how many bytes of a text are kept. Names of clients and rules are
	// shorter than that.
	longestText = 512
	// longestRecord is what an event takes in a [Batch] at most.
	longestRecord = frameBytes + 1 + 16 + 8 + 2 + 8*binary.MaxVarintLen64 + 11*(2+longestText)
	// addressAt is where the address of a record begins, with its length.
	addressAt = frameBytes + 1 + 16
)

const (
	flagShadow = 1 << iota
	flagCached
)

var (
	_ encoding.BinaryAppender    = (*Event)(nil)
	_ encoding.BinaryUnmarshaler = (*Event)(nil)
)

// AppendBinary implements [encoding.BinaryAppender]. It does not fail. Of long texts it
// keeps the first 512 bytes.
func (e *Event) AppendBinary(b []byte) ([]byte, error) {
	decided := engine.Event{
		ID: e.ID, At: e.At, Outcome: e.Outcome, Shadow: e.Shadow, Cached: e.Cached,
		User: e.User, Tenant: e.Tenant, Key: e.Key, Tier: e.Tier,
		Rule: e.Rule, Limit: e.Limit, Endpoint: e.Endpoint, Method: e.Method,
		Used: e.Used, Max: e.Max, Cost: e.Cost, Status: e.Status, RetryAfter: e.RetryAfter, Waited: e.Waited, Latency: e.Latency,
	}
	return appendEvent(b, &decided, withText, []byte(beginning(e.IP)), appendPlace(nil, e.Region, e.Node), e.Weight), nil
}

// appendPlace appends where an event was decided.
func appendPlace(b []byte, region, node string) []byte {
	return appendText(appendText(b, region), node)
}

func appendText(b []byte, text string) []byte {
	text = beginning(text)
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// appendEvent appends an event with what is kept of its address, which is short, and its
// place. It is what recording costs: there is room for the longest, and bytes are put where
// they belong without looking each time whether there is.
func appendEvent(b []byte, e *engine.Event, version byte, ip, place []byte, weight int64) []byte {
	b = slices.Grow(b, longestRecord-frameBytes)
	p := b[len(b):cap(b)]
	p[0] = version
	n := 1 + copy(p[1:], e.ID[:])
	n = put(p, n, uint64(len(ip)))
	n += copy(p[n:], ip)
	binary.LittleEndian.PutUint64(p[n:], uint64(e.At.UnixMicro()))
	var flags byte
	if e.Shadow {
		flags |= flagShadow
	}
	if e.Cached {
		flags |= flagCached
	}
	p[n+8], p[n+9] = byte(e.Outcome), flags
	n += 10
	for _, text := range [...]*string{&e.User, &e.Tenant, &e.Key, &e.Tier, &e.Rule, &e.Limit, &e.Endpoint, &e.Method} {
		t := *text
		if len(t) > longestText {
			t = beginning(t)
		}
		n = put(p, n, uint64(len(t)))
		n += copy(p[n:], t)
	}
	n += copy(p[n:], place)
	retry := max(0, e.RetryAfter.Microseconds())
	if e.RetryAfter == stint.Never {
		retry = -1
	}
	for _, v := range [...]int64{e.Used, e.Max, e.Cost, int64(e.Status), retry, e.Waited.Microseconds(), e.Latency.Microseconds(), weight} {
		n = put(p, n, uint64(v)<<1^uint64(v>>63))
	}
	return b[:len(b)+n]
}

// put puts a number at n, as [binary.PutUvarint] does, and returns where it ends.
func put(p []byte, n int, v uint64) int {
	for ; v >= 0x80; n++ {
		p[n] = byte(v) | 0x80
		v >>= 7
	}
	p[n] = byte(v)
	return n + 1
}

// beginning returns as much of a text as is kept, without half a character.
func beginning(text string) string {
	if len(text) <= longestText {
		return text
	}
	n := longestText
	for n > longestText-utf8.UTFMax && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]. Texts have what is not UTF-8,
// and zeros, replaced: no database would take them.
func (e *Event) UnmarshalBinary(data []byte) error {
	d := decoder{data: data, text: string(data)} // texts are cut from one copy
	version := d.byte()
	if version != withText && version != withAddress {
		return fmt.Errorf("audit: event of version %d, want %d or %d", version, withText, withAddress)
	}
	*e = Event{}
	copy(e.ID[:], d.bytes(len(e.ID)))
	if version == withText {
		e.IP = d.string()
	} else {
		e.IP = d.address()
	}
	if at := d.bytes(8); at != nil {
		e.At = time.UnixMicro(int64(binary.LittleEndian.Uint64(at))).UTC()
	}
	e.Outcome = engine.Outcome(d.byte())
	flags := d.byte()
	e.Shadow, e.Cached = flags&flagShadow != 0, flags&flagCached != 0
	for _, text := range [...]*string{&e.User, &e.Tenant, &e.Key, &e.Tier, &e.Rule, &e.Limit, &e.Endpoint, &e.Method, &e.Region, &e.Node} {
		*text = d.string()
	}
	e.Used, e.Max, e.Cost, e.Status = d.int(), d.int(), d.int(), int(d.int())
	if e.RetryAfter = d.duration(); e.RetryAfter < 0 {
		e.RetryAfter = stint.Never
	}
	e.Waited, e.Latency = d.duration(), d.duration()
	e.Weight = d.int()
	switch {
	case d.failed:
		return errors.New("audit: event that ends too early, or has a number that is too large")
	case d.at != len(data):
		return fmt.Errorf("audit: event with %d bytes behind its end", len(data)-d.at)
	case e.Outcome > engine.Unavailable || flags > flagShadow|flagCached:
		return fmt.Errorf("audit: event with outcome %d and flags %d, which are not known", byte(e.Outcome), flags)
	}
	return nil
}

// decoder reads an event from data. Once it has failed, what it returns means nothing.
type decoder struct {
	data   []byte
	text   string // the same
	at     int
	failed bool
}

// bytes returns the next n, or nil.
func (d *decoder) bytes(n int) []byte {
	if n < 0 || n > len(d.data)-d.at {
		d.failed = true
		return nil
	}
	d.at += n
	return d.data[d.at-n : d.at]
}

func (d *decoder) byte() byte {
	if b := d.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.data[d.at:])
	if n <= 0 {
		d.failed = true
		return 0
	}
	d.at += n
	return v
}

func (d *decoder) duration() time.Duration {
	micros := d.int()
	if most := math.MaxInt64 / int64(time.Microsecond); micros > most || micros < -most {
		d.failed = true
		return 0
	}
	return time.Duration(micros) * time.Microsecond
}

func (d *decoder) address() string {
	ip, ok := netip.AddrFromSlice(d.bytes(int(d.byte())))
	d.failed = d.failed || !ok
	return ip.String()
}

func (d *decoder) string() string {
	size, n := binary.Uvarint(d.data[d.at:])
	if n <= 0 || size > longestText {
		d.failed = true
		return ""
	}
	d.at += n
	if d.bytes(int(size)) == nil {
		return ""
	}
	text := d.text[d.at-int(size) : d.at]
	if !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0 {
		text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	}
	return text
}

// Batch is events, encoded, one behind the other: each with its length, the complement
// of that, by which it is known, and a place for its checksum.
type Batch []byte

// frameBytes are what is before each event: two bytes each for the length and its
// complement, and four for the checksum.
const frameBytes = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Add returns the batch with one event more.
func (b Batch) Add(e *Event) Batch {
	start := len(b)
	b, _ = e.AppendBinary(b.open()) // it does not fail
	return b.close(start)
}

// open makes room for the frame of a record.
func (b Batch) open() Batch { return append(b, 0, 0, 0, 0, 0, 0, 0, 0) }

// close completes the frame of a record that begins at start.
func (b Batch) close(start int) Batch {
	n := uint16(len(b) - start - frameBytes)
	binary.LittleEndian.PutUint32(b[start:], uint32(n)|uint32(^n)<<16)
	return b
}

// first returns the first record, with its frame. It is nil if the batch ends before;
// and ok is false if this is no record.
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

// Events appends the first events to those it is given, until there are so many, and
// returns how many bytes they take. The error is about the event behind them.
func (b Batch) Events(events []Event, most int) (_ []Event, size int, err error) {
	for len(events) < most && size < len(b) {
		record, _ := b[size:].first()
		if record == nil {
			return events, size, errors.New("audit: not a batch of events")
		}
		events = slices.Grow(events, 1)[:len(events)+1]
		if err := events[len(events)-1].UnmarshalBinary(record[frameBytes:]); err != nil {
			return events[:len(events)-1], size, err
		}
		size += len(record)
	}
	return events, size, nil
}

// Len returns how many events it has.
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

// intact returns how many bytes at the beginning are whole records with the right
// checksums, and whether what is behind them could be the beginning of one.
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
