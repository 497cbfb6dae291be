package stint

import (
	"cmp"
	"slices"
)

// MaxLog is the largest max of a sliding_log: it remembers each unit, and its
// memory and the time to judge grow with it.
const MaxLog = 10_000

// Sliding log: the units charged in (now-w, now], each with its time.
//
// Charges at one instant share an entry. A charge that was forced on a log
// with max entries joins the newest, which then counts from now, so that a log
// never has more entries than its limit has units.

func (p *Plan) logAdvance(c *Counter, log *[]Entry, now int64) {
	edge := now - p.window
	gone := 0
	for gone < len(*log) && (*log)[gone].At <= edge {
		c.Used -= (*log)[gone].Units
		gone++
	}
	*log = (*log)[gone:]
}

// logAt returns the instant of a charge that is made now.
func (p *Plan) logAt(c *Counter, now int64) int64 {
	if p.limit.Algorithm == Concurrency {
		return holdAt(c, now)
	}
	return now
}

// logCharge does to the log what charge does to its counter.
func (p *Plan) logCharge(log []Entry, at, units int64) []Entry {
	n := len(log)
	if units > 0 {
		log = append(slices.Grow(slices.Clone(log), 1), Entry{at, units})
		if n > 0 && (log[n-1].At == at || int64(n) >= p.cap) {
			log[n-1] = Entry{at, log[n-1].Units + units}
			log = log[:n]
		}
		return log
	}
	// A refund follows its take: the newest units go first.
	back := -units
	for n > 0 && back >= log[n-1].Units {
		back -= log[n-1].Units
		n--
	}
	log = slices.Clone(log[:n])
	if n > 0 {
		log[n-1].Units -= back
	}
	return log
}

// findEntry returns where in the log the entry of an instant is, or would be.
func findEntry(log []Entry, at int64) (i int, found bool) {
	return slices.BinarySearchFunc(log, at, func(e Entry, at int64) int { return cmp.Compare(e.At, at) })
}

// logAmend changes a charge at its entry. One that is not there any more has left the log, or was
// given back, unless there is still time to charge what was not charged then.
func (p *Plan) logAmend(s *State, now, at, by int64) {
	i, found := findEntry(s.Log, at)
	switch {
	case found:
		by = max(by, -s.Log[i].Units)
	case by <= 0 || at <= now-p.window || p.limit.Algorithm == Concurrency:
		return
	}
	s.Used += by
	s.Log = slices.Clone(s.Log)
	switch {
	case !found && int64(len(s.Log)) < p.cap:
		s.Log = slices.Insert(s.Log, i, Entry{at, by})
	case !found: // a full log: it counts as long as a newer entry
		s.Log[min(i, len(s.Log)-1)].Units += by
	case s.Log[i].Units+by == 0:
		s.Log = slices.Delete(s.Log, i, i+1)
	default:
		s.Log[i].Units += by
	}
}

func (p *Plan) logPassAt(c *Counter, log []Entry, cost int64) int64 {
	need := c.Used + cost - p.cap
	for _, e := range log {
		if need -= e.Units; need <= 0 {
			return e.At + p.window
		}
	}
	return c.At + p.window // not reached: cost is within the capacity
}
