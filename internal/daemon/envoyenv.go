package daemon

import (
	"cmp"
	"maps"
	"math"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/kit/strict"
)

// EnvoyEnv returns what the variables of envoyproxy/ratelimit mean here, for
// [Source].Given. A variable that is empty is taken for one that is not set, and what is
// not set stays as it is here, but for where files are: they are where they are there.
// Flags, like STINT_ variables, are not part of it, but may say what the variables leave
// open.
//
// The notes say, in a line each, which variables that are set have no effect here, and
// why. The error is of type [rule.Problems].
func EnvoyEnv(environ []string, flags ...Flag) (given []Flag, notes []string, err error) {
	e := envoyEnv{values: map[string]string{}, elsewhere: map[string]string{}}
	e.read(environ, flags)
	for i := range envoyVariables {
		v := &envoyVariables[i]
		value, set := e.values[v.name]
		switch {
		case !set || v.quiet && e.unmet(v) != "":
		case e.unmet(v) != "":
			e.note(v.name, "no effect without "+e.unmet(v))
		case v.note != "" && value != v.fine:
			e.note(v.name, v.note)
		case v.setting != "":
			e.give(v.name, v.setting, value)
		}
	}
	e.addresses()
	e.files()
	e.counters()
	e.tracing()
	for _, why := range e.reasons {
		notes = append(notes, strings.Join(why.names, ", ")+": "+why.text)
	}
	return e.given, notes, e.problems.Err()
}

// kind is how the value of a variable is read.
type kind struct {
	want string
	read func(text string) (value string, ok bool) // as a setting has it
}

var (
	asText = kind{"a text", func(text string) (string, bool) { return text, true }}
	asBool = kind{"true or false", func(text string) (string, bool) {
		b, err := strconv.ParseBool(text)
		return strconv.FormatBool(b), err == nil
	}}
	asInt = kind{"an integer", func(text string) (string, bool) {
		n, err := strconv.Atoi(text)
		return strconv.Itoa(n), err == nil
	}}
	asFloat = kind{"a number", func(text string) (string, bool) {
		f, err := strconv.ParseFloat(text, 64)
		return text, err == nil && !math.IsNaN(f)
	}}
	asDuration = kind{"a length of time, such as 500ms, 10s or 1h30m", func(text string) (string, bool) {
		d, err := time.ParseDuration(text)
		return Duration(d).String(), err == nil && d >= 0
	}}
	asPercent = kind{"a number from 0 to 1, such as 0.8", func(text string) (string, bool) {
		f, err := strconv.ParseFloat(text, 64)
		return strconv.Itoa(int(math.Round(f * 100))), err == nil && f >= 0 && f <= 1
	}}
	asSample = kind{"a number from 0 to 1, such as 0.01", func(text string) (string, bool) {
		f, err := strconv.ParseFloat(text, 64)
		return strconv.Itoa(int(math.Round(min(max(f, 0), 1) * mostSample))), err == nil && !math.IsNaN(f)
	}}
	// asHeaders reads what is written as name:value there, with commas between them.
	asHeaders = kind{"name:value, and commas between several", func(text string) (string, bool) {
		var out []string
		for item := range strings.SplitSeq(text, ",") {
			name, value, ok := strings.Cut(item, ":")
			if !ok {
				return "", false
			}
			out = append(out, name+"="+value)
		}
		return strings.Join(out, ","), true
	}}
	asLevel      = word("debug", "info", "warn", "error", "trace=debug", "warning=warn", "fatal=error", "panic=error")
	asFormat     = word("text", "json")
	asConfigType = word("FILE", "GRPC_XDS_SOTW")
	asRedisType  = word("SINGLE", "SENTINEL", "CLUSTER")
	asSocketType = word("tcp", "unix")
	asBackend    = word("redis", "memcache")
	asExporter   = word("http", "grpc")
)

// word is one of these, in whatever case. After a = stands what is meant by it.
func word(those ...string) kind {
	var names []string
	meant := map[string]string{}
	for _, w := range those {
		name, meaning, ok := strings.Cut(w, "=")
		if !ok {
			meaning = name
		}
		names = append(names, name)
		meant[strings.ToLower(name)] = meaning
	}
	return kind{"one of " + strings.Join(names, ", "), func(text string) (string, bool) {
		w, ok := meant[strings.ToLower(text)]
		return w, ok
	}}
}

