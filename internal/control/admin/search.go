package admin

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/rule"
)

// FoundItem is something that a search has found.
type FoundItem struct {
	Kind     string    `json:"kind" enum:"rule,tier,user,key,tenant,ip,exemption,ban" doc:"What it is." example:"user"`
	ID       string    `json:"id" doc:"Its id; of an exemption or a ban, the subject, such as user:alice." example:"alice"`
	Name     string    `json:"name,omitempty" doc:"For a key or a tenant: its name." example:"mobile app"`
	Tier     string    `json:"tier,omitempty" doc:"The tier in the catalog." example:"pro"`
	Tenant   string    `json:"tenant,omitempty" doc:"The tenant that it belongs to." example:"acme"`
	User     string    `json:"user,omitempty" doc:"For a key: its user." example:"alice"`
	Prefix   string    `json:"prefix,omitempty" doc:"For a key: the first characters of its text." example:"stint_k3jq"`
	Reason   string    `json:"reason,omitempty" doc:"For an exemption or a ban: its reason." example:"scraping"`
	Known    bool      `json:"known" doc:"Whether it is in the catalog. A client that is not was seen in traffic." example:"true"`
	LastSeen time.Time `json:"last_seen_at,omitzero" doc:"For a client that was seen in traffic: the last time, to a day." example:"2026-01-31T12:00:00Z"`
}

// FoundGroup is what a search has found of one kind.
type FoundGroup struct {
	Kind  string      `json:"kind" enum:"rule,tier,user,key,tenant,ip,exemption,ban,seen" doc:"The kind of the items. Seen are users, tenants and keys that are not in the catalog, and that have sent requests." example:"user"`
	Items []FoundItem `json:"items" nullable:"false" doc:"The items."`
	More  bool        `json:"more" doc:"Whether there are more than limit." example:"false"`
}

// FoundAll is what a search has found.
type FoundAll struct {
	Groups []FoundGroup `json:"groups" nullable:"false" doc:"What was found, by kind. Kinds of which nothing was found are missing."`
}

func (a *API) addSearch() {
	type searchInput struct {
		Q     string `query:"q" required:"true" maxLength:"512" doc:"A text. No character of it has a special meaning." example:"ali"`
		Limit int    `query:"limit" default:"10" minimum:"1" maximum:"100" doc:"The maximum number of results of each kind." example:"10"`
	}
	addQuery(a, operation{
		ID: "search", Method: http.MethodGet, Path: "/search", Tag: tagSearch,
		Summary: "Find anything",
		Description: "Returns rules, tiers, users, keys, tenants, exemptions, bans and addresses, and clients that the catalog does not have but that have sent requests. " +
			"Users and tenants are found by the start of any word of their id, tenants and keys by the start of any word of their name, keys by the start of their id or their text, " +
			"rules and tiers by any part of their name, exemptions, bans, addresses and clients by the start of their name. Of a text, the first 8 words count. " +
			"Except for exemptions and bans, the case of A to Z does not matter.",
	}, catalog.Viewer, func(ctx context.Context, in *searchInput) (FoundAll, error) {
		return a.search(ctx, in.Q, in.Limit)
	})
}

// search returns what a text stands for.
func (a *API) search(ctx context.Context, q string, limit int) (FoundAll, error) {
	var hits catalog.Hits
	if a.options.Catalog != nil {
		var err error
		if hits, err = a.options.Catalog.Search(ctx, q, limit); err != nil {
			return FoundAll{}, asParameters(err)
		}
	} else {
		hits = searchFile(a.options.Document(), q)
	}
	addresses, err := a.searchAddresses(ctx, q, limit)
	if err != nil {
		return FoundAll{}, err
	}
	var seen []FoundItem
	if !catalog.HasSecret(q) {
		if seen, err = a.searchSeen(ctx, q, limit); err != nil {
			return FoundAll{}, err
		}
	}
	out := FoundAll{Groups: []FoundGroup{}}
	for _, g := range []struct {
		kind  string
		items []FoundItem
	}{
		{"user", converted(hits.Users, func(u *catalog.User) FoundItem {
			return FoundItem{Kind: "user", ID: u.ID, Tier: u.Tier, Tenant: u.Tenant, Known: true}
		})},
		{"tenant", converted(hits.Tenants, func(t *catalog.Tenant) FoundItem {
			return FoundItem{Kind: "tenant", ID: t.ID, Name: t.Name, Tier: t.Tier, Known: true}
		})},
		{"key", converted(hits.APIKeys, func(k *catalog.APIKey) FoundItem {
			return FoundItem{Kind: "key", ID: k.ID, Name: k.Name, Tier: k.Tier, Tenant: k.Tenant, User: k.User, Prefix: k.Prefix, Known: true}
		})},
		{"rule", converted(hits.Rules, func(r *rule.Rule) FoundItem { return FoundItem{Kind: "rule", ID: r.Name, Known: true} })},
		{"tier", converted(hits.Tiers, func(t *rule.Tier) FoundItem { return FoundItem{Kind: "tier", ID: t.Name, Known: true} })},
		{"ip", addresses},
		{"exemption", converted(hits.Exemptions, foundEntry("exemption"))},
		{"ban", converted(hits.Bans, foundEntry("ban"))},
		{"seen", seen},
	} {
		if n := len(g.items); n > 0 {
			out.Groups = append(out.Groups, FoundGroup{g.kind, g.items[:min(n, limit)], n > limit})
		}
	}
	return out, nil
}

