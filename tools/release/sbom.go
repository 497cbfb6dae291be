package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// bom returns the bill of materials of a binary, in CycloneDX: the modules that Go has written
// into it, its standard library, and the packages of the dashboard.
func (b *built) bom(t target) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(b.binaries[t]))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b.binaries[t])
	main := cdx.Component{
		BOMRef: "pkg:golang/" + info.Main.Path + "@v" + b.version, Type: cdx.ComponentTypeApplication, Name: "stint", Version: "v" + b.version,
		PackageURL: "pkg:golang/" + info.Main.Path + "@v" + b.version + "?goos=" + t.os + "&goarch=" + t.arch,
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
		Properties: &[]cdx.Property{{Name: "stint:commit", Value: b.commit}},
	}
	library := func(kind, name, version string, hashes ...cdx.Hash) cdx.Component {
		url := "pkg:" + kind + "/" + strings.ReplaceAll(name, "@", "%40") + "@" + version
		c := cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: url}
		if len(hashes) > 0 {
			c.Hashes = &hashes
		}
		return c
	}
	parts := []cdx.Component{library("golang", "std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		parts = append(parts, library("golang", m.Path, m.Version, hashes(cdx.HashAlgoSHA256, "h1:", m.Sum)...))
	}
	packages, err := b.dashboard()
	if err != nil {
		return nil, err
	}
	for _, p := range packages {
		parts = append(parts, library("npm", p.name, p.Version, hashes(cdx.HashAlgoSHA512, "sha512-", p.Integrity)...))
	}
	var needs []string
	for _, p := range parts {
		needs = append(needs, p.BOMRef)
	}
	bom := cdx.NewBOM()
	bom.SerialNumber = serial(main.PackageURL + " " + b.commit)
	bom.Metadata = &cdx.Metadata{
		Timestamp: b.date.Format(time.RFC3339), Component: &main,
		Lifecycles: &[]cdx.Lifecycle{{Phase: cdx.LifecyclePhaseBuild}},
	}
	bom.Components = &parts
	bom.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &needs}}
	var out bytes.Buffer
	err = cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return out.Bytes(), err
}

// hashes returns a hash that a lock file has in base64, or none.
func hashes(of cdx.HashAlgorithm, prefix, text string) []cdx.Hash {
	text, ok := strings.CutPrefix(text, prefix)
	sum, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil {
		return nil
	}
	return []cdx.Hash{{Algorithm: of, Value: hex.EncodeToString(sum)}}
}

// serial returns a UUID that is always the same for a name (version 8, RFC 9562).
func serial(name string) string {
	u := sha256.Sum256([]byte(name))
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// npmPackage is a package that the dashboard is built from.
type npmPackage struct {
	name      string
	Version   string `json:"version"`
	Integrity string `json:"integrity"`
}

// imported finds the packages that a source file of the dashboard imports, without the path in them.
var imported = regexp.MustCompile(`(?:from|import) '((?:@[\w.-]+/)?[a-z][\w.-]*)[/']`)

// dashboard returns the packages that the dashboard imports, at the versions of its lock file.
func (b *built) dashboard() ([]npmPackage, error) {
	var lock struct {
		Packages map[string]npmPackage `json:"packages"`
	}
	if err := json.Unmarshal(b.mustRead("web/package-lock.json"), &lock); err != nil {
		return nil, fmt.Errorf("web/package-lock.json: %w", err)
	}
	var out []npmPackage
	err := filepath.WalkDir(filepath.Join(b.root, "web/src"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, ".test.ts") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range imported.FindAllSubmatch(text, -1) {
			p, ok := lock.Packages["node_modules/"+string(m[1])]
			p.name = string(m[1])
			if !slices.Contains(out, p) && p.name != "vitest" && ok {
				out = append(out, p)
			}
		}
		return nil
	})
	slices.SortFunc(out, func(a, b npmPackage) int { return strings.Compare(a.name, b.name) })
	return out, err
}