// envoyVariable is a variable of envoyproxy/ratelimit.
type envoyVariable struct {
	name string
	kind kind
	// setting is what it is here. Without one, and without a note, it is part of
	// something that several variables say together.
	setting string
	needs   string // NAME=value of the variable without which it has no effect
	quiet   bool   // nothing is said if it has none: it is there for others, too
	note    string // why it has no effect here
	fine    string // the value that it has here, so that nothing needs to be said
	usual   string // what holds if it is not set, where that matters
	secret  bool   // the value is never shown
}

// Reasons of several variables.
const (
	whyStatsd   = "metrics are served to Prometheus, at /metrics of server.admin.address"
	whyPool     = "requests share one connection to each server; more of them are conns in the URL of server.counters"
	whyRedis    = "one Redis has all counters"
	whyMemcache = "counters are in Redis, or in memory"
	whyAlways   = "it is always so, where domains come by xDS; files must be there, and without problems, at the start"
	whyBackoff  = "how long to wait between attempts is not a setting"
	whyNames    = "spans say that they are of stint"
	whyWatched  = "files are looked at every server.reload_interval, however they are replaced"
)

// What variables need.
const (
	needFiles      = "CONFIG_TYPE=FILE"
	needXDS        = "CONFIG_TYPE=GRPC_XDS_SOTW"
	needXDSTLS     = "CONFIG_GRPC_XDS_SERVER_USE_TLS=true"
	needTLS        = "GRPC_SERVER_USE_TLS=true"
	needRedisTLS   = "REDIS_TLS=true"
	needTracing    = "TRACING_ENABLED=true"
	needPrometheus = "USE_PROMETHEUS=true"
	needSentinel   = "REDIS_TYPE=SENTINEL"
)

