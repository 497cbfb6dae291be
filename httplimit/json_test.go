package httplimit_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stintdev/stint/identity"
)

// TestEscapes sends strings in all the ways that JSON has.
func TestEscapes(t *testing.T) {
	t.Parallel()
	w := worldOf(t, apiRules, identity.Options{})
	h := apiOf(t, w)
	for text, user := range map[string]string{
		`"plain"`:                   "plain",
		`"zo\u00eb \ud83d\ude00"`:   "zoë 😀",
		`"\"\\\/é\u002F"`:           `"\/é/`,
		`"\u0061\u0062` + "c" + `"`: "abc",
	} {
		before := remaining(t, w, user)
		if rec := call(h, "POST", "/v1/check", `{"path":"/","user":`+text+`}`); rec.Code != 200 {
			t.Errorf("%s: %s", text, rec.Body)
		}
		if after := remaining(t, w, user); after != before-1 {
			t.Errorf("%s is not %q: %d remain, and %d did", text, user, after, before)
		}
	}
}

// FuzzCheckJSON holds the reader against encoding/json: what it accepts is JSON, and
// what it rejects is answered with the right status.
func FuzzCheckJSON(f *testing.F) {
	for _, text := range []string{
		`{"path":"/"}`, `{"method":"POST","path":"/search","ip":"::1","user":"a","tenant":"b","api_key":"c","tier":"d","headers":{"A":"x","B":["y"]},"cost":3,"peek":true}`,
		`{"path":"\u00e9\ud83d\ude00"}`, `{"path":"/","cost":1e5}`, `{"path":"/","headers":{"a":{}}}`, "{\"path\":\"/\xff\"}", `[[[[`, `{"path":"/"`,
	} {
		f.Add(text)
	}
	w := worldOf(f, apiRules, identity.Options{})
	h := apiOf(f, w)
	f.Fuzz(func(t *testing.T, text string) {
		if text == "" {
			return
		}
		rec := call(h, "POST", "/v1/check", text)
		switch {
		case rec.Code == 200 && !json.Valid([]byte(text)):
			t.Fatalf("%q was accepted", text)
		case rec.Code != 200 && rec.Code != 400:
			t.Fatalf("%q: %d", text, rec.Code)
		case !json.Valid(rec.Body.Bytes()):
			t.Fatalf("%q: answered with %s", text, rec.Body)
		}
		for _, path := range []string{"/v1/check/batch", "/v1/take"} {
			if rec := call(h, "POST", path, text); rec.Code != 200 && rec.Code != 400 {
				t.Fatalf("%s: %q: %d", path, text, rec.Code)
			}
		}
		if rec := call(h, "POST", "/v1/check/batch", `{"requests":[`+text+`]}`); rec.Code != 200 && rec.Code != 400 {
			t.Fatalf("%q: %d", text, rec.Code)
		}
		if rec.Code == 400 {
			return
		}
		// What both accept, both read alike.
		var d map[string]any
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			t.Fatal(err)
		}
		if p, ok := d["path"].(string); !ok || !strings.HasPrefix(p, "/") {
			t.Fatalf("%q: path %v", text, d["path"])
		}
	})
}
