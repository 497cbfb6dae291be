package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

func blocks(t *testing.T, file, language string) (out []string) {
	t.Helper()
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(read(t, file), -1) {
		out = append(out, m[1])
	}
	return out
}

// TestDocument renders the values that docs/kubernetes.md shows, and checks that what the commands of the guides name exists.
func TestDocument(t *testing.T) {
	for _, values := range blocks(t, "docs/kubernetes.md", "yaml") {
		text, err := render(t, values)
		if err != nil {
			t.Errorf("%v in\n%s", err, values)
			continue
		}
		all := objects(t, text)
		d, ok := all["Deployment stint"].(*appsv1.Deployment)
		if !ok {
			t.Fatalf("no pods in\n%s", text)
		}
		fits(t, all, d)
	}
	var lines []string
	for _, file := range []string{"docs/kubernetes.md", "docs/compose.md"} {
		for _, b := range blocks(t, file, "sh") {
			lines = append(lines, strings.Split(strings.TrimSpace(b), "\n")...)
		}
	}
	secrets := map[string]bool{}
	for _, line := range lines {
		words := strings.Fields(line)
		switch command := words[0] + " " + words[1]; command {
		case "helm install", "helm upgrade", "kubectl apply", "docker compose":
			for _, w := range words {
				if strings.HasPrefix(w, "deploy/") {
					if _, err := os.Stat(filepath.Join(root, w)); err != nil {
						t.Errorf("%s: %v", line, err)
					}
				}
			}
		case "kubectl create":
			secrets[words[4]+"/"+strings.TrimPrefix(words[5][:strings.LastIndex(words[5][:strings.Index(words[5], "://")], "=")], "--from-literal=")] = true
		default:
			t.Errorf("%s: no test knows this command", line)
		}
	}
	// The secrets are those that pods ask for.
	text, err := render(t, blocks(t, "docs/kubernetes.md", "yaml")[0])
	if err != nil {
		t.Fatal(err)
	}
	v := variables(objects(t, text)["Deployment stint"].(*appsv1.Deployment))
	for _, name := range []string{"STINT_SERVER_COUNTERS", "STINT_SERVER_DATABASE"} {
		if !secrets[v[name]] {
			t.Errorf("%s is of %s, and the guide makes %v", name, v[name], secrets)
		}
	}
}
