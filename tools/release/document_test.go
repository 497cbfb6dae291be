package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documented returns the commands that docs/install.md shows.
func documented(t *testing.T) (lines []string) {
	t.Helper()
	for _, block := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(readFile(t, "../../docs/install.md"), -1) {
		lines = append(lines, strings.Split(strings.TrimSpace(block[1]), "\n")...)
	}
	return lines
}

// TestInstallDocument checks that the files, images, targets and options that docs/install.md
// names exist. The tests of the packages and of the image do what its commands do; TestImage runs
// those of curl.
func TestInstallDocument(t *testing.T) {
	version := tree(t).version
	dockerfile, makefile := readFile(t, "../../Dockerfile"), readFile(t, "../../Makefile")
	_, image, _ := imageHere(t)
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	has := func(line, text, what string) {
		if !strings.Contains(text, what) {
			t.Errorf("%s: there is no %s", line, what)
		}
	}
	for _, line := range documented(t) {
		words := strings.Fields(strings.TrimPrefix(line, "sudo "))
		last := words[len(words)-1]
		switch command := words[0] + " " + words[1]; command {
		case "apt-get install", "rpm --install", "docker load", "tar -xzf":
			if !slices.Contains(names(version), strings.TrimPrefix(last, "./")) {
				t.Errorf("%s: a release of %s has no such file", line, version)
			}
		case "docker run":
			if last != "stint:"+version {
				t.Errorf("%s: want stint:%s", line, version)
			}
			for _, m := range regexp.MustCompile(`-p \d+:(\d+)`).FindAllStringSubmatch(line, -1) {
				if _, ok := config.Config.ExposedPorts[m[1]+"/tcp"]; !ok {
					t.Errorf("%s: the image has no port %s", line, m[1])
				}
			}
			for _, m := range regexp.MustCompile(`-v [^: ]+:([^: ]+)`).FindAllStringSubmatch(line, -1) {
				if _, ok := config.Config.Volumes[m[1]]; !ok && !slices.Contains(config.Config.Env, "STINT_CONFIG="+m[1]) {
					t.Errorf("%s: the image does not use %s", line, m[1])
				}
			}
		case "docker build":
			has(line, dockerfile, "\nARG VERSION")
		case "make build", "make install", "make release":
			has(line, makefile, "\n"+words[1]+":")
		case "go install":
			has(line, readFile(t, "../../go.mod"), "module "+strings.TrimSuffix(last, "/cmd/stint@latest")+"\n")
		case "sha256sum --check":
			has(line, sumsFile, last)
		case "install stint_" + version + "_linux_amd64/stint", "systemctl status", "systemctl enable", "stint health", "stint version", "curl -i":
			// TestArchive, TestDeb and TestImage
		default:
			t.Errorf("%s: no test knows this command", line)
		}
	}
}
