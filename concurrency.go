package stint

import "slices"

// Concurrency: what is held at once. It is a log whose entries are taken out again: a hold is an
// entry, a release takes it out, a renewal puts it at the end, and what is neither released nor
// renewed leaves by itself a window after it was put there.
//
// No two holds have the same instant, which is their name: a hold at the instant of another, or
// before it, is a microsecond later. So a release that comes twice releases nothing the second time.

// MaxPlaces is the largest max of concurrency.
const MaxPlaces = MaxLog

// holdAt returns the instant of a hold that begins now.
func holdAt(c *Counter, now int64) int64 { return max(now, c.At+1) }

// renew puts a hold at the end of the log, unless it is not there any more. It returns how many
// places it holds then.
func (p *Plan) renew(s *State, now int64, charge *Charge) (held int64) {
	i, found := findEntry(s.Log, charge.At)
	if !found {
		return 0
	}
	held = s.Log[i].Units
	s.At = holdAt(&s.Counter, now)
	s.Log = append(slices.Delete(slices.Clone(s.Log), i, i+1), Entry{s.At, held})
	return held
}
