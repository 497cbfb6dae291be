package catalogtest

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

// texts are what people, and others, have sent where a name was asked for.
var texts = []string{
	"'", "''", `"`, "`", ";", "--", "/*", "*/", "$1", "?", ":id", "@id", "{", "}", "NULL", "null", "true", "0", "1e999",
	"'; DROP TABLE stint_users; --", `"; DROP TABLE stint_users; --`, "' OR '1'='1", "1; UPDATE stint_catalog SET revision = 0", "x' || (SELECT stamp FROM stint_catalog) || '",
	"%", "_", "%%", "a%b_c", `\`, `\\`, `\'`, `\x00`, `\u0000`, `\ufffd`, `{"id":"x"}`, "</script><script>alert(1)</script>", "&amp;", "$(reboot)", "../../etc/passwd",
	"a\x00b", "\x00", "\xff", "a\xc3", "\xed\xa0\x80", "�", "a\nb", "\t", "\x7f", "\u0085", "\u2028",
	"\u202eevil\u202c", "שלום", "مرحبا", "🦔", "👩‍👩‍👧‍👦", "e\u0301", "é", "\ufeffx", "\u200b", "\U0010ffff", "\ud7ff", "\ue000", "ﬀ", "İ", "ß",
	"unexpected EOF", "driver: bad connection", "conn closed", "sql: database is closed",
	" ", " a", "a ", strings.Repeat("x", 255), strings.Repeat("x", 256), strings.Repeat("é", 127), strings.Repeat("é", 128),
	strings.Repeat("x", 1<<20), strings.Repeat("\x00", 1<<20),
}

// few says whether a text is one of those that also go where others of their kind have
// gone already.
func few(i int) bool {
	return i%9 == 1 || strings.Contains(texts[i], "\x00") && len(texts[i]) == 3 || texts[i] == "\xff"
}

// name returns what a text is called in messages of this suite.
func name(text string) string { return fmt.Sprintf("%.40q of %d bytes", text, len(text)) }

