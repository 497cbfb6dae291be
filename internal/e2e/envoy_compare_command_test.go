package e2e_test

import (
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stintdev/stint/grpclimit/compare"
)

// compared runs "stint envoy compare", and returns what it prints, and its exit code.
func compared(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), program.path, append([]string{"envoy", "compare"}, args...)...).CombinedOutput()
	if failed := new(exec.ExitError); errors.As(err, &failed) {
		code = failed.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return string(text), code
}

// TestEnvoyCompareCommand compares the reference with a Stint that has its files, and with one that has others.
func TestEnvoyCompareCommand(t *testing.T) {
	t.Parallel()
	const day = "domain: day\ndescriptors:\n  - key: three\n    rate_limit: {unit: day, requests_per_unit: 3}\n"
	dir := writeDomains(t, map[string]string{"contract": differentDomains, "day": day})
	changed := writeDomains(t, map[string]string{"contract": differentDomains, "day": strings.ReplaceAll(day, "unit: 3", "unit: 4")})
	theirs, ours, other := startReference(t, dir), serveEnvoy(t, dir), serveEnvoy(t, changed)
	reference := "--reference=" + theirs.conn.Target()

	out, code := compared(t, filepath.Join(dir, "day.yaml"), reference, "--stint="+ours.url("grpc"))
	if code != 0 || out != "limits: 1, requests to each: 7, differences: 0\n" {
		t.Errorf("exit code %d:\n%s", code, out)
	}

	// The difference "quota" is found. Answers to shared descriptors depend on what others have used.
	for stint, want := range map[*envoyServer][]string{ours: {"contract.quota"}, other: {"contract.quota", "day.three"}} {
		out, code = compared(t, dir, reference, "--stint="+stint.url("grpc"), "-o", "json")
		var r compare.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%v in\n%s", err, out)
		}
		var found []string
		for _, d := range r.Differences {
			if found = append(found, d.Limit); d.Limit == "day.three" && d.Theirs == "OK 3/DAY OK, 2 left" && d.Ours != "OK 4/DAY OK, 3 left" {
				t.Errorf("%+v", d)
			}
		}
		if code != 1 || !slices.Equal(slices.Compact(found), want) || !slices.Equal(r.Shared, []string{"contract.three_exact_value", "contract.pre*"}) {
			t.Errorf("exit code %d: %+v", code, r)
		}
	}

	// What was asked has used up nothing of clients.
	for _, p := range []*peer{theirs, ours.peer} {
		p.same(t, "day: three=alice", "OK: OK 2")
	}

	for want, args := range map[string][]string{
		"--reference: want the address":           {dir},
		`--reference "nowhere": want host:port`:   {dir, "--reference=nowhere"},
		"Stint: rpc error: code = Unavailable":    {dir, reference, "--stint=127.0.0.1:1"},
		"no such file or directory":               {dir + "/missing", reference},
		"--stint open /nowhere.pem: no such file": {dir, reference, "--stint=tls://127.0.0.1:1", "--ca=/nowhere.pem"},
	} {
		if out, code := compared(t, args...); code == 0 || !strings.Contains(out, want) {
			t.Errorf("exit code %d; want %q in\n%s", code, want, out)
		}
	}
}
