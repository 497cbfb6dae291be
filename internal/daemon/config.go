// Package daemon is Stint as a program: it reads the configuration, builds an engine from
// it, opens the listeners, and reloads what it can when the configuration changes.
//
// The configuration is one TOML file, the environment and flags. STINT_ variables override
// settings of the file, for secrets and for what differs between machines; flags override
// both.
//
// # Invariants
//
//   - All problems are reported at once, each with its line and column or the name of its
//     variable, and what would be right.
//   - A configuration is used completely or not at all. If it is invalid, the previous one
//     stays in use.
//   - Errors, logs and [Setting] values contain no secrets.
//   - A stopping daemon announces it first, and cuts off no request that ends in time.
//     [Daemon.Stop] leaves nothing running.
//   - Clients cannot create new metrics, except where files for Envoy want their values in names, up
//     to a bound.
//
// # What it does not do
//
// It does not ignore unknown names: a setting, variable, tier or limit that does not exist
// is a problem. Checking a configuration uses no network.
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
	"github.com/stintdev/stint/internal/daemon/envoystats"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// Config is a configuration, as [Source.Load] returns it.
type Config struct {
	Enabled  bool     `json:"enabled" doc:"limit requests; if false, every request passes and nothing is counted, which the log and /healthz say. Credentials that are not accepted are still rejected. Read again when the file changes"`
	Server   Server   `json:"server"`
	Identity Identity `json:"identity"`
	Envoy    Envoy    `json:"envoy"`
	Region   Region   `json:"region"`
	// Document is the catalog, if it is not in a database.
	catalog.Document
	Upstreams []Upstream `json:"upstreams,omitempty"`
	Prices    []Price    `json:"prices,omitempty"`

	file    bool              // there is a config file
	origins map[string]string // where settings that are not defaults come from, by name
	named   []namedFile       // in the order of reading
	hash    [sha256.Size]byte // of the file

	descriptors        *descriptor.Config   // of the files in envoy.config; nil: none
	descriptorsHash    [sha256.Size]byte    // of these files
	skipped            []descriptor.Skipped // beside them
	descriptorProblems strict.Problems      // which have files and lines of their own

	credentials *credentials
}

// credentials are the values of secret settings, or the contents of their files. They are
// behind a pointer because fmt prints unexported fields without calling their String.
type credentials struct {
	pepper        identity.Secret
	ipKey         identity.Secret
	adminToken    identity.Secret
	clientSecret  identity.Secret // of server.admin.oidc
	secret        identity.Secret // of JWTs
	publicKeys    string
	regionSecrets []identity.Secret      // the first is presented, and all are accepted
	ticketKeys    [][]byte               // the first makes tickets, and all open them
	tls           map[string]*tls.Config // by the name of the listener
	tokens        map[string]tokens      // of http and grpc
}

// namedFile is a file that the configuration names, as it was read.
type namedFile struct {
	path  string
	hash  [sha256.Size]byte // zero, if it could not be read
	other bool              // it is not for the resolver

	dir     descriptor.DirOptions // of a directory
	reports bool                  // what is beside it
}

