package catalog_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

// everywhere runs a test on both databases.
func everywhere(t *testing.T, test func(t *testing.T, c *catalog.Catalog)) {
	t.Helper()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t, url))
		})
	}
}

// found returns the ids of what a search has found, with a sign for each kind.
func found(t *testing.T, c *catalog.Catalog, q string) string {
	t.Helper()
	h, err := c.Search(t.Context(), q, 10)
	if err != nil {
		t.Fatalf("%q: %v", q, err)
	}
	var out []string
	for _, u := range h.Users {
		out = append(out, "u:"+u.ID)
	}
	for _, x := range h.Tenants {
		out = append(out, "t:"+x.ID)
	}
	for _, k := range h.APIKeys {
		out = append(out, "k:"+k.Name)
	}
	for _, r := range h.Rules {
		out = append(out, "r:"+r.Name)
	}
	for _, x := range h.Tiers {
		out = append(out, "T:"+x.Name)
	}
	for _, e := range h.Exemptions {
		out = append(out, "+"+e.ID())
	}
	for _, e := range h.Bans {
		out = append(out, "-"+e.ID())
	}
	return strings.Join(out, " ")
}

func searchDocument() *catalog.Document {
	r := rule.Rule{Name: "search-api", Match: rule.Match{Paths: []string{"/search"}}, CountBy: []rule.Dimension{"user"}, Limits: []rule.Limit{{Name: "searches", Limit: "100/minute"}}}
	return &catalog.Document{
		File:    rule.File{Rules: []rule.Rule{r}, Tiers: []rule.Tier{{Name: "gold"}}},
		Tenants: []catalog.Tenant{{ID: "acme", Name: "Acme Söhne & Co."}, {ID: "t-77"}},
		Users: []catalog.User{
			{ID: "Alice.Smith@example.com"},
			{ID: "alan"},
			{ID: "user-000123"},
			{ID: "100%"},
			{ID: "a_b"},
			{ID: "axb"},
			{ID: "Müller"},
			{ID: "x Élodie"},
			{ID: strings.Repeat("w ", 20) + "last"},
			{ID: strings.Repeat("z", 100) + "-" + strings.Repeat("y", 100)},
		},
		Exemptions: []catalog.Entry{{IP: "192.0.2.0/24"}},
		Bans:       []catalog.Entry{{User: "mallory"}, {IP: "198.51.100.7"}},
	}
}

