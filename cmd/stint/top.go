package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	eastasian "golang.org/x/text/width"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
)

// top is a run of "stint top".
type top struct {
	*terminal
	*client
	interval time.Duration
	once     bool
	node     string
	shown    time.Time
}

func newTop(t *terminal) *cobra.Command {
	p := top{terminal: t}
	c := queryCommand(t, &cobra.Command{
		Use:   "top",
		Short: "Show live traffic and the busiest clients",
		Long: `Show the live traffic of all servers that share a database or, without one, Redis: requests
per second by outcome, the latency of decisions, the busiest rules, and the users, tenants, API
keys and addresses with the most requests and the most denied requests. Rates and latency cover
the last 10 seconds, counts the last 10 to 20. With --node, only the server of that name is shown.

If rules have a meter, it also shows the units per second that requests have used under them,
such as tokens.

If limits are leased, it also shows the units that servers have taken ahead of requests since
they were started, how many of these were spent and given back, how many they hold, and how many
requests were denied while other servers may have held units, at most: these may be too early. USED is
the most that the store has counted of a limit in its window, such as 998/1000, if there is room.

On a terminal, the display is updated until q is pressed; ? shows the other keys. Colors are off
if $NO_COLOR is set. Otherwise, each interval is
printed as a block of text, as a JSON object with -o json, as a YAML document with -o yaml, or
as a row with -o csv.`,
		Example: `  stint top
  stint top --server http://127.0.0.1:9090 --interval 5s
  stint top --once
  stint top --node node-7
  stint top -o json | jq .requests_per_second`,
	}, func(c *cobra.Command, a *client, _ []string) error {
		const shortest = time.Second
		if p.interval < shortest {
			return advice{fmt.Errorf("--interval: %v, want %v or more", p.interval, shortest), "--interval 1s"}
		}
		ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		p.client = a
		return p.run(ctx)
	})
	c.Flags().DurationVar(&p.interval, "interval", time.Second, "how often to update it, as a `time`")
	c.Flags().StringVar(&p.node, "node", "", "show the server with this `name` only")
	c.Flags().BoolVar(&p.once, "once", false, "show it once")
	return c
}

func (p *top) run(ctx context.Context) error {
	if screen, ok := p.display(); ok && p.format == asTable && !p.once {
		return p.live(ctx, screen)
	}
	return p.look(ctx, func(s *record.Snapshot) error {
		if err := p.write(s); err != nil || !p.once {
			return err
		}
		return errEnough
	})
}

// look shows the snapshots that a server sends each second, every interval.
func (p *top) look(ctx context.Context, show func(*record.Snapshot) error) error {
	query := url.Values{}
	if p.node != "" {
		query.Set("node", p.node)
	}
	return p.stream(ctx, call{path: "/live/stream", query: query}, func(event string, data []byte) error {
		// Snapshots may be a little less than a second apart.
		if event != "live" || now().Sub(p.shown) < p.interval-time.Second/2 {
			return nil
		}
		s := new(record.Snapshot)
		if err := p.decode(data, s); err != nil {
			return err
		}
		p.shown = now()
		return show(s)
	})
}

// liveRow is a snapshot in CSV.
type liveRow struct {
	At       time.Time          `json:"at"`
	Node     string             `json:"node"`
	Requests float64            `json:"requests_per_second"`
	Refused  float64            `json:"refused_per_second"`
	Shadow   float64            `json:"shadow_refused_per_second"`
	Latency  record.LiveLatency `json:"latency_us"`
}

func (p *top) write(s *record.Snapshot) error {
	switch p.format {
	case asJSON:
		return p.writeJSON(s, "")
	case asYAML:
		return p.writeYAML(s)
	case asCSV:
		return p.writeCSV([]liveRow{{s.At, s.Node, s.Requests, s.Refused, s.Shadow, s.Latency}})
	}
	lines := append(picture(s, new(view), 80, 5), "")
	_, err := io.WriteString(p.out, strings.Join(lines, "\n")+"\n")
	return err
}

// display returns the terminal, if there is one that can be drawn on.
func (p *top) display() (*os.File, bool) {
	f, ok := p.out.(*os.File)
	if !ok || p.variable("TERM") == "dumb" {
		return nil, false
	}
	return f, term.IsTerminal(int(f.Fd()))
}

// live draws snapshots until the user quits or it is interrupted, and restores the screen. It reconnects to a
// server that was lost.
func (p *top) live(ctx context.Context, f *os.File) error {
	const retry = time.Second
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	s := &screen{out: f, view: view{color: p.variable("NO_COLOR") == ""}}
	defer s.leave()
	if restore, ok := s.listen(os.Stdin, quit); ok {
		defer restore()
	}
	for {
		err := p.look(ctx, func(next *record.Snapshot) error { return s.show(next, nil) })
		if s.begun() == nil || ctx.Err() != nil {
			return err
		}
		if err := s.show(nil, err); err != nil {
			return err
		}
		wait := time.NewTimer(retry)
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil
		case <-wait.C:
		}
	}
}