// Server configures the process. It is read at startup, except for ReloadInterval,
// certificates, the tokens of HTTP and GRPC, and the keys of tickets.
type Server struct {
	Counters       URL      `json:"counters" doc:"where counters are stored: memory: in this process, or a Redis URL, shared by all nodes"`
	Database       URL      `json:"database" doc:"where rules, tiers, users and keys are stored: sqlite:FILE, or a PostgreSQL URL, shared by all nodes; if empty, in this file"`
	ReadReplica    URL      `json:"database_replica" doc:"a PostgreSQL URL of a standby of the database that is nearer to this node, which then reads rules, users and keys there; everything is written to the database"`
	Catalog        Catalog  `json:"catalog"`
	Record         Record   `json:"record"`
	StoreBudget    Duration `json:"store_budget" doc:"how long a decision may wait for Redis, including retries; after that, this node decides on its own"`
	Replicas       int      `json:"replicas" doc:"how many nodes share the counters; a node that decides on its own applies its share of each limit; 0: as many as report to the database, or to Redis if there is none"`
	MaxKeys        int      `json:"max_keys" doc:"the maximum number of counters in memory; above it, those that matter least are dropped, and never bans for counters"`
	MaxWaiting     int      `json:"max_waiting" doc:"the maximum number of requests that throttle and leaky_bucket hold at once; more are denied"`
	HTTP           Guarded  `json:"http"`
	Gateway        Listener `json:"gateway"`
	GRPC           Guarded  `json:"grpc"`
	Admin          Admin    `json:"admin"`
	Headers        []string `json:"headers" doc:"the headers of responses: x (X-RateLimit-...), ietf (RateLimit, RateLimit-Policy), id (Stint-Decision), or none"`
	Case           string   `json:"case" doc:"whether rules tell paths apart that differ only in case: exact (/search and /SEARCH are two paths) or ignore, for servers that serve both as one; the same on all nodes"`
	MaxPath        int      `json:"max_path" doc:"the longest path of a request, in bytes, without its query; longer ones are answered with 414"`
	MaxBody        int      `json:"max_body" doc:"the largest body of a request through the gateway, in bytes; 0: no limit"`
	HeaderTimeout  Duration `json:"header_timeout" doc:"how long a client may take to send the headers of a request"`
	StallTimeout   Duration `json:"stall_timeout" doc:"how long a client may pause while sending a body or reading a response"`
	MinBodyRate    int      `json:"min_body_rate" doc:"how slowly a client may send a body, in bytes a second on average; the time that server.stall_timeout allows for a pause comes on top; 0: any"`
	IdleTimeout    Duration `json:"idle_timeout" doc:"how long a connection may stay idle between requests"`
	DrainDelay     Duration `json:"drain_delay" doc:"how long a stopping server keeps accepting requests, with /readyz at 503 and connections asked to close, so that load balancers notice"`
	Drain          Duration `json:"drain" doc:"how long running requests may take after that; then they are cut off"`
	ReloadInterval Duration `json:"reload_interval" doc:"how often the config file is checked for changes; 0: never"`
	Trace          Trace    `json:"trace"`
	LogFormat      string   `json:"log_format" doc:"json or text"`
	LogLevel       string   `json:"log_level" doc:"the lowest level that is logged: debug, info, warn or error"`

	TicketKey     identity.Secret `json:"ticket_key" doc:"the key of tickets, at least 32 random bytes, the same on all nodes; by default a random one, which the nodes of a database share"`
	TicketKeyFile string          `json:"ticket_key_file" doc:"a file with that key, reloaded when it changes; if it has several lines, the first makes tickets and all accept them, to replace a key"`
}

// Catalog configures how nodes use the database.
type Catalog struct {
	Migrate   bool     `json:"migrate" doc:"migrate the schema of the database at startup"`
	Poll      Duration `json:"poll" doc:"how often the node reports to the database, or to Redis if there is none, and polls the database for changes, in case a notification was lost; the same for all nodes"`
	LastGood  string   `json:"last_good" doc:"the directory for the last good rules, to start without the database, and for the number of nodes, to start without the database or Redis, or none; by default stint in the state directory of systemd or the user"`
	CacheSize int      `json:"cache_size" doc:"the maximum number of cached users, and of cached keys"`
	CacheTTL  Duration `json:"cache_ttl" doc:"how long they stay cached, unless they change"`
	Node      string   `json:"node" doc:"the name of this node; by default the host name"`
}

// Record configures the record of decisions, in the database.
type Record struct {
	Enabled      bool            `json:"enabled" doc:"record decisions, if there is a database"`
	SampleEvery  int             `json:"sample_every" doc:"record one in this many allowed requests, or none if 0; requests that are denied or delayed are always recorded"`
	MaxRate      int             `json:"max_rate" doc:"how many events of one client, rule and outcome are stored in a second; the last one has the number of all the others, so that sums stay exact; 0: all are stored"`
	MaxSize      int64           `json:"max_size" doc:"about how large the record may be, in bytes; then the oldest events are deleted, and their roll-ups stay; 0: no limit"`
	MinFree      int64           `json:"min_free" doc:"with SQLite, nothing is recorded while the disk has less than this many bytes left, so that rules, users and tokens can still be written; 0: it is not checked"`
	Region       string          `json:"region" doc:"the region of this node, for the record; by default region.name"`
	IP           string          `json:"ip" doc:"how addresses are recorded: keep (in full), truncate (24 bits, or 48 for IPv6) or hash"`
	IPKey        identity.Secret `json:"ip_key" doc:"the secret key for hashing addresses, at least 16 bytes"`
	IPKeyFile    string          `json:"ip_key_file" doc:"a file with that key"`
	Path         string          `json:"path" doc:"how paths of requests are recorded: redact (parts that a rule names, or that look like ids or secrets, are replaced), keep (in full) or off; the query is never recorded"`
	Spool        string          `json:"spool" doc:"the directory that holds events while the database is down, used by one process, or none; by default stint/spool in the state directory of systemd or the user"`
	SpoolSize    int             `json:"spool_size" doc:"the maximum size of the spool, in bytes; events beyond it are dropped and counted"`
	Retention    Duration        `json:"retention" doc:"how long events stay in the database; a month is removed when all of it is older"`
	Archive      URL             `json:"archive" doc:"where old months are archived as Parquet files: file:///path or s3://bucket/prefix; none: they are deleted; empty: they stay"`
	ArchiveYears int             `json:"archive_years" doc:"how many years the archive keeps them; 0: forever"`
}

