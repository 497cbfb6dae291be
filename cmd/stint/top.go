package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/audit"
)

// top is how "stint top" was asked.
type top struct {
	*terminal
	admin    string
	interval time.Duration
	json     bool
	once     bool
	client   http.Client
}

func newTop(t *terminal) *cobra.Command {
	p := top{terminal: t}
	c := &cobra.Command{
		Use:   "top",
		Short: "Show what a server decides now, and who asks most",
		Long: `Show what a server decides now: requests per second and what becomes of them, how long
decisions take, and the users, tenants, API keys and addresses that ask most and are
refused most. Rates and latency are of the last 10 seconds, counts of the last 10 to 20.

It asks the admin listener of one server (server.admin.address). In a terminal it shows
that until it is interrupted; elsewhere it writes a block every interval, or with --json
an object per line.`,
		Example: `  stint top
  stint top --admin http://10.0.0.7:9090 --interval 5s
  stint top --once
  stint top --json | jq .requests_per_second`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := p.check(); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			defer p.client.CloseIdleConnections()
			err := p.run(ctx)
			if ctx.Err() != nil {
				return nil // that is how it ends
			}
			return err
		},
	}
	c.Flags().StringVar(&p.admin, "admin", "http://127.0.0.1:9090", "the `URL` of the admin listener")
	c.Flags().DurationVar(&p.interval, "interval", time.Second, "how often to look")
	c.Flags().BoolVar(&p.json, "json", false, "write JSON, an object per line")
	c.Flags().BoolVar(&p.once, "once", false, "look once")
	return c
}

func (p *top) check() error {
	const shortest = 100 * time.Millisecond
	if p.interval < shortest {
		return advice{fmt.Errorf("--interval: %v, want %v or more", p.interval, shortest), "--interval 1s"}
	}
	u, err := url.Parse(p.admin)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		given := p.admin
		if strings.Contains(given, "@") {
			given = "***" // it may hold a password
		}
		return advice{fmt.Errorf("--admin: %q, want the URL of an admin listener", given), "--admin http://127.0.0.1:9090"}
	}
	p.admin = strings.TrimSuffix(p.admin, "/")
	p.client.Timeout = 10 * time.Second
	return nil
}

func (p *top) run(ctx context.Context) error {
	s, err := p.look(ctx)
	if err != nil || p.once {
		return errors.Join(err, p.write(s))
	}
	tick := time.NewTicker(p.interval)
	defer tick.Stop()
	next := func() bool {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
			return true
		}
	}
	if screen, ok := p.screen(); ok && !p.json {
		return p.live(ctx, screen, s, next)
	}
	for {
		if err := p.write(s); err != nil || !next() {
			return err
		}
		if s, err = p.look(ctx); err != nil {
			return err
		}
	}
}

// look asks the server.
func (p *top) look(ctx context.Context) (*audit.Snapshot, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.admin+"/live", nil)
	if err != nil {
		return nil, err
	}
	const try = "--admin with the URL of the admin listener, server.admin.address of \"stint config\"; or stint serve, to have a server"
	answer, err := p.client.Do(r)
	if err != nil {
		return nil, advice{fmt.Errorf("the admin listener cannot be reached: %w", err), try}
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, advice{fmt.Errorf("%s answers %s, want what the admin listener of a server says", r.URL.Redacted(), answer.Status), try}
	}
	const most = 4 << 20
	s := new(audit.Snapshot)
	if err := json.NewDecoder(io.LimitReader(answer.Body, most)).Decode(s); err != nil {
		return nil, advice{fmt.Errorf("%s does not answer as Stint does: %w", r.URL.Redacted(), err), try}
	}
	return s, nil
}

// write writes what was seen, where it stays.
func (p *top) write(s *audit.Snapshot) error {
	if s == nil {
		return nil
	}
	if p.json {
		e := json.NewEncoder(p.out)
		e.SetEscapeHTML(false)
		return e.Encode(s)
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
	info, err := f.Stat()
	return f, err == nil && info.Mode()&os.ModeCharDevice != 0
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
func (p *top) live(ctx context.Context, f *os.File, s *audit.Snapshot, next func() bool) error {
	if _, err := io.WriteString(f, enterScreen); err != nil {
		return err
	}
	defer io.WriteString(f, leaveScreen) //nolint:errcheck // the terminal is gone
	var lost error
	for {
		lines := draw(s, lost, f)
		if _, err := io.WriteString(f, toTop+strings.Join(lines, endLine)+clearRest); err != nil || !next() {
			return err
		}
		var seen *audit.Snapshot
		if seen, lost = p.look(ctx); lost == nil {
			s = seen
		}
	}
}

// draw returns the lines that fit on a screen, with as many talkers as do.
func draw(s *audit.Snapshot, lost error, f *os.File) []string {
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
func picture(s *audit.Snapshot, width, rows int) []string {
	width = min(max(width, 60), 120)
	head := s.At.Local().Format(time.TimeOnly)
	if s.Node != "" {
		head += "  " + clean(s.Node)
	}
	out := []string{clip(fmt.Sprintf("%s  %s requests/s, %s/s refused", head, rate(s.Requests), rate(s.Refused)), width)}
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
	t := &s.Talkers
	for _, k := range []struct {
		name string
		talk audit.Talkers
	}{{"USER", t.Users}, {"TENANT", t.Tenants}, {"API KEY", t.Keys}, {"ADDRESS", t.Addresses}} {
		if len(k.talk.ByRequests) == 0 {
			continue
		}
		half := width/2 - 1
		left := column(k.name, "REQUESTS", k.talk.RequestsOff, k.talk.ByRequests[:min(rows, len(k.talk.ByRequests))], func(a audit.Talker) int64 { return a.Requests }, half)
		right := column(k.name, "REFUSED", k.talk.RefusedOff, k.talk.ByRefused[:min(rows, len(k.talk.ByRefused))], func(a audit.Talker) int64 { return a.Refused }, half)
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
func column(kind, what string, off int64, all []audit.Talker, count func(audit.Talker) int64, width int) []string {
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
