package catalogtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
)

// makeToken creates a token, and returns its text.
func (s *suite) makeToken(name string, role catalog.Role) (string, catalog.Token) {
	s.t.Helper()
	text, made, err := s.CreateToken(s.t.Context(), actor, catalog.Token{Name: name, Role: role})
	s.check(err)
	return text, made
}

// badToken checks that err is [catalog.ErrBadToken].
func (s *suite) badToken(what string, err error) {
	s.t.Helper()
	if !errors.Is(err, catalog.ErrBadToken) || catalog.Status(err) != http.StatusUnauthorized {
		s.t.Errorf("%s: got %v (%d), want %v", what, err, catalog.Status(err), catalog.ErrBadToken)
	}
}

// checkFirstToken has several nodes ask for the first token at once: one of them gets it. When
// that token is revoked, the next one to ask gets another.
func checkFirstToken(s *suite) {
	ctx := s.t.Context()
	want := catalog.Token{Name: "first", Role: catalog.Administrator}
	texts := make([]string, 8)
	var all sync.WaitGroup
	for i := range texts {
		all.Go(func() {
			var err error
			if texts[i], err = s.FirstToken(ctx, actor, want); err != nil {
				s.t.Error(err)
			}
		})
	}
	all.Wait()
	texts = slices.DeleteFunc(texts, func(text string) bool { return text == "" })
	if len(texts) != 1 {
		s.t.Fatalf("got %d first tokens", len(texts))
	}
	first, err := s.TokenOf(ctx, texts[0])
	s.check(err)
	s.check(s.RevokeToken(ctx, actor, first.ID))
	if again, err := s.FirstToken(ctx, actor, want); err != nil || again == "" || again == texts[0] {
		s.t.Errorf("after it was revoked: got %d letters, %v", len(again), err)
	}
}

// checkTicketKey has several nodes ask for the key of tickets at once: they get the same one, which no document has.
func checkTicketKey(s *suite) {
	keys := make([][]byte, 8)
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			var err error
			if keys[i], err = s.TicketKey(s.t.Context()); err != nil {
				s.t.Error(err)
			}
		})
	}
	all.Wait()
	for _, k := range keys {
		if len(k) != 32 || !bytes.Equal(k, keys[0]) {
			s.t.Errorf("a key of %d bytes, want the same 32", len(k))
		}
	}
	before := s.revision()
	if again, err := s.TicketKey(s.t.Context()); err != nil || !bytes.Equal(again, keys[0]) || s.revision() != before {
		s.t.Errorf("asked again: another key, or a revision, %v", err)
	}
}

