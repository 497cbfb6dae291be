package stint

import "slices"

// MaxLog is the largest max of a sliding_log: it remembers each unit, and its
// memory and the time to judge grow with it.
const MaxLog = 10_000

// Sliding log: the units charged in (now-w, now], each with its time.
//
// Charges at one instant share an entry. A charge that was forced on a log
// with max entries joins the newest, which then counts from now, so that a log
// never has more entries than its limit has units.

func (p *Plan) logAdvance(c *Counter, log *[]Entry, now int64) {
	edge := max(now, c.At) - p.window
	gone := 0
	for gone < len(*log) && (*log)[gone].At <= edge {
		c.Used -= (*log)[gone].Units
		gone++
	}
	*log = (*log)[gone:]
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

func (p *Plan) logPassAt(c *Counter, log []Entry, cost int64) int64 {
	need := c.Used + cost - p.cap
	for _, e := range log {
		if need -= e.Units; need <= 0 {
			return e.At + p.window
		}
	}
	return c.At + p.window // not reached: cost is within the capacity
}
