package envoyenv

import (
	"cmp"
	"net"
	"strconv"
	"strings"
)

// healthOfRedis is about health, unlike other variables of Redis.
const healthOfRedis = "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"

// operate sets what operators look at: the debug port, metrics and health.
func (r *reader) operate() {
	if name := r.firstSet("DEBUG_PORT", "DEBUG_HOST"); name != "" {
		if address := net.JoinHostPort(r.get("DEBUG_HOST"), r.get("DEBUG_PORT")); hasPort(address) {
			r.give(name, "envoy.debug.address", address)
		} else {
			r.note(name, "there is no such port, so the debug port is not open: want 1 to 65535")
		}
	}
	if r.get("DISABLE_STATS") == "true" {
		if name := r.firstSet("USE_PROMETHEUS", "USE_STATSD", "USE_DOG_STATSD"); name != "" && r.get(name) == "true" {
			r.note(name, "no effect with DISABLE_STATS=true")
		}
	} else {
		if r.get("USE_PROMETHEUS") == "true" {
			if address := r.get("PROMETHEUS_ADDR"); hasPort(address) {
				r.give(cmp.Or(r.firstSet("PROMETHEUS_ADDR"), "USE_PROMETHEUS"), "envoy.metrics.address", address)
			} else {
				r.note("PROMETHEUS_ADDR", "not host:port, so Prometheus gets no metrics")
			}
		}
		r.statsd()
	}
	if r.get("LOCAL_CACHE_SIZE_IN_BYTES") != "" && r.get("LOCAL_CACHE_SIZE_IN_BYTES") != "0" {
		r.give("LOCAL_CACHE_SIZE_IN_BYTES", "envoy.metrics.local_cache", "true")
	}
	var needs []string
	name := ""
	for _, n := range [][2]string{{"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "domains"}, {healthOfRedis, "redis"}} {
		if r.get(n[0]) == "true" {
			needs, name = append(needs, n[1]), cmp.Or(name, n[0])
		}
	}
	if needs != nil {
		r.give(name, "envoy.health_needs", strings.Join(needs, ","))
	}
	r.admin()
}

// hasPort reports whether an address is one to listen at.
func hasPort(address string) bool {
	_, port, err := net.SplitHostPort(address)
	_, bad := strconv.ParseUint(port, 10, 16)
	return err == nil && bad == nil
}

// statsd sets the server that gets metrics. It is on by default, unless the metrics go elsewhere:
// envoyproxy/ratelimit does not start with two of them.
func (r *reader) statsd() {
	dog, isSet := r.get("USE_DOG_STATSD") == "true", r.firstSet("USE_STATSD") != ""
	if !dog && (r.get("USE_STATSD") != "true" || !isSet && r.get("USE_PROMETHEUS") == "true") {
		for _, name := range []string{"STATSD_HOST", "STATSD_PORT", "STATSD_PROTOCOL"} {
			if r.firstSet(name) != "" {
				r.note(name, "no effect without USE_STATSD=true")
			}
		}
		return
	}
	name := cmp.Or(r.firstSet("STATSD_HOST", "STATSD_PORT", "USE_STATSD"), "USE_STATSD")
	protocol := r.get("STATSD_PROTOCOL")
	if dog {
		name, protocol, isSet = cmp.Or(r.firstSet("STATSD_HOST", "STATSD_PORT"), "USE_DOG_STATSD"), "dogstatsd", true
	}
	r.settings = append(r.settings, Setting{
		Variable: name, Name: "envoy.metrics.statsd", Value: net.JoinHostPort(r.get("STATSD_HOST"), r.get("STATSD_PORT")),
		Default: !isSet && name == "USE_STATSD",
	})
	if dog || r.firstSet("STATSD_PROTOCOL") != "" {
		r.give(cmp.Or(r.firstSet("STATSD_PROTOCOL"), "USE_DOG_STATSD"), "envoy.metrics.protocol", protocol)
	}
}

// admin moves the listener of the admin API to the next port if its own, 9090, is taken by one of
// envoyproxy/ratelimit, whose default for Prometheus is the same.
func (r *reader) admin() {
	if r.set["server.admin.address"] != "" {
		return
	}
	taken := map[string]string{} // by port
	for _, s := range r.settings {
		if _, port, err := net.SplitHostPort(s.Value); err == nil && strings.HasSuffix(s.Name, ".address") {
			taken[port] = s.Variable
		}
	}
	const first = 9090
	by := taken[strconv.Itoa(first)]
	if by == "" {
		return
	}
	port := strconv.Itoa(first)
	for n := first; taken[port] != ""; n++ {
		port = strconv.Itoa(n)
	}
	r.settings = append(r.settings, Setting{Variable: by, Name: "server.admin.address", Value: net.JoinHostPort("127.0.0.1", port), Default: true})
}
