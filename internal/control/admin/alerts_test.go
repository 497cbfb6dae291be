package admin_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/alert"
	"github.com/stintdev/stint/internal/control/catalog"
)

// TestWebhookSecrets makes and sets secrets: each is shown once, and never again.
func TestWebhookSecrets(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	var made admin.CreatedWebhook
	h.ask(http.MethodPost, "/webhooks", alert.Webhook{Name: "ops", URL: "https://example.com/x"}, "", h.admin).want(http.StatusCreated).into(&made)
	if !strings.HasPrefix(made.Secret, "whsec_") || made.Value.Secret != "" || made.Value.SecretSet.IsZero() {
		t.Errorf("%+v", made)
	}
	first := made.Secret
	var given admin.CreatedWebhook
	h.ask(http.MethodPost, "/webhooks", alert.Webhook{Name: "chat", URL: "https://example.com/{secret}", Format: "slack", Secret: "secret-of-chat"}, "", h.admin).want(http.StatusCreated).into(&given)
	if given.Secret != "" || given.Value.Secret != "" {
		t.Errorf("a secret that was given is sent back: %+v", given)
	}
	h.ask(http.MethodPost, "/webhooks?dry_run=true", alert.Webhook{Name: "dry", URL: "https://example.com/x", Secret: "secret-of-dry"}, "", h.admin).want(http.StatusCreated)
	h.ask(http.MethodPost, "/webhooks", alert.Webhook{Name: "lost", URL: "https://example.com/{secret}"}, "", h.admin).want(http.StatusUnprocessableEntity).says("url has {secret}")
	h.ask(http.MethodPost, "/webhooks/ops/secret", nil, "", h.admin).want(http.StatusOK).into(&made)
	if made.Secret == first || !strings.HasPrefix(made.Secret, "whsec_") {
		t.Errorf("%+v", made)
	}
	h.ask(http.MethodPost, "/webhooks/ops/secret", `{"secret":"secret-of-ops"}`, "", h.admin).want(http.StatusOK)
	h.ask(http.MethodPost, "/webhooks/ops/secret", `{"secret":"short"}`, "", h.admin).want(http.StatusUnprocessableEntity).says("8 to 512")
	h.ask(http.MethodPatch, "/webhooks/ops", `{"retry_for":"2h"}`, "", h.admin, "If-Match", "*").want(http.StatusOK)
	for _, path := range []string{"/webhooks", "/webhooks/ops", "/changes", "/export", "/export?format=toml", "/search?q=ops"} {
		body := string(h.ask(http.MethodGet, path, nil, "", h.admin).want(http.StatusOK).body)
		for _, secret := range []string{first, made.Secret, "secret-of-"} {
			if strings.Contains(body, secret) {
				t.Errorf("%s shows a secret: %s", path, body)
			}
		}
	}
	all, err := h.catalog.Definitions(t.Context())
	if err != nil || len(all.Webhooks) != 2 || all.Webhooks[0].Secret != "secret-of-chat" || all.Webhooks[1].Secret != "secret-of-ops" {
		t.Errorf("%+v, %v", all, err)
	}
	h.ask(http.MethodGet, "/search?q=chat", nil, "", h.viewer).want(http.StatusOK).says(`"kind":"webhook"`)
}

// TestAlertRoles has an operator change alerts by another way.
func TestAlertRoles(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	h.ask(http.MethodPost, "/webhooks", alert.Webhook{Name: "ops", URL: "https://example.com/x"}, "", h.admin).want(http.StatusCreated)
	h.ask(http.MethodPost, "/alerts", `{"name":"a","kind":"health","webhooks":["ops"]}`, "", h.admin).want(http.StatusCreated)
	h.ask(http.MethodPost, "/alerts", `{"name":"b","kind":"health"}`, "", h.operator).want(http.StatusForbidden)
	var list admin.ChangeList
	h.ask(http.MethodGet, "/changes?kind=alert", nil, "", h.viewer).want(http.StatusOK).into(&list)
	for _, c := range []struct{ path, body string }{
		{"/apply", `{"alerts":[{"name":"a","kind":"rule","percent":99}],"webhooks":[{"name":"ops","url":"https://elsewhere.example.com"}]}`},
		{"/apply?prune=true", `{"alerts":[{"name":"c","kind":"health"}]}`},
		{"/changes/" + strconv.FormatInt(list.Items[0].Revision, 10) + "/revert", `{}`},
	} {
		h.ask(http.MethodPost, c.path, c.body, "", h.operator).want(http.StatusForbidden).says("needs the role admin")
	}
	h.ask(http.MethodPost, "/apply", `{"alerts":[{"name":"a","kind":"health","webhooks":["ops"]}],"bans":[{"user":"eve"}]}`, "", h.operator).want(http.StatusOK).says("eve")
	h.ask(http.MethodGet, "/bans/user:eve", nil, "", h.viewer).want(http.StatusOK)
}

