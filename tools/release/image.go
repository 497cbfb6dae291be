package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is the user of the image, which is no one's: nobody else on the host has it.
const user = 65532

// imageFile returns the name of the archive with the image, of both processors.
func (b *built) imageFile() string { return "stint_" + b.version + "_image.tar" }

// image returns the image: from nothing, the binary and the files that a program in Go looks for.
func (b *built) image() (v1.ImageIndex, error) {
	labels := map[string]string{
		"org.opencontainers.image.title":       "Stint",
		"org.opencontainers.image.description": "Rate limiter for APIs",
		"org.opencontainers.image.version":     b.version,
		"org.opencontainers.image.revision":    b.commit,
		"org.opencontainers.image.created":     b.date.Format(time.RFC3339),
		"org.opencontainers.image.licenses":    "Apache-2.0",
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, t := range targets {
		if t.os != "linux" {
			continue
		}
		layers := []mutate.Addendum{}
		for _, l := range []struct {
			what  string
			files []entry
		}{
			{"users, certificates and directories", b.foundation()},
			{"stint " + b.version, []entry{
				{tar.Header{Name: "bin/stint", Mode: 0o755}, b.binaries[t]},
				{tar.Header{Name: "bin/ratelimit", Mode: 0o777, Linkname: "stint"}, nil},
			}},
		} {
			body := compress(tarEntries(b.date, l.files))
			layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }, tarball.WithMediaType(types.OCILayer))
			if err != nil {
				return nil, err
			}
			layers = append(layers, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: b.date}, CreatedBy: l.what}})
		}
		image, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layers...)
		if err != nil {
			return nil, err
		}
		c, err := image.ConfigFile()
		if err != nil {
			return nil, err
		}
		c = c.DeepCopy()
		c.OS, c.Architecture, c.Created = t.os, t.arch, v1.Time{Time: b.date}
		c.Config = v1.Config{
			User:         fmt.Sprintf("%d:%d", user, user),
			Entrypoint:   []string{"/bin/stint"},
			Cmd:          []string{"serve"},
			Env:          []string{"PATH=/bin", "STINT_CONFIG=/etc/stint/stint.toml", "STATE_DIRECTORY=/var/lib/stint"},
			WorkingDir:   "/var/lib/stint",
			ExposedPorts: map[string]struct{}{"8000/tcp": {}, "8080/tcp": {}, "8081/tcp": {}},
			Volumes:      map[string]struct{}{"/var/lib/stint": {}},
			Healthcheck: &v1.HealthConfig{
				Test: []string{"CMD", "/bin/stint", "health"}, Interval: 10 * time.Second, Timeout: 5 * time.Second, StartPeriod: 30 * time.Second, Retries: 3,
			},
			Labels: labels,
		}
		if image, err = mutate.ConfigFile(image, c); err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: t.os, Architecture: t.arch}}})
	}
	return mutate.Annotations(index, labels).(v1.ImageIndex), nil
}

// foundation returns the files below the binary.
func (b *built) foundation() []entry {
	var roots bytes.Buffer
	for r := range bundle.Roots() {
		if r.Constraint == nil { // others are no longer trusted for new certificates, which a file cannot say
			_ = pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate}) // to memory
		}
	}
	own := func(name string, mode int64) entry {
		return entry{Header: tar.Header{Name: name, Mode: mode, Uid: user, Gid: user}}
	}
	return []entry{
		{tar.Header{Name: "etc/group", Mode: 0o644}, fmt.Appendf(nil, "root:x:0:\nstint:x:%d:\n", user)},
		{tar.Header{Name: "etc/passwd", Mode: 0o644}, fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nstint:x:%d:%d:Stint:/var/lib/stint:/sbin/nologin\n", user, user)},
		{tar.Header{Name: "etc/ssl/certs/ca-certificates.crt", Mode: 0o644}, roots.Bytes()},
		{tar.Header{Name: "etc/stint/stint.toml", Mode: 0o644}, b.mustRead("deploy/image/stint.toml")},
		{tar.Header{Name: "tmp/", Mode: 0o1777}, nil},
		own("var/lib/stint/", 0o750),
	}
}

// writeLayout writes an image as an archive of an OCI layout, as docker load, podman load and
// skopeo copy oci-archive: read it.
func writeLayout(to string, index v1.ImageIndex, at time.Time) error {
	dir, err := os.MkdirTemp("", "stint-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	m, err := index.IndexManifest()
	if err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	// The name that the image has once it is loaded.
	version := m.Annotations["org.opencontainers.image.version"]
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name": "docker.io/library/stint:" + version, "org.opencontainers.image.ref.name": version,
	})); err != nil {
		return err
	}
	var all []file
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := os.ReadFile(filepath.Join(dir, name))
		all = append(all, file{name, 0o644, body})
		return err
	})
	if err != nil {
		return err
	}
	return os.WriteFile(to, tarOf(at, "", all), 0o644)
}

// openLayout returns the image in an archive that writeLayout wrote, unpacked to a directory.
func openLayout(from, dir string) (v1.ImageIndex, error) {
	f, err := os.Open(from)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := unpack(dir, f, nil); err != nil {
		return nil, err
	}
	path, err := layout.FromPath(dir)
	if err != nil {
		return nil, err
	}
	all, err := path.ImageIndex()
	if err != nil {
		return nil, err
	}
	m, err := all.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(m.Manifests) != 1 {
		return nil, fmt.Errorf("%s has %d images, want 1", from, len(m.Manifests))
	}
	return all.ImageIndex(m.Manifests[0].Digest)
}

// push pushes the image of a release to a registry, for which docker login, podman login or
// their like has left credentials.
func push(ctx context.Context, out, reference string, log io.Writer) error {
	to, err := name.ParseReference(reference, name.StrictValidation)
	if err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(out, "stint_*_image.tar"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("%s has no image: make release builds it", out)
	}
	dir, err := os.MkdirTemp("", "stint-push-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	index, err := openLayout(found[0], dir)
	if err != nil {
		return err
	}
	if err := remote.WriteIndex(to, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(keychain)); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Fprintln(log, to.Context().Name()+"@"+digest.String())
	return nil
}