// checkTokens creates, uses and revokes tokens. Their secrets must not be stored, logged or
// shown in an error.
func checkTokens(s *suite) {
	ctx := s.t.Context()
	anyAdmin := func(want bool) {
		s.t.Helper()
		if got, err := s.AnyToken(ctx); err != nil || got != want {
			s.t.Errorf("AnyToken: got %v, %v, want %v", got, err, want)
		}
	}
	anyAdmin(false)
	start := s.revision()
	expires := time.Now().Add(time.Hour).Truncate(time.Microsecond).UTC()
	earliest := time.Now().Truncate(time.Microsecond)
	text, made, err := s.CreateToken(ctx, actor, catalog.Token{
		ID: "ignored", Name: "Ann, on call", Role: catalog.Operator, Expires: expires,
		CreatedBy: "ignored", Created: expires, LastUsed: expires,
	})
	s.check(err)
	secret, ok := strings.CutPrefix(text, "stint_admin_"+made.ID+"_")
	if !ok || len(secret) != 26 || made.Name != "Ann, on call" || made.Role != catalog.Operator || made.CreatedBy != actor ||
		made.Created.Before(earliest) || made.Created.After(time.Now()) || !made.Expires.Equal(expires) || !made.LastUsed.IsZero() {
		s.t.Fatalf("created %+v, with a text of %d letters", made, len(text))
	}
	anyAdmin(false)
	all, err := s.Tokens(ctx)
	s.check(err)
	s.equal("listed", all, []catalog.Token{made})
	got, err := s.TokenOf(ctx, text)
	s.check(err)
	s.equal("found", got, made)
	all, err = s.Tokens(ctx)
	s.check(err)
	if used := all[0].LastUsed; used.Before(earliest) || used.After(time.Now()) {
		s.t.Errorf("it was last used at %v", used)
	}

	checkGuesses(s, text)
	adminText, admin := s.makeToken("root", catalog.Administrator)
	anyAdmin(true)
	s.check(s.RevokeToken(ctx, "root", made.ID))
	s.badToken("revoked", failure(s.TokenOf(ctx, text)))
	if got, err := s.TokenOf(ctx, adminText); err != nil || got.ID != admin.ID {
		s.t.Errorf("another token: got %+v, %v", got, err)
	}
	unchanged := s.unchanged()
	for _, id := range []string{made.ID, "", "a\x00", "\xff", strings.Repeat("a", 1<<16)} {
		s.rejected(http.StatusNotFound, s.RevokeToken(ctx, actor, id), "token")
	}
	err = s.RevokeToken(ctx, actor, text)
	if s.rejected(http.StatusNotFound, err, made.ID); err != nil && strings.Contains(err.Error(), secret) {
		s.t.Error("an error shows the secret of a token")
	}
	unchanged()

	// The log has tokens without their hashes.
	var log []any
	for _, c := range s.changes(start) {
		log = append(log, []any{c.revision, c.actor, c.kind, c.id, c.before, c.after})
	}
	s.equal("log", log, []any{
		[]any{start + 1, actor, "token", made.ID, nil, made},
		[]any{start + 2, actor, "token", admin.ID, nil, admin},
		[]any{start + 3, "root", "token", made.ID, made, nil},
	})
	dump := Dump(s.t, s.db)
	for _, text := range []string{text, adminText} {
		if strings.Contains(dump, text[len(text)-26:]) {
			s.t.Error("the secret of a token is in a table")
		}
	}
	if d := s.export(); !d.Empty() {
		s.t.Errorf("exported %+v", d)
	}
	// The last token can be revoked, also by its text.
	s.check(s.RevokeToken(ctx, "root", adminText))
	if all, err := s.Tokens(ctx); err != nil || all != nil {
		s.t.Errorf("got %+v, %v, want no tokens", all, err)
	}
}

// checkGuesses tries texts that are nearly that of a token.
func checkGuesses(s *suite, text string) {
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
		err := failure(s.TokenOf(s.t.Context(), guess))
		if s.badToken(guess[:min(len(guess), 100)], err); err != nil && strings.Contains(err.Error(), text[len(text)-20:]) {
			s.t.Error("an error shows the secret of a token")
		}
	}
}

// checkInvalidTokens creates tokens that are rejected, among them one too many.
func checkInvalidTokens(s *suite) {
	ctx := s.t.Context()
	create := func(actor string, token catalog.Token) error {
		text, made, err := s.CreateToken(ctx, actor, token)
		if text != "" || made.ID != "" {
			s.t.Errorf("%+v: got %+v, want an error", token, made)
		}
		return err
	}
	unchanged := s.unchanged()
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
		{catalog.Token{Name: "a", Role: catalog.Viewer, Expires: time.Now().AddDate(8000, 0, 0)}, "expires_at"},
		{catalog.Token{Name: "a", Role: catalog.Viewer, Tenants: []string{"acme", "\x00"}}, "tenants[1]"},
		{catalog.Token{Name: "a", Role: catalog.Viewer, Tenants: []string{"acme", "acme"}}, "tenants[1]"},
	} {
		s.problem(create(actor, c.token), c.path)
	}
	good := catalog.Token{Name: "a", Role: catalog.Viewer}
	s.problem(create("", good), "actor")
	unchanged()

	_, made := s.makeToken("one of many", catalog.Viewer)
	_, err := s.db.ExecContext(ctx, `INSERT INTO stint_tokens (id, hash, name, role, created_at, created_by, expires_at, last_used_at, tenants)
		SELECT 'n' || n, hash, name, role, created_at, created_by, expires_at, last_used_at, tenants FROM stint_tokens,
		(WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 999) SELECT n FROM numbers) AS many`)
	s.check(err)
	s.rejected(invalid, create(actor, good), "1000 tokens")
	if all, err := s.Tokens(ctx); err != nil || len(all) != 1000 {
		s.t.Errorf("got %d tokens, %v, want 1000", len(all), err)
	}
	s.check(s.RevokeToken(ctx, actor, made.ID))
	s.makeToken("another", catalog.Viewer)
}

