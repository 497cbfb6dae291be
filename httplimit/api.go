package httplimit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/door/field"
	"github.com/stintdev/stint/internal/door/settle"
	"github.com/stintdev/stint/rule"
)

const (
	maxBody  = 1 << 20
	maxBatch = 4 << 20

	maxRequests = 1000 // in a batch
	maxAsks     = 100  // in a take
)

// APIOptions are the settings of the decision API. Engine and Store are required.
type APIOptions struct {
	Engine *engine.Engine
	// Store holds the counters of /v1/take. It may be the engine's store: their names
	// differ from those of rules.
	Store   stint.Store
	Headers HeaderSet // default X, IETF and ID
	// Tickets are for the calls that reserve and settle: reserve, commit, cancel and extend. Default: there
	// are no such calls.
	Tickets *engine.Tickets
	// Operators wraps the handler of DELETE /v1/usage, which resets counters: it passes on
	// the requests of operators, and answers all others. Default: nobody may reset counters.
	Operators func(next http.Handler) http.Handler
	// OnReset is called before counters of a subject are reset: those of one rule or, if it
	// is empty, of all. If it returns an error, nothing is reset. Default: nothing is done.
	OnReset func(ctx context.Context, who identity.Subject, rule string) error
	// OnError answers a call that failed. Default: a problem with status 500, which does
	// not say why.
	OnError func(w http.ResponseWriter, r *http.Request, err error)
}

// API returns the decision API, below /v1/: check, take, usage, forward-auth, with tickets
// reserve, commit, cancel and extend, batches of these, and openapi.json, which describes them.
//
// It believes what its callers say about who is asking and what it costs. It is not for
// clients, but for the programs that serve them.
func API(o APIOptions) (http.Handler, error) {
	if o.Engine == nil {
		return nil, invalid("Engine", "nil", "what engine.New returns")
	}
	if o.Store == nil {
		return nil, invalid("Store", "nil", "a store, such as memstore.New returns")
	}
	if o.OnError == nil {
		o.OnError = undecided
	}
	a := &api{APIOptions: o}
	usage := methods{http.MethodGet: a.usage}
	if o.Operators != nil {
		usage[http.MethodDelete] = o.Operators(http.HandlerFunc(a.reset)).ServeHTTP
	}
	served := paths{
		"/v1/check":        methods{http.MethodPost: a.check},
		"/v1/check/batch":  methods{http.MethodPost: a.batch},
		"/v1/take":         methods{http.MethodPost: a.take},
		"/v1/usage":        usage,
		"/v1/openapi.json": methods{http.MethodGet: serveOpenAPI},
		"/v1/forward-auth": http.HandlerFunc(a.forwardAuth),
	}
	if o.Tickets != nil {
		for path, op := range map[string]*operation{
			"/v1/reserve": &reserveOp, "/v1/commit": &commitOp, "/v1/cancel": &cancelOp, "/v1/extend": &extendOp,
		} {
			served[path] = methods{http.MethodPost: a.one(op)}
			served[path+"/batch"] = methods{http.MethodPost: a.several(op)}
		}
	}
	return served, nil
}

type api struct {
	APIOptions
	slow atomic.Bool // decisions of the last batch were slow, as over a network
}

// paths routes by the exact path: no path of the API has parameters.
type paths map[string]http.Handler

func (p paths) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h, ok := p[r.URL.Path]; ok {
		h.ServeHTTP(w, r)
	} else {
		notFound(w, r)
	}
}

// methods routes by the method.
type methods map[string]http.HandlerFunc

func (m methods) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	serve, ok := m[method]
	if !ok {
		allow := strings.Join(slices.Sorted(maps.Keys(m)), ", ")
		w.Header().Set("Allow", allow)
		Problem{Status: http.StatusMethodNotAllowed, Detail: "method " + r.Method + ": want " + allow}.Write(w, r)
		return
	}
	serve(w, r)
}

func notFound(w http.ResponseWriter, r *http.Request) {
	Problem{Status: http.StatusNotFound, Detail: "There is nothing at this path. /v1/openapi.json lists the paths."}.Write(w, r)
}

// badRequest answers a call with bad input.
func badRequest(w http.ResponseWriter, r *http.Request, err error) {
	Problem{Status: http.StatusBadRequest, Detail: err.Error()}.Write(w, r)
}

