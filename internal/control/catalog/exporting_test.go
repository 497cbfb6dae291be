package catalog_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// TestExport checks that what is exported is what is there, and that to apply it changes
// nothing.
func TestExport(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			c := opened(t, url)
			export := func(write func(io.Writer) error) string {
				t.Helper()
				var b bytes.Buffer
				if err := write(&b); err != nil {
					t.Error(err)
				}
				return b.String()
			}
			inTOML := func(o catalog.ExportOptions) string {
				return export(func(w io.Writer) error { return c.ExportTOML(t.Context(), w, o) })
			}
			inJSON := func(o catalog.ExportOptions) string {
				return export(func(w io.Writer) error { return c.ExportJSON(t.Context(), w, o) })
			}
			if got := inTOML(catalog.ExportOptions{}) + inJSON(catalog.ExportOptions{}); got != "{}\n" {
				t.Errorf("of nothing: %q", got)
			}
			if _, err := c.Apply(t.Context(), parse(t, whole), catalog.ApplyOptions{Actor: "me"}); err != nil {
				t.Fatal(err)
			}
			all := catalog.ExportOptions{Users: true}
			want, err := c.Export(t.Context(), all)
			if err != nil {
				t.Fatal(err)
			}
			const rest = `
[[tiers]]
name = "gold"
limits = { requests = "unlimited" }

[[exemptions]]
ip = "10.0.0.0/8"

[[bans]]
user = "eve"
until = "2030-01-01T00:00:00Z"

[[tenants]]
id = "acme"
tier = "gold"

[[users]]
id = "alice"
tier = "gold"
limits = { burst = { limit = "6/1s", until = "2030-01-01T00:00:00.5+02:00" }, requests = "5/1s" }

[[users]]
id = "bob"
blocked = { reason = "a \"reason\"", until = "2030-01-01T00:00:00Z" }

[[api_keys]]
id = "abcdefgh"
hash = "` + hashA + `"
user = "alice"
`
			text := inTOML(all)
			if !strings.HasPrefix(text, "[[rules]]\nname = \"per-user\"\ncount_by = [\"user\"]\nlimits = [\n  { name = \"requests\"") || !strings.HasSuffix(text, rest) {
				t.Errorf("got\n%s", text)
			}
			var fromJSON catalog.Document
			if _, problems := strict.JSON("f", []byte(inJSON(all)), &fromJSON); len(problems) > 0 {
				t.Error(problems)
			}
			for name, d := range map[string]*catalog.Document{"document": want, "TOML": parse(t, text), "JSON": &fromJSON} {
				if !reflect.DeepEqual(d, want) {
					t.Errorf("%s: got %+v, want %+v", name, d, want)
				}
				diff, err := c.Apply(t.Context(), d, catalog.ApplyOptions{Actor: "me", Prune: true})
				if err != nil || len(diff.Items) > 0 || diff.Revision != 1 {
					t.Errorf("%s: to apply it changes %s, %v", name, lines(diff), err)
				}
			}
			if text := inTOML(catalog.ExportOptions{}); !strings.Contains(text, "[[tenants]]") || strings.Contains(text, "alice") {
				t.Errorf("without users:\n%s", text)
			}
			full := errors.New("full")
			for name, write := range map[string]func(io.Writer) error{
				"TOML": func(w io.Writer) error { return c.ExportTOML(t.Context(), w, all) },
				"JSON": func(w io.Writer) error { return c.ExportJSON(t.Context(), w, all) },
			} {
				if err := write(broken{full}); !errors.Is(err, full) || errors.Is(err, catalog.ErrUnavailable) {
					t.Errorf("%s: got %v", name, err)
				}
			}
		})
	}
}

// broken is a writer that cannot be written to.
type broken struct{ err error }

func (b broken) Write([]byte) (int, error) { return 0, b.err }

