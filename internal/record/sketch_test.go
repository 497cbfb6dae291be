package record_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint/internal/record"
)

// TestSketch holds quantiles to those of the numbers themselves, however they are divided.
func TestSketch(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(0, 10_000_000), rapid.Int64Range(0, 1<<40-1)), 1, 300).Draw(t, "numbers")
		parts := make([]record.Sketch, 3)
		for i, n := range numbers {
			parts[i%3].Add(time.Duration(n)*time.Microsecond, 1)
		}
		var sum record.Sketch
		for i := range parts {
			b, _ := parts[i].AppendBinary(nil)
			var back record.Sketch
			if err := back.MergeBinary(b); err != nil {
				t.Fatal(err)
			}
			sum.Merge(&back)
		}
		slices.Sort(numbers)
		for _, q := range []float64{0, 0.01, 0.5, 0.95, 0.99, 1} {
			want := float64(numbers[max(0, int(math.Ceil(q*float64(len(numbers))))-1)])
			if got := float64(sum.Quantile(q).Microseconds()); math.Abs(got-want) > want/32+1e-9 {
				t.Fatalf("quantile %v is %v, want %v", q, got, want)
			}
		}
	})
	var s record.Sketch
	if got := s.Quantile(0.5); got != 0 {
		t.Errorf("half of none took %v", got)
	}
	s.Add(-time.Hour, 1)
	s.Add(math.MaxInt64, 3)
	if s.Quantile(0.25) != 0 || s.Quantile(0.3) < 12*24*time.Hour {
		t.Errorf("what is out of bounds took %v and %v", s.Quantile(0.25), s.Quantile(0.3))
	}
	// A thousand decisions that took up to a second are a few hundred bytes.
	var wide record.Sketch
	for i := range 1000 {
		wide.Add(time.Duration(i)*time.Millisecond, 1)
	}
	if b, _ := wide.AppendBinary(nil); len(b) > 400 {
		t.Errorf("it takes %d bytes", len(b))
	}
}

// FuzzSketch reads anything.
func FuzzSketch(f *testing.F) {
	var s record.Sketch
	s.Add(time.Second, 5)
	s.Add(time.Minute, 500)
	b, _ := s.AppendBinary(nil)
	for i := range b {
		f.Add(b[:i+1])
	}
	f.Add([]byte{0, 1})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		var s, back record.Sketch
		if s.MergeBinary(data) != nil {
			return
		}
		b, _ := s.AppendBinary(nil)
		if err := back.MergeBinary(b); err != nil || s.Quantile(0.5) != back.Quantile(0.5) {
			t.Errorf("%x became %x: %v", data, b, err)
		}
	})
}
