package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/grpclimit/compare"
	"github.com/stintdev/stint/rule"
)

func newEnvoyCompare(t *terminal) *cobra.Command {
	var f envoyFlags
	var theirs, ours, ca string
	c := &cobra.Command{
		Use:   "compare DIR --reference HOST:PORT",
		Short: "Ask envoyproxy/ratelimit and Stint the same, and list different answers",
		Long: `Ask a running envoyproxy/ratelimit and a running Stint about every limit of a directory, and
list the requests that they answer differently. The exit code is 1 if there are any.

No traffic is affected: the requests have values that no client has. Where all clients share
a counter, nothing is counted, and only the limit itself is compared. What differs is asked
three times, since a window may begin between two calls.`,
		Example: `  stint envoy compare ratelimit/config --reference ratelimit:8081
  stint envoy compare ratelimit/config --reference ratelimit:8081 --stint tls://stint:8081 --ca ca.pem
  stint envoy compare ratelimit/config --reference ratelimit:8081 -o json`,
		Args: wants(1, 1, "one DIR"),
		RunE: func(c *cobra.Command, args []string) error {
			_, _, limits, err := f.read(args[0])
			if problems := rule.Problems(nil); errors.As(err, &problems) {
				return advice{err, "correct the problems, then: stint envoy check " + args[0]}
			} else if err != nil {
				return err
			}
			if theirs == "" {
				return advice{errors.New("--reference: want the address of envoyproxy/ratelimit"), "--reference localhost:8081"}
			}
			o := compare.Options{Config: limits}
			var closers [2]func() error
			if o.Theirs, closers[0], err = compare.Dial(theirs, ca); err != nil {
				return advice{fmt.Errorf("--reference %w", err), "--reference ratelimit:8081"}
			}
			defer closers[0]() //nolint:errcheck // nothing is lost
			if o.Ours, closers[1], err = compare.Dial(ours, ca); err != nil {
				return advice{fmt.Errorf("--stint %w", err), "--stint localhost:8081"}
			}
			defer closers[1]() //nolint:errcheck // nothing is lost
			found, err := compare.Run(c.Context(), o)
			if err != nil {
				return advice{err, "start both with the same files, and compare again"}
			}
			return answer(t.print(found, found.Differences, func() error { return showCompared(t, found) }), len(found.Differences) == 0)
		},
	}
	f.add(c)
	c.Flags().StringVar(&theirs, "reference", "", "the `address` of envoyproxy/ratelimit, host:port, tls://host:port or unix:/path")
	c.Flags().StringVar(&ours, "stint", "127.0.0.1:8081", "the `address` of Stint, host:port, tls://host:port or unix:/path")
	c.Flags().StringVar(&ca, "ca", "", "a `file` with the certificate authorities of both, in PEM (default: those of the system)")
	addOutput(c)
	return c
}

func showCompared(t *terminal, r *compare.Report) error {
	for _, d := range r.Differences {
		fmt.Fprintf(t.out, "%s\n  envoyproxy/ratelimit: %s\n  Stint:                %s\n", d.Request, d.Theirs, d.Ours)
	}
	if len(r.Shared) > 0 {
		fmt.Fprintf(t.out, "limits of which nothing was counted, since all clients share them: %d\n", len(r.Shared))
	}
	for _, l := range r.Hidden {
		fmt.Fprintf(t.out, "not compared, since other descriptors match first: %s\n", l)
	}
	fmt.Fprintf(t.out, "limits: %d, requests to each: %d, differences: %d\n", r.Limits, r.Requests, len(r.Differences))
	return nil
}
