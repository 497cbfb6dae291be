package redisstore

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/stintdev/stint"
)

// Side stores other data in the same Redis: cached values, which may vanish; messages, which may
// be lost; and groups of nodes that are present. It is safe for concurrent use.
//
// Values and channels are named prefix:side/name, groups prefix:present/name, and nodes that have left
// prefix:left/length/name/node. A prefix cannot
// have a slash, and the prefix of a counter is followed by a brace, so these names never collide
// with each other, with counters or with other prefixes.
//
// In a ring, a value, a channel or a group is on the server of its name, and fails while that server does.
// When the ring changes, those that move begin anew.
type Side struct{ store *Store }

// Maximum sizes in bytes.
const (
	MaxSideName  = 512      // of a name, a channel, a group or a node
	MaxSideValue = 64 << 10 // of a value or a message
)

// Side returns access to data other than counters. It uses the store's connections, and fails
// once the store is closed.
func (s *Store) Side() *Side { return &Side{s} }

func (x *Side) key(name string) string { return x.store.config.prefix + ":side/" + name }

func (x *Side) group(name string) string { return x.store.config.prefix + ":present/" + name }

// left names the mark that a node has left a group. The length keeps apart names that have slashes.
func (x *Side) left(group, node string) string {
	return x.store.config.prefix + ":left/" + strconv.Itoa(len(group)) + "/" + group + "/" + node
}

// do runs f on the server of a key, within the store's timeout, and retries during a failover or migration.
func (x *Side) do(ctx context.Context, key string, f func(context.Context, rueidis.Client) error) error {
	return x.store.within(ctx, func(ctx context.Context) error {
		return x.store.retry(ctx, x.store.linkOf(key), func(client rueidis.Client) error { return f(ctx, client) })
	})
}

