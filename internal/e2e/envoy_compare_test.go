package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/internal/test/torture"
)

// exchange is a request, and the response of the reference.
type exchange struct {
	q      *rlsv3.RateLimitRequest
	want   *rlsv3.RateLimitResponse
	limits []*descriptor.Limit // by descriptor: what is configured; nil: nothing
	hits   []int64
	counts []*count // nil: nothing is counted
	ours   []standing
}

// standing is the state of a limit after a request.
type standing struct {
	over    bool
	left    int64
	drifted bool // the counters are not the same any more, here and there
}

// count is the count of a counter in a window.
type count struct {
	theirs, ours int64
	torn         bool // its window began between the calls of a request
}

func (x *exchange) isQuota(i int) bool {
	return x.limits[i] != nil && x.q.Descriptors[i].Limit == nil && x.limits[i].Quota
}

func (x *exchange) isShadow(i int) bool {
	return x.limits[i] != nil && x.q.Descriptors[i].Limit == nil && x.limits[i].Shadow
}

// each changes the statuses that have a limit.
func (x *exchange) each(change func(i int, s *rlsv3.RateLimitResponse_DescriptorStatus) bool) (changed bool) {
	for i, s := range x.want.GetStatuses() {
		if s.GetCurrentLimit() != nil && change(i, s) {
			changed = true
		}
	}
	return changed
}

// What is used up is known by the reset that is missing.
func (x *exchange) quota() bool {
	return x.each(func(i int, s *rlsv3.RateLimitResponse_DescriptorStatus) bool {
		if !x.isQuota(i) || s.GetDurationUntilReset() != nil {
			return false
		}
		s.Code, s.DurationUntilReset = rlsv3.RateLimitResponse_OVER_LIMIT, durationpb.New(time.Second)
		return true
	})
}

func (x *exchange) check() bool {
	return x.each(func(i int, s *rlsv3.RateLimitResponse_DescriptorStatus) bool {
		if x.hits[i] != 0 || s.GetLimitRemaining() != 0 || s.GetCode() != rlsv3.RateLimitResponse_OK || x.isShadow(i) {
			return false
		}
		s.Code = rlsv3.RateLimitResponse_OVER_LIMIT
		return true
	})
}

func (x *exchange) uncharged() bool {
	return x.each(func(i int, s *rlsv3.RateLimitResponse_DescriptorStatus) bool {
		o := x.ours[i]
		if !o.drifted {
			return false
		}
		code, left := rlsv3.RateLimitResponse_OK, uint32(o.left)
		if o.over && !x.isShadow(i) {
			code = rlsv3.RateLimitResponse_OVER_LIMIT
		}
		changed := s.GetCode() != code || s.GetLimitRemaining() != left
		s.Code, s.LimitRemaining = code, left
		return changed
	})
}

// charge counts the request: the reference counts all of it, Stint what fits, or all where
// something is left.
func (x *exchange) charge(t *testing.T) {
	t.Helper()
	x.ours = make([]standing, len(x.counts))
	most := func(i int) int64 { return int64(x.want.Statuses[i].GetCurrentLimit().GetRequestsPerUnit()) }
	var open []int
	for i, c := range x.counts {
		if c == nil {
			continue
		}
		open = append(open, i)
		x.ours[i].drifted = c.theirs != c.ours || slices.Contains(x.counts[:i], c) || slices.Contains(x.counts[i+1:], c)
	}
	for denied := true; denied; {
		denied = false
		sums := map[*count]int64{}
		for _, i := range open {
			c, o := x.counts[i], &x.ours[i]
			o.left = max(0, most(i)-c.ours-sums[c])
			if o.over = most(i) == 0 || c.ours+sums[c]+x.hits[i] > most(i); o.over {
				denied = true
				continue
			}
			o.left -= x.hits[i]
			sums[c] += x.hits[i]
		}
		if !denied {
			for c, n := range sums {
				c.ours += n
			}
		}
		for _, i := range open {
			o := &x.ours[i]
			if denied && !o.over { // nothing was charged
				o.left = max(0, most(i)-x.counts[i].ours)
			}
			o.over = o.over || x.hits[i] == 0 && o.left == 0
		}
		open = slices.DeleteFunc(open, func(i int) bool { return x.ours[i].over })
	}
	for i, c := range x.counts {
		if c == nil {
			continue
		}
		c.theirs += x.hits[i]
		if told := x.want.Statuses[i].GetLimitRemaining(); !c.torn && int64(told) != max(0, most(i)-c.theirs) {
			t.Fatalf("descriptor %d has %d left there, and the test counts %d of %d\n%v", i, told, c.theirs, most(i), x.q)
		}
		if o := &x.ours[i]; o.over {
			if o.left > 0 {
				c.ours += x.hits[i]
			}
			o.left = 0
		}
	}
}

