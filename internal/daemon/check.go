package daemon

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
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
	"github.com/stintdev/stint/internal/strict"
	"github.com/stintdev/stint/rule"
)

// check returns what is wrong with everything but rules and tiers, and reads the
// files that the configuration names. What depends on rules and tiers can only be
// said if the file is whole.
func (c *Config) check(whole bool) strict.Problems {
	k := checker{config: c, whole: whole}
	for _, t := range c.Tiers {
		k.tiers = append(k.tiers, t.Name)
	}
	for _, r := range c.Rules {
		for _, l := range r.Limits {
			k.limits = append(k.limits, l.Name)
		}
	}
	slices.Sort(k.limits)
	k.limits = slices.Compact(k.limits)
	k.checkServer()
	k.checkIdentity()
	k.checkUsers()
	k.checkKeys()
	k.checkEntries("exemptions", c.Exemptions)
	k.checkEntries("bans", c.Bans)
	k.checkUpstreams()
	k.checkEnvoy()
	return k.problems
}

type checker struct {
	config        *Config
	whole         bool
	tiers, limits []string // names; limits are sorted
	problems      strict.Problems
}

// add notes a problem.
func (k *checker) add(path, message, hint string) {
	if len(k.problems) < strict.MaxProblems {
		k.problems = append(k.problems, strict.Problem{Path: path, Message: message, Hint: hint})
	}
}

// refuse notes a value that is wrong, and what is wanted.
func (k *checker) refuse(path, value, want, hint string) {
	k.add(path, quote(value)+": want "+want, hint)
}

// refuseErr notes what a parser says of a value.
func (k *checker) refuseErr(path string, err error, hint string) {
	if invalid := new(stint.InvalidError); errors.As(err, &invalid) {
		k.refuse(path, invalid.Value, invalid.Want, hint)
		return
	}
	k.add(path, err.Error(), hint)
}

// quote returns a value in quotes, cut to what can be shown.
func quote(value string) string {
	const most = 64
	return fmt.Sprintf("%.*q", most, value)
}

// has reports whether there is a problem with a path that begins so.
func (k *checker) has(prefix string) bool {
	return slices.ContainsFunc(k.problems, func(p strict.Problem) bool { return strings.HasPrefix(p.Path, prefix) })
}

// closest returns the hint that one of the words was meant, if one was. In a file
// that has very much wrong it does not look.
func (k *checker) closest(word string, among []string) string {
	const enough = 100
	if len(k.problems) < enough {
		if w, ok := strict.Closest(word, among); ok {
			return strict.DidYouMean(w)
		}
	}
	return ""
}

func (k *checker) oneOf(path, value string, those ...string) {
	if !slices.Contains(those, value) {
		k.refuse(path, value, "one of "+strings.Join(those, ", "), k.closest(value, those))
	}
}

func (k *checker) atLeast(path string, value, least int) {
	if value < least {
		k.add(path, strconv.Itoa(value)+": want "+strconv.Itoa(least)+" or more", "")
	}
}

func (k *checker) between(path string, d Duration, least, most time.Duration) {
	if time.Duration(d) < least || time.Duration(d) > most {
		k.refuse(path, d.String(), "from "+Duration(least).String()+" to "+Duration(most).String(), "")
	}
}

// redisSchemes are how the URL of a Redis may begin.
var redisSchemes = []string{
	"redis://", "rediss://", "redis+sentinel://", "rediss+sentinel://", "redis+cluster://", "rediss+cluster://",
}

