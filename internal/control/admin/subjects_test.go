package admin_test

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

// people has some users, tenants and a key.
func (h *testAPI) people() (key catalog.APIKey, text string) {
	h.Helper()
	_, err := h.catalog.Apply(h.Context(), &catalog.Document{
		File: rule.File{
			Rules: []rule.Rule{steadyRule(), {
				Name: "per-address", CountBy: []rule.Dimension{"ip"}, Limits: []rule.Limit{{Name: "all", Limit: "100/hour token_bucket burst=50"}},
				Penalty: &rule.Penalty{Threshold: 3, Within: rule.Duration(time.Hour), Cooldown: rule.Duration(time.Minute)},
			}},
			Tiers: []rule.Tier{{Name: "pro", Limits: map[string]string{"searches": "200/24h"}}},
		},
		Tenants: []catalog.Tenant{{ID: "acme", Name: "Acme Inc.", Tier: "pro"}},
		Users:   []catalog.User{{ID: "alice", Tenant: "acme"}, {ID: "alan", Tier: "pro"}, {ID: "bob", Blocked: &catalog.Blocked{Reason: "unpaid"}}},
	}, catalog.ApplyOptions{Actor: "test"})
	if err != nil {
		h.Fatal(err)
	}
	if text, key, _, err = h.catalog.CreateKey(h.Context(), "test", catalog.APIKey{Name: "mobile app", User: "alice"}); err != nil {
		h.Fatal(err)
	}
	if err := h.options.Look(h.Context()); err != nil {
		h.Fatal(err)
	}
	return key, text
}

// steadyRule is a rule whose units do not come back while a test runs.
func steadyRule() rule.Rule {
	r := searchRule()
	r.Limits[0].Limit = "100/24h"
	return r
}

func TestFindSubjects(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	key, text := h.people()
	for q, want := range map[string][]admin.FoundSubject{
		"al":             {{Kind: "user", ID: "alan", Tier: "pro", Known: true}, {Kind: "user", ID: "alice", Tenant: "acme", Known: true}, {Kind: "user", ID: "al"}},
		"alice":          {{Kind: "user", ID: "alice", Tenant: "acme", Known: true}},
		"acm":            {{Kind: "tenant", ID: "acme", Name: "Acme Inc.", Tier: "pro", Known: true}, {Kind: "user", ID: "acm"}},
		key.ID[:10]:      {{Kind: "key", ID: key.ID, Name: "mobile app", User: "alice", Prefix: key.Prefix, Known: true}, {Kind: "user", ID: key.ID[:10]}},
		text:             {{Kind: "key", ID: key.ID, Name: "mobile app", User: "alice", Prefix: key.Prefix, Known: true}},
		"192.0.2.1":      {{Kind: "ip", ID: "192.0.2.1"}},
		"2001:DB8::0/32": {{Kind: "ip", ID: "2001:db8::/32"}},
		"%":              {{Kind: "user", ID: "%"}},
		"' OR 1=1 --":    {{Kind: "user", ID: "' OR 1=1 --"}},
	} {
		var list admin.SubjectList
		if h.get("/subjects?q=" + escape(q)).want(http.StatusOK).into(&list); !slices.Equal(list.Items, want) {
			t.Errorf("%s: %+v, want %+v", q, list.Items, want)
		}
	}
	var list admin.SubjectList
	if h.get("/subjects?limit=2").want(http.StatusOK).into(&list); len(list.Items) != 2 {
		t.Errorf("%+v", list.Items)
	}
	h.get("/subjects?q=" + strings.Repeat("a", 513)).want(http.StatusBadRequest)
}

