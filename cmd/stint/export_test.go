package main

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/record"
)

// For tests.
var (
	ScreenWidth = screenWidth
	Main        = run
	NewProgress = newProgress
)

// Run runs a command as if the program were in the path.
func Run(ctx context.Context, args, environ []string, out, err io.Writer) int {
	return run(ctx, append([]string{"stint"}, args...), environ, out, err)
}

// Commands returns all commands that can be run, as they are typed after stint.
func Commands() (out []string) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Runnable() && !c.HasSubCommands() {
			out = append(out, strings.TrimPrefix(c.CommandPath(), "stint "))
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(&terminal{program: "stint"}))
	return out
}

// Picture returns the lines of "stint top", without colors.
func Picture(s *record.Snapshot, width, rows int) []string { return picture(s, new(view), width, rows) }

// Relief decides when memory is given back.
type Relief struct{ r relief }

// Note tells it how much memory is held, and how often garbage was collected.
func (r *Relief) Note(held, cycles uint64) bool { return r.r.note(heap{held, cycles}) }

// Given tells it that memory was given back.
func (r *Relief) Given(held, cycles uint64) { r.r.given(heap{held, cycles}) }

// Reserve is reserve.
func Reserve() []byte { return reserve() }
