package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set when a release is built.
var version = "dev"

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
			return t.say(as, v, nil, func() error { return v.show(t) })
		},
	}
	addOutput(c, &as)
	return c
}

func (v *versionInfo) show(t *terminal) error {
	text := "stint " + v.Version
	if v.Commit != "" {
		text += " " + v.Commit[:min(len(v.Commit), 12)]
	}
	if v.Modified {
		text += " (modified)"
	}
	_, err := fmt.Fprintln(t.out, text, v.Go, v.Platform)
	return err
}

// versionOf is what the build says of itself.
func versionOf() versionInfo {
	v := versionInfo{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	for _, s := range b.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}