func foundEntry(kind string) func(*catalog.Entry) FoundItem {
	return func(e *catalog.Entry) FoundItem {
		return FoundItem{Kind: kind, ID: e.ID(), Reason: e.Reason, Known: true}
	}
}

// searchFile searches in file mode, for any part of ids and names.
func searchFile(d *catalog.Document, q string) (h catalog.Hits) {
	q = strings.ToLower(q)
	has := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(strings.ToLower(text), q) })
	}
	keep := func(e *catalog.Entry) bool { return has(e.ID()) }
	return catalog.Hits{
		Rules:   kept(d.Rules, func(r *rule.Rule) bool { return has(r.Name) }),
		Tiers:   kept(d.Tiers, func(t *rule.Tier) bool { return has(t.Name) }),
		Tenants: kept(d.Tenants, func(t *catalog.Tenant) bool { return has(t.ID, t.Name) }),
		Users:   kept(d.Users, func(u *catalog.User) bool { return has(u.ID) }),
		APIKeys: kept(d.APIKeys, func(k *catalog.APIKey) bool {
			return has(k.ID, k.Name, k.Prefix) || k.Prefix != "" && strings.HasPrefix(q, strings.ToLower(k.Prefix))
		}),
		Exemptions: kept(d.Exemptions, keep), Bans: kept(d.Bans, keep),
	}
}

// kept returns the items that a function keeps.
func kept[T any](all []T, keep func(*T) bool) (out []T) {
	for i := range all {
		if keep(&all[i]) {
			out = append(out, all[i])
		}
	}
	return out
}

// searchAddresses returns the address or the network that a text is, and addresses that were
// seen and begin with it.
func (a *API) searchAddresses(ctx context.Context, q string, limit int) ([]FoundItem, error) {
	var out []FoundItem
	_, isNetwork := netip.ParsePrefix(q)
	if ip, isAddress := netip.ParseAddr(q); isNetwork == nil || isAddress == nil && ip.Zone() == "" {
		s, err := (&SubjectPath{Kind: "ip", ID: q}).subject()
		if err != nil {
			return nil, err
		}
		d, err := a.describeSubject(ctx, s)
		if err != nil {
			return nil, err
		}
		out = append(out, FoundItem{Kind: "ip", ID: s.id, Known: d.Known})
	}
	seen, err := a.seen(ctx, rollup.SeenQuery{Kind: "ip", Prefix: q, Limit: limit + 1})
	for _, s := range seen {
		if i := slices.IndexFunc(out, func(o FoundItem) bool { return o.ID == s.Name }); i >= 0 {
			out[i].LastSeen = s.Last
		} else {
			out = append(out, FoundItem{Kind: "ip", ID: s.Name, LastSeen: s.Last})
		}
	}
	return out, err
}

// seen returns clients of the record, if decisions are recorded.
func (a *API) seen(ctx context.Context, q rollup.SeenQuery) ([]rollup.Seen, error) {
	if a.options.Record == nil {
		return nil, nil
	}
	return a.options.Record.Seen(ctx, q)
}

const (
	// seenAtOnce is how many clients of the record are compared with the catalog at once, and
	// seenPages how often that is done for a search.
	seenAtOnce = 200
	seenPages  = 5
)

// searchSeen returns users, tenants and keys that were seen and are not in the catalog, the
// last first. Among very many that begin the same and are in the catalog, it does not find
// the others.
func (a *API) searchSeen(ctx context.Context, q string, limit int) (out []FoundItem, err error) {
	for _, kind := range []string{"user", "tenant", "key"} {
		found := 0
		for page, after := 0, ""; page < seenPages && found <= limit; page++ {
			some, err := a.seen(ctx, rollup.SeenQuery{Kind: kind, Prefix: q, After: after, Limit: seenAtOnce})
			if err != nil || len(some) == 0 {
				if err != nil {
					return nil, err
				}
				break
			}
			known, err := a.known(ctx, kind, some)
			if err != nil {
				return nil, err
			}
			for _, s := range some {
				if !known[s.Name] && found <= limit {
					out = append(out, FoundItem{Kind: kind, ID: s.Name, LastSeen: s.Last})
					found++
				}
			}
			if after = some[len(some)-1].Name; len(some) < seenAtOnce {
				break
			}
		}
	}
	slices.SortStableFunc(out, func(x, y FoundItem) int { return cmp.Compare(y.LastSeen.Unix(), x.LastSeen.Unix()) })
	return out, nil
}

// known returns which of the clients are in the catalog.
func (a *API) known(ctx context.Context, kind string, some []rollup.Seen) (map[string]bool, error) {
	out := map[string]bool{}
	if a.options.Catalog == nil {
		d := a.options.Document()
		for _, u := range d.Users {
			out[u.ID] = out[u.ID] || kind == "user"
		}
		for _, t := range d.Tenants {
			out[t.ID] = out[t.ID] || kind == "tenant"
		}
		for _, k := range d.APIKeys {
			out[k.ID] = out[k.ID] || kind == "key"
		}
		return out, nil
	}
	names := converted(some, func(s *rollup.Seen) string { return s.Name })
	found, err := a.options.Catalog.Known(ctx, kind, names)
	for _, id := range found {
		out[id] = true
	}
	return out, err
}
