package catalog_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

// opened returns a catalog whose schema is up to date.
func opened(t *testing.T, url string) *catalog.Catalog {
	t.Helper()
	c, err := catalog.Open(url, catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Up(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return c
}

func parse(t *testing.T, text string) *catalog.Document {
	t.Helper()
	d := &catalog.Document{}
	if _, problems := strict.TOML("f", []byte(text), d); len(problems) > 0 {
		t.Fatal(problems)
	}
	return d
}

// lines returns what was changed, one in a line.
func lines(d catalog.Diff) string {
	var b strings.Builder
	for _, i := range d.Items {
		fmt.Fprintf(&b, "%s %s %s\n", i.Action, i.Kind, i.ID)
		for _, f := range i.Fields {
			fmt.Fprintf(&b, "  %s: %s -> %s\n", f.Path, f.Before, f.After)
		}
	}
	return b.String()
}

const (
	hashA = "sha256:ee9c859c26d6b7e6e3b663354ed5947d41ef6e14f87c9dfa625f960a84bdd935"
	hashB = "sha256:aa9c859c26d6b7e6e3b663354ed5947d41ef6e14f87c9dfa625f960a84bdd935"

	whole = `
[[rules]]
name = "per-user"
count_by = ["user"]
limits = [{ name = "requests", limit = "1000/1h" }, { name = "burst", limit = "20/1s", lease = "100ms", split = 2 }]
cost = { header = "X-Cost", max = 10 }
penalty = { threshold = 3, within = "1h", cooldown = "1m" }

[[rules]]
name = "search"
match = { paths = ["/search"], tiers = ["gold"] }
limits = [{ name = "search", limit = "5/1s" }]
cost = 2
enabled = false

[[tiers]]
name = "gold"
limits = { requests = "unlimited" }

[[tenants]]
id = "acme"
tier = "gold"

[[users]]
id = "alice"
tier = "gold"
limits = { requests = "5/1s", burst = { limit = "6/1s", until = 2030-01-01T00:00:00.5+02:00 } }

[[users]]
id = "bob"
blocked = { reason = "a \"reason\"", until = 2030-01-01T00:00:00Z }

[[api_keys]]
id = "abcdefgh"
hash = "` + hashA + `"
user = "alice"

[[exemptions]]
ip = "10.0.0.0/8"

[[bans]]
user = "eve"
until = 2030-01-01T00:00:00Z
`
	created = `create tier gold
create rule per-user
create rule search
create tenant acme
create user alice
create user bob
create api_key abcdefgh
create exemption ip:10.0.0.0/8
create ban user:eve
`
)

func TestApply(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			c := opened(t, url)
			apply := func(text string, o catalog.ApplyOptions, revision int64, want string) {
				t.Helper()
				o.Actor = "me"
				d, err := c.Apply(t.Context(), parse(t, text), o)
				if got := lines(d); err != nil || got != want || d.Revision != revision {
					t.Errorf("got revision %d, want %d, %v\n%s\nwant\n%s", d.Revision, revision, err, got, want)
				}
			}
			dry, prune := catalog.ApplyOptions{DryRun: true}, catalog.ApplyOptions{Prune: true}
			apply(whole, dry, 0, created)
			apply("", catalog.ApplyOptions{}, 0, "")
			apply(whole, catalog.ApplyOptions{}, 1, created)
			apply(whole, catalog.ApplyOptions{}, 1, "")
			apply(whole, prune, 1, "")
			const other = `
[[rules]]
name = "per-user"
count_by = ["user"]
limits = [{ name = "requests", limit = "2000/1h" }, { name = "burst", limit = "20/1s", lease = "200ms" }]
action = "log_only"
[[tiers]]
name = "silver"
[[users]]
id = "alice"
tier = "silver"
`
			const changed = `create tier silver
update rule per-user
  action:  -> "log_only"
  cost: {"header":"X-Cost","max":10} -> 
  limits[0].limit: "1000/1h" -> "2000/1h"
  limits[1].lease: "100ms" -> "200ms"
  limits[1].split: 2 -> 
  penalty: {"cooldown":"1m","threshold":3,"within":"1h"} -> 
update user alice
  limits: {"burst":{"limit":"6/1s","until":"2030-01-01T00:00:00.5+02:00"},"requests":"5/1s"} -> 
  tier: "gold" -> "silver"
`
			apply(other, dry, 1, changed)
			apply(other, catalog.ApplyOptions{}, 2, changed)
			if r, err := c.Users.Get(t.Context(), "alice"); err != nil || r.Value.Tier != "silver" || r.Version != 2 || r.By != "me" {
				t.Errorf("got %+v, %v", r, err)
			}
			// The tenant has the tier, and is not pruned where there are no tenants.
			_, err := c.Apply(t.Context(), parse(t, other), catalog.ApplyOptions{Actor: "me", Prune: true})
			if err == nil || err.Error() != `the tier "gold" cannot be deleted: the tenant "acme" refers to it` {
				t.Errorf("got %v", err)
			}
			const pruned = "delete tier gold\ndelete rule search\nupdate tenant acme\n  tier: \"gold\" -> \ndelete user bob\ndelete exemption ip:10.0.0.0/8\ndelete ban user:eve\n"
			apply(other+"[[tenants]]\nid = \"acme\"\n", catalog.ApplyOptions{DryRun: true, Prune: true}, 2, pruned)
			apply(other+"[[tenants]]\nid = \"acme\"\n", prune, 3, pruned)
			apply("[[api_keys]]\nid = \"ABCDEFGH\"\nhash = \""+hashB+"\"\n[[users]]\nid = \"carol\"", prune, 4, `delete tier silver
delete rule per-user
delete user alice
create user carol
create api_key ABCDEFGH
delete api_key abcdefgh
`)
		})
	}
}

