package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// version is set by the Makefile when it builds a tag. Otherwise Go has written one into
// the binary: that of the module, or of the commit.
var version string

type versionInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersion(t *terminal) *cobra.Command {
	var as string
	c := &cobra.Command{
		Use: "version", Short: "Show the version", Args: nothing,
		Example: "  stint version -o json",
		RunE: func(*cobra.Command, []string) error {
			v := versionOf()
			return t.say(as, v, nil, func() error {
				_, err := fmt.Fprintln(t.out, "stint", &v)
				return err
			})
		},
	}
	addOutput(c, &as)
	return c
}

func (v *versionInfo) String() string {
	text := v.Version
	if short := v.Commit[:min(len(v.Commit), 12)]; !strings.Contains(text, short) { // Go may have put it there
		text += " " + short
	}
	if v.Modified && !strings.Contains(text, "dirty") {
		text += " (modified)"
	}
	return text + " " + v.Go + " " + v.Platform
}

// versionOf returns what the build says of itself.
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
