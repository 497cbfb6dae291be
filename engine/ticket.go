package engine

import (
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

const (
	// MaxTicket is the most bytes that a ticket has.
	MaxTicket = 2 << 10
	// MaxLife is how long a ticket is valid at most.
	MaxLife = time.Hour
)

// Tickets turns reservations into texts for those who will settle them, and back. A ticket has everything that
// is needed to settle: no node keeps anything for it, so any node that has the key accepts it. It is encrypted,
// cannot be altered, and expires.
type Tickets struct {
	keys atomic.Pointer[[][]byte]
	now  func() time.Time

	rejected atomic.Uint64
}

// NewTickets returns tickets under keys of at least 32 random bytes. The first one makes tickets, and all of
// them open tickets, so that keys can be replaced. Now is the clock, by default time.Now.
func NewTickets(now func() time.Time, keys ...[]byte) (*Tickets, error) {
	if now == nil {
		now = time.Now
	}
	t := &Tickets{now: now}
	if err := t.Use(keys...); err != nil {
		return nil, err
	}
	return t, nil
}

// Use replaces the keys, while tickets are made and opened. After an error they are as before.
func (t *Tickets) Use(keys ...[]byte) error {
	if len(keys) == 0 {
		return invalid("ticket keys", "none", "at least one")
	}
	for _, k := range keys {
		if len(k) < sha256.Size {
			return invalid("ticket key", strconv.Itoa(len(k))+" bytes", "at least "+strconv.Itoa(sha256.Size)+" random bytes")
		}
	}
	t.keys.Store(&keys)
	return nil
}

// TicketError is the error for a text that is no ticket, or one that cannot be used.
type TicketError struct{ Problem string }

func (e *TicketError) Error() string { return "ticket: " + e.Problem }

var (
	errForged  = &TicketError{"it was not made by this cluster, or was altered"}
	errExpired = &TicketError{"it has expired"}
	errTooLong = &TicketError{"it would have more than " + strconv.Itoa(MaxTicket) + " bytes: too many limits apply to this request, or it was extended too often"}
)

const (
	ticketVersion = 1
	saltSize      = 16
)

// sealer returns the cipher of one ticket. Each has a key of its own, so that the nonce may be the same.
func sealer(key, salt []byte) cipher.AEAD {
	derived, err := hkdf.Key(sha256.New, key, salt, "stint ticket", 32)
	if err == nil {
		var block cipher.Block
		if block, err = aes.NewCipher(derived); err == nil {
			var aead cipher.AEAD
			if aead, err = cipher.NewGCM(block); err == nil {
				return aead
			}
		}
	}
	panic("engine: " + err.Error()) // the sizes are right
}

// Seal returns a ticket for the reservation, which expires after life: at most [MaxLife], since stores do not remember
// for longer that it was settled. If the reservation is from a ticket that is valid for longer, so is the new one. It is an error
// if it would be longer than [MaxTicket]. The error is a [*TicketError].
func (t *Tickets) Seal(r *Reservation, life time.Duration) (string, error) {
	r.expires = max(t.now().Add(min(life, MaxLife)).Unix(), r.expires)
	sealed := make([]byte, 1+saltSize, MaxTicket)
	sealed[0] = ticketVersion
	_, _ = rand.Read(sealed[1:]) // it never fails
	aead := sealer((*t.keys.Load())[0], sealed[1:])
	sealed = aead.Seal(sealed, make([]byte, aead.NonceSize()), r.append(nil), sealed[:1])
	if base64.RawURLEncoding.EncodedLen(len(sealed)) > MaxTicket {
		return "", errTooLong
	}
	return base64.RawURLEncoding.EncodeToString(sealed), nil
}

// Left returns for how long the latest ticket of the reservation is valid, in whole seconds.
func (t *Tickets) Left(r *Reservation) time.Duration {
	return time.Duration(max(r.expires-t.now().Unix(), 0)) * time.Second
}

// Rejected returns how many texts were no tickets, or could not be used.
func (t *Tickets) Rejected() uint64 { return t.rejected.Load() }

// Open returns the reservation of a ticket. The error is a [*TicketError].
func (t *Tickets) Open(text string) (*Reservation, error) {
	r, err := t.open(text)
	if err != nil {
		t.rejected.Add(1)
	}
	return r, err
}

func (t *Tickets) open(text string) (*Reservation, error) {
	sealed, bad := base64.RawURLEncoding.Strict().DecodeString(text)
	if len(text) > MaxTicket || bad != nil || strings.ContainsAny(text, "\r\n") || // which the decoder ignores
		len(sealed) < 1+saltSize || sealed[0] != ticketVersion {
		return nil, errForged
	}
	for _, key := range *t.keys.Load() {
		aead := sealer(key, sealed[1:1+saltSize])
		plain, bad := aead.Open(nil, make([]byte, aead.NonceSize()), sealed[1+saltSize:], sealed[:1])
		if bad != nil {
			continue
		}
		r, err := readReservation(plain)
		switch {
		case err != nil:
			return nil, &TicketError{"it is from another version: " + err.Error()}
		case t.now().Unix() >= r.expires:
			return nil, errExpired
		}
		return r, nil
	}
	return nil, errForged
}

// Extendable returns an error if a ticket of the reservation might be too long after one more [Engine.Extend]. It
// is a [*TicketError].
func (t *Tickets) Extendable(r *Reservation) error {
	const maxCharge = 5 * binary.MaxVarintLen64
	n := len(r.append(nil))
	for i := range r.items {
		if it := &r.items[i]; it.open && !it.shadow {
			n += maxCharge
		}
	}
	const envelope = 1 + saltSize + 16 // with the tag of the cipher
	if base64.RawURLEncoding.EncodedLen(n+envelope) > MaxTicket {
		return errTooLong
	}
	return nil
}

// append appends the reservation for a ticket: numbers as varints, and texts with their lengths. The lowest bit of the
// node says whether the reservation is notable. That of earlier versions is random, and they ignore this one: at worst,
// the settlement of an event is recorded that is not.
func (r *Reservation) append(b []byte) []byte {
	b = append(b, r.ID[:]...)
	b = appendNumbers(b, int64(r.node)|bit(r.notable), r.expires)
	b = appendTexts(b, r.Payer.User, r.Payer.Tenant, r.Payer.Key, r.Payer.Tier)
	var before string // the subject of the item before, which is mostly the same
	for i := range r.items {
		it := &r.items[i]
		a := &it.ask
		subject := a.Key.Subject
		if subject == before {
			subject = ""
		}
		before = a.Key.Subject
		b = appendTexts(b, subject, a.Key.Name, a.Client, a.Limit.String(), string(it.meter))
		p := a.Policy
		if p == nil {
			p = &stint.Policy{}
		}
		b = appendTexts(b, p.Rule)
		b = appendNumbers(b, int64(p.OnFailure), int64(p.Lease), int64(p.Split), int64(p.Regions), p.Credit, int64(p.OnCredit), bit(p.Follow))
		b = appendNumbers(b, it.most, bit(it.open), bit(it.shadow), int64(len(it.charges)))
		for _, c := range it.charges {
			b = appendNumbers(b, c.At, c.Cost, c.Reset, int64(c.Counter), bit(c.Local))
		}
	}
	return b
}

func appendNumbers(b []byte, ns ...int64) []byte {
	for _, n := range ns {
		b = binary.AppendVarint(b, n)
	}
	return b
}

func appendTexts(b []byte, texts ...string) []byte {
	for _, s := range texts {
		b = append(appendNumbers(b, int64(len(s))), s...)
	}
	return b
}

func bit(set bool) int64 {
	if set {
		return 1
	}
	return 0
}

// ticketReader reads what append has written. What is not there is zero.
type ticketReader struct {
	b   []byte
	bad bool
}

func (t *ticketReader) number() int64 {
	n, size := binary.Varint(t.b)
	if size <= 0 {
		t.bad, t.b = true, nil
		return 0
	}
	t.b = t.b[size:]
	return n
}

func (t *ticketReader) bytes(n int64) (out []byte) {
	if n < 0 || n > int64(len(t.b)) {
		t.bad, t.b = true, nil
		return nil
	}
	out, t.b = t.b[:n], t.b[n:]
	return out
}

func (t *ticketReader) text() string { return string(t.bytes(t.number())) }

func readReservation(b []byte) (r *Reservation, err error) {
	t := &ticketReader{b: b}
	r = &Reservation{}
	copy(r.ID[:], t.bytes(int64(len(r.ID))))
	node := uint64(t.number())
	r.node, r.notable = node&^1, node&1 == 1
	r.expires = t.number()
	r.Payer = Payer{t.text(), t.text(), t.text(), t.text()}
	for before := ""; len(t.b) > 0; {
		it := t.item(before)
		if it.ask.Plan, err = it.ask.Limit.Compile(); err != nil {
			return nil, err
		}
		before = it.ask.Key.Subject
		r.items = append(r.items, it)
	}
	if t.bad || len(r.items) == 0 {
		return nil, errors.New("it is incomplete")
	}
	return r, nil
}

func (t *ticketReader) item(before string) (it reserved) {
	a := &it.ask
	a.Key = stint.Key{Subject: cmp.Or(t.text(), before), Name: t.text()}
	a.Client = t.text()
	a.Limit, _ = stint.ParseLimit(t.text()) // which does not compile if it is bad
	it.meter = rule.Meter(t.text())
	a.Policy = &stint.Policy{
		Rule: t.text(), OnFailure: stint.FailMode(t.number()), Lease: time.Duration(t.number()), Split: int(t.number()),
		Regions: stint.Regions(t.number()), Credit: t.number(), OnCredit: stint.OnCredit(t.number()), Follow: t.number() == 1,
	}
	it.most, it.open, it.shadow = t.number(), t.number() == 1, t.number() == 1
	for n := t.number(); n > 0 && len(t.b) > 0; n-- {
		it.charges = append(it.charges, stint.Charge{
			At: t.number(), Cost: t.number(), Reset: t.number(), Counter: uint32(t.number()), Local: t.number() == 1,
		})
	}
	var rest string
	it.rule, rest, _ = strings.Cut(a.Key.Name, ":") // see rule.Set.Asks
	it.name, _, _ = strings.Cut(rest, ":")
	return it
}
