package catalogtest

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
)

// makeToken makes a token, and returns its text.
func (h *house) makeToken(t testing.TB, name string, role catalog.Role) (string, catalog.Token) {
	t.Helper()
	text, made, err := h.CreateToken(t.Context(), actor, catalog.Token{Name: name, Role: role})
	check(t, err)
	return text, made
}

// bad checks that a text is of no token or session.
func bad(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, catalog.ErrBadToken) || catalog.Status(err) != http.StatusUnauthorized {
		t.Errorf("%s: got %v (%d), want that it is not known", what, err, catalog.Status(err))
	}
}

// checkFirstToken has nodes that start together find that there is no token: one of them
// makes one. It makes another when that is over.
func checkFirstToken(h *house) {
	t := h.t
	ctx := t.Context()
	want := catalog.Token{Name: "first", Role: catalog.Administrator}
	texts := make([]string, 8)
	var all sync.WaitGroup
	for i := range texts {
		all.Go(func() {
			var err error
			if texts[i], err = h.FirstToken(ctx, actor, want); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	texts = slices.DeleteFunc(texts, func(text string) bool { return text == "" })
	if len(texts) != 1 {
		t.Fatalf("%d first tokens", len(texts))
	}
	first, err := h.TokenOf(ctx, texts[0])
	check(t, err)
	check(t, h.RevokeToken(ctx, actor, first.ID))
	if again, err := h.FirstToken(ctx, actor, want); err != nil || again == "" || again == texts[0] {
		t.Errorf("after that: %d letters, %v", len(again), err)
	}
}

// checkTokens makes, uses and revokes tokens. Their secrets must be nowhere.
func checkTokens(h *house) {
	t := h.t
	ctx := t.Context()
	if some, err := h.AnyToken(ctx); err != nil || some {
		t.Errorf("there is a token: %v, %v", some, err)
	}
	start := h.revision(t)
	expires := time.Now().Add(time.Hour).Truncate(time.Microsecond).UTC()
	earliest := time.Now().Truncate(time.Microsecond)
	text, made, err := h.CreateToken(ctx, actor, catalog.Token{
		ID: "ignored", Name: "Ann, on call", Role: catalog.Operator, Expires: expires,
		CreatedBy: "ignored", Created: expires, LastUsed: expires,
	})
	check(t, err)
	rest, ok := strings.CutPrefix(text, "stint_admin_"+made.ID+"_")
	if !ok || len(rest) != 26 || made.Name != "Ann, on call" || made.Role != catalog.Operator || made.CreatedBy != actor ||
		made.Created.Before(earliest) || made.Created.After(time.Now()) || !made.Expires.Equal(expires) || !made.LastUsed.IsZero() {
		t.Fatalf("made %+v, of a text of %d letters", made, len(text))
	}
	if some, err := h.AnyToken(ctx); err != nil || some {
		t.Errorf("an operator's token is an administrator's: %v, %v", some, err)
	}
	all, err := h.Tokens(ctx)
	check(t, err)
	equal(t, "listed", all, []catalog.Token{made})
	got, err := h.TokenOf(ctx, text)
	check(t, err)
	equal(t, "found", got, made)
	all, err = h.Tokens(ctx)
	check(t, err)
	if used := all[0].LastUsed; used.Before(earliest) || used.After(time.Now()) {
		t.Errorf("it was last used at %v", used)
	}

	checkGuesses(h, text)
	boss, root := h.makeToken(t, "root", catalog.Administrator)
	if some, err := h.AnyToken(ctx); err != nil || !some {
		t.Errorf("there is no administrator: %v, %v", some, err)
	}
	check(t, h.RevokeToken(ctx, "root", made.ID))
	_, err = h.TokenOf(ctx, text)
	bad(t, "revoked", err)
	if got, err := h.TokenOf(ctx, boss); err != nil || got.ID != root.ID {
		t.Errorf("another was revoked, too: %+v, %v", got, err)
	}
	for _, id := range []string{made.ID, "", "a\x00", "\xff", strings.Repeat("a", 1<<16)} {
		h.refuses(t, http.StatusNotFound, func(ctx context.Context) error { return h.RevokeToken(ctx, actor, id) }, "token")
	}

	h.refuses(t, http.StatusNotFound, func(ctx context.Context) error {
		err := h.RevokeToken(ctx, actor, text)
		if strings.Contains(err.Error(), rest) {
			t.Error("an error shows the secret of a token")
		}
		return err
	}, made.ID)

	// They are in the log of changes, without their hashes, and in nothing else.
	var log []change
	for i, c := range []change{{actor: actor, after: made, id: made.ID}, {actor: actor, after: root, id: root.ID}, {actor: "root", before: made, id: made.ID}} {
		c.revision, c.kind, c.stamped, c.timed = start+1+int64(i), "token", true, true
		log = append(log, c)
	}
	for i, c := range h.changes(t, start) {
		equal(t, "logged", []any{c.revision, c.actor, c.kind, c.id, c.before, c.after},
			[]any{log[i].revision, log[i].actor, log[i].kind, log[i].id, log[i].before, log[i].after})
	}
	dump := Dump(t, h.db)
	for _, text := range []string{text, boss} {
		if secret := text[len(text)-26:]; strings.Contains(dump, secret) {
			t.Error("the secret of a token is in a table")
		}
	}
	d, err := h.Export(ctx, catalog.ExportOptions{Users: true})
	if err != nil || !d.Empty() {
		t.Errorf("exported %+v, %v", d, err)
	}
	// It may be the last.
	check(t, h.RevokeToken(ctx, "root", boss))
	if all, err := h.Tokens(ctx); err != nil || all != nil {
		t.Errorf("there is %+v, %v", all, err)
	}
}

// checkGuesses tries texts that are nearly that of a token.
func checkGuesses(h *house, text string) {
	t := h.t
	guesses := []string{
		"", " ", "stint_admin_", "stint_admin__", text[:len(text)-1], text + "a", " " + text, strings.ToUpper(text), text[len("stint_"):],
		strings.Replace(text, "_admin_", "_Admin_", 1), "Bearer " + text, text + "\x00", strings.Repeat("stint_admin_", 1<<16),
		text[:len(text)-26] + strings.Repeat("\x00", 26), "stint_admin_" + strings.Repeat("\xff", 16) + text[len(text)-27:],
	}
	for i := len("stint_admin_"); i < len(text); i++ {
		other := []byte(text)
		if other[i]++; text[i] != '_' {
			guesses = append(guesses, string(other))
		}
	}
	for _, guess := range guesses {
		_, err := h.TokenOf(t.Context(), guess)
		bad(t, guess[:min(len(guess), 100)], err)
		if secret := text[len(text)-20:]; strings.Contains(err.Error(), secret) {
			t.Error("an error shows the secret of a token")
		}
	}
}

// checkBadTokens makes tokens that are refused, as is one too many.
func checkBadTokens(h *house) {
	t := h.t
	future := time.Now().Add(time.Hour)
	for _, c := range []struct {
		token catalog.Token
		path  string
	}{
		{catalog.Token{Role: catalog.Viewer}, "name"},
		{catalog.Token{Name: strings.Repeat("a", 256), Role: catalog.Viewer}, "name"},
		{catalog.Token{Name: "a\nb", Role: catalog.Viewer}, "name"},
		{catalog.Token{Name: "a\x00", Role: catalog.Viewer}, "name"},
		{catalog.Token{Name: "\xff", Role: catalog.Viewer}, "name"},
		{catalog.Token{Name: "a"}, "role"},
		{catalog.Token{Name: "a", Role: "root"}, "role"},
		{catalog.Token{Name: "a", Role: "Admin"}, "role"},
		{catalog.Token{Name: "a", Role: catalog.Viewer, Expires: time.Now().Add(-time.Second)}, "expires_at"},
		{catalog.Token{Name: "a", Role: catalog.Viewer, Expires: future.AddDate(8000, 0, 0)}, "expires_at"},
	} {
		h.refuses(t, invalid, func(ctx context.Context) error {
			text, made, err := h.CreateToken(ctx, actor, c.token)
			if !names(err, c.path) || text != "" || made != (catalog.Token{}) {
				t.Errorf("%+v: got %v, want a problem with %s", c.token, err, c.path)
			}
			return err
		})
	}
	h.refuses(t, invalid, func(ctx context.Context) error {
		_, _, err := h.CreateToken(ctx, "", catalog.Token{Name: "a", Role: catalog.Viewer})
		return err
	}, "actor")

	_, made := h.makeToken(t, "one of many", catalog.Viewer)
	_, err := h.db.ExecContext(t.Context(), `INSERT INTO stint_tokens
		SELECT 'n' || n, hash, name, role, created_at, created_by, expires_at, last_used_at FROM stint_tokens,
		(WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 999) SELECT n FROM numbers) AS many`)
	check(t, err)
	h.refuses(t, invalid, func(ctx context.Context) error {
		_, _, err := h.CreateToken(ctx, actor, catalog.Token{Name: "a", Role: catalog.Viewer})
		return err
	}, "1000 tokens")
	all, err := h.Tokens(t.Context())
	if err != nil || len(all) != 1000 {
		t.Errorf("there are %d tokens, %v", len(all), err)
	}
	check(t, h.RevokeToken(t.Context(), actor, made.ID))
	h.makeToken(t, "another", catalog.Viewer)
}

// checkSessions begins and ends sessions. Their texts must be nowhere.
func checkSessions(h *house) {
	t := h.t
	ctx := t.Context()
	_, ann := h.makeToken(t, "ann", catalog.Operator)
	_, ben := h.makeToken(t, "ben", catalog.Viewer)
	start := h.revision(t)
	begin := func(token catalog.Token) (string, catalog.Session) {
		t.Helper()
		text, s, err := h.CreateSession(ctx, token, time.Hour)
		check(t, err)
		return text, s
	}
	lives := func(text string, want catalog.Session) {
		t.Helper()
		got, err := h.SessionOf(ctx, text)
		check(t, err)
		got.Token.LastUsed, want.Token.LastUsed = time.Time{}, time.Time{}
		equal(t, "session", got, want)
	}
	first, session := begin(ann)
	if session.CSRF == "" || strings.Contains(session.CSRF, first) || strings.Contains(first, session.CSRF) ||
		session.Expires.Before(time.Now()) || session.Expires.After(time.Now().Add(time.Hour)) {
		t.Errorf("began %+v", session)
	}
	lives(first, session)
	second, other := begin(ann)
	theirs, third := begin(ben)
	// A token that is in no table.
	configured, fourth := begin(catalog.Token{ID: "config:0123", Name: "config", Role: catalog.Administrator})
	lives(configured, fourth)
	if session.CSRF == other.CSRF || first == second {
		t.Error("two sessions are the same")
	}
	for _, text := range []string{"", first[1:], first + "a", strings.ToUpper(first), "a" + first[1:25] + "!", session.CSRF, strings.Repeat("\x00", 26), strings.Repeat("a", 1<<20)} {
		_, err := h.SessionOf(ctx, text)
		bad(t, "another text", err)
		check(t, h.EndSession(ctx, text))
	}
	for _, ttl := range []time.Duration{0, -time.Second} {
		h.refuses(t, invalid, func(ctx context.Context) error { _, _, err := h.CreateSession(ctx, ann, ttl); return err })
	}
	dump := Dump(t, h.db)
	for _, secret := range []string{first, session.CSRF, second, configured} {
		if strings.Contains(dump, secret) {
			t.Error("a table has the text of a session, or what its pages say")
		}
	}
	check(t, h.EndSession(ctx, first))
	_, err := h.SessionOf(ctx, first)
	bad(t, "ended", err)
	lives(second, other)
	check(t, h.RevokeToken(ctx, actor, ann.ID))
	_, err = h.SessionOf(ctx, second)
	bad(t, "of a token that was revoked", err)
	lives(theirs, third)
	// One of a token that is gone already is none.
	late, _, err := h.CreateSession(ctx, ann, time.Hour)
	check(t, err)
	_, err = h.SessionOf(ctx, late)
	bad(t, "of a token that is gone", err)

	// The oldest of too many ends, and none of others.
	var texts []string
	for range 101 {
		text, _ := begin(ben)
		texts = append(texts, text)
	}
	for _, old := range []string{theirs, texts[0]} {
		_, err = h.SessionOf(ctx, old)
		bad(t, "the oldest", err)
	}
	for _, text := range []string{texts[1], texts[100], configured} {
		if _, err := h.SessionOf(ctx, text); err != nil {
			t.Error(err)
		}
	}
	if n := h.revision(t); n != start+1 { // that a token was revoked
		t.Errorf("sessions have made revision %d of %d", n, start)
	}
	if _, err := json.Marshal(session); err != nil {
		t.Error(err)
	}
}
