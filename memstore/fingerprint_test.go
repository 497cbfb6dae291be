package memstore_test

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/memstore"
)

// families are subjects that are much alike, as they are in the field.
var families = map[string]func(i int) string{
	"numbers":          strconv.Itoa,
	"users":            func(i int) string { return fmt.Sprintf("user:%d", i) },
	"users of a width": func(i int) string { return fmt.Sprintf("user:%019d", i) },
	"addresses":        func(i int) string { return fmt.Sprintf("ip:10.0.%d.%d", i>>8, i&255) },
	"first bytes":      func(i int) string { return string([]byte{byte(i), byte(i >> 8), 3, 4, 5, 6, 7, 8}) },
	"last bytes":       func(i int) string { return string([]byte{1, 2, 3, 4, 5, 6, byte(i), byte(i >> 8)}) },
	"UUIDs":            func(i int) string { return fmt.Sprintf("user:%08x-0000-4000-8000-000000000000", i) },
	"long ones":        func(i int) string { return fmt.Sprintf("%0200d", i) },
	"lengths":          func(i int) string { return strings.Repeat("a", i+1) },
}

// TestFingerprints looks at how evenly the fingerprints of such subjects lie, by halves, for
// many stores: as evenly as random numbers would, and never much worse. Of subjects that are
// numbered, words times secrets are multiples of one number, which sooner or later is a bad one.
func TestFingerprints(t *testing.T) {
	t.Parallel()
	const stores, subjects, places = 100, 2000, 128
	for name, subject := range families {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var keys [subjects]stint.Key
			for i := range keys {
				keys[i] = stint.Key{Subject: subject(i), Name: "api"}
			}
			var mean [2]float64
			for range stores {
				s := newStore(t, memstore.Options{})
				var counts [2][places]int
				for i := range keys {
					lo, hi := s.Fingerprint(keys[i], stint.PerMinute(1)).Parts()
					home, _ := bits.Mul64(lo, places)
					shard, _ := bits.Mul64(hi<<1, places)
					counts[0][home]++
					counts[1][shard]++
				}
				for half, c := range counts {
					uneven := chiSquare(c[:], subjects) / (places - 1) // 1 ± 0.13, of random numbers
					if uneven > 2 {
						t.Errorf("half %d: %.2f times as uneven as random numbers", half, uneven)
					}
					mean[half] += uneven / stores
				}
			}
			for half, m := range mean {
				if m < 0.9 || m > 1.1 {
					t.Errorf("half %d: %.2f times as uneven as random numbers, in the mean of %d stores", half, m, stores)
				}
			}
		})
	}
}

func chiSquare(counts []int, of int) (sum float64) {
	want := float64(of) / float64(len(counts))
	for _, n := range counts {
		sum += (float64(n) - want) * (float64(n) - want) / want
	}
	return sum
}

// TestFingerprintsDiffer has the halves of all fingerprints of much that is alike differ, each for
// itself: by texts of every length, by each byte of them, by name, by algorithm and by window.
func TestFingerprintsDiffer(t *testing.T) {
	t.Parallel()
	s := newStore(t, memstore.Options{})
	los, his := map[uint64]string{}, map[uint64]string{}
	add := func(k stint.Key, l stint.Limit) {
		t.Helper()
		c := s.Fingerprint(k, l)
		if again := s.Fingerprint(stint.Key{Subject: strings.Clone(k.Subject), Name: strings.Clone(k.Name)}, l); again != c {
			t.Fatalf("%q has two fingerprints", k)
		}
		lo, hi := c.Parts()
		if hi == 0 || hi>>63 != 0 {
			t.Fatalf("%q has the fingerprint %x %x", k, hi, lo)
		}
		what := fmt.Sprintf("%q %v", k, l)
		if other, ok := los[lo]; ok {
			t.Fatalf("%s and %s share half a fingerprint", what, other)
		}
		if other, ok := his[hi]; ok {
			t.Fatalf("%s and %s share half a fingerprint", what, other)
		}
		los[lo], his[hi] = what, what
	}
	for n := range 100 {
		text := strings.Repeat("\x00", n)
		add(stint.Key{Subject: text, Name: "api"}, stint.PerMinute(1))
		if n > 0 {
			add(stint.Key{Subject: "api", Name: text}, stint.PerMinute(1))
		}
		for i := range n {
			other := text[:i] + "\x01" + text[i+1:]
			add(stint.Key{Subject: other, Name: "api"}, stint.PerMinute(1))
			add(stint.Key{Subject: "api", Name: other}, stint.PerMinute(1))
		}
	}
	for i := range 30 {
		k := stint.Key{Subject: "ab"[:i%2+1], Name: strings.Repeat("n", i)}
		for _, a := range stint.Algorithms() {
			add(k, stint.Limit{Algorithm: a, Window: stint.Every(time.Second)})
			add(stint.Key{Subject: k.Name + "-", Name: k.Subject}, stint.Limit{Algorithm: a, Window: stint.Every(time.Minute)})
		}
	}
}
