package main

import (
	_ "embed"
	"fmt"
	"html"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/fitting"
	"github.com/stintdev/stint/internal/control/replay"
)

// pageHead is how the page begins, up to what it shows, with $NAME for the name of the log.
//
//go:embed try.html
var pageHead string

// column is a bar of a chart, in the units of its drawing.
type column struct {
	X, Y, Width, Height float64
	Over, OverHeight    float64 // the part that is denied
	Title               string
}

// chart is a drawing of bars.
type chart struct {
	Width, Height  float64
	Bars           []column
	First, Last    string
	Most, Subtitle string
}

// markup is a page that is being written. It does without html/template, by which the linker keeps every method of the program: the
// binary would have half as many bytes again.
type markup struct{ strings.Builder }

// add adds a line, in which each %s is an argument, escaped.
func (m *markup) add(format string, args ...any) {
	for i, a := range args {
		args[i] = html.EscapeString(fmt.Sprint(a))
	}
	fmt.Fprintf(m, format+"\n", args...)
}

// table adds a table. The first columns are texts, and the others numbers.
func (m *markup) table(texts int, head []string, rows [][]any) {
	row := func(tag string, cells []any) {
		m.WriteString("<tr>")
		for i, c := range cells {
			class := ""
			if i >= texts {
				class = ` class="n"`
			}
			fmt.Fprintf(m, "<%s%s>%s</%[1]s>", tag, class, html.EscapeString(fmt.Sprint(c)))
		}
		m.WriteString("</tr>\n")
	}
	m.add(`<div class="wide"><table>`)
	titles := make([]any, len(head))
	for i, h := range head {
		titles[i] = h
	}
	row("th", titles)
	for _, r := range rows {
		row("td", r)
	}
	m.add("</table></div>")
}

// chart adds a chart, and texts below it.
func (m *markup) chart(c *chart, label string, below ...string) {
	m.add("<figure>")
	m.add(`<svg viewBox="0 0 %s %s" role="img" aria-label="%s">`, c.Width, c.Height, label)
	rect := func(class string, x, y, width, height float64) {
		fmt.Fprintf(m, `<rect%s x="%.2f" y="%.2f" width="%.2f" height="%.2f"/>`, class, x, y, width, height)
	}
	for _, b := range c.Bars {
		fmt.Fprintf(m, "<g><title>%s</title>", html.EscapeString(b.Title))
		rect("", b.X, b.Y, b.Width, b.Height)
		if b.OverHeight > 0 {
			rect(` class="denied"`, b.X, b.Over, b.Width, b.OverHeight)
		}
		m.add("</g>")
	}
	m.add("</svg>")
	m.WriteString("<figcaption>")
	for _, text := range below {
		fmt.Fprintf(m, "<span>%s</span>", html.EscapeString(text))
	}
	m.add("</figcaption>")
	m.add("</figure>")
}

// writePage writes a page that needs no other file.
func writePage(w io.Writer, name string, x *tried) error {
	var m markup
	m.WriteString(strings.ReplaceAll(pageHead, "$NAME", html.EscapeString(name)))
	m.add("<h1>Limits for %s</h1>", name)
	m.add("<p>%s</p>", x.Summary())
	if x.Log.Malformed > 0 {
		m.add("<p>Lines that could not be read: %s. The first:</p>\n<ul>", x.Log.Malformed)
		for _, p := range x.Log.Problems {
			m.add("<li>%s:%s: %s</li>", p.File, p.Line, p.Why)
		}
		m.add("</ul>")
	}
	if !x.Exact {
		m.add(`<p class="quiet">There are more clients than fit into memory: a sample of them was measured, and the limits are estimates. What they deny is not.</p>`)
	}
	if c := overTime(x.Replay.Series); len(c.Bars) > 0 {
		m.add("<h2>Requests over time</h2>")
		m.chart(&c, "Requests over time, and those that would be denied", c.First, "at most "+c.Most+", "+c.Subtitle, c.Last)
	}
	if len(x.Tried) > 0 {
		m.limits(x)
	}
	m.add("</body>\n</html>")
	_, err := io.WriteString(w, m.String())
	return err
}

