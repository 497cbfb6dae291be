package memstore

import "sync/atomic"

// directory leads from the first bits of a fingerprint to its shard. A shard
// that is full is split in two, and a directory that cannot tell the two apart
// is doubled: so a small store is a small table, a large one is many of the same
// size, and none takes long to grow.
type directory struct {
	shards []atomic.Pointer[shard]
	depth  uint8 // bits
}

func newDirectory(depth uint8) *directory {
	return &directory{make([]atomic.Pointer[shard], 1<<depth), depth}
}

func (d *directory) slot(hi uint64) int {
	return int(hi >> ((63 - d.depth) & 63)) // &: or the compiler makes sure of it itself
}

// set enters a shard for all fingerprints that begin as it says.
func (d *directory) set(sh *shard) {
	first := d.slot(sh.prefix)
	for i := range 1 << (d.depth - sh.depth) {
		d.shards[first+i].Store(sh)
	}
}

// doubled returns a directory of one bit more.
func (d *directory) doubled() *directory {
	next := newDirectory(d.depth + 1)
	for i := range next.shards {
		next.shards[i].Store(d.shards[i/2].Load())
	}
	return next
}

// shardOf returns the shard of a fingerprint. Shards are in the order of
// fingerprints, so that those who lock counters in that order lock shards in
// order too. Without its lock, the shard may have been split meanwhile.
func (s *Store) shardOf(c id) *shard {
	d := s.dir.Load()
	return d.shards[d.slot(c.hi)].Load()
}

// lock locks the shard of a fingerprint.
func (s *Store) lock(c id) *shard {
	for {
		sh := s.shardOf(c)
		sh.mu.Lock()
		if s.shardOf(c) == sh {
			return sh
		}
		sh.mu.Unlock()
	}
}

// unlock unlocks a shard, and splits it if it has become too large: into shards
// of which searching or moving all counters takes microseconds.
func (s *Store) unlock(sh *shard) {
	const most = 1024
	if sh.live() > most {
		other := sh.split()
		s.grow.Lock()
		if d := s.dir.Load(); other.depth > d.depth {
			s.dir.Store(d.doubled())
		}
		s.dir.Load().set(other)
		s.grow.Unlock()
	}
	sh.mu.Unlock()
}
