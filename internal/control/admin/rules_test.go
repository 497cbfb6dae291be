package admin_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

func TestRules(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	seed(h)
	var r admin.RuleRecord
	h.get("/rules/search").into(&r)
	if r.Reading != r.Value.Sentence() || r.Reading == "" {
		t.Errorf("%q", r.Reading)
	}
	h.do(http.MethodPost, "/rules/search/disable", nil).want(http.StatusOK).says(`"enabled":false`)
	if ids, _ := h.get("/rules?enabled=false").ids(); ids != "search trial" {
		t.Error(ids)
	}
	was := h.get("/rules/search").asRecord()
	if again := h.do(http.MethodPost, "/rules/search/disable", nil).want(http.StatusOK).asRecord(); again.Version != was.Version {
		t.Errorf("version %d, then %d", was.Version, again.Version)
	}
	h.do(http.MethodPost, "/rules/search/enable?dry_run=true", nil).want(http.StatusOK)
	h.get("/rules/search").says(`"enabled":false`)
	a := h.do(http.MethodPost, "/rules/search/enable", nil).want(http.StatusOK)
	if strings.Contains(string(a.body), "enabled") {
		t.Errorf("%s", a.body)
	}
	h.do(http.MethodPost, "/rules/unknown/enable", nil).want(http.StatusNotFound)

	var revision admin.Revision
	h.do(http.MethodPost, "/rules/order?dry_run=true", `{"names":["trial","login"]}`).want(http.StatusOK)
	h.get("/rules/login").says(`"priority":5`)
	h.do(http.MethodPost, "/rules/order", `{"names":["trial","login"]}`).want(http.StatusOK).into(&revision)
	if got := h.get("/rules/login").says(`"priority":20`).asRecord(); got.Version != revision.Revision {
		t.Errorf("revision %d, version %d", revision.Revision, got.Version)
	}
	h.get("/rules/trial").says(`"priority":10`)
	for body, field := range map[string]string{`{"names":[]}`: "names", `{"names":["unknown"]}`: "names[0]", `{"names":["login","login"]}`: "names[1]", `{}`: "names"} {
		if p := h.do(http.MethodPost, "/rules/order", body).want(http.StatusUnprocessableEntity).problem(); p.Errors[0].Field != field {
			t.Errorf("%s: %+v", body, p)
		}
	}

	validate := func(query string, r rule.Rule) (c admin.Checked) {
		t.Helper()
		h.ask(http.MethodPost, "/rules/validate"+query, r, "", h.viewer).want(http.StatusOK).into(&c)
		return c
	}
	fresh := searchRule()
	fresh.Name, fresh.Limits[0].Name = "fresh", "fresh"
	if c := validate("", fresh); !c.OK || c.Reading != fresh.Sentence() || len(c.Problems) != 0 {
		t.Errorf("%+v", c)
	}
	if c := validate("", searchRule()); c.OK || c.Problems[0].Field != "name" {
		t.Errorf("one that is there: %+v", c)
	}
	if c := validate("?replacing=search", searchRule()); !c.OK {
		t.Errorf("in place of itself: %+v", c)
	}
	fresh.Limits[0].Limit, fresh.Action = "lots", "refuse"
	if c := validate("", fresh); c.OK || len(c.Problems) != 2 || c.Reading == "" {
		t.Errorf("%+v", c)
	}
	h.ask(http.MethodPost, "/rules/validate?replacing=unknown", fresh, "", h.viewer).want(http.StatusNotFound)
	h.ask(http.MethodPost, "/rules/validate", `{"name":"x","limts":[]}`, "", h.viewer).want(http.StatusUnprocessableEntity).says(`did you mean \"limits\"`, `"line":1`, `"column":13`)

	var changes admin.ChangeList
	h.get("/rules/login/history").want(http.StatusOK).into(&changes)
	if len(changes.Items) != 2 || changes.Items[0].Action != "update" || changes.Items[1].Action != "create" || changes.Items[0].Actor != "otto" {
		t.Errorf("%+v", changes)
	}
	h.get("/rules/login/history?limit=1").want(http.StatusOK).into(&changes)
	h.get("/rules/login/history?limit=1&before=" + changes.Next).want(http.StatusOK).into(&changes)
	if len(changes.Items) != 1 || changes.Items[0].Action != "create" {
		t.Errorf("%+v", changes)
	}
	h.get("/rules/login/history?before=x").want(http.StatusBadRequest)
}

func TestApplyAndExport(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	d := exampleDocument()
	var diff catalog.Diff
	h.do(http.MethodPost, "/apply?dry_run=true", d).want(http.StatusOK).into(&diff)
	if n := diff.Count(catalog.Created); n != 15 {
		t.Errorf("%d", n)
	}
	if ids, _ := h.get("/rules").ids(); ids != "" {
		t.Error("a dry run has changed something")
	}
	h.do(http.MethodPost, "/apply", d).want(http.StatusOK)
	h.do(http.MethodPost, "/apply", d).want(http.StatusOK).says(`"items":[]`)

	var out catalog.Document
	h.get("/export").want(http.StatusOK).into(&out)
	if len(out.Rules) != 3 || len(out.Users) != 0 || len(out.APIKeys) != 0 || len(out.Bans) != 2 {
		t.Errorf("%+v", out)
	}
	h.get("/export?users=true").want(http.StatusForbidden)
	h.do(http.MethodGet, "/export?users=true", nil).want(http.StatusOK).into(&out)
	h.do(http.MethodPost, "/apply?dry_run=true&prune=true", out).want(http.StatusOK).says(`"items":[]`)
	if got := h.do(http.MethodGet, "/export?format=toml", nil).want(http.StatusOK).says("[[rules]]").Header.Get("Content-Type"); got != "application/toml" {
		t.Error(got)
	}
	h.get("/export?format=yaml").want(http.StatusBadRequest).says("want one of json, toml")

	h.do(http.MethodPost, "/apply?prune=true", `{"rules":[{"name":"only","limits":[{"name":"searches","limit":"1/second"}]}]}`).want(http.StatusUnprocessableEntity).says("cannot be deleted")
	h.do(http.MethodPost, "/apply?prune=true", `{}`).want(http.StatusUnprocessableEntity).says("the document is empty")
	p := h.do(http.MethodPost, "/apply", `{"rules":[{"name":"x","limits":[{"name":"l","limit":"lots"}]}]}`).want(http.StatusUnprocessableEntity).problem()
	if p.Errors[0].Field != "rules[0].limits[0].limit" {
		t.Errorf("%+v", p)
	}
	h.ask(http.MethodPost, "/apply", d, "", h.viewer).want(http.StatusForbidden)
}

// TestValidateInRegions checks a rule for a file that regions share, where there are some and where not.
func TestValidateInRegions(t *testing.T) {
	t.Parallel()
	r := searchRule()
	r.Regions = rule.RegionsCentral
	for want, world := range map[string]*rule.World{
		"": nil,
		`"central": this is no region: add [region] with a name and peers, or remove regions`: {},
		`"central": no region has the counters: set region.central to the name of one`:        {Regions: 3},
	} {
		h := newFileAPI(t, catalog.Document{}, func(o *admin.Options) { o.World = world })
		var c admin.Checked
		h.ask(http.MethodPost, "/rules/validate", r, "", h.viewer).want(http.StatusOK).into(&c)
		if c.OK != (want == "") || !c.OK && (len(c.Problems) != 1 || c.Problems[0].Field != "regions" || c.Problems[0].Message != want) {
			t.Errorf("%+v: %+v", world, c)
		}
	}
}
