package admin

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/archive"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/rollup"
)

// Event is a recorded decision. Its fields have the names of the columns of the archive.
type Event struct {
	ID         string    `json:"decision_id" doc:"The id of the decision, as in logs and traces." example:"0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00"`
	Time       time.Time `json:"time" doc:"When the decision was made." example:"2026-01-31T12:00:00.123456Z"`
	Outcome    string    `json:"outcome" enum:"allowed,throttled,exempt,denied,banned,blocked,unauthorized,unavailable" doc:"The outcome." example:"denied"`
	Shadow     bool      `json:"shadow" doc:"True if what is only tried out, such as a log_only rule or a candidate, would have decided otherwise. If the request passed, that would have denied it, and rule, limit and the other fields are about that; if it was denied, it would have passed." example:"false"`
	Cached     bool      `json:"cached" doc:"True if the decision is based on a remembered denial, not on a count." example:"false"`
	User       string    `json:"user_id" doc:"The user. Empty, if unknown." example:"alice"`
	Tenant     string    `json:"tenant_id" doc:"The tenant. Empty, if unknown." example:"acme"`
	Key        string    `json:"key_id" doc:"The id of the API key. Empty, if unknown." example:"4mqyx7bn2kcd6wvr"`
	Tier       string    `json:"tier" doc:"The tier." example:"free"`
	IP         string    `json:"ip" doc:"The address of the client, truncated or hashed as configured." example:"192.0.2.1"`
	Rule       string    `json:"rule" doc:"The rule that decided." example:"search"`
	Limit      string    `json:"limit_name" doc:"The limit of the rule with the smallest share left." example:"per-minute"`
	Endpoint   string    `json:"endpoint" doc:"The path pattern that matched." example:"/v1/search/{index}"`
	Method     string    `json:"method" doc:"The method." example:"GET"`
	Path       string    `json:"path" doc:"The path of the request, as rules match it, or what the settings keep of it: {name} stands for a part that is not recorded, and /** at the end for more of them. Empty, if it is not recorded." example:"/v1/search/books"`
	Used       int64     `json:"count" doc:"The units used of the limit." example:"100"`
	Max        int64     `json:"limit_value" doc:"The size of the limit." example:"100"`
	Cost       int64     `json:"cost" doc:"The cost of the request." example:"1"`
	Status     int       `json:"status" doc:"The HTTP status of the response, if the request did not pass." example:"429"`
	RetryAfter int64     `json:"retry_after_us" doc:"Microseconds until the request could pass; -1: never." example:"12000000"`
	Waited     int64     `json:"waited_us" doc:"Microseconds that the request was delayed." example:"0"`
	Latency    int64     `json:"latency_us" doc:"Microseconds that the decision took, without the delay." example:"80"`
	Region     string    `json:"region" doc:"The region of the node." example:"eu-west-1"`
	Node       string    `json:"node" doc:"The node." example:"node-7"`
	Weight     int64     `json:"weight" doc:"How many decisions the event represents. Those that passed are sampled; of many that are alike, in one second, the last event represents all that have none of their own." example:"1"`
	Source     string    `json:"source" enum:",key,jwt,header,ip,given" doc:"How the client was identified: by an API key, a token, a header of a trusted proxy or its address only, or given by the program that asked. Empty, if that is not known." example:"key"`
	Unaccepted string    `json:"unaccepted" doc:"Why its credentials were not accepted. Empty, if they were, or there were none, or that is not known." example:""`
	// Settled is missing, not empty, if there is nothing to say.
	Settled []Settlement `json:"settled,omitempty" nullable:"false" doc:"What became of what the request had reserved, by rule. Missing, if it has reserved nothing, or that is not settled, or was settled in the last seconds."`
}