func TestSubject(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	key, _ := h.people()
	get := func(path string) (s admin.Subject) {
		t.Helper()
		h.get("/subjects/" + path).want(http.StatusOK).into(&s)
		return s
	}
	if s := get("user/alice"); !s.Known || s.Tenant != "acme" || s.Tier != "pro" || s.Version == 0 || s.Value == nil || s.Ban != nil || s.Blocked != nil {
		t.Errorf("%+v", s)
	}
	if s := get("user/bob"); !s.Known || s.Blocked == nil || s.Blocked.Reason != "unpaid" || s.Ban != nil {
		t.Errorf("%+v", s)
	}
	if s := get("user/nobody%2F..%2Fx"); s.Known || s.ID != "nobody/../x" || s.Value != nil {
		t.Errorf("%+v", s)
	}
	if s := get("tenant/acme"); !s.Known || s.Name != "Acme Inc." || s.Tier != "pro" || s.Tenant != "" {
		t.Errorf("%+v", s)
	}
	h.get("/subjects/key/" + key.ID).want(http.StatusOK)
	if s := get("key/" + key.ID); !s.Known || s.User != "alice" || s.Tier != "pro" || s.Name != "mobile app" || s.Unusable != "" {
		t.Errorf("%+v", s)
	}
	if a := h.get("/subjects/key/" + key.ID); strings.Contains(string(a.body), "sha256") || strings.Contains(string(a.body), key.Hash) {
		t.Errorf("the hash is shown: %s", a.body)
	}
	h.do(http.MethodPost, "/keys/"+key.ID+"/revoke", nil).want(http.StatusOK)
	if s := get("key/" + key.ID); !strings.Contains(s.Unusable, "revoked") {
		t.Errorf("%+v", s)
	}
	if s := get("ip/::ffff:192.0.2.1"); s.Known {
		t.Errorf("%+v", s)
	}
	h.get("/subjects/ip/somewhere").want(http.StatusBadRequest).says("an address or a network")
	h.get("/subjects/ip/fe80::1%25eth0").want(http.StatusBadRequest)
	h.get("/subjects/group/x").want(http.StatusBadRequest).says("user, key, tenant, ip")
	h.get("/subjects/user/" + strings.Repeat("a", 256)).want(http.StatusBadRequest).says("255 bytes")
	h.get("/subjects/user/a%0Ab").want(http.StatusBadRequest)
}

// TestUsage uses up some limits, and resets them.
func TestUsage(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	h.people()
	usage := func(path string) map[string]admin.Quota {
		t.Helper()
		var u admin.Usage
		h.get("/subjects/" + path + "/usage").want(http.StatusOK).into(&u)
		out := map[string]admin.Quota{}
		for _, q := range u.Items {
			out[q.Rule+"/"+q.Name] = q
		}
		return out
	}
	for range 201 {
		h.decide("/search", "alice")
	}
	q := usage("user/alice")["search/searches"]
	if q.Max != 200 || q.Used != 200 || q.Remaining != 0 || q.RetryAfter == nil || *q.RetryAfter <= 0 || q.ResetAfter <= 0 || q.Source != "tier pro" || q.Action != rule.Reject || q.Basis != "counted" || q.Algorithm != "sliding_window" {
		t.Errorf("%+v", q)
	}
	if q := usage("user/alice")["per-address/all"]; q.Unknown != "ip" {
		t.Errorf("%+v", q)
	}
	ip := netip.MustParseAddr("192.0.2.1")
	for range 54 {
		if _, err := h.engine.Decide(t.Context(), engine.Request{Path: "/", Peer: ip}); err != nil {
			t.Fatal(err)
		}
	}
	all := usage("ip/192.0.2.1")
	if q := all["per-address/all"]; q.Max != 50 || q.Algorithm != "token_bucket" || q.Refill < 0.027 || q.Refill > 0.028 {
		t.Errorf("%+v", q)
	}
	if q := all["per-address/penalty"]; !q.Penalty || q.Used != 3 || q.RetryAfter == nil || *q.RetryAfter < 50 || *q.RetryAfter > 60 {
		t.Errorf("%+v", q)
	}

	h.do(http.MethodPost, "/subjects/ip/192.0.2.1/reset", nil).want(http.StatusNoContent)
	if q := usage("ip/192.0.2.1")["per-address/penalty"]; q.Used != 0 || *q.RetryAfter != 0 {
		t.Errorf("%+v", q)
	}
	h.do(http.MethodPost, "/subjects/user/alice/reset", `{"rule":"per-address"}`).want(http.StatusNoContent)
	if h.decide("/search", "alice") != engine.Denied {
		t.Error("another rule was reset")
	}
	h.do(http.MethodPost, "/subjects/user/alice/reset", `{"rule":"search"}`).want(http.StatusNoContent)
	if h.decide("/search", "alice") != engine.Allowed {
		t.Error("it was not reset")
	}
	h.do(http.MethodPost, "/subjects/user/alice/reset", `{"rule":"serch"}`).want(http.StatusUnprocessableEntity).says("there is no rule")
	h.do(http.MethodPost, "/subjects/user/alice/reset", `{"rul":"search"}`).want(http.StatusUnprocessableEntity).says("did you mean")
	h.do(http.MethodPost, "/subjects/ip/192.0.2.0%2F24/reset", nil).want(http.StatusBadRequest)
	h.ask(http.MethodPost, "/subjects/user/alice/reset", nil, "", h.viewer).want(http.StatusForbidden)
	h.get("/subjects/ip/192.0.2.0%2F24/usage").want(http.StatusBadRequest)
}

