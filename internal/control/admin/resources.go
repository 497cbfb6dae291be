package admin

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

// The filters of lists.
type (
	// Sorted is a list without filters.
	Sorted struct {
		Page
		Sort string `query:"sort" enum:"id,-id,created_at,-created_at,updated_at,-updated_at" default:"id" doc:"What to sort by; with a minus, the last comes first." example:"-created_at"`
	}
	// RuleFilter filters rules.
	RuleFilter struct {
		Page
		Sort    string `query:"sort" enum:"id,-id,created_at,-created_at,updated_at,-updated_at,priority,-priority" default:"id" doc:"What to sort by; with a minus, the last comes first." example:"-created_at"`
		Q       string `query:"q" doc:"A part of the name. Case does not matter." example:"sear"`
		Action  string `query:"action" enum:"reject,throttle,log_only,mark,block,allow" doc:"Only rules with this action." example:"reject"`
		Enabled string `query:"enabled" enum:"true,false" doc:"Only rules that are enabled, or disabled." example:"true"`
		Group   string `query:"group" doc:"Only rules in this group." example:"public"`
	}
	// UserFilter filters users.
	UserFilter struct {
		Page
		Sort    string `query:"sort" enum:"id,-id,created_at,-created_at,updated_at,-updated_at" default:"id" doc:"What to sort by; with a minus, the last comes first." example:"-created_at"`
		Tier    string `query:"tier" doc:"Only those with this tier." example:"pro"`
		Tenant  string `query:"tenant" doc:"Only those of this tenant." example:"acme"`
		Blocked bool   `query:"blocked" doc:"Only users that were blocked, even if the block has ended." example:"true"`
	}
	// KeyFilter filters API keys.
	KeyFilter struct {
		Page
		Sort   string `query:"sort" enum:"id,-id,created_at,-created_at,updated_at,-updated_at,name,-name" default:"id" doc:"What to sort by; with a minus, the last comes first." example:"-created_at"`
		User   string `query:"user" doc:"Only those of this user." example:"alice"`
		Tier   string `query:"tier" doc:"Only those with this tier." example:"pro"`
		Tenant string `query:"tenant" doc:"Only those of this tenant." example:"acme"`
	}
	// TenantFilter filters tenants.
	TenantFilter struct {
		Page
		Sort string `query:"sort" enum:"id,-id,created_at,-created_at,updated_at,-updated_at,name,-name" default:"id" doc:"What to sort by; with a minus, the last comes first." example:"-created_at"`
		Tier string `query:"tier" doc:"Only those with this tier." example:"pro"`
	}
)

// with adds the filters that are not empty to a query.
func with(q catalog.Query, filters ...string) catalog.Query {
	q.Filters = map[string]string{}
	for i := 0; i < len(filters); i += 2 {
		if filters[i+1] != "" {
			q.Filters[filters[i]] = filters[i+1]
		}
	}
	return q
}

// is reports whether a value matches a filter, which may be empty.
func is(asked, value string) bool { return asked == "" || asked == value }

// unfiltered is for lists without filters.
func unfiltered[T any](p *Sorted) (catalog.Query, func(*T) bool) {
	return p.sorted(p.Sort), func(*T) bool { return true }
}

func filterRules(f *RuleFilter) (catalog.Query, func(*rule.Rule) bool) {
	q := with(f.sorted(f.Sort), "action", f.Action, "enabled", f.Enabled, "group", f.Group)
	q.Contains = f.Q
	return q, func(r *rule.Rule) bool {
		enabled := strconv.FormatBool(r.Enabled == nil || *r.Enabled)
		return strings.Contains(strings.ToLower(r.Name), strings.ToLower(f.Q)) &&
			is(f.Action, string(cmp.Or(r.Action, rule.Reject))) && is(f.Enabled, enabled) && is(f.Group, r.Group)
	}
}

func filterUsers(f *UserFilter) (catalog.Query, func(*catalog.User) bool) {
	q := with(f.sorted(f.Sort), "tier", f.Tier, "tenant", f.Tenant)
	q.Blocked = f.Blocked
	return q, func(u *catalog.User) bool {
		return is(f.Tier, u.Tier) && is(f.Tenant, u.Tenant) && (!f.Blocked || u.Blocked != nil)
	}
}

func filterKeys(f *KeyFilter) (catalog.Query, func(*catalog.APIKey) bool) {
	return with(f.sorted(f.Sort), "user_id", f.User, "tier", f.Tier, "tenant", f.Tenant), func(k *catalog.APIKey) bool {
		return is(f.User, k.User) && is(f.Tier, k.Tier) && is(f.Tenant, k.Tenant)
	}
}

func filterTenants(f *TenantFilter) (catalog.Query, func(*catalog.Tenant) bool) {
	return with(f.sorted(f.Sort), "tier", f.Tier), func(t *catalog.Tenant) bool { return is(f.Tier, t.Tier) }
}

// object is JSON.
type object = map[string]any

// Tiers, users and tenants.
var (
	tiers = &resource[rule.Tier, rule.Tier, Record[rule.Tier]]{
		path: "tiers", one: "tier", tag: tagTiers, example: "pro", key: "name", patch: object{"price": "59 EUR a month"},
		table: func(c *catalog.Catalog) *catalog.Table[rule.Tier] { return c.Tiers },
		filed: func(d *catalog.Document) []rule.Tier { return d.Tiers },
		id:    func(t *rule.Tier) string { return t.Name },
		wire:  same[rule.Tier], put: assign[rule.Tier], show: plain[rule.Tier],
		visible: func(*person, *rule.Tier) bool { return true },
	}
	users = &resource[catalog.User, catalog.User, Record[catalog.User]]{
		path: "users", one: "user", tag: tagUsers, example: "alice", key: "id", patch: object{"tier": "pro", "blocked": nil},
		table: func(c *catalog.Catalog) *catalog.Table[catalog.User] { return c.Users },
		filed: func(d *catalog.Document) []catalog.User { return d.Users },
		id:    func(u *catalog.User) string { return u.ID },
		wire:  same[catalog.User], put: assign[catalog.User], show: plain[catalog.User],
		visible: func(p *person, u *catalog.User) bool { return p.Covers(u.Tenant) }, keep: keepUser, byTenant: true,
	}
	tenants = &resource[catalog.Tenant, catalog.Tenant, Record[catalog.Tenant]]{
		path: "tenants", one: "tenant", tag: tagTenants, example: "acme", key: "id", patch: object{"tier": "pro"},
		table: func(c *catalog.Catalog) *catalog.Table[catalog.Tenant] { return c.Tenants },
		filed: func(d *catalog.Document) []catalog.Tenant { return d.Tenants },
		id:    func(t *catalog.Tenant) string { return t.ID },
		wire:  same[catalog.Tenant], put: assign[catalog.Tenant], show: plain[catalog.Tenant],
		visible: func(p *person, t *catalog.Tenant) bool { return p.Covers(t.ID) }, theirs: func(p *person) []string { return p.Tenants },
	}
)

// addResources adds the operations on all resources except rules and keys, which have more.
func (a *API) addResources() {
	addWhole(a, tiers, unfiltered)
	addWhole(a, users, filterUsers)
	addWhole(a, tenants, filterTenants)
	addWhole(a, exemptions, unfiltered)
	addWhole(a, bans, unfiltered)
}

// addWhole adds all operations on a resource.
func addWhole[F, T, W, R any](a *API, s *resource[T, W, R], convert func(*F) (catalog.Query, func(*T) bool)) {
	addList(a, s, convert)
	addWriting(a, s)
	addReading(a, s)
	addPatching(a, s)
}
