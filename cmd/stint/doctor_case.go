package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/rule"
)

// pathCase checks whether requests can get past rules by the case of their path: /SEARCH is
// another path than /search to rules, but not to every server.
func (d *doctor) pathCase(ctx context.Context, c *daemon.Config) {
	example := ""
	for i := range d.file.Rules {
		for _, path := range d.file.Rules[i].Match.Paths {
			if swapCase(path) != path {
				example = path
			}
		}
	}
	if example == "" {
		return // there is nothing to get past
	}
	if c.Case == rule.IgnoreCase {
		d.note("paths.case", findOK, "rules ignore the case of paths", "")
		return
	}
	for i := range c.Upstreams {
		d.upstreamCase(ctx, &c.Upstreams[i])
	}
	if len(c.Upstreams) == 0 { // others ask, and serve
		d.note("paths.case", findOK, fmt.Sprintf("rules tell paths apart by case: if a server behind Stint serves %s like %s, requests for it are not limited, and server.case has to be ignore",
			swapCase(example), example), "")
	}
}

// upstreamCase asks an upstream for the path of its health check: as it is, in another case,
// and changed in another way, to which a server that tells paths apart gives other answers.
func (d *doctor) upstreamCase(ctx context.Context, u *daemon.Upstream) {
	if u.Case == string(rule.IgnoreCase) {
		d.note("paths.case", findOK, u.Targets[0]+": rules ignore the case of paths of this upstream", "")
		return
	}
	if u.Check == nil || swapCase(u.Check.Path) == u.Check.Path {
		d.note("paths.case", findOK, u.Targets[0]+": no health check has a path with letters to find out whether the upstream ignores case: if it does, its case has to be ignore", "")
		return
	}
	path := u.Check.Path
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var status [3]int
	for i, p := range []string{path, swapCase(path), path + strings.ToLower(rand.Text())} {
		var err error
		if status[i], err = statusOf(ctx, u.Targets[0], p); err != nil {
			d.note("paths.case", findWarn, "it is not known whether the upstream ignores case: "+err.Error(), "again when the upstream can be reached")
			return
		}
	}
	switch {
	case status[0] >= http.StatusBadRequest || status[2] == status[0]:
		d.note("paths.case", findOK, fmt.Sprintf("%s: it answers %s and other paths alike, so it is not known whether it ignores case: if it does, its case has to be ignore", u.Targets[0], path), "")
	case status[1] == status[0]:
		d.note("paths.case", findWarn, fmt.Sprintf("%s: it serves %s like %s, and rules tell them apart: requests in another case are not limited", u.Targets[0], swapCase(path), path),
			`case = "ignore" for this upstream, or server.case = "ignore" for all rules`)
	default:
		d.note("paths.case", findOK, u.Targets[0]+": it tells paths apart by case, as rules do", "")
	}
}

// statusOf returns the status of a GET request.
func statusOf(ctx context.Context, target, path string) (int, error) {
	base := strings.TrimSuffix(target, "/")
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if rest, ok := strings.CutPrefix(base, "h2c://"); ok {
		base = "http://" + rest
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, http.NoBody)
	if err != nil {
		return 0, err
	}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, 64<<10) // only the status counts
	return answer.StatusCode, nil
}

// swapCase returns the text with its ASCII letters in the other case.
func swapCase(text string) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r ^ ('a' - 'A')
		}
		return r
	}, text)
}
