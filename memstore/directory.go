package memstore

import "sync/atomic"

// directory leads from the first bits of a fingerprint to the table of its shard.
// A shard that is full is split in two, and a directory that cannot tell the two
// apart is doubled: so a small store is a small table, a large one is many of the
// same size, and none takes long to grow.
type directory struct {
	tables []atomic.Pointer[table]
	depth  uint8 // bits
	shift  uint8 // to leave as many
}

func newDirectory(depth uint8) *directory {
	return &directory{make([]atomic.Pointer[table], 1<<depth), depth, 63 - depth}
}

func (d *directory) slot(hi uint64) int {
	return int(hi >> (d.shift & 63)) // &: or the compiler makes sure of it itself
}

// set enters a shard's table for all fingerprints that begin as it says.
func (d *directory) set(sh *shard) {
	first, t := d.slot(sh.prefix), sh.table // once: when it is found, it may be replaced
	for i := range 1 << (d.depth - sh.depth) {
		d.tables[first+i].Store(t)
	}
}

// doubled returns a directory of one bit more.
func (d *directory) doubled() *directory {
	next := newDirectory(d.depth + 1)
	for i := range next.tables {
		next.tables[i].Store(d.tables[i/2].Load())
	}
	return next
}

// enter has the tables of shards found from now on.
func (s *Store) enter(shards ...*shard) {
	s.grow.Lock()
	defer s.grow.Unlock()
	for _, sh := range shards {
		if d := s.dir.Load(); sh.depth > d.depth {
			s.dir.Store(d.doubled())
		}
		s.dir.Load().set(sh)
	}
}

// tableOf returns the table in which a fingerprint is to be found. Without its shard's lock, it
// may be another meanwhile.
func (s *Store) tableOf(c id) *table {
	d := s.dir.Load()
	return d.tables[d.slot(c.hi)].Load()
}

// shardOf returns the shard of a fingerprint. Shards are in the order of
// fingerprints, so that those who lock counters in that order lock shards in
// order too. Without its lock, the shard may have been split meanwhile.
func (s *Store) shardOf(c id) *shard { return s.tableOf(c).shard }

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
		s.enter(sh, sh.split())
	}
	sh.mu.Unlock()
}
