// Package envoyenv converts the environment variables of envoyproxy/ratelimit to settings
// of Stint.
package envoyenv

import (
	"cmp"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/kit/strict"
)

// Setting is a setting, and the variable that it comes from.
type Setting struct {
	Variable string // REDIS_URL
	Name     string // server.counters
	Value    string
	// Default means that the variable is not set, and that this is the default of
	// envoyproxy/ratelimit: the config file overrides it.
	Default bool
}

// Read converts variables of the form NAME=value. Empty variables count as not set.
// Other settings keep their defaults, except those whose defaults in envoyproxy/ratelimit
// are different in kind: the directory of the files and how it is read, the addresses for
// Envoy, which are open to other machines, that of statsd, and how descriptors and months are
// counted.
//
// set has the flags and STINT_ variables that set settings, by setting: variables for the
// same settings have no effect, and are not required.
//
// Each note says which variables have no effect, and why. All problems are returned at
// once.
func Read(environ []string, set map[string]string) (settings []Setting, notes []string, problems strict.Problems) {
	r := reader{values: map[string]string{}, set: set}
	r.read(environ)
	for i := range variables {
		v := &variables[i]
		value, isSet := r.values[v.name]
		switch {
		case !isSet || v.quiet && r.unmet(v) != "":
		case r.unmet(v) != "":
			r.note(v.name, "no effect without "+r.unmet(v))
		case v.note != "" && value != v.fine:
			r.note(v.name, v.note)
		case v.setting != "":
			r.giveUsable(v, value)
		}
	}
	r.addresses()
	r.certificates()
	r.files()
	r.semantics()
	r.counters()
	r.tracing()
	r.operate()
	for _, why := range r.reasons {
		notes = append(notes, strings.Join(why.names, ", ")+": "+why.text)
	}
	return r.settings, notes, r.problems
}

// reader collects what Read returns.
type reader struct {
	values   map[string]string // of the variables that are set, in the format of settings
	set      map[string]string // as in Read
	settings []Setting
	problems strict.Problems
	reasons  []reason
}

// reason is why variables have no effect.
type reason struct {
	text  string
	names []string
}

// read reads the values of all variables.
func (r *reader) read(environ []string) {
	known := map[string]*variable{}
	for i := range variables {
		known[variables[i].name] = &variables[i]
	}
	for _, line := range environ {
		name, text, _ := strings.Cut(line, "=")
		v := known[name]
		if v == nil || text == "" {
			continue
		}
		value, ok := v.kind.read(text)
		switch {
		case ok && value == "": // the default
		case ok:
			r.values[name] = value
		case v.secret:
			r.problem(name, "want "+v.kind.want)
		default:
			r.problem(name, strict.Quote(text)+": want "+v.kind.want)
		}
	}
}

func (r *reader) problem(name, message string) {
	r.problems = append(r.problems, strict.Problem{Path: name, Message: message})
}

func (r *reader) give(variable, setting, value string) {
	r.settings = append(r.settings, Setting{Variable: variable, Name: setting, Value: value})
}

// giveUsable gives what Stint can use of a value, which may be nothing.
func (r *reader) giveUsable(v *variable, value string) {
	if v.usable != nil {
		part := v.usable(value)
		if part != value {
			r.note(v.name, v.unusable)
		}
		if value = part; value == "" {
			return
		}
	}
	r.give(v.name, v.setting, value)
}

// giveOr gives the value of a variable, or, if variable is "", a default.
func (r *reader) giveOr(variable, byDefault, setting, value string) {
	r.settings = append(r.settings, Setting{Variable: cmp.Or(variable, byDefault), Name: setting, Value: value, Default: variable == ""})
}

// note adds a variable that has no effect. Variables with the same reason share a note.
func (r *reader) note(name, why string) {
	i := slices.IndexFunc(r.reasons, func(known reason) bool { return known.text == why })
	if i < 0 {
		i = len(r.reasons)
		r.reasons = append(r.reasons, reason{text: why})
	}
	r.reasons[i].names = append(r.reasons[i].names, name)
}