// NewEvent converts a recorded event.
func NewEvent(e *record.Event) Event {
	out := Event{
		ID: e.ID.String(), Time: e.At, Outcome: e.Outcome.String(), Shadow: e.Shadow, Cached: e.Cached, User: e.User, Tenant: e.Tenant, Key: e.Key, Tier: e.Tier, IP: e.IP,
		Rule: e.Rule, Limit: e.Limit, Endpoint: e.Endpoint, Method: e.Method, Path: e.Path, Used: e.Used, Max: e.Max, Cost: e.Cost, Status: e.Status,
		RetryAfter: e.RetryAfter.Microseconds(), Waited: e.Waited.Microseconds(), Latency: e.Latency.Microseconds(), Region: e.Region, Node: e.Node, Weight: e.Weight,
		Source: e.Source, Unaccepted: e.Unaccepted,
	}
	if e.RetryAfter == stint.Never {
		out.RetryAfter = -1
	}
	if len(e.Settled) > 0 {
		out.Settled = converted(e.Settled, newSettlement)
	}
	return out
}

// EventList is a page of events.
type EventList struct {
	Items []Event `json:"items" nullable:"false" doc:"The events, newest first."`
	Next  string  `json:"next" doc:"The value of after for the next page. Empty on the last page." example:"1769860800123456.0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00"`
}

// Series is decisions over time.
type Series struct {
	Name   string  `json:"name" doc:"The outcome, rule, tier, endpoint or region." example:"denied"`
	Rest   bool    `json:"rest" doc:"True for the sum of all that are not listed. It has no name." example:"false"`
	Points []Point `json:"points" nullable:"false" doc:"The points, in order. All series have points at the same times."`
	Whole  Point   `json:"whole" doc:"All points together."`
}

// Point is a point of a series.
type Point struct {
	Start  time.Time `json:"start" doc:"When the point starts. It ends where the next starts." example:"2026-01-31T12:00:00Z"`
	Total  int64     `json:"total" doc:"The number of decisions." example:"1200"`
	Events int64     `json:"events" doc:"The number of events in the record." example:"40"`
	Cached int64     `json:"cached" doc:"Decisions that are based on a remembered denial." example:"3"`
	P50    int64     `json:"p50_us" doc:"Median latency, in microseconds." example:"60"`
	P95    int64     `json:"p95_us" doc:"95th percentile of latency, in microseconds." example:"180"`
	P99    int64     `json:"p99_us" doc:"99th percentile of latency, in microseconds." example:"900"`
}

func newPoint(p *rollup.Point) Point {
	return Point{p.Start, p.Total, p.Events, p.Cached, p.P50.Microseconds(), p.P95.Microseconds(), p.P99.Microseconds()}
}

// SeriesList is a list of series.
type SeriesList struct {
	From  time.Time `json:"from" doc:"The start of the time range." example:"2026-01-31T00:00:00Z"`
	To    time.Time `json:"to" doc:"The end of the time range." example:"2026-02-01T00:00:00Z"`
	Step  float64   `json:"step_seconds" doc:"Seconds between points; 0 if there are no series and no step was given." example:"300"`
	Items []Series  `json:"items" nullable:"false" doc:"The series, that with the most decisions first, and the sum of the rest last."`
}

// Refusals counts denied requests.
type Refusals struct {
	Name    string `json:"name" doc:"The client, path, rule or endpoint." example:"alice"`
	Denied  int64  `json:"denied" doc:"Requests denied by a limit." example:"120"`
	Refused int64  `json:"refused" doc:"Requests that did not pass, for any reason." example:"125"`
}

// Top lists who or what was denied most often.
type Top struct {
	Items []Refusals `json:"items" nullable:"false" doc:"Those with the most denied requests, most first."`
}

// Violation is how often a rule denied requests of a user.
type Violation struct {
	User   string `json:"user" doc:"The user." example:"alice"`
	Rule   string `json:"rule" doc:"The rule." example:"search"`
	Denied int64  `json:"denied" doc:"Requests of the user that the rule denied." example:"120"`
}

// ViolationList is a list of violations.
type ViolationList struct {
	Items []Violation `json:"items" nullable:"false" doc:"The violations, most frequent first."`
}

// Clients is the number of clients with requests denied by a limit.
type Clients struct {
	By      string `json:"by" enum:"user,tenant,key,ip" doc:"The kind of client." example:"user"`
	Clients int64  `json:"clients" doc:"The number of different clients." example:"17"`
	Exact   bool   `json:"exact" doc:"Whether the number is exact, as it is up to 16,384; a larger one is an estimate, mostly within 1 %." example:"true"`
}

