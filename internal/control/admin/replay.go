package admin

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/replay"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/rule"
)

// The bounds of replays on the server. Tests have others.
var (
	// maxReplay is how many events a replay reads. Of more it reads some in each of 12 to 60 parts of the time.
	maxReplay = 100_000
	// replayLimit is how long a replay may take, and replayTells how often it says how far it is.
	replayLimit, replayTells = time.Minute, time.Second
)

const (
	// maxReplays is how many run at once on a node: each may need a processor, and 120 MB.
	maxReplays = 2
	// maxReplayKeys is how many counters each of the rule sets has at once.
	maxReplayKeys = 1 << 18
	// maxCandidate is the largest body, in bytes.
	maxCandidate = 4 << 20
)

// ReplayRequest is what a replay compares with the live rules.
type ReplayRequest struct {
	Candidate string `json:"candidate,omitempty" doc:"Rules, tiers and other records as in a config file, in TOML. Empty: the live rules are compared with what was decided at the time." example:"[[rules]]\nname = \"search\"\nmatch = { paths = [\"/search\"] }\ncount_by = [\"user\"]\nlimits = [ { name = \"requests\", limit = \"50/1m\" } ]\n"`
	Whole     bool   `json:"whole,omitempty" doc:"The candidate has all rules and, of other kinds that it has any of, all records. Otherwise it has those that change, and the live ones stay that it does not have." example:"false"`
}

// ReplayLine is a line of the answer: one of progress, report and problem.
type ReplayLine struct {
	Progress *ReplayProgress `json:"progress,omitempty" doc:"How far the replay is, once a second."`
	Report   *ReplayReport   `json:"report,omitempty" doc:"The result: the last line."`
	Problem  *Problem        `json:"problem,omitempty" doc:"Why there is no result: the last line."`
}

// ReplayProgress is how far a replay is.
type ReplayProgress struct {
	Step string `json:"step" enum:"reading,replaying" doc:"What it does." example:"replaying"`
	Done int    `json:"done" doc:"How many events it has read or replayed." example:"20000"`
	Of   int    `json:"of" doc:"How many it will replay; while it reads, at most." example:"48210"`
}

// ReplayReport is the result of a replay.
type ReplayReport struct {
	replay.Report
	Same bool `json:"same" doc:"Whether the candidate is equal to the live rules." example:"false"`
}

func (a *API) addReplay() {
	add(a, operation{
		ID: "replay", Method: http.MethodPost, Path: "/replay", Tag: tagRules,
		Summary: "Replay recorded requests",
		Description: "Sends the recorded requests of a time through the live rules and a candidate, each with counters of its own and in virtual time, " +
			"and returns what would be decided otherwise: by rule, endpoint, tier and subject, and over time. It changes nothing. " +
			"If there are more than 100,000 events, a part of them is read evenly from the whole time, and the report says so. " +
			"The answer is JSON, one object per line: how far the replay is, once a second, and then the report. It takes a minute at most, ends with the connection, and two run at once on a node.",
		MaxBody: maxCandidate, Problems: []int{http.StatusConflict},
		Answer:   "The progress, and the report.",
		Produces: []content{{"application/x-ndjson", reflect.TypeFor[ReplayLine](), "One line."}},
	}, catalog.Viewer, func(ctx context.Context, in *struct {
		During
		Top  int `query:"top" default:"10" minimum:"1" maximum:"100" doc:"How many rules, endpoints, tiers and subjects are listed of each." example:"10"`
		Body ReplayRequest
	},
	) (*streamed, error) {
		store, err := a.record()
		if err != nil {
			return nil, err
		}
		leave, ok := occupy(&a.streams.replays, maxReplays)
		if !ok {
			return nil, fail(http.StatusServiceUnavailable, "there are "+strconv.Itoa(maxReplays)+" replays running, which is the maximum").with("Retry-After", "5")
		}
		ctx, cancel := context.WithTimeout(ctx, replayLimit)
		end := func() { cancel(); leave() }
		x := &replaying{api: a, during: in.at(a.now()), top: in.Top}
		var bad strict.Report
		if x.during.Check(&bad, a.now()); len(bad.Problems) > 0 {
			err = asParameters(bad.Problems)
		} else {
			err = x.compare(ctx, &in.Body)
		}
		if err != nil {
			end()
			return nil, x.problem(ctx, err)
		}
		return &streamed{func() {
			defer end()
			x.out = &late{sender: newSender(ctx), contentType: "application/x-ndjson"}
			defer x.out.end()
			report, err := x.run(ctx, store)
			err = x.problem(ctx, err)
			switch {
			case x.out.err != nil, err != nil && errors.Is(ctx.Err(), context.Canceled) && a.closing.Err() == nil: // no one listens any more
			case err == nil:
				x.tell(&ReplayLine{Report: report})
			case !x.out.begun:
				a.problem(x.out.w, x.out.Request, err)
			default:
				x.tell(&ReplayLine{Problem: a.problemOf(x.out.Request, err)})
			}
		}}, nil
	})
}

// replaying is a replay that runs.
type replaying struct {
	api             *API
	during          query.Range
	top             int
	live, candidate *catalog.Document // candidate may be nil
	same            bool
	over            func(live *catalog.Document) *catalog.Overlay // the candidate
	out             *late
	told            time.Time // when it was said how far it is
}

