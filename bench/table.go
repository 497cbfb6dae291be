package main

import (
	"fmt"
	"io"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// table is text in columns, the first left-aligned and the others right-aligned. The first row
// is the heading.
type table [][]string

func (t *table) row(cells ...string) { *t = append(*t, cells) }

func (t table) print(out io.Writer, title string) {
	if len(t) == 1 { // all rows were left out
		return
	}
	widths := make([]int, len(t[0]))
	for _, row := range t {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	fmt.Fprintf(out, "\n%s\n\n", title)
	for _, row := range t {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				line.WriteString("  " + cell + pad)
			} else {
				line.WriteString("  " + pad + cell)
			}
		}
		fmt.Fprintln(out, strings.TrimRight(line.String(), " "))
	}
}

func printComparison(out io.Writer, n int, list []contestant, speeds []speed) {
	var ref, riv speed // empty if left out
	for i, c := range list {
		switch c.name {
		case reference:
			ref = speeds[i]
		case rival:
			riv = speeds[i]
		}
	}
	t := table{{"", "serial ns", "", "×stint", "×" + rival, "parallel ns", "", "×stint", "×" + rival}}
	for i, c := range list {
		s := speeds[i]
		t.row(c.name+version(c.module),
			nanos(s.serial), spread(s.serial), ratio(s.serial, ref.serial), ratio(s.serial, riv.serial),
			nanos(s.parallel), spread(s.parallel), ratio(s.parallel, ref.parallel), ratio(s.parallel, riv.parallel))
	}
	t.print(out, fmt.Sprintf("One decision, %s keys (parallel: wall time / decisions of all goroutines; ×stint: × %s)",
		thousands(n), reference))
}

func printTakes(out io.Writer, n int, list []kind, takes []take) {
	t := table{{""}}
	for _, asks := range batchSizes {
		t[0] = append(t[0], fmt.Sprintf("asks=%d ns", asks), "", "×one")
	}
	t[0] = append(t[0], "denied ns", "", "×one")
	for i, k := range list {
		cells, one := takes[i], takes[i].admitted[0]
		row := []string{k.name}
		for _, s := range append(cells.admitted[:], cells.denied) {
			row = append(row, nanos(s), spread(s), ratio(s, one))
		}
		t.row(row...)
	}
	t.print(out, fmt.Sprintf("One take of stint, %s subjects, serial: asks admitted together, and one ask denied", thousands(n)))
}

func printFootprints(out io.Writer, n int, list []contestant, prints []footprint) {
	t := table{{"", "bytes/key", "objects/key", "collection"}}
	for i, c := range list {
		p := prints[i]
		t.row(c.name+version(c.module), fmt.Sprintf("%.1f", p.bytes), fmt.Sprintf("%.3f", p.objects),
			p.collection.Round(10*time.Microsecond).String())
	}
	t.print(out, fmt.Sprintf("Heap with %s keys (without the text of the keys, which the caller holds)", thousands(n)))
}

func printSweep(out io.Writer, n int, pauses []pause) {
	t := table{{"", "takes", "p50", "p99.9", "p99.99", "max", "swept"}}
	for i, p := range pauses {
		t.row(latencyRow(fmt.Sprintf("run %d, all of them sweep", i+1), p.sweeping)...)
		t.row(latencyRow("  half of them of new keys", p.growing)...)
		t.row(latencyRow("  the clock, no take", p.control)...)
	}
	t.print(out, fmt.Sprintf("Each take of stint while %s recovered counters are swept", thousands(n)))
}

func latencyRow(name string, s swept) []string {
	row := []string{name, thousands(s.takes), s.p50.String(), s.p999.String(), s.p9999.String(), s.max.String(), ""}
	if s.counters > 0 {
		row[len(row)-1] = thousands(int(s.counters))
	}
	return row
}

func nanos(s samples) string {
	if len(s) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", s.median())
}

func spread(s samples) string {
	if len(s) == 0 {
		return ""
	}
	return fmt.Sprintf("±%.0f%%", 100*s.spread())
}

// ratio returns the median of the ratios of rounds. The speed of the machine changes from round
// to round, and less within a round, so the ratio of the medians could compare a good round with
// a bad one.
func ratio(s, base samples) string {
	if len(s) == 0 || len(base) == 0 {
		return "-"
	}
	of := make(samples, len(s))
	for i := range of {
		of[i] = s[i] / base[i]
	}
	return fmt.Sprintf("%.2f", of.median())
}

// atMost writes a target, or nothing if there is none.
func atMost(target float64) string {
	if target == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", target)
}

// version returns the module's version as built, after a space.
func version(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok || module == "" {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == module {
			return " " + m.Version
		}
	}
	return ""
}

// thousands writes 1000000 as 1,000,000.
func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
