package main

import (
	"archive/tar"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// imageHere writes the image of this machine's processor, and of another one with the same
// binary, and reads it again.
func imageHere(t *testing.T) (index v1.ImageIndex, image v1.Image, dir string) {
	t.Helper()
	b := *forHere(t)
	b.binaries = map[target][]byte{{"linux", "amd64"}: b.binaries[here], {"linux", "arm64"}: b.binaries[here]}
	made, err := b.image()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := writeLayout(filepath.Join(dir, b.imageFile()), made, b.date); err != nil {
		t.Fatal(err)
	}
	unpacked := t.TempDir()
	if index, err = openLayout(filepath.Join(dir, b.imageFile()), unpacked); err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, d := range m.Manifests {
		platforms = append(platforms, d.Platform.String())
		if d.Platform.Architecture != here.arch {
			continue
		}
		if image, err = index.Image(d.Digest); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(platforms, []string{"linux/amd64", "linux/arm64"}) {
		t.Fatalf("the image is for %v", platforms)
	}
	return index, image, dir
}

// extract writes the layers of an image to a directory, with the owners that they name.
func extract(t *testing.T, image v1.Image, dir string) (bytes int64) {
	t.Helper()
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		err = unpack(dir, r, func(path string, h *tar.Header) error {
			bytes += h.Size
			if h.Typeflag == tar.TypeSymlink {
				return nil
			}
			if err := os.Chown(path, h.Uid, h.Gid); err != nil {
				return err
			}
			return os.Chmod(path, h.FileInfo().Mode())
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return bytes
}

// TestImage runs the image as a container engine would: its files are the root, read-only but for
// the volume, its user is no one's, and nothing else of this machine can be seen.
func TestImage(t *testing.T) {
	needsRoot(t)
	_, image, _ := imageHere(t)
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if size, binary := extract(t, image, root), int64(len(forHere(t).binaries[here])); size > binary+1<<20 {
		t.Errorf("the image has %d bytes, and the binary %d", size, binary)
	}
	c := config.Config
	if c.Labels["org.opencontainers.image.revision"] != forHere(t).commit || config.Created.Time != forHere(t).date {
		t.Errorf("the image is of %v, %v", config.Created, c.Labels)
	}
	j := startJail(t, root, "/var/lib/stint", c.User, c.Env, append(c.Entrypoint, c.Cmd...)...)
	j.ready(t, `"msg":"ready"`)
	health := func() (int, string) { return j.run(t, c.Healthcheck.Test[1:]...) }
	if code, out := health(); code != 0 || out != "ok\n" {
		t.Errorf("health: %d, %s", code, out)
	}
	last := ""
	for range 6 { // five pass
		last, _ = j.curl(t, "-H", "X-Forwarded-Method: POST", "-H", "X-Forwarded-Uri: /login", "http://127.0.0.1:8080/v1/forward-auth")
	}
	if last != "429" {
		t.Errorf("the last of six requests was answered with %s", last)
	}
	if status, _ := j.curl(t, "http://127.0.0.2:8080/healthz"); status != "200" {
		t.Errorf("other containers get %s from the decision API", status)
	}
	if code, out := j.run(t, "/bin/stint", "version"); code != 0 || !strings.HasPrefix(out, "stint v"+forHere(t).version+" "+forHere(t).commit[:12]) {
		t.Errorf("%d, %s", code, out)
	}
	for _, line := range documented(t) {
		if !strings.HasPrefix(line, "curl ") {
			continue
		}
		if _, out := j.beside(t, "sh", "-c", line); !strings.Contains(out, "200 OK") {
			t.Errorf("%s:\n%s", line, out)
		}
	}
	j.stop(t)
	if !strings.Contains(readFile(t, root, "etc/ssl/certs/ca-certificates.crt"), "-----BEGIN CERTIFICATE-----") {
		t.Error("there are no certificates")
	}

	// In place of envoyproxy/ratelimit, with a command or with arguments.
	limits := "domain: shop\ndescriptors:\n- key: user\n  rate_limit: {unit: minute, requests_per_unit: 5}\n"
	dir := filepath.Join(root, "data/ratelimit/config")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(limits), 0o644); err != nil {
		t.Fatal(err)
	}
	environ := append(slices.Clone(c.Env), "RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit", "STINT_SERVER_COUNTERS=memory:")
	for _, args := range [][]string{{"/bin/ratelimit"}, {"/bin/stint", "/bin/ratelimit"}} {
		j := startJail(t, root, "/var/lib/stint", c.User, environ, args...)
		j.ready(t, `"msg":"ready"`)
		if status, body := j.curl(t, "http://127.0.0.1:8080/healthcheck"); status != "200" {
			t.Errorf("%s: %s, %s", args, status, body)
		}
		if code, out := j.run(t, c.Healthcheck.Test[1:]...); code != 0 {
			t.Errorf("%s: health %d, %s", args, code, out)
		}
		j.stop(t)
	}
}

// TestPush pushes the image to a registry, and reads it from there.
func TestPush(t *testing.T) {
	index, _, dir := imageHere(t)
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer s.Close()
	reference := strings.TrimPrefix(s.URL, "http://") + "/team/stint:0.1.0"
	var out strings.Builder
	if err := run(t.Context(), []string{"-out", dir, "push", reference}, &out); err != nil {
		t.Fatal(err)
	}
	to, err := name.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := remote.Index(to)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pulled.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if want, err := index.Digest(); err != nil || got != want || !strings.Contains(out.String(), "@"+want.String()) {
		t.Errorf("the registry has %s, want %s, %v: %s", got, want, err, out.String())
	}
	for _, args := range [][]string{{"push"}, {"push", "no tag"}, {"pull", reference}, {"-out", t.TempDir(), "push", reference}} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}

// TestDockerfile checks that Docker builds an image with the same settings.
func TestDockerfile(t *testing.T) {
	_, image, _ := imageHere(t)
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := config.Config
	text := strings.ReplaceAll(readFile(t, "../../Dockerfile"), "\\\n\t", "")
	_, last, ok := strings.Cut(text, "\nFROM scratch\n")
	if !ok {
		t.Fatal("the image is not from scratch")
	}
	list := func(l []string) string { return `["` + strings.Join(l, `", "`) + `"]` }
	for _, want := range []string{
		"USER " + c.User, "WORKDIR " + c.WorkingDir, "ENTRYPOINT " + list(c.Entrypoint), "CMD " + list(c.Cmd), "ENV " + strings.Join(c.Env, " "),
		"VOLUME /var/lib/stint", "EXPOSE 8000 8080 8081",
		"HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD " + list(c.Healthcheck.Test[1:]),
	} {
		if !strings.Contains(last, want+"\n") {
			t.Errorf("the Dockerfile does not have %s", want)
		}
	}
	if len(c.Volumes) != 1 || len(c.ExposedPorts) != 3 || c.Healthcheck.Interval.Seconds() != 10 || c.Healthcheck.Timeout.Seconds() != 5 || c.Healthcheck.StartPeriod.Seconds() != 30 {
		t.Errorf("the image has %v, %v, %+v", c.Volumes, c.ExposedPorts, c.Healthcheck)
	}
	for label := range c.Labels {
		if !strings.Contains(last, label+`="`) {
			t.Errorf("the Dockerfile has no label %s", label)
		}
	}
	// What it builds from: the versions of this repository, and the flags of the release.
	for _, want := range []string{"-trimpath -buildvcs=false -tags grpcnotrace", "-s -w -buildid= -X main.version=$VERSION -X main.commit=$COMMIT -X main.date=$DATE", "deploy/image/stint.toml"} {
		if !strings.Contains(text, want) {
			t.Errorf("the Dockerfile does not have %s", want)
		}
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(readFile(t, "../../go.mod"))[1]
	if !strings.Contains(text, " golang:"+version+"-") {
		t.Errorf("the Dockerfile does not build with Go %s", version)
	}
}
