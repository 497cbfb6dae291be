package identity

import (
	"crypto/sha256"
	"sync"
	"time"
)

// seen caches verified tokens, by their hash. Each shard has two halves: new tokens go
// into the first, and tokens of the second that are used move back to the first. When
// the first is full, the second is dropped and the first takes its place, so roughly
// the least recently used tokens are dropped. A dropped token is verified again.
type seen struct {
	shards [seenShards]seenShard
	half   int // the most tokens in half a shard
}

type seenShard struct {
	mu         sync.RWMutex
	first, old map[[sha256.Size]byte]*claims
	_          [64]byte // a cache line apart
}

const (
	seenShards = 64
	fewestSeen = 2 * seenShards
)

func newSeen(size int) *seen { return &seen{half: size / seenShards / 2} }

// get returns the claims of a token that was verified and is still valid.
func (c *seen) get(sum *[sha256.Size]byte, now time.Time) *claims {
	s := c.shard(sum)
	s.mu.RLock()
	t := s.first[*sum]
	aged := t == nil
	if aged {
		t = s.old[*sum]
	}
	s.mu.RUnlock()
	if t == nil || !t.holds(now) {
		return nil
	}
	if aged {
		c.put(sum, t)
	}
	return t
}

func (c *seen) put(sum *[sha256.Size]byte, t *claims) {
	s := c.shard(sum)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.first) >= c.half || s.first == nil {
		s.old, s.first = s.first, map[[sha256.Size]byte]*claims{}
	}
	s.first[*sum] = t
}

func (c *seen) shard(sum *[sha256.Size]byte) *seenShard {
	return &c.shards[int(sum[0])%seenShards]
}
