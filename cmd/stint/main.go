// Command stint decides whether one more request may pass: as a server in front of
// anything (stint serve), and as a tool to try rules and look at what is set.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/rule"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr)) //nolint:forbidigo // the one place that has none to pass on
}

// terminal is where a command runs.
type terminal struct {
	environ  []string
	out, err io.Writer
}

// Exit codes.
const (
	exitNo    = 1 // it was asked, and the answer is no
	exitError = 2 // it could not be done
)

// errNo says that the answer is no, which has been written.
var errNo = errors.New("no")

// advice is an error, and what to do about it.
type advice struct {
	error
	try string
}

func (a advice) Unwrap() error { return a.error }

// run runs a command and returns its exit code.
func run(ctx context.Context, args, environ []string, out, err io.Writer) int {
	root := newRoot(&terminal{environ, out, err})
	root.SetArgs(append([]string{}, args...)) // cobra takes nil for those of the process
	root.SetOut(out)
	root.SetErr(err)
	failed := root.ExecuteContext(ctx)
	switch {
	case failed == nil:
		return 0
	case errors.Is(failed, errNo):
		return exitNo
	}
	var problems rule.Problems
	if errors.As(failed, &problems) {
		fmt.Fprintln(err, problems.Error())
	} else {
		fmt.Fprintln(err, "stint:", strings.TrimSpace(failed.Error()))
	}
	a := advice{try: "stint --help"}
	errors.As(failed, &a)
	fmt.Fprintln(err, "try:", a.try)
	return exitError
}

func newRoot(t *terminal) *cobra.Command {
	root := &cobra.Command{
		Use:   "stint",
		Short: "A rate limiter in front of anything",
		Long: `Stint decides whether one more request may pass.

It runs as a server: a gateway in front of HTTP services, an API that any program can
ask, an endpoint for the forward-auth of nginx, Traefik and Caddy, and the rate limit
service of Envoy. Without any configuration it shows what it can do:

  stint serve

Exit codes: 0 if all is well; 1 if something was asked and the answer is no, as for a
request that is refused or a file that has problems; 2 if it could not be done.`,
		SilenceUsage: true, SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return advice{err, c.CommandPath() + " --help"} })
	root.AddCommand(newServe(t), newConfig(t), newCheck(t), newRules(t), newEnvoy(t), newApply(t), newExport(t), newMigrate(t), newEvents(t), newArchive(t), newTop(t), newVersion(t))
	return root
}

// wants has those who give another number of arguments look at the help.
func wants(least, most int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return advice{fmt.Errorf("%s wants %s", c.CommandPath(), what), c.CommandPath() + " --help"}
		}
		return nil
	}
}

// nothing is for commands that have flags only.
var nothing = wants(0, 0, "no arguments")

// variable returns a variable of the environment.
func (t *terminal) variable(name string) string {
	for _, v := range t.environ {
		if n, value, _ := strings.Cut(v, "="); n == name {
			return value
		}
	}
	return ""
}
