package rule_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// quotasOf returns quotas as tables have them: the key and the limit, or what is unknown.
func quotasOf(s *rule.Set, a *rule.Attrs) []string {
	var out []string
	for _, q := range s.Quotas(a) {
		text := q.Rule.Name + ":" + q.Name + "@" + q.Endpoint
		switch {
		case q.Unlimited():
			text += " unlimited"
		case q.Unknown != "":
			text += " by " + string(q.Unknown)
		default:
			text += " " + q.Ask.Key.String()
		}
		out = append(out, text)
	}
	return out
}

func TestQuotas(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ rules, attrs, want string }{
		{"r by=user", "- - user=1", "r:n@ {user:1}:r:n"},
		{"r by=user paths=/a,/b/*", "- - user=1", "r:n@ {user:1}:r:n"},
		{"r by=user,endpoint paths=/a,/b/*", "- - user=1", "r:n@/a {user:1}:r:n:2:/a; r:n@/b/* {user:1}:r:n:4:/b/*"},
		{"r by=endpoint paths=/a", "- - user=1", "r:n@/a {endpoint:/a}:r:n"},
		{"r", "- - user=1", "r:n@ {global}:r:n"},
		{"r by=ip", "- - user=1 ip=2001:db8::1", "r:n@ {ip:2001:db8::/64}:r:n"},
		{"r by=user,tenant,api_key", "- - user=1 tenant=t key=k", "r:n@ {user:1}:r:n:1:k:1:t"},
		// What only a request has.
		{"r by=ip", "- - user=1", "r:n@ by ip"},
		{"r by=user,method,endpoint paths=/a,/b", "- - user=1", "r:n@ by method"},
		{"r by=header:x-app", "- - user=1 ip=192.0.2.1 trusted", "r:n@ by header:X-App"},
		{"r by=claim:org,user", "- - user=1", "r:n@ by claim:org"},
		// Conditions of who asks hold or do not; the others may.
		{"r disabled", "- - user=1", ""},
		{"r tiers=pro", "- - user=1", ""},
		{"r tiers=pro", "- - user=1 tier=pro", "r:n@ {global}:r:n"},
		{"r ips=10.0.0.0/8", "- - ip=192.0.2.1", ""},
		{"r ips=10.0.0.0/8", "- - ip=10.0.0.1", "r:n@ {global}:r:n"},
		{"r ips=10.0.0.0/8 by=user", "- - user=1", "r:n@ {user:1}:r:n"},
		{"r methods=POST header=x-app:1 action=log_only", "- -", "r:n@ {global}:r:n"},
		// Of a group, all that may be the best one.
		{"a paths=/a group=g; b paths=/b group=g; c group=g", "- -", "a:n@ {global}:a:n; b:n@ {global}:b:n; c:n@ {global}:c:n"},
		{"a tiers=pro group=g; c group=g", "- - tier=pro", "a:n@ {global}:a:n"},
		{"a tiers=pro group=g; c group=g", "- - tier=free", "c:n@ {global}:c:n"},
		{"a tiers=pro group=g; c paths=/c group=g", "- - tier=pro", "a:n@ {global}:a:n; c:n@ {global}:c:n"},
		{"a tiers=pro group=g priority=-1; c paths=/c group=g", "- - tier=pro", "a:n@ {global}:a:n"},
		{"a tiers=pro paths=/c/** group=g priority=-1; c paths=/c/d,/e group=g by=endpoint", "- - tier=pro", "a:n@ {global}:a:n; c:n@/e {endpoint:/e}:c:n"},
		{"a tiers=pro by=user group=g; c group=g", "- - tier=pro", "a:n@ by user; c:n@ {global}:c:n"},
		{"a tiers=pro by=user group=g; c group=g by=user", "- - tier=pro", "a:n@ by user"},
		{"a tiers=pro methods=GET,PUT group=g; c methods=GET group=g", "- - tier=pro", "a:n@ {global}:a:n"},
		{"a tiers=pro methods=GET group=g; c group=g", "- - tier=pro", "a:n@ {global}:a:n; c:n@ {global}:c:n"},
		{"a tiers=pro header=x:* group=g; c header=x:1 group=g", "- - tier=pro", "a:n@ {global}:a:n"},
		{"a tiers=pro header=x:1 group=g; c header=x:* group=g", "- - tier=pro", "a:n@ {global}:a:n; c:n@ {global}:c:n"},
		{"a ips=10.0.0.0/8 group=g; c group=g", "- - ip=10.0.0.1", "a:n@ {global}:a:n"},
		{"a ips=10.0.0.0/8 group=g; c group=g", "- -", "a:n@ {global}:a:n; c:n@ {global}:c:n"},
		{"a tiers=pro group=g action=log_only; c group=g", "- - tier=pro", "a:n@ {global}:a:n; c:n@ {global}:c:n"},
		// Those who are allowed, or blocked, are not counted.
		{"a tiers=pro action=allow; c", "- - tier=pro", ""},
		{"a tiers=pro action=block paths=/a/**; c by=endpoint paths=/a/b,/c", "- - tier=pro", "c:n@/c {endpoint:/c}:c:n"},
		{"a tiers=pro action=allow; c", "- - tier=free", "c:n@ {global}:c:n"},
	} {
		var f rule.File
		for text := range strings.SplitSeq(c.rules, ";") {
			f.Rules = append(f.Rules, readRule(t, strings.Fields(text)))
		}
		s := compile(t, withTiers(f))
		a := readAttrs(t, strings.Fields(c.attrs))
		if got := strings.Join(quotasOf(s, &a), "; "); got != c.want {
			t.Errorf("%s, %s:\n%s, want\n%s", c.rules, c.attrs, got, c.want)
		}
	}
}

