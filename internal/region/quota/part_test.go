package quota_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region/quota"
)

func limitOf(t testing.TB, text string) stint.Limit {
	t.Helper()
	l, err := stint.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestPart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit   string
		weights []int
		want    []string // "": nothing
	}{
		{"100/1m", []int{40, 60}, []string{"40/1m", "60/1m"}},
		{"10/1s", []int{1, 1, 1}, []string{"4/1s", "3/1s", "3/1s"}},
		{"10/1s", []int{333_333, 333_333, 333_334}, []string{"3/1s", "3/1s", "4/1s"}},
		{"100/1s", []int{98, 1, 1}, []string{"98/1s", "1/1s", "1/1s"}},
		{"10/1s", []int{98, 1, 1}, []string{"8/1s", "1/1s", "1/1s"}},
		{"2/1s", []int{98, 1, 1}, []string{"1/1s", "1/1s", ""}},
		{"1/month", []int{30, 30, 40}, []string{"", "", "1/month"}},
		{"10/1s", []int{0, 50, 50}, []string{"", "5/1s", "5/1s"}},
		{"10/30s concurrency", []int{50, 25, 25}, []string{"5/30s concurrency", "3/30s concurrency", "2/30s concurrency"}},
		{"10/1s token_bucket", []int{50, 50}, []string{"5/1s token_bucket", "5/1s token_bucket"}},
		// A burst of 0 would be one of max.
		{"100/1s burst=3 token_bucket", []int{98, 1, 1}, []string{"98/1s burst=1 token_bucket", "1/1s burst=1 token_bucket", "1/1s burst=1 token_bucket"}},
		{"100/1s burst=2 token_bucket", []int{50, 30, 20}, []string{"63/1s burst=1 token_bucket", "37/1s burst=1 token_bucket", ""}},
		// With the rate of a third, a burst of more than a third would not drain in time.
		{"3/1s burst=100 token_bucket", []int{98, 1, 1}, []string{"1/1s burst=34 token_bucket", "1/1s burst=33 token_bucket", "1/1s burst=33 token_bucket"}},
		{"10/1s leaky_bucket", []int{50, 50}, []string{"5/1s leaky_bucket", "5/1s leaky_bucket"}},
		{"10/1s burst=1 leaky_bucket", []int{50, 50}, []string{"5/1s burst=1 leaky_bucket", "5/1s leaky_bucket"}},
	} {
		var got []string
		for i := range c.weights {
			if l, ok := quota.Part(limitOf(t, c.limit), c.weights, i); ok {
				got = append(got, l.String())
			} else {
				got = append(got, "")
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s by %v is divided into %q, want %q", c.limit, c.weights, got, c.want)
		}
	}
}

// anyLimit draws a valid limit.
func anyLimit(t *rapid.T) stint.Limit {
	windows := []string{"1ms", "1s", "7s", "1m", "1h", "30d"}
	for {
		l := stint.Limit{
			Algorithm: rapid.SampledFrom(stint.Algorithms()).Draw(t, "algorithm"),
			Max:       rapid.OneOf(rapid.Int64Range(1, 30), rapid.Int64Range(1, 100_000), rapid.Int64Range(1, 1<<53-1)).Draw(t, "max"),
		}
		w, err := stint.ParseWindow(rapid.SampledFrom(windows).Draw(t, "window"))
		if err != nil {
			t.Fatal(err)
		}
		if l.Window = w; l.Algorithm == stint.TokenBucket || l.Algorithm == stint.LeakyBucket {
			l.Burst = rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(1, 30), rapid.Int64Range(1, 1<<40)).Draw(t, "burst")
		}
		if l.Algorithm == stint.FixedWindow && rapid.Bool().Draw(t, "calendar") {
			l = stint.PerMonth(l.Max)
		}
		if l.Validate() == nil {
			return l
		}
		l.Max, l.Burst = 1+l.Max%stint.MaxLog, l.Burst%1000
		if l.Validate() == nil {
			return l
		}
	}
}

// anyWeights draws weights that add up to 100 or a million, or to anything.
func anyWeights(t *rapid.T) []int {
	weights := rapid.SliceOfN(rapid.IntRange(1, 1000), 1, 12).Draw(t, "weights")
	if whole := rapid.SampledFrom([]int{0, 100, 1_000_000}).Draw(t, "whole"); whole > 0 {
		return quota.Whole(whole, weights)
	}
	return weights
}

