package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/rollup"
)

// book is the record of decisions: that of a server, or that in a database.
type book interface {
	// find goes through events, the newest first, until there are as many as wanted.
	find(ctx context.Context, q record.EventQuery) iter.Seq2[recorded, error]
	// follow shows events as they come, until ctx ends.
	follow(ctx context.Context, q record.EventQuery, show func(*recorded) error, note func(string)) error
	top(ctx context.Context, q rollup.TopQuery) ([]admin.Refusals, error)
	series(ctx context.Context, q rollup.SeriesQuery) ([]admin.Series, error)
	violations(ctx context.Context, q rollup.ViolationQuery) ([]admin.Violation, error)
	clients(ctx context.Context, q rollup.DistinctQuery) (admin.Clients, error)
	// export writes events in a format of files.
	export(ctx context.Context, q record.EventQuery, format string, w io.Writer) error
}

// recorded is an event, in the words of the columns of the archive.
type recorded = admin.Event

// storeBook is the record in a database.
type storeBook struct{ *rollup.Store }

func (b storeBook) find(ctx context.Context, q record.EventQuery) iter.Seq2[recorded, error] {
	return func(yield func(recorded, error) bool) {
		const page = 1000
		for left := q.Limit; left > 0; { // a page may be less than full
			q.Limit = min(left, page)
			events, after, err := b.Find(ctx, q)
			left -= len(events)
			for i := range events {
				if !yield(admin.NewEvent(&events[i]), nil) {
					return
				}
			}
			if err != nil {
				yield(recorded{}, err)
				return
			}
			if q.After = after; after == (record.Cursor{}) {
				return
			}
		}
	}
}

// mostFollowed is how many events are shown at once, for others to keep up.
const mostFollowed = 10_000

