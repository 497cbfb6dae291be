package record

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"time"
)

// Sketch is a histogram of durations in microseconds, in buckets whose width grows with the
// duration: a quantile is off by at most one part in 32. Merging two sketches gives the sketch
// of all their durations.
type Sketch struct{ counts []int64 }

const (
	// sketchBits is how many leading bits of a number select its bucket.
	sketchBits = 5
	sketchHalf = 1 << (sketchBits - 1)
	// sketchUsual is the number of buckets that most sketches need: up to half a second.
	sketchUsual = 256
	// Longer durations are counted as this one, which is twelve days.
	sketchLongest = 1<<40 - 1
)

var sketchBuckets = bucketOf(sketchLongest) + 1

func bucketOf(micros int64) int {
	v := uint64(min(max(0, micros), sketchLongest))
	shift := max(0, bits.Len64(v)-sketchBits)
	return shift*sketchHalf + int(v>>shift)
}

// middle is the duration that a bucket stands for.
func middle(bucket int) int64 {
	shift := max(0, bucket/sketchHalf-1)
	return int64(bucket-shift*sketchHalf)<<shift + 1<<shift/2
}

// Add counts n decisions of a duration.
func (s *Sketch) Add(took time.Duration, n int64) { s.add(bucketOf(took.Microseconds()), n) }

func (s *Sketch) add(bucket int, n int64) {
	if more := bucket + 1 - len(s.counts); more > 0 {
		s.counts = append(s.counts, make([]int64, more)...)
	}
	s.counts[bucket] += n
}

// Merge adds the counts of another sketch.
func (s *Sketch) Merge(o *Sketch) {
	for bucket, n := range o.counts {
		if n != 0 {
			s.add(bucket, n)
		}
	}
}

// Quantile returns the duration that the share q of the decisions did not exceed, or 0 if there
// were none.
func (s *Sketch) Quantile(q float64) time.Duration {
	out := [1]time.Duration{}
	s.Quantiles([]float64{q}, out[:])
	return out[0]
}

// Quantiles is Quantile for several shares, in ascending order.
func (s *Sketch) Quantiles(all []float64, out []time.Duration) {
	var total int64
	for _, n := range s.counts {
		total += n
	}
	bucket, seen := -1, int64(0)
	for i, q := range all {
		rank := max(1, int64(math.Ceil(q*float64(total))))
		for seen < rank && bucket+1 < len(s.counts) {
			bucket++
			seen += s.counts[bucket]
		}
		out[i] = 0
		if seen >= rank {
			out[i] = time.Duration(middle(bucket)) * time.Microsecond
		}
	}
}

// Reset sets all counts to zero, and keeps the memory.
func (s *Sketch) Reset() { clear(s.counts) }

// AppendBinary implements [encoding.BinaryAppender]. It does not fail.
func (s *Sketch) AppendBinary(b []byte) ([]byte, error) {
	last := -1
	for bucket, n := range s.counts {
		if n != 0 {
			b = binary.AppendUvarint(b, uint64(bucket-last))
			b = binary.AppendVarint(b, n)
			last = bucket
		}
	}
	return b, nil
}

// MergeBinary adds the counts of a sketch that AppendBinary has encoded.
func (s *Sketch) MergeBinary(data []byte) error {
	if s.counts == nil {
		s.counts = make([]int64, 0, sketchUsual)
	}
	for bucket := -1; len(data) > 0; {
		// Fast path: most steps have one byte, and most counts one or two.
		if len(data) > 2 && data[0] != 0 && data[0]|data[1]&data[2] < 0x80 && bucket+int(data[0]) < len(s.counts) {
			bucket += int(data[0])
			count, size := int64(data[1]), 2
			if count >= 0x80 {
				count, size = count&0x7f|int64(data[2])<<7, 3
			}
			s.counts[bucket] += count>>1 ^ -(count & 1)
			data = data[size:]
			continue
		}
		step, n := binary.Uvarint(data)
		if n <= 0 || step == 0 || step > uint64(sketchBuckets-1-bucket) {
			return errors.New("record: a sketch has an invalid bucket")
		}
		count, m := binary.Varint(data[n:])
		if m <= 0 {
			return errors.New("record: a sketch ends too early")
		}
		bucket += int(step)
		s.add(bucket, count)
		data = data[n+m:]
	}
	return nil
}
