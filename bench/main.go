// Command bench measures what a decision of Stint costs, in memory and over Redis, and
// compares it with the limiters that Go programs use for the same job. It prints:
//
//   - one decision of each contestant, with few keys and with many, from one goroutine and
//     from as many as there are processors;
//   - Stint alone: several asks in one take, and takes that are denied;
//   - the memory that each contestant uses, what that costs the garbage collector, and the
//     slowest single take while Stint drops old counters;
//   - one decision over Redis, from many goroutines and from one, and one hot counter from
//     several processes;
//   - one request to each server of a stint process, and to servers that decide nothing;
//   - one call of Envoy's rate limit service, and of envoyproxy/ratelimit.
//
// All contestants run in one process, in rounds. Each round measures each of them, in random
// order, so that the noise of the machine affects all alike; a table shows medians over the
// rounds. Only one store with many keys is alive at a time, so that none pays for the garbage
// of another.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxKeys is how many keys a cell may have. Bounded stores are opened with twice as many, so
// that none of them has to drop a live key.
const maxKeys = 1 << 20

func main() {
	if len(os.Args) == 3 && strings.HasPrefix(os.Args[1], "serve-") {
		fmt.Fprintln(os.Stderr, "bench:", serve(os.Args[1], os.Args[2]))
		os.Exit(1)
	}
	if len(os.Args) == 5 && os.Args[1] == asHot {
		if err := hot(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(out io.Writer) error {
	s, err := parseFlags()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s %s/%s, GOMAXPROCS %d, %d rounds of %v\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), s.rounds, s.cell)

	list := slices.DeleteFunc(contestants(), func(c contestant) bool { return !s.only.MatchString(c.name) })
	for _, n := range s.keys {
		speeds, err := compare(list, makeKeys(n), s)
		if err != nil {
			return err
		}
		printComparison(out, n, list, speeds)
	}

	const few = 1000
	alone := slices.DeleteFunc(kinds(), func(k kind) bool { return !s.only.MatchString(k.name) })
	takes, err := compareTakes(alone, makeKeys(few), s)
	if err != nil {
		return err
	}
	printTakes(out, few, alone, takes)

	largest := slices.Max(s.keys)
	printFootprints(out, largest, list, footprints(list, makeKeys(largest)))
	if s.only.MatchString(reference) {
		printSweep(out, largest, sweep(largest))
	}
	if err := compareRedis(out, s); err != nil {
		return err
	}
	if err := compareHot(out, s); err != nil {
		return err
	}
	if err := compareDoors(out, s); err != nil {
		return err
	}
	return compareServices(out, s)
}

// settings are the flags.
type settings struct {
	rounds int
	cell   time.Duration
	keys   []int
	only   *regexp.Regexp
}

func parseFlags() (s settings, err error) {
	flag.IntVar(&s.rounds, "rounds", 7, "measure each cell `n` times")
	flag.DurationVar(&s.cell, "time", 200*time.Millisecond, "measure a cell for this `duration` in each round")
	keys := flag.String("keys", "1000,1000000", "`numbers` of keys, separated by commas; the last table uses the largest")
	only := flag.String("only", "", "`regexp`: leave out the contestants whose names do not match")
	flag.Parse()
	if s.rounds < 1 || s.cell <= 0 {
		return s, fmt.Errorf("-rounds %d -time %v: want at least one round, and a positive duration", s.rounds, s.cell)
	}
	for field := range strings.SplitSeq(*keys, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 || n > maxKeys {
			return s, fmt.Errorf("-keys %s: want numbers from 1 to %d", *keys, maxKeys)
		}
		s.keys = append(s.keys, n)
	}
	if s.only, err = regexp.Compile(*only); err != nil {
		return s, fmt.Errorf("-only: %w", err)
	}
	return s, nil
}
