package daemon_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/rule"
)

// write writes a file to a temporary directory and returns its path.
func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// loadFile loads a file and an environment.
func loadFile(path string, environ []string) (*daemon.Config, error) {
	return daemon.Source{Path: path, Environ: environ}.Load()
}

func load(t testing.TB, text string, environ ...string) *daemon.Config {
	t.Helper()
	c, err := loadFile(write(t, "stint.toml", text), environ)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// problems returns the problems of a file, one per line, without the directory.
func problems(t *testing.T, text string, environ ...string) string {
	t.Helper()
	path := write(t, "stint.toml", text)
	c, err := loadFile(path, environ)
	if err == nil {
		return ""
	}
	if _, ok := err.(rule.Problems); !ok || c != nil { //nolint:errorlint // the type is promised
		t.Fatalf("%T, %v", err, c)
	}
	return strings.ReplaceAll(err.Error(), filepath.Dir(path)+string(filepath.Separator), "")
}

func TestNoFile(t *testing.T) {
	t.Parallel()
	if c, err := loadFile(filepath.Join(t.TempDir(), "stint.toml"), nil); c != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, %v", c, err)
	}
}

// someRules are for settings that refer to limits and tiers.
const someRules = `
[[rules]]
name = "api"
count_by = ["user"]
limits = [{ name = "requests", limit = "100/1m" }]

[[tiers]]
name = "free"

[[tiers]]
name = "premium"
limits = { requests = "1000/1m" }
`

const (
	pepper  = "0123456789abcdef-pepper"
	secret  = "0123456789abcdef0123456789abcdef-secret"
	someSum = "ee9c859c26d6b7e6e3b663354ed5947d41ef6e14f87c9dfa625f960a84bdd935"
)

const noPrice = `is not a price, want one such as "2.50": units of a currency for a million tokens, up to 1000000, with up to six decimals`

// tooMany is more targets than an upstream may have.
func tooMany() string {
	var targets []string
	for i := range 65 {
		targets = append(targets, fmt.Sprintf("\"http://a:%d\"", i+1))
	}
	return strings.Join(targets, ", ")
}

