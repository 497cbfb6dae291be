package daemon_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
)

// search is a rule that allows one request for /search.
const search = "[[rules]]\nname = \"search\"\nmatch = { paths = [\"/search\"] }\nlimits = [{ name = \"one\", limit = \"1/1h\" }]\n"

// careless is an upstream that ignores case and decodes paths once more, as some servers do.
func careless(t *testing.T, more string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "served "+r.URL.EscapedPath())
	}))
	t.Cleanup(s.Close)
	return fmt.Sprintf("[[upstreams]]\ntargets = [%q]\n%s\n", s.URL, more)
}

// raw sends a request line as it is, and returns the status and the body.
func raw(t *testing.T, p *process, listener, target, headers string) (int, string) {
	t.Helper()
	conn := dial(t, p, listener)
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n", target, headers)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	do(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	do(t, err)
	return answer.StatusCode, string(body)
}

// dodges are ways to write /search for a server that ignores case.
var dodges = []string{"/SEARCH", "/Search", "/%53EARCH", "/seARCh/", "//SEARCH"}

// TestPathCase writes the path of an exhausted rule in other cases, at every door.
func TestPathCase(t *testing.T) {
	t.Parallel()
	ignoring := "[server]\ncase = \"ignore\"\n"
	for name, text := range map[string]string{
		"file":     ignoring + search,
		"database": strings.ReplaceAll(inDatabase, "%", fill(t, search)) + "case = \"ignore\"\n",
		"upstream": search,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			more := ""
			if name == "upstream" {
				more = "case = \"ignore\""
			}
			p := start(t, text+careless(t, more))
			if status, body := raw(t, p, "gateway", "/search", ""); status != http.StatusOK {
				t.Fatalf("%d %s", status, body)
			}
			for _, path := range dodges {
				if status, body := raw(t, p, "gateway", path, ""); status != http.StatusTooManyRequests {
					t.Errorf("%s gets by: %d %s", path, status, body)
				}
				if name == "upstream" {
					continue // the setting is about this upstream only
				}
				if status, _ := raw(t, p, "http", "/v1/forward-auth", "X-Original-URI: "+path+"\r\n"); status != http.StatusTooManyRequests {
					t.Errorf("%s gets by forward-auth: %d", path, status)
				}
				answer, err := p.client.Post(p.URL("http")+"/v1/check", "application/json", strings.NewReader(`{"path":"`+path+`"}`))
				do(t, err)
				body, err := io.ReadAll(answer.Body)
				do(t, err)
				do(t, answer.Body.Close())
				if !strings.Contains(string(body), `"allowed":false`) {
					t.Errorf("%s gets by /v1/check: %s", path, body)
				}
			}
		})
	}
}

// TestPathCaseConflict writes a rule to a database that contradicts another one if case is
// ignored.
func TestPathCaseConflict(t *testing.T) {
	t.Parallel()
	url := fill(t, search)
	c, err := catalog.Open(url, catalog.Options{Case: "ignore"})
	do(t, err)
	t.Cleanup(func() { do(t, c.Close()) })
	rules, err := c.Export(t.Context(), catalog.ExportOptions{})
	do(t, err)
	changed := rules.Rules[0]
	changed.Match.Paths = []string{"/search", "/Search"}
	if problems, err := c.CheckRule(t.Context(), changed, "search"); err != nil || len(problems) != 1 || !strings.Contains(problems.Error(), `"/Search" is listed already`) {
		t.Errorf("%v %v", problems, err)
	}
	if _, err := c.Rules.Update(t.Context(), "test", changed, 1); err == nil || !strings.Contains(err.Error(), `"/Search" is listed already`) {
		t.Errorf("%v", err)
	}
	// Without the setting they are two paths.
	if problems, err := openCatalog(t, url).CheckRule(t.Context(), changed, "search"); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// TestObscurePath sends paths that some servers decode once more, or end at a NUL.
func TestObscurePath(t *testing.T) {
	t.Parallel()
	paths := []string{"/se%2561rch", "/search%00", "/search%00.css", "/se%25%36%31rch", "/a%252Fsearch", "/a%252f..%252fsearch"}
	p := start(t, search+careless(t, ""))
	for _, path := range paths {
		if status, body := raw(t, p, "gateway", path, ""); status != http.StatusBadRequest || !strings.Contains(body, "escaped") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	for _, path := range []string{"/100%25", "/a%25b%20c", "/a?b=%2561%00", "/%25zz"} { // which are honest
		if status, body := raw(t, p, "gateway", path, ""); status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	p = start(t, search+careless(t, "lenient_paths = true"))
	for _, path := range paths {
		if status, body := raw(t, p, "gateway", path, ""); status != http.StatusOK || body != "served "+path {
			t.Errorf("%s with lenient_paths: %d %s", path, status, body)
		}
	}
}

// TestLongPath sends paths that take long to match.
func TestLongPath(t *testing.T) {
	t.Parallel()
	p := start(t, search+careless(t, "")+"[server]\nmax_path = 1000\n")
	long, most, query := "/"+strings.Repeat(";%2F", 250), "/"+strings.Repeat("a", 999), strings.Repeat("q", 2000)
	for _, c := range []struct {
		listener, target, headers string
		status                    int
	}{
		{"gateway", long, "", http.StatusRequestURITooLong},
		{"gateway", most + "?" + query, "", http.StatusOK},
		{"http", "/v1/forward-auth", "X-Forwarded-Uri: " + long + "\r\n", http.StatusRequestURITooLong},
		{"http", "/v1/forward-auth?status=403", "X-Original-URI: " + long + "\r\n", http.StatusForbidden},
		{"http", "/v1/forward-auth", "X-Original-URI: " + most + "?" + query + "\r\n", http.StatusOK},
	} {
		if status, body := raw(t, p, c.listener, c.target, c.headers); status != c.status {
			t.Errorf("%s %.40s %.40s: %d %s", c.listener, c.target, c.headers, status, body)
		}
	}
	for path, body := range map[string]string{
		"/v1/check":       `{"path":"` + long + `"}`,
		"/v1/check/batch": `{"requests":[{"path":"/a"},{"path":"` + long + `"}]}`,
	} {
		answer, err := p.client.Post(p.URL("http")+path, "application/json", strings.NewReader(body))
		do(t, err)
		text, err := io.ReadAll(answer.Body)
		do(t, err)
		do(t, answer.Body.Close())
		if !strings.Contains(string(text), "1000 bytes") || strings.Contains(path, "batch") == (answer.StatusCode == http.StatusBadRequest) {
			t.Errorf("%s: %s %s", path, answer.Status, text)
		}
	}
	if log := p.log.String(); strings.Contains(log, "undecided") || strings.Contains(log, "call failed") {
		t.Errorf("clients fill the log: %s", log)
	}
}
