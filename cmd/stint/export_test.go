package main

// Run is for tests.
var Run = run
