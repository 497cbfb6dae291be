// Command stint is a rate limiter: a server (stint serve), and the tool to configure and
// inspect it.
package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/rule"
)

func main() {
	os.Exit(run(context.Background(), os.Args, os.Environ(), os.Stdout, os.Stderr)) //nolint:forbidigo // there is no context to pass on
}

// terminal is where a command runs.
type terminal struct {
	program  string // as it was called, such as ./stint
	environ  []string
	out, err io.Writer
	format   string      // the value of -o
	csv      *csv.Writer // once writeCSV has written the header
	document bool        // writeYAML has written one
}

// Exit codes.
const (
	exitNo    = 1 // the command ran, and the answer is no
	exitError = 2 // the command failed
)

// errNo means that the answer is no. It has been printed already.
var errNo = errors.New("no")

// advice is an error with a hint on how to fix it.
type advice struct {
	error
	try string
}

func (a advice) Unwrap() error { return a.error }

// answer returns errNo if the answer is no and was printed without an error.
func answer(printed error, yes bool) error {
	if printed == nil && !yes {
		return errNo
	}
	return printed
}

// run runs a command and returns its exit code. args[0] is the program. The program called
// ratelimit, as that of envoyproxy/ratelimit is, in whatever directory, is "stint serve
// --envoy-env": containers that start it need another image, and nothing else. Where the entry
// point of the image stays, the program is the first argument.
func run(ctx context.Context, args, environ []string, out, err io.Writer) int {
	if len(args) > 1 && args[1] == "/bin/ratelimit" {
		args = args[1:]
	}
	if filepath.Base(args[0]) == "ratelimit" {
		args = append([]string{"stint", "serve", "--envoy-env"}, args[1:]...)
	}
	t := &terminal{program: args[0], environ: environ, out: out, err: err}
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
		PersistentPreRun: func(c *cobra.Command, _ []string) {
			if o := c.Flags().Lookup("output"); o != nil {
				t.format = o.Value.String()
			}
		},
	}
	root.Flags().Bool("version", false, "show the version")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return advice{err, c.CommandPath() + " --help"} })
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Serve:", []*cobra.Command{newServe(t), newConfig(t), newDoctor(t)}},
		{"Rules and users:", []*cobra.Command{newRules(t), newTiers(t), newUsers(t), newKeys(t), newTenants(t), newExempt(t), newBan(t), newApply(t), newExport(t), newChanges(t)}},
		{"Limits:", []*cobra.Command{newUsage(t), newReset(t), newExplain(t), newCheck(t), newReplay(t), newTry(t), newMe(t)}},
		{"Monitoring:", []*cobra.Command{newFind(t), newStatus(t), newHealth(t), newNodes(t), newRegions(t), newTop(t), newEvents(t), newConsumption(t)}},
		{"Administration:", []*cobra.Command{newTokens(t), newMigrate(t), newArchive(t), newEnvoy(t), newImport(t), newManual(t), newVersion(t)}},
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

// topics are the help topics that are not commands.
func topics() []*cobra.Command {
	return []*cobra.Command{
		newLogsTopic(),
		{Use: "exit-codes", Short: "What exit codes mean", Long: `Exit codes are the same for all commands:

  0  Success, or the answer is yes.
  1  The answer is no: the request is denied ("check", "explain"), a file or a rule has
     problems ("rules check", "rules validate"), a test of rules fails ("rules test"), an
     import is not complete ("import"), a server is not ready ("status", "health"), a node does
     not use the latest rules ("nodes"), an archive is damaged, the doctor found a failure, or
     the user did not confirm. The output is the answer.
  2  Error: the command line is wrong, the server cannot be reached or rejects the request,
     or something does not exist or has changed in the meantime. The standard error says
     what is wrong; its last line starts with "try:".`},
		{Use: "server", Short: "How commands find a server", Long: `Commands such as "rules", "users" and "usage" use the admin API of a running server.

  --server URL       its URL. Default: $STINT_SERVER, or http://127.0.0.1:9090. A server
                     listens for it on server.admin.address.
  --token-file FILE  a file with a token. Default: the token in $STINT_TOKEN, the file
                     named by $STINT_TOKEN_FILE, or the file that a server on this machine
                     has created for this user.
  --ca-file FILE     the CA certificates to verify a server with TLS

There is no flag for the token itself, since everyone on the machine could read it. On its
first start, a server creates a token that is valid for a day, in a file whose name it prints.
"stint tokens create" creates more; with --config, it needs no token.

"rules list", "events", "apply", "export" and "tokens create" read the config file or the
database directly if --config, --database, --set, $STINT_CONFIG or $STINT_SERVER_DATABASE
names one and --server is not given.`},
		{Use: "output", Short: "Output formats", Long: `-o sets the format of the standard output:

  table  For people. It may change between versions. This is the default.
  json   Fields keep their names and meanings; new ones may be added. Lists are arrays;
         endless output, such as that of "events follow", is one object per line.
  yaml   The same as JSON, for people and programs; endless output is one document each.
  csv    The header has the names of the JSON fields. Nested fields have columns such as
         value.tier; lists and maps are JSON.

Times are in UTC, such as 2026-01-31T12:00:00Z. Names chosen by clients may contain control
characters: tables and CSV show such names quoted and escaped. Notes, questions and progress
go to the standard error.`},
	}
}

