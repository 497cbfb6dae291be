package gossip

import (
	"context"
	"strconv"
	"testing"

	"github.com/stintdev/stint"
)

// BenchmarkTake compares a gossiped take with one of the store alone. Both are in memory.
func BenchmarkTake(b *testing.B) {
	bare := memory(b, nil)
	s, err := New(memory(b, nil), Options{Self: Sender{"a", "n", 1}, Peers: []string{"b", "c"}, Weight: 1, Weights: 3, Local: memory(b, nil)})
	if err != nil {
		b.Fatal(err)
	}
	a := benchAsk(b)
	for _, of := range []struct {
		name  string
		store stint.Store
	}{{"store", bare}, {"gossip", s}} {
		b.Run(of.name, func(b *testing.B) {
			asks, ds := []stint.Ask{a}, make([]stint.Decision, 1)
			b.ReportAllocs()
			for i := range b.N {
				asks[0].Key.Subject = subjects[i%len(subjects)]
				if err := of.store.Take(context.Background(), asks, ds); err != nil || !ds[0].Allowed {
					b.Fatal(err, ds)
				}
			}
		})
	}
}

var subjects = func() (all []string) {
	for i := range 1000 {
		all = append(all, "user:"+strconv.Itoa(i))
	}
	return all
}()

func benchAsk(t testing.TB) stint.Ask {
	t.Helper()
	l, err := stint.ParseLimit("1000000000/1h")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := l.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return stint.Ask{
		Key: stint.Key{Subject: "user:1", Name: "rule:limit"}, Limit: l, Plan: plan, Cost: 1,
		Policy: &stint.Policy{Regions: stint.RegionsGossip, Credit: 1 << 40},
	}
}