// TestPartsAddUp divides any limit by any weights: the parts add up, are valid, and have something if there
// is something to have.
func TestPartsAddUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l, weights := anyLimit(t), anyWeights(t)
		var units, burst, parts int64
		for i := range weights {
			part, ok := quota.Part(l, weights, i)
			if !ok {
				continue
			}
			if err := part.Validate(); err != nil || part.Algorithm != l.Algorithm || part.Window != l.Window {
				t.Fatalf("part %d of %v by %v is %v: %v", i, l, weights, part, err)
			}
			if l.Burst > 0 && l.Algorithm == stint.TokenBucket && part.Burst < 1 {
				t.Fatalf("part %d of %v by %v is %v, whose burst is its max", i, l, weights, part)
			}
			if l.Burst == 0 && part.Burst > 0 { // the largest that is exact
				part.Burst = 0
			}
			units, burst, parts = units+part.Max, burst+part.Burst, parts+1
		}
		most := l.Max
		if l.Burst > 0 && l.Algorithm == stint.TokenBucket {
			most = min(most, l.Burst)
		}
		having := len(slices.DeleteFunc(slices.Clone(weights), func(w int) bool { return w == 0 }))
		if want := min(most, int64(having)); parts != want || units != l.Max {
			t.Fatalf("%v by %v has %d parts, want %d, with %d units", l, weights, parts, want, units)
		}
		inexact := float64(l.Burst)*l.Window.Length().Seconds() >= 1<<53
		if burst > l.Burst || burst < l.Burst && !inexact {
			t.Fatalf("%v by %v has parts with a burst of %d", l, weights, burst)
		}
	})
}

// TestFloor compares the floor with the part by any weights that are not below it.
func TestFloor(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l, n := anyLimit(t), rapid.IntRange(2, 12).Draw(t, "regions")
		table := equalTable(t, n, 0)
		if !quota.Follows(table, l) {
			t.Skip()
		}
		demand := rapid.SliceOfN(rapid.Int64Range(0, 1<<40), n, n).Draw(t, "demand")
		weights, floor := quota.Target(table, demand), quota.FloorOf(table, l)
		sum := 0
		for i, w := range weights {
			sum += w
			if part, ok := quota.Part(l, weights, i); !ok || floor.Max > part.Max || floor.Burst > part.Burst && part.Burst > 0 || floor.Cap() > part.Cap() {
				t.Fatalf("the floor of %v is %v, and part %d by %v is %v", l, floor, i, weights, part)
			}
		}
		if sum != 1_000_000 || floor.Validate() != nil {
			t.Fatalf("%v add up to %d, %v", weights, sum, floor.Validate())
		}
	})
}

func equalTable(t rapid.TB, n, own int) *quota.Table {
	t.Helper()
	regions := make([]quota.Region, n)
	for i := range regions {
		regions[i] = quota.Region{Name: fmt.Sprintf("region-%02d", i), Weight: 1}
	}
	table, err := quota.NewTable(regions[own].Name, regions)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// TestStart has the weights of a table begin at the floor at least.
func TestStart(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		regions := make([]quota.Region, rapid.IntRange(1, 12).Draw(t, "regions"))
		for i := range regions {
			regions[i] = quota.Region{Name: strconv.Itoa(i), Weight: rapid.OneOf(rapid.IntRange(1, 100), rapid.IntRange(1, 1_000_000)).Draw(t, "weight")}
		}
		table, err := quota.NewTable("0", regions)
		if err != nil {
			t.Fatal(err)
		}
		start, floor := quota.Start(table)
		sum := 0
		for _, w := range start {
			if sum += w; w < floor && len(start) > 1 {
				t.Fatalf("%v begin at %v, below %d", regions, start, floor)
			}
		}
		if sum != 1_000_000 {
			t.Fatalf("%v begin at %v, which are %d together", regions, start, sum)
		}
	})
}

func TestRecovery(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"100/1s": 2 * time.Second, "100/1m": 2 * time.Minute, "100/1m fixed_window": time.Minute, "100/1m sliding_log": time.Minute,
		"10/1s token_bucket": 1100 * time.Millisecond, "10/1s burst=19 token_bucket": 2 * time.Second, "10/1s burst=18 leaky_bucket": 2 * time.Second,
		"100/month": 0, "10/30s concurrency": 0, "5000000000000/1h burst=9000000000000 leaky_bucket": 6480*time.Second + 2,
	} {
		if got := quota.Recovery(limitOf(t, text)); got != want {
			t.Errorf("%s has recovered after %v, want %v", text, got, want)
		}
	}
}
