package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// targets are the systems and processors that binaries are built for.
var targets = []target{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}

type target struct{ os, arch string }

func (t target) String() string { return t.os + "_" + t.arch }

// file is a file of an archive or a package.
type file struct {
	name string
	mode int64
	body []byte
}

// built is what all artifacts are made of.
type built struct {
	*source
	binaries    map[target][]byte
	manual      []file // named as stint-rules.1
	completions map[string][]byte
}

// release builds everything, and then replaces the directory out.
func (s *source) release(ctx context.Context, out string, log io.Writer) error {
	b, err := s.build(ctx, targets, log)
	if err != nil {
		return err
	}
	next := filepath.Clean(out) + ".next"
	if err := os.RemoveAll(next); err != nil {
		return err
	}
	if err := os.MkdirAll(next, 0o755); err != nil {
		return err
	}
	if err := b.write(next); err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.Rename(next, out); err != nil {
		return err
	}
	sums, err := os.ReadFile(filepath.Join(out, sumsFile))
	if err != nil {
		return err
	}
	fmt.Fprintf(log, "v%s of commit %.12s is in %s:\n%s", s.version, s.commit, out, sums)
	return nil
}

// write writes all artifacts and their checksums to a directory.
func (b *built) write(dir string) error {
	for _, t := range targets {
		name := fmt.Sprintf("stint_%s_%s", b.version, t)
		if err := os.WriteFile(filepath.Join(dir, name+".tar.gz"), b.archive(name, t), 0o644); err != nil {
			return err
		}
		bom, err := b.bom(t)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name+".cdx.json"), bom, 0o644); err != nil {
			return err
		}
		if t.os != "linux" {
			continue
		}
		for _, format := range []string{"deb", "rpm"} {
			if err := b.pack(dir, format, t.arch); err != nil {
				return fmt.Errorf("%s for %s: %w", format, t.arch, err)
			}
		}
	}
	image, err := b.image()
	if err != nil {
		return err
	}
	if err := writeLayout(filepath.Join(dir, b.imageFile()), image, b.date); err != nil {
		return err
	}
	return writeSums(dir)
}

// build compiles the binaries, and lets the one for this machine write its manual and its
// completions.
func (s *source) build(ctx context.Context, targets []target, log io.Writer) (*built, error) {
	dir, err := os.MkdirTemp("", "stint-release-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	b := &built{source: s, binaries: map[target][]byte{}, completions: map[string][]byte{}}
	here := target{runtime.GOOS, runtime.GOARCH}
	for _, t := range targets {
		fmt.Fprintf(log, "building %s/%s\n", t.os, t.arch)
		path := filepath.Join(dir, t.String())
		if err := s.compile(ctx, t, path); err != nil {
			return nil, err
		}
		if b.binaries[t], err = os.ReadFile(path); err != nil {
			return nil, err
		}
	}
	program := filepath.Join(dir, here.String())
	if b.binaries[here] == nil {
		return nil, fmt.Errorf("the manual is written by the binary itself, and there is none for %s/%s", here.os, here.arch)
	}
	if out, err := exec.CommandContext(ctx, program, "man", filepath.Join(dir, "man")).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("stint man: %w, %s", err, out)
	}
	pages, err := os.ReadDir(filepath.Join(dir, "man")) // sorted
	if err != nil {
		return nil, err
	}
	for _, p := range pages {
		text, err := os.ReadFile(filepath.Join(dir, "man", p.Name()))
		if err != nil {
			return nil, err
		}
		b.manual = append(b.manual, file{p.Name(), 0o644, text})
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if b.completions[shell], err = exec.CommandContext(ctx, program, "completion", shell).Output(); err != nil {
			return nil, fmt.Errorf("stint completion %s: %w", shell, err)
		}
	}
	return b, nil
}

// compile builds one binary. Nothing of the machine or of the state of the repository gets
// into it.
func (s *source) compile(ctx context.Context, t target, to string) error {
	flags := fmt.Sprintf("-s -w -buildid= -X main.version=v%s -X main.commit=%s -X main.date=%s", s.version, s.commit, s.date.Format(time.RFC3339))
	c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-tags", "grpcnotrace", "-ldflags", flags, "-o", to, "./cmd/stint")
	c.Dir = s.root
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+t.os, "GOARCH="+t.arch, "GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0", "GOFIPS140=off")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", t, err, out)
	}
	return nil
}

// archive returns the archive for one target, below one directory.
func (b *built) archive(name string, t target) []byte {
	all := []file{
		{"stint", 0o755, b.binaries[t]},
		{"completions/stint.bash", 0o644, b.completions["bash"]},
		{"completions/_stint", 0o644, b.completions["zsh"]},
		{"completions/stint.fish", 0o644, b.completions["fish"]},
	}
	for _, f := range []string{"CHANGELOG.md", "LICENSE", "stint.example.toml"} {
		all = append(all, file{f, 0o644, b.mustRead(f)})
	}
	for _, p := range b.manual {
		all = append(all, file{"man/man1/" + p.name, p.mode, p.body})
	}
	return compress(tarOf(b.date, name+"/", all))
}

// mustRead reads a file of the repository, which is there in every checkout.
func (b *built) mustRead(name string) []byte {
	text, err := os.ReadFile(filepath.Join(b.root, name))
	if err != nil {
		panic(err)
	}
	return text
}

// compress returns b as gzip, without a name or a time.
func compress(b []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // the level exists
	_, _ = w.Write(b)                                       // to memory
	_ = w.Close()
	return out.Bytes()
}

const sumsFile = "SHA256SUMS"

// writeSums writes the checksums of all files of a directory, for sha256sum -c.
func writeSums(dir string) error {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, e := range entries {
		body, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		fmt.Fprintf(&sums, "%s  %s\n", hex.EncodeToString(sum[:]), e.Name())
	}
	return os.WriteFile(filepath.Join(dir, sumsFile), []byte(sums.String()), 0o644)
}
