package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// debian returns the root of a fresh Debian with systemd, which is not running in it.
func debian(t *testing.T) string {
	t.Helper()
	needsRoot(t)
	mirrors := strings.Fields(command(t, "apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)", "Created-By: Packages"))
	i := slices.Index(mirrors, "main")
	if i < 2 {
		t.Fatalf("apt has no archive of Debian: %q", mirrors)
	}
	root := filepath.Join(t.TempDir(), "debian")
	command(t, "debootstrap", "--variant=minbase", "--include=systemd", mirrors[i-1], root, mirrors[i-2])
	return root
}

// withVersion returns what is built, as if it were of another version.
func withVersion(t *testing.T, version string) *built {
	t.Helper()
	b := *forHere(t)
	s := *b.source
	s.version, b.source = version, &s
	return &b
}

// packed writes a package into a root, and returns its path there.
func packed(t *testing.T, root, format, version string) string {
	t.Helper()
	dir := t.TempDir()
	if err := withVersion(t, version).pack(dir, format, here.arch); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*."+format))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	to := "/" + filepath.Base(found[0])
	command(t, "cp", found[0], root+to)
	return to
}

// unit returns the settings of the installed unit.
func unit(t *testing.T, root string) map[string]string {
	t.Helper()
	settings := map[string]string{}
	for line := range strings.Lines(readFile(t, root, "usr/lib/systemd/system/stint.service")) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			settings[name] = value
		}
	}
	return settings
}

// serviceOf starts the service as systemd would, and waits until it says that it is ready.
func serviceOf(t *testing.T, root string) *jail {
	t.Helper()
	settings := unit(t, root)
	ids := strings.TrimSpace(command(t, "chroot", root, "id", "-u", settings["User"])) + ":" + strings.TrimSpace(command(t, "chroot", root, "id", "-g", settings["Group"]))
	environ := []string{"PATH=/usr/bin", "STATE_DIRECTORY=/var/lib/" + settings["StateDirectory"], "NOTIFY_SOCKET=/run/notify"}
	if file, ok := strings.CutPrefix(settings["EnvironmentFile"], "-"); ok {
		if text, err := os.ReadFile(filepath.Join(root, file)); err == nil {
			environ = append(environ, strings.Fields(string(text))...)
		}
	}
	socket := filepath.Join(root, "run/notify")
	_ = os.Remove(socket) // of the one before
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(socket, 0o777); err != nil {
		t.Fatal(err)
	}
	j := startJail(t, root, "", ids, environ, strings.Fields(settings["ExecStart"])...)
	if err := l.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	message := make([]byte, 4096)
	for {
		n, err := l.Read(message)
		if err != nil {
			t.Fatalf("systemd was not told that it is ready: %v\n%s", err, j.out)
		}
		if strings.Contains(string(message[:n]), "READY=1") {
			return j
		}
	}
}

