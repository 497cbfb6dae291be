package daemon_test

import (
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/kit/strict"
)

func TestReadDocument(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                "",
		"[server]\nreplicas = -5\n":       "", // means nothing here
		"\n[[users]]\nid = \"x\"\n":       "",
		` {"users": [{"id": "x"}]}`:       "",
		"[servr]\n[[rules]]\nname = \"\"": "f:1:1: servr: unknown field; did you mean \"server\"?\nf:2:1: rules[0].limits: missing",
		`{"usrs": [], "rules": [{"name": 5}]}`: "f:1:2: usrs: unknown field; did you mean \"users\"?\n" +
			"f:1:33: rules[0].name: found an integer, want a string",
	} {
		d, locate, err := daemon.ReadDocument("f", []byte(text))
		if err != nil {
			if want == "" || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s: got %v, want %s", text, err, want)
			}
			continue
		}
		if users := strings.Count(text, "users"); want != "" || len(d.Users) != users {
			t.Errorf("%s: got %+v, want %s", text, d, want)
		}
		got := locate(strict.Problems{{Path: "users[0].id", Message: "here"}, {Path: `rule "users".name`, Message: "elsewhere"}}).Error()
		if outside, inside, _ := strings.Cut(got, "\n"); outside != `rule "users".name: elsewhere` || !strings.HasPrefix(inside, "f:") {
			t.Errorf("%s: got %s", text, got)
		}
	}
}