// picture returns a snapshot as lines of text, with at most rows lines for each list.
func picture(s *record.Snapshot, v *view, width, rows int) []string {
	width = min(max(width, 26), 120)
	wide := width >= 60 // there is room for all columns
	head := s.At.Local().Format(time.TimeOnly)
	switch {
	case s.Node != "":
		head += "  " + clean(s.Node)
	case s.Alive > len(s.Nodes):
		head += fmt.Sprintf("  %d of %d nodes", len(s.Nodes), s.Alive)
	case len(s.Nodes) > 1:
		head += fmt.Sprintf("  %d nodes", len(s.Nodes))
	}
	out := []string{v.paint(bold, clip(fmt.Sprintf("%s  %s requests/s, %s/s denied", head, rate(s.Requests), rate(s.Refused)), width))}
	if s.Requests == 0 {
		out = append(out, clip("no requests in the last seconds", width))
	} else {
		out = append(out, clip(fmt.Sprintf("latency  p50 %s  p95 %s  p99 %s", micros(s.Latency.P50), micros(s.Latency.P95), micros(s.Latency.P99)), width), "")
	}
	if s.Problem != "" {
		out = append(out, v.paint(yellow, clip(clean(s.Problem), width)))
	}
	outcome := func(name string, n float64, color string) {
		if n > 0 {
			out = append(out, strings.TrimRight(fmt.Sprintf("%-13s%9s/s %s", name, rate(n), v.paint(color, bar(n, s.Requests, width-26))), " "))
		}
	}
	for o := engine.Allowed; o <= engine.Unavailable; o++ {
		outcome(o.String(), s.Outcomes[o.String()], outcomeColor(o))
	}
	outcome("would deny", s.Shadow, yellow)
	title := func(line string) { out = append(out, "", v.paint(dim, line)) }
	rates := func(what string, all []record.RuleRate) {
		if len(all) > 0 {
			title(fmt.Sprintf("%-*s%12s%*s", width-22, what, "REQUESTS/S", 10, "DENIED/S"))
		}
		for _, r := range all[:min(rows, len(all))] {
			out = append(out, fmt.Sprintf("%s%12s%10s", fit(clean(r.Name), width-22), rate(r.Requests), rate(r.Refused)))
		}
	}
	if len(s.Nodes) > 1 {
		nodes := make([]record.RuleRate, len(s.Nodes))
		for i, n := range s.Nodes {
			nodes[i] = record.RuleRate(n)
		}
		rates("NODE", v.rules(nodes))
	}
	rates("RULE", v.rules(s.Rules))
	if units := kept(v, s.Units, func(u record.UnitRate) string { return u.Rule }); len(units) > 0 {
		meter := 0
		if wide {
			meter = 28
		}
		title(fmt.Sprintf("%-*s%*s%12s", width-meter-12, "RULE", meter, clip("METER", meter), "USED/S"))
		for _, u := range units[:min(rows, len(units))] {
			of := clip(clean(u.Meter), meter-1)
			out = append(out, fmt.Sprintf("%s%s%s%12s", fit(clean(u.Rule), width-meter-12), strings.Repeat(" ", meter-screenWidth(of)), of, rate(u.Used)))
		}
	}
	if leases := kept(v, s.Leases, func(l record.Leased) string { return l.Limit }); len(leases) > 0 {
		leases = leases[:min(rows, len(leases))]
		room := 0 // for the most that was used
		for _, l := range leases {
			room = max(room, len(mostUsed(l))+2)
		}
		title(leaseLine(width, wide, room, "LEASED LIMIT", "LENT", "SPENT", "BACK", "HELD", "USED", "DENIED EARLY"))
		for _, l := range leases {
			out = append(out, leaseLine(width, wide, room, clean(l.Limit), units(l.Lent), units(l.Spent), units(l.Back), units(l.Held), mostUsed(l), units(l.Early)))
		}
	}
	t := &s.Talkers
	for _, k := range []struct {
		name string
		talk record.Talkers
	}{{"USER", t.Users}, {"TENANT", t.Tenants}, {"API KEY", t.Keys}, {"ADDRESS", t.Addresses}} {
		out = append(out, v.talkers(k.name, k.talk, width, rows)...)
	}
	return out
}

