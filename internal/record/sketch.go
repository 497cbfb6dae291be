package record

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"time"
)

// Sketch is how many decisions took how long, in buckets of whole microseconds whose
// width grows with what they hold: a quantile is off by at most one part in 32. Two that
// are added are the sketch of all their decisions.
type Sketch struct{ counts []int64 }

const (
	// sketchBits is how many bits of a number count: there are half as many buckets for
	// each power of 2 as these can tell apart.
	sketchBits = 5
	sketchHalf = 1 << (sketchBits - 1)
	// sketchUsual is how many buckets most sketches do with, in which there is half a second.
	sketchUsual = 256
	// What takes longer than the longest, twelve days, is counted as that.
	sketchLongest = 1<<40 - 1
)

var sketchBuckets = bucketOf(sketchLongest) + 1

func bucketOf(micros int64) int {
	v := uint64(min(max(0, micros), sketchLongest))
	shift := max(0, bits.Len64(v)-sketchBits)
	return shift*sketchHalf + int(v>>shift)
}

// middle is what a bucket stands for.
func middle(bucket int) int64 {
	shift := max(0, bucket/sketchHalf-1)
	return int64(bucket-shift*sketchHalf)<<shift + 1<<shift/2
}

// Add counts n decisions.
func (s *Sketch) Add(took time.Duration, n int64) { s.add(bucketOf(took.Microseconds()), n) }

func (s *Sketch) add(bucket int, n int64) {
	if more := bucket + 1 - len(s.counts); more > 0 {
		s.counts = append(s.counts, make([]int64, more)...)
	}
	s.counts[bucket] += n
}

// Merge adds what another has counted.
func (s *Sketch) Merge(o *Sketch) {
	for bucket, n := range o.counts {
		if n != 0 {
			s.add(bucket, n)
		}
	}
}

// Quantile returns what the share q of the decisions took at most, or 0 if there were
// none.
func (s *Sketch) Quantile(q float64) time.Duration {
	out := [1]time.Duration{}
	s.Quantiles([]float64{q}, out[:])
	return out[0]
}

// Quantiles is Quantile of several, the least first.
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

// Reset forgets what was counted, and keeps the memory for it.
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

// MergeBinary adds what another has counted, as AppendBinary wrote it.
func (s *Sketch) MergeBinary(data []byte) error {
	if s.counts == nil {
		s.counts = make([]int64, 0, sketchUsual)
	}
	for bucket := -1; len(data) > 0; {
		// Most steps are a byte, and most counts one or two.
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
			return errors.New("record: a sketch has a bucket that there is not")
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
