package admin_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/rule"
)

const onceKey, replayed = "Idempotency-Key", "Idempotent-Replayed"

// TestOnce sends requests again.
func TestOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, h *testAPI) {
		t.Helper()
		h.do(http.MethodPost, "/users", catalog.User{ID: "alice"}).want(http.StatusCreated)
		create := func(name, key string, more ...string) *answer {
			t.Helper()
			return h.do(http.MethodPost, "/keys", admin.NewKey{Name: name, User: "alice"}, append([]string{onceKey, key}, more...)...)
		}
		const key = "5f0c6b2a-9d1e-4b7f-8a3c-6d9e0b1a2c3d"
		var first, again admin.CreatedKey
		one := create("app", key).want(http.StatusCreated).into(&first)
		two := create("app", `"`+key+`"`).want(http.StatusCreated).into(&again)
		if first.Text == "" || again.Text != first.Text || !bytes.Equal(one.body, two.body) || one.Header.Get("Location") != two.Header.Get("Location") || one.Header.Get("ETag") != two.Header.Get("ETag") {
			t.Errorf("%s %v\nand then %s %v", one.body, one.Header, two.body, two.Header)
		}
		if one.Header.Get(replayed) != "" || two.Header.Get(replayed) != "true" {
			t.Errorf("%s: %q, %q", replayed, one.Header.Get(replayed), two.Header.Get(replayed))
		}
		var stored admin.KeyRecord
		if h.get("/keys/" + first.ID).want(http.StatusOK).into(&stored); stored.Version != first.Version || !stored.Updated.Equal(first.Updated) || !stored.Created.Equal(first.Created) || stored.By != first.By {
			t.Errorf("stored is %+v, answered %+v", stored, first)
		}
		count := func(want int) {
			t.Helper()
			var list admin.RecordList[admin.KeyRecord]
			if h.get("/keys").want(http.StatusOK).into(&list); len(list.Items) != want {
				t.Errorf("there are %d keys, want %d", len(list.Items), want)
			}
		}
		count(1)
		create("other", key).want(http.StatusUnprocessableEntity).says(onceKey, "another request")
		h.do(http.MethodPost, "/tiers", rule.Tier{Name: "pro"}, onceKey, key).want(http.StatusUnprocessableEntity)
		count(1)
		create("app", key, "", h.admin).want(http.StatusCreated) // someone else
		count(2)
		h.do(http.MethodPost, "/keys?dry_run=true", admin.NewKey{Name: "trial"}, onceKey, "trial-trial-trial").want(http.StatusCreated)
		h.do(http.MethodPost, "/keys", admin.NewKey{Name: "trial"}, onceKey, "trial-trial-trial").want(http.StatusCreated)
		count(3)
		// What failed is tried again.
		h.do(http.MethodPost, "/keys", admin.NewKey{Name: "late", User: "bob"}, onceKey, "after-a-failure-1").want(http.StatusUnprocessableEntity)
		h.do(http.MethodPost, "/users", catalog.User{ID: "bob"}).want(http.StatusCreated)
		h.do(http.MethodPost, "/keys", admin.NewKey{Name: "late", User: "bob"}, onceKey, "after-a-failure-1").want(http.StatusCreated)
		count(4)
		for _, bad := range []string{"short", strings.Repeat("x", 256), "with a space in it", "0123456789abcdefü"} {
			create("app", bad).want(http.StatusBadRequest).says(onceKey)
		}
		h.clock.advance(catalog.OnceTime + time.Minute)
		create("app", key).want(http.StatusCreated)
		count(5)
		// An update, too, after which the version is another.
		h.do(http.MethodPost, "/tiers", rule.Tier{Name: "pro"}).want(http.StatusCreated)
		version := h.get("/tiers/pro").Header.Get("ETag")
		for range 2 {
			h.do(http.MethodPatch, "/tiers/pro", `{"price":"5"}`, "If-Match", version, onceKey, "change-of-the-price").want(http.StatusOK)
		}
		h.do(http.MethodPatch, "/tiers/pro", `{"price":"5"}`, "If-Match", version).want(http.StatusPreconditionFailed)
	})
}

// TestOnceIsUsed checks that what a request has changed is in use when it is answered.
func TestOnceIsUsed(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	h.do(http.MethodPost, "/rules", searchRule(), onceKey, "0123456789abcdef").want(http.StatusCreated)
	if all := h.engine.Rules().Rules(); len(all) != 1 {
		t.Errorf("%d rules are in use", len(all))
	}
}

