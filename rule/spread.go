package rule

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/strict"
)

// The bounds of lease and split.
const (
	minLease = 10 * time.Millisecond // a call to the store takes almost as long
	maxLease = 10 * time.Second      // for so long units may be missing elsewhere
	minSplit = 2
	maxSplit = 64
)

// whole are the algorithms whose limits have to be counted in one place, and why.
var whole = map[stint.Algorithm]string{
	stint.LeakyBucket: "a leaky_bucket lets requests leave one after the other, so one counter has to know of all of them",
	stint.Concurrency: "places of concurrency are held, and not spent",
}

// checkLease checks for how long units of a limit may be taken ahead. The value is zero if it
// is not valid.
func (c *checker) checkLease(l Limit, v stint.Limit) {
	const path = "lease"
	lease, window := time.Duration(l.Lease), v.Window.Length()
	switch {
	case lease == 0:
	case lease < minLease || lease > maxLease:
		c.Refuse(path, l.Lease.String(), "from "+Duration(minLease).String()+" to "+Duration(maxLease).String()+
			": a shorter lease saves no calls, and units are missing elsewhere for as long as one lasts", "")
	case whole[v.Algorithm] != "":
		c.Refuse(path, l.Lease.String(), "none: "+whole[v.Algorithm], "")
	case window > 0 && lease > window:
		c.Refuse(path, l.Lease.String(), "at most "+Duration(window).String()+", the window of the limit: a lease ends with it", "")
	}
}

// checkSplit checks among how many counters a limit is divided. The value is zero if it is
// not valid.
func (c *checker) checkSplit(l Limit, v stint.Limit) {
	const path = "split"
	switch most := divisible(v); {
	case l.Split == 0:
	case l.Split < minSplit || l.Split > maxSplit:
		c.refuseNumber(path, int64(l.Split), fmt.Sprintf("from %d to %d counters, or none for a single one", minSplit, maxSplit))
	case whole[v.Algorithm] != "":
		c.refuseNumber(path, int64(l.Split), "none: "+whole[v.Algorithm])
	case most > 0 && int64(l.Split) > most:
		c.refuseNumber(path, int64(l.Split), "at most "+strconv.FormatInt(most, 10)+", or a larger limit: every counter gets a part of at least 1")
	}
}

// checkTierSpread checks a tier's value of a limit that a rule leases or divides.
func (c *checker) checkTierSpread(path string, r *checked, l *Limit, v stint.Limit) {
	if v == (stint.Limit{}) || l.Lease == 0 && l.Split == 0 {
		return
	}
	of, window := "the rule "+strict.Quote(r.Name)+" ", v.Window.Length()
	if why := whole[v.Algorithm]; why != "" {
		c.Add(path, of+"has a lease or a split for this limit: want another algorithm: "+why, "")
		return
	}
	if window > 0 && time.Duration(l.Lease) > window {
		c.Add(path, of+"takes units ahead for "+l.Lease.String()+" (lease): want a window of at least that, or a shorter lease", "")
	}
	if int64(l.Split) > divisible(v) {
		c.Add(path, fmt.Sprintf("%sdivides the limit among %d counters (split): want at least %[2]d, or a smaller split", of, l.Split), "")
	}
}

// divisible returns among how many counters a limit can be divided at most.
func divisible(v stint.Limit) int64 { return min(v.Max, v.Cap()) }

// tooCostly reports whether a cost can never pass a value of the limit. One counter has to
// pass it.
func (l *Limit) tooCostly(units int64, v stint.Limit) bool {
	most := l.part(v)
	return units > 1 && most > 0 && units > most
}

// part returns the largest cost that a counter of the limit can pass.
func (l *Limit) part(v stint.Limit) int64 {
	n := int64(max(l.Split, 1))
	return (v.Cap() + n - 1) / n
}

// inParts shows a value, and how it is divided.
func (l *Limit) inParts(v stint.Limit) string {
	if l.Split < minSplit {
		return v.String()
	}
	return fmt.Sprintf("%v, split into %d counters of at most %d", v, l.Split, l.part(v))
}

// saySpread says which limits are leased or divided.
func (r *Rule) saySpread() string {
	var all []string
	for _, l := range r.Limits[:min(len(r.Limits), maxLimits)] {
		units, limit := "units", "the limit"
		if len(r.Limits) > 1 {
			limit += " " + cmp.Or(printable(l.Name), `""`)
			units += " of " + limit
		}
		if l.Lease != 0 {
			all = append(all, "each node takes "+units+" ahead of requests, for up to "+amount(time.Duration(l.Lease)))
		}
		if l.Split != 0 {
			all = append(all, limit+" is divided among "+count(int64(l.Split), "counter"))
		}
	}
	return strings.Join(all, "; ")
}
