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
	"github.com/stintdev/stint/internal/audit"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

// Event is a decision of the record, in the words of the columns of the archive.
type Event struct {
	ID         string    `json:"decision_id" doc:"The id of the decision: that of its log lines and traces." example:"0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00"`
	Time       time.Time `json:"time" doc:"When it was made." example:"2026-01-31T12:00:00.123456Z"`
	Outcome    string    `json:"outcome" enum:"allowed,throttled,exempt,denied,banned,blocked,unauthorized,unavailable" doc:"What became of the request." example:"denied"`
	Shadow     bool      `json:"shadow" doc:"The request passed, and a rule that is only tried out would have refused it: rule, limit and the rest are about that." example:"false"`
	Cached     bool      `json:"cached" doc:"It rests on what was remembered, not on a count." example:"false"`
	User       string    `json:"user_id" doc:"Who has asked; empty if that is not known, as with the next three." example:"alice"`
	Tenant     string    `json:"tenant_id" doc:"Whose user that is." example:"acme"`
	Key        string    `json:"key_id" doc:"The id of the API key." example:"4mqyx7bn2kcd6wvr"`
	Tier       string    `json:"tier" doc:"The tier." example:"free"`
	IP         string    `json:"ip" doc:"The address, or as much of it, or its hash, as the settings say." example:"192.0.2.1"`
	Rule       string    `json:"rule" doc:"The rule that decided." example:"search"`
	Limit      string    `json:"limit_name" doc:"Its limit that matters most." example:"per-minute"`
	Endpoint   string    `json:"endpoint" doc:"The path of the rule that matched." example:"/v1/search/{index}"`
	Method     string    `json:"method" doc:"The method, as rules count it." example:"GET"`
	Used       int64     `json:"count" doc:"How much of the limit is used." example:"100"`
	Max        int64     `json:"limit_value" doc:"How much there is." example:"100"`
	Cost       int64     `json:"cost" doc:"What the request costs." example:"1"`
	Status     int       `json:"status" doc:"The HTTP status of a refusal." example:"429"`
	RetryAfter int64     `json:"retry_after_us" doc:"How long until the request could pass, in microseconds; -1: never." example:"12000000"`
	Waited     int64     `json:"waited_us" doc:"How long it was held." example:"0"`
	Latency    int64     `json:"latency_us" doc:"How long the decision took, without that." example:"80"`
	Region     string    `json:"region" doc:"The region that decided." example:"eu-west-1"`
	Node       string    `json:"node" doc:"The node that decided." example:"node-7"`
	Weight     int64     `json:"weight" doc:"How many decisions it stands for: of those that passed there is a sample." example:"1"`
}

// NewEvent returns an event as the API has it.
func NewEvent(e *audit.Event) Event {
	out := Event{
		ID: e.ID.String(), Time: e.At, Outcome: e.Outcome.String(), Shadow: e.Shadow, Cached: e.Cached, User: e.User, Tenant: e.Tenant, Key: e.Key, Tier: e.Tier, IP: e.IP,
		Rule: e.Rule, Limit: e.Limit, Endpoint: e.Endpoint, Method: e.Method, Used: e.Used, Max: e.Max, Cost: e.Cost, Status: e.Status,
		RetryAfter: e.RetryAfter.Microseconds(), Waited: e.Waited.Microseconds(), Latency: e.Latency.Microseconds(), Region: e.Region, Node: e.Node, Weight: e.Weight,
	}
	if e.RetryAfter == stint.Never {
		out.RetryAfter = -1
	}
	return out
}

// EventList is some events.
type EventList struct {
	Items []Event `json:"items" nullable:"false" doc:"The events, newest first."`
	Next  string  `json:"next" doc:"What to give as after for those that come next; empty: there are none." example:"1769860800123456.0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00"`
}

// Series is how numbers have changed.
type Series struct {
	Name   string  `json:"name" doc:"What it is about: an outcome, a rule, a tier, an endpoint or a region." example:"denied"`
	Rest   bool    `json:"rest" doc:"It is all that found no place in the others, and has no name." example:"false"`
	Points []Point `json:"points" nullable:"false" doc:"The numbers, in the order of time. Those of all series lie at the same times."`
}

