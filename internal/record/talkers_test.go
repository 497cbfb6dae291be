package record_test

import (
	"net/netip"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
)

// TestTalkersExact compares what is counted in tables that are much too small with what
// was: no count is too high, none is lower than is said, and who has more than that is
// there.
func TestTalkersExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		counters := rapid.IntRange(2, 40).Draw(t, "counters")
		l, err := record.NewLive(record.LiveOptions{Counters: counters, Top: 1 << 20, Now: func() time.Time { return noon }})
		if err != nil {
			t.Fatal(err)
		}
		var requests, refused int64
		exact := map[string]*record.Talker{}
		// The name of the lowest number is heard as often as all others together, and so on.
		name := rapid.Custom(func(t *rapid.T) int {
			return rapid.IntRange(0, 1<<rapid.IntRange(0, 10).Draw(t, "bits")).Draw(t, "number")
		})
		for i, number := range rapid.SliceOfN(name, 1, 2000).Draw(t, "names") {
			e := engine.Event{At: noon, User: strconv.Itoa(number), IP: netip.AddrFrom4([4]byte{10, 0, byte(number >> 8), byte(number)})}
			e.Tenant, e.Key = e.User, e.User
			e.ID[15] = byte(i)
			if exact[e.User] == nil {
				exact[e.User] = &record.Talker{Name: e.User}
			}
			exact[e.User].Requests++
			requests++
			if number%3 == 0 {
				e.Outcome = engine.Denied
				exact[e.User].Refused++
				refused++
			}
			l.Record(t.Context(), &e)
		}
		s := l.Snapshot().Talkers
		for kind, all := range map[string]record.Talkers{"users": s.Users, "tenants": s.Tenants, "keys": s.Keys, "addresses": s.Addresses} {
			requestsOff, refusedOff := all.RequestsOff, all.RefusedOff
			if most := int64(2); requestsOff > most*requests/int64(counters) || refusedOff > most*refused/int64(counters) {
				t.Fatalf("%s: counts of %d and %d are off by %d and %d", kind, requests, refused, requestsOff, refusedOff)
			}
			want := func(name string) *record.Talker {
				if ip, err := netip.ParseAddr(name); err == nil {
					raw := ip.As4()
					name = strconv.Itoa(int(raw[2])<<8 | int(raw[3]))
				}
				return exact[name]
			}
			there := map[*record.Talker]bool{}
			for i, got := range all.ByRequests {
				w := want(got.Name)
				there[w] = true
				if got.Requests > w.Requests || got.Requests < w.Requests-requestsOff || got.Refused > w.Refused || got.Refused < w.Refused-refusedOff {
					t.Fatalf("%s: %+v, want %+v, less %d and %d", kind, got, w, requestsOff, refusedOff)
				}
				if i > 0 && all.ByRequests[i-1].Requests < got.Requests {
					t.Fatalf("%s are not in order: %+v", kind, all.ByRequests)
				}
			}
			last := map[*record.Talker]bool{}
			for _, got := range all.ByRefused {
				last[want(got.Name)] = true
			}
			for _, w := range exact {
				if w.Requests > requestsOff && !there[w] || w.Refused > refusedOff && !last[w] {
					t.Fatalf("%s: %+v is missing, and counts are off by %d and %d", kind, w, requestsOff, refusedOff)
				}
			}
		}
	})
}
