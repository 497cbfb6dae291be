package rls_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/grpclimit/rls"
	"github.com/stintdev/stint/memstore"
)

// This file is long: one case for each thing that Envoy can ask, on one bench.

// start is an instant that is 15 s before the end of a minute and of an hour.
var start = time.Date(2026, 3, 4, 5, 59, 45, 0, time.UTC)

// clock is a clock that stands still unless it is moved.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// bench is a service, and what it stands on.
type bench struct {
	*rls.Service
	clock *clock
	store stint.Store
	t     testing.TB
}

func limits(t testing.TB, text string) *descriptor.Config {
	t.Helper()
	var files []descriptor.File
	for i, text := range strings.Split(text, "\n---\n") {
		files = append(files, descriptor.File{Name: fmt.Sprintf("%d.yaml", i), Data: []byte(text)})
	}
	c, err := descriptor.Read(files, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newBench(t testing.TB, text string, change func(*rls.Options)) *bench {
	t.Helper()
	c := &clock{now: start}
	store, err := memstore.New(memstore.Options{Now: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	o := rls.Options{Store: store, Config: limits(t, text), Now: c.Now}
	if change != nil {
		change(&o)
	}
	s, err := rls.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return &bench{s, c, o.Store, t}
}

// ask is a request as it is written in tests: a domain, and descriptors such as
// "a=1 b=2". One that begins with N: has hits of its own, and with -N: gives them back.
func ask(domain string, descriptors ...string) *rlsv3.RateLimitRequest {
	q := &rlsv3.RateLimitRequest{Domain: domain}
	for _, text := range descriptors {
		d := &ratelimitv3.RateLimitDescriptor{}
		if hits, rest, ok := strings.Cut(text, ":"); ok {
			var n int
			if _, err := fmt.Sscan(hits, &n); err != nil {
				panic(err)
			}
			d.IsNegativeHits = n < 0
			d.HitsAddend = wrapperspb.UInt64(uint64(max(n, -n)))
			text = rest
		}
		for entry := range strings.FieldsSeq(text) {
			key, value, _ := strings.Cut(entry, "=")
			d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		q.Descriptors = append(q.Descriptors, d)
	}
	return q
}

func (b *bench) send(q *rlsv3.RateLimitRequest) *rlsv3.RateLimitResponse {
	b.t.Helper()
	a, err := b.ShouldRateLimit(b.t.Context(), q)
	if err != nil {
		b.t.Fatal(err)
	}
	return a
}

// want checks an answer: the overall code, and of each status the code and what remains.
func (b *bench) want(q *rlsv3.RateLimitRequest, want string) {
	b.t.Helper()
	if got := brief(b.send(q)); got != want {
		b.t.Errorf("%v: got %s, want %s", protojson.Format(q), got, want)
	}
}

// brief is an answer in a line: OK [OK 2, OVER 0].
func brief(a *rlsv3.RateLimitResponse) string {
	short := func(c rlsv3.RateLimitResponse_Code) string {
		return strings.TrimSuffix(c.String(), "_LIMIT")
	}
	var statuses []string
	for _, s := range a.GetStatuses() {
		switch {
		case s.GetLimitRemaining() == math.MaxUint32:
			statuses = append(statuses, short(s.GetCode())+" unlimited")
		case s.GetCurrentLimit() == nil:
			statuses = append(statuses, short(s.GetCode())+" none")
		default:
			statuses = append(statuses, fmt.Sprintf("%s %d", short(s.GetCode()), s.GetLimitRemaining()))
		}
	}
	return short(a.GetOverallCode()) + " [" + strings.Join(statuses, ", ") + "]"
}

const plain = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: path
    rate_limit: {unit: hour, requests_per_unit: 10, name: paths}
  - key: banned
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: free
    rate_limit: {unlimited: true}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: q1
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: q2
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: special
    rate_limit: {unit: hour, requests_per_unit: 5, replaces: [{name: paths}]}
  - key: file
    value: img/*
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: open
`

func TestAllOrNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, plain, nil)
	both := ask("d", "user=a", "path=/")
	b.want(both, "OK [OK 2, OK 9]")
	b.want(both, "OK [OK 1, OK 8]")
	b.want(both, "OK [OK 0, OK 7]")
	b.want(both, "OVER [OVER 0, OK 7]")
	b.want(both, "OVER [OVER 0, OK 7]")
	b.want(ask("d", "path=/"), "OK [OK 6]")
	b.clock.Add(15 * time.Second)
	b.want(ask("d", "user=a"), "OK [OK 2]")
}

func TestIndependent(t *testing.T) {
	t.Parallel()
	b := newBench(t, "compat: independent\n"+plain, nil)
	both := ask("d", "user=a", "path=/")
	for range 3 {
		b.send(both)
	}
	b.want(both, "OVER [OVER 0, OK 6]")
	b.want(both, "OVER [OVER 0, OK 5]")
	// What does not fit uses up what is left, as it does there.
	q := ask("d", "user=b")
	q.HitsAddend = 2
	b.want(q, "OK [OK 1]")
	b.want(q, "OVER [OVER 0]")
	b.want(ask("d", "user=b"), "OVER [OVER 0]")
}

func TestKinds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		asks []*rlsv3.RateLimitRequest
		want []string
	}{
		"unknown domain":    {[]*rlsv3.RateLimitRequest{ask("x", "user=a")}, []string{"OK [OK none]"}},
		"no such key":       {[]*rlsv3.RateLimitRequest{ask("d", "x=y", "user=a")}, []string{"OK [OK none, OK 2]"}},
		"no rate_limit":     {[]*rlsv3.RateLimitRequest{ask("d", "open=a")}, []string{"OK [OK none]"}},
		"too deep":          {[]*rlsv3.RateLimitRequest{ask("d", "user=a x=y")}, []string{"OK [OK none]"}},
		"unlimited":         {[]*rlsv3.RateLimitRequest{ask("d", "free=a")}, []string{"OK [OK unlimited]"}},
		"none at all":       {[]*rlsv3.RateLimitRequest{ask("d", "banned=a", "user=a"), ask("d", "user=a")}, []string{"OVER [OVER 0, OK 3]", "OK [OK 2]"}},
		"none, and another": {[]*rlsv3.RateLimitRequest{ask("d", "user=a"), ask("d", "user=a"), ask("d", "user=a"), ask("d", "user=a", "banned=a")}, []string{"OK [OK 2]", "OK [OK 1]", "OK [OK 0]", "OVER [OVER 0, OVER 0]"}},
		"shadow":            {[]*rlsv3.RateLimitRequest{ask("d", "shadow=a", "user=a"), ask("d", "shadow=a", "user=a")}, []string{"OK [OK 0, OK 2]", "OK [OK 0, OK 1]"}},
		"one quota":         {[]*rlsv3.RateLimitRequest{ask("d", "q1=a"), ask("d", "q1=a")}, []string{"OK [OK 0]", "OVER [OVER 0]"}},
		"quotas":            {[]*rlsv3.RateLimitRequest{ask("d", "q1=a", "q2=a"), ask("d", "q1=a", "q2=a"), ask("d", "q1=a", "q2=a", "user=a"), ask("d", "user=a")}, []string{"OK [OK 0, OK 1]", "OK [OVER 0, OK 0]", "OVER [OVER 0, OVER 0, OK 3]", "OK [OK 2]"}},
		"replaces":          {[]*rlsv3.RateLimitRequest{ask("d", "special=a", "path=/"), ask("d", "path=/")}, []string{"OK [OK 4, OK none]", "OK [OK 9]"}},
		"shared threshold":  {[]*rlsv3.RateLimitRequest{ask("d", "file=img/a"), ask("d", "file=img/b"), ask("d", "file=img/c")}, []string{"OK [OK 1]", "OK [OK 0]", "OVER [OVER 0]"}},
		"same twice":        {[]*rlsv3.RateLimitRequest{ask("d", "user=a", "user=a"), ask("d", "user=a", "user=a"), ask("d", "user=a")}, []string{"OK [OK 2, OK 1]", "OVER [OK 1, OVER 0]", "OK [OK 0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, plain, nil)
			for i, q := range c.asks {
				b.want(q, c.want[i])
			}
		})
	}
}

// TestOwnHits: what a descriptor tells itself is what something has cost, after the fact.
func TestOwnHits(t *testing.T) {
	t.Parallel()
	b := newBench(t, plain, nil)
	b.want(ask("d", "0:path=/"), "OK [OK 10]")
	b.want(ask("d", "7:path=/"), "OK [OK 3]")
	b.want(ask("d", "0:path=/"), "OK [OK 3]")
	// It costs more than is left, and is charged all the same, as is what comes with it.
	b.want(ask("d", "7:path=/", "2:user=a"), "OVER [OVER 0, OK 1]")
	b.want(ask("d", "0:path=/", "user=b"), "OVER [OVER 0, OK 3]")
	b.want(ask("d", "path=/"), "OVER [OVER 0]")
	// The request of a user is not charged where it is refused for something else.
	b.want(ask("d", "user=b"), "OK [OK 2]")
	b.want(ask("d", "-2:user=b"), "OK [OK 3]")
	b.want(ask("d", "-20:user=b"), "OK [OK 3]")
	huge := ask("d", "1:user=c")
	huge.Descriptors[0].HitsAddend.Value = math.MaxUint64
	b.want(huge, "OVER [OVER 0]")
}

func TestHitsOfRequest(t *testing.T) {
	t.Parallel()
	b := newBench(t, plain, nil)
	q := ask("d", "path=/", "3:user=a")
	q.HitsAddend = 4
	b.want(q, "OK [OK 6, OK 0]")
	q = ask("d", "path=/")
	q.HitsAddend = math.MaxUint32
	b.want(q, "OVER [OVER 0]")
	b.want(ask("d", "path=/"), "OK [OK 5]") // what was refused was charged to no one
}

func TestOverride(t *testing.T) {
	t.Parallel()
	b := newBench(t, plain, nil)
	with := func(q *rlsv3.RateLimitRequest, requests uint32, unit typev3.RateLimitUnit, multiplier uint32) *rlsv3.RateLimitRequest {
		o := &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: requests, Unit: unit}
		if multiplier > 0 {
			o.UnitMultiplier = wrapperspb.UInt32(multiplier)
		}
		q.Descriptors[0].Limit = o
		return q
	}
	b.want(with(ask("d", "user=a"), 2, typev3.RateLimitUnit_MINUTE, 0), "OK [OK 1]")
	b.want(with(ask("d", "user=a"), 2, typev3.RateLimitUnit_HOUR, 0), "OK [OK 1]")
	b.want(with(ask("d", "shadow=a"), 0, typev3.RateLimitUnit_HOUR, 0), "OVER [OVER 0]")
	b.want(with(ask("elsewhere", "x=y"), 1, typev3.RateLimitUnit_DAY, 0), "OK [OK 0]")
	b.want(with(ask("elsewhere", "x=y"), 1, typev3.RateLimitUnit_DAY, 0), "OVER [OVER 0]")
	a := b.send(with(ask("d", "user=x"), 5, typev3.RateLimitUnit_MINUTE, 10))
	got := protojson.MarshalOptions{}.Format(a.GetStatuses()[0])
	want := `{"code":"OK","currentLimit":{"requestsPerUnit":5,"unit":"MINUTE","unitMultiplier":10},"limitRemaining":4,"durationUntilReset":"15s"}`
	if strings.ReplaceAll(got, " ", "") != want {
		t.Error(got)
	}
	for _, c := range []struct {
		unit       typev3.RateLimitUnit
		multiplier uint32
		want       string
	}{
		{typev3.RateLimitUnit_UNKNOWN, 0, "descriptors[0].limit"},
		{99, 0, "descriptors[0].limit"},
		{typev3.RateLimitUnit_YEAR, 1000, "unit_multiplier"},
	} {
		_, err := b.ShouldRateLimit(t.Context(), with(ask("d", "user=a"), 1, c.unit, c.multiplier))
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.want) {
			t.Error(c, err)
		}
	}
}

func TestWindowsAndAlgorithms(t *testing.T) {
	t.Parallel()
	b := newBench(t, `
domain: d
descriptors:
  - key: bucket
    rate_limit: {window: 10s, requests_per_unit: 10, algorithm: token_bucket, burst: 2}
  - key: month
    rate_limit: {unit: month, requests_per_unit: 10}
  - key: berlin
    rate_limit: {window: "day tz=Europe/Berlin", requests_per_unit: 10}
  - key: never
    rate_limit: {unit: minute, requests_per_unit: 0}
  - key: minute
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: strict
    rate_limit: {unit: hour, requests_per_unit: 5, penalty: "9/1h cooldown=1m"}
  - key: naughty
    rate_limit: {unit: second, requests_per_unit: 1, penalty: "2/1h cooldown=1m"}
`, nil)
	b.want(ask("d", "bucket=a"), "OK [OK 1]")
	b.want(ask("d", "bucket=a"), "OK [OK 0]")
	b.want(ask("d", "bucket=a"), "OVER [OVER 0]")
	b.clock.Add(time.Second)
	b.want(ask("d", "bucket=a"), "OK [OK 0]")
	for q, want := range map[string]time.Duration{
		"month=a":  time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC).Sub(b.clock.Now()),
		"berlin=a": time.Date(2026, 3, 4, 23, 0, 0, 0, time.UTC).Sub(b.clock.Now()),
	} {
		if got := b.send(ask("d", q)).GetStatuses()[0].GetDurationUntilReset().AsDuration(); got != want {
			t.Error(q, got, want)
		}
	}
	// That of what never passes, and of what was never used, is the window's.
	for _, q := range []string{"never=a", "0:minute=a"} {
		if got := b.send(ask("d", q)).GetStatuses()[0].GetDurationUntilReset().AsDuration(); got != 14*time.Second {
			t.Error(q, got)
		}
	}
	b.want(ask("d", "naughty=a"), "OK [OK 0]")
	b.want(ask("d", "naughty=a"), "OVER [OVER 0]")
	a := b.send(ask("d", "naughty=a")) // the second violation
	if got := a.GetStatuses()[0].GetDurationUntilReset().AsDuration(); got != time.Minute {
		t.Error(got)
	}
	b.clock.Add(30 * time.Second)
	b.want(ask("d", "naughty=a"), "OVER [OVER 0]")
	b.want(ask("d", "naughty=b"), "OK [OK 0]")
	b.clock.Add(30 * time.Second)
	b.want(ask("d", "naughty=a"), "OK [OK 0]")
	// Twice in one request is once for both.
	b.want(ask("d", "naughty=c", "month=c", "naughty=c"), "OVER [OVER 0, OK 10, OVER 0]")
	b.want(ask("d", "naughty=c", "month=c"), "OK [OK 0, OK 9]")
	b.want(ask("d", "3:strict=d", "3:strict=d"), "OVER [OVER 0, OVER 0]")
	b.want(ask("d", "0:strict=d"), "OVER [OVER 0]")
}

func TestModesOfAll(t *testing.T) {
	t.Parallel()
	shadow := newBench(t, plain, func(o *rls.Options) { o.Shadow = true })
	for range 3 {
		shadow.send(ask("d", "user=a"))
	}
	shadow.want(ask("d", "user=a", "path=/"), "OK [OVER 0, OK 9]")
	quota := newBench(t, plain, func(o *rls.Options) { o.Quota = true })
	for range 3 {
		quota.send(ask("d", "user=a"))
	}
	quota.want(ask("d", "user=a", "path=/"), "OK [OVER 0, OK 9]")
	quota.want(ask("d", "user=a"), "OVER [OVER 0]")
	// A descriptor without a limit is a quota with room.
	quota.want(ask("d", "user=a", "unknown=x"), "OK [OVER 0, OK none]")
	quota.want(ask("d", "user=a", "unknown=x", "user=a"), "OK [OVER 0, OK none, OVER 0]")
}

// TestKeys: descriptors that read alike when they are joined are counted apart.
func TestKeys(t *testing.T) {
	t.Parallel()
	b := newBench(t, `
domain: a
descriptors:
  - key: k
    rate_limit: {unit: hour, requests_per_unit: 1}
    descriptors:
      - key: k
        rate_limit: {unit: hour, requests_per_unit: 1}
---
domain: a_k
descriptors:
  - key: k
    rate_limit: {unit: hour, requests_per_unit: 1}
`, nil)
	entry := func(value string) *rlsv3.RateLimitRequest {
		q := ask("a", "k=x")
		q.Descriptors[0].Entries[0].Value = value
		return q
	}
	two := entry("v")
	two.Descriptors[0].Entries = append(two.Descriptors[0].Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: "k", Value: "w"})
	for _, q := range []*rlsv3.RateLimitRequest{
		entry("v_k_w"), entry("v|k=w"), entry("v\\|k=w"), entry("v\\"), entry(""), entry("#"), entry("v"), two,
		entry(strings.Repeat("x", 5000)), entry(strings.Repeat("x", 5001)), ask("a_k", "k=v"),
	} {
		b.want(q, "OK [OK 0]")
		b.want(q, "OVER [OVER 0]")
	}
}

func TestHeadersAndMetadata(t *testing.T) {
	t.Parallel()
	b := newBench(t, `
domain: d
descriptors:
  - key: user
    metadata: {plan: {name: free, seats: 3}, tags: [a, true]}
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: path
    metadata: {plan: {name: other, more: yes}}
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: q
    quota_mode: true
    metadata: {gone: 1}
    rate_limit: {unit: hour, requests_per_unit: 0}
`, func(o *rls.Options) { o.Headers, o.Metadata = &rls.DefaultHeaders, true })
	q := ask("d", "user=a", "2:path=/", "q=1", "x=")
	q.HitsAddend = 1
	q.Descriptors[3].Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 7, Unit: typev3.RateLimitUnit_DAY}
	a := b.send(q)
	var headers []string
	for _, h := range a.GetResponseHeadersToAdd() {
		headers = append(headers, h.GetKey()+": "+h.GetValue())
	}
	if got := strings.Join(headers, ", "); got != "RateLimit-Limit: 1, RateLimit-Remaining: 0, RateLimit-Reset: 15" {
		t.Error(got)
	}
	got := protojson.Format(a.GetDynamicMetadata())
	for _, want := range []string{
		`"domain":"d"`, `"entries":["user=a"]`, `"hitsAddend":2`, `"limit":"requests_per_unit:7unit:DAY"`, `"quotaModeEnabled":true`,
		`"quotaModeViolations":[2]`, `"metadata":{"plan":{"name":"free","seats":3},"tags":["a",true]}`,
	} {
		if !strings.Contains(strings.Map(func(r rune) rune {
			if r == ' ' || r == '\n' {
				return -1
			}
			return r
		}, got), want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	// The tightest of those that pass.
	a = b.send(ask("d", "user=b", "path=/y"))
	if h := a.GetResponseHeadersToAdd(); len(h) != 3 || h[0].GetValue() != "1" || h[1].GetValue() != "0" {
		t.Error(h)
	}
}

// TestDecisionHeader checks that Envoy adds the id of the recorded decision if that is wanted, and nothing else.
func TestDecisionHeader(t *testing.T) {
	t.Parallel()
	var kept events
	b := newBench(t, plain, func(o *rls.Options) { o.DecisionHeader, o.Recorder = "stint-decision", &kept })
	h := b.send(ask("d", "user=a")).GetResponseHeadersToAdd()
	if len(h) != 1 || h[0].GetKey() != "stint-decision" || len(kept.all) != 1 || kept.all[0].ID.String() != h[0].GetValue() {
		t.Errorf("%v, recorded %v", h, kept.all)
	}
	if h := b.send(ask("other", "user=a")).GetResponseHeadersToAdd(); len(h) != 0 {
		t.Errorf("%v, but no limit applied", h)
	}
}

// TestMark checks that Envoy adds a header to requests that pass and are over a limit with mark, and to no others.
func TestMark(t *testing.T) {
	t.Parallel()
	b := newBench(t, `
domain: d
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 2, mark: true, name: fair }
  - key: all
    rate_limit: { unit: minute, requests_per_unit: 4 }
  - key: never
    rate_limit: { unit: minute, requests_per_unit: 0, mark: true }
`, nil)
	for i, want := range []string{"", "", `"fair";q=2;over=1;t=15`, `"fair";q=2;over=1;t=15`, "denied"} {
		a := b.send(ask("d", "user=a", "all=1"))
		got := "denied"
		if a.GetOverallCode() == rlsv3.RateLimitResponse_OK {
			got = ""
			for _, h := range a.GetRequestHeadersToAdd() {
				got += h.GetValue()
				if h.GetKey() != "Stint-Over" {
					t.Errorf("request %d: %v", i, h)
				}
			}
		} else if len(a.GetRequestHeadersToAdd()) > 0 {
			t.Errorf("request %d: denied, and marked: %v", i, a)
		}
		if got != want || len(a.GetResponseHeadersToAdd()) > 0 {
			t.Errorf("request %d: %v, want %q", i, a, want)
		}
	}
	a := b.send(ask("d", "never=1", "user=b"))
	if h := a.GetRequestHeadersToAdd(); a.GetOverallCode() != rlsv3.RateLimitResponse_OK || len(h) != 1 || h[0].GetValue() != `"d.never";q=0;over=1` {
		t.Errorf("%v", a)
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	b := newBench(t, plain, nil)
	many := ask("d")
	for range 2001 {
		many.Descriptors = append(many.Descriptors, ask("d", "user=a").GetDescriptors()...)
	}
	for name, c := range map[string]struct {
		q    *rlsv3.RateLimitRequest
		want string
	}{
		"nothing":          {&rlsv3.RateLimitRequest{}, "domain: must not be empty"},
		"no domain":        {ask("", "user=a"), "domain: must not be empty"},
		"no descriptors":   {ask("d"), "descriptors: want at least one"},
		"no entries":       {ask("d", "user=a", ""), "descriptors[1].entries: want at least one"},
		"no key":           {ask("d", "user=a =b"), "descriptors[0].entries[1].key: must not be empty"},
		"many entries":     {ask("d", strings.Repeat("user=a ", 65)), "descriptors[0].entries: want at most 64"},
		"many descriptors": {many, "descriptors: want at most 2000"},
	} {
		_, err := b.ShouldRateLimit(t.Context(), c.q)
		if s := status.Convert(err); s.Code() != codes.InvalidArgument || s.Message() != c.want {
			t.Error(name, err)
		}
	}
	b.want(ask("d", "user=a"), "OK [OK 2]") // nothing was charged
}

func TestNotLoaded(t *testing.T) {
	t.Parallel()
	b := newBench(t, plain, func(o *rls.Options) { o.Config = nil })
	if _, err := b.ShouldRateLimit(t.Context(), ask("d", "user=a")); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if b.Config() != nil {
		t.Error("it has a configuration")
	}
	b.Use(limits(t, plain))
	b.want(ask("d", "user=a"), "OK [OK 2]")
	b.Use(limits(t, strings.ReplaceAll(plain, "requests_per_unit: 3", "requests_per_unit: 5")))
	b.want(ask("d", "user=a"), "OK [OK 3]") // what was counted counts
}

// broken is a store that cannot be reached.
type broken struct {
	stint.Store
	err error
}

func (b broken) Take(context.Context, []stint.Ask, []stint.Decision) error { return b.err }

func TestMachineryErrors(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]codes.Code{
		fmt.Errorf("dial tcp 10.0.0.1: %w", stint.ErrUnavailable): codes.Unavailable,
		context.DeadlineExceeded:                                  codes.DeadlineExceeded,
		context.Canceled:                                          codes.Canceled,
		errors.New("what is this"):                                codes.Unavailable,
	} {
		b := newBench(t, plain, func(o *rls.Options) { o.Store = broken{o.Store, err} })
		_, got := b.ShouldRateLimit(t.Context(), ask("d", "user=a"))
		if status.Code(got) != want || strings.Contains(got.Error(), "10.0.0.1") {
			t.Error(err, got)
		}
		// What asks nothing of it is answered.
		b.want(ask("d", "free=a", "x=y", "banned=a"), "OVER [OK unlimited, OK none, OVER 0]")
	}
}

// local is a store that decides in another's place.
type local struct{ stint.Store }

func (l local) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	err := l.Store.Take(ctx, asks, ds)
	for i := range ds {
		ds[i].Basis = stint.Local
	}
	return err
}

// TestFailError: where only the store may decide, no one else does, and nothing is charged.
func TestFailError(t *testing.T) {
	t.Parallel()
	b := newBench(t, plain, func(o *rls.Options) { o.Store = local{o.Store} })
	b.want(ask("d", "user=a"), "OK [OK 2]")
	strict, err := rls.New(rls.Options{Store: local{b.store}, Config: limits(t, plain), OnFailure: stint.FailError, Now: b.clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := strict.ShouldRateLimit(t.Context(), ask("d", "user=a", "path=/")); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	b.want(ask("d", "user=a", "path=/"), "OK [OK 1, OK 9]")
}

// TestLeft: who has left before is charged nothing.
func TestLeft(t *testing.T) {
	t.Parallel()
	b := newBench(t, plain, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.ShouldRateLimit(ctx, ask("d", "user=a")); status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	b.want(ask("d", "user=a"), "OK [OK 2]")
}

// events are those that were recorded.
type events struct {
	mu  sync.Mutex
	all []engine.Event
}

func (e *events) Record(_ context.Context, v *engine.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, *v)
}

func TestRecorded(t *testing.T) {
	t.Parallel()
	var e events
	b := newBench(t, plain, func(o *rls.Options) { o.Recorder = &e })
	b.send(ask("d", "path=/", "user=a"))
	b.send(ask("d", "path=/", "user=a"))
	b.send(ask("d", "path=/", "user=a"))
	b.send(ask("d", "path=/", "user=a"))
	b.send(ask("d", "shadow=a"))
	b.send(ask("d", "shadow=a"))
	b.send(ask("d", "nothing=a"))
	if _, err := b.Usage(t.Context(), "d", []descriptor.Entry{{Key: "user", Value: "a"}}); err != nil { // no one is told
		t.Error(err)
	}
	var got []string
	for _, v := range e.all {
		got = append(got, fmt.Sprintf("%s %s %d/%d %v", v.Outcome, v.Rule, v.Used, v.Max, v.Shadow))
	}
	want := []string{
		"allowed d.user 1/3 false", "allowed d.user 2/3 false", "allowed d.user 3/3 false", "denied d.user 3/3 false",
		"allowed d.shadow 1/1 false", "allowed d.shadow 1/1 true",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %q, want %q", got, want)
	}
	if v := e.all[3]; v.Status != 429 || v.RetryAfter != 15*time.Second || v.ID == (engine.ID{}) || !v.At.Equal(start) {
		t.Error(v)
	}
	b.send(ask("d", "path=/search", "method=GET", "user=b"))
	b.send(ask("d", "method=INVENTED", "user=b"))
	if v, w := e.all[len(e.all)-2], e.all[len(e.all)-1]; e.all[0].Path != "/" || v.Method != http.MethodGet || v.Path != "/search" || w.Method != "" || w.Path != "" {
		t.Errorf("%+v, %+v", v, w)
	}
}

func TestStats(t *testing.T) {
	t.Parallel()
	b := newBench(t, `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: detail
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
`, nil)
	for range 12 {
		b.send(ask("d", "user=a"))
	}
	b.send(ask("d", "detail=x"))
	b.send(ask("d", "shadow=x"))
	b.send(ask("d", "shadow=x"))
	got := map[string]rls.Hits{}
	for name, h := range b.Stats() {
		got[name] = h
	}
	for name, want := range map[string]rls.Hits{
		"d.user":     {Total: 12, Within: 10, Near: 2, Over: 2},
		"d.detail_x": {Total: 1, Within: 1, Near: 1},
		"d.shadow":   {Total: 2, Within: 1, Near: 1, Over: 1, Shadow: 1},
	} {
		if got[name] != want {
			t.Errorf("%s: got %+v, want %+v", name, got[name], want)
		}
	}
	for i := range 20_000 {
		b.send(ask("d", fmt.Sprintf("detail=%d", i)))
	}
	names, others := 0, false
	for name := range b.Stats() {
		names++
		others = others || name == rls.Others
	}
	if names > 10_003 || !others {
		t.Error(names, others)
	}
	// A new limit is counted also then, and what was counted stays.
	b.Use(limits(t, `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: new
    rate_limit: {unit: minute, requests_per_unit: 10}
`))
	b.send(ask("d", "new=x"))
	for name, h := range b.Stats() {
		got[name] = h
	}
	if got["d.new"].Within != 1 || got["d.user"].Total != 12 || got["d.detail_x"].Total != 1 {
		t.Error(got["d.new"], got["d.user"], got["d.detail_x"])
	}
}

func TestUsageAndReset(t *testing.T) {
	t.Parallel()
	b := newBench(t, plain, nil)
	user := []descriptor.Entry{{Key: "user", Value: "a"}}
	for range 3 {
		b.send(ask("d", "user=a"))
	}
	u, err := b.Usage(t.Context(), "d", user)
	if err != nil || u == nil || u.Limit.Path != "d.user" || u.Decision.Remaining != 0 || u.Decision.Limit != 3 {
		t.Fatal(u, err)
	}
	if found, err := b.Reset(t.Context(), "d", user); !found || err != nil {
		t.Error(found, err)
	}
	b.want(ask("d", "user=a"), "OK [OK 2]")
	if u, err := b.Usage(t.Context(), "d", []descriptor.Entry{{Key: "x", Value: "a"}}); u != nil || err != nil {
		t.Error(u, err)
	}
	for _, entries := range [][]descriptor.Entry{{{Key: "free", Value: "a"}}, {{Key: "banned", Value: "a"}}} {
		if found, err := b.Reset(t.Context(), "d", entries); !found || err != nil {
			t.Error(entries, found, err)
		}
	}
	if _, err := b.Usage(t.Context(), "", nil); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}

// TestExact: however many ask at once, no more pass than may, and all that may do.
func TestExact(t *testing.T) {
	t.Parallel()
	b := newBench(t, `
domain: d
descriptors:
  - key: a
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: b
    rate_limit: {unit: hour, requests_per_unit: 150}
  - key: s
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 20}
`, nil)
	var passed sync.Map
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			n := 0
			for range 50 {
				a, err := b.ShouldRateLimit(t.Context(), ask("d", "a=1", "b=1", "s=1"))
				if err != nil {
					t.Error(err)
				}
				if a.GetOverallCode() == rlsv3.RateLimitResponse_OK {
					n++
				}
			}
			passed.Store(g, n)
		})
	}
	wg.Wait()
	sum := 0
	passed.Range(func(_, n any) bool { sum += n.(int); return true })
	if sum != 100 {
		t.Error(sum)
	}
	b.want(ask("d", "0:b=1", "0:s=1"), "OK [OK 50, OK 0]")
}

func TestOptions(t *testing.T) {
	t.Parallel()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]rls.Options{
		"Store":     {},
		"NearRatio": {Store: store, NearRatio: 1.5},
		"Headers":   {Store: store, Headers: &rls.Headers{}},
	} {
		if _, err := rls.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Error(want, err)
		}
	}
}

// TestMadeUpValues has one address send made-up values of a header through Envoy, to a small store: they
// replace each other, and not what others or the address itself have used.
func TestMadeUpValues(t *testing.T) {
	t.Parallel()
	const text = `
domain: shop
descriptors:
  - key: remote_address
    rate_limit: { unit: year, requests_per_unit: 2 }
    descriptors:
      - key: session
        rate_limit: { unit: year, requests_per_unit: 1 }`
	for _, key := range []string{"remote_address", "masked_remote_address"} {
		store, err := memstore.New(memstore.Options{MaxKeys: 200})
		if err != nil {
			t.Fatal(err)
		}
		b := newBench(t, strings.ReplaceAll(text, "remote_address", key), func(o *rls.Options) { o.Store = store })
		const others = 100
		for i := range others {
			b.send(ask("shop", fmt.Sprintf("%s=10.0.0.%d", key, i)))
		}
		for range 3 {
			b.send(ask("shop", key+"=10.0.0.0"))
			b.send(ask("shop", key+"=192.0.2.66"))
		}
		for i := range 1000 {
			b.want(ask("shop", fmt.Sprintf("%s=192.0.2.66 session=%d", key, i)), "OK [OK 0]")
		}
		b.want(ask("shop", key+"=10.0.0.0"), "OVER [OVER 0]")
		b.want(ask("shop", key+"=192.0.2.66"), "OVER [OVER 0]")
		for i := range others - 1 {
			b.want(ask("shop", fmt.Sprintf("%s=10.0.0.%d", key, i+1)), "OK [OK 0]")
		}
		if st := store.Stats(); st.Evicted != st.EvictedByShare || st.Evicted < 800 {
			t.Errorf("%+v", st)
		}
	}
}