// Point is numbers of a time.
type Point struct {
	Start  time.Time `json:"start" doc:"When the time begins. It ends where the next begins." example:"2026-01-31T12:00:00Z"`
	Total  int64     `json:"total" doc:"How many decisions there were." example:"1200"`
	Events int64     `json:"events" doc:"Of how many the record has an event." example:"40"`
	Cached int64     `json:"cached" doc:"How many rest on what was remembered." example:"3"`
	P50    int64     `json:"p50_us" doc:"What half of the decisions took at most, in microseconds." example:"60"`
	P95    int64     `json:"p95_us" doc:"What 95 in 100 took at most." example:"180"`
	P99    int64     `json:"p99_us" doc:"What 99 in 100 took at most." example:"900"`
}

// SeriesList is some series, and what they are about.
type SeriesList struct {
	From  time.Time `json:"from" doc:"From when they are." example:"2026-01-31T00:00:00Z"`
	To    time.Time `json:"to" doc:"Until when they are." example:"2026-02-01T00:00:00Z"`
	Step  float64   `json:"step_seconds" doc:"The time between points; 0 if there is no series, and none was given." example:"300"`
	Items []Series  `json:"items" nullable:"false" doc:"The series, that with most decisions first, and the rest last."`
}

// Refusals are how many decisions were refused.
type Refusals struct {
	Name    string `json:"name" doc:"Of whom or of what." example:"alice"`
	Denied  int64  `json:"denied" doc:"How many a limit has refused." example:"120"`
	Refused int64  `json:"refused" doc:"How many were refused for whatever reason." example:"125"`
}

// Top is who or what was refused most.
type Top struct {
	Items []Refusals `json:"items" nullable:"false" doc:"Those that were denied most, the first first."`
}

// Violation is how often a user was denied by a rule.
type Violation struct {
	User   string `json:"user" doc:"The user." example:"alice"`
	Rule   string `json:"rule" doc:"The rule." example:"search"`
	Denied int64  `json:"denied" doc:"How many requests of the user it has denied." example:"120"`
}

// ViolationList is who was denied by what.
type ViolationList struct {
	Items []Violation `json:"items" nullable:"false" doc:"The most frequent first."`
}

// Clients is how many there were that a limit has denied something.
type Clients struct {
	By      string `json:"by" enum:"user,tenant,key,ip" doc:"Of which kind." example:"user"`
	Clients int64  `json:"clients" doc:"How many different ones." example:"17"`
	Exact   bool   `json:"exact" doc:"It is their number, as it always is up to 16,384 of them; of more it is an estimate, mostly to within 1 in 100." example:"true"`
}

// During is the time that a question is about.
type During struct {
	From time.Time `query:"from" doc:"From when on. Default: a day before to." example:"2026-01-31T00:00:00Z"`
	To   time.Time `query:"to" doc:"Before when. Default: now. At most 366 days after from." example:"2026-02-01T00:00:00Z"`
}

// at returns the time, of which to is known.
func (d During) at(now time.Time) audit.Range {
	if d.To.IsZero() {
		d.To = now
	}
	if d.From.IsZero() {
		d.From = d.To.Add(-24 * time.Hour)
	}
	return audit.Range{From: d.From.UTC(), To: d.To.UTC()}
}

// EventFilter says which events are wanted: those that have all that is not empty.
type EventFilter struct {
	User     string `query:"user" maxLength:"512" doc:"Only of this user." example:"alice"`
	Tenant   string `query:"tenant" maxLength:"512" doc:"Only of this tenant." example:"acme"`
	Key      string `query:"key" maxLength:"512" doc:"Only of the API key with this id." example:"4mqyx7bn2kcd6wvr"`
	IP       string `query:"ip" maxLength:"512" doc:"Only of this address, in the form in which the record has it." example:"192.0.2.1"`
	Rule     string `query:"rule" maxLength:"512" doc:"Only by this rule." example:"search"`
	Endpoint string `query:"endpoint" maxLength:"512" doc:"Only at this endpoint: the path of a rule." example:"/v1/search/{index}"`
	Method   string `query:"method" maxLength:"512" doc:"Only with this method." example:"GET"`
	Region   string `query:"region" maxLength:"512" doc:"Only of this region." example:"eu-west-1"`
	Node     string `query:"node" maxLength:"512" doc:"Only of this node." example:"node-7"`
	Outcome  string `query:"outcome" enum:"allowed,throttled,exempt,denied,banned,blocked,unauthorized,unavailable" doc:"Only with this outcome." example:"denied"`
	Shadow   string `query:"shadow" enum:"true,false" doc:"Only those that a rule that is only tried out would have refused, or none of them." example:"true"`
}