// conclude sets the overall code from the statuses.
func (x *exchange) conclude() {
	quotas, over := 0, 0
	tightest := -1
	var violated []*structpb.Value
	x.want.OverallCode = rlsv3.RateLimitResponse_OK
	x.each(func(i int, s *rlsv3.RateLimitResponse_DescriptorStatus) bool {
		isOver := s.GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT
		switch {
		case x.isQuota(i):
			quotas++
			if isOver {
				over++
				violated = append(violated, structpb.NewNumberValue(float64(i)))
			}
		case isOver:
			x.want.OverallCode = rlsv3.RateLimitResponse_OVER_LIMIT
		}
		if tightest < 0 || isOver && !x.isQuota(i) || s.GetLimitRemaining() < x.want.Statuses[tightest].GetLimitRemaining() {
			tightest = i
		}
		return false
	})
	if quotas > 0 && over == quotas {
		x.want.OverallCode = rlsv3.RateLimitResponse_OVER_LIMIT
	}
	if tightest >= 0 {
		s := x.want.Statuses[tightest]
		for i, v := range []string{strconv.Itoa(int(s.GetCurrentLimit().GetRequestsPerUnit())), strconv.Itoa(int(s.GetLimitRemaining())), "soon"} {
			x.want.ResponseHeadersToAdd[i].Value = v
		}
	}
	delete(x.want.DynamicMetadata.Fields, "quotaModeViolations")
	if violated != nil {
		x.want.DynamicMetadata.Fields["quotaModeViolations"] = structpb.NewListValue(&structpb.ListValue{Values: violated})
	}
	x.mergePassed()
}

// comparison compares Stint with the reference.
type comparison struct {
	config *descriptor.Config
	theirs *peer
	ours   []*peer
	counts map[string]*count
	recent []timed // of the last second

	compared, torn int
	applied        map[string]int
}

// begin returns what is known about a request before it is sent.
func (c *comparison) begin(q *rlsv3.RateLimitRequest) *exchange {
	x := &exchange{q: q}
	for _, d := range q.GetDescriptors() {
		hits := max(1, int64(q.GetHitsAddend()))
		if d.GetHitsAddend() != nil {
			hits = int64(d.GetHitsAddend().GetValue())
		}
		x.hits = append(x.hits, hits)
		x.limits = append(x.limits, c.find(q.GetDomain(), d))
	}
	return x
}

func (c *comparison) find(domain string, d *commonv3.RateLimitDescriptor) *descriptor.Limit {
	tree := c.config.Domain(domain)
	if tree == nil {
		return nil
	}
	var entries []descriptor.Entry
	for _, e := range d.GetEntries() {
		entries = append(entries, descriptor.Entry{Key: e.GetKey(), Value: e.GetValue()})
	}
	return tree.Find(entries)
}

// count returns the counter of a descriptor that has this limit, at a second.
func (c *comparison) count(x *exchange, i int, unit rlsv3.RateLimitResponse_RateLimit_Unit, now int64) *count {
	d := x.q.GetDescriptors()[i]
	key := x.q.GetDomain()
	for j, e := range d.GetEntries() {
		value := e.GetValue()
		if l := x.limits[i]; l != nil && d.GetLimit() == nil && j < len(l.Shared) && l.Shared[j].Value != "" {
			value = l.Shared[j].Value
		}
		key += "|" + e.GetKey() + "=" + value
	}
	key += fmt.Sprintf("|%v %d", unit, now/lengths[unit])
	if c.counts[key] == nil {
		c.counts[key] = &count{}
	}
	return c.counts[key]
}

// timed is when a request was sent, and how long all took to answer it.
type timed struct {
	at   time.Time
	took time.Duration
}

// behind returns how far an answer may lag behind the clock. A node with Redis answers
// denials from memory for up to a second, and counts their RetryAfter down from when
// Redis' answer arrived, not from when Redis decided: so clients never come back too early.
// The lag is at most the duration of the call that was denied. Just after a second
// begins, that makes a reset one second longer than the reference's.
func (c *comparison) behind(now time.Time) (longest time.Duration) {
	c.recent = slices.DeleteFunc(c.recent, func(r timed) bool { return now.Sub(r.at) > time.Second })
	for _, r := range c.recent {
		longest = max(longest, r.took)
	}
	return longest
}

