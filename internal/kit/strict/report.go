package strict

import "fmt"

// Report is what checks find wrong with a value that was decoded. The places of its
// problems are found by [Doc.Locate].
type Report struct{ Problems Problems }

// Add notes a problem.
func (r *Report) Add(path, message, hint string) {
	if len(r.Problems) < MaxProblems {
		r.Problems = append(r.Problems, Problem{Path: path, Message: message, Hint: hint})
	}
}

// Refuse notes a value that is wrong, and what is wanted.
func (r *Report) Refuse(path, value, want, hint string) {
	r.Add(path, Quote(value)+": want "+want, hint)
}

// Closest returns the hint that one of the words was meant, if one was. In a document
// that has very much wrong it does not look.
func (r *Report) Closest(word string, among []string) string {
	const enough = 100
	if len(r.Problems) < enough {
		if w, ok := Closest(word, among); ok {
			return DidYouMean(w)
		}
	}
	return ""
}

// Quote returns a value in quotes, cut to what can be shown.
func Quote(value string) string {
	const most = 64
	return fmt.Sprintf("%.*q", most, value)
}
