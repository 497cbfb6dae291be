package daemon

import (
	"cmp"
	"io"
	"log/slog"
	"reflect"
	"time"

	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/quiet"
	"github.com/stintdev/stint/rule"
)

// Content is the rules, lists and directory, from the file or the database.
type Content struct {
	Rules     *rule.Set
	Lists     identity.Lists
	Directory identity.Directory
	// Keys says that there may be API keys. Otherwise their header is ignored.
	Keys bool
}

// content returns the content of the database, if there is one, or that of the file.
func (c *Config) content(database *Content) (Content, error) {
	if database != nil {
		return *database, nil
	}
	return c.Content()
}

// Content returns the content of the file.
func (c *Config) Content() (Content, error) {
	out := Content{Directory: c.Directory(nil), Keys: len(c.APIKeys) > 0}
	var err error
	if out.Rules, err = rule.Compile(c.File); err != nil {
		return out, err
	}
	out.Lists, err = c.Lists()
	return out, err
}

// Resolver returns a resolver, which replaces the previous one, if any. The caller must
// close it.
func (c *Config) Resolver(from Content, previous *identity.Resolver) (*identity.Resolver, error) {
	o := c.options(from.Directory, from.Keys)
	o.Lists, o.Previous = from.Lists, previous
	return identity.New(o)
}

// options are those of the resolver, without its lists.
func (c *Config) options(d identity.Directory, keys bool) identity.Options {
	i := &c.Identity
	o := identity.Options{
		Methods: []identity.Source{}, Directory: d, Require: i.Require, FirstWins: i.OnConflict == onFirst, DefaultTier: i.DefaultTier,
		KeyHeader: i.APIKeyHeader, KeyPrefix: i.APIKeyPrefix, KeyBearer: i.APIKeyBearer, Pepper: c.credentials.pepper, FailedKeys: i.FailedKeys,
		UserHeader: i.UserHeader, TenantHeader: i.TenantHeader, TierHeader: i.TierHeader,
		TrustedProxies: c.trusted(), TrustedDepth: i.TrustedProxyDepth, ForwardedHeader: i.ForwardedHeader, IPv6Prefix: i.IPv6Prefix,
	}
	if j := &i.JWT; j.used() {
		o.JWT = &identity.JWTOptions{
			Secret: c.credentials.secret, PublicKeys: c.credentials.publicKeys, JWKS: cmp.Or(j.JWKSFile, string(j.JWKSURL)), Refresh: time.Duration(j.JWKSRefresh),
			IgnoreBad: j.OnBadToken == onAnonymous, Issuer: j.Issuer, Audience: j.Audience,
			Leeway:    max(time.Duration(j.Leeway), 1), // 0 would be the default
			UserClaim: j.UserClaim, TenantClaim: j.TenantClaim, TierClaim: j.TierClaim, Remember: j.Remember,
		}
	}
	for _, name := range i.Methods {
		var m identity.Source
		if m.UnmarshalText([]byte(name)) == nil { // checked
			o.Methods = append(o.Methods, m)
		}
	}
	if len(i.Methods) == 0 {
		if keys {
			o.Methods = append(o.Methods, identity.ByKey)
		}
		if o.JWT != nil {
			o.Methods = append(o.Methods, identity.ByJWT)
		}
		if o.UserHeader != "" || o.TenantHeader != "" {
			o.Methods = append(o.Methods, identity.ByHeader)
		}
	}
	return o
}

// used reports whether any of its settings is set.
func (j *JWT) used() bool { return !reflect.DeepEqual(*j, defaults().Identity.JWT) }

// routes returns the routes of the gateway.
func (c *Config) routes() []httplimit.Route {
	var out []httplimit.Route
	for _, u := range c.Upstreams {
		r := httplimit.Route{
			Host: u.Host, Prefix: u.PathPrefix, Targets: u.Targets, StripPrefix: u.StripPrefix, PreserveHost: u.PreserveHost,
			IgnoreCase: u.Case == string(rule.IgnoreCase), LenientPaths: u.LenientPaths, OverrideHeaders: u.OverrideHeaders,
			Cost: u.Cost, DialTimeout: time.Duration(u.DialTimeout), ResponseTimeout: time.Duration(u.ResponseTimeout),
			Timeout: time.Duration(u.Timeout),
		}
		if u.Check != nil {
			r.Check = &httplimit.Check{Path: u.Check.Path, Interval: time.Duration(u.Check.Interval), Timeout: time.Duration(u.Check.Timeout)}
		}
		out = append(out, r)
	}
	return out
}

// headers returns the rate limit headers of responses.
func (c *Config) headers() httplimit.HeaderSet {
	set, _ := httplimit.ParseHeaderSets(c.Server.Headers) // checked
	return set
}

// Logger returns a logger with the configured format and level. Lines that repeat are
// written once a second. Its handler is a [quiet.Handler].
func (c *Config) Logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Server.LogLevel)) // checked
	o := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewJSONHandler(w, o)
	if c.Server.LogFormat == "text" {
		h = slog.NewTextHandler(w, o)
	}
	return slog.New(quiet.New(h, inLines...))
}

// inLines are the attributes that tell lines of the log apart, so that one target that
// fails does not hide another. Their values come from the configuration, from code or from
// operators, and never from clients: otherwise clients could fill the log.
var inLines = []string{
	"actor", "down", "listener", "month", "operation", "route", "server", "state", "status", "target", "text", "version",
}