// Listener configures a listener.
type Listener struct {
	Address       string `json:"address" doc:"host:port, or :port for all addresses of this machine, so that others can reach it; for gRPC also unix:PATH; empty: disabled"`
	TLSCert       string `json:"tls_cert" doc:"a file with the certificate, in PEM, reloaded when it changes; without it there is no TLS"`
	TLSKey        string `json:"tls_key" doc:"a file with the key of the certificate"`
	TLSClientCA   string `json:"tls_client_ca" doc:"a file with certificate authorities, in PEM, reloaded when it changes; clients must then present a certificate from one of them"`
	TLSClientSAN  string `json:"tls_client_san" doc:"a DNS name or an IP address that the certificate of a client must have; any, if it is empty"`
	ProxyProtocol bool   `json:"proxy_protocol" doc:"trusted proxies send the client address with the PROXY protocol"`
}

// Guarded configures a listener for programs that ask for decisions.
type Guarded struct {
	Listener
	Tokens     []identity.Secret `json:"tokens" doc:"tokens of at least 16 characters, of which callers must send one; several, to replace one after the other, without a restart; empty: callers need none"`
	TokenFiles []string          `json:"token_files" doc:"files with more of these tokens, one in each, reloaded when they change"`
}

// Admin configures the listener of the admin API.
type Admin struct {
	Listener
	Insecure  bool            `json:"insecure" doc:"allow an address that other machines can reach without TLS"`
	Token     identity.Secret `json:"token" doc:"an administrator token of at least 16 characters, in addition to those created with stint tokens; without any token, the first start creates one, in a file whose name it prints"`
	TokenFile string          `json:"token_file" doc:"a file with the token"`
	OIDC      OIDC            `json:"oidc"`
}

// OIDC configures how people sign in with an identity provider.
type OIDC struct {
	Issuer           string          `json:"issuer" doc:"the URL of an identity provider that people sign in with, by OpenID Connect; empty: they sign in with tokens"`
	Name             string          `json:"name" doc:"its name, on the sign-in page"`
	ClientID         string          `json:"client_id" doc:"the client that is registered there"`
	ClientSecret     identity.Secret `json:"client_secret" doc:"the secret of the client; empty for a public client, which PKCE alone protects"`
	ClientSecretFile string          `json:"client_secret_file" doc:"a file with the secret"`
	RedirectURL      string          `json:"redirect_url" doc:"where the provider sends browsers back to, such as https://stint.example.com/admin/v1/sign-in/callback; needed behind a proxy that has TLS; empty: as browsers call this server"`
	Scopes           []string        `json:"scopes" doc:"what is asked for, beside openid; with offline_access, sessions are renewed when the ID token expires"`
	Claim            string          `json:"claim" doc:"the claim with the groups of a person; a path, such as realm_access.roles"`
	NameClaim        string          `json:"name_claim" doc:"the claim with the name of a person for the change log; empty: the email, if it is verified, or else the subject"`
	EmailDomains     []string        `json:"email_domains" doc:"only people with a verified email of these domains may sign in; empty: all"`
	Groups           []OIDCGroup     `json:"groups,omitempty"`
}

// OIDCGroup gives people who are in a group a role.
type OIDCGroup struct {
	Group   string       `json:"group"`
	Role    catalog.Role `json:"role"`
	Tenants []string     `json:"tenants,omitempty"` // none: all
}