// checkSessions begins and ends sessions. Their texts must not be stored.
func checkSessions(s *suite) {
	ctx := s.t.Context()
	_, ann := s.makeToken("ann", catalog.Operator)
	_, ben := s.makeToken("ben", catalog.Viewer)
	start := s.revision()
	begin := func(token catalog.Token) (string, catalog.Session) {
		s.t.Helper()
		text, session, err := s.CreateSession(ctx, token, time.Hour)
		s.check(err)
		return text, session
	}
	valid := func(text string, want catalog.Session) {
		s.t.Helper()
		got, err := s.SessionOf(ctx, text)
		s.check(err)
		got.Token.LastUsed, want.Token.LastUsed = time.Time{}, time.Time{}
		s.equal("session", got, want)
	}
	ended := func(what, text string) {
		s.t.Helper()
		s.badToken(what, failure(s.SessionOf(ctx, text)))
	}
	first, session := begin(ann)
	if session.CSRF == "" || strings.Contains(session.CSRF, first) || strings.Contains(first, session.CSRF) ||
		session.Expires.Before(time.Now()) || session.Expires.After(time.Now().Add(time.Hour)) {
		s.t.Errorf("began %+v", session)
	}
	valid(first, session)
	second, other := begin(ann)
	third, ofBen := begin(ben)
	fourth, ofConfig := begin(catalog.Token{ID: "config:0123", Name: "config", Role: catalog.Administrator}) // which is in no table
	valid(fourth, ofConfig)
	if session.CSRF == other.CSRF || first == second {
		s.t.Error("two sessions are the same")
	}
	for _, text := range []string{"", first[1:], first + "a", strings.ToUpper(first), "a" + first[1:25] + "!", session.CSRF, strings.Repeat("\x00", 26), strings.Repeat("a", 1<<20)} {
		ended("another text", text)
		s.check(s.EndSession(ctx, text))
	}
	for _, ttl := range []time.Duration{0, -time.Second} {
		_, _, err := s.CreateSession(ctx, ann, ttl)
		s.rejected(invalid, err)
	}
	dump := Dump(s.t, s.db)
	for _, secret := range []string{first, session.CSRF, second, fourth} {
		if strings.Contains(dump, secret) {
			s.t.Error("the text or the CSRF secret of a session is in a table")
		}
	}
	s.check(s.EndSession(ctx, first))
	ended("ended", first)
	valid(second, other)
	s.check(s.RevokeToken(ctx, actor, ann.ID))
	ended("of a token that was revoked", second)
	valid(third, ofBen)
	late, _ := begin(ann)
	ended("of a token that had been revoked", late)

	// One session too many ends the oldest of its token.
	var texts []string
	for range 101 {
		text, _ := begin(ben)
		texts = append(texts, text)
	}
	ended("the oldest", third)
	ended("the second oldest", texts[0])
	for _, text := range []string{texts[1], texts[100], fourth} {
		s.check(failure(s.SessionOf(ctx, text)))
	}
	if n := s.revision(); n != start+1 { // that of RevokeToken
		s.t.Errorf("sessions made revision %d after %d", n, start)
	}
	s.check(failure(json.Marshal(session)))
}

