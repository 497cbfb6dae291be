package e2e_test

import (
	"bufio"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
)

const jwtSecret = "a secret of at least thirty-two bytes"

func tokenOf(t testing.TB, user string) string {
	t.Helper()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": user, "exp": 1 << 33}).SignedString([]byte(jwtSecret))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// lenient is an upstream that takes tokens wherever it finds them, as many do, and headers as
// CGI does. It answers with the user that it serves.
func lenient(t testing.TB) (address string, served *atomic.Int64) {
	t.Helper()
	served = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		_, _ = io.Copy(io.Discard, r.Body) // trailers come after it
		for _, h := range []http.Header{r.Header, r.Trailer} {
			for name, values := range h {
				if strings.ReplaceAll(strings.ToLower(name), "_", "-") == "x-user-id" {
					fmt.Fprint(w, values[0])
					return
				}
			}
			for _, line := range h.Values("Authorization") {
				for word := range strings.FieldsFuncSeq(line, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`,:;"=`, r) }) {
					if user := readToken(word); user != "" {
						fmt.Fprint(w, user)
						return
					}
				}
			}
		}
		fmt.Fprint(w, "no one")
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), served
}

// readToken verifies a token, and skips what is not base64 in its signature.
func readToken(text string) string {
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return ""
	}
	signature, err := base64.RawURLEncoding.DecodeString(strings.Trim(parts[2], "!="))
	if err != nil || jwt.SigningMethodHS256.Verify(parts[0]+"."+parts[1], signature, []byte(jwtSecret)) != nil {
		return ""
	}
	said := jwt.MapClaims{}
	if _, _, err := jwt.NewParser().ParseUnverified(text, said); err != nil {
		return ""
	}
	user, _ := said.GetSubject()
	return user
}

