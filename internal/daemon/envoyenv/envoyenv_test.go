package envoyenv_test

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/daemon/envoyenv"
	"github.com/stintdev/stint/internal/test/testdoc"
	"github.com/stintdev/stint/redisstore"
)

// elsewhere is a setting of a STINT_ variable, which replaces a required one of
// envoyproxy/ratelimit.
var elsewhere = map[string]string{"server.counters": "STINT_SERVER_COUNTERS", "envoy.config": "STINT_ENVOY_CONFIG"}

// Of several variables.
const (
	pool     = "requests share one connection to each server; conns in the URL of server.counters sets their number"
	memcache = "counters are in Redis or in memory: set REDIS_URL"
	alwaysSo = "the server always starts; while files have problems, or nothing has come over xDS, calls fail and it is not healthy"
	backoff  = "the pauses between attempts are random, up to 30s, and cannot be configured"
)

// rows are environments and their settings. Each variable is in one of them.
var rows = map[string]struct {
	environ  string // lines
	given    string // NAME setting=value, in lines
	notes    string
	problems string
	alone    bool // nothing is said elsewhere
}{
	"nothing": {},
	"defaults": {
		alone: true, given: "RUNTIME_ROOT envoy.config=/srv/runtime_data/current/config\nREDIS_URL server.counters=redis://localhost?socket=%2Fvar%2Frun%2Fnutcracker%2Fratelimit.sock",
		notes: "REDIS_URL: is not set: Redis is expected at /var/run/nutcracker/ratelimit.sock; STINT_SERVER_COUNTERS=memory: is for a single node",
	},
	"empty is not set": {environ: "PORT=\nUSE_STATSD=\nLOG_LEVEL="},
	"of others":        {environ: "HOME=/root\nOTEL_EXPORTER_OTLP_ENDPOINT=http://otel:4318"},

	"host":           {environ: "HOST=10.0.0.1", given: "HOST server.http.address=10.0.0.1:8080"},
	"port":           {environ: "PORT=9000", given: "PORT server.http.address=0.0.0.0:9000"},
	"host and port":  {environ: "HOST=::1\nPORT=9000", given: "PORT server.http.address=[::1]:9000"},
	"no port":        {environ: "PORT=http", problems: `PORT: "http": want an integer`},
	"grpc":           {environ: "GRPC_HOST=127.0.0.1\nGRPC_PORT=9001", given: "GRPC_PORT server.grpc.address=127.0.0.1:9001"},
	"uds":            {environ: "GRPC_UDS=/run/rl.sock\nGRPC_PORT=9001", given: "GRPC_UDS server.grpc.address=unix:/run/rl.sock"},
	"age":            {environ: "GRPC_MAX_CONNECTION_AGE=90m", given: "GRPC_MAX_CONNECTION_AGE envoy.max_connection_age=90m"},
	"no age":         {environ: "GRPC_MAX_CONNECTION_AGE=long", problems: `GRPC_MAX_CONNECTION_AGE: "long": want a duration, such as 500ms, 10s or 1h30m`},
	"age grace":      {environ: "GRPC_MAX_CONNECTION_AGE_GRACE=1h", notes: "GRPC_MAX_CONNECTION_AGE_GRACE: running calls have server.drain to end: set STINT_SERVER_DRAIN"},
	"debug":          {environ: "DEBUG_PORT=6071", given: "DEBUG_PORT envoy.debug.address=0.0.0.0:6071"},
	"debug host":     {environ: "DEBUG_HOST=127.0.0.1", given: "DEBUG_HOST envoy.debug.address=127.0.0.1:6070"},
	"prometheus":     {environ: "USE_PROMETHEUS=1", given: "USE_PROMETHEUS envoy.metrics.address=:9090"},
	"prometheus at":  {environ: "USE_PROMETHEUS=true\nPROMETHEUS_ADDR=localhost:9102\nPROMETHEUS_PATH=/m", given: "PROMETHEUS_PATH envoy.metrics.path=/m\nPROMETHEUS_ADDR envoy.metrics.address=localhost:9102"},
	"prometheus ms":  {environ: "USE_PROMETHEUS=true\nPROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS=true", given: "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS envoy.metrics.milliseconds=true\nUSE_PROMETHEUS envoy.metrics.address=:9090"},
	"no prometheus":  {environ: "PROMETHEUS_ADDR=:9102", notes: "PROMETHEUS_ADDR: no effect without USE_PROMETHEUS=true"},
	"mapped metrics": {environ: "USE_PROMETHEUS=true\nPROMETHEUS_MAPPER_YAML=/x", given: "USE_PROMETHEUS envoy.metrics.address=:9090", notes: "PROMETHEUS_MAPPER_YAML: metrics cannot be renamed: do that where they are received"},
	"both": {
		environ: "DEBUG_HOST=127.0.0.1\nUSE_PROMETHEUS=true\nPROMETHEUS_ADDR=:9102\nUSE_STATSD=true",
		given:   "DEBUG_HOST envoy.debug.address=127.0.0.1:6070\nPROMETHEUS_ADDR envoy.metrics.address=:9102\nUSE_STATSD envoy.metrics.statsd=localhost:8125",
	},
	"tls": {
		environ: "GRPC_SERVER_USE_TLS=true\nGRPC_SERVER_TLS_CERT=/c\nGRPC_SERVER_TLS_KEY=/k\nGRPC_CLIENT_TLS_CACERT=/ca",
		given:   "GRPC_SERVER_TLS_CERT server.grpc.tls_cert=/c\nGRPC_SERVER_TLS_KEY server.grpc.tls_key=/k\nGRPC_CLIENT_TLS_CACERT server.grpc.tls_client_ca=/ca",
	},
	"tls without files": {environ: "GRPC_SERVER_USE_TLS=true", problems: "GRPC_SERVER_USE_TLS: needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY, the files of the certificate and its key"},
	"files without tls": {environ: "GRPC_SERVER_TLS_CERT=/c\nGRPC_SERVER_TLS_KEY=/k\nGRPC_CLIENT_TLS_SAN=x", notes: "GRPC_SERVER_TLS_CERT, GRPC_SERVER_TLS_KEY, GRPC_CLIENT_TLS_SAN: no effect without GRPC_SERVER_USE_TLS=true"},
	"san": {
		environ: "GRPC_SERVER_USE_TLS=true\nGRPC_SERVER_TLS_CERT=/c\nGRPC_SERVER_TLS_KEY=/k\nGRPC_CLIENT_TLS_CACERT=/ca\nGRPC_CLIENT_TLS_SAN=envoy",
		given: "GRPC_SERVER_TLS_CERT server.grpc.tls_cert=/c\nGRPC_SERVER_TLS_KEY server.grpc.tls_key=/k\n" +
			"GRPC_CLIENT_TLS_CACERT server.grpc.tls_client_ca=/ca\nGRPC_CLIENT_TLS_SAN server.grpc.tls_client_san=envoy",
	},
	"san of no one": {
		environ: "GRPC_SERVER_USE_TLS=true\nGRPC_SERVER_TLS_CERT=/c\nGRPC_SERVER_TLS_KEY=/k\nGRPC_CLIENT_TLS_SAN=envoy",
		given:   "GRPC_SERVER_TLS_CERT server.grpc.tls_cert=/c\nGRPC_SERVER_TLS_KEY server.grpc.tls_key=/k",
		notes:   "GRPC_CLIENT_TLS_SAN: no effect without GRPC_CLIENT_TLS_CACERT",
	},
	"log":     {environ: "LOG_LEVEL=WARNING\nLOG_FORMAT=JSON", given: "LOG_LEVEL server.log_level=warn\nLOG_FORMAT server.log_format=json"},
	"logs":    {environ: "LOG_LEVEL=trace\nLOG_FORMAT=text", given: "LOG_LEVEL server.log_level=debug\nLOG_FORMAT server.log_format=text"},
	"no logs": {environ: "LOG_LEVEL=loud\nLOG_FORMAT=xml", given: "LOG_FORMAT server.log_format=text", problems: "LOG_LEVEL: \"loud\": want one of debug, info, warn, error, trace, warning, fatal, panic"},

	"files": {
		alone: true, environ: "CONFIG_TYPE=FILE\nRUNTIME_ROOT=/data\nRUNTIME_SUBDIRECTORY=rl\nRUNTIME_APPDIRECTORY=conf\nREDIS_URL=redis:6379",
		given: "RUNTIME_ROOT envoy.config=/data/rl/conf\nREDIS_URL server.counters=redis://redis:6379",
	},
	"files elsewhere": {environ: "RUNTIME_ROOT=/data", notes: "RUNTIME_ROOT: STINT_ENVOY_CONFIG sets where domains come from"},
	"files as they are": {
		environ: "RUNTIME_IGNOREDOTFILES=false\nRUNTIME_WATCH_ROOT=false", given: "RUNTIME_IGNOREDOTFILES envoy.dot_files=true\nRUNTIME_WATCH_ROOT envoy.siblings=false",
	},
	"dot files": {environ: "RUNTIME_IGNOREDOTFILES=true", given: "RUNTIME_IGNOREDOTFILES envoy.dot_files=false"},
	"database":  {environ: "CONFIG_TYPE=SQL", problems: `CONFIG_TYPE: "SQL": want one of FILE, GRPC_XDS_SOTW`},
	"xds":       {environ: "CONFIG_TYPE=GRPC_XDS_SOTW", given: "CONFIG_TYPE envoy.xds.server=localhost:18000"},
	"all of xds": {
		environ: "CONFIG_TYPE=GRPC_XDS_SOTW\nCONFIG_GRPC_XDS_SERVER_URL=xds:18000\nCONFIG_GRPC_XDS_NODE_ID=me\nCONFIG_GRPC_XDS_NODE_METADATA=a=1,b=2\n" +
			"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=x-token:hunter2,x:y\nXDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=1048576\n" +
			"CONFIG_GRPC_XDS_SERVER_USE_TLS=true\nCONFIG_GRPC_XDS_CLIENT_TLS_CERT=/c\nCONFIG_GRPC_XDS_CLIENT_TLS_KEY=/k\n" +
			"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/ca\nCONFIG_GRPC_XDS_SERVER_TLS_SAN=xds.example",
		given: "CONFIG_GRPC_XDS_NODE_ID envoy.xds.node_id=me\nCONFIG_GRPC_XDS_NODE_METADATA envoy.xds.metadata=a=1,b=2\n" +
			"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS envoy.xds.headers=x-token=hunter2,x=y\nCONFIG_GRPC_XDS_SERVER_USE_TLS envoy.xds.tls=true\n" +
			"CONFIG_GRPC_XDS_SERVER_TLS_CACERT envoy.xds.tls_ca=/ca\nCONFIG_GRPC_XDS_SERVER_TLS_SAN envoy.xds.tls_server_name=xds.example\n" +
			"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES envoy.xds.max_message=1048576\n" +
			"CONFIG_GRPC_XDS_CLIENT_TLS_CERT envoy.xds.tls_cert=/c\nCONFIG_GRPC_XDS_CLIENT_TLS_KEY envoy.xds.tls_key=/k\nCONFIG_GRPC_XDS_SERVER_URL envoy.xds.server=xds:18000",
	},
	"xds that waits": {
		environ: "CONFIG_TYPE=GRPC_XDS_SOTW\nCONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=3s\nXDS_CLIENT_BACKOFF_INITIAL_INTERVAL=1s\n" +
			"XDS_CLIENT_BACKOFF_MAX_INTERVAL=1m\nXDS_CLIENT_BACKOFF_RANDOM_FACTOR=0.5\nXDS_CLIENT_BACKOFF_JITTER=true",
		given: "CONFIG_TYPE envoy.xds.server=localhost:18000",
		notes: "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL, XDS_CLIENT_BACKOFF_INITIAL_INTERVAL, XDS_CLIENT_BACKOFF_MAX_INTERVAL, " +
			"XDS_CLIENT_BACKOFF_RANDOM_FACTOR, XDS_CLIENT_BACKOFF_JITTER: " + backoff,
	},
	"xds loosely":     {environ: "CONFIG_TYPE=GRPC_XDS_SOTW\nCONFIG_GRPC_XDS_NODE_METADATA=a:1,b=2,=c\nXDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=0", given: "CONFIG_GRPC_XDS_NODE_METADATA envoy.xds.metadata=b=2\nCONFIG_TYPE envoy.xds.server=localhost:18000"},
	"no factor":       {environ: "XDS_CLIENT_BACKOFF_RANDOM_FACTOR=half", problems: `XDS_CLIENT_BACKOFF_RANDOM_FACTOR: "half": want a number`},
	"headers":         {environ: "CONFIG_TYPE=GRPC_XDS_SOTW\nCONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=hunter2", given: "CONFIG_TYPE envoy.xds.server=localhost:18000", problems: "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: want name:value, separated by commas"},
	"no xds":          {environ: "CONFIG_GRPC_XDS_NODE_ID=me", notes: "CONFIG_GRPC_XDS_NODE_ID: no effect without CONFIG_TYPE=GRPC_XDS_SOTW"},
	"xds, and no tls": {environ: "CONFIG_TYPE=GRPC_XDS_SOTW\nCONFIG_GRPC_XDS_SERVER_TLS_CACERT=/ca", given: "CONFIG_TYPE envoy.xds.server=localhost:18000", notes: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT: no effect without CONFIG_GRPC_XDS_SERVER_USE_TLS=true"},
	"tls, and no xds": {environ: "CONFIG_GRPC_XDS_SERVER_USE_TLS=true\nCONFIG_GRPC_XDS_SERVER_TLS_CACERT=/ca", notes: "CONFIG_GRPC_XDS_SERVER_USE_TLS: no effect without CONFIG_TYPE=GRPC_XDS_SOTW\nCONFIG_GRPC_XDS_SERVER_TLS_CACERT: no effect without CONFIG_GRPC_XDS_SERVER_USE_TLS=true"},
	"files with xds":  {environ: "CONFIG_TYPE=GRPC_XDS_SOTW\nRUNTIME_ROOT=/data", given: "CONFIG_TYPE envoy.xds.server=localhost:18000", notes: "RUNTIME_ROOT: no effect without CONFIG_TYPE=FILE"},
	"health":          {environ: "FORCE_START_WITHOUT_INITIAL_CONFIG=true\nHEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true", given: "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED envoy.health_needs=domains", notes: "FORCE_START_WITHOUT_INITIAL_CONFIG: " + alwaysSo},
	"health of redis": {environ: "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true\nREDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true", given: "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED envoy.health_needs=domains,redis"},
	"any health":      {environ: "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=false\nREDIS_HEALTH_CHECK_ACTIVE_CONNECTION=false"},
	"statsd":          {environ: "USE_STATSD=t\nSTATSD_HOST=x\nSTATSD_PORT=1\nEXTRA_TAGS=a:b,c:d\nSTATS_FLUSH_INTERVAL=1s", given: "EXTRA_TAGS envoy.metrics.tags=a=b,c=d\nSTATS_FLUSH_INTERVAL envoy.metrics.interval=1s\nSTATSD_HOST envoy.metrics.statsd=x:1"},
	"statsd by udp":   {environ: "STATSD_PROTOCOL=udp\nSTATSD_PORT=1", given: "STATSD_PORT envoy.metrics.statsd=localhost:1\nSTATSD_PROTOCOL envoy.metrics.protocol=udp"},
	"dogstatsd":       {environ: "USE_DOG_STATSD=true\nUSE_DOG_STATSD_MOGRIFIERS=x\nUSE_STATSD=false", given: "USE_DOG_STATSD envoy.metrics.statsd=localhost:8125\nUSE_DOG_STATSD envoy.metrics.protocol=dogstatsd", notes: "USE_DOG_STATSD_MOGRIFIERS: metrics cannot be renamed: do that where they are received"},
	"no statsd":       {environ: "USE_STATSD=false\nUSE_DOG_STATSD=0\nDISABLE_STATS=F\nSTATSD_HOST=x", notes: "STATSD_HOST: no effect without USE_STATSD=true"},
	"no stats":        {environ: "USE_STATSD=true\nDISABLE_STATS=true", notes: "USE_STATSD: no effect with DISABLE_STATS=true"},
	"not even a bool": {environ: "USE_STATSD=no", problems: `USE_STATSD: "no": want true or false`},
	"caches":          {given: "LOCAL_CACHE_SIZE_IN_BYTES envoy.metrics.local_cache=true", environ: "LOCAL_CACHE_SIZE_IN_BYTES=4096\nEXPIRATION_JITTER_MAX_SECONDS=0x5", notes: "EXPIRATION_JITTER_MAX_SECONDS: counters expire when they are no longer needed, so there is nothing to set\nLOCAL_CACHE_SIZE_IN_BYTES: denials are always cached, so its size has no effect"},
	"caches as here":  {environ: "LOCAL_CACHE_SIZE_IN_BYTES=0"},
	"apart":           {environ: "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=false", given: "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT envoy.independent=true"},
	"together":        {environ: "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true", given: "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT envoy.independent=false"},
	"ratio":           {environ: "NEAR_LIMIT_RATIO=0.85", given: "NEAR_LIMIT_RATIO envoy.near_limit_percent=85"},
	"any ratio":       {environ: "NEAR_LIMIT_RATIO=85", given: "NEAR_LIMIT_RATIO envoy.near_limit_percent=100"},
	"no ratio":        {environ: "NEAR_LIMIT_RATIO=0", given: "NEAR_LIMIT_RATIO envoy.near_limit_percent=1"},
	"not a number":    {environ: "NEAR_LIMIT_RATIO=NaN", problems: `NEAR_LIMIT_RATIO: "NaN": want a number from 0 to 1, such as 0.8`},
	"no headers": {
		environ: "LIMIT_LIMIT_HEADER=a b\nLIMIT_REMAINING_HEADER=b\nLIMIT_RESET_HEADER=c:", given: "LIMIT_REMAINING_HEADER envoy.remaining_header=b",
		notes: "LIMIT_LIMIT_HEADER, LIMIT_RESET_HEADER: not the name of a header, so the default is used",
	},
	"incomplete tags": {
		environ: "EXTRA_TAGS=env:,a:b,:c", given: "EXTRA_TAGS envoy.metrics.tags=a=b",
		notes: "EXTRA_TAGS: tags without a name or a value are left out: give them both",
	},
	"no tags":            {environ: "EXTRA_TAGS=env:", notes: "EXTRA_TAGS: tags without a name or a value are left out: give them both"},
	"flushed often":      {environ: "STATS_FLUSH_INTERVAL=50ms", given: "STATS_FLUSH_INTERVAL envoy.metrics.interval=100ms"},
	"flushed seldom":     {environ: "STATS_FLUSH_INTERVAL=2h", given: "STATS_FLUSH_INTERVAL envoy.metrics.interval=1h"},
	"no debug port":      {environ: "DEBUG_PORT=99999", notes: "DEBUG_PORT: there is no such port, so the debug port is not open: want 1 to 65535"},
	"prometheus nowhere": {environ: "USE_PROMETHEUS=true\nPROMETHEUS_ADDR=x\nPROMETHEUS_PATH=/m?", notes: "PROMETHEUS_PATH: no path without ?, #, braces and spaces, so the default is used\nPROMETHEUS_ADDR: not host:port, so Prometheus gets no metrics"},
	"response headers":   {environ: "LIMIT_RESPONSE_HEADERS_ENABLED=true\nLIMIT_LIMIT_HEADER=a\nLIMIT_REMAINING_HEADER=b\nLIMIT_RESET_HEADER=c", given: "LIMIT_RESPONSE_HEADERS_ENABLED envoy.response_headers=true\nLIMIT_LIMIT_HEADER envoy.limit_header=a\nLIMIT_REMAINING_HEADER envoy.remaining_header=b\nLIMIT_RESET_HEADER envoy.reset_header=c"},
	"modes":              {environ: "SHADOW_MODE=true\nQUOTA_MODE=true\nRESPONSE_DYNAMIC_METADATA=true\nMERGE_DOMAIN_CONFIG=true", given: "SHADOW_MODE envoy.shadow_mode=true\nQUOTA_MODE envoy.quota_mode=true\nRESPONSE_DYNAMIC_METADATA envoy.dynamic_metadata=true\nMERGE_DOMAIN_CONFIG envoy.merge_domains=true"},

	"redis":          {alone: true, environ: redisAt("REDIS_SOCKET_TYPE=tcp\nREDIS_TYPE=single\nREDIS_URL=[::1]:6379"), given: counters("redis://[::1]:6379")},
	"redis password": {alone: true, environ: redisAt("REDIS_URL=r:1\nREDIS_AUTH=hunter2,/?#@%+ &"), given: counters("redis://:hunter2%2C%2F%3F%23%40%25%2B%20%26@r:1")},
	"redis user":     {alone: true, environ: redisAt("REDIS_URL=r:1\nREDIS_AUTH=me:hunter2"), given: counters("redis://me:hunter2@r:1")},
	"redis no one":   {alone: true, environ: redisAt("REDIS_URL=r:1\nREDIS_AUTH=hunter2:"), given: counters("redis://r:1"), notes: "REDIS_AUTH: has no password: want a password, or user:password"},
	"redis as a URL": {alone: true, environ: redisAt("REDIS_URL=redis://me:hunter2@r:1/2"), given: counters("redis://me:hunter2@r:1/2")},
	"redis with TLS": {alone: true, environ: redisAt("REDIS_URL=rediss://me@r:1"), given: counters("rediss://r:1")},
	"redis twice":    {alone: true, environ: redisAt("REDIS_URL=redis://me:other@r:1\nREDIS_AUTH=hunter2"), given: counters("redis://:hunter2@r:1")},
	"redis query":    {alone: true, environ: redisAt("REDIS_URL=redis://r:1?username=me&password=hunter2&db=3#x"), given: counters("redis://me:hunter2@r:1/3")},
	"no redis query": {alone: true, environ: redisAt("REDIS_URL=redis://hunter2@%zz?"), given: files, problems: "REDIS_URL: want redis://user:password@host:port/db, or host:port, such as redis:6379"},
	"redis socket":   {alone: true, environ: redisAt("REDIS_URL=/run/redis.sock\nREDIS_AUTH=hunter2\nREDIS_SOCKET_TYPE=unix"), given: counters("redis://:hunter2@localhost?socket=%2Frun%2Fredis.sock")},
	"a short path":   {alone: true, environ: redisAt("REDIS_URL=redis.sock\nREDIS_SOCKET_TYPE=unix"), given: counters("redis://localhost?socket=redis.sock")},
	"no short path":  {alone: true, environ: redisAt("REDIS_URL=r:1\nREDIS_SOCKET_TYPE=unix"), given: counters("redis://r:1")},
	"redis list":     {alone: true, environ: redisAt("REDIS_URL=a:1,b:1"), given: files, problems: `REDIS_URL: "a:1,b:1": want host:port, such as redis:6379`},
	"redis port":     {alone: true, environ: redisAt("REDIS_URL=hunter2@r"), given: files, problems: `REDIS_URL: want host:port, such as redis:6379`},
	"redis secret":   {alone: true, environ: redisAt("REDIS_URL=hunter2"), given: files, problems: `REDIS_URL: want host:port, such as redis:6379`},
	"redis by pigeon": {
		alone: true, environ: redisAt("REDIS_URL=r:1\nREDIS_SOCKET_TYPE=pigeon\nREDIS_TYPE=RING"), given: counters("redis://r:1"),
		problems: "REDIS_SOCKET_TYPE: \"pigeon\": want one of tcp, unix, tcp4, tcp6\nREDIS_TYPE: \"RING\": want one of SINGLE, SENTINEL, CLUSTER",
	},
	"redis cluster":  {alone: true, environ: redisAt("REDIS_TYPE=CLUSTER\nREDIS_URL=a:1,redis://:hunter2@b:2/0\nREDIS_SOCKET_TYPE=tcp4"), given: counters("redis+cluster://:hunter2@a:1,b:2")},
	"redis sentinel": {alone: true, environ: redisAt("REDIS_TYPE=SENTINEL\nREDIS_URL=main,a:1,b:2\nREDIS_AUTH=x\nREDIS_SENTINEL_AUTH=me:hunter2"), given: counters("redis+sentinel://:x@a:1,b:2/main?sentinel_password=hunter2&sentinel_user=me")},
	"redis sentinel without a name": {
		alone: true, environ: redisAt("REDIS_TYPE=SENTINEL\nREDIS_URL=a:1,b:2\nREDIS_SENTINEL_AUTH=hunter2"), given: files,
		problems: `REDIS_URL: "a:1,b:2": want the name of the primary, followed by the sentinels as host:port, separated by commas`,
	},
	"redis without sentinels": {alone: true, environ: redisAt("REDIS_URL=r:1\nREDIS_SENTINEL_AUTH=hunter2"), given: counters("redis://r:1"), notes: "REDIS_SENTINEL_AUTH: no effect without REDIS_TYPE=SENTINEL"},
	"redis tls": {
		alone: true, environ: redisAt("REDIS_URL=r:1\nREDIS_TLS=true\nREDIS_TLS_CACERT=CERT\nREDIS_TLS_CLIENT_CERT=CERT\nREDIS_TLS_CLIENT_KEY=KEY\nREDIS_TLS_SKIP_HOSTNAME_VERIFICATION=false"),
		given: counters("rediss://r:1?tls_ca=CERT&tls_cert=CERT&tls_key=KEY"),
	},
	"redis any name":  {alone: true, environ: redisAt("REDIS_URL=r:1\nREDIS_TLS=true\nREDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true"), given: counters("rediss://r:1?tls_any_name=true")},
	"half a pair":     {alone: true, environ: redisAt("REDIS_URL=r:1\nREDIS_TLS=true\nREDIS_TLS_CLIENT_CERT=CERT"), given: counters("rediss://r:1"), notes: "REDIS_TLS_CLIENT_CERT: no effect without REDIS_TLS_CLIENT_KEY"},
	"redis no tls":    {alone: true, environ: redisAt("REDIS_URL=r:1\nREDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true\nREDIS_TLS_CACERT=/ca"), given: counters("redis://r:1"), notes: "REDIS_TLS_CACERT, REDIS_TLS_SKIP_HOSTNAME_VERIFICATION: no effect without REDIS_TLS=true"},
	"redis timeout":   {alone: true, environ: redisAt("REDIS_URL=r:1\nREDIS_TIMEOUT=1500ms\nCACHE_KEY_PREFIX=shop:"), given: counters("redis://r:1?dial_timeout=1500ms&prefix=shop%3A&timeout=1500ms") + "\nREDIS_TIMEOUT server.store_budget=1500ms"},
	"redis in haste":  {alone: true, environ: redisAt("REDIS_URL=r:1\nREDIS_TIMEOUT=20ms"), given: counters("redis://r:1?dial_timeout=20ms&timeout=20ms")},
	"redis forever":   {alone: true, environ: redisAt("REDIS_URL=r:1\nREDIS_TIMEOUT=0"), given: counters("redis://r:1?dial_timeout=1m&timeout=1m") + "\nREDIS_TIMEOUT server.store_budget=1m"},
	"redis too late":  {alone: true, environ: redisAt("REDIS_URL=r:1\nREDIS_TIMEOUT=90s"), given: counters("redis://r:1?dial_timeout=1m&timeout=1m") + "\nREDIS_TIMEOUT server.store_budget=1m"},
	"redis prefix":    {alone: true, environ: redisAt("REDIS_URL=r:1\nCACHE_KEY_PREFIX={shop}"), given: counters("redis://r:1?prefix=-shop--19891de3d5"), notes: "CACHE_KEY_PREFIX: has characters that are not supported, or more than 32: keys begin with -shop--19891de3d5"},
	"redis elsewhere": {environ: "REDIS_URL=/run/redis.sock\nREDIS_TLS=true\nBACKEND_TYPE=memcache\nCACHE_KEY_PREFIX=x", notes: "CACHE_KEY_PREFIX, BACKEND_TYPE, REDIS_URL, REDIS_TLS: STINT_SERVER_COUNTERS sets where counters are stored"},
	"redis pool":      {environ: "REDIS_POOL_SIZE=100\nREDIS_POOL_ON_EMPTY_BEHAVIOR=WAIT", notes: "REDIS_POOL_SIZE, REDIS_POOL_ON_EMPTY_BEHAVIOR: " + pool},
	"redis pipeline":  {environ: "REDIS_PIPELINE_WINDOW=150us\nREDIS_PIPELINE_LIMIT=8\nREDIS_CLUSTER_PIPELINE_PARALLELISM=0", notes: "REDIS_PIPELINE_WINDOW, REDIS_PIPELINE_LIMIT, REDIS_CLUSTER_PIPELINE_PARALLELISM: concurrent requests are always pipelined, so there is nothing to set"},
	"redis startup":   {environ: "REDIS_STARTUP_INITIAL_INTERVAL=1s\nREDIS_STARTUP_MAX_INTERVAL=30s\nREDIS_STARTUP_MAX_ELAPSED_TIME=0", notes: "REDIS_STARTUP_INITIAL_INTERVAL, REDIS_STARTUP_MAX_INTERVAL, REDIS_STARTUP_MAX_ELAPSED_TIME: the server starts without Redis, and connects as soon as it can, so there is nothing to set"},
	"redis health":    {environ: "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true", given: "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION envoy.health_needs=redis"},
	"no persecond":    {environ: "REDIS_PERSECOND=false"},
	"persecond": {
		environ: "REDIS_PERSECOND=true\nREDIS_PERSECOND_SOCKET_TYPE=tcp\nREDIS_PERSECOND_TYPE=SINGLE\nREDIS_PERSECOND_URL=r:2\nREDIS_PERSECOND_POOL_SIZE=1\n" +
			"REDIS_PERSECOND_AUTH=hunter2\nREDIS_PERSECOND_TLS=true\nREDIS_PERSECOND_SENTINEL_AUTH=hunter2\nREDIS_PERSECOND_PIPELINE_WINDOW=1ms\n" +
			"REDIS_PERSECOND_PIPELINE_LIMIT=1\nREDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM=4\nREDIS_PERSECOND_TIMEOUT=1s\nREDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR=WAIT",
		notes: "REDIS_PERSECOND, REDIS_PERSECOND_SOCKET_TYPE, REDIS_PERSECOND_TYPE, REDIS_PERSECOND_URL, REDIS_PERSECOND_POOL_SIZE, REDIS_PERSECOND_AUTH, " +
			"REDIS_PERSECOND_TLS, REDIS_PERSECOND_SENTINEL_AUTH, REDIS_PERSECOND_PIPELINE_WINDOW, REDIS_PERSECOND_PIPELINE_LIMIT, REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM, REDIS_PERSECOND_TIMEOUT, " +
			"REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR: all counters are in one Redis: with REDIS_TYPE=CLUSTER it can have many servers",
	},
	"memcache": {
		alone: true, environ: redisAt("BACKEND_TYPE=memcache\nMEMCACHE_HOST_PORT=m:1\nMEMCACHE_MAX_IDLE_CONNS=2\nMEMCACHE_SRV=x\nMEMCACHE_SRV_REFRESH=1s\nMEMCACHE_TLS=true\n" +
			"MEMCACHE_TLS_CLIENT_CERT=/c\nMEMCACHE_TLS_CLIENT_KEY=/k\nMEMCACHE_TLS_CACERT=/ca\nMEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION=true"), given: files + "\nBACKEND_TYPE server.counters=memory:",
		notes: "MEMCACHE_HOST_PORT, MEMCACHE_MAX_IDLE_CONNS, MEMCACHE_SRV, MEMCACHE_SRV_REFRESH, MEMCACHE_TLS, MEMCACHE_TLS_CLIENT_CERT, MEMCACHE_TLS_CLIENT_KEY, " +
			"MEMCACHE_TLS_CACERT, MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION: " + memcache + "\n" +
			"BACKEND_TYPE: memcached is not supported, so each node counts by itself, in memory: set REDIS_URL for several nodes",
	},
	"memcache and redis": {alone: true, environ: redisAt("BACKEND_TYPE=memcache\nREDIS_URL=r:1"), given: counters("redis://r:1")},

	"tracing": {environ: "TRACING_ENABLED=true", given: "TRACING_ENABLED server.trace.endpoint=http://localhost:4318\nTRACING_ENABLED server.trace.sample=10000"},
	"tracing some": {
		environ: "TRACING_ENABLED=true\nOTEL_EXPORTER_OTLP_ENDPOINT=http://otel:4318/\nTRACING_SAMPLING_RATE=0.01\nTRACING_EXPORTER_PROTOCOL=http",
		given:   "OTEL_EXPORTER_OTLP_ENDPOINT server.trace.endpoint=http://otel:4318\nTRACING_SAMPLING_RATE server.trace.sample=100",
	},
	"tracing by grpc": {
		environ: "TRACING_ENABLED=true\nTRACING_EXPORTER_PROTOCOL=grpc\nTRACING_SAMPLING_RATE=2",
		notes:   "TRACING_EXPORTER_PROTOCOL: nothing is traced: spans are sent over HTTP, so set STINT_SERVER_TRACE_ENDPOINT, such as http://localhost:4318",
	},
	"tracing by name": {environ: "TRACING_ENABLED=true\nOTEL_EXPORTER_OTLP_ENDPOINT=otel:4318", given: "OTEL_EXPORTER_OTLP_ENDPOINT server.trace.endpoint=http://otel:4318\nTRACING_ENABLED server.trace.sample=10000"},
	"tracing names": {
		environ: "TRACING_ENABLED=true\nTRACING_SERVICE_NAME=a\nTRACING_SERVICE_NAMESPACE=b\nTRACING_SERVICE_INSTANCE_ID=c",
		given:   "TRACING_ENABLED server.trace.endpoint=http://localhost:4318\nTRACING_ENABLED server.trace.sample=10000",
		notes:   "TRACING_SERVICE_NAME, TRACING_SERVICE_NAMESPACE, TRACING_SERVICE_INSTANCE_ID: the service name of spans is always stint: look for that, or rename it in the collector",
	},
	"traced at": {
		environ: "TRACING_ENABLED=true\nOTEL_EXPORTER_OTLP_ENDPOINT=http://other:4318\nOTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://otel:4318/v1/traces",
		given:   "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT server.trace.endpoint=https://otel:4318\nTRACING_ENABLED server.trace.sample=10000",
	},
	"traced elsewhere": {
		environ: "TRACING_ENABLED=true\nOTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://otel:4318/spans",
		given:   "TRACING_ENABLED server.trace.endpoint=http://localhost:4318\nTRACING_ENABLED server.trace.sample=10000",
		notes:   "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: no effect, because it does not end in /v1/traces: set STINT_SERVER_TRACE_ENDPOINT to what is before that",
	},
	"no tracing": {environ: "TRACING_ENABLED=false\nTRACING_SAMPLING_RATE=x\nTRACING_SERVICE_NAME=x", notes: "TRACING_SERVICE_NAME: no effect without TRACING_ENABLED=true", problems: `TRACING_SAMPLING_RATE: "x": want a number from 0 to 1, such as 0.01`},
}

const files = "RUNTIME_ROOT envoy.config=/data/config"

// redisAt returns an environment that is complete except for counters.
func redisAt(environ string) string { return "RUNTIME_ROOT=/data\n" + environ }

func counters(url string) string { return files + "\nREDIS_URL server.counters=" + url }

// newPair writes the certificate of a test server, and its key.
func newPair(t *testing.T, cert, key string) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	private, err := x509.MarshalPKCS8PrivateKey(s.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: s.Certificate().Raw}, key: {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRead checks the settings of environments.
func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	newPair(t, cert, key)
	defaults := daemon.Defaults()
	path := func(text string) string { return strings.NewReplacer("=CERT", "="+cert, "=KEY", "="+key).Replace(text) }
	escaped := strings.NewReplacer("=CERT", "="+strings.ReplaceAll(cert, "/", "%2F"), "=KEY", "="+strings.ReplaceAll(key, "/", "%2F"))
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			environ := strings.Split(path(row.environ), "\n")
			set := elsewhere
			if row.alone {
				set = nil
			}
			given, notes, err := envoyenv.Read(environ, set)
			var lines []string
			for _, s := range given {
				if !s.Default { // as TestDefaults checks
					lines = append(lines, s.Variable+" "+s.Name+"="+s.Value)
				}
			}
			compareLines(t, "given", lines, escaped.Replace(row.given))
			compareLines(t, "notes", notes, row.notes)
			problems := ""
			if len(err) > 0 {
				problems = err.Error()
			}
			compareLines(t, "problems", strings.Split(problems, "\n"), row.problems)
			if strings.Contains(problems+strings.Join(notes, ""), "hunter2") {
				t.Error("it tells the password")
			}
			for _, s := range given {
				if !slices.ContainsFunc(defaults, func(d daemon.Setting) bool { return d.Name == s.Name }) {
					t.Errorf("there is no setting %s", s.Name)
				}
				if s.Name != "server.counters" || s.Value == "memory:" {
					continue
				}
				store, err := redisstore.Open(s.Value, redisstore.Options{})
				if err != nil {
					t.Fatal(err)
				}
				if err := store.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func compareLines(t *testing.T, what string, got []string, want string) {
	t.Helper()
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("%s:\n%s\nwant:\n%s", what, text, want)
	}
}

// TestDefaults checks that listeners for Envoy have the addresses of envoyproxy/ratelimit,
// which are open to other machines, and that files and requests are treated as there, unless
// something else says how.
func TestDefaults(t *testing.T) {
	t.Parallel()
	const (
		http, grpc = "HOST server.http.address=0.0.0.0:8080 true", "\nGRPC_HOST server.grpc.address=0.0.0.0:8081 true"
		statsd     = "\nUSE_STATSD envoy.metrics.statsd=localhost:8125 true"
		metrics    = "\nUSE_PROMETHEUS envoy.metrics.address=:9090 false"
		semantics  = "\n--envoy-env envoy.independent=true true\n--envoy-env envoy.fixed_months=true true"
		alike      = "\n--envoy-env envoy.dot_files=true true\n--envoy-env envoy.siblings=false true\n--envoy-env envoy.allow_empty=true true" + semantics
	)
	for environ, want := range map[string]string{
		"":                          http + grpc + alike + statsd,
		"PORT=1\nGRPC_HOST=::1":     "PORT server.http.address=0.0.0.0:1 false\nGRPC_HOST server.grpc.address=[::1]:8081 false" + alike + statsd,
		"RUNTIME_SUBDIRECTORY=rl":   http + grpc + strings.Replace(alike, "siblings=false", "siblings=true", 1) + statsd,
		"GRPC_UDS=/rl.sock":         http + "\nGRPC_UDS server.grpc.address=unix:/rl.sock false" + alike + statsd,
		"CONFIG_TYPE=GRPC_XDS_SOTW": http + grpc + "\nCONFIG_TYPE envoy.xds.server=localhost:18000 false" + semantics + statsd,
		// The admin API makes room.
		"USE_PROMETHEUS=true": http + grpc + alike + metrics + "\nUSE_PROMETHEUS server.admin.address=127.0.0.1:9091 true",
		"USE_PROMETHEUS=true\nDEBUG_PORT=9091": http + grpc + alike + "\nDEBUG_PORT envoy.debug.address=0.0.0.0:9091 false" + metrics +
			"\nUSE_PROMETHEUS server.admin.address=127.0.0.1:9092 true",
	} {
		given, _, _ := envoyenv.Read(strings.Split(environ, "\n"), elsewhere)
		var lines []string
		for _, s := range given {
			lines = append(lines, fmt.Sprintf("%s %s=%s %v", s.Variable, s.Name, s.Value, s.Default))
		}
		compareLines(t, environ, lines, want)
	}
}

// TestVariables checks that all variables of envoyproxy/ratelimit are known, and
// that each is in a row of the test above, and in docs/envoy.md.
func TestVariables(t *testing.T) {
	t.Parallel()
	theirs := strings.Fields(`
		HOST PORT DEBUG_HOST DEBUG_PORT GRPC_UDS GRPC_HOST GRPC_PORT GRPC_MAX_CONNECTION_AGE GRPC_MAX_CONNECTION_AGE_GRACE
		GRPC_SERVER_USE_TLS GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN LOG_LEVEL LOG_FORMAT
		CONFIG_TYPE FORCE_START_WITHOUT_INITIAL_CONFIG CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA CONFIG_GRPC_XDS_SERVER_URL
		CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS CONFIG_GRPC_XDS_SERVER_USE_TLS
		CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN
		XDS_CLIENT_BACKOFF_INITIAL_INTERVAL XDS_CLIENT_BACKOFF_MAX_INTERVAL XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_BACKOFF_JITTER
		XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS USE_STATSD STATSD_HOST STATSD_PORT STATSD_PROTOCOL EXTRA_TAGS
		STATS_FLUSH_INTERVAL DISABLE_STATS USE_PROMETHEUS PROMETHEUS_ADDR PROMETHEUS_PATH PROMETHEUS_MAPPER_YAML PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS RUNTIME_ROOT
		RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY RUNTIME_IGNOREDOTFILES RUNTIME_WATCH_ROOT EXPIRATION_JITTER_MAX_SECONDS
		LOCAL_CACHE_SIZE_IN_BYTES NEAR_LIMIT_RATIO CACHE_KEY_PREFIX BACKEND_TYPE STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT
		LIMIT_RESPONSE_HEADERS_ENABLED LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER
		HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED REDIS_SOCKET_TYPE REDIS_TYPE REDIS_URL REDIS_POOL_SIZE REDIS_AUTH REDIS_TLS
		REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY REDIS_TLS_CACERT REDIS_TLS_SKIP_HOSTNAME_VERIFICATION REDIS_PIPELINE_WINDOW
		REDIS_PIPELINE_LIMIT REDIS_PERSECOND REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL
		REDIS_PERSECOND_POOL_SIZE REDIS_PERSECOND_AUTH REDIS_PERSECOND_TLS REDIS_SENTINEL_AUTH REDIS_PERSECOND_SENTINEL_AUTH
		REDIS_PERSECOND_PIPELINE_WINDOW REDIS_PERSECOND_PIPELINE_LIMIT REDIS_HEALTH_CHECK_ACTIVE_CONNECTION REDIS_TIMEOUT
		REDIS_PERSECOND_TIMEOUT REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR MEMCACHE_HOST_PORT
		MEMCACHE_MAX_IDLE_CONNS MEMCACHE_SRV MEMCACHE_SRV_REFRESH MEMCACHE_TLS MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY
		MEMCACHE_TLS_CACERT MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION SHADOW_MODE QUOTA_MODE RESPONSE_DYNAMIC_METADATA
		MERGE_DOMAIN_CONFIG TRACING_ENABLED TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID
		TRACING_EXPORTER_PROTOCOL TRACING_SAMPLING_RATE OTEL_EXPORTER_OTLP_ENDPOINT OTEL_EXPORTER_OTLP_TRACES_ENDPOINT REDIS_CLUSTER_PIPELINE_PARALLELISM
		REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_INTERVAL REDIS_STARTUP_MAX_ELAPSED_TIME`)
	ours := envoyenv.Names()
	for _, name := range theirs {
		if !slices.Contains(ours, name) {
			t.Errorf("%s is not known", name)
		}
	}
	var all strings.Builder
	for _, row := range rows {
		all.WriteString("\n" + row.environ)
	}
	_, document, _ := strings.Cut(testdoc.Documents(t)["docs/envoy.md"], "\n## Environment\n")
	for _, name := range ours {
		if !strings.Contains(document, "`"+name+"`") {
			t.Errorf("%s is not in docs/envoy.md", name)
		}
		if !slices.Contains(theirs, name) {
			t.Errorf("%s is not theirs", name)
		}
		if !strings.Contains(all.String(), "\n"+name+"=") {
			t.Errorf("%s is in no row", name)
		}
	}
}