// failed answers a call that failed.
func (a *api) failed(w http.ResponseWriter, r *http.Request, err error) {
	if unavailable(err) || tooLong(err) {
		undecided(w, r, err)
	} else {
		a.OnError(w, r, err)
	}
}

// scratch is memory for a call: what it reads, what it writes, and its requests. It is
// used again by later calls.
type scratch struct {
	in     bytes.Buffer
	out    []byte
	checks []check
}

var scratches = sync.Pool{New: func() any { return &scratch{out: make([]byte, 0, 1<<10)} }}

func (b *scratch) release() {
	const maxBytes, maxChecks, maxLimits = 64 << 10, 256, 32 // larger ones are not kept
	if b.in.Cap() > maxBytes || cap(b.out) > maxBytes || cap(b.checks) > maxChecks {
		return
	}
	for i := range b.checks {
		c := &b.checks[i]
		limits := c.verdict.Limits
		if cap(limits) > maxLimits {
			limits = nil
		}
		clear(limits)
		*c = check{verdict: engine.Verdict{Limits: limits[:0]}}
	}
	b.in.Reset()
	b.out, b.checks = b.out[:0], b.checks[:0]
	scratches.Put(b)
}

// add adds a check. The pointer is valid until the next call of add.
func (b *scratch) add() *check {
	n := len(b.checks)
	if n < cap(b.checks) {
		b.checks = b.checks[:n+1] // its limits keep their capacity
	} else {
		b.checks = append(b.checks, check{})
	}
	return &b.checks[n]
}

// read reads the body, of at most limit bytes. If it returns false, it has answered.
func (b *scratch) read(w http.ResponseWriter, r *http.Request, limit int) bool {
	if kind := r.Header.Get("Content-Type"); kind != "application/json" {
		if media, _, err := mime.ParseMediaType(kind); err != nil || media != "application/json" {
			w.Header().Set("Accept", "application/json")
			Problem{
				Status: http.StatusUnsupportedMediaType,
				Detail: "Content-Type " + strconv.Quote(kind) + ": want application/json",
			}.Write(w, r)
			return false
		}
	}
	size, err := r.ContentLength, error(nil)
	if size <= int64(limit) {
		size, err = b.in.ReadFrom(io.LimitReader(r.Body, int64(limit)+1))
	}
	switch {
	case size > int64(limit):
		Problem{
			Status: http.StatusRequestEntityTooLarge,
			Detail: "body: want at most " + strconv.Itoa(limit) + " bytes",
		}.Write(w, r)
		return false
	case err != nil:
		badRequest(w, r, &inputError{"body", "could not be read to its end"})
		return false
	}
	_ = r.Body.Close() // or the server tries to read more of it
	return true
}

func (b *scratch) write(w http.ResponseWriter) {
	const short = 2 << 10 // the server sets the length of short bodies itself
	h := w.Header()
	h["Content-Type"] = typeJSON
	if len(b.out) > short {
		h["Content-Length"] = []string{strconv.Itoa(len(b.out))}
	}
	_, _ = w.Write(b.out) // the caller may be gone
}

// appendVerdict appends a verdict as JSON.
func appendVerdict(b []byte, v *engine.Verdict) []byte {
	b = strconv.AppendBool(append(b, `{"allowed":`...), v.Outcome.Passed())
	b = appendString(append(b, `,"outcome":`...), v.Outcome.String())
	if v.Rule != nil {
		b = appendString(append(b, `,"rule":`...), v.Rule.Name)
	}
	if l, _ := field.Next(v, 0); l != nil && field.Counted(l) {
		remaining, reset := field.Standing(v, l)
		b = appendNumbers(append(b, `,"limit":`...), l.Decision.Limit, remaining, reset)
	}
	wait := v.RetryAfter
	if wait == 0 && !v.Outcome.Passed() {
		wait = stint.Never
	}
	b = appendWait(append(b, `,"retry_after":`...), wait)
	if !v.Outcome.Passed() {
		b = strconv.AppendInt(append(b, `,"status":`...), int64(v.Status), 10)
		b = appendString(append(b, `,"reason":`...), reason(v))
	}
	if over := field.OverOf(v); over != "" {
		b = appendString(append(b, `,"over":`...), over)
	}
	if v.Subject.BadToken {
		b = appendString(append(b, `,"unaccepted":`...), v.Subject.Unaccepted.String())
	}
	b, _ = v.ID.AppendText(append(b, `,"decision_id":"`...)) // it never fails
	b = append(b, '"')
	return append(appendLimits(append(b, ','), v.Limits), '}')
}

