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
	words  int64 // runs of letters
	long   int64 // letters after the first shortWord of a run
	run    int   // the letters before the next byte
}

// shortWord is how many letters usually are one token.
const shortWord = 6

// Add adds a piece of the text.
func (e *Estimate) Add(p []byte) {
	run := e.run
	for _, b := range p {
		c := classOf[b]
		e.counts[c]++
		if c != letter {
			run = 0
			continue
		}
		if run++; run == 1 {
			e.words++
		} else if run > shortWord {
			e.long++
		}
	}
	e.run = run
}

// add adds another text.
func (e *Estimate) add(o *Estimate) {
	for i, n := range o.counts {
		e.counts[i] += n
	}
	e.words += o.words
	e.long += o.long
}

// Tokens returns the estimate.
func (e *Estimate) Tokens() int64 {
	// These weights make a token of a hundred. They were fitted to the texts of the
	// package's doc.
	n := 85*e.words + 70*e.long + 46*e.counts[digit] + 80*e.counts[mark] +
		50*e.counts[two] + 88*e.counts[three] + 250*e.counts[four]
	return min((n+99)/100, scan.MaxNumber)
}

// BytesPerToken is for how many bytes a token is estimated where text cannot be read.
const BytesPerToken = 4

// ofBytes estimates the tokens of so many bytes.
func ofBytes(n int64) int64 { return (n + BytesPerToken - 1) / BytesPerToken }