// During is a time range.
type During struct {
	From time.Time `query:"from" doc:"The start of the time range. Default: a day before to." example:"2026-01-31T00:00:00Z"`
	To   time.Time `query:"to" doc:"The end of the time range. Default: now. At most 366 days after from." example:"2026-02-01T00:00:00Z"`
}

// at returns the time range with its defaults.
func (d During) at(now time.Time) query.Range {
	if d.To.IsZero() {
		d.To = now
	}
	if d.From.IsZero() {
		d.From = d.To.Add(-24 * time.Hour)
	}
	return query.Range{From: d.From.UTC(), To: d.To.UTC()}
}

// EventFilter selects events that match all fields that are not empty.
type EventFilter struct {
	User     string `query:"user" maxLength:"512" doc:"Only for this user." example:"alice"`
	Tenant   string `query:"tenant" maxLength:"512" doc:"Only for this tenant." example:"acme"`
	Key      string `query:"key" maxLength:"512" doc:"Only for the API key with this id." example:"4mqyx7bn2kcd6wvr"`
	IP       string `query:"ip" maxLength:"512" doc:"Only for this address, as it is recorded." example:"192.0.2.1"`
	Rule     string `query:"rule" maxLength:"512" doc:"Only for this rule." example:"search"`
	Endpoint string `query:"endpoint" maxLength:"512" doc:"Only for this endpoint: the path pattern of a rule." example:"/v1/search/{index}"`
	Path     string `query:"path" maxLength:"512" doc:"Only for paths that begin like this, as they are recorded." example:"/v1/search"`
	Method   string `query:"method" maxLength:"512" doc:"Only for this method." example:"GET"`
	Region   string `query:"region" maxLength:"512" doc:"Only for this region." example:"eu-west-1"`
	Node     string `query:"node" maxLength:"512" doc:"Only for this node." example:"node-7"`
	Outcome  string `query:"outcome" enum:"allowed,throttled,exempt,denied,banned,blocked,unauthorized,unavailable" doc:"Only for this outcome." example:"denied"`
	Shadow   string `query:"shadow" enum:"true,false" doc:"Only those that what is tried out, such as a log_only rule, would have decided otherwise, or only the others." example:"true"`
}

func (f *EventFilter) query() record.EventQuery {
	q := record.EventQuery{
		User: f.User, Tenant: f.Tenant, Key: f.Key, IP: f.IP, Rule: f.Rule, Endpoint: f.Endpoint, Method: f.Method, Path: f.Path,
		Region: f.Region, Node: f.Node, Outcome: f.Outcome, Shadow: truth(f.Shadow),
	}
	if ip, err := netip.ParseAddr(q.IP); err == nil {
		q.IP = ip.Unmap().WithZone("").String() // as it is recorded
	}
	return q
}

// truth returns the value of a parameter, or nil if it is missing.
func truth(text string) *bool {
	if text == "" {
		return nil
	}
	is := text == "true"
	return &is
}

// record returns the record, or an error if there is none.
func (a *API) record() (*rollup.Store, error) {
	if a.options.Record == nil {
		return nil, fail(http.StatusConflict, "decisions are not recorded: set server.database")
	}
	return a.options.Record, nil
}

// ask adds an operation that queries the record.
func ask[I, O any](a *API, scoped bool, id, path, summary, description string, do func(ctx context.Context, s *rollup.Store, in *I) (O, error)) {
	addQuery(a, operation{
		ID: id, Method: http.MethodGet, Path: path, Tag: tagRecord, Summary: summary, Description: description,
		Problems: []int{http.StatusConflict}, Timeout: 30 * time.Second,
		Scoped: scoped,
	}, catalog.Viewer, func(ctx context.Context, in *I) (out O, err error) {
		s, err := a.record()
		if err == nil {
			out, err = do(ctx, s, in)
		}
		return out, asParameters(err)
	})
}

// rolled describes numbers that come from roll-ups.
const rolled = " Numbers cover whole hours, up to the last complete minute. They remain when events are archived."