// raw sends a request as it is, and returns status and body of the answer.
func raw(t testing.TB, url, request string) (int, string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// keyOf returns an API key, and how a file has it.
func keyOf(t testing.TB, user, more string) (text, id, toml string) {
	t.Helper()
	text, k, err := identity.GenerateKey(rand.Reader, "stint", "")
	if err != nil {
		t.Fatal(err)
	}
	return text, k.ID, fmt.Sprintf("[[api_keys]]\nid = %q\nhash = \"sha256:%s\"\nuser = %q\n%s\n", k.ID, hex.EncodeToString(k.Hash[:]), user, more)
}

// TestCredentials attacks every door of a running stint: with tokens that only the upstream
// accepts, with the key of one user and the token of another, with a revoked key of an
// exempt user, with headers that only proxies may send, and with a cost of its own.
func TestCredentials(t *testing.T) {
	t.Parallel()
	upstream, served := lenient(t)
	bob, _, bobs := keyOf(t, "bob", "")
	_, revoked, revokeds := keyOf(t, "vip", "revoked = 2020-01-01T00:00:00Z")
	config := func(identity, jwt string) string {
		return fmt.Sprintf(`
[identity]
trusted_proxies = ["127.0.0.9"]
user_header     = "X-User-ID"
%s

[identity.jwt]
secret = %q
%s

[[rules]]
name     = "per-user"
count_by = ["user"]
limits   = [{ name = "user", limit = "100/1h fixed_window" }]
cost     = { units = 10, header = "X-Cost", max = 50 }

[[bans]]
user = "mallory"

[[exemptions]]
user = "vip"

[[upstreams]]
targets = ["http://%s"]

%s
%s
`, identity, jwtSecret, jwt, upstream, bobs, revokeds)
	}
	s := serve(t, config("", ""))
	anonymous := serve(t, config(`on_conflict = "first"`, `on_bad_token = "anonymous"`))
	decide := func(s *server, request string) (v struct {
		Outcome    string
		Status     int
		Unaccepted string
		Limits     []struct{ Cost int }
	},
	) {
		t.Helper()
		a := newClient(t, "127.0.0.1", s.api).do(t, http.MethodPost, "/v1/check", request, "Content-Type", "application/json")
		if err := json.Unmarshal([]byte(a.body), &v); err != nil || a.status != http.StatusOK {
			t.Fatalf("%s: %d %s", request, a.status, a.body)
		}
		return v
	}
	token, mallory := tokenOf(t, "alice"), tokenOf(t, "mallory")

	for about, header := range map[string]string{
		"padding":        "Bearer " + mallory + "=",
		"more padding":   "Bearer " + mallory + "==",
		"garbage":        "Bearer " + mallory + "!!!!",
		"a tab":          "Bearer\t" + mallory,
		"a wide space":   "Bearer\xa0" + mallory,
		"a list":         "Basic YTpi, Bearer " + mallory,
		"no scheme":      mallory,
		"another scheme": "Token " + mallory,
		"a parameter":    `Bearer token="` + mallory + `"`,
	} {
		before := served.Load()
		request := "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: " + header + "\r\n\r\n"
		if status, body := raw(t, s.gateway, request); status != http.StatusUnauthorized || served.Load() != before {
			t.Errorf("%s: the gateway answers %d, %s", about, status, body)
		}
		forward := strings.Replace(request, "GET / ", "GET /v1/forward-auth ", 1)
		forward = strings.Replace(forward, "Host: x", "Host: x\r\nX-Forwarded-Uri: /", 1)
		if status, body := raw(t, s.api, forward); status != http.StatusUnauthorized {
			t.Errorf("%s: forward-auth answers %d, %s", about, status, body)
		}
		quoted, err := json.Marshal(strings.ToValidUTF8(header, "\u00a0"))
		if err != nil {
			t.Fatal(err)
		}
		check := fmt.Sprintf(`{"path": "/", "ip": "192.0.2.1", "headers": {"Authorization": %s}}`, quoted)
		if v := decide(s, check); v.Outcome != "unauthorized" || v.Status != http.StatusUnauthorized {
			t.Errorf("%s: check answers %+v", about, v)
		}
		if status, body := raw(t, anonymous.gateway, request); status != http.StatusOK || body != "no one" {
			t.Errorf("%s, anonymous: %d, and the upstream serves %q", about, status, body)
		}
		if v := decide(anonymous, check); v.Outcome != "allowed" || !strings.HasPrefix(v.Unaccepted, "token_") {
			t.Errorf("%s, anonymous: check answers %+v", about, v)
		}
	}

	gateway := newClient(t, "127.0.0.1", s.gateway)
	first := newClient(t, "127.0.0.1", anonymous.gateway)
	for _, c := range []struct {
		about   string
		client  *client
		headers []string
		status  int
		user    string
	}{
		{"a good token", gateway, []string{"Authorization", "Bearer " + token}, 200, "alice"},
		{"another scheme", gateway, []string{"Authorization", "Basic YTpi"}, 200, "no one"},
		{"a banned user", gateway, []string{"Authorization", "Bearer " + mallory}, 403, ""},
		{"a banned user with a key", gateway, []string{"X-API-Key", bob, "Authorization", "Bearer " + mallory}, 403, ""},
		{"a banned user with a key, the first wins", first, []string{"X-API-Key", bob, "Authorization", "Bearer " + mallory}, 403, ""},
		{"two users", gateway, []string{"X-API-Key", bob, "Authorization", "Bearer " + token}, 401, ""},
		{"two users, the first wins", first, []string{"X-API-Key", bob, "Authorization", "Bearer " + token}, 200, "alice"},
		{"one user twice", gateway, []string{"X-API-Key", bob, "Authorization", "Bearer " + tokenOf(t, "bob")}, 200, "bob"},
		{"a header of a stranger", gateway, []string{"X-User-ID", "root"}, 200, "no one"},
		{"in another spelling", gateway, []string{"X_User-iD", "root"}, 200, "no one"},
		{"a header of a proxy", newClient(t, "127.0.0.9", s.gateway), []string{"X-User-ID", "carol"}, 200, "carol"},
		{"a banned user by a proxy", newClient(t, "127.0.0.9", s.gateway), []string{"X-User-ID", "mallory"}, 403, ""},
	} {
		if a := c.client.do(t, http.MethodGet, "/", "", c.headers...); a.status != c.status || a.status == http.StatusOK && a.body != c.user {
			t.Errorf("%s: %d %s; want %d %s", c.about, a.status, a.body, c.status, c.user)
		}
	}
	trailers := "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n0\r\nX_User_ID: root\r\nX-User-ID: root\r\nAuthorization: Bearer " + mallory + "\r\nX-Sum: 1\r\n\r\n"
	if status, body := raw(t, s.gateway, trailers); status != http.StatusOK || body != "no one" {
		t.Errorf("trailers: %d, and the upstream serves %q", status, body)
	}

	if v := decide(s, `{"path": "/", "user": "vip"}`); v.Outcome != "exempt" {
		t.Errorf("an exempt user: %+v", v)
	}
	if v := decide(s, fmt.Sprintf(`{"path": "/", "api_key": %q}`, revoked)); v.Outcome != "unauthorized" || v.Status != http.StatusUnauthorized {
		t.Errorf("a revoked key of an exempt user: %+v", v)
	}
	for about, c := range map[string]struct {
		more string
		cost int
	}{
		"a stranger":     {`"ip": "192.0.2.1"`, 10},
		"no address":     {`"tier": ""`, 10},
		"a proxy":        {`"ip": "127.0.0.9"`, 1},
		"said by itself": {`"ip": "192.0.2.1", "cost": 2`, 2},
	} {
		v := decide(s, fmt.Sprintf(`{"path": "/", "user": "dora", "headers": {"X-Cost": "1"}, %s}`, c.more))
		if len(v.Limits) != 1 || v.Limits[0].Cost != c.cost {
			t.Errorf("the cost of %s: %+v, want %d", about, v, c.cost)
		}
	}
}

// TestGuessedKeys sends made-up API keys, until no more are looked up for its address. A client with a key that is in use
// is not affected, though it has the same address.
func TestGuessedKeys(t *testing.T) {
	t.Parallel()
	url := "sqlite:" + filepath.Join(t.TempDir(), "stint.db")
	c := openCatalog(t, url)
	good, _, _, err := c.CreateKey(t.Context(), "test", catalog.APIKey{})
	if err != nil {
		t.Fatal(err)
	}
	upstream, _ := lenient(t)
	s := serve(t, fmt.Sprintf("[[upstreams]]\ntargets = [\"http://%s\"]\n", upstream), following(t, url)...)
	client := newClient(t, "127.0.0.1", s.gateway)
	use := func(key string) answer {
		t.Helper()
		return client.do(t, http.MethodGet, "/", "", "X-API-Key", key)
	}
	if a := use(good); a.status != http.StatusOK {
		t.Fatalf("a good key: %d", a.status)
	}
	a := answer{status: http.StatusUnauthorized}
	for i := 0; a.status == http.StatusUnauthorized; i++ {
		a = use(fmt.Sprintf("stint_guess%05d_%032d", i, i))
	}
	if retry, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || a.status != http.StatusTooManyRequests || retry < 1 || retry > 60 {
		t.Errorf("got %d %v %s", a.status, a.header, a.body)
	}
	if a := use(good); a.status != http.StatusOK {
		t.Errorf("after guesses, a good key that is in use: %d", a.status)
	}
	s.measures(t, "stint_credentials_unaccepted_total{reason=\"key_failures\"} 1")
}
