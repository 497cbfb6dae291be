package daemon

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/signin"
	"github.com/stintdev/stint/internal/daemon/envoyenv"
	"github.com/stintdev/stint/internal/kit/strict"
)

const oidcSetting = "server.admin.oidc"

// checkOIDC checks the identity provider. It is not asked: it may be away.
func (k *checker) checkOIDC() {
	o := &k.config.Server.Admin.OIDC
	k.config.credentials.clientSecret = k.readSecret(oidcSetting+".client_secret", o.ClientSecret, o.ClientSecretFile)
	if o.Issuer == "" {
		if o.ClientID != "" || len(o.Groups) > 0 {
			k.Add(oidcSetting+".issuer", "missing, want the URL of the identity provider, such as https://login.example.com/realms/staff", "")
		}
		return
	}
	const wantIssuer = "an https URL without a query, as the provider itself gives it, such as https://login.example.com/realms/staff; http only for this machine"
	if u, err := url.Parse(o.Issuer); err != nil || !encrypted(u) || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		k.Refuse(oidcSetting+".issuer", o.Issuer, wantIssuer, "")
	} else if strings.HasSuffix(u.Path, "/.well-known/openid-configuration") {
		k.Refuse(oidcSetting+".issuer", o.Issuer, wantIssuer, "leave out /.well-known/openid-configuration")
	}
	if o.ClientID == "" {
		k.Add(oidcSetting+".client_id", "missing, want the id of the client that is registered at the provider", "")
	}
	if o.RedirectURL != "" {
		const path = admin.Prefix + "/sign-in/callback"
		if u, err := url.Parse(o.RedirectURL); err != nil || !encrypted(u) || u.Path != path || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
			k.Refuse(oidcSetting+".redirect_url", o.RedirectURL, "an https URL of this server with the path "+path+"; http only for this machine", "")
		}
	}
	for name, list := range map[string][]string{".scopes": o.Scopes, ".email_domains": o.EmailDomains} {
		for i, text := range list {
			if text == "" || strings.ContainsAny(text, " @\"\\") || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
				k.Refuse(strict.Item(oidcSetting+name, i), text, map[string]string{".scopes": "one scope, such as email", ".email_domains": "a domain, such as example.com"}[name], "")
			}
		}
	}
	if o.Claim == "" {
		k.Add(oidcSetting+".claim", "missing, want the claim with the groups of a person, such as groups or realm_access.roles", "")
	}
	k.checkGroups(o.Groups)
}

// encrypted reports whether a URL is one that others cannot read: of https, or of this machine.
func encrypted(u *url.URL) bool {
	return u.Host != "" && (u.Scheme == "https" || u.Scheme == "http" && (u.Hostname() == "localhost" || envoyenv.IsLoopback(u.Hostname()+":80")))
}

// checkGroups checks which groups may sign in.
func (k *checker) checkGroups(groups []OIDCGroup) {
	if len(groups) == 0 {
		k.Add(oidcSetting+".groups", "missing, want who may sign in, such as [[server.admin.oidc.groups]] with group = \"stint-admins\" and role = \"admin\"", "")
	}
	roles := []string{string(catalog.Viewer), string(catalog.Operator), string(catalog.Administrator)}
	for i, g := range groups {
		path := strict.Item(oidcSetting+".groups", i)
		if g.Group == "" {
			k.Add(path+".group", "missing, want a group, as the provider names it", "")
		}
		if slices.ContainsFunc(groups[:i], func(other OIDCGroup) bool { return other.Group == g.Group }) {
			k.Add(path+".group", strict.Quote(g.Group)+" is there already, want each once", "")
		}
		if !slices.Contains(roles, string(g.Role)) {
			k.Refuse(path+".role", string(g.Role), "one of viewer, operator and admin", k.Closest(string(g.Role), roles))
		}
		for j, t := range g.Tenants {
			if !identity.ValidID(t) {
				k.Refuse(strict.Item(path+".tenants", j), t, "the id of a tenant", "")
			}
		}
		if len(g.Tenants) > catalog.MaxTenants {
			k.Add(path+".tenants", "are too many, want at most 100", "")
		}
	}
}

// openSignIn adds the identity provider to the admin API, if there is one. It may be away.
func (d *Daemon) openSignIn(o *admin.Options) {
	c := &d.config.Server.Admin.OIDC
	if c.Issuer == "" {
		return
	}
	s := signin.Options{
		Issuer: c.Issuer, ClientID: c.ClientID, ClientSecret: d.config.credentials.clientSecret, Scopes: c.Scopes, Claim: c.Claim, NameClaim: c.NameClaim, EmailDomains: c.EmailDomains,
	}
	for _, g := range c.Groups {
		s.Groups = append(s.Groups, signin.Group{Name: g.Group, Role: g.Role, Tenants: g.Tenants})
	}
	d.operators.signIn = signin.New(s)
	o.SignIn, o.SignInName = d.operators.signIn, c.Name
	if c.RedirectURL != "" {
		o.SignInURL, _ = url.Parse(c.RedirectURL) // it was checked
	}
}

// startSignIn looks for the identity provider until it is found.
func (d *Daemon) startSignIn(ctx context.Context) {
	p := d.operators.signIn
	if p == nil || d.URL(adminListener) == "" {
		return
	}
	const pause = 5 * time.Second
	failed := false
	find := func() bool {
		err := p.Discover(ctx)
		switch {
		case err != nil && ctx.Err() == nil && !failed:
			failed = true
			d.log.WarnContext(ctx, "people cannot sign in until the identity provider is found, which is retried; tokens work", "issuer", d.config.Server.Admin.OIDC.Issuer, "problem", err.Error())
		case err == nil && failed:
			d.log.InfoContext(ctx, "the identity provider was found", "issuer", d.config.Server.Admin.OIDC.Issuer)
		}
		return err != nil
	}
	d.work.Go(func() {
		if find() {
			every(ctx, pause, find)
		}
	})
}
