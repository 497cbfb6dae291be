package e2e_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"

	"github.com/stintdev/stint/internal/test/testoidc"
)

// TestDashboardProvider signs in through a real identity provider, in a browser.
func TestDashboardProvider(t *testing.T) {
	t.Parallel()
	provider := testoidc.New(t, nil, nil,
		testoidc.Person{ID: "ada", Email: "ada@example.com", Groups: []string{"stint-admins"}},
		testoidc.Person{ID: "carl", Email: "carl@example.com", Groups: []string{"acme-support"}},
		testoidc.Person{ID: "eve", Email: "eve@example.com"},
	)
	provider.Down(true)
	s := &site{server: serve(t, fmt.Sprintf(`
[server.admin.oidc]
issuer = %q
name = "Example"
client_id = %q
client_secret = %q
[[server.admin.oidc.groups]]
group = "stint-admins"
role = "admin"
[[server.admin.oidc.groups]]
group = "acme-support"
role = "operator"
tenants = ["acme"]
`, provider.Issuer, testoidc.ClientID, testoidc.ClientSecret), append(following(t, "sqlite:"+filepath.Join(t.TempDir(), "stint.db")), "STINT_SERVER_ADMIN_TOKEN="+adminToken)...)}
	s.findAdmin(t)
	s.furnish(t)
	provider.Allow(s.admin+"/admin/v1/sign-in/callback", s.admin+"/")

	w := newTab(t, s.admin, wide)
	w.open("/#/rules")
	w.says("Example cannot be reached", "You can use a token meanwhile")
	provider.Down(false)
	signIn := func(email string) {
		t.Helper()
		w.click("link", "Sign in with Example")
		w.see("button", "Login")
		w.fill("Username:", email)
		w.fill("Password:", testoidc.Password)
		w.click("button", "Login")
	}
	at := func(page string) {
		t.Helper()
		w.until(func() error {
			if now := eval[string](w, "location.href"); now != s.admin+page {
				return fmt.Errorf("the page is %s, want %s", now, page)
			}
			return nil
		})
	}

	// Who is in no group is told so.
	signIn("eve@example.com")
	w.says("You could not be signed in", "in no group that may sign in")
	at("/#/rules")

	// One comes back to the page that one was on.
	signIn("ada@example.com")
	w.see("heading", "Rules")
	at("/#/rules")
	w.says("ada@example.com", "admin")
	w.see("link", "Settings")

	// When the session ends, one signs in again, and comes back.
	call(w, network.ClearBrowserCookies, cdp.Empty{})
	w.open("/#/keys")
	signIn("ada@example.com")
	w.see("heading", "API keys")
	at("/#/keys")

	// Signing out ends it at the provider, too.
	w.click("button", "Sign out")
	w.see("heading", "Sign in to Stint")
	if code, _ := get(t, s.admin+"/admin/v1/session"); code != http.StatusUnauthorized {
		t.Errorf("a session without a cookie: %d", code)
	}

	// People of a tenant see what is theirs.
	signIn("carl@example.com")
	w.see("heading", "Subjects")
	w.says("carl@example.com", "of acme")
	for _, name := range []string{"Overview", "Change log", "Settings", "Try it", "Nodes"} {
		if all, err := w.all("link", name); err != nil || len(all) > 0 {
			t.Errorf("there is a link to %s: %v", name, err)
		}
	}
	w.open("/#/subjects?tab=users")
	w.says("carol")
	if err := w.saysNow("alice"); err == nil {
		t.Error("alice is of another tenant")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, told := range w.told {
		if !strings.Contains(told, "401") && !strings.Contains(told, "403") {
			t.Errorf("the browser says %s", told)
		}
	}
}