// TestBans bans and exempts subjects, and checks that it applies at once.
func TestBans(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	h.people()
	until := h.clock.now().Add(time.Hour).UTC().Truncate(time.Second)
	var r admin.Record[catalog.Entry]
	a := h.do(http.MethodPut, "/subjects/user/alice/ban", map[string]any{"reason": "scraping", "until": until}).want(http.StatusOK).into(&r)
	if r.ID != "user:alice" || r.Version == 0 || r.By != "otto" || r.Value.User != "alice" || r.Value.Reason != "scraping" || !r.Value.Until.Equal(until) || a.Header.Get("ETag") == "" {
		t.Errorf("%+v", r)
	}
	if o := h.decide("/", "alice"); o != engine.Banned {
		t.Errorf("she is %v", o)
	}
	var s admin.Subject
	if h.get("/subjects/user/alice").want(http.StatusOK).into(&s); s.Ban == nil || s.Ban.Reason != "scraping" {
		t.Errorf("%+v", s)
	}
	h.get("/bans/user:alice").want(http.StatusOK)
	before := r.Version
	r = admin.Record[catalog.Entry]{}
	if h.do(http.MethodPut, "/subjects/user/alice/ban", nil).want(http.StatusOK).into(&r); r.Version <= before || r.Value.Reason != "" {
		t.Errorf("%+v", r)
	}
	h.do(http.MethodDelete, "/subjects/user/alice/ban?dry_run=true", nil).want(http.StatusNoContent)
	if o := h.decide("/", "alice"); o != engine.Banned {
		t.Errorf("she is %v", o)
	}
	h.do(http.MethodDelete, "/subjects/user/alice/ban", nil).want(http.StatusNoContent)
	if o := h.decide("/", "alice"); o != engine.Allowed {
		t.Errorf("she is %v", o)
	}
	h.do(http.MethodDelete, "/subjects/user/alice/ban", nil).want(http.StatusNotFound)

	h.do(http.MethodPut, "/subjects/tenant/acme/exemption", `{"reason":"ours"}`).want(http.StatusOK)
	if o := h.decide("/", "alice"); o != engine.Exempt {
		t.Errorf("she is %v", o)
	}
	h.do(http.MethodDelete, "/subjects/tenant/acme/exemption", nil).want(http.StatusNoContent)

	h.do(http.MethodPut, "/subjects/ip/192.0.2.0%2F24/ban", nil).want(http.StatusOK).into(&r)
	if r.ID != "ip:192.0.2.0/24" || r.Value.IP != "192.0.2.0/24" {
		t.Errorf("%+v", r)
	}
	h.do(http.MethodPut, "/subjects/user/alice/ban", `{"until":"2020-01-01T00:00:00Z"}`).want(http.StatusUnprocessableEntity).says("until", "in the past")
	h.do(http.MethodPut, "/subjects/user/alice/ban", `{"until":"soon"}`).want(http.StatusUnprocessableEntity).says("until")
	h.do(http.MethodPut, "/subjects/user/alice/ban", `{"reason":1}`).want(http.StatusUnprocessableEntity)
	h.do(http.MethodPut, "/subjects/user/alice/ban", `{`).want(http.StatusBadRequest)
	h.ask(http.MethodPut, "/subjects/user/alice/ban", nil, "", h.viewer).want(http.StatusForbidden)
}