// compare sends a request to all, and compares what they answer.
func (c *comparison) compare(t *testing.T, q *rlsv3.RateLimitRequest) {
	t.Helper()
	x := c.begin(q)
	begun := time.Now()
	behind := c.behind(begun)
	during := span{from: begun.Unix()}
	all := make([]*rlsv3.RateLimitResponse, 1+len(c.ours))
	errs := make([]error, len(all))
	var calls sync.WaitGroup
	for i, p := range append([]*peer{c.theirs}, c.ours...) {
		calls.Go(func() { all[i], errs[i] = p.try(t, q) })
	}
	calls.Wait()
	ended := time.Now()
	c.recent = append(c.recent, timed{begun, ended.Sub(begun)})
	during.to = ended.Unix()
	shown := span{begun.Add(-behind).Unix(), during.to}
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%v\n%v", err, q)
	}
	x.want = all[0]
	got := all[1:]

	torn := false
	for i, s := range x.want.GetStatuses() {
		x.counts = append(x.counts, nil)
		if s.GetCurrentLimit() == nil {
			continue
		}
		first := c.count(x, i, s.GetCurrentLimit().GetUnit(), during.from)
		last := c.count(x, i, s.GetCurrentLimit().GetUnit(), during.to)
		last.torn = last.torn || last != first
		torn = torn || last.torn || first.torn
		x.counts[i] = last
	}
	x.charge(t)
	if torn {
		c.torn++
		return
	}
	c.compared++
	original := proto.Clone(x.want)
	settle(x.want, shown)
	changed := false
	for _, d := range differences {
		if d.apply != nil && d.apply(x) {
			c.applied[d.key]++
			changed = true
		}
	}
	if changed {
		x.conclude()
	}
	for i, p := range c.ours {
		if settle(got[i], shown); !proto.Equal(got[i], x.want) {
			t.Fatalf("%s answers\n%v\nwant\n%v\nthe reference has answered\n%v\nto\n%v", p.name, got[i], x.want, original, q)
		}
	}
}

// maker generates domains and requests. No two of its descriptors have the same name in the
// reference, since they contain no underscore.
type maker struct{ *rand.Rand }

func (m maker) chance(percent int) bool { return m.IntN(100) < percent }

func pick[T any](m maker, from ...T) T { return from[m.IntN(len(from))] }

func (m maker) domain(name string) descriptor.Domain {
	return descriptor.Domain{Domain: name, Descriptors: m.descriptors(1)}
}

func (m maker) descriptors(depth int) (all []descriptor.Descriptor) {
	for _, key := range []string{"a", "b", "c"} {
		values := []string{"x1", "x2", "y1", "x*", "y*", ""}
		if key == "c" {
			values = []string{"x1", "*", ""}
		}
		for _, value := range values {
			if m.chance(45) {
				all = append(all, m.descriptor(key, value, depth))
			}
		}
	}
	for _, key := range []string{"a*", "d*"} { // the first of which competes with values of a
		if m.chance(30) {
			all = append(all, m.descriptor(key, "", depth))
		}
	}
	all = m.addNewer(all, depth)
	m.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

func (m maker) descriptor(key, value string, depth int) descriptor.Descriptor {
	d := descriptor.Descriptor{
		Key: key, Value: value, ShadowMode: m.chance(12), QuotaMode: m.chance(15),
		DetailedMetric: m.chance(10), ValueToMetric: m.chance(10), ShareThreshold: strings.HasSuffix(value, "*") && m.chance(40),
	}
	if m.chance(80) {
		d.RateLimit = m.limit()
	}
	if depth < 3 && m.chance(40) {
		d.Descriptors = m.descriptors(depth + 1)
	}
	return d
}

func (m maker) limit() *descriptor.RateLimit {
	l := &descriptor.RateLimit{Name: pick(m, "", "", "n1", "n2", "n3")}
	if other := pick(m, "n1", "n2", "n3"); other != l.Name && m.chance(15) {
		l.Replaces = []descriptor.Replace{{Name: other}}
	}
	if l.Unlimited = m.chance(8); !l.Unlimited {
		l.Unit = pick(m, "second", "minute", "hour", "HOUR", "day", "week", "month", "year")
		l.RequestsPerUnit = pick[uint32](m, 0, 1, 2, 3, 4, 5, 6, 8, 12, 1000)
	}
	return l
}

func (m maker) request(c *comparison, domain descriptor.Domain) *rlsv3.RateLimitRequest {
	q := &rlsv3.RateLimitRequest{Domain: domain.Domain, HitsAddend: pick[uint32](m, 0, 0, 0, 1, 2, 3)}
	if m.chance(2) {
		q.Domain = "nowhere"
	}
	for range 1 + m.IntN(5) {
		d := &commonv3.RateLimitDescriptor{Entries: m.entries(domain.Descriptors)}
		if m.chance(25) {
			d.HitsAddend = wrapperspb.UInt64(m.Uint64N(4))
		}
		if m.chance(8) && q.Domain != "nowhere" {
			d.Limit = m.override(c.find(q.Domain, d))
		}
		q.Descriptors = append(q.Descriptors, d)
	}
	return q
}

// override is a limit in a request. Its unit is that of the limit that it replaces: the
// reference distinguishes windows by their start.
func (m maker) override(l *descriptor.Limit) *commonv3.RateLimitDescriptor_RateLimitOverride {
	o := &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: m.Uint32N(7), Unit: typev3.RateLimitUnit_HOUR}
	if l != nil && !l.Unlimited {
		o.Unit = typev3.RateLimitUnit(l.Unit)
	}
	return o
}

