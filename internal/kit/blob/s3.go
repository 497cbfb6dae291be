package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

// chunk is how much of a file is held in memory and sent at once. S3 accepts 10,000 chunks, so a
// file can have 80 GiB.
const chunk = 8 << 20

// bucket is a Bucket of objects of S3 whose keys begin with a prefix.
type bucket struct {
	client            *s3.Client
	name, prefix, url string
}

var (
	_ Bucket = (*bucket)(nil)

	bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	s3Params   = []string{"region", "endpoint", "path_style"}
)

func openS3(ctx context.Context, u *url.URL, o Options) (Bucket, error) {
	bad := func(what string, args ...any) (Bucket, error) {
		return nil, fmt.Errorf("blob: %s: %s", u, fmt.Sprintf(what, args...))
	}
	if !bucketName.MatchString(u.Host) {
		return bad("bucket %q: want 3 to 63 lower case letters, digits, dots and dashes", u.Host)
	}
	prefix := strings.Trim(u.Path, "/")
	if prefix != "" {
		if err := checkName(prefix); err != nil {
			return bad("%v", err)
		}
		prefix += "/"
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return bad("query %q is malformed", u.RawQuery)
	}
	for name, values := range query {
		switch {
		case !slices.Contains(s3Params, name):
			// Its value is not shown, since it may be a secret key.
			return nil, fmt.Errorf("blob: s3://%s: unknown parameter %q: want %s; credentials belong in the environment", u.Host, name, strings.Join(s3Params, ", "))
		case len(values) > 1:
			return bad("parameter %q is given %d times", name, len(values))
		case values[0] == "":
			return bad("parameter %q is empty", name)
		}
	}
	endpoint := query.Get("endpoint")
	if endpoint != "" {
		e, err := url.Parse(endpoint)
		if err != nil || e.User != nil || (e.Scheme != "https" && e.Scheme != "http") || e.Host == "" || e.RawQuery != "" || e.Fragment != "" {
			return nil, fmt.Errorf("blob: s3://%s: endpoint: want a URL without credentials, as https://s3.example.org:9000", u.Host)
		}
	}
	style := query.Get("path_style")
	if style != "" && style != "true" && style != "false" {
		return bad("path_style %q: want true or false", style)
	}

	if o.Timeout == 0 {
		o.Timeout = 5 * time.Minute
	}
	settings := []func(*config.LoadOptions) error{
		config.WithHTTPClient(awshttp.NewBuildableClient().WithTimeout(o.Timeout)),
		// The signature contains the hash of the body. The newer checksums add nothing, and
		// not all compatible servers support them.
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired),
	}
	if o.Attempts > 0 {
		settings = append(settings, config.WithRetryMaxAttempts(o.Attempts))
	}
	if region := query.Get("region"); region != "" {
		settings = append(settings, config.WithRegion(region))
	}
	c, err := config.LoadDefaultConfig(ctx, settings...)
	if err != nil {
		return bad("AWS settings: %v", err)
	}
	if c.Region == "" {
		if endpoint == "" {
			return bad("region: not set: add ?region=, or set AWS_REGION")
		}
		c.Region = "us-east-1" // servers without regions expect it
	}
	client := s3.NewFromConfig(c, func(s *s3.Options) {
		s.UsePathStyle = style == "true"
		if endpoint != "" {
			s.BaseEndpoint = &endpoint
		}
	})
	return &bucket{client: client, name: u.Host, prefix: prefix, url: u.String()}, nil
}

func (b *bucket) String() string { return b.url }

func (b *bucket) key(name string) *string { return aws.String(b.prefix + name) }

func (b *bucket) Put(ctx context.Context, name string, r io.Reader) error {
	if err := checkName(name); err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(r, chunk))
	if err != nil {
		return fmt.Errorf("blob: put %s: read: %w", name, err)
	}
	if len(data) < chunk {
		return b.put(ctx, name, data, nil)
	}
	return b.failure(ctx, "put", name, b.putParts(ctx, name, data, r))
}

