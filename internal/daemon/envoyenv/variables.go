package envoyenv

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/rule"
)

// kind is the type of a variable.
type kind struct {
	want string                                    // describes valid values, for messages
	read func(text string) (value string, ok bool) // returns the value in the format of settings
}

var (
	asText = kind{"a text", func(text string) (string, bool) { return text, true }}
	asBool = kind{"true or false", func(text string) (string, bool) {
		b, err := strconv.ParseBool(text)
		return strconv.FormatBool(b), err == nil
	}}
	asInt = kind{"an integer", func(text string) (string, bool) {
		n, err := strconv.ParseInt(text, 0, 64)
		return strconv.FormatInt(n, 10), err == nil
	}}
	asSize = kind{"an integer", func(text string) (string, bool) {
		n, err := strconv.Atoi(text)
		if n <= 0 {
			return "", err == nil // the default
		}
		return strconv.Itoa(max(n, 1024)), err == nil
	}}
	asFloat = kind{"a number", func(text string) (string, bool) {
		_, err := strconv.ParseFloat(text, 64)
		return text, err == nil
	}}
	asDuration = durationIn(0, math.MaxInt64)
	asAge      = durationIn(time.Second, 365*24*time.Hour)
	asInterval = durationIn(100*time.Millisecond, time.Hour)
	asTimeout  = kind{asDuration.want, func(text string) (string, bool) {
		d, err := time.ParseDuration(text)
		if d <= 0 {
			d = longestTimeout // none, there
		}
		return duration(min(max(d, time.Millisecond), longestTimeout)), err == nil
	}}
	asPercent = kind{"a number from 0 to 1, such as 0.8", func(text string) (string, bool) {
		f, err := strconv.ParseFloat(text, 64)
		return strconv.Itoa(int(math.Round(min(max(f, 0.01), 1) * 100))), err == nil && !math.IsNaN(f)
	}}
	asSample = kind{"a number from 0 to 1, such as 0.01", func(text string) (string, bool) {
		f, err := strconv.ParseFloat(text, 64)
		return strconv.Itoa(int(math.Round(min(max(f, 0), 1) * allRequests))), err == nil && !math.IsNaN(f)
	}}
	asMetadata = kind{"name=value, separated by commas", func(text string) (string, bool) {
		var out []string
		for item := range strings.SplitSeq(text, ",") {
			if name, _, ok := strings.Cut(item, "="); ok && name != "" { // others are ignored there, too
				out = append(out, item)
			}
		}
		return strings.Join(out, ","), true
	}}
	asHeaders = kind{"name:value, separated by commas", func(text string) (string, bool) {
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
	asFormat = kind{"text or json", func(text string) (string, bool) {
		if strings.EqualFold(text, "json") {
			return "json", true
		}
		return "text", true
	}}
	asLevel      = word("debug", "info", "warn", "error", "trace=debug", "warning=warn", "fatal=error", "panic=error")
	asConfigType = word("FILE", "GRPC_XDS_SOTW")
	asRedisType  = word("SINGLE", "SENTINEL", "CLUSTER")
	asSocketType = word("tcp", "unix", "tcp4=tcp", "tcp6=tcp")
	asStatsd     = word("tcp", "udp", "tcp4=tcp", "tcp6=tcp", "udp4=udp", "udp6=udp")
	asBackend    = word("redis", "memcache")
	asExporter   = word("http", "grpc")
)

// longestTimeout is the longest timeout of Redis.
const longestTimeout = time.Minute

// durationIn is a duration. Shorter and longer ones are brought into the range, except 0.
func durationIn(shortest, longest time.Duration) kind {
	return kind{"a duration, such as 500ms, 10s or 1h30m", func(text string) (string, bool) {
		d, err := time.ParseDuration(text)
		if d != 0 {
			d = min(max(d, shortest), longest)
		}
		return duration(d), err == nil
	}}
}

// completeTags returns the tags that have a name and a value.
func completeTags(list string) string {
	var out []string
	for tag := range strings.SplitSeq(list, ",") {
		if name, value, _ := strings.Cut(tag, "="); name != "" && value != "" {
			out = append(out, tag)
		}
	}
	return strings.Join(out, ",")
}

// headerName returns the name of a header, or "" if it is none.
func headerName(name string) string {
	if !rule.IsToken(name) {
		return ""
	}
	return name
}

// plainPath returns a path, or "" if metrics cannot be there.
func plainPath(path string) string {
	if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, " {}?#") {
		return ""
	}
	return path
}

// word is one of some words, in upper or lower case. The word a=b is written a and means b.
func word(words ...string) kind {
	var names []string
	meant := map[string]string{}
	for _, w := range words {
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

// allRequests is the value of server.trace.sample that traces every request.
const allRequests = 10_000

// duration returns a duration in the format of settings.
func duration(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	return rule.Duration(d).String()
}

// variable is a variable of envoyproxy/ratelimit.
type variable struct {
	name string
	kind kind
	// setting is the setting with the same meaning. A variable with neither a setting nor a
	// note is read together with others, by a method of reader.
	setting string
	// usable returns what Stint can use of a value that is valid in envoyproxy/ratelimit, and
	// unusable says why the rest has no effect. Nil: all of it.
	usable    func(value string) string
	unusable  string
	needs     string // NAME=value of the variable without which this one has no effect
	quiet     bool   // there is no note if that is missing: other programs use the variable, too
	note      string // why the variable has no effect in Stint
	fine      string // the value that matches Stint's behavior, and needs no note
	byDefault string // the default in envoyproxy/ratelimit, where it matters
	secret    bool   // the value is never shown
}

// Notes that several variables share.
const (
	whyPool     = "requests share one connection to each server; conns in the URL of server.counters sets their number"
	whyPipeline = "concurrent requests are always pipelined, so there is nothing to set"
	whyStartup  = "the server starts without Redis, and connects as soon as it can, so there is nothing to set"
	whyRedis    = "all counters are in one Redis: with REDIS_TYPE=CLUSTER it can have many servers"
	whyMemcache = "counters are in Redis or in memory: set REDIS_URL"
	whyAlways   = "the server always starts; while files have problems, or nothing has come over xDS, calls fail and it is not healthy"
	whyBackoff  = "the pauses between attempts are random, up to 30s, and cannot be configured"
	whyNames    = "the service name of spans is always stint: look for that, or rename it in the collector"
	whyTags     = "tags without a name or a value are left out: give them both"
	whyHeader   = "not the name of a header, so the default is used"
	whyPath     = "no path without ?, #, braces and spaces, so the default is used"
)

// The values of needs.
const (
	needFiles      = "CONFIG_TYPE=FILE"
	needXDS        = "CONFIG_TYPE=GRPC_XDS_SOTW"
	needXDSTLS     = "CONFIG_GRPC_XDS_SERVER_USE_TLS=true"
	needTLS        = "GRPC_SERVER_USE_TLS=true"
	needRedisTLS   = "REDIS_TLS=true"
	needTracing    = "TRACING_ENABLED=true"
	needPrometheus = "USE_PROMETHEUS=true"
	needDogStatsD  = "USE_DOG_STATSD=true"
	needSentinel   = "REDIS_TYPE=SENTINEL"
)

// variables are all variables of envoyproxy/ratelimit.
var variables = []variable{
	{name: "HOST", kind: asText, byDefault: "0.0.0.0"},
	{name: "PORT", kind: asInt, byDefault: "8080"},
	{name: "DEBUG_HOST", kind: asText, byDefault: "0.0.0.0"},
	{name: "DEBUG_PORT", kind: asInt, byDefault: "6070"},
	{name: "GRPC_UDS", kind: asText},
	{name: "GRPC_HOST", kind: asText, byDefault: "0.0.0.0"},
	{name: "GRPC_PORT", kind: asInt, byDefault: "8081"},
	{name: "GRPC_MAX_CONNECTION_AGE", kind: asAge, setting: "envoy.max_connection_age"},
	{name: "GRPC_MAX_CONNECTION_AGE_GRACE", kind: asDuration, note: "running calls have server.drain to end: set STINT_SERVER_DRAIN"},
	{name: "GRPC_SERVER_USE_TLS", kind: asBool},
	{name: "GRPC_SERVER_TLS_CERT", kind: asText, setting: "server.grpc.tls_cert", needs: needTLS},
	{name: "GRPC_SERVER_TLS_KEY", kind: asText, setting: "server.grpc.tls_key", needs: needTLS},
	{name: "GRPC_CLIENT_TLS_CACERT", kind: asText, setting: "server.grpc.tls_client_ca", needs: needTLS},
	{name: "GRPC_CLIENT_TLS_SAN", kind: asText, needs: needTLS},
	{name: "LOG_LEVEL", kind: asLevel, setting: "server.log_level"},
	{name: "LOG_FORMAT", kind: asFormat, setting: "server.log_format"},

	{name: "CONFIG_TYPE", kind: asConfigType, byDefault: "FILE"},
	{name: "FORCE_START_WITHOUT_INITIAL_CONFIG", kind: asBool, note: whyAlways, fine: "false"},
	{name: "CONFIG_GRPC_XDS_NODE_ID", kind: asText, setting: "envoy.xds.node_id", needs: needXDS},
	{name: "CONFIG_GRPC_XDS_NODE_METADATA", kind: asMetadata, setting: "envoy.xds.metadata", needs: needXDS},
	{name: "CONFIG_GRPC_XDS_SERVER_URL", kind: asText, needs: needXDS, byDefault: "localhost:18000"},
	{name: "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", kind: asDuration, needs: needXDS, note: whyBackoff},
	{name: "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", kind: asHeaders, setting: "envoy.xds.headers", needs: needXDS, secret: true},
	{name: "CONFIG_GRPC_XDS_SERVER_USE_TLS", kind: asBool, setting: "envoy.xds.tls", needs: needXDS},
	{name: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", kind: asText, needs: needXDSTLS},
	{name: "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", kind: asText, needs: needXDSTLS},
	{name: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", kind: asText, setting: "envoy.xds.tls_ca", needs: needXDSTLS},
	{name: "CONFIG_GRPC_XDS_SERVER_TLS_SAN", kind: asText, setting: "envoy.xds.tls_server_name", needs: needXDSTLS},
	{name: "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", kind: asDuration, needs: needXDS, note: whyBackoff},
	{name: "XDS_CLIENT_BACKOFF_MAX_INTERVAL", kind: asDuration, needs: needXDS, note: whyBackoff},
	{name: "XDS_CLIENT_BACKOFF_RANDOM_FACTOR", kind: asFloat, needs: needXDS, note: whyBackoff},
	{name: "XDS_CLIENT_BACKOFF_JITTER", kind: asBool, needs: needXDS, note: whyBackoff},
	{name: "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", kind: asSize, setting: "envoy.xds.max_message", needs: needXDS},

	{name: "USE_DOG_STATSD", kind: asBool},
	{name: "USE_DOG_STATSD_MOGRIFIERS", kind: asText, needs: needDogStatsD, note: "metrics cannot be renamed: do that where they are received"},
	{name: "USE_STATSD", kind: asBool, byDefault: "true"},
	{name: "STATSD_HOST", kind: asText, byDefault: "localhost"},
	{name: "STATSD_PORT", kind: asInt, byDefault: "8125"},
	{name: "STATSD_PROTOCOL", kind: asStatsd, byDefault: "tcp"},
	{name: "EXTRA_TAGS", kind: asHeaders, setting: "envoy.metrics.tags", usable: completeTags, unusable: whyTags},
	{name: "STATS_FLUSH_INTERVAL", kind: asInterval, setting: "envoy.metrics.interval"},
	{name: "DISABLE_STATS", kind: asBool},
	{name: "USE_PROMETHEUS", kind: asBool},
	{name: "PROMETHEUS_ADDR", kind: asText, needs: needPrometheus, byDefault: ":9090"},
	{name: "PROMETHEUS_PATH", kind: asText, setting: "envoy.metrics.path", needs: needPrometheus, usable: plainPath, unusable: whyPath},
	{name: "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", kind: asBool, setting: "envoy.metrics.milliseconds", needs: needPrometheus},
	{name: "PROMETHEUS_MAPPER_YAML", kind: asText, needs: needPrometheus, note: "metrics cannot be renamed: do that where they are received"},

	{name: "RUNTIME_ROOT", kind: asText, needs: needFiles, byDefault: "/srv/runtime_data/current"},
	{name: "RUNTIME_SUBDIRECTORY", kind: asText, needs: needFiles},
	{name: "RUNTIME_APPDIRECTORY", kind: asText, needs: needFiles, byDefault: "config"},
	{name: "RUNTIME_IGNOREDOTFILES", kind: asBool, needs: needFiles},
	{name: "RUNTIME_WATCH_ROOT", kind: asBool, needs: needFiles, byDefault: "true"},

	{name: "EXPIRATION_JITTER_MAX_SECONDS", kind: asInt, note: "counters expire when they are no longer needed, so there is nothing to set"},
	{name: "LOCAL_CACHE_SIZE_IN_BYTES", kind: asInt, note: "denials are always cached, so its size has no effect", fine: "0"},
	{name: "NEAR_LIMIT_RATIO", kind: asPercent, setting: "envoy.near_limit_percent"},
	{name: "CACHE_KEY_PREFIX", kind: asText},
	{name: "BACKEND_TYPE", kind: asBackend, byDefault: "redis"},
	{name: "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", kind: asBool},
	{name: "LIMIT_RESPONSE_HEADERS_ENABLED", kind: asBool, setting: "envoy.response_headers"},
	{name: "LIMIT_LIMIT_HEADER", kind: asText, setting: "envoy.limit_header", usable: headerName, unusable: whyHeader},
	{name: "LIMIT_REMAINING_HEADER", kind: asText, setting: "envoy.remaining_header", usable: headerName, unusable: whyHeader},
	{name: "LIMIT_RESET_HEADER", kind: asText, setting: "envoy.reset_header", usable: headerName, unusable: whyHeader},
	{name: "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", kind: asBool},

	{name: "REDIS_SOCKET_TYPE", kind: asSocketType},
	{name: "REDIS_TYPE", kind: asRedisType, byDefault: "SINGLE"},
	{name: "REDIS_URL", kind: asText, byDefault: "/var/run/nutcracker/ratelimit.sock"},
	{name: "REDIS_POOL_SIZE", kind: asInt, note: whyPool},
	{name: "REDIS_AUTH", kind: asText, secret: true},
	{name: "REDIS_TLS", kind: asBool},
	{name: "REDIS_TLS_CLIENT_CERT", kind: asText, needs: needRedisTLS},
	{name: "REDIS_TLS_CLIENT_KEY", kind: asText, needs: needRedisTLS},
	{name: "REDIS_TLS_CACERT", kind: asText, needs: needRedisTLS},
	{name: "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", kind: asBool, needs: needRedisTLS},
	{name: "REDIS_PIPELINE_WINDOW", kind: asDuration, note: whyPipeline},
	{name: "REDIS_PIPELINE_LIMIT", kind: asInt, note: whyPipeline},
	{name: "REDIS_CLUSTER_PIPELINE_PARALLELISM", kind: asInt, note: whyPipeline},
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
	{name: "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", kind: asInt, note: whyRedis},
	{name: "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", kind: asBool},
	{name: "REDIS_TIMEOUT", kind: asTimeout},
	{name: "REDIS_PERSECOND_TIMEOUT", kind: asDuration, note: whyRedis},
	{name: "REDIS_POOL_ON_EMPTY_BEHAVIOR", kind: asText, note: whyPool},
	{name: "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", kind: asText, note: whyRedis},
	{name: "REDIS_STARTUP_INITIAL_INTERVAL", kind: asDuration, note: whyStartup},
	{name: "REDIS_STARTUP_MAX_INTERVAL", kind: asDuration, note: whyStartup},
	{name: "REDIS_STARTUP_MAX_ELAPSED_TIME", kind: asDuration, note: whyStartup},

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
	{name: "TRACING_SAMPLING_RATE", kind: asSample, needs: needTracing, byDefault: strconv.Itoa(allRequests)},
	{name: "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", kind: asText, needs: needTracing, quiet: true},
	{name: "OTEL_EXPORTER_OTLP_ENDPOINT", kind: asText, needs: needTracing, quiet: true, byDefault: "http://localhost:4318"},
}
