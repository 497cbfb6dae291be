package daemon_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/wait"
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
	wait.For(t, "the first limit", listed("requests_per_unit=77"))
	limit(55)
	wait.For(t, "the second limit", listed("requests_per_unit=55"))
	// What is read at the start only does not keep the files from being read.
	settings("near_limit_percent = 70\n")
	wait.For(t, "the need to restart", func() bool {
		_, body := p.get(t, "http", "/readyz")
		return strings.Contains(body, "envoy.near_limit_percent")
	})
	limit(44)
	wait.For(t, "the third limit", listed("requests_per_unit=44"))
	// How they are read does.
	settings("fixed_months = true\n")
	wait.For(t, "the need to restart", func() bool {
		_, body := p.get(t, "http", "/readyz")
		return strings.Contains(body, "envoy.fixed_months")
	})
	limit(33)
	do(t, p.Reload(t.Context()))
	if !listed("requests_per_unit=44")() {
		t.Error("files are used that would be read otherwise after a restart")
	}
}

// TestEnvoyEmpty starts without files, and uses those that appear. Files that are not read are
// logged.
func TestEnvoyEmpty(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "config")
	for name, made := range map[string]bool{"missing": false, "empty": true} {
		if made {
			do(t, os.Mkdir(dir, 0o700))
		}
		_, err := daemon.Source{Flags: []daemon.Flag{set("envoy.config", dir)}}.Load()
		if err == nil || !strings.Contains(err.Error(), "--set envoy.config: \""+dir+"\": want a directory") {
			t.Errorf("%s: %v", name, err)
		}
		do(t, os.RemoveAll(dir))
	}
	do(t, os.WriteFile(dir+".yaml", []byte(shop), 0o600))
	do(t, os.Mkdir(dir+".d", 0o700))
	p := start(t, "[server]\nreload_interval = \"20ms\"\n", set("envoy.config", dir), set("envoy.allow_empty", "true"))
	if status, body := p.get(t, "http", "/healthcheck"); status != http.StatusOK || !strings.Contains(p.log.String(), "there are no limits: no file was read") ||
		!strings.Contains(p.log.String(), dir+".yaml: it is beside the directory config, not in it") || !strings.Contains(p.log.String(), dir+".d: it is beside") {
		t.Error(status, body)
	}
	do(t, os.MkdirAll(filepath.Join(dir, "folder"), 0o700))
	do(t, os.WriteFile(filepath.Join(dir, "folder", "shop"), []byte(shop), 0o600))
	do(t, os.WriteFile(filepath.Join(dir, ".shop"), []byte(shop), 0o600))
	wait.For(t, "the limits", func() bool {
		_, body := p.get(t, "admin", "/rlconfig")
		return strings.Contains(body, "shop.user: unit=MINUTE") && strings.Contains(p.log.String(), filepath.Join(dir, ".shop"))
	})
	do(t, os.WriteFile(filepath.Join(dir, "folder", "README.md"), []byte("# Limits\n"), 0o600))
	wait.For(t, "the problem", func() bool {
		_, body := p.get(t, "http", "/readyz")
		return strings.Contains(body, "README.md:1:1: empty, want a domain and its descriptors; all files of the directory are read")
	})
}

// TestEnvoySiblings uses what is beside the directory, and what appears there.
func TestEnvoySiblings(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "config")
	do(t, os.WriteFile(dir+".yaml", []byte(shop), 0o600))
	p := start(t, "[server]\nreload_interval = \"20ms\"\n", set("envoy.config", dir), set("envoy.siblings", "true"))
	listed := func(want string) func() bool {
		return func() bool {
			_, body := p.get(t, "admin", "/rlconfig")
			return strings.Contains(body, want)
		}
	}
	wait.For(t, "the limit beside the directory", listed("shop.user"))
	do(t, os.MkdirAll(filepath.Join(dir+".d", "deep"), 0o700))
	do(t, os.WriteFile(filepath.Join(dir+".d", "deep", "x"), []byte(strings.Replace(shop, "shop", "more", 1)), 0o600))
	wait.For(t, "the limit below it", listed("more.user"))
	do(t, os.Mkdir(dir, 0o700))
	do(t, os.WriteFile(filepath.Join(dir, "x"), []byte(strings.Replace(shop, "shop", "last", 1)), 0o600))
	wait.For(t, "the limit in the directory", listed("last.user"))
}

// TestEnvoyBrokenStart starts with a file that is not valid, as envoyproxy/ratelimit does: calls fail
// until it is mended.
func TestEnvoyBrokenStart(t *testing.T) {
	t.Parallel()
	path := write(t, "shop.yaml", strings.Replace(shop, "minute", "minuet", 1))
	files := set("envoy.config", filepath.Dir(path))
	const problem = "shop.yaml:4:22"
	if _, err := (daemon.Source{Flags: []daemon.Flag{files, set("envoy.allow_empty", "true")}}).Load(); err == nil || !strings.Contains(err.Error(), problem) {
		t.Errorf("a check of the configuration says %v", err)
	}
	if _, err := daemon.New(t.Context(), daemon.Options{Source: daemon.Source{Flags: []daemon.Flag{files}}, Out: io.Discard}); err == nil || !strings.Contains(err.Error(), problem) {
		t.Errorf("it started without envoy.allow_empty: %v", err)
	}
	p := start(t, "[server]\nreload_interval = \"20ms\"\n", files, set("envoy.allow_empty", "true"), set("envoy.debug.address", "127.0.0.1:0"))
	if !strings.Contains(p.log.String(), problem) || !strings.Contains(p.log.String(), "calls of Envoy fail until") {
		t.Errorf("the log does not tell of the problem: %s", p.log.String())
	}
	if code, body := p.get(t, "http", "/healthcheck"); code != http.StatusInternalServerError {
		t.Error(code, body)
	}
	if _, body := p.get(t, "http", "/readyz"); !strings.Contains(body, problem) {
		t.Error(body)
	}
	ask := func() int {
		answer, err := p.client.Post(p.URL("http")+"/json", "", strings.NewReader(`{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}`))
		do(t, err)
		do(t, answer.Body.Close())
		return answer.StatusCode
	}
	if code := ask(); code != http.StatusServiceUnavailable {
		t.Errorf("a call: %d", code)
	}
	if _, body := p.get(t, "debug", "/stats"); !strings.Contains(body, "config_load_error: 1\n") {
		t.Error(body)
	}
	do(t, os.WriteFile(path, []byte(shop), 0o600))
	wait.For(t, "the mended file", func() bool { return ask() == http.StatusOK })
	if code, body := p.get(t, "http", "/healthcheck"); code != http.StatusOK {
		t.Error(code, body)
	}
	do(t, os.WriteFile(path, []byte("domain: ["), 0o600))
	wait.For(t, "the next problem", func() bool {
		_, body := p.get(t, "http", "/readyz")
		return strings.Contains(body, "shop.yaml:1:")
	})
	if code := ask(); code != http.StatusOK {
		t.Errorf("a call after that: %d", code)
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
