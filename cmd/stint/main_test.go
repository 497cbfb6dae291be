package main_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

var update = flag.Bool("update", false, "write the output of commands to testdata")

// asStint is the environment variable that makes the test binary run stint.
const asStint = "BE_STINT"

func TestMain(m *testing.M) {
	if os.Getenv(asStint) != "" {
		os.Exit(stint.Main(context.Background(), os.Args, os.Environ(), os.Stdout, os.Stderr))
	}
	defer testpostgres.StopShared()
	m.Run()
}

const file = "testdata/stint.toml"

// corpus has configurations of other programs.
const corpus = "../../internal/control/importer/testdata/corpus/"

// asEnvoy is an environment of envoyproxy/ratelimit.
var asEnvoy = []string{"REDIS_URL=redis:6379", "REDIS_AUTH=me:hunter2", "RUNTIME_ROOT=testdata", "RUNTIME_APPDIRECTORY=envoy", "LOCAL_CACHE_SIZE_IN_BYTES=4096", "USE_STATSD=true", "STATSD_HOST=statsd"}

// answers are the responses of a decision API, by the path of the request.
var answers = map[string]string{
	"/search": `{"allowed":true,"outcome":"allowed","rule":"search","limit":5,"remaining":4,"reset_after":12,"retry_after":0,` +
		`"decision_id":"019b7709-b400-7cf5-a3d6-0e31d5b38a17","limits":[` +
		`{"rule":"search","endpoint":"/search","name":"search","limit":"5/1m","cost":1,"allowed":true,"max":5,"remaining":4,"reset_after":12,"retry_after":0,"shadow":false},` +
		`{"rule":"tried","endpoint":"","name":"less","limit":"1/1m","cost":1,"allowed":false,"max":1,"remaining":0,"reset_after":58.5,"retry_after":58.5,"shadow":true}]}`,
	"/busy": `{"allowed":false,"outcome":"denied","rule":"search","limit":5,"remaining":0,"reset_after":60,"retry_after":12,"status":429,` +
		`"reason":"The limit search (5/1m) is used up. Try again in 12 s.","decision_id":"019b7709-b400-7cf5-a3d6-0e31d5b38a17","limits":[` +
		`{"rule":"search","endpoint":"/search","name":"search","limit":"5/1m","cost":1,"allowed":false,"max":5,"remaining":0,"reset_after":60,"retry_after":12,"shadow":false}]}`,
	"/blocked": `{"allowed":false,"outcome":"blocked","rule":"internal","retry_after":null,"status":403,"reason":"This is not for you.",` +
		`"decision_id":"019b7709-b400-7cf5-a3d6-0e31d5b38a17","limits":[]}`,
	"/free": `{"allowed":true,"outcome":"allowed","retry_after":0,"decision_id":"019b7709-b400-7cf5-a3d6-0e31d5b38a17","limits":[]}`,
}

