package admin_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/rule"
)

// TestRollout follows a rollout through its steps, and takes it back, has it stay, and go on.
func TestRollout(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	r := searchRule()
	r.Rollout = &rule.Rollout{Steps: []rule.Percent{rule.All / 100, rule.All / 2, rule.All}, Every: rule.Duration(time.Hour), BackIf: rule.BackIf(rule.All / 50)}
	h.do(http.MethodPost, "/rules", r).want(http.StatusCreated)
	const path = "/rules/search/rollout"
	is := func(share string, step int, stopped string) {
		t.Helper()
		var o admin.Rollout
		h.get(path).want(http.StatusOK).into(&o)
		if o.Share != share || o.Step != step || len(o.Steps) != 3 || o.BackIf != "denied > 2%" || (o.Stopped == nil) != (stopped == "") || o.Stopped != nil && o.Stopped.Reason != stopped {
			t.Errorf("%+v, stopped %+v, want %s, step %d, stopped %q", o, o.Stopped, share, step, stopped)
		}
	}
	change := func(body object, status int, says ...string) {
		t.Helper()
		h.do(http.MethodPost, path, body).want(status).says(says...)
	}
	is("1%", 1, "")
	h.clock.advance(time.Hour)
	is("50%", 2, "")

	change(object{"do": "stop", "reason": "complaints"}, http.StatusOK)
	is("0%", 2, "complaints")
	h.clock.advance(24 * time.Hour)
	is("0%", 3, "complaints")
	change(object{"do": "resume"}, http.StatusOK)
	is("50%", 2, "") // at the beginning of the step at which it was taken back
	h.clock.advance(time.Hour)
	is("100%", 3, "")
	change(object{"do": "to", "share": "1%"}, http.StatusOK)
	h.clock.advance(24 * time.Hour)
	var o admin.Rollout
	if h.get(path).into(&o); o.Share != "1%" || o.Stopped == nil || !strings.HasPrefix(o.Stopped.Reason, "by ") {
		t.Errorf("%+v, stopped %+v", o, o.Stopped)
	}
	change(object{"do": "resume"}, http.StatusOK)
	is("1%", 1, "")

	change(object{"do": "to", "share": "30%"}, http.StatusUnprocessableEntity, "share", "want one of the steps, 1%, 50%, 100%")
	change(object{"do": "to"}, http.StatusUnprocessableEntity, "share")
	change(object{"do": "stop", "share": "1%"}, http.StatusUnprocessableEntity, "want none, or do = to")
	change(object{"do": "faster"}, http.StatusUnprocessableEntity)
	h.do(http.MethodPost, path+"?dry_run=true", object{"do": "stop"}).want(http.StatusOK)
	is("1%", 1, "")

	plain := searchRule()
	plain.Name = "plain"
	h.do(http.MethodPost, "/rules", plain).want(http.StatusCreated)
	h.get("/rules/plain/rollout").want(http.StatusUnprocessableEntity).says("rollout", "has none")
	h.get("/rules/nothing/rollout").want(http.StatusNotFound)
}