func TestOverrides(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	key, _ := h.people()
	put := func(path string, status int) *answer {
		t.Helper()
		return h.do(http.MethodPut, "/subjects/"+path, `{"limit":"2/24h"}`).want(status)
	}
	put("user/alice/overrides/searches", http.StatusOK).says(`{"limit_name":"searches","limit":"2/24h"}`)
	for _, want := range []engine.Outcome{engine.Allowed, engine.Allowed, engine.Denied} {
		if o := h.decide("/search", "alice"); o != want {
			t.Errorf("%v, want %v", o, want)
		}
	}
	put("user/carol/overrides/searches?dry_run=true", http.StatusOK)
	h.get("/users/carol").want(http.StatusNotFound)
	put("user/carol/overrides/searches", http.StatusOK) // of whom nothing was known
	h.get("/users/carol").want(http.StatusOK)
	put("key/"+key.ID+"/overrides/searches", http.StatusOK)
	var s admin.Subject
	h.get("/subjects/key/" + key.ID).want(http.StatusOK).into(&s)
	if !slices.Equal(s.Overrides, []admin.SubjectOverride{{Name: "searches", Limit: "2/24h"}}) {
		t.Errorf("%+v", s.Overrides)
	}
	put("key/unknownkey/overrides/searches", http.StatusNotFound)
	put("tenant/acme/overrides/searches", http.StatusBadRequest).says("user or key")
	put("user/alice/overrides/serches", http.StatusUnprocessableEntity)
	h.do(http.MethodPut, "/subjects/user/alice/overrides/searches", `{"limit":"many"}`).want(http.StatusUnprocessableEntity)
	h.do(http.MethodPut, "/subjects/user/alice/overrides/searches", `{"limit":"2/24h","until":"2020-01-01T00:00:00Z"}`).want(http.StatusUnprocessableEntity)
	h.do(http.MethodDelete, "/subjects/user/alice/overrides/searches", nil).want(http.StatusNoContent)
	if o := h.decide("/search", "alice"); o != engine.Allowed {
		t.Errorf("she is %v", o)
	}
	h.do(http.MethodDelete, "/subjects/user/alice/overrides/searches", nil).want(http.StatusNotFound)
	h.do(http.MethodDelete, "/subjects/user/nobody/overrides/searches", nil).want(http.StatusNotFound)
}

