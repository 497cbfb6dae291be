package record_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/recordtest"
)

// TestFold floods the recorder: of a client and a rule, few events of a second are stored, and
// their weights add up to all of them, by all that roll-ups tell apart.
func TestFold(t *testing.T) {
	t.Parallel()
	const perSecond, seconds = 5, 4
	now := noon
	r := newRecorder(t, record.RecorderOptions{PerSecond: perSecond, Buffer: 64 << 10, Now: func() time.Time { return now }})
	random := rand.New(rand.NewPCG(1, 2))
	type sum struct {
		minute   time.Time
		what     string
		shadow   bool
		cached   bool
		outcomes engine.Outcome
	}
	of := func(at time.Time, user, tenant, key, tier, ip, rule, endpoint string, shadow, cached bool, o engine.Outcome) sum {
		return sum{at.Truncate(time.Minute), fmt.Sprint(user, tenant, key, tier, ip, rule, endpoint), shadow, cached, o}
	}
	want, got := map[sum]int64{}, map[sum]int64{}
	rows := map[string]int{}
	var batch record.Batch
	for n := range 60_000 {
		at := noon.Truncate(time.Minute).Add(58*time.Second + time.Duration(n)*seconds*time.Second/60_000) // two minutes have a part of it
		e := denial(at)
		e.ID = numbered(n)
		switch random.IntN(100) { // the rest is a flood of one client
		case 0:
			e.User = "u" + strconv.Itoa(random.IntN(3))
		case 1:
			e.IP = netip.AddrFrom4([4]byte{192, 0, 2, byte(random.IntN(3))})
		case 2:
			e.Rule, e.Endpoint = "other", "/other"
		case 3:
			e.Outcome, e.Cached = engine.Banned, true
		case 4:
			e.Outcome, e.Shadow = engine.Allowed, true
		}
		e.Method = "M" + strconv.Itoa(n) // which a client chooses
		want[of(e.At, e.User, e.Tenant, e.Key, e.Tier, e.IP.String(), e.Rule, e.Endpoint, e.Shadow, e.Cached, e.Outcome)]++
		r.Record(t.Context(), &e)
		if now = at; n%777 == 0 {
			batch = r.Take(batch)
		}
	}
	before := len(events(t, batch))
	batch = r.TakeAll(batch)
	all := events(t, batch)
	if len(all) == before {
		t.Error("nothing has waited for the end of its second")
	}
	for _, e := range all {
		got[of(e.At, e.User, e.Tenant, e.Key, e.Tier, e.IP, e.Rule, e.Endpoint, e.Shadow, e.Cached, e.Outcome)] += e.Weight
		rows[fmt.Sprint(e.At.Unix(), e.User, e.IP, e.Rule, e.Shadow, e.Cached, e.Outcome)]++
	}
	for k, n := range want {
		if got[k] != n {
			t.Errorf("%v: %d, want %d", k, got[k], n)
		}
	}
	for k, n := range rows {
		if n > perSecond {
			t.Errorf("%s: %d events in a second, want at most %d", k, n, perSecond)
		}
	}
	if s := newPipeline(t, record.PipelineOptions{Recorder: r, Sink: new(table)}).State(); s.Dropped != 0 || s.Buffered != 0 || s.Folded != int64(60_000-len(all)) {
		t.Errorf("%+v, and %d events", s, len(all))
	}
}

// TestFoldLate folds what comes after its second by itself, and what comes from a clock that was
// wrong: neither is counted for another second, nor kept for ever.
func TestFoldLate(t *testing.T) {
	t.Parallel()
	now := noon
	r := newRecorder(t, record.RecorderOptions{PerSecond: 1, Now: func() time.Time { return now }})
	flood := func(at time.Time, n int) {
		for range n {
			e := denial(at)
			r.Record(t.Context(), &e)
		}
	}
	step := func(want ...int64) {
		t.Helper()
		var got []int64
		for _, e := range events(t, r.Take(nil)) {
			got = append(got, e.Weight)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("at %v: events that weigh %v, want %v", now, got, want)
		}
	}
	flood(noon, 3)
	step()
	now = now.Add(time.Second)
	flood(noon, 4) // decisions that began a second ago
	step(7)
	flood(noon, 5)
	step() // they have missed it
	now = now.Add(time.Second)
	step(5)
	flood(noon.Add(time.Hour), 6)
	now = now.Add(time.Second)
	step(6)
	flood(noon.Add(-time.Hour), 2)
	now = now.Add(time.Second)
	step(2)
	if len(r.TakeAll(nil)) != 0 {
		t.Error("something is left")
	}
}

// TestFoldMany stores all events of clients for which there is no room.
func TestFoldMany(t *testing.T) {
	t.Parallel()
	const clients, each = 1500, 4 // tests have room for 500
	r := newRecorder(t, record.RecorderOptions{PerSecond: 2, Buffer: 16 << 10, Now: func() time.Time { return noon }})
	for n := range clients * each {
		e := denial(noon)
		e.ID, e.User = numbered(n), "u"+strconv.Itoa(n%clients)
		r.Record(t.Context(), &e)
	}
	total, all := int64(0), events(t, r.TakeAll(nil))
	for _, e := range all {
		total += e.Weight
	}
	if total != clients*each || len(all) != 500*2+1000*each {
		t.Errorf("%d events stand for %d", len(all), total)
	}
}

// TestFoldStop writes what waits for the end of its second when the pipeline stops.
func TestFoldStop(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, record.RecorderOptions{PerSecond: 1, Now: recordtest.At(noon)})
	db := new(table)
	p := newPipeline(t, record.PipelineOptions{Recorder: r, Sink: db, Interval: time.Hour})
	p.Start(t.Context())
	recordSome(r, 0, 100)
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := p.State(); db.len() != 1 || s.Written != 1 || s.Folded != 99 || s.Buffered != 0 {
		t.Errorf("%d events, %+v", db.len(), s)
	}
}
