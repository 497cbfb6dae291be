package record_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/rule"
)

// TestPaths is what is kept of paths.
func TestPaths(t *testing.T) {
	t.Parallel()
	long := "/files" + strings.Repeat("/abcdefg", 40)
	for _, c := range []struct{ path, endpoint, kept, redacted string }{
		{"", "", "", ""},
		{"", "/v1/**", "", ""},
		{"/", "", "/", "/"},
		{"/v1/search?q=secret#x", "", "/v1/search", "/v1/search"},
		{"//v1/./a/../search/", "", "/v1/search", "/v1/search"},
		{"v1", "", "/v1", "/v1"},
		{"/Search", "", "/Search", "/Search"},
		{"/a%2Fb", "", "/a%2Fb", "/a%2Fb"},
		// Parts that a rule names.
		{"/v1/search/books", "/v1/search/{index}", "/v1/search/books", "/v1/search/{index}"},
		{"/v1/search/books/7", "/v1/{what}/**", "/v1/search/books/7", "/v1/{what}/books/7"},
		{"/v1/search/books", "/v1/*/books", "/v1/search/books", "/v1/search/books"},
		{"/v1/90210", "/v1/90210", "/v1/90210", "/v1/90210"},
		{"/v1/90210", "/v1/*", "/v1/90210", "/v1/{id}"},
		{"/v1/a/b", "/v1/**", "/v1/a/b", "/v1/a/b"},
		// Parts that look like ids or secrets.
		{"/users/4711", "", "/users/4711", "/users/4711"},
		{"/users/47110", "", "/users/47110", "/users/{id}"},
		{"/call/+49-170-1234567", "", "/call/+49-170-1234567", "/call/{id}"},
		{"/o/0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00/items", "", "/o/0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00/items", "/o/{id}/items"},
		{"/c/9fceb02d", "", "/c/9fceb02d", "/c/{id}"},
		{"/users/alice%40example.com", "", "/users/alice@example.com", "/users/{id}"},
		{"/packages/@types", "", "/packages/@types", "/packages/@types"},
		{"/k/4mqyx7bn2kcd6wvr", "", "/k/4mqyx7bn2kcd6wvr", "/k/{id}"},
		{"/k/cus_NffrFeUfNV2Hib", "", "/k/cus_NffrFeUfNV2Hib", "/k/{id}"},
		{"/k/V1StGXR8_Z5jdHi6B-myT", "", "/k/V1StGXR8_Z5jdHi6B-myT", "/k/{id}"},
		{"/t/eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "", "/t/eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "/t/{id}"},
		{"/a;jsessionid=1A2B3C4D5E6F7890", "", "/a;jsessionid=1A2B3C4D5E6F7890", "/{id}"},
		{"/t/" + strings.Repeat("x", 65), "", "/t/" + strings.Repeat("x", 65), "/t/{id}"},
		// And those that do not.
		{"/v2/articles/my-article-about-2024", "", "/v2/articles/my-article-about-2024", "/v2/articles/my-article-about-2024"},
		{"/stint.v1.Limiter/ReserveCapacity", "", "/stint.v1.Limiter/ReserveCapacity", "/stint.v1.Limiter/ReserveCapacity"},
		{"/oauth2/getOAuth2AccessTokens", "", "/oauth2/getOAuth2AccessTokens", "/oauth2/getOAuth2AccessTokens"},
		{"/deadbeef/facade", "", "/deadbeef/facade", "/deadbeef/facade"},
		{"/Straße/Übersichtsseiten", "", "/Straße/Übersichtsseiten", "/Straße/Übersichtsseiten"},
		// Long ones.
		{long, "", long[:6+8*30] + "/**", long[:6+8*30] + "/**"},
		{"/" + strings.Repeat("é", 200), "", "/**", "/**"},
		{"/a/" + strings.Repeat("b", 300) + "/c", "", "/a/**", "/a/**"},
		{strings.Repeat("/a", 128), strings.Repeat("/{abc}", 128), strings.Repeat("/a", 128), strings.Repeat("/{abc}", 42) + "/**"},
	} {
		for as, want := range map[record.Paths]string{record.KeepPath: c.kept, record.RedactPath: c.redacted, record.NoPath: ""} {
			e := engine.Event{ID: numbered(1), At: noon, Path: c.path, Endpoint: c.endpoint}
			for _, perSecond := range []int{0, 1} {
				if got := recordedAll(t, e, record.RecorderOptions{Paths: as, PerSecond: perSecond}).Path; got != want {
					t.Errorf("%d: of %q at %q there is %q, want %q", as, c.path, c.endpoint, got, want)
				}
			}
			tap := newTap(t, record.TapOptions{Paths: as})
			w := tap.Watch()
			tap.Record(t.Context(), &e)
			if shown, _ := w.Take(nil); len(shown) != 1 || shown[0].Path != want {
				t.Errorf("%d: of %q at %q there is shown %+v, want %q", as, c.path, c.endpoint, shown, want)
			}
			w.Close()
		}
	}
	if _, err := record.NewRecorder(record.RecorderOptions{Paths: 3}); err == nil || !strings.Contains(err.Error(), "Paths") {
		t.Errorf("Paths 3: %v", err)
	}
}