// isText says whether a text of at most so many bytes can be stored for people to read.
func isText(text string, most int) bool {
	return len(text) <= most && utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// storedOrNot writes something that has a hostile text, and reads it back. Either it is
// as it was, or it was refused for what has the path.
func storedOrNot[T any](t *testing.T, h *house, table *catalog.Table[T], text, path string, id string, value T, good bool) {
	t.Helper()
	what := name(text) + " as " + path
	if !good {
		h.refuses(t, invalid, func(ctx context.Context) error {
			_, err := table.Create(ctx, actor, value)
			if !names(err, path) {
				t.Errorf("%s: got %.200v, want a problem with it", what, err)
			}
			return err
		})
		return
	}
	version, err := table.Create(t.Context(), actor, value)
	if err != nil {
		t.Errorf("%s: %.200v", what, err)
		return
	}
	r, err := table.Get(t.Context(), id)
	if err != nil {
		t.Errorf("%s: %.200v", what, err)
		return
	}
	equal(t, what, r.Value, value)
	h.good++
	if err := table.Delete(t.Context(), actor, id, version); err != nil {
		t.Errorf("%s: %.200v", what, err)
	}
}

// checkHostileIDs writes things whose ids are hostile, and asks for them.
func checkHostileIDs(h *house) {
	t := h.t
	h.furnish(t)
	defer h.watch(t)()
	for _, text := range texts {
		good := identity.ValidID(text)
		storedOrNot(t, h, h.Users, text, "id", text, catalog.User{ID: text}, good)
		storedOrNot(t, h, h.Tenants, text, "id", text, catalog.Tenant{ID: text}, good)
		storedOrNot(t, h, h.Bans, text, "tenant", "tenant:"+text, catalog.Entry{Tenant: text}, good)
		storedOrNot(t, h, h.Exemptions, text, "key", "key:"+text, catalog.Entry{Key: text}, good)
		sure := text == "NULL" || text == "null" || text == "true" || text == "0" || text == "1e999"
		rules := catalog.Rule{Name: text, Match: rule.Match{Paths: []string{"/x"}}, Limits: []namedLimit{{Name: "x", Limit: "1/1s"}}}
		storedOrNot(t, h, h.Rules, text, "name", text, rules, sure)
		storedOrNot(t, h, h.Tiers, text, "name", text, catalog.Tier{Name: text}, sure)
		storedOrNot(t, h, h.APIKeys, text, "id", text, catalog.APIKey{ID: text, Hash: hashOf("x")}, false)

		if _, err := h.Users.Get(t.Context(), text); catalog.Status(err) != http.StatusNotFound {
			t.Errorf("%s: got %.200v, want not found", name(text), err)
		}
		if err := h.Users.Delete(t.Context(), actor, text, 1); catalog.Status(err) != http.StatusNotFound {
			t.Errorf("%s: got %.200v, want not found", name(text), err)
		}
		// Lists are asked for what may be there, and answer for what may not.
		for path, q := range map[string]catalog.Query{
			"after": {After: text}, "prefix": {Prefix: text}, "tier": {Filters: map[string]string{"tier": text}}, "tenant": {Filters: map[string]string{"tenant": text}},
		} {
			_, err := h.Users.List(t.Context(), q)
			storable := utf8.ValidString(text) && !strings.Contains(text, "\x00")
			if storable != (err == nil) || !storable && !names(err, path) {
				t.Errorf("list with %s as %s: %.200v", name(text), path, err)
			}
		}
		if _, err := h.APIKeys.Modify(t.Context(), actor, text, func(*catalog.APIKey) error { return nil }); catalog.Status(err) != http.StatusNotFound {
			t.Errorf("modify the key %s: %.200v", name(text), err)
		}
	}
}

// checkHostileText writes what is for people, and what refers to others.
func checkHostileText(h *house) {
	t := h.t
	h.furnish(t)
	defer h.watch(t)()
	for i, text := range texts {
		id := "u" + strconv.Itoa(i)
		storedOrNot(t, h, h.Users, text, "blocked.reason", id, catalog.User{ID: id, Blocked: &catalog.Blocked{Reason: text}}, isText(text, 1024))
		storedOrNot(t, h, h.Users, text, "tenant", id, catalog.User{ID: id, Tenant: text}, identity.ValidID(text))
		key := catalog.APIKey{ID: "keykey" + id, Hash: hashOf(id), Name: text}
		storedOrNot(t, h, h.APIKeys, text, "name", key.ID, key, isText(text, 255))
		storedOrNot(t, h, h.Tiers, text, "price", id, catalog.Tier{Name: id, Price: text}, isText(text, 255))
		if !few(i) {
			continue
		}
		storedOrNot(t, h, h.Users, text, "tier", id, catalog.User{ID: id, Tier: text}, false)
		storedOrNot(t, h, h.Users, text, "limits.requests", id, catalog.User{ID: id, Limits: map[string]catalog.Override{limit: {Limit: text}}}, false)
		storedOrNot(t, h, h.Tenants, text, "name", id, catalog.Tenant{ID: id, Name: text}, isText(text, 255))
		storedOrNot(t, h, h.Bans, text, "reason", "user:"+id, catalog.Entry{User: id, Reason: text}, isText(text, 1024))
		storedOrNot(t, h, h.Bans, text, "ip", "ip:"+text, catalog.Entry{IP: text}, false)
		prefixed, owned := key, key
		prefixed.Name, prefixed.Prefix = "", text
		owned.Name, owned.User = "", text
		storedOrNot(t, h, h.APIKeys, text, "prefix", key.ID, prefixed, isText(text, 255))
		storedOrNot(t, h, h.APIKeys, text, "user", key.ID, owned, false)
		if _, err := h.Users.Create(t.Context(), actor, catalog.User{ID: id, Limits: map[string]catalog.Override{text: {Limit: "1/1s"}}}); catalog.Status(err) != invalid {
			t.Errorf("%s as the name of a limit: %.200v", name(text), err)
		}
	}
}

// checkHostileRules writes texts into every place of a rule. It is up to package rule
// which it takes: what it takes is stored as it is, or refused for what has the path.
func checkHostileRules(h *house) {
	t := h.t
	h.furnish(t)
	defer h.watch(t)()
	for i, text := range texts {
		id := "r" + strconv.Itoa(i)
		for path, change := range map[string]func(*catalog.Rule){
			"match.paths[0]":     func(r *catalog.Rule) { r.Match.Paths = []string{"/" + text} },
			"match.methods[0]":   func(r *catalog.Rule) { r.Match.Methods = []string{text} },
			"match.tiers[0]":     func(r *catalog.Rule) { r.Match.Tiers = []string{text} },
			"match.headers.X-A":  func(r *catalog.Rule) { r.Match.Headers = map[string]string{"X-A": text} },
			"count_by[0]":        func(r *catalog.Rule) { r.CountBy = []dimension{dimension("claim:" + text)} },
			"limits[0].name":     func(r *catalog.Rule) { r.Limits[0].Name = text },
			"limits[0].limit":    func(r *catalog.Rule) { r.Limits[0].Limit = text },
			"group":              func(r *catalog.Rule) { r.Group = text },
			"action":             func(r *catalog.Rule) { r.Action = rule.Action(text) },
			"response.message":   func(r *catalog.Rule) { r.Response.Message = text },
			"on_store_failure":   func(r *catalog.Rule) { r.OnStoreFailure = rule.OnFailure(text) },
			"match.ip_ranges[0]": func(r *catalog.Rule) { r.Match.IPRanges = []string{text} },
		} {
			free := path == "match.paths[0]" || path == "match.headers.X-A" || path == "count_by[0]" || path == "response.message"
			if !free && !few(i) {
				continue
			}
			r := catalog.Rule{Name: id, Match: rule.Match{Paths: []string{"/x"}}, Limits: []namedLimit{{Name: "x", Limit: "1/1s"}}}
			change(&r)
			file := rule.File{Rules: []rule.Rule{r}}
			good := len(file.Check()) == 0 && utf8.ValidString(text) && !strings.Contains(text, "\x00")
			storedOrNot(t, h, h.Rules, text, path, id, r, good)
		}
		if !few(i) {
			continue
		}
		headers := catalog.Rule{Name: id, Match: rule.Match{Headers: map[string]string{text: "x"}}, Limits: []namedLimit{{Name: "x", Limit: "1/1s"}}}
		if version, err := h.Rules.Create(t.Context(), actor, headers); err == nil {
			check(t, h.Rules.Delete(t.Context(), actor, id, version))
			h.good++
		} else if catalog.Status(err) != invalid {
			t.Errorf("%s as the name of a header: %.200v", name(text), err)
		}
		tiers := catalog.Tier{Name: id, Limits: map[string]string{text: "1/1s"}}
		if _, err := h.Tiers.Create(t.Context(), actor, tiers); catalog.Status(err) != invalid {
			t.Errorf("%s as the name of a limit: %.200v", name(text), err)
		}
	}
}

// checkHostileActors writes as someone with a hostile name.
func checkHostileActors(h *house) {
	t := h.t
	h.furnish(t)
	defer h.watch(t)()
	for i, text := range append([]string{""}, texts...) {
		id := "u" + strconv.Itoa(i)
		if text == "" || !isText(text, 255) {
			h.refuses(t, invalid, func(ctx context.Context) error {
				_, err := h.Users.Create(ctx, text, catalog.User{ID: id})
				if !names(err, "actor") {
					t.Errorf("%s: got %.200v, want a problem with the actor", name(text), err)
				}
				return err
			})
			continue
		}
		version, err := h.Users.Create(t.Context(), text, catalog.User{ID: id})
		check(t, err)
		r, err := h.Users.Get(t.Context(), id)
		check(t, err)
		if log := h.changes(t, version-1); r.By != text || log[0].actor != text {
			t.Errorf("%s has written, and it was %q and %q", name(text), r.By, log[0].actor)
		}
		check(t, h.Users.Delete(t.Context(), text, id, version))
		h.good++
	}
}
