package main_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/httplimit"
)

// adminServer is a server with an admin API.
type adminServer struct {
	*server
	http, admin string
	environ     []string
}

// serveAdmin starts a server with a database, or with a config file.
func serveAdmin(t *testing.T, config string) *adminServer {
	t.Helper()
	dir := t.TempDir()
	if config == "" {
		config = filepath.Join(dir, "stint.toml")
		text := fmt.Sprintf("[server]\ndatabase = \"sqlite:%s\"\nlog_format = \"text\"\ndrain_delay = \"0\"\n", filepath.Join(dir, "stint.db")) +
			"[server.catalog]\nlast_good = \"none\"\n[server.record]\nspool = \"none\"\nsample_every = 0\n"
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := &adminServer{server: serveIn(t, []string{"STINT_SERVER_ADMIN_TOKEN=" + adminToken, "STINT_SERVER_LOG_FORMAT=text", "STINT_SERVER_CATALOG_NODE=one"}, "--config", config)}
	h.http = h.logs(t, "listener=http url=(.*)")
	h.admin = h.logs(t, "listener=admin url=(.*)")
	h.logs(t, "msg=(ready) ")
	h.environ = []string{"STINT_SERVER=" + h.admin, "STINT_TOKEN=" + adminToken, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir}
	return h
}

// end stops the server.
func (h *adminServer) end(t *testing.T) {
	t.Helper()
	h.signal(t, syscall.SIGTERM)
	if code := h.ends(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// words splits a line like a shell, with single quotes only.
func words(line string) []string {
	var out []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			out[len(out)-1] += part
			continue
		}
		fields := strings.Fields(part)
		if i > 0 && len(fields) > 0 && !strings.HasPrefix(part, " ") {
			out[len(out)-1] += fields[0]
			fields = fields[1:]
		}
		out = append(out, fields...)
		if strings.HasSuffix(part, " ") && i+1 < len(strings.Split(line, "'")) {
			out = append(out, "")
		}
	}
	return out
}

var (
	keyText   = regexp.MustCompile(`stint_(admin_)?([A-Za-z0-9]{16})_[A-Za-z0-9]+`)
	durations = regexp.MustCompile(`(?m)  (\d+h)?(\d+m)?\d+(\.\d+)?s( +|$)|\bin \d+(\.\d+)? (min|s|h|d)\b`)
	afters    = regexp.MustCompile(`(_after": )[0-9.]+`)
	stamps    = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z *`)
)

// TestServer runs commands against a server, step by step, and compares their output.
func TestServer(t *testing.T) {
	t.Parallel()
	h := serveAdmin(t, "")
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	search := file("search.toml", "name = \"search\"\ncount_by = [\"user\"]\nlimits = [{ name = \"requests\", limit = \"5/1h\" }]\n\n[match]\npaths = [\"/search/**\"]\n")
	bad := file("bad.toml", "name = \"search\"\ncuont_by = [\"user\"]\nlimits = [{ name = \"requests\", limit = 5 }]\n")
	inJSON := file("ip.json", `{"name": "ip", "count_by": ["ip"], "limits": [{"name": "per-ip", "limit": "3/1h"}]}`)
	whole := file("whole.toml", "[[rules]]\nname = \"search\"\naction = \"block\"\n")
	wrong := file("wrong.toml", "[[rules]]\nname = \"other\"\n\n[[rules.limits]]\nname = \"x\"\nlimit = \"5/fortnight\"\n")
	var got strings.Builder
	key, token := "", ""
	for _, line := range []string{
		"status", "status -o csv", "nodes", "nodes -o json", "regions",

		"rules create", "rules create login --limit 5/1m --limit burst=2/1s --count-by ip,user --path /login --method POST --group g --priority 7 --dry-run",
		"rules create -f " + search, "rules create -f " + search, "rules create -f " + bad, "rules create -f " + whole,
		"rules create -f " + inJSON + " action=log_only", "rules create x limits=5/1m", "rules create x limits[0].limit=5/1m -o json", "rules create x --priority high",
		"rules list", "rules list --action log_only -o json", "rules list -o csv", "rules show search", "rules show search -o json", "rules show none",
		"rules set search limits[0].limit=10/1h group=g enabled=true", "rules set search group= enabled=", "rules set search limits[0].limit=10/1h",
		"rules set search limits[0].limit=20/1h --dry-run", "rules set search limits[0].limit=20/fortnight", "rules set search priority=high", "rules set search actoin=block",
		"rules set search limits[2].limit=1/1s", "rules set search limits.x=1/1s", "rules set search name.x=1", "rules set search group", "rules set search",
		"rules set search action=block --version 1", "rules set search name=other", "rules set search -f " + search, "rules set search match.headers.X-App=mobile match.paths=/search,/find -o json",
		"rules disable search ip", "rules enable search", "rules enable ip --dry-run", "rules history search --limit 2", "rules history search --limit 1 -o csv",
		"rules validate -f " + search, "rules validate search limits[0].limit=0", "rules validate search limits[0].limit=0 -o json", "rules validate", "rules preview search --since 24h", "rules preview search group=x -o csv", "rules preview search --since 1x",
		"rules order ip search", "rules order ip none", "rules order ip", "rules order search ip --dry-run",
		"rules set search limits[0].lease=1s limits[0].split=2", "rules set search limits[0].lease=1ms limits[0].split=9", "rules list", "rules show search",
		"explain /search --user alice -H 'X-App: mobile' --rules", "rules set search limits[0].lease= limits[0].split=",
		"rules set search regions=gossip credit=0", "rules set search regions=gosip credit=99 weights=fixed", "rules validate search regions=gossip credit=99", "rules set search regions=gossip credit=5 on_credit=deny",
		"rules delete search", "rules delete search none --yes", "rules delete search --dry-run",

		"tiers create premium --display-name Premium --price '49 EUR a month' --limit requests=2/1h", "tiers create free limits.requests=1/1h", "tiers create x --limit 5", "tiers list", "tiers show premium",
		"tenants create acme --name 'Acme Inc.' --tier free", "tenants list -o csv", "tenants set acme name= tier=premium",
		"users create alice --tenant acme --tier premium --limit requests=3/1h", "users create bob blocked.reason=fraud blocked.until=2030-01-01T00:00:00Z", "users create alice", "users create carol tier=gold",
		"users list", "users list --tier premium -o json", "users list --blocked true", "users list --limit 1", "users list --limit -1", "users list --prefix b -o csv", "users set alice limits.requests={\"limit\":\"4/1h\",\"until\":\"2030-01-01T00:00:00Z\"}",
		"keys create --user alice --name 'mobile app' --until 2030-01-01T00:00:00Z", "keys create --user none", "keys create --for 1x", "keys list", "keys show $KEY", "keys set $KEY disabled=true", "keys revoke $KEY", "keys revoke $KEY --dry-run", "keys revoke $KEY --yes", "keys list -o csv", "keys set $KEY name=x revoked=", "keys delete $KEY --yes",

		"rules set search match.headers= match.paths=/search",
		"check /search --user alice --ip 192.0.2.1 --take --http $HTTP", "check /search --user alice --ip 192.0.2.1 --take --http $HTTP",
		"usage user:alice", "usage 192.0.2.1 -o json", "usage user:bob", "usage key:none", "usage alice", "explain GET /search --user alice", "explain /search --ip 192.0.2.1 --rules", "explain POST /search --user bob -o json", "explain search", "explain", "explain 0199a3c4-7b1e", "explain 0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00", "explain 0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00 --user alice",
		"reset user:alice --rule search", "reset user:alice", "reset user:alice --yes", "usage user:alice -o csv",

		"ban add ip:198.51.100.0/24 --reason scraping --until 2030-01-01T00:00:00Z", "ban add user:x --for 1x", "ban add user:x --until soon", "ban add user:x --for 1h --until 2030-01-01T00:00:00Z", "ban add x", "ban list", "ban list -o csv",
		"explain /x --ip 198.51.100.7", "ban remove ip:198.51.100.0/24", "ban remove ip:198.51.100.0/24", "exempt add user:alice", "exempt list", "exempt list -o json", "usage user:alice", "exempt remove user:alice",

		"changes list --limit 3", "changes list --kind rule --id search --limit 2 -o json", "changes list --by no-one", "changes show 2", "changes show 1 -o csv", "changes show 999", "changes show x",
		"changes revert 1 --dry-run", "changes revert 1 --force", "changes revert 1 --force --dry-run -o json", "changes revert 1 --kind rule", "changes list --kind ban --limit 1",

		"tokens create alice", "tokens create alice --role owner", "tokens create a --user alice --role viewer", "tokens create a --user nobody", "tokens list --sort nme", "me show", "users list --sort -id", "users list --sort nme", "rules list --sort -priority", "rules list --sort size", "tokens create --role viewer", "tokens list", "tokens revoke $TOKEN", "tokens revoke $TOKEN --yes", "tokens revoke $TOKEN --yes", "tokens create temp --role operator --until 2030-01-01T00:00:00Z -o json",

		"export", "export --without-users -o json", "apply -f testdata/catalog.toml --dry-run", "apply -f testdata/catalog.toml --prune", "apply -f testdata/catalog.toml --prune --yes", "apply -f testdata/catalog.toml --actor me", "apply -f " + wrong,

		"events list --user no-one", "events top", "events series", "events violations -o json", "events clients", "events list --outcome deneid", "events list --from 2024-05-01T00:00:00Z --to 2024-04-01T00:00:00Z", "events export --user no-one", "events export --user no-one -o json",
	} {
		args := words(strings.NewReplacer("$KEY", key, "$TOKEN", token, "$HTTP", h.http).Replace(line))
		text := transcript(t, line, args, h.environ)
		if m := keyText.FindStringSubmatch(text); m != nil && m[1] == "" && key == "" {
			key = m[2]
		} else if m != nil && m[1] != "" && token == "" {
			token = m[2]
		}
		got.WriteString(text)
	}
	compare(t, "testdata/server.txt", h.still(got.String(), dir, key, token))
	h.end(t)
}

// still replaces what differs between runs.
func (h *adminServer) still(text, dir, key, token string) string {
	text = strings.NewReplacer(h.http, "http://HTTP", h.admin, "http://ADMIN", dir+"/", "/DIR/", key, "KEYKEYKEYKEYKEYK", token, "TOKENTOKENTOKENT").Replace(text)
	text = keyText.ReplaceAllString(text, "stint_${1}${2}_SECRET")
	text = regexp.MustCompile(`("?\bid"?[:,] ?"|(?m:^))[A-Z2-7]{26}\b`).ReplaceAllString(text, "${1}NODE")
	text = regexp.MustCompile(`stint_(admin_)?[A-Za-z0-9]{16}_SECRET|"id": "[a-z2-7]{16}"|stint_KEYK|stint_[A-Za-z0-9]{4}\b`).ReplaceAllStringFunc(text, func(s string) string {
		if strings.HasPrefix(s, `"id"`) {
			return `"id": "ID"`
		}
		return "stint_..."
	})
	text = regexp.MustCompile(`(requests_per_second|refused_per_second|p99_us)": [0-9.]+`).ReplaceAllString(text, `$1": N`)
	text = stamps.ReplaceAllStringFunc(text, func(when string) string {
		if strings.HasPrefix(when, "2030-") || strings.HasPrefix(when, "2024-") || strings.HasPrefix(when, "2026-01-31T12:00:00Z") {
			return when // from a command, or a message about it
		}
		return "TIME "
	})
	text = regexp.MustCompile(`, \d+ requests so far, the last at TIME `).ReplaceAllString(text, "") // known only after some seconds
	text = regexp.MustCompile(`RESETS IN +EFFECT`).ReplaceAllString(text, "RESETS IN  EFFECT")
	return afters.ReplaceAllString(durations.ReplaceAllString(text, "  A WHILE "), "${1}N")
}

// TestServerFile runs commands against a server whose rules are in a file, and so cannot be changed.
func TestServerFile(t *testing.T) {
	t.Parallel()
	h := serveAdmin(t, file)
	var got strings.Builder
	for _, line := range []string{
		"status", "rules list", "rules show per-user", "users list", "tiers show premium", "rules set per-user group=x", "rules create x --limit 5/1m", "changes list", "events list",
		"explain /search --user alice", "usage user:alice", "rules validate per-user limits[0].limit=0", "tokens create x", "export",
	} {
		got.WriteString(transcript(t, line, words(line), h.environ))
	}
	compare(t, "testdata/server-file.txt", h.still(got.String(), "no dir", "no key", "no token"))
	h.end(t)
}

// TestEdit edits a rule that has problems at first, and is changed by someone else in the meantime.
func TestEdit(t *testing.T) {
	t.Parallel()
	h := serveAdmin(t, "")
	run := func(editor, line string) string {
		return transcript(t, line, words(line), append(h.environ, "EDITOR="+editor))
	}
	dir := t.TempDir()
	saved := filepath.Join(dir, "saved")
	editor := filepath.Join(dir, "editor")
	other := fmt.Sprintf("%s=1 %q rules set search group=theirs > /dev/null", asStint, os.Args[0])
	script := `#!/bin/sh
echo "-- opened --"; cat "$1"
n=$(cat ` + saved + ` 2>/dev/null || echo 0); n=$((n+1)); echo $n > ` + saved + `
case $n in
1) sed -i 's,5/1m,5/fortnight,' "$1" ;;
2) sed -i 's,5/fortnight,7/1m,; s/^count_by/cuont_by/' "$1" ;;
3) sed -i 's/^cuont_by/count_by/' "$1"; ` + other + ` ;;
esac
`
	if err := os.WriteFile(editor, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	got := run("", "rules create search --limit 5/1m --count-by user")
	got += run(editor, "rules edit search")
	got += run("true", "rules edit search")
	got += run("false", "rules edit search")
	got += run("truncate -s 0", "rules edit search")
	got += run("sed -i 's/^name = .search.*/name = 3/'", "rules edit search")
	got += run("true", "rules edit none")
	kept := regexp.MustCompile(`\S*/stint-rule-\d+\.toml`).FindString(got)
	text, err := os.ReadFile(kept)
	if err != nil || !strings.Contains(string(text), "\nname = 3\n") {
		t.Errorf("the text is lost: %s, %v", text, err)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(kept), "stint-rule-*"))
	if err != nil || len(left) != 1 {
		t.Errorf("files were not removed: %v, %v", left, err)
	}
	compare(t, "testdata/edit.txt", strings.ReplaceAll(h.still(got, dir, "no key", "no token"), kept, "/TMP/stint-rule.toml"))
	h.end(t)
}

// TestFollowServer follows the decisions and the usage of a server.
func TestFollowServer(t *testing.T) {
	t.Parallel()
	h := serveAdmin(t, file)
	for _, args := range [][]string{{"events", "follow", "--outcome", "blocked"}, {"usage", "user:alice", "--follow"}} {
		c := exec.CommandContext(t.Context(), os.Args[0], args...)
		c.Env = append(append(os.Environ(), asStint+"=1"), h.environ...)
		var errs bytes.Buffer
		c.Stderr = &errs
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		// Send requests all the time: there is no signal that the command is listening.
		asking, enough := context.WithCancel(t.Context())
		var asked sync.WaitGroup
		asked.Go(func() {
			for asking.Err() == nil {
				var said bytes.Buffer
				stint.Run(asking, []string{"check", "/internal/x", "--user", "alice", "--take", "--http", h.http}, nil, &said, &said)
			}
		})
		lines := bufio.NewScanner(out)
		for wanted := 2; wanted > 0 && lines.Scan(); {
			if strings.Contains(lines.Text(), "user:alice") {
				wanted--
			}
		}
		enough()
		asked.Wait()
		if err := c.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() {
		}
		if err := c.Wait(); err != nil || strings.Contains(errs.String(), "try:") {
			t.Errorf("%v: %v, %s", args, err, errs.String())
		}
	}
	h.end(t)
}

// TestCompletionServer completes names with those of a server.
func TestCompletionServer(t *testing.T) {
	t.Parallel()
	h := serveAdmin(t, file)
	for line, want := range map[string]string{
		"__complete rules show pe":           "per-user\n",
		"__complete events list --rule sea":  "search\n",
		"__complete users show al":           "alice\n",
		"__complete usage user:al":           "user:alice\n",
		"__complete usage us":                "user:\n",
		"__complete rules create x --tier p": "premium\n",
		"__complete rules list --output j":   "table\njson\n",
	} {
		var out, errs bytes.Buffer
		if code := stint.Run(t.Context(), strings.Fields(line), h.environ, &out, &errs); code != 0 || !strings.HasPrefix(out.String(), want) {
			t.Errorf("%s: %d, %s %s", line, code, out.String(), errs.String())
		}
	}
	var out, errs bytes.Buffer
	if code := stint.Run(t.Context(), []string{"__complete", "rules", "show", "pe"}, []string{"STINT_SERVER=http://127.0.0.1:1"}, &out, &errs); code != 0 || !strings.HasPrefix(out.String(), ":4") {
		t.Errorf("%d, %s %s", code, out.String(), errs.String())
	}
	h.end(t)
}

// TestClient checks TLS, and that only the right server gets the token.
func TestClient(t *testing.T) {
	t.Parallel()
	var seen []string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = append(seen, r.Header.Get("Authorization")) }))
	t.Cleanup(other.Close)
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer right":
			httplimit.Problem{Status: http.StatusUnauthorized, Detail: "this is not a token"}.Write(w, r)
		case r.URL.Path == "/below/admin/v1/status":
			http.Redirect(w, r, other.URL, http.StatusFound)
		case r.URL.EscapedPath() == "/admin/v1/rules/a%2Fb%0A":
			fmt.Fprint(w, `{"id": "a/b\n", "version": 1, "updated_by": "\u001b[2J", "value": {"name": "a/b\n"}}`)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca := write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	right := write("right", "right\n")
	for _, c := range []struct {
		args, environ string
		code          int
		out, err      string
	}{
		{"status --server " + s.URL, "", 2, "", "certificate"},
		{"status --server " + s.URL + " --ca-file " + ca, "", 2, "", "STINT_TOKEN"},
		{"status --server " + s.URL + " --ca-file " + ca, "STINT_TOKEN=wrong", 2, "", "another token"},
		{"status --server " + s.URL + " --ca-file " + ca + " --token-file " + right, "STINT_TOKEN=wrong", 2, "", "404"},
		{"status --server " + s.URL + " --ca-file " + ca, "STINT_TOKEN_FILE=" + right, 2, "", "404"},
		{"status --server " + s.URL + " --ca-file " + ca, "STINT_TOKEN=two words", 2, "", "a token and nothing else"},
		{"status --server " + s.URL + "/below --ca-file " + ca, "STINT_TOKEN=right", 2, "", "302"},
		{"rules show a/b\n --server " + s.URL + " --ca-file " + ca, "STINT_TOKEN=right", 0, `# rule "a/b\n", version 1, changed - by "\x1b[2J"`, ""},
	} {
		var out, errs bytes.Buffer
		code := stint.Run(t.Context(), strings.Split(c.args, " "), []string{c.environ}, &out, &errs)
		if code != c.code || !strings.Contains(out.String(), c.out) || !strings.Contains(errs.String(), c.err) {
			t.Errorf("%s %s: exit code %d, %s%s", c.environ, c.args, code, out.String(), errs.String())
		}
	}
	if len(seen) > 0 {
		t.Errorf("another server was called, with %v", seen)
	}
}
