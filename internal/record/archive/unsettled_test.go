package archive_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/archive"
	"github.com/stintdev/stint/internal/record/recordtest"
)

// TestParquetUnsettled reads a file of a version that knew neither what became of reservations nor paths. Its digest is the
// same now.
func TestParquetUnsettled(t *testing.T) {
	t.Parallel()
	type event struct { // as it was
		ID         engine.ID `parquet:"decision_id,uuid"`
		At         int64     `parquet:"time,timestamp(microsecond:utc),delta"`
		User       string    `parquet:"user_id,dict"`
		Tenant     string    `parquet:"tenant_id,dict"`
		Key        string    `parquet:"key_id,dict"`
		Tier       string    `parquet:"tier,dict"`
		IP         string    `parquet:"ip,dict"`
		Rule       string    `parquet:"rule,dict"`
		Limit      string    `parquet:"limit_name,dict"`
		Endpoint   string    `parquet:"endpoint,dict"`
		Method     string    `parquet:"method,dict"`
		Outcome    string    `parquet:"outcome,dict"`
		Shadow     bool      `parquet:"shadow"`
		Cached     bool      `parquet:"cached"`
		Used       int64     `parquet:"count"`
		Max        int64     `parquet:"limit_value"`
		Cost       int64     `parquet:"cost"`
		Status     int32     `parquet:"status"`
		RetryAfter int64     `parquet:"retry_after_us"`
		Waited     int64     `parquet:"waited_us"`
		Latency    int64     `parquet:"latency_us"`
		Region     string    `parquet:"region,dict"`
		Node       string    `parquet:"node,dict"`
		Weight     int64     `parquet:"weight"`
	}
	var file bytes.Buffer
	w := parquet.NewGenericWriter[event](&file, parquet.NewSchema("event", parquet.SchemaOf(event{})), parquet.Compression(&parquet.Zstd), parquet.KeyValueMetadata("stint.schema", "1"))
	events := someEvents(time.Date(2026, time.January, 10, 12, 0, 0, 0, time.UTC), 1000)
	for i := range events {
		e := &events[i]
		e.Settled, e.Path, e.Source, e.Unaccepted = nil, "", "", ""
		row := event{
			ID: e.ID, At: e.At.UnixMicro(), User: e.User, Tenant: e.Tenant, Tier: e.Tier, IP: e.IP, Rule: e.Rule, Limit: e.Limit, Endpoint: e.Endpoint, Method: e.Method,
			Outcome: e.Outcome.String(), Used: e.Used, Max: e.Max, Cost: e.Cost, Status: int32(e.Status), RetryAfter: e.RetryAfter.Microseconds(), Latency: e.Latency.Microseconds(),
			Region: e.Region, Node: e.Node, Weight: e.Weight,
		}
		if _, err := w.Write([]event{row}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := fromParquet(file.Bytes())
	if err != nil || !slices.EqualFunc(byID(got), byID(events), recordtest.Same) {
		t.Errorf("%d events, %v, want %d", len(got), err, len(events))
	}
	first := events[0]
	first.ID = engine.ID{1, 2, 3}
	const want = "1e8caa10d5daa0fa82ea464f691380b3df2e3a9fd872e6297955fef65195557e"
	if got := archive.DigestOf(first); got != want {
		t.Errorf("the digest of an event is %s, and was %s", got, want)
	}
	first.Path = "/orders/7"
	if got := archive.DigestOf(first); got == want {
		t.Error("a path does not change the digest")
	}
	first.Path, first.Source = "", "key"
	if got := archive.DigestOf(first); got == want {
		t.Error("a source does not change the digest")
	}
	first.Source = ""
	first.Settled = []record.Settlement{{Event: first.ID}}
	if got := archive.DigestOf(first); got == want {
		t.Error("what became of a reservation does not change the digest")
	}
}

// TestParquetOfEarlierVersions reads files of versions that did not know paths, or how clients were identified.
func TestParquetOfEarlierVersions(t *testing.T) {
	t.Parallel()
	events := someEvents(time.Date(2026, time.January, 10, 12, 0, 0, 0, time.UTC), 1000)
	for i := range events {
		events[i].Source, events[i].Unaccepted = "", ""
	}
	check := func(file []byte) {
		t.Helper()
		got, err := fromParquet(file)
		if err != nil || !slices.EqualFunc(byID(got), byID(events), recordtest.Same) {
			t.Errorf("%d events, %v, want %d", len(got), err, len(events))
		}
	}
	check(archive.WithoutSource(t, events))
	for i := range events {
		events[i].Path = ""
	}
	check(archive.WithoutPath(t, events))
}
