// Package daemon is Stint as a program: it reads the configuration, builds from it
// what decides, opens the doors, and replaces what it can when the configuration
// changes.
//
// A configuration is one TOML file, the environment and flags. The file has
// everything; STINT_ variables override the settings of [server] and [identity], so
// that what differs between machines, and what is secret, need not be in it; and
// flags override both.
//
// # What holds
//
//   - All problems are said at once, each with its line and column or the name of
//     its variable, and what would be right.
//   - A configuration is used as a whole or not at all. One that is wrong leaves the
//     one before it in use.
//   - Secrets are in no error, in no log and in no [Setting].
//   - A daemon that is told to stop says so first, and cuts no request off that ends
//     in time. After [Daemon.Stop] nothing of it is left.
//   - What clients send makes no new metric.
//
// # What it refuses to do
//
// It guesses no names: a setting, a variable, a tier or a limit that does not exist
// is a problem. To check a configuration it reaches for no network.
package daemon

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/grpclimit/rls"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// Config is everything that is configured, as [Load] returns it.
type Config struct {
	Server   Server   `json:"server"`
	Identity Identity `json:"identity"`
	Envoy    Envoy    `json:"envoy"`
	// Document is the catalog, if it is not in a database.
	catalog.Document
	// Upstreams are what the gateway is in front of.
	Upstreams []Upstream `json:"upstreams,omitempty"`

	file    bool              // there is one
	origins map[string]string // of settings that have no default, by name
	named   []namedFile       // in the order of reading
	hash    [sha256.Size]byte // of the file

	descriptors *descriptor.Config // of the files that [envoy] names; nil: there are none
	elsewhere   strict.Problems    // with files of others, which know their places

	credentials *credentials
}

// credentials are what settings hold, or the files that they name. They are behind a
// pointer since what prints a Config does not ask fields that are not exported how
// they want to be shown.
type credentials struct {
	pepper     identity.Secret
	ipKey      identity.Secret
	adminToken identity.Secret
	secret     identity.Secret // of tokens
	publicKeys string
	tls        map[string]*tls.Config // by the name of the listener
}

// namedFile is a file that the configuration names, as it was read.
type namedFile struct {
	path  string
	hash  [sha256.Size]byte // zero, if it could not be read
	other bool              // it is not for the resolver
}

// Server is how the process runs. All of it is read at the start, but for
// ReloadInterval and the files of certificates.
type Server struct {
	Counters       URL      `json:"counters" doc:"where counters are: memory: for this process alone, or a Redis URL, for all that share it"`
	Database       URL      `json:"database" doc:"where rules, tiers, users and keys are: sqlite:FILE, or a PostgreSQL URL, for all nodes that share it; empty is in this file"`
	Catalog        Catalog  `json:"catalog"`
	Record         Record   `json:"record"`
	StoreBudget    Duration `json:"store_budget" doc:"how long a decision may wait for Redis, with all attempts; then this node decides alone"`
	Replicas       int      `json:"replicas" doc:"how many nodes share the counters; a node that decides alone has this share of each limit; 0 is as many as the database or Redis has seen lately"`
	MaxKeys        int      `json:"max_keys" doc:"how many counters are held in memory; beyond it, those nearest to recovery are dropped"`
	MaxWaiting     int      `json:"max_waiting" doc:"how many requests may be held at once by throttle and leaky_bucket; further ones are denied"`
	HTTP           Listener `json:"http"`
	Gateway        Listener `json:"gateway"`
	GRPC           Listener `json:"grpc"`
	Admin          Admin    `json:"admin"`
	Headers        []string `json:"headers" doc:"what responses say about limits: x (X-RateLimit-...), ietf (RateLimit, RateLimit-Policy), or both"`
	MaxBody        int      `json:"max_body" doc:"how many bytes the body of a request through the gateway may have; 0 is any number"`
	HeaderTimeout  Duration `json:"header_timeout" doc:"how long a client may take to send the header of a request"`
	StallTimeout   Duration `json:"stall_timeout" doc:"how long a client may pause while it sends a body, or while it should read a response"`
	IdleTimeout    Duration `json:"idle_timeout" doc:"how long a connection may wait for its next request"`
	DrainDelay     Duration `json:"drain_delay" doc:"how long a server that was told to stop goes on accepting requests, with /readyz at 503 and connections told to close, so that balancers can notice"`
	Drain          Duration `json:"drain" doc:"how long requests that have begun may take after that; then they are cut off"`
	ReloadInterval Duration `json:"reload_interval" doc:"how often the file is looked at for changes; 0 is never"`
	Trace          Trace    `json:"trace"`
	LogFormat      string   `json:"log_format" doc:"json or text"`
	LogLevel       string   `json:"log_level" doc:"the least that is logged: debug, info, warn or error"`
}