// oracle is a decision API that always gives the same answers.
func oracle(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		for path, answer := range answers {
			if bytes.Contains(body, []byte(`"path":"`+path+`"`)) {
				fmt.Fprintln(w, answer)
				return
			}
		}
		if bytes.Contains(body, []byte("nonsense")) {
			fmt.Fprintln(w, "nonsense")
			return
		}
		httplimit.Problem{Status: http.StatusBadRequest, Detail: "path: want a path that begins with a slash, such as /search"}.Write(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestOutput compares the output and exit codes of commands with those in testdata.
func TestOutput(t *testing.T) {
	t.Parallel()
	server := oracle(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	port := taken.Addr().String()
	elsewhere := []string{"--http", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--admin", "127.0.0.1:0"}
	for name, c := range map[string]struct {
		args    []string
		environ []string
		code    int
	}{
		"help":               {args: nil},
		"help-serve":         {args: []string{"serve", "--help"}},
		"help-config":        {args: []string{"config", "--help"}},
		"help-check":         {args: []string{"check", "--help"}},
		"help-rules":         {args: []string{"rules"}},
		"help-rules-check":   {args: []string{"rules", "check", "--help"}},
		"help-rules-test":    {args: []string{"rules", "test", "--help"}},
		"rules-test":         {args: []string{"rules", "test", "testdata/good.ruletest", "--coverage"}},
		"rules-test-failed":  {args: []string{"rules", "test", "testdata/good.ruletest", "testdata/failing.ruletest"}, code: 1},
		"rules-test-json":    {args: []string{"rules", "test", "testdata/failing.ruletest", "--coverage", "-o", "json"}, code: 1},
		"rules-test-csv":     {args: []string{"rules", "test", "testdata/failing.ruletest", "--run", "^p", "-o", "csv"}},
		"rules-test-junit":   {args: []string{"rules", "test", "testdata/failing.ruletest", "--junit", "-"}, code: 1},
		"rules-test-bad":     {args: []string{"rules", "test", "testdata/bad.ruletest", "testdata/good.ruletest"}, code: 2},
		"rules-test-names":   {args: []string{"rules", "test", "testdata/good.ruletest", "--config", "testdata/catalog.toml"}, code: 2},
		"rules-test-run":     {args: []string{"rules", "test", "testdata/good.ruletest", "--run", "nothing"}, code: 2},
		"rules-test-regexp":  {args: []string{"rules", "test", "testdata/good.ruletest", "--run", "("}, code: 2},
		"rules-test-config":  {args: []string{"rules", "test", "testdata/good.ruletest", "--config", "testdata/none.toml"}, code: 2},
		"rules-test-missing": {args: []string{"rules", "test", "testdata/none.ruletest"}, code: 2},
		"rules-test-none":    {args: []string{"rules", "test"}, code: 2},
		"help-rules-list":    {args: []string{"rules", "list", "--help"}},
		"help-envoy":         {args: []string{"envoy"}},
		"help-envoy-check":   {args: []string{"envoy", "check", "--help"}},
		"help-import":        {args: []string{"import"}},
		"import-nginx":       {args: []string{"import", "nginx", corpus + "nginx/static-inside.conf", "--nodes", "3"}, code: 1},
		"import-nginx-whole": {args: []string{"import", "nginx", corpus + "nginx/login.conf"}},
		"import-kong-json":   {args: []string{"import", "kong", corpus + "kong/advanced-groups.yaml", "-o", "json"}},
		"import-traefik-csv": {args: []string{"import", "traefik", corpus + "traefik/in-flight.yaml", "-o", "csv"}},
		"import-broken":      {args: []string{"import", "nginx", "testdata/envoy.toml"}, code: 2},
		"import-not-there":   {args: []string{"import", "envoy", "testdata/not-there.yaml"}, code: 2},
		"import-no-host":     {args: []string{"import", "nginx", corpus + "nginx/vhosts.conf", "--host", "other.example.com"}, code: 2},
		"import-nodes":       {args: []string{"import", "nginx", corpus + "nginx/login.conf", "--nodes", "0"}, code: 2},
		"import-no-file":     {args: []string{"import", "nginx"}, code: 2},
		"import-unwritable":  {args: []string{"import", "nginx", corpus + "nginx/login.conf", "--write", "testdata/not-there/stint.toml"}, code: 2},
		"help-envoy-convert": {args: []string{"envoy", "convert", "--help"}},
		"help-apply":         {args: []string{"apply", "--help"}},
		"help-export":        {args: []string{"export", "--help"}},
		"help-migrate":       {args: []string{"migrate"}},
		"help-events":        {args: []string{"events"}},
		"help-exit-codes":    {args: []string{"help", "exit-codes"}},
		"help-output":        {args: []string{"help", "output"}},
		"help-server":        {args: []string{"help", "server"}},
		"help-doctor":        {args: []string{"doctor", "--help"}},
		"help-archive":       {args: []string{"archive"}},
		"help-top":           {args: []string{"top", "--help"}},
		"help-version":       {args: []string{"version", "--help"}},
		"unknown-command":    {args: []string{"sreve"}, code: 2},
		"unknown-rules":      {args: []string{"rules", "chekc"}, code: 2},
		"unknown-envoy":      {args: []string{"envoy", "chekc"}, code: 2},
		"unknown-flag":       {args: []string{"serve", "--confg", "x"}, code: 2},

		"config":           {args: []string{"config"}},
		"config-json":      {args: []string{"config", "-o", "json", "-c", file}},
		"config-origins":   {args: []string{"config", "--set", "server.http.address=:9000"}, environ: []string{"STINT_CONFIG=" + file, "STINT_SERVER_COUNTERS=redis://me:hunter2@redis"}},
		"config-bad":       {args: []string{"config", "--config", "testdata/bad.toml"}, code: 2},
		"config-missing":   {args: []string{"config", "--config", "testdata/none.toml"}, code: 2},
		"config-set":       {args: []string{"config", "--set", "server.replicas"}, code: 2},
		"config-unknown":   {args: []string{"config", "--set", "server.replica=1"}, environ: []string{"STINT_SERVER_HTTP=x"}, code: 2},
		"config-envoy":     {args: []string{"config", "--envoy-env"}, environ: asEnvoy},
		"config-envoy-bad": {args: []string{"config", "--envoy-env"}, environ: []string{"BACKEND_TYPE=memcache", "PORT=http", "RUNTIME_ROOT=testdata"}, code: 2},
		"config-args":      {args: []string{"config", "x"}, code: 2},

		"check-file":        {args: []string{"check", "/search", "--user", "alice", "--config", file}},
		"check-file-group":  {args: []string{"check", "/search", "--user", "bob", "-H", "x-app: mobile"}, environ: []string{"STINT_CONFIG=" + file}},
		"check-file-no-one": {args: []string{"check", "/search", "--ip", "192.0.2.1", "--config", file}},
		"check-file-json":   {args: []string{"check", "/internal/x", "--user", "alice", "--config", file, "-o", "json"}, code: 1},
		"check-file-no":     {args: []string{"check", "/internal/x", "-X", "post", "--user", "alice", "--config", file}, code: 1},
		"check-file-take":   {args: []string{"check", "/", "--take", "--config", file}, code: 2},
		"check-file-bad":    {args: []string{"check", "/", "--config", "testdata/bad.toml"}, code: 2},
		"check-ip":          {args: []string{"check", "/", "--ip", "localhost", "--config", file}, code: 2},
		"check-header":      {args: []string{"check", "/", "-H", "X-App", "--config", file}, code: 2},
		"check-both":        {args: []string{"check", "/", "--config", file, "--http", server}, code: 2},
		"check-args":        {args: []string{"check"}, code: 2},
		"check":             {args: []string{"check", "/search", "--user", "alice", "--http", server}},
		"check-json":        {args: []string{"check", "/search", "--take", "-o", "json", "--http", server + "/"}},
		"check-none":        {args: []string{"check", "/free", "--http", server}},
		"check-no":          {args: []string{"check", "/busy", "--http", server}, code: 1},
		"check-never":       {args: []string{"check", "/blocked", "--http", server}, code: 1},
		"check-refused":     {args: []string{"check", "search", "--http", server}, code: 2},
		"check-nonsense":    {args: []string{"check", "/nonsense", "--http", server}, code: 2},
		"check-not-there":   {args: []string{"check", "/", "--http", "http://127.0.0.1:1"}, code: 2},
		"check-no-url":      {args: []string{"check", "/", "--http", ":"}, code: 2},

		"rules-check":         {args: []string{"rules", "check", file}},
		"rules-check-bad":     {args: []string{"rules", "check", file, "testdata/bad.toml"}, code: 1},
		"rules-check-json":    {args: []string{"rules", "check", "-o", "json", file, "testdata/bad.toml"}, code: 1},
		"rules-check-missing": {args: []string{"rules", "check", "testdata/none.toml"}, code: 2},
		"rules-check-none":    {args: []string{"rules", "check"}, code: 2},
		"rules-check-envoy":   {args: []string{"rules", "check", "testdata/envoy.toml"}},

		"rules-list":       {args: []string{"rules", "list", "--config", "testdata/envoy.toml"}},
		"rules-list-json":  {args: []string{"rules", "list", "--config", "testdata/envoy.toml", "-o", "json"}},
		"rules-list-set":   {args: []string{"rules", "list", "--config", file, "--set", "envoy.config=testdata/envoy/shop.yaml", "--set", "envoy.shadow_mode=true"}},
		"rules-list-envoy": {args: []string{"rules", "list", "--envoy-env"}, environ: asEnvoy},
		"rules-list-bad":   {args: []string{"rules", "list", "--set", "envoy.config=testdata/envoy-bad"}, code: 2},
		"rules-list-args":  {args: []string{"rules", "list", "x"}, code: 2},

		"envoy-check":         {args: []string{"envoy", "check", "testdata/envoy"}},
		"envoy-check-files":   {args: []string{"envoy", "check", "testdata/envoy-files"}},
		"envoy-check-dots":    {args: []string{"envoy", "check", "testdata/envoy-files", "--dot-files", "-o", "json"}},
		"envoy-check-fixed":   {args: []string{"envoy", "check", "testdata/envoy", "--fixed-months"}},
		"envoy-check-json":    {args: []string{"envoy", "check", "testdata/envoy", "-o", "json", "--domain", "shop", "--entry", "path=/files/a"}},
		"envoy-check-bad":     {args: []string{"envoy", "check", "testdata/envoy-bad"}, code: 1},
		"envoy-check-merge":   {args: []string{"envoy", "check", "testdata/envoy-bad", "--merge-domains", "-o", "json"}, code: 1},
		"envoy-check-request": {args: []string{"envoy", "check", "testdata/envoy", "--domain", "shop", "--entry", "generic_key=search", "--entry", "user=bob"}},
		"envoy-check-hits":    {args: []string{"envoy", "check", "testdata/envoy", "--domain", "shop", "--entry", "generic_key=search", "--entry", "user=bob", "--hits", "11"}, code: 1},
		"envoy-check-zero":    {args: []string{"envoy", "check", "testdata/envoy/mail.yml", "--entry", "sender=banned"}, code: 1},
		"envoy-check-free":    {args: []string{"envoy", "check", "testdata/envoy", "--domain", "mail", "--entry", "sender=newsletter", "--hits", "4294967295"}},
		"envoy-check-shadow":  {args: []string{"envoy", "check", "testdata/envoy/shop.yaml", "--entry", "path=/files/a", "--hits", "21"}},
		"envoy-check-none":    {args: []string{"envoy", "check", "testdata/envoy", "--domain", "shop", "--entry", "user=bob"}},
		"envoy-check-domain":  {args: []string{"envoy", "check", "testdata/envoy", "--entry", "user=bob"}, code: 2},
		"envoy-check-unknown": {args: []string{"envoy", "check", "testdata/envoy", "--domain", "shpo", "--entry", "user=bob"}, code: 2},
		"envoy-check-entry":   {args: []string{"envoy", "check", "testdata/envoy", "--entry", "user"}, code: 2},
		"envoy-check-entries": {args: []string{"envoy", "check", "testdata/envoy", "--domain", "shop"}, code: 2},
		"envoy-check-no-hits": {args: []string{"envoy", "check", "testdata/envoy", "--entry", "a=b", "--hits", "0"}, code: 2},
		"envoy-check-missing": {args: []string{"envoy", "check", "testdata/none"}, code: 2},
		"envoy-check-empty":   {args: []string{"envoy", "check", "testdata/envoy-none"}, code: 2},
		"envoy-check-args":    {args: []string{"envoy", "check"}, code: 2},
		"envoy-convert":       {args: []string{"envoy", "convert", "testdata/envoy", "--map", "user=user", "--map", "sender=header:X-Sender"}},
		"envoy-convert-map":   {args: []string{"envoy", "convert", "testdata/envoy", "--map", "user=usr"}, code: 2},
		"envoy-convert-bad":   {args: []string{"envoy", "convert", "testdata/envoy-bad"}, code: 2},
		"envoy-convert-none":  {args: []string{"envoy", "convert", "testdata/none"}, code: 2},

		"serve-taken":      {args: append([]string{"serve", "--config", file}, "--http", port, "--admin", "127.0.0.1:0"), code: 2},
		"serve-taken-demo": {args: append(append([]string{"serve"}, elsewhere...), "--gateway", port), code: 2},
		"serve-envoy":      {args: []string{"serve", "--envoy-env"}, environ: []string{"RUNTIME_ROOT=testdata", "GRPC_CLIENT_TLS_SAN=x", "GRPC_SERVER_USE_TLS=true"}, code: 2},
		"serve-taken-grpc": {args: append(append([]string{"serve", "--set", "envoy.config=testdata/envoy"}, elsewhere...), "--grpc", port), code: 2},
		"serve-bad":        {args: []string{"serve", "--config", "testdata/bad.toml"}, code: 2},
		"serve-missing":    {args: []string{"serve", "--config", "testdata/none.toml"}, code: 2},
		"serve-admin":      {args: []string{"serve", "--admin", ":9090"}, code: 2},

		"apply-none":        {args: []string{"apply"}, code: 2},
		"apply-missing":     {args: []string{"apply", "-f", "testdata/none.toml"}, code: 2},
		"apply-no-database": {args: []string{"apply", "-f", "testdata/catalog.toml", "--config", file}, code: 2},
		"apply-memory":      {args: []string{"apply", "-f", "testdata/catalog.toml", "--database", "sqlite::memory:"}, code: 2},
		"apply-no-file":     {args: []string{"apply", "-f", "testdata/catalog.toml", "--database", "sqlite:testdata/none.db"}, code: 2},
		"apply-not-there":   {args: []string{"apply", "-f", "testdata/catalog.toml", "--database", "postgres://me:hunter2@127.0.0.1:1/stint?sslmode=disable"}, code: 2},
		"export-url":        {args: []string{"export", "--database", "mysql://me:hunter2@127.0.0.1/stint"}, code: 2},

		"events-not-there":   {args: []string{"events", "list", "--server", "http://127.0.0.1:1"}, code: 2},
		"events-both":        {args: []string{"events", "list", "--server", "http://127.0.0.1:1", "--config", file}, code: 2},
		"events-memory":      {args: []string{"events", "list", "--config", file}, code: 2},
		"archive-no-archive": {args: []string{"archive", "list"}, code: 2},

		"version":      {args: []string{"version"}},
		"version-flag": {args: []string{"--version"}},
		"version-json": {args: []string{"version", "-o", "json"}},
		"version-csv":  {args: []string{"version", "-o", "csv"}},
		"version-xml":  {args: []string{"version", "-o", "xml"}, code: 2},
		"config-csv":   {args: []string{"config", "--config", file, "-o", "csv"}},
		"check-csv":    {args: []string{"check", "/search", "--http", server, "-o", "csv"}},

		"rules-check-csv": {args: []string{"rules", "check", "-o", "csv", file, "testdata/bad.toml"}, code: 1},
		"rules-list-csv":  {args: []string{"rules", "list", "--config", "testdata/envoy.toml", "-o", "csv"}},
		"rules-list-only": {args: []string{"rules", "list", "--config", file, "--contains", "er", "--action", "reject", "--enabled"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			code := stint.Run(t.Context(), c.args, c.environ, &out, &errs)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if tail := lastLine(errs.String()); c.code == 2 && !strings.HasPrefix(tail, "try: ") {
				t.Errorf("it ends with %q instead of a hint", tail)
			}
			line := strings.Join(append(append([]string{}, c.environ...), append([]string{"stint"}, c.args...)...), " ")
			got := fmt.Sprintf("$ %s\n%s-- stderr --\n%s-- exit %d --\n", line, out.String(), errs.String(), code)
			got = strings.NewReplacer(server, "http://SERVER", port, "TAKEN", runtime.Version(), "GOVERSION", runtime.GOOS+"/"+runtime.GOARCH, "OS/ARCH").Replace(got)
			got = regexp.MustCompile(`(?m)^time=.*\n`).ReplaceAllString(got, "")                          // logs
			got = regexp.MustCompile(`(?m)^\{"time".*\n`).ReplaceAllString(got, "")                       // logs
			got = regexp.MustCompile(`(dev)( [0-9a-f]{12})?( \(modified\))?`).ReplaceAllString(got, "$1") // of the commit
			compare(t, filepath.Join("testdata", name+".txt"), got)
		})
	}
}

// TestImported checks that a server accepts what is made of all configurations of other programs.
func TestImported(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(corpus + "*/*.*")
	if err != nil || len(files) < 60 {
		t.Fatalf("there are %d files: %v", len(files), err)
	}
	into := filepath.Join(t.TempDir(), "stint.toml")
	for _, file := range files {
		var out bytes.Buffer
		if code := stint.Run(t.Context(), []string{"import", filepath.Base(filepath.Dir(file)), file, "--write", into}, nil, &out, &out); code == 2 {
			t.Errorf("%s: %s", file, &out)
			continue
		}
		if code := stint.Run(t.Context(), []string{"rules", "check", into}, nil, &out, &out); code != 0 {
			t.Errorf("%s: %s", file, &out)
		}
	}
}

// transcript runs a command and returns the command line, the output and the exit code.
func transcript(t *testing.T, line string, args, environ []string) string {
	t.Helper()
	var out, errs bytes.Buffer
	code := stint.Run(t.Context(), args, environ, &out, &errs)
	if tail := lastLine(errs.String()); code == 2 && !strings.HasPrefix(tail, "try: ") {
		t.Errorf("%s: it ends with %q instead of a hint", line, tail)
	}
	return fmt.Sprintf("$ stint %s\n%s-- stderr --\n%s-- exit %d --\n\n", line, out.String(), errs.String(), code)
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

func compare(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: go test ./cmd/stint -update accepts:\n%s", path, got)
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"completion bash": "__start_stint",
		"completion zsh":  "#compdef stint",
		"completion fish": "complete -c stint",
		"__complete ser":  "serve\tRun the server",
		"__complete config --set server.http.addr": "server.http.address=\thost:port",
		"__complete rules check x":                 "toml",
		"__complete rules test x":                  "ruletest",
		"__complete envoy c":                       "check\tCheck a configuration",
		"__complete serve --config x":              "toml",
	} {
		var out, errs bytes.Buffer
		if code := stint.Run(t.Context(), strings.Fields(args), nil, &out, &errs); code != 0 || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %d, %.200s %s", args, code, out.String(), errs.String())
		}
	}
}

// TestCalledRatelimit calls the program as containers of envoyproxy/ratelimit do.
func TestCalledRatelimit(t *testing.T) {
	t.Parallel()
	environ := []string{"RUNTIME_ROOT=testdata", "CONFIG_TYPE=nonsense"}
	var want bytes.Buffer
	stint.Run(t.Context(), []string{"serve", "--envoy-env"}, environ, &want, &want)
	for _, args := range [][]string{{"/bin/ratelimit"}, {"ratelimit"}, {"./ratelimit"}, {"/bin/stint", "/bin/ratelimit"}} {
		var got bytes.Buffer
		if code := stint.Main(t.Context(), args, environ, &got, &got); code != 2 || got.String() != want.String() {
			t.Errorf("%s: exit code %d\n%s\nwant\n%s", args, code, &got, &want)
		}
	}
}
