package main

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the formats
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

const description = `Rate limiter for APIs
 A server in front of any service that limits how often clients may call it:
 a gateway, a decision API, forward-auth for nginx, Traefik and Caddy, and the
 rate limit service of Envoy. Counters are in memory or in Redis, rules in a
 file, SQLite or PostgreSQL.`

// pack writes a package.
func (b *built) pack(dir, format, arch string) error {
	stage, err := os.MkdirTemp("", "stint-package-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(stage)
	var contents files.Contents
	add := func(to, kind, group string, mode os.FileMode, body []byte) {
		path := filepath.Join(stage, strconv.Itoa(len(contents)))
		if err == nil {
			err = os.WriteFile(path, body, 0o600)
		}
		contents = append(contents, &files.Content{
			Source: path, Destination: to, Type: kind, FileInfo: &files.ContentFileInfo{Owner: "root", Group: group, Mode: mode, MTime: b.date},
		})
	}
	scripts := filepath.Join(b.root, "deploy/package")
	zsh := "/usr/share/zsh/vendor-completions/_stint"
	if format == "rpm" {
		zsh = "/usr/share/zsh/site-functions/_stint"
	}
	add("/usr/bin/stint", "", "root", 0o755, b.binaries[target{"linux", arch}])
	add("/usr/lib/systemd/system/stint.service", "", "root", 0o644, b.mustRead("deploy/systemd/stint.service"))
	// It may have secrets: only the service and root read it.
	add("/etc/stint/stint.toml", files.TypeConfigNoReplace, "stint", 0o640, b.mustRead("deploy/package/stint.toml"))
	add("/usr/share/bash-completion/completions/stint", "", "root", 0o644, b.completions["bash"])
	add(zsh, "", "root", 0o644, b.completions["zsh"])
	add("/usr/share/fish/vendor_completions.d/stint.fish", "", "root", 0o644, b.completions["fish"])
	add("/usr/share/doc/stint/copyright", "", "root", 0o644, b.mustRead("deploy/package/copyright"))
	add("/usr/share/doc/stint/CHANGELOG.md.gz", "", "root", 0o644, compress(b.mustRead("CHANGELOG.md")))
	add("/usr/share/doc/stint/stint.example.toml", "", "root", 0o644, b.mustRead("stint.example.toml"))
	for _, p := range b.manual {
		add("/usr/share/man/man1/"+p.name+".gz", "", "root", 0o644, compress(p.body))
	}
	if err != nil {
		return err
	}
	info := &nfpm.Info{
		Name: "stint", Arch: arch, Platform: "linux", Version: b.version, Release: "1", Section: "net", Priority: "optional",
		Maintainer: "The maintainers of Stint <maintainers@stint.invalid>", Description: description, License: "Apache-2.0",
		DisableGlobbing: true, MTime: b.date,
		Overridables: nfpm.Overridables{
			Contents: contents,
			Scripts:  nfpm.Scripts{PreInstall: filepath.Join(scripts, "preinstall.sh")},
			RPM:      nfpm.RPM{BuildHost: "localhost", Summary: "Rate limiter for APIs"},
		},
	}
	if format == "deb" {
		info.Deb.Predepends = []string{"passwd"} // preinstall.sh
		info.Recommends = []string{"ca-certificates"}
		info.Scripts.PostInstall = filepath.Join(scripts, "deb-postinst.sh")
		info.Scripts.PreRemove = filepath.Join(scripts, "deb-prerm.sh")
		info.Scripts.PostRemove = filepath.Join(scripts, "deb-postrm.sh")
	} else {
		info.Depends = []string{"/usr/sbin/useradd"}
		info.Recommends = []string{"ca-certificates"}
		info.Scripts.PostInstall = filepath.Join(scripts, "rpm-post.sh")
		info.Scripts.PreRemove = filepath.Join(scripts, "rpm-preun.sh")
		info.Scripts.PostRemove = filepath.Join(scripts, "rpm-postun.sh")
	}
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	w, err := os.Create(filepath.Join(dir, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	if err := packager.Package(info, w); err != nil {
		_ = w.Close()
		return err
	}
	return w.Close()
}
