package httplimit_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
)

const tokenSecret = "a secret of at least thirty-two bytes"

// told is what a target was told: headers and trailers, as in CGI.
type told struct{ headers, trailers []string }

// cgi returns the variables of headers, sorted, except the id of the decision, which is always another.
func cgi(h http.Header) (out []string) {
	for name, values := range h {
		if name == "Stint-Decision" && len(values) == 1 && len(values[0]) == 36 {
			continue
		}
		name = strings.Map(func(r rune) rune {
			if strings.ContainsRune("-_.+", r) {
				return '_'
			}
			return r
		}, strings.ToUpper(name))
		out = append(out, name+"="+strings.Join(values, "|"))
	}
	slices.Sort(out)
	return out
}

// teller serves a target that says what it was told.
func teller(t *testing.T) (target string, said <-chan told) {
	t.Helper()
	saying := make(chan told, 1)
	s := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // trailers come after it
		for _, usual := range []string{"User-Agent", "Accept-Encoding", "Content-Length", "Te"} {
			r.Header.Del(usual)
		}
		saying <- told{cgi(r.Header), cgi(r.Trailer)}
	}), false)
	return s.URL, saying
}

// guarded are headers that only a trusted proxy may send, in several spellings.
var guarded = []string{
	"X-User-ID: mallory", "x_user_id: mallory", "X-USER_id: mallory", "X.User.ID: mallory", "X+User-ID: mallory",
	"X-Tenant-ID: m", "X_Tenant-ID: m", "X-Tier: gold", "X_Tier: gold", "CF-Connecting-IP: 127.0.0.1", "CF_Connecting-IP: 127.0.0.1",
	"X_Real_IP: 127.0.0.1", "X-Real_IP: 127.0.0.1", "X-Real-IP: 127.0.0.1", "X_Forwarded_For: 127.0.0.1", "X-Forwarded_Proto: https", "x_forwarded_port: 1",
	"X-Forwarded-Port: 1", "Forwarded: for=127.0.0.1", "X_API_Key: k", "X-API_Key: k", "Stint-Decision: 1", "Stint_Decision: 1",
}

// TestGatewayGuards sends what only proxies may say, to a target that reads headers as CGI
// does.
func TestGatewayGuards(t *testing.T) {
	t.Parallel()
	target, said := teller(t)
	options := identity.Options{
		UserHeader: "X-User-ID", TenantHeader: "X-Tenant-ID", TierHeader: "X-Tier", ForwardedHeader: "CF-Connecting-IP",
		Directory: people{}, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")},
	}
	trusting := options
	trusting.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	const usual = " X_FORWARDED_FOR=127.0.0.1 X_FORWARDED_HOST=x X_FORWARDED_PROTO=http X_OTHER_ONE=kept X_REAL_IP=127.0.0.1"
	for name, c := range map[string]struct {
		o       identity.Options
		headers []string
		want    string
	}{
		"a stranger": {options, guarded, usual},
		"a proxy": {
			trusting, append([]string{"X-User-ID: ann"}, slices.DeleteFunc(slices.Clone(guarded), func(h string) bool { return strings.HasPrefix(h, "X-User-ID:") })...),
			" CF_CONNECTING_IP=127.0.0.1 X_FORWARDED_FOR=127.0.0.1 X_FORWARDED_HOST=x X_FORWARDED_PORT=1 X_FORWARDED_PROTO=http X_OTHER_ONE=kept X_REAL_IP=127.0.0.1 X_TENANT_ID=m X_TIER=gold X_USER_ID=ann",
		},
	} {
		_, s := gateway(t, httplimit.GatewayOptions{Engine: gatewayEngine(t, noRules, c.o), Routes: to(target)})
		for _, chunked := range []bool{false, true} {
			conn, reader := connect(t, s)
			fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nX_Other-One: kept\r\n%s\r\n", strings.Join(c.headers, "\r\n"))
			if chunked {
				// Some trailers are announced, and others are not.
				fmt.Fprintf(conn, "Transfer-Encoding: chunked\r\nTrailer: X-Sum, X-User-ID, X_Real_IP, Authorization\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 42\r\nAuthorization: Bearer x\r\nX-API-Key: k\r\n%s\r\n\r\n", strings.Join(c.headers, "\r\n"))
			} else {
				fmt.Fprint(conn, "Content-Length: 0\r\n\r\n")
			}
			res, err := http.ReadResponse(reader, nil) //nolint:bodyclose // the connection is closed
			if err != nil || res.StatusCode != http.StatusOK {
				t.Fatalf("%s: %v, %v", name, res, err)
			}
			got := <-said
			if headers := " " + strings.Join(got.headers, " "); headers != c.want {
				t.Errorf("%s: headers\n%s\nwant\n%s", name, headers, c.want)
			}
			if trailers := strings.Join(got.trailers, " "); chunked && trailers != "X_SUM=42" || !chunked && trailers != "" {
				t.Errorf("%s: trailers %s", name, trailers)
			}
		}
	}
}

