package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
)

// top is a run of "stint top".
type top struct {
	*terminal
	*client
	interval time.Duration
	once     bool
	shown    time.Time
}

func newTop(t *terminal) *cobra.Command {
	p := top{terminal: t}
	c := queryCommand(t, &cobra.Command{
		Use:   "top",
		Short: "Show live traffic and the busiest clients",
		Long: `Show the live traffic of a server: requests per second by outcome, the latency of decisions,
the busiest rules, and the users, tenants, API keys and addresses with the most requests and
the most denied requests. Rates and latency cover the last 10 seconds, counts the last 10 to
20. Only this server is shown, not others that share its database.

If rules have a meter, it also shows the units per second that requests have used under them,
such as tokens.

If limits are leased, it also shows the units that the server has taken ahead of requests since
it was started, how many of these were spent and given back, how many it holds, and how many
requests were denied while other servers had taken units ahead: these may be too early.

On a terminal, the display is updated until it is interrupted. Otherwise, each interval is
printed as a block of text, as a JSON object with -o json, or as a row with -o csv.`,
		Example: `  stint top
  stint top --server http://127.0.0.1:9090 --interval 5s
  stint top --once
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
	return p.stream(ctx, call{path: "/live/stream"}, func(event string, data []byte) error {
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
	case asCSV:
		return p.writeCSV([]liveRow{{s.At, s.Node, s.Requests, s.Refused, s.Shadow, s.Latency}})
	}
	lines := append(picture(s, 80, 5), "")
	_, err := io.WriteString(p.out, strings.Join(lines, "\n")+"\n")
	return err
}

// display returns the terminal, if there is one that can be drawn on.
func (p *top) display() (*os.File, bool) {
	f, ok := p.out.(*os.File)
	if !ok || p.variable("TERM") == "dumb" {
		return nil, false
	}
	return f, isTerminal(f)
}

// Control sequences of terminals.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l" // the alternate screen, without a cursor and without wrapping
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	toTop       = "\x1b[H"
	endLine     = "\x1b[K\r\n"
	clearRest   = "\x1b[J"
)

// live draws snapshots until it is interrupted, and restores the screen. It reconnects to a
// server that was lost.
func (p *top) live(ctx context.Context, f *os.File) (err error) {
	const retry = time.Second
	var last *record.Snapshot
	defer func() {
		if last != nil {
			_, _ = io.WriteString(f, leaveScreen) // the terminal may be gone
		}
	}()
	paint := func(s *record.Snapshot, lost error) error {
		lines := draw(s, lost, f)
		_, err := io.WriteString(f, toTop+strings.Join(lines, endLine)+clearRest)
		return err
	}
	for {
		err := p.look(ctx, func(s *record.Snapshot) error {
			if last == nil {
				if _, err := io.WriteString(f, enterScreen); err != nil {
					return err
				}
			}
			last = s
			return paint(s, nil)
		})
		if last == nil || ctx.Err() != nil {
			return err
		}
		if err := paint(last, err); err != nil {
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

// draw returns the lines that fit on a screen, with as many clients as possible.
func draw(s *record.Snapshot, lost error, f *os.File) []string {
	width, height := screenSize(f)
	var lines []string
	for rows := 10; rows > 0; rows-- {
		if lines = picture(s, width, rows); len(lines) < height {
			break
		}
	}
	if lost != nil {
		lines = append([]string{clip(clean(lost.Error()), width)}, lines...)
	}
	return lines[:min(len(lines), height)]
}

// picture returns a snapshot as lines of text, with at most rows lines for each list.
func picture(s *record.Snapshot, width, rows int) []string {
	width = min(max(width, 60), 120)
	head := s.At.Local().Format(time.TimeOnly)
	if s.Node != "" {
		head += "  " + clean(s.Node)
	}
	out := []string{clip(fmt.Sprintf("%s  %s requests/s, %s/s denied", head, rate(s.Requests), rate(s.Refused)), width)}
	if s.Requests == 0 {
		out = append(out, "no requests in the last seconds")
	} else {
		out = append(out, fmt.Sprintf("latency  p50 %s  p95 %s  p99 %s", micros(s.Latency.P50), micros(s.Latency.P95), micros(s.Latency.P99)), "")
	}
	outcome := func(name string, n float64) {
		if n > 0 {
			out = append(out, fmt.Sprintf("%-14s%10s/s  %s", name, rate(n), bar(n, s.Requests, width-28)))
		}
	}
	for o := engine.Allowed; o <= engine.Unavailable; o++ {
		outcome(o.String(), s.Outcomes[o.String()])
	}
	outcome("would deny", s.Shadow)
	if len(s.Rules) > 0 {
		out = append(out, "", fmt.Sprintf("%-*s%12s%12s", width-24, "RULE", "REQUESTS/S", "DENIED/S"))
	}
	for _, r := range s.Rules[:min(rows, len(s.Rules))] {
		out = append(out, fmt.Sprintf("%-*s%12s%12s", width-24, clip(clean(r.Name), width-25), rate(r.Requests), rate(r.Refused)))
	}
	if len(s.Units) > 0 {
		out = append(out, "", fmt.Sprintf("%-*s%28s%12s", width-40, "RULE", "METER", "USED/S"))
	}
	for _, u := range s.Units[:min(rows, len(s.Units))] {
		out = append(out, fmt.Sprintf("%-*s%28s%12s", width-40, clip(clean(u.Rule), width-41), clip(clean(u.Meter), 27), rate(u.Used)))
	}
	if len(s.Leases) > 0 {
		out = append(out, "", leaseLine(width, "LEASED LIMIT", "LENT", "SPENT", "BACK", "HELD", "DENIED EARLY"))
	}
	for _, l := range s.Leases[:min(rows, len(s.Leases))] {
		out = append(out, leaseLine(width, clean(l.Limit), units(l.Lent), units(l.Spent), units(l.Back), units(l.Held), units(l.Early)))
	}
	t := &s.Talkers
	for _, k := range []struct {
		name string
		talk record.Talkers
	}{{"USER", t.Users}, {"TENANT", t.Tenants}, {"API KEY", t.Keys}, {"ADDRESS", t.Addresses}} {
		if len(k.talk.ByRequests) == 0 {
			continue
		}
		half := width/2 - 1
		left := column(k.name, "REQUESTS", k.talk.RequestsOff, k.talk.ByRequests[:min(rows, len(k.talk.ByRequests))], func(a record.Talker) int64 { return a.Requests }, half)
		right := column(k.name, "DENIED", k.talk.RefusedOff, k.talk.ByRefused[:min(rows, len(k.talk.ByRefused))], func(a record.Talker) int64 { return a.Refused }, half)
		out = append(out, "")
		for i := range max(len(left), len(right)) {
			line := strings.Repeat(" ", half)
			if i < len(left) {
				line = left[i]
			}
			if i < len(right) {
				line += "  " + right[i]
			}
			out = append(out, strings.TrimRight(line, " "))
		}
	}
	return out
}

// leaseLine returns a line about a limit that is leased.
func leaseLine(width int, limit, lent, spent, back, held, early string) string {
	name := width - 4*9 - 13
	return fmt.Sprintf("%-*s%9s%9s%9s%9s%13s", name, clip(limit, name-1), lent, spent, back, held, early)
}

// units returns a number of at most eight digits: millions if there are more.
func units(n int64) string {
	const million = 1_000_000
	if n < 100*million {
		return strconv.FormatInt(n, 10)
	}
	return strconv.FormatInt(n/million, 10) + "M"
}

// column returns the lines of a list of clients, with bars. Counts may be too low by off.
func column(kind, what string, off int64, all []record.Talker, count func(record.Talker) int64, width int) []string {
	if len(all) == 0 {
		return nil
	}
	if off > 0 {
		what = "≥" + what
	}
	const number, bars = 9, 8
	name := width - number - bars - 1
	out := []string{fmt.Sprintf("%-*s%*s %*s", name, kind, number, what, bars, "")}
	for _, a := range all {
		n := count(a)
		out = append(out, fmt.Sprintf("%-*s%*d %-*s", name, clip(clean(a.Name), name-1), number, n, bars, bar(float64(n), float64(count(all[0])), bars)))
	}
	return out
}

// bar returns a bar for a share, in eighths of characters. It is never empty.
func bar(n, whole float64, width int) string {
	eighths := int(max(1, min(1, n/whole)*float64(8*width)+0.5))
	out := strings.Repeat("█", eighths/8)
	if part := eighths % 8; part > 0 {
		out += string([]rune("▏▎▍▌▋▊▉")[part-1])
	}
	return out
}

func clip(text string, width int) string {
	if r := []rune(text); len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return text
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
