package main

import (
	"context"
	"io"
)

// For tests.
var (
	Main        = run
	NewProgress = newProgress
)

// Run runs a command as if the program were in the path.
func Run(ctx context.Context, args, environ []string, out, err io.Writer) int {
	return run(ctx, append([]string{"stint"}, args...), environ, out, err)
}
