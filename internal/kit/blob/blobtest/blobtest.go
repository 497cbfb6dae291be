// Package blobtest is the conformance suite of buckets, and an S3 server for tests.
package blobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/stintdev/stint/internal/kit/blob"
)

// S3 starts a server that ends with the test, and returns a function that returns the URL of
// another empty bucket with each call. It sets the environment, so the test cannot be parallel;
// its subtests can.
func S3(t *testing.T) func() string {
	t.Helper()
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_REGION": "", "AWS_PROFILE": "",
	} {
		t.Setenv(name, value)
	}
	backend := s3mem.New()
	if err := backend.CreateBucket("archive"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(server.Close)
	var n atomic.Int64
	return func() string {
		return fmt.Sprintf("s3://archive/stint-%d?path_style=true&endpoint=%s", n.Add(1), url.QueryEscape(server.URL))
	}
}

// Open opens a bucket.
func Open(t *testing.T, url string) blob.Bucket {
	t.Helper()
	b, err := blob.Open(t.Context(), url, blob.Options{Attempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Run checks that a bucket does what its interface says. Each call of open returns an
// empty one.
func Run(t *testing.T, open func(t *testing.T) blob.Bucket) {
	t.Helper()
	for name, check := range map[string]func(*testing.T, blob.Bucket){
		"put and get": putAndGet, "put if absent": putIfAbsent, "one of many": oneOfMany, "list": list,
		"delete": remove, "names": names, "check": writable, "a reader that fails": failingReader, "a context that has ended": ended,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, open(t))
		})
	}
}

func get(t *testing.T, b blob.Bucket, name string) []byte {
	t.Helper()
	r, err := b.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	return data
}

func put(t *testing.T, b blob.Bucket, name, text string) {
	t.Helper()
	if err := b.Put(t.Context(), name, strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
}

func putAndGet(t *testing.T, b blob.Bucket) {
	t.Helper()
	// Above 8 MiB files are sent in chunks.
	for _, size := range []int{0, 1, 8 << 20, 8<<20 + 1, 17 << 20} {
		data := bytes.Repeat([]byte("0123456789abcdef!"), size/17+1)[:size]
		// A reader of unknown length.
		if err := b.Put(t.Context(), "some/file", iotest.DataErrReader(io.MultiReader(bytes.NewReader(data)))); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if got := get(t, b, "some/file"); !bytes.Equal(got, data) {
			t.Fatalf("got %d bytes, want the %d that were put", len(got), size)
		}
	}
	put(t, b, "some/file", "another")
	if got := get(t, b, "some/file"); string(got) != "another" {
		t.Errorf("got %d bytes, want what was put last", len(got))
	}
	if _, err := b.Get(t.Context(), "some/other"); !errors.Is(err, blob.ErrNotFound) || !strings.Contains(err.Error(), "some/other") {
		t.Errorf("got %v, want an error that says what was not found", err)
	}
	if _, err := b.Get(t.Context(), "some"); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("a part of a name: %v", err)
	}
}

func putIfAbsent(t *testing.T, b blob.Bucket) {
	t.Helper()
	if err := b.PutIfAbsent(t.Context(), "a/b", []byte("first")); err != nil {
		t.Fatal(err)
	}
	if err := b.PutIfAbsent(t.Context(), "a/b", []byte("second")); !errors.Is(err, blob.ErrExists) {
		t.Errorf("got %v, want ErrExists", err)
	}
	if got := get(t, b, "a/b"); string(got) != "first" {
		t.Errorf("got %q, want what was first", got)
	}
}

func oneOfMany(t *testing.T, b blob.Bucket) {
	t.Helper()
	var all sync.WaitGroup
	won := make(chan string, 20)
	for i := range 20 {
		all.Go(func() {
			text := fmt.Sprint("writer ", i)
			switch err := b.PutIfAbsent(t.Context(), "lease", []byte(text)); {
			case err == nil:
				won <- text
			case !errors.Is(err, blob.ErrExists):
				t.Error(err)
			}
		})
	}
	all.Wait()
	close(won)
	if first := <-won; first != string(get(t, b, "lease")) || len(won) > 0 {
		t.Errorf("%d have put it besides %s, and it is %s", len(won), first, get(t, b, "lease"))
	}
}

