package main

import (
	"testing"

	"github.com/stintdev/stint/examples/trial"
)

func TestHandler(t *testing.T) {
	handler, err := newHandler(trial.Store(t))
	if err != nil {
		t.Fatal(err)
	}
	trial.HTTP(t, handler)
}