// appendNumbers appends the state of a counter, after the name of its capacity.
func appendNumbers(b []byte, limit, remaining int64, reset time.Duration) []byte {
	b = strconv.AppendInt(b, limit, 10)
	b = strconv.AppendInt(append(b, `,"remaining":`...), remaining, 10)
	return appendSeconds(append(b, `,"reset_after":`...), reset)
}

func appendLimits(b []byte, limits []engine.Limit) []byte {
	b = append(b, `"limits":[`...)
	for i := range limits {
		l := &limits[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, `{"rule":`...), l.Rule.Name)
		if l.Endpoint != "" {
			b = appendString(append(b, `,"endpoint":`...), l.Endpoint)
		}
		if l.Penalty != nil {
			b = append(b, `,"name":"penalty"`...)
			b = appendString(append(b, `,"limit":`...), l.Penalty.String())
			b = appendDecision(b, 0, &l.Decision) // a penalty has no units
			b = append(b, `,"penalty":true`...)
		} else {
			b = appendString(append(b, `,"name":`...), l.Name)
			b = appendLimit(b, l.Limit)
			b = appendDecision(b, l.Cost, &l.Decision)
		}
		b = strconv.AppendBool(append(b, `,"shadow":`...), l.Shadow)
		b = append(b, '}')
	}
	return append(b, ']')
}

// appendLimit appends the text of a limit, which needs no escapes.
func appendLimit(b []byte, l stint.Limit) []byte {
	return append(l.Append(append(b, `,"limit":"`...)), '"')
}

// appendDecision appends the decision on a limit.
func appendDecision(b []byte, cost int64, d *stint.Decision) []byte {
	b = strconv.AppendInt(append(b, `,"cost":`...), cost, 10)
	b = strconv.AppendBool(append(b, `,"allowed":`...), d.Allowed)
	if d.Basis < stint.Open {
		b = appendNumbers(append(b, `,"max":`...), d.Limit, d.Remaining, d.ResetAfter)
	}
	if d.Basis != stint.Counted {
		b = appendString(append(b, `,"basis":`...), d.Basis.String())
	}
	return appendWait(append(b, `,"retry_after":`...), d.RetryAfter)
}

var (
	askFields  = []string{"subject", "name", "limit", "cost"}
	takeFields = append(slices.Clone(askFields), "asks")
)

// take takes from counters that the call names: from all of them or from none.
func (a *api) take(w http.ResponseWriter, r *http.Request) {
	b := scratches.Get().(*scratch)
	defer b.release()
	if !b.read(w, r, maxBody) {
		return
	}
	s := scanner{data: b.in.Bytes()}
	var asks []stint.Ask
	if err := s.document(func() (err *inputError) { asks, err = s.asks(); return err }); err != nil {
		badRequest(w, r, err)
		return
	}
	ds := make([]stint.Decision, len(asks))
	if err := a.Store.Take(r.Context(), asks, ds); err != nil {
		a.failed(w, r, err)
		return
	}
	b.out = appendTake(b.out, asks, ds)
	b.write(w)
}

// asks reads one ask, or several.
func (s *scanner) asks() (asks []stint.Ask, err *inputError) {
	one, alone := stint.Ask{Cost: 1}, false
	err = s.object(takeFields, func(i int) *inputError {
		if i < len(askFields) {
			alone = true
			return s.askField(&one, i)
		}
		return s.array(maxAsks, func() *inputError {
			ask := stint.Ask{Cost: 1}
			err := s.object(askFields, func(i int) *inputError { return s.askField(&ask, i) })
			if err == nil {
				err = complete(&ask)
			}
			asks = append(asks, ask)
			return err
		})
	})
	switch {
	case err != nil:
		return nil, err
	case alone && asks != nil:
		return nil, &inputError{"asks", "want either asks or the fields of one ask, not both"}
	case asks != nil:
		return asks, nil
	}
	return []stint.Ask{one}, complete(&one)
}

func (s *scanner) askField(a *stint.Ask, i int) *inputError {
	if askFields[i] == "cost" {
		cost, err := s.cost(0)
		a.Cost = cost
		return err
	}
	text, err := s.text()
	if err != nil {
		return err
	}
	switch askFields[i] {
	case "subject":
		a.Key.Subject = string(text)
	case "name":
		a.Key.Name = string(text)
	default:
		limit, bad := stint.ParseRate(string(text))
		if bad != nil {
			return &inputError{says: bad.Error()}
		}
		a.Limit = limit
	}
	return nil
}

