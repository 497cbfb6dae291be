package daemon_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/daemon"
)

// TestEnvoy serves Envoy, and reloads its files when they change, unless the settings that
// read them have changed.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	limit := func(n int) {
		text := fmt.Sprintf("domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: %d}}]\n", n)
		do(t, os.WriteFile(filepath.Join(dir, "d.yaml"), []byte(text), 0o600))
	}
	limit(77)
	text := fmt.Sprintf("[server]\nreload_interval = \"20ms\"\n[envoy]\nconfig = %q\n", dir)
	p := start(t, text)
	settings := func(more string) { do(t, os.WriteFile(p.path, []byte(text+more), 0o600)) }
	if status, body := p.get(t, "http", "/healthcheck"); status != http.StatusOK {
		t.Error(status, body)
	}
	listed := func(want string) func() bool {
		return func() bool {
			_, body := p.get(t, "admin", "/rlconfig")
			return strings.Contains(body, want)
		}
	}
	until(t, "the first limit", listed("requests_per_unit=77"))
	limit(55)
	until(t, "the second limit", listed("requests_per_unit=55"))
	// What is read at the start only does not keep the files from being read.
	settings("near_limit_percent = 70\n")
	until(t, "the need to restart", func() bool {
		_, body := p.get(t, "http", "/readyz")
		return strings.Contains(body, "envoy.near_limit_percent")
	})
	limit(44)
	until(t, "the third limit", listed("requests_per_unit=44"))
	// How they are read does.
	settings("fixed_months = true\n")
	until(t, "the need to restart", func() bool {
		_, body := p.get(t, "http", "/readyz")
		return strings.Contains(body, "envoy.fixed_months")
	})
	limit(33)
	do(t, p.Reload(t.Context()))
	if !listed("requests_per_unit=44")() {
		t.Error("files are used that would be read otherwise after a restart")
	}
}

// TestEnvoyProblems checks the problems of invalid settings.
func TestEnvoyProblems(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	do(t, os.WriteFile(filepath.Join(dir, "d.yaml"), []byte("domain: d\ndescriptors: [{key: k, rate_limit: {unit: huor}}]\n"), 0o600))
	for text, want := range map[string]string{
		"config = \"/does/not/exist\"":                      `envoy.config: "/does/not/exist": want a directory of YAML files, or one such file`,
		fmt.Sprintf("config = %q", dir):                     `d.yaml:2:43: descriptors[0].rate_limit.unit: "huor": want one of second, minute, hour, day, month, year, week; did you mean "hour"?`,
		"on_store_failure = \"open\"":                       `envoy.on_store_failure: "open": want one of local, error`,
		"near_limit_percent = 0":                            `envoy.near_limit_percent: 0: want 1 to 100`,
		"limit_header = \"a b\"":                            `envoy.limit_header: "a b": want the name of a header`,
		"max_connection_age = \"1ms\"":                      `envoy.max_connection_age: "1ms": want from 1s to 365d`,
		"config = \"x\"\nxds = {server = \"x:1\"}":          `envoy.xds.server: is set together with envoy.config`,
		"xds = {server = \"x:1\", metadata = [\"a\"]}":      `envoy.xds.metadata[0]: "a": want name=value`,
		"xds = {server = \"x:1\", headers = [\"b a=c\"]}":   `envoy.xds.headers`,
		"xds = {server = \"x:1\", tls_cert = \"a\"}":        `envoy.xds.tls_cert: want both tls_cert and tls_key, or neither`,
		"xds = {server = \"x:1\", tls_ca = \"/not/there\"}": `envoy.xds.tls: tls_ca:`,
		"xds = {server = \"x:1\", max_message = 1}":         `envoy.xds.max_message: 1: want 1024 or more`,
	} {
		path := filepath.Join(t.TempDir(), "stint.toml")
		do(t, os.WriteFile(path, []byte("[envoy]\n"+text+"\n"), 0o600))
		if _, err := (daemon.Source{Path: path}).Load(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}