// Catalog is how the database is followed.
type Catalog struct {
	Migrate   bool     `json:"migrate" doc:"bring the schema of the database up to date at the start"`
	Poll      Duration `json:"poll" doc:"how often the node reports to the database that it is there, and asks for changes of which no notification came"`
	LastGood  string   `json:"last_good" doc:"a directory that keeps the last good rules, for a start without the database, or none; unless set, stint in the directory that systemd or the user has for state"`
	CacheSize int      `json:"cache_size" doc:"how many users, and how many keys, are remembered"`
	CacheTTL  Duration `json:"cache_ttl" doc:"how long they are, unless they change"`
	Node      string   `json:"node" doc:"the name of this node; that of the machine, unless set"`
}

// Record is what is written down of decisions, in the database.
type Record struct {
	Enabled      bool            `json:"enabled" doc:"keep a record of decisions, if there is a database"`
	SampleEvery  int             `json:"sample_every" doc:"record one in this many of the requests that pass, or none if it is 0; those that are denied or held are all recorded"`
	Region       string          `json:"region" doc:"where this node is, for those who look at the record"`
	IP           string          `json:"ip" doc:"what is kept of addresses: keep (all), truncate (24 bits, or 48 of IPv6) or hash"`
	IPKey        identity.Secret `json:"ip_key" doc:"the secret that addresses are hashed with, at least 16 bytes"`
	IPKeyFile    string          `json:"ip_key_file" doc:"a file that holds it"`
	Spool        string          `json:"spool" doc:"a directory that holds events while the database is away, for one process, or none; unless set, stint/spool in the directory that systemd or the user has for state"`
	SpoolSize    int             `json:"spool_size" doc:"how many bytes it may hold; what is beyond is dropped and counted"`
	Retention    Duration        `json:"retention" doc:"how long events stay in the database: a month goes when all of it is older"`
	Archive      URL             `json:"archive" doc:"where months go then, as Parquet files: file:///path or s3://bucket/prefix; none deletes them; empty leaves them"`
	ArchiveYears int             `json:"archive_years" doc:"how many years they are kept there; 0 is for ever"`
}

// Listener is where a server listens.
type Listener struct {
	Address       string `json:"address" doc:"host:port, or :port for all addresses; for gRPC also unix:PATH; empty is nowhere"`
	TLSCert       string `json:"tls_cert" doc:"a file with the certificate, in PEM, which is read again when it changes; without one there is no TLS"`
	TLSKey        string `json:"tls_key" doc:"a file with its key"`
	TLSClientCA   string `json:"tls_client_ca" doc:"a file with the certificates that vouch for clients, in PEM, which is read again when it changes; with it, clients must show one that they vouch for"`
	ProxyProtocol bool   `json:"proxy_protocol" doc:"trusted proxies say whom they speak for by the PROXY protocol"`
}

// Admin is a listener for operators, who have tokens.
type Admin struct {
	Listener
	Insecure  bool            `json:"insecure" doc:"allow an address that others can reach without TLS"`
	Token     identity.Secret `json:"token" doc:"a token of an administrator, at least 16 characters, beside those that are made with stint tokens; without any, the first start makes one and prints it"`
	TokenFile string          `json:"token_file" doc:"a file that holds it"`
}

// Trace is where spans of requests go.
type Trace struct {
	Endpoint URL `json:"endpoint" doc:"the http or https URL of an OpenTelemetry collector, such as http://localhost:4318; empty is none"`
	Sample   int `json:"sample" doc:"how many of 10,000 requests are traced"`
}

