package memstore

import "sync/atomic"

// directory maps the first bits of a fingerprint to the table of its shard. A full shard is split in
// two, and the directory is doubled if it has too few bits to distinguish them. So a small store is
// one small table, a large one has many tables of similar size, and growing is always quick.
type directory struct {
	tables []atomic.Pointer[table]
	depth  uint8 // number of bits
	shift  uint8 // of hi, to get these bits
}

func newDirectory(depth uint8) *directory {
	return &directory{make([]atomic.Pointer[table], 1<<depth), depth, 63 - depth}
}

func (d *directory) slot(hi uint64) int {
	return int(hi >> (d.shift & 63)) // & 63 saves the compiler's check for large shifts
}

// set stores a shard's table in all slots that begin with the shard's prefix.
func (d *directory) set(sh *shard) {
	first, t := d.slot(sh.prefix), sh.table // read once: as soon as it is visible, it may be replaced
	for i := range 1 << (d.depth - sh.depth) {
		d.tables[first+i].Store(t)
	}
}

// doubled returns a directory with one more bit.
func (d *directory) doubled() *directory {
	next := newDirectory(d.depth + 1)
	for i := range next.tables {
		next.tables[i].Store(d.tables[i/2].Load())
	}
	return next
}

// enter makes the tables of shards visible.
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

// tableOf returns the table for a fingerprint. Unless the caller holds the shard's lock, it may have
// been replaced already.
func (s *Store) tableOf(c id) *table {
	d := s.dir.Load()
	return d.tables[d.slot(c.hi)].Load()
}

// shardOf returns the shard of a fingerprint. Shards have the order of fingerprints, so locking
// counters in order locks shards in order too. Unless the caller holds its lock, the shard may have
// been split already.
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

// unlock unlocks a shard. It splits one that has become too large first, so that searching or moving
// all counters of a shard takes microseconds.
func (s *Store) unlock(sh *shard) {
	const maxLive = 1024
	if sh.live() > maxLive {
		s.enter(sh, sh.split())
	}
	sh.mu.Unlock()
}