// limits adds how often clients ask, and the limits that would fit.
func (m *markup) limits(x *tried) {
	m.add("<h2>How often clients ask</h2>")
	m.add(`<p class="quiet">How many requests a client sends in a window in which it sends any: in half of these windows at most the first number, and so on.</p>`)
	m.add(`<div class="charts">`)
	for _, c := range windowCharts(x.Windows) {
		m.chart(&c, "Requests of a client in "+c.Subtitle, "in "+c.Subtitle, "at most "+c.Most)
	}
	m.add("</div>")
	var rows [][]any
	for _, w := range x.Windows {
		rows = append(rows, []any{w.Window, w.P50, w.P90, w.P99, w.P999, w.Max})
	}
	m.table(1, []string{"Window", "50 %", "90 %", "99 %", "99.9 %", "Most"}, rows)
	m.add("<h2>Limits that deny at most one client in %s</h2>", x.OneIn)
	m.add("<p>%s</p>", x.Denied())
	rows = nil
	for _, t := range x.Tried {
		rows = append(rows, []any{t.Name(), t.Requests, t.Clients, t.Text(), t.Denied, t.DeniedClients})
	}
	m.table(1, []string{"Endpoint", "Requests", "Clients", "Limits", "Denied", "Clients denied"}, rows)
	if denied := deniedSubjects(x); len(denied) > 0 {
		rows = nil
		for _, s := range denied {
			rows = append(rows, []any{s.Name, s.Requests, s.Candidate})
		}
		m.add("<h2>Clients that would be denied most</h2>")
		m.table(1, []string{"Client", "Requests", "Denied"}, rows)
	}
	m.add("<h2>The rules</h2>")
	m.add(`<p class="quiet">For a config file: stint serve --config stint.toml</p>`)
	m.add("<pre>%s</pre>", x.Rules)
}

func deniedSubjects(x *tried) (out []replay.Row) {
	for _, s := range x.Replay.Subjects {
		if s.Candidate > 0 {
			out = append(out, s)
		}
	}
	return out
}

const chartWidth, chartHeight = 800, 160

// overTime draws requests, and those that would be denied.
func overTime(points []replay.Point) chart {
	c := chart{Width: chartWidth, Height: chartHeight}
	if len(points) == 0 {
		return c
	}
	most := int64(1)
	for _, p := range points {
		most = max(most, p.Requests)
	}
	step := time.Duration(1e9)
	for i := 1; i < len(points); i++ {
		if d := points[i].Start.Sub(points[i-1].Start); i == 1 || d < step {
			step = d
		}
	}
	first := points[0].Start
	slots := float64(points[len(points)-1].Start.Sub(first)/step) + 1
	width := chartWidth / slots
	for _, p := range points {
		height := chartHeight * float64(p.Requests) / float64(most)
		denied := chartHeight * float64(p.Candidate) / float64(most)
		c.Bars = append(c.Bars, column{
			X: width * float64(p.Start.Sub(first)/step), Y: chartHeight - height, Width: max(width*0.85, 0.5), Height: height,
			Over: chartHeight - denied, OverHeight: denied,
			Title: fmt.Sprintf("%s: %d requests, %d denied", p.Start.Format(time.RFC3339), p.Requests, p.Candidate),
		})
	}
	c.First, c.Last, c.Most = first.Format(time.RFC3339), points[len(points)-1].Start.Add(step).Format(time.RFC3339), strconv.FormatInt(most, 10)
	c.Subtitle = "each bar is " + strings.TrimSuffix(strings.TrimSuffix(step.String(), "0s"), "0m")
	return c
}

// windowCharts draws the quantiles of each window.
func windowCharts(windows []fitting.Window) (out []chart) {
	const width, height = 240, 100
	for _, w := range windows {
		c := chart{Width: width, Height: height, Subtitle: w.Window, Most: strconv.FormatInt(w.Max, 10)}
		all := []struct {
			name string
			n    int64
		}{{"50 %", w.P50}, {"90 %", w.P90}, {"99 %", w.P99}, {"99.9 %", w.P999}, {"most", w.Max}}
		for i, q := range all {
			h := height * float64(q.n) / float64(max(w.Max, 1))
			slot := float64(width) / float64(len(all))
			c.Bars = append(c.Bars, column{X: float64(i)*slot + slot*0.1, Y: height - h, Width: slot * 0.8, Height: h, Title: fmt.Sprintf("%s: %d", q.name, q.n)})
		}
		out = append(out, c)
	}
	return out
}