// putParts uploads more than one chunk: data, which is the first, and the rest of r.
func (b *bucket) putParts(ctx context.Context, name string, data []byte, r io.Reader) (err error) {
	up, err := b.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &b.name, Key: b.key(name)})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil { // even if ctx has ended: uploaded parts cost money
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
			defer cancel()
			_, _ = b.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &b.name, Key: b.key(name), UploadId: up.UploadId})
		}
	}()
	var parts []types.CompletedPart
	for len(data) > 0 {
		number := aws.Int32(int32(len(parts)) + 1)
		part, err := b.client.UploadPart(ctx, &s3.UploadPartInput{
			Bucket: &b.name, Key: b.key(name), UploadId: up.UploadId, PartNumber: number, Body: bytes.NewReader(data),
		})
		if err != nil {
			return err
		}
		parts = append(parts, types.CompletedPart{ETag: part.ETag, PartNumber: number})
		n, err := io.ReadFull(r, data[:chunk])
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		data = data[:n]
	}
	_, err = b.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: &b.name, Key: b.key(name), UploadId: up.UploadId, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	})
	return err
}

func (b *bucket) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	if err := checkName(name); err != nil {
		return err
	}
	return b.put(ctx, name, data, aws.String("*"))
}

func (b *bucket) put(ctx context.Context, name string, data []byte, unless *string) error {
	_, err := b.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &b.name, Key: b.key(name), Body: bytes.NewReader(data), IfNoneMatch: unless,
	})
	return b.failure(ctx, "put", name, err)
}

func (b *bucket) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	out, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.name, Key: b.key(name)})
	if err != nil {
		return nil, b.failure(ctx, "get", name, err)
	}
	return out.Body, nil
}

func (b *bucket) Delete(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.name, Key: b.key(name)})
	if err = b.failure(ctx, "delete", name, err); errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

func (b *bucket) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		if err := checkPrefix(prefix); err != nil {
			yield(Object{}, err)
			return
		}
		pages := s3.NewListObjectsV2Paginator(b.client, &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: b.key(prefix)})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				yield(Object{}, b.failure(ctx, "list", prefix, err))
				return
			}
			for _, o := range page.Contents {
				name := strings.TrimPrefix(aws.ToString(o.Key), b.prefix)
				if checkName(name) != nil {
					continue // not ours
				}
				if !yield(Object{Name: name, Size: aws.ToInt64(o.Size)}, nil) {
					return
				}
			}
		}
	}
}

// Check writes always the same object, which stays if deleting is not permitted.
func (b *bucket) Check(ctx context.Context) error {
	const probe = ".check"
	if err := b.put(ctx, probe, []byte("stint"), nil); err != nil {
		return err
	}
	_, _ = b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.name, Key: b.key(probe)})
	return nil
}

// failure adds the operation, the name and the kind of the error.
func (b *bucket) failure(ctx context.Context, doing, name string, err error) error {
	var (
		kind     error
		api      smithy.APIError
		response *awshttp.ResponseError
	)
	code, status := "", 0
	if errors.As(err, &api) {
		code = api.ErrorCode()
	}
	if errors.As(err, &response) {
		status = response.HTTPStatusCode()
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("blob: %s %s in %s: %w", doing, name, b.name, err)
	case code == "NoSuchBucket":
		kind = ErrUnreachable // not ErrNotFound: nothing is known of the name
	case code == "NoSuchKey", code == "NotFound":
		kind = ErrNotFound
	case code == "PreconditionFailed", code == "ConditionalRequestConflict", status == http.StatusPreconditionFailed:
		kind = ErrExists
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		kind = ErrNotPermitted
	case status == 0 && !b.hasCredentials(ctx):
		kind = ErrNotPermitted // the error tells where it looked for credentials
	default:
		kind = ErrUnreachable
	}
	return fmt.Errorf("blob: %s %s in %s: %w: %w", doing, name, b.name, kind, err)
}

func (b *bucket) hasCredentials(ctx context.Context) bool {
	c := b.client.Options().Credentials
	if c == nil {
		return false
	}
	_, err := c.Retrieve(ctx)
	return err == nil
}