func (f *EventFilter) query() audit.EventQuery {
	q := audit.EventQuery{
		User: f.User, Tenant: f.Tenant, Key: f.Key, IP: f.IP, Rule: f.Rule, Endpoint: f.Endpoint, Method: f.Method,
		Region: f.Region, Node: f.Node, Outcome: f.Outcome, Shadow: truth(f.Shadow),
	}
	if ip, err := netip.ParseAddr(q.IP); err == nil {
		q.IP = ip.Unmap().WithZone("").String() // as it is recorded
	}
	return q
}

// truth returns what a parameter says, or nil if it says nothing.
func truth(text string) *bool {
	if text == "" {
		return nil
	}
	is := text == "true"
	return &is
}

// record returns the record, or that there is none.
func (a *API) record() (*audit.Store, error) {
	if a.options.Record == nil {
		return nil, fail(http.StatusConflict, "there is no record: set server.database")
	}
	return a.options.Record, nil
}

// ask registers a question to the record.
func ask[I, O any](a *API, id, path, summary, description string, do func(ctx context.Context, s *audit.Store, in *I) (O, error)) {
	add(a, operation{
		ID: id, Method: http.MethodGet, Path: path, Tag: tagRecord, Summary: summary, Description: description,
		Problems: []int{http.StatusConflict}, Timeout: 30 * time.Second,
	}, catalog.Viewer, func(ctx context.Context, in *I) (*struct{ Body O }, error) {
		s, err := a.record()
		if err != nil {
			return nil, err
		}
		out, err := do(ctx, s, in)
		return &struct{ Body O }{out}, asParameters(err)
	})
}

// rolled is what is to be known of numbers that are not counted on demand.
const rolled = " Numbers are those of whole hours, up to the last minute that is over. They stay when events are archived."

