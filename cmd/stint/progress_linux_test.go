package main_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestWaits has a server take its time: a terminal shows what is waited for, and nothing stays of it.
func TestWaits(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "rules.toml")
	const document = "[[tiers]]\nname = \"free\"\n[[tiers]]\nname = \"pro\"\n[[tiers]]\nname = \"max\"\n"
	if err := os.WriteFile(file, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args          []string
		waits, prints string
	}{
		"apply":         {[]string{"apply", "-f", file}, "the server applies 3 objects, 1 s", "revision 1"},
		"events export": {[]string{"events", "export", "-o", "csv"}, "waiting for the first data, 1 s", `"items"`},
		"export":        {[]string{"export", "-f", filepath.Join(t.TempDir(), "out.json"), "-o", "json"}, "waiting for the first data, 1 s", ""},
		"list":          {[]string{"tiers", "list"}, "waiting for the server, 1 s", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			waits(t, c.args, c.waits, c.prints)
		})
	}
}

// waits runs a command with a server that answers once the terminal shows what is waited for.
func waits(t *testing.T, args []string, what, prints string) {
	t.Helper()
	seen := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-seen:
		case <-r.Context().Done():
		}
		_, _ = w.Write([]byte(`{"revision": 1, "items": []}`))
	}))
	t.Cleanup(s.Close)
	ours, theirs := openTerminal(t, 24, 80)
	c := exec.CommandContext(t.Context(), os.Args[0], args...)
	c.Env = append(os.Environ(), asStint+"=1", "STINT_SERVER="+s.URL, "STINT_TOKEN=x")
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, theirs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	var all strings.Builder
	part := make([]byte, 1<<10)
	for told := false; ; {
		n, err := ours.Read(part)
		all.Write(part[:n])
		if !told && strings.Contains(all.String(), what) {
			told = true
			close(seen)
		}
		if err != nil {
			break
		}
	}
	if err := c.Wait(); err != nil || !strings.Contains(all.String(), what) || !strings.HasSuffix(all.String(), "\r\x1b[K") || !strings.Contains(out.String(), prints) {
		t.Errorf("%v: %q, %s", err, all.String(), out.String())
	}
}