func list(t *testing.T, b blob.Bucket) {
	t.Helper()
	listed := func(prefix string) (out []string) {
		for o, err := range b.List(t.Context(), prefix) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, fmt.Sprint(o.Name, " ", o.Size))
		}
		return out
	}
	if got := listed(""); got != nil {
		t.Errorf("an empty bucket has %v", got)
	}
	for i, name := range []string{"b/2", "a", "b/1/x", "b-c", "b.c", "bb", "b/1-x", "b/1.x"} {
		put(t, b, name, strings.Repeat("x", i))
	}
	all := []string{"a 1", "b-c 3", "b.c 4", "b/1-x 6", "b/1.x 7", "b/1/x 2", "b/2 0", "bb 5"}
	for prefix, want := range map[string][]string{
		"": all, "b": all[1:], "b/": all[3:7], "b/1": all[3:6], "b/1/": all[5:6], "a": all[:1], "a/": nil, "c": nil,
	} {
		if got := listed(prefix); !slices.Equal(got, want) {
			t.Errorf("with the prefix %q: %v, want %v", prefix, got, want)
		}
	}
	for o := range b.List(t.Context(), "") {
		if o.Name != "a" {
			t.Errorf("%s is first", o.Name)
		}
		break
	}
	// More than S3 lists at once.
	want := 1001
	for i := range want {
		put(t, b, fmt.Sprintf("many/%04d", i), "")
	}
	if got := listed("many/"); len(got) != want || !slices.IsSorted(got) {
		t.Errorf("%d of %d are listed", len(got), want)
	}
}

func remove(t *testing.T, b blob.Bucket) {
	t.Helper()
	put(t, b, "a/b", "x")
	for range 2 {
		if err := b.Delete(t.Context(), "a/b"); err != nil {
			t.Error(err)
		}
	}
	if _, err := b.Get(t.Context(), "a/b"); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

func names(t *testing.T, b blob.Bucket) {
	t.Helper()
	for _, name := range []string{
		"", "/", "/etc/passwd", "..", "../x", "a/../../x", "a/..", ".", "./a", "a//b", "a/", ".tmp-1", "a/.b",
		`a\b`, "a b", "a\x00b", "a\nb", "ä", "a?b", "a%2fb", "a:b", strings.Repeat("x", 513),
	} {
		_, err := b.Get(t.Context(), name)
		for doing, err := range map[string]error{
			"get": err, "put": b.Put(t.Context(), name, strings.NewReader("")), "delete": b.Delete(t.Context(), name),
			"put if absent": b.PutIfAbsent(t.Context(), name, nil),
		} {
			if err == nil || !strings.Contains(err.Error(), "blob: name") {
				t.Errorf("%s %.20q: %v, want an error about the name", doing, name, err)
			}
		}
	}
	for _, prefix := range []string{"..", "/", "../", "a/../b", "a//", "*"} {
		for _, err := range b.List(t.Context(), prefix) {
			if err == nil || !strings.Contains(err.Error(), "blob: name") {
				t.Errorf("list %q: %v", prefix, err)
			}
		}
	}
}

func writable(t *testing.T, b blob.Bucket) {
	t.Helper()
	if err := b.Check(t.Context()); err != nil {
		t.Error(err)
	}
	for o, err := range b.List(t.Context(), "") {
		t.Errorf("left behind: %v, %v", o, err)
	}
}

func failingReader(t *testing.T, b blob.Bucket) {
	t.Helper()
	broken := errors.New("broken")
	for _, size := range []int{0, 9 << 20} {
		r := io.MultiReader(bytes.NewReader(make([]byte, size)), iotest.ErrReader(broken))
		if err := b.Put(t.Context(), "a", r); !errors.Is(err, broken) {
			t.Errorf("after %d bytes: %v, want what the reader said", size, err)
		}
	}
	for o, err := range b.List(t.Context(), "") {
		t.Errorf("left behind: %v, %v", o, err)
	}
}

func ended(t *testing.T, b blob.Bucket) {
	t.Helper()
	put(t, b, "a", "x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Get(ctx, "a")
	for _, e := range b.List(ctx, "") {
		err = errors.Join(err, e)
		if e == nil {
			t.Error("it lists")
		}
	}
	for i, err := range []error{err, b.Put(ctx, "b", strings.NewReader("")), b.PutIfAbsent(ctx, "c", nil), b.Delete(ctx, "a"), b.Check(ctx)} {
		if !errors.Is(err, context.Canceled) || errors.Is(err, blob.ErrUnreachable) {
			t.Errorf("%d: %v, want that of the context", i, err)
		}
	}
	if got := get(t, b, "a"); string(got) != "x" {
		t.Errorf("a is %q", got)
	}
}
