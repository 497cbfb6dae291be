package admin_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/rule"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testpostgres.StopShared()
	os.Exit(code)
}

// each runs a test on both databases.
func each(t *testing.T, test func(t *testing.T, h *testAPI)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, newTestAPI(t))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, newTestAPIAt(t, testdatabase.Postgres(t)))
	})
}

// TestConflicts has many clients update the same version at once: one of them succeeds.
func TestConflicts(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, h *testAPI) {
		t.Helper()
		version := h.do(http.MethodPost, "/tiers", rule.Tier{Name: "pro"}).want(http.StatusCreated).asRecord().Version
		var won, lost atomic.Int64
		var all sync.WaitGroup
		for i := range 30 {
			all.Go(func() {
				r := h.request(http.MethodPut, "/tiers/pro", rule.Tier{Name: "pro", Price: strconv.Itoa(i)}, "", h.operator, "If-Match", fmt.Sprintf(`"%d"`, version))
				w := httptest.NewRecorder()
				switch h.api.ServeHTTP(w, r); w.Code {
				case http.StatusOK:
					won.Add(1)
				case http.StatusPreconditionFailed:
					lost.Add(1)
				default:
					t.Errorf("%d: %s", w.Code, w.Body)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 || lost.Load() != 29 {
			t.Errorf("%d have written, and %d have not", won.Load(), lost.Load())
		}
	})
}

// TestNoLostUpdates has writers each increment a value that they have read, several at
// a time, and retry after conflicts.
func TestNoLostUpdates(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, h *testAPI) {
		t.Helper()
		h.do(http.MethodPost, "/tiers", rule.Tier{Name: "pro", Price: "0"}).want(http.StatusCreated)
		const writers, atOnce = 40, 4
		var conflicts atomic.Int64
		// add reports whether it has.
		add := func() bool {
			w := httptest.NewRecorder()
			h.api.ServeHTTP(w, h.request(http.MethodGet, "/tiers/pro", nil, "", h.operator))
			var read admin.Record[rule.Tier]
			if err := json.Unmarshal(w.Body.Bytes(), &read); err != nil || w.Code != http.StatusOK {
				t.Errorf("%d: %v", w.Code, err)
				return true
			}
			n, err := strconv.Atoi(read.Value.Price)
			if err != nil {
				t.Error(err)
			}
			r := h.request(http.MethodPatch, "/tiers/pro", rule.Tier{Name: "pro", Price: strconv.Itoa(n + 1)}, "", h.operator, "If-Match", w.Header().Get("ETag"))
			w = httptest.NewRecorder()
			switch h.api.ServeHTTP(w, r); w.Code {
			case http.StatusOK:
				return true
			case http.StatusPreconditionFailed:
				conflicts.Add(1)
			default:
				t.Errorf("%d: %s", w.Code, w.Body)
			}
			return false
		}
		places := make(chan struct{}, atOnce)
		var all sync.WaitGroup
		for range writers {
			all.Go(func() {
				places <- struct{}{}
				defer func() { <-places }()
				for !add() {
				}
			})
		}
		all.Wait()
		h.get("/tiers/pro").want(http.StatusOK).says(fmt.Sprintf(`"price":"%d"`, writers))
		t.Logf("%d conflicts", conflicts.Load())
		if conflicts.Load() == 0 {
			t.Error("no one was ever second")
		}

		// Whatever is there: each adds a field of its own, and none is lost.
		h.do(http.MethodPost, "/rules", searchRule()).want(http.StatusCreated)
		for i := range 50 {
			all.Go(func() {
				w := httptest.NewRecorder()
				h.api.ServeHTTP(w, h.request(http.MethodPatch, "/rules/search", fmt.Sprintf(`{"match":{"headers":{"X-%d":"1"}}}`, i), "", h.operator, "If-Match", "*"))
				if w.Code != http.StatusOK {
					t.Errorf("%d: %s", w.Code, w.Body)
				}
			})
		}
		all.Wait()
		var r admin.RuleRecord
		h.get("/rules/search").into(&r)
		if len(r.Value.Match.Headers) != 50 {
			t.Errorf("%d of 50 headers", len(r.Value.Match.Headers))
		}
	})
}

// TestManyWriters has more writers at once than there are connections. Those that time out have
// written nothing, and retry.
func TestManyWriters(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, h *testAPI) {
		t.Helper()
		const writers = 40
		var busy atomic.Int64
		var all sync.WaitGroup
		for i := range writers {
			all.Go(func() {
				for {
					w := httptest.NewRecorder()
					h.api.ServeHTTP(w, h.request(http.MethodPost, "/users", catalog.User{ID: "user-" + strconv.Itoa(i)}, "", h.operator))
					switch w.Code {
					case http.StatusCreated:
						return
					case http.StatusServiceUnavailable:
						busy.Add(1)
					default:
						t.Errorf("%d: %s", w.Code, w.Body)
						return
					}
				}
			})
		}
		all.Wait()
		t.Logf("%d were told to come back", busy.Load())
		var list admin.RecordList[admin.Record[catalog.User]]
		h.get("/users?limit=1000&prefix=user-").want(http.StatusOK).into(&list)
		versions := map[int64]bool{}
		for _, r := range list.Items {
			versions[r.Version] = true
		}
		if len(list.Items) != writers || len(versions) != writers {
			t.Errorf("%d of %d users, of %d revisions", len(list.Items), writers, len(versions))
		}
	})
}
