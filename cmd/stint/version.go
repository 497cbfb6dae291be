package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// version is set by the Makefile when it builds a tag. Otherwise, the version is that of the
// module or the commit, which Go writes into the binary.
var version string

type versionInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersion(t *terminal) *cobra.Command {
	c := &cobra.Command{
		Use: "version", Short: "Show the version", Args: noArgs,
		Example: "  stint version -o json",
		RunE: func(*cobra.Command, []string) error {
			v := versionOf()
			return t.print(v, nil, func() error {
				_, err := fmt.Fprintln(t.out, "stint", &v)
				return err
			})
		},
	}
	addOutput(c)
	return c
}

func (v *versionInfo) String() string {
	text := v.Version
	if short := v.Commit[:min(len(v.Commit), 12)]; !strings.Contains(text, short) { // Go may have added it
		text += " " + short
	}
	if v.Modified && !strings.Contains(text, "dirty") {
		text += " (modified)"
	}
	return text + " " + v.Go + " " + v.Platform
}

// versionOf returns the version of this build.
func versionOf() versionInfo {
	v := versionInfo{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if b, ok := debug.ReadBuildInfo(); ok {
		if v.Version == "" && b.Main.Version != "(devel)" {
			v.Version = b.Main.Version
		}
		for _, s := range b.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Commit = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	v.Version = cmp.Or(v.Version, "dev")
	return v
}