// Envoy is what Envoy is limited by, in the place of envoyproxy/ratelimit. All of it is
// read at the start, but for the files themselves. It is served if Config or XDS.Server
// is set.
type Envoy struct {
	Config           string   `json:"config" doc:"the directory of the YAML files of envoyproxy/ratelimit, or one such file; changes are used at once"`
	MergeDomains     bool     `json:"merge_domains" doc:"allow several files to have descriptors of one domain"`
	FixedMonths      bool     `json:"fixed_months" doc:"count weeks, months and years as envoyproxy/ratelimit does: 7, 30 and 365 days, from the first of January 1970 on"`
	Independent      bool     `json:"independent" doc:"count each descriptor of a request for itself, in domains that do not say; or else all are charged, or none"`
	OnStoreFailure   string   `json:"on_store_failure" doc:"what happens while Redis is out of reach: local, this node decides by its share of the limits, or error, calls fail and Envoy's failure_mode_deny decides"`
	ShadowMode       bool     `json:"shadow_mode" doc:"deny nothing: only count what would be denied"`
	QuotaMode        bool     `json:"quota_mode" doc:"have all limits be in quota_mode"`
	ResponseHeaders  bool     `json:"response_headers" doc:"have Envoy add headers to responses that tell how the tightest limit stands"`
	LimitHeader      string   `json:"limit_header" doc:"the name of the header that tells the limit"`
	RemainingHeader  string   `json:"remaining_header" doc:"the name of the one that tells what is left"`
	ResetHeader      string   `json:"reset_header" doc:"the name of the one that tells in how many seconds all is back"`
	DynamicMetadata  bool     `json:"dynamic_metadata" doc:"tell Envoy what was asked, and the metadata of limits that passed, as dynamic metadata"`
	NearLimitPercent int      `json:"near_limit_percent" doc:"how much of a limit is used when hits begin to be counted as near it"`
	MaxConnectionAge Duration `json:"max_connection_age" doc:"how long a connection may live before its client is told to reconnect, so that connections spread over nodes; 0 is for ever"`
	XDS              XDS      `json:"xds"`
}

// XDS is where domains come from, in the place of files.
type XDS struct {
	Server        string   `json:"server" doc:"the management server that has the domains, as host:port, in the place of envoy.config"`
	NodeID        string   `json:"node_id" doc:"who asks it"`
	Metadata      []string `json:"metadata" doc:"what else it is told about who asks, each as name=value"`
	Headers       []Header `json:"headers" doc:"what is sent with each stream, each as name=value"`
	TLS           bool     `json:"tls" doc:"connect with TLS"`
	TLSCA         string   `json:"tls_ca" doc:"a file with the certificates that vouch for the server, in PEM; the system's, unless set"`
	TLSCert       string   `json:"tls_cert" doc:"a file with the certificate to show, in PEM"`
	TLSKey        string   `json:"tls_key" doc:"a file with its key"`
	TLSServerName string   `json:"tls_server_name" doc:"the name that the server's certificate has, if not that of its address"`
	MaxMessage    int      `json:"max_message" doc:"how many bytes an answer may have"`
}

// Upstream is servers that the gateway passes requests on to.
type Upstream struct {
	Host            string   `json:"host,omitempty"`        // api.example.com, *.example.com, or any
	PathPrefix      string   `json:"path_prefix,omitempty"` // default /
	Targets         []string `json:"targets"`
	StripPrefix     bool     `json:"strip_prefix,omitempty"`
	PreserveHost    bool     `json:"preserve_host,omitempty"`
	Cost            int64    `json:"cost,omitempty"`
	DialTimeout     Duration `json:"dial_timeout,omitzero"`
	ResponseTimeout Duration `json:"response_timeout,omitzero"`
	Timeout         Duration `json:"timeout,omitzero"`
	Check           *Check   `json:"check,omitempty"`
}

// Check is how it is found out whether a target is up.
type Check struct {
	Path     string   `json:"path,omitempty"`
	Interval Duration `json:"interval,omitzero"`
	Timeout  Duration `json:"timeout,omitzero"`
}

// Identity is how callers are told apart.
type Identity struct {
	Methods     []string `json:"methods" doc:"how to identify the caller, in this order: key, jwt, header; unless set, those that are configured. A caller that none of them identifies is identified by its address"`
	Require     bool     `json:"require" doc:"reject requests that have neither a valid API key, nor a valid token, nor the header of a trusted proxy"`
	DefaultTier string   `json:"default_tier" doc:"the tier of those who have no other"`

	APIKeyHeader string          `json:"api_key_header" doc:"the header of API keys"`
	APIKeyPrefix string          `json:"api_key_prefix" doc:"what API keys begin with, before the first underscore"`
	APIKeyBearer bool            `json:"api_key_bearer" doc:"accept API keys as Authorization: Bearer, too"`
	Pepper       identity.Secret `json:"pepper" doc:"the secret of keys whose hash is hmac-sha256, at least 16 bytes"`
	PepperFile   string          `json:"pepper_file" doc:"a file that holds the pepper"`

	JWT JWT `json:"jwt"`

	UserHeader   string `json:"user_header" doc:"the header by which a trusted proxy names the user"`
	TenantHeader string `json:"tenant_header" doc:"the header by which a trusted proxy names the tenant"`
	TierHeader   string `json:"tier_header" doc:"the header by which a trusted proxy names the tier"`

	TrustedProxies    []string `json:"trusted_proxies" doc:"the addresses and networks of proxies whose headers are trusted"`
	TrustedProxyDepth int      `json:"trusted_proxy_depth" doc:"in place of them, how many proxies every request comes through, at most 64"`
	ForwardedHeader   string   `json:"forwarded_header" doc:"the one header that tells the client's address: X-Forwarded-For, Forwarded, or one that holds a single address"`
	IPv6Prefix        int      `json:"ipv6_prefix" doc:"how many bits of an IPv6 address are counted, 32 to 128"`
}