// Trace configures tracing.
type Trace struct {
	Endpoint URL `json:"endpoint" doc:"the http or https URL of an OpenTelemetry collector, such as http://localhost:4318; empty: no tracing"`
	Sample   int `json:"sample" doc:"how many of 10,000 requests are traced"`
}

// Envoy configures the rate limit service for Envoy, which replaces envoyproxy/ratelimit.
// It is served if Config or XDS.Server is set. It is read at startup, except for the
// contents of the files.
type Envoy struct {
	Config           string   `json:"config" doc:"the directory with the YAML files of envoyproxy/ratelimit, or one such file; all files are read, whatever their names, and those in its directories; changes apply at once"`
	DotFiles         bool     `json:"dot_files" doc:"also read files and directories whose names begin with a dot"`
	Siblings         bool     `json:"siblings" doc:"also read files and directories beside envoy.config whose names continue its name with a dot, such as config.yaml beside config"`
	AllowEmpty       bool     `json:"allow_empty" doc:"start even if there are no files, without limits until there are some, or if they have problems; then calls of Envoy fail until they have none"`
	MergeDomains     bool     `json:"merge_domains" doc:"allow several files to define descriptors of the same domain"`
	FixedMonths      bool     `json:"fixed_months" doc:"count weeks, months and years as envoyproxy/ratelimit does: 7, 30 and 365 days, starting on January 1, 1970"`
	Independent      bool     `json:"independent" doc:"count each descriptor of a request independently, unless its domain says otherwise; by default either all are charged or none"`
	OnStoreFailure   string   `json:"on_store_failure" doc:"what happens while Redis is unreachable: local (this node applies its share of the limits) or error (calls fail, and Envoy's failure_mode_deny decides)"`
	ShadowMode       bool     `json:"shadow_mode" doc:"deny nothing, only count what would be denied"`
	QuotaMode        bool     `json:"quota_mode" doc:"put all limits in quota_mode; a descriptor without a limit is then a quota with room"`
	ResponseHeaders  bool     `json:"response_headers" doc:"make Envoy add response headers with the state of the tightest limit"`
	LimitHeader      string   `json:"limit_header" doc:"the name of the header with the limit"`
	RemainingHeader  string   `json:"remaining_header" doc:"the name of the header with the units left"`
	ResetHeader      string   `json:"reset_header" doc:"the name of the header with the seconds until the limit resets"`
	DecisionHeader   string   `json:"decision_header" doc:"the name of a header with the id of the decision, such as stint-decision, that Envoy is to add to responses if a limit applied; by default none"`
	DynamicMetadata  bool     `json:"dynamic_metadata" doc:"send Envoy the descriptors, and the metadata of the limits that allowed them, as dynamic metadata"`
	NearLimitPercent int      `json:"near_limit_percent" doc:"the percentage of a limit above which hits count as near the limit"`
	QuotaTerm        Duration `json:"quota_term" doc:"experimental: also serve Envoy's rate limit quota service, and assign quotas that last at most that long, from 100ms to 1m; 0: it is not served"`
	HealthNeeds      []string `json:"health_needs" doc:"what health checks need, besides limits: domains (at least one domain), redis (a Redis server that decides), or both; by default neither"`
	MaxConnectionAge Duration `json:"max_connection_age" doc:"how long a connection may last before its client is asked to reconnect, so that connections spread over nodes; 0: forever"`
	XDS              XDS      `json:"xds"`

	Debug   EnvoyDebug   `json:"debug"`
	Metrics EnvoyMetrics `json:"metrics"`
}

// XDS configures the management server of domains.
type XDS struct {
	Server        string   `json:"server" doc:"the management server with the domains, as host:port, instead of envoy.config"`
	NodeID        string   `json:"node_id" doc:"the node id to send"`
	Metadata      []string `json:"metadata" doc:"the node metadata to send, each as name=value"`
	Headers       []Header `json:"headers" doc:"headers to send with each stream, each as name=value"`
	TLS           bool     `json:"tls" doc:"connect with TLS"`
	TLSCA         string   `json:"tls_ca" doc:"a file with the certificate authorities of the server, in PEM; by default those of the system"`
	TLSCert       string   `json:"tls_cert" doc:"a file with the client certificate, in PEM"`
	TLSKey        string   `json:"tls_key" doc:"a file with the key of the client certificate"`
	TLSServerName string   `json:"tls_server_name" doc:"the name in the certificate of the server, if it is not that of its address"`
	MaxMessage    int      `json:"max_message" doc:"the maximum size of a response, in bytes"`
}