func (a *API) addRecord() {
	type eventsInput struct {
		During
		EventFilter
		Limit int    `query:"limit" default:"100" minimum:"1" maximum:"1000" doc:"The maximum number of results." example:"100"`
		After string `query:"after" doc:"The next of the previous page." example:"1769860800123456.0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00"`
	}
	ask(a, true, "listEvents", "/events", "List events",
		"Returns recorded decisions, newest first: all that denied or delayed a request or would have, and a sample of the others. Archived months are not included.",
		func(ctx context.Context, s *rollup.Store, in *eventsInput) (out EventList, err error) {
			if err := narrow(ctx, &in.Tenant); err != nil {
				return out, err
			}
			q := in.query()
			q.Range, q.Limit = in.at(a.now()), in.Limit
			if q.After, err = record.ParseCursor(in.After); err != nil {
				return out, err
			}
			events, next, err := s.Find(ctx, q)
			return EventList{converted(events, NewEvent), next.String()}, err
		})
	a.addExport()
	a.addConsumption()

	type seriesInput struct {
		During
		Step     float64 `query:"step_seconds" minimum:"0" maximum:"31622400" doc:"Seconds between points: whole minutes, hours or days; at most 500 points. Default: chosen by the length of the time range." example:"300"`
		By       string  `query:"by" enum:"outcome,rule,tier,endpoint,region" doc:"What to group by. Default: one series for everything." example:"outcome"`
		Rule     string  `query:"rule" maxLength:"512" doc:"Only for this rule." example:"search"`
		Tier     string  `query:"tier" maxLength:"512" doc:"Only for this tier." example:"free"`
		Endpoint string  `query:"endpoint" maxLength:"512" doc:"Only for this endpoint." example:"/v1/search/{index}"`
		Region   string  `query:"region" maxLength:"512" doc:"Only for this region." example:"eu-west-1"`
		Outcome  string  `query:"outcome" enum:"allowed,throttled,exempt,denied,banned,blocked,unauthorized,unavailable" doc:"Only for this outcome." example:"denied"`
		Shadow   string  `query:"shadow" enum:"true,false" doc:"Only those that what is tried out, such as a log_only rule, would have decided otherwise, or only the others." example:"false"`
		Limit    int     `query:"limit" default:"20" minimum:"1" maximum:"50" doc:"The maximum number of series; the rest are added up in one." example:"20"`
	}
	ask(a, false, "getSeries", "/series", "Count decisions over time",
		"Returns the number of decisions over time, in total or by outcome, rule, tier, endpoint or region, and how long they took. Numbers cover complete minutes, and all decisions, not only those that were sampled.",
		func(ctx context.Context, s *rollup.Store, in *seriesInput) (out SeriesList, err error) {
			q := rollup.SeriesQuery{
				Range: in.at(a.now()), Step: time.Duration(in.Step * float64(time.Second)), By: in.By, Rule: in.Rule, Tier: in.Tier,
				Endpoint: in.Endpoint, Region: in.Region, Outcome: in.Outcome, Shadow: truth(in.Shadow), Limit: in.Limit,
			}
			all, err := s.Series(ctx, q)
			out = SeriesList{From: q.From, To: q.To, Step: in.Step, Items: make([]Series, len(all))}
			for i, one := range all {
				points := converted(one.Points, newPoint)
				out.Items[i] = Series{one.Name, one.Rest, points, newPoint(&one.Whole)}
				if len(points) > 1 {
					out.Step = points[1].Start.Sub(points[0].Start).Seconds()
				}
			}
			return out, steps(err)
		})

	type topInput struct {
		During
		By    string `query:"by" default:"user" enum:"user,tenant,key,ip,path,rule,endpoint" doc:"What to rank." example:"user"`
		Rule  string `query:"rule" maxLength:"512" doc:"Only for this rule." example:"search"`
		Limit int    `query:"limit" default:"10" minimum:"1" maximum:"1000" doc:"The maximum number of results." example:"10"`
	}
	ask(a, false, "getTop", "/top", "Rank clients, paths, rules or endpoints",
		"Returns the users, tenants, API keys, addresses, paths, rules or endpoints with the most denied requests. Of paths, the first 100 of a minute and 1,000 of an hour are counted."+rolled,
		func(ctx context.Context, s *rollup.Store, in *topInput) (Top, error) {
			all, err := s.Top(ctx, rollup.TopQuery{Range: in.at(a.now()), By: in.By, Rule: in.Rule, Limit: in.Limit})
			return Top{converted(all, func(r *rollup.Refusals) Refusals { return Refusals(*r) })}, err
		})

	type violationsInput struct {
		During
		User  string `query:"user" maxLength:"512" doc:"Only for this user." example:"alice"`
		Rule  string `query:"rule" maxLength:"512" doc:"Only for this rule." example:"search"`
		Limit int    `query:"limit" default:"100" minimum:"1" maximum:"1000" doc:"The maximum number of results." example:"100"`
	}
	ask(a, true, "listViolations", "/violations", "List violations", "Returns how often each rule denied requests of each user."+rolled,
		func(ctx context.Context, s *rollup.Store, in *violationsInput) (ViolationList, error) {
			if p := personOf(ctx); p.scoped() { // the numbers have users, and no tenants
				_, err := users.mine(ctx, a, in.User)
				if errors.As(err, new(*catalog.NotFoundError)) {
					err = fail(http.StatusForbidden, "user: "+strict.Quote(in.User)+": want a user of "+tenantsOf(&p))
				}
				if err != nil {
					return ViolationList{}, err
				}
			}
			all, err := s.Violations(ctx, rollup.ViolationQuery{Range: in.at(a.now()), User: in.User, Rule: in.Rule, Limit: in.Limit})
			return ViolationList{converted(all, func(v *rollup.Violation) Violation { return Violation(*v) })}, err
		})

	type clientsInput struct {
		During
		By   string `query:"by" default:"user" enum:"user,tenant,key,ip" doc:"The kind of client." example:"user"`
		Rule string `query:"rule" maxLength:"512" doc:"Only for this rule." example:"search"`
	}
	ask(a, false, "countClients", "/clients", "Count limited clients", "Returns how many different users, tenants, API keys or addresses had requests denied by a limit."+rolled,
		func(ctx context.Context, s *rollup.Store, in *clientsInput) (Clients, error) {
			n, exact, err := s.Distinct(ctx, rollup.DistinctQuery{Range: in.at(a.now()), By: in.By, Rule: in.Rule})
			return Clients{in.By, n, exact}, err
		})
}

