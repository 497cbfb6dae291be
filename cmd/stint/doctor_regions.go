package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/region/gossip"
	"github.com/stintdev/stint/internal/region/link"
	"github.com/stintdev/stint/internal/region/quota"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/rule"
)

// regions checks whether other regions can be reached and accept this one, and whether rules that regions share
// can be used up.
func (d *doctor) regions(ctx context.Context, c *daemon.Config) {
	all := c.RegionLinks("doctor-" + rand.Text()[:6])
	if len(all) == 0 {
		return
	}
	delay := d.links(ctx, c, all)
	before := len(d.all)
	shared := 0
	for i := range d.file.Rules {
		r := &d.file.Rules[i]
		if r.Enabled != nil && !*r.Enabled {
			continue
		}
		if r.Regions != rule.RegionsGossip && r.Regions != rule.RegionsQuota {
			continue // the link of a central one was tried
		}
		for j := range r.Limits {
			shared++
			for _, v := range d.values(r, &r.Limits[j]) {
				if r.Regions == rule.RegionsQuota {
					d.quota(v, all[0].Regions)
				} else {
					d.credit(c, v, gossip.Credit(&stint.Policy{Credit: int64(r.Credit)}, v.Limit), delay)
				}
			}
		}
	}
	if shared > 0 && len(d.all) == before {
		d.note("rules.shared", findOK, fmt.Sprintf("limits that regions share by gossip or quota: %d", shared), "")
	}
}

// links opens a link to each region, and returns the longest delay.
func (d *doctor) links(ctx context.Context, c *daemon.Config, all []link.Options) (longest time.Duration) {
	const patience, often = 5 * time.Second, 20 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ahead := d.storeClock(ctx, c)
	opened := make([]*link.Link, len(all))
	for i, o := range all {
		o.Clock = func() int64 { return now().Add(ahead).UnixMicro() }
		l, err := link.Open(o)
		if err != nil {
			d.note("regions.link", findFail, o.Region+": "+err.Error(), "correct region.peers")
			continue
		}
		defer l.Close()
		opened[i] = l
	}
	tick := time.NewTicker(often)
	defer tick.Stop()
	for i, l := range opened {
		if l == nil {
			continue
		}
		s := l.State()
		for ; s.Pings == 0 && s.Refused == 0 && ctx.Err() == nil; s = l.State() {
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
		d.link(&all[i], &s)
		longest = max(longest, s.RoundTrip)
	}
	return longest
}

// link adds what was found of a link.
func (d *doctor) link(o *link.Options, s *link.State) {
	const most = time.Second
	at := o.Region + ": " + o.URL
	switch {
	case s.Refused > 0 && s.Why != nil:
		d.note("regions.link", findFail, at+" refuses this region: "+s.Why.Error(), "the same region.secret, the same names of regions and the same weights, in all regions, and a certificate that names this one")
		return
	case s.Why != nil:
		d.note("regions.link", findFail, at+" cannot be reached: "+s.Why.Error(), "region.listener.address there, region.peers here, certificates and their authorities, and whether a firewall is between them")
		return
	case s.Pings == 0:
		d.note("regions.link", findWarn, at+" accepts this region, and does not answer", "the log of the servers there")
		return
	}
	d.note("regions.link", findOK, fmt.Sprintf("%s accepts this region; a message there and back takes %v", at, s.RoundTrip.Round(10*time.Microsecond)), "")
	text := fmt.Sprintf("%s: the clocks of the stores differ by %v", o.Region, s.Skew.Abs().Round(time.Millisecond))
	if s.Skew.Abs() > most {
		d.note("regions.clock", findWarn, text+": what was used there is charged at the wrong time here", "chrony or another NTP client, on the machines of the stores")
	} else {
		d.note("regions.clock", findOK, text, "")
	}
}

// storeClock returns by how much the clock of this region's store is ahead of this machine's. It is 0 if there is no
// store to ask; then another check says why.
func (d *doctor) storeClock(ctx context.Context, c *daemon.Config) time.Duration {
	if c.Server.Counters == inMemory {
		return 0
	}
	s, err := redisstore.Open(string(c.Server.Counters), redisstore.Options{})
	if err != nil {
		return 0
	}
	defer s.Close()
	look := []stint.Ask{{
		Key:   stint.Key{Subject: "~doctor", Name: "clock"},
		Limit: stint.Limit{Algorithm: stint.FixedWindow, Max: 1, Window: stint.Every(time.Second)},
	}}
	var got [1]stint.Decision
	before := now()
	if s.Take(ctx, look, got[:]) != nil {
		return 0
	}
	middle := before.Add(now().Sub(before) / 2)
	return time.UnixMicro(got[0].At).Sub(middle)
}

// credit checks whether a gossiped limit can be used up: what a region may be ahead of the others has to last until
// they have acknowledged it.
func (d *doctor) credit(c *daemon.Config, v value, credit int64, delay time.Duration) {
	const check, hint = "rules.credit", "a larger credit, or none for a tenth of the limit"
	nodes := int64(cmp.Or(c.Server.Replicas, d.alive, 1))
	if credit < nodes {
		d.note(check, findWarn, fmt.Sprintf("%s: the credit is %d, and this region has %d nodes, each of which has at least 1: more than the bound may pass", v.name, credit, nodes), hint)
		return
	}
	from, to := v.Window.Bounds(now())
	lasts := time.Duration(float64(credit) / float64(v.Max) * float64(to.Sub(from)))
	const charging = 100 * time.Millisecond       // in the other region, at most
	if known := delay + charging; lasts < known { // who waits has the others told at once
		d.note(check, findWarn, fmt.Sprintf("%s: at the rate of the limit, the credit of %d lasts for %v, and the others know after up to %v: requests may wait, or be denied, before the limit is used up",
			v.name, credit, lasts.Round(time.Millisecond), known.Round(time.Millisecond)), hint)
	}
}

// quota checks whether each region has enough units of a limit.
func (d *doctor) quota(v value, regions []link.Region) {
	const check, few = "rules.quota", 5
	weights := make([]int, len(regions))
	for i, r := range regions {
		weights[i] = int(r.Weight)
	}
	for i, r := range regions {
		if part, _ := quota.Part(v.Limit, weights, i); part.Max < few {
			d.note(check, findWarn, fmt.Sprintf("%s: the region %s has %d of %d units: clients that it serves are denied early", v.name, r.Name, part.Max, v.Max),
				`a larger limit; or regions = "central" or "gossip"`)
		}
	}
}