func findVariable(name string) *variable {
	return &variables[slices.IndexFunc(variables, func(v variable) bool { return v.name == name })]
}

// unmet returns the condition of a variable that is not met, or "".
func (r *reader) unmet(v *variable) string {
	if v.needs == "" {
		return ""
	}
	name, want, _ := strings.Cut(v.needs, "=")
	if r.get(name) != want {
		return v.needs
	}
	return ""
}

// get returns the value of a variable, or its default if it is not set or has no effect.
func (r *reader) get(name string) string {
	v := findVariable(name)
	if r.unmet(v) != "" {
		return v.byDefault
	}
	return cmp.Or(r.values[name], v.byDefault)
}

// firstSet returns the first of the variables that is set and has an effect, or "".
func (r *reader) firstSet(names ...string) string {
	for _, name := range names {
		if r.values[name] != "" && r.unmet(findVariable(name)) == "" {
			return name
		}
	}
	return ""
}

// IsLoopback reports whether only this machine can reach the address.
func IsLoopback(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// addresses sets the addresses of listeners.
func (r *reader) addresses() {
	r.listener("server.http.address", "HOST", "PORT")
	if path := r.get("GRPC_UDS"); path != "" {
		r.give("GRPC_UDS", "server.grpc.address", "unix:"+path)
	} else {
		r.listener("server.grpc.address", "GRPC_HOST", "GRPC_PORT")
	}
}

// certificates sets the certificates of the gRPC listener, and those for the management
// server.
func (r *reader) certificates() {
	if r.get("GRPC_SERVER_USE_TLS") == "true" && (r.get("GRPC_SERVER_TLS_CERT") == "" || r.get("GRPC_SERVER_TLS_KEY") == "") {
		r.problem("GRPC_SERVER_USE_TLS", "needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY, the files of the certificate and its key")
	}
	if san := r.get("GRPC_CLIENT_TLS_SAN"); san != "" {
		if r.get("GRPC_CLIENT_TLS_CACERT") != "" {
			r.give("GRPC_CLIENT_TLS_SAN", "server.grpc.tls_client_san", san)
		} else {
			r.note("GRPC_CLIENT_TLS_SAN", "no effect without GRPC_CLIENT_TLS_CACERT")
		}
	}
	if cert, key, ok := r.pair("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"); ok {
		r.give("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "envoy.xds.tls_cert", cert)
		r.give("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "envoy.xds.tls_key", key)
	}
}

// pair returns the values of two variables that have an effect only together.
func (r *reader) pair(cert, key string) (certValue, keyValue string, ok bool) {
	certValue, keyValue = r.get(cert), r.get(key)
	switch {
	case certValue != "" && keyValue == "":
		r.note(cert, "no effect without "+key)
	case certValue == "" && keyValue != "":
		r.note(key, "no effect without "+cert)
	}
	return certValue, keyValue, certValue != "" && keyValue != ""
}

// listener sets the address of a listener, which by default is open to other machines.
func (r *reader) listener(setting, host, port string) {
	name := r.firstSet(port, host)
	r.giveOr(name, host, setting, net.JoinHostPort(r.get(host), r.get(port)))
}

// files sets the source of domains.
func (r *reader) files() {
	if r.get("CONFIG_TYPE") != "FILE" {
		r.give(cmp.Or(r.firstSet("CONFIG_GRPC_XDS_SERVER_URL"), "CONFIG_TYPE"), "envoy.xds.server", r.get("CONFIG_GRPC_XDS_SERVER_URL"))
		return
	}
	name := r.firstSet("RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY")
	dots := strconv.FormatBool(r.get("RUNTIME_IGNOREDOTFILES") != "true")
	r.giveOr(r.firstSet("RUNTIME_IGNOREDOTFILES"), byFlag, "envoy.dot_files", dots)
	// Without a subdirectory, envoyproxy/ratelimit finds nothing at all in this way.
	siblings := r.get("RUNTIME_WATCH_ROOT") == "true" && r.get("RUNTIME_SUBDIRECTORY") != ""
	r.giveOr(r.firstSet("RUNTIME_WATCH_ROOT"), byFlag, "envoy.siblings", strconv.FormatBool(siblings))
	r.giveOr("", byFlag, "envoy.allow_empty", "true")
	if by := cmp.Or(r.set["envoy.config"], r.set["envoy.xds.server"]); by != "" {
		if name != "" {
			r.note(name, by+" sets where domains come from")
		}
		return
	}
	r.give(cmp.Or(name, "RUNTIME_ROOT"), "envoy.config",
		filepath.Join(r.get("RUNTIME_ROOT"), r.get("RUNTIME_SUBDIRECTORY"), r.get("RUNTIME_APPDIRECTORY")))
}

// byFlag is the origin of settings that no variable has.
const byFlag = "--envoy-env"

// semantics sets how descriptors, months and years are counted. With
// STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT, a descriptor is not charged if another denies.
func (r *reader) semantics() {
	const stop = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"
	r.giveOr(r.firstSet(stop), byFlag, "envoy.independent", strconv.FormatBool(r.get(stop) != "true"))
	r.giveOr("", byFlag, "envoy.fixed_months", "true")
}

// tracing sets the endpoint and the sampling of spans.
func (r *reader) tracing() {
	if r.get("TRACING_ENABLED") != "true" {
		return
	}
	if r.get("TRACING_EXPORTER_PROTOCOL") == "grpc" {
		if r.set["server.trace.endpoint"] == "" {
			r.note("TRACING_EXPORTER_PROTOCOL", "nothing is traced: spans are sent over HTTP, so set STINT_SERVER_TRACE_ENDPOINT, such as http://localhost:4318")
			return
		}
	} else {
		name := r.firstSet("OTEL_EXPORTER_OTLP_ENDPOINT")
		endpoint := strings.TrimRight(r.get("OTEL_EXPORTER_OTLP_ENDPOINT"), "/")
		const whole, path = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "/v1/traces"
		switch base, ok := strings.CutSuffix(r.get(whole), path); {
		case ok:
			name, endpoint = whole, base
		case base != "":
			r.note(whole, "no effect, because it does not end in "+path+": set STINT_SERVER_TRACE_ENDPOINT to what is before that")
		}
		if !strings.Contains(endpoint, "://") {
			endpoint = "http://" + endpoint
		}
		r.give(cmp.Or(name, "TRACING_ENABLED"), "server.trace.endpoint", endpoint)
	}
	r.give(cmp.Or(r.firstSet("TRACING_SAMPLING_RATE"), "TRACING_ENABLED"), "server.trace.sample", r.get("TRACING_SAMPLING_RATE"))
}

// counters sets the store of counters.
func (r *reader) counters() {
	if by := r.set["server.counters"]; by != "" {
		for _, v := range variables {
			if v.note == "" && v.name != healthOfRedis && (strings.HasPrefix(v.name, "REDIS_") || v.name == "CACHE_KEY_PREFIX" || v.name == "BACKEND_TYPE") && r.firstSet(v.name) != "" {
				r.note(v.name, by+" sets where counters are stored")
			}
		}
		return
	}
	if r.get("BACKEND_TYPE") == "memcache" && r.values["REDIS_URL"] == "" {
		r.note("BACKEND_TYPE", "memcached is not supported, so each node counts by itself, in memory: set REDIS_URL for several nodes")
		r.give("BACKEND_TYPE", "server.counters", "memory:")
		return
	}
	if r.values["REDIS_URL"] == "" {
		r.note("REDIS_URL", "is not set: Redis is expected at "+r.get("REDIS_URL")+"; STINT_SERVER_COUNTERS=memory: is for a single node")
	}
	if u, ok := r.redis(); ok {
		r.give("REDIS_URL", "server.counters", u)
		r.budget()
	}
}
