package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/exact"
	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/internal/control/replay"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/record/capture"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/rule"
)

// ofCaptures replays captured requests: the live rules exactly or, with --config, beside others.
func (f *replayFlags) ofCaptures(ctx context.Context, t *terminal, r query.Range) error {
	var files []*capture.Reader
	defer func() {
		for _, file := range files {
			_ = file.Close() // it was only read
		}
	}()
	for _, path := range f.captures {
		file, err := capture.Open(path)
		if err != nil {
			return advice{err, "stint record download " + path}
		}
		files = append(files, file)
	}
	if f.candidate != "" {
		return f.besideCaptures(ctx, t, r, files)
	}
	if !r.From.IsZero() || !r.To.IsZero() {
		return advice{errors.New("--from, --to: a capture is decided again as a whole"), "--config with a file, for a part"}
	}
	var report exact.Report
	if err := t.waits("deciding again", func() (err error) {
		report, err = exact.Run(ctx, exact.Options{Most: f.top}, files...)
		return err
	}); err != nil {
		return err
	}
	err := t.print(report, report.Differences, func() error {
		if report.Decisions > 0 {
			fmt.Fprintf(t.out, "%s to %s\n", cell(report.From), cell(report.To))
		}
		fmt.Fprintln(t.out, clean(report.Summary))
		for _, n := range report.Notes {
			t.notes(clean(n))
		}
		if len(report.Differences) == 0 {
			return nil
		}
		fmt.Fprintln(t.out)
		return printTable(t, report.Differences, "", []string{"DECISION", "TIME", "WHAT", "THEN", "NOW"}, func(d *exact.Difference) []any {
			return []any{d.ID, d.Time, d.What, d.Then, d.Now}
		})
	})
	return answer(err, report.Different == 0)
}

// besideCaptures replays captured requests with the rules of the first file, and beside these the candidate.
func (f *replayFlags) besideCaptures(ctx context.Context, t *terminal, r query.Range, files []*capture.Reader) error {
	live := &daemon.Config{Document: catalog.Document{File: rulesOfCapture(files[0])}}
	other, err := readCandidate(t, f.candidate)
	if err != nil {
		return err
	}
	other.Document = other.Over(&live.Document, true).Document
	o := replay.Options{From: r.From, To: r.To, Top: f.top, Live: replay.Rules{File: live.File}, Headers: files[0].Header.Headers, Claims: files[0].Header.Claims}
	rules, err := rulesOf(other)
	if err != nil {
		return err
	}
	rules.Directory = nil // each request has who it was
	o.Candidate = &rules
	var report replay.Report
	if err := t.waits("replaying", func() (err error) {
		report, err = replay.Run(ctx, o, captured(files))
		return err
	}); err != nil {
		return err
	}
	return f.print(t, &report, nil)
}

func rulesOfCapture(r *capture.Reader) rule.File {
	file := r.Header.Rules
	file.Case = r.Header.Case
	return file
}

// captured iterates over the requests of several files, oldest first.
func captured(files []*capture.Reader) iter.Seq2[recorded.Request, error] {
	return func(yield func(recorded.Request, error) bool) {
		type source struct {
			next func() (recorded.Request, error, bool)
			head recorded.Request
		}
		var all []*source
		for _, file := range files {
			next, stop := iter.Pull2(capturedOf(file))
			defer stop()
			s := &source{next: next}
			head, err, ok := s.next()
			if err != nil {
				yield(head, err)
				return
			}
			if s.head = head; ok {
				all = append(all, s)
			}
		}
		for len(all) > 0 {
			first := slices.MinFunc(all, func(a, b *source) int { return a.head.At.Compare(b.head.At) })
			if !yield(first.head, nil) {
				return
			}
			head, err, ok := first.next()
			if err != nil {
				yield(head, err)
				return
			}
			if first.head = head; !ok {
				all = slices.DeleteFunc(all, func(s *source) bool { return s == first })
			}
		}
	}
}

// capturedOf iterates over the requests of a file, oldest first. A decision is in it when it has ended, so those that were held for long
// are late.
func capturedOf(file *capture.Reader) iter.Seq2[recorded.Request, error] {
	const held = 2 * time.Second
	return func(yield func(recorded.Request, error) bool) {
		var waiting []recorded.Request
		var newest time.Time
		send := func(until time.Time) bool {
			slices.SortStableFunc(waiting, func(a, b recorded.Request) int { return a.At.Compare(b.At) })
			n, _ := slices.BinarySearchFunc(waiting, until, func(q recorded.Request, at time.Time) int { return cmp.Or(q.At.Compare(at), -1) })
			for _, q := range waiting[:n] {
				if !yield(q, nil) {
					return false
				}
			}
			waiting = slices.Delete(waiting, 0, n)
			return true
		}
		for record, err := range file.Records() {
			switch {
			case err != nil:
				yield(recorded.Request{}, err)
				return
			case record.Facts != nil && !record.Verdict.Failed:
				waiting = append(waiting, requestOf(&record))
				if at := record.Facts.At; at.After(newest) {
					newest = at
				}
			case record.Facts == nil && record.Call == nil:
				if !send(newest.Add(-held)) {
					return
				}
			}
		}
		send(newest)
	}
}

func requestOf(r *capture.Record) recorded.Request {
	f, v := r.Facts, r.Verdict
	s := &f.Subject
	q := recorded.Request{
		At: f.At, Method: f.Method, Path: f.Path, User: s.User, Tenant: s.Tenant, Key: s.Key, Tier: s.Tier, Usage: f.Usage,
		Refused: !v.Outcome.Passed(), Rejected: f.Refused != nil, Rule: v.Rule,
		Captured: &recorded.Captured{Subject: *s, Headers: f.Headers, IgnoreCase: f.IgnoreCase, Cost: f.Cost},
	}
	if s.IP.IsValid() {
		q.IP = s.IP.String()
	}
	return q
}
