package blob_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/kit/blob"
	"github.com/stintdev/stint/internal/kit/blob/blobtest"
)

func TestDirectory(t *testing.T) {
	t.Parallel()
	blobtest.Run(t, func(t *testing.T) blob.Bucket {
		t.Helper()
		return blobtest.Open(t, "file://"+t.TempDir()+"/not/yet/there")
	})
}

func TestS3(t *testing.T) {
	next := blobtest.S3(t)
	blobtest.Run(t, func(t *testing.T) blob.Bucket {
		t.Helper()
		return blobtest.Open(t, next())
	})
}

func TestURLs(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	for url, says := range map[string]string{
		"":                               "unknown scheme",
		"/var/lib/stint":                 `want "file:///path" or`,
		"gs://bucket":                    `unknown scheme "gs"`,
		"file://var/lib/stint":           "three slashes",
		"file:/x?y=z":                    "nothing else",
		"file:x":                         "absolute path",
		"file:///x#y":                    "has a #",
		"s3://":                          `bucket ""`,
		"s3:///prefix":                   `bucket ""`,
		"s3://No_Such":                   "lower case letters",
		"s3://bucket/a/../b?region=x":    "begins with a dot",
		"s3://bucket/a b?region=x":       "letters, digits",
		"s3://bucket?region=a&region=b":  "2 times",
		"s3://bucket?region=":            "is empty",
		"s3://bucket?path_style=yes":     "want true or false",
		"s3://bucket?endpoint=localhost": "https://s3.example.org:9000",
		"s3://bucket?endpoint=ftp://x":   "https://s3.example.org:9000",
		"s3://bucket?%zz":                "malformed",
		"s3://bucket":                    "add ?region=, or set AWS_REGION",
		"s3://user:s3cret@bucket":        "credentials in the environment",
		"s3://bucket?secret=s3cret":      `unknown parameter "secret"`,
		"s3://user:s3cret@bu cket":       "credentials in the environment",
		"s3://bucket?endpoint=http://u:s3cret@host": "without credentials",
	} {
		if _, err := blob.Open(t.Context(), url, blob.Options{}); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want an error that says %q and no secret", url, err, says)
		}
	}
	if _, err := blob.Open(t.Context(), "file:///x", blob.Options{Attempts: -1}); err == nil || !strings.Contains(err.Error(), "Attempts -1") {
		t.Errorf("got %v, want an error about Attempts", err)
	}
	for _, url := range []string{"file:///var/lib/stint", "s3://bucket?region=eu-central-1", "s3://bucket/a/b/?endpoint=http://localhost:9000"} {
		b, err := blob.Open(t.Context(), url, blob.Options{Timeout: time.Second})
		if err != nil || b.String() != url {
			t.Errorf("%s: %v, %v", url, b, err)
		}
	}
}

// TestFailures checks of what kind errors are, whatever was to be done.
func TestFailures(t *testing.T) {
	next := blobtest.S3(t)
	file, readOnly := filepath.Join(t.TempDir(), "file"), t.TempDir()
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chmod(readOnly, 0o500)); err != nil {
		t.Fatal(err)
	}
	answers := func(status int, code string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprintf(w, "<Error><Code>%s</Code><Message>so it is</Message></Error>", code)
		}))
		t.Cleanup(s.Close)
		return "s3://archive?path_style=true&endpoint=" + s.URL
	}
	hangs := make(chan struct{})
	hanging := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hangs }))
	defer hanging.Close()
	defer close(hangs)

	for name, c := range map[string]struct {
		url  string
		want error
	}{
		"a file for a directory": {"file://" + file, blob.ErrUnreachable},
		"below a file":           {"file://" + file + "/x", blob.ErrUnreachable},
		"a read-only directory":  {"file://" + readOnly, blob.ErrNotPermitted},
		"no bucket":              {strings.Replace(next(), "//archive", "//nothing", 1), blob.ErrUnreachable},
		"no access":              {answers(403, "AccessDenied"), blob.ErrNotPermitted},
		"a wrong key":            {answers(403, "SignatureDoesNotMatch"), blob.ErrNotPermitted},
		"a broken server":        {answers(500, "InternalError"), blob.ErrUnreachable},
		"a web server":           {answers(404, ""), blob.ErrUnreachable},
		"a server that hangs":    {"s3://archive?endpoint=" + hanging.URL + "&path_style=true", blob.ErrUnreachable},
		"no server":              {"s3://archive?endpoint=http://127.0.0.1:1", blob.ErrUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := blob.Options{Attempts: 1}
			if name == "a server that hangs" {
				o.Timeout = 50 * time.Millisecond
			}
			b, err := blob.Open(t.Context(), c.url, o)
			if err != nil {
				t.Fatal(err)
			}
			fails := func() {
				for doing, err := range map[string]error{
					"put": b.Put(t.Context(), "a/b", strings.NewReader("x")), "put if absent": b.PutIfAbsent(t.Context(), "a/b", nil), "check": b.Check(t.Context()),
				} {
					if !errors.Is(err, c.want) || errors.Is(err, blob.ErrNotFound) {
						t.Errorf("%s: %v, want %v", doing, err, c.want)
					}
				}
			}
			if errors.Is(c.want, blob.ErrNotPermitted) { // root may write everywhere
				blobtest.AsNobody(fails)
			} else {
				fails()
			}
		})
	}
}

func TestNoCredentials(t *testing.T) {
	url := blobtest.S3(t)()
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	if err := blobtest.Open(t, url).Check(t.Context()); !errors.Is(err, blob.ErrNotPermitted) || !strings.Contains(err.Error(), "credentials") {
		t.Errorf("got %v, want that there are no credentials", err)
	}
}

// TestLeftBehind checks that what killed processes have left does not stay.
func TestLeftBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := blobtest.Open(t, "file://"+dir)
	if err := b.Put(t.Context(), "month/part", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	for name, age := range map[string]time.Duration{"month/.tmp-old": 25 * time.Hour, "month/.tmp-new": 23 * time.Hour, "month/part": 1e4 * time.Hour} {
		path, then := filepath.Join(dir, name), time.Now().Add(-age)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, then, then)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir + "/month"); err != nil || len(left) != 2 {
		t.Errorf("there are %v, want the part and the new one", left)
	}
}