// TestDeb installs the package on a fresh Debian, gets a 429 from it within a minute, upgrades it,
// removes it, and purges it.
func TestDeb(t *testing.T) {
	root := debian(t)
	in := func(args ...string) string { return command(t, "chroot", append([]string{root}, args...)...) }
	dpkg := func(args ...string) string {
		return in(append([]string{"env", "DEBIAN_FRONTEND=noninteractive", "dpkg", "--force-unsafe-io"}, args...)...)
	}
	exists := func(path string) bool { _, err := os.Lstat(filepath.Join(root, path)); return err == nil }
	old, next := packed(t, root, "deb", "0.1.0"), packed(t, root, "deb", "0.1.1")

	begin := time.Now()
	dpkg("--install", old)
	for path, want := range map[string]string{
		"/usr/bin/stint": "755 root:root", "/etc/stint/stint.toml": "640 root:stint", "/var/lib/stint": "750 stint:stint",
		"/usr/lib/systemd/system/stint.service": "644 root:root", "/usr/share/bash-completion/completions/stint": "644 root:root",
	} {
		if got := strings.TrimSpace(in("stat", "-c", "%a %U:%G", path)); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	if out := dpkg("--verify", "stint"); out != "" {
		t.Errorf("the installed files differ from the package:\n%s", out)
	}
	if got := strings.TrimSpace(in("systemctl", "is-enabled", "stint.service")); got != "enabled" {
		t.Errorf("the unit is %s", got)
	}
	checkUnit(t, root)

	j := serviceOf(t, root)
	status, asked := "", 0
	for status != "429" && time.Since(begin) < time.Minute {
		status, _ = j.curl(t, "-X", "POST", "-H", "X-Forwarded-Method: POST", "-H", "X-Forwarded-Uri: /login", "http://127.0.0.1:8080/v1/forward-auth")
		asked++
	}
	t.Logf("the first 429 came %v after the package, with request %d", time.Since(begin).Round(time.Millisecond), asked)
	if status != "429" || asked != 6 {
		t.Errorf("request %d was answered with %s; five pass", asked, status)
	}
	if code, out := j.run(t, "/usr/bin/stint", "health", "--config", "/etc/stint/stint.toml"); code != 0 {
		t.Errorf("health: %d, %s", code, out)
	}
	j.stop(t)

	// The settings that an administrator makes: a database in the state directory.
	file := filepath.Join(root, "etc/stint/stint.toml")
	ours := "# ours\n[server.admin]\naddress = \"127.0.0.1:9090\"\n"
	if err := os.WriteFile(file, []byte(ours), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc/stint/stint.env"), []byte("STINT_SERVER_DATABASE=sqlite:/var/lib/stint/stint.db\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	j = serviceOf(t, root)
	if code, out := j.run(t, "/usr/bin/stint", "tiers", "create", "gold"); code != 0 {
		t.Errorf("%d, %s", code, out)
	}
	j.stop(t)

	dpkg("--install", next)
	if got := readFile(t, file); got != ours {
		t.Errorf("an upgrade has changed the configuration:\n%s", got)
	}
	j = serviceOf(t, root)
	if code, out := j.run(t, "/usr/bin/stint", "tiers", "list"); code != 0 || !strings.Contains(out, "gold") {
		t.Errorf("after the upgrade: %d, %s", code, out)
	}
	j.stop(t)

	// An administrator who has disabled it finds it disabled.
	in("systemctl", "disable", "stint.service")
	dpkg("--install", next)
	if out, _ := exec.Command("chroot", root, "systemctl", "is-enabled", "stint.service").Output(); strings.TrimSpace(string(out)) != "disabled" {
		t.Errorf("after an upgrade, the unit is %s", out)
	}

	dpkg("--remove", "stint")
	for path, want := range map[string]bool{"/usr/bin/stint": false, "/usr/share/doc/stint": false, "/etc/stint/stint.toml": true, "/etc/stint/stint.env": true, "/var/lib/stint/stint.db": true} {
		if exists(path) != want {
			t.Errorf("after the removal, %s exists: %v", path, !want)
		}
	}
	in("id", "stint")
	dpkg("--install", next)
	if got := readFile(t, file); got != ours {
		t.Errorf("installing it again has changed the configuration:\n%s", got)
	}
	dpkg("--remove", "stint")
	dpkg("--purge", "stint")
	for _, path := range []string{"/etc/stint", "/var/lib/stint", "/usr/bin/stint", "/etc/systemd/system/stint.service", "/etc/systemd/system/multi-user.target.wants/stint.service"} {
		if exists(path) {
			t.Errorf("%s is there after the purge", path)
		}
	}
	for _, file := range []string{"etc/passwd", "etc/group"} {
		if strings.Contains(readFile(t, root, file), "stint") {
			t.Errorf("/%s has stint after the purge", file)
		}
	}
	testUpgradeRestarts(t, root, old, next)
	testRPM(t, root)
}

// checkUnit lets systemd check the unit, and how exposed the service is.
func checkUnit(t *testing.T, root string) {
	t.Helper()
	const path, most = "/usr/lib/systemd/system/stint.service", 15 // of 100
	if out := command(t, "chroot", root, "systemd-analyze", "verify", "--man=no", path); strings.Contains(out, "stint.service") {
		t.Errorf("systemd-analyze verify:\n%s", out)
	}
	out := command(t, "chroot", root, "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold="+strconv.Itoa(most), path)
	score := regexp.MustCompile(`exposure level.*: ([0-9.]+)`).FindStringSubmatch(out)
	if score == nil {
		t.Fatalf("there is no score:\n%s", out)
	}
	t.Logf("the exposure of the unit is %s of 10", score[1])
}

// testUpgradeRestarts records what the scripts of the package ask of systemd where it runs. What
// needs no running systemd is done.
func testUpgradeRestarts(t *testing.T, root, old, next string) {
	t.Helper()
	const record = "#!/bin/sh\necho \"$*\" >>/run/asked\ncase \"$*\" in\n*preset*) exec systemctl.real \"$@\" ;;\n*is-enabled*) exec systemctl.real --root=/ is-enabled stint.service ;;\n*is-active*) exit 3 ;;\nesac\n"
	command(t, "mv", root+"/usr/bin/systemctl", root+"/usr/bin/systemctl.real")
	if err := os.WriteFile(root+"/usr/bin/systemctl", []byte(record), 0o755); err != nil {
		t.Fatal(err)
	}
	command(t, "mkdir", "-p", root+"/run/systemd/system")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--install", old}, "start stint.service"},
		{[]string{"--install", next}, "try-restart stint.service"},
		{[]string{"--remove", "stint"}, "stop stint.service"},
		{[]string{"--purge", "stint"}, "daemon-reload"},
	} {
		_ = os.Remove(root + "/run/asked")
		command(t, "chroot", append([]string{root, "dpkg", "--force-unsafe-io"}, c.args...)...)
		asked := readFile(t, root, "run/asked")
		if !regexp.MustCompile(`(?m)(^| )` + c.want + `$`).MatchString(asked) {
			t.Errorf("dpkg %s asks systemd for\n%s, want %s", c.args, asked, c.want)
		}
		if c.args[1] == next && strings.Contains(asked, "\nstop ") {
			t.Errorf("an upgrade stops the service:\n%s", asked)
		}
	}
	command(t, "mv", root+"/usr/bin/systemctl.real", root+"/usr/bin/systemctl")
	command(t, "rm", "-r", root+"/run/systemd/system")
}

// testRPM does the same with the other package; its scripts run in the same root.
func testRPM(t *testing.T, root string) {
	t.Helper()
	old, next := packed(t, root, "rpm", "0.1.0"), packed(t, root, "rpm", "0.1.1")
	if out := command(t, "rpm", "--checksig", "--nosignature", root+old); !strings.Contains(out, "digests OK") {
		t.Error(out)
	}
	for query, want := range map[string]string{
		"--info": "License     : Apache-2.0", "--configfiles": "/etc/stint/stint.toml", "--requires": "/usr/sbin/useradd", "--list": "/usr/share/zsh/site-functions/_stint",
	} {
		if out := command(t, "rpm", "--query", "--package", query, root+old); !strings.Contains(out, want) {
			t.Errorf("rpm --query %s has no %q:\n%s", query, want, out)
		}
	}
	rpm := func(args ...string) { command(t, "rpm", append([]string{"--root", root, "--nodeps"}, args...)...) }
	rpm("--install", root+old)
	for path, want := range map[string]string{"/etc/stint/stint.toml": "640 root:stint", "/var/lib/stint": "750 stint:stint"} {
		if got := strings.TrimSpace(command(t, "chroot", root, "stat", "-c", "%a %U:%G", path)); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	j := serviceOf(t, root)
	if status, _ := j.curl(t, "http://127.0.0.1:9090/readyz"); status != "200" {
		t.Errorf("/readyz answers %s", status)
	}
	j.stop(t)
	file := filepath.Join(root, "etc/stint/stint.toml")
	if err := os.WriteFile(file, []byte("# ours\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	rpm("--upgrade", root+next)
	if got := readFile(t, file); got != "# ours\n" {
		t.Errorf("an upgrade has changed the configuration:\n%s", got)
	}
	rpm("--erase", "stint")
	for path, want := range map[string]bool{"usr/bin/stint": false, "etc/stint/stint.toml.rpmsave": true, "var/lib/stint": true} {
		if _, err := os.Stat(filepath.Join(root, path)); (err == nil) != want {
			t.Errorf("after the removal, /%s exists: %v", path, !want)
		}
	}
	if out := command(t, "chroot", root, "id", "stint"); !strings.Contains(out, "stint") {
		t.Error(fmt.Sprint("the user is gone: ", out))
	}
}
