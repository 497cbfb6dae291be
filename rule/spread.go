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

// Why some algorithms have neither, or no split.
const (
	held   = "places of concurrency are held, and not spent"
	spaced = "only one counter can let the requests of a leaky_bucket leave one after the other"
)

// checkLease checks for how long units of a limit may be taken ahead. The value is zero if it
// is not valid.
func (c *checker) checkLease(l Limit, v stint.Limit) {
	const path = "lease"
	lease, window := time.Duration(l.Lease), v.Window.Length()
	switch {
	case lease == 0:
	case lease < stint.MinLease || lease > stint.MaxLease:
		c.Refuse(path, l.Lease.String(), "from "+Duration(stint.MinLease).String()+" to "+Duration(stint.MaxLease).String()+
			": a shorter lease saves no calls, and units are missing elsewhere for as long as one lasts", "")
	case v.Algorithm == stint.Concurrency:
		c.Refuse(path, l.Lease.String(), "none: "+held, "")
	case window > 0 && lease > window:
		c.Refuse(path, l.Lease.String(), "at most "+Duration(window).String()+", the window of the limit: a lease ends with it", "")
	}
}

// checkSplit checks among how many counters a limit is divided. The value is zero if it is
// not valid.
func (c *checker) checkSplit(l Limit, v stint.Limit) {
	const path = "split"
	switch {
	case l.Split == 0:
	case l.Split < 2 || l.Split > stint.MaxSplit:
		c.refuseNumber(path, int64(l.Split), fmt.Sprintf("from 2 to %d counters, or none for a single one", stint.MaxSplit))
	case v.Algorithm == stint.Concurrency:
		c.refuseNumber(path, int64(l.Split), "none: "+held)
	case v.Algorithm == stint.LeakyBucket:
		c.refuseNumber(path, int64(l.Split), "none: "+spaced+"; token_bucket can be split")
	case v.Max > 0 && int64(l.Split) > divisible(v):
		c.refuseNumber(path, int64(l.Split), "at most "+strconv.FormatInt(divisible(v), 10)+", or a larger limit: every counter gets a part of at least 1")
	}
}

// checkTierSpread checks a tier's value of a limit that a rule leases or divides.
func (c *checker) checkTierSpread(path string, r *checked, l *Limit, v stint.Limit) {
	of, window := "the rule "+strict.Quote(r.Name)+" ", v.Window.Length()
	if window > 0 && time.Duration(l.Lease) > window {
		c.Add(path, of+"takes units ahead for "+l.Lease.String()+" (lease): want a window of at least that, or a shorter lease", "")
	}
	switch {
	case v.Algorithm == stint.Concurrency && (l.Split != 0 || l.Lease != 0):
		c.Add(path, of+"takes units ahead or divides the limit (lease, split): want a value of another algorithm: "+held, "")
	case l.Split == 0 || v.Max == 0: // one counter, or unlimited
	case v.Algorithm == stint.LeakyBucket:
		c.Add(path, of+"divides the limit (split): want a value of another algorithm: "+spaced, "")
	case int64(l.Split) > divisible(v):
		c.Add(path, fmt.Sprintf("%sdivides the limit among %d counters (split): want at least %[2]d, or a smaller split", of, l.Split), "")
	}
}

// divisible returns among how many counters a limit can be divided at most.
func divisible(v stint.Limit) int64 { return min(v.Max, v.Cap()) }

// MostCost returns the largest cost that can pass a limit that is divided among so many counters, or is not, if
// there are fewer than two. One counter has to hold it.
func MostCost(v stint.Limit, split int) int64 {
	if split < 2 || v.Algorithm == stint.LeakyBucket || v.Algorithm == stint.Concurrency {
		return v.Cap()
	}
	n := max(1, min(int64(split), divisible(v)))
	return (v.Cap()-1)/n + 1
}

// inParts says what a limit that is divided can hold.
func inParts(v stint.Limit, split int) string {
	if split < 2 {
		return ""
	}
	return fmt.Sprintf(", which is divided among %d counters (split): want a cost of at most %d, or a smaller split", split, MostCost(v, split))
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
