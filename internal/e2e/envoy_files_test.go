package e2e_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// knows reports whether a service has a limit for a key in a domain.
func (p *peer) knows(t *testing.T, domain string) bool {
	t.Helper()
	a := p.ask(t, &rlsv3.RateLimitRequest{Domain: domain, Descriptors: []*commonv3.RateLimitDescriptor{
		{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "k", Value: "v"}}},
	}})
	return a.GetStatuses()[0].GetCurrentLimit() != nil
}

// TestEnvoyFiles gives the reference and Stint the same directories, and checks that they
// read the same files.
func TestEnvoyFiles(t *testing.T) {
	t.Parallel()
	// The domain of each file is its path.
	files := []string{"a.yaml", "b.yml", "noext", "C.JSON", "with space.txt", "folder/a.yaml", "folder/deep/x", ".dot.yaml", ".folder/b", "folder/.dot"}
	mounted := []string{"..2026_01/a.yaml", "..2026_01/b"}
	for name, row := range map[string]struct {
		files []string
		links map[string]string
		dots  bool
		read  []string
	}{
		"nothing":  {},
		"no dots":  {files: files, links: map[string]string{"nowhere": "gone", "elsewhere": "folder/deep"}, read: files[:7]},
		"dots":     {files: files, dots: true, read: files},
		"a link":   {files: files[8:9], links: map[string]string{"sub/link": "../.folder/b"}, read: files[8:9]},
		"a volume": {files: mounted, links: map[string]string{"..data": "..2026_01", "a.yaml": "..data/a.yaml", "b": "..data/b"}, read: mounted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := writeDomains(t, nil)
			for _, path := range row.files {
				if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o700); err != nil {
					t.Fatal(err)
				}
				text := "domain: " + path + "\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5}}]\n"
				if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for path, to := range row.links {
				if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(to, filepath.Join(dir, path)); err != nil {
					t.Fatal(err)
				}
			}
			ignore, read := "RUNTIME_IGNOREDOTFILES=true", "STINT_ENVOY_DOT_FILES=false"
			if row.dots {
				ignore, read = "RUNTIME_IGNOREDOTFILES=false", "STINT_ENVOY_DOT_FILES=true"
			}
			for _, p := range []*peer{startReference(t, dir, ignore), serveEnvoy(t, dir, read, "STINT_ENVOY_ALLOW_EMPTY=true").peer} {
				for _, path := range slices.Concat(files, mounted) {
					if got, want := p.knows(t, path), slices.Contains(row.read, path); got != want {
						t.Errorf("%s: has the limit of %s: %v, want %v", p.name, path, got, want)
					}
				}
			}
		})
	}
}

// TestEnvoyWatchRoot gives both the same files beside the directory, which they read unless
// RUNTIME_WATCH_ROOT is false.
func TestEnvoyWatchRoot(t *testing.T) {
	t.Parallel()
	// The domain of each file is its path.
	inside, beside, others := []string{"config/a"}, []string{"config.yaml", "config.d/deep/x", "config..b"}, []string{"config2/b", "configs", "other.yaml"}
	root := t.TempDir()
	for _, path := range slices.Concat(inside, beside, others) {
		full := filepath.Join(root, "limits", path)
		if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
			t.Fatal(err)
		}
		text := "domain: " + path + "\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5}}]\n"
		if err := os.WriteFile(full, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("config.d", filepath.Join(root, "limits", "config.link")); err != nil {
		t.Fatal(err)
	}
	for _, watch := range []string{"true", "false"} {
		environ := []string{"RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=limits", "RUNTIME_APPDIRECTORY=config", "RUNTIME_WATCH_ROOT=" + watch}
		for _, p := range []*peer{startReference(t, root, environ...), startInPlace(t, root, environ...)} {
			for _, path := range slices.Concat(inside, beside, others) {
				want := slices.Contains(inside, path) || watch == "true" && slices.Contains(beside, path)
				if got := p.knows(t, path); got != want {
					t.Errorf("RUNTIME_WATCH_ROOT=%s: %s: has the limit of %s: %v, want %v", watch, p.name, path, got, want)
				}
			}
		}
	}
}

// TestEnvoyAccepts gives the reference and Stint files that are unusual, and checks that
// both have their limits, or neither.
func TestEnvoyAccepts(t *testing.T) {
	t.Parallel()
	const limit = "rate_limit: {unit: year, requests_per_unit: 5}"
	domains := map[string]string{
		"colons":    "domain: 'a:b|c'\ndescriptors: [{key: 'k:1', value: 'v:2', " + limit + "}]",
		"words":     "domain: a b/ü\ndescriptors: [{key: 'k 1', value: 'x|y {z}', " + limit + "}]",
		"numbers":   "domain: 404\ndescriptors: [{key: 0x10, value: 010, " + limit + "}]",
		"booleans":  "domain: on\ndescriptors: [{key: yes, value: no, shadow_mode: off, " + limit + "}]",
		"twice":     "---\ndomain: first\ndescriptors: [{key: k, value: v, " + limit + "}]\n---\ndomain: second\ndescriptors: [{key: k, value: v, " + limit + "}]",
		"elsewhere": "domain: shadow\ndescriptors: [{key: k, value: v, unit: day, rate_limit: {unit: year, requests_per_unit: 5, shadow_mode: true, quota_mode: true}}]",
		"unlimited": "domain: free\ndescriptors: [{key: k, value: v, rate_limit: {unlimited: true, unit: century, requests_per_unit: 5}}]",
		"json":      `{"domain": "json", "descriptors": [{"key": "k", "value": "v", "rate_limit": {"unit": "YEAR", "requests_per_unit": 5}}]}`,
	}
	dir := writeDomains(t, domains)
	theirs, ours := startReference(t, dir), serveEnvoy(t, dir)
	for _, q := range [][3]string{
		{"a:b|c", "k:1", "v:2"},
		{"a:b|c", "k:1", "v"},
		{"a", "b|c", "k:1"},
		{"a b/ü", "k 1", "x|y {z}"},
		{"404", "0x10", "010"},
		{"404", "16", "8"},
		{"on", "yes", "no"},
		{"true", "true", "false"},
		{"first", "k", "v"},
		{"second", "k", "v"},
		{"shadow", "k", "v"},
		{"free", "k", "v"},
		{"json", "k", "v"},
	} {
		request := &rlsv3.RateLimitRequest{Domain: q[0], HitsAddend: 3, Descriptors: []*commonv3.RateLimitDescriptor{
			{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: q[1], Value: q[2]}}},
		}}
		for range 2 { // the second is over the limit
			if got, want := brief(ours.ask(t, request), nil), brief(theirs.ask(t, request), nil); got != want {
				t.Errorf("%q: %s, want %s", q, got, want)
			}
		}
	}
}
