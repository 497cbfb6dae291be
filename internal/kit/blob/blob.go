// Package blob keeps files under names, in a directory or in a bucket of S3 or of a
// server that speaks like it.
//
// # What holds
//
//   - A name has all of what was put under it, or what it had before: no one sees a half.
//   - Of those who put a name that was absent, one succeeds.
//   - Both kinds list the same names in the same order, that of their bytes.
//
// # What it refuses to do
//
// It does not take credentials from a URL, which ends up in logs: they come from where
// the AWS SDK looks for them. It knows nothing of what is in the files, keeps no
// versions, and does not lock.
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

// What callers can tell apart.
var (
	ErrNotFound     = errors.New("not found")
	ErrExists       = errors.New("exists already")
	ErrNotPermitted = errors.New("not permitted")
	// ErrUnreachable means that nothing can be said of the name: there is no answer, no
	// bucket, no directory or no room.
	ErrUnreachable = errors.New("unreachable")
)

// Bucket is where files are kept. Its methods are safe to use at once.
//
// A name is at most 512 bytes: letters, digits and ._=- in parts that are divided by a
// slash, none of which begins with a dot. Any other is an error. Where there is a
// name a there should be none that begins with a/: a directory cannot have both.
type Bucket interface {
	// Put keeps what r has under name, in the place of what was there.
	Put(ctx context.Context, name string, r io.Reader) error
	// PutIfAbsent keeps data under name. If there is something already, it is left as it
	// is, and the error is ErrExists.
	PutIfAbsent(ctx context.Context, name string, data []byte) error
	// Get opens what is under name, or fails with ErrNotFound. The caller closes it.
	Get(ctx context.Context, name string) (io.ReadCloser, error)
	// List goes through all that begins with prefix, in the order of names. It ends with
	// the first error.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]
	// Delete removes what is under name. It is no error if there is nothing.
	Delete(ctx context.Context, name string) error
	// Check tells whether the bucket can be written to, by writing.
	Check(ctx context.Context) error
	// String returns the URL that it was opened by.
	String() string
}

// Object is something that a bucket has.
type Object struct {
	Name string
	Size int64
}

// Options say how to speak to a bucket. They mean nothing for a directory.
type Options struct {
	// Timeout is how long one request may take, with its body. 0 is 5 minutes.
	Timeout time.Duration
	// Attempts is how often a request is tried. 0 is 3.
	Attempts int
}

const forms = `want "file:///path" or "s3://bucket/prefix?region=..."`

// Open returns the bucket at a URL. It reads settings and credentials from the
// environment and the files that it names, and speaks to no one yet.
func Open(ctx context.Context, text string, o Options) (Bucket, error) {
	if o.Timeout < 0 || o.Attempts < 0 {
		return nil, fmt.Errorf("blob: Timeout %v, Attempts %d: neither can be negative", o.Timeout, o.Attempts)
	}
	u, err := url.Parse(text)
	if err != nil || u.User != nil {
		// What is wrong with it may be in a password, so it is not shown.
		return nil, errors.New("blob: a URL that is not well formed or has credentials: " + forms + ", and credentials in the environment")
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

// checkName refuses names that a directory or a bucket would read otherwise than they
// are written, or that are used for what is under way.
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

// checkPrefix refuses what no name can begin with.
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
