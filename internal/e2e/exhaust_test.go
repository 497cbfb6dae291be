package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

const unlimited = "[[rules]]\nname = \"many\"\ncount_by = [\"ip\"]\nlimits = [{ name = \"many\", limit = \"100000000/1s\" }]\n"

// logged returns how many lines of the log have a message, and how many they stand for.
func (p *process) logged(t testing.TB, message string) (lines, all int) {
	t.Helper()
	text, err := os.ReadFile(p.log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var entry struct {
			Msg     string
			LeftOut int `json:"left_out"`
		}
		if json.Unmarshal([]byte(line), &entry) == nil && strings.HasPrefix(entry.Msg, message) {
			lines++
			all += 1 + entry.LeftOut
		}
	}
	return lines, all
}

// TestFilesExhausted opens more connections than a server may have files. The log says so,
// not each time, and when connections end, the server goes on.
func TestFilesExhausted(t *testing.T) {
	t.Parallel()
	s := serve(t, unlimited)
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	limit := strconv.Itoa(len(files) + 10)
	if out, err := exec.Command(tool(t, "prlimit"), "--pid", strconv.Itoa(s.Process.Pid), "--nofile="+limit+":"+limit).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var open []net.Conn
	for range 50 {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.api, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
	}
	const message = "connections cannot be accepted"
	s.wait(t, func() error {
		if n, all := s.logged(t, message); n < 2 || all < 4 {
			return fmt.Errorf("%d lines for %d errors", n, all)
		}
		return nil
	})
	if log := s.output(); !strings.Contains(log, `"level":"ERROR"`) || !strings.Contains(log, "ulimit -n") || !strings.Contains(log, "too many open files") {
		t.Error(log)
	}
	for _, c := range open {
		_ = c.Close()
	}
	s.wait(t, func() error { return answers(s.api) })
}

// answers returns an error if a server does not decide a request.
func answers(api string) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	answer, err := client.Post(api+"/v1/check", "application/json", strings.NewReader(`{"path":"/a","ip":"192.0.2.1"}`))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s %w", answer.Status, body, err)
	}
	return nil
}