// Get returns a value, if there is one.
func (x *Side) Get(ctx context.Context, name string) (value []byte, ok bool, err error) {
	if err := sideName("name", name); err != nil {
		return nil, false, err
	}
	err = x.do(ctx, x.key(name), func(ctx context.Context, client rueidis.Client) error {
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

// Set stores a value for ttl, rounded up to milliseconds.
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
	text := string(value) // a copy: it may be sent after the caller has given up
	return x.do(ctx, x.key(name), func(ctx context.Context, client rueidis.Client) error {
		return client.Do(ctx, client.B().Set().Key(x.key(name)).Value(text).PxMilliseconds(millis).Build()).Error()
	})
}

// Delete deletes any number of values. The URL's timeout applies to each 512 of them. If it
// fails, some may remain.
func (x *Side) Delete(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := sideName("name", name); err != nil {
			return err
		}
	}
	for chunk := range slices.Chunk(names, 512) {
		keys := make([]string, len(chunk))
		for i, name := range chunk {
			keys[i] = x.key(name)
		}
		if err := x.store.within(ctx, func(ctx context.Context) error { return x.erase(ctx, keys) }); err != nil {
			return err
		}
	}
	return nil
}

// erase deletes keys, each with its own command, since in a cluster they may be in several
// slots, or in one that is being migrated.
func (x *Side) erase(ctx context.Context, keys []string) error {
	byLink := map[*link][]string{}
	for _, key := range keys {
		l := x.store.linkOf(key)
		byLink[l] = append(byLink[l], key)
	}
	var errs []error
	for l, keys := range byLink {
		errs = append(errs, x.store.retry(ctx, l, func(client rueidis.Client) error {
			var cmds []rueidis.Completed
			for _, key := range keys {
				cmds = append(cmds, client.B().Del().Key(key).Build())
			}
			for _, res := range client.DoMulti(ctx, cmds...) {
				if err := res.Error(); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	return errors.Join(errs...)
}

// Publish sends a message to the current subscribers of a channel. In Redis, channels do not
// belong to a database: all stores with the same prefix share them.
func (x *Side) Publish(ctx context.Context, channel, message string) error {
	if err := sideName("channel", channel); err != nil {
		return err
	}
	if err := sideSize("message", len(message)); err != nil {
		return err
	}
	return x.do(ctx, x.key(channel), func(ctx context.Context, client rueidis.Client) error {
		// Send it to the node that owns the name's slot: a random node may be down.
		return client.Do(ctx, client.B().Arbitrary("PUBLISH").Keys(x.key(channel)).Args(message).Build()).Error()
	})
}

// Subscribe calls handle for each message. Each time it has connected, it calls handle with
// connected set, since earlier messages may have been lost. It reconnects until ctx is done or
// the store is closed, and then returns; if it is just connecting, it finishes that first.
//
// Calls of handle do not overlap. While handle is busy, a few messages are buffered; when the
// buffer is full, the connection is dropped and Subscribe reconnects. handle must not close the
// store.
func (x *Side) Subscribe(ctx context.Context, channel string, handle func(message string, connected bool)) {
	s := x.store
	s.open.RLock()
	closed := s.closed
	if !closed {
		s.work.Add(1) // not holding the lock, or handle could not use the store while it closes
	}
	s.open.RUnlock()
	if closed {
		return
	}
	defer s.work.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.base, cancel)()

	const minPause, maxPause = 50 * time.Millisecond, 2 * time.Second
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		if x.listen(ctx, channel, handle) {
			pause = minPause
		}
		if wait(ctx, pause) != nil {
			return
		}
	}
}

// listen subscribes on one connection until it ends. It reports whether it was connected.
//
// The connection is not shared with counters, which a slow subscriber would delay. The client
// pings it every second, and closes it if no reply comes within the URL's timeout.
func (x *Side) listen(ctx context.Context, channel string, handle func(string, bool)) (connected bool) {
	client := x.store.linkOf(x.key(channel)).client.Load()
	if client == nil {
		return false
	}
	// Any node of a cluster will do: nodes forward messages to each other. Those of a ring do not, and the
	// client has one.
	var addr string
	var node rueidis.Client
	for addr, node = range (*client).Nodes() {
		break
	}
	if node == nil {
		return false
	}
	conn, _ := node.Dedicate() // closed, since releasing it would return it to the pool
	defer conn.Close()
	over := make(chan struct{})
	defer close(over) // or the hook blocks, and Close waits for it
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
	handle("", true)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case m := <-messages:
			handle(m, false)
		case <-lost:
			return true
		case <-ctx.Done():
			return true
		case <-tick.C:
			// A primary that was replaced may keep running, but gets no messages.
			if _, ok := (*client).Nodes()[addr]; !ok {
				return true
			}
		}
	}
}

// present adds a node with its expiry, removes expired nodes, and returns all nodes with theirs.
// The group expires with its last node.
var present = rueidis.NewLuaScript(`
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIREAT', KEYS[1], redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2])
return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
`)

// Presence is a node that is present in a group.
type Presence struct {
	Node string
	// Until is how long it is present unless it says so again, in milliseconds of Redis' clock.
	Until int64
}

// Present marks the node as present in the group for ttl, rounded up to milliseconds, and returns
// the nodes that are present, including this one.
func (x *Side) Present(ctx context.Context, group, node string, ttl time.Duration) ([]Presence, error) {
	if err := sideNode(group, node); err != nil {
		return nil, err
	}
	millis, err := sideTTL(ttl)
	if err != nil {
		return nil, err
	}
	var out []Presence
	err = x.do(ctx, x.group(group), func(ctx context.Context, client rueidis.Client) error {
		all, err := present.Exec(ctx, client, []string{x.group(group)}, []string{node, strconv.FormatInt(millis, 10)}).AsStrSlice()
		if err != nil {
			return err
		}
		out = make([]Presence, 0, len(all)/2)
		for pair := range slices.Chunk(all, 2) {
			until, err := strconv.ParseFloat(pair[len(pair)-1], 64)
			if len(pair) != 2 || err != nil {
				return errAnswer
			}
			out = append(out, Presence{Node: pair[0], Until: int64(until)})
		}
		return nil
	})
	return out, err
}

// Leave removes the node from the group. For the ttl that it was present for, rounded up to milliseconds,
// [Side.Left] tells others so.
func (x *Side) Leave(ctx context.Context, group, node string, ttl time.Duration) error {
	if err := sideNode(group, node); err != nil {
		return err
	}
	millis, err := sideTTL(ttl)
	if err != nil {
		return err
	}
	return x.do(ctx, x.group(group), func(ctx context.Context, client rueidis.Client) error {
		if err := client.Do(ctx, client.B().Zrem().Key(x.group(group)).Member(node).Build()).Error(); err != nil {
			return err
		}
		return client.Do(ctx, client.B().Set().Key(x.left(group, node)).Value("").PxMilliseconds(millis).Build()).Error()
	})
}

// Left reports whether the node has left the group a short time ago: it is not present, and did not vanish
// because Redis has lost its data, or because it has not said that it is present.
func (x *Side) Left(ctx context.Context, group, node string) (left bool, err error) {
	if err := sideNode(group, node); err != nil {
		return false, err
	}
	err = x.do(ctx, x.group(group), func(ctx context.Context, client rueidis.Client) error {
		err := client.Do(ctx, client.B().Get().Key(x.left(group, node)).Build()).Error()
		if left = err == nil; rueidis.IsRedisNil(err) {
			return nil
		}
		return err
	})
	return left, err
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

// sideTTL returns a time to live in milliseconds, rounded up.
func sideTTL(ttl time.Duration) (millis int64, err error) {
	if ttl <= 0 {
		return 0, &stint.InvalidError{Field: "ttl", Value: ttl.String(), Want: "a duration above 0"}
	}
	return int64((ttl-1)/time.Millisecond) + 1, nil
}
