package audit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/audit"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

// TestPipelineIntoPostgres has PostgreSQL killed while events come as fast as they are
// taken, and started again. In the end it has all of them, each once.
func TestPipelineIntoPostgres(t *testing.T) {
	t.Parallel()
	intoPostgres(t, 200_000)
}

func intoPostgres(t *testing.T, n int) {
	t.Helper()
	server := testpostgres.Start(t)
	db := openDatabase(t, server.Database(t))
	if _, err := db.Up(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 2, 28, 23, 59, 59, 0, time.UTC) // March begins soon
	s := storeAt(t, db, now)
	r := newRecorder(t, audit.RecorderOptions{Region: "eu", Node: "n1"})
	p := newPipeline(t, audit.PipelineOptions{Recorder: r, Sink: s, Spool: openSpool(t, audit.SpoolOptions{Dir: t.TempDir()}), Interval: 20 * time.Millisecond})
	p.Start(t.Context())
	defer func() { _ = p.Stop(t.Context()) }() // it is checked below
	e := denial(now)
	killed := make(chan struct{})
	recorded := make(chan struct{})
	go func() {
		defer close(recorded)
		for i := range n {
			if i == n/2 {
				<-killed // some come while it is dead
			}
			for i%1000 == 0 && p.State().Buffered > 1<<20 { // so that none is dropped
				poll(time.Second, func() bool { return p.State().Buffered <= 1<<20 })
			}
			e.At = now.Add(time.Duration(i) * 20 * time.Microsecond)
			e.ID = engine.NewID(e.At)
			r.Record(&e)
		}
	}()
	eventually(t, "some are written", func() bool { return p.State().Written > int64(n/8) })
	server.Kill(t)
	close(killed)
	<-recorded
	eventually(t, "it is noticed", func() bool { return p.State().Problem != "" })
	server.Restart(t)
	long := time.Minute + time.Duration(n)*300*time.Microsecond // as a machine may have others to serve
	if !poll(long, func() bool { st := p.State(); return st.Written >= int64(n) && st.Buffered == 0 && st.Spooled == 0 }) {
		t.Fatalf("after %v not all are written: %+v", long, p.State())
	}
	stopping, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.Stop(stopping); err != nil {
		t.Error(err)
	}
	if st := p.State(); st.Dropped != 0 || st.Problem != "" {
		t.Errorf("in the end it is %+v", st)
	}
	rows := number64(t, db, "SELECT count(*) FROM stint_events")
	ids := number64(t, db, "SELECT count(DISTINCT id) FROM stint_events")
	if rows != int64(n) || ids != rows {
		t.Errorf("%d rows with %d ids, want %d", rows, ids, n)
	}
}
