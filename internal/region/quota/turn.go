package quota

import (
	"slices"
	"strings"
	"time"
)

// row is the weights of a rule and class in the database.
type row struct {
	place
	number int64 // goes up with each change
	// settled says that the weights after the change are in force. Until then, each region has the smaller part
	// of both.
	settled bool
	shares  []share // by region
	began   time.Time
	// seen is when the row was first found in the database, by the clock of the database, and so no earlier than
	// everyone else could read it. Zero: it was not yet.
	seen time.Time

	division *division // of a node that has read it
}

// share is the weight of a region, in parts per million.
type share struct {
	Region string `json:"region"`
	Before int    `json:"before"`
	After  int    `json:"after"`
}

// is reports whether two rows say the same to a node.
func (r *row) is(s *row) bool {
	return r != nil && r.number == s.number && r.settled == s.settled && slices.Equal(r.shares, s.shares)
}

// divisionOf returns the division of a row that was read. No row has none.
func (r *row) divisionOf() *division {
	if r == nil {
		return nil
	}
	return r.division
}

// divide returns how the row divides limits for a region.
func (r *row) divide(own string) *division {
	before, after := make([]int, len(r.shares)), make([]int, len(r.shares))
	at := -1
	for i, s := range r.shares {
		if before[i], after[i] = s.Before, s.After; r.settled {
			before[i] = s.After
		}
		if s.Region == own {
			at = i
		}
	}
	return newDivision(before, after, at)
}

// demand is what a node reports: units that it was asked for, smoothed.
type demand struct {
	place
	region, node string
	units        int64
	at           time.Time // by the clock of the database
}

// change is a row to be written, or to be deleted.
type change struct {
	row
	delete bool
}

// maxRows is the most rows in the database.
const maxRows = 4 * MaxRules

// A weight must differ from what follows from the demand by material, of a million, so that the weights change: a
// change takes something from those who lose at once, and gives it to the others later. Demand that is shared
// varies by chance, most if it is halved. So there it must be noise more.
const material, noise = million / 200, million * 8 / 100

// turn returns what is to be changed. It is called by one node at a time.
func (t *Table) turn(now time.Time, rows []row, ds []demand) (changes []change) {
	asked := map[place]*asked{}
	for i := range ds {
		asked[ds[i].place] = asked[ds[i].place].with(t, now, &ds[i])
	}
	for i := range rows {
		r := rows[i]
		if c, changed := t.next(now, r, asked[r.place]); changed {
			changes = append(changes, c)
		}
		delete(asked, r.place)
	}
	room := maxRows - len(rows)
	for i := range ds { // in their order, and not that of the map
		at := ds[i].place
		if asked[at] == nil || room <= 0 {
			continue
		}
		r := row{place: at, settled: true, shares: t.shares(t.start.after)}
		if c, changed := t.next(now, r, asked[at]); changed {
			changes = append(changes, c)
			room--
		}
		delete(asked, at)
	}
	return changes
}

// asked is the demand for a place: of each region of the table, as reported of late.
type asked struct {
	units []int64
	any   bool // there is some
}

func (a *asked) with(t *Table, now time.Time, d *demand) *asked {
	if a == nil {
		a = &asked{units: make([]int64, len(t.names))}
	}
	if i, ok := slices.BinarySearch(t.names, d.region); ok && now.Sub(d.at) <= fresh && d.units > 0 {
		a.units[i] += d.units
		a.any = true
	}
	return a
}

// next returns what becomes of a row.
func (t *Table) next(now time.Time, r row, a *asked) (c change, changed bool) {
	goal, far := t.goal(&r, a)
	switch {
	case !r.settled && !t.has(&r): // the table of regions has changed
		return r.toward(t, goal, now), true
	case !r.settled && r.seen.IsZero():
		r.seen = now
		return change{row: r}, true
	case !r.settled && now.Sub(r.seen) >= wait(r.class):
		return r.settle(), true
	case !r.settled:
		// For a minute the change may still be changed: demand that moves has only begun to, and no region has
		// gained anything yet.
		if far && now.Sub(r.began) < round {
			return r.toward(t, goal, r.began), true
		}
		return c, false
	case far && now.Sub(r.began) >= round:
		return r.toward(t, goal, now), true
	case a == nil && !far: // nobody asks for it, and without it nothing is different
		return change{row: r, delete: true}, true
	}
	return c, false
}

// wait is how long a region has its smaller weight before another has its larger one.
func wait(class int) time.Duration { return Valid + classes[class] + margin }

// goal returns the weights that a row should have, of all regions of the table, and whether they are far from
// those that it has, or that it is changing to. Without demand these are the ones of the table, if nobody reports
// any more, and otherwise they stay.
func (t *Table) goal(r *row, a *asked) (goal []int, far bool) {
	switch {
	case a == nil:
		return t.start.after, !t.has(r) || t.differs(r, t.start.after, func(int) int { return 1 })
	case !t.has(r):
		return t.start.after, true
	case !a.any:
		return nil, false
	}
	sum := 0.0
	for _, n := range a.units {
		sum += float64(n)
	}
	goal = t.target(a.units)
	return goal, t.differs(r, goal, func(i int) int {
		part := float64(a.units[i]) / sum
		return material + int(noise*4*part*(1-part))
	})
}

// differs reports whether the weights of a row differ from others by so much.
func (t *Table) differs(r *row, weights []int, least func(i int) int) bool {
	for i, w := range weights {
		if d := r.shares[r.index(t.names[i])].After - w; max(d, -d) >= least(i) {
			return true
		}
	}
	return false
}

// has reports whether the regions that have weights after the change are those of the table.
func (t *Table) has(r *row) bool {
	n := 0
	for _, s := range r.shares {
		if s.After == 0 {
			continue
		}
		if n >= len(t.names) || t.names[n] != s.Region {
			return false
		}
		n++
	}
	return n == len(t.names)
}

// shares returns weights of the table's regions, before and after.
func (t *Table) shares(weights []int) []share {
	out := make([]share, len(weights))
	for i, w := range weights {
		out[i] = share{t.names[i], w, w}
	}
	return out
}

// index returns where the share of a region is, or -1.
func (r *row) index(region string) int {
	return slices.IndexFunc(r.shares, func(s share) bool { return s.Region == region })
}

// toward returns the row with which the weights begin to change to others. What is in force stays what they change
// from, however often it is changed to what.
func (r *row) toward(t *Table, weights []int, began time.Time) change {
	next := row{place: r.place, number: r.number + 1, began: began, shares: t.shares(weights)}
	for i := range next.shares {
		next.shares[i].Before = 0
	}
	for _, s := range r.shares {
		if r.settled {
			s.Before = s.After
		}
		if i := next.index(s.Region); i >= 0 {
			next.shares[i].Before = s.Before
		} else if s.Before > 0 { // it is in the table no more
			next.shares = append(next.shares, share{Region: s.Region, Before: s.Before})
		}
	}
	slices.SortFunc(next.shares, func(a, b share) int { return strings.Compare(a.Region, b.Region) })
	return change{row: next}
}

// settle returns the row with which a change is complete.
func (r *row) settle() change {
	next := row{place: r.place, number: r.number + 1, settled: true, began: r.began}
	for _, s := range r.shares {
		if s.After > 0 {
			next.shares = append(next.shares, share{s.Region, s.After, s.After})
		}
	}
	return change{row: next}
}
