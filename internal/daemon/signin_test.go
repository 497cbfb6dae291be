package daemon_test

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/test/testoidc"
	"github.com/stintdev/stint/internal/test/wait"
)

const goodOIDC = `
[server.admin.oidc]
issuer = "https://login.example.com/realms/staff"
client_id = "stint"
[[server.admin.oidc.groups]]
group = "stint-admins"
role = "admin"
`

// TestOIDCProblems has settings that cannot be.
func TestOIDCProblems(t *testing.T) {
	t.Parallel()
	load(t, goodOIDC)
	for _, c := range []struct{ from, to, want string }{
		{`"https://login.example.com/realms/staff"`, `"login.example.com"`, "server.admin.oidc.issuer"},
		{`"https://login`, `"http://login`, "http only for this machine"},
		{`staff"`, `staff/.well-known/openid-configuration"`, "leave out /.well-known/openid-configuration"},
		{`staff"`, `staff?a=b"`, "without a query"},
		{`issuer = "https://login.example.com/realms/staff"`, "", "server.admin.oidc.issuer: missing"},
		{`client_id = "stint"`, "", "server.admin.oidc.client_id: missing"},
		{`client_id = "stint"`, "client_id = \"stint\"\nclaim = \"\"", "server.admin.oidc.claim: missing"},
		{`client_id = "stint"`, "client_id = \"stint\"\nredirect_url = \"https://stint.example.com/\"", "/admin/v1/sign-in/callback"},
		{`client_id = "stint"`, "client_id = \"stint\"\nscopes = [\"openid email\"]", "server.admin.oidc.scopes[0]"},
		{`client_id = "stint"`, "client_id = \"stint\"\nemail_domains = [\"@example.com\"]", "server.admin.oidc.email_domains[0]"},
		{`client_id = "stint"`, "client_id = \"stint\"\nclient_secret_file = \"/nowhere\"", "server.admin.oidc.client_secret_file"},
		{`role = "admin"`, `role = "amdin"`, `did you mean "admin"`},
		{`group = "stint-admins"`, "", "server.admin.oidc.groups[0].group: missing"},
		{`role = "admin"`, "role = \"admin\"\ntenants = [\"\"]", "server.admin.oidc.groups[0].tenants[0]"},
		{`role = "admin"`, "role = \"admin\"\n[[server.admin.oidc.groups]]\ngroup = \"stint-admins\"\nrole = \"viewer\"", "is there already"},
		{"[[server.admin.oidc.groups]]\ngroup = \"stint-admins\"\nrole = \"admin\"", "", "server.admin.oidc.groups: missing"},
	} {
		if text := problems(t, strings.Replace(goodOIDC, c.from, c.to, 1)); !strings.Contains(text, c.want) {
			t.Errorf("%s: %s, want %s", c.to, text, c.want)
		}
	}
	// The secret is shown nowhere.
	c := load(t, goodOIDC, "STINT_SERVER_ADMIN_OIDC_CLIENT_SECRET=open sesame")
	for _, s := range c.Settings() {
		if strings.Contains(s.Value, "sesame") {
			t.Errorf("%+v", s)
		}
	}
}

// TestOIDCAway starts before the identity provider does. It is found when it is there.
func TestOIDCAway(t *testing.T) {
	t.Parallel()
	provider := testoidc.New(t, []string{"http://127.0.0.1/admin/v1/sign-in/callback"}, nil)
	provider.Down(true)
	secret := write(t, "secret", testoidc.ClientSecret+"\n")
	p := start(t, strings.Replace(goodOIDC, `issuer = "https://login.example.com/realms/staff"`, `issuer = "`+provider.Issuer+`"
name = "Example"
client_secret_file = "`+secret+`"`, 1), set("server.admin.token", "0123456789abcdef"))
	if code, text := p.get(t, "admin", "/admin/v1/sign-in"); code != http.StatusOK || !strings.Contains(text, `"ready":false`) {
		t.Errorf("%d: %s", code, text)
	}
	if code, _ := fetchAs(t, p.client, "0123456789abcdef", p.URL("admin")+"/admin/v1/status"); code != http.StatusOK {
		t.Errorf("a token: %d", code)
	}
	wait.For(t, "a warning", func() bool { return strings.Contains(p.log.String(), "people cannot sign in") })
	provider.Down(false)
	wait.For(t, "the provider is found", func() bool {
		_, text := p.get(t, "admin", "/admin/v1/sign-in")
		return strings.Contains(text, `"ready":true`)
	})
	if text, err := os.ReadFile(secret); err != nil || strings.Contains(p.log.String(), strings.TrimSpace(string(text))) {
		t.Error("the log has the secret", err)
	}
}
