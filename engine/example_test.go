package engine_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

func Example() {
	file, err := rule.ParseTOML("rules.toml", []byte(`
		[[rules]]
		name     = "search"
		match    = { paths = ["/search"] }
		count_by = ["ip"]
		limits   = [ { name = "search", limit = "2/1m" } ]
	`))
	if err != nil {
		log.Fatal(err) // every problem, with its line and column
	}
	rules, err := rule.Compile(file)
	if err != nil {
		log.Fatal(err)
	}
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	e, err := engine.New(engine.Options{Store: store, Rules: rules})
	if err != nil {
		log.Fatal(err)
	}

	request := engine.Request{Method: "GET", Path: "/search", Peer: netip.MustParseAddr("192.0.2.1")}
	for range 3 {
		verdict, err := e.Decide(context.Background(), request)
		if err != nil {
			log.Fatal(err)
		}
		limit := verdict.Binding()
		fmt.Println(verdict.Outcome, limit.Name, limit.Decision.Remaining, "of", limit.Decision.Limit)
	}
	// Output:
	// allowed search 1 of 2
	// allowed search 0 of 2
	// denied search 0 of 2
}
