package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/test/wait"
)

// ask sends a request of a user of acme through the gateway, and returns the status, the id of the decision in the header, and
// the one in the body.
func (s *site) ask(t testing.TB, user, path string) (status int, header, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.gateway+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-User", user)
	r.Header.Set("X-Tenant", "acme")
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	var answer struct {
		ID string `json:"decision_id"`
	}
	_ = json.NewDecoder(w.Body).Decode(&answer) // what passes is answered by the app
	return w.StatusCode, w.Header.Get("Stint-Decision"), answer.ID
}

// explain runs stint explain, and returns its exit code and what it prints.
func (s *site) explain(ctx context.Context, args ...string) (code int, text string) {
	c := exec.CommandContext(ctx, program.path, append([]string{"explain"}, args...)...)
	c.Env = append(os.Environ(), "STINT_SERVER="+s.admin, "STINT_TOKEN="+adminToken)
	out, _ := c.CombinedOutput() // the code says how it went
	return c.ProcessState.ExitCode(), string(out)
}

// TestDecisionStory has a customer denied through the gateway, and support staff explain it by the id in the answer: with the
// command line, before and after the rule is changed, and in the dashboard.
func TestDecisionStory(t *testing.T) {
	t.Parallel()
	for name, where := range map[string]database{"sqlite": inSQLite, "postgres": inPostgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, where)
			s.must(t, http.MethodPost, "/rules", map[string]any{
				"name": "team", "match": map[string]any{"paths": []string{"/team"}}, "count_by": []string{"tenant"},
				"limits": []any{map[string]any{"name": "hourly", "limit": "3/1h"}},
			})
			wait.Nil(t, "the tenant has used up its limit", func() error { // bob uses up what the tenant has
				if status, _, _ := s.ask(t, "bob", "/team"); status != http.StatusTooManyRequests {
					return fmt.Errorf("bob gets %d", status)
				}
				return nil
			})
			status, id, inBody := s.ask(t, "alice", "/team")
			if status != http.StatusTooManyRequests || len(id) != 36 || inBody != id {
				t.Fatalf("%d, the header has %q and the body %q", status, id, inBody)
			}
			var text string
			wait.Nil(t, "the denial can be explained", func() error {
				var code int
				if code, text = s.explain(t.Context(), id); code != 1 {
					return fmt.Errorf("exit code %d, %s", code, text)
				}
				return nil
			})
			has(t, text, "user alice, tenant acme", "GET /team", "team/hourly: 3 of 3 used, and this request costs 1.", "denied with status 429 by rule team.",
				"Now: it would be denied", "The counter, by tenant", "this client", "bob", "the limit of 3 requests per hour for your organization had been reached")

			s.must(t, http.MethodPatch, "/rules/team", map[string]any{"limits": []any{map[string]any{"name": "hourly", "limit": "100/1h"}}}, "If-Match", "*")
			wait.Nil(t, "the change is in the explanation", func() error {
				if _, text = s.explain(t.Context(), id); !strings.Contains(text, "Now: it would pass.") {
					return fmt.Errorf("after the change: %s", text)
				}
				return nil
			})
			has(t, text, "Changed since (the rule was that of revision ", `"3/1h" -> "100/1h"`, "team/hourly: 3 of 3 used", "the limit of 3 for your organization")

			never := engine.NewID(time.Now().Add(-time.Minute)).String()
			code, text := s.explain(t.Context(), never)
			if code != 2 {
				t.Errorf("exit code %d for what was never decided", code)
			}
			has(t, text, "the record has no decision "+never, "older ones are deleted, or archived")
			if code, text := s.explain(t.Context(), id[:20]); code != 2 || !strings.Contains(text, "want the id of a decision") {
				t.Errorf("%d, %s", code, text)
			}
			if where != inSQLite {
				return
			}

			w := s.signIn(t, wide)
			w.open("/")
			w.settled("Overview")
			w.key("/")
			w.press("decision ID " + id)
			w.says("Explain the decision " + id)
			w.key(kb.Enter)
			w.see("heading", "For the customer")
			w.says("the limit of 3 for your organization had been reached", "denied with status 429 by rule team", "Who used the counter", "bob", "What has changed since", "3/1h")
			w.keep("decision")
			w.visit(at("/subjects/user/alice"))
			w.clickOn(func() (element, error) { return w.one("link", "Explain") })
			w.see("heading", "For the customer")
			w.visit(at("/events/" + never))
			w.says("This decision is not in the record")
			w.clean(true)
		})
	}
}
