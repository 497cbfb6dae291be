// Package blob stores files under names, in a directory or in a bucket of S3 or a compatible
// server.
//
// # What holds
//
//   - A name has the complete new content or the old one, never a part.
//   - Of several concurrent calls of PutIfAbsent with one name, one succeeds.
//   - Directories and buckets list the same names in the same order, by their bytes.
//
// # What it does not do
//
// It does not take credentials from a URL, which may be logged: the AWS SDK finds them
// elsewhere. It keeps no versions, and does not lock.
package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/url"
	"path/filepath"
	"strings"
	"time"
)

// Errors that callers can tell apart.
var (
	ErrNotFound     = errors.New("not found")
	ErrExists       = errors.New("exists already")
	ErrNotPermitted = errors.New("not permitted")
	// ErrUnreachable means that the state of the name is unknown: there was no response, or
	// there is no such bucket, no directory or no space left.
	ErrUnreachable = errors.New("unreachable")
)

// Bucket stores files. Its methods may be called concurrently.
//
// A name has at most 512 bytes: letters, digits and ._=- in parts that are separated by
// slashes, none of which begins with a dot. Other names are rejected. If there is a name a
// there should be none that begins with a/: a directory cannot have both.
type Bucket interface {
	// Put stores what r has under name, and replaces what was there.
	Put(ctx context.Context, name string, r io.Reader) error
	// PutIfAbsent stores data under name. If the name exists it changes nothing, and the
	// error is ErrExists.
	PutIfAbsent(ctx context.Context, name string, data []byte) error
	// Get opens the file with the name, or returns ErrNotFound. The caller closes it.
	Get(ctx context.Context, name string) (io.ReadCloser, error)
	// List iterates over the names that begin with prefix, in order. It ends with the first
	// error.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]
	// Delete deletes a name. It is no error if it does not exist.
	Delete(ctx context.Context, name string) error
	// Check checks that the bucket can be written to, by writing.
	Check(ctx context.Context) error
	// String returns the URL that it was opened with.
	String() string
}

// Object is a file in a bucket.
type Object struct {
	Name string
	Size int64
}

// Options are the settings of a bucket. A directory ignores them.
type Options struct {
	// Timeout is how long a request may take, including its body. 0 is 5 minutes.
	Timeout time.Duration
	// Attempts is how many times a request is tried. 0 is 3.
	Attempts int
}

const forms = `want "file:///path" or "s3://bucket/prefix?region=..."`

// Open returns the bucket at a URL. It reads settings and credentials from the environment and
// the files that it names, and does not connect yet.
func Open(ctx context.Context, text string, o Options) (Bucket, error) {
	if o.Timeout < 0 || o.Attempts < 0 {
		return nil, fmt.Errorf("blob: Timeout %v, Attempts %d: neither can be negative", o.Timeout, o.Attempts)
	}
	u, err := url.Parse(text)
	if err != nil || u.User != nil {
		// It is not shown, since it may contain a password.
		return nil, errors.New("blob: the URL is malformed or has credentials: " + forms + ", and credentials in the environment")
	}
	if u.Fragment != "" {
		return nil, fmt.Errorf("blob: %s: has a #: %s", text, forms)
	}
	switch u.Scheme {
	case "file":
		if u.Host != "" || u.RawQuery != "" || !filepath.IsAbs(u.Path) {
			return nil, fmt.Errorf("blob: %s: want an absolute path after three slashes and nothing else, as file:///var/lib/stint/archive", text)
		}
		return &directory{root: filepath.Clean(u.Path), url: text}, nil
	case "s3":
		return openS3(ctx, u, o)
	}
	return nil, fmt.Errorf("blob: %q: unknown scheme %q: %s", text, u.Scheme, forms)
}

// checkName rejects names that a directory or a bucket would change, and those of temporary
// files.
func checkName(name string) error {
	if name == "" || len(name) > 512 || !allowed(name) {
		return fmt.Errorf("blob: name %.99q: want at most 512 letters, digits, and ._=-/", name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' {
			return fmt.Errorf("blob: name %q: the part %q is empty or begins with a dot", name, part)
		}
	}
	return nil
}

// checkPrefix rejects prefixes that no name can have.
func checkPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	return checkName(strings.TrimSuffix(prefix, "/"))
}

func allowed(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._=-/", r)
	}) < 0
}
