// Command release builds what people install, into one directory: archives with static
// binaries for Linux and macOS, packages for Debian and RPM, an image for containers, a bill of
// materials for each binary, and checksums.
//
// The same commit, built with the same versions of Go and Node, gives the same bytes on every
// machine: all times are that of the commit, and no names of hosts or directories are used. A
// tree with changes that are not committed, without the dashboard, or of a version that was
// released before is refused.
//
//	release -root DIRECTORY -out DIRECTORY
//	release -out DIRECTORY push REGISTRY/NAME:TAG
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt) //nolint:forbidigo // there is no context to pass on
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	root := flags.String("root", ".", "the `directory` of the repository")
	dir := flags.String("out", "dist", "the `directory` to write, which is replaced")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case flags.NArg() == 0:
		s, err := read(ctx, *root)
		if err != nil {
			return err
		}
		if err := s.check(ctx); err != nil {
			return err
		}
		return s.release(ctx, *dir, out)
	case flags.Arg(0) == "push" && flags.NArg() == 2:
		return push(ctx, *dir, flags.Arg(1), out)
	}
	return errors.New("want no arguments, or push REGISTRY/NAME:TAG")
}
