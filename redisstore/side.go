package redisstore

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/stintdev/stint"
)

// Side is what a program may keep beside its counters, in the same Redis: values
// that may vanish, messages that may be lost, and who is present. It never touches
// a counter. All of it is safe for concurrent use.
//
// Values and channels are prefix:side/name, groups prefix:present/name. No prefix has
// a slash, and what follows the prefix of a counter is a brace, so none of these is
// ever a counter, or of another kind or prefix, whatever the names.
type Side struct{ store *Store }

// The most that Redis is sent at once, in bytes.
const (
	MaxSideName  = 512      // of a name, a channel, a group or a node
	MaxSideValue = 64 << 10 // of a value or a message
)

// Side returns what is beside the store's counters. It shares the store's
// connections, and ends with it.
func (s *Store) Side() *Side { return &Side{s} }

func (x *Side) key(name string) string { return x.store.config.prefix + ":side/" + name }

func (x *Side) group(name string) string { return x.store.config.prefix + ":present/" + name }

// do runs f within the store's timeout, again while servers are changing places.
func (x *Side) do(ctx context.Context, f func(context.Context, rueidis.Client) error) error {
	return x.store.within(ctx, func(ctx context.Context) error {
		return x.store.retry(ctx, func(client rueidis.Client) error { return f(ctx, client) })
	})
}

// Get returns a value, if there is one.
func (x *Side) Get(ctx context.Context, name string) (value []byte, ok bool, err error) {
	if err := sideName("name", name); err != nil {
		return nil, false, err
	}
	err = x.do(ctx, func(ctx context.Context, client rueidis.Client) error {
		text, err := client.Do(ctx, client.B().Get().Key(x.key(name)).Build()).ToString()
		if rueidis.IsRedisNil(err) {
			return nil
		}
		value, ok = []byte(text), err == nil
		return err
	})
	if err != nil {
		return nil, false, err
	}
	return value, ok, nil
}

// Set keeps a value for ttl, in whole milliseconds.
func (x *Side) Set(ctx context.Context, name string, value []byte, ttl time.Duration) error {
	if err := sideName("name", name); err != nil {
		return err
	}
	if err := sideSize("value", len(value)); err != nil {
		return err
	}
	millis, err := sideTTL(ttl)
	if err != nil {
		return err
	}
	text := string(value) // it may be sent after the caller has left
	return x.do(ctx, func(ctx context.Context, client rueidis.Client) error {
		return client.Do(ctx, client.B().Set().Key(x.key(name)).Value(text).PxMilliseconds(millis).Build()).Error()
	})
}

// Delete forgets values, any number of them: the timeout of the URL is for some
// hundreds at a time. If it fails, some may be left.
func (x *Side) Delete(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := sideName("name", name); err != nil {
			return err
		}
	}
	for some := range slices.Chunk(names, 512) {
		keys := make([]string, len(some))
		for i, name := range some {
			keys[i] = x.key(name)
		}
		if err := x.store.within(ctx, func(ctx context.Context) error { return x.store.erase(ctx, keys) }); err != nil {
			return err
		}
	}
	return nil
}

// Publish tells all who listen to the channel now. Channels are those of the whole
// server: stores with one prefix share them, whichever their databases.
func (x *Side) Publish(ctx context.Context, channel, message string) error {
	if err := sideName("channel", channel); err != nil {
		return err
	}
	if err := sideSize("message", len(message)); err != nil {
		return err
	}
	return x.do(ctx, func(ctx context.Context, client rueidis.Client) error {
		// To the node that has the slot of the name, rather than to any, which may be dead.
		return client.Do(ctx, client.B().Arbitrary("PUBLISH").Keys(x.key(channel)).Args(message).Build()).Error()
	})
}

// Subscribe calls told for each message, and once after each time that it has
// connected, with connected: messages may have been lost before that. It connects
// again by itself until ctx ends, or the store, and returns then; if it is just
// connecting, when that is over.
//
// It makes one call of told at a time. While told is busy some messages wait; then
// the connection is given up, and made anew. Told must not close the store.
func (x *Side) Subscribe(ctx context.Context, channel string, told func(message string, connected bool)) {
	s := x.store
	s.open.RLock()
	closed := s.closed
	if !closed {
		s.work.Add(1) // not the lock, which would keep told from asking the store while it closes
	}
	s.open.RUnlock()
	if closed {
		return
	}
	defer s.work.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.base, cancel)()

	const least, most = 50 * time.Millisecond, 2 * time.Second
	for pause := least; ; pause = min(2*pause, most) {
		if x.listen(ctx, channel, told) {
			pause = least
		}
		if wait(ctx, pause) != nil {
			return
		}
	}
}

