package daemon_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/exact"
	"github.com/stintdev/stint/internal/record/capture"
	"github.com/stintdev/stint/internal/test/wait"
)

// startCapture asks for a capture, as administrator.
func (p *process) startCapture(t *testing.T, body string) (status int, text string) {
	t.Helper()
	return p.send(t, p.client, http.MethodPost, p.URL("admin")+"/admin/v1/capture", body, "Authorization", "Bearer "+adminToken)
}

// TestCapture captures what a node decides until it stops: the file is whole, and each decision is the same when it is made again.
func TestCapture(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	p := startIn(t, []string{"STATE_DIRECTORY=" + state}, few+echo(t))
	if status, text := p.startCapture(t, `{"for_seconds":600,"max_bytes":1000000}`); status != http.StatusAccepted || !strings.Contains(text, `"running":true`) {
		t.Fatalf("%d %s", status, text)
	}
	if status, text := p.startCapture(t, `{}`); status != http.StatusConflict || !strings.Contains(text, "under way") {
		t.Errorf("%d %s", status, text)
	}
	wait.For(t, "decisions are captured", func() bool {
		p.get(t, "gateway", "/")
		s := p.series(t)
		return s["stint_capture_running"] == "1" && s["stint_capture_decisions"] > "2"
	})
	do(t, p.Stop(t.Context()))
	path := filepath.Join(state, "capture", capture.File)
	info, err := os.Stat(path)
	do(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Error(info.Mode())
	}
	r, err := capture.Open(path)
	do(t, err)
	defer r.Close()
	report, err := exact.Run(context.Background(), exact.Options{}, r)
	if err != nil || r.Summary.Reason != capture.EndedByNode || report.Different > 0 || report.Decisions == 0 {
		t.Errorf("%+v %+v %v", r.Summary, report, err)
	}
}

// TestCaptureForbidden has settings that keep addresses or paths out of the record: they keep them out of captures, too.
func TestCaptureForbidden(t *testing.T) {
	t.Parallel()
	for want, setting := range map[string]string{"server.record.ip is truncate": "server.record.ip=truncate", "server.record.path is off": "server.record.path=off"} {
		name, value, _ := strings.Cut(setting, "=")
		p := startIn(t, []string{"STATE_DIRECTORY=" + t.TempDir()}, few, set(name, value))
		if status, text := p.startCapture(t, `{}`); status != http.StatusConflict || !strings.Contains(text, want) {
			t.Errorf("%d %s", status, text)
		}
	}
}
