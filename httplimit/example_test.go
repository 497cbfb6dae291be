package httplimit_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// newEngine returns an engine for the examples, and its store.
func newEngine() (*engine.Engine, *memstore.Store) {
	file, err := rule.ParseTOML("rules.toml", []byte(`
		[[rules]]
		name     = "search"
		match    = { paths = ["/search"] }
		count_by = ["ip"]
		limits   = [ { name = "search", limit = "2/1h token_bucket" } ]
	`))
	if err != nil {
		log.Fatal(err)
	}
	rules, err := rule.Compile(file)
	if err != nil {
		log.Fatal(err)
	}
	who, err := identity.New(identity.Options{})
	if err != nil {
		log.Fatal(err)
	}
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	e, err := engine.New(engine.Options{Store: store, Rules: rules, Identity: who})
	if err != nil {
		log.Fatal(err)
	}
	return e, store
}

func Example() {
	e, _ := newEngine()
	limit, err := httplimit.New(httplimit.Options{Engine: e})
	if err != nil {
		log.Fatal(err)
	}
	handler := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		verdict := httplimit.VerdictOf(r.Context())
		fmt.Fprintln(w, "found it;", verdict.Binding().Decision.Remaining, "more")
	}))

	server := httptest.NewServer(handler)
	for range 3 {
		response, err := http.Get(server.URL + "/search")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(response.StatusCode, response.Header.Get("Ratelimit"))
		response.Body.Close()
	}
	server.Close()
	// Output:
	// 200 "search";r=1;t=1800
	// 200 "search";r=0;t=1800
	// 429 "search";r=0;t=1800
}

func ExampleAPI() {
	e, store := newEngine()
	api, err := httplimit.API(httplimit.APIOptions{Engine: e, Store: store})
	if err != nil {
		log.Fatal(err)
	}

	server := httptest.NewServer(api)
	response, err := http.Post(server.URL+"/v1/take", "application/json",
		strings.NewReader(`{"subject": "user:42", "name": "mails", "limit": "10/1h fixed_window", "cost": 11}`))
	if err != nil {
		log.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(text))
	response.Body.Close()
	server.Close()
	// Output:
	// {"allowed":false,"retry_after":null,"delay":0,"limits":[{"subject":"user:42","name":"mails","limit":"10/1h fixed_window","cost":11,"allowed":false,"max":10,"remaining":10,"reset_after":0,"retry_after":null}]}
}

func ExampleTransport() {
	client := http.Client{Transport: &httplimit.Transport{}}

	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls++; calls == 1 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	response, err := client.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	response.Body.Close()
	server.Close()
	fmt.Println(response.StatusCode, "after", calls, "calls")
	// Output: 200 after 2 calls
}
