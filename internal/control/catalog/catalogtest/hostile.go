package catalogtest

import (
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

// few are hostile texts that every field is tested with, and texts all of them. Fields share
// the code that stores them, so one field of each sort is enough for the rest.
var (
	few = []string{
		"'; DROP TABLE stint_users; --", "a%b_c", `\u0000`, "a\x00b", "\xff", "a\nb", "🦔", "true", "$1",
		strings.Repeat("x", 255), strings.Repeat("x", 256), strings.Repeat("x", 1<<14),
	}
	texts = append([]string{
		"'", "''", `"`, "`", ";", "--", "/*", "*/", "?", ":id", "@id", "{", "}", "NULL", "null", "0", "1e999",
		`"; DROP TABLE stint_users; --`, "' OR '1'='1", "1; UPDATE stint_catalog SET revision = 0", "x' || (SELECT stamp FROM stint_catalog) || '",
		"%", "_", "%%", `\`, `\\`, `\'`, `\x00`, `\ufffd`, `{"id":"x"}`, "</script><script>alert(1)</script>", "&amp;", "$(reboot)", "../../etc/passwd",
		"\x00", "a\xc3", "\xed\xa0\x80", "�", "\t", "\x7f", "\u0085", "\u2028",
		"\u202eevil\u202c", "שלום", "مرحبا", "👩‍👩‍👧‍👦", "e\u0301", "é", "\ufeffx", "\u200b", "\U0010ffff", "\ud7ff", "\ue000", "ﬀ", "İ", "ß",
		"unexpected EOF", "driver: bad connection", "conn closed", "sql: database is closed",
		" ", " a", "a ", strings.Repeat("é", 127), strings.Repeat("é", 128), strings.Repeat("x", 1<<20), strings.Repeat("\x00", 1<<16),
	}, few...)
)

// name returns a short form of a text for messages.
func name(text string) string { return fmt.Sprintf("%.40q of %d bytes", text, len(text)) }

// printable reports whether a text can be stored in a field for people to read.
func printable(text string, maxBytes int) bool {
	return len(text) <= maxBytes && utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// hostile is a suite that counts the records that it has created and deleted.
type hostile struct {
	*suite
	created int64
}

// beginHostile returns a function that checks in the end that nothing was written except the
// records that were created and deleted again.
func beginHostile(s *suite) (h *hostile, end func()) {
	s.prepare()
	h = &hostile{suite: s}
	before, start := s.export(), s.revision()
	return h, func() {
		if after := s.export(); !reflect.DeepEqual(after, before) {
			s.t.Errorf("the records have changed from\n%v\nto\n%v", before, after)
		}
		if n, logged := s.revision()-start, int64(len(s.changes(start))); n != 2*h.created || logged != n || h.created == 0 {
			s.t.Errorf("%d records were created and deleted in %d revisions and %d changes", h.created, n, logged)
		}
	}
}

// tryStore writes a value with a hostile text at a path. If it is good it must be stored
// unchanged, and is deleted again; otherwise it must be rejected for that path.
func tryStore[T any](h *hostile, table *catalog.Table[T], text, path, id string, value T, good bool) {
	h.t.Helper()
	ctx := h.t.Context()
	version, err := table.Create(ctx, actor, value)
	if !good {
		h.problem(err, path)
	}
	if err != nil {
		if good {
			h.t.Errorf("%s as %s: %.200v", name(text), path, err)
		}
		return
	}
	r, err := table.Get(ctx, id)
	h.check(err)
	h.equal(name(text)+" as "+path, r.Value, value)
	h.created++
	h.check(table.Delete(ctx, actor, id, version))
}

// checkHostileIDs writes and reads records with hostile ids.
func checkHostileIDs(s *suite) {
	h, end := beginHostile(s)
	defer end()
	ctx := s.t.Context()
	for _, text := range texts {
		good := identity.ValidID(text)
		tryStore(h, s.Users, text, "id", text, catalog.User{ID: text}, good)
		tryStore(h, s.Bans, text, "tenant", "tenant:"+text, catalog.Entry{Tenant: text}, good)
		s.rejected(http.StatusNotFound, failure(s.Users.Get(ctx, text)))
		s.rejected(http.StatusNotFound, s.Users.Delete(ctx, actor, text, 1))
		s.rejected(http.StatusNotFound, failure(s.APIKeys.Modify(ctx, actor, text, func(*catalog.APIKey) error { return nil })))
		for path, q := range map[string]catalog.Query{"after": {After: text}, "prefix": {Prefix: text}, "tier": {Filters: map[string]string{"tier": text}}} {
			err := failure(s.Users.List(ctx, q))
			if storable := utf8.ValidString(text) && !strings.Contains(text, "\x00"); !storable {
				s.problem(err, path)
			} else if err != nil {
				s.t.Errorf("list with %s as %s: %.200v", name(text), path, err)
			}
		}
	}
	for _, text := range few {
		good := identity.ValidID(text)
		tryStore(h, s.Tenants, text, "id", text, catalog.Tenant{ID: text}, good)
		tryStore(h, s.Exemptions, text, "key", "key:"+text, catalog.Entry{Key: text}, good)
		r := catalog.Rule{Name: text, Match: rule.Match{Paths: []string{"/x"}}, Limits: []namedLimit{{Name: "x", Limit: "1/1s"}}}
		tryStore(h, s.Rules, text, "name", text, r, text == "true")
		tryStore(h, s.Tiers, text, "name", text, catalog.Tier{Name: text}, text == "true")
		tryStore(h, s.APIKeys, text, "id", text, catalog.APIKey{ID: text, Hash: hashOf("x")}, false)
	}
}

// checkHostileText writes hostile texts to all other fields.
func checkHostileText(s *suite) {
	h, end := beginHostile(s)
	defer end()
	for _, text := range texts {
		tryStore(h, s.Users, text, "blocked.reason", "u", catalog.User{ID: "u", Blocked: &catalog.Blocked{Reason: text}}, printable(text, 1024))
	}
	for _, text := range few {
		key := catalog.APIKey{ID: "keykeykey", Hash: hashOf("key")}
		named, prefixed, owned := key, key, key
		named.Name, prefixed.Prefix, owned.User = text, text, text
		tryStore(h, s.APIKeys, text, "name", key.ID, named, printable(text, 255))
		tryStore(h, s.APIKeys, text, "prefix", key.ID, prefixed, printable(text, 255))
		tryStore(h, s.APIKeys, text, "user", key.ID, owned, false)
		tryStore(h, s.Users, text, "tenant", "u", catalog.User{ID: "u", Tenant: text}, identity.ValidID(text))
		tryStore(h, s.Users, text, "tier", "u", catalog.User{ID: "u", Tier: text}, false)
		tryStore(h, s.Users, text, "limits.requests", "u", catalog.User{ID: "u", Limits: map[string]catalog.Override{limit: {Limit: text}}}, false)
		tryStore(h, s.Tiers, text, "price", "t", catalog.Tier{Name: "t", Price: text}, printable(text, 255))
		tryStore(h, s.Tenants, text, "name", "t", catalog.Tenant{ID: "t", Name: text}, printable(text, 255))
		tryStore(h, s.Bans, text, "reason", "user:u", catalog.Entry{User: "u", Reason: text}, printable(text, 1024))
		tryStore(h, s.Bans, text, "ip", "ip:"+text, catalog.Entry{IP: text}, false)
		s.rejected(invalid, failure(s.Users.Create(s.t.Context(), actor, catalog.User{ID: "u", Limits: map[string]catalog.Override{text: {Limit: "1/1s"}}})))
		s.rejected(invalid, failure(s.Tiers.Create(s.t.Context(), actor, catalog.Tier{Name: "t", Limits: map[string]string{text: "1/1s"}})))
	}
}

// checkHostileRules writes hostile texts to every field of a rule. Package rule decides which
// of them are valid.
func checkHostileRules(s *suite) {
	h, end := beginHostile(s)
	defer end()
	for path, set := range map[string]func(r *catalog.Rule, text string){
		"response.message":   func(r *catalog.Rule, text string) { r.Response.Message = text },
		"match.paths[0]":     func(r *catalog.Rule, text string) { r.Match.Paths = []string{"/" + text} },
		"match.methods[0]":   func(r *catalog.Rule, text string) { r.Match.Methods = []string{text} },
		"match.tiers[0]":     func(r *catalog.Rule, text string) { r.Match.Tiers = []string{text} },
		"match.headers.X-A":  func(r *catalog.Rule, text string) { r.Match.Headers = map[string]string{"X-A": text} },
		"match.ip_ranges[0]": func(r *catalog.Rule, text string) { r.Match.IPRanges = []string{text} },
		"count_by[0]":        func(r *catalog.Rule, text string) { r.CountBy = []dimension{dimension("claim:" + text)} },
		"limits[0].name":     func(r *catalog.Rule, text string) { r.Limits[0].Name = text },
		"limits[0].limit":    func(r *catalog.Rule, text string) { r.Limits[0].Limit = text },
		"group":              func(r *catalog.Rule, text string) { r.Group = text },
		"action":             func(r *catalog.Rule, text string) { r.Action = rule.Action(text) },
		"regions":            func(r *catalog.Rule, text string) { r.Regions = rule.Regions(text) },
		"on_credit":          func(r *catalog.Rule, text string) { r.Regions, r.OnCredit = rule.RegionsGossip, rule.OnCredit(text) },
		"weights":            func(r *catalog.Rule, text string) { r.Regions, r.Weights = rule.RegionsQuota, rule.Weights(text) },
		"on_store_failure":   func(r *catalog.Rule, text string) { r.OnStoreFailure = rule.OnFailure(text) },
	} {
		some := few
		if path == "response.message" {
			some = texts
		}
		for _, text := range some {
			r := catalog.Rule{Name: "r", Match: rule.Match{Paths: []string{"/x"}}, Limits: []namedLimit{{Name: "x", Limit: "1/1s"}}}
			set(&r, text)
			file := rule.File{Rules: []rule.Rule{r}}
			good := len(file.Check()) == 0 && utf8.ValidString(text) && !strings.Contains(text, "\x00")
			tryStore(h, s.Rules, text, path, "r", r, good)
		}
	}
	for _, text := range few {
		r := catalog.Rule{Name: "r", Match: rule.Match{Headers: map[string]string{text: "x"}}, Limits: []namedLimit{{Name: "x", Limit: "1/1s"}}}
		if version, err := s.Rules.Create(s.t.Context(), actor, r); err == nil {
			s.check(s.Rules.Delete(s.t.Context(), actor, "r", version))
			h.created++
		} else {
			s.rejected(invalid, err)
		}
	}
}

// checkHostileActors writes as actors with hostile names.
func checkHostileActors(s *suite) {
	h, end := beginHostile(s)
	defer end()
	ctx := s.t.Context()
	for i, text := range append([]string{""}, texts...) {
		id := "u" + strconv.Itoa(i)
		version, err := s.Users.Create(ctx, text, catalog.User{ID: id})
		if text == "" || !printable(text, 255) {
			s.problem(err, "actor")
			continue
		}
		s.check(err)
		r, err := s.Users.Get(ctx, id)
		s.check(err)
		if log := s.changes(version - 1); r.By != text || log[0].actor != text {
			s.t.Errorf("%s has written, and it was %q and %q", name(text), r.By, log[0].actor)
		}
		s.check(s.Users.Delete(ctx, text, id, version))
		h.created++
	}
}