// recordedAll is recorded, of what is folded, too.
func recordedAll(t *testing.T, e engine.Event, o record.RecorderOptions) record.Event {
	t.Helper()
	o.Sample = 1
	r := newRecorder(t, o)
	r.Record(t.Context(), &e)
	all := events(t, r.TakeAll(nil))
	if len(all) != 1 {
		t.Fatalf("%d events", len(all))
	}
	return all[0]
}

// TestAnyPath keeps no path that is longer than it should be, and none that rules would read in another way.
func TestAnyPath(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		path := rapid.OneOf(rapid.String(), rapid.StringMatching(`(/[a-z0-9%.;]{0,40}){0,20}`)).Draw(rt, "path")
		endpoint := rapid.StringMatching(`(/([a-z]{1,5}|\*|\*\*|\{[a-z]{1,9}\})){0,30}`).Draw(rt, "endpoint")
		as := record.Paths(rapid.IntRange(0, 1).Draw(rt, "as"))
		got := recorded(rt, engine.Event{ID: numbered(1), At: noon, Path: path, Endpoint: endpoint}, record.RecorderOptions{Paths: as}).Path
		switch clean := rule.CleanPath(path); {
		case len(got) > 256+2*len(path)*strings.Count(got, "\uFFFD"):
			rt.Fatalf("%d bytes", len(got))
		case (got == "") != (path == ""):
			rt.Fatalf("%q of %q", got, path)
		case path != "" && as == record.KeepPath && len(clean) <= 256 && !strings.Contains(got, "\uFFFD") && got != clean:
			rt.Fatalf("%q of %q", got, clean)
		}
	})
}

// TestBatchOfEarlierVersions reads events of versions without sources, and without paths, such as a spool may have.
func TestBatchOfEarlierVersions(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, record.RecorderOptions{Region: "eu", Node: "n1", Paths: record.NoPath})
	e := denial(noon)
	r.Record(t.Context(), &e)
	b := r.Take(nil)
	want := events(t, b)
	want[0].Source = ""
	for _, version := range []byte{4, 3} {
		b = b[:len(b)-2] // without the source, and then without the length of the path
		b[8] = version
		binary.LittleEndian.PutUint16(b, uint16(len(b)-8))
		binary.LittleEndian.PutUint16(b[2:], ^uint16(len(b)-8))
		if got := events(t, b); !slices.EqualFunc(got, want, recordtest.Same) || got[0].Node != "n1" {
			t.Errorf("version %d: %+v, want %+v", version, got, want)
		}
	}
}

// TestManyPaths has a client whose every request has another path: it costs as many rows as one that repeats itself.
func TestManyPaths(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, record.RecorderOptions{PerSecond: 10, Paths: record.KeepPath, Now: func() time.Time { return noon }})
	for i := range 2000 {
		e := denial(noon)
		e.Path = fmt.Sprintf("/%d/%s", i, strings.Repeat("x", 200))
		r.Record(t.Context(), &e)
	}
	all := events(t, r.TakeAll(nil))
	weight := int64(0)
	for _, e := range all {
		weight += e.Weight
	}
	if len(all) != 10 || weight != 2000 {
		t.Errorf("%d events stand for %d", len(all), weight)
	}
}