func TestApplyProblems(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			c := opened(t, url)
			if _, err := c.Apply(t.Context(), parse(t, whole), catalog.ApplyOptions{Actor: "me"}); err != nil {
				t.Fatal(err)
			}
			before, err := c.Export(t.Context(), catalog.ExportOptions{Users: true})
			if err != nil {
				t.Fatal(err)
			}
			for name, x := range map[string]struct {
				text, want string
				prune      bool
			}{
				"empty":       {prune: true, want: "the document is empty"},
				"tier":        {text: "[[users]]\nid = \"x\"\ntier = \"glod\"", want: `users[0].tier: "glod": want the name of a tier in the catalog; did you mean "gold"?`},
				"own tier":    {text: "[[users]]\nid = \"x\"\ntier = \"gold\"\n[[tiers]]\nname = \"new\"", prune: true, want: `the tier "gold" cannot be deleted: the user "alice" refers to it`},
				"own limit":   {text: "[[users]]\nid = \"x\"\nlimits = { search = \"1/1s\" }", prune: true, want: `users[0].limits.search: "search": want the name of a limit of a rule`},
				"key's user":  {text: "[[api_keys]]\nid = \"12345678\"\nhash = \"" + hashB + "\"\nuser = \"zoe\"", want: `api_keys[0].user: "zoe": want the id of a user in the catalog`},
				"hash":        {text: "[[api_keys]]\nid = \"12345678\"\nhash = \"" + hashA + "\"", want: `api_keys[0].hash: is the hash of the API key "abcdefgh" too`},
				"twice":       {text: "[[users]]\nid = \"x\"\n[[users]]\nid = \"y\"\n[[users]]\nid = \"x\"", want: `users[2].id: "x" is given twice, first as users[0]`},
				"rule twice":  {text: "[[tiers]]\nname = \"x\"\n[[tiers]]\nname = \"x\"", want: `tiers[1].name: "x" is given twice, first as tiers[0]`},
				"ban twice":   {text: "[[bans]]\nip = \"192.0.2.1\"\n[[bans]]\nip = \"192.0.2.1/32\"", want: `bans[1]: "ip:192.0.2.1" is given twice, first as bans[0]`},
				"no id":       {text: "[[users]]\n[[users]]\n", want: `users[1].id: "": want`},
				"no entry":    {text: "[[bans]]\nreason = \"x\"", want: "bans[0]: has 0 of ip, user, tenant and key"},
				"NUL":         {text: "[[users]]\nid = \"\\u0000\"\n", want: `users[0].id: "\x00": want`},
				"NUL in rule": {text: "[[rules]]\nname = \"new\"\nmatch = { headers = { X-A = \"\\u0000\" } }\nlimits = [{ name = \"n\", limit = \"1/1s\" }]", want: `rules[0].match.headers.X-A: "\x00": want UTF-8 without the character U+0000`},
				"rule":        {text: "[[rules]]\nname = \"new\"\nlimits = [{ name = \"n\", limit = \"1/1x\" }]", want: "rules[0].limits[0].limit: "},
				"same rule":   {text: "[[tiers]]\nname = \"other\"\n[[rules]]\nname = \"per-user\"\ncount_by = [\"user\"]\nlimits = [{ name = \"other\", limit = \"1/1s\" }]", want: `tier "gold".limits.requests: after this change: `},
				"unchanged":   {text: "[[tiers]]\nname = \"gold\"\nlimits = { requests = \"unlimited\" }\n[[rules]]\nname = \"per-user\"\ncount_by = [\"user\"]\nlimits = [{ name = \"other\", limit = \"1/1s\" }]", want: `tiers[0].limits.requests: `},
			} {
				for _, dry := range []bool{true, false} {
					_, err := c.Apply(t.Context(), parse(t, x.text), catalog.ApplyOptions{Actor: "me", Prune: x.prune, DryRun: dry})
					if problems := strict.Problems(nil); !errors.As(err, &problems) || !strings.Contains(err.Error(), x.want) {
						t.Errorf("%s: got %v, want %s", name, err, x.want)
					}
				}
			}
			many := strings.Repeat("[[users]]\nid = \"x\"\n", 3000)
			_, err = c.Apply(t.Context(), parse(t, many), catalog.ApplyOptions{Actor: "me"})
			if problems := strict.Problems(nil); !errors.As(err, &problems) || len(problems) != strict.MaxProblems {
				t.Errorf("got %v", err)
			}
			if _, err := c.Apply(t.Context(), parse(t, whole), catalog.ApplyOptions{}); err == nil || !strings.Contains(err.Error(), "actor") {
				t.Errorf("got %v", err)
			}
			after, err := c.Export(t.Context(), catalog.ExportOptions{Users: true})
			if err != nil || !reflect.DeepEqual(before, after) {
				t.Errorf("something was changed: %+v, %v", after, err)
			}
		})
	}
}

