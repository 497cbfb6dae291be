package importer

import (
	"slices"
	"strings"
)

// These directives of nginx have nothing to do with how much may pass. Families of them begin with the same words.
var (
	irrelevantFamilies = []string{
		"proxy_", "fastcgi_", "uwsgi_", "scgi_", "grpc_", "memcached_", "ssl_", "gzip", "auth_", "access_log", "client_", "open_", "log_",
		"add_", "expires", "sendfile", "tcp_", "types", "resolver", "keepalive", "http2_", "http3", "quic_", "brotli", "subrequest_", "sub_filter",
		"charset", "error_", "worker_", "aio", "directio", "index", "autoindex", "root", "alias", "try_files", "real_ip_recursive", "image_filter",
		"mp4", "flv", "dav_", "geoip", "geoip2", "perl_", "js_", "lua_", "modsecurity", "stub_status", "userid", "xslt_", "secure_link", "session_log",
		"zstd", "otel_", "opentracing", "health_check", "status", "large_client_", "send_", "reset_", "recursive_", "merge_", "server_name",
		"variables_hash_", "map_hash_", "types_hash_", "override_charset", "ignore_invalid", "underscores_", "chunked_", "connection_pool", "output_",
		"postpone_", "read_ahead", "request_pool", "msie_", "port_in_", "absolute_redirect", "satisfy", "source_charset", "random_index", "referer_", "valid_referers", "slice",
		"mirror", "ssi", "thread_pool", "timer_", "accept_", "debug_", "pcre_", "master_", "min_", "etag", "if_modified", "disable_symlinks", "default_type", "max_ranges", "more_", "headers_more", "zone", "preread_", "addition_", "empty_gif", "uninitialized_", "rewrite_log", "limit_req_log_level", "limit_conn_log_level", "browser", "ancient_", "modern_", "vhost_traffic_status",
	}
	irrelevant = []string{
		"user", "pid", "daemon", "env", "lock_file", "load_module", "events", "use", "multi_accept", "listen", "server_tokens", "allow", "deny", "set_real_ip_from",
		"real_ip_header", "internal", "rewrite", "break", "limit_except", "ip_hash", "least_conn", "hash", "random", "ntlm", "least_time", "sticky", "state", "queue", "api", "upstream_conf", "lingering_close", "lingering_time", "lingering_timeout", "http", "mail", "split_clients", "ssl", "match", "protocol", "off", "perl", "geoproxy",
	}
	// bandwidth is how fast bytes are sent.
	bandwidth = []string{"limit_rate", "limit_rate_after", "proxy_limit_rate", "fastcgi_limit_rate", "uwsgi_limit_rate", "scgi_limit_rate"}
)

// isIrrelevant reports whether a directive is known not to limit requests.
func isIrrelevant(name string) bool {
	return slices.Contains(irrelevant, name) || slices.ContainsFunc(irrelevantFamilies, func(f string) bool { return strings.HasPrefix(name, f) })
}