// TestEmptyWhen has an alert be about no condition: that is refused, and not taken for all of them.
func TestEmptyWhen(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	const problem = `"field":"when","message":"is empty`
	h.ask(http.MethodPost, "/alerts", `{"name":"a","kind":"health","when":[]}`, "", h.admin).want(http.StatusUnprocessableEntity).says(problem)
	h.ask(http.MethodPost, "/alerts", `{"name":"a","kind":"health"}`, "", h.admin).want(http.StatusCreated)
	h.ask(http.MethodPatch, "/alerts/a", `{"when":[]}`, "", h.admin, "If-Match", "*").want(http.StatusUnprocessableEntity).says(problem)
	h.ask(http.MethodPatch, "/alerts/a", `{"when":["unhealthy"]}`, "", h.admin, "If-Match", "*").want(http.StatusOK).says(`"when":["unhealthy"]`)
	h.ask(http.MethodPatch, "/alerts/a", `{"when":null}`, "", h.admin, "If-Match", "*").want(http.StatusOK)
	h.ask(http.MethodPost, "/apply", `{"alerts":[{"name":"b","kind":"health","when":[]}]}`, "", h.admin).want(http.StatusUnprocessableEntity).says("when")
}

// TestTestMessages queues tests, and tries dead letters again.
func TestTestMessages(t *testing.T) {
	t.Parallel()
	woken := 0
	h := newTestAPI(t, func(o *admin.Options) { o.Wake = func() { woken++ } })
	h.ask(http.MethodPost, "/webhooks", alert.Webhook{Name: "ops", URL: "https://example.com/x"}, "", h.admin).want(http.StatusCreated)
	var d admin.Delivery
	h.ask(http.MethodPost, "/webhooks/ops/test", nil, "", h.operator).want(http.StatusOK).into(&d)
	if d.State != alert.Waiting || d.Type != alert.TypeTest || woken != 1 {
		t.Errorf("%+v, woken %d times", d, woken)
	}
	h.ask(http.MethodPost, "/webhooks/none/test", nil, "", h.operator).want(http.StatusNotFound)
	h.ask(http.MethodGet, "/deliveries?webhook=ops", nil, "", h.viewer).want(http.StatusOK).says(d.ID)
	h.ask(http.MethodGet, "/deliveries?state=dead", nil, "", h.viewer).want(http.StatusOK).says(`"items":[]`)
	h.ask(http.MethodGet, "/deliveries?before=x", nil, "", h.viewer).want(http.StatusBadRequest).says("before")
	h.ask(http.MethodPost, "/deliveries/"+d.ID+"/retry", nil, "", h.operator).want(http.StatusNotFound).says("it is over")
	h.ask(http.MethodPost, "/silences", `{"alert":"a","for_seconds":3600,"reason":"a test"}`, "", h.operator).want(http.StatusCreated).says(`"alert":"a"`)
	h.ask(http.MethodPost, "/silences", `{"alert":"a"}`, "", h.operator).want(http.StatusUnprocessableEntity).says("until")
	h.ask(http.MethodPost, "/silences", `{"for_seconds":-1}`, "", h.operator).want(http.StatusUnprocessableEntity).says("for_seconds")
	h.ask(http.MethodPost, "/causes/none/acknowledge", `{"note":"x"}`, "", h.operator).want(http.StatusNotFound)
}

// TestRetryOvertaken has two dead letters, and a newer message that was delivered about what the first of them is about.
func TestRetryOvertaken(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	h.ask(http.MethodPost, "/webhooks", alert.Webhook{Name: "ops", URL: "https://example.com/x"}, "", h.admin).want(http.StatusCreated)
	var ids []string
	for _, as := range []struct{ cause, state string }{{"a", "dead"}, {"b", "dead"}, {"a", "delivered"}} {
		var d admin.Delivery
		h.ask(http.MethodPost, "/webhooks/ops/test", nil, "", h.operator).want(http.StatusOK).into(&d)
		if _, err := h.catalog.Database().Write.ExecContext(t.Context(), "UPDATE stint_deliveries SET cause = $2, state = $3, done_at = created_at WHERE id = $1", d.ID, as.cause, as.state); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, d.ID)
	}
	h.ask(http.MethodPost, "/deliveries/"+ids[0]+"/retry", nil, "", h.operator).want(http.StatusConflict).says("a newer message about the same cause was delivered: GET /causes")
	h.ask(http.MethodGet, "/deliveries/"+ids[0], nil, "", h.viewer).want(http.StatusOK).says(`"state":"dead"`)
	h.ask(http.MethodPost, "/deliveries/"+ids[1]+"/retry", nil, "", h.operator).want(http.StatusOK).says(`"state":"waiting"`)
	h.ask(http.MethodPost, "/deliveries/"+ids[2]+"/retry", nil, "", h.operator).want(http.StatusNotFound)
}

// TestAlertsInFile reads alerts of a file, whose secrets are not shown.
func TestAlertsInFile(t *testing.T) {
	t.Parallel()
	d := exampleDocument()
	d.Webhooks = []catalog.Webhook{{Name: "ops", URL: "https://example.com/x", Secret: "secret-of-the-file"}}
	d.Alerts = []catalog.Alert{{Name: "a", Kind: "health", Webhooks: []string{"ops"}}}
	h := newFileAPI(t, d)
	for _, path := range []string{"/webhooks", "/webhooks/ops", "/export", "/export?format=toml"} {
		if body := string(h.ask(http.MethodGet, path, nil, "", configToken).want(http.StatusOK).body); strings.Contains(body, "secret-of") || !strings.Contains(body, "ops") {
			t.Errorf("%s: %s", path, body)
		}
	}
	h.ask(http.MethodGet, "/alerts", nil, "", configToken).want(http.StatusOK).says(`"id":"a"`)
	h.ask(http.MethodPost, "/alerts", `{"name":"b","kind":"health"}`, "", configToken).want(http.StatusConflict)
	h.ask(http.MethodPost, "/webhooks/ops/test", nil, "", configToken).want(http.StatusOK)
}