// JWT is how tokens are verified. There are tokens if any of it is set.
type JWT struct {
	Secret         identity.Secret `json:"secret" doc:"the secret of HMAC, at least 32 bytes"`
	SecretFile     string          `json:"secret_file" doc:"a file that holds the secret"`
	PublicKeys     string          `json:"public_keys" doc:"public keys or certificates, in PEM, at most 8"`
	PublicKeyFiles []string        `json:"public_key_files" doc:"files of them"`
	JWKSFile       string          `json:"jwks_file" doc:"a file that is a JSON Web Key Set"`
	JWKSURL        URL             `json:"jwks_url" doc:"the http or https URL of one"`
	JWKSRefresh    Duration        `json:"jwks_refresh" doc:"how often the set is fetched, 1m or more"`
	Issuer         string          `json:"issuer" doc:"the issuer that a token must have"`
	Audience       []string        `json:"audience" doc:"the audiences, one of which a token must have"`
	Leeway         Duration        `json:"leeway" doc:"how far clocks may be apart, at most 5m"`
	UserClaim      string          `json:"user_claim" doc:"the claim that names the user; one within an object has a dot, as in org.id"`
	TenantClaim    string          `json:"tenant_claim" doc:"the claim that names the tenant"`
	TierClaim      string          `json:"tier_claim" doc:"the claim that names the tier"`
	Remember       int             `json:"remember" doc:"how many verified tokens are remembered, at least 128"`
}

// defaults returns what holds where nothing is set.
func defaults() *Config {
	return &Config{
		Server: Server{
			Counters: inMemory, StoreBudget: Duration(50 * time.Millisecond), MaxKeys: 1 << 20,
			MaxWaiting: 10_000, Catalog: Catalog{Migrate: true, Poll: Duration(5 * time.Second), CacheSize: 100_000, CacheTTL: Duration(5 * time.Minute)},
			Record:         Record{Enabled: true, SampleEvery: 100, IP: keepIP, SpoolSize: 1 << 30, Retention: Duration(90 * 24 * time.Hour), ArchiveYears: 7},
			ReloadInterval: Duration(time.Second), LogFormat: "json", LogLevel: "info",
			HTTP: Listener{Address: ":8080"}, Gateway: Listener{Address: ":8000"}, GRPC: Listener{Address: ":8081"},
			Admin: Admin{Listener: Listener{Address: "127.0.0.1:9090"}},
			Trace: Trace{Sample: 100}, Headers: []string{"x", "ietf"}, HeaderTimeout: Duration(10 * time.Second), StallTimeout: Duration(30 * time.Second),
			IdleTimeout: Duration(2 * time.Minute), DrainDelay: Duration(time.Second), Drain: Duration(30 * time.Second),
		},
		Identity: Identity{
			APIKeyHeader: "X-API-Key", APIKeyPrefix: "stint", ForwardedHeader: "X-Forwarded-For", IPv6Prefix: 64,
			JWT: JWT{
				JWKSRefresh: Duration(15 * time.Minute), Leeway: Duration(30 * time.Second), UserClaim: "sub",
				Remember: 100_000,
			},
		},
		Envoy: Envoy{
			OnStoreFailure: onFailureLocal, LimitHeader: rls.DefaultHeaders.Limit, RemainingHeader: rls.DefaultHeaders.Remaining, ResetHeader: rls.DefaultHeaders.Reset,
			NearLimitPercent: 80, MaxConnectionAge: Duration(24 * time.Hour), XDS: XDS{NodeID: "default", MaxMessage: 16 << 20},
		},
	}
}

// Source is where a configuration comes from. What flags say goes over the
// environment, that over what is given, and that over the file.
type Source struct {
	Path    string   // of the file; empty: there is none
	Given   []Flag   // what the environment of another program says
	Environ []string // variables, written NAME=value
	Flags   []Flag
	// SettingsOnly has the catalog that is in the file not looked at if there is a
	// database: it is still to go there.
	SettingsOnly bool

	text []byte // in place of what the file holds, if it is not nil
}

// Flag is a setting of a command line.
type Flag struct {
	Name    string // as it was written, with its dashes
	Setting string // server.http.address
	Value   string
}

