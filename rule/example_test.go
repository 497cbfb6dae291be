package rule_test

import (
	"fmt"

	"github.com/stintdev/stint/rule"
)

func Example() {
	f, err := rule.ParseTOML("stint.toml", []byte(`
		[[rules]]
		name     = "api"
		match    = { paths = ["/api/**"] }
		count_by = ["tenant"]
		limits   = [{ name = "api", limit = "1000/1m" }]

		[[rules]]
		name     = "search"
		match    = { paths = ["/api/search"], methods = ["GET"] }
		count_by = ["user", "endpoint"]
		limits   = [{ name = "search", limit = "10/1s" }]

		[[tiers]]
		name   = "premium"
		limits = { search = "50/1s" }
	`))
	if err != nil {
		fmt.Println(err)
		return
	}
	set, err := rule.Compile(f)
	if err != nil {
		fmt.Println(err)
		return
	}
	request := &rule.Attrs{Method: "GET", Path: "/api//search?q=x", User: "42", Tenant: "acme", Tier: "premium"}
	hits := set.Match(nil, request)
	asks, _ := set.Asks(nil, hits, request, nil)
	for _, h := range hits {
		for _, ask := range asks[h.From:h.To] {
			fmt.Println(h.Rule.Name, h.Endpoint, ask.Key, ask.Limit)
		}
	}
	// Output:
	// api /api/** {tenant:acme}:api:api 1000/1m
	// search /api/search {user:42}:search:search:11:/api/search 50/1s
}
