package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/rule"
)

// TestGatewayRoutes is about which target gets a request, and what it sees.
func TestGatewayRoutes(t *testing.T) {
	t.Parallel()
	base := named(t, "base")
	_, s := gateway(t, httplimit.GatewayOptions{Routes: []httplimit.Route{
		{Targets: []string{named(t, "any")}},
		{Prefix: "/static", Targets: []string{named(t, "static")}},
		{Host: "api.example.com", Targets: []string{named(t, "api")}, PreserveHost: true},
		{Host: "api.example.com", Prefix: "/v2", Targets: []string{named(t, "v2")}, StripPrefix: true},
		{Host: "api.example.com", Prefix: "/v2/über", Targets: []string{named(t, "deep")}, StripPrefix: true},
		{Host: "*.example.com", Targets: []string{named(t, "wild")}},
		{Host: "*.eu.example.com", Prefix: "/only", Targets: []string{named(t, "eu")}},
		{Host: "based.test", Targets: []string{base + "/base/"}},
		{Host: "stripped.test", Prefix: "/x", Targets: []string{base + "/base"}, StripPrefix: true},
		{Host: "[::1]", Targets: []string{named(t, "v6")}},
		{Host: "iis.test", Prefix: "/Kilo/Über", Targets: []string{base}, StripPrefix: true, IgnoreCase: true},
		{Host: "twice.test", Targets: []string{base}, LenientPaths: true},
	}})
	for _, c := range []struct{ host, path, want string }{
		{"", "/", "any /"},
		{"other.test:8000", "/x?a=b;c&d=%zz", "any /x?a=b;c&d=%zz"},
		{"other.test", "/static", "static /static"},
		{"other.test", "/static/x/", "static /static/x/"},
		{"other.test", "/statics", "any /statics"},
		{"other.test", "//static//x", "static //static//x"},
		{"other.test", "/st%61tic/%2Fx%20y", "static /st%61tic/%2Fx%20y"},
		{"other.test", "/static%2Fx", "any /static%2Fx"},
		{"api.example.com", "/static", "api /static api.example.com"},
		{"API.Example.Com.:443", "/a%2Fb", "api /a%2Fb API.Example.Com.:443"},
		{"api.example.com", "/v2", "v2 /"},
		{"api.example.com", "/v2/", "v2 /"},
		{"api.example.com", "/v2/a%2Fb//c", "v2 /a%2Fb//c"},
		{"api.example.com", "//%762/a", "v2 /a"},
		{"api.example.com", "/v2/%C3%BCber/x%20y", "deep /x%20y"},
		{"api.example.com", "/v2/%C3%BCberx", "v2 /%C3%BCberx"},
		{"api.example.com", "/v22", "api /v22 api.example.com"},
		{"a.example.com", "/v2", "wild /v2"},
		{"a.b.example.com", "/", "wild /"},
		{"example.com", "/", "any /"},
		{"aexample.com", "/", "any /"},
		{"a.eu.example.com", "/only/x", "eu /only/x"},
		{"a.eu.example.com", "/", "404"},
		{"based.test", "/a%2Fb?c", "base /base/a%2Fb?c"},
		{"stripped.test", "/x/a%2Fb", "base /base/a%2Fb"},
		{"stripped.test", "/y", "404"},
		{"[::1]:8000", "/", "v6 /"},
		{"iis.test", "/kILO/%C3%9CBER/A%2Fb", "base /A%2Fb"},
		{"iis.test", "/%E2%84%AAilo//%c3%bcber", "base /"}, // the sign of the kelvin, which is longer than a k
		{"iis.test", "/kilo/uber", "404"},
		{"twice.test", "/%2561%00", "base /%2561%00"},
		{"other.test", "/%2561", "400"},
		{"other.test", "/a%00", "400"},
		{"other.test", "/100%25", "any /100%25"},
		{strings.Repeat(".", 100_000) + "example.com", "/", "any /"},
		{"other.test", "/a/../b", "400"},
		{"other.test", "/a/%2e%2E", "400"},
		{"other.test", "/a%2f..%2fb", "400"},
		{"other.test", "/a/..;x=y/b", "400"},
		{"other.test", "/./b", "400"},
		{"other.test", "/.well-known/..x/...", "any /.well-known/..x/..."},
	} {
		r := get(t, s.URL)
		r.Host = c.host
		path, query, _ := strings.Cut(c.path, "?")
		r.URL.Opaque, r.URL.RawQuery = path, query
		if strings.HasPrefix(path, "//") {
			r.URL.Opaque = s.URL + path // net/url would take it for a host
		}
		res, body := ask(t, r)
		got := strconv.Itoa(res.status)
		if res.status == http.StatusOK {
			e := parseEcho(t, body)
			got = res.header.Get("X-Name") + " " + e.Path
			if e.Query != "" {
				got += "?" + e.Query
			}
			if !strings.HasPrefix(e.Host, "127.0.0.1:") {
				got += " " + e.Host
			}
		}
		if strings.Contains(r.URL.Opaque, "://") { // the host is that of the URL then
			c.want = strings.Replace(c.want, "v2 /a", "any //%762/a", 1)
		}
		if got != c.want {
			t.Errorf("%.40s %s: %s; want %s", c.host, c.path, got, c.want)
		}
	}
}

