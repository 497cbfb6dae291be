package record

import (
	"cmp"
	"strings"
)

// Leased is what nodes have leased of a limit since they were started. Units are those of the limit. The tags
// document its fields.
type Leased struct {
	Limit    string `json:"limit" doc:"The rule and its limit. The name other stands for limits that are not counted one by one." example:"search:hourly"`
	Counters int64  `json:"counters" doc:"Counters that are leased now." example:"12"`
	Held     int64  `json:"held" doc:"Units that were taken ahead and are held now, as of the last term." example:"340"`
	Lent     int64  `json:"lent" doc:"Units that were taken ahead." example:"90000"`
	Spent    int64  `json:"spent" doc:"Units that were taken ahead and spent." example:"88000"`
	Back     int64  `json:"given_back" doc:"Units that were taken ahead, not spent, and given back." example:"1660"`
	Kept     int64  `json:"kept" doc:"Units that were taken ahead, not spent, and could not be given back in time: they stay used, at least until the store is back." example:"0"`
	Denied   int64  `json:"denied" doc:"Denials of counters that were leased, or that other nodes may have leased." example:"70"`
	Early    int64  `json:"denied_early" doc:"Of these, those while other nodes may have held units that they had taken ahead, so that they may have been too early: a bound, and 0 with one node." example:"9"`
	MostOut  int64  `json:"others_most" doc:"The most units that other nodes may have held then: a bound, of less than half of the limit unless other regions share it." example:"25"`
	MostUsed int64  `json:"most_used" doc:"The most units that the store has counted of a counter in its window, from all nodes: at most the capacity." example:"998"`
	Cap      int64  `json:"capacity" doc:"The capacity of the counter that had most_used." example:"1000"`
}

const liveLeasesShown = 50

// mostLent returns the limits with the most units lent.
func mostLent(all []Leased) []Leased {
	return first(all, liveLeasesShown, func(a, b Leased) int {
		return cmp.Or(cmp.Compare(b.Lent, a.Lent), strings.Compare(a.Limit, b.Limit))
	})
}

// add adds what another node has leased of the same limit.
func (l Leased) add(o Leased) Leased {
	if o.MostUsed > l.MostUsed || l.Cap == 0 {
		l.MostUsed, l.Cap = o.MostUsed, o.Cap
	}
	l.Counters, l.Held, l.Lent, l.Spent = l.Counters+o.Counters, l.Held+o.Held, l.Lent+o.Lent, l.Spent+o.Spent
	l.Back, l.Kept, l.Denied, l.Early = l.Back+o.Back, l.Kept+o.Kept, l.Denied+o.Denied, l.Early+o.Early
	l.MostOut = max(l.MostOut, o.MostOut)
	return l
}