// follow shows what there is, the oldest first, and then looks every second.
func (b storeBook) follow(ctx context.Context, q record.EventQuery, show func(*recorded) error, note func(string)) error {
	const (
		every = time.Second
		late  = 10 * time.Second // for how long after its time an event may come
	)
	seen := map[string]time.Time{} // of those that may be found again
	tick := time.NewTicker(every)
	defer tick.Stop()
	for wanted := q.Limit; ; wanted = mostFollowed {
		q.Limit = wanted + 1 // one more tells whether there are more
		var all []recorded
		var oldest time.Time // of those found
		found := 0
		for e, err := range b.find(ctx, q) {
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			if found++; found > wanted {
				break
			}
			oldest = e.Time
			if _, ok := seen[e.ID]; !ok {
				all = append(all, e)
			}
		}
		if found > wanted && len(all) == mostFollowed {
			note("there are more than can be shown here: stint events list has them all")
		}
		for _, e := range slices.Backward(all) {
			seen[e.ID] = e.Time
			if err := show(&e); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if found > wanted { // what is older was left out, and stays so
			q.From = oldest
		}
		if from := now().Add(-late); from.After(q.From) {
			q.From = from
		}
		for id, at := range seen {
			if at.Before(q.From) {
				delete(seen, id)
			}
		}
	}
}

func (b storeBook) top(ctx context.Context, q rollup.TopQuery) ([]admin.Refusals, error) {
	found, err := b.Top(ctx, q)
	all := []admin.Refusals{}
	for _, r := range found {
		all = append(all, admin.Refusals(r))
	}
	return all, err
}

func (b storeBook) series(ctx context.Context, q rollup.SeriesQuery) ([]admin.Series, error) {
	found, err := b.Series(ctx, q)
	all := []admin.Series{}
	for _, s := range found {
		x := admin.Series{Name: s.Name, Rest: s.Rest, Points: []admin.Point{}}
		for _, p := range s.Points {
			x.Points = append(x.Points, admin.Point{
				Start: p.Start, Total: p.Total, Events: p.Events, Cached: p.Cached,
				P50: p.P50.Microseconds(), P95: p.P95.Microseconds(), P99: p.P99.Microseconds(),
			})
		}
		all = append(all, x)
	}
	return all, err
}

func (b storeBook) violations(ctx context.Context, q rollup.ViolationQuery) ([]admin.Violation, error) {
	found, err := b.Violations(ctx, q)
	all := []admin.Violation{}
	for _, v := range found {
		all = append(all, admin.Violation(v))
	}
	return all, err
}

func (b storeBook) clients(ctx context.Context, q rollup.DistinctQuery) (admin.Clients, error) {
	n, exact, err := b.Distinct(ctx, q)
	return admin.Clients{By: q.By, Clients: n, Exact: exact}, err
}

func (b storeBook) export(ctx context.Context, q record.EventQuery, format string, w io.Writer) error {
	if format == asParquet {
		return advice{fmt.Errorf("-o %s: only a server writes it", format), "--server URL; or stint archive run, which writes whole months"}
	}
	s := eventSheet{t: &terminal{out: w}, as: format}
	for e, err := range b.find(ctx, q) {
		if err != nil {
			return err
		}
		if err := s.row(&e); err != nil {
			return err
		}
	}
	return s.end()
}

// serverBook is the record of a server.
type serverBook struct{ *client }

// parameters are those of a question about a time.
func parameters(r query.Range, limit int, more ...string) url.Values {
	q := url.Values{}
	set := func(name, value string) {
		if value != "" {
			q.Set(name, value)
		}
	}
	for name, at := range map[string]time.Time{"from": r.From, "to": r.To} {
		if !at.IsZero() {
			set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	if limit != 0 {
		set("limit", strconv.Itoa(limit))
	}
	for i := 0; i < len(more); i += 2 {
		set(more[i], more[i+1])
	}
	return q
}

func eventParameters(q record.EventQuery) url.Values {
	shadow := ""
	if q.Shadow != nil {
		shadow = strconv.FormatBool(*q.Shadow)
	}
	return parameters(
		q.Range, q.Limit, "user", q.User, "tenant", q.Tenant, "key", q.Key, "ip", q.IP, "rule", q.Rule, "endpoint", q.Endpoint,
		"method", q.Method, "region", q.Region, "node", q.Node, "outcome", q.Outcome, "shadow", shadow,
	)
}

func (b serverBook) find(ctx context.Context, q record.EventQuery) iter.Seq2[recorded, error] {
	left := q.Limit
	return func(yield func(recorded, error) bool) {
		for e, err := range pages[recorded](ctx, b.client, "/events", eventParameters(q), 1000) {
			if left--; left < 0 || !yield(e, err) {
				return
			}
		}
	}
}

func (b serverBook) follow(ctx context.Context, q record.EventQuery, show func(*recorded) error, note func(string)) error {
	query := eventParameters(q)
	for _, name := range []string{"from", "to", "limit"} {
		query.Del(name)
	}
	err := b.stream(ctx, call{path: "/events/follow", query: query}, func(event string, data []byte) error {
		var skipped struct{ N int64 }
		var e recorded
		switch event {
		case "skipped":
			if json.Unmarshal(data, &skipped) == nil {
				note(fmt.Sprintf("%d more came than can be shown: stint events list has them", skipped.N))
			}
		case "decision":
			if err := json.Unmarshal(data, &e); err != nil {
				return err
			}
			return show(&e)
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func ask[T any](ctx context.Context, b serverBook, path string, q url.Values) ([]T, error) {
	var answer struct {
		Items []T `json:"items"`
	}
	err := b.do(ctx, call{path: path, query: q, into: &answer})
	return append([]T{}, answer.Items...), err
}

func (b serverBook) top(ctx context.Context, q rollup.TopQuery) ([]admin.Refusals, error) {
	return ask[admin.Refusals](ctx, b, "/top", parameters(q.Range, q.Limit, "by", q.By, "rule", q.Rule))
}

func (b serverBook) series(ctx context.Context, q rollup.SeriesQuery) ([]admin.Series, error) {
	step := ""
	if q.Step > 0 {
		step = strconv.FormatInt(int64(q.Step/time.Second), 10)
	}
	return ask[admin.Series](ctx, b, "/series", parameters(
		q.Range, q.Limit, "step_seconds", step, "by", q.By, "rule", q.Rule, "tier", q.Tier, "endpoint", q.Endpoint, "region", q.Region, "outcome", q.Outcome))
}

func (b serverBook) violations(ctx context.Context, q rollup.ViolationQuery) ([]admin.Violation, error) {
	return ask[admin.Violation](ctx, b, "/violations", parameters(q.Range, q.Limit, "user", q.User, "rule", q.Rule))
}

func (b serverBook) clients(ctx context.Context, q rollup.DistinctQuery) (admin.Clients, error) {
	var c admin.Clients
	err := b.do(ctx, call{path: "/clients", query: parameters(q.Range, 0, "by", q.By, "rule", q.Rule), into: &c})
	return c, err
}

func (b serverBook) export(ctx context.Context, q record.EventQuery, format string, w io.Writer) error {
	query := eventParameters(q)
	if format == asJSON {
		format = "ndjson"
	}
	query.Set("format", format)
	return b.copy(ctx, call{path: "/events/export", query: query}, w)
}

// pages goes through a list of a server, page by page.
func pages[T any](ctx context.Context, a *client, path string, query url.Values, page int) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		if n, err := strconv.Atoi(query.Get("limit")); err != nil || n > page {
			query.Set("limit", strconv.Itoa(page))
		}
		for {
			var answer struct {
				Items []T    `json:"items"`
				Next  string `json:"next"`
			}
			if err := a.do(ctx, call{path: path, query: query, into: &answer}); err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range answer.Items {
				if !yield(item, nil) {
					return
				}
			}
			if answer.Next == "" {
				return
			}
			query.Set("after", answer.Next)
		}
	}
}
