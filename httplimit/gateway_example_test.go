package httplimit_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// A gateway in front of one server, which lets each address ask twice a minute.
func ExampleNewGateway() {
	rules, err := rule.Compile(rule.File{Rules: []rule.Rule{{
		Name: "each", CountBy: []rule.Dimension{"ip"}, Limits: []rule.Limit{{Name: "each", Limit: "2/1m"}},
	}}})
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
	target := httptest.NewServer(httplimit.Echo())
	g, err := httplimit.NewGateway(httplimit.GatewayOptions{
		Engine: e,
		Routes: []httplimit.Route{{Prefix: "/api", Targets: []string{target.URL}, StripPrefix: true}},
	})
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(g)
	for range 3 {
		res, err := http.Get(server.URL + "/api/items")
		if err != nil {
			log.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		fmt.Println(res.Status, "remaining:", res.Header.Get("X-Ratelimit-Remaining"))
	}
	server.Close()
	target.Close()
	// Output:
	// 200 OK remaining: 1
	// 200 OK remaining: 0
	// 429 Too Many Requests remaining: 0
}
