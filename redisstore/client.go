package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stintdev/stint"
)

// ClientOptions are the settings of [New].
type ClientOptions struct {
	// Prefix is what every key begins with: 1 to 32 letters, digits and any of ._-:. Default rl, as in URLs.
	Prefix string
	// Timeout is how long a call may take, from 1 ms to 1 min. Default 500 ms.
	Timeout time.Duration
	// Now replaces the clock of Redis, for tests.
	Now func() time.Time
}

// New returns a store that makes its calls with a client of the program's own: a [redis.Client], also one with Sentinels, or
// a [redis.ClusterClient]. The program closes the client, after the store. Calls are the same as those of a store that
// [Open] returns with the same prefix, so both share their counters. [Store.Side] is not available.
//
// A call is never repeated that may have been applied, whatever MaxRetries says, since it would be charged twice.
// The client must have ContextTimeoutEnabled: otherwise a call would go on after its deadline. A [redis.Ring] is rejected: it
// places keys in another way than Open.
func New(client redis.UniversalClient, o ClientOptions) (*Store, error) {
	c := config{prefix: "rl", timeout: 500 * time.Millisecond}
	var obeys bool
	switch client := client.(type) {
	case *redis.Client:
		if client == nil {
			return nil, invalidClient("nil", "a client")
		}
		at := client.Options()
		c.topology, c.addrs, c.db, obeys = single, []string{at.Addr}, at.DB, at.ContextTimeoutEnabled
	case *redis.ClusterClient:
		if client == nil {
			return nil, invalidClient("nil", "a client")
		}
		at := client.Options()
		c.topology, c.addrs, obeys = cluster, at.Addrs, at.ContextTimeoutEnabled
	case *redis.Ring:
		return nil, invalidClient("*redis.Ring", "a Client or ClusterClient; for a ring, use Open with a URL that begins with redis+ring://")
	default:
		return nil, invalidClient(fmt.Sprintf("%T", client), "a *redis.Client or a *redis.ClusterClient")
	}
	if !obeys {
		return nil, &stint.InvalidError{Field: "client.ContextTimeoutEnabled", Value: "false", Want: "true, so that calls end with their deadlines"}
	}
	if o.Prefix != "" {
		if c.prefix = o.Prefix; len(o.Prefix) > 32 || !consistsOf(o.Prefix, "._-:") {
			return nil, &stint.InvalidError{Field: "Prefix", Value: strconv.Quote(o.Prefix), Want: "1 to 32 letters, digits and any of ._-:"}
		}
	}
	if o.Timeout != 0 {
		if c.timeout = o.Timeout; o.Timeout < time.Millisecond || o.Timeout > time.Minute {
			return nil, &stint.InvalidError{Field: "Timeout", Value: o.Timeout.String(), Want: "from 1ms to 1m"}
		}
	}
	c.own = client
	return open(c, Options{Now: o.Now}), nil
}

func invalidClient(value, want string) error {
	return &stint.InvalidError{Field: "client", Value: value, Want: want}
}

// errOwn is the error of what needs connections of the store's own.
var errOwn = errors.New("the store has a client of the program's own: want one that Open returns")

// once is a command that the client does not repeat, as it may have been applied.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// evalOwn runs the script with the program's client.
func (s *Store) evalOwn(ctx context.Context, keys []string, blob []byte) (message, error) {
	do := func(name, what string) (any, error) {
		args := make([]any, 0, 4+len(keys))
		args = append(args, name, what, len(keys))
		for _, k := range keys {
			args = append(args, k)
		}
		cmd := once{redis.NewCmd(ctx, append(args, blob)...)}
		_ = s.config.own.Process(ctx, cmd) // cmd has the error, too
		return cmd.Result()
	}
	answer, err := do("evalsha", s.script.sha)
	if text, ok := errorReply(err); ok && strings.HasPrefix(text, "NOSCRIPT") {
		s.stats.scripts.Add(1)
		answer, err = do("eval", s.script.text)
	}
	switch {
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrClosed), errors.Is(err, redis.ErrPoolExhausted):
		err = notApplied(err) // there was no connection
	}
	return message{own: answer}, err
}