// envoyVariables are all of them.
var envoyVariables = []envoyVariable{
	{name: "HOST", kind: asText, usual: "0.0.0.0"},
	{name: "PORT", kind: asInt, usual: "8080"},
	{name: "DEBUG_HOST", kind: asText, usual: "0.0.0.0"},
	{name: "DEBUG_PORT", kind: asInt, usual: "6070"},
	{name: "GRPC_UDS", kind: asText},
	{name: "GRPC_HOST", kind: asText, usual: "0.0.0.0"},
	{name: "GRPC_PORT", kind: asInt, usual: "8081"},
	{name: "GRPC_MAX_CONNECTION_AGE", kind: asDuration, setting: "envoy.max_connection_age"},
	{name: "GRPC_MAX_CONNECTION_AGE_GRACE", kind: asDuration, note: "calls have server.drain to end"},
	{name: "GRPC_SERVER_USE_TLS", kind: asBool},
	{name: "GRPC_SERVER_TLS_CERT", kind: asText, setting: "server.grpc.tls_cert", needs: needTLS},
	{name: "GRPC_SERVER_TLS_KEY", kind: asText, setting: "server.grpc.tls_key", needs: needTLS},
	{name: "GRPC_CLIENT_TLS_CACERT", kind: asText, setting: "server.grpc.tls_client_ca", needs: needTLS},
	{name: "GRPC_CLIENT_TLS_SAN", kind: asText, needs: needTLS},
	{name: "LOG_LEVEL", kind: asLevel, setting: "server.log_level"},
	{name: "LOG_FORMAT", kind: asFormat, setting: "server.log_format"},

	{name: "CONFIG_TYPE", kind: asConfigType, usual: "FILE"},
	{name: "FORCE_START_WITHOUT_INITIAL_CONFIG", kind: asBool, note: whyAlways, fine: "false"},
	{name: "CONFIG_GRPC_XDS_NODE_ID", kind: asText, setting: "envoy.xds.node_id", needs: needXDS},
	{name: "CONFIG_GRPC_XDS_NODE_METADATA", kind: asText, setting: "envoy.xds.metadata", needs: needXDS},
	{name: "CONFIG_GRPC_XDS_SERVER_URL", kind: asText, needs: needXDS, usual: "localhost:18000"},
	{name: "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", kind: asDuration, needs: needXDS, note: whyBackoff},
	{name: "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", kind: asHeaders, setting: "envoy.xds.headers", needs: needXDS, secret: true},
	{name: "CONFIG_GRPC_XDS_SERVER_USE_TLS", kind: asBool, setting: "envoy.xds.tls", needs: needXDS},
	{name: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", kind: asText, setting: "envoy.xds.tls_cert", needs: needXDSTLS},
	{name: "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", kind: asText, setting: "envoy.xds.tls_key", needs: needXDSTLS},
	{name: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", kind: asText, setting: "envoy.xds.tls_ca", needs: needXDSTLS},
	{name: "CONFIG_GRPC_XDS_SERVER_TLS_SAN", kind: asText, setting: "envoy.xds.tls_server_name", needs: needXDSTLS},
	{name: "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", kind: asDuration, needs: needXDS, note: whyBackoff},
	{name: "XDS_CLIENT_BACKOFF_MAX_INTERVAL", kind: asDuration, needs: needXDS, note: whyBackoff},
	{name: "XDS_CLIENT_BACKOFF_RANDOM_FACTOR", kind: asFloat, needs: needXDS, note: whyBackoff},
	{name: "XDS_CLIENT_BACKOFF_JITTER", kind: asBool, needs: needXDS, note: whyBackoff},
	{name: "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", kind: asInt, setting: "envoy.xds.max_message", needs: needXDS},

	{name: "USE_DOG_STATSD", kind: asBool, note: whyStatsd, fine: "false"},
	{name: "USE_DOG_STATSD_MOGRIFIERS", kind: asText, note: whyStatsd},
	{name: "USE_STATSD", kind: asBool, note: whyStatsd, fine: "false"},
	{name: "STATSD_HOST", kind: asText, note: whyStatsd},
	{name: "STATSD_PORT", kind: asInt, note: whyStatsd},
	{name: "EXTRA_TAGS", kind: asText, note: whyStatsd},
	{name: "STATS_FLUSH_INTERVAL", kind: asDuration, note: whyStatsd},
	{name: "DISABLE_STATS", kind: asBool, note: whyStatsd, fine: "false"},
	{name: "USE_PROMETHEUS", kind: asBool},
	{name: "PROMETHEUS_ADDR", kind: asText, needs: needPrometheus, usual: ":9090"},
	{name: "PROMETHEUS_PATH", kind: asText, needs: needPrometheus, note: whyStatsd, fine: "/metrics"},
	{name: "PROMETHEUS_MAPPER_YAML", kind: asText, needs: needPrometheus, note: "metrics have the names that they have"},

	{name: "RUNTIME_ROOT", kind: asText, needs: needFiles, usual: "/srv/runtime_data/current"},
	{name: "RUNTIME_SUBDIRECTORY", kind: asText, needs: needFiles},
	{name: "RUNTIME_APPDIRECTORY", kind: asText, needs: needFiles, usual: "config"},
	{name: "RUNTIME_IGNOREDOTFILES", kind: asBool, needs: needFiles, note: "files whose names begin with a dot are never read", fine: "true"},
	{name: "RUNTIME_WATCH_ROOT", kind: asBool, needs: needFiles, note: whyWatched},

	{name: "EXPIRATION_JITTER_MAX_SECONDS", kind: asInt, note: "counters live as long as they count"},
	{name: "LOCAL_CACHE_SIZE_IN_BYTES", kind: asInt, note: "refusals are remembered anyway", fine: "0"},
	{name: "NEAR_LIMIT_RATIO", kind: asPercent, setting: "envoy.near_limit_percent"},
	{name: "CACHE_KEY_PREFIX", kind: asText},
	{name: "BACKEND_TYPE", kind: asBackend, usual: "redis"},
	{name: "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", kind: asBool, note: "what is refused is never charged", fine: "true"},
	{name: "LIMIT_RESPONSE_HEADERS_ENABLED", kind: asBool, setting: "envoy.response_headers"},
	{name: "LIMIT_LIMIT_HEADER", kind: asText, setting: "envoy.limit_header"},
	{name: "LIMIT_REMAINING_HEADER", kind: asText, setting: "envoy.remaining_header"},
	{name: "LIMIT_RESET_HEADER", kind: asText, setting: "envoy.reset_header"},
	{name: "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", kind: asBool, note: whyAlways},

	{name: "REDIS_SOCKET_TYPE", kind: asSocketType},
	{name: "REDIS_TYPE", kind: asRedisType, usual: "SINGLE"},
	{name: "REDIS_URL", kind: asText},
	{name: "REDIS_POOL_SIZE", kind: asInt, note: whyPool},
	{name: "REDIS_AUTH", kind: asText, secret: true},
	{name: "REDIS_TLS", kind: asBool},
	{name: "REDIS_TLS_CLIENT_CERT", kind: asText, needs: needRedisTLS},
	{name: "REDIS_TLS_CLIENT_KEY", kind: asText, needs: needRedisTLS},
	{name: "REDIS_TLS_CACERT", kind: asText, needs: needRedisTLS},
	{name: "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", kind: asBool, needs: needRedisTLS},
	{name: "REDIS_PIPELINE_WINDOW", kind: asDuration, note: "what is asked at the same time is sent together anyway"},
	{name: "REDIS_PIPELINE_LIMIT", kind: asInt, note: "what is asked at the same time is sent together anyway"},
	{name: "REDIS_PERSECOND", kind: asBool, note: whyRedis, fine: "false"},
	{name: "REDIS_PERSECOND_SOCKET_TYPE", kind: asText, note: whyRedis},
	{name: "REDIS_PERSECOND_TYPE", kind: asText, note: whyRedis},
	{name: "REDIS_PERSECOND_URL", kind: asText, note: whyRedis},
	{name: "REDIS_PERSECOND_POOL_SIZE", kind: asInt, note: whyRedis},
	{name: "REDIS_PERSECOND_AUTH", kind: asText, note: whyRedis, secret: true},
	{name: "REDIS_PERSECOND_TLS", kind: asBool, note: whyRedis},
	{name: "REDIS_SENTINEL_AUTH", kind: asText, needs: needSentinel, secret: true},
	{name: "REDIS_PERSECOND_SENTINEL_AUTH", kind: asText, note: whyRedis, secret: true},
	{name: "REDIS_PERSECOND_PIPELINE_WINDOW", kind: asDuration, note: whyRedis},
	{name: "REDIS_PERSECOND_PIPELINE_LIMIT", kind: asInt, note: whyRedis},
	{name: "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", kind: asBool, note: "without Redis a node decides alone, and /readyz says so", fine: "false"},
	{name: "REDIS_TIMEOUT", kind: asDuration},
	{name: "REDIS_PERSECOND_TIMEOUT", kind: asDuration, note: whyRedis},
	{name: "REDIS_POOL_ON_EMPTY_BEHAVIOR", kind: asText, note: whyPool},
	{name: "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", kind: asText, note: whyRedis},

	{name: "MEMCACHE_HOST_PORT", kind: asText, note: whyMemcache},
	{name: "MEMCACHE_MAX_IDLE_CONNS", kind: asInt, note: whyMemcache},
	{name: "MEMCACHE_SRV", kind: asText, note: whyMemcache},
	{name: "MEMCACHE_SRV_REFRESH", kind: asDuration, note: whyMemcache},
	{name: "MEMCACHE_TLS", kind: asBool, note: whyMemcache},
	{name: "MEMCACHE_TLS_CLIENT_CERT", kind: asText, note: whyMemcache},
	{name: "MEMCACHE_TLS_CLIENT_KEY", kind: asText, note: whyMemcache},
	{name: "MEMCACHE_TLS_CACERT", kind: asText, note: whyMemcache},
	{name: "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", kind: asBool, note: whyMemcache},

	{name: "SHADOW_MODE", kind: asBool, setting: "envoy.shadow_mode"},
	{name: "QUOTA_MODE", kind: asBool, setting: "envoy.quota_mode"},
	{name: "RESPONSE_DYNAMIC_METADATA", kind: asBool, setting: "envoy.dynamic_metadata"},
	{name: "MERGE_DOMAIN_CONFIG", kind: asBool, setting: "envoy.merge_domains"},

	{name: "TRACING_ENABLED", kind: asBool},
	{name: "TRACING_SERVICE_NAME", kind: asText, needs: needTracing, note: whyNames},
	{name: "TRACING_SERVICE_NAMESPACE", kind: asText, needs: needTracing, note: whyNames},
	{name: "TRACING_SERVICE_INSTANCE_ID", kind: asText, needs: needTracing, note: whyNames},
	{name: "TRACING_EXPORTER_PROTOCOL", kind: asExporter, needs: needTracing},
	{name: "TRACING_SAMPLING_RATE", kind: asSample, needs: needTracing, usual: strconv.Itoa(mostSample)},
	{name: "OTEL_EXPORTER_OTLP_ENDPOINT", kind: asText, needs: needTracing, quiet: true, usual: "http://localhost:4318"},
}

// envoyEnv is what is made of variables.
type envoyEnv struct {
	values    map[string]string // of variables that are set, as settings have them
	elsewhere map[string]string // settings that STINT_ variables and flags have, and their names
	given     []Flag
	problems  strict.Problems
	reasons   []reason
}

// reason is why variables have no effect.
type reason struct {
	text  string
	names []string
}

// read reads all variables.
func (e *envoyEnv) read(environ []string, flags []Flag) {
	known, stint := map[string]*envoyVariable{}, map[string]string{}
	for i := range envoyVariables {
		known[envoyVariables[i].name] = &envoyVariables[i]
	}
	for _, s := range defaults().settings() {
		stint[s.env()] = s.name
	}
	for _, f := range flags {
		e.elsewhere[f.Setting] = f.Name
	}
	for _, variable := range environ {
		name, text, _ := strings.Cut(variable, "=")
		if setting := stint[name]; setting != "" {
			e.elsewhere[setting] = name
		}
		v := known[name]
		if v == nil || text == "" {
			continue
		}
		value, ok := v.kind.read(text)
		switch {
		case ok:
			e.values[name] = value
		case v.secret:
			e.problem(name, "want "+v.kind.want)
		default:
			e.problem(name, strict.Quote(text)+": want "+v.kind.want)
		}
	}
}

func (e *envoyEnv) problem(name, message string) {
	e.problems = append(e.problems, strict.Problem{Path: name, Message: message})
}

func (e *envoyEnv) give(name, setting, value string) {
	e.given = append(e.given, Flag{Name: name, Setting: setting, Value: value})
}

// note notes that a variable has no effect. Those that have none for one reason are
// named together.
func (e *envoyEnv) note(name, why string) {
	i := slices.IndexFunc(e.reasons, func(r reason) bool { return r.text == why })
	if i < 0 {
		i = len(e.reasons)
		e.reasons = append(e.reasons, reason{text: why})
	}
	e.reasons[i].names = append(e.reasons[i].names, name)
}

func findVariable(name string) *envoyVariable {
	return &envoyVariables[slices.IndexFunc(envoyVariables, func(v envoyVariable) bool { return v.name == name })]
}

// unmet returns what a variable needs and does not have.
func (e *envoyEnv) unmet(v *envoyVariable) string {
	if v.needs == "" {
		return ""
	}
	name, want, _ := strings.Cut(v.needs, "=")
	if e.get(name) != want {
		return v.needs
	}
	return ""
}

// get returns the value of a variable, or what holds if it is not set, or if it has no
// effect.
func (e *envoyEnv) get(name string) string {
	v := findVariable(name)
	if e.unmet(v) != "" {
		return v.usual
	}
	return cmp.Or(e.values[name], v.usual)
}

// set returns the first of the variables that is set, and has an effect, or "".
func (e *envoyEnv) set(names ...string) string {
	for _, name := range names {
		if e.values[name] != "" && e.unmet(findVariable(name)) == "" {
			return name
		}
	}
	return ""
}

// addresses are where to listen.
func (e *envoyEnv) addresses() {
	if name := e.set("PORT", "HOST"); name != "" {
		e.give(name, "server.http.address", net.JoinHostPort(e.get("HOST"), e.get("PORT")))
	}
	if path := e.get("GRPC_UDS"); path != "" {
		e.give("GRPC_UDS", "server.grpc.address", unixPrefix+path)
	} else if name := e.set("GRPC_PORT", "GRPC_HOST"); name != "" {
		e.give(name, "server.grpc.address", net.JoinHostPort(e.get("GRPC_HOST"), e.get("GRPC_PORT")))
	}
	if e.get("GRPC_SERVER_USE_TLS") == "true" && (e.get("GRPC_SERVER_TLS_CERT") == "" || e.get("GRPC_SERVER_TLS_KEY") == "") {
		e.problem("GRPC_SERVER_USE_TLS", "want GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY, too: the files of the certificate and its key")
	}
	if name := e.set("GRPC_CLIENT_TLS_SAN"); name != "" {
		// To ignore it would let others in.
		e.problem(name, strict.Quote(e.get(name))+": want it not set: of clients it can only be asked that GRPC_CLIENT_TLS_CACERT vouches for them")
	}
	var admin string
	name, scrape := e.set("DEBUG_PORT", "DEBUG_HOST"), e.get("USE_PROMETHEUS") == "true"
	switch {
	case name != "":
		admin = net.JoinHostPort(e.get("DEBUG_HOST"), e.get("DEBUG_PORT"))
		if scrape {
			e.note(cmp.Or(e.set("PROMETHEUS_ADDR"), "USE_PROMETHEUS"), "metrics are where DEBUG_HOST and DEBUG_PORT say: one listener serves both")
		}
	case scrape:
		admin, name = e.get("PROMETHEUS_ADDR"), cmp.Or(e.set("PROMETHEUS_ADDR"), "USE_PROMETHEUS")
	default:
		return
	}
	e.give(name, "server.admin.address", admin)
	if !isLoopback(admin) {
		e.give(name, "server.admin.insecure", "true") // as it is there
	}
}

// files are where domains come from, be it that they are none.
func (e *envoyEnv) files() {
	if e.get("CONFIG_TYPE") != "FILE" {
		e.give(cmp.Or(e.set("CONFIG_GRPC_XDS_SERVER_URL"), "CONFIG_TYPE"), "envoy.xds.server", e.get("CONFIG_GRPC_XDS_SERVER_URL"))
		return
	}
	name := e.set("RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY")
	if by := cmp.Or(e.elsewhere["envoy.config"], e.elsewhere["envoy.xds.server"]); by != "" {
		if name != "" {
			e.note(name, by+" says where domains come from")
		}
		return
	}
	e.give(cmp.Or(name, "RUNTIME_ROOT"), "envoy.config",
		filepath.Join(e.get("RUNTIME_ROOT"), e.get("RUNTIME_SUBDIRECTORY"), e.get("RUNTIME_APPDIRECTORY")))
}

// tracing is where spans go.
func (e *envoyEnv) tracing() {
	if e.get("TRACING_ENABLED") != "true" {
		return
	}
	if e.get("TRACING_EXPORTER_PROTOCOL") == "grpc" {
		e.problem("TRACING_EXPORTER_PROTOCOL", `"grpc": want http: spans are sent by HTTP, for which collectors have the port 4318`)
	}
	e.give(cmp.Or(e.set("OTEL_EXPORTER_OTLP_ENDPOINT"), "TRACING_ENABLED"), "server.trace.endpoint", strings.TrimRight(e.get("OTEL_EXPORTER_OTLP_ENDPOINT"), "/"))
	e.give(cmp.Or(e.set("TRACING_SAMPLING_RATE"), "TRACING_ENABLED"), "server.trace.sample", e.get("TRACING_SAMPLING_RATE"))
}

// counters are where counters are.
func (e *envoyEnv) counters() {
	if by := e.elsewhere["server.counters"]; by != "" {
		for _, v := range envoyVariables {
			if v.note == "" && (strings.HasPrefix(v.name, "REDIS_") || v.name == "CACHE_KEY_PREFIX" || v.name == "BACKEND_TYPE") && e.set(v.name) != "" {
				e.note(v.name, by+" says where counters are")
			}
		}
		return
	}
	const orElse = ", or STINT_SERVER_COUNTERS=memory: for a single node"
	switch {
	case e.get("BACKEND_TYPE") == "memcache":
		e.problem("BACKEND_TYPE", `"memcache": want redis, and REDIS_URL`+orElse)
	case e.get("REDIS_URL") == "":
		e.problem("REDIS_URL", "not set: want host:port of a Redis"+orElse)
	default:
		if u, ok := e.redis(); ok {
			e.give("REDIS_URL", "server.counters", u)
		}
	}
}

// redis returns the URL of Redis.
func (e *envoyEnv) redis() (string, bool) {
	before := len(e.problems)
	u := redisURL{query: map[string]string{}, user: e.credential("REDIS_AUTH")}
	if e.get("REDIS_TLS") == "true" {
		u.scheme = "s"
	}
	e.redisHosts(&u)
	if prefix := e.get("CACHE_KEY_PREFIX"); prefix != "" {
		u.query["prefix"] = prefix
		if len(prefix) > 32 || !consistsOf(prefix, "._-:") {
			e.problem("CACHE_KEY_PREFIX", strict.Quote(prefix)+": want at most 32 letters, digits and . _ - :")
		}
	}
	if timeout := e.get("REDIS_TIMEOUT"); timeout != "" {
		if d, err := time.ParseDuration(timeout); err != nil || d < time.Millisecond || d > time.Minute {
			e.problem("REDIS_TIMEOUT", strict.Quote(timeout)+": want from 1ms to 1m")
		}
		u.query["timeout"], u.query["dial_timeout"] = timeout, timeout
	}
	if auth := e.credential("REDIS_SENTINEL_AUTH"); auth != nil {
		if name := auth.Username(); name != "" {
			u.query["sentinel_user"] = name
		}
		u.query["sentinel_password"], _ = auth.Password()
	}
	for parameter, name := range map[string]string{"tls_ca": "REDIS_TLS_CACERT", "tls_cert": "REDIS_TLS_CLIENT_CERT", "tls_key": "REDIS_TLS_CLIENT_KEY"} {
		if path := e.get(name); path != "" {
			u.query[parameter] = path
		}
	}
	if e.get("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION") == "true" {
		e.problem("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", `"true": want false: names are verified; where they are others, set STINT_SERVER_COUNTERS to a URL with tls_server_name`)
	}
	return u.String(), len(e.problems) == before
}

// credential returns who to be: user:password, or a password alone. It is nil if the
// variable is not set.
func (e *envoyEnv) credential(name string) *url.Userinfo {
	text := e.get(name)
	if text == "" {
		return nil
	}
	user, password, ok := strings.Cut(text, ":")
	if !ok {
		user, password = "", text
	}
	if password == "" {
		e.problem(name, "want a password, or user:password")
	}
	return url.UserPassword(user, password)
}

// redisHosts finds out which servers there are.
func (e *envoyEnv) redisHosts(u *redisURL) {
	text := e.get("REDIS_URL")
	refuse := func(want string) {
		if strings.ContainsAny(text, ":/,") && !strings.ContainsAny(text, "@?") { // or else it may be a password, or hold one
			want = strict.Quote(text) + ": want " + want
		} else {
			want = "want " + want
		}
		e.problem("REDIS_URL", want)
	}
	hosts := strings.Split(text, ",")
	const example = "host:port, such as redis:6379"
	want := example
	switch e.get("REDIS_TYPE") {
	case "SENTINEL":
		u.scheme += "+sentinel"
		u.path, hosts = hosts[0], hosts[1:]
		if want = "the primary's name, and then the sentinels, each as host:port, with commas between them"; len(hosts) == 0 || !consistsOf(u.path, "._-") {
			refuse(want)
			return
		}
	case "CLUSTER":
		u.scheme += "+cluster"
		want = "host:port of some of the servers, with commas between them"
	default:
		hosts = []string{text}
		if !strings.HasPrefix(text, "redis://") {
			break
		}
		p, err := url.Parse(text)
		if err != nil || p.RawQuery != "" || p.Fragment != "" {
			refuse("redis://user:password@host:port/db, or " + example)
			return
		}
		hosts, u.path = []string{p.Host}, strings.Trim(p.Path, "/")
		if p.User != nil {
			if password, _ := p.User.Password(); password == "" || u.user != nil {
				refuse("the user and the password in REDIS_AUTH, as user:password")
				return
			}
			u.user = p.User
		}
	}
	for _, host := range hosts {
		if !isAddress(host) {
			if strings.HasPrefix(text, "/") {
				want += "; unix sockets are not supported"
			}
			refuse(want)
			return
		}
	}
	u.hosts = strings.Join(hosts, ",")
}

// consistsOf reports whether there are only letters, digits and these, and some.
func consistsOf(text, these string) bool {
	const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	return text != "" && strings.Trim(text, base62+these) == ""
}

// isAddress reports whether this is host:port.
func isAddress(text string) bool {
	host, port, err := net.SplitHostPort(text)
	n, bad := strconv.ParseUint(port, 10, 16)
	return err == nil && bad == nil && n > 0 && host != "" && !strings.ContainsAny(host, "/@?#,")
}

// redisURL is the parts of a URL that package redisstore reads.
type redisURL struct {
	scheme string // after redis
	user   *url.Userinfo
	hosts  string
	path   string
	query  map[string]string
}

func (u *redisURL) String() string {
	// Other than in package url, a space is %20 and a comma %2C.
	escape := func(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }
	out := "redis" + u.scheme + "://"
	if u.user != nil {
		password, _ := u.user.Password()
		out += escape(u.user.Username()) + ":" + escape(password) + "@"
	}
	out += u.hosts
	if u.path != "" {
		out += "/" + u.path
	}
	var query []string
	for _, name := range slices.Sorted(maps.Keys(u.query)) {
		query = append(query, name+"="+escape(u.query[name]))
	}
	if len(query) > 0 {
		out += "?" + strings.Join(query, "&")
	}
	return out
}
