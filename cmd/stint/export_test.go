package main

// For tests.
var (
	Run         = run
	NewProgress = newProgress
)