// talkers returns the lines of the clients of a kind: those with the most requests and, beside them or, if there is no
// room, below, those with the most denied requests.
func (v *view) talkers(kind string, all record.Talkers, width, rows int) (out []string) {
	each := width
	if width >= 60 {
		each = width/2 - 1
	}
	left := v.column(kind, "REQUESTS", all.RequestsOff, all.ByRequests, func(a record.Talker) int64 { return a.Requests }, each, rows)
	right := v.column(kind, "DENIED", all.RefusedOff, all.ByRefused, func(a record.Talker) int64 { return a.Refused }, each, rows)
	if len(left)+len(right) == 0 {
		return nil
	}
	if each == width {
		if len(left) > 0 && len(right) > 0 {
			left = append(left, "")
		}
		return slices.Concat([]string{""}, left, right)
	}
	out = append(out, "")
	for i := range max(len(left), len(right)) {
		line := strings.Repeat(" ", each)
		if i < len(left) {
			line = left[i]
		}
		if i < len(right) {
			line += "  " + right[i]
		}
		if line = strings.TrimRight(line, " "); i == 0 {
			line = v.paint(dim, line)
		}
		out = append(out, line)
	}
	return out
}

// leaseLine returns a line about a limit that is leased. What was used is shown if there is room for it beside the name.
func leaseLine(width int, wide bool, room int, limit, lent, spent, back, held, used, early string) string {
	if !wide {
		return fmt.Sprintf("%s%9s", fit(limit, width-9), held)
	}
	const least = 20 // of the name
	if width-4*9-13-room < least {
		room, used = 0, ""
	}
	name := width - 4*9 - room - 13
	return fmt.Sprintf("%s%9s%9s%9s%9s%*s%13s", fit(limit, name), lent, spent, back, held, room, used, early)
}

// mostUsed returns the most that the store has counted of a limit, and its capacity.
func mostUsed(l record.Leased) string { return units(l.MostUsed) + "/" + units(l.Cap) }

// units returns a number of at most eight digits: millions if there are more.
func units(n int64) string {
	const million = 1_000_000
	if n < 100*million {
		return strconv.FormatInt(n, 10)
	}
	return strconv.FormatInt(n/million, 10) + "M"
}

// column returns the lines of a list of clients, with bars. Counts may be too low by off.
func (v *view) column(kind, what string, off int64, all []record.Talker, count func(record.Talker) int64, width, rows int) []string {
	most := int64(1)
	for _, a := range all {
		most = max(most, count(a))
	}
	if all = kept(v, all, func(a record.Talker) string { return a.Name }); len(all) == 0 {
		return nil
	}
	if v.sort == byName {
		slices.SortStableFunc(all, func(a, b record.Talker) int { return strings.Compare(a.Name, b.Name) })
	}
	if off > 0 {
		what = "≥" + what
	}
	const number = 9
	bars := 8
	if width < 30 {
		bars = 0
	}
	name := width - number - bars - 1
	out := []string{fmt.Sprintf("%-*s%*s %*s", name, kind, number, what, bars, "")}
	for _, a := range all[:min(rows, len(all))] {
		n := count(a)
		out = append(out, fmt.Sprintf("%s%*d %-*s", fit(clean(a.Name), name), number, n, bars, bar(float64(n), float64(most), bars)))
	}
	return out
}

// bar returns a bar for a share, in eighths of characters. It is never empty, if there is room for one.
func bar(n, whole float64, width int) string {
	if width < 1 {
		return ""
	}
	eighths := int(max(1, min(1, n/whole)*float64(8*width)+0.5))
	out := strings.Repeat("█", eighths/8)
	if part := eighths % 8; part > 0 {
		out += string([]rune("▏▎▍▌▋▊▉")[part-1])
	}
	return out
}

// screenWidth returns how many columns of a terminal a text takes: most characters of East Asia and emoji take two, and those that change
// the one before none.
func screenWidth(text string) (n int) {
	for _, r := range text {
		n += runeWidth(r)
	}
	return n
}

func runeWidth(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	switch eastasian.LookupRune(r).Kind() {
	case eastasian.EastAsianWide, eastasian.EastAsianFullwidth:
		return 2
	default:
		return 1
	}
}

// clip returns what a number of columns has room for.
func clip(text string, room int) string {
	if room < 1 {
		return ""
	}
	if screenWidth(text) <= room {
		return text
	}
	used := 0
	for i, r := range text {
		if used += runeWidth(r); used > room-1 {
			return text[:i] + "…"
		}
	}
	return text
}

// fit clips a text to a number of columns less one, and fills these with spaces.
func fit(text string, room int) string {
	text = clip(text, room-1)
	return text + strings.Repeat(" ", max(0, room-screenWidth(text)))
}

func rate(n float64) string {
	if n < 100 {
		return fmt.Sprintf("%.1f", n)
	}
	return fmt.Sprintf("%.0f", n)
}

func micros(n int64) string {
	if n == 0 {
		return "<1µs"
	}
	return (time.Duration(n) * time.Microsecond).String()
}
