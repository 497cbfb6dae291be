package daemon

import (
	"errors"
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// check checks everything except rules and tiers, and reads the files that the
// configuration names. References to rules and tiers are only checked if named is true.
func (c *Config) check(named bool) strict.Problems {
	k, i := checker{config: c, named: named}, &c.Identity
	k.checkServer()
	k.checkIdentity()
	k.Problems = append(k.Problems, c.CheckPeople(named, i.Pepper != "" || i.PepperFile != "")...)
	k.checkLeases()
	k.checkRegion()
	k.checkUpstreams()
	k.checkPrices()
	k.checkEnvoy()
	return k.Problems
}

type checker struct {
	strict.Report
	config *Config
	named  bool // the names of all rules and tiers are known
}

// refuseErr adds the error of a parser.
func (k *checker) refuseErr(path string, err error) {
	if invalid := new(stint.InvalidError); errors.As(err, &invalid) {
		k.Refuse(path, invalid.Value, invalid.Want, "")
		return
	}
	k.Add(path, err.Error(), "")
}

// has reports whether there is a problem with a path with this prefix.
func (k *checker) has(prefix string) bool {
	return slices.ContainsFunc(k.Problems, func(p strict.Problem) bool { return strings.HasPrefix(p.Path, prefix) })
}

func (k *checker) oneOf(path, value string, words ...string) {
	if !slices.Contains(words, value) {
		k.Refuse(path, value, "one of "+strings.Join(words, ", "), k.Closest(value, words))
	}
}

func (k *checker) atLeast(path string, value, minimum int) {
	if value < minimum {
		k.Add(path, strconv.Itoa(value)+": want "+strconv.Itoa(minimum)+" or more", "")
	}
}

func (k *checker) between(path string, d Duration, shortest, longest time.Duration) {
	if time.Duration(d) < shortest || time.Duration(d) > longest {
		k.Refuse(path, d.String(), "from "+Duration(shortest).String()+" to "+Duration(longest).String(), "")
	}
}

// checkCounters checks where counters are. Values are not shown: they may have a password, in any place.
func (k *checker) checkCounters(path string, counters string) {
	switch {
	case counters == inMemory:
	case !strings.HasPrefix(counters, "redis"):
		k.Add(path, "want "+inMemory+" or a URL that starts with "+strings.Join(redisSchemes, ", "), "")
	default:
		if invalid := new(stint.InvalidError); errors.As(checkRedis(counters), &invalid) { // which shows none
			k.Add(path, strings.TrimPrefix(invalid.Error(), "stint: redis url "), "")
		}
	}
}

// redisSchemes are the schemes of Redis URLs.
var redisSchemes = []string{
	"redis://", "rediss://", "redis+sentinel://", "rediss+sentinel://", "redis+cluster://", "rediss+cluster://",
	"redis+ring://", "rediss+ring://",
}

func (k *checker) checkServer() {
	s := &k.config.Server
	k.checkCounters("server.counters", string(s.Counters))
	k.checkCatalog()
	k.checkRecord()
	k.between("server.store_budget", s.StoreBudget, time.Millisecond, time.Minute)
	k.atLeast("server.replicas", s.Replicas, 0)
	k.atLeast("server.max_keys", s.MaxKeys, 1)
	k.atLeast("server.max_waiting", s.MaxWaiting, 1)
	if s.ReloadInterval != 0 {
		k.between("server.reload_interval", s.ReloadInterval, 10*time.Millisecond, 24*time.Hour)
	}
	k.checkListeners()
	for n, name := range s.Headers {
		k.oneOf(strict.Item("server.headers", n), name, "x", "ietf", "id", "none")
	}
	if _, err := httplimit.ParseHeaderSets(s.Headers); err != nil && !k.has("server.headers") {
		k.refuseErr("server.headers", err)
	}
	k.oneOf("server.case", s.Case, string(rule.ExactCase), string(rule.IgnoreCase))
	if s.MaxPath < 256 || s.MaxPath > maxHeader {
		k.Refuse("server.max_path", strconv.Itoa(s.MaxPath), "from 256 to "+strconv.Itoa(maxHeader), "")
	}
	k.atLeast("server.max_body", s.MaxBody, 0)
	k.between("server.header_timeout", s.HeaderTimeout, 10*time.Millisecond, time.Hour)
	k.between("server.stall_timeout", s.StallTimeout, 10*time.Millisecond, time.Hour)
	k.atLeast("server.min_body_rate", s.MinBodyRate, 0)
	k.between("server.idle_timeout", s.IdleTimeout, 10*time.Millisecond, 24*time.Hour)
	k.between("server.drain_delay", s.DrainDelay, 0, 10*time.Minute)
	k.between("server.drain", s.Drain, 0, time.Hour)
	if e := string(s.Trace.Endpoint); e != "" {
		if u, err := url.Parse(e); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || strings.HasSuffix(e, "/") {
			k.Refuse("server.trace.endpoint", s.Trace.Endpoint.String(), "an http or https URL without a trailing slash, such as http://localhost:4318", "")
		}
	}
	if s.Trace.Sample < 0 || s.Trace.Sample > allRequests {
		k.Refuse("server.trace.sample", strconv.Itoa(s.Trace.Sample), "from 0 to 10000", "")
	}
	k.readTicketKeys()
	k.oneOf("server.log_format", s.LogFormat, "json", "text")
	k.oneOf("server.log_level", s.LogLevel, "debug", "info", "warn", "error")
}

// checkLeases checks that rules take no units ahead, and deny while the store is away, where
// there is none. Other leases in memory do no harm, and stint doctor warns of them.
func (k *checker) checkLeases() {
	if k.config.Server.Counters != inMemory {
		return
	}
	for i, r := range k.config.Rules {
		for j, l := range r.Limits {
			if l.Lease != 0 && r.OnStoreFailure == rule.Closed {
				k.Refuse(strict.Item(strict.Item("rules", i)+".limits", j)+".lease", l.Lease.String(),
					"none, or server.counters with the URL of Redis: counters in memory are never away, so there is nothing to take units from, and nothing to close", "")
			}
		}
	}
}

// optionSettings are the settings of the options of a resolver, except JWT, which is
// invalid only if files could not be read.
var optionSettings = map[string]string{
	"Methods": "methods", "DefaultTier": "default_tier", "KeyHeader": "api_key_header", "KeyPrefix": "api_key_prefix",
	"Pepper": "pepper", "FailedKeys": "failed_keys", "UserHeader": "user_header", "TenantHeader": "tenant_header", "TierHeader": "tier_header",
	"TrustedProxies": "trusted_proxies", "TrustedDepth": "trusted_proxy_depth", "ForwardedHeader": "forwarded_header",
	"IPv6Prefix": "ipv6_prefix", "JWT.Secret": "jwt.secret", "JWT.PublicKeys": "jwt.public_keys",
	"JWT.JWKS": "jwt.jwks_url", "JWT.Refresh": "jwt.jwks_refresh", "JWT.Leeway": "jwt.leeway", "JWT.Remember": "jwt.remember",
}

func (k *checker) checkIdentity() {
	c, i := k.config, &k.config.Identity
	c.credentials.pepper = k.readSecret("identity.pepper", i.Pepper, i.PepperFile)
	k.checkJWT()
	for n, m := range i.Methods {
		k.oneOf(strict.Item("identity.methods", n), m, "key", "jwt", "header")
	}
	if i.OnConflict != "" { // which is reported below
		k.oneOf("identity.on_conflict", i.OnConflict, onReject, onFirst)
	}
	if i.JWT.OnBadToken != "" {
		k.oneOf("identity.jwt.on_bad_token", i.JWT.OnBadToken, onReject, onAnonymous)
	}
	if i.FailedKeys < 0 {
		k.Refuse("identity.failed_keys", strconv.Itoa(i.FailedKeys), "1 to 1000", "")
	}
	for n, text := range i.TrustedProxies {
		if _, err := parseProxy(text); err != nil {
			k.refuseErr(strict.Item("identity.trusted_proxies", n), err)
		}
	}
	// A resolver would use the default for a zero value.
	byDefault := defaults().settings()
	for n, s := range c.settings() {
		if strings.HasPrefix(s.name, "identity.") && s.value.IsZero() && !byDefault[n].value.IsZero() && s.name != "identity.jwt.leeway" {
			k.Add(s.name, strict.Quote(s.text())+": leave it out for the default, "+byDefault[n].text(), "")
		}
	}
	if k.named && i.DefaultTier != "" && c.Server.Database == "" {
		var tiers []string
		for _, t := range c.Tiers {
			tiers = append(tiers, t.Name)
		}
		if !slices.Contains(tiers, i.DefaultTier) {
			k.Refuse("identity.default_tier", i.DefaultTier, "the name of a tier in this file", k.Closest(i.DefaultTier, tiers))
		}
	}
	k.tryResolver()
}

// tryResolver lets package identity check the rest.
func (k *checker) tryResolver() {
	o := k.config.options(k.config.Directory(nil), len(k.config.APIKeys) > 0 || k.config.Server.Database != "")
	if o.JWT != nil {
		o.JWT.Client = &http.Client{Transport: offline{}}
	}
	r, err := identity.New(o)
	if err == nil {
		_ = r.Close() // it never fails
		return
	}
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		errs = joined.Unwrap()
	}
	for _, err := range errs {
		setting, known := "jwt.jwks_file", !k.has("identity.jwt.jwks_") // which cannot be read
		if invalid := new(stint.InvalidError); errors.As(err, &invalid) {
			setting, known = optionSettings[strings.TrimPrefix(invalid.Field, "identity ")]
		}
		if known {
			k.refuseErr("identity."+k.fileOf(setting), err)
		}
	}
}