// TestFindPath finds events by how their paths begin.
func TestFindPath(t *testing.T) {
	t.Parallel()
	each(t, noon.Add(time.Hour), func(t *testing.T, s *record.Store, _ *database.DB) {
		t.Helper()
		var all []record.Event
		for i, path := range []string{"/v1/users", "/v1/users/{id}", "/v1/user", "/v1/Users", "", "/v1/%"} {
			e := recordtest.Denial(i, noon.Add(time.Duration(i)*time.Second))
			if e.Path = path; i%2 == 1 {
				e.Endpoint = path
			}
			all = append(all, e)
		}
		recordtest.Write(t, s, all...)
		for prefix, want := range map[string][]int{
			"": {5, 4, 3, 2, 1, 0}, "/": {5, 3, 2, 1, 0}, "/v1/users": {1, 0}, "/v1/users/": {1}, "/v1/%": {5}, "/v1/user_": nil, "v1": nil, "/v1/{": nil,
		} {
			found, _, err := s.Find(t.Context(), record.EventQuery{Range: rangeAround(noon), Path: prefix})
			var got []int
			for _, e := range found {
				got = append(got, slices.IndexFunc(all, func(o record.Event) bool { return o.ID == e.ID }))
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%q: %v, %v, want %v", prefix, got, err, want)
			}
		}
	})
}

