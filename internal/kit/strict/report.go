package strict

import "fmt"

// Report collects the problems that checks find in a decoded value. [Doc.Locate] finds their
// places.
type Report struct{ Problems Problems }

// Add adds a problem.
func (r *Report) Add(path, message, hint string) {
	if len(r.Problems) < MaxProblems {
		r.Problems = append(r.Problems, Problem{Path: path, Message: message, Hint: hint})
	}
}

// Refuse adds a problem with a value, and says what is wanted.
func (r *Report) Refuse(path, value, want, hint string) {
	r.Add(path, Quote(value)+": want "+want, hint)
}

// Closest returns a hint at the word that was probably meant, if any. After many problems it
// returns none, to save time.
func (r *Report) Closest(word string, among []string) string {
	const maxHints = 100
	if len(r.Problems) < maxHints {
		if w, ok := Closest(word, among); ok {
			return DidYouMean(w)
		}
	}
	return ""
}

// Quote returns a value in quotes, shortened to 64 characters.
func Quote(value string) string { return fmt.Sprintf("%.64q", value) }