func TestQuotaValues(t *testing.T) {
	t.Parallel()
	limits := []rule.Limit{{Name: "a", Limit: "10/1s"}, {Name: "b", Limit: "100/1m"}, {Name: "c", Limit: "1000/1h"}, {Name: "d", Limit: "9000/1d"}}
	penalty := &rule.Penalty{Threshold: 3, Within: rule.Duration(3600e9), Cooldown: rule.Duration(60e9)}
	s := compile(t, rule.File{
		Rules: []rule.Rule{
			{Name: "r", Limits: limits, CountBy: []rule.Dimension{"user"}, Penalty: penalty},
			{Name: "s", Limits: limits[3:], CountBy: []rule.Dimension{"tenant", "endpoint", "header:x-a"}, Match: rule.Match{Paths: []string{"/"}}},
		},
		Tiers: []rule.Tier{{Name: "free", Limits: map[string]string{"b": "50/1m", "c": "500/1h", "d": "unlimited"}}},
	})
	var got []string
	quotas := s.Quotas(&rule.Attrs{
		Trusted: true, User: "42", Tier: "free", Cost: 5,
		UserLimits: rule.Values{"a": stint.PerSecond(2), "c": stint.PerHour(7)}, KeyLimits: rule.Values{"a": stint.PerSecond(1)},
	})
	for _, q := range quotas {
		value := q.Ask.Limit.String()
		if q.Ask.Penalty != nil {
			value = "penalty"
		}
		got = append(got, fmt.Sprintf("%s %s %s %s: %s%s x%d %t", q.Rule.Name, q.Name, value, q.Source, q.Ask.Key.Name, q.Unknown, q.Ask.Cost, q.Unlimited()))
	}
	want := []string{
		"r a 1/1s api_key: r:a x0 false", "r b 50/1m tier free: r:b x0 false", "r c 7/1h user: r:c x0 false",
		"r d 0/0s tier free:  x0 true", "r penalty! penalty rule: r:penalty! x0 false", "s d 0/0s tier free: tenant x0 true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := s.Rules()[1].CountBy(); !slices.Equal(got, []rule.Dimension{"tenant", "header:X-A", "endpoint"}) {
		t.Errorf("s is counted by %v", got)
	}
	if got := compile(t, rule.File{Rules: []rule.Rule{{Name: "r", Limits: limits}}}).Rules()[0].CountBy(); !slices.Equal(got, []rule.Dimension{"global"}) {
		t.Errorf("it is counted by %v", got)
	}
}

// TestQuotasHaveEveryCounter draws requests, and looks for what they are counted by among
// the quotas of who sends them.
func TestQuotasHaveEveryCounter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		_, s := drawFile(t, 12)
		a := drawAttrs(t)
		if strings.ContainsAny(a.Path, `%;\`) {
			return // one that allows may not, for another reading
		}
		hits := s.Match(nil, a)
		if slices.ContainsFunc(hits, func(h rule.Hit) bool { return h.Rule.Action == rule.Allow || h.Rule.Action == rule.Block }) {
			return
		}
		asks, _ := s.Asks(nil, hits, a, nil)
		who := &rule.Attrs{Trusted: true, User: a.User, Tenant: a.Tenant, APIKey: a.APIKey, Tier: a.Tier, IP: a.IP, Net: a.Net}
		if rapid.Bool().Draw(t, "from anywhere") {
			who.IP, who.Net = netip.Addr{}, netip.Prefix{}
		}
		quotas := s.Quotas(who)
		for _, h := range hits {
			for i := h.From; i < h.To; i++ {
				name := h.LimitOf(asks, i)
				if !slices.ContainsFunc(quotas, func(q rule.Quota) bool {
					return q.Rule == h.Rule && q.Name == name && (q.Unknown != "" || q.Ask.Key == asks[i].Key && q.Ask.Limit == asks[i].Limit)
				}) {
					t.Fatalf("%+v: no %v among %q", a, asks[i].Key, quotasOf(s, who))
				}
			}
		}
	})
}