func (a *API) addRecord() {
	type eventsInput struct {
		During
		EventFilter
		Limit int    `query:"limit" default:"100" minimum:"1" maximum:"1000" doc:"At most so many." example:"100"`
		After string `query:"after" doc:"What the page before has told as next." example:"1769860800123456.0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00"`
	}
	ask(a, "listEvents", "/events", "What was decided",
		"Returns the record of decisions, newest first: all that refused or held a request or would have, and a sample of the others. Months that were archived are not in it.",
		func(ctx context.Context, s *audit.Store, in *eventsInput) (out EventList, err error) {
			q := in.query()
			q.Range, q.Limit = in.at(a.now()), in.Limit
			if q.After, err = audit.ParseCursor(in.After); err != nil {
				return out, err
			}
			events, next, err := s.Find(ctx, q)
			out = EventList{Items: make([]Event, len(events)), Next: next.String()}
			for i := range events {
				out.Items[i] = NewEvent(&events[i])
			}
			return out, err
		})
	a.addExport()

	type seriesInput struct {
		During
		Step     float64 `query:"step_seconds" minimum:"0" maximum:"31622400" doc:"The time between points: whole minutes, whole hours from an hour on, whole days from a day on; at most 500 points. Default: the shortest that looks well." example:"300"`
		By       string  `query:"by" enum:"outcome,rule,tier,endpoint,region" doc:"What there is a series for each of. Default: there is one." example:"outcome"`
		Rule     string  `query:"rule" maxLength:"512" doc:"Only by this rule." example:"search"`
		Tier     string  `query:"tier" maxLength:"512" doc:"Only of this tier." example:"free"`
		Endpoint string  `query:"endpoint" maxLength:"512" doc:"Only at this endpoint." example:"/v1/search/{index}"`
		Region   string  `query:"region" maxLength:"512" doc:"Only of this region." example:"eu-west-1"`
		Outcome  string  `query:"outcome" enum:"allowed,throttled,exempt,denied,banned,blocked,unauthorized,unavailable" doc:"Only with this outcome." example:"denied"`
		Shadow   string  `query:"shadow" enum:"true,false" doc:"Only those that a rule that is only tried out would have refused, or none of them." example:"false"`
		Limit    int     `query:"limit" default:"20" minimum:"1" maximum:"50" doc:"At most so many series; the rest are one." example:"20"`
	}
	ask(a, "getSeries", "/series", "How many decisions there were over time",
		"Returns how many decisions there were over time, by something, and how long they took. Numbers are those of whole minutes that are over, and also count decisions of which the record has a sample only.",
		func(ctx context.Context, s *audit.Store, in *seriesInput) (out SeriesList, err error) {
			q := audit.SeriesQuery{
				Range: in.at(a.now()), Step: time.Duration(in.Step * float64(time.Second)), By: in.By, Rule: in.Rule, Tier: in.Tier,
				Endpoint: in.Endpoint, Region: in.Region, Outcome: in.Outcome, Shadow: truth(in.Shadow), Limit: in.Limit,
			}
			all, err := s.Series(ctx, q)
			out = SeriesList{From: q.From, To: q.To, Step: in.Step, Items: make([]Series, len(all))}
			for i, one := range all {
				points := make([]Point, len(one.Points))
				for j, p := range one.Points {
					points[j] = Point{p.Start, p.Total, p.Events, p.Cached, p.P50.Microseconds(), p.P95.Microseconds(), p.P99.Microseconds()}
				}
				out.Items[i] = Series{one.Name, one.Rest, points}
				if len(points) > 1 {
					out.Step = points[1].Start.Sub(points[0].Start).Seconds()
				}
			}
			return out, steps(err)
		})

	type topInput struct {
		During
		By    string `query:"by" default:"user" enum:"user,tenant,key,ip,rule,endpoint" doc:"Of which kind." example:"user"`
		Rule  string `query:"rule" maxLength:"512" doc:"Only by this rule." example:"search"`
		Limit int    `query:"limit" default:"10" minimum:"1" maximum:"1000" doc:"At most so many." example:"10"`
	}
	ask(a, "getTop", "/top", "Who or what was refused most",
		"Returns which users, tenants, API keys, addresses, rules or endpoints were denied most."+rolled,
		func(ctx context.Context, s *audit.Store, in *topInput) (Top, error) {
			all, err := s.Top(ctx, audit.TopQuery{Range: in.at(a.now()), By: in.By, Rule: in.Rule, Limit: in.Limit})
			out := Top{make([]Refusals, len(all))}
			for i := range all {
				out.Items[i] = Refusals(all[i])
			}
			return out, err
		})

	type violationsInput struct {
		During
		User  string `query:"user" maxLength:"512" doc:"Only of this user." example:"alice"`
		Rule  string `query:"rule" maxLength:"512" doc:"Only by this rule." example:"search"`
		Limit int    `query:"limit" default:"100" minimum:"1" maximum:"1000" doc:"At most so many." example:"100"`
	}
	ask(a, "listViolations", "/violations", "Which users were denied by which rules", "Returns how often each user was denied by each rule."+rolled,
		func(ctx context.Context, s *audit.Store, in *violationsInput) (ViolationList, error) {
			all, err := s.Violations(ctx, audit.ViolationQuery{Range: in.at(a.now()), User: in.User, Rule: in.Rule, Limit: in.Limit})
			out := ViolationList{make([]Violation, len(all))}
			for i := range all {
				out.Items[i] = Violation(all[i])
			}
			return out, err
		})

	type clientsInput struct {
		During
		By   string `query:"by" default:"user" enum:"user,tenant,key,ip" doc:"Of which kind." example:"user"`
		Rule string `query:"rule" maxLength:"512" doc:"Only by this rule." example:"search"`
	}
	ask(a, "countClients", "/clients", "How many clients were limited", "Returns how many different users, tenants, API keys or addresses were denied something by a limit."+rolled,
		func(ctx context.Context, s *audit.Store, in *clientsInput) (Clients, error) {
			n, exact, err := s.Distinct(ctx, audit.DistinctQuery{Range: in.at(a.now()), By: in.By, Rule: in.Rule})
			return Clients{in.By, n, exact}, err
		})
}