// TestApplyMany applies more than is read at once, and tells how far it is.
func TestApplyMany(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			c := opened(t, url)
			const many = 503
			d := parse(t, whole)
			for i := range many {
				d.Users = append(d.Users, catalog.User{ID: fmt.Sprintf("user-%04d", i), Tier: "gold"})
			}
			all := many + strings.Count(created, "\n")
			told := 0
			got, err := c.Apply(t.Context(), d, catalog.ApplyOptions{Actor: "me", Progress: func(done, of int) {
				if told = done; of != all {
					t.Errorf("it is of %d, want %d", of, all)
				}
			}})
			if err != nil || got.Count(catalog.Created) != all || told != all {
				t.Errorf("got %d, told of %d, want %d, %v", len(got.Items), told, all, err)
			}
			out, err := c.Export(t.Context(), catalog.ExportOptions{Users: true})
			if err != nil || len(out.Users) != many+2 {
				t.Errorf("got %d users, %v", len(out.Users), err)
			}
			d.Users = d.Users[:2]
			got, err = c.Apply(t.Context(), d, catalog.ApplyOptions{Actor: "me", Prune: true})
			if err != nil || got.Count(catalog.Deleted) != many || len(got.Items) != many {
				t.Errorf("got %d, %v", len(got.Items), err)
			}
		})
	}
}

// TestApplyAtOnce has writers of one catalog take turns.
func TestApplyAtOnce(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			c := opened(t, url)
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					d := parse(t, fmt.Sprintf("[[tiers]]\nname = \"t%d\"\n[[users]]\nid = \"x\"\ntier = \"t%d\"", i, i))
					if _, err := c.Apply(t.Context(), d, catalog.ApplyOptions{Actor: "me", Prune: true}); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			d, err := c.Export(t.Context(), catalog.ExportOptions{Users: true})
			if err != nil || len(d.Tiers) != 1 || len(d.Users) != 1 || d.Users[0].Tier != d.Tiers[0].Name {
				t.Errorf("got %+v, %v", d, err)
			}
		})
	}
}
