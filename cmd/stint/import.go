package main

import (
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/importer"
	"github.com/stintdev/stint/rule"
)

func newImport(t *terminal) *cobra.Command {
	return family(
		"import", "Import limits of nginx, ingress-nginx, Kong, Traefik or Envoy",
		newImportOf(t, "nginx", "Import limit_req and limit_conn of nginx",
			`the main file of nginx, which names the others by include, or files that its http block includes`,
			"nginx.conf"),
		newImportOf(t, "ingress-nginx", "Import annotations of ingress-nginx",
			`manifests with Ingress objects, and the ConfigMap of the controller, as kubectl get -o yaml writes them`,
			"ingresses.yaml"),
		newImportOf(t, "kong", "Import rate limiting plugins of Kong",
			`a declarative configuration, as "deck gateway dump" writes it`,
			"kong.yaml"),
		newImportOf(t, "traefik", "Import rateLimit and inFlightReq of Traefik",
			`files in YAML or TOML with routers and middlewares, the static configuration, or manifests with Middleware and
IngressRoute objects`,
			"traefik.yaml"),
		newImportOf(t, "envoy", "Import local rate limits of Envoy, and descriptors",
			`configurations of Envoy with filters of local_ratelimit, and of envoyproxy/ratelimit. Stint also reads the latter as they
are: see "stint envoy"`,
			"envoy.yaml"),
	)
}

func newImportOf(t *terminal, source, short, files, example string) *cobra.Command {
	var (
		o    importer.Options
		into string
	)
	c := &cobra.Command{
		Use:   source + " FILE...",
		Short: short,
		Long: `Read ` + files + `, and write rules
in TOML to the standard output, or to a file with --write. Comments name the line that each
rule comes from.

A report says what each limit was before, on one node and on all of --nodes, and what it is
after: Stint counts for all nodes together. What has no counterpart, or is decided
differently, is listed with its line and with what to do instead, and the exit code is 1.
The report is on the standard error, or on the standard output with --write.`,
		Example: fmt.Sprintf("  stint import %s %s > stint.toml\n  stint import %s %s --nodes 3 --write stint.toml -o json", source, example, source, example),
		Args:    wants(1, math.MaxInt, "one FILE or more"),
		RunE: func(_ *cobra.Command, args []string) error {
			if o.Nodes < 1 {
				return advice{fmt.Errorf("--nodes %d: want 1 or more", o.Nodes), "--nodes 3"}
			}
			o.Files = args
			report, err := importer.Import(source, o)
			if problems := rule.Problems(nil); errors.As(err, &problems) {
				return advice{err, "correct the file, and import again"}
			} else if err != nil {
				return advice{err, "stint import " + source + " --help"}
			}
			if into == "" {
				if _, err := fmt.Fprint(t.out, report.Text); err != nil {
					return err
				}
				out := t.out
				t.out = t.err
				defer func() { t.out = out }()
			} else if err := os.WriteFile(into, []byte(report.Text), 0o600); err != nil {
				return advice{err, "--write with a file in a directory that exists"}
			}
			return answer(t.print(report, report.Limits, func() error { return showImport(t, report) }), len(report.Missing) == 0)
		},
	}
	c.Flags().StringVar(&o.Host, "host", "", "import only what is served at this `name`, so that rules need no condition on hosts")
	c.Flags().Int64Var(&o.Nodes, "nodes", 1, "on how `many` nodes, each by itself, limits are counted today")
	c.Flags().StringVar(&into, "write", "", "write the rules to this `FILE`")
	addOutput(c)
	return c
}

func showImport(t *terminal, r *importer.Report) error {
	w := t.table("LIMIT", "COUNTS BY", "ON ONE NODE", fmt.Sprintf("ON %d", r.Nodes), "AFTER, ON ALL", "RULE", "LINE")
	for _, l := range r.Limits {
		w.row(l.What, l.By, l.Node, l.All, l.After, l.Rule, fmt.Sprintf("%s:%d", l.File, l.Line))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, part := range []struct {
		title string
		all   []importer.Finding
	}{{"No counterpart, or not the same:", r.Missing}, {"To know:", r.Notes}} {
		if len(part.all) > 0 {
			fmt.Fprintln(t.out, "\n"+part.title)
		}
		for _, f := range part.all {
			fmt.Fprintf(t.out, "  %s:%d: %s\n      %s\n", clean(f.File), f.Line, clean(f.What), clean(f.Why))
			if f.Instead != "" {
				fmt.Fprintln(t.out, "      instead:", clean(f.Instead))
			}
		}
	}
	summary := "nothing is missing"
	if n := len(r.Missing); n > 0 {
		summary = fmt.Sprintf("without a counterpart, or not the same: %d", n)
	}
	_, err := fmt.Fprintf(t.out, "\nlimits: %d, %s\n", len(r.Limits), summary)
	return err
}
