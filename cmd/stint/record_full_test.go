package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestRecordFull captures what a server decides, until Ctrl-C, and replays it: exactly, and beside other rules.
func TestRecordFull(t *testing.T) {
	t.Parallel()
	d := newDemo(t)
	d.must(t, "rules", "create", "name=signin", "--limit", "2/1h", "--count-by", "user", "--path", "/signin")
	file := filepath.Join(t.TempDir(), "capture.stint")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out, errs bytes.Buffer
	ended := make(chan int)
	go func() {
		ended <- stint.Run(ctx, []string{"record", "full", "--for", "5m", "--max", "10MB", "--file", file, "-o", "json"}, d.environ, &out, &errs)
	}()
	type capture struct {
		Running         bool
		Decisions, Lost int64
		Reason          string
	}
	var x capture
	wait.For(t, "20 decisions are captured", func() bool { // it begins after a second
		var ignored bytes.Buffer
		stint.Run(t.Context(), []string{"check", "/signin", "--user", "alice", "--take", "--http", d.api}, d.environ, &ignored, &ignored)
		if err := json.Unmarshal([]byte(d.must(t, "record", "status", "-o", "json")), &x); err != nil {
			t.Fatal(err)
		}
		return x.Decisions >= 20
	})
	if code := stint.Run(t.Context(), []string{"record", "full"}, d.environ, &bytes.Buffer{}, &errs); code != 2 || !strings.Contains(errs.String(), "under way") {
		t.Errorf("a second one: %d %s", code, errs.String())
	}
	stop()
	if code := <-ended; code != 0 {
		t.Fatalf("%d %s", code, errs.String())
	}
	if err := json.Unmarshal(out.Bytes(), &x); err != nil || x.Running || x.Reason != "stopped" || x.Lost != 0 || x.Decisions < 20 {
		t.Errorf("%+v %v", x, err)
	}
	var p struct {
		Decisions, Same, Different int64
		NotCompared                int64 `json:"not_compared"`
	}
	if err := json.Unmarshal([]byte(d.must(t, "replay", "--capture", file, "-o", "json")), &p); err != nil || p.Decisions != x.Decisions || p.Different != 0 || p.Same+p.NotCompared != p.Decisions {
		t.Errorf("%+v %v", p, err)
	}
	candidate := filepath.Join(t.TempDir(), "candidate.toml")
	if err := os.WriteFile(candidate, []byte("[[rules]]\nname = \"signin\"\nmatch = { paths = [\"/signin\"] }\ncount_by = [\"user\"]\nlimits = [ { name = \"requests\", limit = \"1000/1h\" } ]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var beside struct {
		DeniedThen  int64 `json:"denied_then"`
		NewlyPassed int64 `json:"newly_passed"`
	}
	if err := json.Unmarshal([]byte(d.must(t, "replay", "--capture", file, "--config", candidate, "-o", "json")), &beside); err != nil || beside.DeniedThen == 0 || beside.NewlyPassed == 0 {
		t.Errorf("%+v %v", beside, err)
	}
	if err := os.WriteFile(file, []byte("no capture"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"not a finished capture": {"replay", "--capture", file},
		"want 1s to 1h":          {"record", "full", "--for", "2h"},
		"such as 500MB":          {"record", "full", "--max", "many"},
	} {
		errs.Reset()
		if code := stint.Run(t.Context(), args, d.environ, &bytes.Buffer{}, &errs); code != 2 || !strings.Contains(errs.String(), want) {
			t.Errorf("%v: %d %s", args, code, errs.String())
		}
	}
	d.must(t, "record", "remove")
	if got := d.must(t, "record", "status"); !strings.Contains(got, "it was stopped") {
		t.Error(got)
	}
}