// checkScopes creates tokens and sessions for some tenants.
func checkScopes(s *suite) {
	ctx := s.t.Context()
	text, made, err := s.CreateToken(ctx, actor, catalog.Token{Name: "ann", Role: catalog.Administrator, Tenants: []string{"acme", "b,\"c"}})
	s.check(err)
	got, err := s.TokenOf(ctx, text)
	s.check(err)
	s.equal("tenants", got.Tenants, []string{"acme", "b,\"c"})
	if some, err := s.AnyToken(ctx); err != nil || some {
		s.t.Errorf("a token for some tenants counts as that of an administrator: %v, %v", some, err)
	}
	cookie, _, err := s.CreateSession(ctx, made, time.Hour)
	s.check(err)
	session, err := s.SessionOf(ctx, cookie)
	s.check(err)
	s.equal("tenants of a session", session.Token.Tenants, made.Tenants)
	// What cannot be read is not for all tenants.
	for _, broken := range []string{"", "[]", "null", "acme", "{}"} {
		_, err = s.db.ExecContext(ctx, "UPDATE stint_tokens SET tenants = $1", broken)
		s.check(err)
		if got, err := s.TokenOf(ctx, text); err == nil {
			s.t.Errorf("tenants %q: %+v", broken, got)
		}
	}
}

// checkSignIns has the session of a person that an identity provider vouches for.
func checkSignIns(s *suite) {
	ctx := s.t.Context()
	now := time.Now().UTC().Truncate(time.Microsecond)
	ann := catalog.Token{ID: "oidc:1:ann", Name: "ann@example.com", Role: catalog.Operator, Tenants: []string{"acme"}, Expires: now.Add(time.Minute)}
	kept := []byte("a refresh token")
	text, began, err := s.CreateSignIn(ctx, ann, time.Hour, kept, true)
	s.check(err)
	got, err := s.SessionOf(ctx, text)
	s.check(err)
	s.equal("session", got, began)
	if dump := Dump(s.t, s.db); strings.Contains(dump, string(kept)) || strings.Contains(dump, text) {
		s.t.Error("what a session keeps is in a table")
	}
	if got.Expires.Before(now.Add(50 * time.Minute)) {
		s.t.Errorf("it ends at %v", got.Expires)
	}

	// One of many renews it.
	winners := 0
	for range 3 {
		won, err := s.ClaimRenewal(ctx, text, began.Token.Expires)
		s.check(err)
		if won {
			winners++
		}
	}
	if winners != 1 {
		s.t.Errorf("%d may renew it", winners)
	}
	ann.Role, ann.Tenants, ann.Expires = catalog.Viewer, nil, now.Add(time.Second)
	s.check(s.Renew(ctx, text, ann, []byte("another")))
	got, err = s.SessionOf(ctx, text)
	s.check(err)
	s.equal("the token", got.Token, ann)
	s.equal("what is kept", string(got.Kept), "another")
	if won, err := s.ClaimRenewal(ctx, text, began.Token.Expires); err != nil || won {
		s.t.Errorf("who has read it before may renew it again: %v, %v", won, err)
	}
	if won, err := s.ClaimRenewal(ctx, text, got.Token.Expires); err != nil || !won {
		s.t.Errorf("it cannot be renewed again: %v, %v", won, err)
	}
	// It is found when it has to be renewed, and not if that is not possible.
	ann.Expires = now.Add(-time.Second)
	s.check(s.Renew(ctx, text, ann, []byte("another")))
	s.check(failure(s.SessionOf(ctx, text)))
	s.check(s.Renew(ctx, text, ann, nil))
	s.badToken("over", failure(s.SessionOf(ctx, text)))

	ann.Expires = now.Add(time.Minute)
	_, began, err = s.CreateSignIn(ctx, ann, time.Hour, kept, false)
	s.check(err)
	s.equal("the end", began.Expires, ann.Expires)
	for _, bad := range []catalog.Token{{ID: "ann", Expires: ann.Expires}, {ID: ann.ID}, {ID: ann.ID, Expires: now.Add(-time.Minute)}} {
		_, _, err := s.CreateSignIn(ctx, bad, time.Hour, nil, false)
		s.rejected(invalid, err)
	}
	_, _, err = s.CreateSignIn(ctx, ann, time.Hour, make([]byte, 1<<20), true)
	s.rejected(invalid, err)
	s.rejected(invalid, s.Renew(ctx, text, ann, make([]byte, 1<<20)))
}
