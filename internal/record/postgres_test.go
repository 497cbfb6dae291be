package record_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestPostgresKilled has PostgreSQL killed while events come as fast as they are taken, and
// started again. In the end it has all of them, each once.
func TestPostgresKilled(t *testing.T) {
	t.Parallel()
	killPostgres(t, 5_000)
}

func killPostgres(t *testing.T, n int) {
	t.Helper()
	server := testpostgres.Start(t)
	db := recordtest.Open(t, server.Database(t))
	now := time.Date(2026, 2, 28, 23, 59, 59, 0, time.UTC) // March begins soon
	s := storeAt(t, db, now)
	r := newRecorder(t, record.RecorderOptions{Region: "eu", Node: "n1"})
	p := newPipeline(t, record.PipelineOptions{Recorder: r, Sink: s, Spool: openSpool(t, record.SpoolOptions{Dir: t.TempDir()}), Interval: 20 * time.Millisecond})
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
			if i%1000 == 0 {
				wait.For(t, "room, so that none is dropped", func() bool { return p.State().Buffered <= 1<<20 })
			}
			e.At = now.Add(time.Duration(i) * 100 * time.Microsecond)
			e.ID = engine.NewID(e.At)
			r.Record(t.Context(), &e)
		}
	}()
	wait.For(t, "some are written", func() bool { return p.State().Written > int64(n/8) })
	server.Kill(t)
	close(killed)
	<-recorded
	wait.For(t, "it is noticed", func() bool { return p.State().Problem != "" })
	if err := s.Write(t.Context(), []record.Event{recordtest.Denial(1, now)}); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
	server.Restart(t)
	wait.Nil(t, "all writes", func() error {
		if st := p.State(); st.Written < int64(n) || st.Buffered > 0 || st.Spooled > 0 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	if err := p.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if st := p.State(); st.Dropped != 0 || st.Problem != "" {
		t.Errorf("in the end it is %+v", st)
	}
	rows := recordtest.Count(t, db, "SELECT count(*) FROM stint_events")
	ids := recordtest.Count(t, db, "SELECT count(DISTINCT id) FROM stint_events")
	if rows != int64(n) || ids != rows {
		t.Errorf("%d rows with %d ids, want %d", rows, ids, n)
	}
}
