package daemon_test

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestRecord denies requests and finds them in the record, with as much of the address as
// configured.
func TestRecord(t *testing.T) {
	t.Parallel()
	url := fill(t, few)
	p := start(t, strings.ReplaceAll(inDatabase, "%", url)+
		"record = { sample_every = 1, max_rate = 0, region = \"here\", ip = \"truncate\", spool = \""+t.TempDir()+"\" }\n"+echo(t))
	const most = 20
	passed := 0
	for range most {
		status, _ := p.get(t, "gateway", "/")
		if status == http.StatusOK {
			passed++
		}
	}
	if passed == 0 || passed == most {
		t.Fatalf("%d of %d passed", passed, most)
	}
	store, err := rollup.New(openCatalog(t, url).Database(), rollup.Options{})
	do(t, err)
	q := record.EventQuery{Range: query.Range{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Hour)}}
	var events []record.Event
	wait.For(t, "all events are written", func() bool {
		events, _, err = store.Find(t.Context(), q)
		do(t, err)
		return len(events) >= most
	})
	kept := 0
	for _, e := range events {
		if e.Region != "here" || e.Node == "" || e.IP != "127.0.0.0/24" || e.Weight != 1 {
			t.Errorf("%+v", e)
		}
		if e.Outcome.Passed() {
			kept++
		}
	}
	if kept != passed || len(events) != most {
		t.Errorf("%d events, of which %d passed; want %d, %d", len(events), kept, most, passed)
	}
	p.becomes(t, "record", "ok", "")
	if s := p.series(t); s[`stint_record_events_total{what="dropped"}`] != "0" || s["stint_record_spooled_bytes"] != "0" {
		t.Error(s)
	}
}

// TestRecordFlood denies one client very often: few events are stored, and their numbers add up.
// The file of the rules does not grow by them.
func TestRecordFlood(t *testing.T) {
	t.Parallel()
	url := fill(t, few)
	p := start(t, strings.ReplaceAll(inDatabase, "%", url)+"record = { sample_every = 1, max_rate = 2, spool = \""+t.TempDir()+"\" }\n"+echo(t))
	const most = 300
	began := time.Now()
	for range most {
		p.get(t, "gateway", "/")
	}
	seconds := int(time.Since(began)/time.Second) + 2
	k := openCatalog(t, url)
	store, err := rollup.New(k.Database(), rollup.Options{})
	do(t, err)
	q := record.EventQuery{Range: query.Range{From: began.Add(-time.Hour), To: began.Add(time.Hour)}, Limit: 1000}
	var rows, all int64
	wait.For(t, "all decisions are written", func() bool {
		events, _, err := store.Find(t.Context(), q)
		do(t, err)
		rows, all = int64(len(events)), 0
		for _, e := range events {
			all += e.Weight
		}
		return all >= most
	})
	// Those that passed and those that did not are apart, and stragglers of a second, too.
	if all != most || rows < 3 {
		t.Errorf("%d events stand for %d decisions, want %d", rows, all, most)
	}
	torture.AtMost(t, "events", rows, int64(seconds*2*3))
	series := p.series(t)
	if series[`stint_record_events_total{what="folded"}`] != strconv.FormatInt(all-rows, 10) || series[`stint_record_events_total{what="dropped"}`] != "0" {
		t.Error(series)
	}
	wait.For(t, "the size is known", func() bool { return p.series(t)["stint_record_bytes"] != "0" })
	if months, err := store.Stored(t.Context(), k.Database().Read); err != nil || len(months) != 0 {
		t.Errorf("%v are in the file of the rules, %v", months, err)
	}
}

// TestRecordNoRoom has a disk with less room than is to be left free: nothing is recorded, which
// is reported, and operators can still do everything.
func TestRecordNoRoom(t *testing.T) {
	t.Parallel()
	url := fill(t, few)
	p := start(t, strings.ReplaceAll(inDatabase, "%", url)+
		"record = { min_free = 9000000000000000000, spool = \""+t.TempDir()+"\" }\n"+echo(t))
	for range 20 {
		p.get(t, "gateway", "/")
	}
	p.becomes(t, "record", "degraded", "server.record.min_free")
	if _, status, detail := p.health(t, "catalog"); status != "ok" {
		t.Errorf("the catalog is %s: %s", status, detail)
	}
	if s := p.series(t); s[`stint_record_events_total{what="written"}`] != "0" || s["stint_record_spooled_bytes"] != "0" {
		t.Error(s)
	}
}

