// Package envoyenv converts the environment variables of envoyproxy/ratelimit to settings
// of Stint.
package envoyenv

import (
	"cmp"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
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
// Settings keep their defaults, except for the directory of the files and the addresses for
// Envoy, whose defaults are those of envoyproxy/ratelimit: they are open to other machines.
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
			r.give(v.name, v.setting, value)
		}
	}
	r.addresses()
	r.files()
	r.counters()
	r.tracing()
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
	if r.get("GRPC_SERVER_USE_TLS") == "true" && (r.get("GRPC_SERVER_TLS_CERT") == "" || r.get("GRPC_SERVER_TLS_KEY") == "") {
		r.problem("GRPC_SERVER_USE_TLS", "needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY, the files of the certificate and its key")
	}
	if name := r.firstSet("GRPC_CLIENT_TLS_SAN"); name != "" {
		// Ignoring it would let other clients in.
		r.problem(name, strict.Quote(r.get(name))+": is not supported: clients can only be required to have a certificate from GRPC_CLIENT_TLS_CACERT")
	}
	var admin string
	name, scrape := r.firstSet("DEBUG_PORT", "DEBUG_HOST"), r.get("USE_PROMETHEUS") == "true"
	switch {
	case name != "":
		admin = net.JoinHostPort(r.get("DEBUG_HOST"), r.get("DEBUG_PORT"))
		if scrape {
			r.note(cmp.Or(r.firstSet("PROMETHEUS_ADDR"), "USE_PROMETHEUS"), "metrics are served at DEBUG_HOST and DEBUG_PORT: one listener serves both")
		}
	case scrape:
		admin, name = r.get("PROMETHEUS_ADDR"), cmp.Or(r.firstSet("PROMETHEUS_ADDR"), "USE_PROMETHEUS")
	default:
		return
	}
	r.give(name, "server.admin.address", admin)
	if !IsLoopback(admin) {
		r.give(name, "server.admin.insecure", "true") // as in envoyproxy/ratelimit
	}
}

// listener sets the address of a listener, which by default is open to other machines.
func (r *reader) listener(setting, host, port string) {
	name := r.firstSet(port, host)
	r.settings = append(r.settings, Setting{
		Variable: cmp.Or(name, host), Name: setting, Value: net.JoinHostPort(r.get(host), r.get(port)), Default: name == "",
	})
}

// files sets the source of domains.
func (r *reader) files() {
	if r.get("CONFIG_TYPE") != "FILE" {
		r.give(cmp.Or(r.firstSet("CONFIG_GRPC_XDS_SERVER_URL"), "CONFIG_TYPE"), "envoy.xds.server", r.get("CONFIG_GRPC_XDS_SERVER_URL"))
		return
	}
	name := r.firstSet("RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY")
	if by := cmp.Or(r.set["envoy.config"], r.set["envoy.xds.server"]); by != "" {
		if name != "" {
			r.note(name, by+" sets where domains come from")
		}
		return
	}
	r.give(cmp.Or(name, "RUNTIME_ROOT"), "envoy.config",
		filepath.Join(r.get("RUNTIME_ROOT"), r.get("RUNTIME_SUBDIRECTORY"), r.get("RUNTIME_APPDIRECTORY")))
}

// tracing sets the endpoint and the sampling of spans.
func (r *reader) tracing() {
	if r.get("TRACING_ENABLED") != "true" {
		return
	}
	if r.get("TRACING_EXPORTER_PROTOCOL") == "grpc" {
		r.problem("TRACING_EXPORTER_PROTOCOL", `"grpc": want http: spans are sent over HTTP, usually to port 4318`)
	}
	r.give(cmp.Or(r.firstSet("OTEL_EXPORTER_OTLP_ENDPOINT"), "TRACING_ENABLED"), "server.trace.endpoint", strings.TrimRight(r.get("OTEL_EXPORTER_OTLP_ENDPOINT"), "/"))
	r.give(cmp.Or(r.firstSet("TRACING_SAMPLING_RATE"), "TRACING_ENABLED"), "server.trace.sample", r.get("TRACING_SAMPLING_RATE"))
}

// counters sets the store of counters.
func (r *reader) counters() {
	if by := r.set["server.counters"]; by != "" {
		for _, v := range variables {
			if v.note == "" && (strings.HasPrefix(v.name, "REDIS_") || v.name == "CACHE_KEY_PREFIX" || v.name == "BACKEND_TYPE") && r.firstSet(v.name) != "" {
				r.note(v.name, by+" sets where counters are stored")
			}
		}
		return
	}
	const orElse = ", or STINT_SERVER_COUNTERS=memory: for a single node"
	switch {
	case r.get("BACKEND_TYPE") == "memcache":
		r.problem("BACKEND_TYPE", `"memcache": want redis, and REDIS_URL`+orElse)
	case r.get("REDIS_URL") == "":
		r.problem("REDIS_URL", "is not set: want host:port of a Redis"+orElse)
	default:
		if u, ok := r.redis(); ok {
			r.give("REDIS_URL", "server.counters", u)
		}
	}
}
