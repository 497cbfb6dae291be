// Package llm reads what requests to language models may use, and what their answers have
// used.
package llm