// Upstream configures servers behind the gateway.
type Upstream struct {
	Host            string   `json:"host,omitempty"`        // api.example.com, *.example.com, or any
	PathPrefix      string   `json:"path_prefix,omitempty"` // default /
	Targets         []string `json:"targets"`
	StripPrefix     bool     `json:"strip_prefix,omitempty"`
	PreserveHost    bool     `json:"preserve_host,omitempty"`
	Case            string   `json:"case,omitempty"` // exact or ignore; default exact
	LenientPaths    bool     `json:"lenient_paths,omitempty"`
	OverrideHeaders bool     `json:"override_headers,omitempty"`
	Cost            int64    `json:"cost,omitempty"`
	DialTimeout     Duration `json:"dial_timeout,omitzero"`
	ResponseTimeout Duration `json:"response_timeout,omitzero"`
	Timeout         Duration `json:"timeout,omitzero"`
	Check           *Check   `json:"check,omitempty"`
}

// Check configures health checks of targets.
type Check struct {
	Path     string   `json:"path,omitempty"`
	Interval Duration `json:"interval,omitzero"`
	Timeout  Duration `json:"timeout,omitzero"`
}

// Identity configures how callers are identified.
type Identity struct {
	Methods     []string `json:"methods" doc:"how to identify callers, in this order: key, jwt, header; by default those that are configured. A caller that none of them identifies is identified by its address"`
	Require     bool     `json:"require" doc:"reject requests without a valid API key, a valid token or the header of a trusted proxy"`
	DefaultTier string   `json:"default_tier" doc:"the tier of callers without one"`
	OnConflict  string   `json:"on_conflict" doc:"what happens to a request with credentials of different users or tenants, such as the key of one and the token of another: reject, or first (the first in the order of methods is the caller); bans of all of them hold either way"`

	APIKeyHeader string          `json:"api_key_header" doc:"the header with the API key"`
	APIKeyPrefix string          `json:"api_key_prefix" doc:"the prefix of API keys, up to the first underscore"`
	APIKeyBearer bool            `json:"api_key_bearer" doc:"also accept API keys as Authorization: Bearer"`
	Pepper       identity.Secret `json:"pepper" doc:"the secret for keys with an hmac-sha256 hash, at least 16 bytes"`
	PepperFile   string          `json:"pepper_file" doc:"a file with the pepper"`
	FailedKeys   int             `json:"failed_keys" doc:"how many different API keys that are not valid an address may send to this node in a minute, 1 to 1000; then keys that are not cached are answered with 429, without a lookup"`

	JWT JWT `json:"jwt"`

	UserHeader   string `json:"user_header" doc:"the header with the user, set by a trusted proxy"`
	TenantHeader string `json:"tenant_header" doc:"the header with the tenant, set by a trusted proxy"`
	TierHeader   string `json:"tier_header" doc:"the header with the tier, set by a trusted proxy"`

	TrustedProxies    []string `json:"trusted_proxies" doc:"the addresses and networks of proxies whose headers are trusted"`
	TrustedProxyDepth int      `json:"trusted_proxy_depth" doc:"instead of these, the number of proxies that every request passes through, at most 64"`
	ForwardedHeader   string   `json:"forwarded_header" doc:"the header with the client address: X-Forwarded-For, Forwarded, or one with a single address"`
	IPv6Prefix        int      `json:"ipv6_prefix" doc:"how many bits of an IPv6 address identify a client, 32 to 128"`
}

// The values of on_conflict and on_bad_token.
const (
	onReject    = "reject"
	onFirst     = "first"
	onAnonymous = "anonymous"
)

