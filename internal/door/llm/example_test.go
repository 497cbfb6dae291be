package llm_test

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/stintdev/stint/internal/door/llm"
)

// A request that would not report its usage, and the answer, as a gateway sees them.
func Example() {
	body := []byte(`{"model":"gpt-4o","stream":true,"max_tokens":50,"messages":[{"role":"user","content":"How many geese?"}]}`)
	request := llm.ReadRequest(llm.ShapeOf("/v1/chat/completions"), body, int64(len(body)))
	most, capped := request.Reserve()
	fmt.Println("reserve", most.Input, most.Output, capped)

	asking, asked := request.AskUsage(body)
	fmt.Println("send", len(asking)-len(body), "bytes more")
	var filter *llm.Filter
	if asked {
		filter = llm.NewFilter()
	}

	answer := llm.NewResponse(request.Shape, request.Prompt, http.Header{"Content-Type": {"text/event-stream"}})
	var client []byte
	for piece := range strings.Lines(`data: {"model":"gpt-4o-2024-08-06","choices":[{"delta":{"content":"Twelve."}}],"usage":null}

data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":3,"total_tokens":14}}

data: [DONE]

`) {
		answer.Write([]byte(piece))
		client = filter.Append(client, []byte(piece))
	}
	usage := answer.End()
	client = filter.Flush(client)
	fmt.Println("used", usage.Input, usage.Output, usage.Estimated)

	prices, err := llm.NewPrices(map[string]llm.Price{"gpt-4o": {Input: 2_500_000, Output: 10_000_000}})
	if err != nil {
		panic(err)
	}
	cost, err := prices.Cost(&usage, request.Model)
	fmt.Println("costs", cost, err)
	fmt.Println("events", strings.Count(string(client), "data"))
	// Output:
	// reserve 9 50 true
	// send 40 bytes more
	// used 11 3 false
	// costs 58 <nil>
	// events 2
}
