package daemon

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// The values of server.record.ip, and the value of server.record.archive that deletes.
const (
	keepIP, truncateIP, hashIP = "keep", "truncate", "hash"
	archiveNone                = "none"
)

func (r *recording) start(ctx context.Context, d *Daemon) {
	r.started = true
	r.store.Start(ctx)
	r.pipeline.Start(ctx)
	if r.archive == nil {
		return
	}
	ctx, r.quit = context.WithCancel(ctx)
	r.done = make(chan struct{})
	go func() {
		defer close(r.done)
		const soon, every = time.Minute, time.Hour
		for wait := soon; ; wait = every {
			due := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				due.Stop()
				return
			case <-due.C:
			}
			if err := r.archive(ctx); err != nil && ctx.Err() == nil {
				d.log.ErrorContext(ctx, "months cannot be archived, they stay in the database", "problem", err.Error())
			}
		}
	}()
}

// close writes what is still to be written, to the database or to the spool.
func (r *recording) close(ctx context.Context) {
	if r.quit != nil {
		r.quit()
		<-r.done
	}
	if r.started {
		_ = r.pipeline.Stop(ctx) // it says so itself
		r.store.Stop()
	}
	if r.spool != nil {
		_ = r.spool.Close() // all of it is synced
	}
}

// recordProblem says what is wrong with the record.
func (d *Daemon) recordProblem() string {
	s := d.control.record.pipeline.State()
	if s.Problem == "" {
		if s.Bad > 0 {
			return strconv.Itoa(s.Bad) + " damaged files of events are in the spool, which are kept and not read"
		}
		return ""
	}
	return fmt.Sprintf("events cannot be written since %s; %d bytes are spooled, and %d events were dropped: %s",
		s.Since.UTC().Format(time.RFC3339), s.Spooled, s.Dropped, s.Problem)
}