// TestGatewayOptions names what is wrong with them.
func TestGatewayOptions(t *testing.T) {
	t.Parallel()
	fine := "http://127.0.0.1:1"
	many := slices.Repeat([]string{fine}, 65)
	for want, edit := range map[string]func(o *httplimit.GatewayOptions, r *httplimit.Route){
		`Engine "nil"`:            func(o *httplimit.GatewayOptions, _ *httplimit.Route) { o.Engine = nil },
		`Routes "none"`:           func(o *httplimit.GatewayOptions, _ *httplimit.Route) { o.Routes = nil },
		`MaxBody "-1"`:            func(o *httplimit.GatewayOptions, _ *httplimit.Route) { o.MaxBody = -1 },
		`Host "API.example.com"`:  func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Host = "API.example.com" },
		`Host "example.com:80"`:   func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Host = "example.com:80" },
		`Host "a.*.com"`:          func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Host = "a.*.com" },
		`Host "*"`:                func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Host = "*" },
		`Host "*."`:               func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Host = "*." },
		`Host ".example.com"`:     func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Host = ".example.com" },
		`Prefix "api"`:            func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Prefix = "api" },
		`Prefix "/api/"`:          func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Prefix = "/api/" },
		`Prefix "/a%2Fb"`:         func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Prefix = "/a%2Fb" },
		`Prefix "/api/*"`:         func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Prefix = "/api/*" },
		`Prefix "/"`:              func(o *httplimit.GatewayOptions, r *httplimit.Route) { o.Routes = append(o.Routes, *r) },
		`Targets "0"`:             func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Targets = nil },
		`Targets "65"`:            func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Targets = many },
		`Targets "ftp://x"`:       func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Targets = []string{"ftp://x"} },
		`Targets "127.0.0.1"`:     func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Targets = []string{"127.0.0.1"} },
		`Targets "http://"`:       func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Targets = []string{"http://"} },
		`Targets "http://x?y"`:    func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Targets = []string{"http://x?y"} },
		`Targets "http://a@x"`:    func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Targets = []string{"http://a@x"} },
		`Targets "http://x/a/.."`: func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Targets = []string{"http://x/a/.."} },
		`Prefix "/A"`: func(o *httplimit.GatewayOptions, r *httplimit.Route) {
			other := *r
			other.Prefix = "/a"
			r.Prefix, r.IgnoreCase = "/A", true
			o.Routes = []httplimit.Route{other, *r}
		},
		`Cost "-1"`:             func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Cost = -1 },
		`Timeout "-1s"`:         func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Timeout = -time.Second },
		`Check.Path "x"`:        func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Check = &httplimit.Check{Path: "x"} },
		`Check.Interval "-1ns"`: func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Check = &httplimit.Check{Interval: -1} },
		`Check.Timeout "-1ns"`:  func(_ *httplimit.GatewayOptions, r *httplimit.Route) { r.Check = &httplimit.Check{Timeout: -1} },
	} {
		o := httplimit.GatewayOptions{Engine: gatewayEngine(t, noRules, identity.Options{}), Routes: to(fine)}
		edit(&o, &o.Routes[0])
		if _, err := httplimit.NewGateway(o); err == nil || !strings.Contains(err.Error(), want+": want ") {
			t.Errorf("%v; want an error about %s", err, want)
		}
	}
}

// FuzzGatewayPath sends paths, of which a target must see what was counted: below the
// prefix, and nothing that leads out of it.
func FuzzGatewayPath(f *testing.F) {
	for _, path := range []string{"/", "/v2", "/v2/x", "//v2//x", "/%762/%2e", "/v2/../x", "/v2/a%2fb", "/v2%2fx", "/v2;x", "/v2/%", "*"} {
		f.Add("api.example.com", path)
	}
	f.Add("x.Example.com.:80", "/v2/x")
	f.Add("...", "/")
	f.Add("[::1", "/")
	target := serve(f, httplimit.Echo(), false).URL
	g, err := httplimit.NewGateway(httplimit.GatewayOptions{
		Engine: gatewayEngine(f, noRules, identity.Options{}),
		Routes: []httplimit.Route{
			{Host: "api.example.com", Targets: []string{target}},
			{Host: "*.example.com", Prefix: "/v2", Targets: []string{target + "/base"}, StripPrefix: true},
			{Prefix: "/v2/x", Targets: []string{target}, StripPrefix: true},
		},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, host, path string) {
		if strings.ContainsFunc(host, unicode.IsControl) {
			return // which a server does not let in
		}
		u, err := url.ParseRequestURI(path)
		if err != nil || u.Host != "" || u.Scheme != "" {
			return
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, (&http.Request{
			Method: http.MethodGet, Host: host, URL: u, Header: http.Header{}, RemoteAddr: "192.0.2.1:1",
		}).WithContext(t.Context()))
		if w.Code != http.StatusOK {
			if w.Code != http.StatusNotFound && w.Code != http.StatusBadRequest {
				t.Fatalf("%q %q: %d %s", host, path, w.Code, w.Body)
			}
			return
		}
		got := parseEcho(t, w.Body.String()).Path
		sent := u.EscapedPath()
		if got == sent {
			return
		}
		below, ok := strings.CutPrefix(got, "/base")
		prefix := "/v2"
		if !ok {
			below, prefix = got, "/v2/x"
		}
		if rule.CleanPath(prefix+below) != rule.CleanPath(sent) {
			t.Errorf("%q %q: the target saw %q", host, path, got)
		}
	})
}