// JWT configures how tokens are verified. Tokens are used if any of it is set.
type JWT struct {
	Secret         identity.Secret `json:"secret" doc:"the HMAC secret, at least 32 bytes"`
	SecretFile     string          `json:"secret_file" doc:"a file with the secret"`
	PublicKeys     string          `json:"public_keys" doc:"public keys or certificates in PEM, at most 8"`
	PublicKeyFiles []string        `json:"public_key_files" doc:"files with public keys or certificates"`
	JWKSFile       string          `json:"jwks_file" doc:"a file with a JSON Web Key Set"`
	JWKSURL        URL             `json:"jwks_url" doc:"the http or https URL of a JSON Web Key Set"`
	JWKSRefresh    Duration        `json:"jwks_refresh" doc:"how often the key set is fetched, 1m or more"`
	OnBadToken     string          `json:"on_bad_token" doc:"what happens to a request with a token that is not accepted: reject, or anonymous (it is counted by address, so rules by user and bans of users do not hold for it; the gateway does not forward the token)"`
	Issuer         string          `json:"issuer" doc:"the issuer that tokens must have"`
	Audience       []string        `json:"audience" doc:"the accepted audiences, one of which a token must have"`
	Leeway         Duration        `json:"leeway" doc:"the allowed clock difference, at most 5m"`
	UserClaim      string          `json:"user_claim" doc:"the claim with the user; a dot selects a claim in an object, as in org.id"`
	TenantClaim    string          `json:"tenant_claim" doc:"the claim with the tenant"`
	TierClaim      string          `json:"tier_claim" doc:"the claim with the tier"`
	Remember       int             `json:"remember" doc:"how many verified tokens are cached, at least 128"`
}

// defaults returns the default configuration.
func defaults() *Config {
	return &Config{
		Enabled: true,
		Server: Server{
			Counters: inMemory, StoreBudget: Duration(50 * time.Millisecond), MaxKeys: 1 << 20,
			MaxWaiting: 10_000, Case: string(rule.ExactCase), MaxPath: 8 << 10, Catalog: Catalog{Migrate: true, Poll: Duration(5 * time.Second), CacheSize: 100_000, CacheTTL: Duration(5 * time.Minute)},
			Record:         Record{Enabled: true, SampleEvery: 100, MaxRate: 10, MaxSize: 20 << 30, MinFree: 128 << 20, IP: keepIP, Path: redactPath, SpoolSize: 1 << 30, Retention: Duration(90 * 24 * time.Hour), ArchiveYears: 7},
			ReloadInterval: Duration(time.Second), LogFormat: "json", LogLevel: "info",
			HTTP: Guarded{Listener: Listener{Address: "127.0.0.1:8080"}}, Gateway: Listener{Address: "127.0.0.1:8000"}, GRPC: Guarded{Listener: Listener{Address: "127.0.0.1:8081"}},
			Admin: Admin{Listener: Listener{Address: "127.0.0.1:9090"}, OIDC: OIDC{Name: "single sign-on", Scopes: []string{"profile", "email"}, Claim: "groups"}},
			Trace: Trace{Sample: 100}, Headers: []string{"x", "ietf", "id"}, HeaderTimeout: Duration(10 * time.Second), StallTimeout: Duration(30 * time.Second), MinBodyRate: 500,
			IdleTimeout: Duration(2 * time.Minute), DrainDelay: Duration(time.Second), Drain: Duration(30 * time.Second),
		},
		Identity: Identity{
			OnConflict: onReject, APIKeyHeader: "X-API-Key", APIKeyPrefix: "stint", FailedKeys: 30, ForwardedHeader: "X-Forwarded-For", IPv6Prefix: 64,
			JWT: JWT{
				OnBadToken: onReject, JWKSRefresh: Duration(15 * time.Minute), Leeway: Duration(30 * time.Second), UserClaim: "sub",
				Remember: 100_000,
			},
		},
		Envoy: Envoy{
			OnStoreFailure: onFailureLocal, LimitHeader: rls.DefaultHeaders.Limit, RemainingHeader: rls.DefaultHeaders.Remaining, ResetHeader: rls.DefaultHeaders.Reset,
			NearLimitPercent: 80, MaxConnectionAge: Duration(24 * time.Hour), XDS: XDS{NodeID: "default", MaxMessage: 16 << 20},
			Metrics: EnvoyMetrics{Path: "/metrics", Protocol: envoystats.TCP, Interval: Duration(10 * time.Second)},
		},
		Region: Region{Interval: Duration(time.Second)},
	}
}

// Source is where a configuration comes from. Flags override Environ, that overrides
// Given, and that overrides the file.
type Source struct {
	Path    string   // of the file; empty: none
	Given   []Flag   // from the environment of another program
	Environ []string // variables, as NAME=value
	Flags   []Flag
	// SettingsOnly ignores the catalog in the file if there is a database, to which it is
	// about to be copied.
	SettingsOnly bool

	text []byte // replaces the contents of the file, unless it is nil
}