// Load reads the configuration and checks all of it. If the file can be read, the
// error is of type [rule.Problems].
func (s Source) Load() (*Config, error) {
	data, err := s.read()
	if err != nil {
		return nil, err
	}
	c, problems := s.parse(data)
	if err := problems.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

// read returns what the file holds.
func (s Source) read() ([]byte, error) {
	if s.text != nil || s.Path == "" {
		return s.text, nil
	}
	return os.ReadFile(s.Path)
}

// bare reports whether nothing says what to do: there is no file, and no setting but
// for where to listen and how to log.
func (c *Config) bare() bool {
	for name := range c.origins {
		if !strings.HasSuffix(name, ".address") && !strings.HasPrefix(name, "server.log_") && !strings.HasPrefix(name, "server.admin.") {
			return false
		}
	}
	return !c.file
}

// parse is Load of what was read. It returns as much of the configuration as there
// is, whatever the problems.
func (s Source) parse(data []byte) (*Config, strict.Problems) {
	c, path := defaults(), s.Path
	c.file = path != ""
	c.origins, c.hash, c.credentials = map[string]string{}, sha256.Sum256(data), &credentials{}
	doc, problems := strict.TOML(path, data, c)
	whole, named := len(problems) == 0, namesKnown(problems)
	c.noteOrigins(path, doc)
	wrong := c.override(s.Given, s.Environ, s.Flags)
	if s.SettingsOnly && c.Server.Database != "" {
		c.Document = catalog.Document{}
	}
	if whole {
		wrong = append(wrong, c.Check()...) // rules and tiers
	} else {
		problems = withRules(problems, path, data)
	}
	wrong = append(wrong, c.check(named)...)
	return c, slices.Concat(problems.And(c.locate(path, doc, wrong)), c.elsewhere)
}

// namesKnown reports whether the names of all rules, limits and tiers are known, and
// whether they are in a database, in spite of problems with how the file is written. If
// not, nothing can be said of those who refer to them.
func namesKnown(problems strict.Problems) bool {
	var suspects []string
	for _, name := range []string{"rules", "tiers", "server", "database"} {
		suspects = append(suspects, strict.DidYouMean(name))
	}
	return !slices.ContainsFunc(problems, func(p strict.Problem) bool {
		return p.Path == "" || strings.HasPrefix(p.Path, "rules") || strings.HasPrefix(p.Path, "tiers") || p.Path == "server.database" ||
			slices.Contains(suspects, p.Hint)
	})
}

// withRules adds what is wrong with the rules and tiers of a file of which not all
// could be decoded. Package rule knows what can be said of such a part.
func withRules(problems strict.Problems, path string, data []byte) strict.Problems {
	ours := func(p strict.Problem) bool {
		return strings.HasPrefix(p.Path, "rules") || strings.HasPrefix(p.Path, "tiers")
	}
	var out, theirs strict.Problems
	for _, p := range problems {
		if p.Path == "" {
			return problems // the file ends there, for all we know
		}
		if !ours(p) {
			out = append(out, p)
		}
	}
	if _, err := rule.ParseTOML(path, data); err != nil {
		all, _ := err.(rule.Problems) //nolint:errorlint // it is of no other type
		for _, p := range all {
			if ours(p) {
				theirs = append(theirs, p)
			}
		}
	}
	return out.And(theirs)
}

// locate adds the places of problems: the flag or the variable that sets what is
// wrong, or else where it stands in the file.
func (c *Config) locate(path string, doc *strict.Doc, problems strict.Problems) strict.Problems {
	var out, inFile strict.Problems
	for _, p := range problems {
		name, _, _ := strings.Cut(p.Path, "[")
		switch origin := c.origins[name]; {
		case outsideFile(origin):
			p.Path = origin
			out = append(out, p)
		case path == "" || outsideFile(p.Path):
			out = append(out, p)
		default:
			inFile = append(inFile, p)
		}
	}
	return out.And(doc.Locate(inFile))
}

// outsideFile reports whether this is the name of a variable or of a flag.
func outsideFile(name string) bool {
	return strings.HasPrefix(name, flagPrefix) || name != "" && strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == ""
}

// readNamed reads a file that the configuration names, and remembers that.
func (c *Config) readNamed(path string) (string, error) {
	data, err := os.ReadFile(path)
	f := namedFile{path: path}
	if err == nil {
		f.hash = sha256.Sum256(data)
	}
	c.named = append(c.named, f)
	// Editors end a file with a line end, which is not part of a secret.
	return string(bytes.TrimRight(data, "\r\n")), err
}