func (k *checker) checkServer() {
	s := &k.config.Server
	if s.Counters != inMemory && !slices.ContainsFunc(redisSchemes, func(scheme string) bool {
		return strings.HasPrefix(string(s.Counters), scheme)
	}) {
		// It is not shown: what does not begin like a URL may be a password.
		k.add("server.counters", "want "+inMemory+" or a URL that begins with "+strings.Join(redisSchemes, ", "), "")
	}
	k.between("server.store_budget", s.StoreBudget, time.Millisecond, time.Minute)
	k.atLeast("server.replicas", s.Replicas, 1)
	k.atLeast("server.max_keys", s.MaxKeys, 1)
	k.atLeast("server.max_waiting", s.MaxWaiting, 1)
	if s.ReloadInterval != 0 {
		k.between("server.reload_interval", s.ReloadInterval, 10*time.Millisecond, 24*time.Hour)
	}
	k.checkListeners()
	for n, name := range s.Headers {
		k.oneOf(strict.Item("server.headers", n), name, "x", "ietf", "none")
	}
	if _, err := httplimit.ParseHeaderSets(s.Headers); err != nil && !k.has("server.headers") {
		k.refuseErr("server.headers", err, "")
	}
	k.atLeast("server.max_body", s.MaxBody, 0)
	k.between("server.header_timeout", s.HeaderTimeout, 10*time.Millisecond, time.Hour)
	k.between("server.stall_timeout", s.StallTimeout, 10*time.Millisecond, time.Hour)
	k.between("server.idle_timeout", s.IdleTimeout, 10*time.Millisecond, 24*time.Hour)
	k.between("server.drain_delay", s.DrainDelay, 0, 10*time.Minute)
	k.between("server.drain", s.Drain, 0, time.Hour)
	if e := string(s.Trace.Endpoint); e != "" {
		if u, err := url.Parse(e); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || strings.HasSuffix(e, "/") {
			k.refuse("server.trace.endpoint", s.Trace.Endpoint.String(), "an http or https URL without a slash at its end, such as http://localhost:4318", "")
		}
	}
	if s.Trace.Sample < 0 || s.Trace.Sample > mostSample {
		k.refuse("server.trace.sample", strconv.Itoa(s.Trace.Sample), "from 0 to 10000", "")
	}
	k.oneOf("server.log_format", s.LogFormat, "json", "text")
	k.oneOf("server.log_level", s.LogLevel, "debug", "info", "warn", "error")
}

// optionSettings are the settings behind the options of a resolver, but for JWT,
// which is wrong only where files could not be read.
var optionSettings = map[string]string{
	"Methods": "methods", "DefaultTier": "default_tier", "KeyHeader": "api_key_header", "KeyPrefix": "api_key_prefix",
	"Pepper": "pepper", "UserHeader": "user_header", "TenantHeader": "tenant_header", "TierHeader": "tier_header",
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
	for n, text := range i.TrustedProxies {
		if _, err := parseProxy(text); err != nil {
			k.refuseErr(strict.Item("identity.trusted_proxies", n), err, "")
		}
	}
	// Nothing, to a resolver, means its default.
	usual := defaults().settings()
	for n, s := range c.settings() {
		if strings.HasPrefix(s.name, "identity.") && s.value.IsZero() && !usual[n].value.IsZero() && s.name != "identity.jwt.leeway" {
			k.add(s.name, quote(s.text())+": leave it out for the default, "+usual[n].text(), "")
		}
	}
	k.checkTier("identity.default_tier", i.DefaultTier)
	k.tryResolver()
}

// tryResolver has package identity check the rest.
func (k *checker) tryResolver() {
	o := k.config.options()
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
			k.refuseErr("identity."+k.fileOf(setting), err, "")
		}
	}
}

// fileOf returns the setting that names the file, if that is where the value of a
// setting comes from.
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

// offline is a network without anyone.
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
			k.add("identity.jwt", "has no keys: want secret, secret_file, public_keys, public_key_files, jwks_file or jwks_url", "")
		}
	case j.JWKSFile != "" && j.JWKSURL != "":
		k.add("identity.jwt.jwks_file", "want either it or jwks_url", "")
	case strings.Contains(j.JWKSFile, "://"):
		k.add("identity.jwt.jwks_file", "want a file", strict.DidYouMean("jwks_url"))
	case j.JWKSFile != "":
		_, _ = c.readNamed(j.JWKSFile) // whoever reads it for good will say
	case j.JWKSURL != "" && !strings.Contains(string(j.JWKSURL), "://"):
		k.add("identity.jwt.jwks_url", "want an http or https URL", strict.DidYouMean("jwks_file"))
	}
}

// readSecret returns a secret that is either set or in a file.
func (k *checker) readSecret(path string, set identity.Secret, file string) identity.Secret {
	switch {
	case file == "":
		return set
	case set != "":
		k.add(path+"_file", "want either it or "+path[strings.LastIndexByte(path, '.')+1:], "")
		return set
	}
	text, err := k.config.readNamed(file)
	switch {
	case err != nil:
		k.refuseFile(path+"_file", file, err)
	case text == "":
		k.refuse(path+"_file", file, "a file that is not empty", "")
	}
	return identity.Secret(text)
}

func (k *checker) refuseFile(path, file string, err error) {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		err = p.Err // the path is said already
	}
	k.refuse(path, file, "a file that can be read: "+err.Error(), "")
}

// parseProxy reads an address or a network.
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

func (k *checker) checkUsers() {
	var ids []identity.Entry
	var paths []string
	for i := range k.config.Users {
		u, path := &k.config.Users[i], strict.Item("users", i)
		ids, paths = append(ids, identity.Entry{Kind: identity.KindUser, Value: u.ID}), append(paths, path+".id")
		k.checkID(path+".tenant", u.Tenant)
		k.checkTier(path+".tier", u.Tier)
		k.checkLimits(path+".limits", u.Limits)
	}
	k.checkList(ids, paths)
}