// compare reads the live rules, and checks the candidate.
func (x *replaying) compare(ctx context.Context, q *ReplayRequest) (err error) {
	if c := x.api.options.Catalog; c != nil {
		x.live, err = c.Shared(ctx)
	} else {
		x.live = new(*x.api.options.Document())
	}
	if err != nil || q.Candidate == "" && !q.Whole {
		return err
	}
	var d catalog.Document
	doc, problems := strict.TOML("", []byte(q.Candidate), &d)
	d.Case = x.live.Case
	x.over = func(live *catalog.Document) *catalog.Overlay { return d.Over(live, q.Whole) }
	o := x.over(x.live)
	var caused strict.Problems
	if len(problems) == 0 {
		problems, caused = o.Check()
		problems = doc.Locate(problems)
	}
	for i := range problems {
		problems[i].Path = strings.TrimSuffix("candidate."+problems[i].Path, ".")
	}
	if problems = append(problems, caused...); len(problems) > 0 {
		return problems
	}
	x.candidate = &o.Document
	x.same = sameRules(x.live, x.candidate)
	return nil
}

// sameRules reports whether two documents decide alike because they have the same records, in any order.
func sameRules(x, y *catalog.Document) bool {
	records := func(d *catalog.Document) map[string]bool {
		out := map[string]bool{}
		add := func(kind string, record any) {
			text, _ := json.Marshal(record) // it was decoded
			out[kind+string(text)] = true
		}
		for i := range d.Rules {
			add("rule", &d.Rules[i])
		}
		for i := range d.Tiers {
			add("tier", &d.Tiers[i])
		}
		for i := range d.Exemptions {
			add("exemption", &d.Exemptions[i])
		}
		for i := range d.Bans {
			add("ban", &d.Bans[i])
		}
		return out
	}
	people := len(y.Tenants) + len(y.Users) + len(y.APIKeys) // of the candidate: none of the live ones is read yet
	return people == 0 && maps.Equal(records(x), records(y))
}

// run reads the events, and replays them.
func (x *replaying) run(ctx context.Context, store *rollup.Store) (*ReplayReport, error) {
	read := 0
	s, err := sampler{store: store, most: maxReplay, told: func(n int) {
		read += n
		x.progress("reading", read, maxReplay)
	}}.read(ctx, x.during, longestWindow(x.during.From, x.live, x.candidate))
	if err != nil {
		return nil, asParameters(err)
	}
	o := replay.Options{
		From: x.during.From, To: x.during.To, Top: x.top, MaxKeys: maxReplayKeys,
		Recorded: s.recorded, Stretch: s.stretch, Missing: s.missing, Unsampled: x.api.options.Unsampled,
	}
	if err := x.addPeople(ctx, &s); err != nil {
		return nil, err
	}
	if o.Live, err = x.rules(x.live); err != nil {
		return nil, err
	}
	if x.over != nil {
		candidate, err := x.rules(&x.over(x.live).Document)
		if err != nil {
			return nil, err
		}
		o.Candidate = &candidate
	}
	report, err := replay.Run(ctx, o, s.each(func(done int) { x.progress("replaying", done, len(s.requests)) }))
	return &ReplayReport{report, x.same}, err
}

// addPeople adds those users, keys and tenants to the live records that the requests are of: there may be millions of others.
func (x *replaying) addPeople(ctx context.Context, s *sample) error {
	c := x.api.options.Catalog
	if c == nil {
		return nil // all are there
	}
	users, keys, tenants := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i := range s.requests {
		q := &s.requests[i]
		users[q.User], keys[q.Key], tenants[q.Tenant] = true, true, true
	}
	return c.People(ctx, x.live, users, keys, tenants)
}

// rules returns the rules of a document, for clients as this node knows them.
func (x *replaying) rules(d *catalog.Document) (replay.Rules, error) {
	who := x.api.options.Resolver()
	lists, err := d.Lists()
	return replay.Rules{File: d.File, Lists: lists, Directory: d.Directory, DefaultTier: who.DefaultTier(), IPv6Prefix: who.IPv6Prefix()}, err
}

// progress says how far the replay is, if it has not for a while.
func (x *replaying) progress(step string, done, of int) {
	now := time.Now() //nolint:forbidigo // someone waits for it by the real clock
	if x.told.IsZero() {
		x.told = now
	}
	if now.Sub(x.told) >= replayTells {
		x.told = now
		x.tell(&ReplayLine{Progress: &ReplayProgress{step, min(done, of), of}})
	}
}

// tell sends a line.
func (x *replaying) tell(line *ReplayLine) {
	text, err := json.Marshal(line)
	if err != nil { // NaN or infinity, which reports do not have
		text, _ = json.Marshal(ReplayLine{Problem: errInside})
	}
	_, _ = x.out.Write(append(text, '\n')) // flush has the error
	x.out.flush()
}

// problem returns the error of a replay, for those who wait for it.
func (x *replaying) problem(ctx context.Context, err error) error {
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fail(http.StatusServiceUnavailable, "the replay took longer than "+replayLimit.String()+": choose a shorter time").with("Retry-After", "1")
	}
	if err != nil && x.api.closing.Err() != nil {
		return fail(http.StatusServiceUnavailable, "this node is shutting down").with("Retry-After", "1")
	}
	return err
}

// longestWindow returns the longest window of the limits in documents, of which some may be nil.
func longestWindow(at time.Time, all ...*catalog.Document) (longest time.Duration) {
	see := func(l stint.Limit, err error) {
		if err == nil && l != (stint.Limit{}) {
			from, to := l.Window.Bounds(at)
			longest = max(longest, to.Sub(from))
		}
	}
	for _, d := range all {
		if d == nil {
			continue
		}
		for i := range d.Rules {
			for _, l := range d.Rules[i].Limits {
				see(l.Value())
			}
		}
		for i := range d.Tiers {
			for _, text := range d.Tiers[i].Limits {
				see(rule.ParseValue(text))
			}
		}
	}
	return longest
}
