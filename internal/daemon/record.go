package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/blob"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/archive"
	"github.com/stintdev/stint/internal/record/rollup"
)

// recording is what a daemon writes down of its decisions.
type recording struct {
	recorder *record.Recorder
	spool    *record.Spool // nil: there is none
	pipeline *record.Pipeline
	store    *rollup.Store
	archive  func(context.Context) error // nil: events stay
	quit     context.CancelFunc          // ends what archives; nil: nothing does
	done     chan struct{}
	started  bool
}

// The values of server.record.ip, and the value of server.record.archive that deletes.
const (
	keepIP, truncateIP, hashIP = "keep", "truncate", "hash"
	archiveNone                = "none"
)

// openRecord makes what records decisions, into the database that is open.
func (d *Daemon) openRecord(ctx context.Context) (err error) {
	s, c := &d.config.Server.Record, d.control
	r := new(recording)
	if r.store, err = rollup.New(c.catalog.Database(), rollup.Options{Log: d.log}); err != nil {
		return err
	}
	if r.recorder, err = record.NewRecorder(s.recorder(d.config.credentials.ipKey, nodeName(d.config.Server.Catalog.Node))); err != nil {
		return err
	}
	if r.spool, err = d.openSpool(ctx); err != nil {
		return err
	}
	c.record = r
	if r.archive, err = d.archiving(ctx, r.store); err != nil {
		return err
	}
	r.pipeline, err = record.NewPipeline(record.PipelineOptions{Recorder: r.recorder, Sink: r.store, Spool: r.spool, Log: d.log})
	return err
}

func (s *Record) recorder(key identity.Secret, node string) record.RecorderOptions {
	o := record.RecorderOptions{Sample: -1, Region: s.Region, Node: node}
	if s.SampleEvery > 0 {
		o.Sample = 1 / float64(s.SampleEvery)
	}
	switch s.IP {
	case truncateIP:
		o.Privacy = record.TruncateIP
	case hashIP:
		o.Privacy, o.HashKey = record.HashIP, []byte(key)
	}
	return o
}

// openSpool opens the spool. If no place was set for it, it may do without: another
// process may have the usual one.
func (d *Daemon) openSpool(ctx context.Context) (*record.Spool, error) {
	s := &d.config.Server.Record
	dir := s.Spool
	switch {
	case dir == keepNothing || d.config.Server.Database == inMemoryDatabase:
		return nil, nil
	case dir == "":
		if dir = StateDir(d.source.Environ); dir == "" {
			return nil, nil
		}
		dir = filepath.Join(dir, "spool")
	}
	spool, err := record.OpenSpool(record.SpoolOptions{Dir: dir, MaxBytes: int64(s.SpoolSize)})
	switch {
	case err == nil:
		return spool, nil
	case s.Spool != "":
		return nil, fmt.Errorf("server.record.spool: %w", err)
	}
	d.log.WarnContext(ctx, "there is no spool: while the database is away, events are kept in memory as far as they fit", "problem", err.Error())
	return nil, nil
}

// archiving returns what archives months that are old, or deletes them.
func (d *Daemon) archiving(ctx context.Context, store *rollup.Store) (func(context.Context) error, error) {
	s := &d.config.Server.Record
	switch s.Archive {
	case "":
		return nil, nil
	case archiveNone:
		return func(ctx context.Context) error {
			return archive.Discard(ctx, store, time.Now().Add(-time.Duration(s.Retention)))
		}, nil
	}
	a, err := d.config.OpenArchive(ctx, store, nil)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		report, err := a.Run(ctx)
		for _, m := range report.Months {
			d.log.InfoContext(ctx, "month archived", "month", m.Month.String(), "events", m.Events, "files", m.Parts)
		}
		if err == nil {
			_, err = a.Expire(ctx)
		}
		if errors.Is(err, archive.ErrBusy) {
			return nil // another node is at it
		}
		return err
	}, nil
}

// OpenArchive returns the archive that the settings name, of what a store holds.
func (c *Config) OpenArchive(ctx context.Context, store archive.Source, progress func(done, all int64, what string)) (*archive.Archive, error) {
	s := &c.Server.Record
	bucket, err := blob.Open(ctx, string(s.Archive), blob.Options{})
	if err != nil {
		return nil, fmt.Errorf("server.record.archive: %w", err)
	}
	keep := time.Duration(-1)
	if s.ArchiveYears > 0 {
		keep = years(s.ArchiveYears)
	}
	return archive.New(store, bucket, archive.Options{
		Retention: time.Duration(s.Retention), Keep: keep, Node: nodeName(c.Server.Catalog.Node), Progress: progress,
	})
}

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
