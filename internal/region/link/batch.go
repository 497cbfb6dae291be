package link

import (
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region/gossip"
	"github.com/stintdev/stint/internal/region/link/linkpb"
)

const (
	// envelope is room for what is around the entries of a batch or the asks of a call.
	envelope = 64
	// entryBytes is what an entry takes beside its strings: tags and numbers.
	entryBytes = 40
	// worthwhile is how many bytes are worth the effort of compressing them.
	worthwhile = 512
)

// Fits returns how many of the first of these entries fit into a batch.
func Fits(entries []gossip.Entry) int {
	n, _ := fits(entries)
	return n
}

// fits is Fits, and says what is wrong with the first entry that does not fit, if it could never be sent.
func fits(entries []gossip.Entry) (int, error) {
	m := measure{bytes: envelope}
	for i := range entries {
		e := &entries[i]
		if i == MaxEntries {
			return i, nil
		}
		if err := m.limit(e.Limit); err != nil {
			return i, err
		}
		m.bytes += entryBytes
		m.field(len(e.Key.Subject), len(e.Key.Name), len(e.ID))
		if m.bytes > MaxMessage {
			if i == 0 {
				return 0, fmt.Errorf("link: entry of %d bytes, want at most %d", m.bytes, MaxMessage)
			}
			return i, nil
		}
	}
	return len(entries), nil
}

// codec compresses and decompresses. Both are safe for concurrent use, and are made when they are needed.
var codec = sync.OnceValue(func() (c struct {
	*zstd.Encoder
	*zstd.Decoder
},
) {
	var e, d error
	c.Encoder, e = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(MaxMessage))
	c.Decoder, d = zstd.NewReader(nil, zstd.WithDecoderMaxMemory(MaxMessage), zstd.WithDecoderConcurrency(2))
	if err := errors.Join(e, d); err != nil {
		panic(err) // the options above are constant
	}
	return c
})

// batch returns a batch as a message.
func (s *speller) batch(b gossip.Batch) (*linkpb.Batch, error) {
	all := make([]linkpb.Entry, len(b.Entries))
	m := &linkpb.Entries{Entries: make([]*linkpb.Entry, len(all))}
	for i := range b.Entries {
		from, e := &b.Entries[i], &all[i]
		e.Subject, e.Name, e.At, e.Units = []byte(from.Key.Subject), []byte(from.Key.Name), from.At, from.Units
		e.Id, e.Reset_ = []byte(from.ID), from.Reset
		e.Limit, e.LimitText = s.refer(from.Limit)
		m.Entries[i] = e
	}
	raw, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	out := &linkpb.Batch{Number: b.Number, Entries: raw}
	if len(raw) > worthwhile {
		if packed := codec().EncodeAll(raw, nil); len(packed) < len(raw) {
			out.Entries, out.Zstd = packed, true
		}
	}
	return out, nil
}

// batch reads a batch.
func (g *glossary) batch(m *linkpb.Batch) (gossip.Batch, error) {
	b := gossip.Batch{Number: m.GetNumber()}
	if b.Number == 0 {
		return b, refuse(BadMessage, "batch 0, want 1 or more")
	}
	raw := m.GetEntries()
	if m.GetZstd() {
		var err error
		if raw, err = codec().DecodeAll(raw, nil); err != nil {
			return b, refuse(BadMessage, "batch %d: %v", b.Number, err)
		}
	}
	var entries linkpb.Entries
	if err := unpack(raw, 1, MaxEntries, &entries); err != nil {
		return b, err
	}
	b.Entries = make([]gossip.Entry, len(entries.GetEntries()))
	for i, e := range entries.GetEntries() {
		l, _, err := g.find(e.GetLimit(), e.GetLimitText())
		if err != nil {
			return b, err
		}
		b.Entries[i] = gossip.Entry{
			Key:   stint.Key{Subject: string(e.GetSubject()), Name: string(e.GetName())},
			Limit: l, At: e.GetAt(), Units: e.GetUnits(), ID: string(e.GetId()), Reset: e.GetReset_(),
		}
	}
	return b, nil
}

// unpack reads a message in which a field may be repeated so many times.
func unpack(b []byte, field protowire.Number, most int, into proto.Message) error {
	n := 0
	for rest := b; len(rest) > 0; {
		number, _, size := protowire.ConsumeField(rest)
		if size < 0 {
			return refuse(BadMessage, "%v", protowire.ParseError(size))
		}
		if number == field {
			n++
		}
		rest = rest[size:]
	}
	if n > most {
		return refuse(BadMessage, "a message with %d parts, want at most %d", n, most)
	}
	if err := proto.Unmarshal(b, into); err != nil {
		return refuse(BadMessage, "%v", err)
	}
	return nil
}
