// Package compare asks two rate limit services of Envoy the same, and reports where they answer differently: before one
// replaces the other.
//
// It asks about the limits of a configuration, with values that no client has, so that no client is limited by it. Where
// all clients share a counter, it counts nothing, and compares only what the limit is: the two have counted different
// requests. Both must use the same configuration, and may use the same Redis.
//
// A window may begin between two calls. So what differs is asked again, with other values, before it is reported.
package compare

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stintdev/stint/grpclimit/descriptor"
)

// tries is how often something that differs is asked.
const tries = 3

// tolerance is by how much the time until a reset may differ: one of the two was asked later, and both round.
const tolerance = 2 * time.Second

// Options say what is compared. All of them are required.
type Options struct {
	Config       *descriptor.Config
	Theirs, Ours rlsv3.RateLimitServiceClient
}

// Report is what was found.
type Report struct {
	Limits      int          `json:"limits"`   // that were asked about
	Shared      []string     `json:"shared"`   // those of which nothing was counted
	Hidden      []string     `json:"hidden"`   // those that were not asked about, since others match first
	Requests    int          `json:"requests"` // to each of the two
	Differences []Difference `json:"differences"`
}

// Difference is two answers to one request.
type Difference struct {
	Limit   string `json:"limit"`   // empty for requests without one
	Request string `json:"request"` // the entries and hits
	Theirs  string `json:"theirs"`
	Ours    string `json:"ours"`
}

// step is a request about a descriptor.
type step struct {
	limit   string
	domain  string
	entries []descriptor.Entry
	hits    uint32
	peek    bool // count nothing, and compare the limit alone
}

// Run asks both. The error says which of them gives no answer; other errors are answers.
func Run(ctx context.Context, o Options) (*Report, error) {
	r := &Report{Shared: []string{}, Hidden: []string{}, Differences: []Difference{}}
	all := slices.Collect(o.Config.Limits())
	for i, l := range all {
		example := func() []step { return r.about(l) }
		if i == 0 {
			first := example
			example = func() []step { return append(first(), unknown(l)...) }
		}
		if err := r.ask(ctx, &o, example); err != nil {
			return nil, err
		}
	}
	r.Limits = len(all) - len(r.Hidden)
	return r, nil
}

// about returns the requests about a limit: they use it up, and then some.
func (r *Report) about(l *descriptor.Limit) []step {
	entries, own := l.Example(unused())
	s := step{limit: l.Path, domain: l.Domain(), entries: entries, hits: 1}
	switch {
	case entries == nil:
		r.Hidden = with(r.Hidden, l.Path)
		return nil
	case !own:
		r.Shared = with(r.Shared, l.Path)
		s.peek = true
		return []step{s}
	case l.Unlimited || l.Requests < 2:
		return []step{s, s, s}
	}
	rest := s
	rest.hits = l.Requests - 2
	steps := []step{s, rest, s, s, s}
	if rest.hits == 0 {
		steps = slices.Delete(steps, 1, 2)
	}
	return steps
}

func with(names []string, name string) []string {
	if slices.Contains(names, name) {
		return names
	}
	return append(names, name)
}

// unknown returns requests that no limit applies to.
func unknown(l *descriptor.Limit) []step {
	name := unused()
	entries := []descriptor.Entry{{Key: name, Value: name}}
	return []step{{domain: l.Domain(), entries: entries, hits: 1}, {domain: name, entries: entries, hits: 1}}
}

// unused returns a value that no client has.
func unused() string { return "stint-compare-" + strings.ToLower(rand.Text()) }

// ask asks both the same, in turn, and notes what differs each time that it is tried.
func (r *Report) ask(ctx context.Context, o *Options, example func() []step) error {
	var found []Difference
	for range tries {
		found = nil
		for _, s := range example() {
			q := s.request()
			theirs, err := call(ctx, o.Theirs, q)
			ours, other := call(ctx, o.Ours, q)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case away(err):
				return fmt.Errorf("envoyproxy/ratelimit: %w", err)
			case away(other):
				return fmt.Errorf("Stint: %w", other) //nolint:staticcheck // a name
			}
			r.Requests++
			if !same(&s, theirs, err, ours, other) {
				found = append(found, Difference{s.limit, s.String(), brief(&s, theirs, err), brief(&s, ours, other)})
			}
		}
		if found == nil {
			return nil
		}
	}
	r.Differences = append(r.Differences, found...)
	return nil
}

// patience is how long a call may take.
const patience = 10 * time.Second

func call(ctx context.Context, c rlsv3.RateLimitServiceClient, q *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return c.ShouldRateLimit(ctx, q)
}

// away reports whether a call has failed because there is no answer.
func away(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}

func (s *step) request() *rlsv3.RateLimitRequest {
	d := &commonv3.RateLimitDescriptor{}
	for _, e := range s.entries {
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value})
	}
	q := &rlsv3.RateLimitRequest{Domain: s.domain, Descriptors: []*commonv3.RateLimitDescriptor{d}, HitsAddend: s.hits}
	if s.peek {
		d.HitsAddend, q.HitsAddend = wrapperspb.UInt64(0), 0
	}
	return q
}

// String returns the request in one line.
func (s *step) String() string {
	var b strings.Builder
	b.WriteString(s.domain)
	for _, e := range s.entries {
		fmt.Fprintf(&b, " %s=%s", e.Key, e.Value)
	}
	if s.peek {
		b.WriteString(", without a hit")
	} else if s.hits > 1 {
		fmt.Fprintf(&b, ", %d hits", s.hits)
	}
	return b.String()
}

// same reports whether two answers are the same, but for a moment in the time until a reset.
func same(s *step, theirs *rlsv3.RateLimitResponse, err error, ours *rlsv3.RateLimitResponse, other error) bool {
	if brief(s, theirs, err) != brief(s, ours, other) {
		return false
	}
	if err != nil || s.peek {
		return true
	}
	for i, t := range theirs.GetStatuses() {
		apart := t.GetDurationUntilReset().AsDuration() - ours.GetStatuses()[i].GetDurationUntilReset().AsDuration()
		if apart.Abs() > tolerance {
			return false
		}
	}
	return true
}

// brief returns an answer in one line.
func brief(s *step, m *rlsv3.RateLimitResponse, err error) string {
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	if !s.peek {
		b.WriteString(m.GetOverallCode().String())
	}
	for _, x := range m.GetStatuses() {
		if l := x.GetCurrentLimit(); l != nil {
			fmt.Fprintf(&b, " %d/%s", l.GetRequestsPerUnit(), l.GetUnit())
			if l.GetName() != "" {
				fmt.Fprintf(&b, " %q", l.GetName())
			}
		}
		if !s.peek {
			fmt.Fprintf(&b, " %s, %d left", x.GetCode(), x.GetLimitRemaining())
		}
	}
	return strings.TrimSpace(b.String())
}