// TestSearch finds records by words, on both databases, whoever wrote their words: the program,
// or the migration.
func TestSearch(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, c *catalog.Catalog) {
		t.Helper()
		if _, err := c.Apply(t.Context(), searchDocument(), catalog.ApplyOptions{Actor: "test"}); err != nil {
			t.Fatal(err)
		}
		text, key, _, err := c.CreateKey(t.Context(), "test", catalog.APIKey{Name: "Mobile app", User: "alan"})
		if err != nil {
			t.Fatal(err)
		}
		long := strings.Repeat("z", 100) + "-" + strings.Repeat("y", 100)
		cases := map[string]string{
			"al":                       "u:alan u:Alice.Smith@example.com",
			"ALICE":                    "u:Alice.Smith@example.com",
			"smith":                    "u:Alice.Smith@example.com",
			"smith@ex":                 "u:Alice.Smith@example.com",
			"mith":                     "",
			"com":                      "u:Alice.Smith@example.com",
			"000123":                   "u:user-000123",
			"100%":                     "u:100%",
			"%":                        "",
			"_":                        "",
			"a_b":                      "u:a_b",
			"b":                        "u:a_b",
			"a*":                       "",
			"müller":                   "u:Müller",
			"Müller":                   "u:Müller",
			"ller":                     "", // not a word of its own
			"Élo":                      "u:x Élodie",
			"élo":                      "", // only the case of A to Z does not matter
			"s\u00f6hne":               "t:acme",
			"acme":                     "t:acme",
			"co.":                      "t:acme",
			"77":                       "t:t-77",
			"app":                      "k:Mobile app",
			"mobile a":                 "k:Mobile app",
			key.ID[:6]:                 "k:Mobile app",
			key.Prefix:                 "k:Mobile app",
			text:                       "k:Mobile app",
			"rch-a":                    "r:search-api",
			"GOL":                      "T:gold",
			"192.0":                    "+ip:192.0.2.0/24",
			"198.51.100.7":             "-ip:198.51.100.7",
			"user:mall":                "-user:mallory",
			"mallory":                  "-user:mallory",
			"last":                     "", // the 21st word
			strings.Repeat("y", 100):   "u:" + long,
			strings.Repeat("y", 101):   "",
			strings.Repeat("q", 512):   "",
			"' OR 1=1 --":              "",
			"\u202e\U0010ffff":         "",
			"\t":                       "",
			strings.Repeat("\\%_", 50): "",
		}
		check := func(when string) {
			t.Helper()
			for q, want := range cases {
				if got := found(t, c, q); got != want {
					t.Errorf("%s: %q: %q, want %q", when, q, got, want)
				}
			}
		}
		check("written by the program")
		words := ask(t, catalog.DB(c), "SELECT kind, word, id FROM stint_words ORDER BY kind, word, id")
		schema, err := c.Schema(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Down(t.Context(), 13); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Up(t.Context(), schema.Latest); err != nil {
			t.Fatal(err)
		}
		check("written by the migration")
		if again := ask(t, catalog.DB(c), "SELECT kind, word, id FROM stint_words ORDER BY kind, word, id"); !slices.Equal(words, again) {
			t.Errorf("the migration has written %q, the program %q", again, words)
		}

		// Words change with the record, and go with it.
		if _, err := c.Tenants.Modify(t.Context(), "test", "acme", func(x *catalog.Tenant) error { x.Name = "Emca"; return nil }); err != nil {
			t.Fatal(err)
		}
		if got := found(t, c, "söhne") + found(t, c, "emc"); got != "t:acme" {
			t.Errorf("renamed: %q", got)
		}
		u, err := c.Users.Get(t.Context(), "user-000123")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Users.Delete(t.Context(), "test", "user-000123", u.Version); err != nil {
			t.Fatal(err)
		}
		if got := ask(t, catalog.DB(c), "SELECT id FROM stint_words WHERE id = 'user-000123'"); len(got) != 0 || found(t, c, "000123") != "" {
			t.Errorf("deleted: %q", got)
		}
		if _, err := c.Revert(t.Context(), catalog.RevertOptions{Actor: "test", Revision: revisionOf(t, c)}); err != nil {
			t.Fatal(err)
		}
		if got := found(t, c, "000123"); got != "u:user-000123" {
			t.Errorf("restored: %q", got)
		}

		// There is one more than the limit, so that one knows.
		if h, err := c.Search(t.Context(), "a", 2); err != nil || len(h.Users) != 3 {
			t.Errorf("%v, %v", h.Users, err)
		}
		for _, q := range []string{"", strings.Repeat("q", 513), "a\x00b", "\xff"} {
			if _, err := c.Search(t.Context(), q, 10); catalog.Status(err) != 422 {
				t.Errorf("%q: %v", q, err)
			}
		}
		if ids, err := c.Known(t.Context(), "user", []string{"alan", "unknown", "\x00"}); err != nil || fmt.Sprint(ids) != "[alan]" {
			t.Errorf("known: %v, %v", ids, err)
		}
		if !catalog.HasSecret(text) || catalog.HasSecret("stint_k3jq") {
			t.Error("secrets are not told from other texts")
		}
	})
}

// revisionOf returns the last revision.
func revisionOf(t *testing.T, c *catalog.Catalog) int64 {
	t.Helper()
	all, _, err := c.Changes(t.Context(), catalog.ChangeQuery{Limit: 1})
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	return all[0].Revision
}