func TestProblems(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text    string
		environ []string
		want    string
	}{
		"nothing": {},
		"syntax":  {text: "[server", want: "stint.toml:1:7: expected ']' to close table name"},
		"unknown, and all else": {
			text: "foo = 1\n[server]\nbar = 2\n[identity]\ndefault_tier = \"silver\"\n[[users]]\nid = \"u\"\ntier = \"gold\"\n",
			want: "foo: unknown field\nserver.bar: unknown field\nidentity.default_tier: \"silver\": want the name of a tier in this file\nusers[0].tier: \"gold\": want the name of a tier in this file",
		},
		"unknown, and perhaps tiers": {
			text: "[identity]\ndefault_tier = \"silver\"\n[[teirs]]\nname = \"silver\"\n",
			want: "teirs: unknown field; did you mean \"tiers\"?",
		},
		"unknown": {
			text: "[server]\nreplcas = 2\n",
			want: `stint.toml:2:1: server.replcas: unknown field; did you mean "replicas"?`,
		},
		"all at once": {
			text: "[server]\nreplicas = -1\nlog_level = \"wran\"\n[identity]\nipv6_prefix = 200\n[[users]]\nid = \"\"\n",
			want: "stint.toml:2:12: server.replicas: -1: want 0 or more\n" +
				"stint.toml:3:13: server.log_level: \"wran\": want one of debug, info, warn, error; did you mean \"warn\"?\n" +
				"stint.toml:5:15: identity.ipv6_prefix: \"200\": want 32 to 128\n" +
				"stint.toml:7:6: users[0].id: \"\": want 1 to 255 bytes",
		},
		"decoding and meaning": {
			text: "[server]\nreplicas = \"2\"\nmax_keys = 0\n[[rules]]\nname = \"a\"\nlimit = 3\naction = \"rejct\"\n",
			want: "stint.toml:2:12: server.replicas: found a string, want an integer; write it without quotes\n" +
				"stint.toml:3:12: server.max_keys: 0: want 1 or more\n" +
				"stint.toml:6:1: rules[0].limit: unknown field; did you mean \"limits\"?\n" +
				"stint.toml:7:10: rules[0].action: \"rejct\": want one of reject,",
		},
		"rules": {
			text: "[[rules]]\nname = \"a\"\nlimits = [{ name = \"x\", limit = \"100 per hour\" }]\n",
			want: `stint.toml:3:33: rules[0].limits[0].limit: `,
		},

		"lease in memory": {
			text: "[[rules]]\nname = \"a\"\non_store_failure = \"closed\"\nlimits = [{ name = \"l\", limit = \"10/1s\", lease = \"100ms\" }]",
			want: `stint.toml:4:50: rules[0].limits[0].lease: "100ms": want none, or server.counters with the URL of Redis: counters in memory are never away`,
		},
		"lease in memory that harms nothing": {text: "[[rules]]\nname = \"a\"\nlimits = [{ name = \"l\", limit = \"10/1s\", lease = \"100ms\", split = 2 }]"},
		"split in memory":                    {text: "[[rules]]\nname = \"a\"\non_store_failure = \"closed\"\nlimits = [{ name = \"l\", limit = \"10/1s\", split = 2 }]"},
		"lease in Redis": {
			text:    "[[rules]]\nname = \"a\"\non_store_failure = \"closed\"\nlimits = [{ name = \"l\", limit = \"10/1s\", lease = \"100ms\" }]",
			environ: []string{"STINT_SERVER_COUNTERS=redis://redis:6379"},
		},

		"counters": {text: "[server]\ncounters = \"postgres://me:hunter2@db\"", want: `stint.toml:2:12: server.counters: want memory: or a URL that starts with redis://`},
		"a ring of one": {
			text: "[server]\ncounters = \"redis+ring://:hunter2@a\"",
			want: `stint.toml:2:12: server.counters: host "one server": want two or more; redis:// is for one`,
		},
		"a server twice": {
			text: "[server]\ncounters = \"redis+ring://:hunter2@a,b:6379,A:6379\"",
			want: `stint.toml:2:12: server.counters: host 3 "xxxxx": want a server that is not in the list before, as number 1`,
		},
		"too few weights": {
			text: "[server]\ncounters = \"redis+ring://a,b,c?weights=1,2\"",
			want: `stint.toml:2:12: server.counters: weights "2 numbers": want 3 numbers, one for each server`,
		},
		"no weight": {
			text: "[server]\ncounters = \"redis+ring://a,b?weights=1,0\"",
			want: `stint.toml:2:12: server.counters: weights "1,0": want whole numbers from 1 to 100, one for each server`,
		},
		"a ring and a Cluster": {
			text: "[server]\ncounters = \"redis+ring://a,redis+cluster://b\"",
			want: `stint.toml:2:12: server.counters: host "xxxxx": want hosts without schemes`,
		},
		"a ring of a Cluster": {
			text: "[server]\ncounters = \"redis+ring+cluster://a,b\"",
			want: `stint.toml:2:12: server.counters: scheme "redis+ring+cluster": want redis+cluster://, or redis+ring:// for servers that are not a Cluster`,
		},
		"a ring with a file that is not here": {text: "[server]\ncounters = \"rediss+ring://a,b?tls_ca=/no/such/file\""},
		"store budget":                        {text: "[server]\nstore_budget = \"0\"", want: `server.store_budget: "0": want from 1ms to 1m`},
		"interval":                            {text: "[server]\nreload_interval = \"1us\"", want: `server.reload_interval: "1us": want from 10ms to`},
		"interval off":                        {text: "[server]\nreload_interval = \"0\""},
		"interval number":                     {text: "[server]\nreload_interval = 5", want: "server.reload_interval: found an integer, want a string; write it in quotes"},
		"waiting":                             {text: "[server]\nmax_waiting = -1", want: "server.max_waiting: -1: want 1 or more"},
		"format":                              {text: "[server]\nlog_format = \"jsn\"", want: `"jsn": want one of json, text; did you mean "json"?`},

		"address":         {text: "[server.http]\naddress = \"8080\"", want: `stint.toml:2:11: server.http.address: "8080": want host:port, such as 127.0.0.1:8080`},
		"address port":    {text: "[server.gateway]\naddress = \":99999\"", want: `server.gateway.address: ":99999": want host:port`},
		"address service": {text: "[server.gateway]\naddress = \":http\"", want: `server.gateway.address: ":http": want host:port`},
		"address none":    {text: "[server]\nhttp = { address = \"\" }\ngateway = { address = \"\" }\nadmin = { address = \"\" }"},
		"address six":     {text: "[server.http]\naddress = \"[::1]:0\"\n[server.gateway]\naddress = \"localhost:0\"\n[server.admin]\naddress = \"[::1]:0\""},
		"address twice":   {text: "[server.http]\naddress = \":8000\"", want: `server.http.address: ":8000": want a different address: server.gateway uses 127.0.0.1:8000`},
		"address of all":  {text: "[server.http]\naddress = \"0.0.0.0:7000\"\n[server.grpc]\naddress = \"[::1]:7000\"", want: `server.grpc.address: "[::1]:7000": want a different address: server.http uses 0.0.0.0:7000`},
		"address by host": {text: "[server.http]\naddress = \"127.0.0.2:7000\"\n[server.grpc]\naddress = \"127.0.0.1:7000\""},
		"admin":           {text: "[server.admin]\naddress = \"0.0.0.0:9090\"", want: `stint.toml:2:11: server.admin.address: "0.0.0.0:9090": want a loopback address, such as 127.0.0.1:9090, or server.admin.tls_cert, or server.admin.insecure = true`},
		"admin all":       {text: "[server.admin]\naddress = \":9090\"", want: `server.admin.address: ":9090": want a loopback address`},
		"admin insecure":  {text: "[server.admin]\naddress = \":9090\"\ninsecure = true"},
		"insecure http":   {text: "[server.http]\ninsecure = true", want: "stint.toml:2:1: server.http.insecure: unknown field"},
		"no proxies":      {text: "[server.http]\nproxy_protocol = true", want: "stint.toml:2:18: server.http.proxy_protocol: needs identity.trusted_proxies"},
		"headers":         {text: "[server]\nheaders = [\"x\", \"itef\"]", want: `stint.toml:2:17: server.headers[1]: "itef": want one of x, ietf, id, none; did you mean "ietf"?`},
		"headers none":    {text: "[server]\nheaders = [\"none\", \"x\"]", want: `server.headers: "x": want one or more of "x", "ietf" and "id", or "none" alone`},
		"body":            {text: "[server]\nmax_body = -1", want: "server.max_body: -1: want 0 or more"},
		"times": {
			text: "[server]\nheader_timeout = \"0\"\nstall_timeout = \"2h\"\nidle_timeout = \"1ms\"\ndrain_delay = \"1h\"\ndrain = \"2h\"",
			want: "server.header_timeout: \"0\": want from 10ms to 1h\n" + "server.stall_timeout: \"2h\": want from 10ms to 1h\n" +
				"server.idle_timeout: \"1ms\": want from 10ms to 1d\n" + "server.drain_delay: \"1h\": want from 0 to 10m\n" + "server.drain: \"2h\": want from 0 to 1h",
		},
		"no drain": {text: "[server]\ndrain_delay = \"0\"\ndrain = \"0\""},

		"upstream": {text: "[[upstreams]]\ntargets = [\"http://a\"]\n[[upstreams]]\nhost = \"*.example.com\"\npath_prefix = \"/api\"\ntargets = [\"https://b:8443/v1\", \"h2c://c\"]\ncheck = {}"},
		"upstream all at once": {
			text: "[[upstreams]]\nhost = \"A.example:80\"\npath_prefix = \"api\"\ntargets = [\"http://a\", \"ftp://me:hunter2@b\", \"http://a\"]\ncost = -1\ncheck = { path = \"up\" }",
			want: "stint.toml:2:8: upstreams[0].host: \"A.example:80\": want a name in lower case\n" +
				"stint.toml:3:15: upstreams[0].path_prefix: \"api\": want a path such as /api\n" +
				"stint.toml:4:24: upstreams[0].targets[1]: \"ftp://[redacted]@b\": want a URL such as http://10.0.0.1:8080\n" +
				"stint.toml:4:46: upstreams[0].targets[2]: \"http://a\": want each target only once\n" +
				"stint.toml:5:8: upstreams[0].cost: \"-1\": want 1 or more\n" +
				"stint.toml:6:18: upstreams[0].check.path: \"up\": want a path such as /healthz",
		},
		"prices": {text: "[[prices]]\nmodel = \"gpt-4o\"\ninput = \"2.50\"\noutput = 10\ncached = 1.25\n[[prices]]\nmodel = \"*\"\ninput = 0.000001\noutput = \"1\""},
		"prices that are none": {
			text: "[[prices]]\nmodel = \"gpt-*-x\"\ninput = \"2,50\"\noutput = -1\n[[prices]]\nmodel = \"a\"\noutput = 0.0000001\n[[prices]]\nmodel = \"a\"\noutput = true",
			want: "stint.toml:2:9: prices[0].model: \"gpt-*-x\": want the name of a model such as gpt-4o, the beginning of names such as gpt-*, or * for all others\n" +
				"stint.toml:3:9: prices[0].input: \"2,50\" " + noPrice + "\n" + "stint.toml:4:10: prices[0].output: \"-1\" " + noPrice + "\n" +
				"stint.toml:7:10: prices[1].output: \"0.0000001\" " + noPrice + "\n" +
				"stint.toml:9:9: prices[2].model: \"a\": want each model only once\n" +
				"stint.toml:10:10: prices[2].output: found a boolean, want a price such as \"2.50\"",
		},
		"upstream nowhere": {text: "[[upstreams]]\nhost = \"a\"", want: "stint.toml:1:1: upstreams[0].targets: \"0\": want 1 to 64 of them"},
		"upstream many":    {text: "[[upstreams]]\ntargets = [" + tooMany() + "]", want: `stint.toml:2:1: upstreams[0].targets: "65": want 1 to 64 of them`},
		"upstream twice":   {text: strings.Repeat("[[upstreams]]\nhost = \"a\"\ntargets = [\"http://a\"]\n", 2) + "path_prefix = \"/\"", want: "stint.toml:4:1: upstreams[1]: has the same host and path_prefix as another upstream, want each only once"},
		"upstream field":   {text: "[[upstreams]]\ntarget = [\"http://a\"]", want: `stint.toml:2:1: upstreams[0].target: unknown field; did you mean "targets"?`},
		"upstream time":    {text: "[[upstreams]]\ntargets = [\"http://a\"]\ntimeout = \"-1s\"", want: "upstreams[0].timeout: "},

		"default tier":  {text: someRules + "[identity]\ndefault_tier = \"fre\"", want: `identity.default_tier: "fre": want the name of a tier in this file; did you mean "free"?`},
		"key prefix":    {text: "[identity]\napi_key_prefix = \"a-b\"", want: `stint.toml:2:18: identity.api_key_prefix: "a-b": want 1 to 32 letters`},
		"key header":    {text: "[identity]\napi_key_header = \"\"", want: `identity.api_key_header: "": leave it out for the default, X-API-Key`},
		"no ipv6":       {text: "[identity]\nipv6_prefix = 0", want: `identity.ipv6_prefix: "0": leave it out for the default, 64`},
		"pepper":        {text: "[identity]\npepper = \"hunter2\"", want: `identity.pepper: "[redacted]": want at least 16 bytes`},
		"pepper number": {text: "[identity]\npepper = 4711", want: `identity.pepper: found an integer, want a string`},
		"pepper twice":  {text: "[identity]\npepper = \"" + pepper + "\"\npepper_file = \"p\"", want: `identity.pepper_file: is set together with pepper, want one of them`},
		"no pepper":     {text: "[identity]\npepper_file = \"/nowhere\"", want: `identity.pepper_file: "/nowhere": want a file that can be read: no such file`},
		"methods":       {text: "[identity]\nmethods = [\"jtw\"]", want: `stint.toml:2:12: identity.methods[0]: "jtw": want one of key, jwt, header; did you mean "jwt"?`},
		"no jwt":        {text: "[identity]\nmethods = [\"jwt\"]", want: `identity.methods: "jwt": want key, jwt and header at most once each`},
		"proxy":         {text: "[identity]\ntrusted_proxies = [\"10.0.0.0/33\"]", want: `stint.toml:2:20: identity.trusted_proxies[0]: "10.0.0.0/33": want an address or a network`},
		"proxy host":    {text: "[identity]\ntrusted_proxies = [\"10.1.2.3/8\"]", want: `identity.trusted_proxies: "10.1.2.3/8": want 10.0.0.0/8`},
		"proxies":       {text: "[identity]\ntrusted_proxies = [\"192.0.2.1\", \"2001:db8::/32\"]\nuser_header = \"X-User\""},
		"depth":         {text: "[identity]\ntrusted_proxies = [\"192.0.2.1\"]\ntrusted_proxy_depth = 1", want: `identity.trusted_proxy_depth: "1": want either a depth or trusted proxies`},
		"header":        {text: "[identity]\nuser_header = \"X-User\"", want: `identity.user_header: "X-User": want trusted proxies`},

		"jwt without keys": {text: "[identity.jwt]\nissuer = \"me\"", want: `stint.toml:1:1: identity.jwt: has no keys: want secret,`},
		"jwt secret":       {text: "[identity.jwt]\nsecret = \"hunter2\"", want: `identity.jwt.secret: "[redacted]": want at least 32 bytes`},
		"jwt no file":      {text: "[identity.jwt]\nsecret_file = \"/nowhere\"", want: `identity.jwt.secret_file: "/nowhere": want a file that can be read`},
		"jwt keys":         {text: "[identity.jwt]\npublic_keys = \"hunter2\"", want: `identity.jwt.public_keys: "text that is not PEM": want public keys in PEM`},
		"jwt key file":     {text: "[identity.jwt]\npublic_key_files = [\"/nowhere\"]", want: `identity.jwt.public_key_files[0]: "/nowhere": want a file that can be read`},
		"jwks file":        {text: "[identity.jwt]\njwks_file = \"/nowhere\"", want: `identity.jwt.jwks_file: identity: keys of /nowhere: open /nowhere: no such file`},
		"jwks file is url": {text: "[identity.jwt]\njwks_file = \"https://id.example\"", want: `identity.jwt.jwks_file: want a file; did you mean "jwks_url"?`},
		"jwks url":         {text: "[identity.jwt]\njwks_url = \"https://id.example.invalid/keys\""},
		"jwks url is file": {text: "[identity.jwt]\njwks_url = \"keys.json\"", want: `identity.jwt.jwks_url: want an http or https URL; did you mean "jwks_file"?`},
		"jwks scheme":      {text: "[identity.jwt]\njwks_url = \"ftp://me:hunter2@x\"", want: `identity.jwt.jwks_url: "ftp://...": want an http or https URL`},
		"jwks twice":       {text: "[identity.jwt]\njwks_url = \"https://id.example.invalid\"\njwks_file = \"x\"", want: `identity.jwt.jwks_file: is set together with jwks_url, want one of them`},
		"leeway":           {text: "[identity.jwt]\nsecret = \"" + secret + "\"\nleeway = \"10m\"", want: `identity.jwt.leeway: "10m0s": want 0 to 5m0s`},
		"no leeway":        {text: "[identity.jwt]\nsecret = \"" + secret + "\"\nleeway = \"0\""},
		"refresh":          {text: "[identity.jwt]\njwks_url = \"https://id.example.invalid\"\njwks_refresh = \"1s\"", want: `identity.jwt.jwks_refresh: "1s": want 1m or more`},
		"bad token":        {text: "[identity.jwt]\nsecret = \"" + secret + "\"\non_bad_token = \"anonymus\"", want: `stint.toml:3:16: identity.jwt.on_bad_token: "anonymus": want one of reject, anonymous; did you mean "anonymous"?`},
		"bad token empty":  {text: "[identity.jwt]\nsecret = \"" + secret + "\"\non_bad_token = \"\"", want: `identity.jwt.on_bad_token: "": leave it out for the default, reject`},
		"bad token alone":  {text: "[identity.jwt]\non_bad_token = \"anonymous\"", want: `identity.jwt: has no keys`},
		"bad tokens":       {text: "[identity.jwt]\nsecret = \"" + secret + "\"\non_bad_token = \"anonymous\""},
		"conflict":         {text: "[identity]\non_conflict = \"last\"", want: `identity.on_conflict: "last": want one of reject, first`},
		"first":            {text: "[identity]\non_conflict = \"first\""},
		"no failed keys":   {text: "[identity]\nfailed_keys = 0", want: `identity.failed_keys: "0": leave it out for the default, 30`},
		"negative keys":    {text: "[identity]\nfailed_keys = -1", want: `stint.toml:2:15: identity.failed_keys: "-1": want 1 to 1000`},
		"many failed keys": {text: "[identity]\nfailed_keys = 1001", want: `identity.failed_keys: "1001": want at most 1000`},
		"remember":         {text: "[identity.jwt]\nsecret = \"" + secret + "\"\nremember = 5", want: `identity.jwt.remember: "5": want 128 or more`},

		"user": {
			text: someRules + "[[users]]\nid = \"alice\"\ntenant = \"acme\"\ntier = \"free\"\nlimits = { requests = \"unlimited\" }\nblocked = { reason = \"abuse\", until = 2026-12-31 23:59:59Z }\n",
		},
		"user twice": {text: "[[users]]\nid = \"a\"\n[[users]]\nid = \"a\"", want: `stint.toml:4:6: users[1].id: "a": want it only once`},
		"user tier":  {text: someRules + "[[users]]\nid = \"a\"\ntier = \"premum\"", want: `users[0].tier: "premum": want the name of a tier in this file; did you mean "premium"?`},
		"user limit": {
			text: someRules + "[[users]]\nid = \"a\"\nlimits = { request = \"5/1m\", requests = \"unlimitd\" }",
			want: "users[0].limits.request: \"request\": want the name of a limit of a rule; did you mean \"requests\"?\n" +
				"users[0].limits.requests: ",
		},
		"user value":   {text: someRules + "[[users]]\nid = \"a\"\nlimits = { requests = \"unlimitd\" }", want: `did you mean "unlimited"?`},
		"user tenant":  {text: "[[users]]\nid = \"a\"\ntenant = \"a\\tb\"", want: `users[0].tenant: "a\tb": want 1 to 255 bytes`},
		"user blocked": {text: "[[users]]\nid = \"a\"\nblocked = { until = 2026-12-31 }", want: `users[0].blocked.until: "2026-12-31" is not a time, want a date, a time and a zone`},

		"key": {text: someRules + "[[api_keys]]\nid = \"abcdefgh\"\nhash = \"sha256:" + someSum + "\"\nname = \"CI\"\nuser = \"alice\"\ntier = \"free\"\ndisabled = true\nexpires = 2026-12-31T23:59:59+01:00\nrevoked = \"2026-12-31T23:59:59.5Z\"\n"},
		"key without": {
			text: "[[api_keys]]\nname = \"CI\"",
			want: "stint.toml:1:1: api_keys[0].id: \"\": want 8 to 64 letters and digits\n" +
				"stint.toml:1:1: api_keys[0].hash: want sha256: or hmac-sha256: and the hash",
		},
		"key id":     {text: "[[api_keys]]\nid = \"abc_efgh\"\nhash = \"sha256:" + someSum + "\"", want: `api_keys[0].id: "abc_efgh": want 8 to 64 letters and digits`},
		"key twice":  {text: strings.Repeat("[[api_keys]]\nid = \"abcdefgh\"\nhash = \"sha256:"+someSum+"\"\n", 2), want: `api_keys[1].id: "abcdefgh": want it only once`},
		"key hash":   {text: "[[api_keys]]\nid = \"abcdefgh\"\nhash = \"hunter2\"", want: `api_keys[0].hash: want sha256: or hmac-sha256:`},
		"key pepper": {text: "[[api_keys]]\nid = \"abcdefgh\"\nhash = \"hmac-sha256:" + someSum + "\"", want: `api_keys[0].hash: was made with a pepper, and none is set`},
		"key limit":  {text: someRules + "[[api_keys]]\nid = \"abcdefgh\"\nhash = \"sha256:" + someSum + "\"\nlimits = { requests = \"5/0s\" }", want: `api_keys[0].limits.requests: `},

		"entries":    {text: "[[bans]]\nip = \"192.0.2.0/24\"\nuntil = 2026-12-31T23:59:59Z\n[[bans]]\nuser = \"a\"\n[[exemptions]]\ntenant = \"a\"\n[[exemptions]]\nkey = \"abcdefgh\"\nreason = \"ours\"\n"},
		"entry none": {text: "[[bans]]\nreason = \"x\"", want: `stint.toml:1:1: bans[0]: has 0 of ip, user, tenant and key, want one of them`},
		"entry two":  {text: "[[exemptions]]\nuser = \"x\"\nkey = \"y\"", want: `exemptions[0]: has 2 of ip, user, tenant and key, want one of them`},
		"host bits":  {text: "[[bans]]\nuser = \"x\"\n[[bans]]\nip = \"10.1.2.3/8\"", want: `stint.toml:4:6: bans[1].ip: "10.1.2.3/8": want 10.0.0.0/8, or 10.1.2.3 for the one address`},
		"ban twice":  {text: "[[bans]]\nip = \"192.0.2.1\"\n[[bans]]\nip = \"192.0.2.1/32\"", want: `bans[1].ip: "192.0.2.1/32": want it only once`},

		"variable":          {environ: []string{"STINT_SERVER_REPLICAS=-1"}, want: "STINT_SERVER_REPLICAS: -1: want 0 or more"},
		"variable over":     {text: "[server]\nreplicas = -1", environ: []string{"STINT_SERVER_REPLICAS=3"}},
		"variable integer":  {environ: []string{"STINT_SERVER_MAX_KEYS=many"}, want: `STINT_SERVER_MAX_KEYS: "many": want an integer`},
		"variable boolean":  {environ: []string{"STINT_IDENTITY_REQUIRE=yes"}, want: `STINT_IDENTITY_REQUIRE: "yes": want true or false`},
		"variable duration": {environ: []string{"STINT_SERVER_RELOAD_INTERVAL=soon"}, want: `STINT_SERVER_RELOAD_INTERVAL: "soon" is not a duration`},
		"variable list":     {environ: []string{"STINT_IDENTITY_TRUSTED_PROXIES=10.0.0.0/8, x"}, want: `STINT_IDENTITY_TRUSTED_PROXIES: "x": want an address or a network`},
		"variable secret":   {environ: []string{"STINT_IDENTITY_JWT_SECRET=hunter2"}, want: `STINT_IDENTITY_JWT_SECRET: "[redacted]": want at least 32 bytes`},
		"variable counters": {environ: []string{"STINT_SERVER_COUNTERS=hunter2"}, want: `STINT_SERVER_COUNTERS: want memory: or a URL`},
		"variable unknown":  {environ: []string{"STINT_SERVER_COUNTER=x"}, want: `STINT_SERVER_COUNTER: unknown variable; did you mean "STINT_SERVER_COUNTERS"?`},
		"variable of all":   {environ: []string{"STINT_CONFIG=stint.toml", "HOME=/", "STINT=1", "X_STINT_Y=1", "=x", "y"}},
		"variable of Kubernetes": {environ: []string{
			"STINT_SERVICE_HOST=10.0.0.1", "STINT_SERVICE_PORT=8080", "STINT_SERVICE_PORT_HTTP=8080", "STINT_PORT=tcp://10.0.0.1:8080",
			"STINT_PORT_8080_TCP=tcp://10.0.0.1:8080", "STINT_PORT_8080_TCP_ADDR=10.0.0.1", "STINT_ADMIN_PORT_9090_TCP_PROTO=tcp",
		}},
		"variable port": {environ: []string{"STINT_PORT=8080"}, want: "STINT_PORT: unknown variable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := problems(t, c.text, c.environ...)
			lines := strings.Split(got, "\n")
			want := strings.Split(c.want, "\n")
			ok := len(lines) == len(want) && (c.want == "") == (got == "")
			for i := range want {
				ok = ok && strings.Contains(lines[i], want[i])
			}
			if !ok {
				t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
			}
			if strings.Contains(got, "hunter2") {
				t.Errorf("it shows a secret: %s", got)
			}
		})
	}
}
