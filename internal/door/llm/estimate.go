package llm

import "github.com/stintdev/stint/internal/kit/scan"

// class is what a byte means for the number of tokens.
type class uint8

const (
	letter class = iota
	digit
	mark  // punctuation
	space // and control characters
	two   // the first byte of a character of two bytes in UTF-8, as in Greek and Cyrillic
	three // of three bytes, as in Chinese, Japanese and Korean
	four
	rest // of a character
	classes
)

var classOf = func() (table [256]class) {
	for c := range table {
		switch {
		case c >= 0xf0:
			table[c] = four
		case c >= 0xe0:
			table[c] = three
		case c >= 0xc0:
			table[c] = two
		case c >= 0x80:
			table[c] = rest
		case c <= ' ' || c == 0x7f:
			table[c] = space
		case c >= '0' && c <= '9':
			table[c] = digit
		case c|0x20 >= 'a' && c|0x20 <= 'z':
			table[c] = letter
		default:
			table[c] = mark
		}
	}
	return table
}()

// Estimate estimates the tokens of a text that comes in pieces, by what its bytes are: see
// the package's doc. The zero value is of no text.
type Estimate struct {
	counts [classes]int64
	words  runs // of letters
	marks  runs // of punctuation

	last class // of the byte before the next one
	run  int64 // how many bytes of that class there were without another
}

// runs are runs of bytes of one class. A short one usually is one token.
type runs struct {
	n    int64
	long int64 // bytes after the first ones of a run
}

// add adds to a run that had so many bytes, and has now.
func (r *runs) add(had, has, short int64) {
	if had == 0 {
		r.n++
	}
	r.long += max(has-short, 0) - max(had-short, 0)
}

// Add adds a piece of the text.
func (e *Estimate) Add(p []byte) {
	for len(p) > 0 {
		c, n := classOf[p[0]], 1
		for n < len(p) && classOf[p[n]] == c {
			n++
		}
		p = p[n:]
		e.addRun(c, int64(n))
	}
}

func (e *Estimate) addRun(c class, n int64) {
	e.counts[c] += n
	had := e.run
	if c != e.last {
		had = 0
	}
	e.last, e.run = c, had+n
	switch c {
	case letter:
		e.words.add(had, e.run, 6)
	case mark:
		e.marks.add(had, e.run, 4)
	default:
	}
}

// add adds another text.
func (e *Estimate) add(o *Estimate) {
	for i, n := range o.counts {
		e.counts[i] += n
	}
	e.words.n += o.words.n
	e.words.long += o.words.long
	e.marks.n += o.marks.n
	e.marks.long += o.marks.long
}

// Tokens returns the estimate.
func (e *Estimate) Tokens() int64 {
	// These weights make a token of a hundred. They were fitted to the texts of the
	// package's doc.
	n := 88*e.words.n + 66*e.words.long + 105*e.marks.n + 40*e.marks.long + 47*e.counts[digit] +
		55*e.counts[two] + 88*e.counts[three] + 250*e.counts[four]
	return min((n+99)/100, scan.MaxNumber)
}

// BytesPerToken is for how many bytes a token is estimated where text cannot be read.
const BytesPerToken = 4

// ofBytes estimates the tokens of so many bytes.
func ofBytes(n int64) int64 { return (n + BytesPerToken - 1) / BytesPerToken }