// Flag is a setting on the command line.
type Flag struct {
	Name    string // as written, with dashes
	Setting string // server.http.address
	Value   string

	unlessSet bool // the file overrides it
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

// begin is Load for a server that starts. Problems with the files of Envoy do not end it if
// envoy.allow_empty is set: the configuration has them, and no descriptors.
func (s Source) begin() (*Config, error) {
	data, err := s.read()
	if err != nil {
		return nil, err
	}
	c, problems := s.parse(data)
	if c.Envoy.AllowEmpty && len(problems) == len(c.descriptorProblems) {
		problems = nil
	}
	if err := problems.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

// read returns the contents of the file.
func (s Source) read() ([]byte, error) {
	if s.text != nil || s.Path == "" {
		return s.text, nil
	}
	return os.ReadFile(s.Path)
}

// bare reports whether nothing is configured: there is no file, and only settings of
// listeners and logs.
func (c *Config) bare() bool {
	for name := range c.origins {
		if !strings.HasSuffix(name, ".address") && !strings.HasPrefix(name, "server.log_") && !strings.HasPrefix(name, "server.admin.") {
			return false
		}
	}
	return !c.file
}

// parse parses and checks a configuration. It returns as much of it as it can, whatever
// the problems.
func (s Source) parse(data []byte) (*Config, strict.Problems) {
	c, path := defaults(), s.Path
	c.file = path != ""
	c.origins, c.hash, c.credentials = map[string]string{}, sha256.Sum256(data), &credentials{}
	doc, problems := strict.TOML(path, data, c)
	complete, named := len(problems) == 0, namesKnown(problems)
	c.noteOrigins(path, doc)
	invalid := c.override(s.Given, s.Environ, s.Flags)
	if s.SettingsOnly && c.Server.Database != "" {
		c.Document = catalog.Document{}
	}
	if c.Server.Case == string(rule.IgnoreCase) {
		c.Case = rule.IgnoreCase
	}
	if c.Server.Record.Region == "" {
		c.Server.Record.Region = c.Region.Name
	}
	if complete {
		invalid = append(invalid, c.Check()...) // rules and tiers
		invalid = append(invalid, c.CheckIn(c.World())...)
		invalid = append(invalid, c.checkRolloutStarts()...)
	} else {
		problems = withRules(problems, path, data)
	}
	invalid = append(invalid, c.check(named)...)
	return c, slices.Concat(problems.And(c.locate(path, doc, invalid)), c.descriptorProblems)
}

// namesKnown reports whether all rules, limits and tiers, and the database, could be
// parsed. Otherwise references to them cannot be checked.
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

// withRules replaces the problems of rules and tiers, in a file that could not be decoded
// completely, by those that package rule finds.
func withRules(problems strict.Problems, path string, data []byte) strict.Problems {
	ofRules := func(p strict.Problem) bool {
		return strings.HasPrefix(p.Path, "rules") || strings.HasPrefix(p.Path, "tiers")
	}
	var out, found strict.Problems
	for _, p := range problems {
		if p.Path == "" {
			return problems // the file could not be parsed beyond this
		}
		if !ofRules(p) {
			out = append(out, p)
		}
	}
	if _, err := rule.ParseTOML(path, data); err != nil {
		all, _ := err.(rule.Problems) //nolint:errorlint // it is of no other type
		for _, p := range all {
			if ofRules(p) {
				found = append(found, p)
			}
		}
	}
	return out.And(found)
}

// locate adds the places of problems: the flag or the variable, or the line in the file.
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

// outsideFile reports whether name is that of a variable or a flag.
func outsideFile(name string) bool {
	return strings.HasPrefix(name, flagPrefix) || name != "" && strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == ""
}

// readNamed reads a file that the configuration names, and remembers its hash.
func (c *Config) readNamed(path string) (string, error) {
	data, err := os.ReadFile(path)
	f := namedFile{path: path}
	if err == nil {
		f.hash = sha256.Sum256(data)
	}
	c.named = append(c.named, f)
	// Editors end a file with a newline, which is not part of a secret.
	return string(bytes.TrimRight(data, "\r\n")), err
}
