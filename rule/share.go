package rule

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Percent is a part of clients in hundredths of a percent, written like 10% or 0.5%.
type Percent int32

// All is all clients.
const All Percent = 100_00

// MarshalText implements [encoding.TextMarshaler].
func (p Percent) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// String returns the part as it is written: 10%, 0.5%.
func (p Percent) String() string {
	text := strconv.FormatFloat(float64(p)/100, 'f', 2, 64)
	return strings.TrimRight(strings.TrimRight(text, "0"), ".") + "%"
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (p *Percent) UnmarshalText(text []byte) error {
	whole, fraction, point := strings.Cut(strings.TrimSuffix(string(text), "%"), ".")
	n, err := strconv.ParseUint(whole+(fraction + "00")[:2], 10, 32)
	switch {
	case err != nil || !strings.HasSuffix(string(text), "%") || whole == "" || len(fraction) > 2 || point && fraction == "":
		return fmt.Errorf("%.64q is not a part of clients, want a percentage with at most two decimals, such as 10%% or 0.5%%", text)
	case n == 0:
		return fmt.Errorf("%.64q is none of the clients, want more, or action = \"log_only\" to try a rule out on all", text)
	case n > uint64(All):
		return fmt.Errorf("%.64q is more than all clients, want at most 100%%", text)
	}
	*p = Percent(n)
	return nil
}

// share is the part of clients for which a rule is in force.
type share struct {
	name  string // of the rule: so that it is not always the same clients with whom rules begin
	fixed Percent
	// rollout, if not nil, is what the part depends on.
	rollout *Rollout
}

// at returns the part at a time.
func (s *share) at(now time.Time) Percent {
	if s.rollout != nil {
		return s.rollout.Share(now)
	}
	return s.fixed
}

// shareOf returns the share of a rule, or nil if the rule is in force for all.
func shareOf(r *Rule) *share {
	switch {
	case r.Rollout != nil:
		return &share{r.Name, 0, r.Rollout.clone()}
	case r.Enforce == 0 || r.Enforce == All:
		return nil
	default:
		return &share{r.Name, r.Enforce, nil}
	}
}

// Share returns for which part of clients the rule is in force at a time. On the others it is tried out.
func (r *Compiled) Share(now time.Time) Percent {
	switch {
	case r.Action == LogOnly:
		return 0
	case r.share == nil:
		return All
	default:
		return r.share.at(now)
	}
}

// triedOut reports whether the rule only counts the request, and decides nothing. The client is then not among those for
// whom the rule is in force. These are chosen by a hash of the rule's name and the subject of its counters, whose
// dimension identifies clients, so every node chooses the same ones, and who is among 10 % is among 50 %.
func (r *Compiled) triedOut(a *Attrs) bool {
	if r.share == nil {
		return r.shadow()
	}
	part := r.share.at(a.Now)
	if part == 0 || part == All {
		return part == 0
	}
	d := &r.countedBy(a)[0]
	var buf [maxPattern]byte // no value is longer
	h := hash(offset, r.share.name)
	h = hash(hash(h, "\x00"), d.prefix)
	h = spread(hash(h, d.appendValue(buf[:0], a, nil)))
	return Percent(h>>32*uint64(All)>>32) >= part
}

// hash is FNV-1a: the same on all nodes and in all versions.
func hash[T string | []byte](h uint64, text T) uint64 {
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 0x100000001b3
	}
	return h
}

const offset uint64 = 0xcbf29ce484222325

// spread mixes the bits of a hash, so that texts that differ in one letter are far apart. It is the end of MurmurHash3.
func spread(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// tryOut marks the hits of rules that are only tried out on the request. In a group, these are rivals among themselves.
func tryOut(hits []Hit, a *Attrs) {
	for i := range hits {
		if h := &hits[i]; h.Rule.share != nil && h.Rule.triedOut(a) {
			h.Shadow, h.group = true, h.entry.trial
		}
	}
}

// groupFor returns the group of the entry's hits for a client. If it is not known whether the rule is tried out on it, that is a
// group without rivals.
func (e *entry) groupFor(a *Attrs) int32 {
	switch {
	case e.rule.share == nil:
		return e.hit.group
	case e.rule.lacksDim(a) != nil:
		return -1 - e.hit.rank
	case e.rule.triedOut(a):
		return e.trial
	default:
		return e.hit.group
	}
}

// Partial reports whether the rule is, or was, in force for a part of clients.
func (r *Rule) Partial() bool { return r.Rollout != nil || r.Enforce != 0 && r.Enforce != All }

// checkEnforce checks for which part of clients a rule is in force.
func (c *checker) checkEnforce(r *checked) {
	const path = "enforce"
	if r.Enforce == 0 {
		return
	}
	if r.Enforce < 0 || r.Enforce > All {
		c.Refuse(path, r.Enforce.String(), "a percentage above 0% and at most 100%", "")
	}
	if err := r.checkParts(); err != nil {
		c.Refuse(path, r.Enforce.String(), "none: "+err.Error(), "")
	}
}

// checkParts returns why the rule cannot be in force for a part of clients.
func (r *Rule) checkParts() error {
	switch {
	case !r.Action.known():
		return nil
	case !r.counts():
		return errors.New("the action " + string(r.Action) + " counts nothing that could be tried out on the others")
	case r.Action.Passes():
		return errors.New("the action " + string(r.Action) + " denies nothing, and holds for all")
	case !slices.ContainsFunc(r.CountBy, Dimension.tellsClients):
		return errors.New("the rule does not tell clients apart, so it holds for all or for none; want user, api_key, ip, tenant, a claim or a header in count_by")
	}
	return nil
}

// tellsClients reports whether the dimension tells clients apart, so that some of them can be chosen.
func (d Dimension) tellsClients() bool {
	word, _, _ := strings.Cut(string(d), ":")
	k := kind(slices.Index(kinds[:], word))
	return k >= 0 && k < byEndpoint
}

// sayShare says for which part of clients the rule is in force.
func (r *Rule) sayShare() string {
	switch {
	case !r.Partial():
		return ""
	case r.Rollout != nil:
		return r.Rollout.say()
	}
	return "it is in force for " + r.Enforce.String() + " of clients, always the same ones, and is only tried out on the others"
}