// entries returns the entries of a request, most of which lead to a descriptor.
func (m maker) entries(level []descriptor.Descriptor) (entries []*commonv3.RateLimitDescriptor_Entry) {
	for depth := 1; ; depth++ {
		e := &commonv3.RateLimitDescriptor_Entry{Key: pick(m, "a", "b", "c", "dd", "z"), Value: pick(m, "x1", "x2", "x3", "y1", "y2", "q", "")}
		var next []descriptor.Descriptor
		if len(level) > 0 && m.chance(92) {
			d := pick(m, level...)
			next = d.Descriptors
			e.Key = strings.Replace(d.Key, "*", pick(m, "d", "e"), 1)
			if e.Value = strings.Replace(d.Value, "*", pick(m, "1", "3"), 1); d.Value == "" && m.chance(70) {
				e.Value = pick(m, "q", "r")
			}
		}
		if e.Value == "" && e.Key == "c" {
			e.Value = "q" // there it would fit c_*
		}
		entries = append(entries, e)
		if depth == 4 || len(next) == 0 && m.chance(95) || len(next) > 0 && m.chance(35) {
			return entries
		}
		level = next
	}
}

// open starts the reference and Stints with generated domains.
func (c *comparison) open(t *testing.T, domains []descriptor.Domain, theirs, ours []string) {
	t.Helper()
	texts := map[string]string{}
	var files []descriptor.File
	for _, d := range domains {
		text, err := json.Marshal(d) // which is YAML, too
		if err != nil {
			t.Fatal(err)
		}
		texts[d.Domain] = string(text)
		files = append(files, descriptor.File{Name: d.Domain, Data: text})
	}
	var err error
	if c.config, err = descriptor.Read(files, descriptor.Options{FixedMonths: true}); err != nil {
		t.Fatal(err)
	}
	dir := writeDomains(t, texts)
	c.theirs = startReference(t, dir, theirs...)
	c.ours = []*peer{serveEnvoy(t, dir, ours...).peer, serveEnvoy(t, dir, slices.Concat(ours, inRedis(t))...).peer, startInPlace(t, dir, theirs...)}
	c.counts, c.applied = map[string]*count{}, map[string]int{}
}

// TestEnvoyAnswersAsReference sends random requests, about random descriptors, to the reference and to Stint, which answer
// alike, but for the differences. Under make torture there are so many that each difference is seen.
func TestEnvoyAnswersAsReference(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if text := os.Getenv("STINT_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("the seed is %d", seed)
	m := maker{rand.New(rand.NewPCG(seed, 0))}
	var domains []descriptor.Domain
	many := 12
	if torture.Enabled {
		many = 40
	}
	for i := range many {
		domains = append(domains, m.domain("domain"+strconv.Itoa(i)))
	}
	var c comparison
	c.open(t, domains,
		[]string{"LIMIT_RESPONSE_HEADERS_ENABLED=true", "RESPONSE_DYNAMIC_METADATA=true"},
		[]string{"STINT_ENVOY_RESPONSE_HEADERS=true", "STINT_ENVOY_DYNAMIC_METADATA=true"})
	for _, d := range domains {
		for range 55 {
			c.compare(t, m.request(&c, d))
		}
	}
	t.Logf("%d answers are compared, %d fell on the border of a window, differences: %v", c.compared, c.torn, c.applied)
	torture.AtLeast(t, "answers that are compared", c.compared, 2000)
	for _, d := range differences {
		if torture.Enabled && d.apply != nil && d.exists() && c.applied[d.key] == 0 && c.torn < c.compared/20 {
			t.Errorf("the difference %s was not seen", d.key)
		}
	}
}
