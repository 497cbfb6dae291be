package daemon

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// The values of server.record.ip and server.record.path, and that of server.record.archive that deletes.
const (
	keepIP, truncateIP, hashIP    = "keep", "truncate", "hash"
	redactPath, keepPath, offPath = "redact", "keep", "off"
	archiveNone                   = "none"
)

func (r *recording) start(ctx context.Context, d *Daemon) {
	r.started = true
	r.store.Start(ctx)
	r.pipeline.Start(ctx)
	r.book.Start(ctx)
	if r.archive == nil {
		return
	}
	ctx, r.quit = context.WithCancel(ctx)
	r.done = make(chan struct{})
	go func() {
		defer close(r.done)
		const first, interval = time.Minute, time.Hour
		run := func() bool {
			if err := r.archive(ctx); err != nil && ctx.Err() == nil {
				d.log.ErrorContext(ctx, "old months cannot be archived and stay in the database", "problem", err.Error())
			}
			return false
		}
		every(ctx, first, run)
		every(ctx, interval, func() bool { run(); return true })
	}()
}

// close flushes events to the database or the spool, and what was used to the database.
func (r *recording) close(ctx context.Context) {
	if r.quit != nil {
		r.quit()
		<-r.done
	}
	if r.started {
		_ = r.book.Stop(ctx)     // which logs errors
		_ = r.pipeline.Stop(ctx) // as does this
		r.store.Stop()
	}
	if r.spool != nil {
		_ = r.spool.Close() // everything is synced
	}
}

// recordProblem describes problems with the record.
func (d *Daemon) recordProblem() string {
	const recent = time.Hour
	r := d.control.record
	s, booked, stored := r.pipeline.State(), r.book.State(), r.store.State()
	switch {
	case s.Problem != "":
		return fmt.Sprintf("events cannot be written since %s; %d bytes are in the spool, and %d events were dropped: %s",
			s.Since.UTC().Format(time.RFC3339), s.Spooled, s.Dropped, s.Problem)
	case booked.Problem != "":
		return fmt.Sprintf("usage cannot be written since %s; that of %d accounts is in memory, and lost if the process ends: %s",
			booked.Since.UTC().Format(time.RFC3339), booked.Waiting, booked.Problem)
	case stored.Problem != "":
		return "events are written, but not rolled up: " + stored.Problem
	case time.Since(stored.Cut) < recent:
		return fmt.Sprintf("the record has reached server.record.max_size, %d bytes: events before %s were deleted, and their roll-ups stay",
			r.maxBytes, stored.Before.UTC().Format(time.RFC3339))
	case s.Bad > 0:
		return strconv.Itoa(s.Bad) + " damaged files in the spool are kept, but not read"
	}
	return ""
}