// steps names the parameter that problems with a step are about.
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

// find goes through events, newest first, until there are as many as wanted.
func find(ctx context.Context, s *audit.Store, q audit.EventQuery, most int) iter.Seq2[[]audit.Event, error] {
	const page = 1000
	return func(yield func([]audit.Event, error) bool) {
		for left := most; left > 0; { // a page may be less than full
			q.Limit = min(left, page)
			events, after, err := s.Find(ctx, q)
			left -= len(events)
			if !yield(events, err) || err != nil || after == (audit.Cursor{}) {
				return
			}
			q.After = after
		}
	}
}

// eventWriter writes events in a format.
type eventWriter interface {
	Write(e *audit.Event) error
	Close() error
}

// formats are what events can be exported as.
var formats = map[string]struct {
	contentType string
	writer      func(io.Writer) eventWriter
}{
	"csv":     {"text/csv; charset=utf-8; header=present", newCSV},
	"ndjson":  {"application/x-ndjson", newNDJSON},
	"parquet": {"application/vnd.apache.parquet", func(w io.Writer) eventWriter { return audit.NewParquetWriter(w) }},
}

func (a *API) addExport() {
	type exportInput struct {
		During
		EventFilter
		Format string `query:"format" default:"csv" enum:"csv,parquet,ndjson" doc:"What the file is." example:"csv"`
		Limit  int    `query:"limit" default:"100000" minimum:"1" maximum:"1000000" doc:"At most so many events, the newest." example:"100000"`
	}
	add(a, operation{
		ID: "exportEvents", Method: http.MethodGet, Path: "/events/export", Tag: tagRecord,
		Summary: "What was decided, as a file",
		Description: "Returns the events that GET /events would, all of them, as a file: CSV with the names of columns first, Parquet as the archive has it, or a JSON object per line. " +
			"In CSV, a text that a spreadsheet would take for a formula has an apostrophe before it. If the connection ends without its proper end, the file is not whole.",
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
		leave, ok := occupy(&a.streams.exports, maxExports)
		if !ok {
			return nil, fail(http.StatusServiceUnavailable, "there are "+strconv.Itoa(maxExports)+" exports under way, which is as many as there can be").with("Retry-After", "5")
		}
		q := in.query()
		q.Range = in.at(a.now())
		// What is wrong with the question is said before anything else.
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
					a.log.LogAttrs(ctx, slog.LevelError, "admin: an export has failed", slog.Any("error", err))
				}
				panic(http.ErrAbortHandler) // or what is not whole would look as if it were
			}
		}}, nil
	})
}

// export writes pages of events.
func export(out *sender, format func(io.Writer) eventWriter, page []audit.Event, next func() ([]audit.Event, error, bool)) error {
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

func (w ndjson) Write(e *audit.Event) error { return w.Encode(NewEvent(e)) }
func (ndjson) Close() error                 { return nil }

// csvWriter writes the fields of events as their names in JSON say.
type csvWriter struct {
	*csv.Writer
	row []string
	err error
}

func newCSV(w io.Writer) eventWriter {
	out := &csvWriter{Writer: csv.NewWriter(w)}
	out.UseCRLF = true // as RFC 4180 has it
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Event]()) {
		out.row = append(out.row, f.Tag.Get("json"))
	}
	out.err = out.Writer.Write(out.row)
	return out
}

// Write implements eventWriter.
func (w *csvWriter) Write(e *audit.Event) error {
	if w.err != nil {
		return w.err
	}
	v := reflect.ValueOf(NewEvent(e))
	for i := range w.row {
		switch x := v.Field(i).Interface().(type) {
		case string:
			w.row[i] = harmless(x)
		case time.Time:
			w.row[i] = x.Format(time.RFC3339Nano)
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

// harmless returns a text of a client that a spreadsheet takes for a text.
func harmless(text string) string {
	if text != "" && strings.IndexByte("=+-@\t\r", text[0]) >= 0 {
		return "'" + text
	}
	return text
}
