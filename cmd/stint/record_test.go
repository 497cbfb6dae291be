package main_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	stintlib "github.com/stintdev/stint"
	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

// recordIn returns the record in a new database, with a clock.
func recordIn(t *testing.T, url string, now func() time.Time) *rollup.Store {
	t.Helper()
	db, err := database.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if _, err := db.Up(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	s, err := rollup.New(db, rollup.Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// denial returns the event of a denied request.
func denial(n int, at time.Time, user string) record.Event {
	e := record.Event{
		At: at, Outcome: engine.Denied, User: user, Tenant: "acme", Tier: "free", IP: "192.0.2.1", Rule: "search", Limit: "requests",
		Endpoint: "/search", Method: "GET", Used: 100, Max: 100, Cost: 1, Status: 429, RetryAfter: 12 * time.Second, Latency: 80 * time.Microsecond,
		Region: "eu", Node: "n1", Weight: 1,
	}
	e.ID = engine.FirstID(at)
	binary.BigEndian.PutUint64(e.ID[8:], uint64(n))
	return e
}

// TestRecord queries, archives and restores events, step by step, and compares the output.
// It is the same for SQLite and PostgreSQL.
func TestRecord(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{
		"sqlite":   "sqlite:" + filepath.Join(t.TempDir(), "stint.db"),
		"postgres": testpostgres.Shared(t).Database(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			store := recordIn(t, url, func() time.Time { return time.Date(2024, 6, 1, 0, 0, 0, 0, time.UTC) })
			var events []record.Event
			for n := range 8 {
				at := time.Date(2024, 3, 30+n/2, 12, n, n, 1000*n, time.UTC) // in two months
				events = append(events, denial(n, at, []string{"alice", "bob", "alice", ""}[n%4]))
			}
			events[1].Rule, events[1].Outcome, events[1].RetryAfter, events[1].Status, events[1].Limit = "internal", engine.Blocked, stintlib.Never, 403, ""
			events[2].Outcome, events[2].Shadow, events[2].Status = engine.Allowed, true, 0
			events[3].IP = "2001:db8::1"
			events[4].Outcome, events[4].RetryAfter, events[4].Used, events[4].Status, events[4].Weight = engine.Allowed, 0, 7, 0, 100
			events[5].User, events[5].Key = "", "key\x1b[2J\tone"
			if err := store.Write(t.Context(), events); err != nil {
				t.Fatal(err)
			}
			settlement := record.Settlement{
				Event: events[4].ID, Rule: "answers", Meter: "llm.output_tokens", At: events[4].At.Add(time.Second), Reserved: 100, Used: 150, Model: "gpt\x1b[2J", Estimated: true,
			}
			settlements := []record.Settlement{settlement, settlement, settlement}
			settlements[1].Rule, settlements[1].Used, settlements[1].Estimated = "tokens", 40, false
			settlements[2].Rule, settlements[2].Event, settlements[2].Used, settlements[2].Cancelled, settlements[2].Estimated, settlements[2].Shadow = "trial", events[2].ID, 0, true, false, true
			if err := store.AddSettlements(t.Context(), settlements); err != nil {
				t.Fatal(err)
			}
			for more := true; more; {
				n, err := store.Run(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				more = n > 0
			}
			var used []record.Entry
			for i, tenant := range []string{"acme", "=SUM(A1)"} {
				for _, rule := range []string{"", "tokens"} {
					used = append(used, record.Entry{
						Account: record.Account{Start: time.Date(2024, 3, 30+i, 12, 0, 0, 0, time.UTC), Rule: rule, Meter: "llm.total_tokens", Tenant: tenant, User: "alice", Model: "gpt\x1b[2J"},
						Units:   record.Units{Requests: 3, Reserved: 300, Used: 450 - 400*int64(i), GivenBack: 250 * int64(i), Overshoot: 150 - 150*int64(i), Estimated: 7},
					})
				}
			}
			if err := store.AddConsumption(t.Context(), "one", used); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			const during = " --from 2024-03-01T00:00:00Z --to 2024-05-01T00:00:00Z"
			archive := " --archive file://" + filepath.Join(dir, "archive")
			var got strings.Builder
			run := func(lines ...string) {
				for _, line := range lines {
					got.WriteString(transcript(t, line, strings.Fields(line), []string{"STINT_SERVER_DATABASE=" + url}))
				}
			}
			run(
				"events list"+during,
				"events list"+during+" --limit 2 -o json",
				"events list"+during+" --user alice --outcome denied",
				"events list"+during+" --ip 2001:DB8:0::1 --tenant acme --rule search --endpoint /search --method GET",
				"events list"+during+" --shadow",
				"events list --limit 1 --outcome allowed -o json"+during,
				"events list --limit 2 --outcome allowed -o yaml"+during,
				"events list"+during+" --key none",
				"events list"+during+" --key none -o json",
				"events list --since 1h",
				"events list --since 1x",
				"events list --from yesterday",
				"events list --from 24h --since 24h",
				"events list --from 2024-05-01T00:00:00Z --to 2024-04-01T00:00:00Z",
				"events list --from 2020-05-01T00:00:00Z --to 2030-04-01T00:00:00Z",
				"events list --since 3650d",
				"events list --to 7d --from 2016-01-01T00:00:00Z",
				"events list --outcome deneid",
				"events list --limit 0",
				"events follow --to 1h",
				"events follow",
				"events tpo",
				"events top"+during,
				"events top --by ip --rule search"+during,
				"events top --by rule -o json"+during,
				"events top --by usr --limit 1001",
				"events top",
				"events series"+during,
				"events series --by rule --outcome denied --limit 1 --step 7d"+during,
				"events series -o json --step 1m --from 2024-03-30T12:00:00Z --to 2024-03-30T12:02:00Z",
				"events series --step 90s",
				"events series --step often",
				"events series --by user",
				"events violations"+during,
				"events violations --user alice -o json"+during,
				"events violations --user no-one"+during,
				"events clients"+during,
				"events clients --by ip --rule search -o json"+during,
				"events clients --by rule",
				"events list"+during+" --limit 2 -o csv",
				"events list"+during+" --key none -o csv",
				"events export"+during+" --limit 1",
				"events export"+during+" --limit 1 -o json",
				"events export"+during+" -o parquet",
				"events top --by rule -o csv"+during,
				"events series -o csv --step 1m --from 2024-03-30T12:00:00Z --to 2024-03-30T12:02:00Z",
				"events violations -o csv"+during,
				"events clients -o csv"+during,

				"consumption --month 2024-03",
				"consumption --month 2024-03 --by month,tenant,model -o csv",
				"consumption --by rule,user,meter --tenant acme -o json"+during,
				"consumption --by= --limit 1"+during,
				"consumption --month 2024-02",
				"consumption --month 2024-03 --shadow",
				"consumption --month march",
				"consumption --month 2024-03 --since 7d",
				"consumption --by tennant",
				"consumption --by day,month",
				"consumption --limit 0",

				"archive run",
				"archive run --archive none",
				"archive run --archive ftp://x",
				"archive run --archive file://"+filepath.Join(dir, "file", "archive"),
				"archive list"+archive,
				"archive list -o json"+archive,
				"events clients --by ip"+during, // nothing was dropped
				"archive run"+archive+" --set server.record.retention=3650d --set server.record.archive_years=0",
				"archive run"+archive,
				"archive run"+archive+" -o json",
				"archive list -o csv"+archive,
				"events list"+during,
				"events top --limit 1"+during,
				"archive list"+archive,
				"archive list -o json"+archive,
				"archive verify 2024-03"+archive,
				"archive verify 2024-03 -o json"+archive,
				"archive verify 2024-02"+archive,
				"archive verify march"+archive,
				"archive verify"+archive,
				"archive restore 2024-03"+archive,
				"archive restore 2024-03 -o json"+archive,
				"archive restore 2024-02"+archive,
				"events list"+during+" --user alice",
				"archive run"+archive,
			)
			parts, err := filepath.Glob(filepath.Join(dir, "archive", "2024-04", "*.parquet"))
			if err != nil || len(parts) != 1 {
				t.Fatal(parts, err)
			}
			if err := os.WriteFile(parts[0], []byte("something else"), 0o600); err != nil {
				t.Fatal(err)
			}
			run(
				"archive verify 2024-04"+archive,
				"archive verify 2024-04 -o json"+archive,
				"archive restore 2024-04"+archive,
				"archive expire"+archive,
				"archive expire --yes --set server.record.archive_years=0"+archive,
				"archive expire --yes --set server.record.archive_years=100"+archive,
				"archive expire --yes --set server.record.archive_years=1"+archive,
				"archive expire --yes --set server.record.archive_years=1 -o json"+archive,
				"archive list"+archive,
			)
			if *update && name != "sqlite" {
				return // sqlite writes the file
			}
			text := strings.ReplaceAll(got.String(), dir, "/DIR")
			for pattern, with := range map[string]string{
				`(bytes"?: )\d+`:                      "${1}SIZE",
				`(?m)^(\d{4}-\d\d +\d+ +\d+ +)\d+`:    "${1}SIZE",
				`(part-\d+-\d+-)[0-9a-f]{16}`:         "${1}HASH",
				`(want )[0-9a-f]{64}`:                 "${1}HASH",
				`(?m)^[a-z]+ \d{4}-\d\d: \d+ of .*\n`: "", // progress
			} {
				text = regexp.MustCompile(pattern).ReplaceAllString(text, with)
			}
			text = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`).ReplaceAllStringFunc(text, func(when string) string {
				if strings.HasPrefix(when, "2024-") || strings.HasSuffix(when, "-01T00:00:00Z") || when == "2026-01-31T12:00:00Z" {
					return when // from an event, a command, or a message about it
				}
				return "TIME"
			})
			compare(t, "testdata/record.txt", text)
		})
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	for bar, want := range map[bool]string{
		false: "writing 2024-03: 3 of 9 events\nwriting 2024-03: 6 of 9 events\nwriting 2024-03: 9 of 9 events\n",
		true: "\r\x1b[Kwriting 2024-03 [###...........................] 11%\r\x1b[Kwriting 2024-03 [######........................] 22%" +
			"\r\x1b[Kwriting 2024-03 [##########....................] 33%\r\x1b[Kwriting 2024-03 [#############.................] 44%" +
			"\r\x1b[Kwriting 2024-03 [################..............] 55%\r\x1b[Kwriting 2024-03 [####################..........] 66%" +
			"\r\x1b[Kwriting 2024-03 [#######################.......] 77%\r\x1b[Kwriting 2024-03 [##########################....] 88%\r\x1b[K\r\x1b[K",
	} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			show := stint.NewProgress(&out, bar)
			for done := range int64(9) {
				<-time.After(400 * time.Millisecond)
				show(done+1, 9, "writing 2024-03")
				show(done+1, 9, "writing 2024-03") // too soon
			}
			if out.String() != want {
				t.Errorf("got %q, want %q", out.String(), want)
			}
		})
	}
}