// TestDocumentBack writes documents as TOML and as JSON, and reads them back.
func TestDocumentBack(t *testing.T) {
	t.Parallel()
	documents := rapid.Custom(drawDocument)
	rapid.Check(t, func(t *rapid.T) {
		want := documents.Draw(t, "document")
		text, err := strict.AppendTOML(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		var got catalog.Document
		if _, problems := strict.TOML("f", text, &got); len(problems) > 0 {
			t.Fatalf("%v\n%s", problems, text)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s\ngot  %+v\nwant %+v", text, got, want)
		}
		if text, err = json.Marshal(want); err != nil {
			t.Fatal(err)
		}
		got = catalog.Document{}
		if _, problems := strict.JSON("f", text, &got); len(problems) > 0 || !reflect.DeepEqual(got, want) {
			t.Fatalf("%v\n%s", problems, text)
		}
	})
}

func drawDocument(t *rapid.T) catalog.Document {
	text := rapid.String()
	some := func(what string, of *rapid.Generator[string]) []string {
		if all := rapid.SliceOfN(of, 0, 3).Draw(t, what); len(all) > 0 {
			return all
		}
		return nil
	}
	when := func(what string) catalog.Time {
		if !rapid.Bool().Draw(t, what+"?") {
			return catalog.Time{}
		}
		return catalog.Time{Time: time.Unix(rapid.Int64Range(0, 1<<37).Draw(t, what), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC()}
	}
	table := func(what string) map[string]string {
		if all := rapid.MapOfN(text, text, 0, 3).Draw(t, what); len(all) > 0 {
			return all
		}
		return nil
	}
	overrides := func() map[string]catalog.Override {
		var out map[string]catalog.Override
		for name, limit := range table("overrides") {
			if out == nil {
				out = map[string]catalog.Override{}
			}
			out[name] = catalog.Override{Limit: limit, Until: when("until")}
		}
		return out
	}
	length := func(what string) rule.Duration {
		return rule.Duration(time.Duration(rapid.IntRange(1, 1e6).Draw(t, what)) * time.Millisecond)
	}
	var d catalog.Document
	for _, name := range some("rules", text) {
		r := rule.Rule{
			Name:     name,
			Match:    rule.Match{Paths: some("paths", text), Methods: some("methods", text), Headers: table("headers")},
			Priority: rapid.Int().Draw(t, "priority"), Action: rule.Action(text.Draw(t, "action")), MaxDelay: length("delay"),
			Response: rule.Response{Message: text.Draw(t, "message")},
			Regions:  rule.Regions(text.Draw(t, "regions")), Credit: rule.Credit(rapid.Int64().Draw(t, "credit")),
			OnCredit: rule.OnCredit(text.Draw(t, "on_credit")), Weights: rule.Weights(text.Draw(t, "weights")),
			Cost: rule.Cost{Units: rapid.Int64Range(0, 5).Draw(t, "units"), Header: text.Draw(t, "header")},
		}
		for _, by := range some("count_by", text) {
			r.CountBy = append(r.CountBy, rule.Dimension(by))
		}
		for _, limit := range some("limits", text) {
			r.Limits = append(r.Limits, rule.Limit{Name: limit, Limit: text.Draw(t, "limit"), Burst: rapid.Int64().Draw(t, "burst"), Lease: length("lease"), Split: rapid.Int().Draw(t, "split")})
		}
		if rapid.Bool().Draw(t, "penalty?") {
			r.Penalty = &rule.Penalty{Threshold: rapid.Int64().Draw(t, "threshold"), Within: length("within"), Cooldown: length("cooldown"), Multipliers: []int64{1, 2}}
			r.Enabled = new(bool)
		}
		d.Rules = append(d.Rules, r)
	}
	for _, name := range some("tiers", text) {
		d.Tiers = append(d.Tiers, rule.Tier{Name: name, Price: text.Draw(t, "price"), Limits: table("limits")})
	}
	for _, id := range some("tenants", text) {
		d.Tenants = append(d.Tenants, catalog.Tenant{ID: id, Name: text.Draw(t, "name")})
	}
	for _, id := range some("users", text) {
		u := catalog.User{ID: id, Tier: text.Draw(t, "tier"), Limits: overrides()}
		if rapid.Bool().Draw(t, "blocked?") {
			u.Blocked = &catalog.Blocked{Reason: text.Draw(t, "reason"), Until: when("until")}
		}
		d.Users = append(d.Users, u)
	}
	for _, id := range some("keys", text) {
		d.APIKeys = append(d.APIKeys, catalog.APIKey{ID: id, Hash: text.Draw(t, "hash"), Limits: overrides(), Disabled: rapid.Bool().Draw(t, "disabled"), Expires: when("expires")})
	}
	for _, ip := range some("bans", text) {
		d.Bans = append(d.Bans, catalog.Entry{IP: ip, Key: text.Draw(t, "key"), Until: when("until")})
	}
	return d
}
