package strict

import (
	"strconv"
	"strings"
)

// Closest returns the word that was probably meant: the one with the smallest edit distance,
// if that is small. It ignores case, and the difference between - and _. It compares at most
// a thousand words.
func Closest(word string, among []string) (string, bool) {
	const (
		longest  = 64 // no one misspells a name that long
		maxWords = 1000
	)
	if word == "" || len(word) > longest {
		return "", false
	}
	word = fold(word)
	best, found := "", false
	least := max(len(word)/3, 1) + 1
	for _, w := range among[:min(len(among), maxWords)] {
		if len(w) > longest {
			continue
		}
		if n := distance(word, fold(w)); n < least && n < len(w) {
			best, least, found = w, n, true
		}
	}
	return best, found
}

// DidYouMean returns the hint that suggests the word.
func DidYouMean(word string) string { return "did you mean " + strconv.Quote(word) + "?" }

func fold(word string) string { return strings.ReplaceAll(strings.ToLower(word), "-", "_") }

// distance returns the edit distance: how many letters must be added, removed, changed or
// swapped with the next to turn one word into the other.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := last[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