func (k *checker) checkKeys() {
	var ids []identity.Entry
	var paths []string
	for i := range k.config.APIKeys {
		a, path := &k.config.APIKeys[i], strict.Item("api_keys", i)
		if n := len(a.ID); n < 8 || n > 64 || strings.ContainsFunc(a.ID, notAlphanumeric) {
			k.refuse(path+".id", a.ID, "8 to 64 letters and digits: the part of the key between its prefix and its secret", "")
		} else {
			ids, paths = append(ids, identity.Entry{Kind: identity.KindKey, Value: a.ID}), append(paths, path+".id")
		}
		switch _, hashing, err := parseHash(a.Hash); {
		case err != nil:
			k.add(path+".hash", err.Error(), "")
		case hashing == identity.HMAC && k.config.Identity.Pepper == "" && k.config.Identity.PepperFile == "":
			k.add(path+".hash", "was made with a pepper, and none is set: want identity.pepper or identity.pepper_file", "")
		}
		k.checkID(path+".user", a.User)
		k.checkID(path+".tenant", a.Tenant)
		k.checkTier(path+".tier", a.Tier)
		k.checkLimits(path+".limits", a.Limits)
	}
	k.checkList(ids, paths)
}

func notAlphanumeric(r rune) bool {
	return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
}

// parseHash reads the hash of a key's secret. The error does not show it: it may be
// the secret itself.
func parseHash(text string) (hash [32]byte, hashing identity.Hashing, err error) {
	how, digits, _ := strings.Cut(text, ":")
	sum, err := hex.DecodeString(digits)
	if err != nil || len(sum) != len(hash) || hashing.UnmarshalText([]byte(how)) != nil {
		return hash, hashing, errors.New("want sha256: or hmac-sha256: and the hash of the secret in 64 hexadecimal digits")
	}
	return [32]byte(sum), hashing, nil
}

func (k *checker) checkEntries(section string, list []Entry) {
	var entries []identity.Entry
	var paths []string
	for i := range list {
		path := strict.Item(section, i)
		given := list[i].entries()
		if len(given) != 1 {
			k.add(path, "has "+strconv.Itoa(len(given))+" of ip, user, tenant and key, want one of them", "")
		}
		for _, e := range given {
			entries, paths = append(entries, e), append(paths, path+"."+e.Kind.String())
		}
	}
	k.checkList(entries, paths)
}

// entries returns an entry for each that is named. There should be one.
func (e *Entry) entries() []identity.Entry {
	var out []identity.Entry
	for kind, value := range []string{
		identity.KindIP: e.IP, identity.KindUser: e.User, identity.KindTenant: e.Tenant, identity.KindKey: e.Key,
	} {
		if value != "" {
			out = append(out, identity.Entry{Kind: identity.Kind(kind), Value: value, Reason: e.Reason, Until: e.Until.Time})
		}
	}
	return out
}

// checkList has package identity check that each entry could be meant, and that none
// is there twice.
func (k *checker) checkList(entries []identity.Entry, paths []string) {
	_, err := identity.NewList(entries)
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return
	}
	for _, err := range joined.Unwrap() {
		invalid := new(stint.InvalidError)
		if !errors.As(err, &invalid) {
			continue
		}
		i, _ := strconv.Atoi(strings.Trim(strings.TrimPrefix(invalid.Field, "identity entries"), "[]"))
		k.refuse(paths[i], entries[i].Value, invalid.Want, "")
	}
}

// checkID checks a name that a client may be counted by. It may be empty.
func (k *checker) checkID(path, id string) {
	if id != "" {
		k.checkList([]identity.Entry{{Kind: identity.KindUser, Value: id}}, []string{path})
	}
}

func (k *checker) checkTier(path, tier string) {
	if k.whole && tier != "" && !slices.Contains(k.tiers, tier) {
		k.refuse(path, tier, "the name of a tier in this file", k.closest(tier, k.tiers))
	}
}

func (k *checker) checkLimits(path string, limits map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		path := strict.Member(path, name)
		if _, ok := slices.BinarySearch(k.limits, name); !ok && k.whole {
			k.refuse(path, name, "the name of a limit of a rule", k.closest(name, k.limits))
		}
		if _, err := rule.ParseValue(limits[name]); err != nil {
			k.refuseErr(path, err, k.closest(limits[name], []string{"unlimited"}))
		}
	}
}