// TestGatewayOverrides drops headers that make a target serve another method or path than was decided, whoever sends them,
// unless the route wants them.
func TestGatewayOverrides(t *testing.T) {
	t.Parallel()
	target, said := teller(t)
	trusting := identity.Options{UserHeader: "X-User-ID", TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}
	const overrides = "X-HTTP-Method-Override: DELETE\r\nX-HTTP-Method: DELETE\r\nX-Method-Override: DELETE\r\nX-Original-URL: /admin\r\nX-Rewrite-URL: /admin\r\nX_Original.URL: /admin\r\n"
	for name, c := range map[string]struct {
		o    identity.Options
		kept bool
		want string
	}{
		"a stranger": {identity.Options{}, false, ""},
		"a proxy":    {trusting, false, ""},
		"kept":       {identity.Options{}, true, " X_HTTP_METHOD=DELETE X_HTTP_METHOD_OVERRIDE=DELETE X_METHOD_OVERRIDE=DELETE X_ORIGINAL_URL=/admin X_ORIGINAL_URL=/admin X_REWRITE_URL=/admin"},
	} {
		_, s := gateway(t, httplimit.GatewayOptions{Engine: gatewayEngine(t, noRules, c.o), Routes: []httplimit.Route{{Targets: []string{target}, OverrideHeaders: c.kept}}})
		conn, reader := connect(t, s)
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\n%sTransfer-Encoding: chunked\r\nTrailer: X-Rewrite-URL\r\n\r\n0\r\n%s\r\n", overrides, overrides)
		res, err := http.ReadResponse(reader, nil) //nolint:bodyclose // the connection is closed
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v, %v", name, res, err)
		}
		got := <-said
		own := func(v string) bool { return strings.HasPrefix(v, "X_FORWARDED_") || strings.HasPrefix(v, "X_REAL_IP=") }
		headers, trailers := "", ""
		for _, v := range slices.DeleteFunc(got.headers, own) {
			headers += " " + v
		}
		for _, v := range got.trailers {
			trailers += " " + v
		}
		if headers != c.want || trailers != c.want {
			t.Errorf("%s: headers%s, trailers%s; want%s", name, headers, trailers, c.want)
		}
	}
}

// TestGatewayGuardsHTTP2 sends them by HTTP/2, to a target by HTTP/2.
func TestGatewayGuardsHTTP2(t *testing.T) {
	t.Parallel()
	target, said := teller(t)
	_, s := gateway(t, httplimit.GatewayOptions{
		Engine: gatewayEngine(t, noRules, identity.Options{UserHeader: "X_User_ID", TrustedProxies: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}}),
		Routes: to("h2c" + strings.TrimPrefix(target, "http")),
	})
	tr := &http.Transport{Protocols: new(http.Protocols)}
	defer tr.CloseIdleConnections()
	tr.Protocols.SetUnencryptedHTTP2(true)
	r := get(t, s.URL+"/", "X-User-ID", "mallory", "X_User_ID", "mallory", "X-Other", "kept")
	r.Method, r.Body, r.ContentLength = http.MethodPost, io.NopCloser(strings.NewReader("hello")), -1
	r.Trailer = http.Header{"X-Sum": {"42"}, "X-User_id": {"mallory"}, "X_real_ip": {"127.0.0.1"}, "X-Real-Ip": {"127.0.0.1"}}
	res, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	got := <-said
	if headers := strings.Join(got.headers, " "); strings.Contains(headers, "USER_ID") || !strings.Contains(headers, "X_OTHER=kept") {
		t.Errorf("headers %s", headers)
	}
	if trailers := strings.Join(got.trailers, " "); trailers != "X_SUM=42" {
		t.Errorf("trailers %s", trailers)
	}
}

// TestBadTokens sends a token that is not accepted to every door.
func TestBadTokens(t *testing.T) {
	t.Parallel()
	for _, ignore := range []bool{false, true} {
		o := identity.Options{JWT: &identity.JWTOptions{Secret: tokenSecret, IgnoreBad: ignore}}
		status, seen := http.StatusUnauthorized, ""
		if ignore {
			status, seen = http.StatusOK, "none" // the token is not passed on
		}
		check := func(about string, gotStatus int, gotSeen string) {
			t.Helper()
			if gotStatus != status || gotSeen != seen {
				t.Errorf("%s, ignored %v: %d, and the service gets %q; want %d, %q", about, ignore, gotStatus, gotSeen, status, seen)
			}
		}
		got := ""
		service := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if got = "none"; len(r.Header["Authorization"]) > 0 {
				got = r.Header.Get("Authorization")
			}
		})
		w := worldOf(t, oneLimit, o)
		for _, header := range []string{"Bearer x.y.z", "Bearer\teyJhbGciOiJIUzI1NiJ9.e30.x", "Token eyJhbGciOiJIUzI1NiJ9.e30.x"} {
			r := from("192.0.2.9", "GET", "/")
			r.Header.Set("Authorization", header)
			rec := httptest.NewRecorder()
			got = ""
			limited(t, httplimit.Options{Engine: w.Engine}, service).ServeHTTP(rec, r)
			check("middleware", rec.Code, got)
			if r.Header.Get("Authorization") != header {
				t.Error("the middleware has changed the caller's request")
			}

			_, s := gateway(t, httplimit.GatewayOptions{Engine: w.Engine, Routes: to(serve(t, service, false).URL)})
			got = ""
			res, _ := ask(t, get(t, s.URL, "Authorization", header))
			check("gateway", res.status, got)

			rec = forward(apiOf(t, w), "/v1/forward-auth", "X-Forwarded-Uri", "/", "Authorization", header)
			if said := rec.Header().Get("X-Stint-Unaccepted"); rec.Code != status || strings.HasPrefix(said, "token_") != ignore {
				t.Errorf("forward-auth: %d, %q", rec.Code, said)
			}
			rec = call(apiOf(t, w), "POST", "/v1/check", fmt.Sprintf(`{"path":"/","ip":"192.0.2.9","headers":{"authorization":%q}}`, header))
			want := `"allowed":false,"outcome":"unauthorized"`
			if ignore {
				want = `"unaccepted":"token_`
			}
			if !strings.Contains(rec.Body.String(), want) {
				t.Errorf("check: %s; want %s", rec.Body, want)
			}
		}
	}
}

// people is a directory without anyone in it.
type people struct{ lost }