// fileOf returns the setting with the file that a value was read from, or the setting
// itself.
func (k *checker) fileOf(setting string) string {
	i := &k.config.Identity
	switch {
	case setting == "pepper" && i.PepperFile != "", setting == "jwt.secret" && i.JWT.SecretFile != "":
		return setting + "_file"
	case setting == "jwt.public_keys" && len(i.JWT.PublicKeyFiles) > 0:
		return "jwt.public_key_files"
	}
	return setting
}

// offline is a transport that fails: checking a configuration uses no network.
type offline struct{}

func (offline) RoundTrip(*http.Request) (*http.Response, error) { return nil, fs.ErrNotExist }

func (k *checker) checkJWT() {
	c, j := k.config, &k.config.Identity.JWT
	c.credentials.secret = k.readSecret("identity.jwt.secret", j.Secret, j.SecretFile)
	c.credentials.publicKeys = j.PublicKeys
	for n, path := range j.PublicKeyFiles {
		text, err := c.readNamed(path)
		if err != nil {
			k.refuseFile(strict.Item("identity.jwt.public_key_files", n), path, err)
		}
		c.credentials.publicKeys += "\n" + text
	}
	switch {
	case j.Secret == "" && j.SecretFile == "" && j.PublicKeys == "" && len(j.PublicKeyFiles) == 0 && j.JWKSFile == "" && j.JWKSURL == "":
		if j.used() {
			k.Add("identity.jwt", "has no keys: want secret, secret_file, public_keys, public_key_files, jwks_file or jwks_url", "")
		}
	case j.JWKSFile != "" && j.JWKSURL != "":
		k.Add("identity.jwt.jwks_file", "is set together with jwks_url, want one of them", "")
	case strings.Contains(j.JWKSFile, "://"):
		k.Add("identity.jwt.jwks_file", "want a file", strict.DidYouMean("jwks_url"))
	case j.JWKSFile != "":
		_, _ = c.readNamed(j.JWKSFile) // tryResolver reports errors
	case j.JWKSURL != "" && !strings.Contains(string(j.JWKSURL), "://"):
		k.Add("identity.jwt.jwks_url", "want an http or https URL", strict.DidYouMean("jwks_file"))
	}
}

// readSecret returns a secret that is either set or in a file.
func (k *checker) readSecret(path string, set identity.Secret, file string) identity.Secret {
	switch {
	case file == "":
		return set
	case set != "":
		k.Add(path+"_file", "is set together with "+path[strings.LastIndexByte(path, '.')+1:]+", want one of them", "")
		return set
	}
	text, err := k.config.readNamed(file)
	switch {
	case err != nil:
		k.refuseFile(path+"_file", file, err)
	case text == "":
		k.Refuse(path+"_file", file, "a file that is not empty", "")
	}
	return identity.Secret(text)
}

func (k *checker) refuseFile(path, file string, err error) {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		err = p.Err // without the path
	}
	k.Refuse(path, file, "a file that can be read: "+err.Error(), "")
}

// parseProxy parses an address or a network.
func parseProxy(text string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p, nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}, &stint.InvalidError{
			Field: "trusted proxy", Value: text, Want: "an address or a network, such as 192.0.2.1 or 10.0.0.0/8",
		}
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}
