package importer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint/rule"
)

// amounts fills in the limits, or returns why it cannot.
func (n *nginx) amounts(c *counter, d, z *directive) (why string) {
	if slices.Contains(c.keys[0].by, "ip") && !n.ipv6 {
		n.ipv6 = true
		n.m.note(z.pos, z.String(), "nginx counts by each IPv6 address, and Stint by its network: identity.ipv6_prefix, by default 64")
	}
	scope := perNode
	if slices.Contains(z.args, "sync") {
		scope = shared
	}
	if d.name == "limit_conn" {
		at, err := strconv.ParseInt(d.arg(1), 10, 64)
		if err != nil || at < 1 {
			return "wants a number of connections from 1"
		}
		c.limits = []limit{{text: fmt.Sprintf("%d/30s concurrency", at), before: amount{max: at, scope: scope}}}
		n.m.note(d.pos, d.String(), "counts requests that are served at once, which the gateway and middlewares of Stint know; behind auth_request no one tells Stint when a request ends (docs/concurrency.md)")
		return ""
	}
	rate, per, ok := strings.Cut(n.option(z, "rate="), "r/")
	r, err := strconv.ParseInt(rate, 10, 64)
	if !ok || err != nil || r < 1 || per != "s" && per != "m" {
		return "its zone has no rate such as 10r/s"
	}
	if per == "m" && r*1000%60 != 0 {
		n.m.note(z.pos, z.String(), fmt.Sprintf("nginx rounds this to %d/1000 of a request a second, that is %g a minute; the rule has what was written", r*1000/60, float64(r*1000/60)*60/1000))
	}
	burst, delay, why := n.queue(d)
	if why != "" {
		return why
	}
	l := limit{before: amount{max: r, window: "1" + per, burst: burst + 1, scope: scope}}
	switch {
	case burst == 0 || delay >= burst:
		l.text = fmt.Sprintf("%d/1%s token_bucket burst=%d", r, per, burst+1)
	case delay > 0:
		l.text = fmt.Sprintf("%d/1%s token_bucket burst=%d", r, per, burst+1)
		n.m.missing(d.pos, d.String(), fmt.Sprintf("as many requests pass, but those beyond the first %d at once pass without a delay", delay+1),
			fmt.Sprintf("%d/1%s leaky_bucket burst=%d, which delays all but the first", r, per, burst))
	default:
		l.text = fmt.Sprintf("%d/1%s leaky_bucket burst=%d", r, per, burst)
		window := int64(1)
		if per == "m" {
			window = 60
		}
		if longest := int64(rule.MaxDelay.Seconds()); burst*window > longest*r {
			n.m.missing(d.pos, d.String(), fmt.Sprintf("holds requests for up to %d s, and rules for up to %d s: what would wait longer is denied", burst*window/r, longest),
				"nodelay, and with it token_bucket burst="+strconv.FormatInt(burst+1, 10))
		}
	}
	c.limits = []limit{l}
	return ""
}

// queue returns burst and delay of a limit_req.
func (n *nginx) queue(d *directive) (burst, delay int64, why string) {
	for _, a := range d.args {
		name, text, _ := strings.Cut(a, "=")
		v, err := strconv.ParseInt(text, 10, 32)
		switch {
		case name == "zone":
		case a == "nodelay":
			delay = 1 << 40
		case (name == "burst" || name == "delay") && (err != nil || v < 0):
			return 0, 0, a + ": wants a number"
		case name == "burst":
			burst = v
		case name == "delay":
			delay = v
		default:
			return 0, 0, a + " is not known"
		}
	}
	return burst, delay, ""
}
