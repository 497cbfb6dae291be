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
	os.Exit(run(context.Background(), os.Args, os.Environ(), os.Stdout, os.Stderr)) //nolint:forbidigo // the one place that has none to pass on
}

// terminal is where a command runs.
type terminal struct {
	program  string // as it was called, such as ./stint
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

// run runs a command, of which the first argument is the program, and returns its exit
// code.
func run(ctx context.Context, args, environ []string, out, err io.Writer) int {
	t := &terminal{args[0], environ, out, err}
	root := newRoot(t)
	root.SetArgs(args[1:])
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
	fmt.Fprintln(err, "try:", t.asCalled(a.try))
	return exitError
}

func newRoot(t *terminal) *cobra.Command {
	v := versionOf()
	root := &cobra.Command{
		Use:   "stint",
		Short: "A rate limiter in front of anything",
		Long: `Stint is a rate limiter. Requests over the limit are denied.

It runs as a server: a gateway in front of HTTP services, a decision API for any program,
a forward-auth endpoint for nginx, Traefik and Caddy, and the rate limit service of
Envoy. Without a configuration it runs a demo:

  stint serve

Commands that show or change the state of a server use its admin API: see "stint help
server". They print tables, or JSON or CSV with -o: see "stint help output".

Exit codes: 0 on success; 1 if the answer is no, such as for a request that is denied or a
file that has problems; 2 on errors.`,
		SilenceUsage: true, SilenceErrors: true, Version: v.String(),
	}
	root.Flags().Bool("version", false, "show the version")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return advice{err, c.CommandPath() + " --help"} })
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Serve:", []*cobra.Command{newServe(t), newConfig(t), newDoctor(t)}},
		{"Rules and users:", []*cobra.Command{newRules(t), newTiers(t), newUsers(t), newKeys(t), newTenants(t), newExempt(t), newBan(t), newApply(t), newExport(t), newChanges(t)}},
		{"Limits:", []*cobra.Command{newUsage(t), newReset(t), newExplain(t), newCheck(t)}},
		{"Monitoring:", []*cobra.Command{newStatus(t), newNodes(t), newTop(t), newEvents(t)}},
		{"Administration:", []*cobra.Command{newTokens(t), newMigrate(t), newArchive(t), newEnvoy(t), newVersion(t)}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.title
		}
		root.AddCommand(g.commands...)
	}
	root.AddCommand(topics()...)
	addCompletion(t, root)
	return root
}

// topics are what "stint help" also tells.
func topics() []*cobra.Command {
	return []*cobra.Command{
		{Use: "exit-codes", Short: "What exit codes mean", Long: `Exit codes are the same for all commands:

  0  Success, or the answer is yes.
  1  The answer is no: the request is denied ("check", "explain"), a file or a rule has
     problems ("rules check", "rules validate"), an archive is damaged, the doctor found a
     failure, or the user did not confirm. The output is the answer.
  2  Error: the command line is wrong, the server cannot be reached or rejects the request,
     or something does not exist or has changed in the meantime. The standard error says
     what is wrong; its last line begins with "try:".`},
		{Use: "server", Short: "How commands find a server", Long: `Commands such as "rules", "users" and "usage" ask the admin API of a server that runs.

  --server URL       where it is, or else $STINT_SERVER, or else http://127.0.0.1:9090;
                     server.admin.address says where a server has it
  --token-file FILE  a file that holds a token, or else $STINT_TOKEN, which is the token
                     itself, or else the file that $STINT_TOKEN_FILE names
  --ca-file FILE     the certificates that vouch for a server with TLS

No flag takes the token itself, which everyone on the machine could read. The first start
of a server prints a token that is good for a day; "stint tokens create" makes others,
with --config also without one.

"rules list", "events", "apply" and "export" look themselves where --config, --database,
--set, $STINT_CONFIG or $STINT_SERVER_DATABASE name a config file or a database, unless
there is --server.`},
		{Use: "output", Short: "Formats of what commands write", Long: `-o says how an answer is written to the standard output:

  table  For people, and not for programs: it may change. It is the default.
  json   Fields stay as they are, and more may come. Lists are arrays; what goes on, as
         "events follow", is an object in each line.
  csv    With a header, of which the names are those of the fields in JSON. Of what is
         within a field there are columns such as value.tier; lists and maps are JSON.

Times are in UTC, as 2026-01-31T12:00:00Z. Names that clients have chosen may hold
characters that a terminal would obey: tables and CSV have such names in quotes, with
escapes. Notes, questions and progress go to the standard error.`},
	}
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

// family is a command that only has others.
func family(name, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: name, Short: short, Args: wants(0, 0, "one of its commands"),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(commands...)
	return c
}

// nothing is for commands that have flags only.
var nothing = wants(0, 0, "no arguments")

// asCalled returns advice that begins with a command as the person at the terminal can run
// it.
func (t *terminal) asCalled(advice string) string {
	if rest, ok := strings.CutPrefix(advice, "stint "); ok {
		return t.program + " " + rest
	}
	return advice
}

// variable returns a variable of the environment.
func (t *terminal) variable(name string) string {
	for _, v := range t.environ {
		if n, value, _ := strings.Cut(v, "="); n == name {
			return value
		}
	}
	return ""
}
