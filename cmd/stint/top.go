package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
)

// top is how "stint top" was asked.
type top struct {
	*terminal
	*client
	interval time.Duration
	as       string
	once     bool

	csv   csvWriter // once something was written
	shown time.Time
}

func newTop(t *terminal) *cobra.Command {
	p := top{terminal: t}
	c := serverCommand(t, &cobra.Command{
		Use:   "top",
		Short: "Show live traffic and the busiest clients",
		Long: `Show what a server decides now: requests per second and what becomes of them, how long
decisions take, the rules that decide most, and the users, tenants, API keys and addresses
that ask most and are refused most. Rates and latency are of the last 10 seconds, counts
of the last 10 to 20. It is what one server decides, not all that share a database.

In a terminal it shows that until it is interrupted; elsewhere it writes a block every
interval, with -o json an object per line, or with -o csv a row.`,
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
		err := p.run(ctx)
		if ctx.Err() != nil {
			return nil // that is how it ends
		}
		return err
	})
	c.Flags().DurationVar(&p.interval, "interval", time.Second, "how often to show it, as a `time`")
	c.Flags().BoolVar(&p.once, "once", false, "show it once")
	addOutput(c, &p.as)
	return c
}

func (p *top) run(ctx context.Context) error {
	if screen, ok := p.screen(); ok && p.as == asTable && !p.once {
		return p.live(ctx, screen)
	}
	return p.look(ctx, func(s *record.Snapshot) error {
		if err := p.write(s); err != nil || !p.once {
			return err
		}
		return errEnough
	})
}

// look has what a server tells each second shown, every interval.
func (p *top) look(ctx context.Context, show func(*record.Snapshot) error) error {
	return p.stream(ctx, call{path: "/live/stream"}, func(event string, data []byte) error {
		// A second may be a little short.
		if event != "live" || now().Sub(p.shown) < p.interval-time.Second/2 {
			return nil
		}
		s := new(record.Snapshot)
		if err := json.Unmarshal(data, s); err != nil {
			return advice{fmt.Errorf("%s does not answer as Stint does: %w", p.base, err), "--server with the URL of an admin API, and a stint of its version"}
		}
		p.shown = now()
		return show(s)
	})
}

// liveRow is what was seen, in CSV.
type liveRow struct {
	At       time.Time          `json:"at"`
	Node     string             `json:"node"`
	Requests float64            `json:"requests_per_second"`
	Refused  float64            `json:"refused_per_second"`
	Shadow   float64            `json:"shadow_refused_per_second"`
	Latency  record.LiveLatency `json:"latency_us"`
}

// write writes what was seen, where it stays.
func (p *top) write(s *record.Snapshot) error {
	switch p.as {
	case asJSON:
		return p.writeLine(s)
	case asCSV:
		row := reflect.ValueOf(liveRow{s.At, s.Node, s.Requests, s.Refused, s.Shadow, s.Latency})
		var err error
		if p.csv.Writer == nil {
			p.csv.Writer = csv.NewWriter(p.out)
			err = p.csv.head(row.Type())
		}
		return errors.Join(err, p.csv.row(row), p.csv.end())
	}
	lines := append(picture(s, 80, 5), "")
	_, err := io.WriteString(p.out, strings.Join(lines, "\n")+"\n")
	return err
}

// screen returns the terminal, if there is one that can be drawn on.
func (p *top) screen() (*os.File, bool) {
	f, ok := p.out.(*os.File)
	if !ok || p.variable("TERM") == "dumb" {
		return nil, false
	}
	return f, isTerminal(f)
}

// What terminals are told.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l" // the other screen, without a cursor; long lines end at its edge
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	toTop       = "\x1b[H"
	endLine     = "\x1b[K\r\n"
	clearRest   = "\x1b[J"
)

// live draws what it sees until it is interrupted, and leaves the screen as it was. A
// server that is away may come back.
func (p *top) live(ctx context.Context, f *os.File) (err error) {
	const again = time.Second
	var last *record.Snapshot
	defer func() {
		if last != nil {
			_, _ = io.WriteString(f, leaveScreen) // or the terminal is gone
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
		wait := time.NewTimer(again)
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil
		case <-wait.C:
		}
	}
}

// draw returns the lines that fit on a screen, with as many talkers as do.
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

// picture returns what was seen as lines, of each list at most so many.
func picture(s *record.Snapshot, width, rows int) []string {
	width = min(max(width, 60), 120)
	head := s.At.Local().Format(time.TimeOnly)
	if s.Node != "" {
		head += "  " + clean(s.Node)
	}
	out := []string{clip(fmt.Sprintf("%s  %s requests/s, %s/s denied", head, rate(s.Requests), rate(s.Refused)), width)}
	if s.Requests == 0 {
		out = append(out, "nothing was decided in the last seconds")
	} else {
		out = append(out, fmt.Sprintf("decided in  p50 %s  p95 %s  p99 %s", micros(s.Latency.P50), micros(s.Latency.P95), micros(s.Latency.P99)), "")
	}
	outcome := func(name string, n float64) {
		if n > 0 {
			out = append(out, fmt.Sprintf("%-14s%10s/s  %s", name, rate(n), bar(n, s.Requests, width-28)))
		}
	}
	for o := engine.Allowed; o <= engine.Unavailable; o++ {
		outcome(o.String(), s.Outcomes[o.String()])
	}
	outcome("would refuse", s.Shadow)
	if len(s.Rules) > 0 {
		out = append(out, "", fmt.Sprintf("%-*s%12s%12s", width-24, "RULE", "REQUESTS/S", "REFUSED/S"))
	}
	for _, r := range s.Rules[:min(rows, len(s.Rules))] {
		out = append(out, fmt.Sprintf("%-*s%12s%12s", width-24, clip(clean(r.Name), width-25), rate(r.Requests), rate(r.Refused)))
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
		right := column(k.name, "REFUSED", k.talk.RefusedOff, k.talk.ByRefused[:min(rows, len(k.talk.ByRefused))], func(a record.Talker) int64 { return a.Refused }, half)
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

// column returns lines of a width, with bars. Counts may be off by so many.
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

// bar is a share of a whole, in eighths of characters. What there is is seen.
func bar(n, whole float64, width int) string {
	eighths := int(max(1, min(1, n/whole)*float64(8*width)+0.5))
	out := strings.Repeat("█", eighths/8)
	if part := eighths % 8; part > 0 {
		out += string([]rune("▏▎▍▌▋▊▉")[part-1])
	}
	return out
}

// clean is a name that a client may have chosen, without what terminals obey.
func clean(name string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, name)
}

// clip cuts what is too long.
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
