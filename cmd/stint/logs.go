package main

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/accesslog"
	"github.com/stintdev/stint/internal/control/recorded"
)

// logFlags are the flags of commands that read access logs.
type logFlags struct{ accesslog.Options }

func (f *logFlags) add(c *cobra.Command) {
	addChoice(c, &f.Format, "log-format", "", "the `format` of access logs: auto, combined or json", accesslog.Auto, accesslog.Combined, accesslog.JSON)
	c.Flags().StringVar(&f.User, "user-field", "", "the `field` of JSON logs that names the user (default: remote_user and the like)")
	c.Flags().StringVar(&f.Address, "ip-field", "", "the `field` of JSON logs with the address of the client (default: remote_addr and the like)")
}

// logs are access logs that can be read more than once.
type logs struct {
	options accesslog.Options
	files   []logFile
	reader  *accesslog.Reader // of the last time
	remove  []string
}

type logFile struct {
	name, path string
	first      time.Time
}

// open finds out in which order files follow each other. The standard input becomes a file.
func (f *logFlags) open(c *cobra.Command, names []string) (_ *logs, err error) {
	in := &logs{options: f.Options, reader: accesslog.NewReader(f.Options)}
	defer func() {
		if err != nil {
			in.close()
		}
	}()
	for _, name := range names {
		file := logFile{name: name, path: name}
		if name == "-" {
			file.name = "stdin"
			if file.path, err = in.spool(c.InOrStdin()); err != nil {
				return nil, err
			}
		}
		if info, err := os.Stat(file.path); err != nil || info.IsDir() {
			if err == nil {
				err = fmt.Errorf("%s is a directory", name)
			}
			return nil, advice{err, c.CommandPath() + " with an access log that exists and can be read"}
		}
		if len(names) > 1 {
			for q, err := range in.read(accesslog.NewReader(f.Options), file) {
				if err != nil {
					return nil, err
				}
				file.first = q.At
				break
			}
		}
		in.files = append(in.files, file)
	}
	slices.SortStableFunc(in.files, func(a, b logFile) int { return a.first.Compare(b.first) })
	return in, nil
}

// spool copies what can be read only once.
func (in *logs) spool(from io.Reader) (string, error) {
	f, err := os.CreateTemp("", "stint-log-*")
	if err != nil {
		return "", advice{err, "TMPDIR with a directory that can be written to"}
	}
	in.remove = append(in.remove, f.Name())
	_, err = io.Copy(f, from)
	return f.Name(), errors.Join(err, f.Close())
}

func (in *logs) close() {
	for _, path := range in.remove {
		_ = os.Remove(path) // in a directory for such files
	}
}

// requests iterates over all requests, each time it is called.
func (in *logs) requests(yield func(recorded.Request, error) bool) {
	in.reader = accesslog.NewReader(in.options)
	for _, f := range in.files {
		for q, err := range in.read(in.reader, f) {
			if !yield(q, err) {
				return
			}
		}
	}
}

func (in *logs) read(r *accesslog.Reader, f logFile) iter.Seq2[recorded.Request, error] {
	return func(yield func(recorded.Request, error) bool) {
		file, err := os.Open(f.path)
		if err != nil {
			yield(recorded.Request{}, err)
			return
		}
		defer file.Close()
		r.Read(f.name, file)(yield)
	}
}

// check tells of lines that could not be read. It is an error if there are no others.
func (in *logs) check(t *terminal) error {
	s := &in.reader.Stats
	if s.Late > 0 {
		t.notes(fmt.Sprintf("%s %s more than ten seconds late, and counted at the time of the previous one", recorded.Count(s.Late, "line"), recorded.Were(s.Late)))
	}
	if s.Malformed == 0 {
		return nil
	}
	if p := s.Problems[0]; s.Malformed == s.Lines {
		return advice{fmt.Errorf("none of the %d lines can be read; %s:%d: %s", s.Lines, clean(p.File), p.Line, clean(p.Why)), "stint help logs"}
	}
	t.notes(fmt.Sprintf("%s of %d could not be read:", recorded.Count(s.Malformed, "line"), s.Lines))
	const shown, most = 3, 80
	for _, p := range s.Problems[:min(len(s.Problems), shown)] {
		text := []rune(clean(p.Text))
		fmt.Fprintf(t.err, "  %s:%d: %s\n    %s\n", clean(p.File), p.Line, clean(p.Why), string(text[:min(len(text), most)]))
	}
	return nil
}
