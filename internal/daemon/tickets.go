package daemon

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stintdev/stint/engine"
)

const ticketKeySetting = "server.ticket_key"

// readTicketKeys reads the keys of tickets: one, or a line for each in a file.
func (k *checker) readTicketKeys() {
	s, name := &k.config.Server, ticketKeySetting
	text := string(k.readSecret(name, s.TicketKey, s.TicketKeyFile))
	if s.TicketKeyFile != "" {
		name += "_file"
		if s.TicketKey == "" {
			k.config.named[len(k.config.named)-1].other = true
		}
	}
	if text == "" {
		return // which is reported, if there is a file
	}
	const most = 16
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	if len(lines) > most {
		k.Add(name, strconv.Itoa(len(lines))+" keys: want at most "+strconv.Itoa(most), "")
	}
	for _, key := range lines {
		if len(key) < sha256.Size {
			k.Add(name, "a key has "+strconv.Itoa(len(key))+" bytes: want at least "+strconv.Itoa(sha256.Size)+", such as openssl rand -hex 32 prints", "")
			return
		}
		k.config.credentials.ticketKeys = append(k.config.credentials.ticketKeys, []byte(key))
	}
}

// ticketKeys are the keys of tickets: the configured ones or, if there are none, that of the database and one of this
// process. The latter makes tickets as long as the database has not told its own, or there is none.
type ticketKeys struct {
	tickets *engine.Tickets

	mu         sync.Mutex
	configured [][]byte
	shared     []byte // of the database; nil: it is not known
	own        []byte
}

// configure uses the keys of a configuration, which may be none.
func (t *ticketKeys) configure(keys [][]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.configured = keys
	t.use()
}

// share uses the key of the database.
func (t *ticketKeys) share(key []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shared = key
	t.use()
}

func (t *ticketKeys) isShared() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.shared != nil
}

func (t *ticketKeys) use() {
	keys := t.configured
	if len(keys) == 0 && t.shared != nil {
		keys = [][]byte{t.shared}
	}
	if len(t.configured) == 0 {
		keys = append(keys, t.own)
	}
	_ = t.tickets.Use(keys...) // they are long enough
}

// openTickets makes tickets by the key of this process, and of the database if it can be reached.
func (d *Daemon) openTickets(ctx context.Context) (err error) {
	own := make([]byte, sha256.Size)
	_, _ = rand.Read(own) // it never fails
	d.tickets.own = own
	if d.tickets.tickets, err = engine.NewTickets(nil, own); err != nil {
		return err
	}
	d.tickets.configure(d.config.credentials.ticketKeys)
	if err := d.shareTicketKey(ctx); err != nil {
		d.log.WarnContext(ctx, "until the database can be reached, tickets of this node are accepted by this node only", "problem", err.Error())
	}
	return nil
}

// startTickets asks the database for its key until it can be reached.
func (d *Daemon) startTickets(ctx context.Context) {
	if d.control == nil || d.tickets.isShared() {
		return
	}
	d.work.Go(func() { every(ctx, time.Second, func() bool { return d.shareTicketKey(ctx) != nil }) })
}

// shareTicketKey uses the key in the database, if there is a database.
func (d *Daemon) shareTicketKey(ctx context.Context) error {
	if d.control == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	key, err := d.control.catalog.TicketKey(ctx)
	if err == nil {
		d.tickets.share(key)
	}
	return err
}