// listen is Subscribe for one connection. It reports whether there was one.
//
// The connection is not one that counters travel on, which a slow reader of messages
// would hold up. The client pings it every second, and ends it if no answer comes in
// the URL's timeout.
func (x *Side) listen(ctx context.Context, channel string, told func(string, bool)) (connected bool) {
	client := x.store.client.Load()
	if client == nil {
		return false
	}
	// Any node of a cluster will do: they pass messages on to each other.
	var addr string
	var node rueidis.Client
	for addr, node = range (*client).Nodes() {
		break
	}
	if node == nil {
		return false
	}
	conn, _ := node.Dedicate() // what it returns would keep the connection for the next
	defer conn.Close()
	over := make(chan struct{})
	defer close(over) // or the connection waits for a reader, and Close for the connection
	messages := make(chan string, 64)
	lost := conn.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(m rueidis.PubSubMessage) {
		select {
		case messages <- m.Message:
		case <-over:
		}
	}})
	soon, cancel := context.WithTimeout(ctx, x.store.config.timeout)
	defer cancel()
	if conn.Do(soon, conn.B().Subscribe().Channel(x.key(channel)).Build()).Error() != nil {
		return false
	}
	told("", true)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case m := <-messages:
			told(m, false)
		case <-lost:
			return true
		case <-ctx.Done():
			return true
		case <-tick.C:
			// A primary that was replaced may live on, and hear nothing.
			if _, ok := (*client).Nodes()[addr]; !ok {
				return true
			}
		}
	}
}

// present notes a node until a time, drops those whose time is over, and returns how
// many are left. The group lives as long as the last of them.
var present = rueidis.NewLuaScript(`
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIREAT', KEYS[1], redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2])
return redis.call('ZCARD', KEYS[1])
`)

// Present notes that the node is in the group for ttl, in whole milliseconds of
// Redis' own clock, and returns how many are, itself included.
func (x *Side) Present(ctx context.Context, group, node string, ttl time.Duration) (int, error) {
	if err := sideNode(group, node); err != nil {
		return 0, err
	}
	millis, err := sideTTL(ttl)
	if err != nil {
		return 0, err
	}
	var n int64
	err = x.do(ctx, func(ctx context.Context, client rueidis.Client) (err error) {
		n, err = present.Exec(ctx, client, []string{x.group(group)}, []string{node, strconv.FormatInt(millis, 10)}).ToInt64()
		return err
	})
	return int(n), err
}

// Leave takes the node out of the group, at once.
func (x *Side) Leave(ctx context.Context, group, node string) error {
	if err := sideNode(group, node); err != nil {
		return err
	}
	return x.do(ctx, func(ctx context.Context, client rueidis.Client) error {
		return client.Do(ctx, client.B().Zrem().Key(x.group(group)).Member(node).Build()).Error()
	})
}

func sideNode(group, node string) error {
	if err := sideName("group", group); err != nil {
		return err
	}
	return sideName("node", node)
}

func sideName(field, name string) error {
	if n := len(name); n == 0 || n > MaxSideName {
		return &stint.InvalidError{Field: field, Value: name, Want: "1 to " + strconv.Itoa(MaxSideName) + " bytes, not " + strconv.Itoa(n)}
	}
	return nil
}

func sideSize(field string, n int) error {
	if n > MaxSideValue {
		return &stint.InvalidError{Field: field, Value: strconv.Itoa(n) + " bytes", Want: "at most " + strconv.Itoa(MaxSideValue)}
	}
	return nil
}

// sideTTL returns a time to live in milliseconds, of which the last is a whole one.
func sideTTL(ttl time.Duration) (millis int64, err error) {
	if ttl <= 0 {
		return 0, &stint.InvalidError{Field: "ttl", Value: ttl.String(), Want: "a duration above 0"}
	}
	return int64((ttl-1)/time.Millisecond) + 1, nil
}