// TestSubjectsOfFile has rules and users in a file.
func TestSubjectsOfFile(t *testing.T) {
	t.Parallel()
	h := newFileAPI(t, catalog.Document{
		File:    rule.File{Rules: []rule.Rule{searchRule()}},
		Users:   []catalog.User{{ID: "alice"}, {ID: "alan"}},
		Tenants: []catalog.Tenant{{ID: "alpha"}},
		APIKeys: []catalog.APIKey{{ID: "k3jq8w2n", Hash: "sha256:00", Prefix: "stint_k3jq"}},
		Bans:    []catalog.Entry{{User: "mallory", Reason: "filed"}},
	})
	var list admin.SubjectList
	h.get("/subjects?q=al").want(http.StatusOK).into(&list)
	if len(list.Items) != 4 || list.Items[0].ID != "alan" || list.Items[3] != (admin.FoundSubject{Kind: "user", ID: "al"}) {
		t.Errorf("%+v", list.Items)
	}
	h.get("/subjects?q=stint_k3jq8w2n_secret").want(http.StatusOK).into(&list)
	if len(list.Items) != 1 || list.Items[0].Kind != "key" {
		t.Errorf("%+v", list.Items)
	}
	var s admin.Subject
	for path, known := range map[string]bool{"user/alice": true, "user/eve": false, "tenant/alpha": true, "key/k3jq8w2n": true, "user/mallory": true, "ip/192.0.2.1": false} {
		s = admin.Subject{}
		if h.get("/subjects/" + path).want(http.StatusOK).into(&s); s.Known != known {
			t.Errorf("%s: %+v", path, s)
		}
	}
	h.get("/subjects/user/alice/usage").want(http.StatusOK).says(`"rule":"search"`)
	h.decide("/search", "alice")
	h.do(http.MethodPost, "/subjects/user/alice/reset", nil).want(http.StatusNoContent)

	// Bans are those of this node.
	var r admin.Record[catalog.Entry]
	h.do(http.MethodPut, "/subjects/user/alice/ban?dry_run=true", nil).want(http.StatusOK)
	if o := h.decide("/", "alice"); o != engine.Allowed {
		t.Errorf("she is %v", o)
	}
	if h.do(http.MethodPut, "/subjects/user/alice/ban", `{"reason":"scraping"}`).want(http.StatusOK).into(&r); r.ID != "user:alice" || r.Version != 0 {
		t.Errorf("%+v", r)
	}
	if o := h.decide("/", "alice"); o != engine.Banned {
		t.Errorf("she is %v", o)
	}
	if h.get("/subjects/user/alice").want(http.StatusOK).into(&s); s.Ban == nil || s.Ban.Reason != "scraping" {
		t.Errorf("%+v", s.Ban)
	}
	h.do(http.MethodPut, "/subjects/ip/2001:DB8::%2F32/ban", nil).want(http.StatusOK)
	s = admin.Subject{}
	if h.get("/subjects/ip/2001:db8::1").want(http.StatusOK).into(&s); s.Ban == nil || s.Ban.IP != "2001:db8::/32" {
		t.Errorf("%+v", s.Ban)
	}
	h.do(http.MethodDelete, "/subjects/ip/2001:db8::%2F32/ban", nil).want(http.StatusNoContent)
	h.do(http.MethodDelete, "/subjects/user/alice/ban", nil).want(http.StatusNoContent)
	if o := h.decide("/", "alice"); o != engine.Allowed {
		t.Errorf("she is %v", o)
	}
	h.do(http.MethodDelete, "/subjects/user/alice/ban", nil).want(http.StatusNotFound)
	h.do(http.MethodDelete, "/subjects/user/mallory/ban", nil).want(http.StatusConflict).says("stint.toml")
	h.do(http.MethodPut, "/subjects/user/alice/exemption", nil).want(http.StatusConflict).says("stint.toml")
	h.do(http.MethodPut, "/subjects/user/alice/overrides/searches", `{"limit":"1/day"}`).want(http.StatusConflict)

	// As many as there can be.
	var many []identity.Entry
	for i := range engine.MaxBans {
		many = append(many, identity.Entry{Kind: identity.KindUser, Value: "u" + strings.Repeat("x", i%100) + time.Duration(i).String()})
	}
	if err := h.engine.Ban(many...); err != nil {
		t.Fatal(err)
	}
	h.do(http.MethodPut, "/subjects/user/one-more/ban", nil).want(http.StatusUnprocessableEntity).says("at most 10000")
}
