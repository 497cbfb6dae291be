package memstore

import "github.com/stintdev/stint"

// A mark is kept beside a counter, like a counter, as long as a charge of it may be changed: its past, or
// that a change with an ID was made. A mark is only read and written while its shard is locked.

// markOf returns the fingerprint of the mark of a change with that ID, or of the past if it is empty.
func (s *Store) markOf(c id, change string) id { return c.with(s.names.of(change), mark) }

// mark returns what tells charges of the counter from those of others.
func (c id) mark() uint32 { return uint32(c.lo) }

// setMark makes a mark that a change was made.
func (s *Store) setMark(c id, f from, now, until int64) {
	s.putMark(c, kept{from: f}, now, stint.State{Counter: stint.Counter{Until: until}})
}

// setPast stores the past of a counter. That of a bucket has a log: each refund is two entries in it.
func (s *Store) setPast(c id, a *stint.Ask, now int64, past *stint.Past) {
	st := stint.State{Counter: stint.Counter{At: past.Reset, Used: past.Unit, Until: past.Until}}
	for _, r := range past.Refunds {
		st.Log = append(st.Log, stint.Entry{At: r.From, Units: r.Parts}, stint.Entry{At: r.At})
	}
	s.putMark(s.markOf(c, ""), kept{from: s.fromOf(a), hasLog: isBucket(a)}, now, st)
}

func (s *Store) putMark(c id, k kept, now int64, st stint.State) {
	sh := s.shardOf(c)
	x := sh.acquire(c)
	if x == nil {
		x = sh.insert(c, k, now)
	}
	s.logs.put(x, st)
	x.worth = 1 // like one unit
	x.release(c)
}

// past returns the past of a counter, whose mark may be nil.
func (s *Store) past(mark *cell) (p stint.Past) {
	c, log := s.logs.load(mark)
	p.Reset, p.Unit, p.Until = c.At, c.Used, c.Until
	for i := 0; i < len(log); i += 2 {
		p.Refunds = append(p.Refunds, stint.Refunded{From: log[i].At, At: log[i+1].At, Parts: log[i].Units})
	}
	return p
}

// needsPast reports whether an adjustment depends on the past of its counter, or becomes part of it.
func needsPast(a *stint.Ask) bool { return a.Charge != nil || isBucket(a) && a.Cost < 0 }

func isBucket(a *stint.Ask) bool {
	return a.Limit.Algorithm == stint.TokenBucket || a.Limit.Algorithm == stint.LeakyBucket
}

// cellOf returns the cell of a counter or a mark among the items, or nil.
func cellOf(items []item, c id) *cell {
	for i := range items {
		if items[i].id == c {
			return items[i].cell
		}
	}
	return nil
}
