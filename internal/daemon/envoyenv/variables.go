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
		n, err := strconv.Atoi(text)
		return strconv.Itoa(n), err == nil
	}}
	asFloat = kind{"a number", func(text string) (string, bool) {
		f, err := strconv.ParseFloat(text, 64)
		return text, err == nil && !math.IsNaN(f)
	}}
	asDuration = kind{"a duration, such as 500ms, 10s or 1h30m", func(text string) (string, bool) {
		d, err := time.ParseDuration(text)
		return duration(d), err == nil && d >= 0
	}}
	asPercent = kind{"a number from 0 to 1, such as 0.8", func(text string) (string, bool) {
		f, err := strconv.ParseFloat(text, 64)
		return strconv.Itoa(int(math.Round(f * 100))), err == nil && f >= 0 && f <= 1
	}}
	asSample = kind{"a number from 0 to 1, such as 0.01", func(text string) (string, bool) {
		f, err := strconv.ParseFloat(text, 64)
		return strconv.Itoa(int(math.Round(min(max(f, 0), 1) * allRequests))), err == nil && !math.IsNaN(f)
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
	asLevel      = word("debug", "info", "warn", "error", "trace=debug", "warning=warn", "fatal=error", "panic=error")
	asFormat     = word("text", "json")
	asConfigType = word("FILE", "GRPC_XDS_SOTW")
	asRedisType  = word("SINGLE", "SENTINEL", "CLUSTER")
	asSocketType = word("tcp", "unix")
	asBackend    = word("redis", "memcache")
	asExporter   = word("http", "grpc")
)

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
	setting   string
	needs     string // NAME=value of the variable without which this one has no effect
	quiet     bool   // there is no note if that is missing: other programs use the variable, too
	note      string // why the variable has no effect in Stint
	fine      string // the value that matches Stint's behavior, and needs no note
	byDefault string // the default in envoyproxy/ratelimit, where it matters
	secret    bool   // the value is never shown
}

// Notes that several variables share.
const (
	whyStatsd   = "metrics are served to Prometheus, at /metrics of server.admin.address"
	whyPool     = "requests share one connection to each server; conns in the URL of server.counters sets their number"
	whyRedis    = "all counters are in one Redis"
	whyMemcache = "counters are in Redis or in memory"
	whyAlways   = "with xDS this is always the case; files must exist and be valid at startup"
	whyBackoff  = "the backoff between attempts cannot be configured"
	whyNames    = "the service name of spans is always stint"
	whyWatched  = "files are polled every server.reload_interval, however they are replaced"
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
	{name: "GRPC_MAX_CONNECTION_AGE", kind: asDuration, setting: "envoy.max_connection_age"},
	{name: "GRPC_MAX_CONNECTION_AGE_GRACE", kind: asDuration, note: "running calls have server.drain to end"},
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
	{name: "CONFIG_GRPC_XDS_NODE_METADATA", kind: asText, setting: "envoy.xds.metadata", needs: needXDS},
	{name: "CONFIG_GRPC_XDS_SERVER_URL", kind: asText, needs: needXDS, byDefault: "localhost:18000"},
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
	{name: "PROMETHEUS_ADDR", kind: asText, needs: needPrometheus, byDefault: ":9090"},
	{name: "PROMETHEUS_PATH", kind: asText, needs: needPrometheus, note: whyStatsd, fine: "/metrics"},
	{name: "PROMETHEUS_MAPPER_YAML", kind: asText, needs: needPrometheus, note: "metrics cannot be renamed"},

	{name: "RUNTIME_ROOT", kind: asText, needs: needFiles, byDefault: "/srv/runtime_data/current"},
	{name: "RUNTIME_SUBDIRECTORY", kind: asText, needs: needFiles},
	{name: "RUNTIME_APPDIRECTORY", kind: asText, needs: needFiles, byDefault: "config"},
	{name: "RUNTIME_IGNOREDOTFILES", kind: asBool, needs: needFiles, note: "files whose names start with a dot are never read", fine: "true"},
	{name: "RUNTIME_WATCH_ROOT", kind: asBool, needs: needFiles, note: whyWatched},

	{name: "EXPIRATION_JITTER_MAX_SECONDS", kind: asInt, note: "counters expire when they are no longer needed"},
	{name: "LOCAL_CACHE_SIZE_IN_BYTES", kind: asInt, note: "denials are always cached", fine: "0"},
	{name: "NEAR_LIMIT_RATIO", kind: asPercent, setting: "envoy.near_limit_percent"},
	{name: "CACHE_KEY_PREFIX", kind: asText},
	{name: "BACKEND_TYPE", kind: asBackend, byDefault: "redis"},
	{name: "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", kind: asBool, note: "denied requests are never charged", fine: "true"},
	{name: "LIMIT_RESPONSE_HEADERS_ENABLED", kind: asBool, setting: "envoy.response_headers"},
	{name: "LIMIT_LIMIT_HEADER", kind: asText, setting: "envoy.limit_header"},
	{name: "LIMIT_REMAINING_HEADER", kind: asText, setting: "envoy.remaining_header"},
	{name: "LIMIT_RESET_HEADER", kind: asText, setting: "envoy.reset_header"},
	{name: "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", kind: asBool, note: whyAlways},

	{name: "REDIS_SOCKET_TYPE", kind: asSocketType},
	{name: "REDIS_TYPE", kind: asRedisType, byDefault: "SINGLE"},
	{name: "REDIS_URL", kind: asText},
	{name: "REDIS_POOL_SIZE", kind: asInt, note: whyPool},
	{name: "REDIS_AUTH", kind: asText, secret: true},
	{name: "REDIS_TLS", kind: asBool},
	{name: "REDIS_TLS_CLIENT_CERT", kind: asText, needs: needRedisTLS},
	{name: "REDIS_TLS_CLIENT_KEY", kind: asText, needs: needRedisTLS},
	{name: "REDIS_TLS_CACERT", kind: asText, needs: needRedisTLS},
	{name: "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", kind: asBool, needs: needRedisTLS},
	{name: "REDIS_PIPELINE_WINDOW", kind: asDuration, note: "concurrent requests are always pipelined"},
	{name: "REDIS_PIPELINE_LIMIT", kind: asInt, note: "concurrent requests are always pipelined"},
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
	{name: "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", kind: asBool, note: "without Redis a node decides on its own, and /readyz reports it", fine: "false"},
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
	{name: "TRACING_SAMPLING_RATE", kind: asSample, needs: needTracing, byDefault: strconv.Itoa(allRequests)},
	{name: "OTEL_EXPORTER_OTLP_ENDPOINT", kind: asText, needs: needTracing, quiet: true, byDefault: "http://localhost:4318"},
}