// steps gives the step in problems the name of its parameter.
func steps(err error) error {
	var problems strict.Problems
	if errors.As(err, &problems) {
		for i := range problems {
			if problems[i].Path == "step" {
				problems[i].Path = "step_seconds"
			}
		}
	}
	return err
}

// find returns pages of events, newest first, up to a number of events.
func find(ctx context.Context, s *rollup.Store, q record.EventQuery, limit int) iter.Seq2[[]record.Event, error] {
	const page = 1000
	return func(yield func([]record.Event, error) bool) {
		for left := limit; left > 0; { // a page may be shorter than its limit
			q.Limit = min(left, page)
			events, after, err := s.Find(ctx, q)
			left -= len(events)
			if !yield(events, err) || err != nil || after == (record.Cursor{}) {
				return
			}
			q.After = after
		}
	}
}

// eventWriter writes events in a format.
type eventWriter interface {
	Write(e *record.Event) error
	Close() error
}

// formats are what events can be exported as.
var formats = map[string]struct {
	contentType string
	writer      func(io.Writer) eventWriter
}{
	"csv":     {"text/csv; charset=utf-8; header=present", newCSV},
	"ndjson":  {"application/x-ndjson", newNDJSON},
	"parquet": {"application/vnd.apache.parquet", func(w io.Writer) eventWriter { return archive.NewWriter(w) }},
}