// TestOnceEverywhere sends every write twice, on a database with a single connection, too.
func TestOnceEverywhere(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]*testAPI{"file": newTestAPI(t), "memory": newTestAPIAt(t, "sqlite::memory:"), "no catalog": newFileAPI(t, exampleDocument())} {
		h.do(http.MethodPost, "/tiers", rule.Tier{Name: "pro"})
		h.do(http.MethodPost, "/users", catalog.User{ID: "alice"})
		done := 0
		for i, pattern := range h.api31.operations() {
			op := h.api31.operation(pattern)
			if method, _, _ := strings.Cut(pattern, " "); method == http.MethodGet || op["x-stint-role"] == "viewer" || op["x-stint-role"] == "user" || op["x-stint-role"] == "anyone" {
				continue
			}
			var answers []*answer
			for range 2 {
				answers = append(answers, h.status(h.example(pattern, "", configToken, "If-Match", "*", onceKey, fmt.Sprintf("key-for-operation-%d", i))))
			}
			if one, two := answers[0], answers[1]; one.StatusCode != two.StatusCode || one.StatusCode >= 500 {
				t.Errorf("%s: %s: %d %s, and then %d %s", name, pattern, one.StatusCode, one.body, two.StatusCode, two.body)
			} else if one.StatusCode < 300 {
				if done++; two.Header.Get(replayed) != "true" || !bytes.Equal(one.body, two.body) {
					t.Errorf("%s: %s: %v %s, and then %v %s", name, pattern, one.Header, one.body, two.Header, two.body)
				}
			}
		}
		if least := map[bool]int{true: 3, false: 15}[name == "no catalog"]; done < least {
			t.Errorf("%s: only %d operations have succeeded", name, done)
		}
	}
}

// TestOnceAtOnce has many clients send the same request, to two nodes.
func TestOnceAtOnce(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{"sqlite": testdatabase.SQLite(t), "postgres": testdatabase.Postgres(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestAPIAt(t, url)
			other := newTestAPIAt(t, url)
			var mu sync.Mutex
			texts, busy := map[string]int{}, 0
			var all sync.WaitGroup
			for i := range 20 {
				all.Go(func() {
					api := []*testAPI{h, other}[i%2].api
					for range 1000 {
						w := httptest.NewRecorder()
						api.ServeHTTP(w, h.request(http.MethodPost, "/keys", `{"name":"app"}`, "", h.operator, onceKey, "0123456789abcdef"))
						mu.Lock()
						switch {
						case w.Code == http.StatusCreated:
							texts[w.Body.String()]++
							mu.Unlock()
							return
						case w.Code == http.StatusConflict && w.Header().Get("Retry-After") == "1":
							busy++
						default:
							t.Errorf("%d: %s", w.Code, w.Body)
						}
						mu.Unlock()
					}
				})
			}
			all.Wait()
			if len(texts) != 1 {
				t.Errorf("%d answers, want one: %v", len(texts), texts)
			}
			var list admin.RecordList[admin.KeyRecord]
			if h.get("/keys").want(http.StatusOK).into(&list); len(list.Items) != 1 {
				t.Errorf("%d keys", len(list.Items))
			}
			t.Logf("%d requests were told that another was under way", busy)
		})
	}
}

// TestOnceInFlight sends a request while another node carries it out.
func TestOnceInFlight(t *testing.T) {
	t.Parallel()
	h := newTestAPIAt(t, testdatabase.Postgres(t))
	all, err := h.tokens.Tokens(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	owner := ""
	for _, token := range all {
		if token.Name == "otto" {
			owner = token.ID
		}
	}
	const key = "0123456789abcdef"
	first := catalog.NewOnce(owner, key, nil)
	if _, err := h.catalog.Tiers.Create(first.In(t.Context()), "otto", rule.Tier{Name: "pro"}); err != nil {
		t.Fatal(err)
	}
	if a := h.do(http.MethodPost, "/keys", `{"name":"app"}`, onceKey, key).want(http.StatusConflict).says("being carried out"); a.Header.Get("Retry-After") != "1" {
		t.Error(a.Header)
	}
	first.Drop() // such as when its client has gone
	h.get("/tiers/pro").want(http.StatusNotFound)
	h.do(http.MethodPost, "/keys", `{"name":"app"}`, onceKey, key).want(http.StatusCreated)
}

// TestOnceSecret looks for the text of a key in the database.
func TestOnceSecret(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "stint.db")
	h := newTestAPIAt(t, "sqlite:"+path)
	var made admin.CreatedKey
	const key = "a-key-of-the-client"
	h.do(http.MethodPost, "/keys", `{"name":"findable"}`, onceKey, key).want(http.StatusCreated).into(&made)
	secret := made.Text[strings.LastIndex(made.Text, "_")+1:]
	found := false
	for _, file := range []string{path, path + "-wal"} {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		found = found || bytes.Contains(text, []byte("findable"))
		for _, s := range []string{secret, key} {
			if bytes.Contains(text, []byte(s)) {
				t.Errorf("%s contains %q", filepath.Base(file), s)
			}
		}
	}
	if !found {
		t.Error("the name was not found either")
	}
	if strings.Contains(h.log.String(), key) || strings.Contains(h.log.String(), secret) {
		t.Error("the log contains it")
	}
}
