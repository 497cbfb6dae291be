package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/rollup"
)

// recordSource is the record of decisions: of a server, or in a database.
type recordSource struct {
	server *client
	store  *rollup.Store // if server is nil
}

// openRecord returns the record in a database. On SQLite its file may not be there yet, and
// reading must not create it.
func openRecord(k *catalog.Catalog) (*rollup.Store, error) {
	db := k.Database()
	if file := db.Record.File(); file != "" {
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			return nil, advice{fmt.Errorf("%s: the record of decisions does not exist yet", file), tryMigrate + ", or stint serve, to create it"}
		}
	}
	return rollup.New(db, rollup.Options{})
}

// rangeParameters returns the parameters of a query about a time range.
func rangeParameters(r query.Range, limit int, more ...string) url.Values {
	q := parameters(more...)
	for name, at := range map[string]time.Time{"from": r.From, "to": r.To} {
		if !at.IsZero() {
			q.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return q
}

func eventParameters(q record.EventQuery) url.Values {
	shadow := ""
	if q.Shadow != nil {
		shadow = strconv.FormatBool(*q.Shadow)
	}
	return rangeParameters(
		q.Range, q.Limit, "user", q.User, "tenant", q.Tenant, "key", q.Key, "ip", q.IP, "rule", q.Rule, "endpoint", q.Endpoint,
		"path", q.Path, "method", q.Method, "region", q.Region, "node", q.Node, "outcome", q.Outcome, "shadow", shadow,
	)
}

// find iterates over events, newest first, up to the limit of the query.
func (r recordSource) find(ctx context.Context, q record.EventQuery) iter.Seq2[admin.Event, error] {
	return func(yield func(admin.Event, error) bool) {
		left := q.Limit
		if r.server != nil {
			for e, err := range pages[admin.Event](ctx, r.server, "/events", "after", eventParameters(q)) {
				if left--; left < 0 || !yield(e, err) {
					return
				}
			}
			return
		}
		const page = 1000
		for left > 0 { // a page may be less than full
			q.Limit = min(left, page)
			events, after, err := r.store.Find(ctx, q)
			left -= len(events)
			for i := range events {
				if !yield(admin.NewEvent(&events[i]), nil) {
					return
				}
			}
			if err != nil {
				yield(admin.Event{}, err)
				return
			}
			if q.After = after; after == (record.Cursor{}) {
				return
			}
		}
	}
}

// follow shows events as they are recorded, until ctx is done.
func (r recordSource) follow(ctx context.Context, q record.EventQuery, show func(*admin.Event) error, note func(string)) error {
	query := eventParameters(q)
	for _, name := range []string{"from", "to", "limit"} {
		query.Del(name)
	}
	return r.server.stream(ctx, call{path: "/events/follow", query: query}, func(event string, data []byte) error {
		var skipped struct{ N int64 }
		var e admin.Event
		switch event {
		case "skipped":
			if json.Unmarshal(data, &skipped) == nil {
				note(fmt.Sprintf("%d more than can be shown here: stint events list shows them", skipped.N))
			}
		case "decision":
			if err := json.Unmarshal(data, &e); err != nil {
				return err
			}
			return show(&e)
		}
		return nil
	})
}

// export writes events to a file that other programs read.
func (r recordSource) export(ctx context.Context, q record.EventQuery, format string, w io.Writer) error {
	if r.server != nil {
		query := eventParameters(q)
		query.Set("format", strings.Replace(format, asJSON, "ndjson", 1))
		return r.server.copy(ctx, call{path: "/events/export", query: query}, w)
	}
	if format == asParquet {
		return advice{fmt.Errorf("-o %s: only a server can write it", format), "--server URL; or stint archive run, which writes whole months"}
	}
	return r.write(ctx, q, &terminal{out: w, format: format})
}

// write writes events in the format of the terminal.
func (r recordSource) write(ctx context.Context, q record.EventQuery, t *terminal) error {
	w := eventWriter{t: t}
	for e, err := range r.find(ctx, q) {
		if err != nil {
			return err
		}
		if err := w.row(&e); err != nil {
			return err
		}
	}
	return w.end()
}

// statistics returns numbers of the record as the admin API has them: from a server, or
// from the database and converted.
func statistics[T, S any](ctx context.Context, r recordSource, path string, query url.Values, find func(*rollup.Store) ([]S, error), convert func(S) T) ([]T, error) {
	if r.server != nil {
		return items[T](ctx, r.server, path, query)
	}
	found, err := find(r.store)
	all := make([]T, len(found))
	for i := range found {
		all[i] = convert(found[i])
	}
	return all, err
}

// eventHeader and eventFormat are for lines that are written one by one, so that the widths
// of columns are fixed.
var eventHeader = []any{"TIME", "OUTCOME", "RULE", "LIMIT", "SUBJECT", "METHOD", "PATH", "USED", "RETRY", "SETTLED"}

const eventFormat = "%-27s  %-12s  %-16s  %-12s  %-20s  %-7s  %-30s  %-9s  %-7s  %s\n"

func eventCells(r *admin.Event) []any {
	outcome, used, retry, subject := visible(r.Outcome), "-", "-", ""
	if r.Shadow {
		outcome += " (shadow)"
	}
	if r.Weight > 1 {
		outcome += fmt.Sprintf(" x%d", r.Weight)
	}
	if r.Limit != "" {
		used = fmt.Sprintf("%d/%d", r.Used, r.Max)
	}
	switch {
	case r.RetryAfter < 0:
		retry = "never"
	case r.RetryAfter > 0:
		retry = (time.Duration(r.RetryAfter) * time.Microsecond).Round(time.Millisecond).String()
	}
	for _, s := range []struct{ kind, id string }{{"user", r.User}, {"key", r.Key}, {"ip", r.IP}, {"tenant", r.Tenant}} {
		if s.id != "" {
			subject = s.kind + ":" + s.id
			break
		}
	}
	return []any{r.Time.Format("2006-01-02T15:04:05.000000Z"), outcome, visible(r.Rule), visible(r.Limit), visible(subject), visible(r.Method), visible(cmp.Or(r.Path, r.Endpoint)), used, retry, settledText(r.Settled)}
}

// settledText says what became of the reservation of an event: what was used of what was reserved, by rule.
func settledText(all []admin.Settlement) string {
	var texts []string
	for _, s := range all {
		text := fmt.Sprintf("%s %d/%d", visible(s.Rule), s.Used, s.Reserved)
		switch {
		case s.Cancelled:
			text += " cancelled"
		case s.GivenBack > 0:
			text += fmt.Sprintf(" back %d", s.GivenBack)
		case s.Overshoot > 0:
			text += fmt.Sprintf(" over %d", s.Overshoot)
		}
		if s.Estimated {
			text += " estimated"
		}
		if s.Shadow {
			text += " (shadow)"
		}
		texts = append(texts, text)
	}
	return cmp.Or(strings.Join(texts, ", "), "-")
}

// eventWriter writes events one by one. Only a table that is not live is kept in memory.
type eventWriter struct {
	t     *terminal
	live  bool   // each event is written at once
	table *table // nil before the first event
}

// begin writes the header before there are events.
func (w *eventWriter) begin() (err error) {
	switch {
	case w.t.format == asCSV:
		err = w.t.writeCSV([]admin.Event{})
	case w.t.format == asTable && w.live:
		_, err = fmt.Fprintf(w.t.out, eventFormat, eventHeader...)
	}
	return err
}

func (w *eventWriter) row(e *admin.Event) (err error) {
	switch {
	case w.t.format == asJSON:
		err = w.t.writeJSON(e, "")
	case w.t.format == asYAML:
		err = w.t.writeYAML(e)
	case w.t.format == asCSV:
		err = w.t.writeCSV([]*admin.Event{e})
	case w.live:
		_, err = fmt.Fprintf(w.t.out, eventFormat, eventCells(e)...)
	default:
		if w.table == nil {
			t := w.t.table()
			w.table = &t
			w.table.row(eventHeader...)
		}
		w.table.row(eventCells(e)...)
	}
	return err
}

// end writes what is left of a list of events.
func (w *eventWriter) end() error {
	switch {
	case w.table != nil:
		return w.table.Flush()
	case w.t.format == asTable:
		w.t.notes(noneRecorded)
	}
	return w.begin()
}

const noneRecorded = "nothing was recorded in this time range"
