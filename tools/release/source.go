package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// source is the tree that a release is built from.
type source struct {
	root    string
	version string // such as 0.1.0
	commit  string
	date    time.Time // of the commit
}

// versionHeading is the line above the changes of a version, as Keep a Changelog has it.
var versionHeading = regexp.MustCompile(`(?m)^## \[(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)\] - \d{4}-\d\d-\d\d$`)

// read finds out what is to be built. The version is the newest one of the change log.
func read(ctx context.Context, root string) (*source, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	changes, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	m := versionHeading.FindSubmatch(changes)
	if m == nil {
		return nil, errors.New("CHANGELOG.md: want the version to release, as ## [1.2.3] - 2006-01-02")
	}
	s := &source{root: root, version: string(m[1])}
	head, err := s.git(ctx, "show", "--no-patch", "--format=%H %cI", "HEAD")
	if err != nil {
		return nil, err
	}
	commit, date, _ := strings.Cut(head, " ")
	s.commit = commit
	if s.date, err = time.Parse(time.RFC3339, date); err != nil {
		return nil, fmt.Errorf("the date of commit %s: %w", commit, err)
	}
	s.date = s.date.UTC()
	return s, nil
}

// check refuses a tree that nobody could build again.
func (s *source) check(ctx context.Context) error {
	changed, err := s.git(ctx, "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("a release is built from a commit; commit or remove these first:\n%s", changed)
	}
	tag := "v" + s.version
	tagged, err := s.git(ctx, "for-each-ref", "--format=%(objectname) %(*objectname)", "refs/tags/"+tag)
	if err != nil {
		return err
	}
	if tagged != "" && !strings.Contains(tagged, s.commit) {
		return fmt.Errorf("%s is another commit: CHANGELOG.md needs the heading of a new version", tag)
	}
	return s.checkDashboard()
}

// checkDashboard refuses a tree in which the dashboard was not built.
func (s *source) checkDashboard() error {
	if _, err := os.Stat(filepath.Join(s.root, "web/dist/index.html")); err != nil {
		return errors.New("web/dist has no dashboard: make web, which needs Node, builds it")
	}
	return nil
}

func (s *source) git(ctx context.Context, args ...string) (string, error) {
	c := exec.CommandContext(ctx, "git", args...)
	c.Dir = s.root
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}