// bare is the prefix of the names of counters that callers name. Names of rules have no
// exclamation mark.
const bare = "take!"

// complete checks that the ask has a key and a limit, and prefixes its name, so that it
// cannot reach the counter of a rule.
func complete(a *stint.Ask) *inputError {
	if bad := new(stint.InvalidError); errors.As(a.Key.Validate(), &bad) {
		return &inputError{bad.Field, "want " + bad.Want}
	}
	if a.Limit == (stint.Limit{}) {
		return &inputError{"limit", "want a limit, such as 100/1m"}
	}
	a.Key.Name = bare + a.Key.Name
	return nil
}

func appendTake(b []byte, asks []stint.Ask, ds []stint.Decision) []byte {
	allowed, wait, delay := true, time.Duration(0), time.Duration(0)
	for i := range ds {
		d := &ds[i]
		allowed = allowed && d.Allowed
		wait, delay = max(wait, d.RetryAfter), max(delay, d.Delay)
	}
	b = strconv.AppendBool(append(b, `{"allowed":`...), allowed)
	b = appendWait(append(b, `,"retry_after":`...), wait)
	b = appendSeconds(append(b, `,"delay":`...), delay)
	b = append(b, `,"limits":[`...)
	for i := range ds {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, `{"subject":`...), asks[i].Key.Subject)
		b = appendString(append(b, `,"name":`...), strings.TrimPrefix(asks[i].Key.Name, bare))
		b = append(appendDecision(appendLimit(b, asks[i].Limit), asks[i].Cost, &ds[i]), '}')
	}
	return append(b, `]}`...)
}

// subjectOf reads the subject from a query. Unknown and repeated parameters are errors,
// and so is a query without a subject.
func subjectOf(query string, more ...string) (s identity.Subject, values url.Values, err *inputError) {
	values, bad := url.ParseQuery(query)
	if bad != nil {
		return s, nil, &inputError{"query", "want names and values, escaped as in URLs"}
	}
	known := append([]string{"user", "tenant", "api_key", "ip"}, more...)
	for name, all := range values {
		switch {
		case !slices.Contains(known, name):
			return s, nil, &inputError{strconv.Quote(name), "unknown parameter, want " + strings.Join(known, ", ")}
		case len(all) > 1:
			return s, nil, &inputError{name, "want it only once"}
		case all[0] != "" && !identity.ValidID(all[0]):
			return s, nil, &inputError{name, "want " + settle.WantID}
		}
	}
	s.User, s.Tenant, s.Key = values.Get("user"), values.Get("tenant"), values.Get("api_key")
	if text := values.Get("ip"); text != "" {
		if s.IP, bad = netip.ParseAddr(text); bad != nil {
			return s, nil, &inputError{"ip", "want " + settle.WantAddress + ", found " + strconv.Quote(text)}
		}
	}
	if s.User == "" && s.Tenant == "" && s.Key == "" && !s.IP.IsValid() {
		return s, nil, &inputError{"query", "want one of user, tenant, api_key, ip"}
	}
	return s, values, nil
}

func (a *api) usage(w http.ResponseWriter, r *http.Request) {
	who, _, bad := subjectOf(r.URL.RawQuery)
	if bad != nil {
		badRequest(w, r, bad)
		return
	}
	limits, err := a.Engine.Usage(r.Context(), who)
	if err != nil {
		a.failed(w, r, err)
		return
	}
	b := scratches.Get().(*scratch)
	defer b.release()
	b.out = append(appendLimits(append(b.out, '{'), limits), '}')
	b.write(w)
}

func (a *api) reset(w http.ResponseWriter, r *http.Request) {
	who, values, bad := subjectOf(r.URL.RawQuery, "rule")
	if bad != nil {
		badRequest(w, r, bad)
		return
	}
	name := values.Get("rule")
	is := func(c *rule.Compiled) bool { return c.Name == name }
	if values.Has("rule") && !slices.ContainsFunc(a.Engine.Rules().Rules(), is) {
		badRequest(w, r, &inputError{"rule", "there is no rule " + strconv.Quote(name)})
		return
	}
	if a.OnReset != nil {
		if err := a.OnReset(r.Context(), who, name); err != nil {
			a.failed(w, r, err)
			return
		}
	}
	if err := a.Engine.Reset(r.Context(), who, name); err != nil {
		a.failed(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
