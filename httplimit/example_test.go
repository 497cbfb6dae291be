package httplimit_test

import (
	"context"
	"crypto/rand"
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

func ExampleLimit() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	limit, err := httplimit.Limit(store, "2/1m", httplimit.ByIP)
	if err != nil {
		log.Fatal(err)
	}
	handler := limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "hello")
	}))

	server := httptest.NewServer(handler)
	for range 3 {
		response, err := http.Get(server.URL)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(response.StatusCode, response.Header.Get("X-Ratelimit-Remaining"), "of", response.Header.Get("Ratelimit-Policy"))
		response.Body.Close()
	}
	server.Close()
	// Output:
	// 200 1 of "default";q=2;w=60
	// 200 0 of "default";q=2;w=60
	// 429 0 of "default";q=2;w=60
}

func ExampleByFunc() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	// The user that a middleware before this one has authenticated, or else the address.
	user := httplimit.ByFunc(func(r *http.Request) string {
		name, _ := r.Context().Value(userKey{}).(string)
		return name
	})
	limit, err := httplimit.Limit(store, "1000/1h", user.Named("per-user"))
	if err != nil {
		log.Fatal(err)
	}

	rec := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r = r.WithContext(context.WithValue(r.Context(), userKey{}, "alice"))
	limit(http.NotFoundHandler()).ServeHTTP(rec, r)
	fmt.Println(rec.Header().Get("Ratelimit-Policy"))
	// Output: "per-user";q=1000;w=3600
}

type userKey struct{}

func ExampleBy_Behind() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	// Behind a load balancer whose addresses begin with 10, which sets X-Forwarded-For.
	limit, err := httplimit.Limit(store, "100/1m", httplimit.ByIP.Behind("10.0.0.0/8"))
	if err != nil {
		log.Fatal(err)
	}
	// Behind a gateway that has authenticated the user, and says so in a header.
	limitUsers, err := httplimit.Limit(store, "1000/1h", httplimit.ByHeader("X-User-ID").Behind("10.0.0.0/8"))
	if err != nil {
		log.Fatal(err)
	}

	rec := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.RemoteAddr = "10.1.2.3:4567"
	r.Header.Set("X-Forwarded-For", "192.0.2.1")
	r.Header.Set("X-User-Id", "alice")
	limit(limitUsers(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println(httplimit.VerdictOf(r.Context()).Subject.User)
	}))).ServeHTTP(rec, r)
	// Output: alice
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

// A program asks a Stint server before it asks a language model, and says afterwards what that has used.
func ExampleClient() {
	server := newServer()
	client := httplimit.Client{URL: server.URL} // and a Token, if the server wants one

	ctx := context.Background()
	answer, err := client.Reserve(ctx, httplimit.Ask{
		Method: "POST", Path: "/v1/chat/completions", User: "alice", Usage: map[rule.Meter]int64{"llm.total_tokens": 800},
	})
	if err != nil {
		log.Fatal(err)
	}
	if !answer.Allowed {
		fmt.Println(answer.Status, answer.Reason)
		return
	}
	// Here the model answers. If it cannot be reached: client.Cancel(ctx, answer.Ticket)
	receipt, err := client.Commit(ctx, answer.Ticket, engine.Usage{Meters: map[rule.Meter]int64{"llm.total_tokens": 650}})
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range receipt.Limits {
		fmt.Println(l.Name, "used", l.Used, "of", l.Reserved, "reserved; remaining", l.Remaining)
	}
	server.Close()
	// Output:
	// tokens used 650 of 800 reserved; remaining 99350
}

// newServer returns a server with the decision API.
func newServer() *httptest.Server {
	e, store := newEngine()
	file, err := rule.ParseTOML("rules.toml", []byte(`
		[[rules]]
		name     = "tokens"
		count_by = ["user"]
		cost     = { meter = "llm.total_tokens", reserve = 500 }
		limits   = [ { name = "tokens", limit = "100000/month" } ]
	`))
	if err != nil {
		log.Fatal(err)
	}
	rules, err := rule.Compile(file)
	if err != nil {
		log.Fatal(err)
	}
	if err := e.Use(rules, e.Identity()); err != nil {
		log.Fatal(err)
	}
	tickets, err := engine.NewTickets(nil, []byte(rand.Text()+rand.Text()))
	if err != nil {
		log.Fatal(err)
	}
	api, err := httplimit.API(httplimit.APIOptions{Engine: e, Store: store, Tickets: tickets})
	if err != nil {
		log.Fatal(err)
	}
	return httptest.NewServer(api)
}