// wants checks the number of arguments.
func wants(least, most int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return usageError(c, "%s needs %s", c.CommandPath(), what)
		}
		return nil
	}
}

// usageError is an error of the command line, which the help explains.
func usageError(c *cobra.Command, format string, args ...any) error {
	return advice{fmt.Errorf(format, args...), c.CommandPath() + " --help"}
}

// noArgs is for commands that have only flags.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError(c, "%s takes no arguments", c.CommandPath())
	}
	return nil
}

// family returns a command that has only subcommands.
func family(name, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: name, Short: short, SuggestionsMinimumDistance: 2,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				problem := fmt.Sprintf("unknown command %q for %q", args[0], c.CommandPath())
				if near := c.SuggestionsFor(args[0]); len(near) > 0 {
					problem += "; did you mean " + strings.Join(near, " or ") + "?"
				}
				return usageError(c, "%s", problem)
			}
			return c.Help()
		},
	}
	c.AddCommand(commands...)
	return c
}

// asCalled replaces stint at the start of a hint by the program as it was called.
func (t *terminal) asCalled(hint string) string {
	if rest, ok := strings.CutPrefix(hint, "stint "); ok {
		return t.program + " " + rest
	}
	return hint
}

func (t *terminal) variable(name string) string {
	for _, v := range t.environ {
		if n, value, _ := strings.Cut(v, "="); n == name {
			return value
		}
	}
	return ""
}

// addCompletion completes flags that name objects of a server.
func addCompletion(t *terminal, c *cobra.Command) {
	for _, child := range c.Commands() {
		addCompletion(t, child)
	}
	if c.Flags().Lookup("server") == nil {
		return
	}
	for flag, path := range map[string]string{"rule": "rules", "tier": "tiers", "user": "users", "tenant": "tenants", "key": "keys"} {
		if c.Flags().Lookup(flag) != nil {
			_ = c.RegisterFlagCompletionFunc(flag, completeIDs(t, path)) // the flag exists
		}
	}
}

// completeIDs completes ids of one kind with those of a server, if it answers quickly.
func completeIDs(t *terminal, path string) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		const timeout, limit = time.Second, "100"
		ctx, cancel := context.WithTimeout(c.Context(), timeout)
		defer cancel()
		var f serverFlags
		for name, into := range map[string]*string{"server": &f.server, "token-file": &f.tokenFile, "ca-file": &f.caFile} {
			*into = c.Flags().Lookup(name).Value.String()
		}
		a, err := f.open(t)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer a.close()
		type object struct {
			ID string `json:"id"`
		}
		list, _ := items[object](ctx, a, "/"+path, url.Values{"prefix": {prefix}, "limit": {limit}}) // empty on errors
		var out []string
		for _, o := range list {
			if clean(o.ID) == o.ID {
				out = append(out, o.ID)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// version is set by the Makefile when it builds a tag, and all three by a release, which does
// not depend on the repository that it is built in. Otherwise they are those of the module or
// the commit, which Go writes into the binary.
var version, commit, date string

type versionInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Date     string `json:"date,omitempty"` // of the commit
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersion(t *terminal) *cobra.Command {
	c := &cobra.Command{
		Use: "version", Short: "Show the version", Args: noArgs,
		Example: "  stint version -o json",
		RunE: func(*cobra.Command, []string) error {
			v := versionOf()
			return t.print(v, nil, func() error {
				_, err := fmt.Fprintln(t.out, "stint", &v)
				return err
			})
		},
	}
	addOutput(c)
	return c
}

func (v *versionInfo) String() string {
	text := v.Version
	if short := v.Commit[:min(len(v.Commit), 12)]; !strings.Contains(text, short) { // Go may have added it
		text += " " + short
	}
	if v.Modified && !strings.Contains(text, "dirty") {
		text += " (modified)"
	}
	return text + " " + v.Go + " " + v.Platform
}

func versionOf() versionInfo {
	v := versionInfo{Version: version, Commit: commit, Date: date, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if b, ok := debug.ReadBuildInfo(); ok {
		if v.Version == "" && b.Main.Version != "(devel)" {
			v.Version = b.Main.Version
		}
		for _, s := range b.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Commit = cmp.Or(v.Commit, s.Value)
			case "vcs.time":
				v.Date = cmp.Or(v.Date, s.Value)
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	v.Version = cmp.Or(v.Version, "dev")
	return v
}
