package daemon

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/stintdev/stint/internal/region/link"
)

// awayRegion says whether the central region decides.
type awayRegion struct {
	mu     sync.Mutex
	since  time.Time // zero: it does
	reason string
}

func (a *awayRegion) set(away bool, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.since, a.reason = (time.Time{}), ""; away {
		a.since, a.reason = time.Now(), reason
	}
}

func (a *awayRegion) get() (since time.Time, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.since, a.reason
}

// centralAway returns since when the central region does not decide, and why. Where no request has found out yet, the
// link says so. If it decides, or this is it, the time is zero.
func (r *regional) centralAway() (since time.Time, reason string) {
	if since, reason = r.away.get(); !since.IsZero() || r.central == r.own {
		return since, reason
	}
	for _, s := range r.links.States() {
		if l := &s.Link; l.Region == r.central && !l.Up {
			return l.Since, whyDown(l.Why)
		}
	}
	return time.Time{}, ""
}

// mostSkew is by how much the clocks of two regions' stores may differ before that is a problem.
const mostSkew = time.Second

// problem describes what is wrong between this region and the others, and its effect.
func (r *regional) problem() string {
	var out []string
	if since, reason := r.centralAway(); !since.IsZero() {
		out = append(out, fmt.Sprintf("the central region %s cannot be reached since %s, and this node applies its share of the limits: %s",
			r.central, since.UTC().Format(time.RFC3339), reason))
	}
	for _, s := range r.links.States() {
		l := &s.Link
		switch {
		case s.Told.Cut:
			out = append(out, fmt.Sprintf("this region is cut off from %s%s, and applies its share of gossiped limits", l.Region, downSince(l)))
		case s.Told.Alone:
			out = append(out, "region "+l.Region+" is cut off from another, or from its store, and the regions that reach each other apply their shares of gossiped limits")
		case !s.Told.Consents && l.Up:
			out = append(out, "region "+l.Region+" applies shares of gossiped limits until all know what was admitted, and this one has its credit until then")
		case !l.Up:
			out = append(out, fmt.Sprintf("this node is not connected to region %s%s", l.Region, downSince(l)))
		case l.Pings > 0 && l.Skew.Abs() > mostSkew:
			out = append(out, fmt.Sprintf("the clocks of the stores here and in %s differ by %s: want less than %s; set both by NTP", l.Region, l.Skew.Round(time.Millisecond), mostSkew))
		}
	}
	if r.weights != nil && !r.weights.Fresh() {
		out = append(out, "the weights of quotas that follow demand cannot be read from the database, and this node applies the lowest part")
	}
	return strings.Join(out, "; ")
}

// downSince says since when a link is down, and why.
func downSince(l *link.State) string {
	if l.Up {
		return ""
	}
	text := " since " + l.Since.UTC().Format(time.RFC3339)
	if why := whyDown(l.Why); why != "" {
		text += " (" + why + ")"
	}
	return text
}

// collect collects the metrics of regions.
func (r *regional) collect(gauge, total func(name string, n float64, labels ...string)) {
	for _, s := range r.links.States() {
		l, t := &s.Link, &s.Told
		gauge("stint_region_link_up", oneIf(l.Up), l.Region)
		gauge("stint_region_cut", oneIf(t.Cut), l.Region)
		gauge("stint_region_alone", oneIf(t.Alone), l.Region)
		if l.Pings > 0 {
			gauge("stint_region_round_trip_seconds", l.RoundTrip.Seconds(), l.Region)
			gauge("stint_region_skew_seconds", l.Skew.Seconds(), l.Region)
		}
		gauge("stint_region_lag_seconds", t.Lag.Seconds(), l.Region)
		gauge("stint_region_backlog", float64(t.Backlog), l.Region)
		total("stint_region_bytes_total", float64(l.Sent), l.Region, "sent")
		total("stint_region_bytes_total", float64(l.Received), l.Region, "received")
	}
	stats := r.gossip.Stats()
	for what, n := range map[string]int64{"lost_units": stats.Lost, "refused_batches": stats.Refused, "duplicate_batches": stats.Duplicate} {
		total("stint_region_total", float64(n), what)
	}
	gauge("stint_region_counters", float64(stats.Counters))
	for i := range stats.Limits {
		l := &stats.Limits[i]
		limit := l.Limit
		if limit == "" {
			limit = "other"
		}
		for what, n := range map[string]int64{"admitted": l.Admitted, "received": l.Received} {
			total("stint_region_units_total", float64(n), limit, what)
		}
		total("stint_region_denied_total", float64(l.Short), limit)
		total("stint_region_shares_total", float64(l.Shares), limit)
		gauge("stint_region_bound_units", float64(l.Bound), limit)
		if l.Measured {
			gauge("stint_region_beyond_units", float64(l.Beyond), limit)
		}
	}
	if r.central != "" && r.central != r.own {
		since, _ := r.centralAway()
		gauge("stint_region_central_up", oneIf(since.IsZero()))
		total("stint_region_central_units_total", float64(r.repaid.charged.Load()), "charged")
		total("stint_region_central_units_total", float64(r.repaid.lost.Load()), "lost")
		total("stint_region_central_units_total", float64(r.repaid.recovered.Load()), "recovered")
	}
	if r.weights != nil {
		gauge("stint_region_weights_fresh", oneIf(r.weights.Fresh()))
	}
	if r.server != nil {
		for reason, n := range r.server.Refused() {
			total("stint_region_refused_total", float64(n), string(reason))
		}
	}
}