func (a *API) addExport() {
	type exportInput struct {
		During
		EventFilter
		Format string `query:"format" default:"csv" enum:"csv,parquet,ndjson" doc:"The format of the file." example:"csv"`
		Limit  int    `query:"limit" default:"100000" minimum:"1" maximum:"1000000" doc:"The maximum number of events; the newest are returned." example:"100000"`
	}
	add(a, operation{
		ID: "exportEvents", Method: http.MethodGet, Path: "/events/export", Tag: tagRecord, Scoped: true,
		Summary: "Export events",
		Description: "Returns all events that GET /events lists as a file: CSV with a header line, Parquet as in the archive, or one JSON object per line. " +
			"In CSV, a text that a spreadsheet would read as a formula starts with an apostrophe, and settled is as in JSON. If the connection breaks, the file is incomplete.",
		Problems: []int{http.StatusConflict},
		Answer:   "The file.",
		Produces: []content{
			{"text/csv", reflect.TypeFor[[]byte](), "The file."},
			{"application/x-ndjson", reflect.TypeFor[[]byte](), "The file."},
			{"application/vnd.apache.parquet", reflect.TypeFor[[]byte](), "The file."},
		},
	}, catalog.Viewer, func(ctx context.Context, in *exportInput) (*streamed, error) {
		s, err := a.record()
		if err != nil {
			return nil, err
		}
		if err := narrow(ctx, &in.Tenant); err != nil {
			return nil, err
		}
		leave, ok := occupy(&a.streams.exports, maxExports)
		if !ok {
			return nil, fail(http.StatusServiceUnavailable, "there are "+strconv.Itoa(maxExports)+" exports running, which is the maximum").with("Retry-After", "5")
		}
		q := in.query()
		q.Range = in.at(a.now())
		// Errors in the query are reported before the response starts.
		next, stop := iter.Pull2(find(ctx, s, q, in.Limit))
		first, err, _ := next()
		if err != nil {
			stop()
			leave()
			return nil, asParameters(err)
		}
		format := formats[in.Format]
		return &streamed{func() {
			defer leave()
			defer stop()
			out := newSender(ctx)
			defer out.end()
			const stamp = "20060102T150405Z"
			out.w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="stint-events_%s_%s.%s"`, q.From.Format(stamp), q.To.Format(stamp), in.Format))
			if out.begin(format.contentType); out.Method == http.MethodHead {
				return
			}
			if err := export(out, format.writer, first, next); err != nil {
				if ctx.Err() == nil && out.err == nil {
					a.log.LogAttrs(ctx, slog.LevelError, "admin: export failed", slog.Any("error", err))
				}
				panic(http.ErrAbortHandler) // or the client would take a part for the whole
			}
		}}, nil
	})
}

// export writes pages of events.
func export(out *sender, format func(io.Writer) eventWriter, page []record.Event, next func() ([]record.Event, error, bool)) error {
	buffer := bufio.NewWriterSize(out, 64<<10)
	w := format(buffer)
	for more := true; more; {
		for i := range page {
			if err := w.Write(&page[i]); err != nil {
				return err
			}
		}
		var err error
		if page, err, more = next(); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return buffer.Flush()
}

// ndjson writes an object per line.
type ndjson struct{ *json.Encoder }

func newNDJSON(w io.Writer) eventWriter {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return ndjson{e}
}

func (w ndjson) Write(e *record.Event) error { return w.Encode(NewEvent(e)) }
func (ndjson) Close() error                  { return nil }

// csvWriter writes the fields of structs of one type, with their JSON names as the header.
type csvWriter struct {
	*csv.Writer
	row []string
	err error
}

func newCSVOf[T any](w io.Writer) *csvWriter {
	out := &csvWriter{Writer: csv.NewWriter(w)}
	out.UseCRLF = true // as in RFC 4180
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out.row = append(out.row, name)
	}
	out.err = out.Writer.Write(out.row)
	return out
}

func newCSV(w io.Writer) eventWriter { return newCSVOf[Event](w) }

// Write implements eventWriter.
func (w *csvWriter) Write(e *record.Event) error { return w.fields(NewEvent(e)) }

// fields writes the fields of a struct.
func (w *csvWriter) fields(of any) error {
	if w.err != nil {
		return w.err
	}
	v := reflect.ValueOf(of)
	for i := range w.row {
		switch x := v.Field(i).Interface().(type) {
		case string:
			w.row[i] = harmless(x)
		case time.Time:
			w.row[i] = x.Format(time.RFC3339Nano)
		case []Settlement:
			w.row[i] = settledText(x)
		default:
			w.row[i] = fmt.Sprint(x)
		}
	}
	return w.Writer.Write(w.row)
}

// Close implements eventWriter.
func (w *csvWriter) Close() error {
	w.Flush()
	return errors.Join(w.err, w.Error())
}

// harmless returns a text that a spreadsheet does not read as a formula.
func harmless(text string) string {
	if text != "" && strings.IndexByte("=+-@\t\r", text[0]) >= 0 {
		return "'" + text
	}
	return text
}