// TestRecordProblems checks the problems of settings.
func TestRecordProblems(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"ip":        {`ip = "some"`, `server.record.ip: "some": want one of keep, truncate, hash`},
		"no key":    {`ip = "hash"`, "server.record.ip_key: has 0 bytes, want at least 16 to hash addresses"},
		"short key": {"ip = \"hash\"\nip_key = \"hunter2\"", "server.record.ip_key: has 7 bytes, want at least 16 to hash addresses"},
		"retention": {`retention = "1h"`, `server.record.retention: "1h": want from 1d to 3650d`},
		"archive":   {`archive = "ftp://me:hunter2@there"`, "want file:///path, s3://bucket/prefix, none, or \"\""},
		"years":     {`archive_years = 101`, `server.record.archive_years: "101": want 1 to 100, or 0 to keep months forever`},
		"too few":   {"archive_years = 1\nretention = \"400d\"", "server.record.archive_years: 1: want at least server.record.retention, which is 400d"},
		"sample":    {`sample_every = -1`, "server.record.sample_every: -1: want 0 or more"},
		"rate":      {`max_rate = -1`, "server.record.max_rate: -1: want 0 or more"},
		"size":      {`max_size = 1000`, `server.record.max_size: "1000": want 16777216 or more, or 0 for no limit`},
		"free":      {`min_free = -1`, `server.record.min_free: "-1": want a number of bytes, or 0 for none`},
		"spool":     {`spool_size = 1`, "server.record.spool_size: 1: want 1048576 or more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := daemon.Source{Path: write(t, "stint.toml", "[server.record]\n"+c.text)}.Load()
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v; want %s", err, c.want)
			}
		})
	}
}

// TestUsageRecorded has two nodes of a database record what was used: it adds up, and nothing is lost when they stop.
func TestUsageRecorded(t *testing.T) {
	t.Parallel()
	url := fill(t, metered)
	var nodes []*process
	for range 2 {
		nodes = append(nodes, start(t, strings.ReplaceAll(inDatabase, "%", url)))
	}
	for _, p := range nodes {
		c := httplimit.Client{URL: p.URL("http"), HTTP: p.client}
		for i := range 3 {
			a, err := c.Reserve(t.Context(), httplimit.Ask{Path: "/", User: "alice", Tenant: "acme"})
			do(t, err)
			if _, err = c.Commit(t.Context(), a.Ticket, engine.Usage{Cost: 70, Model: "gpt"}); err == nil && i == 2 {
				_, err = c.Commit(t.Context(), a.Ticket, engine.Usage{Cost: 70, Model: "gpt"}) // again
			}
			do(t, err)
		}
		if s := p.series(t); s["stint_record_usage_other_total"] != "0" {
			t.Error(s)
		}
		if got := p.live(t, "").Units; len(got) != 1 || got[0].Rule != "tokens" || got[0].Meter != "llm.total_tokens" || got[0].Used <= 0 {
			t.Errorf("the live view has %+v", got)
		}
	}
	for _, p := range nodes {
		do(t, p.Stop(context.WithoutCancel(t.Context())))
	}
	store, err := rollup.New(openCatalog(t, url).Database(), rollup.Options{})
	do(t, err)
	rows, more, err := store.Consumption(t.Context(), record.ConsumptionQuery{By: []string{"tenant", "user", "model"}})
	do(t, err)
	want := record.Consumption{Meter: "llm.total_tokens", Tenant: "acme", User: "alice", Model: "gpt", Units: record.Units{Requests: 6, Reserved: 600, Used: 420, GivenBack: 180}}
	if len(rows) != 1 || more || rows[0] != want {
		t.Errorf("%+v, want %+v", rows, want)
	}
}
