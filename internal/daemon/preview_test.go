package daemon_test

import (
	"net/http"
	"strings"
	"testing"
)

// TestPreviewUnsampled has a server that records no requests that pass: a preview does not say that there were none.
func TestPreviewUnsampled(t *testing.T) {
	t.Parallel()
	for sample, want := range map[string]string{"0": "Those that passed are not recorded", "1": "No requests were recorded in this time."} {
		p := start(t, "[server]\ndatabase = \""+fill(t, few)+"\"\ncatalog = { last_good = \"none\" }\n", set("server.record.spool", "none"), set("server.record.sample_every", sample))
		const rule = `{"name": "new", "count_by": ["ip"], "limits": [{"name": "three", "limit": "3/1h"}]}`
		code, body := p.send(t, p.client, http.MethodPost, p.URL("admin")+"/admin/v1/rules/preview?since_seconds=3600", rule, "Authorization", "Bearer "+adminToken)
		if code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("sample_every = %s: %d %s, want %q", sample, code, body, want)
		}
	}
}