// TestStoreWithoutPath has a table of a version without paths, and a node of that version that goes on writing to it.
func TestStoreWithoutPath(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func() string{
		"postgres": func() string { return testdatabase.Postgres(t) },
		"sqlite":   func() string { return "sqlite:" + filepath.Join(t.TempDir(), "stint.db") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, err := database.Open(url())
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			db = db.Record
			run := func(statements ...string) {
				t.Helper()
				tx, err := db.Write.BeginTx(t.Context(), nil)
				for _, text := range statements {
					if err == nil {
						_, err = tx.ExecContext(t.Context(), text)
					}
				}
				if err == nil {
					err = tx.Commit()
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if _, err := db.Up(t.Context(), 11); err != nil {
				t.Fatal(err)
			}
			month := record.MonthOf(noon)
			table := fmt.Sprintf("stint_events_%04d_%02d", month.Year, month.Month)
			row := func(n int) string {
				e := recordtest.Denial(n, noon)
				id, at := fmt.Sprintf("x'%x'", e.ID[:]), strconv.FormatInt(noon.UnixMicro(), 10)
				if db.Postgres() {
					id, at = "'"+e.ID.String()+"'", "'"+noon.Format(time.RFC3339)+"'"
				}
				return "(id, at, outcome, shadow, cached, user_id, tenant, key_id, tier, ip, rule, limit_name, endpoint, method, used, max, cost, status, retry_after_us, waited_us, latency_us, region, node, weight)" +
					" VALUES (" + id + ", " + at + ", 3, false, false, 'alice', '', '', '', '', 'search', '', '/search', 'GET', 0, 0, 0, 0, 0, 0, 0, '', 'old', 1)"
			}
			if db.Postgres() {
				run("CREATE TABLE "+table+" PARTITION OF stint_events FOR VALUES FROM ('"+month.Start().Format(time.RFC3339)+"') TO ('"+month.End().Format(time.RFC3339)+"')",
					"INSERT INTO stint_events "+row(1))
			} else {
				var create string
				if err := db.Read.QueryRowContext(t.Context(), "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = 'stint_events'").Scan(&create); err != nil {
					t.Fatal(err)
				}
				run(strings.Replace(create, "stint_events", table, 1), "INSERT INTO "+table+" "+row(1))
			}
			for range 2 { // the second time there is nothing to do
				if _, err := db.Up(t.Context(), 0); err != nil {
					t.Fatal(err)
				}
			}
			if db.Postgres() { // as it wrote events, and wrote them again
				run("INSERT INTO stint_events "+row(2), "CREATE TEMPORARY TABLE again (LIKE stint_events) ON COMMIT DROP",
					"INSERT INTO again "+row(3), "INSERT INTO stint_events SELECT * FROM again ORDER BY at, id ON CONFLICT DO NOTHING")
			} else {
				run("INSERT INTO "+table+" "+row(2), "INSERT INTO "+table+" "+row(3))
			}
			s := storeAt(t, db, noon)
			with := recordtest.Denial(4, noon.Add(time.Second))
			with.Path = "/search/books"
			recordtest.Write(t, s, with)
			var got []string
			for _, e := range recordtest.All(t, s, month) {
				got = append(got, e.Node+e.Path)
			}
			if want := []string{"old", "old", "old", "n1/search/books"}; !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
			found, _, err := s.Find(t.Context(), record.EventQuery{Range: rangeAround(noon), Path: "/search"})
			if err != nil || len(found) != 1 || found[0].ID != with.ID {
				t.Errorf("%+v, %v", found, err)
			}
			if _, err := db.Down(t.Context(), 11); err != nil {
				t.Fatal(err)
			}
			if _, err := db.Up(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			if n := len(recordtest.All(t, s, month)); n != 4 {
				t.Errorf("after a way back there are %d", n)
			}
		})
	}
}

// BenchmarkPathBytes reports how many bytes an event takes: in the spool, and in a database with all of its indexes. There are 200
// paths, some of which are far more common than others, and a third of the requests have an id in them.
func BenchmarkPathBytes(b *testing.B) {
	const n = 100_000
	paths := make([]string, 200)
	for i := range paths {
		paths[i] = fmt.Sprintf("/v1/%s/%s", []string{"accounts", "orders", "search", "reports", "users"}[i%5], []string{"recent", "summary", "export", "items", "by-name"}[i/5%5])
		if i >= 25 {
			paths[i] += fmt.Sprintf("/page-%d", i)
		}
	}
	for _, c := range []struct {
		name, endpoint string
		as             record.Paths
	}{
		{"off, a rule for all", "/v1/**", record.NoPath},
		{"off, a rule for each", "", record.NoPath},
		{"redact, a rule for all", "/v1/**", record.RedactPath},
		{"redact, a rule for each", "", record.RedactPath},
		{"keep, a rule for all", "/v1/**", record.KeepPath},
	} {
		for name, open := range map[string]func() string{
			"sqlite":   func() string { return "sqlite:" + filepath.Join(b.TempDir(), "stint.db") },
			"postgres": func() string { return testdatabase.Postgres(b) },
		} {
			b.Run(c.name+"/"+name, func(b *testing.B) {
				for b.Loop() {
					db := recordtest.Open(b, open())
					store := storeAt(b, db, noon)
					random := rand.New(rand.NewPCG(1, 1))
					zipf, users := rand.NewZipf(random, 1.1, 3, uint64(len(paths)-1)), rand.NewZipf(random, 1.1, 10, 100_000)
					r := newRecorder(b, record.RecorderOptions{Paths: c.as, Region: "eu-west-1", Node: "node-7"})
					var batch record.Batch
					spooled := 0
					for i := range n {
						e := denial(noon.Add(time.Duration(i) * time.Second))
						e.User, e.Path = fmt.Sprintf("u-%d", users.Uint64()), paths[zipf.Uint64()]
						if e.Endpoint = c.endpoint; c.endpoint == "" {
							e.Endpoint = e.Path
						}
						if random.IntN(3) == 0 {
							e.Path += fmt.Sprintf("/%d", 10_000+random.IntN(1_000_000))
							if c.endpoint == "" {
								e.Endpoint += "/{id}"
							}
						}
						r.Record(b.Context(), &e)
						if i%2000 == 1999 {
							batch = r.Take(batch[:0])
							spooled += len(batch)
							recordtest.Write(b, store, events(b, batch)...)
						}
					}
					size, err := store.Size(b.Context(), 0)
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(float64(spooled)/n, "spool-B/event")
					b.ReportMetric(float64(size)/n, "database-B/event")
				}
			})
		}
	}
}

func rangeAround(t time.Time) query.Range {
	return query.Range{From: t.Add(-time.Hour), To: t.Add(time.Hour)}
}

// TestEndpointOf has paths that differ in ids only have one name.
func TestEndpointOf(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/api/orders/17": "/api/orders/{id}", "/api/orders/100023?x=1": "/api/orders/{id}", "/v1/search": "/v1/search", "/": "/",
		"/users/7/orders/8/": "/users/{id}/orders/{id}", "/2026/report": "/{id}/report", "/a1/b": "/a1/b",
	} {
		if got := record.EndpointOf(path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}
